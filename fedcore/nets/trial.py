"""The trial of a user's module: fedcore's modules of it do what those of plain PyTorch do.

Plain PyTorch builds a module, fills it by `load_state_dict`, puts it into its modes by `train()` and `eval()` and takes
steps along its gradients. fedcore's (:mod:`fedcore.nets.copies`) must have the same outputs, gradients and tensors.
What changes elsewhere than in the tensors that devices send is lost from round to round, and is refused.
"""

import functools
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from fedcore.errors import InputError, failing
from fedcore.nets.copies import load, train
from fedcore.nets.inputs import are_integers, blank, embedding_sizes
from fedcore.nets.params import frozen, init, net_of
from fedcore.nets.randomness import construct_with
from fedcore.nets.tables import reorder, units
from fedcore.pickling import list_values, to_bytes
from fedcore.types.federation import Net, Params
from fedcore.types.method import seed_all

EXAMPLES, FAR = 12, 1000


@functools.lru_cache(maxsize=256)
def try_out(of: bytes, name: str, shape: tuple[int, ...], outputs: tuple[int, ...]) -> bool:
    """Tell whether copies of a net's module do what it does; raises InputError for a net that cannot be used.

    of: the net's key. name: the module's, for messages. shape, outputs: of one example.
    """
    try:
        with failing(f"fails for rows of shape {shape}"), construct_with(torch.Generator()):
            return _try_out(net_of(of), shape, outputs)
    except InputError as error:
        raise InputError(f"net: {name} {error}") from error


def _try_out(net: Net, shape: tuple[int, ...], outputs: tuple[int, ...]) -> bool:
    draws = torch.Generator()
    start = {name: move(tensor, draws) for name, tensor in init(net, draws).items()}
    plain, again = _build(net, start), _build(net, start)
    roots = net.build, *{kind for part in plain.modules() for kind in type(part).__mro__}
    begin = list_values(*roots)
    for spread in (4.0, 0.0):  # 0: of a net of numbers from 0 to 1, such as an image's
        follow = functools.partial(_follow, x=examples(plain, shape, spread), outputs=outputs)
        try:
            first = follow(plain)
            if not spread or all(tensor.isfinite().all() for tensor in first.values()):
                break
        except Exception as error:
            if not spread or isinstance(error, InputError):
                raise
        plain, again = _build(net, start), _build(net, start)
    shares = first["predictions 0"]
    if outputs[-1] > 1 and bool((shares >= 0).all()) and _close(shares.sum(-1), torch.ones(shares.shape[:-1])):
        warnings.warn("net: ends in a softmax, and the loss takes another one; return logits instead", stacklevel=3)
    kept = list_values(*roots)
    if {id(part) for part in plain.parameters() if part.requires_grad} & {*map(id, again.parameters())}:
        raise InputError("gives the same parameters at each call; it must make new ones")
    seen = follow(again)
    if changes := changes_in(begin, kept, list_values(*roots)):
        raise InputError(f"{changes}, and devices are trained in any order: keep what changes in a buffer")
    if what := _difference(first, seen):
        raise InputError(
            f"is another one each time that it is built ({what} differ): keep what changes in a buffer. Draw "
            "random numbers from the global generators of PyTorch, NumPy or Python, which fedcore seeds"
        )
    different = []
    for copied in (True, False):
        given = {name: tensor.clone() for name, tensor in start.items()}
        module = load(replace(net, copied=copied), given)
        seen = follow(module)  # what it was given are its parameters
        seen |= {f"values of {name}": given[name] for name, _ in module.named_parameters() if name in given}
        different.append(_difference(first, seen))
    if all(different):
        raise InputError(
            "holds some of its parameters a second time, as a view that its constructor made or tied by `.data` "
            f"({different[1]} differ). Make views in forward, and one parameter of two"
        )
    trained = {name: tensor.clone() for name, tensor in plain.state_dict().items() if name in start}
    norms = [path for path, of in plain.named_modules() if isinstance(of, _NormBase) and of.momentum is not None]
    counts = start.keys() & {f"{path}.num_batches_tracked" for path in norms}  # of which PyTorch's norms use none
    late = follow(_build(net, start | {name: start[name] + FAR for name in counts})) if counts else first
    if what := _difference(first, late | {f"values of {name}": first[f"values of {name}"] for name in counts}):
        raise InputError(f"reads {min(counts)} ({what} differ), of which devices have no mean: count in float32")
    for name in start.keys() - counts:
        if not (start[name].is_floating_point() or torch.equal(trained[name], start[name])):
            why = f"changes {name}, {start[name].dtype}, and of whole numbers devices have no mean: make it float32"
            raise InputError(f"{why}, or give its norm a momentum" if name.endswith("num_batches_tracked") else why)
    fresh, later = _build(net, trained), _build(net, trained)
    lost = ", ".join(changed(plain, fresh)) or "something"
    for layers in zip(*(each.modules() for each in (plain, fresh, later)), strict=False):
        go_on(*(layer.__dict__ for layer in layers))
    seen = follow(fresh)
    if what := _difference(follow(plain), seen) or _difference(seen, follow(later)):
        raise InputError(
            f"changes {lost} in training, which its state_dict does not hold or which is frozen ({what} differ): keep "
            "what changes in a buffer"
        )
    return not different[0]


