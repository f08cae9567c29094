"""The kept answers, and that `fedcore show` prints them without what computed them."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import answer_tables
import pandas as pd
import pytest
from comparisons import claims, comparison
from project_params import ROOT
from tables import NO_SECONDS, grouped

from fedcore.cli.show import show_all, show_brief
from fedcore.config.params import read
from fedcore.errors import InputError
from fedcore.pipeline import answers
from fedcore.pipeline.cache.store import digest_of
from fedcore.pipeline.files import ANSWERS, BRIEF, CLAIMS, LAST, PAGE, RUNS, SUMMARY, TABLE
from fedcore.pipeline.record.result import StudyOnData
from fedcore.pipeline.run import outputs
from fedcore.pipeline.run.comparison import answer, compare, deciders_of, describe, numbers_of_answers, numbers_of_rows
from fedcore.report.answers import Box, study_answers
from fedcore.report.tables import csv
from fedcore.results.advice import Action, Advice
from fedcore.results.criterion import Criterion
from fedcore.results.gains import Gain
from fedcore.results.summary import COLUMNS

BOXES = {"study": [Box("study: alpha=1 (digits)", "Use lmf", ("It gains 3 points.", "So does ditto.")), Box("b", "c")]}
SHOW = """
import sys
from fedcore.cli.main import main
main(["show"])
assert not {"torch", "prefect", "mlflow", "scipy", "pydantic"} & {*sys.modules}
"""


@pytest.fixture
def compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a table in a project; the current folder becomes the project."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "pipeline" / "compare"
    for made in (folder, tmp_path / "results", tmp_path / "studies"):
        made.mkdir(parents=True)
    (folder / TABLE).write_bytes(b"numbers")
    Path("params.yaml").write_text("run: {min_effect: 0.01}\n")
    Path("studies/mine.yaml").write_text("study: {}\n")
    answers.keep(BOXES, folder, Path("results"))
    return folder


def test_the_boxes_come_back(compared: Path):
    assert answers.read(compared, Path("results")) == BOXES


@pytest.mark.parametrize("changed", ["params.yaml", "studies/mine.yaml", f"pipeline/compare/{TABLE}"])
def test_boxes_of_other_settings_or_another_table_are_not_read(compared: Path, changed: str):
    Path(changed).write_text("other: {}\n")
    assert answers.read(compared, Path("results")) is None


def test_boxes_before_another_study_came_are_not_read(compared: Path):
    Path("studies/more.yaml").write_text("")
    assert answers.read(compared, Path("results")) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"of": ', "null"])
def test_damaged_boxes_are_not_read(compared: Path, text: str):
    (Path("results") / ANSWERS).write_text(text)
    assert answers.read(compared, Path("results")) is None
    (Path("results") / ANSWERS).unlink()
    assert answers.read(compared, Path("results")) is None


@pytest.mark.slow
def test_show_needs_neither_pytorch_nor_prefect(compared: Path):
    (Path("results") / SUMMARY).write_text(csv(comparison()[1]))
    (compared / CLAIMS).write_text(csv(claims()))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FEDCORE_HOME": str(Path.cwd())}
    call = [sys.executable, "-c", SHOW]
    shown = subprocess.run(call, capture_output=True, text=True, env=environment, check=True).stdout
    for words in ("Use lmf", "So does ditto.", "claims of the paper", "page: results/report.html"):
        assert words in shown


@pytest.mark.slow
def test_page_terminal_and_show_give_one_answer(tmp_path, monkeypatch, capsys):
    """It knows of edited tasks, of mistakes without a cost, and of a row that misses a rare class, with weights."""
    monkeypatch.chdir(tmp_path)
    for folder in ("studies", "claims", "papers"):
        shutil.copytree(ROOT / folder, folder)
    Path("params.yaml").write_text((ROOT / "params.yaml").read_text().replace("  metric:   ", "  metric: auto"))
    made = answer_tables.table(dict.fromkeys(["local_only", "code"], [[0.94, 0.94]] * 3)).assign(study="my_data")
    rare = made.iloc[:1].assign(split="data", metric="largest_class", value=0.94)
    balanced = made[made["metric"] == "accuracy"].assign(metric="balanced_accuracy", value=0.5)
    entry = {"study": "my_data", "setting": "alpha=1", "point": {}, "seed": 0, "config": "", "control": False}
    entry |= {"validation": 0.5, "candidate": False, "tasks": ["rank"], "weighted": True, "free": "run.costs: it"}
    entry |= {"few": ["fault", 17]}
    tables = {"local_only": made, "code": pd.concat([rare, balanced])}
    runs = [SimpleNamespace(seconds=NO_SECONDS, table=of, entry=entry | {"method": row}) for row, of in tables.items()]
    said = answer(read(), [run.table for run in runs], [run.seconds for run in runs], [run.entry for run in runs])
    (terminal,) = study_answers(said.answers)["my_data"]
    folder = outputs.PIPELINE / "federate" / "my_data" / "my_data-0"
    folder.mkdir(parents=True)
    pd.concat([one.table for one in runs], ignore_index=True).to_parquet(folder / TABLE)
    (folder / RUNS).write_text(json.dumps([one.entry for one in runs]))
    monkeypatch.setattr(outputs, "stage_folders", lambda: ([folder], [], {}))
    outputs.compare_stages()
    numbers = Path("results", PAGE).read_text().partition('id="numbers">')[2].partition("</script>")[0]
    (chart,) = json.loads(numbers).values()
    assert tuple(chart["budgets"][-1]["said"]["sentences"]) == terminal.sentences
    assert "run.costs: it" in terminal.sentences
    few = "Balanced accuracy rests on 17 test rows of class fault in a seed; 20 are needed."
    assert few in terminal.sentences
    assert "code misses many rows of a rare class; more rows of it would help (`fedcore" in str(terminal.sentences)
    for text in ("kept", "anew"):
        show_all()
        shown = " ".join(re.sub(r"[^\w.,:%+()-]+", " ", capsys.readouterr().out).split())
        assert all(re.sub(r"[^\w.,:%+()-]+", " ", sentence).strip() in shown for sentence in terminal.sentences), text
        Path("params.yaml").write_text(Path("params.yaml").read_text() + "# changed\n")


def test_means_by_another_rule_are_another_request(tmp_path):
    """Else its numbers would be written over those of the usual rule, in one run of the record."""
    made = answer_tables.table(dict.fromkeys(["local_only", "code"], [[0.9, 0.8]] * 3)).assign(study="my_data")
    entry = {"study": "my_data", "setting": "alpha=1", "point": {}, "seed": 0, "config": "c", "control": False}
    entries = [entry | {"method": row, "validation": 0.5, "candidate": False} for row in ("local_only", "code")]
    (page := tmp_path / PAGE).write_text("")
    params, asked = read(), list[Any]()
    digits, other = (StudyOnData("my_data", "small", name, name[0] * 64) for name in ("digits", "other"))
    studies = {("my_data", "alpha=1"): digits, ("my_data", "alpha=2"): other}
    for more in ({}, {"least_test": 20}, {"weigh": "examples"}, {"least_test": 0}, {"min_effect": 0.05}):
        said = answer({**params, "run": {**params["run"], **more}}, [made], [NO_SECONDS], entries)
        assert deciders_of(said.answers) == [f"{key} = {value}" for key, value in more.items() if value != 20]
        parts = {"table": said.table, "summary": said.summary, "answers": said.answers, "runs": entries}
        compared: Any = SimpleNamespace(**parts, questions={"my_data": "?"}, plots=SimpleNamespace(comparisons={}))
        describe(compared, studies, SimpleNamespace(describe=lambda _, of: asked.append(of)), page)
    assert [of.rule for of in asked] == ["", "", "weigh = examples", "least_test = 0", ""]
    assert asked[0].request == asked[1].request == digest_of("c\nc")
    assert len({of.request for of in asked}) == 4
    assert {of.beside for of in asked} == {(other,)}
    assert {method.numbers["val/accuracy"] for of in asked for method in of.methods} == {0.5}


def test_the_least_difference_in_a_labels_unit_is_known_as_it_was_typed():
    decides = Criterion(min_effect=0.03, least_test=20).of_numbers(0.7)
    of: Any = {("s", "d", "base"): SimpleNamespace(criterion=decides)}
    assert (decides.min_effect, deciders_of(of)) == (pytest.approx(0.021), ["min_effect = 0.03"])
    assert deciders_of({key: SimpleNamespace(criterion=replace(decides, min_effect=0.007)) for key in of}) == []


@pytest.mark.parametrize(("least", "counted"), [(20, ("d00", "d02")), (0, ("d00", "d01", "d02"))])
def test_claims_gates_and_groups_are_of_the_devices_that_count(least, counted, tmp_path, monkeypatch):
    """Device d01 has two test rows, on which a method errs that is better on all others."""
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(
        (ROOT / "params.yaml").read_text().replace("least_test:  ", f"least_test: {least} #")
    )
    methods = {"a": {"method": "local_only"}, "b": {"method": "fedavg"}}
    claim = {"statement": "?", "rule": "a > b", "metric": "test.accuracy"}
    Path("studies").mkdir()
    gate = {"require": "a > 0.6", "reason": "low", "metric": "worst of test.accuracy"}
    for study, valid in (("open", []), ("gated", [gate])):
        written = {study: {"title": "?", "sizes": {"small": {}}, "methods": methods, "claims": [claim], "valid": valid}}
        Path("studies", f"{study}.yaml").write_text(json.dumps(written))
    values = {"a": [0.8, 0.1, 0.7], "b": [0.7, 0.9, 0.5]}
    made = answer_tables.table({name: [of] * 3 for name, of in values.items()})
    made = grouped(made, {"d00": "A", "d01": "A", "d02": "B"})
    devices = made[made["split"] == "test"].drop_duplicates(["method", "seed", "device"])
    for name, sizes in (("test_examples", [400, 2, 400]), ("test_classes", [2, 2, 2])):
        column = devices["device"].map(dict(zip(("d00", "d01", "d02"), map(float, sizes), strict=True)))
        made = pd.concat([made, devices.assign(split="data", metric=name, value=column)], ignore_index=True)
    entry = {"setting": "alpha=1", "point": {}, "config": "", "control": False, "validation": 0.5, "candidate": False}
    for study in ("open", "gated"):
        (folder := tmp_path / f"{study}-0").mkdir()
        made.assign(study=study).to_parquet(folder / TABLE)
        rows = [entry | {"study": study, "method": name, "seed": seed} for name in values for seed in range(3)]
        (folder / RUNS).write_text(json.dumps(rows))
    found = compare(read(), [tmp_path / "open-0", tmp_path / "gated-0"], [], {})
    means = {name: sum(of[int(who[1:])] for who in counted) / len(counted) for name, of in values.items()}
    expected = means["a"] - means["b"]
    judged = found.claims.set_index("study")
    assert judged.loc["open", "verdict"] == ("holds" if expected > 0 else "contradicted")
    assert judged.loc["open", "a"] - judged.loc["open", "b"] == pytest.approx(expected)
    assert judged.loc["gated", "verdict"] == ("holds" if least else "not tested")
    groups = found.groups.query("study == 'open' and split == 'test' and method == 'a'").set_index("group")
    assert groups["n_devices"].to_dict() == {"A": len(counted) - 1, "B": 1}
    assert groups["mean"].to_dict() == pytest.approx({"A": 0.8 if least else 0.45, "B": 0.7})


@pytest.mark.parametrize(("action", "best"), [(Action.USE, 0.963), (Action.UNSURE, 0.962)])
def test_the_recorded_numbers_are_of_the_row_that_is_judged(action: Action, best: float):
    """A row is used that is not the best by a hair, and the gain is its own."""
    gain = Gain(0.094, 0.05, 0.14, 0.01, 0.08, 3)
    advice = Advice(action, "used", 0.963, "best", gain, best_value=0.962, alone="alone", alone_value=0.868)
    answered: Any = {("s", "d", "base"): SimpleNamespace(advice=advice)}
    found = numbers_of_answers(answered)
    assert found == {"best": best, "alone": 0.868, "gain": 0.094, "gain_low": 0.05, "gain_high": 0.14}


def test_the_recorded_numbers_of_settings_stay_apart():
    advice = Advice(Action.USE, "used", 0.9, "used", None, best_value=0.9, alone="alone", alone_value=0.5)
    names = ("kind=a+b", "kind=a=b", "kind=c")
    answered: Any = {("s", "d", name): SimpleNamespace(advice=replace(advice, value=i)) for i, name in enumerate(names)}
    found = numbers_of_answers(answered)
    assert sorted(value for key, value in found.items() if key.endswith("/best")) == [0, 1, 2]
    assert {"kind_c/best", "kind_c/alone"} <= {*found}


def test_pictures_of_devices_are_of_their_own_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also where two studies have settings whose names differ in signs alone."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "params.yaml", ".")
    Path("studies").mkdir()
    methods = {"a": {"method": "local_only"}, "b": {"method": "fedavg"}}
    names, folders, who = {"one": "label=x<5", "two": "label=x>5"}, [], {}
    for study, setting in names.items():
        Path("studies", f"{study}.yaml").write_text(
            json.dumps({study: {"title": "?", "sizes": {"small": {}}, "methods": methods}})
        )
        folders.append(folder := tmp_path / f"{study}-0")
        who[study, setting] = tmp_path / study / "label=x_5" / "seed-0" / "who.png"
        who[study, setting].parent.mkdir(parents=True)
        who[study, setting].write_bytes(study.encode())
        folder.mkdir()
        answer_tables.table({"a": [[0.8, 0.7]] * 3, "b": [[0.7, 0.7]] * 3}).assign(
            study=study, setting=setting
        ).to_parquet(folder / TABLE)
        entry = {"study": study, "setting": setting, "point": {}, "config": "", "control": False, "seed": 0}
        rows = [entry | {"method": name, "validation": 0.5, "candidate": False} for name in methods]
        (folder / RUNS).write_text(json.dumps(rows))
    found = compare(read(), folders, [], who)
    shown = {key: [*of.values()] for key, of in found.pictures.items()}
    assert shown == {(study, setting): [study.encode()] for study, setting in names.items()}


@pytest.mark.parametrize(
    ("names", "first"),
    [
        (["devices fedprox mu=1", "devices fedprox (mu=1)"], "devices-fedprox-mu-1"),
        (["devices 北", "devices 南"], ""),
        (["answer my_study", "answer my_studie"], "answer-my-study"),
    ],
)
def test_an_artifact_is_found_by_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch, names: list[str], first: str):
    from prefect import artifacts

    keys = list[str]()
    monkeypatch.setattr(artifacts, "create_markdown_artifact", lambda key, **of: keys.append(key))
    for name in names:
        outputs.publish(name, "text", "what")
    assert len({*keys}) == 2
    assert all(re.fullmatch("[a-z0-9-]+", key) for key in keys)
    assert first in ("", keys[0])


@pytest.mark.parametrize(("name", "ends"), [("accuracy", (0.85, 1.0)), ("r2", (0.85, 1.0)), ("mae", (0.85, 1.05))])
def test_recorded_intervals_of_each_test_set_end_where_the_metric_does(name: str, ends: tuple[float, float]):
    """A study with a shared test set alone has an interval, too."""
    row = dict.fromkeys(COLUMNS, math.nan) | {"setting": "base", "method": "dfl", "metric": name}
    (found,) = numbers_of_rows(pd.DataFrame([row | {"shared_mean": 0.95, "shared_margin": 0.1}]), {}).values()
    low, high = ends
    assert found == pytest.approx({f"shared/{name}": 0.95, f"shared/{name}_low": low, f"shared/{name}_high": high})


@pytest.mark.parametrize("show", [show_all, show_brief])
@pytest.mark.slow
def test_without_answers_of_dvc_those_of_the_last_run_are_shown(show, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"^pipeline/compare/\S+: no such file; .*yet; type: fedcore run"):
        show()
    for age, name in enumerate(("new", "old")):
        (folder := tmp_path / "runs" / name).mkdir(parents=True)
        (folder / BRIEF).write_text(f"{name}: use fedavg\n")
        (folder / SUMMARY).write_text(csv(comparison()[1]))
        (folder / CLAIMS).write_text(csv(claims()))
        os.utime(folder / BRIEF, (9 - age, 9 - age))
    show()
    first, *others = capsys.readouterr().out.splitlines()
    assert first == "new: use fedavg"
    assert ("study: claims of the paper" in others) is (show is show_all)
    assert others[-1].endswith(f"record: fedcore ui{'   in full: fedcore show' * (show is show_brief)}")
    for last, shown in (("old", "old"), ("pruned", "new")):  # a restored folder's date says nothing
        (tmp_path / "runs" / LAST).write_text(f"{last}\n")
        show()
        assert capsys.readouterr().out.startswith(f"{shown}: use fedavg\n")
    answers.keep(
        {"study": [Box("study (data)", "Use fedavg", ("In whole sentences.",))]}, None, tmp_path / "runs" / "new"
    )
    show()
    assert ("In whole sentences." in capsys.readouterr().out) is (show is show_all)


@pytest.mark.slow
@pytest.mark.parametrize(("key", "value"), [("weigh", "examples"), ("metric", "macro_f1"), ("least_test", "0")])
def test_the_tables_shown_are_by_the_same_settings_as_the_answers(tmp_path, monkeypatch, capsys, key, value):
    """Of two devices one has a tenth of the rows, a lower accuracy, and another macro F1."""
    monkeypatch.chdir(tmp_path)
    for folder in ("studies", "claims", "papers"):
        shutil.copytree(ROOT / folder, folder)
    shutil.copy(ROOT / "params.yaml", ".")
    made = answer_tables.table({"local_only": [[0.9, 0.5]] * 3, "code": [[0.8, 0.6]] * 3}).assign(study="my_data")
    own = made[(made["split"] == "test") & (made["metric"] == "accuracy")]
    made.loc[made["metric"] == "macro_f1", "value"] = 0.31
    counts = [
        own.assign(split="data", metric=name, value=own["device"].map({"d00": few, "d01": many}))
        for name, few, many in (("test_examples", 10 if key == "least_test" else 40, 400), ("test_classes", 2, 2))
    ]
    folder = outputs.PIPELINE / "federate" / "my_data" / "my_data-0"
    folder.mkdir(parents=True)
    pd.concat([made, *counts], ignore_index=True).to_parquet(folder / TABLE)
    entry = {"study": "my_data", "setting": "alpha=1", "point": {}, "seed": 0, "config": "", "control": False}
    rows = [entry | {"method": row, "validation": 0.5, "candidate": False} for row in ("local_only", "code")]
    (folder / RUNS).write_text(json.dumps(rows))
    monkeypatch.setattr(outputs, "stage_folders", lambda: ([folder], [], {}))
    outputs.compare_stages()
    show_all()
    before = capsys.readouterr().out
    assert "dvc repro, not by today's" not in before
    text = (ROOT / "params.yaml").read_text()
    Path("params.yaml").write_text(text + "# a remark\n")
    show_all()
    assert capsys.readouterr().out == before
    for _ in range(2):
        Path("params.yaml").write_text(re.sub(rf"(?m)^  {key}:.*$", f"  {key}: {value}", text))
        show_all()
        said = capsys.readouterr().out
        assert "dvc repro, not by today's" in said
        shown = answer(read(), [pd.read_parquet(folder / TABLE)], [NO_SECONDS], rows).summary
        for mean in shown["test_mean"]:
            assert re.search(rf"\b({100 * mean:.1f}|{mean:.3f})\b", said.partition("rank")[2])
    Path("params.yaml").write_text(re.sub(r"(?m)^  metric:.*$", "  metric: roc_auc", text))
    with pytest.raises(
        InputError, match=r"run\.metric = 'roc_auc': not measured by the last dvc repro; type: dvc repro"
    ):
        show_all()
