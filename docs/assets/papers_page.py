"""A hook of mkdocs: the page papers.md, an index of all figures and tables of the papers, made from papers/."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from mkdocs.structure.files import File, Files

from fedcore.config.papers import Figure, Paper, Papers, Statement, Value, read_papers
from fedcore.config.params import read
from fedcore.errors import InputError
from fedcore.report.papers import CONDITION_HEADS, VALUE_HEADS, condition_cells, table, value_cells


def on_files(files: Files, config: Any) -> Files:
    """Add the index of the papers' figures and tables."""
    root = Path(config.config_file_path).parent
    text = index(read_papers(read(root)["studies"], root), root)
    files.append(File.generated(config, "papers.md", content=text))
    return files


def on_page_content(html: str, **others: Any) -> str:
    """Return a page without the roles of its docstrings, such as :func: before a name."""
    return re.sub(r":(?:func|class|mod|meth|attr|data):\s?(?=<code>)", "", html)


STATUSES = ("run", "part", "not run", "nothing to run")
THEORY_HEADS = ("place", "says", "checked by", "why not")

HEAD = """# Figures and tables of the papers

Every figure and table of the papers with its status, its command, and the paper's numbers beside ours; every equation,
theorem, remark and baseline with the test that checks it. The page is made from `papers/`.

| status | meaning |
| --- | --- |
| run | measured under the conditions below |
| part | measured at a smaller size, or some of its rows; the reason stands beside it |
| not run | not measured; the reason and the cost stand beside it |
| nothing to run | a drawing or a definition |

A verdict on a value: `within 3 sd` if the paper's number lies within three of our standard deviations over seeds, which
a wide spread makes easy, otherwise `above` or `below`; `no spread` with a single seed or a number that does not vary.
Verdicts on claims are counted from the CSV files in `docs/results/`; `ours` are claims that the paper does not
make.
"""


def index(papers: Papers, root: Path = Path()) -> str:
    """Return the page as Markdown; the same text for the same files.

    root: the project's folder, where sources and verdicts on claims are read. Raises InputError for a source that does
    not exist.
    """
    if not papers:
        return f"{HEAD}\nNo paper has an entry yet.\n"
    verdicts = claim_counts(root)
    overview = [
        (
            f"[{family}](#{family})",
            *(str(sum(figure.status == status for figure in paper.figures)) for status in STATUSES),
        )
        for family, paper in papers.items()
    ]
    parts = [HEAD, table(("paper", *STATUSES), overview)]
    for family, paper in papers.items():
        parts += [*section(family, paper, verdicts, root)]
    return "\n".join(parts)


def section(family: str, paper: Paper, verdicts: dict[str, str], root: Path) -> Iterator[str]:
    """Yield the parts of one paper: its figures, its values, its conditions."""
    pages = [path for path in [root / "docs" / "methods" / f"{family}.md"] if path.is_file()]
    yield f"## {family}\n"
    if pages:
        yield f"[The method and its studies](methods/{pages[0].name})\n"
    yield table(
        ("figure", "shows", "status", "study and command", "why not all of it", "claims"),
        [(*figure_cells(figure), verdicts.get(figure.study, "")) for figure in paper.figures],
    )
    if paper.printed:
        heads = (*VALUE_HEADS, "source")
        yield table(heads, [(*value_cells(figure, value), source(value, root)) for figure, value in paper.printed])
    if paper.conditions:
        yield f"### Conditions of {family}\n"
        yield table(CONDITION_HEADS, map(condition_cells, paper.conditions))
    if paper.theory:
        yield f"### Equations, theorems and baselines of {family}\n"
        yield table(THEORY_HEADS, map(theory_cells, paper.theory))


def figure_cells(figure: Figure) -> tuple[str, ...]:
    """Return a figure's name, content, status, command and reason."""
    command = f"`{figure.command}`" if figure.command else ""
    study = f"`{figure.study}`" if figure.study and figure.study not in figure.command else ""
    return figure.name, figure.shows, figure.status, " ".join(filter(None, (study, command))), figure.reason


def theory_cells(statement: Statement) -> tuple[str, ...]:
    """Return the cells of an equation, theorem or baseline, under THEORY_HEADS."""
    tests = ", ".join(f"`{test.removeprefix('tests/')}`" for test in statement.tests)
    return statement.name, statement.says, tests, statement.reason


def source(value: Value, root: Path) -> str:
    """Return a link from docs/ to a value's source, or an empty text."""
    if value.source is None:
        return ""
    for path, link in ((root / value.source, f"../{value.source}"), (root / "docs" / value.source, value.source)):
        if path.is_file():
            return f"[{path.name}]({link.removeprefix('../docs/')})"
    raise InputError(f"papers: {value.what}: source {value.source!r} does not exist")


def claim_counts(root: Path) -> dict[str, str]:
    """Return study -> the counts of verdicts on the paper's claims in each of the CSV files, with its name and a link.

    Claims that start with OURS are counted apart.
    """
    claims: dict[str, list[str]] = {}
    for path in sorted((root / "docs" / "results").glob("*-claims.csv")):
        rows = pd.read_csv(path, keep_default_na=False)
        ours = rows["says"].str.startswith(OURS)
        for study in rows["study"].unique():
            parts = [
                (name, rows["verdict"][(rows["study"] == study) & who].value_counts())
                for name, who in (("", ~ours), ("ours: ", ours))
            ]
            statement = "; ".join(
                name + ", ".join(f"{counts[word]} {verdict}" for word, verdict in CLAIM_WORDS.items() if word in counts)
                for name, counts in parts
                if len(counts)
            )
            claims.setdefault(str(study), []).append(f"{statement} ([{path.stem}](results/{path.name}))")
    return {study: "; ".join(links) for study, links in claims.items()}


OURS = "(ours)"
CLAIM_WORDS = {
    "holds": "hold", "holds in most": "hold in most settings", "contradicted": "contradicted", "not shown": "not shown",
    "does not hold": "do not", "not tested": "not tested",
}  # fmt: skip
