"""The page of results: its verdicts follow from those of claims, and the committed one is that of the files."""

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from page_numbers import FAMILIES
from project_params import PARAMS, ROOT, refusal
from scipy.stats import binom

from benchmarks.results_page import KEY, join, measured, results_page, said, word
from fedcore.config.papers import Figure, Line, Paper, Worth, read_papers

PAPERS = read_papers(PARAMS["studies"], ROOT)
CLAIMS = """study,says,rule,of,where,verdict,numbers,holds_in,contradicted_in,tested_in,a,b
s,a is good,a > b,shared.accuracy,,holds,"in 2 of 2 settings; least: +0.43 [+0.3, +0.56] at k=1 (3 seeds)",2,0,2,.53,.1
s,a is good,a > c,shared.accuracy,,not shown,"in 0 of 2 settings; x: -0.02 [-0.05, +0.01] (5 seeds)",0,1,2,,
s,a is good,a > b,shared.accuracy,k = 1,not tested,at chance,0,0,0,,
s,(ours) a is good,a > d,shared.accuracy,,holds,in 1 of 1 setting,1,0,1,,
"""


def line(**changes: object) -> Line:
    settings = {
        "says": "a is best.", "file": "code-x", "rules": ["a > b", "a > c"], "table": "x.csv", "log": "x.md",
        "command": "run x",
    }  # fmt: skip
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
        (["holds", "holds"], "holds"), (["holds", "holds in most"], "holds in most"), (["not shown"], "not shown"),
        (["contradicted", "contradicted"], "contradicted"), (["not tested", "not tested"], "could not be tested"),
        (["holds", "contradicted"], "holds in part"), (["holds", "not tested"], "holds in part"),
        (["holds in most", "not shown"], "holds in part"), (["not shown", "not tested"], "not shown"),
        (["contradicted", "not shown"], "contradicted in part"),
        (["another regime", "not run to its end", "not tested"], "another regime"),
        (["not run to its end", "not tested"], "not run to its end"), (["holds", "another regime"], "holds in part"),
    ],
)  # fmt: skip
def test_a_statement_is_answered_by_its_claims(verdicts: list[str], says: str):
    assert word(pd.DataFrame({"verdict": verdicts})) == says


def test_a_line_has_its_verdict_its_numbers_and_its_links(tmp_path: Path):
    text = page(tmp_path, line(), line(says="b.", rules=["a > c"], picture="x.png", note="Note."), names={"a": "A"})
    see = "[table](x.csv), [log](x.md), [claims](results/code-x-claims.csv), run 1"
    numbers = (
        "holds: A above b: 2 yes, 0 opposite, 0 open; weakest (k 1): .530 against .100: +43.0 points [+30.0, +56.0]"
        "<br>not shown: A above c: 0 yes, 1 opposite, 1 open; weakest setting: -2.0 points [-5.0, +1.0] "
        "(5 seeds)"
        "<br>could not be tested: A above b: at chance"
    )
    assert f"| **holds in part**<br>2 yes, 1 opposite, 1 open | a is best. | {numbers} | {see} |" in text
    assert "(5 seeds)<br>Note. | [table](x.csv), [log](x.md), [picture](x.png)," in text
    assert "Runs:\n\n1. `run x`\n" in text
    of_all = "Of all its claims, 1 holds, 1 is not shown, 1 could not be tested (models only guess: 1)."
    assert of_all in text
    assert "An idea." in text


def worth(*verdicts: str) -> Worth:
    return Worth(
        what="What.", holds="Holds.", use="Use.", instead="Instead.", says=["Little."], verdicts=list(verdicts)
    )


def test_a_table_of_what_it_is_worth_stands_first(tmp_path: Path):
    text = page(tmp_path, line(rules=["a > c"]), worth=worth("not shown"))
    order = [
        "# What holds",
        "| **[CODE](#code)** | What. | Holds. | Use. | Instead. |",
        "## CODE\n",
        "An idea.",
        "Little.",
        "## Words",
        "## How to read the tables",
        "## CODE, statement by statement",
        "| verdict | statement |",
    ]
    places = [text.index(words) for words in order]
    assert places == sorted(places)


def test_a_line_may_be_of_some_settings_alone(tmp_path: Path):
    assert "| **could not be tested** | a is best. |" in page(tmp_path, line(rules=["a > b"], where="k = 1"))


def test_one_opposite_contradicts_a_bound(tmp_path: Path):
    assert "| **contradicted**<br>0 yes, 1 opposite, 1 open |" in page(tmp_path, line(rules=["a > c"], always=True))


def test_the_page_says_when_settings_are_enough():
    """Against the binomial distribution: half of the settings by chance, or a twentieth."""
    most, opposites = re.findall(r"\((\d+ of \d+, [^)]*)\)", KEY)
    for held, tested in (map(int, words.split(" of ")) for words in most.split(", ")):
        assert binom.sf(held - 1, tested, 0.5) < 0.05
    least = {n: next(k for k in range(1, n + 1) if binom.sf(k - 1, n, 0.05) <= 0.05 + 1e-12) for n in range(1, 17)}
    assert least == {1: 1} | dict.fromkeys(range(2, 8), 2) | dict.fromkeys(range(8, 17), 3)
    assert opposites == "1 of 1, 2 of 2 to 7, 3 of 8 to 16"


