"""A step's key covers all that its result depends on, and nothing else.

key = digests of the inputs + the settings bound to the function + the source that the function reaches (comments and
docstrings aside) + the versions of the packages which that source uses.
"""

import ast
import builtins
import gc
import importlib.util
import os
import re
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache, cached_property, lru_cache, partial
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fedcore.builders import name_of
from fedcore.errors import InputError, is_installed
from fedcore.pipeline.cache.store import Ref, digest_of

OWN_PACKAGES = {"fedcore"}
"""Top-level packages that keys cover by source; they cover other installed packages by version."""

BUILTINS = frozenset(dir(builtins))

EFFECTS = "*"
"""Stands for the statements of a user's module that act without defining a name, such as a decorated function's."""

ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "expandvars"}
"""Names by which a program reads environment variables."""

EVERY = {"globals", "eval", "exec", "modules"}
"""Names by which a module may take any of its names: builtins, and `sys.modules`."""

OPENS = re.compile(r"""\w*open\(.*(['"])[rbt]*[wax+][wbt+]*\1|write""", re.DOTALL)
SAVES = re.compile("save|dump|to_(csv|excel|feather|hdf|html|json|latex|parquet|pickle|sql|stata|xml)")
"""What a call writes a file by; what names a file in it is no input, of the first one also what it is called on."""

READS = re.compile("open|read|load|from|map|path|connect|File")
"""What a statement may read a file by."""

OF_RUNS = ".fedcore", "mlflow.db", "mlruns", "pipeline", "results", "runs"
"""What runs write in a project: a file there that a source names is no input."""

_PARSING = threading.Lock()


def key(fn: Callable[..., Any], *args: Any) -> str:
    """Return the key of calling a function: 40 hexadecimal digits."""
    return Digest().of(("step", fn, args))


class Digest:
    """Computes digests of values, equal ones for equal values in every process. Shared parts are digested once."""

    def __init__(self) -> None:
        self.cached: dict[int, tuple[Any, str]] = {}

    def of(self, value: Any) -> str:
        kind = type(value)
        if kind is str or kind is int or kind is Ref:
            return _of_plain(kind, value.digest if kind is Ref else value)  # type: ignore[arg-type]
        if kind is tuple:
            return digest_of("\x1f".join(["tuple", *map(self.of, value)]))
        if is_dataclass(value) or isinstance(value, partial | dict):
            cached = self.cached.get(id(value))
            if cached is None:
                cached = self.cached[id(value)] = (value, self._hash(value))
            return cached[1]
        return self._hash(value)

    def _hash(self, value: Any) -> str:
        return digest_of("\x1f".join([type(value).__name__, *_class_source(type(value)), *self.key_parts(value)]))

    def key_parts(self, value: Any) -> Iterator[str]:
        """Yield texts that distinguish a value from all others of its type."""
        if isinstance(value, Ref):
            yield value.digest
        elif value is None or isinstance(value, bool | int | float | str):
            yield repr(value)
        elif isinstance(value, torch.Tensor | np.ndarray):
            content = value.numpy(force=True) if isinstance(value, torch.Tensor) else value
            known = content.dtype.hasobject and self.of(content.tolist())
            known = known or digest_of(np.ascontiguousarray(content).tobytes())
            yield from (str(value.dtype), str(tuple(value.shape)), known)
        elif isinstance(value, partial):
            yield from (self.of(value.func), self.of(value.args), self.of(value.keywords))
        elif isinstance(value, dict | tuple | list):
            yield from map(self.of, value.items() if isinstance(value, dict) else value)
        elif isinstance(value, frozenset | set):
            yield from sorted(self.of(part) for part in value)
        elif is_dataclass(value) and not isinstance(value, type):
            for of in fields(value):
                if of.metadata.get("digest", True):
                    yield of.name
                    yield self.of(getattr(value, of.name))
        elif not callable(value) or not (name := getattr(value, "__qualname__", "")):
            advice = "give a dataclass, a tensor, or a tuple or dict of texts and numbers"
            raise InputError(f"a step cannot be keyed by {type(value).__name__}: {advice}")
        elif getattr(sys.modules.get(value.__module__), name, None) is not value:
            advice = "write it at the top of a module by its own name, since its source is part of the step's key"
            raise InputError(f"a step cannot be keyed by {name_of(value)}: {advice}")
        else:
            yield source(value.__module__, name)


