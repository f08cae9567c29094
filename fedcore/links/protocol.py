r"""ST-LF's protocol, which its rivals share: train, report, form links, send models over them.

1. Every device trains on its labelled examples and keeps the model. One without labels keeps its initial model. The
   initial model may come from rounds of federated averaging (:class:`Pretraining`), as in the authors' public code.
2. It reports its model's error on its labelled examples, their number, and the number of all its examples.
3. Pairs of devices estimate the divergence of their data (:mod:`.divergence`); rivals that draw psi skip this.
4. The server chooses sources (psi_i = 0), targets (psi_j = 1) and the weights of links (alpha_ij).
5. Sources with a link send their model. A target runs the combination of its sources' models, a source its own.

The paper's devices send directly to each other; here models pass through the server, which mixes parameters. The
traffic and the energy of the links themselves are reported (`report_traffic`).
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

from fedcore.links import Problem, Solution, solve
from fedcore.links.bound import (
    Constants,
    combination_noise,
    corollary_1,
    empirical_error,
    source_bound,
    target_bound,
    theorem_2,
)
from fedcore.links.divergence import SCORING_BATCH, Divergence, estimate, matrix
from fedcore.links.energy import check_costs, draw_energy
from fedcore.links.problem import Array
from fedcore.links.programs import Solver
from fedcore.local import Training, accuracy, predict, train
from fedcore.messages import WEIGHTS, initial_messages, pack_models, to_everyone, unpack_models
from fedcore.mixing import by_size, mean
from fedcore.nets import require_equal
from fedcore.types import (
    Amount,
    Chance,
    Count,
    Depth,
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
    step_word,
)

How: TypeAlias = Literal["parameters", "outputs"]
Range: TypeAlias = tuple[float, float]
Costs: TypeAlias = list[list[Amount]] | None

Sources: TypeAlias = Literal["labelled", "all"]
Disagreement: TypeAlias = Literal["omitted", "measured"]

Choose: TypeAlias = Callable[[Array, torch.Generator], Array]
"""A rule that draws sources and targets: which devices may be sources (N,), 1 or 0, generator -> psi (N,)."""

Stages: TypeAlias = tuple[Stage | PairStage, ...]

FIGURES = ("fedcore.links.figures:links", "fedcore.links.figures:energy")

REPORT, SENDS, DIFFER = "report", "sends", "differ"
"""Leaves: the devices' reports (N, 3); whether a device is to send; how often each two of a target's members disagree
(M, M)."""

PSI, ALPHA, ENERGY = "psi", "alpha", "energy"
"""Leaves of the server's memory: 0 for a source (N,); weights of links and their energies (N, N)."""

NOISE = "noise"
"""Topic of the reports on the noise of combining hypotheses."""

EXCHANGED, BOUNDS = "exchanged", ("theorem_2", "corollary_1")
"""Leaves of a method that measures pairs: classifiers sent by each device, bounds of targets' errors, (N,)."""


@dataclass(frozen=True)
class LinkInputs:
    """The inputs of a rule for weights.

    psi: (N,). error, size: the empirical errors (3) and the numbers of examples, (N,). energy: K (N, N). alpha: the
    program's weights (N, N), or None without a program.
    """

    psi: Array
    error: Array
    size: Array
    energy: Array
    alpha: Array | None = None


Weigh: TypeAlias = Callable[[LinkInputs, Turn], Array]
"""A rule for weights: inputs, turn -> alpha (N, N)."""


@dataclass(frozen=True)
class Bound:
    """Settings of the bounds S and T (`fedcore.links.bound`), and the weights phi of the terms of (11).

    phi_d: factor of the divergences in T, 1 in the paper, 100 in the authors' public code.
    """

    constants: Constants = "assumed"
    delta: Chance = 1e-3
    unlabelled: Amount = 1000.0
    phi_s: Amount = 1.0
    phi_t: Amount = 5.0
    phi_e: Amount = 1.0
    phi_d: Amount = 1.0


