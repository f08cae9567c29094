"""Training one device's model: minibatch descent on a net whose parameters are laid out as one vector.

`train` is a stage's local step. Methods that need another loss or corrected gradients compose the same pieces:
`starting`, `lay`, `fit`, or below it `minibatches`, `gradients`, `updates`, `descend`.
"""

from __future__ import annotations

import functools
import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Protocol, TypeAlias, runtime_checkable

import torch
from annotated_types import Ge, Lt
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from fedcore import nets
from fedcore.nets.copies import copier
from fedcore.types import Amount, Count, Data, Device, Message, Net, Params, Positive, StepId, Update

Step: TypeAlias = Callable[[Tensor, Tensor], None]
"""What is done with one minibatch: inputs (B, *shape) float32 and labels (B,)."""

Pieces: TypeAlias = Sequence[tuple[slice, float]]
"""Parts of the vector that lie one after the other, and the factor of the learning rate in each."""

Momentum: TypeAlias = Annotated[float, Ge(0), Lt(1)]

WHOLE: Pieces = ((slice(None), 1.0),)

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Logits (B, K) and labels (B,) -> the mean loss over them."""

Slope: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Logits (B, K) and labels (B,) -> the derivative of the loss, summed over them, at the logits (B, K)."""

MOMENTS = "moments/"
"""What the names begin with under which a device keeps its optimiser's memory."""

ALIGNMENT = 16
"""Every leaf starts at a multiple of so many numbers in the vector (a cache line): products run 4 % faster."""

AT_A_TIME = 1024
"""Examples scored at a time: bounds memory."""

IMAGES_AT_A_TIME = 32
"""The same for convolutional nets, whose activations should stay in the cache and below the 32 MB from which each is
fresh memory: McMahan's CNN takes three fifths of the time of 1024, ResNet-20 a third."""

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
    "linear": lambda done: 1 - done,
}
"""The share of the learning rate that is left, by the share of this call's steps that are done."""


def entropies(logits: Tensor) -> Tensor:
    """Return the entropy of softmax(logits) in nats: (B, K) -> (B,)."""
    return -(logits.softmax(1) * logits.log_softmax(1)).sum(1)


def printed(logits: Tensor, y: Tensor) -> Tensor:
    """FedASA's loss as printed (Deng et al. 2024, eq. 12): CE(s, y) + exp(entropy of s), s = softmax(logits) (10).

    The softmax is taken twice, so that no class can have more than e / (e + K - 1): it trains badly. Its hard label
    (11) occurs in no formula. Departure: the mean over the examples, of which (12) prints no sum.
    """
    return cross_entropy(logits.softmax(1), y) + entropies(logits).exp().mean()


def table3(logits: Tensor, y: Tensor) -> Tensor:
    """The loss that fits the numbers of FedASA's Table III, which (12) cannot: cross-entropy plus entropy."""
    return cross_entropy(logits, y) + entropies(logits).mean()


LOSSES: dict[str, Loss] = {"ce": cross_entropy, "printed": printed, "table3": table3}


@dataclass(frozen=True)
class Training:
    """How a device trains.

    optimiser: "sgd" or "adam" (beta .9 and .999, eps 1e-8). momentum: of sgd. weight_decay: half the squared norm's
    weight in the loss, for both. schedule: of the learning rate over one round's steps. batch: examples per step; an
    epoch's last one may be smaller. loss: "ce" (cross-entropy), "printed" or "table3" (FedASA's). moments: "fresh", an
    optimiser begins each round anew, or "kept": a device keeps its optimiser's memory from round to round, and to
    itself (where nothing is sent in a stage it has no place to keep it).
    """

    optimiser: Literal["adam", "sgd"] = "adam"
    lr: Positive = 0.01
    momentum: Momentum = 0.0
    weight_decay: Amount = 0.0
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    batch: Count = 16
    epochs: Count = 20
    loss: Literal["ce", "printed", "table3"] = "ce"
    moments: Literal["fresh", "kept"] = "fresh"


@runtime_checkable
class ByHand(Protocol):
    """A module that brings its own chain rule, see `fedcore.nets.mlp.MLP`; others are left to autograd."""

    def activations(self, leaves: Params, x: Tensor) -> list[Tensor]: ...

    def pull(
        self, leaves: Params, activations: list[Tensor], slope: Tensor, into: Params, *, keep: float, scale: float
    ) -> None: ...


