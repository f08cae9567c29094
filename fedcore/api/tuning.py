"""The choice of a method's settings by the devices' validation data, from a script."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import product
from typing import Any, Literal

import pandas as pd

from fedcore.api.federation import DividedDataset, task_name
from fedcore.api.runs import _check, run_all
from fedcore.config.methods import MethodConfig, configure
from fedcore.core.metrics import MetricName
from fedcore.core.new_device import NEVER
from fedcore.core.training import Training
from fedcore.errors import Diverged, InputError
from fedcore.results.criterion import criterion
from fedcore.results.stopping import best, validation_value
from fedcore.types.federation import Federation


@dataclass(frozen=True)
class TunedMethod:
    """The best settings of a method, by validation data.

    config: the method with the best settings, to run or compare. table: a row for each combination of settings that was
    tried, in their order, with its value on validation data; nan where the method diverged or there are no such data.
    """

    config: MethodConfig
    table: pd.DataFrame


def tune(
    method: MethodConfig,
    fed: DividedDataset | Federation,
    *,
    seed: int = 0,
    metric: MetricName | Literal["auto"] | None = None,
    positive: str | None = None,
    costs: Mapping[str, Mapping[str, float]] | None = None,
    workers: int | None = None,
    progress: bool | None = None,
    **grid: Iterable[Any],
) -> TunedMethod:
    """Run a method with every combination of some settings, and choose the best on the devices' validation data.

        fc.tune(fc.fedavg(rounds=10), fed, lr=[0.003, 0.01, 0.03]).config

    Test data have no part in it. The best is that of one partition of the data: with another seed, rows that chose it
    may be test rows, all methods alike.

    Args:
        method: a method with its settings.
        fed: from `federate`, or a federation of your own.
        seed: of the partition, the initial models and every draw.
        metric: what is compared, as in `compare`; the mean over devices after the last round.
        positive: of metrics that are of one label, that label.
        costs: of metric "cost", as in `compare`.
        workers: so many worker processes; None: as in `run`.
        progress: whether to show a bar; None: in a terminal.
        grid: values to try, by the name of a setting of the method or of its training, such as lr or epochs.

    Raises:
        InputError: for a name or a value that the method does not take, and if all combinations diverge.
    """
    if not grid:
        raise InputError("tune: needs values to try, such as lr=[0.003, 0.01, 0.03]")
    _check([method], fed, "tune")
    decides = criterion(metric, positive, costs, where="tune")
    decides.require_task(task_name(fed), "tune")
    values = {name: [*candidates] for name, candidates in grid.items()}
    for name in (name for name, candidates in values.items() if not candidates):
        raise InputError(f"tune.{name} = []: must have values to try")
    points = [dict(zip(values, point, strict=True)) for point in product(*values.values())]
    configs = [changed(method, point) for point in points]
    tables, diverged = {}, None
    extra = {"metric": decides.metric.name, "positive": positive, "costs": costs}
    for number, config in enumerate(configs):
        try:
            (result,) = run_all([config], fed, [seed], workers, NEVER, progress, extra)
            tables[number] = result.table
        except Diverged as error:
            diverged = error
    if diverged is not None and not tables:
        raise diverged
    sign = decides.of_table(next(iter(tables.values()))).metric.sign
    validated = {number: validation_value(table, decides) for number, table in tables.items()}
    column = [math.nan if (value := validated.get(number)) is None else sign * value for number in range(len(points))]
    return TunedMethod(configs[best(tables, decides)], pd.DataFrame(points).assign(value=column))


def changed(method: MethodConfig, point: Mapping[str, Any]) -> MethodConfig:
    """Return a method with some of its settings, or of its training's, changed; raises InputError for other names."""
    of_training = {field.name for field in fields(Training)}
    for name in point:
        if name not in of_training and name not in method.settings:
            raise InputError(f"tune.{name}: {method.label} has no such setting, and training has none")
    training = {**vars(method.training), **{name: value for name, value in point.items() if name in of_training}}
    settings = {**method.settings, **{name: value for name, value in point.items() if name not in of_training}}
    return configure(method.name, settings, training, label=method.label, training_key=f"{method.label}.training")
