r"""FedASA's Theorems 1 and 2 on made problems: python -m benchmarks.theory_fedasa

**bound**: Theorem 1, with probability 1 - delta

    L_i(g_i) <= L~(g) + sum_k p_k d(D_k, D_i) / 2 + 4 sqrt((2 d log(2 K m) + log(2 / delta)) / (K m)) + l*          (17)

for thresholds on the line, whose VC dimension d is 1 and for which each term can be computed: device k draws m points
evenly from an interval of its own and calls those above its own threshold 1. L~ is the weighted empirical error of g,
the best common threshold on all points, d(D_k, D_i) the empirical divergence over differences of two thresholds
(intervals), l* = L~(g*) + L_i(g*) with the true errors of the best common threshold.

* `common`: every device has g, the case of the proof, (15).
* `own`: the theorem's words, "for any g_k": the last device has a threshold of its own, at the end of its interval.

**stationarity**: Theorem 2, with the rate eta = sqrt(2 M / (L T K^2 G^2)) the mean squared gradient over T rounds is at
most

    M / (eta a T) + L eta K^2 G^2 / (2 a)                                                                          (30)

Devices share a layer and keep a head each (softmax regression on 16 shared tanh features of scikit-learn's digits,
neighbouring digits on each device), with one full-batch step a round, so that a = 1. M is the first loss, G^2 the
largest squared gradient of a device and L the largest change of the gradient over a step, as seen along a run: the
least values with which the bound could hold.

Writes docs/results/theory-fedasa-*.csv and docs/pictures/theory-fedasa.png.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.theory_dfl import digits
from fedcore.report.figures import png

Array = NDArray[np.float64]
DOCS = Path(__file__).parents[1] / "docs"
DELTA = 0.05
SHIFT, TURN = 0.2, 0.1
"""How far devices' intervals, and their thresholds in them, lie apart at most."""


def divergence(x: Array, y: Array) -> float:
    """Return 2 sup over intervals of the difference of two samples' shares, d_H of differences of two thresholds."""
    both = np.sort(np.concatenate([x, y]))
    gap = np.searchsorted(np.sort(x), both, "right") / len(x) - np.searchsorted(np.sort(y), both, "right") / len(y)
    gap = np.append(gap, 0.0)  # below all points
    return float(2 * (gap.max() - gap.min()))


def errors(threshold: float, low: Array, labels: Array) -> Array:
    """Return the true error of a threshold on each device: points even in [low, low + 1], label 1 above `labels`."""
    a, b = np.clip([np.full_like(low, threshold), labels], low, low + 1)
    return np.abs(a - b)


def draw_bound(K: int, m: int, random: np.random.Generator) -> dict[str, float]:
    """Return the sides of (17) for the last device of one draw of a problem and of its points."""
    low = random.uniform(0, SHIFT, K)
    labels = low + 0.5 + random.uniform(-TURN, TURN, K)
    x = low[:, None] + random.uniform(size=(K, m))
    y = x > labels[:, None]
    order = np.argsort(x, axis=None)
    ones = np.cumsum(y.ravel()[order])  # a threshold at a point calls it and those below 0
    wrong = ones + (x.size - 1 - np.arange(x.size)) - (ones[-1] - ones)
    g, least = float(x.ravel()[order[wrong.argmin()]]), float(wrong.min() / x.size)
    grid = np.linspace(0, 1 + SHIFT, 601)
    best = min(grid, key=lambda t: errors(t, low, labels).mean())
    half_divergence = np.mean([divergence(one, x[-1]) for one in x]) / 2
    size = 4 * math.sqrt((2 * math.log(2 * K * m) + math.log(2 / DELTA)) / (K * m))
    joint = errors(best, low, labels).mean() + errors(best, low, labels)[-1]
    far = float(low[-1] + 1)
    with_own = (least * K - np.mean((x[-1] > g) != y[-1]) + np.mean((x[-1] > far) != y[-1])) / K
    return {
        "common": errors(g, low, labels)[-1], "bound_common": least + half_divergence + size + joint,
        "own": errors(far, low, labels)[-1], "bound_own": with_own + half_divergence + size + joint,
        "divergence": half_divergence, "complexity": size, "joint": joint,
    }  # fmt: skip


