"""The pages of results: their verdicts follow from those of claims, and the committed ones are those of the files."""

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from page_numbers import FAMILIES
from project_params import PARAMS, ROOT, refusal

from benchmarks.forest import dots
from benchmarks.paper_pages import NEAR, Card, Line, PaperPage, judged, read_pages, verdict_on
from benchmarks.results_page import first_page, measured, paper_page, said

PAGES = read_pages()
CLAIMS = """study,says,rule,of,where,verdict,numbers,holds_in,contradicted_in,tested_in,a,b
s,a is good,a > b,shared.accuracy,,holds,"in 2 of 2 settings; least: +0.43 [+0.3, +0.56] at k=1 (3 seeds)",2,0,2,.53,.1
s,a is good,a > c,shared.accuracy,,not shown,"in 0 of 2 settings; x: -0.02 [-0.05, +0.01] (5 seeds)",0,1,2,,
s,a is good,a > b,shared.accuracy,k = 1,not tested,at chance,0,0,0,,
s,(ours) a is good,a > d,shared.accuracy,,holds,in 1 of 1 setting,1,0,1,,
"""


def line(**changes: object) -> Line:
    settings = {"says": "a is best.", "file": "code-x", "rules": ["a > b", "a > c"], "table": "x.csv"}
    return Line(**{**settings, **changes})


def page(folder: Path, *lines: Line, verdicts: list[str], **settings: Any) -> str:
    (folder / "docs" / "results").mkdir(parents=True, exist_ok=True)
    (folder / "docs" / "results" / "code-x-claims.csv").write_text(CLAIMS)
    words = dict.fromkeys(("headline", "idea", "pays", "fails", "instead", "cost"), "x")
    made = PaperPage(
        name="A",
        card=Card(**words, verdicts=verdicts),
        about="An idea.",
        near={},
        forest=[],
        lines=list(lines),
        **settings,
    )
    return paper_page("code", made, folder)


@pytest.mark.parametrize(
    ("verdicts", "says"),
    [
        (["holds", "holds"], "holds"), (["holds", "holds in most"], "holds in most"), (["not shown"], "not shown"),
        (["contradicted", "contradicted"], "contradicted"), (["not tested", "not tested"], "could not be tested"),
        (["holds", "contradicted"], "contradicted in part"), (["holds", "not tested"], "holds in part"),
        (["holds in most", "not shown"], "holds in part"), (["not shown", "not tested"], "not shown"),
        (["contradicted", "not shown"], "contradicted in part"),
        (["another regime", "not run to its end", "not tested"], "another regime"),
        (["not run to its end", "not tested"], "not run to its end"), (["holds", "another regime"], "holds in part"),
    ],
)  # fmt: skip
def test_a_statement_is_answered_by_its_claims(verdicts: list[str], says: str):
    assert verdict_on(pd.DataFrame({"verdict": verdicts})) == says


def test_a_claim_that_was_not_tested_is_no_evidence_beside_others():
    """Its settings are not counted, and its numbers not quoted."""
    rows = pd.DataFrame({"verdict": ["another regime", "contradicted", "holds"]})
    assert [*judged(rows)["verdict"]] == ["contradicted", "holds"]
    assert len(judged(rows[:1])) == 1


def test_a_line_has_its_verdict_its_weakest_numbers_and_its_links(tmp_path: Path):
    lines = [line(), line(says="b.", rules=["a > c"], note="Note.")]
    text = page(tmp_path, *lines, verdicts=["holds in part", "not shown"], names={"a": "A"}, also=["More."])
    weakest = "A above c: 1 opposite, 1 open; -2.0 [-5.0, +1.0] (5 seeds)"
    start = "[holds in part](code-x-claims.csv), 2 yes, 1 opposite, 1 open | a is best."
    assert f"| {start} | {weakest} ([numbers](x.csv)) |  |" in text
    assert "| -2.0 [-5.0, +1.0] (5 seeds) ([numbers](x.csv)) | Note. |" in text
    assert "* More." in text


def test_a_line_may_be_of_some_settings_alone(tmp_path: Path):
    words = "could not be tested"
    assert f"| [{words}](code-x-claims.csv) |" in page(tmp_path, line(rules=["a > b"], where="k = 1"), verdicts=[words])


