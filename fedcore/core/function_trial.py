"""The trial of a user's loss or metric: what it returns follows from what it is given.

Devices call it in any order and in any process, so that what it keeps from call to call differs from run to run. Once
in a process it is called on some rows, on others, and on the first again; what then differs is refused by name.
"""

import copy
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from fedcore.core.flat_nets import FlatNet, flatten_net
from fedcore.core.losses import Batch, MakeParts, OwnLoss, loss_name, parts_of, require_scalar
from fedcore.data.task import REGRESSION, label_kind_of
from fedcore.errors import InputError
from fedcore.nets import key, params_of
from fedcore.nets.randomness import keep_generators
from fedcore.nets.trial import FAR, changed, changes_in, go_on, move
from fedcore.pickling import list_values, to_bytes, values_of
from fedcore.types.federation import Net
from fedcore.types.method import seed_all

MOST_ROWS = 64
"""The most rows on which a metric is tried for broadcasting."""

_TRIED: set[object] = set()


def try_loss(loss: OwnLoss, flat: FlatNet, x: Tensor, y: Tensor, batch_of: Callable[..., Batch]) -> None:
    """Refuse a loss of one's own that keeps or trains something in secret, or that broadcasts; changes nothing.

    flat, x, y: of a minibatch. batch_of: as for `gradient_step`.
    """
    name = loss_name(loss)
    make = parts_of(loss)
    tried = name, key(flat.net), _code_of(loss), _settings(loss), _code_of(make), _settings(make)
    if tried in _TRIED or len(y) < 2 or name.startswith("fedcore."):
        return
    parts, given, start = getattr(batch_of, "keywords", {}).get("parts"), set[int](), flat.params()

    def begin() -> list[nn.Module]:
        return [flatten_net(flat.net, start).module, *([] if parts is None else [copy.deepcopy(parts)])]

    def call(rows: Tensor, labels: Tensor = y, later: int = 0, modules: Sequence[nn.Module] = ()) -> Tensor:
        module, *own = modules or begin()
        given.update(id(parameter) for part in (module, *own) for parameter in part.parameters())
        batch = batch_of(flat.net, module, x[rows], labels[rows], **({"parts": own[0]} if own else {}))
        return require_scalar(loss, loss(replace(batch, round=batch.round + later) if later else batch))

    message, memory = (getattr(batch_of, "keywords", {}).get(name) for name in ("message", "memory"))
    tables = {} if message is None else {"message.params": message.params, "message.extra": message.extra}
    tables |= {"memory": memory or {}}
    sent = [(f"{of}[{path!r}]", tensor) for of, table in tables.items() for path, tensor in table.items()]
    before = [x.clone() for _, x in sent]
    with torch.random.fork_rng([x.device] if x.is_cuda else []):
        value, kept = _call_again(call, y, loss, [partial(call, later=rounds) for rounds in (1, FAR)])
        if kept:
            raise InputError(
                f"training.loss: {name} {kept}, and devices are trained in any order; keep it in a buffer of a "
                "module that @fc.with_parts gives the loss, or compute it from batch.round or before the first call"
            )
        for (path, tensor), old in zip(sent, before, strict=True):
            if not torch.equal(tensor.nan_to_num(), old.nan_to_num()):
                raise InputError(f"training.loss: {name} changes batch.{path} in place; change a clone of it")
        if value is None:
            raise InputError(
                f"training.loss: {name} returns another value for the same batch; it must keep nothing from call to "
                "call, and draw from the global generators of PyTorch, NumPy or Python, which fedcore seeds"
            )
        own = {path: x for path, x in values_of(loss) if isinstance(x, nn.Parameter) and x.requires_grad}
        own = {path: x for path, x in own.items() if id(x) not in given}
        found = torch.autograd.grad(value, [*own.values()], allow_unused=True) if own else ()
        for path, gradient in zip(own, found, strict=True):
            if gradient is not None:
                raise InputError(
                    f"training.loss: {name} has a gradient at its own {path}, which nothing trains; make its module "
                    "by @fc.with_parts, or freeze it: requires_grad_(False)"
                )
        if label_kind_of(y) is REGRESSION and _broadcasts(call, y, lambda rows, labels: call(rows, labels[:, None])):
            raise InputError(
                f"training.loss: {name} compares each output with the labels of all examples, as outputs are (B, 1) "
                "and labels (B,); write batch.logits[:, 0]"
            )
        if lost := _lost(begin, call, flat, make, torch.arange(len(y), device=y.device)):
            raise InputError(
                f"training.loss: {name} changes {lost}, which begins anew in each round; keep it in a buffer of the "
                "parts that @fc.with_parts gives the loss: register_buffer(name, tensor), in a layer that is not frozen"
            )
    _TRIED.add(tried)


