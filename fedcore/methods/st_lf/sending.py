r"""Models on ST-LF's links: a target's combination of its sources' models, its noise (61), traffic and energy.

The paper's devices send directly to each other; here models pass through the server, which mixes parameters. The
traffic and the energy of the links themselves are reported (:func:`report_traffic`).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
import torch

from fedcore.core.aggregation import mean
from fedcore.core.messages import pack_models
from fedcore.methods.st_lf.bound import combination_noise
from fedcore.methods.st_lf.planning import ALPHA, BOUNDS, ENERGY, EXCHANGED, PSI, errors
from fedcore.types.federation import Params, nbytes
from fedcore.types.method import Message, Numbers, Report, RoundInfo, Scores, Sent, Update

How: TypeAlias = Literal["parameters", "outputs"]

DIFFER = "differ"
"""Entry of a target: how often each two of its members disagree (M, M)."""

NOISE = "noise"
"""Topic of the reports on the noise of combining hypotheses."""


def send_models(server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, how: How) -> Sent:
    """Send each target the combination of its sources' models; sources receive nothing.

    parameters: theta_j = sum_i alpha_ij theta_i. outputs: the models themselves, whose outputs the target combines.
    """
    alpha, names = server[ALPHA], round_info.names
    messages = {}
    for j, name in enumerate(names):
        sources = alpha[:, j].nonzero()[:, 0].tolist()
        models, weights = [updates[names[i]].params for i in sources], alpha[sources, j]
        if how == "parameters" and sources:
            models, weights = [mean(models, weights)], torch.ones(1, dtype=torch.float64)
        messages[name] = Message(extra=pack_models(models, weights)) if sources else Message()
    return server, messages, report_traffic(server, updates, names)


def add_noise(server: Params, updates: Mapping[str, Update], round_info: RoundInfo) -> Sent:
    """Add the noise of combining hypotheses (61) to the targets' Theorem 2 and Corollary 1, and report it.

    It is the mean disagreement of a target's model with its sources', sum_i alpha_ij sum_k alpha_kj D_ijk, on the
    target's examples: topic NOISE, which `review` adds to topic "links".
    """
    alpha, n = server[ALPHA].numpy(), len(round_info.names)
    differ = np.zeros((n, n, n))
    for j, name in enumerate(round_info.names):
        sources = alpha[:, j].nonzero()[0]
        if len(sources):
            differ[np.ix_(sources, np.array([j]), sources)] = updates[name].extra[DIFFER].numpy()[:, None]
    noise = (alpha * combination_noise(alpha, differ)).sum(0)
    bounds_with_noise = {name: server[name] + torch.from_numpy(noise) for name in BOUNDS if name in server}
    numbers = {
        name: {"noise": float(noise[j]), **{bound: float(column[j]) for bound, column in bounds_with_noise.items()}}
        for j, name in enumerate(round_info.names)
        if server[PSI][j]
    }
    return server | bounds_with_noise, {}, Report(devices={NOISE: numbers}, matrices=bounds_with_noise)


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
        bound = server.get(name, torch.full_like(psi, torch.nan))
        columns[name] = torch.where(psi == 1, bound, torch.nan)
    rows = {name: {number: float(column[i]) for number, column in columns.items()} for i, name in enumerate(names)}
    finite = {name: {number: x for number, x in row.items() if math.isfinite(x)} for name, row in rows.items()}
    return Report(devices={"links": finite}, matrices={ALPHA: alpha})


def review(devices: Mapping[str, Numbers], scores: Scores) -> Mapping[str, Numbers]:
    """Add test results.

    source_accuracy, source_macro_f1: of sources, on their own test data. accuracy: of targets. slack_theorem_2,
    slack_corollary_1: the bound minus the target's error on its own test data; below 0 the bound is violated.
    """
    noise = devices.get(NOISE, {})
    links = {name: {**numbers, **noise.get(name, {})} for name, numbers in devices.get("links", {}).items()}
    for name, numbers in links.items():
        if numbers["target"]:
            numbers["accuracy"] = scores[name]["test"]["accuracy"]
            for bound in BOUNDS:
                if bound in numbers:
                    numbers[f"slack_{bound}"] = numbers[bound] - (1 - numbers["accuracy"])
        else:
            for number in ("accuracy", "macro_f1"):
                numbers[f"source_{number}"] = scores[name]["test"][number]
    return {topic: numbers for topic, numbers in devices.items() if topic != NOISE} | {"links": links}
