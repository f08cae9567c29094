from __future__ import annotations

import base64
import io
from html.parser import HTMLParser

import pandas as pd
import pytest
from rich.console import Console
from tables import NO_SECONDS, drawn, frame, grouped, rows

from fedcore.results import figures
from fedcore.results.summary import COLUMNS, by_group, summarise
from tasks.report.page import Drawn, courses, csv, draw, html, links, print_claims, print_summary

METHODS = ["local_only", "code_ot", "half_best"]
WICKED = '<b>&"x"</b>'


class Page(HTMLParser):
    """What a page holds: tags with their attributes, and words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag != "p" or self.open[-1] == "p":
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def made(names: list[str] = METHODS, setting: str = "alpha=1") -> tuple[pd.DataFrame, pd.DataFrame]:
    table = pd.concat([drawn(names, 4, rounds=2), drawn(names, 4, seeds=1, setting=setting + " more")])
    seconds = table[["study", "setting", "method", "seed"]].drop_duplicates().assign(kind="train", wall=1.5, cpu=2.5)
    return table, summarise(table, seconds, frozenset(names[-1:]))


def printed(summary: pd.DataFrame, width: int) -> str:
    out = io.StringIO()
    print_summary(summary, Console(file=out, width=width))
    return out.getvalue()


@pytest.fixture(scope="module")
def page() -> str:
    table, summary = made()
    picture = figures.heat_map([[0.0, 1.0]], "who")
    given = {("study", "alpha=1"): {"Who holds what": picture, "Again": figures.png(picture)}}
    return html(table, summary, {"study": "Who is best?"}, given)


def test_the_page_needs_nothing_else(page: str):
    tags = Page(page).tags
    for tag, attributes in tags:
        assert tag not in ("script", "link", "iframe", "object")
        for key in ("src", "href"):
            assert (attributes.get(key) or "#").startswith(("data:image/png;base64,", "#"))
    assert "url(" not in page
    assert "http://" not in page
    assert "https://" not in page
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {f"#{name}" for name in ids} == {attributes["href"] for tag, attributes in tags if tag == "a"}


def test_the_page_shows_every_setting_method_and_picture(page: str):
    seen = Page(page)
    assert not seen.open
    for name in [*METHODS, "Who is best?", "alpha=1", "alpha=1 more", "Who holds what", "Again", "How to read this"]:
        assert name in seen.words
    pictures = [attributes for tag, attributes in seen.tags if tag == "img"]
    assert len(pictures) == (4 + 2) + 3  # the second setting has neither several rounds nor given pictures
    assert all(picture["alt"] for picture in pictures)
    assert page.count("<tr class=control>") == 2


def test_the_same_input_gives_the_same_page():
    table = frame(rows({"a": [[0.5, 0.6]]}))
    summary = summarise(table, NO_SECONDS, frozenset())
    assert html(table, summary, {}, {}) == html(table, summary, {}, {})


def test_names_are_escaped():
    table = frame(rows({WICKED: [[0.5, 0.6]]}, setting=WICKED))
    page = html(
        table, summarise(table, NO_SECONDS, frozenset()), {"study": WICKED}, {("study", WICKED): {WICKED: b"x"}}
    )
    assert WICKED not in page
    assert Page(page).words.count(WICKED) >= 5
    assert "b" not in {tag for tag, _ in Page(page.partition('id="reading"')[0]).tags}


def test_the_terminal_table_fits_100_columns():
    text = printed(made()[1], 100)
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text
    for word in [*METHODS, "study: alpha=1 (digits)", "control", "4 kB", "1.5", "devices", "serves the 4 devices best"]:
        assert word in text
    assert "\x1b" not in text


def test_a_narrow_terminal_drops_columns_not_digits():
    text = printed(made()[1], 80)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert all(name in text for name in METHODS)


def test_ties_and_unknown_seconds():
    table = frame(rows({"a": [[0.5, 0.6], [0.5, 0.6]], "[red]b": [[0.6, 0.5], [0.6, 0.5]]}))
    text = printed(summarise(table, NO_SECONDS, frozenset()), 100)
    assert text.count("1=") == 2
    assert "= a tie" in text
    assert "[red]b" in text
    assert "seconds" not in text


def test_without_a_console_it_prints_plain_text(capsys: pytest.CaptureFixture[str]):
    print_summary(made()[1])
    assert "local_only" in capsys.readouterr().out


def test_csv_reads_back():
    summary = made()[1]
    text = csv(summary)
    back = pd.read_csv(io.StringIO(text))
    assert list(back.columns) == COLUMNS
    assert text == csv(summary)
    pd.testing.assert_series_equal(back["test_mean"], summary["test_mean"], rtol=1e-5)
    assert back["rank"].isna().tolist() == summary["control"].tolist()


# claims, and studies of many settings


def claims() -> pd.DataFrame:
    columns = ["study", "says", "rule", "of", "where", "verdict", "numbers"]
    found = [
        ("study", f"{WICKED} is best", "a > b", "shared.accuracy", "alpha = 1", "holds", "in 1 of 1"),
        ("study", "It is cheap", "a ~ b within 1", "shared.loss", "", "does not hold", "in 0 of 1; most against: +3"),
        ("study", "It lasts", "a rises with round", "shared.accuracy", "", "not tested", "needs two seeds"),
        ("elsewhere", "Never mind", "a > b", "shared.accuracy", "", "holds", "in 1 of 1"),
    ]
    return pd.DataFrame(found, columns=columns)


def test_the_page_says_of_every_claim_of_a_study_whether_it_holds_with_the_numbers():
    table, summary = made()
    text = html(table, summary, {"study": "Who?"}, {}, claims(), {"study": figures.png(figures.heat_map([[1.0]], "x"))})
    page = Page(text)
    assert page.open == []
    for word in ("holds", "does not hold", "not tested", "It is cheap", "most against: +3", "a ~ b within 1"):
        assert word in page.words
    assert f"{WICKED} is best" in page.words  # as text, not as a tag
    assert "where alpha = 1 (shared.accuracy)" in page.words
    assert "Never mind" not in page.words
    assert "over the study's settings" in page.words
    assert html(table, summary, {"study": "Who?"}, {}) == html(table, summary, {"study": "Who?"}, {}, claims()[:0], {})


def test_claims_are_printed():
    out = io.StringIO()
    print_claims(claims(), Console(file=out, width=100))
    words = " ".join(out.getvalue().split())
    assert "study: what the paper claims" in words
    assert "does not hold: It is cheap a ~ b within 1 (shared.loss): in 0 of 1; most against: +3" in words
    out = io.StringIO()
    print_claims(claims()[:0], Console(file=out, width=100))
    assert out.getvalue() == ""


def test_a_study_of_many_settings_is_printed_as_one_table():
    names = ["local_only", "code_ot", "half_best"]
    table = pd.concat([drawn(names, 4, seeds=2, setting=f"devices={count}") for count in (2, 4, 8, 16)])
    summary = summarise(table, NO_SECONDS, frozenset(["half_best"]))
    text = printed(summary, 100)
    lines = text.splitlines()
    for count in (2, 4, 8, 16):
        (line,) = [line for line in lines if line.startswith(f"devices={count} ")]
        found = summary[summary["setting"] == f"devices={count}"].set_index("method")["test_mean"]
        order = [*(name for name in summary["method"].unique() if name != "half_best"), "half_best"]
        assert line.split()[1:] == [f"{100 * found[name]:.1f}" for name in order]
    assert text.count("accuracy on own test data") == 1


def test_the_page_of_a_study_of_many_settings_shows_a_table_for_each_and_the_given_pictures_only():
    names = ["local_only", "code_ot"]
    table = pd.concat([drawn(names, 2, seeds=2, setting=f"devices={count}") for count in (2, 4, 8, 16)])
    summary = summarise(table, NO_SECONDS, frozenset())
    given = {("study", "devices=4"): {"Who holds what": figures.png(figures.heat_map([[1.0]], "x"))}}
    page = Page(html(table, summary, {"study": "Who?"}, given))
    tags = [tag for tag, _ in page.tags]
    assert (tags.count("table"), tags.count("img")) == (4, 1)


# groups and curves


def test_accuracy_by_domain_is_shown_where_there_are_several():
    table = frame(rows({"a": [[0.8, 0.6, 0.1], [0.9, 0.5, 0.3]], WICKED: [[0.5] * 3] * 2}))
    summary = summarise(table, NO_SECONDS, frozenset())
    two, one = ({"d00": "A", "d01": "A", "d02": last} for last in ("B", "A"))
    text = html(table, summary, {}, {}, groups=by_group(grouped(table, two)))
    page = Page(text)
    assert page.open == []
    assert "Accuracy by domain" in page.words
    assert "own test, % ± devices" in page.words
    for words in ("70.0 ± 21.2", "20.0 ± -", "50.0 ± 0.0"):
        assert words in page.words
    without = html(table, summary, {}, {})
    assert html(table, summary, {}, {}, groups=by_group(grouped(table, one))) == without
    assert "Accuracy by domain" not in without


@pytest.mark.parametrize(("settings", "keys"), [(3, 3), (4, 1), (13, 0)])
def test_a_picture_of_the_rounds_for_each_of_few_settings_one_for_several(settings: int, keys: int):
    table = pd.concat([drawn(METHODS, 2, rounds=3, seeds=1, setting=f"devices={i}") for i in range(settings)])
    found = courses(table, summarise(table, NO_SECONDS, frozenset()))
    assert len(found) == keys
    assert all(picture.startswith(b"\x89PNG") for picture in found.values())
    assert keys != 1 or list(found) == [("study", "")]


def test_the_page_shows_what_was_drawn_of_the_same_tables():
    table, summary = made()
    own = Drawn({("study", "alpha=1"): b"one", ("study", "alpha=1 more"): b"two"}, {("study", "alpha=1"): b"three"})
    tags = Page(html(table, summary, {}, {}, drawn=own)).tags
    shown = [attributes["src"].partition("base64,")[2] for tag, attributes in tags if tag == "img"]
    for picture in (b"one", b"two", b"three"):
        assert shown.count(base64.b64encode(picture).decode()) == 1
    assert html(table, summary, {}, {}, drawn=draw(table, summary)) == html(table, summary, {}, {})


@pytest.mark.parametrize(("settings", "drawn"), [(3, 3), (4, 0)])
def test_a_comparison_is_drawn_for_each_of_few_settings(settings: int, drawn: int):
    table = frame(*(rows({"a": [[0.5, 0.6 + i / 100]]}, setting=f"devices={i}") for i in range(settings)))
    found = draw(table, summarise(table, NO_SECONDS, frozenset())).comparisons
    assert len(found) == drawn
    assert len(set(found.values())) == drawn


def test_a_single_round_has_no_course():
    table = drawn(METHODS, 2)
    assert courses(table, summarise(table, NO_SECONDS, frozenset())) == {}


def test_bytes_per_round_and_the_spread_over_devices_are_on_the_page():
    table = frame(*(rows({"a": [[0.8, 0.6]]}, at=at, up=1000.0 * at) for at in (1, 2)))
    page = Page(html(table, summarise(table, NO_SECONDS, frozenset()), {}, {}))
    assert "up per deviceand round" in page.words
    assert "1.5 kB" in page.words  # a device sends 1 kB, then 2 kB
    assert "14.1" in page.words  # .2 / sqrt(2), the devices' standard deviation
    assert "up per deviceand round" not in Page(html(*made_once(), {}, {})).words


def made_once() -> tuple[pd.DataFrame, pd.DataFrame]:
    table = frame(rows({"a": [[0.8, 0.6]]}))
    return table, summarise(table, NO_SECONDS, frozenset())


# links


def linked(table: pd.DataFrame, told: dict[str, list[list[tuple[float, float, float]]]]) -> pd.DataFrame:
    """Add links to a tidy table: method -> seed -> device -> target, energy, accuracy (a target's)."""
    first = table.iloc[0]
    more = [
        {
            **first,
            "method": method,
            "seed": seed,
            "device": f"d{i:02d}",
            "split": "links",
            "metric": name,
            "value": value,
        }
        for method, seeds in told.items()
        for seed, devices in enumerate(seeds)
        for i, (target, energy, accuracy) in enumerate(devices)
        for name, value in {"target": target, "energy": energy, "accuracy": accuracy}.items()
        if name != "accuracy" or target
    ]
    return pd.concat([table, pd.DataFrame(more)], ignore_index=True)


def test_links_are_told_by_row_with_targets_accuracy_and_energy_in_all():
    table = frame(rows({"a": [[0.8] * 3] * 2, "b": [[0.5] * 3] * 2, "local": [[0.5] * 3] * 2}))
    summary = summarise(table, NO_SECONDS, frozenset())
    without = html(table, summary, {}, {})
    assert "Who teaches whom" not in without
    told = {
        "a": [[(0, 4, 0), (1, 0, 0.5), (1, 0, 0.7)], [(0, 2, 0), (0, 0, 0), (1, 0, 0.8)]],
        "b": [[(0, 6, 0), (1, 0, 0.5), (1, 6, 0.5)], [(0, 12, 0), (1, 0, 0.1), (1, 0, 0.3)]],
    }
    table = linked(table, told)
    found = links(table)
    means = {method: {name: mean for name, (mean, _) in row.items()} for method, row in found.items()}
    assert means["a"] == pytest.approx({"accuracy": 70, "target": 1.5, "energy": 3, "share": 25})
    assert means["b"] == pytest.approx({"accuracy": 35, "target": 2, "energy": 12, "share": 100})
    assert found["a"]["accuracy"][1] == pytest.approx(200**0.5)
    page = Page(html(table, summary, {}, {}))
    assert page.open == []
    for words in ("Who teaches whom", "70 ± 14", "12 ± 0", "25"):
        assert words in page.words