def _lost(
    begin: Callable[[], list[nn.Module]],
    call: Callable[..., Tensor],
    flat: FlatNet,
    make: MakeParts | None,
    every: Tensor,
) -> str:
    """Return what a loss changes in its parts, or in the net, that the next round lacks, where its value depends on it.

    begin: gives the net and the parts. It is called on a net, on that net as training may have moved it, and again.
    """
    draws, modules = torch.Generator(), begin()
    moved = {name: move(x.detach().cpu(), draws).to(x.device) for name, x in flat.parameters.items()}
    for values in (moved, flat.parameters):
        _seeded(partial(call, modules=modules), every)
        with torch.no_grad():
            for name, parameter in modules[0].named_parameters():
                if name in values:
                    parameter.copy_(values[name])
    owned = [flat.net, *([Net(partial(make, flat.net))] if make else [])]
    pairs = [*zip(owned, modules, strict=True)]
    fresh, later = ([flatten_net(net, params_of(of)).module for net, of in pairs] for _ in range(2))
    lost = [what for of, other in zip(modules, fresh, strict=True) for what in changed(of, other)]
    if not lost:
        return ""
    layers = (chain.from_iterable(map(nn.Module.modules, each)) for each in (modules, fresh, later))
    for ends, begins, own in zip(*layers, strict=False):
        new = {name: of for name, of in vars(ends).items() if name not in vars(begins)}
        vars(own).update({name: FAR * of for name, of in new.items() if type(of) in (int, float)})
        go_on(vars(ends), vars(begins), vars(own))
    found: list[list[Tensor]] = []
    for each in (modules, fresh, later):
        found.append([])
        for rounds in (0, 1, FAR):
            found[-1].append(torch.full((), torch.nan))
            with suppress(Exception):
                found[-1][-1] = _seeded(partial(call, later=rounds, modules=each), every).detach().cpu()
    first, *others = map(torch.stack, found)
    return "" if all(_close(first, other) for other in others) else lost[0]


def try_metric(name: str, function: Callable[[Tensor, Tensor], Any], answers: Tensor, y: Tensor) -> None:
    """Refuse a metric of one's own that keeps something from call to call, or that broadcasts."""
    tried = name, label_kind_of(y).name, _code_of(function), _settings(function)
    if tried in _TRIED or len(y) < 2:
        return

    def call(rows: Tensor, labels: Tensor = y, outputs: Tensor = answers) -> Tensor:
        return torch.as_tensor(float(function(outputs[rows].clone(), labels[rows].clone())))

    try:
        (value, kept), broadcasts = _call_again(call, y, function), _metric_broadcasts(function, answers, y)
    except IndexError as error:
        if label_kind_of(y) is not REGRESSION:
            raise
        raise InputError(f"metrics.{name}: predictions and labels are both (N,): write p - y ({error})") from error
    except (TypeError, ValueError, OverflowError, RuntimeError):  # it returns no number, which its caller says
        return
    if kept:
        raise InputError(
            f"metrics.{name}: {kept}, and devices are scored in any order; it must keep nothing from call to call"
        )
    if value is None:
        raise InputError(
            f"metrics.{name}: returns another value for the same rows; it must keep nothing from call to call, and "
            "draw from the global generators of PyTorch, NumPy or Python, which fedcore seeds"
        )
    if broadcasts:
        raise InputError(
            f"metrics.{name}: compares each prediction with the labels of all rows; write what is compared as labels "
            "are, (N,): p - y of numbers, p.argmax(1) == y of classes"
        )
    _TRIED.add(tried)


