import io

import numpy as np
import pandas as pd
import pytest
from comparisons import LINKS, add_links, comparison
from scipy import stats
from tables import frame, rows

from fedcore.report.tables import cells, confusion_table, csv, links
from fedcore.results.criterion import RATIO
from fedcore.results.outcomes import Outcomes
from fedcore.results.summary import COLUMNS, NO_SECONDS, summarise


@pytest.mark.slow
def test_csv_reads_back():
    summary = comparison()[1]
    text = csv(summary)
    back = pd.read_csv(io.StringIO(text))
    assert list(back.columns) == COLUMNS
    assert text == csv(summary)
    pd.testing.assert_series_equal(back["test_mean"], summary["test_mean"], rtol=1e-5)
    assert back["rank"].isna().tolist() == summary["control"].tolist()


def test_confusions_stand_beside_recall_and_precision():
    table = confusion_table(Outcomes(("ok", "worn"), np.array([[6, 2], [0, 0]]), np.array([[8.0, 7.0, 6.0]])))
    assert table is not None
    assert [[cell.text for cell in line.cells] for line in table.lines] == [
        ["ok", "6", "2", "75.0"],
        ["worn", "0", "0", "-"],
        ["precision, %", "100.0", "0.0", "75.0"],
    ]
    assert table.unit == "of 8 own test rows"
    assert confusion_table(Outcomes((), np.zeros((0, 0), dtype=np.int64), np.zeros((10, 3)))) is None


def test_links_are_means_over_targets_and_sums_over_devices():
    found = links(add_links(frame(rows({"a": [[0.8] * 3] * 2, "b": [[0.5] * 3] * 2})), LINKS))
    means = {method: {name: mean for name, (mean, _) in row.items()} for method, row in found.items()}
    assert means["a"] == pytest.approx({"accuracy": 70, "target": 1.5, "energy": 3, "share": 25})
    assert means["b"] == pytest.approx({"accuracy": 35, "target": 2, "energy": 12, "share": 100})
    half = stats.t.ppf(0.975, 1) * 200**0.5 * (1 / 2 + RATIO / 5) ** 0.5
    assert found["a"]["accuracy"][1] == pytest.approx(half)


def test_the_cost_of_an_answer_is_shown_where_methods_differ_in_it():
    summary = comparison()[1]
    place = summary[summary["setting"] == summary["setting"].iloc[0]].copy()
    assert "macs" not in cells(place)[0]
    place["nets_run"], place["macs"] = 1.0, 52544.0
    assert "macs" not in cells(place)[0]
    place.loc[place.index[0], ["nets_run", "macs"]] = [16.0, 16 * 52544.0]
    heads, lines = cells(place)
    assert [heads["nets_run"], heads["macs"]] == ["nets\nrun", "multiplications\nper example"]
    assert [lines[0][cost].text for cost in ("nets_run", "macs")] == ["16", "840,704"]
    assert [lines[1][cost].text for cost in ("nets_run", "macs")] == ["1", "52,544"]


@pytest.mark.slow
def test_one_device_has_no_spread_over_devices_and_no_worst():
    one, two = (
        cells(summarise(frame(rows({"a": own, "b": own})), NO_SECONDS, frozenset()))[0]
        for own in ([[0.7], [0.6]], [[0.7, 0.6], [0.6, 0.5]])
    )
    assert [name for name in two if name not in one] == [
        f"{split}_{part}" for split in ("test", "shared") for part in ("std_devices", "worst")
    ]
