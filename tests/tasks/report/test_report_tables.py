from __future__ import annotations

import io

import pandas as pd
import pytest
from comparisons import LINKS, add_links, comparison
from tables import frame, rows

from fedcore.results.summary import COLUMNS
from tasks.report.tables import csv, links


def test_csv_reads_back():
    summary = comparison()[1]
    text = csv(summary)
    back = pd.read_csv(io.StringIO(text))
    assert list(back.columns) == COLUMNS
    assert text == csv(summary)
    pd.testing.assert_series_equal(back["test_mean"], summary["test_mean"], rtol=1e-5)
    assert back["rank"].isna().tolist() == summary["control"].tolist()


def test_links_are_means_over_targets_and_sums_over_devices():
    found = links(add_links(frame(rows({"a": [[0.8] * 3] * 2, "b": [[0.5] * 3] * 2})), LINKS))
    means = {method: {name: mean for name, (mean, _) in row.items()} for method, row in found.items()}
    assert means["a"] == pytest.approx({"accuracy": 70, "target": 1.5, "energy": 3, "share": 25})
    assert means["b"] == pytest.approx({"accuracy": 35, "target": 2, "energy": 12, "share": 100})
    assert found["a"]["accuracy"][1] == pytest.approx(200**0.5)