def _call_again(
    call: Callable[..., Tensor], y: Tensor, function: object, later: Sequence[Callable[..., Tensor]] = ()
) -> tuple[Tensor | None, str]:
    """Return a function's value on all rows, None if it differs between calls, and what it keeps, in words.

    later: the call, as of other rounds.
    """
    every, kept = torch.arange(len(y), device=y.device), partial(list_values, function)
    begin, first = kept(), _seeded(call, every)
    before = kept()
    for each in (call, *later):
        with suppress(Exception):
            _seeded(each, every * 0)
    again = _seeded(call, every)
    return (again if _close(first, again) else None), changes_in(begin, before, kept())


def _metric_broadcasts(function: Callable[[Tensor, Tensor], Any], answers: Tensor, y: Tensor) -> bool:
    """Tell whether a metric of one's own broadcasts, by made predictions: a model's may all be of one class.

    A distance of the predictions' distribution from the labels' ignores which is whose as well: it is 0 for the truth.
    """
    draws, kind, y = torch.Generator().manual_seed(0), label_kind_of(y), y[:MOST_ROWS]
    outputs = y.flip(0) if kind is REGRESSION else torch.rand(len(y), *answers.shape[1:], generator=draws)
    if kind.has_classes:
        y = torch.randint(answers.shape[1], (len(y),), generator=draws)
        outputs /= outputs.sum(1, keepdim=True)

    def call(rows: Tensor, labels: Tensor, outputs: Tensor = outputs) -> Tensor:
        return torch.as_tensor(float(function(outputs[rows].clone(), labels[rows].clone())))

    rights = partial(call, outputs=outputs[..., None]), lambda rows, labels: call(rows, labels[:, None])
    if kind is REGRESSION and _close(_seeded(partial(call, outputs=y), torch.arange(len(y)), y), torch.zeros(())):
        return False
    return _broadcasts(call, y, *rights)


def _broadcasts(call: Callable[..., Tensor], y: Tensor, *rights: Callable[..., Tensor]) -> bool:
    """Tell whether a function ignores which label is whose, as it does not for one of the `rights`, of other shapes."""
    every = torch.arange(len(y), device=y.device)

    def ignores(of: Callable[..., Tensor]) -> bool | None:
        with suppress(Exception):
            values = torch.stack([_seeded(of, every, labels).detach() for labels in (y, y.roll(1, 0), y.flip(0))])
            return _close(values, values[:1].expand(3)) if values.isfinite().all() else None
        return None

    return ignores(call) is True and any(ignores(of) is False for of in rights)


def _seeded(call: Callable[..., Tensor], *args: Tensor) -> Tensor:
    with keep_generators(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seed_all(0)
        return call(*args)


def _close(first: Tensor, other: Tensor) -> bool:
    return torch.allclose(first.double(), other.double(), rtol=1e-5, atol=1e-9, equal_nan=True)


def _code_of(function: Any) -> CodeType | None:
    """Return what a function, method, module or object runs when it is called; None for one in C."""
    while isinstance(function, partial | MethodType):
        function = function.func if isinstance(function, partial) else function.__func__
    if not isinstance(function, FunctionType):
        function = getattr(type(function), "forward" if isinstance(function, nn.Module) else "__call__", None)
    return getattr(function, "__code__", None)


def _settings(function: object) -> bytes:
    """Return what tells two objects of one class apart, as bytes: of functions plain values bound to them alone."""
    if not isinstance(function, FunctionType | partial):
        return b"" if isinstance(function, nn.Module) else to_bytes(getattr(function, "__dict__", None))
    if isinstance(function, partial):
        bound = [_settings(function.func), *function.args, *function.keywords.values()]
    else:
        cells = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
        bound = [*(function.__defaults__ or ()), *cells]
    return to_bytes([of for of in bound if isinstance(of, int | float | str | bytes)])