def try_axes(net: Net, name: str, shape: tuple[int, ...]) -> None:
    """Raise InputError where units that change places by the net's table of axes change what its module predicts."""
    draws = torch.Generator()
    with construct_with(draws), torch.no_grad():
        start = {key: move(tensor, draws) for key, tensor in init(net, draws).items()}
        x = examples(_build(net, start), shape, 1.0)

        def predict(params: Params) -> Tensor:
            seed_all(0)
            return _build(net, params).eval()(x.clone())  # type: ignore[no-any-return]

        logits = predict(start)
        for label, width in units(start, net.table).items():
            order = torch.randperm(width, generator=draws)
            if not _close(predict(reorder(start, {label: order}, net.table)), logits):
                raise InputError(f"net: axes of {name}: the units {label!r} may not change places, its outputs change")


def _build(net: Net, tensors: Params) -> nn.Module:
    """Return a module of the net as PyTorch builds and fills it."""
    with construct_with(torch.Generator()):
        module = net.build()
    module.load_state_dict({**frozen(module), **tensors})
    return module


def move(tensor: Tensor, draws: torch.Generator) -> Tensor:
    """Return other numbers than a constructor's, which a copy may hold in secret: a scale of one, a bias of zero."""
    noise = torch.rand(tensor.shape, generator=draws) / 5
    return tensor * (1 + noise) + noise / 20 if tensor.is_floating_point() else tensor


