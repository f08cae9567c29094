"""Devices of one small perceptron descend side by side on a processor, with the bits of one after another.

A small net's step takes as long as some forty calls of PyTorch, whatever they multiply. Here the models are the rows of
one matrix, and a call multiplies all of them (:mod:`fedcore.nets.stacked_mlp`); the optimiser's kernel takes all at
once. Only full minibatches are taken together: a smaller one, at the end of an epoch, is its device's alone. Gradients
of a method's own, hooks and clipping are each device's, too. Where the processor's library gives a product other bits
in a stack, devices train one after another.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from fedcore import nets
from fedcore.core.flat_nets import views
from fedcore.core.gradients import LogitGrad, Step, clip_norm
from fedcore.core.losses import own_gradient
from fedcore.core.optimisers import optimiser_slots, step_of_all
from fedcore.core.training import Descent, in_place, plain_step
from fedcore.data.task import SEQUENCES, LabelKind, label_kind_of
from fedcore.nets.copies import template
from fedcore.nets.mlp import LARGE, MLP
from fedcore.nets.stacked_mlp import TRIED, StackedMLP, equal_bits, same_bits
from fedcore.types.federation import Net, Params

LARGEST = 1 << 15
"""The most numbers of a model: the products of a larger one take nearly as long as one after another."""

WORTH = 16
"""The fewest minibatches of a round for which rows are laid out."""

ROWS = 1 << 18
"""The most numbers of all models of a group, but for two: gradients and moments should stay in the cache."""

EXAMPLES = 1 << 24
"""The most numbers of all examples of a group, which are copied."""


def groups(descents: Sequence[Descent]) -> list[list[int]]:
    """Return which descents are done side by side, as positions in the sequence; each is in one group."""
    kinds: dict[Any, list[int]] = {}
    for position, descent in enumerate(descents):
        kinds.setdefault(_kind(descent) or position, []).append(position)
    parts: list[list[int]] = []
    size = 0
    for positions in kinds.values():
        first = descents[positions[0]]
        if len(positions) == 1 or find_stacked(first, 2) is None:
            parts += [[position] for position in positions]
            continue
        most = max(2, ROWS // len(first.flat.vector))
        positions.sort(key=lambda position: len(descents[position].batches), reverse=True)
        for position in positions:
            if position == positions[0] or len(parts[-1]) == most or size + _size(descents[position]) > EXAMPLES:
                parts.append([])
                size = 0
            parts[-1].append(position)
            size += _size(descents[position])
    return parts


def _size(descent: Descent) -> int:
    return descent.data.x.numel()


def _kind(descent: Descent) -> Any:
    """Return what descents done side by side have in common; None for one that goes alone."""
    flat, training = descent.flat, descent.training
    has_gradient = descent.logit_grad is not None or training.loss == "ce"
    plain = training.precision == "float32" and training.schedule == "constant"
    alone = descent.stops_early or descent.parts is not None or label_kind_of(descent.data.y) is SEQUENCES
    alone = alone or len(descent.batches) < WORTH
    if not has_gradient or not plain or alone or not is_small(flat.net, training.batch):
        return None
    pieces = tuple((piece.start, piece.stop, factor) for piece, factor in descent.pieces)
    hooked = descent.grad_hook is not None
    return nets.key(flat.net), training, pieces, hooked, descent.data.x.shape[1:], descent.data.y.dtype


def is_small(net: Net, batch: int = 1) -> bool:
    """Tell whether a net is a perceptron that is worth training side by side, in minibatches of that size."""
    module = template(net)
    if type(module) is not MLP:
        return False
    sizes = [tensor.numel() for tensor in module.parameters()]
    return sum(sizes) <= LARGEST and batch * max(sizes) < LARGE  # larger products are oneDNN's


def descend(descents: Sequence[Descent]) -> None:
    """Take all steps of descents of one group, in place.

    After an error none of them can be used: their steps are to be done again, one by one.
    """
    with torch.no_grad():
        full = [_count_full(descent) for descent in descents]
        order = sorted(range(len(descents)), key=lambda row: -full[row])
        _Rows([descents[row] for row in order], [full[row] for row in order]).descend()


def _count_full(descent: Descent) -> int:
    return sum(batch.numel() == descent.training.batch for batch in descent.batches)


class _Rows:
    """The descents' models as rows of a matrix, those with the most full minibatches first.

    full: how many each has. models, gradients: (D, P), in the layout of `FlatNet.vector`. flats: each row as a net of
    its own. x, y: all devices' examples, one device after another. index: the examples of the full minibatches,
    (S, D, B); the first `moving` rows have one. smaller: the minibatches of a row that come before its full one of that
    number.
    """

    def __init__(self, descents: Sequence[Descent], full: Sequence[int]) -> None:
        self.descents, self.full, self.training = descents, full, descents[0].training
        assert isinstance(descents[0].flat.module, MLP)
        self.module = descents[0].flat.module
        self.models = torch.stack([descent.flat.vector for descent in descents])
        self.gradients = torch.zeros_like(self.models)
        self.flats = [
            replace(
                descent.flat, vector=model, gradient=gradient, parameters=views(descent.flat, model),
                gradients=views(descent.flat, gradient),
            )
            for descent, model, gradient in zip(descents, self.models, self.gradients, strict=True)
        ]  # fmt: skip
        self.slots = [
            optimiser_slots(flat, self.training, descent.moments, descent.pieces)
            for flat, descent in zip(self.flats, descents, strict=True)
        ]
        self.x = torch.cat([descent.data.inputs() for descent in descents])
        self.y = torch.cat([descent.data.y for descent in descents])
        self._plan()

    def _plan(self) -> None:
        size, count = self.training.batch, self.full
        self.moving = [sum(number < of for of in count) for number in range(count[0])]
        self.index = torch.zeros(count[0], len(count), size, dtype=torch.int64)
        self.smaller: dict[tuple[int, int], list[Tensor]] = {}
        firsts = accumulate((len(descent.data) for descent in self.descents[:-1]), initial=0)
        for row, (descent, first) in enumerate(zip(self.descents, firsts, strict=True)):
            full: list[Tensor] = []
            for batch in descent.batches:
                if batch.numel() == size:
                    full.append(batch)
                else:
                    self.smaller.setdefault((row, len(full)), []).append(batch + first)
            if full:
                self.index[: len(full), row] = torch.stack(full) + first

    def descend(self) -> None:
        """Take all steps: each device's in its order."""
        alone = [self._step_alone(row) for row in range(len(self.descents))]
        steps: dict[int, Callable[[Tensor], None]] = {}
        due = {number for _, number in self.smaller}
        for number in range(len(self.index) + 1):
            for row in range(len(self.descents)) if number in due else ():
                for batch in self.smaller.get((row, number), ()):
                    self._take(alone[row], batch)
            if number < len(self.index):
                count = self.moving[number]
                if count not in steps:
                    steps[count] = self._step(count, alone)
                steps[count](self.index[number, :count])
        inner, _ = _into(self.descents[0])
        for descent, model, gradient in zip(self.descents, self.models, self.gradients, strict=True):
            descent.flat.vector.copy_(model)
            if not inner:
                descent.flat.gradient.copy_(gradient)

    def _take(self, step: Step, index: Tensor) -> None:
        step(self.x.index_select(0, index), self.y.index_select(0, index))

    def _step_alone(self, row: int) -> Step:
        descent = self.descents[row]
        return plain_step(
            self.flats[row], self.training, len(descent.batches), grad_hook=self._hook(row), pieces=descent.pieces,
            logit_grad=descent.logit_grad, update=step_of_all([self.slots[row]], self.training),
        )  # fmt: skip

    def _hook(self, row: int) -> Callable[[], None] | None:
        """Return a device's hook, which knows its own net and not the row."""
        own, flat, hook = self.descents[row].flat, self.flats[row], self.descents[row].grad_hook
        if hook is None:
            return None

        def call() -> None:
            own.vector.copy_(flat.vector)
            own.gradient.copy_(flat.gradient)
            hook()
            flat.gradient.copy_(own.gradient)

        return call

    def _step(self, count: int, alone: Sequence[Step]) -> Callable[[Tensor], None]:
        """Return the step of the first `count` rows: the examples of their minibatches, (count, B) -> nothing."""
        first, training, size = self.descents[0], self.training, self.training.batch
        inner, keep = _into(first)
        scale = (-training.lr if inner else 1.0) / size
        stacked = find_stacked(first, count) if count > 1 else None
        if stacked is None:

            def one_by_one(index: Tensor) -> None:
                for step, batch in zip(alone, index, strict=False):
                    self._take(step, batch)

            return one_by_one

        params, gradients = (views(first.flat, matrix[:count]) for matrix in (self.models, self.gradients))
        into = params if inner else gradients
        at_logits = self._at_logits(count)
        hooks = [hook for row in range(count) if (hook := self._hook(row)) is not None]
        clipped = self.gradients[:count].unbind() if training.clip is not None else ()
        update = step_of_all(self.slots[:count], training)
        shape = (count, size, *self.x.shape[1:])

        def step(index: Tensor) -> None:
            chosen = index.flatten()
            activations = stacked.activations(params, self.x.index_select(0, chosen).view(shape))
            at = at_logits(activations[-1], self.y.index_select(0, chosen))
            stacked.backward(params, activations, at, into, keep=keep, scale=scale)
            for hook in hooks:
                hook()
            for gradient in clipped:
                clip_norm(gradient, training.clip or 0.0)
            if not inner:
                update(training.lr)

        return step

    def _at_logits(self, count: int) -> LogitGrad:
        """Return the derivative of each row's summed loss at its logits: (A, B, K) and labels (A B,) -> (A, B, K)."""
        own = [descent.logit_grad or own_gradient for descent in self.descents[:count]]
        kind, size = label_kind_of(self.y), self.training.batch

        def whole(logits: Tensor, y: Tensor) -> Tensor:
            return kind.gradient(logits.flatten(0, 1), y).view_as(logits)

        def each(logits: Tensor, y: Tensor) -> Tensor:
            parts = zip(own, logits.unbind(), torch.split(y, size), strict=True)
            return torch.stack([gradient(z, labels) for gradient, z, labels in parts])

        outputs = self.flats[0].parameters[f"{self.module.layers[-1]}.bias"].numel()
        alike = all(gradient is own_gradient for gradient in own) and _rows_alike(kind, count, size, outputs)
        return whole if alike else each


