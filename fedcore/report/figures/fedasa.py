"""Figure of the depth at which each device shares."""

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fedcore.report.figures.drawing import FEW_CELLS, Drawing, Reports, grid, name_cells, plain, show, write_cells
from fedcore.results import reports as read

CHOSEN = "#d55e00"

CAPTION = "Distance of each device's cells from the server's auxiliary cell; framed: the chosen one."


def alignment(reports: Reports) -> Iterator[Drawing]:
    """Yield one figure of all methods."""
    depths = {label: read.devices(of).get("alignment") for label, of in reports.items()}
    aligned = {label: dict(numbers) for label, numbers in depths.items() if numbers}
    if aligned:
        yield "alignment", CAPTION, partial(cell_distances, aligned)


def cell_distances(numbers: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Figure:
    """Draw how far each device's cells are from the server's, a panel for each method; the chosen cell is framed.

    numbers: method -> device -> depth and distance_0, distance_1, ..., see
    :func:`fedcore.methods.fedasa.fedasa.report_distances`.
    """
    cells = max(int(name.rpartition("_")[2]) for devices in numbers.values() for names in devices.values()
                for name in names if name != "depth") + 1  # fmt: skip
    high = 0.9 + 0.27 * max(map(len, numbers.values()))
    figure, panels = grid(len(numbers), 4, (0.7, 0.2), (1.8 + 0.46 * cells, high))
    for panel, (method, devices) in zip(panels, numbers.items(), strict=True):
        values = np.array([[named.get(f"distance_{m}", np.nan) for m in range(cells)] for named in devices.values()])
        finite = values[np.isfinite(values)]
        wide = bool(finite.min() > 0) and bool(finite.max() > 10 * finite.min())
        show(figure, panel, values, "distance", None, LogNorm() if wide else None)
        panel.set_aspect("auto")
        name_cells(panel, devices, range(cells))
        panel.set_title(plain(method), loc="left", fontsize=10)
        panel.set_xlabel("cell (0: stem)", fontsize=9)
        if len(devices) <= FEW_CELLS:
            write_cells(panel, np.log(values) if wide else values, lambda value: f"{value:.3g}", values)
        for y, named in enumerate(devices.values()):
            corner = named["depth"] - 0.46, y - 0.44
            panel.add_patch(Rectangle(corner, 0.92, 0.88, fill=False, edgecolor=CHOSEN, linewidth=2.2))
    return figure
