"""Figures of the similarity of devices' data and of embedded features."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedcore.report.figures.drawing import FEW_CELLS, GREY, MARKERS, labels, name_cells, plain, show, write_cells


def similarity(cosine: pd.DataFrame, groups: Mapping[str, str]) -> Figure:
    """Draw the cosine similarity of the devices' data (FedASA, Fig. 1), with the values for at most 16 devices.

    cosine: (C, C) with the devices' names. groups: device -> group; devices are sorted by group, with lines between.
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
    for at, (first, second) in enumerate(itertools.pairwise(order)):
        if groups.get(first) != groups.get(second):
            panel.axhline(at + 0.5, color="white", linewidth=2)
            panel.axvline(at + 0.5, color="white", linewidth=2)
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
        dots + (marks if len(groups) > 1 else []), labels([*classes, *(groups if len(groups) > 1 else [])]),
        loc="outside right center", frameon=False, fontsize=8,
    )  # fmt: skip
    return figure
