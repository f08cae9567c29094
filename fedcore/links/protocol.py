r"""ST-LF's way through a federation, which its rivals share: train, report, form links, send along them.

1. Every device trains on its labelled examples and keeps the model. One without labels keeps its initial model.
2. It reports how often that model errs on its labelled examples, how many there are, and how many examples it has.
3. Over pairs of devices: how far their data are apart (:mod:`.divergence`); rivals that draw psi leave this out.
4. The server says who is a source (psi_i = 0), who a target (psi_j = 1) and with which weights (alpha_ij).
5. Sources that have a link send their model. A target runs the combination of its sources' models, a source its own.

The paper's devices send directly to each other; here models pass through the server, which mixes parameters. What the
links themselves carry and cost is reported (`linked`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from inspect import signature
from typing import Literal, TypeAlias

import numpy as np
import torch

from fedcore.links import Answer, Problem, solve
from fedcore.links.bound import Constants, corollary_1, empirical_error, source_bound, target_bound, theorem_2
from fedcore.links.divergence import Divergence, estimate, matrix
from fedcore.links.energy import drawn, given
from fedcore.links.problem import Array
from fedcore.links.programs import Solver
from fedcore.local import Training, accuracy, train
from fedcore.messages import first
from fedcore.mixing import mean
from fedcore.nets import require_equal
from fedcore.types import (
    Amount,
    Chance,
    Count,
    Device,
    InputError,
    Message,
    Method,
    Model,
    Net,
    Numbers,
    Pair,
    PairStage,
    Params,
    Positive,
    Report,
    Scores,
    Stage,
    StepId,
    Turn,
    Update,
    generator,
    nbytes,
)

How: TypeAlias = Literal["parameters", "outputs"]
Range: TypeAlias = tuple[float, float]
Costs: TypeAlias = list[list[Amount]] | None

Choose: TypeAlias = Callable[[int, torch.Generator], Array]
"""A rule for sources that asks no program: N, draws -> psi (N,)."""

Stages: TypeAlias = tuple[Stage | PairStage, ...]

FIGURES = ("fedcore.links.figures:links", "fedcore.links.figures:energy")

REPORT, SENDS, WEIGHTS = "report", "sends", "weights"
"""Leaves: what devices reported (N, 3); whether a device shall send; of a target's members (M,)."""

PSI, ALPHA, ENERGY = "psi", "alpha", "energy"
"""Leaves of the server's memory: 0 for a source (N,); weights of links and their energies (N, N)."""

EXCHANGED, BOUNDS = "exchanged", ("theorem_2", "corollary_1")
"""Those that are there where pairs were measured: classifiers that each sent, the bounds of targets' errors, (N,)."""


@dataclass(frozen=True)
class Known:
    """What a rule for weights may use.

    psi: (N,). error, size: the empirical errors (3) and the numbers of examples, (N,). energy: K (N, N). alpha: the
    program's weights (N, N), or None where none was solved.
    """

    psi: Array
    error: Array
    size: Array
    energy: Array
    alpha: Array | None = None


Weigh: TypeAlias = Callable[[Known, Turn], Array]
"""A rule for weights: what is known, the turn -> alpha (N, N)."""


@dataclass(frozen=True)
class Bound:
    """How S and T are made (`fedcore.links.bound`), and the weights phi of the terms of (11)."""

    constants: Constants = "measured"
    delta: Chance = 1e-3
    unlabelled: Amount = 1000.0
    phi_s: Amount = 1.0
    phi_t: Amount = 5.0
    phi_e: Amount = 1.0


@dataclass(frozen=True)
class Program:
    """How (P) is solved (`fedcore.links.solve`). tol, max_iterations: of Algorithm 2."""

    solver: Solver = "successive"
    tol: Positive = 0.003
    max_iterations: Count = 60


@dataclass(frozen=True)
class Radio:
    """What links cost: powers (dBm) and rates (bits per second) drawn from ranges, a model of so many bits.

    costs: a matrix of one's own instead, rows of senders and columns of receivers in the order of the devices' names.
    """

    powers: Range = (23.0, 25.0)
    rates: Range = (63e6, 85e6)
    bits: Positive = 1e9
    costs: Costs = None


