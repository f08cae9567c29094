"""FADA with ST-LF's psi (ST-LF, Section V-B, iii): every source aligned with every target, dynamic attention."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fedcore.builders import trains
from fedcore.links import Answer
from fedcore.links.adversaries import Alignment, method
from fedcore.links.divergence import Divergence
from fedcore.links.heuristics import even_weights
from fedcore.links.problem import Array
from fedcore.links.protocol import Bound, Program, Radio, planned
from fedcore.local import Training
from fedcore.types import Depth, Method, Net, Params, Turn


@trains(init="common")
def fada(
    *,
    nets: Mapping[str, Net],
    training: Training,
    common: bool,
    pairs: Divergence,
    bound: Bound,
    program: Program,
    radio: Radio,
    rounds: Depth = 5,
    alignment: Alignment,
) -> Method:
    """Build it.

    rounds: how often sources train their copies. start to identifier_lr: `fedcore.links.adversaries.Alignment`. The
    others are `st_lf`'s.
    """
    form = partial(planned, bound=bound, radio=radio, program=program, weigh=weigh)
    return method("fada", nets, training, common, form, radio, rounds, alignment, pairs)


def weigh(answer: Answer, server: Params, turn: Turn) -> Array:
    """Link every source to every target; dynamic attention is to say with which weights."""
    return even_weights(answer.psi)
