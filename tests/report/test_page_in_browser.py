"""The page in a real browser: charts, slider, tables, and the same page without scripts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from browser import Tab, find_chromium, open_browser
from comparisons import dot, page_of
from tables import frame, rows

from fedcore.report.page import Plots
from fedcore.results.summary import NO_SECONDS, summarise

CHROMIUM = find_chromium()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH, and CHROMIUM does not name one"),
]
ALONE = [[0.70, 0.60, 0.50], [0.72, 0.60, 0.50], [0.68, 0.60, 0.50]]
LONG, WIDE = "n" * 200, "W" * 13
HIDDEN = "getComputedStyle({}).display === 'none'"


def made() -> pd.DataFrame:
    """One setting: `cheap` gains 10 points for 3 kB, `dear` 20 for 300 kB, but `dear` hurts the third device."""
    cheap = [[value + 0.1 for value in devices] for devices in ALONE]
    dear = [[value + change for value, change in zip(devices, (0.3, 0.4, -0.1), strict=True)] for devices in ALONE]
    guess = [[0.1] * 3] * 3
    many = {f"method_with_a_long_name_{i}{'n' * 180 * (i == 3)}": [[0.62 + 0.002 * i] * 3] * 3 for i in range(4)}
    parts = [rows({name: runs}, up=up, shared=shared) for name, runs, up, shared in (
        ("local_only", ALONE, 0.0, 0.4), ("majority", guess, 0.0, 0.1), ("per_device", guess, 0.0, 0.1),
        ("cheap", cheap, 1000.0, 0.6), ("dear", dear, 100_000.0, 0.5),
    )]  # fmt: skip
    return frame(*parts, rows(many, up=99_000.0, shared=0.3))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    table = made()
    summary = summarise(table, NO_SECONDS, frozenset({"majority", "per_device"}))
    drawn = Plots({("study", "alpha=1"): dot()}, {})
    path = tmp_path_factory.mktemp("page") / "report.html"
    text = page_of(table, summary, questions={"study": f"Which way is best? {LONG}"}, plots=drawn)
    path.write_text(text.replace("d00", WIDE))
    return path.as_uri()


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    assert CHROMIUM is not None
    with open_browser(CHROMIUM, tmp_path_factory.mktemp("profile")) as tab:
        yield tab


def labels(tab: Tab) -> list[dict[str, float]]:
    found: list[dict[str, float]] = tab.run(
        "[...document.querySelectorAll('svg .label')].map((one) => {"
        " const box = one.getBBox(); return {x: box.x, y: box.y, w: box.width, h: box.height}; })"
    )
    return found


def move(tab: Tab, place: int) -> tuple[str, str, str, str]:
    """Move the slider; return budget, headline, the advised point's name and the devices' method."""
    tab.run(f"{{ const one = document.querySelector('input[type=range]'); one.value = {place};"
            " one.dispatchEvent(new Event('input')); }")  # fmt: skip
    found: list[str] = tab.run(
        "[document.querySelector('output').textContent, document.querySelector('.answer strong').textContent,"
        " document.querySelector('.point.advised')?.getAttribute('aria-label').split(',')[0],"
        " document.querySelector('select').value]"
    )
    budget, headline, point, devices = found
    return budget, headline, point, devices


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False), (390, True)])
def test_the_page_fits_its_window_and_writes_nothing_to_the_console(tab: Tab, page: str, width: int, dark: bool):
    tab.open(page, width, dark=dark)
    assert tab.messages == []
    assert tab.run("document.documentElement.scrollWidth") == width
    assert tab.run("Math.max(...[...document.querySelectorAll('.scores td')].map((one) => one.clientWidth))") < 360
    hint = tab.run("getComputedStyle(document.querySelector('.filter small'), '::after').content")
    assert ("more columns" in hint) == (width == 390)
    red, green, blue = map(int, tab.run("getComputedStyle(document.body).backgroundColor").strip("rgb()").split(", "))
    assert max(red, green, blue) < 60 if dark else min(red, green, blue) > 200
    size = "(one) => parseFloat(getComputedStyle(one).fontSize)"
    sizes = tab.run(f"[...document.querySelectorAll('svg text')].map({size})")
    assert len(sizes) > 20
    assert min(sizes) >= 11


@pytest.mark.parametrize("width", [1280, 390])
def test_labels_do_not_overlap_and_those_of_the_front_are_there(tab: Tab, page: str, width: int):
    tab.open(page, width)
    boxes = labels(tab)
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            assert a["x"] + a["w"] <= b["x"] + 1 or b["x"] + b["w"] <= a["x"] + 1 or (
                a["y"] + a["h"] <= b["y"] + 4 or b["y"] + b["h"] <= a["y"] + 4
            ), (a, b)  # fmt: skip
    named = tab.run("[...document.querySelectorAll('svg .label')].map((one) => one.textContent)")
    assert {"local_only", "cheap", "dear"} <= {*named}
    assert {one.partition(" ")[0] for one in named if one.endswith("↓")} == {"majority", "per_device"}
    drawn = "[...document.querySelectorAll('g.point')].map((one) => [one.classList.contains('control'),"
    fills = tab.run(f"{drawn} getComputedStyle(one.querySelector('circle')).fill])")
    hollow = tab.run("getComputedStyle(document.body).backgroundColor")
    assert [fill == hollow for _, fill in fills] == [control for control, _ in fills]  # controls alone, as the key says


def test_the_method_that_the_answer_is_about_has_a_label(tab: Tab, tmp_path: Path):
    """It is worse than local training, the front, and has controls all around; and one device counts."""
    crowd = {up: {f"control {up} {i}": [[0.58 + 0.005 * i]] * 3 for i in range(9)} for up in range(600, 1800, 100)}
    parts = [rows(methods, up=float(up)) for up, methods in crowd.items()]
    table = frame(rows({"local_only": [[0.7]] * 3}, up=0.0), rows({"judged": [[0.6]] * 3}, up=1000.0), *parts)
    found = summarise(table, NO_SECONDS, frozenset(name for methods in crowd.values() for name in methods))
    text = page_of(table, found, plots=Plots({("study", "alpha=1"): dot()}, {}))
    assert "Scores after the last round, own test of one device, mean over 3 seeds, " in text
    (path := tmp_path / "crowd.html").write_text(text)
    tab.open(path.as_uri(), 390)
    assert "judged" in tab.run("[...document.querySelectorAll('svg .label')].map((one) => one.textContent)")


def test_the_slider_moves_the_recommendation(tab: Tab, page: str):
    tab.open(page)
    assert tab.run("document.querySelector('.answer strong').textContent") == "Use dear"
    assert [move(tab, place)[:2] for place in range(3)] == [
        ("less than 3 kB", "Use local training"), ("3 kB to 300 kB", "Use cheap"), ("300 kB or more", "Use dear"),
    ]  # fmt: skip
    assert move(tab, 1)[2:] == ("cheap", "cheap")
    assert not tab.run(HIDDEN.format("document.querySelector('.key-advised')"))
    assert "No combining method fits the budget" in (
        move(tab, 0) and tab.run("document.querySelector('.answer').textContent")
    )
    assert move(tab, 2)[2:] == ("dear", "dear")
    tab.run("[...document.querySelectorAll('.toggle button')].find((one) => one.textContent === 'shared test').click()")
    assert move(tab, 2)[1:3] == ("Use dear", "cheap")  # for a new device


def test_bars_show_the_changes_of_devices_of_the_method_that_is_picked(tab: Tab, page: str):
    tab.open(page)
    bars = "[...document.querySelectorAll('svg .gain, svg .loss')].map((one) => one.getAttribute('aria-label'))"
    said = tab.run(bars)
    assert [line.split(",")[0] for line in said] == ["d01", WIDE, "d02"]
    assert tab.run("Math.min(...[...document.querySelectorAll('.gain .tick')].map((one) => one.getBBox().x))") > 0
    assert said[2] == "d02, \N{MINUS SIGN}10.0 points with dear, accuracy 50.0% with local_only"
    assert tab.run("document.querySelector('[data-is=count]').textContent") == "helps 2, hurts 1 of 3"
    tab.run("[...document.querySelectorAll('.point')].find((one) => one.getAttribute('aria-label').startsWith('cheap'))"
            ".dispatchEvent(new MouseEvent('click'))")  # fmt: skip
    assert all("+10.0 points with cheap" in line for line in tab.run(bars))
    assert tab.run("document.querySelector('select').value") == "cheap"


def test_a_change_that_no_interval_shows_is_hollow_and_the_count_says_so(tab: Tab, page: str):
    tab.open(page)
    hollow = "[...document.querySelectorAll('svg .chance')].map((one) => one.getAttribute('aria-label').split(',')[0])"
    assert tab.run(hollow) == []
    tab.run("(s => { s.value = 'method_with_a_long_name_0'; s.dispatchEvent(new Event('change')); })"
            "(document.querySelector('select'))")  # fmt: skip
    assert tab.run(hollow) == [WIDE]  # of its three seeds two are above 0.62
    assert tab.run("document.querySelector('[data-is=count]').textContent") == "helps 2, hurts 1 of 3; may be chance"


def test_values_show_on_hover(tab: Tab, page: str):
    tab.open(page)
    assert tab.run(HIDDEN.format("document.querySelector('.tip')"))
    tab.run(
        "document.querySelector('.point.advised')"
        ".dispatchEvent(new PointerEvent('pointerenter', {clientX: 300, clientY: 300}))"
    )
    assert tab.run("document.querySelector('.tip').innerText").split("\n") == [
        "dear", "80.0% ± 1.8 (95 %)", "worst device 40.0%", "sends 100 kB, receives 200 kB", "rank 1, on the front",
    ]  # fmt: skip


def column(tab: Tab, place: int) -> list[Any]:
    found: list[Any] = tab.run(
        "[...document.querySelectorAll('.scores tbody tr')].filter((row) => !row.hidden)"
        f".map((row) => row.cells[{place}].textContent.trim())"
    )
    return found


def test_the_table_sorts_by_numbers_and_filters(tab: Tab, page: str):
    tab.open(page)
    heads = tab.run("[...document.querySelectorAll('.scores th')].map((one) => one.textContent.replace('\\n', ' '))")
    sent = heads.index("up per device")
    click = f"document.querySelectorAll('.scores th')[{sent}].querySelector('button').click()"
    tab.run(click)
    assert column(tab, sent)[0] == "100 kB"
    assert column(tab, sent)[-1] == "0"
    tab.run(click)
    assert column(tab, sent)[3] == "1 kB"  # after the three that send nothing; as text it would come first or last
    assert tab.run(f"document.querySelectorAll('.scores th')[{sent}].ariaSort") == "ascending"
    tab.run("{ const one = document.querySelector('input[type=search]'); one.value = 'LONG';"
            " one.dispatchEvent(new Event('input')); }")  # fmt: skip
    assert len(column(tab, 1)) == 4
    tab.run("{ const one = document.querySelector('input[type=search]'); one.value = '';"
            " one.dispatchEvent(new Event('input')); }")  # fmt: skip
    assert "majority" in column(tab, 1)
    tab.run("document.querySelector('input[type=checkbox]').click()")
    assert "majority" not in column(tab, 1)


def test_without_scripts_the_answer_tables_and_a_picture_are_there(tab: Tab, page: str):
    """The browser's own tree, as its scripts are off."""
    tab.open(page, scripts=False)
    shown = tab.do("DOMSnapshot.captureSnapshot", computedStyles=["display"])
    words = shown["strings"]
    boxes = [words[i] for i in shown["documents"][0]["layout"]["text"] if i >= 0]
    text = " ".join(boxes)
    assert "Use dear" in text
    assert "method_with_a_long_name_3" in text
    assert "Traffic budget" not in text
    assert "Filter" not in text
    kinds = shown["documents"][0]["nodes"]["nodeName"]
    drawn = [words[kinds[node]] for node in shown["documents"][0]["layout"]["nodeIndex"]]
    assert drawn.count("IMG") == 1
    assert "svg" not in drawn
