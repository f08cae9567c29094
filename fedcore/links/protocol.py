r"""ST-LF's way through a federation, which its rivals share: train, report, form links, send along them.

1. Every device trains on its labelled examples and keeps the model. One without labels keeps its initial model.
2. It reports how often that model errs on its labelled examples, how many there are, and how many examples it has.
3. Over pairs of devices: how far their data are apart (:mod:`.divergence`); rivals that draw psi leave this out.
4. The server says who is a source (psi_i = 0), who a target (psi_j = 1) and with which weights (alpha_ij).
5. Sources that have a link send their model. A target runs the combination of its sources' models, a source its own.

The paper's devices send directly to each other; here models pass through the server, which mixes parameters. What the
links themselves carry and cost is recorded (`LINKS`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from inspect import signature
from typing import Literal, TypeAlias

import numpy as np
import torch

from fedcore.links import Answer, Problem, solve
from fedcore.links.bound import Constants, corollary_1, empirical_error, source_bound, target_bound, theorem_2
from fedcore.links.divergence import Divergence, collect, estimate
from fedcore.links.energy import drawn, given
from fedcore.links.problem import Array
from fedcore.links.programs import Solver
from fedcore.local import Training, accuracy, train
from fedcore.messages import first
from fedcore.mixing import mean
from fedcore.nets import require_equal
from fedcore.records import LINKS, PREFIX
from fedcore.types import (
    Amount,
    Chance,
    Combine,
    Count,
    Device,
    InputError,
    Message,
    Method,
    Model,
    Net,
    Params,
    Positive,
    Stage,
    StepId,
    Turn,
    Unit,
    Update,
    generator,
    named,
    nbytes,
)

How: TypeAlias = Literal["parameters", "outputs"]
Range: TypeAlias = tuple[float, float]
Costs: TypeAlias = list[list[Amount]] | None

Weigh: TypeAlias = Callable[[Answer, Params, Turn], Array]
"""The program's answer, what the server knows, the turn -> alpha (N, N)."""

Draw: TypeAlias = Callable[[Params, Turn, Array], tuple[Array, Array]]
"""What the server knows, the turn, K (N, N) -> psi (N,), alpha (N, N)."""

REPORT, EXCHANGED, SENDS, WEIGHTS = "report", "exchanged", "sends", "weights"
"""Leaves: what devices reported (N, 3); classifiers that each sent (N,); whether a device shall send; of a target's
members (M,)."""


@dataclass(frozen=True)
class Bound:
    """How S and T are made (`fedcore.links.bound`), and the weights phi of the terms of (11)."""

    constants: Constants
    delta: Chance
    unlabelled: Amount
    phi_s: Amount
    phi_t: Amount
    phi_e: Amount


@dataclass(frozen=True)
class Program:
    """How (P) is solved (`fedcore.links.solve`). tol, max_iterations: of Algorithm 2."""

    solver: Solver
    tol: Positive
    max_iterations: Count


@dataclass(frozen=True)
class Radio:
    """What links cost: powers (dBm) and rates (bits per second) drawn from ranges, a model of so many bits.

    costs: a matrix of one's own instead, rows of senders and columns of receivers in the order of the devices' names.
    """

    powers: Range
    rates: Range
    bits: Positive
    costs: Costs


