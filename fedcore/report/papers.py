"""The tables of a paper's printed values and conditions, and tables in Markdown."""

import re
from collections.abc import Iterable, Sequence

from fedcore.config.papers import Condition, Figure, Paper, Value
from fedcore.report.tables import Cell, Line, Table

CONDITION_HEADS = ("setting", "the paper", "place", "ours", "why", "effect of the difference")
VALUE_HEADS = ("figure", "value", "the paper", "ours", "difference", "verdict")


def value_cells(figure: Figure, value: Value) -> tuple[str, ...]:
    """Return the cells of a value, under VALUE_HEADS."""
    ours = "" if value.ours is None else text(value.ours)
    if value.spread is not None:
        ours += f", std {text(value.spread)}"
    if value.seeds is not None:
        ours += f" ({value.seeds} {'seed' if value.seeds == 1 else 'seeds'})"
    difference = "" if value.difference is None else f"{value.difference:+.3g}"
    return figure.name, value.what, text(value.paper), ours, difference, value.verdict


def condition_cells(condition: Condition) -> tuple[str, ...]:
    """Return the cells of a condition, under CONDITION_HEADS."""
    paper, ours = text(condition.paper), text(condition.ours)
    return condition.setting, paper, condition.place, ours, condition.reason, condition.effect


def printed_tables(paper: Paper) -> list[Table]:
    """Return the tables of a study's printed values and of its conditions; those without lines are left out."""
    values = [value_cells(figure, value) for figure, value in paper.printed]
    conditions = [condition_cells(condition) for condition in paper.conditions]
    tables = [("Printed in the paper, beside ours", VALUE_HEADS, values), ("Conditions", CONDITION_HEADS, conditions)]
    return [
        Table("printed", list(heads), [Line([Cell(word) for word in cells], False) for cells in lines], title)
        for title, heads, lines in tables
        if lines
    ]


def text(value: str | float) -> str:
    """Return a printed value as text: a number without needless digits."""
    return value if isinstance(value, str) else f"{value:.6g}"


def table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table. Signs that would end a cell or a line are replaced."""
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join(f"| {' | '.join(cell(entry) for entry in row)} |" for row in rows) + "\n"


def cell(content: str) -> str:
    return re.sub(r"\s+", " ", content.replace("|", "\\|")).strip()
