"""A user's module, by import path: "package.module:Class" (or a function that returns a module).

Its key has what it is made of beside its source: its tensors, and the files that its constructor reads.
"""

import copyreg
import functools
import hashlib
import inspect
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from inspect import Parameter, Signature
from operator import methodcaller
from pathlib import Path
from types import CellType, FunctionType, ModuleType
from typing import Any, get_type_hints

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from fedcore.builders import NET_CONTEXT, group_settings, import_builder, suggesting
from fedcore.data.inputs import Input
from fedcore.errors import InputError, failing, is_installed
from fedcore.nets.inputs import blank, looks_up_places, takes_integers, with_integers, with_quantities, with_several
from fedcore.nets.mlp import MLP, by_autograd
from fedcore.nets.params import AGAIN, key, params_of
from fedcore.nets.randomness import construct_with
from fedcore.nets.trial import try_axes, try_out
from fedcore.pickling import TABLES
from fedcore.types.federation import Net


def custom(which: str | Callable[..., Any]) -> Callable[..., Net]:
    """Return the function (*, shape, classes, **settings) -> Net, with the settings of the user's callable.

    which: the callable, or its import path. It receives the settings, and `shape`, `classes` and `per_step` if it has
    such parameters; of several inputs `shape` is a dict of theirs. Nets can be aligned if it has an attribute `axes`, a
    table or a function of the same arguments that returns one; `nets.tables.table` derives one for many modules. Raises
    InputError for an unsuitable callable.
    """
    with suggesting(which):
        target = import_builder(which, "net.name") if isinstance(which, str) else which
    if isinstance(target, nn.Module):
        name = type(target).__name__
        raise InputError(f"net: a module of class {name} is made already; give its class: net({name}, ...)")
    path = which if isinstance(which, str) else getattr(which, "__qualname__", repr(which))
    if inspect.isclass(target) and not issubclass(target, nn.Module):
        raise InputError(f"net.name: {path!r} is not an nn.Module")
    settings = _settings(path, target)

    def make(
        *, shape: tuple[int, ...], classes: int, per_step: bool = False, several: tuple[Input, ...] = (),
        _before: tuple[bytes, Net] | None = None, **values: object,
    ) -> Net:  # fmt: skip
        shapes = {entry.name: entry.shape for entry in several} or tuple(shape)
        context = {"shape": shapes, "classes": classes, "per_step": per_step}
        given = {name: value for name, value in context.items() if name in settings}
        settled = partial(target, **given, **group_settings(make, values))
        build = partial(with_several, settled, several) if several else settled
        with files_read() as files:
            module = _build(path, build, shapes)
        axes = getattr(target, "axes", None)
        with failing(f"net: axes of {path} fail for rows of shape {shapes}"):
            axes = axes(**settled.keywords) if callable(axes) else axes
        build = partial(by_autograd, build) if type(module) is MLP else build
        content = digest_of(module, files)
        if takes_integers(module):
            pictures = len(shape) == 3 and not hasattr(module, "takes_integers")
            wrap = with_quantities if pictures and looks_up_places(module, tuple(shape)) else with_integers
            build, module = partial(wrap, build), wrap(lambda: module)
        net = Net(build, axes, content=content)
        if _before and (key(net), net.axes) == (_before[0], _before[1].axes):
            return _before[1]
        copied = try_out(key(net), path, tuple(shape), (*shape[:1], classes) if per_step else (classes,))
        if net.axes is not None:
            try_axes(net, path, tuple(shape))
        tried = replace(net, copied=copied, misplaced=_misplaced(path, module.eval(), shape))
        vars(tried)[AGAIN] = partial(
            make, shape=shape, classes=classes, per_step=per_step, several=several, _before=(key(net), tried), **values
        )
        return tried

    defaults = zip(NET_CONTEXT, (Parameter.empty, Parameter.empty, False, ()), strict=True)
    keywords = [Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Any) for name, default in defaults]
    parameters = [*keywords, *(setting for name, setting in settings.items() if name not in NET_CONTEXT)]
    make.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    make.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return make


