"""FADA with ST-LF's psi (ST-LF, Section V-B, iii): every source aligned with every target, dynamic attention."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fedcore.adversarial import Alignment, method
from fedcore.divergence import Divergence
from fedcore.links.heuristics import even_weights
from fedcore.local import Training
from fedcore.transfer import Bound, Program, Radio, formed, measured, solved
from fedcore.types import Depth, Message, Method, Net, Params, Turn, Unit, Update


def fada(
    *,
    nets: Mapping[str, Net],
    training: Training,
    common: bool,
    pairs: Divergence,
    bound: Bound,
    program: Program,
    radio: Radio,
    rounds: Depth,
    alignment: Alignment,
) -> Method:
    """Build it.

    rounds: how often sources train their copies. start to identifier_lr: :class:`fedcore.adversarial.Alignment`. The
    others are `st_lf`'s.
    """
    form = partial(link, bound=bound, radio=radio, program=program)
    return method("fada", nets, training, common, form, radio, rounds, alignment, pairs)


def link(
    server: Params, updates: Mapping[Unit, Update], turn: Turn, *, bound: Bound, radio: Radio, program: Program
) -> tuple[Params, Mapping[str, Message]]:
    """Link every source to every target; dynamic attention is to say with which weights."""
    server = measured(server, updates, turn)
    problem, answer = solved(server, turn, bound, radio, program)
    return formed(server, turn, answer.psi, even_weights(answer.psi), problem.energy, answer)