def test_a_sentence_by_hand_stands_for_its_verdicts(tmp_path: Path):
    written = worth("not shown")
    assert "What it is worth:\n\n* Little.\n" in page(tmp_path, line(rules=["a > c"]), worth=written)
    says = "papers.code.worth was written when the verdict on line 1 was 'not shown'; it is 'holds in part' now"
    assert refusal(page, tmp_path, line(), worth=written).startswith(says)
    assert "on line 2 was 'none'" in refusal(page, tmp_path, *[line(rules=["a > c"])] * 2, worth=written)


def test_a_line_without_a_claim_is_refused(tmp_path: Path):
    says = "papers: 'a is best.': code-x-claims.csv has no claim 'a > z'"
    assert refusal(page, tmp_path, line(rules=["a > z"])) == says


@pytest.mark.slow
def test_the_committed_page_is_that_of_the_files():
    """python -m benchmarks.judge_anew writes it."""
    assert all(len(paper.lines) == 6 and paper.idea and paper.worth for paper in PAPERS.values())
    assert (ROOT / "docs" / "results.md").read_text() == results_page(PAPERS, ROOT)


@pytest.mark.parametrize("family", ["code", "dfl", "fedasa", "st_lf"])
def test_the_rows_of_a_papers_lines_have_plain_names(family: str):
    paper = PAPERS[family]
    rules = " ".join(rule for line in paper.lines for rule in line.rules)
    words = set(re.findall(r"(?<![\w.])[a-z][\w.]*(?![\w.])", rules)) - {"rises", "falls", "with", "within"}
    assert words <= set(paper.names)


@pytest.mark.parametrize("family", ["code", "dfl", "fedasa", "st_lf"])
def test_links_of_lines_lead_to_what_they_promise(family: str):
    for line in PAPERS[family].lines:
        assert line.table.endswith(".csv")
        for link in filter(None, (line.table, line.log.partition("#")[0], line.picture)):
            assert (ROOT / "docs" / link).is_file()


@pytest.mark.parametrize("family", ["code", "dfl", "fedasa", "st_lf"])
@pytest.mark.slow
def test_the_numbers_of_sentences_by_hand_are_those_of_files(family: str):
    paper = PAPERS[family]
    assert paper.worth is not None
    sentences = {key: getattr(paper.worth, key) for key in ("what", "holds", "use", "instead")}
    sentences |= {f"says {place}": text for place, text in enumerate(paper.worth.says)}
    sentences |= {f"note {place}": line.note for place, line in enumerate(paper.lines)}
    written = {key: NUMBER.findall(LINK.sub("", text)) for key, text in sentences.items()}
    assert {key: numbers for key, numbers in written.items() if numbers} == {
        key: numbers for key, numbers in FAMILIES[family]().items() if numbers
    }


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
        ("a > 0.05", "links.target", "share of devices that are targets above 5 points"),
        ("1e-7 > a", "transport.excess", "cost above the cheapest below 1e-7"),
    ],
)
def test_a_rule_is_said_in_plain_names(rule: str, of: str, words: str):
    assert said(claim(rule, of=of), WORDS) == words


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (
            claim("a > b", "least: +0.43 [+0.3, +0.56] (5 seeds)", a=".53", b=".1"),
            ".530 against .100: +43.0 points [+30.0, +56.0] (5 seeds)",
        ),
        (  # 1.29 MB and .09 MB: values in bytes
            claim("a > b", "least: +1.2e+06 [+1.1e+06, +1.3e+06] (3 seeds)", "traffic.bytes_up", a="1.29e6", b="9e4"),
            "1.29 MB against 0.09 MB: +1.2 MB [+1.1, +1.3]",
        ),
        (
            claim("a > b", "so far -0.0007 [-0.002, +0.0006] (3 seeds)", verdict="not tested"),
            "-0.07 points [-0.20, +0.06]",
        ),
        (
            claim("a > b", "in 1 of 3 settings; x: -0.02 [-0.1, +0.06] at x=4 y=1 z=2 (3 seeds)", tested_in=3),
            "1 yes, 0 opposite, 2 open; weakest (4 devices, even): -2.0 points [-10.0, +6.0]",
        ),
        (  # .123 and -.0195 above the 9 points
            claim("a - b > 0.09", "x: +0.123 [-0.0195, +0.266] (3 seeds)"),
            "leads by 21.3 points, surely by 7.0 (needed: 9)",
        ),
        (claim("a - b > 0.08", "x: +0.1 [-0.1, +0.3] (3 seeds)"), "leads by 18.0 points, surely by none (needed: 8)"),
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
            "from .900 to .800: +10.0 points [+0.0, +20.0]",
        ),
    ],
)  # fmt: skip
def test_numbers_are_in_the_unit_of_what_is_compared(one: pd.Series, words: str):
    assert measured(one, WORDS).endswith(words)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ("not converged: a gains 0.004; so far +0.1 [+0, +0.2] (3 seeds)", "too early to say, since a row still"),
        ("a and b are at the ceiling: 0.9997 of 1", "both are nearly perfect (.9997 and more)"),
        ("local models are at chance (x)", "local models are at chance (x)"),
    ],
)  # fmt: skip
def test_what_could_not_be_tested_says_why(numbers: str, words: str):
    assert measured(claim("a > b", numbers, verdict="not tested"), WORDS).startswith(f"A above B: {words}")


def test_what_several_statements_share_is_said_once():
    assert join(["A above B", "A above C", "A above D"]) == "A above B, C and D"
    assert join(["B above A", "C above A"]) == "B and C above A"
    assert join(["A above B", "C and D within 3 points"]) == "A above B; C and D within 3 points"
