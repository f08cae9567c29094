"""CODE: coupled model averaging by optimal transport (Chiang et al. 2024, Algorithms 1 and 2), one shot or a few.

Its nearest rival is LMF, layer-wise model fusion by optimal transport (Singh and Jaggi 2020). Departures from the paper
are listed in fedcore.methods.code.fusion, fedcore.methods.code.transport and docs/methods/code.md.

The controls have CODE's training, ranking and messages, without transport:

best_local     the most accurate of the devices' models; fusing must beat choosing
half_best      half of that model
no_alignment   CODE's weights, 1/2 for the best model, 1/4, ..., without alignment

`half_best` is what CODE returns when its formulas are read as printed: the aligned part vanishes, and half of the last
model is left. Its accuracy is nearly that of the whole, so accuracy alone cannot tell that an implementation fuses
anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal, TypeAlias

from fedcore.builders import control
from fedcore.core.messages import to_everyone
from fedcore.core.training import Training
from fedcore.methods.code import fusion
from fedcore.methods.code.fusion import common_axes, fit_widths, fold_without_alignment
from fedcore.methods.code.ranking import RankBy, rank_ascending, ranked_method
from fedcore.methods.code.transport import FIGURES, Transport, report_plans
from fedcore.nets import require_equal
from fedcore.types.federation import Axes, Net, Params
from fedcore.types.method import Message, Method, Report, RoundInfo, Update
from fedcore.types.ranges import Count, Fraction

__all__ = ["best_local", "code_ot", "half_best", "lmf", "no_alignment"]

Order: TypeAlias = Literal["ascending", "descending"]


def code_ot(
    *,
    nets: Mapping[str, Net],
    training: Training,
    rounds: Count = 1,
    fraction: Fraction = 1.0,
    order: Order = "ascending",
    rank_by: RankBy = "classes",
    transport: Transport,
) -> Method:
    """Build CODE. Devices' nets may differ in widths.

    Args:
        rounds: communication rounds, from 1. After the first, devices train on from the fused model (Fig. 10).
        fraction: share of the devices that take part in a round, above 0, at most 1; below 1 nets must be equal.
        order: the order of accuracy in which models are folded; the last one counts half. "ascending" is Algorithm 1's.
        rank_by: what models are ranked by: "classes", the accuracies on each class that devices report; "validation",
            on their own validation examples; or "test", on the server's test set, as in the paper.
        transport: how units are matched.

    Raises:
        InputError: for a net without an axes table, and for nets of different depth or kind.
    """
    if fraction < 1:
        require_equal(nets)
    combine = partial(fuse, nets=nets, axes=common_axes(nets), order=order, transport=transport)
    return ranked_method(training, combine, rank_by, rounds, FIGURES, fraction)


def fuse(
    server: Params,
    updates: Mapping[str, Update],
    round_info: RoundInfo,
    *,
    nets: Mapping[str, Net],
    axes: Axes,
    order: Order,
    transport: Transport,
) -> tuple[Params, Mapping[str, Message], Report]:
    """Sort the models and fold them into one; report the transport plans."""
    names = rank_ascending(server, updates, nets)
    if order == "descending":
        names.reverse()
    models = {name: updates[name].params for name in names}
    fused, plans = fusion.code(list(models.values()), axes, transport)
    messages = fit_widths(fused, models, nets, round_info.names, axes, transport)
    return server, messages, report_plans(dict(zip(names[1:], plans, strict=True)))


def lmf(
    *,
    nets: Mapping[str, Net],
    training: Training,
    rounds: Count = 1,
    fraction: Fraction = 1.0,
    rank_by: RankBy = "classes",
    transport: Transport,
) -> Method:
    """Build LMF: all models aligned to the most accurate one and averaged evenly. Devices' nets may differ in widths.

    Args:
        rounds: communication rounds, from 1. After the first, devices train on from the fused model.
        fraction: share of the devices that take part in a round, above 0, at most 1; below 1 nets must be equal.
        rank_by: what models are ranked by, as for `code_ot`: "classes", "validation" or "test".
        transport: how units are matched.

    Raises:
        InputError: for a net without an axes table, and for nets of different depth or kind.
    """
    if fraction < 1:
        require_equal(nets)
    combine = partial(fuse_evenly, nets=nets, axes=common_axes(nets), transport=transport)
    return ranked_method(training, combine, rank_by, rounds, FIGURES, fraction)


def fuse_evenly(
    server: Params,
    updates: Mapping[str, Update],
    round_info: RoundInfo,
    *,
    nets: Mapping[str, Net],
    axes: Axes,
    transport: Transport,
) -> tuple[Params, Mapping[str, Message], Report]:
    """Fuse the models; report the transport plans."""
    names = rank_ascending(server, updates, nets)
    models = {name: updates[name].params for name in names}
    fused, plans = fusion.lmf(list(models.values()), axes, transport, reference=len(names) - 1)
    messages = fit_widths(fused, models, nets, round_info.names, axes, transport)
    return server, messages, report_plans(dict(zip(names, plans, strict=True)))


@control
def best_local(*, nets: Mapping[str, Net], training: Training, rank_by: RankBy = "classes") -> Method:
    """Build the control that sends everyone the most accurate model.

    Args:
        rank_by: what models are ranked by, as for `code_ot`.
    """
    require_equal(nets)
    return ranked_method(training, partial(choose_best, nets=nets), rank_by)


@control
def half_best(*, nets: Mapping[str, Net], training: Training, rank_by: RankBy = "classes") -> Method:
    """Build the control that sends everyone half of the most accurate model.

    Args:
        rank_by: what models are ranked by, as for `code_ot`.
    """
    require_equal(nets)
    return ranked_method(training, partial(halve_best, nets=nets), rank_by)


@control
def no_alignment(*, nets: Mapping[str, Net], training: Training, rank_by: RankBy = "classes") -> Method:
    """Build the control that averages the models as they are, with CODE's weights.

    Args:
        rank_by: what models are ranked by, as for `code_ot`.
    """
    require_equal(nets)
    return ranked_method(training, partial(fold_models, nets=nets), rank_by)


def choose_best(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, nets: Mapping[str, Net]
) -> tuple[Params, Mapping[str, Message]]:
    """Send everyone the best model."""
    return server, to_everyone(round_info.names, Message(updates[rank_ascending(server, updates, nets)[-1]].params))


def halve_best(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, nets: Mapping[str, Net]
) -> tuple[Params, Mapping[str, Message]]:
    """Send everyone the best model, every number in it halved (counters are kept)."""
    best = updates[rank_ascending(server, updates, nets)[-1]].params
    half = {name: x / 2 if x.is_floating_point() else x for name, x in best.items()}
    return server, to_everyone(round_info.names, Message(half))


def fold_models(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, nets: Mapping[str, Net]
) -> tuple[Params, Mapping[str, Message]]:
    """Send everyone the weighted mean of the models, in CODE's order."""
    names = rank_ascending(server, updates, nets)
    return server, to_everyone(
        round_info.names, Message(fold_without_alignment([updates[name].params for name in names]))
    )
