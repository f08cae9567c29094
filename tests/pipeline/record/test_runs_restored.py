"""Runs of the record as files for DVC, without ids, dates and seconds, and a clone's record from them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tables import frame, rows

from fedcore import nets
from fedcore.data.schema import Fit, Schema
from fedcore.pipeline import environment
from fedcore.pipeline.files import SETTING, STEPS
from fedcore.pipeline.record import models, promotion, registry, runs, seals, tracked
from fedcore.pipeline.record.contents import FOLDS, ROUNDS, about_data
from fedcore.pipeline.record.result import Evidence, StudyOnData
from fedcore.pipeline.run import outputs
from fedcore.results.summary import NO_SECONDS
from fedcore.types.method import Model

STUDY = StudyOnData("study", "small", "machines", "a" * 64)
ABOUT = about_data("machines", "a" * 64, {"examples": 60})
TAGS = {
    "fedcore.kind": "method", "fedcore.setting": "base", "fedcore.method": "fedavg", "fedcore.seed": "0",
    promotion.METRIC: "accuracy", promotion.MODEL: "fedcore-machines", "fedcore.partition": "p",
    **{f"fedcore.{name}": value for name, value in vars(STUDY).items()},
}  # fmt: skip


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, empty: Path) -> Callable[[str], runs.Record]:
    """Return a function that enters a project's folder, and opens its record."""
    import mlflow

    def enter(name: str) -> runs.Record:
        folder = tmp_path / name
        (folder / "mlruns").mkdir(parents=True)
        shutil.copyfile(empty, folder / "mlflow.db")
        monkeypatch.chdir(folder)
        monkeypatch.setattr(environment, "HOME", folder)
        monkeypatch.setattr(environment, "STATE", folder)
        monkeypatch.setattr(environment, "REGISTERED", folder / "registered")
        monkeypatch.setattr(environment, "ARTIFACTS", folder / "mlruns")
        monkeypatch.setattr(mlflow.tracking._tracking_service.utils, "_tracking_uri", None)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
        return runs.Record()

    return enter


def fill(folder: Path) -> None:
    model = Model((nets.init(nets.net("mlp", shape=(1,), classes=2, widths=[1]), torch.Generator().manual_seed(0)),))
    schema = Schema((1,), "float32", ("a", "b"), devices={"one": Fit()})
    models.write(folder, schema, [{"name": "mlp", "widths": [1]}], [(model, 0)], {"one": 0})


