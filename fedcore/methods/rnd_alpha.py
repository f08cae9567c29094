"""Rnd-alpha (ST-LF, Section V-B, i): ST-LF's sources and targets, random weights over all sources."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fedcore.builders import trains
from fedcore.links import Answer
from fedcore.links.divergence import Divergence
from fedcore.links.heuristics import random_weights
from fedcore.links.problem import Array
from fedcore.links.protocol import Bound, How, Program, Radio, method, planned
from fedcore.local import Training
from fedcore.types import Method, Net, Params, Turn


@trains(init="common")
def rnd_alpha(
    *,
    nets: Mapping[str, Net],
    training: Training,
    common: bool,
    pairs: Divergence,
    bound: Bound,
    program: Program,
    radio: Radio,
    combine: How = "parameters",
) -> Method:
    """Build Rnd-alpha. Its settings are `st_lf`'s."""
    form = partial(planned, bound=bound, radio=radio, program=program, weigh=weigh)
    return method("rnd_alpha", nets, training, common, form, radio, combine, pairs)


def weigh(answer: Answer, server: Params, turn: Turn) -> Array:
    """Link every source to every target with random weights."""
    return random_weights(answer.psi, turn.generator("alpha"))
