"""The history of answers: its table and its trend."""

import io
from typing import Any

from matplotlib.dates import num2date
from rich.console import Console

from fedcore.report.history import HEADS, history_cells, print_history, trends


def line(date: str, best: float, data: str = "aaaaaaaaaa", **more: Any) -> dict[str, Any]:
    return {
        "date": f"{date}T02:00:00+00:00", "study": "my_data", "size": "base", "setting": "base", "dataset": "machines",
        "metric": "accuracy", "data": data, "rows": 1200, "action": "use", "method": "fedavg", "value": best,
        "best_value": best, "alone_value": 0.6, "champion": "3", **more,
    }  # fmt: skip


def test_a_line_has_the_change_against_the_line_before():
    found = history_cells([line("2026-01-01", 0.7), line("2026-01-02", 0.745, "bbbbbbbbbb", champion=None)])
    assert found == [
        ["2026-01-01", "aaaaaa", "1,200", "use fedavg", "70.0%", "-", "60.0%", "3"],
        ["2026-01-02", "bbbbbb", "1,200", "use fedavg", "74.5%", "+4.5", "60.0%", "-"],
    ]
    worse = [line("2026-01-01", 0.5, metric="log_loss"), line("2026-01-02", 0.75, metric="log_loss")]
    assert history_cells(worse)[1][HEADS.index("change")] == "+0.25"


def test_nothing_said_is_a_line_too():
    unsure = line("2026-01-01", 0.7, action="cannot say", method=None, value=None, alone_value=None)
    assert history_cells([unsure, line("2026-01-02", 0.7)])[0][3:7] == ["cannot say", "-", "-", "-"]


def test_the_table_fits_80_columns_and_separates_what_cannot_be_compared():
    out = io.StringIO()
    lines = [
        line("2026-01-01", 0.7, method="fedavg_with_a_long_name_of_its_own", rows=123456789),
        line("2026-01-02", 0.7),
        line("2026-01-02", 0.7, metric="cost", value=0.143),
    ]
    print_history(lines, Console(file=out, width=80))
    shown = out.getvalue().splitlines()
    assert max(map(len, shown)) <= 80
    heads = [text for text in shown if text.startswith("my_data: base (machines, base)")]
    assert [text.split(", ")[-1] for text in heads] == ["accuracy", "cost"]
    assert not any("…" in text for text in shown)


def test_a_trend_needs_two_days_and_is_of_the_last_data():
    first, again, next_day = line("2026-01-01", 0.7), line("2026-01-01", 0.8), line("2026-01-03", 0.75, "b")
    assert trends([]) == trends([first, again]) == {}
    other = line("2026-01-02", 0.9, dataset="another")
    (figure,) = trends([first, other, next_day]).values()
    best, alone, *marks = figure.axes[0].lines
    assert list(best.get_ydata()) == [0.7, 0.75]
    assert list(alone.get_ydata()) == [0.6, 0.6]
    assert [num2date(day).day for day in best.get_xdata()] == [1, 3]
    assert len(marks) == 1  # where the data changed