def _class_source(kind: type) -> list[str]:
    """Return the source of a user's class, whose methods a step may call; steps reach those of fedcore by name."""
    top = kind.__module__.split(".")[0]
    known = top in OWN_PACKAGES or _is_pythons(top) or versions_of(top)
    return [] if known else [source(kind.__module__, kind.__qualname__.split(".")[0])]


@lru_cache(1 << 16)
def _of_plain(kind: type, value: Any) -> str:
    """Return the digest of a text, a whole number or a reference, given by its digest: devices' names, rounds, data."""
    return digest_of(f"{kind.__name__}\x1f{value if kind is Ref else repr(value)}")


@cache
def source(module: str, name: str) -> str:
    """Return the digest of the source of a module's name, and of all names that it uses, directly or indirectly.

    Where a user's source reads environment variables, the values of those that it names belong to it; where it reads
    files, the bytes of those that its texts name, in the current folder or beside it, if it only reads them.
    """
    reached: dict[tuple[str, str], str] = {}
    files, reading, written = dict[tuple[str, str], dict[str, str]](), set[tuple[str, str]](), set[tuple[str, str]]()
    versions, words = set[str](), set[str]()
    todo, follow = [(module, name)], OWN_PACKAGES | {module.split(".")[0]}
    while todo:
        definition = todo.pop()
        if definition in reached:
            continue
        where, symbol = definition
        reached[definition] = ""
        top = where.split(".")[0]
        if _is_pythons(top):
            continue
        if top not in follow and (installed := versions_of(top)):
            versions |= installed
            continue
        names = _definitions(where)
        todo += [(where, EFFECTS)] if EFFECTS in names else []
        if not symbol and top not in OWN_PACKAGES:  # the module itself, of which any name may be taken
            todo += [(where, other) for other in names]
        todo += [(name[1:], symbol) for name in names if name[:1] == EFFECTS != name]
        if symbol not in names:
            todo += [(where, "__getattr__")] if "__getattr__" in names else []
        # The name of a submodule, which a user's package may import by this name.
        if symbol not in names or top not in OWN_PACKAGES:
            todo += [(f"{where}.{symbol}", other) for other in _definitions(f"{where}.{symbol}")]
        for statement in names.get(symbol, ()):
            reached[definition] += statement.text
            todo += statement.uses
            if top not in OWN_PACKAGES and not versions_of(top):
                words |= {*statement.words, *(name for _, name in statement.uses if name in ENVIRONMENT)}
                files.setdefault(definition, {}).update(statement.files)
                reading |= {definition} if statement.reads else set()
                written |= {*statement.written}
    parts = [f"{file}:{symbol}:{text}" for (file, symbol), text in sorted(reached.items()) if text or symbol != EFFECTS]
    named = words & (os.environ.keys() - {"_"}) if words & ENVIRONMENT else ()  # "_": the last command of a shell
    parts += [f"{name}={os.environ[name]}" for name in sorted(named)]
    named_files = [files[of] for of in files if reading and (of in reading or of not in written)]
    inputs = {path: of for each in named_files for path, of in each.items()}
    parts += sorted(f"{of}={digest_of(Path(path).read_bytes())}" for path, of in inputs.items())
    return digest_of("\x1f".join([f"{module}.{name}", *parts, *sorted(versions)]))


def _is_pythons(package: str) -> bool:
    """Tell whether a package is Python's own, not a user's file by the same name."""
    return package in sys.stdlib_module_names and ((path := _find(package)) is None or is_installed(path))


@cache
def versions_of(package: str) -> frozenset[str]:
    """Return {"name==version"} of an installed package; nothing for a user's own module, though one has its name."""
    if (path := _find(package)) and not is_installed(path) and package not in OWN_PACKAGES:
        return frozenset()
    owners = [dist for dist, paths in _distributions() if f"\n{package}/" in paths or f"\n{package}." in paths]
    return frozenset(f"{owner.name}=={metadata.version(owner.name)}" for owner in owners)


