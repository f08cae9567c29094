"""Pictures, as matplotlib figures that own no global state: the caller saves them."""

from __future__ import annotations

import io
import itertools
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import Formatter, FuncFormatter, MaxNLocator, NullLocator

from fedcore.summary import SPLITS, last_round, readable, standings, verdict

Array: TypeAlias = npt.NDArray[np.float64]

BLUE = "#0072b2"  # of Okabe and Ito's palette, told apart by everyone


def who_holds_what(counts: pd.DataFrame) -> Figure:
    """Draw the training examples of every device and class (CODE, Fig. 5), device sizes above.

    counts: as :func:`fedcore.partition.counts` returns it. A disc's area is the number of examples, so that colour
    carries nothing. Examples without a label have no class: they are the grey part of a device's bar.
    """
    table = counts.drop(columns=["n_train", "n_val", "n_test", "n_unlabelled"], errors="ignore")
    devices, classes = table.shape
    cell = float(np.clip(9 / devices, 0.26, 0.5))  # inches
    wide, high = cell * devices, max(cell * classes, 1.8)
    largest = max(int(table.to_numpy().max()), 1)
    area = (72 * cell * 0.92) ** 2 / largest  # points^2 for one example

    figure = Figure(figsize=(wide + 2.2, high + 2.0), layout="constrained")
    sizes, discs = figure.subplots(2, 1, sharex=True, height_ratios=[1.0, high])
    at = np.arange(devices)
    labelled = table.sum(axis=1)
    sizes.bar(at, labelled, width=0.7, color=BLUE)
    if "n_unlabelled" in counts:
        sizes.bar(at, counts["n_unlabelled"], bottom=labelled, width=0.7, color="0.75", label="without\nlabel")
        sizes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, handlelength=0.9)
    sizes.set_ylabel("examples")
    sizes.spines[["top", "right"]].set_visible(False)
    sizes.tick_params(axis="x", length=0)

    device, label = np.nonzero(table.to_numpy())
    discs.scatter(device, label, s=table.to_numpy()[device, label] * area, color=BLUE, linewidths=0, zorder=2)
    discs.set_xticks(at, [str(name) for name in table.index], rotation=90)
    discs.set_yticks(np.arange(classes), [str(name) for name in table.columns])
    discs.set_xlim(-0.6, devices - 0.4)
    discs.set_ylim(classes - 0.4, -0.6)
    discs.set_ylabel("class")
    discs.grid(color="0.92", linewidth=0.8)
    discs.set_axisbelow(True)
    for value in sorted({max(largest // 10, 1), max(largest // 2, 1), largest}):
        discs.scatter([], [], s=value * area, color=BLUE, linewidths=0, label=f"{value:,}")
    discs.legend(
        title="training\nexamples",
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        frameon=False,
        labelspacing=7 * cell - 0.6,  # lines as far apart as the largest disc is wide
        handletextpad=1.4,
    )
    return figure


COLOURS = (BLUE, "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")  # of the same palette
MARKERS = "osD^vPX"
LINES = ("-", "--", ":")
MAP = "viridis"  # even steps of lightness, for every kind of sight
QUIET = "#6f8fa6"
GREY = "0.45"
CHOSEN = "#d55e00"
FEW_CELLS = 16
"""Rows of a matrix up to which its values are written into it."""


FEW_TABLES = 6
"""Tables of soft targets of one method that are drawn."""


def comparison(summary: pd.DataFrame) -> Figure:
    """Draw how well every method of one setting serves the devices: own test data beside the shared test set.

    summary: the rows of one setting as :func:`fedcore.summary.summarise` returns them, drawn in their order. The best
    (by rank) are blue and bold, controls grey and hollow, below a line.
    """
    control = summary["control"].to_numpy(bool)
    at = np.arange(len(summary)) + 0.9 * control
    figure, panels = _panels(summary, 3.8, 1.9 + 0.34 * float(at.max() + 1.4), sharey=True)
    for panel, split in panels.items():
        table = summary[[f"{split}_{part}" for part in ("mean", "std_seeds", "worst", "rank")]]
        rows = table.astype(float).to_numpy()
        for y, (mean, std, worst, rank), hollow, word in zip(at, rows, control, standings(summary, split), strict=True):
            if np.isnan(mean):
                continue
            colour = GREY if hollow else BLUE if rank == 1 else QUIET
            panel.hlines(y, worst, mean, color=colour, linewidth=1.2)
            panel.plot(worst, y, "|", color=colour, markersize=9, markeredgewidth=1.8)
            panel.hlines(y, mean - np.nan_to_num(std), mean + np.nan_to_num(std), color=colour, linewidth=7, alpha=0.35)
            panel.plot(mean, y, "o", color=colour, markersize=8, markerfacecolor="white" if hollow else colour)
            panel.annotate(
                f"{mean:.1%}   {word.removeprefix('control').strip()}",
                (1.02, y),
                xycoords=("axes fraction", "data"),
                verticalalignment="center",
                color=GREY if hollow else "black",
                fontweight="bold" if rank == 1 else "normal",
            )
        panel.set_xlabel("accuracy")
        panel.xaxis.set_major_formatter(_percent)
        panel.tick_params(axis="y", length=0)
        panel.grid(axis="y", visible=False)
        panel.set_ylim(at.max() + 0.7, -0.7)
        if control.any() and not control.all():
            panel.axhline(at[control].min() - 0.95, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
    first = next(iter(panels))
    first.set_yticks(at, [_plain(name) for name in summary["method"]])
    if control.any():
        first.annotate(
            "controls",
            (-0.02, at[control].min() - 0.6),
            xycoords=("axes fraction", "data"),
            horizontalalignment="right",
            fontstyle="italic",
            fontsize=8,
            color=GREY,
        )
    band = Line2D([], [], color=QUIET, linewidth=7, alpha=0.35), Line2D([], [], color=QUIET, marker="o", markersize=7)
    tick = Line2D([], [], color=QUIET, marker="|", markersize=9, markeredgewidth=1.8, linestyle="")
    handles: list[Any] = [band, tick]
    words = ["mean ± standard deviation over seeds", "worst device"]
    figure.legend(handles, words, loc="outside lower left", ncols=2, frameon=False, fontsize=9)
    figure.suptitle(
        "\n".join(textwrap.fill(_plain(part), 56 * len(panels)) for part in verdict(summary)),
        x=0.01,
        horizontalalignment="left",
        fontsize=10.5,
        linespacing=1.35,
    )
    return figure


def accuracy_by_traffic(summary: pd.DataFrame) -> Figure:
    """Draw the accuracy of every method of one setting over the bytes that a device sends and receives (mean).

    The axis is logarithmic above its first power of ten and linear below it, so that methods that send nothing stand
    at 0. Controls are hollow.
    """
    sent = ((summary["bytes_up"] + summary["bytes_down"]) / summary["n_devices"]).fillna(0.0).to_numpy(float)
    low = 10 ** np.floor(np.log10(sent[sent > 0].min(initial=np.inf))) if sent.any() else 1.0
    figure, panels = _panels(summary, 3.6, 3.4)
    styles = _styles(summary["method"], summary["control"])
    styles = {method: style | {"linestyle": ""} for method, style in styles.items()}
    for panel, split in panels.items():
        for x, (_, row) in zip(sent, summary.iterrows(), strict=True):
            mean, std = float(row[f"{split}_mean"]), float(np.nan_to_num(row[f"{split}_std_seeds"]))
            panel.errorbar(x, mean, std, elinewidth=1.2, **styles[row["method"]])
        panel.set_xscale("symlog", linthresh=low)
        panel.set_xlim(0.8 * low if sent.all() else -0.25 * low, 10 ** np.ceil(np.log10(max(sent.max() * 1.2, low))))
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: readable(value)))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_major_formatter(_percent)
        panel.set_xlabel("bytes up and down per device")
    next(iter(panels)).set_ylabel("accuracy")
    _legend(figure, styles)
    return figure


def curves(course: pd.DataFrame) -> Figure:
    """Draw accuracy after every evaluated round: mean over devices and seeds, a band of one spread over seeds.

    course: rows as :func:`fedcore.summary.curves` returns them. Of one setting: a panel for each split that has values;
    of several: a panel for each setting, on own test data where every setting has them. A method with a single
    evaluated round is drawn as a level line from there on, to compare with.
    """
    course = course[course["metric"] == "accuracy"]
    splits = [split for split in SPLITS if (course["split"] == split).any()] or list(SPLITS)
    names = list(dict.fromkeys(course["setting"]))
    own = course[course["split"] == "test"]["setting"].nunique() == len(names)
    places = [(name, "test" if own else "shared") for name in names]
    if len(names) == 1:
        places = [(names[0], split) for split in splits]
    last = course[course["split"] == places[0][1]].sort_values("step").groupby("method")["mean"].last()
    styles = _styles(last.sort_values(ascending=False, kind="stable").index)
    columns = min(len(places), 3)
    lines = -(-len(places) // columns)
    figure = Figure(figsize=(1.6 + 3.6 * columns, 0.6 + 2.8 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for panel, (name, split) in zip(panels, places, strict=False):
        here = course[(course["setting"] == name) & (course["split"] == split)]
        for method, line in here.groupby("method"):
            step, mean, std = line.sort_values("step")[["step", "mean", "std"]].to_numpy(float).T
            style = styles[str(method)] | {"markersize": 4, "markevery": max(len(step) // 8, 1)}
            panel.plot(step, mean, **style)
            if len(step) > 1:
                panel.fill_between(step, mean - std, mean + std, color=style["color"], alpha=0.15, linewidth=0)
            else:
                panel.hlines(mean, step, course["step"].max(), color=style["color"], linewidth=1, linestyle=":")
        panel.set_title(SPLITS[split] if len(names) == 1 else _plain(name), loc="left", fontsize=10)
        panel.set_xlim(0.5, course["step"].max() + 0.5)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        panel.yaxis.set_major_formatter(_percent)
        _bare(panel)
    for panel in panels[len(places) :]:
        panel.set_axis_off()
    figure.supxlabel("round", fontsize=10)
    figure.supylabel("accuracy" if len(names) == 1 else f"accuracy on {SPLITS[places[0][1]]} data", fontsize=10)
    _legend(figure, styles)
    return figure


def along(summary: pd.DataFrame, points: Mapping[str, Mapping[str, Any]], key: str) -> Figure:
    """Draw accuracy along one key of a study's grid, a panel for each combination of the others: CODE, Figs. 8 and 9.

    summary: a study's rows. points: setting -> its point in the grid. Of the shared test set where there is one.
    Bars are one standard deviation over seeds; controls are hollow.
    """
    split = "shared" if summary["shared_mean"].notna().all() else "test"
    place = {
        name: {**point, key: tuple(point[key]) if isinstance(point[key], list) else point[key]}
        for name, point in points.items()
        if key in point and (summary["setting"] == name).any()
    }
    words = {
        name: ", ".join(
            f"{other.rpartition('.')[2]} = {_short(value)}" for other, value in point.items() if other != key
        )
        for name, point in place.items()
    }
    panels = list(dict.fromkeys(words.values()))
    columns = min(len(panels), 3)
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(1.8 + 3.2 * columns, 0.6 + 2.7 * lines), layout="constrained")
    axes = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).ravel()
    values = list(dict.fromkeys(point[key] for point in place.values()))
    numbers = all(isinstance(value, int | float) for value in values)
    styles = _styles(summary["method"], summary["control"])
    for panel, word in zip(axes, panels, strict=False):
        rows = summary[summary["setting"].isin([name for name in place if words[name] == word])]
        for method, line in rows.groupby("method", sort=False):
            x = [place[name][key] if numbers else values.index(place[name][key]) for name in line["setting"]]
            line = line.assign(x=x).sort_values("x")
            std = line[f"{split}_std_seeds"].fillna(0.0)
            panel.errorbar(line["x"], line[f"{split}_mean"], std, elinewidth=1.2, **styles[str(method)])
        panel.set_title(word, loc="left", fontsize=10)
        panel.yaxis.set_major_formatter(_percent)
        _bare(panel)
    for panel in axes[len(panels) :]:
        panel.set_axis_off()
    first = axes[0]
    if numbers and min(values) > 0 and max(values) >= 8 * min(values):
        first.set_xscale("log")
        first.xaxis.set_minor_locator(NullLocator())
    first.set_xticks(values if numbers else range(len(values)), [_short(value) for value in values])
    figure.supxlabel(key.rpartition(".")[2], fontsize=10)
    figure.supylabel(f"accuracy on {SPLITS[split]} data", fontsize=10)
    _legend(figure, styles)
    return figure


def _short(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "+".join(map(_short, value))
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def per_device(table: pd.DataFrame, seed: int | None = None, split: str = "test") -> Figure:
    """Draw the accuracy of every device under every method of one setting after the last round, best method first.

    table: tidy rows of one setting. seed: None: the smallest. One seed only, as who holds what differs between seeds.
    """
    last = last_round(table)
    seed = int(last["seed"].min()) if seed is None else seed
    wanted = (last["metric"] == "accuracy") & (last["split"] == split) & (last["seed"] == seed)
    cells = last[wanted].pivot_table(index="method", columns="device", values="value", dropna=False, sort=True)
    cells = cells.loc[cells.mean(axis=1).sort_values(ascending=False, kind="stable").index]
    values = cells.to_numpy(float)
    methods, devices = values.shape
    cell = float(np.clip(9 / devices, 0.28, 0.42))  # inches
    figure = Figure(figsize=(2.6 + cell * devices, 1.5 + 0.34 * methods), layout="constrained")
    panel = figure.subplots()
    _image(figure, panel, values, "accuracy", FuncFormatter(_percent))
    panel.set_aspect("auto")
    _named(panel, cells.index, cells.columns)
    panel.tick_params(axis="x", rotation=90)
    panel.set_title(f"{SPLITS.get(split, split)}, seed {seed}, in %", loc="left", fontsize=10)
    _written(panel, values, lambda value: f"{100 * value:.0f}")
    return figure


def heat_map(matrix: npt.ArrayLike, title: str) -> Figure:
    """Draw a matrix, a cell a number, with its scale."""
    figure = Figure(figsize=(5.2, 4.4), layout="constrained")
    panel = figure.subplots()
    _image(figure, panel, np.atleast_2d(np.asarray(matrix, float)), "", None)
    panel.set_title(_plain(title), loc="left", fontsize=10)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.yaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def similarity(cosine: pd.DataFrame, groups: Mapping[str, str]) -> Figure:
    """Draw the cosine between the data of each two devices (FedASA, Fig. 1), with its value where 16 or fewer are.

    cosine: (C, C) with the devices' names. groups: device -> group; those of one group stand together, between lines.
    """
    order = sorted(cosine.index, key=lambda name: (groups.get(name, "~"), name))
    values = cosine.loc[order, order].to_numpy(float)
    cell = float(np.clip(9 / len(order), 0.22, 0.46))  # inches
    figure = Figure(figsize=(2.4 + cell * len(order), 1.0 + cell * len(order)), layout="constrained")
    panel = figure.subplots()
    _image(figure, panel, values, "cosine", None)
    _named(panel, order, order)
    panel.tick_params(axis="x", rotation=90)
    if len(order) <= FEW_CELLS:
        _written(panel, values, lambda value: f"{value:.2f}".replace("0.", ".", 1))
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
        _image(figure, panel, values, "distance", None, LogNorm() if wide else None)
        panel.set_aspect("auto")
        _named(panel, devices, range(cells))
        panel.set_title(_plain(method), loc="left", fontsize=10)
        panel.set_xlabel("cell (0: stem)", fontsize=9)
        if len(devices) <= FEW_CELLS:
            _written(panel, np.log(values) if wide else values, lambda value: f"{value:.3g}", values)
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
        panel.set_title(_plain(method), loc="left", fontsize=10)
        panel.set_xticks([])
        panel.set_yticks([])
        panel.spines[:].set_color("0.85")
    for panel in panels[len(plane) :]:
        panel.set_axis_off()
    dots = [Line2D([], [], color=colour, marker="o", linestyle="") for colour in colours]
    marks = [Line2D([], [], color=GREY, marker=marker, linestyle="") for marker in MARKERS[: len(groups)]]
    figure.legend(
        dots + (marks if len(groups) > 1 else []),
        [_plain(name) for name in [*classes, *(groups if len(groups) > 1 else [])]],
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
        first.set_title(_plain(method), loc="left", fontsize=10)
        first.set_ylim(-0.03, 1.03)
        first.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        _bare(first)
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
        panel.set_title(f"{_plain(name)}\n{mass.shape[0]} by {mass.shape[1]}", fontsize=7)
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


def _image(
    figure: Figure, panel: Axes, values: Array, label: str, form: Formatter | None, scale: Normalize | None = None
) -> None:
    """Show a matrix with a scale beside it; cells without a value stay grey."""
    panel.set_facecolor("0.85")
    image = panel.imshow(np.ma.masked_invalid(values), cmap=MAP, norm=scale)
    figure.colorbar(image, ax=panel, label=label, format=form)


def _named(panel: Axes, rows: Iterable[object], columns: Iterable[object]) -> None:
    """Name the rows and columns of a matrix."""
    down, across = [_plain(name) for name in rows], [_plain(name) for name in columns]
    panel.set_yticks(np.arange(len(down)), down)
    panel.set_xticks(np.arange(len(across)), across)


def _written(panel: Axes, light: Array, form: Callable[[float], str], values: Array | None = None) -> None:
    """Write a matrix's values into its cells, in an ink that is seen. light: what the colours stand for."""
    values = light if values is None else values
    known = light[np.isfinite(light)]
    middle = (known.min() + known.max()) / 2 if len(known) else 0.0
    for y, x in zip(*np.nonzero(np.isfinite(values)), strict=True):
        ink = "white" if light[y, x] < middle else "black"
        panel.text(x, y, form(values[y, x]), color=ink, ha="center", va="center", size=7)


def _panels(summary: pd.DataFrame, wide: float, high: float, sharey: bool = False) -> tuple[Figure, dict[Axes, str]]:
    """Return a figure with a panel for each split that has a value."""
    splits = [split for split in SPLITS if summary[f"{split}_mean"].notna().any()] or list(SPLITS)
    figure = Figure(figsize=(1.6 + wide * len(splits), high))
    figure.set_layout_engine("constrained", w_pad=0.12)
    panels = figure.subplots(1, len(splits), sharex=True, sharey=sharey, squeeze=False)[0]
    for panel, split in zip(panels, splits, strict=True):
        panel.set_title(SPLITS[split], loc="left", fontsize=10)
        _bare(panel)
    return figure, dict(zip(panels, splits, strict=True))


def _bare(panel: Axes) -> None:
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(color="0.92", linewidth=0.8)
    panel.set_axisbelow(True)


def _styles(methods: Iterable[str], hollow: Iterable[bool] | None = None) -> dict[str, dict[str, Any]]:
    """Return how each method is drawn: colour, marker and line, the same in all pictures of the same methods."""
    order = dict.fromkeys(methods, False) if hollow is None else dict(zip(methods, hollow, strict=True))
    where = {method: i for i, method in enumerate(sorted(order))}
    turns = {method: divmod(i, len(COLOURS)) for method, i in where.items()}
    return {
        method: {
            "color": COLOURS[i],
            "marker": MARKERS[(i + lap) % len(MARKERS)],
            "linestyle": LINES[lap % len(LINES)],
            "markersize": 7,
            "markerfacecolor": "white" if order[method] else COLOURS[i],
        }
        for method in order
        for lap, i in [turns[method]]
    }


def _legend(figure: Figure, styles: Mapping[str, Mapping[str, Any]]) -> None:
    handles = [Line2D([], [], **style) for style in styles.values()]
    width, height = figure.get_size_inches()
    columns = -(-len(styles) // int(height / 0.24))  # as many lines as the figure is high
    figure.set_size_inches(width + 1.3 * (columns - 1), height)
    names = [_plain(name) for name in styles]
    figure.legend(handles, names, loc="outside right center", frameon=False, ncols=columns)


def _percent(value: float, _: object = None) -> str:
    return f"{100 * value:.3g}%"


def _plain(text: object) -> str:
    """Return a text that is drawn as it stands: a name may hold dollar signs, which would start a formula."""
    return str(text).replace("$", r"\$")


def png(figure: Figure) -> bytes:
    """Return a figure as the bytes of a PNG file, the same for the same figure."""
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=110, metadata={"Software": None})
    return out.getvalue()


def link_weights(names: Sequence[str], psi: Array, alpha: Array) -> Figure:
    """Draw alpha (N, N) as a heat map, sources as rows and targets as columns (ST-LF, Figs. 5 and 7).

    psi: (N,), 0 for a source. Rows of targets and columns of sources hold nothing and are left out.
    """
    sources, targets = np.flatnonzero(psi == 0).tolist(), np.flatnonzero(psi).tolist()
    figure = Figure(figsize=(1.8 + 0.5 * max(len(targets), 3), 1.2 + 0.4 * len(sources)), layout="constrained")
    panel = figure.subplots()
    weights = alpha[np.ix_(sources, targets)]
    if weights.size:
        image = panel.imshow(weights, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        figure.colorbar(image, ax=panel, label="weight")
        for i, j in zip(*np.nonzero(weights), strict=True):
            shade = "white" if weights[i, j] > 0.6 else "black"
            panel.text(j, i, f"{weights[i, j]:.2f}", ha="center", va="center", fontsize=7, color=shade)
    panel.set_xticks(range(len(targets)), [_plain(names[j]) for j in targets], rotation=90)
    panel.set_yticks(range(len(sources)), [_plain(names[i]) for i in sources])
    panel.set_xlabel("target" if len(targets) else "no target: nothing is sent")
    panel.set_ylabel("source")
    panel.tick_params(length=0)
    return figure


def link_graph(names: Sequence[str], psi: Array, alpha: Array) -> Figure:
    """Draw who sends whom: sources left (filled), targets right (hollow), a line as wide as its weight."""
    sources, targets = np.flatnonzero(psi == 0).tolist(), np.flatnonzero(psi).tolist()
    figure = Figure(figsize=(4.5, 0.8 + 0.36 * max(len(sources), len(targets))), layout="constrained")
    panel = figure.subplots()
    high = np.zeros(len(psi))
    for group in (sources, targets):
        high[group] = np.linspace(1, 0, len(group) + 2)[1:-1]
    for i, j in zip(*np.nonzero(alpha), strict=True):
        panel.plot([0, 1], [high[i], high[j]], color="0.6", linewidth=0.5 + 3 * alpha[i, j], zorder=1)
    for at, group, fill, side in ((0, sources, BLUE, "right"), (1, targets, "white", "left")):
        panel.scatter(np.full(len(group), at), high[group], s=60, color=fill, edgecolors=BLUE, zorder=2)
        for device in group:
            panel.text(at - 0.05 + 0.1 * at, high[device], _plain(names[device]), ha=side, va="center", fontsize=8)
    panel.set_xlim(-0.5, 1.5)
    panel.set_ylim(0, 1)
    panel.set_xticks([0, 1], ["sources", "targets"])
    panel.set_yticks([])
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    return figure


def divergences(names: Sequence[str], apart: Array) -> Figure:
    """Draw d_ij in [0, 2], (N, N), how far each two devices' data are apart (ST-LF, Algorithm 1; Fig. 5)."""
    figure = Figure(figsize=(1.8 + 0.4 * len(names), 1.2 + 0.4 * len(names)), layout="constrained")
    panel = figure.subplots()
    values = np.where(np.eye(len(names), dtype=bool), np.nan, apart)
    _image(figure, panel, values, "divergence", None, Normalize(0, 2))
    _written(panel, values, lambda value: f"{value:.2f}")
    _named(panel, names, names)
    panel.tick_params(axis="x", rotation=90, length=0)
    return figure


def descent(traces: Mapping[str, Sequence[float]]) -> Figure:
    """Draw the penalised objective (83) after each iteration of Algorithm 2, a line for each label (ST-LF, Fig. 4)."""
    figure = Figure(figsize=(4.5, 3), layout="constrained")
    panel = figure.subplots()
    for label, trace in traces.items():
        panel.plot(range(1, len(trace) + 1), trace, marker=".", label=_plain(label))
    panel.set_xlabel("iteration")
    panel.set_ylabel("penalised objective")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.grid(alpha=0.3)
    if len(traces) > 1:
        panel.legend(frameon=False, fontsize=8)
    return figure