def _settings(path: str, target: Callable[..., Any]) -> dict[str, Parameter]:
    """Return the parameters of the user's callable as keyword-only ones."""
    try:
        hints = get_type_hints(target.__init__ if inspect.isclass(target) else target, include_extras=True)
    except (NameError, TypeError):  # types that only type checkers know; a partial
        hints = {}
    settings = {}
    for name, parameter in inspect.signature(target).parameters.items():
        if parameter.kind is Parameter.POSITIONAL_ONLY:
            raise InputError(f"net.name: {path!r} takes {name!r} by position, but settings are passed by name")
        if parameter.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY):
            settings[name] = parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints.get(name, Any))
    return settings


def _misplaced(path: str, module: nn.Module, shape: tuple[int, ...]) -> str:
    """Return why the layer of the last leaf that is a matrix is not the one that classifies; "" if it is.

    It is not if another layer is called after it, or if the module's own parameters make the logits of its output. A
    norm that is declared after it belongs to it, so that it must not be called before.
    """
    every = [*dict.fromkeys(name.rpartition(".")[0] for name in module.state_dict())]
    owners = {name.rpartition(".")[0]: None for name, leaf in module.state_dict().items() if leaf.dim() > 1}
    last, called = [*owners][-1] if owners else "", []
    behind = every[every.index(last) + 1 :] if last else []

    def note(name: str, _: nn.Module, inputs: Any, output: Any) -> None:
        called.append((name, output))

    hooks = [module.get_submodule(of).register_forward_hook(partial(note, of)) for of in (*owners, *behind) if of]
    try:
        with construct_with(torch.Generator()), torch.no_grad():
            logits = module(blank(module, 2, shape))
    finally:
        for hook in hooks:
            hook.remove()
    order = [name for name, _ in called]
    if not {*order} & {*owners} or not last:
        return ""
    name, output = next(pair for pair in reversed(called) if pair[0] in owners)
    early = (one for one in behind if one in order and one in order[: order.index(name)])
    if name != last or (last := next(early, name)) != name:
        return f"net: {path} declares {last} after {name}, which classifies; declare its layers in the order of forward"
    if "parametrizations" in last.split("."):
        return f"net: {path} classifies by a parametrized layer, {last.partition('.param')[0]}; use a plain one"
    by_layers = "" not in owners or (isinstance(output, torch.Tensor) and output.numel() == logits.numel())
    return "" if by_layers else f"net: {path} classifies by a parameter of its own; make it a layer, such as nn.Linear"


def _build(path: str, build: Callable[[], Any], shape: object) -> nn.Module:
    """Return a module; raises InputError unless all its state is in tensors of float32, each under one name."""
    with failing(f"net: {path} fails in its constructor for rows of shape {shape}"), construct_with(torch.Generator()):
        module = build()
    if not isinstance(module, nn.Module):
        raise InputError(f"net.name: {path!r} makes a {type(module).__name__}, not an nn.Module")
    if isinstance(module, torch.jit.ScriptModule):
        raise InputError(f"net: {path} is a script of torch.jit; give the module that it was made from")
    tensors = (*module.parameters(), *module.buffers(), *module.state_dict().values())
    if not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        raise InputError(f"net: {path} has get_extra_state, whose values are not sent; use a buffer")
    if any(map(is_lazy, tensors)):
        raise InputError(f"net: {path} has a lazy layer, whose size is not known yet; give its size instead")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise InputError(f"net: {path} has no parameter to train (requires_grad is False for all)")
    if len({*module.parameters()}) != len([*module.named_parameters(remove_duplicate=False)]):
        raise InputError(f"net: {path} uses a parameter under two names, which is not supported")
    if name := next((name for name in module.state_dict() if "/" in name), None):
        raise InputError(f"net: {path} has a tensor {name!r}; name its layer without a slash")
    if any(t.dtype != torch.float32 for t in tensors if t.is_floating_point() or t.is_complex()):
        raise InputError(f"net: {path} has tensors that are not float32")
    return module