@cache
def _distributions() -> list[tuple[metadata.Distribution, str]]:
    """Return the installed distributions, each with the paths of its files."""
    # metadata.packages_distributions parses all of these paths: half a second for each flow.
    return [(distribution, f"\n{distribution.read_text('RECORD') or ''}") for distribution in metadata.distributions()]


@cache
def _find(module: str) -> Path | None:
    if module in sys.modules:
        origin = getattr(sys.modules[module], "__file__", None)
        return Path(origin) if origin else None
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None


class Statement:
    """A top-level statement of a module, read when it is asked: a key reaches some of a module's names."""

    def __init__(self, tree: ast.stmt, module: str, package: str, imported: Mapping[str, tuple[str, str]]) -> None:
        self._tree, self._module, self._imported = _strip(tree), (module, package), imported

    @cached_property
    def text(self) -> str:
        """The normalised source."""
        return ast.dump(self._tree)

    @cached_property
    def uses(self) -> list[tuple[str, str]]:
        """The (module, name) pairs that it uses."""
        return _uses(self._tree, *self._module, self._imported)

    @property
    def words(self) -> set[str]:
        """The words of its texts, and the attributes that it names."""
        texts = [
            getattr(node, "value" if isinstance(node, ast.Constant) else "attr", "") for node in ast.walk(self._tree)
        ]
        return {*re.findall(r"\w+", " ".join(map(str, texts)))}

    @cached_property
    def reads(self) -> bool:
        """Whether it may read a file."""
        return READS.search(ast.unparse(self._tree)) is not None

    @cached_property
    def _writing(self) -> list[ast.AST]:
        found: list[ast.AST] = []
        for call in (node for node in ast.walk(self._tree) if isinstance(node, ast.Call)):
            if OPENS.match(words := _own_words(call)):
                found += ast.walk(call)
            elif SAVES.match(words):
                found += [call, *(part for of in (*call.args, *call.keywords) for part in ast.walk(of))]
        return found

    @property
    def files(self) -> dict[str, str]:
        """The files that its texts name, but programs and those that it writes: path -> the words for it in a key."""
        beside = (_find(self._module[0]) or Path()).parent
        writing = {*map(id, self._writing)}
        found = (_path_in(node) for node in ast.walk(self._tree) if id(node) not in writing)
        named = [of for of in found if of[-3:] != ".py" and of.removeprefix("./").partition("/")[0] not in OF_RUNS]
        places = [(of, of) for of in named] + [(f"{self._module[0]}: {of}", beside / of) for of in named]
        return {os.path.realpath(path): of for of, path in places if os.path.isfile(path)}

    @property
    def written(self) -> set[tuple[str, str]]:
        """The (module, name) pairs of texts by which it names a file that it writes."""
        names = (node.id for node in self._writing if isinstance(node, ast.Name))
        return {self._imported.get(name, (self._module[0], name)) for name in names}


class Import(NamedTuple):
    """A name that a module imports, which another module may import from this one."""

    uses: list[tuple[str, str]]
    text: str = ""
    words: Collection[str] = ()
    files: Mapping[str, str] = {}
    written: Collection[tuple[str, str]] = ()
    reads: bool = False


def _own_words(call: ast.Call) -> str:
    """Return a call in words, with the texts that it is given itself alone."""
    given = (of for of in (*call.args, *(word.value for word in call.keywords)) if isinstance(of, ast.Constant))
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    return f"{name}({', '.join(map(ast.unparse, given))})"


def _path_in(node: ast.AST) -> str:
    """Return the path of a text, of texts that `/` joins, or of those that a call is given; "" where there are none."""
    match node:
        case ast.Constant(value=str()):
            return str(node.value)
        case ast.BinOp(op=ast.Div()):
            return os.path.join(_path_in(node.left), _path_in(node.right))
        case ast.Call() if node.args:
            return os.path.join(*map(_path_in, node.args))
    return ""


