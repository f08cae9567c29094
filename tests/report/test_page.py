import ast
import base64
import hashlib
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from comparisons import LINKS, METHODS, WICKED, add_links, claims, comparison, dot, page_of, summary, sweep
from tables import frame, grouped, rows

from fedcore.config.papers import Condition, Figure, Paper, Value
from fedcore.report import figures
from fedcore.report import page as module
from fedcore.report.page import Plots, draw
from fedcore.results.criterion import Criterion
from fedcore.results.outcomes import Outcomes
from fedcore.results.summary import by_group

REPORT = Path(module.__file__).parent
PICTURE = dot()


def undrawn(
    table: pd.DataFrame, found: pd.DataFrame, questions: Mapping[str, str] = MappingProxyType({}), **more: Any
) -> str:
    """A page of which no plot is drawn, which takes most of its time: each is one pixel."""
    places = zip(found["study"], found["setting"], strict=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "png", lambda drawing: PICTURE)
        return page_of(table, found, questions=questions, plots=Plots(dict.fromkeys(places, PICTURE), {}), **more)


class Page(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag != "p" or self.open[-1] == "p":
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def texts(page: str, tag: str) -> list[str]:
    """The text in each of a page's elements of one kind."""
    return [Page(part.partition(f"</{tag}>")[0]).words for part in re.split(rf"<{tag}\b[^>]*>", page)[1:]]


@pytest.fixture(scope="module")
def page() -> str:
    table, found = comparison()
    picture = figures.heat_map([[0.0, 1.0]], "who")
    given = {("study", "alpha=1"): {"Who holds what": picture, "Again": figures.png(picture)}}
    return page_of(table, found, questions={"study": "Who is best?"}, pictures=given)


@pytest.mark.slow
def test_the_page_needs_nothing_else(page: str):
    tags = Page(page).tags
    for tag, attributes in tags:
        assert tag not in ("link", "iframe", "object")
        for key in ("src", "href"):
            assert (attributes.get(key) or "#").startswith(("data:image/png;base64,", "#"))
    assert (REPORT / "templates" / "style.css").read_text() in page
    script = (REPORT / "templates" / "page.js").read_text()
    assert f"<script>{script}</script>" in page
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(
        attributes["content"] for _, attributes in tags if "content" in attributes and "http-equiv" in attributes
    )
    assert policy == f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'"
    assert "url(" not in page
    assert "@import" not in page
    assert "http://" not in page
    assert "https://" not in page
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {f"#{name}" for name in ids} >= {attributes["href"] for tag, attributes in tags if tag == "a"}


@pytest.mark.slow
def test_the_page_shows_every_setting_method_and_picture(page: str):
    seen = Page(page)
    assert not seen.open
    for name in [*METHODS, "Who is best?", "alpha=1", "alpha=1 more", "Who holds what", "Again", "How to read this"]:
        assert name in seen.words
    pictures = [attributes for tag, attributes in seen.tags if tag == "img"]
    assert len(pictures) == (3 + 2) + 2  # the second setting has neither several rounds nor given pictures
    assert all(picture["alt"] for picture in pictures)
    assert seen.tags.count(("tr", {"class": "control"})) == 2


@pytest.mark.slow
def test_the_same_input_gives_the_same_page():
    table = frame(rows({"a": [[0.5, 0.6]]}))
    assert page_of(table, summary(table)) == page_of(table, summary(table))


# names


@pytest.mark.slow
def test_names_are_escaped():
    table = add_links(frame(rows({WICKED: [[0.5, 0.6]]}, setting=WICKED)), {WICKED: LINKS["a"][:1]})
    table = table.assign(study=WICKED, dataset=WICKED, device="<i>" + table["device"])
    told = claims().assign(study=WICKED, says=WICKED, rule=WICKED, of=WICKED, where=WICKED, numbers=WICKED)
    domains = by_group(grouped(table, {"<i>d00": WICKED, "<i>d01": "B", "<i>d02": "B"}))
    text = page_of(
        table, summary(table), questions={WICKED: WICKED}, pictures={(WICKED, WICKED): {WICKED: PICTURE}},
        claims=told, along={WICKED: PICTURE}, groups=domains, notes={(WICKED, WICKED): [f"noted {WICKED}"]},
    )  # fmt: skip
    seen = Page(text)
    assert WICKED not in text
    assert "<i>d0" not in text
    assert seen.open == []
    assert sum(tag == "script" for tag, _ in seen.tags) == 2
    assert all(set(attributes) == {"alt", "src", "loading"} for tag, attributes in seen.tags if tag == "img")
    words = seen.words
    assert f"noted {WICKED}" in words
    for place in ("tbody", "nav", "h2", "small", "figcaption"):
        assert WICKED in "".join(texts(text, place)), place
    assert words.count(WICKED) > 5 * len(told)
    alts = [attributes["alt"] or "" for tag, attributes in seen.tags if tag == "img"]
    assert WICKED in alts


@pytest.mark.slow
def test_without_a_question_the_study_is_named_and_escaped():
    table = frame(rows({"a": [[0.5, 0.6]]})).assign(study=WICKED)
    text = undrawn(table, summary(table))
    assert WICKED not in text
    assert WICKED in Page(text).words


@pytest.mark.slow
def test_no_module_makes_html():
    """Tags belong in the templates, which escape all that is put between them."""
    for path in REPORT.glob("*.py"):
        tree = ast.parse(path.read_text())
        texts = [
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        if path.name == "results.py":
            texts.remove("<br>")  # of a Markdown table, which has no other new line
        assert not [text for text in texts if re.search(r"</?[a-zA-Z!]|<$|&\w+;", text)], path.name
        assert not re.search(r"\bMarkup\b|autoescape=(?!True)", path.read_text()), path.name


def test_no_template_turns_escaping_off():
    templates = [*REPORT.glob("templates/*.jinja")]
    assert len(templates) > 1
    for path in templates:
        assert not re.search(r"\|\s*safe\b|autoescape", path.read_text()), path.name


# claims, and studies of many settings


@pytest.mark.slow
def test_the_page_shows_each_claim_of_a_study_with_verdict_and_numbers():
    table, found = once(), summary(once())
    text = undrawn(table, found, {"study": "Who?"}, claims=claims(), along={"study": PICTURE})
    page = Page(text)
    assert page.open == []
    for word in (
        "holds", "holds in most", "does not hold", "not tested", "It is cheap", "holds in 0 of 1 setting; least: +3",
        "a ~ b within 1",
    ):  # fmt: skip
        assert word in page.words
    assert f"{WICKED} is best" in page.words  # as text, not as a tag
    assert "where alpha = 1 (shared.accuracy)" in page.words
    assert "Never mind" not in page.words
    assert "over the study's settings" in page.words
    plain = undrawn(table, found, {"study": "Who?"}, claims=claims()[:0], along={})
    assert undrawn(table, found, {"study": "Who?"}) == plain


@pytest.mark.slow
def test_the_page_shows_what_the_paper_prints_and_its_conditions():
    table = frame(rows({"a": [[0.5, 0.6]]}))
    value = Value(what=WICKED, paper=0.9505, ours=0.93, spread=0.01, seeds=3)
    figure = Figure(name="Table II", shows="accuracy", status="run", command="x", values=[value])
    condition = Condition(setting="pixels", paper=WICKED, place="Section V", ours="[0, 1]", reason="?", effect="none")
    paper = Paper(conditions=[condition], figures=[figure])
    text = undrawn(table, summary(table), papers={"study": paper})
    page = Page(text)
    assert page.open == []
    assert WICKED not in text
    for words in (
        "Printed in the paper, beside ours", "0.9505", "0.93, std 0.01 (3 seeds)", "-0.0205", "within 3 sd",
        "Section V",
    ):  # fmt: skip
        assert words in page.words
    assert page.words.count(WICKED) == 2
    assert undrawn(table, summary(table), papers={"other": paper}) == undrawn(table, summary(table))


@pytest.mark.slow
def test_each_of_many_settings_has_a_table_and_the_given_pictures_only():
    table = sweep(4)
    given = {("study", "devices=1"): {"Who holds what": figures.png(figures.heat_map([[1.0]], "x"))}}
    page = Page(page_of(table, summary(table), questions={"study": "Who?"}, pictures=given))
    tags = [tag for tag, _ in page.tags]
    assert (tags.count("table"), tags.count("img")) == (4, 1)
    assert tags.count("details") == 4 + 1 + 1  # each setting, the pictures of one, how to read


@pytest.mark.slow
def test_outcomes_of_the_best_rows_unfold():
    table = frame(rows({f"row {i}": [[0.9 - 0.1 * i] * 3] * 2 for i in range(6)}))
    found = summary(table)
    one = Outcomes((WICKED, "b"), np.array([[3, 1], [0, 4]]), np.array([[8.0, 7.2, 7.0]]))
    given = {("study", "base"): {f"row {i}": one for i in (0, 1, 3, 4, 5)}}
    setting = found["setting"].iloc[0]
    page = undrawn(table, found, outcomes={("study", setting): given["study", "base"]})
    folded = [text for text in texts(page, "summary") if "predicted" in text]
    assert folded == [f"row {i}: predicted classes, and expected calibration error 2.5 points" for i in (0, 1, 3, 4)]
    assert WICKED not in page
    assert Page(page).words.count(WICKED) == 2 * len(folded)
    assert undrawn(table, found, outcomes={}) == undrawn(table, found)


# domains, links and pictures


@pytest.mark.slow
def test_accuracy_by_domain_is_shown_where_there_are_several():
    table = frame(rows({"a": [[0.8, 0.6, 0.1], [0.9, 0.5, 0.3]], WICKED: [[0.5] * 3] * 2}))
    found = summary(table)
    two, one = ({"d00": "A", "d01": "A", "d02": last} for last in ("B", "A"))
    text = undrawn(table, found, groups=by_group(grouped(table, two)))
    page = Page(text)
    assert page.open == []
    assert "Accuracy by domain" in page.words
    assert "own test, %" in page.words
    for words in ("70.0", "20.0", "50.0"):
        assert words in page.words
    without = undrawn(table, found)
    assert undrawn(table, found, groups=by_group(grouped(table, one))) == without
    assert "Accuracy by domain" not in without


@pytest.mark.slow
def test_links_are_shown_with_accuracy_and_energy():
    table = frame(rows({"a": [[0.8] * 3] * 2, "b": [[0.5] * 3] * 2, "local": [[0.5] * 3] * 2}))
    found = summary(table)
    assert "Who teaches whom" not in undrawn(table, found)
    page = Page(undrawn(add_links(table, LINKS), found))
    assert page.open == []
    for words in ("Who teaches whom", "70 ± 135", "± 95 %", "12 ± 0", "25"):
        assert words in page.words


@pytest.mark.slow
def test_the_page_shows_plots_that_were_already_drawn():
    table, found = comparison()
    one, two, three = (dot(colour) for colour in ("red", "green", "blue"))
    own = Plots({("study", "alpha=1"): one, ("study", "alpha=1 more"): two}, {("study", "alpha=1"): three})
    tags = Page(page_of(table, found, plots=own)).tags
    shown = [(attributes["src"] or "").partition("base64,")[2] for tag, attributes in tags if tag == "img"]
    for picture in (one, two, three):
        assert shown.count(base64.b64encode(module.few_colours(picture)).decode()) == 1
    table = frame(*(rows({"a": [[0.8, 0.6]], "b": [[0.5, 0.6]]}, at=at) for at in (1, 2)))
    found = summary(table)
    assert page_of(table, found, plots=draw(table, found, Criterion())) == page_of(table, found)


def once() -> pd.DataFrame:
    return frame(rows({"a": [[0.8, 0.6]]}))


@pytest.mark.slow
def test_bytes_per_round_and_the_spread_over_devices_are_on_the_page():
    table = frame(*(rows({"a": [[0.8, 0.6]]}, at=at, up=1000.0 * at) for at in (1, 2)))
    page = Page(undrawn(table, summary(table)))
    assert "up per\ndevice,\nround" in page.words
    assert "1.5 kB" in page.words  # a device sends 1 kB, then 2 kB
    assert "14.1" in page.words  # .2 / sqrt(2), the devices' standard deviation
    assert "up per\ndevice,\nround" not in Page(undrawn(once(), summary(once()))).words
