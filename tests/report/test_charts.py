"""The numbers behind the page's charts."""

import json
import math

import pandas as pd
import pytest
from comparisons import summary
from scipy import stats
from tables import NO_SECONDS, frame, rows

from fedcore.report.charts import budget_steps, chart_numbers, ticks
from fedcore.report.phrases import sentences
from fedcore.results.answer import answer, answers_by_budget
from fedcore.results.criterion import RATIO, Criterion
from fedcore.results.summary import front, summarise

ALONE = [[0.70, 0.60], [0.72, 0.60], [0.68, 0.60]]


def made() -> pd.DataFrame:
    """Rows that cost 0, 3, 3 and 30 kB; the last is worse than `good`, and `control` is best."""
    costs = {
        "local_only": (0.0, 0.0),
        "good": (1e3, 0.2),
        "bad": (1e3, -0.1),
        "dear": (1e4, 0.1),
        "control": (1.0, 0.25),
    }
    return frame(
        *(
            rows({name: [[value + change for value in devices] for devices in ALONE]}, up=up, shared=math.nan)
            for name, (up, change) in costs.items()
        )
    )


@pytest.mark.slow
def test_the_front_is_the_rows_that_none_beats_for_fewer_bytes():
    found = summarise(made(), NO_SECONDS, frozenset({"control"}))
    assert front(found, "test") == ["local_only", "good"]
    assert front(found, "shared") == []
    # Of equal accuracies for equal bytes one is enough; without controls, the best of all is on the front.
    assert front(summary(made()), "test") == ["local_only", "control"]


@pytest.mark.slow
def test_chart_numbers_are_those_of_summary_and_answer_and_fit_json():
    table = made()
    found = summarise(table, NO_SECONDS, frozenset({"control"}))
    numbers = json.loads(json.dumps(chart_numbers(table, found, Criterion()), allow_nan=False))
    assert numbers["splits"] == {"test": "own test"}
    by_method = {row["method"]: row for row in numbers["rows"]}
    assert by_method["dear"]["sent"] == 30_000
    assert by_method["dear"]["traffic"] == "sends 10 kB, receives 20 kB"
    half = round(stats.t.ppf(0.975, 2) * 0.01 * (1 / 3 + RATIO / 5) ** 0.5, 5)
    assert by_method["good"]["test"] == {
        "mean": 0.85, "margin": half, "worst": 0.8, "rank": 1, "front": True,
    }  # fmt: skip
    assert by_method["control"]["control"]
    assert by_method["control"]["test"]["rank"] is None
    assert numbers["reference"] == "local_only"
    assert numbers["alone"] == {"d00": 0.7, "d01": 0.6}
    assert numbers["changes"]["bad"] == {"devices": {"d00": -0.1, "d01": -0.1}, "helped": 0, "hurt": 2}
    last = numbers["budgets"][-1]["said"]
    assert last["sentences"] == sentences(answer(table, frozenset({"control"})))
    assert (last["headline"], last["advised"]) == ("Use good", {"test": "good", "shared": None})


def test_neighbouring_budgets_that_say_the_same_are_one_step():
    steps = budget_steps(answers_by_budget(made(), frozenset({"control"})))
    assert [(step["below"], step["text"], step["said"]["headline"]) for step in steps] == [
        (3_000, "less than 3 kB", "Train alone"), (None, "3 kB or more", "Use good"),
    ]  # fmt: skip


def test_ticks_are_the_powers_of_ten_around_what_is_sent():
    assert ticks([0.0, 2e3, 4e4]) == [(1e3, "1 kB"), (1e4, "10 kB"), (1e5, "100 kB")]
    assert ticks([1e3]) == [(1e3, "1 kB"), (1e4, "10 kB")]
    assert ticks([0.0]) == []