@dataclass(frozen=True)
class Pretraining:
    """Federated averaging before local training, of which the paper says nothing but the authors' public code has four.

    pretrain: its rounds, in which devices with labels train. pretrain_epochs: epochs of a round.
    """

    pretrain: Depth = 0
    pretrain_epochs: Count = 10


@dataclass(frozen=True)
class Program:
    """Settings of the solver of (P) (`fedcore.links.solve`). tol, max_iterations: of Algorithm 2."""

    solver: Solver = "successive"
    tol: Positive = 0.003
    max_iterations: Count = 60


@dataclass(frozen=True)
class Radio:
    """Costs of links: powers (dBm) and rates (bits per second) are drawn from ranges; bits: the size of a model.

    costs: a user's matrix instead, rows of senders and columns of receivers in the order of the devices' names.
    """

    powers: Range = (23.0, 25.0)
    rates: Range = (63e6, 85e6)
    bits: Positive = 1e9
    costs: Costs = None


def method(
    name: str,
    nets: Mapping[str, Net],
    training: Training,
    common: bool,
    pretraining: Pretraining,
    link_stages: Stages,
    radio: Radio,
    how: How,
) -> Method:
    """Return the method whose server forms links in the last of `link_stages`, of `by_program` or `by_chance`.

    radio: as bound in these stages; its costs are checked here, before anything runs.
    """
    require_equal(nets)
    try:
        link_costs(0, len(nets), radio)
    except InputError as refused:
        raise InputError(f"{name}.{str(refused).replace('energy:', 'costs:')}") from None
    if how == "parameters" and not common:
        raise InputError(
            f"training.init = per_device: {name}.combine = parameters mixes models that must start from one; "
            "use common, or combine: outputs"
        )
    # Without pretraining the first stage is the training that every one-shot method shares; its result stays on the
    # device.
    first: Stages = (Stage(partial(train, training=training), None),)
    if pretraining.pretrain:
        if not common:
            raise InputError(f"training.init = per_device: {name}.pretrain averages models; use common, or pretrain: 0")
        short = replace(training, epochs=pretraining.pretrain_epochs)
        # Stages of one round, as their steps are shared by all rows with these settings; repeated rounds are not.
        first = (*[Stage(partial(train, training=short), average)] * pretraining.pretrain, *first)
    stages = (*first, *link_stages, Stage(offer, partial(send_models, how=how)))
    return Method(partial(initial_messages, common=common), stages, deploy, review, FIGURES)


def by_program(
    nets: Mapping[str, Net], pairs: Divergence, bound: Bound, radio: Radio, program: Program, weights: Weigh
) -> Stages:
    """Return stages that measure divergences and let the program (P) choose sources and targets."""
    estimated = partial(estimate, net=binary(next(iter(nets.values()))), settings=pairs)
    link = partial(plan_links, bound=bound, radio=radio, program=program, weights=weights)
    return Stage(report, gather), PairStage(estimated, link)


def by_chance(radio: Radio, rule: Choose, sources: Sources, weights: Weigh) -> Stages:
    """Return the stage after which the rule draws sources and targets, without any step over pairs."""
    return (Stage(report, partial(draw_links, radio=radio, rule=rule, sources=sources, weights=weights)),)


def binary(net: Net) -> Net:
    """Return the same architecture with two classes: a classifier of the device that an example comes from."""
    build = net.build
    refused = InputError("net.name: this net cannot be built with two classes; choose one of fedcore's (docs/nets.md)")
    if not isinstance(build, partial):
        raise refused
    bound = signature(build.func).bind(*build.args, **build.keywords)
    if "classes" not in bound.arguments:
        raise refused
    bound.arguments["classes"] = 2
    return Net(partial(build.func, *bound.args, **bound.kwargs))


# steps of devices


def report(memory: Params, message: Message, device: Device, step_id: StepId) -> tuple[Params, Update]:
    """Report the model's error on the labelled examples, their number and the number of all examples.

    Labelled examples are those of train and val; without any the error is 0 and has no meaning.
    """
    parts = [part for part in (device.data.train, device.data.val) if len(part)]
    labelled = sum(map(len, parts))
    size = labelled + len(device.data.unlabelled)
    if not size:
        raise InputError(f"device {device.name}: it has no examples; at least one is needed, with or without a label")
    wrong = sum(len(part) * (1 - accuracy(memory, device.net, part)) for part in parts) / max(labelled, 1)
    return memory, Update(extra={REPORT: torch.tensor([wrong, labelled, size], dtype=torch.float64)}, size=labelled)


