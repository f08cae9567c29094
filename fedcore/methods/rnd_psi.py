"""Rnd-psi (ST-LF, Section V-B, v): sources and targets at random, random weights over all sources."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fedcore.builders import trains
from fedcore.links.heuristics import coins, random_weights
from fedcore.links.problem import Array
from fedcore.links.protocol import How, Radio, guessed, method
from fedcore.local import Training
from fedcore.types import Method, Net, Params, Turn


@trains(init="common")
def rnd_psi(
    *, nets: Mapping[str, Net], training: Training, common: bool, radio: Radio, combine: How = "parameters"
) -> Method:
    """Build Rnd-psi. Nothing is measured over pairs. Its settings are `st_lf`'s."""
    return method("rnd_psi", nets, training, common, partial(guessed, radio=radio, draw=draw), radio, combine)


def draw(server: Params, turn: Turn, energy: Array) -> tuple[Array, Array]:
    """Draw sources, targets and weights."""
    psi = coins(len(turn.names), turn.generator("psi"))
    return psi, random_weights(psi, turn.generator("alpha"))
