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

For somebody who has read none of them: what each proposes, what it is worth by our runs, and whether six of its
statements hold. The page is made by `python -m benchmarks.judge_anew` from `papers/` and the verdicts in
`docs/results`; edit those files, not this page.

How to read a row. Its statement is answered by one or more claims, [rules over the numbers](pipeline.md#claims): it
**holds** if all of them hold, **holds in most** settings if the rest do in most, **does not hold** if none does,
**could not be tested** if none was tested, and otherwise **holds in part**. In a rule, `a > b` means that row a (a
method, or a variant of one) has more than row b, `a ~ b within t` that they differ by at most t, and `a rises with x`
that a has more at the greatest x than at the least. Then come the settings (data, devices, ...) in which that is so,
with the probability p of as many by tossing coins, and one difference between the two sides with its 90 % interval: the
least one of a claim that holds, and of another the one that speaks most against it. Where the interval contains 0, the
difference may be chance. Accuracies are fractions: +0.02 is two points. A seed is a repetition with other random draws.

A claim holds in a setting if the interval is above 0, over at least three seeds. It is not tested where models only
guess, where [all rows are at the ceiling](pipeline.md#the-ceiling), or where the row behind
[still gains](pipeline.md#convergence). Statements that begin with "ours" are not the paper's.
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
        parts += section(family, paper, root)
    parts.append(
        "Every figure and table of the papers, with all conditions that differ: [index](papers.md). The theorems where "
        "both sides can be computed: [theory](results/theory.md). Every verdict that stricter rules changed: "
        "[verdicts before and after](results/verdicts.md).\n"
    )
    return "\n".join(parts)


def section(family: str, paper: Paper, root: Path) -> Iterator[str]:
    """Yield the parts of one paper."""
    name = {"code": "CODE", "dfl": "DFL", "fedasa": "FedASA", "st_lf": "ST-LF"}.get(family, family)
    lines = [(line, claims_of(line, root)) for line in paper.lines]
    answers = sorted(((word(rows), line, rows) for line, rows in lines), key=lambda one: ORDER.index(one[0]))
    yield f"## {name}\n"
    yield f"{cell(paper.idea)} ([method](methods/{family}.md), [results](results/{family}.md))\n"
    if paper.worth:
        check_worth(family, paper.worth, [word(rows) for _, rows in lines])
        yield f"**What it is worth:** {cell(paper.worth.says)}\n"
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