def offer(memory: Params, message: Message, device: Device, step_id: StepId) -> tuple[Params, Update]:
    """Send the model if the device has an outgoing link, otherwise nothing."""
    return memory, Update(memory if message.extra[SENDS] else {}, size=len(device.data.train))


def deploy(memory: Params, message: Message) -> Model:
    """Run the models received over links; without any the device's own model, and before training the initial one."""
    if WEIGHTS in message.extra:
        return unpack_models(message.extra)
    return Model((model_leaves(memory) or message.params,))


def model_leaves(memory: Params) -> Params:
    """Return the device's model: the leaves of its memory without a slash, which no leaf of a net has."""
    return {name: leaf for name, leaf in memory.items() if "/" not in name}


def compare_members(memory: Params, message: Message, device: Device, step_id: StepId) -> tuple[Params, Update]:
    """Send how often each two of the received models disagree on the device's examples, (M, M); a source sends 0.

    Examples are all but those of the test set, with or without a label. The diagonal is zero.
    """
    if WEIGHTS not in message.extra:
        return memory, Update(extra={DIFFER: torch.zeros(1, 1, dtype=torch.float64)})
    parts = [part.inputs() for part in (device.data.train, device.data.val, device.data.unlabelled) if len(part)]
    members = deploy(memory, message).params
    says = torch.stack([predict(member, device.net, torch.cat(parts), SCORING_BATCH).argmax(1) for member in members])
    return memory, Update(extra={DIFFER: (says[:, None] != says).double().mean(2)})


# steps of the server


def average(server: Params, updates: Mapping[str, Update], turn: Turn) -> tuple[Params, Mapping[str, Message]]:
    """Send every device the mean of the models, weighted by the devices' labelled examples."""
    model = mean([update.params for update in updates.values()], by_size([update.size for update in updates.values()]))
    return server, to_everyone(turn.names, Message(model))


def gather(server: Params, updates: Mapping[str, Update], turn: Turn) -> tuple[Params, Mapping[str, Message]]:
    """Store the reports, (N, 3) in the order of the names; raises InputError if no device has a label."""
    reports = torch.stack([updates[name].extra[REPORT] for name in turn.names])
    if not reports[:, 1].any():
        raise InputError("federation.unlabelled: no device has a label; at least one labelled device is needed")
    return {**server, REPORT: reports}, {}


def count_classifiers(updates: Mapping[Pair, Update], names: Sequence[str]) -> torch.Tensor:
    """Return how many classifiers each device sent to measure divergences, (N,)."""
    sent = dict.fromkeys(names, 0.0)
    for pair, update in updates.items():
        for name in pair:
            sent[name] += float(update.extra["sent"]) / 2
    return torch.tensor(list(sent.values()), dtype=torch.float64)


def pose_program(server: Params, apart: Array, turn: Turn, bound: Bound, radio: Radio) -> Problem:
    """Return (P) from the devices' reports and divergences (17)-(18). apart: d (N, N)."""
    wrong, how = errors(server, bound.unlabelled), {"delta": bound.delta, "constants": bound.constants}
    target = target_bound(wrong, sizes(server), apart, **how)  # type: ignore[arg-type]
    target = target + (bound.phi_d - 1) * apart / 2
    source = source_bound(wrong, sizes(server), **how)  # type: ignore[arg-type]
    return Problem(source, target, link_costs(turn.seed, len(turn.names), radio), bound.phi_s, bound.phi_t, bound.phi_e)


def solve_program(problem: Problem, program: Program) -> Solution:
    """Return the solution of (P); if a solver fails, the status says so and names the fallback."""
    weights = problem.phi_s, problem.phi_t, problem.phi_e
    return solve_cached(program, weights, *(x.tobytes() for x in (problem.source, problem.target, problem.energy)))


