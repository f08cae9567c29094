"""The page of results, made from papers/ and claims: what holds of each paper, what does not, what was not tested."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import pandas as pd

from fedcore.config.papers import Line, Paper, Papers, Worth
from fedcore.report.papers import cell, table
from fedcore.types import InputError

HEAD = """# What holds of the four papers

For somebody who has read none of them: what each proposes and what it is worth by our runs, then six of its statements
with the numbers that speak for or against them. In all four, devices such as phones or sensors learn together and keep
their data to themselves. Each has examples, most of them with labels; an accuracy is the share of unseen examples that
a model labels rightly. The page is made by `python -m benchmarks.judge_anew` from `papers/` and the verdicts in
`docs/results`; edit those files, not this page.
"""

KEY = """## How to read the tables

Each row is a statement of a paper ("ours" where it is not the paper's), answered by one or more claims,
[rules over the numbers](pipeline.md#claims):

| verdict | claims |
| --- | --- |
| **holds** | all of them hold |
| **holds in most** | all hold, but some in most of the settings (data, devices, ...) alone |
| **holds in part** | some hold, some do not or could not be tested |
| **does not hold** | none holds |
| **could not be tested** | the experiment cannot tell |

In a rule, `a > b` says that row a (a method, or a variant of one) has more than row b, `a ~ b within t` that they
differ by at most t, and `a rises with x` that a has more at the greatest x than at the least. After it stands in how
many settings that is so (p: how probable as many are if a coin decides), and one difference between the two sides:
the least one of a claim that holds, otherwise the one that speaks most against it. `+0.02 [-0.01, +0.05]` is a lead
of two points of a hundred on average; by its 90 % interval the true lead may be anything from one point behind to
five ahead, so that it may be chance. A claim holds in a setting if the whole interval is above 0, over at least three
seeds, which are repetitions with other random draws.

A claim could not be tested where it was run with fewer seeds, where models only guess, where [all rows are nearly
perfect](pipeline.md#the-ceiling) (at the ceiling), or where the row behind [still gains](pipeline.md#convergence) when
the run ends (not converged).
"""

ORDER = ("holds", "holds in most", "holds in part", "does not hold", "could not be tested")
SHOWN = 3
"""The most claims of a line whose numbers are all written."""


def results_page(papers: Papers, root: Path = Path()) -> str:
    """Return the page as Markdown. root: the project's folder, where claims are read.

    Raises InputError for a line that matches no claim.
    """
    parts = [HEAD]
    for family, paper in papers.items():
        parts += summary(family, paper, root)
    parts.append(KEY)
    for family, paper in papers.items():
        parts += section(family, paper, root)
    parts.append(
        "Every figure and table of the papers, with all conditions that differ: [index](papers.md). The theorems where "
        "both sides can be computed: [theory](results/theory.md). Every verdict that stricter rules changed: "
        "[verdicts before and after](results/verdicts.md).\n"
    )
    return "\n".join(parts)


NAMES = {"code": "CODE", "dfl": "DFL", "fedasa": "FedASA", "st_lf": "ST-LF"}


def summary(family: str, paper: Paper, root: Path) -> Iterator[str]:
    """Yield what one paper proposes, and what it is worth."""
    yield f"## {NAMES[family]}\n"
    yield f"{cell(paper.idea)} ([method](methods/{family}.md), [results](results/{family}.md))\n"
    if paper.worth:
        check_worth(family, paper.worth, [word(claims_of(line, root)) for line in paper.lines])
        yield f"**What it is worth:** {cell(paper.worth.says)}\n"


def section(family: str, paper: Paper, root: Path) -> Iterator[str]:
    """Yield one paper's statements, each with its verdict and numbers."""
    with_claims = [(line, claims_of(line, root)) for line in paper.lines]
    answers = sorted(((word(rows), line, rows) for line, rows in with_claims), key=lambda one: ORDER.index(one[0]))
    yield f"## {NAMES[family]}, statement by statement\n"
    if paper.names:
        yield f"Names in the table: {cell(paper.names)}\n"
    yield table(
        ("verdict", "the paper's statement", "numbers", "see"),
        ((f"**{verdict}**", line.says, evidence(rows), links(line)) for verdict, line, rows in answers),
    )
    counts = all_claims(family, root)["verdict"].value_counts()
    yield f"Of all its claims, in all runs that were kept, {counted(counts)}.\n"


def check_worth(family: str, worth: Worth, verdicts: list[str]) -> None:
    """Raise InputError if the verdicts are not those that the sentence was written for."""
    for number, (then, now) in enumerate(zip_longest(worth.verdicts, verdicts, fillvalue="none"), 1):
        if then != now:
            raise InputError(
                f"papers.{family}.worth was written when the verdict on line {number} was {then!r}; it is {now!r} now: "
                "read the sentence again, and set its verdicts"
            )


COUNTED = {
    "holds": ("holds", "hold"),
    "holds in most": ("holds in most settings", "hold in most settings"),
    "does not hold": ("does not", "do not"),
    "not tested": ("could not be tested", "could not be tested"),
}
"""verdict -> what one claim does, and what several do"""


def counted(counts: pd.Series) -> str:
    """Return in words how many claims have which verdict."""
    there = [(int(counts[verdict]), words) for verdict, words in COUNTED.items() if verdict in counts]
    return ", ".join(f"{count} {one if count == 1 else several}" for count, (one, several) in there)


def all_claims(family: str, root: Path) -> pd.DataFrame:
    """Return the paper's own claims of all files."""
    files = sorted((root / "docs" / "results").glob(f"{family.replace('_', '-')}-*-claims.csv"))
    rows = pd.concat([pd.read_csv(path, keep_default_na=False) for path in files], ignore_index=True)
    return rows[~rows["says"].str.startswith("(ours)")]


def claims_of(line: Line, root: Path) -> pd.DataFrame:
    """Return the verdicts on a line's claims, in the order of its rules."""
    rows = pd.read_csv(root / "docs" / "results" / f"{line.file}-claims.csv", keep_default_na=False)
    for column, wanted in (("study", line.study), ("of", line.of)):
        rows = rows[rows[column] == wanted] if wanted else rows
    rows = rows[rows["where"].str.contains(line.where, regex=False)]
    for rule in line.rules:
        if rule not in set(rows["rule"]):
            raise InputError(f"papers: {line.says!r}: {line.file}-claims.csv has no claim {rule!r}")
    return rows[rows["rule"].isin(line.rules)].drop_duplicates(["rule", "of", "where"])


def word(rows: pd.DataFrame) -> str:
    """Return the verdict on a statement from those on its claims."""
    verdicts = set(rows["verdict"])
    if verdicts == {"not tested"}:
        return "could not be tested"
    if len(verdicts) == 1:
        return str(verdicts.pop())
    if not verdicts & {"holds", "holds in most"}:
        return "does not hold"
    return "holds in most" if verdicts == {"holds", "holds in most"} else "holds in part"


def evidence(rows: pd.DataFrame) -> str:
    """Return the numbers of a few claims; of many the counts, and those of the first that does not hold."""
    if len(rows) <= SHOWN:
        return "; ".join(numbers(row) for _, row in rows.iterrows())
    against = rows[~rows["verdict"].isin(["holds", "holds in most"])]
    first = (against if len(against) else rows).iloc[0]
    which = "the first of these" if len(against) else "the first"
    return f"of {len(rows)} claims {counted(rows['verdict'].value_counts())}; {which}: {numbers(first)}"


def numbers(row: pd.Series) -> str:
    """Return the rule and the numbers of a claim, with the unit of what it compares."""
    unit = UNITS.get(row["of"])
    return f"`{row['rule']}`{f' ({unit})' if unit else ''}: {row['numbers']}"


UNITS = {
    "links.energy": "energy in J per device",
    "links.links_out": "links that leave a device",
    "links.target": "share of devices that are targets",
    "std of test.loss": "standard deviation of the loss over devices",
    "traffic.bytes_up": "bytes that a device sends a round",
    "transport.excess": "cost above the cheapest plan's",
    "worst of links.slack_theorem_2": "Theorem 2's bound minus the error",
    "worst of links.slack_corollary_1": "Corollary 1's bound minus the error",
}
"""What a claim compares, where it is no accuracy -> its name and unit."""


def links(line: Line) -> str:
    """Return links to a line's table, picture and claims, and its command."""
    parts = [f"[table]({line.table})", f"[picture]({line.picture})" if line.picture else ""]
    parts += [f"[claims](results/{line.file}-claims.csv)", f"`{line.command}`"]
    return ", ".join(filter(None, parts))
