"""Papers as data: the conditions of their experiments, and the state of every figure and table, from papers/.

A file papers/<family>.yaml belongs to the studies in studies/<family>.yaml. A family may have none.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from fedcore.config.files import read_mapping
from fedcore.config.signatures import Section, check
from fedcore.errors import InputError

Text = Annotated[str, Field(min_length=1)]
Printed = Text | float
"""A number, or words such as "above 87.5 %" or "not said"."""


class Condition(Section):
    """A setting that the paper states or leaves open and that can decide a verdict.

    paper, place: the paper's value, and where it stands. effect: the measured effect of the difference, or "not
    measured: ..." with the reason. studies: those that it concerns; all of the family if empty.
    """

    setting: Text
    paper: Printed
    place: Text
    ours: Printed
    reason: Text
    effect: Text
    studies: list[str] = Field(default_factory=list)


class Value(Section):
    """A printed number, or one that the text says of a figure, beside ours.

    what: of which row, setting or metric. ours: mean over seeds; None if it was not measured. spread: standard
    deviation over seeds. source: a CSV file of the project, from its root or from docs/.
    """

    what: Text
    paper: Printed
    ours: Printed | None = None
    spread: Annotated[float, Field(ge=0)] | None = None
    seeds: Annotated[int, Field(ge=1)] | None = None
    source: Text | None = None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's; None unless both are numbers."""
        if isinstance(self.ours, str) or self.ours is None or isinstance(self.paper, str):
            return None
        return self.ours - self.paper

    @property
    def verdict(self) -> str:
        """Where the paper's number lies: within three standard deviations of ours, over at least two seeds, or not."""
        if self.ours is None:
            return "not measured"
        if self.difference is None:
            return "no number to compare"
        if self.spread is None or (self.seeds or 1) < 2:
            return "no spread"
        if abs(self.difference) <= 3 * self.spread * (1 + 1e-9):
            return "within 3 sd"
        return "above" if self.difference > 0 else "below"


class Figure(Section):
    """A figure or table. study: that answers it, or empty. reason: the cause for part and not run, with the cost."""

    name: Text
    shows: Text
    status: Literal["run", "part", "not run", "nothing to run"]
    study: str = ""
    command: str = ""
    reason: str = ""
    values: list[Value] = Field(default_factory=list)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.status in ("part", "not run") and not self.reason:
            raise ValueError(f"{self.name}: {self.status} needs a reason")
        if self.status in ("run", "part") and not self.command:
            raise ValueError(f"{self.name}: {self.status} needs its command")
        return self


class Statement(Section):
    """An equation, theorem, lemma, remark or named baseline; its name may stand for several, "(1) to (7)".

    tests: those that check it, file::function. reason: why none does.
    """

    name: Text
    says: Text
    tests: list[Text] = Field(default_factory=list)
    reason: str = ""

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if not self.tests and not self.reason:
            raise ValueError(f"{self.name}: needs a test that checks it, or the reason why none does")
        return self


class Paper(Section):
    """conditions: settings that can decide a verdict. figures: every figure and table. theory: every equation."""

    conditions: list[Condition] = Field(default_factory=list)
    figures: Annotated[list[Figure], Field(min_length=1)]
    theory: list[Statement] = Field(default_factory=list)

    @property
    def printed(self) -> list[tuple[Figure, Value]]:
        """Every value with its figure."""
        return [(figure, value) for figure in self.figures for value in figure.values]


Papers = Mapping[str, Paper]
"""family -> its paper"""


def read_papers(studies: Mapping[str, Any], folder: Path = Path()) -> dict[str, Paper]:
    """Return the papers in papers/, in the order of their names; none without that folder.

    studies: the names of all studies. Raises InputError for a file that cannot be read, a missing or unknown key, an
    unknown study, and a figure that stands twice.
    """
    papers = {}
    for path in sorted((folder / "papers").glob("*.yaml")):
        where = f"papers.{path.stem}"
        paper = check(Paper, where, read_mapping(path, "a paper's conditions and figures"))
        names = [figure.name for figure in paper.figures]
        for figure in paper.figures:
            if names.count(figure.name) > 1:
                raise InputError(f"{where}.figures: {figure.name} stands there twice")
            if figure.study and figure.study not in studies:
                raise InputError(f"{where}.figures: {figure.name}: no such study: {figure.study!r}")
        for condition in paper.conditions:
            for study in condition.studies:
                if study not in studies:
                    raise InputError(f"{where}.conditions: {condition.setting}: no such study: {study!r}")
        papers[path.stem] = paper
    return papers


def of_study(papers: Papers, study: str) -> Paper | None:
    """Return the conditions and the figures of one study; None if no paper has any.

    A study belongs to the paper whose figures name it, or to the family with which its name begins.
    """
    for family, paper in papers.items():
        figures = [figure for figure in paper.figures if figure.study == study]
        if figures or study == family or study.startswith(f"{family}_"):
            conditions = [each for each in paper.conditions if not each.studies or study in each.studies]
            return Paper.model_construct(conditions=conditions, figures=figures)
    return None
