"""psi-FedAvg (ST-LF, Section V-B, vi): sources and targets at random, weights by the sources' sizes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fedcore.links.heuristics import coins, size_weights
from fedcore.local import Training
from fedcore.transfer import REPORT, How, Radio, costs_of, formed, gather, method
from fedcore.types import Message, Method, Net, Params, Turn, Update


def psi_fedavg(
    *,
    nets: Mapping[str, Net],
    training: Training,
    common: bool,
    radio: Radio,
    transfer: How,
) -> Method:
    """Build psi-FedAvg. Nothing is measured over pairs. Its settings are `st_lf`'s."""
    form = partial(link, radio=radio)
    return method("psi_fedavg", nets, training, common, form, radio, transfer)


def link(
    server: Params, updates: Mapping[str, Update], turn: Turn, *, radio: Radio
) -> tuple[Params, Mapping[str, Message]]:
    """Draw sources and targets; weights by numbers of examples."""
    server, _ = gather(server, updates, turn)
    energy = costs_of(turn.seed, len(turn.names), radio)
    psi = coins(len(turn.names), turn.generator("psi"))
    return formed(server, turn, psi, size_weights(psi, server[REPORT][:, 2].numpy()), energy)