def _into(descent: Descent) -> tuple[bool, float]:
    """Return whether a step's gradient is added to the parameters at once, and `keep` of `MLP.backward`."""
    training = descent.training
    inner = in_place(training, descent.grad_hook, descent.pieces)
    return inner, 1 - training.lr * training.weight_decay if inner else 0.0


def find_stacked(descent: Descent, count: int) -> StackedMLP | None:
    """Return what computes so many models of a descent's net with the bits of one after another, if anything does.

    Each shape is tried out once in a process, which takes some hundredths of a second.
    """
    flat, batch, (_, keep) = descent.flat, descent.training.batch, _into(descent)
    cache_key = (nets.key(flat.net), count, batch, keep if keep in (0, 1) else 0.5)
    if cache_key not in _STACKED:

        def make_rows(draws: torch.Generator) -> Params:
            return views(flat, torch.randn(count, len(flat.vector), generator=draws))

        assert isinstance(flat.module, MLP)
        _STACKED[cache_key] = same_bits(flat.module.layers, make_rows, batch, cache_key[-1])
    return _STACKED[cache_key]


_STACKED: dict[tuple[bytes, int, int, float], StackedMLP | None] = {}


@lru_cache
def _rows_alike(kind: LabelKind, count: int, batch: int, outputs: int) -> bool:
    """Tell whether a task's gradient has the same bits for the outputs of all devices at once.

    Of several labels it has not: a processor computes the last numbers of a tensor in another way than the others.
    """
    if not kind.has_classes and not kind.standardised:
        return False
    draws = torch.Generator().manual_seed(0)
    y = torch.randint(0, outputs, (count, batch), generator=draws)
    y = y if kind.has_classes else y.float()
    for _ in range(-(-TRIED // y.numel())):
        logits = 4 * torch.randn(count, batch, outputs, generator=draws)
        whole = kind.gradient(logits.flatten(0, 1), y.flatten()).view_as(logits)
        alone = [kind.gradient(z.clone(), of) for z, of in zip(logits, y, strict=True)]
        if not equal_bits(torch.stack(alone), whole):
            return False
    return True
