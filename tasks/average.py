"""Average what devices send: whole models, changes of them, or the cells that they share."""

from collections.abc import Mapping

from fedcore.pipeline.work import combine
from fedcore.types.federation import Params
from fedcore.types.method import Combine, RoundInfo, Sent, Update


@combine("average", "exchange")
def average(part: Combine, server: Params, updates: Mapping[str, Update], round_info: RoundInfo) -> Sent:
    """Average the updates by examples (McMahan et al. 2017, Algorithm 1), or aggregate them against outliers."""
    return part(server, updates, round_info)


@combine("align", "mix")
def share_cells(part: Combine, server: Params, updates: Mapping[str, Update], round_info: RoundInfo) -> Sent:
    """Choose how many cells each device shares, and average cell by cell (FedASA, (8) and (9))."""
    return part(server, updates, round_info)