@dataclass(frozen=True)
class Laid:
    """A net laid out for training: its parameters are views of one vector, their gradients of another.

    vector, gradient: (P,), in which the parameters stand one after the other (with zeros between, see ALIGNMENT).
    leaves, slopes: views of the two by name. module: this process's module of the net, on these parameters and on its
    own copy of the buffers.
    """

    module: nn.Module
    vector: Tensor
    gradient: Tensor
    leaves: Params
    slopes: Params

    def params(self) -> Params:
        """Return a copy of all leaves as they are now."""
        return nets.leaves(self.module)


def train(
    memory: Params, message: Message, device: Device, step_id: StepId, *, training: Training
) -> tuple[Params, Update]:
    """Train the device's model on its examples, from what it was sent and what it owns; send the whole model.

    What it owns goes before what it was sent; leaves that are in neither are its own initial ones.
    """
    laid = lay(device.net, starting(memory, message, device, step_id))
    moments = fit(laid, device, step_id, training, memory)
    params = laid.params()
    update = Update(params, size=len(device.data.train), score=accuracy(params, device.net, device.data.val))
    return ({**memory, **moments} if moments else memory), update


def fit(
    laid: Laid,
    device: Device,
    step_id: StepId,
    training: Training,
    memory: Params,
    *,
    prefix: str = MOMENTS,
    pull: Callable[[], None] | None = None,
    pieces: Pieces = WHOLE,
    slope: Slope | None = None,
) -> Params:
    """Train a laid out model on the device's examples; returns the optimiser's memory if it is to be kept.

    memory: the device's own, in which names that begin with `prefix` hold the optimiser's. pull, pieces, slope: see
    `plain`.
    """
    kept = training.moments == "kept"
    mine = {name: leaf for name, leaf in memory.items() if kept and name.startswith(prefix)}
    moments = {name.removeprefix(prefix): leaf.clone() for name, leaf in mine.items()}
    with nets.drawn_from(step_id.generator("noise")):
        batches = minibatches(laid, len(device.data.train), training, step_id.generator("batches"))
        step = plain(laid, training, len(batches), moments, pull=pull, pieces=pieces, slope=slope)
        descend(device.data.train, batches, step)
    return {f"{prefix}{name}": leaf for name, leaf in moments.items()} if kept else {}


def starting(memory: Params, message: Message, device: Device, step_id: StepId) -> Params:
    """Return the leaves to train from. A device's own initial ones depend on the seed and its name alone."""
    known = {**message.params, **memory}
    names = nets.shapes(device.net)
    if any(name not in known for name in names):
        known = {**nets.init(device.net, replace(step_id, stage=0, round=0).generator("init")), **known}
    return {name: known[name] for name in names}


def lay(net: Net, params: Params) -> Laid:
    """Lay out a copy of `params`."""
    template = _template(nets.key(net))
    names = [name for name, _ in template.named_parameters()]
    sizes = [math.ceil(params[name].numel() / ALIGNMENT) * ALIGNMENT for name in names]
    vector, gradient = torch.zeros(sum(sizes)), torch.zeros(sum(sizes))
    leaves, slopes = (
        {name: placed(part, params[name].shape, _inner(template)) for name, part in zip(names, parts, strict=True)}
        for parts in (torch.split(vector, sizes), torch.split(gradient, sizes))
    )
    for name, leaf in leaves.items():
        leaf.copy_(params[name])
    module = load(net, {name: leaves[name] if name in leaves else leaf.clone() for name, leaf in params.items()})
    for name, parameter in module.named_parameters():
        parameter.grad = slopes[name]
    return Laid(module.train(), vector, gradient, leaves, slopes)


def beside(laid: Laid, numbers: Params) -> Tensor:
    """Lay numbers by leaf out as `laid.vector` is, (P,); zero where a leaf is missing."""
    vector = torch.zeros_like(laid.vector)
    for name, view in _views(laid, vector).items():
        if name in numbers:
            view.copy_(numbers[name])
    return vector


def by_leaf(laid: Laid, vector: Tensor) -> Params:
    """Return copies of a vector's parts, (P,) as `laid.vector`, by leaf."""
    views = _views(laid, vector).items()
    return {name: view.clone(memory_format=torch.contiguous_format) for name, view in views}


def _views(laid: Laid, vector: Tensor) -> Params:
    return {
        name: vector.as_strided(leaf.shape, leaf.stride(), leaf.storage_offset()) for name, leaf in laid.leaves.items()
    }


