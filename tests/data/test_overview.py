"""An overview says what is in a table, by pandas's own count."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fedcore import Data, Dataset, load
from fedcore.data.overview import OFFSET, columns, offset, spans
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


def test_arrays_have_no_columns_and_no_spans():
    data = Dataset(Data(torch.zeros(4, 1, 3, 3), torch.tensor([0, 1, 0, 1])), None, ("a", "b"))
    assert columns(data).empty
    assert spans(data) is None
    assert offset(data, {"a": np.arange(4)}) is None


def sites(level: float, by_label: float) -> tuple[Dataset, dict[str, np.ndarray]]:
    """Return two sites of 200 rows, 80 and 20 % ill, whose column is `level` apart, and `by_label` apart in the ill."""
    rng, ill = np.random.default_rng(0), np.arange(400) % 10 < np.repeat([8, 2], 200)
    x = rng.normal(0, 1, 400) + level * np.repeat([0, 1], 200) + by_label * ill
    schema = Schema((1,), "float32", ("well", "ill"), (Column("heat", "number"),))
    data = Data(torch.from_numpy(x[:, None]).float(), torch.from_numpy(ill.astype(np.int64)))
    return Dataset(data, None, schema.classes, schema=schema), {"a": np.arange(200), "b": np.arange(200, 400)}


def test_an_offset_is_what_labels_do_not_explain():
    assert offset(*sites(level=0, by_label=9)) == pytest.approx(0, abs=0.02)
    assert offset(*sites(level=0, by_label=0)) == pytest.approx(0, abs=0.02)
    # The well are mostly on b: their mean is 2.4, that of the ill .6, so that the mean residual of b is
    # .8 * (3 - 2.4) + .2 * (3 - .6) = .96, that of a its negative. A residual's variance in a class is 1 + .16 * 9.
    assert offset(*sites(level=3, by_label=0)) == pytest.approx(0.96**2 / 2.44, abs=0.02)
    assert offset(*sites(level=9, by_label=2)) > OFFSET
