"""psi-FedAvg (ST-LF, Section V-B, vi): sources and targets at random, weights by the sources' sizes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fedcore.builders import trains
from fedcore.links.heuristics import coins, size_weights
from fedcore.links.problem import Array
from fedcore.links.protocol import How, Radio, guessed, method, sizes
from fedcore.local import Training
from fedcore.types import Method, Net, Params, Turn


@trains(init="common")
def psi_fedavg(
    *, nets: Mapping[str, Net], training: Training, common: bool, radio: Radio, combine: How = "parameters"
) -> Method:
    """Build psi-FedAvg. Nothing is measured over pairs. Its settings are `st_lf`'s."""
    return method("psi_fedavg", nets, training, common, partial(guessed, radio=radio, draw=draw), radio, combine)


def draw(server: Params, turn: Turn, energy: Array) -> tuple[Array, Array]:
    """Draw sources and targets; weights by numbers of examples."""
    psi = coins(len(turn.names), turn.generator("psi"))
    return psi, size_weights(psi, sizes(server))
