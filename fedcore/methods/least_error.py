"""The control of ST-LF: its sources and targets, but every target listens to the one source of least empirical error.

ST-LF with its divergences and energies taken out of the choice of links: what it adds to this is what they are worth.
psi is ST-LF's, so that both are measured on the same targets.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fedcore.divergence import Divergence
from fedcore.links.heuristics import one_source
from fedcore.local import Training
from fedcore.transfer import Bound, How, Program, Radio, errors, formed, measured, method, solved
from fedcore.types import Message, Method, Net, Params, Turn, Unit, Update


def least_error(
    *,
    nets: Mapping[str, Net],
    training: Training,
    common: bool,
    pairs: Divergence,
    bound: Bound,
    program: Program,
    radio: Radio,
    transfer: How,
) -> Method:
    """Build it. Its settings are `st_lf`'s."""
    form = partial(link, bound=bound, radio=radio, program=program)
    return method("least_error", nets, training, common, form, radio, transfer, pairs)


def link(
    server: Params, updates: Mapping[Unit, Update], turn: Turn, *, bound: Bound, radio: Radio, program: Program
) -> tuple[Params, Mapping[str, Message]]:
    """Link the source of least empirical error to every target."""
    server = measured(server, updates, turn)
    problem, answer = solved(server, turn, bound, radio, program)
    alpha = one_source(answer.psi, errors(server, bound.unlabelled))
    return formed(server, turn, answer.psi, alpha, problem.energy, answer, bound)
