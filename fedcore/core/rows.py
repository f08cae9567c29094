"""Devices of one net descend together: their models are the rows of one matrix, and a step is one step of all.

A small net's step takes as long as starting its kernels, on an accelerator, or some forty calls of PyTorch, on a
processor, whatever the number of rows. There are two ways, told apart by `exact`:

* On an accelerator PyTorch's vmap computes any net. Sums and random numbers are the same, rounding is not: results
  equal those of one device at a time to some 1e-6, and the same devices together give the same bits again.
* On a processor vmap is slower than one device after another. There small perceptrons alone go together, by stacked
  products (:mod:`fedcore.nets.mlp`), in .28 to .74 of the time (docs/speed.md), and `exact`: with the bits of one after
  another, which is tried out for each shape. Only full minibatches are taken together: a smaller one, at the end of an
  epoch, is its device's alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache, partial
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_map

from fedcore import nets
from fedcore.core.flat_nets import FlatNet, flatten_net, views
from fedcore.core.gradients import PerExample, Step, clip_norm, manual_step
from fedcore.core.losses import own_gradient
from fedcore.core.optimisers import learning_rates, optimiser_slots, step_of_all
from fedcore.core.training import Descent, in_place, plain_step
from fedcore.core.training_settings import Training, computing_in
from fedcore.data.task import SEQUENCES, label_kind_of
from fedcore.execute.accelerator import DrawOnCpu
from fedcore.nets.copies import template
from fedcore.nets.mlp import LARGE, MLP, StackedMLP, equal_bits
from fedcore.nets.params import net_of
from fedcore.nets.randomness import construct_with
from fedcore.types.federation import Data, Net, Params
from fedcore.types.method import generator

Compute: TypeAlias = Callable[[Tensor, Tensor, Tensor], None]
"""Writes the gradients of some rows: inputs (A, B, *shape), labels (A, B) and shares of their batches (A, B)."""

WARM_UP = 3
"""Steps before a CUDA graph is recorded: libraries choose their kernels in them."""

WORTH_A_GRAPH = 12
"""Fewer steps are taken one by one: recording takes as long as some of them."""

LARGEST = 1 << 15
"""The most numbers of a model on a processor: the products of a larger one take nearly as long one after another."""

WORTH = 16
"""The fewest minibatches of a round for which rows are laid out there."""

ROWS = 1 << 18
"""The most numbers of all models of a group there, but for two: gradients and moments should stay in the cache."""

EXAMPLES = 1 << 24
"""The most numbers of all examples of a group there, which are copied."""

TRIED = 4096
"""Numbers of each product that are compared, at least: another order of a sum may show in one of a hundred."""

ALIGNMENT = 16
"""Each device's part of a stack begins at a multiple of so many numbers (a cache line), where a tensor of its own does.
A library may sum otherwise from another place on."""

SCALE = 0.0371
"""The scale of the gradients that are tried: no power of two, which would not round; the models' numbers are .1."""


