"""Papers as data: what their files must have, and what the project's own files lack."""

import re
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from project_params import PARAMS, ROOT, refusal
from pydantic import ValidationError

from fedcore.config.papers import Condition, Figure, Paper, Value, of_study, read_papers
from fedcore.config.request import parse, plan_jobs
from fedcore.report.papers import source

STUDIES = PARAMS["studies"]
PAPERS = read_papers(STUDIES, ROOT)

TABLE = {"name": "Table II", "shows": "accuracy", "status": "run", "study": "code_fig8", "command": "make run"}
CONDITION = {"setting": "pixels", "paper": "not said", "place": "VII-A", "ours": "[0, 1]", "reason": "?", "effect": "?"}


def write(folder: Path, paper: Any, family: str = "code") -> Path:
    (folder / "papers").mkdir(exist_ok=True)
    (folder / "papers" / f"{family}.yaml").write_text(yaml.safe_dump(paper))
    return folder


def test_a_paper_is_read_with_numbers_and_words(tmp_path: Path):
    values = [{"what": "CODE", "paper": 0.9, "ours": 0.8}, {"what": "LMF", "paper": "above 87.5 %"}]
    write(tmp_path, {"conditions": [CONDITION], "figures": [{**TABLE, "values": values}]})
    (paper,) = read_papers(STUDIES, tmp_path).values()
    assert [(value.paper, value.ours) for _, value in paper.printed] == [(0.9, 0.8), ("above 87.5 %", None)]
    assert paper.conditions[0].paper == "not said"


def test_a_project_without_papers_has_none(tmp_path: Path):
    assert read_papers(STUDIES, tmp_path) == {}


@pytest.mark.parametrize(
    ("paper", "says"),
    [
        ([], "papers/code.yaml: must hold a paper's conditions and figures, has list"),
        ({"conditions": []}, "papers.code.figures: is missing"),
        ({"figures": []}, "papers.code.figures"),
        ({"figures": [{**TABLE, "status": "soon"}]}, "papers.code.figures.0.status = 'soon'"),
        ({"figures": [{**TABLE, "status": "part"}]}, "Table II: part needs a reason"),
        ({"figures": [{**TABLE, "status": "not run"}]}, "Table II: not run needs a reason"),
        ({"figures": [{**TABLE, "command": ""}]}, "Table II: run needs its command"),
        ({"figures": [{key: TABLE[key] for key in TABLE if key != "status"}]}, "papers.code.figures.0.status"),
        ({"figures": [TABLE, TABLE]}, "papers.code.figures: Table II stands there twice"),
        ({"figures": [{**TABLE, "study": "code_fig88"}]}, "Table II: there is no study 'code_fig88'"),
        ({"figures": [TABLE], "conditions": [{**CONDITION, "studies": ["no"]}]}, "pixels: there is no study 'no'"),
        ({"figures": [TABLE], "conditions": [{**CONDITION, "effect": ""}]}, "papers.code.conditions.0.effect"),
        ({"figures": [TABLE], "condition": []}, "papers.code.condition: no such key"),
        ({"figures": [{**TABLE, "values": [{"what": "a"}]}]}, "papers.code.figures.0.values.0.paper"),
        (
            {"figures": [TABLE], "theory": [{"name": "(1)", "says": "?"}]},
            "(1): needs a test that checks it, or the reason",
        ),
        ({"figures": [{**TABLE, "values": [{"what": "a", "paper": 1, "spread": -1}]}]}, "spread"),
    ],
)
def test_a_paper_that_says_too_little_or_too_much_is_refused(tmp_path: Path, paper: Any, says: str):
    assert says.lower() in refusal(read_papers, STUDIES, write(tmp_path, paper)).lower()


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        ({"paper": 0.9}, "not measured"),
        ({"paper": "above .9", "ours": 0.8}, "no number to compare"),
        ({"paper": 0.9, "ours": 0.8}, "no spread"),
        ({"paper": 0.9, "ours": 0.8, "spread": 0.1, "seeds": 1}, "no spread"),
        ({"paper": 0.876, "ours": 0.733, "spread": 0.04, "seeds": 5}, "below"),
        ({"paper": 0.9, "ours": 0.87, "spread": 0.01, "seeds": 5}, "within 3 sd"),
        ({"paper": 0.5, "ours": 0.87, "spread": 0.01, "seeds": 5}, "above"),
    ],
)
def test_where_the_papers_number_lies(value: dict[str, Any], verdict: str):
    assert Value(what="a", **value).verdict == verdict


def test_a_study_has_the_conditions_and_figures_that_concern_it():
    conditions = [Condition(**CONDITION), Condition(**{**CONDITION, "setting": "b", "studies": ["code_fig9"]})]
    papers = {
        "st_lf": Paper(figures=[Figure(**{**TABLE, "study": "st_lf_table1"})]),
        "code": Paper(conditions=conditions, figures=[Figure(**TABLE)]),
    }
    for study, settings, count in (
        ("code_fig8", ["pixels"], 1),
        ("code_fig9", ["pixels", "b"], 0),
        ("code", ["pixels"], 0),
    ):
        mine = of_study(papers, study)
        assert mine is not None
        assert [one.setting for one in mine.conditions] == settings
        assert len(mine.figures) == count
    assert of_study(papers, "codex") is None
    assert of_study({}, "code") is None


# the project's own papers


CONTENTS = {"code": (10, 2), "dfl": (4, 5), "fedasa": (13, 6), "st_lf": (9, 2)}
"""family -> the numbers of figures and of tables that its paper has."""

ROMAN = ("I", "II", "III", "IV", "V", "VI")


