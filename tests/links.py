"""Instances of the link program for the tests, half of the devices with labels; reports that four devices may send."""

import numpy as np
import torch
from federations import NET, SGD

from fedcore.methods.st_lf.bound import source_bound, target_bound
from fedcore.methods.st_lf.energy import draw_energy
from fedcore.methods.st_lf.planning import BoundSettings, LinkCosts, plan_links
from fedcore.methods.st_lf.problem import Array, Problem, Solution
from fedcore.methods.st_lf.programs import Solver, SolverSettings, solve_program
from fedcore.methods.st_lf.st_lf import of_program
from fedcore.types.method import RoundInfo, Update

GIVEN = {
    "nets": dict.fromkeys("abcd", NET), "training": SGD, "shared_init": True, "pair_rounds": 3, "pair_iterations": 2,
    "pair_batch": 4, "pair_lr": 0.05, "held_out": 0.25, "constants": "assumed", "delta": 1e-3, "unlabelled": 1e3,
    "phi_s": 1.0, "phi_t": 5.0, "phi_e": 1.0, "powers": (23.0, 25.0), "rates": (63e6, 85e6), "bits": 1e9,
    "costs": None, "solver": "exact", "tol": 3e-3, "max_iterations": 60, "combine": "parameters",
}  # fmt: skip
"""Arguments of st_lf's builder for four small devices."""


def solved(problem: Problem, solver: Solver) -> Solution:
    return solve_program(problem, SolverSettings(solver, 3e-3, 60))


def random(n: int, seed: int, *, phi_e: float = 1.0, noisy: bool = False) -> Problem:
    """Half of the devices labelled, assumed constants, random sizes, errors, divergences, powers and rates."""
    rng = np.random.default_rng(seed)
    error = np.where(np.arange(n) < max(n // 2, 1), rng.uniform(0.05, 0.5, n), 1e3)
    sizes = rng.integers(500, 1500, n).astype(np.float64)
    source = source_bound(error, sizes, delta=1e-3, constants="assumed")
    target = target_bound(error, sizes, symmetric(n, seed, 2.0), delta=1e-3, constants="assumed")
    energy = draw_energy(n, torch.Generator().manual_seed(seed))
    noise = None
    if noisy:
        draw = rng.uniform(0, 0.5, (n, n, n))
        noise = (draw + draw.transpose(2, 1, 0)) / 2
        noise[np.arange(n), :, np.arange(n)] = 0
    return Problem(source, target, energy, phi_e=phi_e, noise=noise)


def plain(n: int, seed: int) -> Problem:
    """Every constant drawn evenly, so that any number of sources may be best."""
    rng = np.random.default_rng(seed)
    source, target, energy = rng.uniform(0, 3, n), rng.uniform(0, 1, (n, n)), rng.uniform(0, 1, (n, n))
    return Problem(source, target, energy, *rng.uniform(0, 2, 3))


def symmetric(n: int, seed: int, high: float) -> Array:
    """Divergences: symmetric, zero diagonal."""
    draw = np.triu(np.random.default_rng(seed).uniform(0, high, (n, n)), 1)
    return np.asarray(draw + draw.T)


def figure_5(divergence: Array, phi_e: float = 0.0, third: float = 0.1) -> Problem:
    """Ten equal devices, the first five labelled, and T = d, the setting in which Figs. 4 and 5 appear.

    third: the error of device 3; that of the other labelled ones is .1.
    """
    error = np.where(np.arange(10) < 5, 0.1, 1e3)
    error[2] = third
    source = source_bound(error, np.full(10, 1000.0), delta=1e-3, constants="assumed")
    return Problem(source, divergence, draw_energy(10, torch.Generator().manual_seed(0)), phi_e=phi_e)


BOUNDS = BoundSettings("assumed", 1e-3, 1e3, 1.0, 5.0, 1.0)
COSTS = LinkCosts((23.0, 25.0), (63e6, 85e6), 1e9, None)
NAMES = tuple("abcd")
ROUND_INFO = RoundInfo(5, 2, 0, tuple((a, b) for i, a in enumerate(NAMES) for b in NAMES[i + 1 :]), NAMES)


def planted(d: np.ndarray) -> dict[tuple[str, str], Update]:
    """What pairs would send if their data were so far apart: d = 2 |1 - 2 err|."""
    place = {name: i for i, name in enumerate(NAMES)}
    return {
        (a, b): Update(extra={"errors": torch.full((2,), (1 - d[place[a], place[b]] / 2) / 2), "sent": torch.tensor(6)})
        for a, b in ROUND_INFO.units
    }


def reported(*rows: tuple[float, float, float]) -> dict[str, torch.Tensor]:
    return {"report": torch.tensor(rows, dtype=torch.float64)}


D = np.array([[0, 1, 0.2, 1.8], [1, 0, 1.6, 0.4], [0.2, 1.6, 0, 1], [1.8, 0.4, 1, 0]])
REPORTS = reported((0.1, 500, 600), (0.2, 400, 500), (0, 0, 700), (0, 0, 800))


def formed(server=REPORTS, d=D, round_info=ROUND_INFO, bounds=BOUNDS, costs=COSTS, solver="exact"):
    """The server's memory, its messages and its report after planted reports and divergences."""
    settings = {"bounds": bounds, "costs": costs, "solver": SolverSettings(solver, 3e-3, 60)}
    return plan_links(server, planted(d), round_info, **settings, weights=of_program)
