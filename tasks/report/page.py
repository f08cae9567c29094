"""The web page of a comparison: one file that holds its style and its pictures and refers to nothing else."""

from __future__ import annotations

import base64
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from fedcore.results import figures
from fedcore.results.answer import Answer, Place
from fedcore.results.summary import verdict
from tasks.config.papers import Paper, Papers
from tasks.report.answers import study_answers
from tasks.report.papers import CONDITION_HEADS, VALUE_HEADS, condition_cells, value_cells
from tasks.report.plots import Plots, draw
from tasks.report.tables import FEW, Cell, Line, Table, domain_table, link_table, places, score_table

Pictures: TypeAlias = Mapping[tuple[str, str], Mapping[str, Figure | bytes]]
"""(study, setting) -> caption -> a figure, or the bytes of a PNG file"""

TITLE = "Which way of combining serves the devices best?"
COMPARISON = "Accuracy on own test data and on the shared test set."
ALONG = "Accuracy over the study's settings; hollow: controls."
ROUNDS = "Accuracy over rounds, mean over devices and seeds ± seeds; dotted: methods that are evaluated once."
TRAFFIC = "Accuracy against what a device sends and receives; hollow: controls."
DEVICES = "Accuracy of every device, one seed."

TEMPLATES = Environment(
    loader=PackageLoader("tasks.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


@dataclass(frozen=True)
class Picture:
    """A picture on the page. data: a PNG file in base 64. alt: its alternative text."""

    caption: str
    data: str
    alt: str


@dataclass(frozen=True)
class Section:
    """One setting on the page. anchor: its id. comparison: None if the study has more than FEW settings."""

    anchor: str
    study: str
    dataset: str
    setting: str
    verdict: str
    comparison: Picture | None
    tables: list[Table]
    pictures: list[Picture]


@dataclass(frozen=True)
class Study:
    """One study on the page. claims: columns of each claim by name. pictures: those that cover all its settings.

    printed: the paper's values beside ours, and its conditions.
    """

    question: str
    claims: list[dict[Hashable, Any]]
    pictures: list[Picture]
    printed: list[Table]
    sections: list[Section] = field(default_factory=list)


def html(
    table: pd.DataFrame,
    summary: pd.DataFrame,
    questions: Mapping[str, str],
    pictures: Pictures,
    claims: pd.DataFrame | None = None,
    along: Mapping[str, bytes] | None = None,
    groups: pd.DataFrame | None = None,
    plots: Plots | None = None,
    papers: Papers | None = None,
    answers: Mapping[Place, Answer] | None = None,
) -> str:
    """Return the page: each study with its question and claims, each setting with its tables and pictures.

    table: the tidy table. summary: as :func:`fedcore.results.summary.summarise` returns it for that table. questions:
    study -> its question. pictures: further pictures of a setting, e.g. of its partition. claims: columns study, says,
    rule, of, where, verdict, numbers. along: study -> a picture of all its settings. groups: as
    :func:`fedcore.results.summary.by_group` returns them. plots: those of :func:`draw` for the same tables, if they
    are already drawn. papers: study -> the conditions and figures of its paper. answers: of each setting, in a box on
    top. A study with more than FEW settings has tables for each, but only the pictures in `pictures`. Equal input gives
    an equal page.
    """
    plots = plots or draw(table, summary)
    many = summary.groupby("study")["setting"].nunique() > FEW
    tidy = dict(places(table))
    domains = {} if groups is None else dict(places(groups))
    studies: dict[str, Study] = {}
    for i, (place, rows) in enumerate(places(summary)):
        study, dataset, setting = place
        if study not in studies:
            mine = [] if claims is None else claims[claims["study"] == study].fillna("").to_dict("records")
            whole = {ALONG: (along or {}).get(study), ROUNDS: plots.courses.get((study, ""))}
            studies[study] = Study(
                questions.get(study, study),
                mine,
                [picture(text, png) for text, png in whole.items() if png],
                printed_tables(papers[study]) if papers and study in papers else [],
            )
        tables = [
            score_table(rows),
            domain_table(domains[place], rows) if place in domains else None,
            link_table(tidy[place], rows),
        ]
        shown = dict(pictures.get((study, setting), {}))
        if not many[study]:
            shown |= {ROUNDS: plots.courses[study, setting]} if (study, setting) in plots.courses else {}
            split = "test" if rows["test_mean"].notna().any() else "shared"
            shown |= {TRAFFIC: figures.accuracy_by_traffic(rows)}
            shown |= {DEVICES: figures.per_device(tidy[place], split=split)}
        answer = " ".join(verdict(rows))
        studies[study].sections.append(
            Section(
                f"s{i}",
                study,
                dataset,
                setting,
                answer,
                None if many[study] else picture(COMPARISON, plots.comparisons[study, setting], answer),
                [found for found in tables if found],
                [picture(*pair) for pair in shown.items()],
            )
        )
    boxes = [box for mine in study_answers(answers or {}).values() for box in mine]
    return TEMPLATES.get_template("page.html.jinja").render(title=TITLE, studies=list(studies.values()), answers=boxes)


def printed_tables(paper: Paper) -> list[Table]:
    """Return the tables of a study's printed values and of its conditions; those without lines are left out."""
    values = [value_cells(figure, value) for figure, value in paper.printed]
    conditions = [condition_cells(condition) for condition in paper.conditions]
    found = [
        ("Printed in the paper, beside ours", VALUE_HEADS, values),
        ("Conditions", CONDITION_HEADS, conditions),
    ]
    return [
        Table("printed", list(heads), [Line([Cell(word) for word in cells], False) for cells in lines], title)
        for title, heads, lines in found
        if lines
    ]


def picture(caption: str, drawing: Figure | bytes, alt: str = "") -> Picture:
    """Return a figure or a PNG file as a picture on the page. alt: the alternative text, by default the caption."""
    png = drawing if isinstance(drawing, bytes) else figures.png(drawing)
    return Picture(caption, base64.b64encode(png).decode(), alt or caption)