_LISTENING: dict[int, tuple[list[str], int | None]] = {}
"""What collects paths, each with the thread whose files it collects; None: of all."""


@contextmanager
def files_read(everywhere: bool = False) -> Iterator[list[str]]:
    """Collect the paths of what this thread opens to read, or lists, but for files that a library opens in C.

    everywhere: those that any thread of this process opens.
    """
    _listen()
    paths: list[str] = []
    _LISTENING[id(paths)] = paths, None if everywhere else threading.get_ident()
    try:
        yield paths
    finally:
        del _LISTENING[id(paths)]


@functools.cache
def _listen() -> None:
    sys.addaudithook(_hear)


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    reads = event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR)
    if (reads or event in ("os.listdir", "os.scandir")) and isinstance(arguments[0], str | bytes):
        for paths, thread in [*_LISTENING.values()]:
            if thread in (None, threading.get_ident()):
                paths.append(os.fsdecode(arguments[0]))


def _is_plain(value: object) -> bool:
    return all(map(_is_plain, value)) if type(value) is tuple else type(value) in (bool, int, float, str, type(None))


_CLASSES: dict[str, list[type | None]] = {}
"""The classes that this process has seen of each name, today's first: a file that is imported anew brings others."""

MODEL_CODE: ContextVar[Collection[str]] = ContextVar("model_code", default=())
"""Modules that now come from beside a model; the project's own classes have number 0, also if they are imported later.
"""


def _number_of(kind: type) -> int:
    """Return how many others a file has had by a class's name; 0 for a class that each module has anew."""
    if getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is not kind:
        return 0
    made = _CLASSES.setdefault(f"{kind.__module__} {kind.__qualname__}", [None])
    if kind not in made and made[0] is None and kind.__module__.split(".")[0] not in MODEL_CODE.get():
        made[0] = kind
    elif kind not in made:
        made.append(kind)
    return made.index(kind)


def _words_of(value: Any, known: dict[int, tuple[object, str]]) -> str:
    """Return what tells a value that a layer keeps from another: all that it consists of, alike in every process.

    known: by its id each object that was met, with the words for it; for the module's own layers and tensors a path.
    """
    if type(value) in (bool, int, float, complex, str, bytes, type(None), torch.dtype):
        return repr(value)
    if id(value) not in known:
        words = type(value).__qualname__
        known[id(value)] = value, f"{words} {len(known)}"
        with suppress(Exception):  # of what cannot be read, as a lock
            words = _describe(value, partial(_words_of, known=known))
        known[id(value)] = value, words
    return known[id(value)][1]


_HOLDERS = dict, list, tuple, set, frozenset, torch.Tensor, np.ndarray, partial
"""Types of what may have attributes beside what it holds, where a user's class is derived from one."""


def _describe(value: Any, words: Callable[[Any], str]) -> str:
    name, more = type(value).__qualname__, isinstance(value, _HOLDERS) and getattr(value, "__dict__", None)
    behind = f" {words(more)}" if more else ""
    match value:
        case dict():
            return f"{{{', '.join(f'{words(of)}: {words(inner)}' for of, inner in value.items())}}}{behind}"
        case list() | tuple():
            return f"[{', '.join(map(words, value))}]{behind}"
        case set() | frozenset():
            return f"{{{', '.join(sorted(map(words, value)))}}}{behind}"
        case torch.Tensor():
            return f"{name} {hashlib.blake2b(_bytes_of(value), digest_size=20).hexdigest()}{behind}"
        case np.ndarray() | np.generic():
            held = words(value.tolist()) if value.dtype.hasobject else value.tobytes().hex()
            return f"{value.dtype} {value.shape} {held}{behind}"
        case partial():
            return words([value.func, value.args, value.keywords]) + behind
        case RemovableHandle() | ModuleType():  # a handle counts those before it
            return name
        case nn.Module():
            parts: Any = _state_of(value)
        case _ if callable(value) and hasattr(value, "__qualname__"):
            owner = getattr(value, "__self__", None)
            cells = value.__closure__ or () if isinstance(value, FunctionType) and "<" not in value.__qualname__ else ()
            held = "" if isinstance(owner, ModuleType | type | None) else words(owner)
            held += words([vars(value), *(cell.cell_contents for cell in cells if cell != CellType())]) if cells else ""
            return f"{value.__module__}.{value.__qualname__}{_number_of(value) or ''} {held}".strip()
        case _:
            made = (copyreg.dispatch_table.get(type(value)) or methodcaller("__reduce_ex__", 5))(value)
            parts = made if isinstance(made, str) else [[*of] if isinstance(of, Iterator) else of for of in made]
    return f"{name} {hashlib.blake2b(words(parts).encode(), digest_size=20).hexdigest()}"


