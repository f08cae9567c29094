"""Every method of the registry with its settings, but few rounds and epochs: tests play each several times."""

from dataclasses import replace
from pathlib import Path

from fedcore.config.methods import MethodConfig
from fedcore.config.params import read
from fedcore.config.studies import grid_points
from fedcore.methods import METHODS

EPOCHS = 2
FEWER = {
    "rounds": 2, "pair_rounds": 2, "pair_iterations": 2, "steps": 5, "identifier_steps": 5, "draws": 50, "minimum": 2,
    "epochs": 2, "features": 8, "trees": 2,
}  # fmt: skip


def shortened(row: MethodConfig) -> MethodConfig:
    fewer = {name: count for name, count in FEWER.items() if name in row.settings}
    return replace(row, training=replace(row.training, epochs=EPOCHS), settings={**row.settings, **fewer})


PARAMS = read(Path(__file__).parents[1])
ROWS = {row.name: shortened(row) for row in grid_points(PARAMS, "code", "small", {}, list(METHODS))[0].methods}