def groups(descents: Sequence[Descent], exact: bool) -> list[list[int]]:
    """Return which descents can be done together, as positions in the sequence; each is in one group.

    Those of one net and equal settings can, if their loss has a gradient at the logits (as cross-entropy has) and none
    stops early. For the rest see `_kind`.
    """
    kinds: dict[Any, list[int]] = {}
    for position, descent in enumerate(descents):
        kinds.setdefault(_kind(descent, exact) or position, []).append(position)
    if not exact:
        return [*kinds.values()]
    parts: list[list[int]] = []
    for positions in kinds.values():
        most, size = max(2, ROWS // max(1, len(descents[positions[0]].flat.vector))), EXAMPLES + 1
        for position in sorted(positions, key=lambda position: -len(descents[position].batches)):
            size += descents[position].data.x.numel()
            if size > EXAMPLES or len(parts[-1]) == most:
                parts.append([])
                size = descents[position].data.x.numel()
            parts[-1].append(position)
    return parts


def _kind(descent: Descent, exact: bool) -> Any:
    """Return what descents done together have in common; None for one that goes alone.

    A net whose logits or draws depend on the batch (batch norm), one with buffers, or a rate that changes from step to
    step, needs batches of equal sizes.
    """
    flat, training, data = descent.flat, descent.training, descent.data
    has_gradient = descent.logit_grad is not None or training.loss == "ce"
    steps = label_kind_of(data.y) is SEQUENCES  # a mean over labelled steps
    if not has_gradient or descent.parts is not None or descent.stops_early or not descent.batches or steps:
        return None
    pieces = tuple((piece.start, piece.stop, factor) for piece, factor in descent.pieces)
    common = (
        nets.key(flat.net), training, flat.vector.device, data.x.shape[1:], data.y.dtype, pieces,
        descent.grad_hook is None,
    )  # fmt: skip
    if exact:
        plain = training.precision == "float32" and training.schedule == "constant"
        worth = plain and len(descent.batches) >= WORTH and is_small(flat.net, training.batch)
        return common if worth and find_stacked(descent, 2) is not None else None
    of, shape, buffers = nets.key(flat.net), tuple(data.x.shape[1:]), any(True for _ in flat.module.buffers())
    any_size = training.schedule == "constant" and not buffers and rows_agree(of, shape, 2)
    if not (any_size or rows_agree(of, shape)) or (buffers and training.precision == "bfloat16"):
        return None  # PyTorch's batch norm does not mix them here
    return (*common, None if any_size else tuple(map(len, descent.batches)))


def is_small(net: Net, batch: int = 1) -> bool:
    """Tell whether a net is a perceptron that is worth rows on a processor, in minibatches of that size."""
    module = template(net)
    if type(module) is not MLP:
        return False
    sizes = [tensor.numel() for tensor in module.parameters()]
    return sum(sizes) <= LARGEST and batch * max(sizes) < LARGE  # larger products are oneDNN's


def descend(descents: Sequence[Descent], exact: bool) -> None:
    """Take all steps of descents that `groups` puts together, in place; those with fewer batches stop earlier.

    After an error none of them can be used: their steps are to be done again, one by one.
    """
    with torch.no_grad() if exact else torch.device(descents[0].flat.vector.device):
        _Rows(descents, exact).descend()


def repeats(descents: Sequence[Descent]) -> bool:
    """Tell whether each step of descents done together starts the same kernels with the same numbers."""
    same_kernels = all(isinstance(each.logit_grad, PerExample | None) and each.grad_hook is None for each in descents)
    return descents[0].training.schedule == "constant" and same_kernels


class _Rows:
    """The descents' models as rows, those with the most batches first: at each step the first rows move.

    models, gradient: (D, P), in the layout of `FlatNet.vector`. flats: each row as a net of its own. x, y: all devices'
    examples, one device after another. index: the examples of each row's batches, (S, D, B); where `exact` of the full
    ones alone. share: 1 / (size of the batch) for its examples and 0 for the filling of smaller ones, (S, D, B).
    moving: the rows that have a batch, of each step. smaller: where `exact` the rows and their smaller minibatches that
    come before a step of that number. draws: see `draws_of`. sizes: those of the rows' batches, step by step.
    """

    def __init__(self, descents: Sequence[Descent], exact: bool) -> None:
        size = descents[0].training.batch
        whole = [[batch for batch in of.batches if not exact or batch.numel() == size] for of in descents]
        order = sorted(range(len(descents)), key=lambda row: -len(whole[row]))
        self.descents, self.exact, self.training = [descents[row] for row in order], exact, descents[0].training
        self.models = torch.stack([descent.flat.vector for descent in self.descents])
        self.gradient = torch.zeros_like(self.models)
        self.draws = () if exact else draws_of(nets.key(descents[0].flat.net), tuple(descents[0].data.x.shape[1:]))
        self.flats = [
            replace(of.flat, vector=model, gradient=gradient, parameters=views(of.flat, model),
                    gradients=views(of.flat, gradient))
            for of, model, gradient in zip(self.descents, self.models, self.gradient, strict=True)
        ]  # fmt: skip
        self.slots = [
            optimiser_slots(flat, self.training, descent.moments, descent.pieces)
            for flat, descent in zip(self.flats, self.descents, strict=True)
        ]
        self.buffers = {
            name: torch.stack([dict(of.flat.module.named_buffers())[name] for of in self.descents])
            for name, _ in descents[0].flat.module.named_buffers()
        }
        self.x = torch.cat([descent.data.inputs() for descent in self.descents])
        self.y = torch.cat([descent.data.y for descent in self.descents])
        firsts = np.cumsum([0, *(len(descent.data) for descent in self.descents[:-1])]).tolist()
        self.index, self.share = self._plan([whole[row] for row in order], firsts)
        self.moving = [sum(step < len(of) for of in whole) for step in range(len(self.index))]
        self.rates = learning_rates(self.training, len(self.index))
        self.alone: dict[int, Step] = {}
        self.smaller: dict[int, list[tuple[int, Tensor]]] = {}
        for row, (descent, first) in enumerate(zip(self.descents, firsts, strict=True) if exact else ()):
            number = 0
            for batch in descent.batches:
                if batch.numel() == size:
                    number += 1
                else:
                    self.smaller.setdefault(number, []).append((row, batch + first))

    def _plan(self, batches: Sequence[Sequence[Tensor]], firsts: Sequence[int]) -> tuple[Tensor, Tensor]:
        sizes = np.zeros((len(batches), len(batches[0])), dtype=np.int64)
        for row, of in enumerate(batches):
            sizes[row, : len(of)] = [len(batch) for batch in of]
        there = torch.from_numpy(np.arange(sizes.max(initial=0)) < sizes[:, :, None]).to(self.y.device)
        index, share = self.y.new_zeros(there.shape, dtype=torch.int64), there / there.sum(2, keepdim=True).clamp(min=1)
        chosen = [torch.cat([*of]) + first for of, first in zip(batches, firsts, strict=True) if of]
        if chosen:
            index[there] = torch.cat(chosen)
        self.sizes = iter(sizes.T.tolist())
        return index.transpose(0, 1).contiguous(), share.transpose(0, 1).contiguous()

    def descend(self) -> None:
        """Take all steps, each device's in its order, and copy what they brought to the descents."""
        for count, steps in groupby(range(len(self.moving)), self.moving.__getitem__):
            self._descend(count, list(steps))
        self._take_smaller(len(self.moving))
        for row, descent in enumerate(self.descents):
            descent.flat.vector.copy_(self.models[row])
            if not (self.exact and _into(descent)[0]):
                descent.flat.gradient.copy_(self.gradient[row])
            for name, buffer in descent.flat.module.named_buffers():
                buffer.copy_(self.buffers[name][row])

    def _descend(self, count: int, steps: Sequence[int]) -> None:
        """Take these steps with the first `count` rows: by a CUDA graph, if that is worth it."""
        step, part = self._step(count), slice(steps[0], steps[-1] + 1)
        every = [*zip(self.index[part, :count], self.share[part, :count], self.rates[part], strict=True)]
        if self.models.is_cuda and len(steps) >= WORTH_A_GRAPH and repeats(self.descents) and not self.draws:
            self._replay(step, every)
            return
        for number, one in zip(steps, every, strict=True):
            self._take_smaller(number)
            step(*one)

    def _take_smaller(self, number: int) -> None:
        for row, batch in self.smaller.get(number, ()):
            self._take(row, batch)

    def _take(self, row: int, batch: Tensor) -> None:
        """Take a row's step as that of a net of its own."""
        if row not in self.alone:
            descent = self.descents[row]
            self.alone[row] = plain_step(
                self.flats[row], self.training, len(descent.batches), grad_hook=self._hook(row), pieces=descent.pieces,
                logit_grad=descent.logit_grad, update=step_of_all([self.slots[row]], self.training),
            )  # fmt: skip
        self.alone[row](self.x.index_select(0, batch), self.y.index_select(0, batch))

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

    def _step(self, count: int) -> Callable[[Tensor, Tensor, float], None]:
        """Return the step of the first rows: the examples of their batches, their shares and the rate -> nothing."""
        found = find_stacked(self.descents[0], count) if self.exact and count > 1 else None
        if self.exact and found is None:

            def one_by_one(index: Tensor, share: Tensor, rate: float) -> None:
                for row, batch in enumerate(index):
                    self._take(row, batch)

            return one_by_one

        inner, compute = self._stacked(count, *found) if found else (False, self._vmapped(count))
        hooks = [hook for row in range(count) if (hook := self._hook(row)) is not None]
        gradient, clip = self.gradient[:count], self.training.clip
        update = step_of_all(self.slots[:count], self.training)

        def step(index: Tensor, share: Tensor, rate: float) -> None:
            chosen = index.flatten()
            x = self.x.index_select(0, chosen).view(*index.shape, *self.x.shape[1:])
            y = self.y.index_select(0, chosen).view(*index.shape, *self.y.shape[1:])
            compute(x, y, share)
            for hook in hooks:
                hook()
            if clip is not None and self.exact:
                for row in gradient:
                    clip_norm(row, clip)
            elif clip is not None:
                gradient.mul_((clip / (gradient.norm(dim=1, keepdim=True) + 1e-6)).clamp(max=1))
            if not inner:
                update(rate)

        return step

    def _stacked(self, count: int, stacked: StackedMLP, alike: bool) -> tuple[bool, Compute]:
        """Return whether the gradient is added to the parameters at once, and what computes it by stacked products."""
        inner, keep = _into(self.descents[0])
        params, gradients = (views(self.flats[0], matrix[:count]) for matrix in (self.models, self.gradient))
        scale = (-self.training.lr if inner else 1.0) / self.training.batch
        alike = alike and all(descent.logit_grad is None for descent in self.descents[:count])

        def compute(x: Tensor, y: Tensor, share: Tensor) -> None:
            activations = stacked.activations(params, x)
            logits = activations[-1]
            at_logits = _of_all(logits, y) if alike else self._of_each(logits, y, share)
            stacked.backward(params, activations, at_logits, params if inner else gradients, keep=keep, scale=scale)

        return inner, compute

    def _vmapped(self, count: int) -> Compute:
        """Return what computes the gradients of the first rows by vmap."""
        params, gradients = (views(self.flats[0], matrix[:count]) for matrix in (self.models, self.gradient))
        buffers = {name: buffer[:count] for name, buffer in self.buffers.items()}
        for tensor in params.values():
            tensor.requires_grad_()
        noises, where = [descent.noise for descent in self.descents[:count]], self.models.device.type

        def of_one(tensors: Params, x: Tensor, draw: Callable[..., Tensor] | None) -> Any:
            with DrawOnCpu(where, partial(_EachRow.apply, x, draw)) if draw else nullcontext():
                return functional_call(self.flats[0].module, tensors, (x,))

        forward: Callable[..., Tensor] = vmap(of_one, (0, 0, None), randomness="error")
        computing = computing_in(self.training.precision, where)
        of_all = _of_classes if label_kind_of(self.y).has_classes else _of_all
        hard = all(descent.logit_grad is None for descent in self.descents[:count])

        def compute(x: Tensor, y: Tensor, share: Tensor) -> None:
            each = zip(noises, next(self.sizes) if self.draws else (), strict=False)
            draw = partial(draw_each, [*each], x.shape[1], iter(self.draws)) if self.draws else None
            with computing():
                logits = forward({**params, **buffers}, x, draw).float()
            z = logits.detach()
            at_logits = (of_all(z, y) if hard else self._of_each(z, y, share)) * share[:, :, None]
            torch._foreach_copy_([*gradients.values()], torch.autograd.grad(logits, [*params.values()], at_logits))

        return compute

    def _of_each(self, logits: Tensor, y: Tensor, share: Tensor) -> Tensor:
        """Return the gradient of each batch's summed loss at its logits, (A, B, K); anything where there is filling."""
        gradient = torch.zeros_like(logits)
        for row, descent in enumerate(self.descents[: len(logits)]):
            logit_grad = descent.logit_grad or PerExample(own_gradient)
            whole = self.exact or isinstance(logit_grad, PerExample)
            size = logits.shape[1] if whole else int((share[row] > 0).sum())
            gradient[row, :size] = logit_grad(logits[row, :size], y[row, :size])
        return gradient

    def _replay(
        self, step: Callable[[Tensor, Tensor, float], None], every: Sequence[tuple[Tensor, Tensor, float]]
    ) -> None:
        """Take the first steps one by one, record one, and replay it for the others."""
        index, share, rate = every[0][0].clone(), every[0][1].clone(), every[0][2]
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for one in every[:WARM_UP]:
                step(*one)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph):
            step(index, share, rate)
        for examples, of, _ in every[WARM_UP:]:
            index.copy_(examples)
            share.copy_(of)
            graph.replay()


