"""FedAvg with ST-LF's psi (ST-LF, Section V-B, ii): its sources and targets, weights by the sources' sizes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fedcore.builders import trains
from fedcore.links import Answer
from fedcore.links.divergence import Divergence
from fedcore.links.heuristics import size_weights
from fedcore.links.problem import Array
from fedcore.links.protocol import Bound, How, Program, Radio, method, planned, sizes
from fedcore.local import Training
from fedcore.types import Method, Net, Params, Turn


@trains(init="common")
def fedavg_alpha(
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
    """Build it. Its settings are `st_lf`'s."""
    form = partial(planned, bound=bound, radio=radio, program=program, weigh=weigh)
    return method("fedavg_alpha", nets, training, common, form, radio, combine, pairs)


def weigh(answer: Answer, server: Params, turn: Turn) -> Array:
    """Link every source to every target, weights by their numbers of examples."""
    return size_weights(answer.psi, sizes(server))
