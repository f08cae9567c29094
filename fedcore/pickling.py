"""What a user's code consists of: as pickles that another process can read, and as values that can be compared.

Pickles are by reference, but what only this program knows is by value.
"""

import dis
import io
import pickle
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from contextvars import ContextVar
from functools import cache, lru_cache, partial
from logging import Logger
from pathlib import Path
from types import CellType, CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

from torch import Tensor

from fedcore.errors import InputError, is_installed


class Pickler(pickle.Pickler):
    """Pickles by value the functions and classes that another process cannot import: those of the main program or of a
    notebook, those defined inside a function, and lambdas."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, FunctionType | type) and (
            value.__module__ == "__main__"
            or "<" in value.__qualname__
            or getattr(sys.modules.get(value.__module__), value.__qualname__, value) is not value  # by functools.wraps
        ):
            import cloudpickle  # a device of the field has none

            try:
                return pickle.loads, (cloudpickle.dumps(value),)
            except (TypeError, pickle.PicklingError) as error:  # of a lock, or a file that is open
                name = f"{value.__qualname__} uses what cannot go to another process ({error})"
                raise InputError(f"{name}; make it inside, or in a file that is imported") from error
        return NotImplemented


def dumps(value: object) -> bytes:
    """Return a value as `pickle.loads` reads it, here or in another process."""
    stream = io.BytesIO()
    Pickler(stream, protocol=5).dump(value)
    return stream.getvalue()


MOST = 10_000
"""The most values of a function's own that are compared."""

TABLES = "_parameters", "_buffers", "_modules"
"""Attributes of a module whose entries are its attributes."""


def to_bytes(value: object) -> bytes:
    """Return a value as bytes; none for what cannot be pickled."""
    if isinstance(value, CodeType):
        codes = [to_bytes(part) for part in value.co_consts if isinstance(part, CodeType)]
        rest = sorted(repr(part) for part in value.co_consts if not isinstance(part, CodeType | frozenset))
        return repr((value.co_code, value.co_names, codes, rest)).encode()
    with suppress(Exception):
        return pickle.dumps(value.detach().cpu().numpy() if isinstance(value, Tensor) else value)
    return b""


def list_values(*roots: object) -> dict[str, bytes]:
    """Return the values of `values_of` as bytes."""
    return {path: to_bytes(value) for path, value in values_of(*roots)}


def values_of(*roots: object) -> Iterator[tuple[str, object]]:
    """Yield what functions and classes reach beside arguments, by path: attributes, closures, globals of a user.

    Of the user's files that they are in, use, import or name, it is what any of their code names, as `getattr` does.
    """
    seen, waiting = set[object](), [(root.__name__ if isinstance(root, type) else "", root) for root in roots]
    files, words, read = dict[str, ModuleType](), set[str](), set[str]()
    while waiting and len(seen) < MOST:
        path, value = waiting.pop()
        parts = _parts(value)
        if (it := (id(value), "" if parts and not isinstance(value, tuple) else path)) not in seen:
            seen.add(it)
            files |= {value.__name__: value} if isinstance(value, ModuleType) else {}
            if not parts:
                yield path, value
            elif isinstance(value, FunctionType):
                yield path, value.__code__
                path, texts = "", _names(value.__code__, "IMPORT_NAME", "_CONST")  # "": globals
                words |= _names(value.__code__, "_ATTR", "_METHOD", "_FROM") | texts
                texts = texts | {f"{value.__globals__.get('__package__')}.{name}".strip(".") for name in texts}
                files |= {name: sys.modules[name] for name in {value.__module__, *texts} & sys.modules.keys()}
            shown = {name: "" if name in TABLES else name for name in parts}
            waiting += [(f"{path}.{shown[name]}".strip("."), part) for name, part in parts.items()]
        if not waiting:
            named = {f"{file}.{name}": part for file in sorted(files) if is_users(file) and file != "__main__"
                     for name, part in vars(files[file]).items() if name in words and name[:2] != "__"}  # fmt: skip
            waiting = [(path, part) for path, part in named.items() if path not in read]
            read |= named.keys()


@cache
def is_users(module: str) -> bool:
    """Tell whether a module is the user's: neither fedcore's nor installed. One sent by value is in no file here."""
    file = getattr(sys.modules.get(module), "__file__", None)
    own = file and not module.startswith("fedcore.") and not is_installed(Path(file))
    return bool(own) or module == "__main__" or module not in sys.modules


def _parts(value: Any) -> dict[str, Any]:
    """Return what a value consists of, by name; nothing of a number, a tensor, an array, or what is no user's.

    A function of another's decorator has the name of the function that it wraps, but not its globals.
    """
    of = value.__globals__.get("__name__") if isinstance(value, FunctionType) else getattr(value, "__module__", None)
    if isinstance(value, FunctionType | type) and not is_users(str(of)):
        return {"": vars(value)["__wrapped__"]} if "__wrapped__" in vars(value) else {}
    if isinstance(value, ContextVar):
        return {"get": value.get(None)}
    if isinstance(value, partial):
        return {"": value.func, **{str(number): part for number, part in enumerate(value.args)}, **value.keywords}
    if isinstance(value, MethodType | property):
        return {"": value.fget if isinstance(value, property) else value.__self__}
    if isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        closure = {name: cell.cell_contents for name, cell in cells if cell != CellType()}
        reached = {name: value.__globals__.get(name) for name in sorted(_names(value.__code__, "_GLOBAL"))}
        return reached | closure | vars(value) | {"default": value.__defaults__, "defaults": value.__kwdefaults__}
    if isinstance(value, dict | MappingProxyType | list | tuple | deque):
        pairs = value.items() if isinstance(value, dict | MappingProxyType) else enumerate(value)
        return {str(name): part for name, part in pairs}
    if isinstance(value, ModuleType | Tensor | Logger) or not hasattr(value, "__dict__"):
        slots = [name for of in type(value).__mro__ if is_users(of.__module__) for name in getattr(of, "__slots__", ())]
        return {name: getattr(value, name, None) for name in slots} | {"": type(value)} if slots else {}
    types = {of.__name__: of for of in value.__bases__} if isinstance(value, type) else {"": type(value)}
    return {**{name: part for name, part in vars(value).items() if name != "__slotnames__"}, **types}


@lru_cache(1024)
def _names(code: CodeType, *kinds: str) -> set[str]:
    """Return the names that a function's code, and the functions in it, take from elsewhere. kinds: of instructions."""
    found = {step.argval for step in dis.get_instructions(code) if step.opname.endswith(kinds)}
    own = {name for part in found for name in (part if isinstance(part, tuple) else (part,)) if isinstance(name, str)}
    return own.union(*(_names(part, *kinds) for part in code.co_consts if isinstance(part, CodeType)))
