"""Figures of soft targets over rounds."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedcore.methods.dfl.soft_targets import TOPIC
from fedcore.report.figures.drawing import COLOURS, MAP, Drawing, Reports, bare, heat_map, plain
from fedcore.results.reports import over_rounds, series
from fedcore.types.method import Report

CAPTION = (
    "Soft targets over rounds: their labels down, probabilities of labels across. Left: the mean probability of the "
    "own label (diagonal), the share of soft targets that are largest there (right), and the hard labels' share of the "
    "loss (rho)."
)

FEW_TABLES = 6
"""Maximum number of tables drawn for one method."""


def soft_targets(reports: Reports) -> Iterator[Drawing]:
    """Yield one figure of all methods with soft targets."""
    tables = {label: doubling(of) for label, of in reports.items()}
    learnt = {label: by_round for label, by_round in tables.items() if by_round}
    courses = {
        label: {name: np.array(course) for name, course in series(reports[label]).get(TOPIC, {}).items()}
        for label in learnt
    }
    if learnt:
        yield "soft_targets", CAPTION, partial(tables_over_rounds, learnt, courses)


def doubling(reports: Sequence[Report]) -> dict[int, npt.NDArray[Any]]:
    """Return round -> (K, K), soft targets as probabilities: after rounds 1, 2, 4, 8, ... and the last one."""
    tables = over_rounds(reports, "soft_targets")
    return {n: table.numpy() for n, table in tables.items() if n.bit_count() == 1 or n == max(tables)}


def own_class(reports: Reports) -> Iterator[Drawing]:
    """Yield a heat map for each method: the probability that each label's soft target gave that label, by round."""
    for label, of in reports.items():
        if tables := over_rounds(of, "soft_targets"):
            rows = torch.stack([table.diagonal() for table in tables.values()]).numpy()
            caption = f"Probability that the soft targets of {label} gave their own label; rounds down."
            yield f"own_class-{label}", caption, partial(heat_map, rows, "own_class")


def tables_over_rounds(
    tables: Mapping[str, Mapping[int, npt.NDArray[Any]]], courses: Mapping[str, Mapping[str, npt.NDArray[Any]]]
) -> Figure:
    """Draw soft targets as heat maps over rounds, a line of panels for each method; at most FEW_TABLES of its rounds.

    tables: method -> round -> (K, K), probabilities, labels down. courses: method -> number -> (R,); of these diagonal,
    right (drawn as a share of the K labels) and rho stand left of the tables.
    """
    spaced = {of: np.linspace(0, len(each) - 1, min(FEW_TABLES, len(each))) for of, each in tables.items()}
    drawn = {method: [list(tables[method])[i] for i in at.round().astype(int)] for method, at in spaced.items()}
    columns = 1 + max(map(len, drawn.values()))
    figure = Figure(figsize=(1.4 + 1.9 * columns, 0.5 + 2.0 * len(tables)), layout="constrained")
    panels = figure.subplots(len(tables), columns, squeeze=False, width_ratios=[1.6] + [1.0] * (columns - 1))
    for line, (method, rounds) in zip(panels, tables.items(), strict=True):
        first, *rest = line
        classes = len(next(iter(rounds.values())))
        scale = {"diagonal": 1, "right": classes, "rho": 1}
        for colour, (name, whole) in zip(COLOURS, scale.items(), strict=False):
            if name in courses[method]:
                values = courses[method][name] / whole
                first.plot(np.arange(1, len(values) + 1), values, color=colour, label=name)
        first.set_ylim(-0.03, 1.03)
        first.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        bare(first, plain(method))
        for panel, number in zip(rest, drawn[method], strict=False):
            image = panel.imshow(rounds[number], cmap=MAP, vmin=0, vmax=1, interpolation="nearest")
            panel.set_title(f"round {number}", fontsize=8)
            panel.set(xticks=[], yticks=[])
        for panel in rest[len(drawn[method]) :]:
            panel.set_axis_off()
    panels[-1][0].set_xlabel("round", fontsize=9)
    longest = max(panels[:, 0], key=lambda panel: len(panel.lines))
    figure.legend(*longest.get_legend_handles_labels(), loc="outside lower left", ncols=3, frameon=False, fontsize=9)
    figure.colorbar(image, ax=panels.ravel().tolist(), label="probability", shrink=1 / len(tables), aspect=16)
    return figure
