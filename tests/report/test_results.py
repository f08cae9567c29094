"""The page of results: its verdicts follow from those of claims, and the committed one is that of the files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from asked import PARAMS, ROOT, refusal

from fedcore.config.papers import Figure, Line, Paper, Worth, read_papers
from fedcore.report.results import results_page, word

CLAIMS = """study,says,rule,of,where,verdict,numbers
s,a is good,a > b,shared.accuracy,,holds,in 2 of 2 settings
s,a is good,a > c,shared.accuracy,,does not hold,in 0 of 2 settings
s,a is good,a > b,shared.accuracy,k = 1,not tested,at chance
s,(ours) a is good,a > d,shared.accuracy,,holds,in 1 of 1 setting
"""


def line(**changes: object) -> Line:
    settings = {
        "says": "a is best.",
        "file": "code-x",
        "rules": ["a > b", "a > c"],
        "table": "x.md",
        "command": "run x",
    }
    return Line(**{**settings, **changes})


def page(folder: Path, *lines: Line, **settings: Any) -> str:
    (folder / "docs" / "results").mkdir(parents=True, exist_ok=True)
    (folder / "docs" / "results" / "code-x-claims.csv").write_text(CLAIMS)
    figures = [Figure(name="F", shows="?", status="nothing to run")]
    paper = Paper(idea="An idea.", lines=list(lines), figures=figures, **settings)
    return results_page({"code": paper}, folder)


@pytest.mark.parametrize(
    ("verdicts", "says"),
    [
        (["holds", "holds"], "holds"),
        (["holds", "holds in most"], "holds in most"),
        (["does not hold"], "does not hold"),
        (["not tested", "not tested"], "could not be tested"),
        (["holds", "does not hold"], "holds in part"),
        (["holds", "not tested"], "holds in part"),
        (["holds in most", "does not hold"], "holds in part"),
        (["does not hold", "not tested"], "does not hold"),
    ],
)
def test_a_statement_is_answered_by_its_claims(verdicts: list[str], says: str):
    assert word(pd.DataFrame({"verdict": verdicts})) == says


def test_a_line_has_its_verdict_its_numbers_and_its_links(tmp_path: Path):
    text = page(tmp_path, line(), line(says="b.", rules=["a > c"], picture="x.png"))
    see = "[table](x.md), [claims](results/code-x-claims.csv), `run x`"
    numbers = "`a > b`: in 2 of 2 settings; `a > c`: in 0 of 2 settings; `a > b`: at chance"
    assert f"| **holds in part** | a is best. | {numbers} | {see} |" in text
    assert "| **does not hold** | b. | `a > c`: in 0 of 2 settings | [table](x.md), [picture](x.png)," in text
    assert "Of all its claims, in all runs that were kept, 1 holds, 1 does not, 1 could not be tested." in text
    assert "An idea." in text


def test_what_it_is_worth_stands_before_the_tables(tmp_path: Path):
    text = page(tmp_path, line(rules=["a > c"]), worth=Worth(says="Little.", verdicts=["does not hold"]))
    order = [
        "## CODE\n",
        "An idea.",
        "Little.",
        "## How to read the tables",
        "## CODE, statement by statement",
        "| verdict |",
    ]
    places = [text.rindex(words) for words in order]
    assert places == sorted(places)


def test_a_line_may_be_of_some_settings_alone(tmp_path: Path):
    assert "| **could not be tested** | a is best. |" in page(tmp_path, line(rules=["a > b"], where="k = 1"))


def test_a_sentence_by_hand_stands_for_its_verdicts(tmp_path: Path):
    written = Worth(says="Little.", verdicts=["does not hold"])
    assert "**What it is worth:** Little." in page(tmp_path, line(rules=["a > c"]), worth=written)
    says = "papers.code.worth was written when the verdict on line 1 was 'does not hold'; it is 'holds in part' now"
    assert refusal(page, tmp_path, line(), worth=written).startswith(says)
    assert "on line 2 was 'none'" in refusal(page, tmp_path, *[line(rules=["a > c"])] * 2, worth=written)


def test_a_line_without_a_claim_is_refused(tmp_path: Path):
    says = "papers: 'a is best.': code-x-claims.csv has no claim 'a > z'"
    assert refusal(page, tmp_path, line(rules=["a > z"])) == says


def test_the_committed_page_is_that_of_the_files():
    """python -m benchmarks.judge_anew writes it."""
    papers = read_papers(PARAMS["studies"], ROOT)
    assert all(len(paper.lines) == 6 and paper.idea and paper.worth for paper in papers.values())
    assert (ROOT / "docs" / "results.md").read_text() == results_page(papers, ROOT)


@pytest.mark.parametrize("family", ["code", "dfl", "fedasa", "st_lf"])
def test_the_rows_of_a_papers_lines_are_explained(family: str):
    paper = read_papers(PARAMS["studies"], ROOT)[family]
    rules = " ".join(rule for line in paper.lines for rule in line.rules)
    words = set(re.findall(r"(?<![\w.])[a-z][a-z_]*\w*(?![\w.])", rules)) - {"rises", "falls", "with", "within"}
    assert words <= set(re.findall(r"`(\w+)`", paper.names))