def _of_all(logits: Tensor, y: Tensor) -> Tensor:
    """Return the gradient of each row's summed loss at its logits by one call."""
    return own_gradient(logits.flatten(0, 1), y.flatten(0, 1)).view_as(logits)


def _of_classes(logits: Tensor, y: Tensor) -> Tensor:
    """Do the same for classes, without a scatter, which takes an accelerator a sort to do twice alike."""
    return logits.softmax(2) - (y[:, :, None] == torch.arange(logits.shape[2], device=logits.device)).float()


def _into(descent: Descent) -> tuple[bool, float]:
    """Return whether a step's gradient is added to the parameters at once, and `keep` of `MLP.backward`."""
    training = descent.training
    inner = in_place(training, descent.grad_hook, descent.pieces)
    return inner, 1 - training.lr * training.weight_decay if inner else 0.0


def find_stacked(descent: Descent, count: int) -> tuple[StackedMLP, bool] | None:
    """Return what computes so many models of a descent's net with the bits of one after another, if anything does.

    And whether the gradient of its loss has them for all at once: of several labels it has not, as a processor computes
    the last numbers of a tensor in another way. Each shape is tried out once in a process, in some hundredths of a
    second.
    """
    flat, batch, y, (_, keep) = descent.flat, descent.training.batch, descent.data.y, _into(descent)
    cache_key = (nets.key(flat.net), count, batch, keep if keep in (0, 1) else 0.5, label_kind_of(y).name)
    if cache_key not in _STACKED:
        with torch.no_grad():
            _STACKED[cache_key] = same_bits(flat, count, batch, cache_key[3], y)
    return _STACKED[cache_key]