@lru_cache(16)
def solve_cached(program: Program, weights: tuple[float, ...], *constants: bytes) -> Solution:
    """Solve (P), given as S, T, K (float64), once for all rivals that use ST-LF's sources and targets."""
    source, *matrices = (np.frombuffer(part) for part in constants)
    target, energy = (matrix.reshape(len(source), -1) for matrix in matrices)
    how = {"solver": program.solver, "tol": program.tol, "max_iterations": program.max_iterations}
    return solve(Problem(source, target, energy, *weights), **how)  # type: ignore[arg-type]


@step_word("link")
def plan_links(
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

    The server stores the links, and their Theorem 2 and Corollary 1 for its last report (Table II).
    """
    apart = matrix(updates, turn.names).numpy()
    problem = pose_program(server, apart, turn, bound, radio)
    answer = solve_program(problem, program)
    known = LinkInputs(answer.psi, errors(server, bound.unlabelled), sizes(server), problem.energy, answer.alpha)
    alpha, wrong = weights(known, turn), errors(server, 1.0)
    how = {"delta": bound.delta, "constants": bound.constants}
    bounds = theorem_2(alpha, wrong, apart), corollary_1(alpha, wrong, sizes(server), apart, **how)  # type: ignore[arg-type]
    server = (
        server
        | to_tensors(dict(zip(BOUNDS, bounds, strict=True)))
        | {EXCHANGED: count_classifiers(updates, turn.names)}
    )
    found = report_solution(answer, turn.names)
    values = {"divergence": apart, "objective": answer.objective, "gap": answer.gap, "trace": answer.trace}
    return form_links(server, turn, known, alpha, replace(found, matrices=to_tensors(values)))


@step_word("link")
def draw_links(
    server: Params,
    updates: Mapping[str, Update],
    turn: Turn,
    *,
    radio: Radio,
    rule: Choose,
    sources: Sources,
    weights: Weigh,
) -> tuple[Params, Mapping[str, Message], Report]:
    """Draw sources and targets by the rule, and take the weights of links from the other one.

    sources: which devices may be sources, those with a label or all. One without labels would send an untrained model.
    """
    server, _ = gather(server, updates, turn)
    labelled = server[REPORT][:, 1].numpy() > 0
    psi = rule(
        (labelled if sources == "labelled" else np.ones_like(labelled)).astype(np.float64), turn.generator("psi")
    )
    known = LinkInputs(psi, errors(server, 1.0), sizes(server), link_costs(turn.seed, len(turn.names), radio))
    return form_links(server, turn, known, weights(known, turn), Report())


def errors(server: Params, unlabelled: float) -> Array:
    """Return the empirical errors (3), (N,)."""
    wrong, labelled, size = server[REPORT].T.numpy()
    return empirical_error(wrong, labelled, size, unlabelled=unlabelled)


def sizes(server: Params) -> Array:
    """Return how many examples devices have, (N,)."""
    return server[REPORT][:, 2].numpy()


def link_costs(seed: int, n: int, radio: Radio) -> Array:
    """Return K (N, N). Drawn from the seed and the number of devices alone, so that all rows of a study share it."""
    if radio.costs is not None:
        if any(len(row) != len(radio.costs) for row in radio.costs):
            raise InputError(f"costs: its rows differ in length, allowed are {n} rows of {n}")
        return check_costs(np.array(radio.costs, dtype=np.float64), n)
    draws = generator(seed, "energy")
    return draw_energy(n, draws, powers=radio.powers, rates=radio.rates, bits=radio.bits)


def form_links(
    server: Params, turn: Turn, known: LinkInputs, alpha: Array, found: Report
) -> tuple[Params, Mapping[str, Message], Report]:
    """Store and report the links, alpha (N, N), and tell devices whether to send. found: the report to extend."""
    links = to_tensors({PSI: known.psi, ALPHA: alpha, ENERGY: known.energy})
    sends = torch.from_numpy((alpha > 0).any(1))
    messages = {name: Message(extra={SENDS: flag}) for name, flag in zip(turn.names, sends, strict=True)}
    bounds = {name: server[name] for name in BOUNDS if name in server}
    return server | links, messages, replace(found, matrices={**found.matrices, **links, **bounds})


def to_tensors(values: Mapping[str, object]) -> Params:
    """Return arrays and numbers as new tensors."""
    return {name: torch.tensor(np.asarray(value)) for name, value in values.items()}


def report_solution(answer: Solution, names: Sequence[str]) -> Report:
    """Report how the program was solved: topic "program", the same numbers for all devices.

    gap: distance of the objective from the optimum, a fraction. For Algorithm 2 also iterations, fall: the total
    decrease of its penalised objective, and rise: its largest increase in an iteration, as fractions of the first.
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


def send_models(
    server: Params, updates: Mapping[str, Update], turn: Turn, *, how: How
) -> tuple[Params, Mapping[str, Message], Report]:
    """Send each target the combination of its sources' models; sources receive nothing.

    parameters: theta_j = sum_i alpha_ij theta_i. outputs: the models themselves, whose outputs the target combines.
    """
    alpha, names = server[ALPHA], turn.names
    messages = {}
    for j, name in enumerate(names):
        sources = alpha[:, j].nonzero()[:, 0].tolist()
        models, weights = [updates[names[i]].params for i in sources], alpha[sources, j]
        if how == "parameters" and sources:
            models, weights = [mean(models, weights)], torch.ones(1, dtype=torch.float64)
        messages[name] = Message(extra=pack_models(models, weights)) if sources else Message()
    return server, messages, report_traffic(server, updates, names)


def add_noise(
    server: Params, updates: Mapping[str, Update], turn: Turn
) -> tuple[Params, Mapping[str, Message], Report]:
    """Add the noise of combining hypotheses (61) to the targets' Theorem 2 and Corollary 1, and report it.

    It is the mean disagreement of a target's model with its sources', sum_i alpha_ij sum_k alpha_kj D_ijk, on the
    target's examples: topic NOISE, which `review` adds to topic "links".
    """
    alpha, n = server[ALPHA].numpy(), len(turn.names)
    differ = np.zeros((n, n, n))
    for j, name in enumerate(turn.names):
        sources = alpha[:, j].nonzero()[0]
        if len(sources):
            differ[np.ix_(sources, np.array([j]), sources)] = updates[name].extra[DIFFER].numpy()[:, None]
    noise = (alpha * combination_noise(alpha, differ)).sum(0)
    found = {name: server[name] + torch.from_numpy(noise) for name in BOUNDS if name in server}
    numbers = {
        name: {"noise": float(noise[j]), **{bound: float(column[j]) for bound, column in found.items()}}
        for j, name in enumerate(turn.names)
        if server[PSI][j]
    }
    return server | found, {}, Report(devices={NOISE: numbers}, matrices=found)


def report_traffic(server: Params, updates: Mapping[str, Update], names: Sequence[str]) -> Report:
    """Report the traffic and the energy of links, without the server's part: topic "links".

    target: whether it is one. error: its model's empirical error. links_out, links_in: its links. sent, received,
    energy: the bytes and the energy of the models on them. exchanged: the classifiers it sent to measure divergences.
    theorem_2, corollary_1: the bounds of its error as a target. Unknown numbers are left out.
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
    """Add test results.

    source_accuracy: of sources, on their own test data. accuracy: of targets. slack_theorem_2, slack_corollary_1: the
    bound minus the target's error on its own test data; below 0 the bound is violated.
    """
    noise = devices.get(NOISE, {})
    found = {name: {**numbers, **noise.get(name, {})} for name, numbers in devices.get("links", {}).items()}
    for name, numbers in found.items():
        if numbers["target"]:
            numbers["accuracy"] = scores[name]["test"]["accuracy"]
            for bound in BOUNDS:
                if bound in numbers:
                    numbers[f"slack_{bound}"] = numbers[bound] - (1 - numbers["accuracy"])
        else:
            numbers["source_accuracy"] = scores[name]["test"]["accuracy"]
    return {topic: numbers for topic, numbers in devices.items() if topic != NOISE} | {"links": found}
