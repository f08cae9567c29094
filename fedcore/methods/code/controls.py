"""CODE's controls: its training, its ranking and its messages, without transport.

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

from fedcore.builders import control
from fedcore.core.messages import to_everyone
from fedcore.core.training import Training
from fedcore.methods.code.fusion import fold_without_alignment
from fedcore.methods.code.ranking import RankBy, rank_ascending, ranked_method
from fedcore.nets import require_equal
from fedcore.types.federation import Net, Params
from fedcore.types.method import Message, Method, RoundInfo, Update

__all__ = ["best_local", "half_best", "no_alignment"]


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
