r"""The links of ST-LF and its rivals: who is a source, who a target, and with which weights.

The devices' reports and the divergences of pairs give the bounds (17) and (18). With them the server poses (P),
(11)-(16), and solves it (:func:`plan_links`); or a rule draws sources and targets (:func:`draw_links`). Then a rule
gives the weights of links, which the server stores and reports.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
import torch

from fedcore.core.secure_sum import require_everyone
from fedcore.errors import InputError
from fedcore.methods.st_lf.bound import Constants, corollary_1, empirical_error, source_bound, target_bound, theorem_2
from fedcore.methods.st_lf.divergence import matrix
from fedcore.methods.st_lf.energy import MODEL, POWERS, RATES, check_costs, draw_energy
from fedcore.methods.st_lf.problem import Array, Problem, Solution
from fedcore.methods.st_lf.programs import SolverSettings, solve_program
from fedcore.types.federation import Params
from fedcore.types.method import Message, Pair, Report, RoundInfo, Sent, Update, generator, step_word
from fedcore.types.ranges import Amount, Chance, Positive

Range: TypeAlias = tuple[float, float]
Costs: TypeAlias = list[list[Amount]] | None

Sources: TypeAlias = Literal["labelled", "all"]

Choose: TypeAlias = Callable[[Array, torch.Generator], Array]
"""A rule that draws sources and targets: which devices may be sources (N,), 1 or 0, generator -> psi (N,)."""

REPORT, SENDS = "report", "sends"
"""Entries: the devices' reports (N, 3); whether a device is to send."""

PSI, ALPHA, ENERGY = "psi", "alpha", "energy"
"""Entries of the server's memory: 0 for a source (N,); weights of links and their energies (N, N)."""

EXCHANGED, BOUNDS = "exchanged", ("theorem_2", "corollary_1")
"""Entries of a method that measures pairs: classifiers sent by each device, bounds of targets' errors, (N,)."""


@dataclass(frozen=True)
class LinkInputs:
    """The inputs of a rule for weights.

    psi: (N,). error, size: the empirical errors (3) and the numbers of examples, (N,). energy: K (N, N). alpha,
    divergence: the program's weights and the measured divergences, (N, N), or None without a program.
    """

    psi: Array
    error: Array
    size: Array
    energy: Array
    alpha: Array | None = None
    divergence: Array | None = None


Weigh: TypeAlias = Callable[[LinkInputs, RoundInfo], Array]
"""A rule for weights: inputs, turn -> alpha (N, N)."""


@dataclass(frozen=True)
class BoundSettings:
    """Settings of the bounds S and T (`fedcore.methods.st_lf.bound`), and of the objective (11) that they enter.

    Args:
        constants: of the bounds, "assumed", "decimal" or "printed", see `fedcore.methods.st_lf.bound`.
        delta: probability that a bound fails, above 0 and below 1.
        unlabelled: empirical error (3) of a device without labels, from 0: 1 as printed; the default keeps it from
            being a source, as in the paper's figures.
        phi_s: weight of the sources' bounds in (11), from 0.
        phi_t: weight of the targets' bounds in (11), from 0.
        phi_e: weight of the energy in (11), from 0.
        phi_d: factor of the divergences in T, from 0: 1 in the paper, 100 in the authors' public code.
    """

    constants: Constants = "assumed"
    delta: Chance = 1e-3
    unlabelled: Amount = 1000.0
    phi_s: Amount = 1.0
    phi_t: Amount = 5.0
    phi_e: Amount = 1.0
    phi_d: Amount = 1.0


@dataclass(frozen=True)
class LinkCosts:
    """Costs of links: the energy of sending a model, drawn, or a matrix of the user's.

    Args:
        powers: range of the devices' transmit powers, dBm (Section V).
        rates: range of the links' rates, bits per second (Section V).
        bits: size of a model, bits.
        costs: matrix in place of the three above, rows of senders and columns of receivers in the order of the devices'
            names, from 0 in any unit; None: energies are drawn.
    """

    powers: Range = POWERS
    rates: Range = RATES
    bits: Positive = MODEL
    costs: Costs = None