def method(
    name: str,
    nets: Mapping[str, Net],
    training: Training,
    common: bool,
    link: Combine,
    radio: Radio,
    how: How,
    pairs: Divergence | None = None,
) -> Method:
    """Return the method whose server forms links by `link`, from reports or, with pairs, also from divergences.

    radio: what `link` has bound; its costs are checked here, before anything runs.
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
    told: tuple[Stage, ...] = (Stage(report, link),)
    if pairs is not None:
        estimated = partial(estimate, net=binary(next(iter(nets.values()))), settings=pairs)
        told = (Stage(report, gather), Stage(estimated, link, over="pairs"))
    # The first stage is the training that every one-shot method shares; its result stays on the device.
    stages = (Stage(partial(train, training=training), None), *told, Stage(offer, partial(transfer, how=how)))
    return Method(partial(first, common=common), stages, deploy)


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


def report(memory: Update, message: Message, device: Device, step_id: StepId) -> tuple[Update, Update]:
    """Report three numbers: the share of labelled examples that the model gets wrong, their number, all examples'.

    Labelled ones are those of train and val; without any the first number is 0 and stands for nothing.
    """
    parts = [part for part in (device.data.train, device.data.val) if len(part)]
    labelled = sum(map(len, parts))
    size = labelled + len(device.data.unlabelled)
    if not size:
        raise InputError(f"device {device.name}: it has no examples, allowed is at least one, with or without label")
    wrong = sum(len(part) * (1 - accuracy(memory.params, device.net, part)) for part in parts) / max(labelled, 1)
    return memory, Update(extra={REPORT: torch.tensor([wrong, labelled, size], dtype=torch.float64)}, size=labelled)


def offer(memory: Update, message: Message, device: Device, step_id: StepId) -> tuple[Update, Update]:
    """Send the model where a link begins here, else nothing."""
    return memory, Update(memory.params if message.extra[SENDS] else {}, size=memory.size)


def deploy(memory: Update | Params, message: Message) -> Model:
    """Run what came over the links; without that the device's own model, and before training what it was sent."""
    if WEIGHTS in message.extra:
        weights = tuple(message.extra[WEIGHTS].tolist())
        return Model(tuple(_member(message.extra, k) for k in range(len(weights))), weights)
    return Model((memory.params,) if isinstance(memory, Update) else (message.params,))


def _member(extra: Params, k: int) -> Params:
    return {name.removeprefix(f"{k}/"): leaf for name, leaf in extra.items() if name.startswith(f"{k}/")}


# what the server does


def gather(server: Params, updates: Mapping[str, Update], turn: Turn) -> tuple[Params, Mapping[str, Message]]:
    """Remember the reports, (N, 3) in the order of the names; refuses them where nobody has a label."""
    reports = torch.stack([updates[name].extra[REPORT] for name in turn.names])
    if not reports[:, 1].any():
        raise InputError("federation.unlabelled: no device has a label, allowed is at least one labelled device")
    return {**server, REPORT: reports}, {}


def measured(server: Params, updates: Mapping[Unit, Update], turn: Turn) -> Params:
    """Remember the divergences, and how many classifiers each device sent for them."""
    sent = dict.fromkeys(turn.names, 0.0)
    for unit, update in updates.items():
        for name in unit:
            sent[name] += float(update.extra["sent"]) / 2
    return {**collect(server, updates, turn)[0], EXCHANGED: torch.tensor(list(sent.values()), dtype=torch.float64)}


def posed(server: Params, turn: Turn, bound: Bound, radio: Radio) -> Problem:
    """Return (P) for what devices reported and how far apart they are (17)-(18)."""
    wrong, how = errors(server, bound.unlabelled), {"delta": bound.delta, "constants": bound.constants}
    target = target_bound(wrong, sizes(server), server[f"{PREFIX}divergence"].numpy(), **how)  # type: ignore[arg-type]
    source = source_bound(wrong, sizes(server), **how)  # type: ignore[arg-type]
    return Problem(source, target, costs_of(turn.seed, len(turn.names), radio), bound.phi_s, bound.phi_t, bound.phi_e)


def solved(server: Params, turn: Turn, bound: Bound, radio: Radio, program: Program) -> tuple[Problem, Answer]:
    """Return (P) and its answer; where a solver fails, the answer's status says so and names what stands in."""
    problem = posed(server, turn, bound, radio)
    weights = problem.phi_s, problem.phi_t, problem.phi_e
    return problem, answered(program, weights, *(x.tobytes() for x in (problem.source, problem.target, problem.energy)))


@lru_cache(16)
def answered(program: Program, weights: tuple[float, ...], *constants: bytes) -> Answer:
    """Solve (P), given as S, T, K (float64): all rivals that take ST-LF's sources and targets pose the same one."""
    source, *matrices = (np.frombuffer(part) for part in constants)
    target, energy = (matrix.reshape(len(source), -1) for matrix in matrices)
    how = {"solver": program.solver, "tol": program.tol, "max_iterations": program.max_iterations}
    return solve(Problem(source, target, energy, *weights), **how)  # type: ignore[arg-type]