_STACKED: dict[tuple[bytes, int, int, float, str], tuple[StackedMLP, bool] | None] = {}


def same_bits(flat: FlatNet, count: int, batch: int, keep: float, labels: Tensor) -> tuple[StackedMLP, bool] | None:
    """Do what `find_stacked` says: compare steps from random models, which lie in memory as the real ones do.

    keep: as in `MLP.backward`; what is there is as large as what comes to it. A bias whose gradient has other bits is
    computed one by one.
    """
    module, draws, one_by_one, alike = flat.module, torch.Generator().manual_seed(0), set[str](), True
    assert isinstance(module, MLP)
    sizes = [tuple(flat.parameters[f"{layer}.weight"].shape) for layer in module.layers]
    if any(batch * width % ALIGNMENT for size in sizes for width in size):
        return None
    stacked = StackedMLP(module.layers, one_by_one)
    for _ in range(-(-TRIED // (count * min(least for m, n in sizes for least in (batch * m, batch * n, m * n))))):
        together = 0.1 * torch.randn(count, len(flat.vector), generator=draws)
        alone = together.clone()
        models, into, into_alone = (views(flat, of) for of in (together, together, alone))
        if not keep:
            into, into_alone = (views(flat, torch.zeros_like(alone)) for _ in range(2))
        x = torch.randn(count, batch, sizes[0][1], generator=draws)
        activations = stacked.activations(models, x)
        logits = activations[-1].clone()
        stacked.backward(models, activations, activations[-1], into, keep=keep, scale=SCALE)
        for row in range(count):
            manual_step(
                module, views(flat, alone[row]), x[row].clone(), x[row],
                {name: rows[row] for name, rows in into_alone.items()}, keep=keep, scale=SCALE * batch,
                logit_grad=lambda z, _: z,
            )  # fmt: skip
        for name, rows in into.items():
            if not equal_bits(rows, into_alone[name]):
                layer, _, part = name.rpartition(".")
                if part == "weight" or keep or layer in one_by_one:
                    return None
                one_by_one.add(layer)
        y = labels[torch.randint(0, len(labels), (count, batch), generator=draws)]
        each = [own_gradient(z.clone(), of) for z, of in zip(logits, y, strict=True)]
        alike = alike and equal_bits(_of_all(logits, y), torch.stack(each))
    return stacked, alike


@lru_cache(maxsize=256)
def draws_of(of: bytes, shape: tuple[int, ...]) -> tuple[tuple[bool, tuple[int, ...]], ...]:
    """Return of each tensor that a net draws: whether its rows are the batch's, its order of dimensions in memory."""
    drawn: list[Tensor] = []

    def note(func: Any, args: Any, kwargs: Any) -> Tensor:
        drawn.append(func(*args, **kwargs))
        return drawn[-1]

    with torch.device("cpu"), construct_with(torch.Generator()):
        model = nets.init(net := net_of(of), generator("rows"))
        for count in (2, 3):
            module, x = flatten_net(net, model).module, torch.rand(count, *shape, generator=generator("rows"))
            with DrawOnCpu("cpu", note):
                module(x)
    pairs = zip(drawn, drawn[len(drawn) // 2 :], strict=False)
    return tuple((few.shape[:1] != many.shape[:1], many.dim_order()) for few, many in pairs)


class _EachRow(torch.autograd.Function):
    """Takes what `draw` returns for all rows apart, as vmap does; x: any tensor that has rows."""

    setup_context = staticmethod(lambda ctx, inputs, output: None)

    @staticmethod
    def vmap(info: Any, dims: Any, x: Tensor, draw: Callable[..., Tensor], *call: Any) -> tuple[Tensor, int]:
        return draw(dims[2:], call), 0


def draw_each(each: Sequence[Any], size: int, draws: Iterator[Any], dims: Any, call: Any) -> Tensor:
    """Return what each device draws alone: by its generator, for its batch, in the order of the numbers in memory.

    each: the generators, and the sizes of the batches, which are filled up to `size`. draws: the rest of `draws_of`.
    call: a function that draws, and its arguments. dims: of each, the dimension of the rows.
    """
    (by_batch, order), rows = next(draws), list[Tensor]()
    for row, (noise, own) in enumerate(each):
        part = own if by_batch else size

        def alone(x: Any, dim: int | None, row: int = row, part: int = part) -> Any:
            if not isinstance(x, Tensor):
                return x
            x = x if dim is None else x.select(dim, row)
            x = x[: len(x) * part // size]
            return torch.empty_permuted(x.shape, order, dtype=x.dtype, device="cpu").copy_(x)

        func, args, named = tree_map(alone, call, dims)
        with nets.use_generator(noise):
            drawn = func(*args, **named)
        rows.append(torch.cat([drawn, *[drawn[-1:]] * (len(drawn) * (size - part) // part)]))
    return torch.stack(rows)


@lru_cache(maxsize=256)
def rows_agree(of: bytes, shape: tuple[int, ...], fewer: int = 3) -> bool:
    """Tell whether two models of a net become the same together as one by one, which an own module's may not.

    of: its key, see `fedcore.nets.key`. fewer: examples in the second one's batches; the first one's have 3.
    """
    with torch.device("cpu"), construct_with(torch.Generator()):
        net, x = net_of(of), torch.rand(2, 6, *shape, generator=generator("rows"))
        x.flatten(0, 1)[1:] *= 0.1  # the first example, which fills smaller batches, is unlike all others

        def begin(i: int) -> Descent:
            flat, data = flatten_net(net, nets.init(net, generator("rows", i))), Data(x[i], torch.zeros(6))
            to_minus_one = PerExample(lambda logits, _: logits + 1)
            batches = [*torch.split(torch.arange(6), 3 if i == 0 else fewer)][:2]
            return Descent(flat, Training("sgd", 0.1), data, batches, {}, generator("rows", i), logit_grad=to_minus_one)

        together, alone = ([begin(i) for i in range(2)] for _ in range(2))
        try:
            _Rows(together, exact=False).descend()
            for descent in alone:
                descent.run()
        except Exception:  # an own module's: what fails together, or draws in a way of its own, goes alone
            return False
        pairs = zip((together[0].state() + together[1].state()), (alone[0].state() + alone[1].state()), strict=True)
        return all(_close(one.double(), other.double()) for one, other in pairs)


def _close(first: Tensor, second: Tensor) -> bool:
    return torch.allclose(first, second, rtol=1e-4, atol=1e-5)
