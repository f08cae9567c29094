"""An overview says what is in a table, by pandas's own count."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sklearn.datasets
import torch

from fedcore import Data, Dataset, load
from fedcore.data.names import typed_setting
from fedcore.data.overview import OFFSET, columns, encoded, identifies, offsets, rounded, spans, telling
from fedcore.data.schema import Column, Schema


@pytest.fixture
def rows() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "narrow": rng.random(50) / 100, "wide": rng.normal(0, 900, 50), "kind": rng.choice(["a", "b"], 50),
            "on": rng.random(50) < 0.5, "y": np.arange(50) % 2,
        }
    )  # fmt: skip
    frame.loc[::9, "wide"] = np.nan
    frame.loc[::7, "kind"] = None
    return frame


def test_columns_count_what_pandas_counts(rows: pd.DataFrame, tmp_path: Path):
    rows.to_parquet(tmp_path / "t.parquet")
    data = load("table", path=tmp_path / "t.parquet", label="y", missing="median")
    found = columns(data).set_index("column")
    features = rows.drop(columns="y")
    assert found["missing"].to_dict() == features.isna().sum().to_dict()
    assert found["values"].to_dict() == features.nunique().to_dict()
    assert found["inputs"].to_dict() == {"narrow": 1, "wide": 1, "kind": 2, "on": 1}
    numbers = features[["narrow", "wide"]]
    np.testing.assert_allclose(found.loc[["narrow", "wide"], "low"], numbers.min(), rtol=1e-6)
    np.testing.assert_allclose(found.loc[["narrow", "wide"], "high"], numbers.max(), rtol=1e-6)
    assert spans(data) == pytest.approx(sorted((numbers.max() - numbers.min()).tolist()), rel=1e-6)


@pytest.mark.slow
def test_the_inputs_of_a_text_and_a_boolean_span_1(rows: pd.DataFrame, tmp_path: Path):
    for name in ("kind", "on"):
        rows[["wide", name, "y"]].to_csv(tmp_path / "t.csv", index=False)
        found = spans(load("table", path=tmp_path / "t.csv", label="y", missing="median"))
        assert found == pytest.approx((1, np.ptp(rows["wide"].dropna())))
    rows[["kind", "y"]].to_csv(tmp_path / "t.csv", index=False)
    assert spans(load("table", path=tmp_path / "t.csv", label="y", missing="median")) is None


def test_arrays_have_no_columns_and_no_spans():
    data = Dataset(Data(torch.zeros(4, 1, 3, 3), torch.tensor([0, 1, 0, 1])), None, ("a", "b"))
    assert columns(data).empty
    assert spans(data) is None
    assert offsets(data, {"a": np.arange(4)}).empty


def sites(level: float, by_label: float) -> tuple[Dataset, dict[str, np.ndarray]]:
    """Return two sites of 200 rows, 80 and 20 % ill, whose column is `level` apart, and `by_label` apart in the ill."""
    rng, ill = np.random.default_rng(0), np.arange(400) % 10 < np.repeat([8, 2], 200)
    x = rng.normal(0, 1, 400) + level * np.repeat([0, 1], 200) + by_label * ill
    schema = Schema((1,), "float32", ("well", "ill"), (Column("heat", "number"),))
    data = Data(torch.from_numpy(x[:, None]).float(), torch.from_numpy(ill.astype(np.int64)))
    return Dataset(data, None, schema.classes, schema=schema), {"a": np.arange(200), "b": np.arange(200, 400)}


def offset_of(data: Dataset, trains: dict[str, np.ndarray]) -> float:
    (share,) = offsets(data, trains)
    return float(share)


def test_an_offset_is_what_labels_do_not_explain():
    assert offset_of(*sites(level=0, by_label=9)) == pytest.approx(0, abs=0.02)
    assert offset_of(*sites(level=0, by_label=0)) == pytest.approx(0, abs=0.02)
    # The well are mostly on b: their mean is 2.4, that of the ill .6, so that the mean residual of b is
    # .8 * (3 - 2.4) + .2 * (3 - .6) = .96, that of a its negative. A residual's variance in a class is 1 + .16 * 9.
    assert offset_of(*sites(level=3, by_label=0)) == pytest.approx(0.96**2 / 2.44, abs=0.02)
    assert offset_of(*sites(level=9, by_label=2)) > OFFSET


def repairs(rows: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Return columns that tell a class that one row in four has, and then those that do not."""
    rng, fault = np.random.default_rng(0), np.arange(rows) % 4 == 0
    amount, text = rng.integers(10, 240, rows), rng.choice(["p", "q", "r"], rows)
    told = {
        "copy": fault, "other_name": np.where(fault, "E17", "none0"), "by_value": np.where(fault, "E17", text),
        "interval": np.where(fault, amount, amount - 300), "minutes": np.where(fault, amount, 0),
        "empty": np.where(fault, amount, np.nan), "tick": np.where(fault, "x", None), "some": fault & (text == "p"),
        "no_fault": ~fault & (text == "p"), "some_minutes": np.where(fault & (text == "p"), amount, 0),
    }  # fmt: skip
    twice = np.where(fault, rows, -1 - np.arange(rows))
    twice[[200, 201]] = twice[[201, 200]]
    half = {
        "heat": rng.normal(0, 1, rows) + fault, "text": text, "same": np.ones(rows), "nothing": np.full(rows, np.nan),
        "row": np.arange(rows), "name": np.arange(rows).astype(str), "two_wrong": twice, "once": np.arange(rows) == 8,
        "seldom_zero": np.where(fault & (text == "p"), 0, 1 + amount % 2),
    }  # fmt: skip
    return pd.DataFrame(told | half), fault.astype(np.int64)