def method(
    name: str, nets: Mapping[str, Net], training: Training, common: bool, told: Stages, radio: Radio, how: How
) -> Method:
    """Return the method whose server forms links in the last of the stages `told`: `by_program`'s or `by_chance`'s.

    radio: what those have bound; its costs are checked here, before anything runs.
    """
    require_equal(nets)
    try:
        costs_of(0, len(nets), radio)
    except InputError as refused:
        raise InputError(f"{name}.{str(refused).replace('energy:', 'costs:')}") from None
    if how == "parameters" and not common:
        raise InputError(
            f"training.init = per_device: {name}.transfer = parameters mixes models that must start from one; "
            "use common, or transfer: outputs"
        )
    # The first stage is the training that every one-shot method shares; its result stays on the device.
    stages = (Stage(partial(train, training=training), None), *told, Stage(offer, partial(transfer, how=how)))
    return Method(partial(first, common=common), stages, deploy, review, FIGURES)


def by_program(
    nets: Mapping[str, Net], pairs: Divergence, bound: Bound, radio: Radio, program: Program, weights: Weigh
) -> Stages:
    """Return stages in which divergences are measured and the program (P) says who is a source and who a target."""
    estimated = partial(estimate, net=binary(next(iter(nets.values()))), settings=pairs)
    link = partial(planned, bound=bound, radio=radio, program=program, weights=weights)
    return Stage(report, gather), PairStage(estimated, link)


def by_chance(radio: Radio, sources: Choose, weights: Weigh) -> Stages:
    """Return the stage after which sources and targets are drawn. Nothing is measured over pairs."""
    return (Stage(report, partial(guessed, radio=radio, sources=sources, weights=weights)),)


def binary(net: Net) -> Net:
    """Return the same architecture with two classes: the classifier of where an example is from."""
    build = net.build
    refused = InputError("net.name: this net cannot be made with two classes; choose one of fedcore's (docs/nets.md)")
    if not isinstance(build, partial):
        raise refused
    bound = signature(build.func).bind(*build.args, **build.keywords)
    if "classes" not in bound.arguments:
        raise refused
    bound.arguments["classes"] = 2
    return Net(partial(build.func, *bound.args, **bound.kwargs))


# what devices do


def report(memory: Params, message: Message, device: Device, step_id: StepId) -> tuple[Params, Update]:
    """Report three numbers: the share of labelled examples that the model gets wrong, their number, all examples'.

    Labelled ones are those of train and val; without any the first number is 0 and stands for nothing.
    """
    parts = [part for part in (device.data.train, device.data.val) if len(part)]
    labelled = sum(map(len, parts))
    size = labelled + len(device.data.unlabelled)
    if not size:
        raise InputError(f"device {device.name}: it has no examples, allowed is at least one, with or without label")
    wrong = sum(len(part) * (1 - accuracy(memory, device.net, part)) for part in parts) / max(labelled, 1)
    return memory, Update(extra={REPORT: torch.tensor([wrong, labelled, size], dtype=torch.float64)}, size=labelled)


def offer(memory: Params, message: Message, device: Device, step_id: StepId) -> tuple[Params, Update]:
    """Send the model where a link begins here, else nothing."""
    return memory, Update(memory if message.extra[SENDS] else {}, size=len(device.data.train))


def deploy(memory: Params, message: Message) -> Model:
    """Run what came over the links; without that the device's own model, and before training what it was sent."""
    if WEIGHTS in message.extra:
        weights = tuple(message.extra[WEIGHTS].tolist())
        return Model(tuple(_member(message.extra, k) for k in range(len(weights))), weights)
    return Model((own(memory) or message.params,))


def own(memory: Params) -> Params:
    """Return the device's model: the leaves of its memory without a stroke, which no leaf of a net has."""
    return {name: leaf for name, leaf in memory.items() if "/" not in name}


def _member(extra: Params, k: int) -> Params:
    return {name.removeprefix(f"{k}/"): leaf for name, leaf in extra.items() if name.startswith(f"{k}/")}


# what the server does


def gather(server: Params, updates: Mapping[str, Update], turn: Turn) -> tuple[Params, Mapping[str, Message]]:
    """Remember the reports, (N, 3) in the order of the names; refuses them where nobody has a label."""
    reports = torch.stack([updates[name].extra[REPORT] for name in turn.names])
    if not reports[:, 1].any():
        raise InputError("federation.unlabelled: no device has a label, allowed is at least one labelled device")
    return {**server, REPORT: reports}, {}


def exchanged(updates: Mapping[Pair, Update], names: Sequence[str]) -> torch.Tensor:
    """Return how many classifiers each device sent to measure divergences, (N,)."""
    sent = dict.fromkeys(names, 0.0)
    for pair, update in updates.items():
        for name in pair:
            sent[name] += float(update.extra["sent"]) / 2
    return torch.tensor(list(sent.values()), dtype=torch.float64)