def placed(part: Tensor, shape: Sequence[int], channels_last: bool) -> Tensor:
    """Return the view of that shape of a part of the vector.

    channels_last: a convolution's weights (m, n, h, w) stand as (m, h, w, n). Activations follow, and oneDNN is faster:
    a step of McMahan's CNN takes a quarter less time, one of MobileNetV2 two fifths, VGG's as long as before.
    """
    part = part[: math.prod(shape)]
    if channels_last and len(shape) == 4:
        maps, channels, height, width = shape
        return part.view(maps, height, width, channels).permute(0, 3, 1, 2)
    return part.view(shape)


def _inner(module: nn.Module) -> bool:
    """Whether channels may stand innermost: the module says so, for there are some that cannot (`x.view(B, -1)`)."""
    return getattr(module, "channels_last", False)


def load(net: Net, params: Params) -> nn.Module:
    """Return a new module of the net that stands on `params`: nothing is copied."""
    module = _copier(nets.key(net))()
    module.load_state_dict(params, assign=True)
    return module


@functools.lru_cache(maxsize=64)
def _template(key: bytes) -> nn.Module:
    """Return this process's module of a net, to be copied and never used itself."""
    with nets.drawn_from(torch.Generator()):
        module: nn.Module = pickle.loads(key)()
    return module


@functools.lru_cache(maxsize=64)
def _copier(key: bytes) -> Callable[[], nn.Module]:
    return copier(_template(key))


def minibatches(laid: Laid, count: int, training: Training, generator: torch.Generator) -> list[Tensor]:
    """Draw all of a round's minibatches before the first step: S tensors of at most `batch` indices below `count`.

    A lone last example is left out where the net has buffers: batch statistics of one example do not exist.
    """
    least = 2 if any(True for _ in laid.module.buffers()) else 1
    epochs = [torch.randperm(count, generator=generator) for _ in range(training.epochs)]
    return [batch for epoch in epochs for batch in torch.split(epoch, training.batch) if len(batch) >= least]


def descend(data: Data, batches: Sequence[Tensor], step_id: Step) -> None:
    """Do a step on each minibatch."""
    x, y = data.inputs(), data.y
    for index in batches:
        step_id(x.index_select(0, index), y.index_select(0, index))


def plain(
    laid: Laid,
    training: Training,
    steps: int,
    moments: Params | None = None,
    *,
    pull: Callable[[], None] | None = None,
    pieces: Pieces = WHOLE,
    slope: Slope | None = None,
) -> Step:
    """Return the step that minimises the mean loss.

    moments: the optimiser's memory, which each step changes; an empty one is filled. pull: what changes
    `laid.gradient` before it is followed. pieces: parts of the vector with learning rates of their own. slope: of the
    loss that takes the place of `training.loss`.
    """
    rates = iter(learning_rates(training, steps))
    known = slope or (of_cross_entropy if training.loss == "ce" else None)
    bare = training.optimiser == "sgd" and training.momentum == 0 and pull is None and len(pieces) == 1
    if isinstance(laid.module, ByHand) and bare and known is not None:
        module, at_logits = laid.module, known

        def fused(x: Tensor, y: Tensor) -> None:
            rate = next(rates)
            keep = 1 - rate * training.weight_decay
            by_hand(module, laid.leaves, x, y, laid.leaves, keep=keep, scale=-rate, slope=at_logits)

        return fused
    gradient, update = gradients(laid, training.loss, slope), updates(laid, training, moments, pieces)

    def step(x: Tensor, y: Tensor) -> None:
        gradient(x, y)
        if pull is not None:
            pull()
        update(next(rates))

    return step


def toward(laid: Laid, anchor: Tensor, weight: float) -> Callable[[], None] | None:
    """Return what adds the gradient of weight/2 ||w - anchor||^2 to `laid.gradient`; None for weight 0.

    anchor: (P,), laid out as `laid.vector`.
    """
    if weight == 0:
        return None
    away = torch.empty_like(anchor)

    def pull() -> None:
        laid.gradient.add_(torch.sub(laid.vector, anchor, out=away), alpha=weight)

    return pull


def gradients(laid: Laid, loss: str = "ce", slope: Slope | None = None) -> Step:
    """Return what writes the gradient of the mean loss into `laid.gradient`. slope: of a loss in place of `loss`."""
    module, mean = laid.module, LOSSES[loss]
    known = slope or (of_cross_entropy if loss == "ce" else None)
    if isinstance(module, ByHand) and known is not None:
        return lambda x, y: by_hand(module, laid.leaves, x, y, laid.slopes, keep=0.0, scale=1.0, slope=known)

    def gradient(x: Tensor, y: Tensor) -> None:
        laid.gradient.zero_()
        if slope is None:
            torch.autograd.backward(mean(module(x), y))
        else:
            logits = module(x)
            torch.autograd.backward(logits, slope(logits.detach(), y) / len(y))

    return gradient


