r"""Combine networks unit by unit: align each to a target by optimal transport, then average.

Structure is data. An `Axes` table says which axis of which leaf carries which units; a label is solved from the
leaves whose first axis it is (weights as (out, in, ...), biases, norms), once their other axes are aligned. So layers
follow each other in the order of the table's leaves, and convolutions, flattened channels and shared axes need no
code of their own. An axis that is k times as long as its label's units holds k entries of each unit in a row (channels
flattened with their pixels), which move together.

With T_l (n, m) the plan between the n units of the model and the m of the target, a layer W (n_l, n_{l-1}) becomes

    W~_l = (m T_l)' W_l (n T_{l-1})           T_0 and T_L scaled identities       (CODE, eqs. 23 and 25)

Departures from the paper, where it cannot be meant as printed:
* Its factors 1/N are the units' masses: to undo them is to multiply by N. Rows of (m T_l)' sum to one, so that a unit
  of the target receives a mean of units; rows of n T_{l-1} sum to one, so that a unit's outgoing weight is dealt out.
  Then a permuted network comes back, identical ones are a fixed point, and splitting a unit in k with outgoing
  weights divided by k (or merging them) leaves the function as it was. (23) prints the model's width and (25) the
  target's, as here.
* Biases, which it does not mention, travel with their layer and count in the cost (24) as one more coordinate, like
  every other leaf of a unit: units that differ only in their bias are different units.

Leaves that are not floating point (counters) are never mixed: the target's are taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from fedcore.methods.code.transport import Plan, Transport, cost, solve_transport, uniform
from fedcore.types import Axes, InputError, Params

STATISTICS = ("running_mean", "running_var")
"""PyTorch's names of a norm's buffers."""


ONE_TO_ONE = Transport(solver="exact")
"""Each unit goes to one other, so that sums over units' outputs can be moved with them."""


def align(model: Params, target: Params, axes: Axes, transport: Transport) -> tuple[Params, dict[str, Plan]]:
    """Return the model in the units of the target, and the plan of every label.

    The result has the target's shapes and the model's function as far as the plans are permutations or splits.
    """
    widths, wanted = units(model, axes), units(target, axes)
    _check(model, target, axes, widths, wanted)
    moved = {leaf: model[leaf].double() for leaf in axes}
    plans: dict[str, Plan] = {}
    for label, n in widths.items():
        m = wanted[label]
        ready = [
            leaf
            for leaf, names in axes.items()
            if names[:1] == (label,) and {*names[1:]} <= {None, *plans} and not leaf.endswith(STATISTICS)
        ]
        if not ready:
            raise InputError(f"axes: {label!r} depends on labels further down, list the leaves in forward order")
        x = torch.cat([moved[leaf].reshape(n, -1) for leaf in ready], 1)
        y = torch.cat([target[leaf].reshape(m, -1) for leaf in ready], 1)
        plans[label] = solve_transport(cost(x, y, transport.p), uniform(n), uniform(m), transport)
        T = plans[label].plan
        for leaf, names in axes.items():
            for axis, name in enumerate(names):
                if name == label:
                    moved[leaf] = carry(moved[leaf], axis, (n if axis else m) * T)
    mixed = {leaf: moved[leaf].to(x.dtype).contiguous() for leaf, x in target.items() if x.is_floating_point()}
    return {leaf: mixed.get(leaf, x) for leaf, x in target.items()}, plans


def carry(x: Tensor, axis: int, matrix: Tensor) -> Tensor:
    """Replace the n units on an axis by m: sum_i matrix_ij x_i. matrix (n, m); the axis n * k long becomes m * k."""
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    blocks: Tensor = torch.tensordot(x.reshape(*before, len(matrix), -1, *after), matrix, ([axis], [0]))
    return blocks.movedim(-1, axis).reshape(*before, -1, *after)


def units(params: Params, axes: Axes) -> dict[str, int]:
    """Return the number of units of every label, in the order in which the leaves introduce them."""
    for leaf, names in axes.items():
        if leaf not in params or params[leaf].dim() != len(names):
            found = f"is {tuple(params[leaf].shape)}" if leaf in params else "is missing"
            raise InputError(f"axes: {leaf} {found}, the table names {len(names)} axes")
    sizes = [(label, n) for leaf, names in axes.items() for label, n in zip(names, params[leaf].shape, strict=True)]
    made = dict.fromkeys(names[0] for names in axes.values() if names and names[0])
    return {label: min(n for name, n in sizes if name == label) for label in made}


def average(a: Params, b: Params, weight: float = 0.5) -> Params:
    """Return (1 - weight) a + weight b (eq. 26); leaves that are not floating point are b's."""
    return {leaf: (1 - weight) * a[leaf] + weight * x if x.is_floating_point() else x for leaf, x in b.items()}


def code(models: Sequence[Params], axes: Axes, transport: Transport) -> tuple[Params, list[dict[str, Plan]]]:
    """Fold the models into one (CODE, Algorithm 1): align the result so far to the next model and average the two.

    models in ascending order of accuracy: the last counts 1/2, the one before 1/4, ..., the first two alike. Returns
    the fused model, which has the last one's shapes, and the plans of every fold.
    """
    fused, plans = models[0], []
    for target in models[1:]:
        aligned, plan = align(fused, target, axes, transport)
        fused = average(aligned, target)
        plans.append(plan)
    return fused, plans


def fold_without_alignment(models: Sequence[Params]) -> Params:
    """Return CODE's weighted mean, 1/2 for the last model, 1/4, ..., of the models as they are: its control."""
    return reduce(average, models)


def lmf(
    models: Sequence[Params], axes: Axes, transport: Transport, *, reference: int
) -> tuple[Params, list[dict[str, Plan]]]:
    """Layer-wise model fusion (Singh and Jaggi 2020, the paper's [54]): align all to one model and take the mean.

    Given a layer, every model's is aligned to the reference's and all are averaged; then the next. As the plans of
    the next layer compare with the reference's own, not with the mean, this is the mean of whole aligned models. The
    reference itself stays as it is. Returns the mean and every model's plans (none for the reference).
    """
    target = models[reference]
    aligned = [(model, {}) if model is target else align(model, target, axes, transport) for model in models]
    return mean([model for model, _ in aligned], target), [plans for _, plans in aligned]


def mean(models: Sequence[Params], target: Params) -> Params:
    """Return the plain mean of models of one shape; leaves that are not floating point are the target's."""
    return {
        leaf: torch.stack([model[leaf] for model in models]).mean(0) if x.is_floating_point() else x
        for leaf, x in target.items()
    }


def _check(model: Params, target: Params, axes: Axes, widths: dict[str, int], wanted: dict[str, int]) -> None:
    """Refuse models that the table does not describe or that cannot be brought into one shape."""
    for leaf, x in target.items():
        if x.is_floating_point() and leaf not in axes:
            raise InputError(f"axes: {leaf} is not in the table")
    for leaf, names in axes.items():
        for label, n, m in zip(names, model[leaf].shape, target[leaf].shape, strict=True):
            if label is not None and label not in widths:
                raise InputError(f"axes: {leaf} uses {label!r}, which is no leaf's first axis")
            per, each = (widths[label], wanted[label]) if label else (1, 1)
            if n % per or m % each or n // per != m // each:
                raise InputError(f"axes: {leaf} is {n} long for the model and {m} for the target on axis {label!r}")
        if not model[leaf].isfinite().all():
            raise InputError(f"model: {leaf} is not finite")
