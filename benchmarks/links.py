"""Time the link programs by the number of devices, or vary the start of Algorithm 2.

    python -m benchmarks.links [N ...]
    python -m benchmarks.links starts

Random instances as in the tests: half of the devices labelled, assumed constants, phi = 1, 5 and phi_E as given by
PHI_E. Medians over instances; each (N, program) in a process of its own, so that its peak memory is its own (imports
of NumPy, SciPy and Torch are in it). `cvxpy` is run up to SMALL devices, `successive` not at 100 devices, where a step
takes seconds. One thread.
"""

from __future__ import annotations

import os
import resource
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import torch

from fedcore.methods.st_lf.bound import source_bound, target_bound
from fedcore.methods.st_lf.energy import draw_energy
from fedcore.methods.st_lf.geometric import Point, initial_point
from fedcore.methods.st_lf.problem import Problem, Solution
from fedcore.methods.st_lf.programs import SolverSettings, solve_program, solve_successively

STARTS = 16
SIZES, SMALL, LARGE = (10, 20, 40, 100), 20, 100
PHI_E = (0.01, 1.0)
INSTANCES = 3


def instance(n: int, seed: int, phi_e: float) -> Problem:
    """Draw a problem: sizes 500 to 1,500, errors .05 to .5 where there are labels, divergences 0 to 2."""
    rng = np.random.default_rng(seed)
    error = np.where(np.arange(n) < n // 2, rng.uniform(0.05, 0.5, n), 1e3)
    sizes = rng.integers(500, 1500, n).astype(np.float64)
    half = np.triu(rng.uniform(0, 2, (n, n)), 1)
    source = source_bound(error, sizes, delta=1e-3, constants="assumed")
    target = target_bound(error, sizes, half + half.T, delta=1e-3, constants="assumed")
    return Problem(source, target, draw_energy(n, torch.Generator().manual_seed(seed)), phi_e=phi_e)


def measure(n: int, phi_e: float, solver: str) -> tuple[list[Solution], float]:
    """Return the answers on all instances and the process's peak memory in MiB."""
    torch.set_num_threads(1)
    answers = [solve_program(instance(n, seed, phi_e), SolverSettings(solver)) for seed in range(INSTANCES)]
    return answers, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def starts(n: int = 10) -> None:
    """Print how far from the default start's the objectives end that random starts lead to: least, median, most."""
    torch.set_num_threads(1)
    for phi_e in PHI_E:
        for seed in range(INSTANCES):
            problem, rng = instance(n, seed, phi_e), np.random.default_rng(seed)
            default = solve_program(problem, SolverSettings())
            ends = []
            for _ in range(STARTS):
                alpha = rng.uniform(0, 1, (n, n))
                np.fill_diagonal(alpha, 0)
                begin = Point(rng.uniform(0.05, 0.95, n), alpha / alpha.sum(0) / 2, initial_point(n).slack)
                solution = solve_successively(problem, SolverSettings(), begin=begin)
                ends.append(100 * (solution.objective / default.objective - 1))
            print(
                f"phi_E {phi_e:g}, instance {seed}: {min(ends):+.1f} %, {statistics.median(ends):+.1f} %, "
                f"{max(ends):+.1f} %; the default's gap {100 * default.gap:.1f} %",
                flush=True,
            )


def main() -> None:
    """Print one line per N, phi_E and program: median seconds, iterations, gap in percent, and peak memory."""
    os.environ["OMP_NUM_THREADS"] = "1"
    if sys.argv[1:] == ["starts"]:
        starts()
        return
    sizes = [int(word) for word in sys.argv[1:]] or SIZES
    print("   N  phi_E  program           seconds iterations   gap %  worst %    MiB")
    for n in sizes:
        for phi_e in PHI_E:
            solvers = ["exact"]
            if n < LARGE:
                solvers += ["successive", "repaired"]
            if n <= SMALL:
                solvers += ["cvxpy"]
            for solver in solvers:
                with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                    answers, peak = pool.submit(measure, n, phi_e, solver).result()
                seconds = statistics.median(answer.seconds for answer in answers)
                iterations = statistics.median(answer.iterations for answer in answers)
                gaps = [100 * answer.gap for answer in answers]
                print(
                    f"{n:>4} {phi_e:>6}  {solver:<16} {seconds:>8.2f} {iterations:>10.0f}"
                    f" {statistics.median(gaps):>7.2f} {max(gaps):>8.2f} {peak:>6.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
