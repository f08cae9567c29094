"""FedAvg with ST-LF's psi (ST-LF, Section V-B, ii): its sources and targets, weights by the sources' sizes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fedcore.divergence import Divergence
from fedcore.links.heuristics import size_weights
from fedcore.local import Training
from fedcore.transfer import REPORT, Bound, How, Program, Radio, formed, measured, method, solved
from fedcore.types import Message, Method, Net, Params, Turn, Unit, Update


def fedavg_alpha(
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
    return method("fedavg_alpha", nets, training, common, form, radio, transfer, pairs)


def link(
    server: Params, updates: Mapping[Unit, Update], turn: Turn, *, bound: Bound, radio: Radio, program: Program
) -> tuple[Params, Mapping[str, Message]]:
    """Link every source to every target, weights by their numbers of examples."""
    server = measured(server, updates, turn)
    problem, answer = solved(server, turn, bound, radio, program)
    return formed(
        server, turn, answer.psi, size_weights(answer.psi, server[REPORT][:, 2].numpy()), problem.energy, answer
    )