def test_one_opposite_contradicts_a_bound(tmp_path: Path):
    text = page(tmp_path, line(rules=["a > c"], always=True), verdicts=["contradicted"])
    assert "[contradicted](code-x-claims.csv), 1 opposite, 1 open |" in text


def test_a_card_stands_for_its_verdicts(tmp_path: Path):
    says = "papers.results.code.card was written when the verdict on line 1 was 'not shown'; it is 'holds in part' now"
    assert refusal(page, tmp_path, line(), verdicts=["not shown"]).startswith(says)
    assert "on line 2 was 'none'" in refusal(page, tmp_path, *[line()] * 2, verdicts=["holds in part"])


def test_a_line_without_a_claim_is_refused(tmp_path: Path):
    says = "papers: 'a is best.': code-x-claims.csv has no claim 'a > z'"
    assert refusal(page, tmp_path, line(rules=["a > z"]), verdicts=[]) == says


@pytest.mark.slow
def test_the_committed_pages_are_those_of_the_files():
    """python -m benchmarks.results_page writes them."""
    assert (ROOT / "docs" / "results.md").read_text() == first_page(PAGES)
    for family, one in PAGES.items():
        assert (ROOT / "docs" / "results" / f"{family}.md").read_text() == paper_page(family, one)
    file = ROOT / "docs" / "results" / "forest.csv"
    forest = pd.read_csv(file, keep_default_na=False, na_values={"low": "", "high": ""})
    pd.testing.assert_frame_equal(forest, dots(PAGES, PARAMS), check_dtype=False, atol=2e-3)


def test_every_file_of_numbers_has_its_command_its_machine_and_its_time():
    results = ROOT / "docs" / "results"
    runs = pd.read_csv(results / "runs.csv", keep_default_na=False)
    assert list(runs) == ["file", "command", "machine", "time"]
    assert (runs.map(len) > 0).all(axis=None)
    numbers = {path.name for path in results.glob("*.csv") if not path.stem.endswith("-claims")} - {"runs.csv"}
    assert numbers <= set(runs["file"])
    assert all((results / name).is_file() for name in runs["file"])


def test_no_card_is_long_and_no_cell_of_a_page():
    for family, one in PAGES.items():
        words = " ".join([one.card.idea, one.card.pays, one.card.fails, one.card.instead, one.card.cost]).split()
        assert len(words) <= 40, (family, len(words))
        assert set(one.near.values()) & set(NEAR)
    for name in ("results", *(f"results/{family}" for family in PAGES)):
        text = re.sub(r"\]\([^)]*\)", "]", (ROOT / "docs" / f"{name}.md").read_text())
        cells = [cell.split() for row in text.splitlines() if row.startswith("|") for cell in row.split("|")]
        assert max(sum(bool(re.search(r"\w", word)) for word in cell) for cell in cells) <= 25, name


@pytest.mark.parametrize("family", ["code", "dfl", "fedasa", "st_lf"])
def test_the_rows_of_a_papers_lines_have_plain_names_and_its_files_exist(family: str):
    paper = PAGES[family]
    rules = " ".join(rule for line in paper.lines for rule in line.rules)
    words = set(re.findall(r"(?<![\w.])[a-z][\w.]*(?![\w.])", rules)) - {"rises", "falls", "with", "within"}
    assert words <= set(paper.names)
    assert all((ROOT / "docs" / "results" / line.table).is_file() for line in paper.lines)


@pytest.mark.parametrize("family", ["code", "dfl", "fedasa", "st_lf"])
@pytest.mark.slow
def test_the_numbers_of_sentences_by_hand_are_those_of_files(family: str):
    paper = PAGES[family]
    sentences = {key: text for key, text in paper.card.model_dump().items() if key != "verdicts"}
    sentences["near"] = " ".join(paper.near[key] for key in ("baseline", "here", "paper"))
    sentences |= {f"note {place}": line.note for place, line in enumerate(paper.lines)}
    sentences |= {f"also {place}": text for place, text in enumerate(paper.also)}
    written = {key: NUMBER.findall(LINK.sub("", text)) for key, text in sentences.items()}
    assert {key: numbers for key, numbers in written.items() if numbers} == FAMILIES[family]()


NUMBER = re.compile(r"(?<![\w.])(?:\d*\.\d+|\d[\d,]*\d|\d)")
LINK = re.compile(r"\]\([^)]*\)")


