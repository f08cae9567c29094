"""Shared parts of figures: colours, panels, matrices, legends and PNG bytes."""

import io
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.ticker import Formatter, MaxNLocator

from fedcore.report.names import shorten
from fedcore.types.method import Report

Array: TypeAlias = npt.NDArray[np.float64]

BLUE = "#0072b2"  # of Okabe and Ito's palette for every kind of colour vision
COLOURS = (BLUE, "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")  # of the same palette
MARKERS = "osD^vPX"
LINES = ("-", "--", ":")
MAP = "viridis"  # even steps of lightness, for every kind of colour vision
GREY = "0.45"

FEW_CELLS = 16
"""Maximum rows of a matrix whose values are written into its cells."""

LONGEST = 24
"""Characters of a name beside an axis."""

Reports: TypeAlias = Mapping[str, Sequence[Report]]
"""label of a method -> the reports of all its turns"""

Drawing: TypeAlias = tuple[str, str, Callable[[], Figure]]
"""A picture's name, its caption, and the call that draws it. The name of one method's picture ends in -<label>."""


def grid(
    count: int, most: int, margins: tuple[float, float], size: tuple[float, float], shared: bool = False
) -> tuple[Figure, list[Axes]]:
    """Return a figure of so many panels, at most `most` side by side.

    margins: beside and above them, size: of each, in inches. shared: whether they have their axes in common.
    """
    columns = min(count, most)
    lines = -(-count // columns)
    figure = Figure(figsize=(margins[0] + size[0] * columns, margins[1] + size[1] * lines), layout="constrained")
    panels = [*figure.subplots(lines, columns, sharex=shared, sharey=shared, squeeze=False).ravel()]
    for panel in panels[count:]:
        panel.set_axis_off()
    return figure, panels[:count]


def show(
    figure: Figure, panel: Axes, values: Array, label: str, form: Formatter | None, scale: Normalize | None = None
) -> None:
    """Show a matrix with a colour bar."""
    figure.colorbar(shade(panel, values, scale), ax=panel, label=label, format=form)


def shade(panel: Axes, values: Array, scale: Normalize | None = None) -> AxesImage:
    """Show a matrix; cells without a value stay grey."""
    panel.set_facecolor("0.85")
    return panel.imshow(np.ma.masked_invalid(values), cmap=MAP, norm=scale)


def name_cells(panel: Axes, rows: Iterable[object], columns: Iterable[object]) -> None:
    """Name the rows and columns of a matrix."""
    down, across = labels(rows), labels(columns)
    panel.set_yticks(np.arange(len(down)), down)
    panel.set_xticks(np.arange(len(across)), across)


def write_cells(panel: Axes, light: Array, form: Callable[[float], str], values: Array | None = None) -> None:
    """Write a matrix's values into its cells, in black or white. light: the values shown by the colours."""
    values = light if values is None else values
    finite = light[np.isfinite(light)]
    middle = (finite.min() + finite.max()) / 2 if len(finite) else 0.0
    for y, x in zip(*np.nonzero(np.isfinite(values)), strict=True):
        ink = "white" if light[y, x] < middle else "black"
        panel.text(x, y, form(values[y, x]), color=ink, ha="center", va="center", size=7)


def bare(panel: Axes, title: str = "") -> None:
    """Reduce a panel's frame to two spines and a pale grid, and write its title."""
    panel.set_title(title, loc="left", fontsize=10)
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(color="0.92", linewidth=0.8)
    panel.set_axisbelow(True)


def method_styles(methods: Iterable[str], hollow: Iterable[bool] | None = None) -> dict[str, dict[str, Any]]:
    """Return each method's colour, marker and line, the same in all figures of the same methods."""
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


def legend(figure: Figure, styles: Mapping[str, Mapping[str, Any]]) -> None:
    """Put the methods' legend to the right and widen the figure by as much. styles: see `method_styles`."""
    handles = [Line2D([], [], **style) for style in styles.values()]
    width, height = figure.get_size_inches()
    columns = -(-len(styles) // int(height / 0.24))  # as many lines as the figure is high
    figure.set_size_inches(width + 1.3 * (columns - 1), height)
    names = labels(styles)
    figure.legend(handles, names, loc="outside right center", frameon=False, ncols=columns)


def percent(value: float, _: object = None) -> str:
    """Format a share as a percentage, as the formatter of an axis."""
    return f"{100 * value:.3g}%"


def labels(names: Iterable[object]) -> list[str]:
    """Return names beside an axis: longer ones would leave it no room, and cannot be read."""
    return [plain(name) for name in shorten([*map(str, names)], LONGEST)]


def plain(text: object) -> str:
    """Escape the dollar signs of a text, which would start a formula."""
    return str(text).replace("$", r"\$")


def png(figure: Figure) -> bytes:
    """Return a figure as the bytes of a PNG file; equal figures give equal bytes."""
    out = io.BytesIO()
    figure.set_dpi(110)
    canvas = FigureCanvasAgg(figure)
    with warnings.catch_warnings():  # of names: letters that the font lacks, and too many for the room
        warnings.filterwarnings("ignore", r"Glyph \d+|constrained_layout not applied")
        canvas.print_png(out, metadata={"Software": None})  # type: ignore[no-untyped-call]  # savefig lays it out twice
    return out.getvalue()


def heat_map(matrix: npt.ArrayLike, title: str) -> Figure:
    """Draw a matrix, one cell per number, with a colour bar."""
    figure, (panel,) = grid(1, 1, (0, 0), (5.2, 4.4))
    show(figure, panel, np.atleast_2d(np.asarray(matrix, float)), "", None)
    panel.set_title(plain(title), loc="left", fontsize=10)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.yaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def drawings(path: str, reports: Reports) -> Iterator[Drawing]:
    """Return the drawings of some methods' reports by a function of `Method.figures`."""
    module, _, name = path.partition(":")
    pictures: Iterator[Drawing] = getattr(import_module(module), name)(reports)
    return pictures
