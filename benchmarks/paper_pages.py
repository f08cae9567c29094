"""What the pages of results say of each paper: papers/results/*.yaml, checked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from pydantic import Field

from fedcore.config.files import read_mapping
from fedcore.config.signatures import Section, check
from fedcore.errors import InputError
from fedcore.types.ranges import Positive

ROOT = Path(__file__).parents[1]
Text = Annotated[str, Field(min_length=1)]

NEAR = {"same": "●", "part": "◐", "other": "○", "not printed": "?"}
"""How near a condition is to the paper's -> its sign on the page."""


class Card(Section):
    """A paper in forty words and a headline, by hand.

    headline: above them. idea, pays, fails, instead, cost: what it is, where it pays and where not, what to use
    instead, what it costs. verdicts: those on the paper's lines when the card was written, in their order.
    """

    headline: Text
    idea: Text
    pays: Text
    fails: Text
    instead: Text
    cost: Text
    verdicts: list[Text]


class Line(Section):
    """A statement of a paper, and the claims that answer it.

    says: the statement in plain words. file: of docs/results, without "-claims.csv". rules: rules of its claims.
    study, of, where: of these claims, the ones with that study, that metric, and these words in their settings. unit:
    what they compare, where its usual name misleads. always: of a bound, which one opposite contradicts. note: what
    else a reader must know. table: the file with the numbers, in docs/results.
    """

    says: Text
    file: Text
    rules: Annotated[list[Text], Field(min_length=1)]
    study: str = ""
    of: str = ""
    where: str = ""
    unit: str = ""
    always: bool = False
    note: str = ""
    table: Text


class Baseline(Section):
    """A row that a paper's claims are compared with, here and as the paper prints it.

    row: its name in the studies. files: of docs/results, without "-claims.csv", whose claims stand on it. where: the
    settings that count, a regular expression; empty: all. of: what the number is of. paper, ours: its number.
    tolerance: the most that they may differ, decided before the run. differs: the condition that does.
    """

    row: Text
    files: Annotated[list[Text], Field(min_length=1)]
    where: str = ""
    of: Text = "shared.accuracy"
    paper: float
    ours: float
    tolerance: Positive = 0.03
    differs: Text

    @property
    def calibrated(self) -> bool:
        """Whether ours is the paper's, within the tolerance."""
        return abs(self.ours - self.paper) <= self.tolerance + 1e-9


class Contrast(Section):
    """A line of the forest plot: the lead of one row on another, a dot for each setting.

    rival: the line's name. pairs: "row > rival", or "row > rival in REGULAR EXPRESSION" of settings. files: of
    docs/results, without ".csv", or of claims, without "-claims.csv".
    """

    rival: Text
    pairs: Annotated[list[Text], Field(min_length=1)]
    files: Annotated[list[Text], Field(min_length=1)]


class PaperPage(Section):
    """name: the paper's. card: of the first page. about: what its numbers are of. near: condition -> a key of NEAR.

    names: rows, keys and settings ("devices=4", or "devices=" with {} for the value) in plain words. forest: lines of
    the plot. lines: statements. calibration: the rows on which verdicts stand. also: what else was measured.
    """

    name: Text
    card: Card
    about: Text
    near: dict[str, Text]
    forest: list[Contrast]
    names: dict[str, str] = Field(default_factory=dict)
    lines: list[Line]
    calibration: list[Baseline] = Field(default_factory=list)
    also: list[Text] = Field(default_factory=list)


PaperPages = Mapping[str, PaperPage]
"""family -> its page"""


def read_pages(root: Path = ROOT) -> dict[str, PaperPage]:
    """Return the pages of papers/results, in the order of their names."""
    paths = sorted((root / "papers" / "results").glob("*.yaml"))
    return {
        path.stem: check(PaperPage, f"papers.results.{path.stem}", read_mapping(path, "a page's words"))
        for path in paths
    }


def claims_of(line: Line, root: Path) -> pd.DataFrame:
    """Return the verdicts on a line's claims, in the order of its rules; refuses a line that matches no claim."""
    rows: Any = pd.read_csv(root / "docs" / "results" / f"{line.file}-claims.csv", keep_default_na=False)
    for column, wanted in (("study", line.study), ("of", line.of)):
        rows = rows[rows[column] == wanted] if wanted else rows
    rows = rows[rows["where"].str.contains(line.where, regex=False)]
    for rule in line.rules:
        if rule not in set(rows["rule"]):
            raise InputError(f"papers: {line.says!r}: {line.file}-claims.csv has no claim {rule!r}")
    rows = rows[rows["rule"].isin(line.rules)].drop_duplicates(["rule", "of", "where"])
    if line.always:
        opposite = (pd.to_numeric(rows["contradicted_in"]) > 0) & (rows["verdict"] != "another regime")
        rows.loc[opposite, "verdict"] = "contradicted"
    return pd.DataFrame(rows)


ORDER = (
    "holds",
    "holds in most",
    "holds in part",
    "not shown",
    "contradicted in part",
    "contradicted",
    "another regime",
    "not run to its end",
    "could not be tested",
)


UNTESTED = ("not tested", "not run to its end", "another regime")


def judged(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the claims of a statement on which its verdict rests: those that were tested, all if none was."""
    found = rows[~rows["verdict"].isin(UNTESTED)]
    return found if len(found) else rows


def verdict_on(rows: pd.DataFrame) -> str:
    """Return the verdict on a statement from those on its claims."""
    verdicts = set(rows["verdict"])
    if verdicts <= {*UNTESTED}:
        return next((word for word in ("another regime", "not run to its end") if word in verdicts), ORDER[-1])
    if len(verdicts) == 1:
        return str(verdicts.pop())
    if "contradicted" in verdicts:
        return "contradicted in part"
    if not verdicts & {"holds", "holds in most"}:
        return "not shown"
    return "holds in most" if verdicts == {"holds", "holds in most"} else "holds in part"
