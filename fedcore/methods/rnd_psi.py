"""Rnd-psi (ST-LF, Section V-B, v): sources and targets at random, random weights over all sources."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fedcore.links.heuristics import coins, random_weights
from fedcore.local import Training
from fedcore.transfer import How, Radio, costs_of, formed, gather, method
from fedcore.types import Message, Method, Net, Params, Turn, Update


def rnd_psi(
    *,
    nets: Mapping[str, Net],
    training: Training,
    common: bool,
    radio: Radio,
    transfer: How,
) -> Method:
    """Build Rnd-psi. Nothing is measured over pairs. Its settings are `st_lf`'s."""
    form = partial(link, radio=radio)
    return method("rnd_psi", nets, training, common, form, radio, transfer)


def link(
    server: Params, updates: Mapping[str, Update], turn: Turn, *, radio: Radio
) -> tuple[Params, Mapping[str, Message]]:
    """Draw sources, targets and weights."""
    server, _ = gather(server, updates, turn)
    energy = costs_of(turn.seed, len(turn.names), radio)
    psi = coins(len(turn.names), turn.generator("psi"))
    return formed(server, turn, psi, random_weights(psi, turn.generator("alpha")), energy)