@named("link")
def planned(
    server: Params,
    updates: Mapping[Unit, Update],
    turn: Turn,
    *,
    bound: Bound,
    radio: Radio,
    program: Program,
    weigh: Weigh,
) -> tuple[Params, Mapping[str, Message]]:
    """Take sources and targets from the program (P), and the weights of links from `weigh`."""
    server = measured(server, updates, turn)
    problem, answer = solved(server, turn, bound, radio, program)
    return formed(server, turn, answer.psi, weigh(answer, server, turn), problem.energy, answer, bound)


@named("link")
def guessed(
    server: Params, updates: Mapping[str, Update], turn: Turn, *, radio: Radio, draw: Draw
) -> tuple[Params, Mapping[str, Message]]:
    """Take sources, targets and weights from `draw`, which knows what devices reported and what links cost."""
    server, _ = gather(server, updates, turn)
    energy = costs_of(turn.seed, len(turn.names), radio)
    return formed(server, turn, *draw(server, turn, energy), energy)


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
    server: Params,
    turn: Turn,
    psi: Array,
    alpha: Array,
    energy: Array,
    answer: Answer | None = None,
    bound: Bound | None = None,
) -> tuple[Params, Mapping[str, Message]]:
    """Record the links, and tell devices whether to send.

    psi (N,), alpha (N, N), energy K (N, N). answer, bound: what the program said, and how its bounds were made, where
    one was solved; then also Theorem 2 and Corollary 1 of these links are recorded (Table II).
    """
    found: dict[str, object] = {"psi": psi, "alpha": alpha, "energy": energy}
    if answer is not None:
        found |= {"objective": answer.objective, "gap": answer.gap, "trace": answer.trace}
        found["status"] = np.frombuffer(answer.status.encode(), dtype=np.uint8)
    if bound is not None:
        wrong, apart = errors(server, 1.0), server[f"{PREFIX}divergence"].numpy()
        found["theorem_2"] = theorem_2(alpha, wrong, apart)
        found["corollary_1"] = corollary_1(
            alpha, wrong, sizes(server), apart, delta=bound.delta, constants=bound.constants
        )
    leaves = {f"{PREFIX}{name}": torch.tensor(np.asarray(value)) for name, value in found.items()}
    sends = torch.from_numpy((alpha > 0).any(1))
    return server | leaves, {name: Message(extra={SENDS: flag}) for name, flag in zip(turn.names, sends, strict=True)}


def transfer(
    server: Params, updates: Mapping[str, Update], turn: Turn, *, how: How
) -> tuple[Params, Mapping[str, Message]]:
    """Send each target the combination of its sources' models, and a source nothing.

    parameters: theta_j = sum_i alpha_ij theta_i. outputs: the models themselves, whose outputs the target combines.
    """
    alpha, names = server[f"{PREFIX}alpha"], turn.names
    messages = {}
    for j, name in enumerate(names):
        sources = alpha[:, j].nonzero()[:, 0].tolist()
        models, weights = [updates[names[i]].params for i in sources], alpha[sources, j]
        if how == "parameters" and sources:
            models, weights = [mean(models, weights)], torch.ones(1, dtype=torch.float64)
        messages[name] = packed(models, weights) if sources else Message()
    return server | linked(server, updates, names), messages


def packed(models: Sequence[Params], weights: torch.Tensor) -> Message:
    """Return a message of several models and their weights."""
    leaves = {f"{k}/{name}": leaf for k, model in enumerate(models) for name, leaf in model.items()}
    return Message(extra=leaves | {WEIGHTS: weights})


def linked(server: Params, updates: Mapping[str, Update], names: Sequence[str]) -> Params:
    """Return leaves record/links/<device>, the numbers of LINKS: what links carried and cost, not the server's part."""
    alpha, energy, psi = (server[f"{PREFIX}{name}"] for name in ("alpha", "energy", "psi"))
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
    for name in ("theorem_2", "corollary_1"):
        known = server.get(f"{PREFIX}{name}", torch.full_like(psi, torch.nan))
        columns[name] = torch.where(psi == 1, known, torch.nan)
    table = torch.stack([columns[name] for name in LINKS], 1)
    return {f"{PREFIX}links/{name}": row.clone() for name, row in zip(names, table, strict=True)}
