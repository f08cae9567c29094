r"""CODE's theory on problems of its own: python -m benchmarks.theory_code [part ...]

lemma     Lemma 2 along Algorithm 2: after each half-step t the objective exceeds its minimum by at most R times the
          violation of the marginals,  psi~(f, g) <= R (||B 1 - a||_1 + ||B' 1 - b||_1),  R of (32). As in the appendix,
          f and g are in units of lambda; the minimum is Newton's. Two layers of random units, by lambda and width.
steps     Theorem 2: half-steps of Algorithm 2 by 1 / epsilon, and in all folds of Algorithm 1 by the number of models K
          and of layers L, against O(K L R / epsilon).
newton    Newton's plan against Algorithm 2's on 400 by 400 units: 400 max |T - T'|.
cost      Remark 4: operations and seconds of the server and operations of a device, CODE against FedAvg, by the number
          of devices and the width of the nets.

One thread. Writes docs/results/theory-code-*.csv and docs/pictures/theory-code.png.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedcore import nets
from fedcore.core.aggregation import evenly, mean
from fedcore.methods.code.fusion import code
from fedcore.methods.code.transport import Transport, cost, solve_transport
from fedcore.report.figures import png
from fedcore.types.federation import Net, Params
from fedcore.types.method import generator

DOCS = Path(__file__).parents[1] / "docs"
EPSILONS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
CAP = 200_000


def layers(n: int, seed: int, inputs: int = 20) -> Tensor:
    """Return the cost (24) between the n units of two random layers, (n, n); distances of about 1."""
    x, y = (torch.randn(n, inputs, generator=generator(seed, "layer", str(side))) for side in (0, 1))
    return cost(x, y, 1) / math.sqrt(2 * inputs)


def half_steps(C: Tensor, reg: float, count: int) -> list[tuple[float, float]]:
    """Return psi~ and the violation after each of some half-steps of Algorithm 2; f and g in units of lambda."""
    a, b = evenly(len(C)), evenly(C.shape[1])
    best = solve_transport(C, a, b, Transport("newton", reg, tol=1e-12)).plan
    log = best.log() + C / reg  # f*_i + g*_j
    f_best = log[:, 0]
    g_best = log[0] - log[0, 0]
    f, g, violations = torch.zeros_like(a), torch.zeros_like(b), []
    for t in range(count):
        logB = f[:, None] + g - C / reg
        if t % 2 == 0:
            f = f + a.log() - logB.logsumexp(1)
        else:
            g = g + b.log() - logB.logsumexp(0)
        B = (f[:, None] + g - C / reg).exp()
        excess = B.sum() - best.sum() + (f_best - f) @ a + (g_best - g) @ b
        violations.append((excess.item(), ((B.sum(1) - a).abs().sum() + (B.sum(0) - b).abs().sum()).item()))
    return violations


def radius(C: Tensor, reg: float) -> float:
    """R of Lemma 2 for uniform weights."""
    return C.max().item() / reg + math.log(max(C.shape))


def lemma(widths: Sequence[int] = (10, 40, 100), regs: Sequence[float] = (0.1, 0.05, 0.02, 0.01)) -> pd.DataFrame:
    """Return for each problem the greatest share of Lemma 2's bound that is used, and how often it is exceeded."""
    rows = []
    for n in widths:
        for reg in regs:
            C = layers(n, seed=n)
            steps = half_steps(C, reg, 500)
            R = radius(C, reg)
            points = [(excess, R * violation) for excess, violation in steps if violation > 1e-9]
            shares = [excess / limit for excess, limit in points]
            rows.append(
                {"units": n, "lambda": reg, "R": R, "half_steps": len(points), "exceeded": sum(x > 1 for x in shares),
                 "greatest_share": max(shares), "rises": sum(b[0] > a[0] + 1e-12 for a, b in pairwise(points))}
            )  # fmt: skip
    return pd.DataFrame(rows)


def by_epsilon(n: int = 100, regs: Sequence[float] = (0.1, 0.05, 0.02)) -> pd.DataFrame:
    """Return the half-steps of Algorithm 2 by epsilon, and the bound (49)."""
    a, rows = evenly(n), []
    for reg in regs:
        C = layers(n, seed=n)
        for tol in EPSILONS:
            plan = solve_transport(C, a, a, Transport("sinkhorn", reg, tol, CAP))
            share = plan.iterations / plan.bound
            rows.append(
                {"units": n, "lambda": reg, "epsilon": tol, "half_steps": plan.iterations,
                 "converged": plan.converged, "bound": plan.bound, "share_of_bound": share}
            )  # fmt: skip
    return pd.DataFrame(rows)


def random_models(count: int, widths: Sequence[int], inputs: int = 64, seed: int = 0) -> tuple[Net, list[Params]]:
    """Return an MLP with these hidden layers, and initial models of it."""
    net = nets.net("mlp", shape=(inputs,), classes=10, widths=list(widths))
    return net, [nets.init(net, generator(seed, "model", str(k))) for k in range(count)]