def numbered(name: str) -> set[str]:
    """Return the figures or tables that a name stands for: "Figs. 4 to 6" and "Fig. 3d" are 4, 5, 6 and 3."""
    if name.lower().startswith("fig"):
        text = re.sub(r"(\d+)\w? *(?:to|-) *(\d+)", lambda m: " ".join(map(str, range(int(m[1]), int(m[2]) + 1))), name)
        return {f"Fig. {number}" for number in re.findall(r"\d+", text)}
    return {f"Table {number}" for number in re.findall(rf"\b(?:{'|'.join(ROMAN)})\b", name)}


def missing(family: str, paper: Paper) -> list[str]:
    """Return the figures and tables of a paper that have no entry."""
    figures, tables = CONTENTS[family]
    wanted = [f"Fig. {i + 1}" for i in range(figures)] + [f"Table {number}" for number in ROMAN[:tables]]
    present = set[str]().union(*(numbered(figure.name) for figure in paper.figures))
    return [name for name in wanted if name not in present]


def test_names_stand_for_figures_and_tables():
    assert numbered("Figs. 4 to 6, 8 and 9") == {"Fig. 4", "Fig. 5", "Fig. 6", "Fig. 8", "Fig. 9"}
    assert numbered("Fig. 3d") == {"Fig. 3"}
    assert numbered("Table III, last rows") == {"Table III"}
    few = Paper(figures=[Figure(**TABLE), Figure(**{**TABLE, "name": "Figs. 1 to 9"})])
    assert missing("st_lf", few) == ["Table I"]


@pytest.mark.parametrize("family", PAPERS)
def test_every_figure_and_table_of_a_paper_has_an_entry(family: str):
    assert (ROOT / "studies" / f"{family}.yaml").is_file()
    assert missing(family, PAPERS[family]) == []


EQUATIONS = {"code": 49, "dfl": 31, "fedasa": 34, "st_lf": 93}
"""family -> the number of the last equation of its paper."""

STATEMENTS = {
    "code": ("Theorem 1", "Theorem 2", "Lemma 1", "Lemma 2", "Definition 1", "Definition 2", "Remark 1", "Remark 2",
             "Remark 3", "Remark 4", "Remark 5", "FedAvg-1", "FedAvg-50", "LMF"),
    "dfl": ("O(1/t)", "Assumption 5", "FedAvg", "FD", "SCAFFOLD", "FedGen", "DFL-FR"),
    "fedasa": ("Theorem 1", "Theorem 2", "Lemmas 1 and 2", "Definition 1", "FedAvg", "FedProx", "Ditto", "FedPer",
               "Local-only", "DiagNet"),
    "st_lf": ("Theorem 1", "Theorem 2", "Lemma 1", "Lemma 2", "Corollary 1", "Algorithm 1", "Algorithm 2", "Rnd-alpha",
              "AvgD", "FADA", "Rnd-psi", "psi-FedAvg", "psi-FADA", "single matching"),
}  # fmt: skip


def equations(name: str) -> list[int]:
    """Return the numbers of the equations that a name stands for: "(1), (3) to (5)" are 1, 3, 4 and 5."""
    spread = re.sub(
        r"\((\d+)\) to \((\d+)\)", lambda m: " ".join(f"({i})" for i in range(int(m[1]), int(m[2]) + 1)), name
    )
    return [int(number) for number in re.findall(r"\((\d+)\)", spread)]


@pytest.mark.parametrize("family", PAPERS)
def test_every_equation_and_theorem_of_a_paper_has_a_row(family: str):
    names = [one.name for one in PAPERS[family].theory]
    found = sorted(number for name in names for number in equations(name))
    assert found == list(range(1, EQUATIONS[family] + 1))
    assert [wanted for wanted in STATEMENTS[family] if not any(wanted in name for name in names)] == []


@pytest.mark.parametrize("family", PAPERS)
def test_the_tests_that_check_an_equation_exist(family: str):
    for one in PAPERS[family].theory:
        for test in one.tests:
            file, _, function = test.partition("::")
            assert f"\ndef {function}(" in (ROOT / file).read_text(), f"{one.name}: {test}"


FIGURES = [(family, figure) for family, paper in PAPERS.items() for figure in paper.figures]


@pytest.mark.parametrize(("family", "figure"), FIGURES, ids=lambda one: one if isinstance(one, str) else one.name)
def test_a_figure_has_its_reason_its_study_and_its_sources(family: str, figure: Figure):
    """What the reader refuses cannot be here; this is what it does not know: files, and modules of commands."""
    printed = [value for _, value in Paper(figures=[figure]).printed]
    assert all(source(value, ROOT) for value in printed if value.source)
    assert all(value.source for value in printed if isinstance(value.ours, float)), "a number without its source"
    words = shlex.split(figure.command.partition("#")[0])
    if "-m" in words:
        assert find_spec(words[words.index("-m") + 1])
    if figure.study and words[:2] == ["fedcore", "run"]:
        named = [word.partition("=")[2] for word in words if re.match(r"(run\.)?stud(y|ies)=", word)]
        assert [figure.study] == named, "the command runs other studies"


@pytest.mark.slow
def test_the_flow_accepts_every_command_of_the_papers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    commands = [shlex.split(figure.command.partition("#")[0]) for _, figure in FIGURES]
    asked = [words[2:] for words in commands if words[:2] == ["fedcore", "run"]]
    assert asked
    for words in asked:
        assert plan_jobs(parse(words))


def test_values_are_frozen():
    with pytest.raises(ValidationError):
        Figure(**TABLE).status = "part"  # type: ignore[misc]
