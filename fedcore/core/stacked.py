"""Devices of one net descend together: their models are the rows of one matrix, and a step is one step of all.

On an accelerator a small net's step takes as long as starting its kernels, whatever the number of rows. On a CPU it is
slower than one device after another. The sums are the same, their rounding is not: results equal those of one device
at a time to some 1e-6, and the same devices together give the same bits again.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedcore import nets
from fedcore.core.flat_nets import flatten_net, views
from fedcore.core.gradients import PerExample
from fedcore.core.losses import own_gradient
from fedcore.core.optimisers import learning_rates, optimiser_step
from fedcore.core.training import Descent
from fedcore.core.training_settings import Training, computing_in
from fedcore.data.task import SEQUENCES, label_kind_of
from fedcore.nets.randomness import construct_with
from fedcore.types.federation import Data, Net, Params
from fedcore.types.method import generator

WARM_UP = 3
"""Steps before a CUDA graph is recorded: libraries choose their kernels in them."""

WORTH_A_GRAPH = 12
"""Fewer steps are taken one by one: recording takes as long as some of them."""


def groups(descents: Sequence[Descent]) -> list[list[int]]:
    """Return which descents can be done together, as positions in the sequence; each is in one group.

    Those of one net and equal settings can, if their loss has a gradient at the logits (as cross-entropy has), no hook
    changes their gradients, none stops early and their nets draw no random numbers. A net with buffers or whose logits
    depend on the batch (batch norm), or a rate that changes from step to step, needs batches of equal sizes as well.
    """
    kinds: dict[Any, list[int]] = {}
    for position, descent in enumerate(descents):
        kinds.setdefault(_kind(descent) or position, []).append(position)
    return list(kinds.values())


def _kind(descent: Descent) -> Any:
    """Return what descents done together have in common; None for one that goes alone."""
    training, sizes = descent.training, tuple(map(len, descent.batches))
    has_gradient = descent.logit_grad is not None or training.loss == "ce"
    changed = descent.grad_hook is not None or len(descent.pieces) > 1 or descent.stops_early
    steps = label_kind_of(descent.data.y) is SEQUENCES  # a mean over labelled steps
    if not has_gradient or changed or not sizes or steps:
        return None
    net, shape = descent.flat.net, tuple(descent.data.x.shape[1:])
    if not rows_agree(net, shape):
        return None
    buffers = any(True for _ in descent.flat.module.buffers())
    if buffers and training.precision == "bfloat16":  # PyTorch's batch norm does not mix them here
        return None
    same_steps = training.schedule != "constant" or buffers or not examples_agree(net, shape)
    counted = descent.moments.get("steps")
    return (
        nets.key(descent.flat.net), training, descent.flat.vector.device, descent.data.x.shape[1:],
        sizes if same_steps else None, tuple(sorted(descent.moments)), None if counted is None else counted.item(),
    )  # fmt: skip


def rows_agree(net: Net, shape: tuple[int, ...]) -> bool:
    """Tell whether two models of a net become the same together as one by one, which an own module's may not."""
    return _agrees(_compare_rows, net, shape)


def examples_agree(net: Net, shape: tuple[int, ...]) -> bool:
    """Tell whether a net gives an example the same logits whatever else is in its batch, such as filling."""
    return _agrees(_compare_examples, net, shape)


def _agrees(compare: Callable[[Net, tuple[int, ...]], bool], net: Net, shape: tuple[int, ...]) -> bool:
    cache_key = (compare.__name__, nets.key(net), shape)
    if cache_key not in _AGREE:
        with torch.device("cpu"), construct_with(torch.Generator()):
            _AGREE[cache_key] = compare(net, shape)
    return _AGREE[cache_key]


_AGREE: dict[tuple[str, bytes, tuple[int, ...]], bool] = {}