def posed(server: Params, apart: Array, turn: Turn, bound: Bound, radio: Radio) -> Problem:
    """Return (P) for what devices reported and how far apart they are (17)-(18). apart: d (N, N)."""
    wrong, how = errors(server, bound.unlabelled), {"delta": bound.delta, "constants": bound.constants}
    target = target_bound(wrong, sizes(server), apart, **how)  # type: ignore[arg-type]
    source = source_bound(wrong, sizes(server), **how)  # type: ignore[arg-type]
    return Problem(source, target, costs_of(turn.seed, len(turn.names), radio), bound.phi_s, bound.phi_t, bound.phi_e)


def solved(problem: Problem, program: Program) -> Answer:
    """Return the answer of (P); where a solver fails, the answer's status says so and names what stands in."""
    weights = problem.phi_s, problem.phi_t, problem.phi_e
    return answered(program, weights, *(x.tobytes() for x in (problem.source, problem.target, problem.energy)))


@lru_cache(16)
def answered(program: Program, weights: tuple[float, ...], *constants: bytes) -> Answer:
    """Solve (P), given as S, T, K (float64): all rivals that take ST-LF's sources and targets pose the same one."""
    source, *matrices = (np.frombuffer(part) for part in constants)
    target, energy = (matrix.reshape(len(source), -1) for matrix in matrices)
    how = {"solver": program.solver, "tol": program.tol, "max_iterations": program.max_iterations}
    return solve(Problem(source, target, energy, *weights), **how)  # type: ignore[arg-type]


def planned(
    server: Params,
    updates: Mapping[Pair, Update],
    turn: Turn,
    *,
    bound: Bound,
    radio: Radio,
    program: Program,
    weights: Weigh,
) -> tuple[Params, Mapping[str, Message], Report]:
    """Take sources and targets from the program (P), and the weights of links from the rule.

    The server remembers the links, and for its last word Theorem 2 and Corollary 1 of them (Table II).
    """
    apart = matrix(updates, turn.names).numpy()
    problem = posed(server, apart, turn, bound, radio)
    answer = solved(problem, program)
    known = Known(answer.psi, errors(server, bound.unlabelled), sizes(server), problem.energy, answer.alpha)
    alpha, wrong = weights(known, turn), errors(server, 1.0)
    how = {"delta": bound.delta, "constants": bound.constants}
    bounds = theorem_2(alpha, wrong, apart), corollary_1(alpha, wrong, sizes(server), apart, **how)  # type: ignore[arg-type]
    server = server | leaves(dict(zip(BOUNDS, bounds, strict=True))) | {EXCHANGED: exchanged(updates, turn.names)}
    found = solution(answer, turn.names)
    told = {"divergence": apart, "objective": answer.objective, "gap": answer.gap, "trace": answer.trace}
    return formed(server, turn, known, alpha, replace(found, matrices=leaves(told)))


def guessed(
    server: Params, updates: Mapping[str, Update], turn: Turn, *, radio: Radio, sources: Choose, weights: Weigh
) -> tuple[Params, Mapping[str, Message], Report]:
    """Draw sources and targets, and take the weights of links from the rule."""
    server, _ = gather(server, updates, turn)
    psi = sources(len(turn.names), turn.generator("psi"))
    known = Known(psi, errors(server, 1.0), sizes(server), costs_of(turn.seed, len(turn.names), radio))
    return formed(server, turn, known, weights(known, turn), Report())


def errors(server: Params, unlabelled: float) -> Array:
    """Return the empirical errors (3), (N,)."""
    wrong, labelled, size = server[REPORT].T.numpy()
    return empirical_error(wrong, labelled, size, unlabelled=unlabelled)


def sizes(server: Params) -> Array:
    """Return how many examples devices have, (N,)."""
    return server[REPORT][:, 2].numpy()


def costs_of(seed: int, n: int, radio: Radio) -> Array:
    """Return K (N, N). Drawn from the seed and the number of devices alone, so that all rows of a study share it."""
    if radio.costs is not None:
        if any(len(row) != len(radio.costs) for row in radio.costs):
            raise InputError(f"costs: its rows differ in length, allowed are {n} rows of {n}")
        return given(np.array(radio.costs, dtype=np.float64), n)
    draws = generator(seed, "energy")
    return drawn(n, draws, powers=radio.powers, rates=radio.rates, bits=radio.bits)


def formed(
    server: Params, turn: Turn, known: Known, alpha: Array, found: Report
) -> tuple[Params, Mapping[str, Message], Report]:
    """Remember and report the links, alpha (N, N), and tell devices whether to send. found: what else is reported."""
    links = leaves({PSI: known.psi, ALPHA: alpha, ENERGY: known.energy})
    sends = torch.from_numpy((alpha > 0).any(1))
    messages = {name: Message(extra={SENDS: flag}) for name, flag in zip(turn.names, sends, strict=True)}
    bounds = {name: server[name] for name in BOUNDS if name in server}
    return server | links, messages, replace(found, matrices={**found.matrices, **links, **bounds})


