"""The lines of a project's history."""

import math
from types import SimpleNamespace
from typing import Any, cast

import pandas as pd
import pytest

from fedcore.core.metrics import METRICS
from fedcore.pipeline.run.history import sites


@pytest.mark.parametrize("name", ["accuracy", "log_loss", "recall"])
def test_a_line_has_each_site_by_the_seeds_that_measure_it(name: str):
    """Log loss has another name in tables; the recall of a label is undefined where test rows lack it."""
    answer: Any = SimpleNamespace(criterion=SimpleNamespace(metric=METRICS[name]))
    results = []
    for seed, values in enumerate([(0.5, math.nan), (0.7, 0.4)]):
        rows = [
            ("s", "d", "base", "fedavg", seed, 0, 1, device, "test", METRICS[name].column, value)
            for device, value in zip("ab", values, strict=True)
        ]
        columns = ["study", "dataset", "setting", "method", "seed", "stage", "round", "device", "split", "metric"]
        table = pd.DataFrame(rows, columns=[*columns, "value"])
        results.append(cast("Any", SimpleNamespace(row=SimpleNamespace(label="fedavg"), table=table)))
    assert sites(results, "fedavg", answer) == pytest.approx({"a": 0.6, "b": 0.4})