def _compare_rows(net: Net, shape: tuple[int, ...]) -> bool:
    x, batches = torch.rand(2, 6, *shape, generator=generator("rows")), [*torch.split(torch.arange(6), 3)]

    def begin(i: int) -> Descent:
        flat, data = flatten_net(net, nets.init(net, generator("rows", i))), Data(x[i], torch.zeros(6))
        to_minus_one = PerExample(lambda logits, _: logits + 1)
        return Descent(flat, Training("sgd", 0.1), data, batches, {}, generator("rows"), logit_grad=to_minus_one)

    together, alone = ([begin(i) for i in range(2)] for _ in range(2))
    try:
        _take_steps(_Rows(together))
        for descent in alone:
            descent.run()
    except Exception:  # an own module's: what fails together, or draws random numbers, goes alone
        return False
    pairs = zip((together[0].state() + together[1].state()), (alone[0].state() + alone[1].state()), strict=True)
    return all(_close(one.double(), other.double()) for one, other in pairs)


def _compare_examples(net: Net, shape: tuple[int, ...]) -> bool:
    model = nets.init(net, generator("rows"))
    x = torch.rand(5, *shape, generator=generator("rows"))
    few, many = (flatten_net(net, model).module(examples) for examples in (x[:2], x))
    return _close(few, many[:2])


def _close(first: Tensor, second: Tensor) -> bool:
    return torch.allclose(first, second, rtol=1e-4, atol=1e-5)


def _stack(models: Sequence[Params]) -> Params:
    return {name: torch.stack([model[name].detach() for model in models]) for name in models[0]}


def _forward(module: nn.Module) -> Callable[[Params, Tensor], Tensor]:
    """Return the function: tensors of D models, (D, *size), and their examples (D, B, *shape) -> logits (D, B, K)."""
    forward: Callable[[Params, Tensor], Tensor] = vmap(
        lambda params, x: functional_call(module, params, (x,)), randomness="error"
    )
    return forward


def descend(descents: Sequence[Descent]) -> None:
    """Take all steps of descents that `groups` puts together, in place; those with fewer batches stop earlier."""
    _take_steps(_Rows(sorted(descents, key=lambda descent: -len(descent.batches))))


def _take_steps(rows: "_Rows") -> None:
    with torch.device(rows.models.device):
        for count, steps in groupby(range(len(rows.moving)), rows.moving.__getitem__):
            rows.descend(count, list(steps))
        rows.write_back()


def repeats(descents: Sequence[Descent]) -> bool:
    """Tell whether each step of descents done together starts the same kernels with the same numbers."""
    same_kernels = all(isinstance(descent.logit_grad, PerExample | None) for descent in descents)
    return descents[0].training.schedule == "constant" and same_kernels


