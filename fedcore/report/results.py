"""The page of results, made from papers/ and claims: what holds of each paper, what does not, what was not tested."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from fedcore.config.papers import Line, Paper, Papers
from fedcore.report.papers import cell, table
from fedcore.types import InputError

HEAD = """# What holds of the four papers

For somebody who has read none of them: what each proposes, and for six of its statements whether it holds in our runs.
The page is made by `python -m benchmarks.judge_anew` from `papers/` and the verdicts in `docs/results`; edit those
files, not this page.

A statement is answered by one or more claims, which are [rules over the numbers](pipeline.md#claims): it **holds** if
all of them hold, **holds in most** settings if the rest do in most, **does not hold** if none does, **could not be
tested** if none was tested, and otherwise **holds in part**. A claim that one row is better needs an interval of the
difference above 0, over at least three seeds, in each setting. It is not tested where models are at chance, where
[all rows are at the ceiling](pipeline.md#the-ceiling), or where the row behind [still gains](pipeline.md#convergence).
Numbers are differences of the two sides of a claim with their 90 % interval; accuracies are fractions. Statements that
begin with "ours" are not the paper's.
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
    found = [(line, claims_of(line, root)) for line in paper.lines]
    answers = sorted(((word(rows), line, rows) for line, rows in found), key=lambda one: ORDER.index(one[0]))
    yield f"## {name}\n"
    yield f"{cell(paper.idea)} ([method](methods/{family}.md), [results](results/{family}.md))\n"
    yield table(
        ("", "the paper's statement", "numbers", "see"),
        ((f"**{verdict}**", line.says, evidence(rows), links(line)) for verdict, line, rows in answers),
    )
    counts = all_claims(family, root)["verdict"].value_counts()
    words = ", ".join(f"{counts[verdict]} {said}" for verdict, said in COUNTED.items() if verdict in counts)
    yield f"Of all its claims in all runs that were kept: {words}.\n"


COUNTED = {
    "holds": "hold",
    "holds in most": "hold in most settings",
    "does not hold": "do not",
    "not tested": "could not be tested",
}


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
        return "; ".join(f"`{rule}`: {numbers}" for rule, numbers in zip(rows["rule"], rows["numbers"], strict=True))
    counts = rows["verdict"].value_counts()
    words = ", ".join(f"{counts[verdict]} {said}" for verdict, said in COUNTED.items() if verdict in counts)
    against = rows[~rows["verdict"].isin(["holds", "holds in most"])]
    first = (against if len(against) else rows).iloc[0]
    return f"of {len(rows)} comparisons {words}; `{first['rule']}`: {first['numbers']}"


def links(line: Line) -> str:
    """Return links to a line's table, picture and claims, and its command."""
    parts = [f"[table]({line.table})", f"[picture]({line.picture})" if line.picture else ""]
    parts += [f"[claims](results/{line.file}-claims.csv)", f"`{line.command}`"]
    return ", ".join(filter(None, parts))
