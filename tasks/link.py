"""Who is a source and who a target, over which links (ST-LF)."""

from collections.abc import Mapping

from fedcore.pipeline.work import combine
from fedcore.types.federation import Params
from fedcore.types.method import Combine, RoundInfo, Sent, Update


@combine("link", "identify")
def form_links(part: Combine, server: Params, updates: Mapping[str, Update], round_info: RoundInfo) -> Sent:
    """Choose sources, targets and the weights of links under the cost of energy (ST-LF, Algorithm 2)."""
    return part(server, updates, round_info)
