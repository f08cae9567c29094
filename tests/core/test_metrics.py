"""The catalogue of metrics: each is scikit-learn's, stands in the documentation, and another is added in one file."""

import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import sklearn.metrics
import torch

from fedcore.core.evaluation import metrics
from fedcore.core.metrics import CATALOGUE, CLASSES, LABELS, METRICS, NUMBERS, Metric
from fedcore.types.federation import Scoring

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "metric.md").read_text()
HEADS = ("`run.metric`", "meaning", "labels", "unit", "better", "in scikit-learn")


def cells(metric: Metric) -> tuple[str, ...]:
    """A metric's row in the documentation."""
    kinds = {"classes": CLASSES, "a number": NUMBERS, "several labels": LABELS}
    unit = "the label's" if metric.in_label_unit else {100: "%", 1000: "per 1,000 rows", 1: ""}[metric.per]
    return (
        f"`{metric.name}`", metric.meaning + " `run.positive`" * metric.of_positive,
        " or ".join(words for words, kind in kinds.items() if {*kind} <= {*metric.labels}), unit,
        "less" if metric.less else "more", f"`{metric.sklearn}`" if metric.sklearn else "",
    )  # fmt: skip


def test_the_documentation_has_the_catalogue():
    rows = [HEADS, ("---",) * len(HEADS), *map(cells, METRICS.values())]
    table = "\n".join(f"| {' | '.join(row)} |".replace("|  |", "| |").replace("|  |", "| |") for row in rows)
    assert table in PAGE, table


def test_what_every_model_is_measured_by_stands_first():
    always = [metric.always for metric in CATALOGUE]
    assert always == sorted(always, reverse=True)
    assert all(hasattr(sklearn.metrics, metric.sklearn) for metric in METRICS.values() if metric.sklearn)


def test_a_label_that_is_predicted_and_absent_has_no_f1_and_no_recall():
    predicted = torch.tensor([[0.2, 0.8], [0.9, 0.1]]).log()
    absent = torch.zeros(2).long()
    assert math.isnan(metrics(predicted, absent, Scoring("f1", 1))["f1"])
    assert math.isnan(metrics(predicted, absent, Scoring("recall", 1))["recall"])
    assert metrics(predicted, absent)["macro_f1"] == pytest.approx((2 / 3 + 0) / 2)  # over both classes


RUN = """
import fedcore as fc
from sklearn.metrics import matthews_corrcoef

fed = fc.federate(fc.load("digits"), fc.dirichlet(0.5), devices=3, net=fc.mlp(8), examples=300)
rows = [fc.local_only(training={"epochs": 2}), fc.fedavg(rounds=2)]
own = {"by_sklearn": lambda p, y: matthews_corrcoef(y, p.argmax(1))}
found = fc.compare(rows, fed, seeds=range(2), metric="matthews", metrics=own, progress=False)
table = found.table[found.table["split"].isin(["test", "shared"])].pivot_table(
    "value", ["method", "seed", "device", "split"], "metric"
)
assert (table["matthews"] - table["by_sklearn"]).abs().max() < 1e-6
print(found.answer)
print(found.to_latex())
"""


@pytest.mark.slow
def test_a_metric_is_added_in_one_file(tmp_path: Path):
    """The example of the documentation, in a copy of the package: all readers have it."""
    function, entry = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[-2:]
    shutil.copytree(ROOT / "fedcore", tmp_path / "fedcore", ignore=shutil.ignore_patterns("__pycache__"))
    catalogue = tmp_path / "fedcore" / "core" / "metrics.py"
    text = catalogue.read_text()
    before, name, after = text.partition("\nCATALOGUE = (\n")
    rows, end, rest = after.partition("\n)  # fmt: skip\n")
    catalogue.write_text(f"{before}\n\n{function}\n{name}{rows}\n{entry}{end.lstrip()}{rest}")
    command = [sys.executable, "-c", RUN]
    ended = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "Decided by" not in ended.stdout
    assert re.search(r"matthews 0\.\d{3}", ended.stdout)
    assert "% Matthews" in ended.stdout


def test_an_interval_has_the_lower_number_first_and_no_false_zero():
    accuracy, rmse = METRICS["accuracy"], METRICS["rmse"]
    assert accuracy.interval(-0.028, 0.086) == "-2.8 to +8.6"
    assert accuracy.interval(-0.0004, 0.03) == "-0.04 to +3.00"
    assert accuracy.interval(0.0, 0.03) == "+0.0 to +3.0"
    assert rmse.interval(-1.0, 2500.0) == "-2,500 to +1"


def test_large_numbers_are_written_out():
    assert METRICS["cost"].value(1.34) == "1,340 per 1,000 rows"
    assert METRICS["cost"].scaled(1.34) == "1,340"
    assert METRICS["cost"].difference(-1.34) == "+1,340"