# steps of the server


@step_word("collect")
def gather(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo
) -> tuple[Params, Mapping[str, Message]]:
    """Store the reports, (N, 3) in the order of the names; raises InputError if no device has a label."""
    require_everyone(updates, round_info.names, "links", "and the program plans those of all devices at once")
    reports = torch.stack([updates[name].extra[REPORT] for name in round_info.names])
    if not reports[:, 1].any():
        raise InputError("federation.unlabelled: no device has a label; at least one labelled device is needed")
    return {**server, REPORT: reports}, {}


@step_word("link")
def plan_links(
    server: Params, updates: Mapping[Pair, Update], round_info: RoundInfo, *, bounds: BoundSettings, costs: LinkCosts,
    solver: SolverSettings, weights: Weigh,
) -> Sent:  # fmt: skip
    """Take sources and targets from the program (P), and the weights of links from the rule.

    The server stores the links, and their Theorem 2 and Corollary 1 for its last report (Table II).
    """
    divergence = matrix(updates, round_info.names).numpy()
    problem = pose_program(server, divergence, round_info, bounds, costs)
    answer = solve_once(problem, solver)
    inputs = LinkInputs(
        answer.psi, errors(server, bounds.unlabelled), sizes(server), problem.energy, answer.alpha, divergence
    )
    alpha, error, size = weights(inputs, round_info), errors(server, 1.0), sizes(server)
    with_constants = corollary_1(alpha, error, size, divergence, delta=bounds.delta, constants=bounds.constants)
    limits = dict(zip(BOUNDS, (theorem_2(alpha, error, divergence), with_constants), strict=True))
    server = server | to_tensors(limits) | {EXCHANGED: count_classifiers(updates, round_info.names)}
    report = report_solution(answer, round_info.names)
    values = {"divergence": divergence, "objective": answer.objective, "gap": answer.gap, "trace": answer.trace}
    return form_links(server, round_info, inputs, alpha, replace(report, matrices=to_tensors(values)))


@step_word("link")
def draw_links(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, costs: LinkCosts, rule: Choose,
    sources: Sources, weights: Weigh,
) -> Sent:  # fmt: skip
    """Draw sources and targets by the rule, and take the weights of links from the other one.

    sources: which devices may be sources, those with a label or all. One without labels would send an untrained model.
    """
    server, _ = gather(server, updates, round_info)
    labelled = server[REPORT][:, 1].numpy() > 0
    may = labelled if sources == "labelled" else np.ones_like(labelled)
    psi = rule(may.astype(np.float64), round_info.generator("psi"))
    energy = link_costs(round_info.seed, len(round_info.names), costs)
    inputs = LinkInputs(psi, errors(server, 1.0), sizes(server), energy)
    return form_links(server, round_info, inputs, weights(inputs, round_info), Report())


def form_links(server: Params, round_info: RoundInfo, inputs: LinkInputs, alpha: Array, report: Report) -> Sent:
    """Store and report the links, alpha (N, N), and tell devices whether to send. report: the report to extend."""
    links = to_tensors({PSI: inputs.psi, ALPHA: alpha, ENERGY: inputs.energy})
    sends = torch.from_numpy((alpha > 0).any(1))
    messages = {name: Message(extra={SENDS: flag}) for name, flag in zip(round_info.names, sends, strict=True)}
    bounds = {name: server[name] for name in BOUNDS if name in server}
    return server | links, messages, replace(report, matrices={**report.matrices, **links, **bounds})


# the program


