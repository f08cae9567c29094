"""Rnd-alpha (ST-LF, Section V-B, i): ST-LF's sources and targets, random weights over all sources."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fedcore.divergence import Divergence
from fedcore.links.heuristics import random_weights
from fedcore.local import Training
from fedcore.transfer import Bound, How, Program, Radio, formed, measured, method, solved
from fedcore.types import Message, Method, Net, Params, Turn, Unit, Update


def rnd_alpha(
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
    """Build Rnd-alpha. Its settings are `st_lf`'s."""
    form = partial(link, bound=bound, radio=radio, program=program)
    return method("rnd_alpha", nets, training, common, form, radio, transfer, pairs)


def link(
    server: Params, updates: Mapping[Unit, Update], turn: Turn, *, bound: Bound, radio: Radio, program: Program
) -> tuple[Params, Mapping[str, Message]]:
    """Link every source to every target with random weights."""
    server = measured(server, updates, turn)
    problem, answer = solved(server, turn, bound, radio, program)
    return formed(
        server, turn, answer.psi, random_weights(answer.psi, turn.generator("alpha")), problem.energy, answer, bound
    )
