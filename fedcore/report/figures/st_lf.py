"""ST-LF's links, divergences and the course of its program."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedcore.report.figures.drawing import (
    BLUE,
    Array,
    Drawing,
    Reports,
    grid,
    heat_map,
    labels,
    name_cells,
    plain,
    show,
    write_cells,
)
from fedcore.results.reports import devices, matrices


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
