"""psi-FADA (ST-LF, Section V-B, vii): sources and targets at random, aligned with each other, dynamic attention."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fedcore.builders import trains
from fedcore.links.adversaries import Alignment, method
from fedcore.links.heuristics import coins, even_weights
from fedcore.links.problem import Array
from fedcore.links.protocol import Radio, guessed
from fedcore.local import Training
from fedcore.types import Depth, Method, Net, Params, Turn


@trains(init="common")
def psi_fada(
    *,
    nets: Mapping[str, Net],
    training: Training,
    common: bool,
    radio: Radio,
    rounds: Depth = 5,
    alignment: Alignment,
) -> Method:
    """Build psi-FADA. Nothing is measured over pairs.

    rounds: how often sources train their copies. start to identifier_lr: `fedcore.links.adversaries.Alignment`. The
    others are `st_lf`'s.
    """
    form = partial(guessed, radio=radio, draw=draw)
    return method("psi_fada", nets, training, common, form, radio, rounds, alignment)


def draw(server: Params, turn: Turn, energy: Array) -> tuple[Array, Array]:
    """Draw sources and targets and link all of them; dynamic attention is to say with which weights."""
    psi = coins(len(turn.names), turn.generator("psi"))
    return psi, even_weights(psi)