def examples(module: nn.Module, shape: tuple[int, ...], spread: float = 0) -> Tensor:
    """Return numbers from 0 to 1; where a module takes whole ones, those that each of its embeddings can look up.

    spread: the standard deviation of every other row, if not 0.
    """
    x, draws = blank(module, EXAMPLES, shape), torch.Generator()
    whole = torch.randint(min(embedding_sizes(module), default=1), x.shape, generator=draws)
    for row in range(1, EXAMPLES if whole.dim() > 1 else 1, 2):  # texts of other lengths
        whole[row, max(1, whole.shape[1] * row // EXAMPLES) :] = 0
    if not x.is_floating_point():
        return whole
    x = torch.rand(x.shape, generator=draws)
    x[1::2] = spread * torch.randn(x[1::2].shape, generator=draws) if spread else x[1::2]
    return torch.where(are_integers(module, shape), whole.float(), x)


def _follow(module: nn.Module, x: Tensor, outputs: tuple[int, ...]) -> Params:
    """Predict, then take a training step, twice; returns outputs, gradients and the tensors at the end."""
    seed_all(0)
    seen: Params = {}
    for number in range(2):
        seen[f"predictions {number}"] = _predict(module.eval(), x, outputs)
        train(module)
        module.zero_grad()
        logits = _logits(module, x, outputs)
        seen[f"outputs in training {number}"] = logits.detach()
        torch.autograd.backward((logits * torch.linspace(-1, 2, logits.numel()).view_as(logits)).sum())
        gradients = {name: (part, part.grad) for name, part in module.named_parameters() if part.grad is not None}
        if thin := [name for name, (_, gradient) in gradients.items() if gradient.layout is not torch.strided]:
            raise InputError(f"has a sparse gradient of {thin[0]}; leave out sparse=True")
        largest = max((float(gradient.abs().max()) for _, gradient in gradients.values()), default=1.0)
        for name, (parameter, gradient) in gradients.items():
            seen[f"gradients of {name} {number}"] = gradient.clone()
            parameter.data.sub_(gradient, alpha=0.05 / max(1.0, largest))
    return seen | {f"values of {name}": tensor.clone() for name, tensor in module.state_dict().items()}


def _logits(module: nn.Module, x: Tensor, outputs: tuple[int, ...]) -> Tensor:
    logits = module(x.clone())
    if not isinstance(logits, Tensor) or logits.shape != (len(x), *outputs) or not logits.is_floating_point():
        got = tuple(logits.shape) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        mode = "training" if module.training else "evaluation"
        raise InputError(f"returns {got} in {mode}, but logits must be real, {(len(x), *outputs)}")
    return logits.float()


@torch.no_grad()
def _predict(module: nn.Module, x: Tensor, outputs: tuple[int, ...]) -> Tensor:
    """Return the logits; refuses a module whose examples depend on one another, unless it draws random numbers."""
    logits = _logits(module, x, outputs)
    try:
        alone = all(_close(_logits(module, x[[row]], outputs), logits[[row]]) for row in (0, 1))
    except ValueError:  # of a norm that needs two examples
        alone = False
    if not alone and _close(logits, _logits(module, x, outputs)):
        raise InputError(
            "predicts an example otherwise alone than beside others (a batch norm with track_running_stats=False?); in "
            "evaluation, examples must not depend on one another"
        )
    return logits


def _difference(one: Params, other: Params) -> str:
    """Return what of two modules differs first; "" if nothing does."""
    for name in {**one, **other}:
        if name not in one or name not in other or not _close(one[name], other[name]):
            return name.rstrip(" 01")
    return ""


def _close(one: Tensor, other: Tensor) -> bool:
    largest = float(one.double().nan_to_num(0, 0, 0).abs().max()) if one.numel() else 0.0
    return torch.allclose(one.double(), other.double(), rtol=0, atol=1e-3 * largest + 1e-6, equal_nan=True)


def changed(module: nn.Module, fresh: nn.Module) -> Iterator[str]:
    """Yield the attributes, buffers, parameters and layers of a module that another does not have or has otherwise."""
    others, plain = dict(fresh.named_modules()), vars(nn.Module())
    for path, layer in module.named_modules():
        if path not in others:
            yield path
            continue
        own, other = ({**vars(part), **part._buffers, **part._parameters} for part in (layer, others[path]))
        for name, value in own.items():
            if name not in plain and to_bytes(value) != to_bytes(other.get(name)):
                yield f"{path}.{name}".lstrip(".")


def go_on(ends: dict[str, Any], begins: dict[str, Any], own: dict[str, Any]) -> None:
    """Change numbers of `own` as training did those that `begins` lacks, but further, so that slow changes show."""
    for name, begin in sorted(begins.items(), key=lambda item: isinstance(item[1], dict)):  # a view before its base
        end, to = ends.get(name), own.get(name)
        if isinstance(begin, Tensor) and isinstance(end, Tensor) and isinstance(to, Tensor):
            if begin.shape == end.shape == to.shape and begin.is_floating_point():
                to.data.copy_(begin + FAR * (end - begin))
        elif isinstance(begin, list | deque) and isinstance(end, list | deque) and isinstance(to, list | deque):
            to.extend([*end][len(begin) :] * FAR)
        elif isinstance(begin, dict) and isinstance(end, dict) and isinstance(to, dict):
            go_on(end, begin, to)
        elif type(begin) in (int, float) and type(end) in (int, float):
            own[name] = begin + FAR * (end - begin)


def changes_in(begin: Mapping[str, bytes], before: Mapping[str, bytes], after: Mapping[str, bytes]) -> str:
    """Return what a function keeps from call to call, in words; what grows at each call, such as a log, it does not.

    begin, before, after: the values before the first call, after it and at the end.
    """
    steps = (begin, before), (before, after)
    grown = [{path.partition(".")[0] for path in one.keys() ^ other.keys()} for one, other in steps]
    changed = [f"changes its {path} at each call" for path in before if path in after and before[path] != after[path]]
    new = {path: of for one, other in steps for path, of in other.items() if of and one.get(path) != of}
    new |= {path: of for path, of in _LEFT.items() if begin.get(path) == of}
    kept = {path: of for path, of in new.items() if path.partition(".")[0] not in grown[0] & grown[1]}
    _LEFT.update(kept)
    return "".join([*changed, *(f"keeps its {path} from a call" for path in kept)][:1])


_LEFT: dict[str, bytes] = {}
"""What was kept from trials, and is found again when the same is tried a second time."""