WORDS = {"a": "A", "b": "B", "k": "the key", "x=": "{} devices", "y=1": "even", "z=2": ""}


def claim(
    rule: str, numbers: str = "", of: str = "shared.accuracy", verdict: str = "holds", **more: object
) -> pd.Series:
    kept = {"holds_in": 1, "contradicted_in": 0, "tested_in": 1, "a": "", "b": ""}
    return pd.Series({"rule": rule, "numbers": numbers, "of": of, "verdict": verdict, **kept, **more})


@pytest.mark.parametrize(
    ("rule", "of", "words"),
    [
        ("a > b", "shared.accuracy", "A above B"),
        ("a > b", "traffic.bytes_up", "A above B (bytes that a device sends in a round)"),
        ("a ~ b within 0.03", "shared.accuracy", "A and B within 3 points"),
        ("a - b > 0.09", "shared.accuracy", "A ahead of B by 9 points"),
        ("a rises with k", "shared.accuracy", "accuracy of A rises with the key"),
        ("a stays within 0.5 with k", "links.energy", "energy per device of A stays within 0.5 with the key"),
        ("a > 0.05", "links.target", "share of devices that are targets"),
        ("1e-7 > a", "transport.excess", "cost above the cheapest"),
    ],
)
def test_a_rule_is_said_in_plain_names(rule: str, of: str, words: str):
    assert said(claim(rule, of=of), WORDS) == words


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (
            claim("a > b", "least: +0.43 [+0.3, +0.56] (5 seeds)", a=".53", b=".1"),
            ".530 against .100: +43.0 [+30.0, +56.0] (5 seeds)",
        ),
        (  # 1.29 MB and .09 MB: values in bytes
            claim("a > b", "least: +1.2e+06 [+1.1e+06, +1.3e+06] (3 seeds)", "traffic.bytes_up", a="1.29e6", b="9e4"),
            "1.29 MB against 0.09 MB: +1.2 MB [+1.1, +1.3]",
        ),
        (
            claim("a > b", "so far -0.0007 [-0.002, +0.0006] (3 seeds)", verdict="not tested"),
            "-0.07 [-0.20, +0.06]",
        ),
        (
            claim("a > b", "in 1 of 3 settings; x: -0.02 [-0.1, +0.06] at x=4 y=1 z=2 (3 seeds)", tested_in=3),
            "1 yes, 2 open; 4 devices, even: -2.0 [-10.0, +6.0]",
        ),
        (  # .123 and -.0195 above the 9 points
            claim("a - b > 0.09", "x: +0.123 [-0.0195, +0.266] (3 seeds)"),
            "leads by 21.3 points, the interval begins at 7.0 (needed: 9)",
        ),
        (claim("a - b > 0.08", "x: +0.1 [-0.1, +0.3] (3 seeds)"), "the interval begins at -2.0 (needed: 8)"),
        (
            claim("a > 0.05", "x: -0.05 [-0.05, -0.05] (3 seeds)", "links.target"),
            "0 points [0, 0] (needed: more than 5 points)",
        ),
        (  # of 1e-7 less a cost of .2
            claim("1e-7 > a", "x: -0.2 [-0.3, -0.1] (3 seeds)", "transport.excess"),
            "0.2 [0.1, 0.3] (allowed: less than 1e-07)",
        ),
        (
            claim("a falls with k", "x: +0.1 [+0, +0.2] (3 seeds)", a=".9", b=".8"),
            "from .900 to .800: +10.0 [+0.0, +20.0]",
        ),
    ],
)  # fmt: skip
def test_numbers_are_in_the_unit_of_what_is_compared(one: pd.Series, words: str):
    assert measured(one, WORDS).endswith(words)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ("not converged: a gains 0.004; so far +0.1 [+0, +0.2] (3 seeds)", "a method still gained"),
        ("a and b are at the ceiling: 0.9997 of 1", "both are nearly perfect (.9997 and more)"),
        ("local models are at chance (x)", "local models are at chance (x)"),
    ],
)  # fmt: skip
def test_what_could_not_be_tested_says_why(numbers: str, words: str):
    assert measured(claim("a > b", numbers, verdict="not tested"), WORDS).startswith(f"A above B: {words}")