@cache
def _definitions(module: str) -> dict[str, list[Statement | Import]]:
    """Return each top-level name of a module with what defines it."""
    path = _find(module)
    if path is None or not path.is_file():
        return {}
    if path.suffix != ".py":  # compiled, and of no installed package, whose version would say which it is
        return {EFFECTS: [Import([], digest_of(path.read_bytes()))]}
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    body = _parse(_text(module)).body
    inside = [of for of in body if not isinstance(of, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    nodes = [node for of in inside for node in ast.walk(of)]
    every = [pair for node in nodes for pair in _imports(node, package).items()]
    imported = dict(every)
    names: dict[str, list[Statement | Import]] = {}
    for statement in body:
        read = Statement(statement, module, package, imported)
        for name in _defined_names(statement):
            names.setdefault(name, []).append(read)
    bound: dict[str, list[Statement | Import]] = {name: [Import([origin])] for name, origin in imported.items()}
    if module.split(".")[0] in OWN_PACKAGES:
        return bound | names
    others = [of for _, (origin, name) in every for of in (origin, f"{origin}.{name}".strip(".*"))]
    others += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    tops = {of: of.split(".")[0] for of in (module.rpartition(".")[0], *others) if of}
    users = [of for of, top in tops.items() if not (top in OWN_PACKAGES or _is_pythons(top) or versions_of(top))]
    registers = any(_registers(of) for of in (module, *users))
    acts = [of for of in body if _acts(of, imported, registers)]
    origins = [(of, "" if _registers(module) else EFFECTS) for of in users]
    origins += [origin for _, origin in every if origin not in imported.values()]  # one of several by one name
    effects: list[Statement | Import] = [Import(origins), *(Statement(of, module, package, imported) for of in acts)]
    return bound | names | {EFFECTS: effects}


def _text(module: str) -> str:
    path = _find(module)
    return path.read_text() if path is not None and path.suffix == ".py" else ""


def _registers(module: str) -> bool:
    """Tell whether a module has classes that may act as others are derived from them."""
    return "subclass" in _text(module) or "metaclass" in _text(module)


def _acts(statement: ast.stmt, imported: Collection[str], registers: bool) -> bool:
    """Tell whether a statement of a user's module may do more than define the names that it defines.

    registers: classes may be registered as they are made.
    """
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
            return False
        case ast.FunctionDef(decorator_list=marks) | ast.AsyncFunctionDef(decorator_list=marks):
            return bool(marks)
        case ast.ClassDef(decorator_list=marks, keywords=settings):
            return bool(marks or settings) or registers
    calls = any(isinstance(node, ast.Call) for node in ast.walk(statement))
    return calls or {*_defined_names(statement)} <= {*imported}


def _parse(text: str) -> ast.Module:
    """Return the syntax tree of a text, while no garbage is collected.

    Python counts the depth of the trees that it builds in one number for all threads, and raises SystemError if it does
    not come back to its start. A collection in the middle of a tree may run code that parses something, too, or let
    another thread do so.
    """
    with _PARSING:
        collects = gc.isenabled()
        gc.disable()
        try:
            return ast.parse(text)
        finally:
            if collects:
                gc.enable()


def _defined_names(statement: ast.stmt) -> list[str]:
    """Return the names that a top-level statement defines or whose values it changes, except imports."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    return list(dict.fromkeys(name for node in ast.walk(statement) for name in _target_names(node)))


def _target_names(node: ast.AST) -> list[str]:
    """Return the name that a part of a statement defines or changes: x = ..., x[k] = ..., x.y = ..., x.add(...)."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Name(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()) | ast.Attribute(ctx=ast.Store()):
            changed: ast.AST = node
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=changed))):
            pass
        case _:
            return []
    while isinstance(changed, ast.Subscript | ast.Attribute):
        changed = changed.value
    return [changed.id] if isinstance(changed, ast.Name) else []


def _imports(node: ast.AST, package: str) -> dict[str, tuple[str, str]]:
    """Return the names that an import statement binds: local name -> (module, name); the name is "" for a module."""
    bound: dict[str, tuple[str, str]] = {}
    if isinstance(node, ast.Import):
        for alias in node.names:
            module = alias.name if alias.asname else alias.name.split(".")[0]
            bound[alias.asname or module] = (module, "")
    elif isinstance(node, ast.ImportFrom):
        base = package.rsplit(".", node.level - 1)[0] if node.level else ""
        origin = ".".join(part for part in (base, node.module) if part)
        for alias in node.names:
            bound[f"*{origin}" if alias.name == "*" else alias.asname or alias.name] = (origin, alias.name)
    return bound