def write(record: runs.Record, config: str, tags: dict[str, str], parent: str, alpha: float = 0.5) -> Any:
    run = record.open(config, f"{config} seed 0", TAGS | tags, parent)
    seals.seal(TAGS[promotion.MODEL], record.log_model(run, "fedavg", fill).artifact_location)
    table = frame(rows({"fedavg": [[0.5, 0.75]]}), rows({"fedavg": [[0.5, 1.0]]}, at=2))
    root = json.dumps({"data": {"root": str(environment.HOME)}}).encode()
    files = {SETTING: root, FOLDS: b"[]", "plans/01.npy": b"1", "arrays/x.npy": b"2", "uncommitted.patch": b"3"}
    record.write(
        run, params={"federation.alpha": alpha}, table=table, seconds=NO_SECONDS, about=ABOUT, turn_reports=(),
        drawn={"devices": b"png"}, files=files,
    )  # fmt: skip
    record.close(run, "result")
    return record.client.get_run(run.info.run_id)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_a_clone_has_the_runs_the_plans_and_the_champion(
    at: Callable[[str], runs.Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    record = at("first")
    run = write(record, "fedavg", {}, record.parent(STUDY, "Which?", ABOUT))
    studied = record.version_of(run)
    assert studied is not None
    final = {registry.FINAL_FIT_OF: str(studied.version), registry.STUDY_RUN: studied.run_id}
    fitted = record.version_of(write(record, "fit", final | {"fedcore.kind": "final fit"}, studied.run_id))
    assert fitted is not None
    record.client.set_model_version_tag(studied.name, studied.version, registry.SHOWN, "no")
    promotion.promote(record.client, fitted)
    studies = Path("pipeline/federate")
    for proposed in (True, False):
        record.export({"fedavg": proposed, "gone": True}, studies / "study" / tracked.RECORD)
        (folder,) = (studies / "study" / tracked.RECORD).iterdir()
        assert (folder / tracked.MODELS).is_dir() == proposed
        held = "".join(path.read_text(errors="replace") for path in folder.rglob("*.json"))
        assert not [word for word in (run.info.run_id, str(run.info.start_time), str(tmp_path)) if word in held]
    files = {path.relative_to(folder / tracked.FILES).as_posix() for path in folder.glob("files/**/*.*")}
    assert files == {"devices.json", ROUNDS, SETTING, FOLDS, "plans/01.npy"}
    assert STEPS in {file.path for file in record.client.list_artifacts(run.info.run_id)}

    assert not tracked.is_new_clone()
    for name in ("pipeline", "champions"):
        shutil.copytree(tmp_path / "first" / name, tmp_path / "clone" / name)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'clone' / 'mlflow.db'}")
    monkeypatch.chdir(tmp_path / "clone")
    assert tracked.is_new_clone()
    clone = at("clone")
    shutil.rmtree(tmp_path / "first")
    for _ in range(2):  # a second time, after a kill for example, it writes nothing twice
        assert clone.restore(studies) == {}
    again = clone.find("fedavg")
    assert again is not None
    assert "fedcore.result" not in again.data.tags
    assert (again.info.run_name, again.data.params) == (run.info.run_name, run.data.params)
    assert again.data.metrics == {name: value for name, value in run.data.metrics.items() if name != "seconds"}
    assert again.inputs.dataset_inputs[0].dataset.profile == ABOUT.profile
    own = {key: tag for key, tag in run.data.tags.items() if key.startswith("fedcore.")}
    assert {key: again.data.tags.get(key) for key in own} == own | {"fedcore.result": None}
    assert [file.path for file in clone.client.list_artifacts(again.info.run_id, "plans")] == ["plans/01.npy", FOLDS]
    champion = promotion.alias(clone.client, "fedcore-machines", registry.CHAMPION)
    assert champion is not None
    assert (champion.version, promotion.study_version(clone.client, champion).run_id) == (2, again.info.run_id)
    assert champion.tags[registry.SHOWN] == "no"
    _, _, served = promotion.find_files(clone.client, None)
    assert models.load(served).devices == {"one": 0}
    assert json.loads((served / "data" / models.FOLDER / "models.json").read_text())["nets"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_runs_whose_names_differ_in_signs_or_case_have_a_folder_each(at: Callable[[str], runs.Record]):
    record = at("first")
    parent = record.parent(STUDY, "Which?", ABOUT)
    names = ["fedprox mu=1", "fedprox (mu=1)", "fedprox [mu=1]", "FedProx mu=1", "fedavg"]
    for name in names:
        write(record, name, {}, parent)
    record.export(dict.fromkeys(names, False), folder := Path("pipeline/federate/study") / tracked.RECORD)
    cards = {path.parent.name: json.loads(path.read_text())["config"] for path in folder.glob("*/run.json")}
    assert sorted(cards.values()) == sorted(names)
    assert len({name.casefold() for name in cards}) == len(names)
    assert cards["fedavg_seed_0"] == "fedavg"


def cloned(at: Callable[[str], runs.Record], tmp_path: Path, promoted: bool) -> runs.Record:
    """Return the empty record of a clone, to which DVC has brought one proposed run, and its champion if promoted."""
    record = at("first")
    run = write(record, "fedavg", {}, record.parent(STUDY, "Which?", ABOUT))
    record.export({"fedavg": True}, Path("pipeline/federate/study") / tracked.RECORD)
    if promoted:
        version = record.version_of(run)
        assert version is not None
        record.client.set_model_version_tag(version.name, version.version, registry.SHOWN, "no")
        promotion.promote(record.client, record.client.get_model_version(version.name, version.version))
    for folder in ("pipeline", "champions")[: 1 + promoted]:
        shutil.copytree(tmp_path / "first" / folder, tmp_path / "clone" / folder)
    return at("clone")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_a_clones_champion_says_whether_it_was_shown_to_be_better(at: Callable[[str], runs.Record], tmp_path: Path):
    clone = cloned(at, tmp_path, promoted=True)
    clone.restore(Path("pipeline/federate"))
    champion = promotion.alias(clone.client, "fedcore-machines", registry.CHAMPION)
    assert champion is not None
    assert champion.tags[registry.SHOWN] == "no"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # MLflow's own
@pytest.mark.parametrize(("config", "shown"), [("fedavg", "no"), ("other", "yes")])
def test_a_clone_proposes_by_the_evidence_of_its_studies(
    at: Callable[[str], runs.Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, shown: str,
    capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    """A run that its studies' results do not name is proposed as by itself."""
    clone = cloned(at, tmp_path, promoted=False)
    monkeypatch.setattr(outputs, "compare_stages", lambda: SimpleNamespace(answers={}))
    monkeypatch.setattr(outputs, "stage_studies", dict)
    monkeypatch.setattr(outputs, "stage_folders", lambda: ([], [], {}))
    monkeypatch.setattr(outputs, "read", dict)
    monkeypatch.setattr(outputs, "rule_of", lambda params: None)
    monkeypatch.setattr(outputs.comparison, "describe", lambda *given: None)
    monkeypatch.setattr(outputs.comparison, "proposals", lambda *given: {config: Evidence(3, shown=False)})
    outputs.open_clone()
    assert "machines version 1 (fedavg, seed 0" in capsys.readouterr().out  # of several it says which
    candidate = promotion.alias(clone.client, "fedcore-machines", registry.CANDIDATE)
    assert candidate is not None
    assert candidate.tags[registry.SHOWN] == shown
    assert ("not shown to be better" in candidate.tags[registry.PROPOSAL]) == (shown == "no")
