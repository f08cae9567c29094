"""FADA with ST-LF's psi (ST-LF, Section V-B, iii): every source aligned with every target, dynamic attention."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fedcore.adversarial import Alignment, Start, method
from fedcore.divergence import Divergence
from fedcore.links.bound import Constants
from fedcore.links.heuristics import even_weights
from fedcore.links.programs import Solver
from fedcore.local import Training
from fedcore.transfer import Bound, Chance, Costs, Program, Radio, Range, formed, measured, solved
from fedcore.types import Amount, Count, Depth, Message, Method, Net, Params, Positive, Turn, Unit, Update


def fada(
    *,
    nets: Mapping[str, Net],
    training: Training,
    common: bool,
    pair_rounds: Count,
    pair_iterations: Count,
    pair_batch: Count,
    pair_lr: Positive,
    held_out: Chance,
    constants: Constants,
    delta: Chance,
    unlabelled: Amount,
    phi_s: Amount,
    phi_t: Amount,
    phi_e: Amount,
    powers: Range,
    rates: Range,
    bits: Positive,
    costs: Costs,
    solver: Solver,
    tol: Positive,
    max_iterations: Count,
    rounds: Depth,
    start: Start,
    steps: Count,
    batch: Count,
    lr: Positive,
    weight: Amount,
    shown: Count,
    sharpness: Amount,
    hidden: Count,
    identifier_steps: Count,
    identifier_lr: Positive,
) -> Method:
    """Build it.

    rounds: how often sources train their copies. start to identifier_lr: :class:`fedcore.adversarial.Alignment`. The
    others are `st_lf`'s.
    """
    pairs = Divergence(pair_rounds, pair_iterations, pair_batch, pair_lr, 0.0, held_out)
    bound = Bound(constants, delta, unlabelled, phi_s, phi_t, phi_e)
    program = Program(solver, tol, max_iterations)
    radio = Radio(powers, rates, bits, costs)
    alignment = Alignment(start, steps, batch, lr, weight, shown, sharpness, hidden, identifier_steps, identifier_lr)
    form = partial(link, bound=bound, radio=radio, program=program)
    return method("fada", nets, training, common, form, radio, rounds, alignment, pairs)


def link(
    server: Params, updates: Mapping[Unit, Update], turn: Turn, *, bound: Bound, radio: Radio, program: Program
) -> tuple[Params, Mapping[str, Message]]:
    """Link every source to every target; dynamic attention is to say with which weights."""
    server = measured(server, updates, turn)
    problem, answer = solved(server, turn, bound, radio, program)
    return formed(server, turn, answer.psi, even_weights(answer.psi), problem.energy, answer)