class _Rows:
    """The descents' models as rows, those with the most batches first: at each step the first rows move.

    models, gradient: (D, P), in the layout of `FlatNet.vector`. x, y: all devices' examples, one device after another.
    index: the examples of each row's batches, (S, D, B). share: 1 / (size of the batch) for its examples and 0 for the
    filling of smaller ones, (S, D, B). moving: the rows that have a batch, of each step.
    """

    def __init__(self, descents: Sequence[Descent]) -> None:
        flats = [descent.flat for descent in descents]
        self.descents, self.training = descents, descents[0].training
        self.models = torch.stack([flat.vector for flat in flats])
        self.gradient = torch.zeros_like(self.models)
        self.flat = replace(flats[0], vector=self.models, gradient=self.gradient)
        self.buffers = _stack([dict(flat.module.named_buffers()) for flat in flats])
        self.moments = _stack([descent.moments for descent in descents])
        if "steps" in self.moments:
            self.moments["steps"] = self.moments["steps"][0].clone()
        self.forward = _forward(self.flat.module)
        self.computing = computing_in(self.training.precision, self.models.device.type)
        self.x = torch.cat([descent.data.inputs() for descent in descents])
        self.y = torch.cat([descent.data.y for descent in descents])
        self.index, self.share = self._plan()
        self.moving = [sum(step < len(d.batches) for d in descents) for step in range(len(self.index))]
        self.rates = learning_rates(self.training, len(self.index))

    def _plan(self) -> tuple[Tensor, Tensor]:
        count, steps = len(self.descents), len(self.descents[0].batches)
        firsts = np.cumsum([0, *(len(descent.data) for descent in self.descents[:-1])]).tolist()
        order = torch.cat([torch.cat([*d.batches]) + first for d, first in zip(self.descents, firsts, strict=True)])
        sizes = np.zeros((count, steps), dtype=np.int64)
        for row, descent in enumerate(self.descents):
            sizes[row, : len(descent.batches)] = [len(batch) for batch in descent.batches]
        width = int(sizes.max())
        begins = (np.arange(steps) * count + np.arange(count)[:, None]) * width
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes.ravel(), sizes.ravel())
        positions = torch.from_numpy(np.repeat(begins.ravel(), sizes.ravel()) + within).to(order.device)
        shares = torch.from_numpy(np.repeat(1 / np.maximum(sizes, 1).ravel(), sizes.ravel())).float()
        index = order.new_zeros(steps * count * width)
        share = self.models.new_zeros(steps * count * width)
        index[positions], share[positions] = order, shares.to(share.device)
        return index.view(steps, count, width), share.view(steps, count, width)

    def descend(self, count: int, steps: Sequence[int]) -> None:
        """Take these steps with the first `count` rows."""
        step = self._step(count)
        if self.models.is_cuda and len(steps) >= WORTH_A_GRAPH and repeats(self.descents):
            self._replay(step, count, steps)
        else:
            for each in steps:
                step(self.index[each, :count], self.share[each, :count], self.rates[each])

    def _step(self, count: int) -> Callable[[Tensor, Tensor, float], None]:
        params = {name: rows.requires_grad_() for name, rows in views(self.flat, self.models[:count]).items()}
        gradients = [*views(self.flat, self.gradient[:count]).values()]
        buffers = {name: buffer[:count] for name, buffer in self.buffers.items()}
        gradient = self.gradient[:count]
        update = optimiser_step(self.flat, self.training, self.moments, ((slice(count), 1.0),))

        def step(index: Tensor, share: Tensor, rate: float) -> None:
            x = self.x.index_select(0, index.flatten()).view(*index.shape, *self.x.shape[1:])
            y = self.y.index_select(0, index.flatten()).view(*index.shape, *self.y.shape[1:])
            with self.computing():
                logits = self.forward({**params, **buffers}, x).float()
            at_logits = self._at_logits(logits.detach(), y, share) * share[:, :, None]
            torch._foreach_copy_(gradients, torch.autograd.grad(logits, [*params.values()], at_logits))
            if self.training.clip is not None:
                gradient.mul_((self.training.clip / (gradient.norm(dim=1, keepdim=True) + 1e-6)).clamp(max=1))
            update(rate)

        return step

    def _at_logits(self, logits: Tensor, y: Tensor, share: Tensor) -> Tensor:
        """Return the gradient of each batch's summed loss at its logits, (A, B, K); anything where there is filling."""
        if all(descent.logit_grad is None for descent in self.descents):
            if not label_kind_of(self.y).has_classes:
                return own_gradient(logits.flatten(0, 1), y.flatten(0, 1)).view_as(logits)
            classes = torch.arange(logits.shape[2], device=logits.device)
            return logits.softmax(2) - (y[:, :, None] == classes).float()
        gradient = torch.zeros_like(logits)
        for row, descent in enumerate(self.descents[: len(logits)]):
            logit_grad = descent.logit_grad or PerExample(own_gradient)
            size = logits.shape[1] if isinstance(logit_grad, PerExample) else int((share[row] > 0).sum())
            gradient[row, :size] = logit_grad(logits[row, :size], y[row, :size])
        return gradient

    def _replay(self, step: Callable[[Tensor, Tensor, float], None], count: int, steps: Sequence[int]) -> None:
        """Take the first steps one by one, record one, and replay it for the others."""
        index, share = self.index[steps[0], :count].clone(), self.share[steps[0], :count].clone()
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for each in steps[:WARM_UP]:
                step(self.index[each, :count], self.share[each, :count], self.rates[each])
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph):
            step(index, share, self.rates[steps[0]])
        for each in steps[WARM_UP:]:
            index.copy_(self.index[each, :count])
            share.copy_(self.share[each, :count])
            graph.replay()

    def write_back(self) -> None:
        """Copy each row to its descent: the model, its buffers and the optimiser's moments."""
        begun = self.descents[0].moments.get("steps", torch.zeros(())).clone()
        for row, descent in enumerate(self.descents):
            descent.flat.vector.copy_(self.models[row])
            for name, buffer in descent.flat.module.named_buffers():
                buffer.copy_(self.buffers[name][row])
            for name, moment in self.moments.items():
                descent.moments[name] = begun + len(descent.batches) if name == "steps" else moment[row].clone()
