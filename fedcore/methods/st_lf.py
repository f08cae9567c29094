"""ST-LF (Wang et al., Algorithms 1 and 2): who is a source, who a target, and which links between them are worth it.

Departures from the paper are listed in docs/stlf.md; what its rivals share is in fedcore.links.protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fedcore.builders import trains
from fedcore.links import Answer
from fedcore.links.divergence import Divergence
from fedcore.links.problem import Array
from fedcore.links.protocol import Bound, How, Program, Radio, method, planned
from fedcore.local import Training
from fedcore.types import Method, Net, Params, Turn


@trains(init="common")
def st_lf(
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
    """Build ST-LF.

    pair_*, held_out: of the classifiers of Algorithm 1 (`fedcore.links.divergence.Divergence`). constants, delta,
    unlabelled: of the bounds (`fedcore.links.bound`). phi_s, phi_t, phi_e: the weights of (11). powers, rates, bits,
    costs: :class:`fedcore.links.protocol.Radio`. solver, tol, max_iterations: `fedcore.links.solve`. combine:
    "parameters", a target runs the mean of its sources' models, or "outputs", the mean of what they say.
    """
    form = partial(planned, bound=bound, radio=radio, program=program, weigh=weigh)
    return method("st_lf", nets, training, common, form, radio, combine, pairs)


def weigh(answer: Answer, server: Params, turn: Turn) -> Array:
    """Take the weights of the program too."""
    return answer.alpha
