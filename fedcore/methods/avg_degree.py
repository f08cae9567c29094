"""AvgD (ST-LF, Section V-B, iv): ST-LF's sources and targets, as many links per source as it has, at random."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fedcore.builders import trains
from fedcore.links import Answer
from fedcore.links.divergence import Divergence
from fedcore.links.heuristics import average_degree
from fedcore.links.problem import Array
from fedcore.links.protocol import Bound, How, Program, Radio, method, planned
from fedcore.local import Training
from fedcore.types import Method, Net, Params, Turn


@trains(init="common")
def avg_degree(
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
    """Build AvgD. Its settings are `st_lf`'s."""
    form = partial(planned, bound=bound, radio=radio, program=program, weigh=weigh)
    return method("avg_degree", nets, training, common, form, radio, combine, pairs)


def weigh(answer: Answer, server: Params, turn: Turn) -> Array:
    """Draw as many links per source as ST-LF has on average."""
    return average_degree(answer.psi, answer.alpha, turn.generator("alpha"))
