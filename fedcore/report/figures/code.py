"""Transport plans as pictures."""

from collections.abc import Iterator, Mapping
from functools import partial
from io import BytesIO

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont
from matplotlib.patches import Rectangle
from PIL import Image, ImageDraw, ImageFont

from fedcore.report.figures.drawing import MAP, Array, Drawing, Reports, plain
from fedcore.results.reports import matrices


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