def _state_of(layer: nn.Module) -> dict[str, Any]:
    """Return a layer's attributes; of its hooks, whose numbers count those of all modules, the values."""
    return {
        name: [*of.values()] if "_hooks" in name and isinstance(of, dict) else of for name, of in vars(layer).items()
    }


_STATE = vars(nn.Module()).keys()


def digest_of(module: nn.Module, paths: Iterable[str]) -> str:
    """Return a digest of a module's tensors, attributes, hooks and layers, and of files, but programs: they are source.

    A module of the same name may be another later: it was imported anew, or a global that its constructor reads is set.
    """
    digest = hashlib.blake2b(digest_size=20)
    tensors = *module.named_parameters(), *module.named_buffers()
    known: dict[int, tuple[object, str]] = {
        id(of): (of, f"{type(of).__qualname__} {path}") for path, of in (*module.named_modules(), *tensors)
    }
    known[id(module)] = module, ""
    for path, layer in module.named_modules():
        plain = {name: value for name, value in vars(layer).items() if _is_plain(value)}
        digest.update(f"{path} {type(layer).__qualname__} {plain}".encode())
        digest.update(f"{_number_of(type(layer)) or ''}".encode())
        torchs = type(layer).__module__.split(".")[0] in ("torch", "torchvision")
        for name, value in _state_of(layer).items():
            if name in TABLES:
                for own, part in value.items():  # one under a second name
                    if part is not None and known[id(part)][1].partition(" ")[2] != f"{path}.{own}".lstrip("."):
                        digest.update(f"{own} {known[id(part)][1]}".encode())
            elif name not in plain and (value if name in _STATE else name[0] != "_" or not torchs):
                words = type(value).__qualname__ if isinstance(value, torch.Tensor) else _words_of(value, known)
                digest.update(f"{name} {words}".encode())
    return _digest(digest, module, paths)


def digest_of_rest(net: Net) -> str:
    """Return a digest of what devices do not send of a net: other tensors, and the files that its constructor reads."""
    with files_read() as paths, construct_with(torch.Generator()):
        module = net.build()
    return _digest(hashlib.blake2b(digest_size=20), module, paths, params_of(module))


def _digest(digest: Any, module: nn.Module, paths: Iterable[str], without: Collection[str] = ()) -> str:
    attributes = [pair for layer in module.modules() for pair in vars(layer).items()]
    held = [pair for pair in (*module.named_parameters(), *module.named_buffers()) if pair[0] not in without]
    for name, value in (*held, *attributes):
        if isinstance(value, torch.Tensor):
            digest.update(f"{name} ".encode() + _bytes_of(value))
    for path in dict.fromkeys(map(Path, paths)):
        if path.is_file() and not is_installed(path) and path.suffix not in (".py", ".pyc"):
            digest.update(hashlib.blake2b(path.read_bytes()).digest())
    return str(digest.hexdigest())


def _bytes_of(tensor: torch.Tensor) -> bytes:
    """Return a tensor's type, shape and values."""
    dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
    own = dense.detach().cpu().clone(memory_format=torch.contiguous_format)
    return f"{own.dtype} {tuple(own.shape)}".encode() + own.flatten().view(torch.uint8).numpy().tobytes()
