"""Distil what models know: FedGen's generator, and nets that learn from draws of Gaussians."""

from collections.abc import Mapping

from fedcore.pipeline.work import combine
from fedcore.types.federation import Params
from fedcore.types.method import Combine, RoundInfo, Sent, Update


@combine("distil")
def distil(part: Combine, server: Params, updates: Mapping[str, Update], round_info: RoundInfo) -> Sent:
    """Train the server's model on what the devices sent. (DFL distils on the devices, in the task `train`.)"""
    return part(server, updates, round_info)
