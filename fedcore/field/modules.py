"""Modules of one's own in the field: no code travels, and a device runs a file whose digest its owner has allowed."""

import hashlib
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

from fedcore.errors import InputError

_LOADED: dict[str, str] = {}


def source_digest(name: str) -> str:
    """Return the SHA-256 of a module's file, which must be beside the command or on Python's path."""
    return hashlib.sha256(_source(name).read_bytes()).hexdigest()


def load_module(name: str, digest: str) -> None:
    """Import a module from its file, if that has this SHA-256: the bytes that were checked are those that run."""
    if _LOADED.get(name) == digest:
        return
    path = _source(name)
    content = path.read_bytes()
    if (digest_here := hashlib.sha256(content).hexdigest()) != digest:
        raise InputError(f"module {name}: {path} has the SHA-256 {digest_here}, not {digest}")
    spec = PathFinder.find_spec(name, [str(path.parent)])
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        exec(compile(content, str(path), "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    _LOADED[name] = digest


def _source(name: str) -> Path:
    spec = PathFinder.find_spec(name, [str(Path.cwd()), *sys.path]) if name.isidentifier() else None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise InputError(f"module {name}: Python finds no file {name}.py; in the field it must be one")
    return Path(spec.origin)
