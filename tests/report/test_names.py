"""Shortened names are short, and different names stay different."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.report.names import GAP, shorten, shorten_one


@given(names=st.lists(st.text("ab", max_size=30), unique=True, max_size=9), width=st.integers(4, 20))
def test_names_are_short_and_different(names: list[str], width: int):
    short = shorten(names, width)
    assert all(len(name) <= width for name in short)
    assert len({*short}) == len(names)


@pytest.mark.parametrize(
    ("names", "width", "expected"),
    [
        (["education-years", "education-name"], 10, ["educa…ears", "educa…name"]),
        (["site-1-of-the-plant", "site-2-of-the-plant"], 9, None),
        (["plant one, the north hall of it", "plant one, the south hall of it"], 10, ["p…north h…", "p…south h…"]),
        (["short", "names"], 5, ["short", "names"]),
        ([], 5, []),
    ],
)
def test_both_ends_are_kept(names: list[str], width: int, expected: list[str] | None):
    short = shorten(names, width)
    assert len({*short}) == len(names)
    assert expected is None or short == expected


def test_one_name_keeps_its_ends():
    assert shorten_one("/a/long/way/to/the/rows.csv", 14) == f"/a/long{GAP}ws.csv"
