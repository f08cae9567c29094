"""Names: those of tests fit a line, the pipeline knows no method by its own, and what a docstring names exists."""

import ast
import builtins
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import pytest

from fedcore.methods import METHODS

ROOT = Path(__file__).parents[1]
LONGEST = 70


def test_names_of_tests_are_short():
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    names = {name: file.name for file in files for name in re.findall(r"def (test_\w+)", file.read_text())}
    assert len(names) > 500
    assert {name: file for name, file in names.items() if len(name) > LONGEST} == {}


PIPELINE = ROOT / "fedcore" / "pipeline"
SOURCES = {path.relative_to(PIPELINE).as_posix(): path for path in sorted(PIPELINE.rglob("*.py"))}


def words_of(source: str) -> set[str]:
    """Return the strings of a module, and all names that it imports or uses."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Constant(value=str(text)):
                found.add(text)
            case ast.Name(id=name) | ast.Attribute(attr=name):
                found.add(name)
            case ast.alias(name=name):
                found |= {*name.split(".")}
            case ast.ImportFrom(module=str(module)):
                found |= {*module.split(".")}
    return found


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.slow
def test_no_method_is_named_in_the_pipeline(name: str):
    assert not words_of(SOURCES[name].read_text()) & {*METHODS}


# what a docstring names

FILES = [path for room in ("fedcore", "flows", "tasks") for path in sorted((ROOT / room).rglob("*.py"))]

COMMANDS = re.compile(r"(dvc|git|make|pip|prefect|python|server start)\b")
"""A text that begins so is another program's command."""
VARIABLE = re.compile(r"_[A-Z]+$")
"""The end of a column's name that stands for many: `label_NAME`."""
ALLOWED = {
    "Parameter.empty", "curves.pdf", "none", "prefect.locking.protocol.LockManager", "savefig", "subprocess.Popen",
    "batchmean", "processed", "training.pt", "true", "x.view", "A", "B", "T_0", "mu",
    "ASGI", "BLAS", "EXIF", "ITU", "MAT", "MD5", "NIST", "OWASP",
    "PNG", "RFC", "SMTP", "SVD", "VALUE",
}  # fmt: skip
"""Names of other packages, words of YAML, symbols, and abbreviations that no page has."""


class Source:
    """A module's docstrings and the names that it makes, uses or has in its strings."""

    def __init__(self, path: str, text: str) -> None:
        self.path, self.tree = path, ast.parse(text)
        self.module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self.docstrings: list[str] = []
        self.used: set[str] = set()
        self.texts: set[str] = set()
        self.settings: set[str] = set()
        self.members: dict[str, set[str]] = {}
        for node in ast.walk(self.tree):
            self._read(node)

    def _read(self, node: ast.AST) -> None:
        match node:
            case ast.Expr(value=ast.Constant(value=str(text)) as constant):
                self.docstrings.append(text)
                constant.value = None
            case ast.Constant(value=str(text)):
                self.used |= {*re.findall(r"\w+", text)}
                self.texts.add(text)
            case ast.FunctionDef(name=name):
                self.used.add(name)
                self.settings |= {argument.arg for argument in node.args.kwonlyargs}
            case ast.ClassDef(name=name):
                self.used.add(name)
                own = [
                    x.attr
                    for x in ast.walk(node)
                    if isinstance(x, ast.Attribute) and getattr(x.value, "id", "") == "self"
                ]
                self.members[name] = {*_made(node.body), *own}
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                self.used.add(name)
            case ast.alias(name=name) | ast.ImportFrom(module=str(name)):
                self.used |= {*name.split(".")}

    @cached_property
    def made(self) -> set[str]:
        return {*_made(self.tree.body)}


def _made(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements make or import."""
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=targets):
                yield from (x.id for target in targets for x in ast.walk(target) if isinstance(x, ast.Name))
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from (alias.asname or alias.name for alias in names)
            case ast.If() | ast.Try():
                yield from _made(node.body)


class Names:
    """The names of all modules together."""

    def __init__(self, sources: list[Source], pages: str) -> None:
        self.sources = sources
        self.made = {name for source in sources for name in source.made} | {*dir(builtins)}
        self.modules = {source.module: source.made for source in sources}
        for module in [*self.modules]:
            room, _, name = module.rpartition(".")
            self.modules.setdefault(room, set()).add(name)
        self.parts = {part for module in self.modules for part in module.split(".")}
        self.members: dict[str, set[str]] = {}
        for source in sources:
            for name, members in source.members.items():
                self.members.setdefault(name, set()).update(members)
        types = (made for module, made in self.modules.items() if module.startswith("fedcore.types."))
        self.ground = set().union(*types)
        self.keys = {*set().union(*self.members.values()), *set().union(*(source.settings for source in sources))}
        self.texts = set().union(*(source.texts for source in sources))
        self.words = {*re.findall(r"\b[A-Z][A-Z0-9_]+\b", pages)}

    def dead(self, source: Source) -> list[str]:
        """Return what the docstrings of a module name and what does not exist."""
        text = "\n".join(source.docstrings)
        quoted = [x for x in re.findall(r"`+([^`\n]+?)`+", text) if not COMMANDS.match(x)]
        names = [x for words in quoted for x in re.findall(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", words)]
        constants = re.findall(r"(?<![\w.`-])[A-Z][A-Z0-9_]{2,}\b", re.sub(r"`[^`\n]+`", "", text))
        return sorted(
            {name for name in names if not self.exists(name, source)}
            | {name for name in constants if not self.exists(name, source) and name not in self.words}
        )

    def exists(self, name: str, source: Source) -> bool:
        """Say whether a name is of the module or a class that it uses, or a text, a definition or a module anywhere."""
        if name in self.texts or name in ALLOWED:
            return True
        before, _, last = VARIABLE.sub("", name).rpartition(".")
        if not before:
            owners = {*source.used, *self.ground} & self.members.keys()
            names = source.used.union(self.made, self.parts, *(self.members[owner] for owner in owners))
            return bool({last, name} & names)
        modules = [made for module, made in self.modules.items() if f".{module}".endswith(f".{before}")]
        owner = self.members.get(before.rpartition(".")[2])
        if owner is not None:
            return last in owner
        if any(last in made for made in modules) or name in source.used:
            return True
        # a variable or a section of settings, perhaps of a module's name: one of some class's fields, or a setting
        return "." not in before and (last in self.keys or (not modules and last in source.used))


def names_of_the_project() -> Names:
    sources = [Source(path.relative_to(ROOT).as_posix(), path.read_text()) for path in FILES]
    return Names(sources, "".join(path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")]))


@pytest.mark.slow
def test_what_docstrings_name_exists():
    names = names_of_the_project()
    assert len(names.sources) > 200
    assert {source.path: dead for source in names.sources if (dead := names.dead(source))} == {}


TEXT = '''
"""A CPU; `Loop.step`, `other.run`, `rounds` and `b`, as `cut` and LIMIT say; {dead}."""
LIMIT = 3
class Loop:
    rounds: int
    def step(self, a, *, cut): return a.b
'''


@pytest.mark.parametrize(
    "dead", ["`past`", "`Loop.past`", "`other.past`", "`fedcore.past`", "PAST", "PAST_LIMIT", "`past()`", "`x.past`"]
)
def test_a_name_that_is_gone_is_found(dead: str):
    one, other = Source("fedcore/one.py", TEXT.format(dead=dead)), Source("fedcore/other.py", "def run(): ...")
    assert [name.rpartition(".")[2].lower() for name in Names([one, other], "CPU").dead(one)] == [
        "past_limit" if "_" in dead else "past"
    ]
