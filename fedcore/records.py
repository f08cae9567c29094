"""What the server remembers for the record alone: leaves named "record/..." in its memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fedcore.align.transport import Plan
from fedcore.types import Params

PREFIX = "record/"

COURSES = ("rho", "diagonal", "right", "generator_loss")
"""What :func:`extended` records as one number per round."""

LINKS = (
    "target", "error", "links_out", "links_in", "sent", "received", "energy", "exchanged", "theorem_2", "corollary_1",
)  # fmt: skip
"""What a leaf "record/links/<device>" holds, in this order: whether it is a target, its model's empirical error, its
links, the bytes and the energy of the models on them, the classifiers it sent to measure divergences, and what bounds
its error as a target (nan elsewhere, and where nothing was measured)."""


def plans(folds: Mapping[str, Mapping[str, Plan]]) -> Params:
    """Return transport plans, and how their problems were solved, as leaves.

    folds: name of the model that was aligned (or aligned to) -> label of the units -> plan. For each a leaf
    "record/plan/<fold>/<label>" (n, m) float32. "record/solver/..." (F,) float64 holds for each plan, in the same
    order, its iterations, its marginal violation, Theorem 2's bound on the iterations of Algorithm 2, and partners: how
    many units a unit's mass goes to, as the exponential of the entropy of its shares, mean over units (1: a
    permutation; m: the mass is spread evenly).
    """
    flat = {f"{fold}/{label}": plan for fold, labels in folds.items() for label, plan in labels.items()}
    matrices = {f"{PREFIX}plan/{name}": plan.plan.float() for name, plan in flat.items()}
    numbers = {
        f"{PREFIX}solver/{name}": torch.tensor([read(plan) for plan in flat.values()], dtype=torch.float64)
        for name, read in NUMBERS.items()
    }
    return matrices | numbers


def extended(server: Params, numbers: Mapping[str, Tensor]) -> Params:
    """Return leaves "record/<name>" (R + 1, *shape) float32: what the server recorded so far, and this round's numbers.

    numbers: (*shape) each; a name's shape must stay the same.
    """
    news = {f"{PREFIX}{name}": number.float()[None] for name, number in numbers.items()}
    return {name: torch.cat([server[name], new]) if name in server else new for name, new in news.items()}


def partners(plan: Plan) -> float:
    """Return the mean over rows of exp(entropy of the row's shares)."""
    shares = plan.plan / plan.plan.sum(1, keepdim=True)
    return float(torch.special.entr(shares).sum(1).exp().mean())


def by_fold(server: Params) -> dict[str, dict[str, float]]:
    """Return fold -> number -> value, over the labels of a fold: sums of iterations and bounds, means of the rest."""
    names = [name.partition("/")[0] for name in named(server, "plan")]
    found: dict[str, dict[str, float]] = {}
    for number in NUMBERS if names else ():
        values: dict[str, list[float]] = {}
        for fold, value in zip(names, server[f"{PREFIX}solver/{number}"].tolist(), strict=True):
            values.setdefault(fold, []).append(value)
        for fold, of in values.items():
            found.setdefault(fold, {})[number] = sum(of) / (1 if number in ("iterations", "bound") else len(of))
    return found


def alignment(server: Params) -> dict[str, dict[str, float]]:
    """Return device -> depth and distance_0, distance_1, ...: which cell FedASA found for it, and how far each one is.

    From leaves "record/alignment/<device>" () and "record/distance/<device>" (M + 1,); infinite distances are left out.
    """
    found: dict[str, dict[str, float]] = {}
    for name in named(server, "alignment"):
        distances = server[f"{PREFIX}distance/{name}"].tolist()
        apart = {f"distance_{m}": d for m, d in enumerate(distances) if math.isfinite(d)}
        found[name] = {"depth": float(server[f"{PREFIX}alignment/{name}"]), **apart}
    return found


def courses(server: Params) -> dict[str, Tensor]:
    """Return name -> (R,), those of `COURSES` that the server recorded."""
    return {name: server[f"{PREFIX}{name}"] for name in COURSES if f"{PREFIX}{name}" in server}


def tables(server: Params) -> dict[int, Tensor]:
    """Return round -> (K, K), soft targets as probabilities: after rounds 1, 2, 4, 8, ... and the last one."""
    if f"{PREFIX}tables" not in server:
        return {}
    kept = {2**i: table for i, table in enumerate(server[f"{PREFIX}tables"])}
    return kept | {len(server[f"{PREFIX}diagonal"]): server[f"{PREFIX}soft_targets"]}


def links(server: Params) -> dict[str, dict[str, float]]:
    """Return device -> number -> value of ST-LF's links and those of its rivals, from "record/links/<device>".

    What is not known is left out.
    """
    devices = sorted(named(server, "links"))
    rows = {name: zip(LINKS, server[f"{PREFIX}links/{name}"].tolist(), strict=True) for name in devices}
    return {name: {number: x for number, x in row if math.isfinite(x)} for name, row in rows.items()}


def served(links: Mapping[str, Mapping[str, float]], right: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return `links` with what is known of targets once they were tested.

    right: device -> accuracy on its own test data. accuracy: that of targets alone, so that its mean is theirs.
    slack_theorem_2, slack_corollary_1: by how much the bound is above a target's error there; below 0 it is none.
    """
    found = {name: dict(numbers) for name, numbers in links.items()}
    for name, numbers in found.items():
        if numbers["target"]:
            numbers["accuracy"] = right[name]
            for bound in ("theorem_2", "corollary_1"):
                if bound in numbers:
                    numbers[f"slack_{bound}"] = numbers[bound] - (1 - right[name])
    return found


def program(server: Params) -> dict[str, dict[str, float]]:
    """Return device -> number -> value of the program that ST-LF solved, of all devices alike.

    gap: how far its answer is above the optimum, a fraction. Of Algorithm 2 also iterations, fall: by how much its
    penalised objective fell in all, and rise: by how much most in one iteration, as fractions of where it began.
    """
    if f"{PREFIX}gap" not in server:
        return {}
    found = {"gap": float(server[f"{PREFIX}gap"])}
    if len(trace := server[f"{PREFIX}trace"]):
        steps = trace.diff() / trace[0]
        found |= {"iterations": float(len(trace)), "fall": float(-steps.sum())}
        found["rise"] = max([0.0, *steps.tolist()])
    kept = {number: x for number, x in found.items() if math.isfinite(x)}
    return {name: dict(kept) for name in sorted(named(server, "links"))}


def stood_in(server: Params) -> str | None:
    """Return what the solver of ST-LF's program said where it failed, with what stands in; None where it did not."""
    said = bytes(server[f"{PREFIX}status"].tolist()).decode() if f"{PREFIX}status" in server else ""
    return said if "fallback" in said else None


def who_sends_whom(server: Params) -> tuple[list[str], Tensor, Tensor] | None:
    """Return devices, psi (N,) and alpha (N, N), in the order of the devices' names; None where there are no links."""
    names = sorted(named(server, "links"))
    return (names, server[f"{PREFIX}psi"], server[f"{PREFIX}alpha"]) if names else None


def numbers(server: Params) -> dict[str, dict[str, dict[str, float]]]:
    """Return split -> device -> metric -> value, all that the server recorded of single devices: rows of the table."""
    found = {"transport": by_fold(server), "alignment": alignment(server)}
    found |= {"links": links(server), "program": program(server)}
    return {split: devices for split, devices in found.items() if devices}


def named(server: Params, kind: str) -> list[str]:
    """Return what the leaves "record/<kind>/..." are of: their names after that."""
    start = f"{PREFIX}{kind}/"
    return [name.removeprefix(start) for name in server if name.startswith(start)]


def last_fold(server: Params) -> Params:
    """Return label -> transport plan of the fold that was made last, or nothing."""
    labels = [name.partition("/") for name in named(server, "plan")]
    return {label: server[f"{PREFIX}plan/{fold}/{label}"] for fold, _, label in labels if fold == labels[-1][0]}


NUMBERS: dict[str, Callable[[Plan], float]] = {
    "iterations": lambda plan: plan.iterations,
    "violation": lambda plan: plan.violation,
    "bound": lambda plan: plan.bound,
    "partners": partners,
}
