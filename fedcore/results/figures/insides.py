"""What methods found on their way: transport plans, alignments, embedded features, soft targets."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from fedcore.results.figures.drawing import (
    COLOURS,
    GREY,
    MAP,
    MARKERS,
    Array,
    bare,
    name_cells,
    plain,
    show,
    write_cells,
)

CHOSEN = "#d55e00"

FEW_CELLS = 16
"""Rows of a matrix up to which its values are written into it."""

FEW_TABLES = 6
"""Tables of soft targets of one method that are drawn."""


def transport(plans: Mapping[str, npt.ArrayLike]) -> Figure:
    """Draw transport plans side by side: which share of each unit's mass (a row) goes where, 0 to 1.

    plans: name -> (n, m), non-negative. Of large plans each drawn cell is the largest of a block, so that a lone match
    (a plan that is nearly a permutation) stays visible.
    """
    columns = min(len(plans), 6)
    lines = -(-len(plans) // columns)
    figure = Figure(figsize=(0.9 + 1.7 * columns, 0.5 + 1.9 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for panel, (name, plan) in zip(panels, plans.items(), strict=False):
        mass = np.asarray(plan, float)
        shares = mass / np.where(mass.sum(1, keepdims=True) > 0, mass.sum(1, keepdims=True), 1.0)
        image = panel.imshow(_coarse(shares, 96), cmap=MAP, vmin=0, vmax=1, interpolation="nearest")
        panel.set_title(f"{plain(name)}\n{mass.shape[0]} by {mass.shape[1]}", fontsize=7)
        panel.set_xticks([])
        panel.set_yticks([])
    for panel in panels[len(plans) :]:
        panel.set_axis_off()
    figure.colorbar(image, ax=panels.tolist(), label="share of a unit's mass", shrink=1 / lines, aspect=16)
    return figure


def _coarse(matrix: Array, most: int) -> Array:
    """Return the largest value of each block, at most so many blocks a side."""
    for axis in (0, 1):
        long = matrix.shape[axis]
        starts = np.linspace(0, long, min(most, long), endpoint=False).astype(int)
        matrix = np.maximum.reduceat(matrix, starts, axis=axis)
    return matrix


def similarity(cosine: pd.DataFrame, groups: Mapping[str, str]) -> Figure:
    """Draw the cosine between the data of each two devices (FedASA, Fig. 1), with its value where 16 or fewer are.

    cosine: (C, C) with the devices' names. groups: device -> group; those of one group stand together, between lines.
    """
    order = sorted(cosine.index, key=lambda name: (groups.get(name, "~"), name))
    values = cosine.loc[order, order].to_numpy(float)
    cell = float(np.clip(9 / len(order), 0.22, 0.46))  # inches
    figure = Figure(figsize=(2.4 + cell * len(order), 1.0 + cell * len(order)), layout="constrained")
    panel = figure.subplots()
    show(figure, panel, values, "cosine", None)
    name_cells(panel, order, order)
    panel.tick_params(axis="x", rotation=90)
    if len(order) <= FEW_CELLS:
        write_cells(panel, values, lambda value: f"{value:.2f}".replace("0.", ".", 1))
    for at, (one, other) in enumerate(itertools.pairwise(order)):
        if groups.get(one) != groups.get(other):
            panel.axhline(at + 0.5, color="white", linewidth=2)
            panel.axvline(at + 0.5, color="white", linewidth=2)
    return figure


def alignment(found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Figure:
    """Draw how far each device's cells are from the server's, a panel for each method; the cell it found is framed.

    found: method -> device -> depth and distance_0, distance_1, ..., as :func:`fedcore.records.alignment` returns it.
    """
    columns = min(len(found), 4)
    lines = -(-len(found) // columns)
    cells = max(int(name.rpartition("_")[2]) for devices in found.values() for one in devices.values()
                for name in one if name != "depth") + 1  # fmt: skip
    high = 0.9 + 0.27 * max(map(len, found.values()))
    figure = Figure(figsize=(0.7 + (1.8 + 0.46 * cells) * columns, high * lines + 0.2), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for panel, (method, devices) in zip(panels, found.items(), strict=False):
        values = np.array([[one.get(f"distance_{m}", np.nan) for m in range(cells)] for one in devices.values()])
        known = values[np.isfinite(values)]
        wide = bool(known.min() > 0) and bool(known.max() > 10 * known.min())
        show(figure, panel, values, "distance", None, LogNorm() if wide else None)
        panel.set_aspect("auto")
        name_cells(panel, devices, range(cells))
        panel.set_title(plain(method), loc="left", fontsize=10)
        panel.set_xlabel("cell (0: stem)", fontsize=9)
        if len(devices) <= FEW_CELLS:
            write_cells(panel, np.log(values) if wide else values, lambda value: f"{value:.3g}", values)
        for y, one in enumerate(devices.values()):
            place = one["depth"] - 0.46, y - 0.44
            panel.add_patch(Rectangle(place, 0.92, 0.88, fill=False, edgecolor=CHOSEN, linewidth=2.2))
    for panel in panels[len(found) :]:
        panel.set_axis_off()
    return figure


def features(plane: Mapping[str, pd.DataFrame], classes: Sequence[str]) -> Figure:
    """Draw embedded examples, a panel for each method: the colour is the class, the marker the group (FedASA, Fig. 13).

    plane: method -> columns x, y, label (class number), group (a name, "" for none).
    """
    columns = min(len(plane), 4)
    lines = -(-len(plane) // columns)
    figure = Figure(figsize=(1.7 + 2.7 * columns, 0.3 + 2.75 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    groups = sorted({group for points in plane.values() for group in points["group"].unique()})
    colours = [colormaps["tab10" if len(classes) <= 10 else "tab20"](k % 20) for k in range(len(classes))]
    for panel, (method, points) in zip(panels, plane.items(), strict=False):
        for (label, group), some in points.groupby(["label", "group"]):
            marker = MARKERS[groups.index(str(group)) % len(MARKERS)]
            panel.scatter(some["x"], some["y"], s=11, color=colours[int(str(label))], marker=marker, linewidths=0)
        panel.set_title(plain(method), loc="left", fontsize=10)
        panel.set_xticks([])
        panel.set_yticks([])
        panel.spines[:].set_color("0.85")
    for panel in panels[len(plane) :]:
        panel.set_axis_off()
    dots = [Line2D([], [], color=colour, marker="o", linestyle="") for colour in colours]
    marks = [Line2D([], [], color=GREY, marker=marker, linestyle="") for marker in MARKERS[: len(groups)]]
    figure.legend(
        dots + (marks if len(groups) > 1 else []),
        [plain(name) for name in [*classes, *(groups if len(groups) > 1 else [])]],
        loc="outside right center",
        frameon=False,
        fontsize=8,
    )
    return figure


def soft_targets(
    tables: Mapping[str, Mapping[int, npt.NDArray[Any]]], courses: Mapping[str, Mapping[str, npt.NDArray[Any]]]
) -> Figure:
    """Draw soft targets as heat maps over rounds, a line of panels for each method; at most FEW_TABLES of its rounds.

    tables: method -> round -> (K, K), probabilities, labels down. courses: method -> number -> (R,); of these diagonal,
    right (drawn as a share of the K labels) and rho stand left of the tables.
    """
    drawn = {method: _spaced(list(rounds), FEW_TABLES) for method, rounds in tables.items()}
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
        first.set_title(plain(method), loc="left", fontsize=10)
        first.set_ylim(-0.03, 1.03)
        first.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        bare(first)
        for panel, number in zip(rest, drawn[method], strict=False):
            image = panel.imshow(rounds[number], cmap=MAP, vmin=0, vmax=1, interpolation="nearest")
            panel.set_title(f"round {number}", fontsize=8)
            panel.set_xticks([])
            panel.set_yticks([])
        for panel in rest[len(drawn[method]) :]:
            panel.set_axis_off()
    panels[-1][0].set_xlabel("round", fontsize=9)
    longest = max(panels[:, 0], key=lambda panel: len(panel.lines))
    figure.legend(*longest.get_legend_handles_labels(), loc="outside lower left", ncols=3, frameon=False, fontsize=9)
    figure.colorbar(image, ax=panels.ravel().tolist(), label="probability", shrink=1 / len(tables), aspect=16)
    return figure


def _spaced(values: list[int], most: int) -> list[int]:
    """Return at most so many values, the first and the last among them."""
    at = np.linspace(0, len(values) - 1, min(most, len(values))).round().astype(int)
    return [values[i] for i in at]
