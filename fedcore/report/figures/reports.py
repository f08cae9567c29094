"""Figures of what methods report: transport plans, alignment, soft targets over rounds, and links."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib import colormaps
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from PIL import Image, ImageDraw, ImageFont

from fedcore.methods.dfl.soft_targets import TOPIC
from fedcore.report.figures.drawing import (
    BLUE,
    COLOURS,
    FEW_CELLS,
    MAP,
    Array,
    Drawing,
    Reports,
    bare,
    grid,
    heat_map,
    labels,
    name_cells,
    plain,
    show,
    write_cells,
)
from fedcore.results.reports import devices, matrices, over_rounds, series
from fedcore.types.method import Report

CAPTION = (
    "Soft targets over rounds: their labels down, probabilities of labels across. Left: the mean probability of the "
    "own label (diagonal), the share of soft targets that are largest there (right), and the hard labels' share of the "
    "loss (rho)."
)

FEW_TABLES = 6
"""Maximum number of tables drawn for one method."""


# CODE: transport plans


def transport_plans(reports: Reports) -> Iterator[Drawing]:
    """Yield a figure for each method: the plans of the last fold, which has the largest weight."""
    for label, of in reports.items():
        named = [(*name.rpartition("/"), x) for name, x in matrices(of).items() if name.startswith("plan/")]
        if plans := {layer: plan.numpy() for fold, _, layer, plan in named if fold == named[-1][0]}:
            caption = f"Transport plans of {label}: shares of a unit's mass."
            yield f"transport-{label}", caption, partial(shares_of_mass, plans)


def shares_of_mass(plans: Mapping[str, npt.ArrayLike]) -> Figure:
    """Draw transport plans side by side: the shares, 0 to 1, of each unit's mass (a row) by receiving unit.

    plans: name -> (n, m), non-negative. Of large plans each drawn cell is the largest of a block, so that a lone match
    (a plan that is nearly a permutation) stays visible.
    """
    columns = min(len(plans), 6)
    width, height = 1.7 * columns + 0.9, 2.0 * -(-len(plans) // columns) + 0.1
    figure = Figure(figsize=(width, height))
    sheet = figure.add_axes((0, 0, 1, 1), frameon=False)  # in inches; axes for each plan would take most of the time
    for number, (name, plan) in enumerate(plans.items()):
        mass = np.asarray(plan, float)
        middle, top = 0.85 + 1.7 * (number % columns), 0.5 + 2.0 * (number // columns)
        high, wide = (1.5 * side / max(mass.shape) for side in mass.shape)
        image = sheet.imshow(
            _coarse(_shares(mass), 96), cmap=MAP, vmin=0, vmax=1, interpolation="nearest",
            extent=(middle - wide / 2, middle + wide / 2, top + high, top), aspect="auto",
        )  # fmt: skip
        sheet.add_patch(Rectangle((middle - wide / 2, top), wide, high, fill=False, linewidth=0.8))
        title = f"{plain(name)}\n{mass.shape[0]} by {mass.shape[1]}"
        sheet.text(middle, top - 0.06, title, fontsize=7, ha="center", va="bottom")
    sheet.set(xlim=(0, width), ylim=(height, 0), xticks=[], yticks=[])
    bar = figure.add_axes((1 - 0.75 / width, 1 - 1.95 / height, 0.1 / width, 1.4 / height))
    figure.colorbar(image, cax=bar, label="share of a unit's mass")
    return figure


def heat_image(plan: Array, rows: str, columns: str) -> bytes:
    """Return a plan's shares of mass as a PNG file, rows down, with words along them: fast, as a study has hundreds."""
    colours = colormaps[MAP](_coarse(_shares(plan), 96), bytes=True)
    side, content, font = max(1, 480 // max(colours.shape)), BytesIO(), ImageFont.truetype(findfont("DejaVu Sans"), 14)
    squares = Image.fromarray(colours[..., :3].repeat(side, 0).repeat(side, 1))
    wide, high = (20 + max(n, int(font.getlength(s))) for n, s in zip(squares.size, (columns, rows), strict=True))
    image = Image.new("RGB", (wide, high), "white")
    image.paste(squares, (20, high - 20 - squares.height))
    ImageDraw.Draw(image).text((20, high - 18), columns, "black", font)
    image = image.transpose(Image.Transpose.ROTATE_270)  # what is left is above
    ImageDraw.Draw(image).text((20, 0), rows, "black", font)
    image.transpose(Image.Transpose.ROTATE_90).save(content, "png")
    return content.getvalue()


def _shares(mass: Array) -> Array:
    shares: Array = mass / np.where(mass.sum(1, keepdims=True) > 0, mass.sum(1, keepdims=True), 1.0)
    return shares


def _coarse(matrix: Array, most: int) -> Array:
    """Return the largest value of each block, at most so many blocks a side."""
    for axis in (0, 1):
        long = matrix.shape[axis]
        starts = np.linspace(0, long, min(most, long), endpoint=False).astype(int)
        matrix = np.maximum.reduceat(matrix, starts, axis=axis)
    return matrix


# DFL: soft targets over rounds


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


# FedASA: the depth at which each device shares


def alignment(reports: Reports) -> Iterator[Drawing]:
    """Yield one figure of all methods."""
    depths = {label: devices(of).get("alignment") for label, of in reports.items()}
    aligned = {label: dict(numbers) for label, numbers in depths.items() if numbers}
    if aligned:
        caption = "Distance of each device's cells from the server's auxiliary cell; framed: the chosen one."
        yield "alignment", caption, partial(cell_distances, aligned)


def cell_distances(numbers: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Figure:
    """Draw how far each device's cells are from the server's, a panel for each method; the chosen cell is framed.

    numbers: method -> device -> depth and distance_0, distance_1, ..., see
    :func:`fedcore.methods.fedasa.fedasa.report_distances`.
    """
    cells = max(int(name.rpartition("_")[2]) for of in numbers.values() for names in of.values()
                for name in names if name != "depth") + 1  # fmt: skip
    high = 0.9 + 0.27 * max(map(len, numbers.values()))
    figure, panels = grid(len(numbers), 4, (0.7, 0.2), (1.8 + 0.46 * cells, high))
    for panel, (method, depths) in zip(panels, numbers.items(), strict=True):
        values = np.array([[named.get(f"distance_{m}", np.nan) for m in range(cells)] for named in depths.values()])
        finite = values[np.isfinite(values)]
        wide = bool(finite.min() > 0) and bool(finite.max() > 10 * finite.min())
        show(figure, panel, values, "distance", None, LogNorm() if wide else None)
        panel.set_aspect("auto")
        name_cells(panel, depths, range(cells))
        panel.set_title(plain(method), loc="left", fontsize=10)
        panel.set_xlabel("cell (0: stem)", fontsize=9)
        if len(depths) <= FEW_CELLS:
            write_cells(panel, np.log(values) if wide else values, lambda value: f"{value:.3g}", values)
        for y, named in enumerate(depths.values()):
            corner = named["depth"] - 0.46, y - 0.44
            panel.add_patch(Rectangle(corner, 0.92, 0.88, fill=False, edgecolor=COLOURS[1], linewidth=2.2))
    return figure


# ST-LF: links, divergences and the course of its program


def links(reports: Reports) -> Iterator[Drawing]:
    """Yield each method's links, as a heat map and as a graph; of the first one also divergences and the descent.

    Rivals share the divergences and the program.
    """
    once = {"divergence", "descent"}
    for label, of in reports.items():
        by_name, names = matrices(of), [*devices(of).get("links", {})]
        if not names:
            continue
        psi, alpha = by_name["psi"].numpy(), by_name["alpha"].numpy()
        if "divergence" in once and "divergence" in by_name:
            once.remove("divergence")
            caption = f"How far each two devices' data are apart, d in 0 to 2 ({label})."
            yield f"divergence-{label}", caption, partial(divergences, names, by_name["divergence"].numpy())
        if "descent" in once and "trace" in by_name and len(by_name["trace"]):
            once.remove("descent")
            caption = f"The penalised objective after each iteration of Algorithm 2 ({label})."
            yield f"descent-{label}", caption, partial(descent, {label: by_name["trace"].tolist()})
        caption = f"Weights of {label}: a row for each source, a column for each target."
        yield f"links-{label}", caption, partial(link_weights, names, psi, alpha)
        caption = f"Links of {label}: sources (filled), targets (hollow), lines as wide as their weights."
        yield f"graph-{label}", caption, partial(link_graph, names, psi, alpha)


def energy(reports: Reports) -> Iterator[Drawing]:
    """Yield a heat map for each method: the energy of every link, senders down."""
    for label, of in reports.items():
        if (costs := matrices(of).get("energy")) is not None:
            yield f"energy-{label}", f"Energy of a link ({label}).", partial(heat_map, costs.numpy(), "energy")


def link_weights(names: Sequence[str], psi: Array, alpha: Array) -> Figure:
    """Draw alpha (N, N) as a heat map, sources as rows and targets as columns (ST-LF, Figs. 5 and 7).

    psi: (N,), 0 for a source. Rows of targets and columns of sources hold nothing and are left out.
    """
    sources, targets = np.flatnonzero(psi == 0).tolist(), np.flatnonzero(psi).tolist()
    figure, (panel,) = grid(1, 1, (0, 0), (1.8 + 0.5 * max(len(targets), 3), 1.2 + 0.4 * len(sources)))
    weights = alpha[np.ix_(sources, targets)]
    if weights.size:
        image = panel.imshow(weights, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        figure.colorbar(image, ax=panel, label="weight")
        for i, j in zip(*np.nonzero(weights), strict=True):
            shade = "white" if weights[i, j] > 0.6 else "black"
            panel.text(j, i, f"{weights[i, j]:.2f}", ha="center", va="center", fontsize=7, color=shade)
    panel.set_xticks(range(len(targets)), labels(names[j] for j in targets), rotation=90)
    panel.set_yticks(range(len(sources)), labels(names[i] for i in sources))
    panel.set(xlabel="target" if len(targets) else "no target: nothing is sent", ylabel="source")
    panel.tick_params(length=0)
    return figure


def link_graph(names: Sequence[str], psi: Array, alpha: Array) -> Figure:
    """Draw who sends whom: sources left (filled), targets right (hollow), a line as wide as its weight."""
    sources, targets = np.flatnonzero(psi == 0).tolist(), np.flatnonzero(psi).tolist()
    figure, (panel,) = grid(1, 1, (0, 0), (4.5, 0.8 + 0.36 * max(len(sources), len(targets))))
    high = np.zeros(len(psi))
    for group in (sources, targets):
        high[group] = np.linspace(1, 0, len(group) + 2)[1:-1]
    for i, j in zip(*np.nonzero(alpha), strict=True):
        panel.plot([0, 1], [high[i], high[j]], color="0.6", linewidth=0.5 + 3 * alpha[i, j], zorder=1)
    for at, group, fill, side in ((0, sources, BLUE, "right"), (1, targets, "white", "left")):
        panel.scatter(np.full(len(group), at), high[group], s=60, color=fill, edgecolors=BLUE, zorder=2)
        for device in group:
            panel.text(at - 0.05 + 0.1 * at, high[device], plain(names[device]), ha=side, va="center", fontsize=8)
    panel.set_xticks([0, 1], ["sources", "targets"])
    panel.set(xlim=(-0.5, 1.5), ylim=(0, 1), yticks=[])
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    return figure


def divergences(names: Sequence[str], divergence: Array) -> Figure:
    """Draw d_ij in [0, 2], (N, N), how far each two devices' data are apart (ST-LF, Algorithm 1; Fig. 5)."""
    figure, (panel,) = grid(1, 1, (0, 0), (1.8 + 0.4 * len(names), 1.2 + 0.4 * len(names)))
    values = np.where(np.eye(len(names), dtype=bool), np.nan, divergence)
    show(figure, panel, values, "divergence", None, Normalize(0, 2))
    write_cells(panel, values, lambda value: f"{value:.2f}")
    name_cells(panel, names, names)
    panel.tick_params(axis="x", rotation=90, length=0)
    return figure


def descent(traces: Mapping[str, Sequence[float]]) -> Figure:
    """Draw the penalised objective (83) after each iteration of Algorithm 2, a line for each label (ST-LF, Fig. 4)."""
    figure, (panel,) = grid(1, 1, (0, 0), (4.5, 3))
    for label, trace in traces.items():
        panel.plot(range(1, len(trace) + 1), trace, marker=".", label=plain(label))
    panel.set(xlabel="iteration", ylabel="penalised objective")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.grid(alpha=0.3)
    if len(traces) > 1:
        panel.legend(frameon=False, fontsize=8)
    return figure
