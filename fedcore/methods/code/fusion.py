r"""Combine networks unit by unit: align each to a target by optimal transport, then average.

Structure is data. An `Axes` table says which axis of which parameter carries which units; a label is solved from the
parameters whose first axis it is (weights as (out, in, ...), biases, norms), once their other axes are aligned. So
layers follow each other in the order of the table's parameters, and convolutions, flattened channels and shared axes
need no code of their own. An axis that is k times as long as its label's units holds k entries of each unit in a row
(channels flattened with their pixels), which move together.

With T_l (n, m) the plan between the n units of the model and the m of the target, a layer W (n_l, n_{l-1}) becomes

    W~_l = (m T_l)' W_l (n T_{l-1})           T_0 and T_L scaled identities       (CODE, eqs. 23 and 25)

Departures from the paper, where it cannot be meant as printed:
* Its factors 1/N are the units' masses: to undo them is to multiply by N. Rows of (m T_l)' sum to one, so that a unit
  of the target receives a mean of units; rows of n T_{l-1} sum to one, so that a unit's outgoing weight is dealt out.
  Then a permuted network comes back, identical ones are a fixed point, and splitting a unit in k with outgoing
  weights divided by k (or merging them) leaves the function as it was. (23) prints the model's width and (25) the
  target's, as here.
* Biases, which it does not mention, travel with their layer and count in the cost (24) as one more coordinate, like
  every other parameter of a unit: units that differ only in their bias are different units.

Parameters that are not floating point (counters) are never mixed: the target's are taken.

Nets may differ in widths, not in depth (CODE, Remark 3); the result is fitted to each. Averaging needs equal ones.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

import torch
from torch import Tensor

from fedcore.core.aggregation import evenly
from fedcore.errors import InputError
from fedcore.methods.code.transport import Plan, Transport, cost, solve_transport
from fedcore.nets import key
from fedcore.nets.tables import units
from fedcore.types.federation import Axes, Net, Params
from fedcore.types.method import Message

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
    moved = {name: model[name].double() for name in axes}
    plans: dict[str, Plan] = {}
    for label, n in widths.items():
        m = wanted[label]
        ready = [
            name
            for name, labels in axes.items()
            if labels[:1] == (label,) and {*labels[1:]} <= {None, *plans} and not name.endswith(STATISTICS)
        ]
        if not ready:
            raise InputError(f"axes: {label!r} depends on labels further down, list the parameters in forward order")
        x = torch.cat([moved[name].reshape(n, -1) for name in ready], 1)
        y = torch.cat([target[name].reshape(m, -1) for name in ready], 1)
        plans[label] = solve_transport(cost(x, y, transport.p), evenly(n), evenly(m), transport)
        T = plans[label].plan
        for name, labels in axes.items():
            for axis, other in enumerate(labels):
                if other == label:
                    moved[name] = carry(moved[name], axis, (n if axis else m) * T)
    mixed = {name: moved[name].to(x.dtype).contiguous() for name, x in target.items() if x.is_floating_point()}
    return {name: mixed.get(name, x) for name, x in target.items()}, plans


def carry(x: Tensor, axis: int, matrix: Tensor) -> Tensor:
    """Replace the n units on an axis by m: sum_i matrix_ij x_i. matrix (n, m); the axis n * k long becomes m * k."""
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    blocks: Tensor = torch.tensordot(x.reshape(*before, len(matrix), -1, *after), matrix, ([axis], [0]))
    return blocks.movedim(-1, axis).reshape(*before, -1, *after)


def average_pair(a: Params, b: Params, weight: float = 0.5) -> Params:
    """Return (1 - weight) a + weight b (eq. 26); parameters that are not floating point are b's."""
    return {name: (1 - weight) * a[name] + weight * x if x.is_floating_point() else x for name, x in b.items()}


def code(models: Sequence[Params], axes: Axes, transport: Transport) -> tuple[Params, list[dict[str, Plan]]]:
    """Fold the models into one (CODE, Algorithm 1): align the result so far to the next model and average the two.

    models in ascending order of accuracy: the last counts 1/2, the one before 1/4, ..., the first two alike. Returns
    the fused model, which has the last one's shapes, and the plans of every fold.
    """
    fused, plans = models[0], []
    for target in models[1:]:
        aligned, plan = align(fused, target, axes, transport)
        fused = average_pair(aligned, target)
        plans.append(plan)
    return fused, plans


def fold_without_alignment(models: Sequence[Params]) -> Params:
    """Return CODE's weighted mean, 1/2 for the last model, 1/4, ..., of the models as they are: its control."""
    return reduce(average_pair, models)


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
    """Return the plain mean of models of one shape; parameters that are not floating point are the target's."""
    return {
        name: torch.stack([model[name] for model in models]).mean(0) if x.is_floating_point() else x
        for name, x in target.items()
    }


def _check(model: Params, target: Params, axes: Axes, widths: dict[str, int], wanted: dict[str, int]) -> None:
    """Refuse models that the table does not describe or that cannot be brought into one shape."""
    for name, x in target.items():
        if x.is_floating_point() and name not in axes:
            raise InputError(f"axes: {name} is not in the table")
    for name, labels in axes.items():
        for label, n, m in zip(labels, model[name].shape, target[name].shape, strict=True):
            if label is not None and label not in widths:
                raise InputError(f"axes: {name} uses {label!r}, which must be some parameter's first axis")
            per, each = (widths[label], wanted[label]) if label else (1, 1)
            if n % per or m % each or n // per != m // each:
                raise InputError(f"axes: {name} is {n} long for the model and {m} for the target on axis {label!r}")
        if not model[name].isfinite().all():
            raise InputError(f"model: {name} is not finite")


def common_axes(nets: Mapping[str, Net]) -> Axes:
    """Return the axes table that all nets share; raises InputError if one has none or a different one."""
    tables = [net.table for net in nets.values()]
    if any(other != tables[0] for other in tables):
        raise InputError(
            "net.variants: nets of unequal depth or kind cannot be aligned, they may differ in widths only"
        )
    return tables[0]


def fit_widths(
    fused: Params, models: Mapping[str, Params], nets: Mapping[str, Net], names: Iterable[str], axes: Axes,
    transport: Transport,
) -> dict[str, Message]:  # fmt: skip
    """Return each device's message: the fused model in the shapes of its own net.

    models: the devices' models, the best last. If a net has other shapes than the fused model, the fused model is
    aligned to the best model of that net, once for all devices that have it. The paper, which allows different widths,
    does not say what such devices receive.
    """
    sent = {}
    for kind, model in {key(nets[name]): model for name, model in models.items()}.items():
        fits = all(tensor.shape == model[name].shape for name, tensor in fused.items())
        sent[kind] = Message(fused if fits else align(fused, model, axes, transport)[0])
    return {name: sent[key(nets[name])] for name in names}
