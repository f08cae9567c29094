"""Drift: statistics equal hand-computed and SciPy's, what moved is named, and quiet rows rarely alarm."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fedcore.data import drift
from fedcore.data.schema import Column, Schema

COLUMNS = (
    Column("heat", "number"), Column("force", "number"), Column("skewed", "number"), Column("running", "boolean"),
    Column("kind", "text", ("a", "b", "c")),
)  # fmt: skip
SCHEMA = Schema((7,), "float32", ("ok", "fault"), COLUMNS, "state", "site")
DEVICES = [f"plant {name}" for name in "ABCD"]
Sample = tuple[np.ndarray, np.ndarray]


def draw(rng: np.random.Generator, rows: int, device: str, shift: float = 0.0, faults: float = 0.06) -> Sample:
    """Return inputs and classes of a device, whose levels are its own; 2 % of the cells are missing."""
    level = 3.0 * DEVICES.index(device)
    heat, force = rng.normal(level + shift, 1, rows), rng.normal(level, 1, rows)
    numbers = np.column_stack([heat, force, np.exp(rng.normal(size=rows)), rng.random(rows) < 0.3])
    numbers[rng.random(numbers.shape) < 0.02] = np.nan
    kinds = np.eye(3)[rng.choice(3, rows, p=[0.7, 0.2, 0.1])]
    return np.column_stack([numbers, kinds]).astype(np.float32), (rng.random(rows) < faults).astype(np.int64)


def reference(rng: np.random.Generator, rows: int = 200) -> drift.Reference:
    held = {device: draw(rng, rows, device) for device in DEVICES}
    x, y = ({device: part[i] for device, part in held.items()} for i in range(2))
    return drift.from_json(drift.to_json(drift.summarise(SCHEMA, x, y, y)))


def batch(rng: np.random.Generator, sizes: list[int], shift: float = 0.0, faults: float = 0.06):
    """Return inputs, devices and classes of new rows, so many of each device."""
    parts = [draw(rng, size, device, shift, faults) for device, size in zip(DEVICES, sizes, strict=True)]
    return (
        np.concatenate([x for x, _ in parts]), np.repeat(DEVICES, sizes).tolist(), np.concatenate([y for _, y in parts])
    )  # fmt: skip


def changed(found: drift.Reference, new: tuple[np.ndarray, list[str], np.ndarray]) -> list[drift.Change]:
    return drift.compare(found, SCHEMA, *new)


# statistics


def test_the_stability_index_is_that_of_the_definition():
    """By hand: .25 log 1.5 - .25 log .5; of an empty bin of 10 rows, half a row counts."""
    old, new = np.array([10.0, 10.0]), np.array([30.0, 10.0])
    assert drift.stability_index(old, new) == pytest.approx(0.25 * math.log(1.5) - 0.25 * math.log(0.5))
    found = drift.stability_index(old, np.array([10.0, 0.0]))
    assert found == pytest.approx(0.5 * math.log(2) - 0.45 * math.log(0.1))


@pytest.mark.parametrize("shift", [0, 1, 3])
def test_the_distance_is_that_of_scipy_on_the_bins(shift: int):
    """And so is p, of which a value that tells nothing is a lower bound."""
    rng = np.random.default_rng(0)
    old, new = rng.integers(1, 30, 10), np.roll(rng.integers(0, 12, 10), shift) * np.arange(10) ** shift
    expected = stats.ks_2samp(np.repeat(np.arange(10), old), np.repeat(np.arange(10), new), method="asymp")
    distance, p = drift.kolmogorov_smirnov(drift.Counts(old / old.sum(), old.sum(), new))
    assert distance == pytest.approx(expected.statistic)
    assert p == pytest.approx(expected.pvalue) if expected.pvalue < drift.ALPHA else drift.ALPHA < p <= expected.pvalue


@pytest.mark.slow
def test_the_tests_of_counts_are_those_of_scipy():
    """Rare and empty cells, and rows of different sizes; fractions of rows for chi squared."""
    rng = np.random.default_rng(1)
    for most in (3, 30, 3_000, 300_000):
        for _ in range(10):
            pair = rng.integers(0, most, (2, 2))
            assert drift.fisher(*pair) == pytest.approx(stats.fisher_exact(pair).pvalue, rel=1e-6, abs=1e-300)
        counts = rng.integers(1, most, (2, 5)) * [[0.7], [1.0]]
        expected = stats.chi2_contingency(counts, correction=False).pvalue
        assert drift.chi_squared(*counts) == pytest.approx(expected, rel=1e-9, abs=1e-300)


def test_ten_bins_hold_a_tenth_each():
    """Of 1 to 100; a value equal to an edge is below it, and ties leave bins empty."""
    x = np.array([*range(1, 101), np.nan], dtype=np.float32)[:, None]
    schema = Schema((1,), "float32", ("a",), (Column("n", "number"),))
    none = {"d": np.zeros(0, np.int64)}
    bins = drift.summarise(schema, {"d": x}, none, none).devices["d"].columns["n"]
    assert (bins.counts, bins.gaps, bins.edges) == ((10,) * 10, 1, tuple(range(10, 100, 10)))
    ones = drift.summarise(schema, {"d": np.ones_like(x)}, none, none).devices["d"].columns["n"]
    assert (sum(ones.counts), max(ones.counts), ones.gaps) == (101, 101, 0)


@pytest.mark.slow
def test_a_reference_is_bounded():
    """Of 2,000 devices with 10 columns those with most rows are kept: 5,000 columns of devices, about a megabyte."""
    columns = tuple(Column(f"sensor {i}", "number") for i in range(10))
    rng = np.random.default_rng(0)
    x = {f"d{i}": rng.normal(size=(3 + i % 2, 10)).astype(np.float32) for i in range(2000)}
    none = dict.fromkeys(x, np.zeros(0, np.int64))
    found = drift.summarise(Schema((10,), "float32", ("a", "b"), columns), x, none, none)
    assert len(found.devices) == 500
    assert {sum(found.devices[name].columns["sensor 0"].counts) for name in found.devices} == {4}
    assert len(drift.to_json(found)) < 1.5e6


# what has moved


def test_a_month_with_shifted_sensors_is_told():
    """A fifth of the rows are faults in place of 6 %, and one sensor reads more: two lines."""
    rng = np.random.default_rng(0)
    changes = changed(reference(rng), batch(rng, [200, 200, 200, 200], shift=1.0, faults=0.2))
    assert {one.of for one in changes} == {"column 'heat'", "the predicted classes"}
    heat, classes = drift.lines(changes)
    assert heat.startswith("column 'heat' moved in 4 groups of rows, most on 'plant ")
    assert "in training; KS 0." in heat
    assert classes.startswith("the predicted classes moved ")
    assert "'fault'" in classes


def test_only_the_columns_that_moved_most_have_a_line():
    made = [drift.Change(f"column 'c{i}'", "in all rows", 0.1 + i, 0.0, "more") for i in range(47)]
    *told, rest = drift.lines([*made, drift.Change("the labels", "in all rows", 0.1, 0.0, "more")])
    assert [line.split()[1] for line in told] == ["'c46'", "'c45'", "'c44'", "'c43'", "'c42'", "labels"]
    assert rest == "42 more moved, but less; fedcore predict ROWS --all-drift has a line for each"
    assert len(drift.lines(made, None)) == 47


def test_changes_below_the_digits_of_float32_are_told():
    """Times in days whose deviation is 3 minutes."""
    rng, fine = np.random.default_rng(0), np.array([2_460_000.6, 0, 0, 0, 0, 0, 0])
    held = {"plant A": fine + np.where(fine > 0, 0.002, 1) * draw(rng, 200, "plant A")[0].astype(np.float64)}
    known = drift.from_json(drift.to_json(drift.summarise(SCHEMA, held, *[{"plant A": np.zeros(200, np.int64)}] * 2)))
    new = held["plant A"], ["plant A"] * 200, np.zeros(200, np.int64)
    assert changed(known, new) == []
    assert {one.of for one in changed(known, (new[0] + 0.016 * (fine > 0), *new[1:]))} == {"column 'heat'"}


def test_missing_cells_and_unknown_texts_are_told():
    rng = np.random.default_rng(1)
    found, (x, devices, y) = reference(rng), batch(rng, [60, 60, 60, 60])
    x[::3, 1] = np.nan
    x[::4, 4:] = 0
    changes = changed(found, (x, devices, y))
    assert {one.of for one in changes} == {"column 'force'", "column 'kind'"}
    assert all("of the cells are missing or unknown" in one.what for one in changes)


def test_devices_with_few_rows_are_compared_each_with_itself():
    """A few rows of the lowest and the highest level are no change of levels; a shift of both is one."""
    rng = np.random.default_rng(2)
    found = reference(rng)
    assert changed(found, batch(rng, [20, 0, 0, 20])) == []
    (one,) = changed(found, batch(rng, [20, 0, 0, 20], shift=1.5))
    assert (one.of, one.where) == ("column 'heat'", "in all rows")
    assert "above the device's median of training" in one.what


def test_rows_of_unknown_devices_are_compared_with_all():
    rng = np.random.default_rng(3)
    found, (x, devices, y) = reference(rng), batch(rng, [30, 30, 30, 30])
    assert changed(found, (x, ["elsewhere"] * len(devices), y)) == []
    x[:, 0] += 6
    assert [one.of for one in changed(found, (x, ["elsewhere"] * len(devices), y))] == ["column 'heat'"]


def test_labels_are_compared_with_those_of_training():
    """Not with what the models predict of them: here, no faults at all."""
    rng = np.random.default_rng(6)
    held = {device: draw(rng, 200, device) for device in DEVICES}
    x, y = ({device: part[i] for device, part in held.items()} for i in range(2))
    found = drift.summarise(SCHEMA, x, y, {device: np.zeros_like(own) for device, own in y.items()})
    assert drift.compare(found, SCHEMA, *batch(rng, [100] * 4), labels=True) == []
    assert drift.compare(found, SCHEMA, *batch(rng, [100] * 4), labels=False) != []
    (one, *_) = drift.compare(found, SCHEMA, *batch(rng, [100] * 4, faults=0.3), labels=True)
    assert one.of == "the labels"


def test_fewer_than_twenty_rows_are_not_compared():
    rng = np.random.default_rng(4)
    assert changed(reference(rng), batch(rng, [19, 0, 0, 0], shift=9.0)) == []


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [[50, 0, 0, 0], [13, 12, 13, 12], [100, 100, 100, 100]])
def test_at_most_five_percent_of_quiet_batches_alarm(sizes: list[int]):
    rng = np.random.default_rng(5)
    alarms = sum(bool(changed(reference(rng), batch(rng, sizes))) for _ in range(100))
    assert alarms <= 5


@pytest.mark.slow
def test_a_number_that_is_predicted_has_bins_of_its_own():
    schema = replace(SCHEMA, classes=("hours",), task="regression")
    rng = np.random.default_rng(0)
    held = {device: draw(rng, 200, device)[0] for device in DEVICES}
    hours = {device: (50 + 10 * rng.normal(size=200)).astype(np.float32) for device in DEVICES}
    known = drift.from_json(drift.to_json(drift.summarise(schema, held, hours, hours)))
    x, devices, _ = batch(rng, [60] * 4)
    quiet, moved = (shift + 50 + 10 * rng.normal(size=240).astype(np.float32) for shift in (0.0, 15.0))
    assert drift.compare(known, schema, x, devices, quiet) == []
    (line,) = drift.lines(drift.compare(known, schema, x, devices, moved))
    assert line.startswith("the predictions moved in 4 groups of rows")
    (line,) = drift.lines(drift.compare(known, schema, x, devices, moved, labels=True))
    assert line.startswith("the labels moved")


@pytest.mark.slow
def test_each_of_several_labels_is_compared():
    schema = replace(SCHEMA, classes=("leak", "wear"), task="multilabel")
    rng = np.random.default_rng(0)
    held = {device: draw(rng, 200, device)[0] for device in DEVICES}

    def having(rows: int, wear: float) -> np.ndarray:
        return (rng.random((rows, 2)) < (0.3, wear)).astype(np.float32)

    labels = {device: having(200, 0.1) for device in DEVICES}
    known = drift.from_json(drift.to_json(drift.summarise(schema, held, labels, labels)))
    x, devices, _ = batch(rng, [60] * 4)
    assert drift.compare(known, schema, x, devices, having(240, 0.1)) == []
    (line,) = drift.lines(drift.compare(known, schema, x, devices, having(240, 0.6)))
    assert line.startswith("the predictions of 'wear' moved in 4 groups of rows")
    (line,) = drift.lines(drift.compare(known, schema, x, devices, having(240, 0.6), labels=True))
    assert line.startswith("the labels of 'wear' moved")


@pytest.mark.parametrize("kind", ["classes", "a number", "several"])
def test_a_reference_of_version_2_is_read(kind: str):
    """It had a field each for classes, a number and several labels."""
    bins, none = {"counts": [3, 4], "gaps": 0, "edges": [0.5] if kind == "a number" else []}, {"counts": [], "gaps": 0}
    rows = {
        "columns": {"heat": none}, "labels": [3, 4] if kind == "classes" else [], "predicted": [],
        "label": bins if kind == "a number" else None, "prediction": None,
        "several": {"wear": bins} if kind == "several" else {}, "predictions": {},
    }  # fmt: skip
    found = drift.from_json(json.dumps({"everyone": rows, "devices": {"d": rows}}))
    label = drift.Bins((3, 4), 0, tuple(bins["edges"]))
    expected = drift.BinnedRows({"heat": drift.Bins((), 0)}, {"wear" if kind == "several" else "label": label})
    assert found == drift.Reference(expected, {"d": expected})
