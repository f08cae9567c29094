r"""DFL's and FedAvg's O(1/t) on a strongly convex problem: python -m benchmarks.theory_dfl

Section III-D of DFL's paper proves that after t local steps the objective is at most a constant / (gamma + t) above its
minimum, for smooth and strongly convex losses (Assumptions 1 and 2), all devices or some of them per round, and soft
targets that no longer change (Assumption 5). Softmax regression with weight decay on scikit-learn's digits is such a
problem; its minimum is found by L-BFGS.

    Phi(w) = sum_k p_k (rho CE(softmax(w x), y) + (1 - rho) KL(Y_y || softmax(w x)) + mu / 2 ||w||^2)      (3), (7), (8)

p_k = |D_k| / |D|. FedAvg has rho = 1. DFL's table Y holds the label-wise mean logits (2) at FedAvg's minimum, frozen.
A device makes T local steps (9) on minibatches with the rate eta_t = 2 / (mu (gamma + t)), gamma = max(8 L / mu, T), as
in the theorem that the section follows (Li et al. 2020); L is the largest eigenvalue of half the second moments, plus
mu. Then the server averages all devices, or S of them that it draws by p_k with replacement.

O(1/t) is an upper bound: the slope of log error against log t in the last decade of t, of errors averaged in bins of
log t, should be -1 or steeper. Its interval is over seeds, which draw the minibatches and the devices. Writes
docs/results/theory-dfl.csv, theory-dfl-slopes.csv and docs/pictures/theory-dfl.png.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy import optimize, special
from sklearn.datasets import load_digits

from fedcore.report.figures import png
from fedcore.results.criterion import half_width

Array = NDArray[np.float64]
DOCS = Path(__file__).parents[1] / "docs"
RHO, MU = 0.6, 0.1
DEVICES, SAMPLED, STEPS, BATCH = 10, 5, 5, 8


class Problem:
    """Devices' features X (C, N, d), their targets Q (C, N, K), a mixture of hard and soft ones, and weight decay.

    Cross-entropy against the mixture has the gradient of (3), which differs from it by a constant.
    """

    def __init__(self, X: Array, Q: Array, mu: float = MU) -> None:
        self.X, self.Q, self.mu = X, Q, mu
        flat = X.reshape(-1, X.shape[-1])
        self.L = float(np.linalg.eigvalsh(flat.T @ flat / len(flat))[-1]) / 2 + mu
        self.optimum = self._minimise()
        self.least = self.value(self.optimum)

    def value(self, w: Array) -> float:
        """Phi(w) up to a constant; w (d, K)."""
        logits = self.X @ w
        entropy = special.logsumexp(logits, -1) - (self.Q * logits).sum(-1)
        return float(entropy.mean() + self.mu / 2 * (w**2).sum())

    def gradient(self, w: Array) -> Array:
        """Its gradient."""
        error = special.softmax(self.X @ w, -1) - self.Q
        return np.einsum("cnd,cnk->dk", self.X, error) / self.X[..., 0].size + self.mu * w

    def _minimise(self) -> Array:
        shape = self.X.shape[-1], self.Q.shape[-1]
        minimum = optimize.minimize(
            lambda w: (self.value(w.reshape(shape)), self.gradient(w.reshape(shape)).ravel()),
            np.zeros(shape).ravel(), jac=True, method="L-BFGS-B",
            options={"maxiter": 10_000, "ftol": 0.0, "gtol": 1e-9, "maxcor": 50},
        )  # fmt: skip
        return minimum.x.reshape(shape)


def digits(devices: int = DEVICES) -> tuple[Array, Array]:
    """Return X (C, N, d) and one-hot labels (C, N, K) of devices that hold neighbouring digits, so that they differ."""
    x, y = load_digits(return_X_y=True)
    order = np.argsort(y, kind="stable")[: len(y) // devices * devices]
    X = np.column_stack([x / 16, np.ones(len(x))])[order].reshape(devices, -1, 65)
    return X, np.eye(10)[y[order]].reshape(devices, -1, 10)


def problems() -> dict[str, Problem]:
    """Return FedAvg's problem and DFL's."""
    X, hard = digits()
    fedavg = Problem(X, hard)
    logits = X @ fedavg.optimum
    table = np.einsum("cnk,cnj->kj", hard, logits) / hard.sum((0, 1))[:, None]  # (2), by the counts of labels
    return {"fedavg": fedavg, "dfl": Problem(X, RHO * hard + (1 - RHO) * (hard @ special.softmax(table, -1)))}


def run(problem: Problem, rounds: int, sampled: int, seed: int, every: int) -> list[float]:
    """Return the errors Phi(w) - Phi* of the server's model after every so many rounds."""
    random = np.random.default_rng(seed)
    C, N, d = problem.X.shape
    gamma = max(8 * problem.L / problem.mu, STEPS)
    w, errors = np.zeros((d, problem.Q.shape[-1])), []
    for turn in range(rounds):
        who = np.arange(C) if sampled == C else random.integers(C, size=sampled)
        local = np.repeat(w[None], len(who), 0)
        for step in range(STEPS):
            rows = random.integers(N, size=(len(who), BATCH))
            x, q = problem.X[who[:, None], rows], problem.Q[who[:, None], rows]
            error = special.softmax(x @ local, -1) - q
            rate = 2 / (problem.mu * (gamma + turn * STEPS + step))
            local -= rate * (np.swapaxes(x, 1, 2) @ error / BATCH + problem.mu * local)
        w = local.mean(0)
        if (turn + 1) % every == 0:
            errors.append(problem.value(w) - problem.least)
    return errors