def of_cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Return softmax(logits) - onehot(y), the slope of cross-entropy."""
    slope = logits.softmax(1)
    return slope.scatter_add_(1, y[:, None], slope.new_full((len(y), 1), -1.0))


def by_hand(
    module: ByHand, leaves: Params, x: Tensor, y: Tensor, into: Params, *, keep: float, scale: float, slope: Slope
) -> None:
    """Do into <- keep * into + scale * (gradient of the mean loss), without autograd.

    slope: of the loss; the mean's 1/B goes into the scale.
    """
    with torch.no_grad():
        activations = module.activations(leaves, x)
        module.pull(leaves, activations, slope(activations[-1], y), into, keep=keep, scale=scale / len(y))


def learning_rates(training: Training, steps: int) -> list[float]:
    """Return the learning rate of each step, (S,)."""
    return [training.lr * SCHEDULES[training.schedule](step / steps) for step in range(steps)]


def updates(
    laid: Laid, training: Training, moments: Params | None = None, pieces: Pieces = WHOLE
) -> Callable[[float], None]:
    """Return what moves `laid.vector` along `laid.gradient` at a given learning rate.

    It remembers its moments, in `moments` if that is given, and goes on with those that are there.
    """
    return OPTIMISERS[training.optimiser](laid, training, {} if moments is None else moments, pieces)


def _sgd(laid: Laid, training: Training, moments: Params, pieces: Pieces) -> Callable[[float], None]:
    velocity = moments.setdefault("velocity", torch.zeros_like(laid.vector)) if training.momentum else None
    parts = [
        ([laid.vector[piece]], [laid.gradient[piece]], [None if velocity is None else velocity[piece]], factor)
        for piece, factor in pieces
    ]

    def update(rate: float) -> None:
        for vector, gradient, buffer, factor in parts:
            sgd(
                vector, gradient, buffer, fused=True, lr=rate * factor, momentum=training.momentum,
                weight_decay=training.weight_decay, dampening=0.0, nesterov=False, maximize=False,
            )  # fmt: skip

    return update


def _adam(laid: Laid, training: Training, moments: Params, pieces: Pieces) -> Callable[[float], None]:
    first, second = (moments.setdefault(name, torch.zeros_like(laid.vector)) for name in ("first", "second"))
    steps = moments.setdefault("steps", torch.zeros(()))
    counts = [steps] + [steps.clone() for _ in pieces[1:]]  # a call counts its own
    parts = [
        ([laid.vector[piece]], [laid.gradient[piece]], [first[piece]], [second[piece]], [count], factor)
        for (piece, factor), count in zip(pieces, counts, strict=True)
    ]

    def update(rate: float) -> None:
        for vector, gradient, mean, square, count, factor in parts:
            adam(
                vector, gradient, mean, square, [], count, fused=True, lr=rate * factor, beta1=0.9, beta2=0.999,
                eps=1e-8, weight_decay=training.weight_decay, amsgrad=False, maximize=False,
            )  # fmt: skip

    return update


OPTIMISERS = {"sgd": _sgd, "adam": _adam}
"""PyTorch's fused kernels, called as functions: its optimiser classes take a second to import in each process."""


def predict(params: Params, net: Net, x: Tensor, batch: int) -> Tensor:
    """Return the logits (N, K) of examples (N, *shape), float32 or uint8, in evaluation mode.

    batch: examples at a time; a convolutional net takes at most IMAGES_AT_A_TIME.
    """
    module = load(net, params).eval()
    if _inner(module):
        module.to(memory_format=torch.channels_last)
    if any(leaf.dim() > 2 for leaf in params.values()):
        batch = min(batch, IMAGES_AT_A_TIME)
    examples = Data(x, torch.empty(len(x)))
    with torch.no_grad():
        return torch.cat([module(examples.inputs(slice(i, i + batch))) for i in range(0, max(len(x), 1), batch)])


def accuracy(params: Params, net: Net, data: Data) -> float:
    """Return the fraction of examples that the model gets right, nan where there are none."""
    if len(data) == 0:
        return math.nan
    hits = predict(params, net, data.x, AT_A_TIME).argmax(1) == data.y
    return hits.double().mean().item()