def bound(
    sizes: Sequence[tuple[int, int]] = ((3, 100), (3, 1000), (3, 10_000), (12, 80), (12, 1000), (12, 10_000)),
    draws: int = 200,
) -> pd.DataFrame:
    """Return means of both sides of (17), and how often it is broken, by the numbers of devices and points."""
    rows = []
    for K, m in sizes:
        random = np.random.default_rng([K, m])
        table = pd.DataFrame([draw_bound(K, m, random) for _ in range(draws)])
        broken = {
            f"broken_{which}": int((table[which] > table[f"bound_{which}"]).sum()) for which in ("common", "own")
        }  # fmt: skip
        rows.append({"devices": K, "points": m, "draws": draws, **table.mean().to_dict(), **broken})
    return pd.DataFrame(rows)


def descend(rounds: int, seed: int, rate: float | None = None) -> dict[str, float]:
    """Run gradient descent on shared and personal parts; return the sides of (30) and the last squared gradient.

    rate: eta; None: the paper's, of the constants that a first run with a rate of .1 has seen.
    """
    if rate is None:
        seen = descend(rounds, seed, 0.1)
        return descend(rounds, seed, math.sqrt(2 * seen["M"] / (seen["L"] * rounds * seen["K"] ** 2 * seen["G2"])))
    X, hard = (torch.from_numpy(part) for part in digits())
    labels, K = hard.argmax(-1), len(X)
    generator = torch.Generator().manual_seed(seed)
    shared = (torch.randn(65, 16, generator=generator, dtype=torch.float64) / 8).requires_grad_()
    heads = (torch.randn(K, 16, 10, generator=generator, dtype=torch.float64) / 4).requires_grad_()
    params = [shared, heads]

    def losses() -> Tensor:
        logits = torch.tanh(X @ shared) @ heads
        return cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").reshape(K, -1).mean(1)

    squares, G2, L, before, M, last = [], 0.0, 0.0, torch.zeros(0), 0.0, torch.zeros(0)
    for turn in range(rounds):
        own = losses()
        by_device = [torch.autograd.grad(loss, params, retain_graph=True) for loss in own]
        G2 = max(G2, *(sum(float(part.square().sum()) for part in one) for one in by_device))
        gradient = [sum(parts) / K for parts in zip(*by_device, strict=True)]
        flat = torch.cat([part.flatten() for part in gradient])
        where = torch.cat([tensor.detach().flatten() for tensor in params])
        if turn:
            L = max(L, float((flat - last).norm() / (where - before).norm()))
        else:
            M = float(own.detach().mean())  # the loss is at least 0
        squares.append(float(flat.square().sum()))
        before, last = where, flat
        with torch.no_grad():
            for tensor, part in zip(params, gradient, strict=True):
                tensor -= rate * part
    mean = float(np.mean(squares))
    right = M / (rate * rounds) + L * rate * K**2 * G2 / 2
    return {"K": K, "rate": rate, "M": M, "G2": G2, "L": L, "mean_squared": mean, "bound": right, "last": squares[-1],
            "first": squares[0]}  # fmt: skip


def stationarity(rounds: Sequence[int] = (10, 30, 100, 300, 1000), seeds: int = 3) -> pd.DataFrame:
    """Return both sides of (30) by the number of rounds T and seed."""
    rows = [{"T": T, "seed": seed, **descend(T, seed)} for T in rounds for seed in range(seeds)]
    return pd.DataFrame(rows)


def draw(bounds: pd.DataFrame, stationary: pd.DataFrame) -> bytes:
    """Return the picture: both sides of (17) by the number of points, and of (30) by that of rounds."""
    figure = Figure(figsize=(8.5, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    x = [f"{row.devices} x {row.points:,}" for row in bounds.itertuples()]
    for column, style in (("common", "o-"), ("bound_common", "o:"), ("own", "s-"), ("bound_own", "s:")):
        left.plot(x, bounds[column], style, label=column.replace("_", ", "))
    left.set(xlabel="devices x points of each", ylabel="error of the last device")
    left.tick_params("x", rotation=40)
    left.legend()
    means = stationary.groupby("T")[["mean_squared", "bound"]].mean()
    right.loglog(means.index, means["mean_squared"], "o-", label="mean squared gradient")
    right.loglog(means.index, means["bound"], "o:", label="bound (30)")
    right.set(xlabel="rounds T")
    right.legend()
    return png(figure)


def main() -> None:
    torch.set_num_threads(1)
    tables = []
    for name, make in (("bound", bound), ("stationarity", stationarity)):
        began = time.process_time()
        tables.append(make())
        tables[-1].to_csv(DOCS / "results" / f"theory-fedasa-{name}.csv", index=False, float_format="%.4g")
        print(f"{name}: {time.process_time() - began:.0f} s of one core\n{tables[-1].to_string(index=False)}\n")
    (DOCS / "pictures" / "theory-fedasa.png").write_bytes(draw(*tables))


if __name__ == "__main__":
    sys.exit(main())