def by_size(reg: float = 0.02, tol: float = 1e-4) -> pd.DataFrame:
    """Return the half-steps of all folds by the number of models K and of hidden layers L."""
    rows = []
    for K, L in [(K, 3) for K in (2, 4, 8, 16)] + [(8, L) for L in (1, 2, 4, 6)]:
        net, models = random_models(K, [30] * L)
        _, folds = code(models, net.table, Transport("sinkhorn", reg, tol, CAP))
        plans = [plan for fold in folds for plan in fold.values() if plan.iterations]
        rows.append(
            {"models": K, "hidden_layers": L, "lambda": reg, "epsilon": tol, "problems": len(plans),
             "half_steps": sum(plan.iterations for plan in plans), "bound": sum(plan.bound for plan in plans)}
        )  # fmt: skip
    return pd.DataFrame(rows)


def newton(n: int = 400, regs: Sequence[float] = (0.05, 0.02, 0.01)) -> pd.DataFrame:
    """Return how far Newton's plan is from Algorithm 2's, in units of the uniform mass 1 / n."""
    a, C, rows = evenly(n), layers(n, seed=n), []
    for reg in regs:
        direct, looped = (solve_transport(C, a, a, Transport(name, reg, 1e-7, CAP)) for name in ("newton", "sinkhorn"))
        gap = n * (direct.plan - looped.plan).abs().max().item()
        rows.append(
            {
                "units": n,
                "lambda": reg,
                "half_steps": looped.iterations,
                "converged": looped.converged,
                "apart": gap,
            }
        )
    return pd.DataFrame(rows)


def remark_4(
    counts: Sequence[int] = (2, 4, 8, 16),
    shares: Sequence[float] = (0.25, 0.5, 1.0),
    examples: int = 3750,
    epochs: int = 10,
) -> pd.DataFrame:
    """Return operations (multiplications) and seconds of the server, and a device's operations, by devices and widths.

    The server of FedAvg multiplies each parameter of each model once a round. CODE's computes the costs (24) and
    applies two plans to each layer; its plans' own operations are n m for each half-step of Algorithm 2, or n^3 / 3 and
    more for Newton's Cholesky, and are in the seconds. A device multiplies three times each weight for each example.
    """
    rows = []
    for share in shares:
        widths = [round(share * width) for width in (400, 200, 100)]
        for K in counts:
            net, models = random_models(K, widths, inputs=784)
            size = sum(x.numel() for x in models[0].values())
            sizes = [784, *widths, 10]
            aligned = sum(
                n * n * (before + 1) + (before + 1) * n * (before * (before != 784) + n)
                for before, n in zip(sizes, widths, strict=False)
            ) + sizes[-1] * sizes[-2] ** 2  # fmt: skip
            training = 3 * size * examples * epochs
            rows.append(
                {"widths": "-".join(map(str, widths)), "devices": K, "parameters": size,
                 "fedavg_server_operations": K * size, "code_server_operations": (K - 1) * aligned + (K - 1) * 2 * size,
                 "fedavg_server_seconds": clock(mean, models, torch.full((K,), 1 / K)),
                 "code_server_seconds": clock(code, models, net.table, Transport()),
                 "device_operations_code": training, "device_operations_fedavg_1": training,
                 "device_operations_fedavg_10": 10 * training}
            )  # fmt: skip
    return pd.DataFrame(rows)


def clock(work: Callable[..., object], *arguments: object) -> float:
    """Return the median of the seconds of some calls."""
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        work(*arguments)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def draw(epsilon: pd.DataFrame, size: pd.DataFrame) -> bytes:
    """Return the picture: half-steps by 1 / epsilon with the bound, and by models and layers."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for reg, part in epsilon.groupby("lambda"):
        (line,) = left.loglog(1 / part["epsilon"], part["half_steps"], "o-", label=f"lambda {reg:g}")
        left.loglog(1 / part["epsilon"], part["bound"], ":", color=line.get_color())
    left.set(xlabel="1 / epsilon", ylabel="half-steps (dotted: bound (49))")
    left.legend()
    models, depths = size[size["hidden_layers"] == 3], size[size["models"] == 8].sort_values("hidden_layers")
    middle.plot(models["models"], models["half_steps"], "o-")
    middle.set(xlabel="models K, three hidden layers", ylabel="half-steps of all folds")
    right.plot(depths["hidden_layers"], depths["half_steps"], "o-")
    right.set(xlabel="hidden layers L, eight models")
    return png(figure)


PARTS = {"lemma": lemma, "epsilon": by_epsilon, "size": by_size, "newton": newton, "cost": remark_4}


def main(chosen: Sequence[str]) -> None:
    torch.set_num_threads(1)
    for name in chosen or PARTS:
        began = time.process_time()
        table = PARTS[name]()
        table.to_csv(DOCS / "results" / f"theory-code-{name}.csv", index=False, float_format="%.6g")
        print(f"{name}: {time.process_time() - began:.0f} s of one core\n{table.to_string(index=False)}\n")
    read = [pd.read_csv(DOCS / "results" / f"theory-code-{name}.csv") for name in ("epsilon", "size")]
    (DOCS / "pictures" / "theory-code.png").write_bytes(draw(*read))


if __name__ == "__main__":
    main(sys.argv[1:])
