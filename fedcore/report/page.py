"""The web page of a comparison: one file that holds its style, script, numbers and pictures and refers to nothing else.

Tables and pictures are made here; the script (templates/page.js) turns them into charts, a slider and tables that sort.
It is our own because the page has to stay small and to run under a strict content security policy: the bundle
of Plotly's package is larger than the page may be, and Vega compiles its expressions, which the policy forbids.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image

from fedcore.config.papers import Papers
from fedcore.core.metrics import recorded
from fedcore.errors import printable
from fedcore.report import figures
from fedcore.report.charts import Numbers, chart_numbers
from fedcore.report.papers import printed_tables
from fedcore.report.phrases import facts, headed, tally
from fedcore.report.tables import FEW, Table, confusion_table, domain_table, link_table, score_table, where_it_holds
from fedcore.results.advice import Answer
from fedcore.results.criterion import SettingKey
from fedcore.results.outcomes import Outcomes
from fedcore.results.summary import Criteria, curves, split_by_setting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Pictures: TypeAlias = "Mapping[tuple[str, str], Mapping[str, Figure | bytes]]"
"""(study, setting) -> caption -> a figure, or the bytes of a PNG file"""

COLOURS = 64
TITLE = "Which way of combining serves the devices best?"
COMPARISON = "Scores on own test data and on the shared test set."
ALONG = "Scores over the study's settings; hollow: controls."
ROUNDS = "Scores over rounds, means with bands of ± 95 %; dotted: methods that are evaluated once."
CALIBRATION = "Share of own test rows that is right by confidence, ten bins, a disc each; dashed: calibrated."
DEVICES = "Scores of every device, one seed."
TREND = "The best method that combines, and local training, by the date of the run; dotted: other data than before."
SHOWN = 4
"""The most methods of a setting whose outcomes are on the page."""

TEMPLATES = Environment(
    loader=PackageLoader("fedcore.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
    lstrip_blocks=True, keep_trailing_newline=True,
)  # fmt: skip
TEMPLATES.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}


@dataclass(frozen=True)
class Picture:
    """A picture on the page. data: a PNG file in base 64."""

    caption: str
    data: str


Details: TypeAlias = tuple[str, list[Table], list[Picture]]
"""A line that unfolds tables and pictures."""


@dataclass(frozen=True)
class Comparison:
    """The tables and pictures of a comparison.

    table: the tidy table. summary: as :func:`fedcore.results.summary.summarise` returns it for that table. groups: as
    :func:`fedcore.results.summary.by_group` returns them. questions: study -> its question. pictures: further pictures
    of a setting, e.g. of its partition. claims: columns study, says, rule, of, where, verdict, numbers; more may
    follow. along: study -> a picture of all its settings. plots: of the same tables. papers: study -> the conditions
    and figures of its paper. answers: of each setting. outcomes: (study, setting) -> method -> what its models of the
    last round do with own test data. runs: what is compared, a run for each setting, method and seed. notes: of each
    (study, setting), lines about its data.
    """

    table: pd.DataFrame
    summary: pd.DataFrame
    groups: pd.DataFrame
    questions: Mapping[str, str]
    pictures: Pictures
    claims: pd.DataFrame
    along: Mapping[str, bytes]
    plots: Plots
    papers: Papers
    answers: Mapping[SettingKey, Answer]
    outcomes: Mapping[tuple[str, str], Mapping[str, Outcomes]]
    runs: Sequence[Mapping[str, Any]] = ()
    notes: Mapping[tuple[str, str], Sequence[str]] = field(default_factory=dict)


def html(result: Comparison) -> str:
    """Return the page: each study with its answers, charts, tables and claims, the rest folded.

    A study with more than FEW settings has charts and tables for each, but only the pictures in `pictures`. Equal input
    gives an equal page.
    """
    summary, claims, plots, papers, answers = result.summary, result.claims, result.plots, result.papers, result.answers
    count = summary.groupby("study")["setting"].nunique()
    tidy, domains = dict(split_by_setting(result.table)), dict(split_by_setting(result.groups))
    studies: dict[str, dict[str, Any]] = {}  # what the template shows, by its words
    numbers: dict[str, Numbers] = {}
    for key, rows in split_by_setting(summary):
        study, dataset, setting = key
        many = bool(count[study] > FEW)
        if study not in studies:
            study_claims = claims[claims["study"] == study].fillna("").to_dict("records")
            study_claims = [claim | {"numbers": where_it_holds(claim["numbers"])} for claim in study_claims]
            whole = {ALONG: result.along.get(study), ROUNDS: plots.courses.get((study, ""))}
            studies[study] = {
                "anchor": f"study-{len(studies)}", "name": study, "question": result.questions.get(study, study),
                "many": many,  # settings, each of them folded
                "headline": tally(one for (of, *_), one in answers.items() if of == study) if many else "",
                "claims": study_claims, "pictures": [picture(text, png) for text, png in whole.items() if png],
                "printed": printed_tables(papers[study]) if study in papers else [], "sections": [],
            }  # fmt: skip
        anchor = f"setting-{len(numbers)}"
        numbers[anchor] = chart_numbers(tidy[key], rows, answers[key])
        tables = [domain_table(domains[key], rows) if key in domains else None, link_table(tidy[key], rows)]
        drawn = dict(result.pictures.get((study, setting), {}))
        trend = drawn.pop(TREND, None)
        plain: dict[str, Figure | bytes] = {}
        if not many:
            drawn |= {ROUNDS: plots.courses[study, setting]} if (study, setting) in plots.courses else {}
            split = "test" if rows["test_mean"].notna().any() else "shared"
            drawn |= {DEVICES: figures.per_device(tidy[key], recorded(rows["metric"].iloc[0]), split=split)}
            plain = {COMPARISON: plots.comparisons[study, setting]}
        answer, name = answers[key], study if count[study] == 1 else printable(f"{study}: {setting}")
        said, words = headed(answer)
        section = {
            "anchor": anchor, "name": name, "dataset": printable(dataset), "metric": answer.criterion.words,
            "less": answer.criterion.metric.less,
            "headline": said, "sentences": words, "facts": facts(answer), "scores": score_table(rows),
            "notes": [*map(printable, result.notes.get((study, setting), ()))],
            "plain": [picture(*pair) for pair in plain.items()],  # in place of charts
            "tables": [*filter(None, tables)], "pictures": [picture(*pair) for pair in drawn.items()],  # folded
            "outcomes": [] if many else outcome_details(result.outcomes.get((study, setting), {}), rows, answer),
            "trend": picture(TREND, trend) if trend else None,
        }  # fmt: skip
        studies[study]["sections"].append(section)
    script = str(TEMPLATES.get_template("page.js").render())
    return TEMPLATES.get_template("page.html.jinja").render(
        title=TITLE, studies=[*studies.values()], seeds=summary["n_seeds"].max(), one=summary["n_measured"].eq(1).all(),
        numbers=numbers, script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )  # fmt: skip


def outcome_details(outcomes: Mapping[str, Outcomes], rows: pd.DataFrame, answer: Answer) -> list[Details]:
    """Return confusion matrix and calibration of the method to use, then of the best others, SHOWN in all."""
    best = [str(method) for method in rows["method"][~rows["control"]]]
    order = dict.fromkeys([*([answer.advised] if answer.advised else []), *best])
    details: list[Details] = []
    for method in [method for method in order if method in outcomes][:SHOWN]:
        outcome = outcomes[method]
        table = confusion_table(outcome)
        error = f"expected calibration error {100 * outcome.calibration_error:.1f} points"
        drawing = picture(f"{CALIBRATION} {error.capitalize()}.", figures.calibration(outcome))
        details.append((printable(f"{method}: predicted classes, and {error}"), [table] if table else [], [drawing]))
    return details


def picture(caption: str, drawing: Figure | bytes) -> Picture:
    """Return a figure or a PNG file as a picture on the page, in COLOURS colours, which makes it a third as large."""
    png = drawing if isinstance(drawing, bytes) else figures.png(drawing)
    return Picture(caption, base64.b64encode(few_colours(png)).decode())


def few_colours(png: bytes) -> bytes:
    """Return a PNG file with at most COLOURS colours."""
    small = io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        image.convert("RGB").quantize(COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(small, "png")
    return small.getvalue()


PANELS = 12
"""A study with more settings has no picture of accuracy over rounds."""


@dataclass(frozen=True)
class Plots:
    """PNG files by (study, setting). comparisons: accuracies of all methods. courses: accuracy over rounds.

    curves: the numbers that `courses` shows, see :func:`fedcore.results.summary.curves`.
    """

    comparisons: dict[tuple[str, str], bytes]
    courses: dict[tuple[str, str], bytes]
    curves: pd.DataFrame = field(default_factory=pd.DataFrame)


def draw(table: pd.DataFrame, summary: pd.DataFrame, criteria: Criteria) -> Plots:
    """Draw each setting's comparison, where a study has at most FEW of them, and accuracy over rounds.

    criteria: which devices count.
    """
    count = summary.groupby("study")["setting"].nunique()
    course = curves(table, criteria)
    few = [(key, rows) for key, rows in split_by_setting(summary) if count[key[0]] <= FEW]
    comparisons = {(study, setting): figures.png(figures.comparison(rows)) for (study, _, setting), rows in few}
    return Plots(comparisons, courses(course, summary), course)


def courses(course: pd.DataFrame, summary: pd.DataFrame) -> dict[tuple[str, str], bytes]:
    """Draw accuracy over rounds: (study, setting) -> a picture, for each setting in which a method's curve has points.

    A study with more than FEW settings, at most PANELS, has one picture of them all: (study, ""). course: see `curves`.
    """
    pictures = {}
    points = course.groupby(["study", "setting", "method"])["step"].nunique()
    drawn = {(study, setting) for study, setting, _ in points[points > 1].index}
    evaluated = pd.MultiIndex.from_frame(summary[["study", "setting"]]).isin(drawn)
    for study, rows in summary[evaluated].groupby("study", sort=False):
        of_study = course[(course["study"] == study) & course["setting"].isin(rows["setting"])]
        metrics = dict(zip(rows["setting"].astype(str), rows["metric"], strict=True))
        count = summary[summary["study"] == study]["setting"].nunique()
        if count <= FEW:
            for setting in dict.fromkeys(rows["setting"]):
                pictures[str(study), str(setting)] = figures.png(
                    figures.curves(of_study[of_study["setting"] == setting], recorded(metrics[str(setting)]))
                )
        elif count <= PANELS:
            order = {name: position for position, name in enumerate(dict.fromkeys(summary["setting"]))}
            in_order = of_study.sort_values("setting", key=lambda names: names.map(order), kind="stable")
            pictures[str(study), ""] = figures.png(figures.curves(in_order, recorded(rows["metric"].iloc[0])))
    return pictures