def pose_program(
    server: Params, divergence: Array, round_info: RoundInfo, bounds: BoundSettings, costs: LinkCosts
) -> Problem:
    """Return (P) from the devices' reports and divergences (17)-(18). divergence: d (N, N)."""
    error, size = errors(server, bounds.unlabelled), sizes(server)
    target = target_bound(error, size, divergence, delta=bounds.delta, constants=bounds.constants)
    target = target + (bounds.phi_d - 1) * divergence / 2
    source = source_bound(error, size, delta=bounds.delta, constants=bounds.constants)
    energy = link_costs(round_info.seed, len(round_info.names), costs)
    return Problem(source, target, energy, bounds.phi_s, bounds.phi_t, bounds.phi_e)


def solve_once(problem: Problem, settings: SolverSettings) -> Solution:
    """Return the solution of (P), computed once for all rivals that use ST-LF's sources and targets.

    If a solver fails, the status says so and names the fallback.
    """
    weights = problem.phi_s, problem.phi_t, problem.phi_e
    return solve_cached(settings, weights, *(x.tobytes() for x in (problem.source, problem.target, problem.energy)))


@lru_cache(16)
def solve_cached(settings: SolverSettings, weights: tuple[float, float, float], *constants: bytes) -> Solution:
    """Solve (P), given as the bytes of S, T and K (float64)."""
    source, *matrices = (np.frombuffer(part) for part in constants)
    target, energy = (matrix.reshape(len(source), -1) for matrix in matrices)
    return solve_program(Problem(source, target, energy, *weights), settings)


def report_solution(answer: Solution, names: Sequence[str]) -> Report:
    """Report how the program was solved: topic "program", the same numbers for all devices.

    gap: distance of the objective from the optimum, a fraction. For Algorithm 2 also iterations, fall: the total
    decrease of its penalised objective, and rise: its largest increase in an iteration, as fractions of the first.
    """
    numbers = {"gap": float(answer.gap)}
    if len(trace := torch.tensor(np.asarray(answer.trace))):
        steps = trace.diff() / trace[0]
        numbers |= {"iterations": float(len(trace)), "fall": float(-steps.sum())}
        numbers["rise"] = max([0.0, *steps.tolist()])
    finite = {number: x for number, x in numbers.items() if math.isfinite(x)}
    texts = {"status": answer.status}
    if "fallback" in answer.status:
        texts["warning"] = f"the program was not solved as asked; {answer.status}"
    return Report(devices={"program": dict.fromkeys(names, finite)}, words=texts)


# its constants


def errors(server: Params, unlabelled: float) -> Array:
    """Return the empirical errors (3), (N,)."""
    wrong, labelled, size = server[REPORT].T.numpy()
    return empirical_error(wrong, labelled, size, unlabelled=unlabelled)


def sizes(server: Params) -> Array:
    """Return how many examples devices have, (N,)."""
    return server[REPORT][:, 2].numpy()


def link_costs(seed: int, n: int, costs: LinkCosts) -> Array:
    """Return K (N, N). Drawn from the seed and the number of devices alone, so that all rows of a study share it."""
    if costs.costs is not None:
        if any(len(row) != len(costs.costs) for row in costs.costs):
            raise InputError(f"costs: its rows differ in length; must be {n} rows of {n}")
        return check_costs(np.array(costs.costs, dtype=np.float64), n)
    draws = generator(seed, "energy")
    return draw_energy(n, draws, powers=costs.powers, rates=costs.rates, bits=costs.bits)


def count_classifiers(updates: Mapping[Pair, Update], names: Sequence[str]) -> torch.Tensor:
    """Return how many classifiers each device sent to measure divergences, (N,)."""
    sent = dict.fromkeys(names, 0.0)
    for pair, update in updates.items():
        for name in pair:
            sent[name] += float(update.extra["sent"]) / 2
    return torch.tensor(list(sent.values()), dtype=torch.float64)


def to_tensors(values: Mapping[str, object]) -> Params:
    """Return arrays and numbers as new tensors."""
    return {name: torch.tensor(np.asarray(value)) for name, value in values.items()}
