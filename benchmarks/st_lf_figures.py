"""Draw ST-LF's Figs. 4, 5 and 6 from (P) alone, no device and no training: python -m benchmarks.st_lf_figures [folder]

Ten equal devices, the first five labelled, as in `tests/links/test_links.py`, which asserts what is seen. Figs. 4 and 5
need T = d and phi_E = 0; with T as in (18), which Fig. 6 has, a labelled device is a source whatever its error. Writes
docs/pictures/stlf-fig4.png, ...
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedcore.links import Problem, energy_of_links, solve
from fedcore.links.bound import source_bound, target_bound
from fedcore.links.energy import draw_energy
from fedcore.links.problem import Array
from fedcore.results.figures import descent, png

N, LABELLED = 10, 5
SIZES = np.full(N, 1000.0)
PHI_E = (0, 1e-5, 1e-4, 1e-3, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)


def symmetric(seed: int, high: float = 1.0) -> Array:
    """Draw divergences: symmetric, zero diagonal."""
    draw = np.triu(np.random.default_rng(seed).uniform(0, high, (N, N)), 1)
    return np.asarray(draw + draw.T)


def problem(labelled: Sequence[float], divergence: Array, phi_e: float, bare: bool = False) -> Problem:
    """Write (P) for the labelled devices' errors. bare: T = d instead of (18)."""
    error = np.append(labelled, np.full(N - len(labelled), 1e3))
    source = source_bound(error, SIZES, delta=1e-3, constants="assumed")
    target = divergence if bare else target_bound(error, SIZES, divergence, delta=1e-3, constants="assumed")
    return Problem(source, target, draw_energy(N, torch.Generator().manual_seed(0)), phi_e=phi_e)


def regimes() -> dict[str, Array]:
    """Return Fig. 5's divergences: uniform, extreme (device 1 near all others), random."""
    extreme = 1 - np.eye(N)
    extreme[0] = extreme[:, 0] = 0
    return {"uniform": 1 - np.eye(N), "extreme": extreme, "random": symmetric(0)}


def figure_4() -> Figure:
    """Algorithm 2's descent where the labelled devices' errors are small, and where device 3's is large."""
    errors = {"small errors": [0.1] * LABELLED, "device 3 errs .9": [0.1, 0.1, 0.9, 0.1, 0.1]}
    answers = {
        name: solve(problem(labelled, symmetric(0), 0.0, bare=True), solver="successive")
        for name, labelled in errors.items()
    }
    for name, answer in answers.items():
        sources = ", ".join(map(str, 1 + np.flatnonzero(answer.psi == 0)))
        print(f"Fig. 4, {name}: sources {sources}; {answer.iterations} iterations, {answer.status}")
    return descent({name: answer.trace for name, answer in answers.items()})


def figure_5() -> Figure:
    """A column for each regime: divergences, psi, alpha."""
    figure = Figure(figsize=(8.4, 5.8), layout="constrained")
    panels = figure.subplots(3, 3, height_ratios=[10, 1, 5])
    devices = [str(1 + i) for i in range(N)]
    for column, (name, divergence) in enumerate(regimes().items()):
        answer = solve(problem([0.1] * LABELLED, divergence, 0.0, bare=True), solver="successive")
        print(f"Fig. 5, {name}: sources {', '.join(map(str, 1 + np.flatnonzero(answer.psi == 0)))}")
        shown = np.where(np.eye(N, dtype=bool), np.nan, divergence), answer.psi[None], answer.alpha[:LABELLED]
        for panel, values, colours in zip(panels[:, column], shown, ("viridis", "Greys", "Blues"), strict=True):
            image = panel.imshow(values, cmap=colours, vmin=0, vmax=1)
            panel.set_xticks(range(N), devices, fontsize=7)
            panel.set_yticks(range(len(values)), devices[: len(values)] if len(values) > 1 else [""], fontsize=7)
            panel.tick_params(length=0)
            if column == 2 and len(values) > 1:
                figure.colorbar(image, ax=panel)
        for i, j in zip(*np.nonzero(answer.alpha), strict=True):
            ink = "white" if answer.alpha[i, j] > 0.6 else "black"
            panels[2, column].text(
                j, i, f"{answer.alpha[i, j]:.2f}".lstrip("0"), ha="center", va="center", size=6, color=ink
            )
        panels[0, column].set_title(name, fontsize=10)
    for panel, what in zip(panels[:, 0], ("divergence", "psi (dark:\ntarget)", "weights from\n1 to 5"), strict=True):
        panel.set_ylabel(what)
    return figure


def figure_6() -> Figure:
    """Energy and links by phi_E, of Algorithm 2 and of the optimum."""
    figure = Figure(figsize=(9, 3), layout="constrained")
    energy, links = figure.subplots(1, 2)
    labelled = np.random.default_rng(0).uniform(0.05, 0.3, LABELLED)
    base = problem(list(labelled), symmetric(0), 0.0)
    for solver, label in (("successive", "Algorithm 2"), ("exact", "optimum")):
        answers = [solve(replace(base, phi_e=phi_e), solver=solver) for phi_e in PHI_E]
        joules = [energy_of_links(base.energy, answer.alpha) for answer in answers]
        counts = [int((answer.alpha > 0).sum()) for answer in answers]
        print(f"Fig. 6, {label}: joules {[round(x, 1) for x in joules]}, links {counts}")
        for panel, values in ((energy, joules), (links, counts)):
            panel.step(range(len(PHI_E)), values, where="mid", marker=".", label=label)
    for panel, what in ((energy, "energy of all links, J"), (links, "links")):
        panel.set_xticks(range(len(PHI_E)), [f"{phi_e:g}" for phi_e in PHI_E], rotation=90, fontsize=8)
        panel.set_xlabel("phi_E")
        panel.set_ylabel(what)
        panel.grid(alpha=0.3)
    links.yaxis.set_major_locator(MaxNLocator(integer=True))
    energy.legend(frameon=False)
    return figure


def main() -> None:
    """Draw them, and say what they show."""
    torch.set_num_threads(1)
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/pictures")
    folder.mkdir(parents=True, exist_ok=True)
    for number, draw in ((4, figure_4), (5, figure_5), (6, figure_6)):
        (folder / f"stlf-fig{number}.png").write_bytes(png(draw()))


if __name__ == "__main__":
    main()