def rates(rounds: int, seeds: int) -> pd.DataFrame:
    """Return the mean error of every row and seed in bins of log t; t counts local steps."""
    every = max(rounds // 1000, 1)
    t = np.arange(every, rounds + 1, every) * STEPS
    bins = np.round(np.log(t) * 6)  # 14 in a decade
    rows = []
    for name, problem in problems().items():
        for devices, sampled in (("all", DEVICES), (f"{SAMPLED} of {DEVICES}", SAMPLED)):
            for seed in range(seeds):
                errors = np.array(run(problem, rounds, sampled, seed, every))
                rows += [
                    {
                        "method": name,
                        "devices": devices,
                        "seed": seed,
                        "t": t[here].mean(),
                        "error": errors[here].mean(),
                    }
                    for here in (bins == one for one in np.unique(bins))
                ]
    return pd.DataFrame(rows)


def slopes(table: pd.DataFrame) -> pd.DataFrame:
    """Return the slope of log error against log t, with its 95 % interval over seeds."""
    rows = []
    late = table[table["t"] >= table["t"].max() / 10]
    for (method, devices), part in late.groupby(["method", "devices"], sort=False):
        fitted = [
            np.polyfit(np.log(one["t"]), np.log(one["error"]), 1)[0] for _, one in part.groupby("seed")
        ]  # fmt: skip
        margin = half_width(float(np.std(fitted, ddof=1)), len(fitted), 0.0)
        last = part[part["t"] == part["t"].max()]["error"]
        rows.append(
            {"method": method, "devices": devices, "seeds": len(fitted), "slope": np.mean(fitted), "margin": margin,
             "t": part["t"].max(), "error": last.mean(), "error_times_t": (last * part["t"].max()).mean()}
        )  # fmt: skip
    return pd.DataFrame(rows)


def draw(table: pd.DataFrame) -> bytes:
    """Return the picture: error against t, both axes logarithmic, with a line of slope -1."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for (method, devices), part in table.groupby(["method", "devices"], sort=False):
        mean = part.groupby("t")["error"].mean()
        axes.loglog(mean.index, mean, "-" if devices == "all" else "--", label=f"{method}, {devices} devices a round")
    t = np.array([table["t"].max() / 30, table["t"].max()])
    axes.loglog(t, mean.iloc[-1] * 2 * t[-1] / t, "k:", label="slope -1")
    axes.set(xlabel="local steps t", ylabel="objective above its minimum, nats")
    axes.legend()
    return png(figure)


def main(rounds: int = 10_000, seeds: int = 5) -> None:
    began = time.process_time()
    table = rates(rounds, seeds)
    table.to_csv(DOCS / "results" / "theory-dfl.csv", index=False, float_format="%.6g")
    fitted = slopes(table)
    fitted.to_csv(DOCS / "results" / "theory-dfl-slopes.csv", index=False, float_format="%.4g")
    (DOCS / "pictures" / "theory-dfl.png").write_bytes(draw(table))
    print(fitted.to_string(index=False), f"\n{time.process_time() - began:.0f} s of one core")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
