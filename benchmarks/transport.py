"""Time the transport solvers beside POT's on a 400-unit layer: python -m benchmarks.transport

Layers are what training leaves: an initial draw of 784 weights per unit and a change along a few directions that all
devices share. "different" devices drew their own start; "near" ones had a common start and hardly differ; of a "same"
pair one is the other, slightly perturbed. Every solver meets 1e-7 or its cap; solvers take turns, medians are shown.
One thread; a cap or a failure is marked by the violation of the marginals it left. excess: of cost over the least.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable

import numpy as np
import ot
import torch
from torch import Tensor

from fedcore.core.aggregation import evenly
from fedcore.methods.code import transport

UNITS, INPUTS, DIRECTIONS, TOL, REPEATS = 400, 784, 30, 1e-7, 3
CAPS = {"newton": 200, "sinkhorn": 1_000, "exact": 1}
POT_CAPS = {"sinkhorn": 2_000, "sinkhorn_log": 100, "sinkhorn_stabilized": 2_000}


def pair(kind: str) -> tuple[Tensor, Tensor]:
    """Return two layers (UNITS, INPUTS) of the kind."""
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(DIRECTIONS, INPUTS, generator=generator, dtype=torch.float64) / INPUTS**0.5

    def start() -> Tensor:
        draw = torch.rand(UNITS, INPUTS, generator=generator, dtype=torch.float64)
        return (2 * draw - 1) / INPUTS**0.5

    def change() -> Tensor:
        gain = torch.rand(UNITS, 1, generator=generator, dtype=torch.float64)
        return 0.3 * gain * torch.randn(UNITS, DIRECTIONS, generator=generator, dtype=torch.float64) @ shared

    first, moved = start(), change()
    second = {"different": lambda: start() + change(), "near": lambda: first + change()}
    return first + moved, second.get(kind, lambda: first + moved + 0.01 * change())()


def solvers(C: Tensor, reg: float) -> dict[str, Callable[[], np.ndarray]]:
    """Return every solver, ours first, as a call that gives its plan."""
    a = b = evenly(UNITS)

    def ours(name: str) -> Callable[[], np.ndarray]:
        return lambda: transport.solve_transport(C, a, b, transport.Transport(name, reg, TOL, CAPS[name])).plan.numpy()

    def theirs(name: str) -> Callable[[], np.ndarray]:
        settings = {"method": name, "numItermax": POT_CAPS[name], "stopThr": TOL, "warn": False}
        return lambda: ot.sinkhorn(a.numpy(), b.numpy(), C.numpy(), reg, **settings)

    return (
        {name: ours(name) for name in CAPS}
        | {f"POT {name}": theirs(name) for name in POT_CAPS}
        | {"POT emd": lambda: ot.emd(a.numpy(), b.numpy(), C.numpy())}
    )


def violation(plan: np.ndarray) -> float:
    """Return what eq. 27 measures, nan where the plan is."""
    return float(abs(plan.sum(1) - 1 / UNITS).sum() + abs(plan.sum(0) - 1 / UNITS).sum())


def main() -> None:
    """Print one line per problem and solver: median milliseconds, ratio to newton, violation, excess of cost."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # POT divides by zero where lambda is small; the violation column tells
    print(
        f"{'layers':<10} {'p':>1} {'lambda':>6}  {'solver':<24} {'ms':>8} {'x newton':>8} {'violation':>9} "
        f"{'excess':>8}"
    )
    for kind in ("different", "near", "same"):
        for p in (1, 2):
            C = transport.cost(*pair(kind), p)
            for reg in (0.01, 0.001):
                calls = solvers(C, reg)
                seconds: dict[str, list[float]] = {name: [] for name in calls}
                left, costs = {}, {}
                for _ in range(REPEATS):
                    for name, call in calls.items():
                        begin = time.perf_counter()
                        plan = call()
                        seconds[name].append(time.perf_counter() - begin)
                        left[name], costs[name] = violation(plan), float((plan * C.numpy()).sum())
                middle = {name: statistics.median(values) for name, values in seconds.items()}
                for name, value in middle.items():
                    ratio = value / middle["newton"]
                    excess = costs[name] - costs["exact"]
                    print(
                        f"{kind:<10} {p} {reg:>6}  {name:<24} {value * 1e3:>8.1f} {ratio:>8.2f} {left[name]:>9.0e} "
                        f"{excess:>8.1e}"
                    )


if __name__ == "__main__":
    main()
