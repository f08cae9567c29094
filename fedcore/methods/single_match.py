"""Single matching, SM (ST-LF, Section V-B, viii): half of the devices are targets, each with a source of its own.

The paper says no more than that one source is matched with one target. Here the halves are drawn, and matched so that
the links cost least.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fedcore.builders import trains
from fedcore.links.heuristics import halves, matched
from fedcore.links.problem import Array
from fedcore.links.protocol import How, Radio, guessed, method
from fedcore.local import Training
from fedcore.types import Method, Net, Params, Turn


@trains(init="common")
def single_match(
    *, nets: Mapping[str, Net], training: Training, common: bool, radio: Radio, combine: How = "parameters"
) -> Method:
    """Build SM. Nothing is measured over pairs. Its settings are `st_lf`'s."""
    return method("single_match", nets, training, common, partial(guessed, radio=radio, draw=draw), radio, combine)


def draw(server: Params, turn: Turn, energy: Array) -> tuple[Array, Array]:
    """Draw the targets and match them."""
    psi = halves(len(turn.names), turn.generator("psi"))
    return psi, matched(psi, energy)
