"""The control of ST-LF: its sources and targets, but every target listens to the one source of least empirical error.

ST-LF with its divergences and energies taken out of the choice of links: what it adds to this is what they are worth.
psi is ST-LF's, so that both are measured on the same targets.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fedcore.builders import control, trains
from fedcore.links import Answer
from fedcore.links.divergence import Divergence
from fedcore.links.heuristics import one_source
from fedcore.links.problem import Array
from fedcore.links.protocol import Bound, How, Program, Radio, errors, method, planned
from fedcore.local import Training
from fedcore.types import Method, Net, Params, Turn


@control
@trains(init="common")
def least_error(
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
    form = partial(
        planned, bound=bound, radio=radio, program=program, weigh=partial(weigh, unlabelled=bound.unlabelled)
    )
    return method("least_error", nets, training, common, form, radio, combine, pairs)


def weigh(answer: Answer, server: Params, turn: Turn, *, unlabelled: float) -> Array:
    """Link the source of least empirical error to every target."""
    return one_source(answer.psi, errors(server, unlabelled))
