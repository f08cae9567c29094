"""FedAvg with ST-LF's psi (ST-LF, Section V-B, ii): its sources and targets, weights by the sources' sizes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fedcore.divergence import Divergence
from fedcore.links.bound import Constants
from fedcore.links.heuristics import size_weights
from fedcore.links.programs import Solver
from fedcore.local import Training
from fedcore.transfer import REPORT, Bound, Chance, Costs, How, Program, Radio, Range, formed, measured, method, solved
from fedcore.types import Amount, Count, Message, Method, Net, Params, Positive, Turn, Unit, Update


def fedavg_alpha(
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
    transfer: How,
) -> Method:
    """Build it. Its settings are `st_lf`'s."""
    pairs = Divergence(pair_rounds, pair_iterations, pair_batch, pair_lr, 0.0, held_out)
    bound = Bound(constants, delta, unlabelled, phi_s, phi_t, phi_e)
    program = Program(solver, tol, max_iterations)
    radio = Radio(powers, rates, bits, costs)
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