def _uses(
    statement: ast.stmt, module: str, package: str, imported: Mapping[str, tuple[str, str]]
) -> list[tuple[str, str]]:
    """Return the (module, name) pairs that a statement refers to."""
    names = dict(imported)
    pairs, users = list[tuple[str, str]](), package.split(".")[0] not in OWN_PACKAGES
    for node in ast.walk(statement):
        names |= (inside := _imports(node, package))
        pairs.extend(inside.values() if users else ())  # in a class they are attributes; of two, either may be taken

    def visit(node: ast.AST) -> None:
        chain, at = list[str](), node
        while isinstance(at, ast.Attribute):
            chain, at = [at.attr, *chain], at.value
        if chain and isinstance(at, ast.Name) and at.id in names:
            origin, name = names[at.id]
            inner = f"{origin}.{name}" if name else origin
            # `local.train` uses one name of the module local; `Training.lr` uses the class.
            attribute = "" if chain[0] == "__dict__" else chain[0]
            pairs.append((inner, attribute) if _find(inner) is not None else (origin, name))
            pairs.extend([(module, "")] if users and origin in ("sys", "builtins") and chain[0] in EVERY else [])
            for outer, attribute in pairwise(chain) if users and not versions_of(origin.split(".")[0]) else ():
                inner = f"{inner}.{outer}"
                pairs.extend([(inner, attribute)] if _find(inner) is not None else [])
            return
        if isinstance(node, ast.Name) and (node.id not in BUILTINS or users):
            pairs.append(found := names.get(node.id, (module, "" if node.id in EVERY & BUILTINS else node.id)))
            pairs.extend([(module, "")] if found[0] in ("sys", "builtins") and found[1] in EVERY and users else [])
        pairs.extend((of, "") for of in _called(node, package, names) if users)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(statement)
    return pairs


def imported_by(file: Path, package: str) -> Iterator[str]:
    """Yield the modules that a file imports, by statements and by calls; none is imported for it."""
    nodes = list[ast.AST]()
    with suppress(SyntaxError, UnicodeDecodeError):  # nothing can import it
        nodes += ast.walk(_parse(file.read_text()))
    bound = [pair for node in nodes for pair in _imports(node, package).items()]
    yield from (origin for _, (origin, _) in bound)
    for node in nodes:
        yield from _called(node, package, dict(bound))


def own_places(modules: Iterable[str]) -> Iterator[Path]:
    """Yield the files and packages of a user's modules, and of those of the user's that these import."""
    found, seen = [*modules], set[Path]()
    for module in filter(None, found):  # which grows
        top = module.split(".")[0]
        file = _find(top) or _find(module)  # a folder without __init__.py is no file
        if file and not (file in seen or top in OWN_PACKAGES or is_installed(file)) and file.is_file():
            seen.add(file)
            yield (place := file.parent if file.name == "__init__.py" else file)
            found += [of for part in sorted(place.rglob("*.py")) or [file] for of in imported_by(part, top)]


def _called(node: ast.AST, package: str, names: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    """Yield the modules that texts may name: import_module("acts"), sys.modules["acts"], "acts.py"."""
    match node:
        case ast.Constant(value=str(text)) if text.endswith(".py"):
            for file in (Path(text), Path(*package.split("."), text)):  # looking for others could import a package
                if any(Path(folder, file).is_file() for folder in sys.path) and not file.is_absolute():
                    yield ".".join(file.with_suffix("").parts)
        case ast.Call(func=of) | ast.Subscript(value=of) if re.search(
            "import|modules", f"{ast.unparse(of)} {names.get(ast.unparse(of))}"
        ):
            texts = [str(part.value) for part in ast.walk(node) if isinstance(part, ast.Constant)]
            for text in [of for of in texts if of.lstrip(".").replace(".", "_").isidentifier()]:
                with suppress(ImportError):
                    yield importlib.util.resolve_name(text, package)


def _strip(statement: ast.stmt) -> ast.stmt:
    """Return a statement without docstrings and words for steps; a syntax tree has no comments and no layout."""
    for node in ast.walk(statement):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            marks = node.decorator_list
            node.decorator_list = [mark for mark in marks if not ast.unparse(mark).startswith("step_word(")]
            if ast.get_docstring(node, False) is not None:
                node.body = node.body[1:] or [ast.Pass()]
    return statement
