"""Figures of class counts, and of accuracy: final, over rounds, along a grid, and of each device."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from fedcore.config.studies import value_word
from fedcore.core.metrics import ACCURACY, Metric, recorded
from fedcore.report.figures.drawing import (
    BLUE,
    FEW_CELLS,
    GREY,
    MARKERS,
    bare,
    grid,
    labels,
    legend,
    method_styles,
    name_cells,
    percent,
    plain,
    shade,
    show,
    write_cells,
)
from fedcore.results.outcomes import Outcomes
from fedcore.results.summary import SPLITS, bounds, last_round

EVEN = 1e6
"""An alpha from which on the classes' shares on devices differ by less than a thousandth."""

MANY = 256
"""Most devices that a figure shows one by one: Matplotlib draws at most some 2,000 side by side, and takes seconds."""


def class_counts(counts: pd.DataFrame) -> Figure:
    """Draw the training examples of every device and class (CODE, Fig. 5), with device sizes above.

    counts: from :func:`fedcore.partition.tables.counts`. A disc's area is the number of examples; colour has no
    meaning. Examples without a label have no class: they are the grey part of a device's bar. Above MANY devices see
    `class_shares`.
    """
    table = counts.drop(columns=["n_train", "n_val", "n_test", "n_unlabelled"], errors="ignore")
    devices, classes = table.shape
    if devices > MANY:
        return class_shares(table)
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
    discs.set_xticks(at, labels(table.index), rotation=90)
    discs.set_yticks(np.arange(classes), labels(table.columns))
    discs.set(xlim=(-0.6, devices - 0.4), ylim=(classes - 0.4, -0.6), ylabel="class")
    discs.grid(color="0.92", linewidth=0.8)
    discs.set_axisbelow(True)
    for value in sorted({max(largest // 10, 1), max(largest // 2, 1), largest}):
        discs.scatter([], [], s=value * area, color=BLUE, linewidths=0, label=f"{value:,}")
    discs.legend(
        title="training\nexamples",
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        frameon=False,
        labelspacing=7 * cell - 0.6,  # line spacing of the largest disc's width
        handletextpad=1.4,
    )
    return figure


def class_shares(table: pd.DataFrame) -> Figure:
    """Draw each class's share of the training examples of very many devices, with device sizes above.

    table: labelled training examples by device and class. Devices stand by their commonest class, then by its share.
    """
    examples = table.to_numpy(float)
    sizes = examples.sum(axis=1)
    shares = examples / np.maximum(sizes, 1)[:, None]
    order = np.lexsort((-shares.max(axis=1), shares.argmax(axis=1)))
    figure = Figure(figsize=(9, 2.4 + max(0.26 * table.shape[1], 1.2)), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[1.0, max(0.26 * table.shape[1], 1.2)])
    above.fill_between(np.arange(len(order)), sizes[order], step="mid", color=BLUE, linewidth=0)
    above.set(ylim=0, ylabel="examples")
    above.spines[["top", "right"]].set_visible(False)
    show(figure, below, shares[order].T, "share of\nexamples", FuncFormatter(percent))
    below.set_aspect("auto")
    below.set_yticks(np.arange(table.shape[1]), labels(table.columns))
    below.set(xlabel=f"{len(order):,} devices, by their commonest class", ylabel="class")
    return figure


def comparison(summary: pd.DataFrame) -> Figure:
    """Draw the accuracy of every method of one setting on devices' test data and on the shared test set.

    summary: the rows of one setting from `fedcore.results.summary.summarise`, drawn in their order. Controls are grey
    and hollow, below a line.
    """
    control = summary["control"].to_numpy(bool)
    metric = recorded(summary["metric"].iloc[0])
    at = np.arange(len(summary)) + 0.9 * control
    splits = [split for split in SPLITS if summary[f"{split}_mean"].notna().any()] or list(SPLITS)
    figure = Figure(figsize=(1.6 + 3.8 * len(splits), 1.9 + 0.34 * float(at.max() + 1.4)))
    figure.set_layout_engine("constrained", w_pad=0.12)
    panels = figure.subplots(1, len(splits), sharex=True, sharey=True, squeeze=False)[0]
    for panel, split in zip(panels, splits, strict=True):
        bare(panel, SPLITS[split])
        table = summary[[f"{split}_{part}" for part in ("mean", "margin", "worst")]]
        rows = table.astype(float).to_numpy()
        for y, (mean, margin, worst), hollow in zip(at, rows, control, strict=True):
            if np.isnan(mean):
                continue
            colour = GREY if hollow else BLUE
            panel.hlines(y, worst, mean, color=colour, linewidth=1.2)
            panel.plot(worst, y, "|", color=colour, markersize=9, markeredgewidth=1.8)
            half = np.nan_to_num(margin)
            panel.hlines(
                y, *np.clip([mean - half, mean + half], *bounds(metric)), color=colour, linewidth=7, alpha=0.35
            )
            panel.plot(mean, y, "o", color=colour, markersize=8, markerfacecolor="white" if hollow else colour)
            panel.annotate(
                metric.value(mean), (1.02, y), xycoords=("axes fraction", "data"), verticalalignment="center",
                color=GREY if hollow else "black",
            )  # fmt: skip
        panel.set_xlabel(metric.words)
        panel.xaxis.set_major_formatter(_formatter(metric))
        panel.tick_params(axis="y", length=0)
        panel.grid(axis="y", visible=False)
        panel.set_ylim(at.max() + 0.7, -0.7)
        if control.any() and not control.all():
            panel.axhline(at[control].min() - 0.95, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
    first = panels[0]
    first.set_yticks(at, labels(summary["method"]))
    if control.any():
        first.annotate(
            "controls", (-0.02, at[control].min() - 0.6), xycoords=("axes fraction", "data"),
            horizontalalignment="right", fontstyle="italic", fontsize=8, color=GREY,
        )  # fmt: skip
    band = Line2D([], [], color=BLUE, linewidth=7, alpha=0.35), Line2D([], [], color=BLUE, marker="o", markersize=7)
    tick = Line2D([], [], color=BLUE, marker="|", markersize=9, markeredgewidth=1.8, linestyle="")
    handles: list[Any] = [band, tick]
    texts = ["mean ± 95 %", "worst device"]
    figure.legend(handles, texts, loc="outside lower left", ncols=2, frameon=False, fontsize=9)
    return figure


def curves(course: pd.DataFrame, metric: Metric = ACCURACY) -> Figure:
    """Draw accuracy after every evaluated round: mean over devices and seeds, a band of its 95 % interval over seeds.

    course: rows from `fedcore.results.summary.curves`. One setting: a panel for each split with values. Several
    settings: a panel for each, on devices' test data if every setting has them, else on the shared test set. A method
    with a single evaluated round continues as a dotted horizontal line, for comparison.
    """
    course = course[course["metric"] == metric.column]
    if course.empty:  # such as the recall of a class that no device tests
        figure, (panel,) = grid(1, 1, (1.6, 0.6), (3.6, 2.8))
        panel.set_axis_off()
        figure.supxlabel(f"no {metric.words} in any round", fontsize=10)
        return figure
    splits = [split for split in SPLITS if (course["split"] == split).any()] or list(SPLITS)
    names = list(dict.fromkeys(course["setting"]))
    own = course[course["split"] == "test"]["setting"].nunique() == len(names)
    pairs = [(name, "test" if own else "shared") for name in names]
    if len(names) == 1:
        pairs = [(names[0], split) for split in splits]
    last = course[course["split"] == pairs[0][1]].sort_values("step").groupby("method")["mean"].last()
    styles = method_styles(last.sort_values(ascending=False, kind="stable").index)
    figure, panels = grid(len(pairs), 3, (1.6, 0.6), (3.6, 2.8), shared=True)
    for panel, (name, split) in zip(panels, pairs, strict=True):
        here = course[(course["setting"] == name) & (course["split"] == split)]
        for method, line in here.groupby("method"):
            step, mean, margin = line.sort_values("step")[["step", "mean", "margin"]].to_numpy(float).T
            style = styles[str(method)] | {"markersize": 4, "markevery": max(len(step) // 8, 1)}
            panel.plot(step, mean, **style)
            if len(step) > 1:
                ends = np.clip([mean - margin, mean + margin], *bounds(metric))
                panel.fill_between(step, *ends, color=style["color"], alpha=0.15, linewidth=0)
            else:
                panel.hlines(mean, step, course["step"].max(), color=style["color"], linewidth=1, linestyle=":")
        panel.set_xlim(0.5, course["step"].max() + 0.5)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        panel.yaxis.set_major_formatter(_formatter(metric))
        bare(panel, SPLITS[split] if len(names) == 1 else plain(name))
    figure.supxlabel("round", fontsize=10)
    figure.supylabel(metric.words if len(names) == 1 else f"{metric.words} on {SPLITS[pairs[0][1]]} data", fontsize=10)
    legend(figure, styles)
    return figure


def calibration(outcomes: Outcomes) -> Figure:
    """Draw the share of predictions that is right against their confidence, a disc for each bin; dashed: calibrated.

    A disc's area is the bin's share of the examples.
    """
    figure, (panel,) = grid(1, 1, (0, 0), (3.4, 3.2))
    confidence, right, share = outcomes.curve.T
    panel.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="--")
    panel.plot(confidence, right, color=BLUE, linewidth=1)
    panel.scatter(confidence, right, s=20 + 300 * share, color=BLUE, linewidths=0)
    panel.set(xlim=(0, 1.03), ylim=(0, 1.03), xlabel="confidence", ylabel="right")
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter(FuncFormatter(percent))
    bare(panel)
    return figure


def accuracy_along(summary: pd.DataFrame, points: Mapping[str, Mapping[str, Any]], key: str) -> Figure:
    """Draw accuracy along one key of a study's grid, a panel for each combination of the others: CODE, Figs. 8 and 9.

    summary: a study's rows. points: setting -> its point in the grid. The accuracy is on the shared test set if there
    is one. Bars are 95 % intervals over seeds; controls are hollow. Numbers that span more than six powers of
    ten, as alpha does up to an even partition, stand side by side, and so do 0 and numbers that span more than two.
    """
    split = "shared" if summary["shared_mean"].notna().all() else "test"
    metric = recorded(summary["metric"].iloc[0])
    point_of = {
        name: {**point, key: tuple(point[key]) if isinstance(point[key], list) else point[key]}
        for name, point in points.items()
        if key in point and (summary["setting"] == name).any()
    }

    def title(point: Mapping[str, Any]) -> str:
        others = {name: value for name, value in point.items() if name != key}
        return ", ".join(f"{name.rpartition('.')[2]} = {_value_name(name, value)}" for name, value in others.items())

    title_of = {name: title(point) for name, point in point_of.items()}
    panels = list(dict.fromkeys(title_of.values()))
    figure, axes = grid(len(panels), 3, (1.8, 0.6), (3.2, 2.7), shared=True)
    values = list(dict.fromkeys(point[key] for point in point_of.values()))
    if numbers := all(isinstance(value, int | float) for value in values):
        values = sorted(values)
        least = min((value for value in values if value > 0), default=values[-1])
        numbers = values[-1] <= (1e6 if values[0] > 0 else 1e2) * least
    styles = method_styles(summary["method"], summary["control"])
    for panel, word in zip(axes, panels, strict=True):
        rows = summary[summary["setting"].isin([name for name in point_of if title_of[name] == word])]
        for method, line in rows.groupby("method", sort=False):
            x = [point_of[name][key] if numbers else values.index(point_of[name][key]) for name in line["setting"]]
            line = line.assign(x=x).sort_values("x")
            mean, half = line[f"{split}_mean"], line[f"{split}_margin"].fillna(0.0)
            ends = np.clip([mean - half, mean + half], *bounds(metric))
            panel.errorbar(line["x"], mean, np.abs(ends - [mean]), elinewidth=1.2, **styles[str(method)])
        panel.yaxis.set_major_formatter(_formatter(metric))
        bare(panel, word)
    first = axes[0]
    if numbers and min(values) > 0 and max(values) >= 8 * min(values):
        first.set_xscale("log")
        first.xaxis.set_minor_locator(NullLocator())
    first.set_xticks(values if numbers else range(len(values)), [_value_name(key, value) for value in values])
    figure.supxlabel(key.rpartition(".")[2], fontsize=10)
    figure.supylabel(f"{metric.words} on {SPLITS[split]} data", fontsize=10)
    legend(figure, styles)
    return figure


def _value_name(key: str, value: Any) -> str:
    """Return the name of a setting's value; an alpha whose partition no device can tell from an even one is even."""
    return "even" if key == "federation.alpha" and value >= EVEN else value_word(value)


def per_device(table: pd.DataFrame, metric: Metric = ACCURACY, seed: int | None = None, split: str = "test") -> Figure:
    """Draw the accuracy of every device under every method of one setting after the last round, best method first.

    table: tidy rows of one setting. seed: the seed to draw, as partitions differ between seeds; None: the smallest.
    Above MANY devices see `device_shares`.
    """
    last = last_round(table)
    seed = int(last["seed"].min()) if seed is None else seed
    wanted = (last["metric"] == metric.column) & (last["split"] == split) & (last["seed"] == seed)
    cells = last[wanted].pivot_table(index="method", columns="device", values="value", dropna=False, sort=True)
    cells = cells.loc[cells.mean(axis=1).sort_values(ascending=metric.less, kind="stable").index]
    values = cells.to_numpy(float)
    methods, devices = values.shape
    title = f"{SPLITS.get(split, split)}, seed {seed}"
    if devices > MANY:
        return device_shares(cells, title, metric)
    cell = float(np.clip(9 / devices, 0.28, 0.42))  # inches
    left, below = (0.3 + 0.09 * max(map(len, labels(names))) for names in (cells.index, cells.columns))
    wide, high = cell * devices, 0.34 * methods + 0.2  # of the panel, in inches: a layout engine takes most of the time
    width, height = left + wide + (1.2 if methods > 1 else 0.2), below + high + 0.4
    figure = Figure(figsize=(width, height))
    panel = figure.add_axes((left / width, below / height, wide / width, high / height))
    image = shade(panel, values)
    if methods > 1:
        bar = figure.add_axes(((left + wide + 0.2) / width, below / height, 0.1 / width, high / height))
        figure.colorbar(image, bar, label=metric.words, format=FuncFormatter(_formatter(metric)))
    panel.set_aspect("auto")
    name_cells(panel, cells.index, cells.columns)
    panel.tick_params(axis="x", rotation=90)
    panel.set_title(f"{title}{', in %' * (metric.per == 100)}", loc="left", fontsize=10)
    write_cells(panel, values, lambda value: f"{100 * value:.0f}" if metric.per == 100 else f"{metric.per * value:.2g}")
    return figure


def device_shares(cells: pd.DataFrame, title: str, metric: Metric = ACCURACY) -> Figure:
    """Draw, for every method, the share of very many devices whose value is at most so high.

    cells: accuracy by method and device, best method first.
    """
    figure, (panel,) = grid(1, 1, (0, 0), (6.2, 3.6))
    styles = {name: {**style, "marker": ""} for name, style in method_styles(cells.index).items()}
    for name, values in cells.iterrows():
        ordered = np.sort(values.dropna().to_numpy(float))
        count = len(ordered)
        end = max(1.0, float(np.nanmax(cells.to_numpy(float), initial=1.0)))
        panel.step([*ordered, end], [*np.arange(1, count + 1) / max(count, 1), 1], where="post", **styles[str(name)])
    panel.xaxis.set_major_formatter(_formatter(metric))
    panel.yaxis.set_major_formatter(percent)
    panel.set(xlabel=f"{metric.words} of a device, at most", ylabel=f"share of {cells.shape[1]:,} devices")
    bare(panel, title)
    legend(figure, styles)
    return figure


def _formatter(metric: Metric) -> Any:
    """Return how an axis writes a metric's values."""
    return percent if metric.per == 100 else lambda value, _=None: f"{metric.per * value:.3g}"


def similarity(cosine: pd.DataFrame, groups: Mapping[str, str]) -> Figure:
    """Draw the cosine similarity of the devices' data (FedASA, Fig. 1), with the values for at most 16 devices.

    cosine: (C, C) with the devices' names. groups: device -> group; devices are sorted by group, with lines between.
    """
    order = sorted(cosine.index, key=lambda name: (groups.get(name, "~"), name))
    values = cosine.loc[order, order].to_numpy(float)
    cell = float(np.clip(9 / len(order), 0.22, 0.46))  # inches
    figure, (panel,) = grid(1, 1, (0, 0), (2.4 + cell * len(order), 1.0 + cell * len(order)))
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
    figure, panels = grid(len(plane), 4, (1.7, 0.3), (2.7, 2.75))
    groups = sorted({group for points in plane.values() for group in points["group"].unique()})
    colours = [colormaps["tab10" if len(classes) <= 10 else "tab20"](k % 20) for k in range(len(classes))]
    for panel, (method, points) in zip(panels, plane.items(), strict=True):
        for (label, group), some in points.groupby(["label", "group"]):
            marker = MARKERS[groups.index(str(group)) % len(MARKERS)]
            panel.scatter(some["x"], some["y"], s=11, color=colours[int(str(label))], marker=marker, linewidths=0)
        panel.set_title(plain(method), loc="left", fontsize=10)
        panel.set(xticks=[], yticks=[])
        panel.spines[:].set_color("0.85")
    dots = [Line2D([], [], color=colour, marker="o", linestyle="") for colour in colours]
    marks = [Line2D([], [], color=GREY, marker=marker, linestyle="") for marker in MARKERS[: len(groups)]]
    figure.legend(
        dots + (marks if len(groups) > 1 else []), labels([*classes, *(groups if len(groups) > 1 else [])]),
        loc="outside right center", frameon=False, fontsize=8,
    )  # fmt: skip
    return figure