def leaves(values: Mapping[str, object]) -> Params:
    """Return arrays and numbers as tensors of their own."""
    return {name: torch.tensor(np.asarray(value)) for name, value in values.items()}


def solution(answer: Answer, names: Sequence[str]) -> Report:
    """Report how the program was solved: topic "program", of all devices alike.

    gap: how far its answer is above the optimum, a fraction. Of Algorithm 2 also iterations, fall: by how much its
    penalised objective fell in all, and rise: by how much most in one iteration, as fractions of where it began.
    """
    found = {"gap": float(answer.gap)}
    if len(trace := torch.tensor(np.asarray(answer.trace))):
        steps = trace.diff() / trace[0]
        found |= {"iterations": float(len(trace)), "fall": float(-steps.sum())}
        found["rise"] = max([0.0, *steps.tolist()])
    known = {number: x for number, x in found.items() if math.isfinite(x)}
    words = {"status": answer.status}
    if "fallback" in answer.status:
        words["warning"] = f"the program was not solved as asked; {answer.status}"
    return Report(devices={"program": dict.fromkeys(names, known)}, words=words)


def transfer(
    server: Params, updates: Mapping[str, Update], turn: Turn, *, how: How
) -> tuple[Params, Mapping[str, Message], Report]:
    """Send each target the combination of its sources' models, and a source nothing.

    parameters: theta_j = sum_i alpha_ij theta_i. outputs: the models themselves, whose outputs the target combines.
    """
    alpha, names = server[ALPHA], turn.names
    messages = {}
    for j, name in enumerate(names):
        sources = alpha[:, j].nonzero()[:, 0].tolist()
        models, weights = [updates[names[i]].params for i in sources], alpha[sources, j]
        if how == "parameters" and sources:
            models, weights = [mean(models, weights)], torch.ones(1, dtype=torch.float64)
        messages[name] = packed(models, weights) if sources else Message()
    return server, messages, linked(server, updates, names)


def packed(models: Sequence[Params], weights: torch.Tensor) -> Message:
    """Return a message of several models and their weights."""
    leaves = {f"{k}/{name}": leaf for k, model in enumerate(models) for name, leaf in model.items()}
    return Message(extra=leaves | {WEIGHTS: weights})


def linked(server: Params, updates: Mapping[str, Update], names: Sequence[str]) -> Report:
    """Report what links carried and cost, not the server's part: topic "links".

    target: whether it is one. error: its model's empirical error. links_out, links_in: its links. sent, received,
    energy: the bytes and the energy of the models on them. exchanged: the classifiers it sent to measure divergences.
    theorem_2, corollary_1: what bounds its error as a target. What is not known is left out.
    """
    alpha, energy, psi = (server[name] for name in (ALPHA, ENERGY, PSI))
    weight = torch.tensor([float(nbytes(updates[name].params)) for name in names], dtype=torch.float64)
    used = (alpha > 0).double()
    columns = {
        "target": psi,
        "error": torch.from_numpy(errors(server, 1.0)),
        "links_out": used.sum(1),
        "links_in": used.sum(0),
        "sent": used.sum(1) * weight,
        "received": weight @ used,
        "energy": (used * energy).sum(1),
        "exchanged": server.get(EXCHANGED, torch.zeros_like(psi)),
    }
    for name in BOUNDS:
        known = server.get(name, torch.full_like(psi, torch.nan))
        columns[name] = torch.where(psi == 1, known, torch.nan)
    rows = {name: {number: float(column[i]) for number, column in columns.items()} for i, name in enumerate(names)}
    finite = {name: {number: x for number, x in row.items() if math.isfinite(x)} for name, row in rows.items()}
    return Report(devices={"links": finite}, matrices={ALPHA: alpha})


def review(devices: Mapping[str, Numbers], scores: Scores) -> Mapping[str, Numbers]:
    """Complete what is known of targets once they are tested.

    accuracy: of targets alone, so that its mean is theirs. slack_theorem_2, slack_corollary_1: by how much the bound is
    above a target's error on its own test data; below 0 it is none.
    """
    found = {name: dict(numbers) for name, numbers in devices.get("links", {}).items()}
    for name, numbers in found.items():
        if numbers["target"]:
            numbers["accuracy"] = scores[name]["test"]["accuracy"]
            for bound in BOUNDS:
                if bound in numbers:
                    numbers[f"slack_{bound}"] = numbers[bound] - (1 - numbers["accuracy"])
    return {**devices, "links": found}
