"""Draw ST-LF's Figs. 4, 5, 6, 8 and 9: python -m benchmarks.st_lf_figures [folder]

With the word `saved` in place of a folder: the transmissions that Fig. 6 saves, by (P) alone with the divergences of
(18) as printed and times 100; writes docs/results/st-lf-fig6-p-alone.csv.

Figs. 4, 5 and 6 from (P) alone, no device and no training: ten equal devices, the first five labelled, as in
`tests/methods/st_lf/test_programs.py`, which asserts what is seen. Figs. 4 and 5 need T = d and phi_E = 0; with T as in
(18), which Fig. 6 has, a labelled device is a source whatever its error. Figs. 6, 8 and 9 from the committed results of
the studies st_lf_fig6 and st_lf_table1, with the values of papers/st_lf.yaml beside them. Writes
docs/pictures/stlf-fig4.png, ...
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import yaml
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedcore.methods.st_lf.bound import source_bound, target_bound
from fedcore.methods.st_lf.energy import draw_energy
from fedcore.methods.st_lf.problem import Array, Problem
from fedcore.methods.st_lf.programs import SolverSettings, solve_program
from fedcore.report.figures import png
from fedcore.report.figures.reports import descent

N, LABELLED = 10, 5
SIZES = np.full(N, 1000.0)
SETS = ("M", "U", "MM", "M+MM", "M+U", "MM+U", "M//MM", "M//U", "MM//U")
RIVALS = {
    8: ("rnd_alpha", "fedavg_alpha", "fada", "avg_degree"),
    9: ("rnd_psi", "psi_fedavg", "psi_fada", "single_match"),
}
"""Figure -> rivals: those that choose weights, and those that choose sources."""
ROOT = Path(__file__).parents[1]
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
        name: solve_program(problem(labelled, symmetric(0), 0.0, bare=True), SolverSettings("successive"))
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
        answer = solve_program(problem([0.1] * LABELLED, divergence, 0.0, bare=True), SolverSettings("successive"))
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
        answers = [solve_program(replace(base, phi_e=phi_e), SolverSettings(solver)) for phi_e in PHI_E]
        joules = [float(base.energy[answer.alpha > 0].sum()) for answer in answers]
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


DIVERGENCES = {"small": (0.15, 0.3), "middle": (0.8, 1.1), "large": (1.3, 2.0)}
"""Those of devices with one distribution, some classes in common, and other images (docs/methods/st_lf.md)."""


def saved(seeds: int = 3) -> pd.DataFrame:
    """Return the links that energy's weight takes away, from those at phi_E 0 to those at 1000, by divergences."""
    rows = []
    for name, (low, high) in DIVERGENCES.items():
        for factor in (1, 100):
            for seed in range(seeds):
                half = np.triu(np.random.default_rng(seed).uniform(low, high, (N, N)), 1)
                errors = np.random.default_rng(seed).uniform(0.02, 0.2, LABELLED)
                base = problem(errors, half + half.T, 0.0)
                base = replace(base, target=base.target + (factor - 1) * (half + half.T) / 2)
                links = {
                    phi_e: int((solve_program(replace(base, phi_e=phi_e), SolverSettings()).alpha > 0).sum())
                    for phi_e in (0.0, 1.0, 1000.0)
                }
                rows.append(
                    {"divergences": name, "factor": factor, "seed": seed, "links_0": links[0.0],
                     "links_1": links[1.0], "saved": links[0.0] - links[1000.0]}
                )  # fmt: skip
    return pd.DataFrame(rows)


def figure_6_on_data() -> Figure:
    """Energy, links and accuracy of targets by phi_E in study st_lf_fig6 as published, mean and extremes over seeds."""
    numbers = pd.read_csv(ROOT / "docs/results/st-lf-fig6-as-published.csv")
    figure = Figure(figsize=(10, 3), layout="constrained")
    levels = sorted(numbers["phi_e"].unique())
    words = {"energy_j": "energy of all links, J", "links": "links", "accuracy": "accuracy of targets"}
    for panel, (column, word) in zip(figure.subplots(1, 3), words.items(), strict=True):
        for name in ("M", "U", "MM"):
            over = numbers[numbers["set"] == name].groupby("phi_e")[column]
            panel.plot(range(len(levels)), over.mean()[levels], marker=".", label=name)
            panel.fill_between(range(len(levels)), over.min()[levels], over.max()[levels], alpha=0.2)
        panel.set_xticks(range(len(levels)), [f"{level:g}" for level in levels], rotation=90, fontsize=8)
        panel.set_xlabel("phi_E")
        panel.set_ylabel(word)
        panel.grid(alpha=0.3)
        panel.set_ylim(0, 1 if column == "accuracy" else None)
    figure.axes[0].legend(frameon=False)
    return figure


def figure_of_rivals(number: int) -> Figure:
    """Accuracy of targets on nine sets, ST-LF and four rivals: bars with spread over seeds, black lines as printed."""
    papers = yaml.safe_load((ROOT / "papers/st_lf.yaml").read_text())
    table = next(one for one in papers["figures"] if one["name"] == "Table I")
    printed = {one["what"]: one["paper"] for one in table["values"]}
    figure = Figure(figsize=(10, 5), layout="constrained")
    for panel, size in zip(figure.subplots(2, 1, sharey=True), ("as_published", "as_printed"), strict=True):
        numbers = pd.read_csv(ROOT / f"docs/results/st-lf-table1-{size.replace('_', '-')}.csv")
        accuracy = numbers.groupby(["method", "setting"])["accuracy"]
        rows = ("st_lf", *RIVALS[number])
        for place, row in enumerate(rows):
            at = np.arange(len(SETS)) + (place - 2) * 0.16
            mean, spread = accuracy.mean()[row][list(SETS)], accuracy.std()[row][list(SETS)]
            panel.bar(at, mean, 0.16, yerr=spread, label=row, error_kw={"elinewidth": 0.8, "ecolor": "0.35"})
            there = [printed[f"accuracy of targets, {name}, {row}"] for name in SETS]
            panel.hlines(there, at - 0.08, at + 0.08, color="black", linewidth=1.6)
        panel.set_xticks(range(len(SETS)), SETS)
        panel.set_ylim(0, 1)
        panel.set_ylabel(f"accuracy of targets,\n{size}")
        panel.tick_params(axis="x", length=0)
    figure.axes[0].legend(frameon=False, ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1))
    return figure


def main() -> None:
    """Draw them, and say what they show."""
    torch.set_num_threads(1)
    if sys.argv[1:] == ["saved"]:
        saved().to_csv(ROOT / "docs" / "results" / "st-lf-fig6-p-alone.csv", index=False)
        return
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/pictures")
    folder.mkdir(parents=True, exist_ok=True)
    for number, draw in ((4, figure_4), (5, figure_5), (6, figure_6)):
        (folder / f"stlf-fig{number}.png").write_bytes(png(draw()))
    (folder / "stlf-fig6-published.png").write_bytes(png(figure_6_on_data()))
    for number in RIVALS:
        (folder / f"stlf-fig{number}.png").write_bytes(png(figure_of_rivals(number)))


if __name__ == "__main__":
    main()
