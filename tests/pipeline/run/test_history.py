"""The lines of a project's history."""

import math
from types import SimpleNamespace
from typing import Any, cast

import pandas as pd
import pytest

from fedcore.core.metrics import METRICS
from fedcore.pipeline import work
from fedcore.pipeline.run.history import sites, tasks_of


def test_a_line_has_a_digest_of_each_edited_task_that_took_part(monkeypatch: pytest.MonkeyPatch):
    def result(*tasks: str) -> Any:
        return SimpleNamespace(tasks=tasks)

    monkeypatch.setattr(work, "TASKS", {("deploy", ""): twice, ("combine", "fuse"): thrice})
    names = [f"{__name__}:{name}" for name in ("thrice", "twice")]
    both = tasks_of([result(names[0]), result(names[1])])
    assert [*both] == names
    assert len({*both.values()}) == 2
    assert tasks_of([result(names[1])]) == {names[1]: both[names[1]]}


def twice(part: Any, memory: Any, message: Any) -> Any:
    part(memory, message)
    return part(memory, message)


def thrice(part: Any, server: Any, updates: Any, round_info: Any) -> Any:
    part(server, updates, round_info)
    return part(server, updates, round_info)


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
