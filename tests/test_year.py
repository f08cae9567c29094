"""The oracle of a year of nights, and that a year goes on after a kill; benchmarks/year.py plays it."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from project_params import ROOT

from benchmarks.year import COLUMNS, FIRST, LEAST, Calendar, Year, check, draw, law, stability, summary

CSV = ROOT / "docs" / "results" / "year.csv"


def test_the_index_of_two_laws_is_that_of_their_bins():
    """Of a share of one half and one of a quarter: (1/4 - 1/2) log(1/2) + (3/4 - 1/2) log(3/2)."""
    held, new = pd.Series(["ok", "fault"] * 50), pd.Series(["ok"] * 25 + ["fault"] * 75)
    assert stability(held, new) == pytest.approx(0.25 * np.log(2) + 0.25 * np.log(1.5))
    assert stability(held, held) == 0


def test_what_happens_is_in_the_rows_of_its_nights():
    calendar = Calendar()
    nights = {night: draw(calendar, night, 4000, np.random.default_rng(0)) for night in (0, 20, 40, 60, 70, 80)}
    assert [sorted({*rows["site"]}) for rows in nights.values()] == [[*"abc"]] + [[*"abcd"]] * 5
    assert [round(rows["load"].mean()) for rows in nights.values()] == [0, 0, 4, 4, 4, 5]
    assert [round(rows["heat"].mean()) for rows in nights.values()] == [0, 0, 0, 2, 0, 0]
    faults = [(rows["state"] == "fault").mean() for rows in nights.values()]
    assert min(faults[:5]) > 0.45 > 0.2 > faults[5]


def test_a_law_of_several_nights_weighs_them_by_their_rows():
    calendar = Calendar(shift=1, daily=FIRST)  # as many rows before as after
    both = law(calendar, [0, 1], np.random.default_rng(0))
    assert both["load"].mean() == pytest.approx(2, abs=0.1)


def row(night: int, **values: object) -> dict[str, object]:
    calm = {f"told {name}": False for name in COLUMNS} | {f"moved {name}": 0.0 for name in COLUMNS}
    kept = {"history": night + 1, "mlruns MB": 1.0 * night, "blobs MB": 1.0, "Prefect MB": 2.0, "seconds": 9.0}
    return {"night": night, "outcome": "ok", "promoted": False, "gain": 0.0, **calm, **kept, **values}


def test_the_oracle_finds_each_fault():
    year = pd.DataFrame([
        row(0), row(1, promoted=True, gain=0.1), row(2, promoted=True, gain=-0.01), row(3, gain=LEAST),
        row(4, outcome="no room"), row(5, **{"moved load": 1.0, "told load": True}),
        row(6, **{"told heat": True}), row(7, **{"moved state": 1.0}),
    ])  # fmt: skip
    found = {name: nights for name, nights in check(year).items() if nights}
    assert found == {
        "right": [1], "wrong": [2], "missed": [3], "failed": [4], "told load": [5], "false heat": [6],
        "silent state": [7],
    }  # fmt: skip


def test_a_year_goes_on_after_its_last_night_with_its_champion(tmp_path: Path):
    """The champion of a night that was killed after a promotion is told by the next one."""
    begun = Year(tmp_path, Calendar())
    assert (begun.next(95), begun.champion) == (95, None)
    rows = [row(95, champion="3"), row(96, champion="7"), row(97, outcome="no room")]
    pd.DataFrame(rows).to_csv(tmp_path / "year.csv", index=False)
    year = Year(tmp_path, Calendar())
    assert (year.next(95), year.champion) == (98, "7")


def test_the_table_of_a_night_is_the_same_whenever_it_is_written(tmp_path: Path):
    year = Year(tmp_path, Calendar())
    year.table.parent.mkdir(parents=True)
    year.write_table(3)
    first = year.table.read_bytes()
    year.write_table(4)
    assert year.table.read_bytes().startswith(first)
    year.write_table(3)
    assert year.table.read_bytes() == first
    assert len(pd.read_csv(year.table)) == FIRST + 3 * Calendar().daily


def test_the_page_has_the_table_of_its_file():
    """`python -m benchmarks.year draw docs/results/year.csv` prints it."""
    assert summary(pd.read_csv(CSV)) in (ROOT / "docs" / "operations.md").read_text()
