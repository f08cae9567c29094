"""AvgD (ST-LF, Section V-B, iv): ST-LF's sources and targets, as many links per source as it has, at random."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fedcore.divergence import Divergence
from fedcore.links.heuristics import average_degree
from fedcore.local import Training
from fedcore.transfer import Bound, How, Program, Radio, formed, measured, method, solved
from fedcore.types import Message, Method, Net, Params, Turn, Unit, Update


def avg_degree(
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
    """Build AvgD. Its settings are `st_lf`'s."""
    form = partial(link, bound=bound, radio=radio, program=program)
    return method("avg_degree", nets, training, common, form, radio, transfer, pairs)


def link(
    server: Params, updates: Mapping[Unit, Update], turn: Turn, *, bound: Bound, radio: Radio, program: Program
) -> tuple[Params, Mapping[str, Message]]:
    """Draw as many links per source as ST-LF has on average."""
    server = measured(server, updates, turn)
    problem, answer = solved(server, turn, bound, radio, program)
    return formed(
        server,
        turn,
        answer.psi,
        average_degree(answer.psi, answer.alpha, turn.generator("alpha")),
        problem.energy,
        answer,
    )
