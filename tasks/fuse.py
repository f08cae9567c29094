"""Align the units of models by optimal transport and fuse them (CODE, Algorithm 1; LMF), and its controls."""

from collections.abc import Mapping

from fedcore.pipeline.work import combine
from fedcore.types.federation import Params
from fedcore.types.method import Combine, RoundInfo, Sent, Update


@combine("fuse", "choose")
def fuse(part: Combine, server: Params, updates: Mapping[str, Update], round_info: RoundInfo) -> Sent:
    """Fuse the devices' models, one after the other, layer after layer (CODE, (22) to (25))."""
    return part(server, updates, round_info)
