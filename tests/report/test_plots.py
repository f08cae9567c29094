import pytest
from comparisons import METHODS, summary, sweep
from tables import drawn, frame, rows

from fedcore.report.plots import courses, draw


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "keys"), [(3, 3), (4, 1), (13, 0)])
def test_few_settings_have_a_plot_over_rounds_each_more_share_one(settings: int, keys: int):
    table = sweep(settings, rounds=3)
    found = courses(table, summary(table))
    assert len(found) == keys
    assert all(picture.startswith(b"\x89PNG") for picture in found.values())
    assert keys != 1 or list(found) == [("study", "")]


def test_a_single_round_has_no_course():
    table = drawn(METHODS, 2)
    assert courses(table, summary(table)) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "pictures"), [(3, 3), (4, 0)])
def test_a_comparison_is_drawn_for_each_of_few_settings(settings: int, pictures: int):
    table = frame(*(rows({"a": [[0.5, 0.6 + i / 100]]}, setting=f"devices={i}") for i in range(settings)))
    found = draw(table, summary(table)).comparisons
    assert len(found) == pictures
    assert len(set(found.values())) == pictures