def test_columns_that_tell_the_label_alone_are_named():
    cells, y = repairs(400)
    names = [*cells][:10]
    known = f"if it is known only after the label: {typed_setting('data.ignore', names)}"
    line = f"{', '.join(map(repr, names))} each tell the label of all or some rows without other columns; {known}"
    assert telling(cells.items(), y) == telling(cells.convert_dtypes().items(), y) == [line]
    assert telling(cells.items(), 1 - y) == [line]
    assert telling(cells.items(), np.zeros_like(y)) == []


@pytest.mark.parametrize("classes", range(2, 8))
def test_few_rows_tell_nothing_by_chance(classes: int):
    for rows in range(2, 20):
        y = np.arange(rows) % classes
        cells = pd.DataFrame({"copy": y, "text": y.astype(str), "row": np.arange(rows)})
        assert telling(cells.items(), y) == []
    assert telling(cells.iloc[:0].items(), y[:0]) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["breast_cancer", "iris", "wine", "digits"])
def test_columns_of_real_tables_do_not_tell_the_label_alone(name: str):
    frame = getattr(sklearn.datasets, f"load_{name}")(as_frame=True).frame
    assert telling(frame.drop(columns="target").items(), frame["target"].to_numpy()) == []


@pytest.mark.slow
def test_columns_of_noise_do_not_tell_the_label_alone():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        for rows in (25, 200, 2000):
            cells = pd.DataFrame(rng.random((rows, 8)) < rng.random(8))
            assert telling(cells.items(), (rng.random(rows) < rng.choice([0.5, 0.1, 0.03])).astype(np.int64)) == []


def test_a_number_is_told_by_a_copy_in_any_unit_and_by_no_noisy_line():
    frame = sklearn.datasets.load_diabetes(as_frame=True).frame
    rng, y, fills = np.random.default_rng(0), frame.pop("target").to_numpy(), np.arange(len(frame)) % 2 > 0
    told = {"copy": y, "unit": 32 - 1.8 * y, "rounded": (y / 25.4).round(1), "later": np.where(fills, y, np.nan)}
    noise = {"line": y + rng.normal(0, y.std() / 10, len(y)), "none": np.nan, "same": 1, "text": y.astype(str)}
    outlier = np.where(np.arange(len(y)) == 7, 1e9, rng.normal(size=len(y)))
    (line,) = telling(frame.assign(**told | noise).items(), y)
    assert line.startswith("'copy', 'unit', 'rounded', 'later' each tell the label of")
    assert line.endswith(": 'data.ignore=[copy, unit, rounded, later]'")
    (line,) = telling({"late ones": pd.Series(y)}.items(), y, ["a b", "late ones"])
    assert line.endswith(""": 'data.ignore=[a b, late ones]'""")
    assert telling(frame.assign(outlier=outlier).items(), np.where(outlier > 9, outlier, y)) == []
    assert telling(frame.assign(copy=y).iloc[:19].items(), y[:19]) == []


@pytest.mark.parametrize("seed", range(5))
def test_whole_numbers_name_rows_where_they_are_dense_or_said_to(seed: int):
    rng, rows = np.random.default_rng(seed), np.arange(200.0)
    dense = [rows, rng.permutation(200) + 1000.0, rng.choice(1000, 200, False) + 0.0]
    rpm, many, times = rng.choice(5100, 200, False) + 900.0, rng.choice(10**9, 200) + 0.0, 1.7e9 + 3600 * rows
    assert all(identifies("row", values) for values in dense)
    assert not any(identifies("paid", values) for values in (rpm, many, times, rows + 0.5, rows // 2, rows * np.nan))
    assert all(identifies(name, many) for name in ("ID", "customerId", "user_id", "Product ID", "hash"))


@pytest.mark.slow
def test_a_tables_columns_tell_as_its_files_do(tmp_path: Path):
    cells, y = repairs(400)
    cells.drop(columns=["nothing", "name", "same", "empty"]).assign(y=y).to_csv(tmp_path / "t.csv", index=False)
    data = load("table", path=tmp_path / "t.csv", label="y", missing="median")
    index = np.arange(100, 400)
    told = [name for name in [*cells][:10] if name != "empty"]
    assert dict(encoded(data, index))["by_value"].tolist() == [
        ["E17", "p", "q", "r"].index(text) + 1 for text in cells["by_value"][index]
    ]
    assert telling(encoded(data, index), data.train.y.numpy()[index]) == telling(cells[told].items(), y)


def test_numbers_that_float64_rounds_are_rounded_with_every_scale():
    """Beside 1e18 float64 has steps of 128; missing cells, arrays and numbers beyond float32 do no harm."""
    numbers, owner = (
        pd.DataFrame({"ns": 1e18 + 256.0 * np.arange(8), "gaps": [np.nan, 1.0] * 4}),
        np.array([*"aabbaabb"]),
    )
    for scale in ("none", "common", "device"):
        found = rounded(numbers, owner, scale)
        assert [*found["column"]] == ["ns", "ns"]
        assert found["double"].all()
        assert rounded(pd.DataFrame(index=range(8)), owner, scale).empty
        assert rounded(pd.DataFrame({"x": [1e300, -1e300] * 4}), owner, scale).shape[1] == 5
