"""A version of a model is loaded only if this project registered its files: MLflow's database may name others."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from base64 import b64encode
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedcore.cli import predict
from fedcore.errors import InputError
from fedcore.pipeline import environment
from fedcore.pipeline.record import models, seals

NAME = "fedcore-digits"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of a registered model."""
    monkeypatch.setattr(environment, "ARTIFACTS", tmp_path / "mlruns")
    monkeypatch.setattr(environment, "REGISTERED", tmp_path / ".fedcore" / "registered")
    place = tmp_path / "mlruns" / "models" / "m-1" / "artifacts"
    (place / "code").mkdir(parents=True)
    (place / "code" / "mynets.py").write_text("WIDTH = 1\n")
    (place / "MLmodel").write_text("flavors:\n")
    seals.seal(NAME, place.as_uri())
    return place


def test_what_was_registered_is_loaded(folder: Path):
    assert seals.check(NAME, folder.as_uri(), "version 1") == folder.resolve()
    (folder / "code" / "__pycache__").mkdir()  # as Python leaves it
    (folder / "code" / "__pycache__" / "mynets.pyc").touch()
    (folder / "registered_model_meta").write_text("model_name: fedcore-digits\n")  # as MLflow does that loads it
    seals.check(NAME, folder.as_uri(), "version 1")


def change(folder: Path) -> None:
    (folder / "code" / "mynets.py").write_text("WIDTH = 2\n")


def add(folder: Path) -> None:
    (folder / "code" / "torchvision.py").touch()


def rename(folder: Path) -> None:
    (folder / "MLmodel").rename(folder / "model")


def forget(folder: Path) -> None:
    for known in environment.REGISTERED.iterdir():
        known.unlink()


@pytest.mark.parametrize("harm", [change, add, rename, forget])
def test_files_that_changed_are_refused(folder: Path, harm: Any):
    harm(folder)
    with pytest.raises(InputError, match=r"^version 1: not loaded, since its files are not those that this project"):
        seals.check(NAME, folder.as_uri(), "version 1")


def test_a_models_files_stand_for_no_other_model(folder: Path):
    with pytest.raises(InputError, match="not those that this project"):
        seals.check("fedcore-mnist", folder.as_uri(), "version 1")


def test_files_of_another_user_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch):
    if os.getuid() == 0:
        os.chown(folder / "MLmodel", 12345, 12345)
    else:
        monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(InputError, match=r"is a link or another user's$"):
        seals.check(NAME, folder.as_uri(), "version 1")


def test_a_link_is_refused(folder: Path, tmp_path: Path):
    (tmp_path / "evil.py").touch()
    (folder / "code" / "more.py").symlink_to(tmp_path / "evil.py")
    with pytest.raises(InputError, match=r"is a link or another user's$"):
        seals.check(NAME, folder.as_uri(), "version 1")


@pytest.mark.parametrize("place", ["mlruns/../evil", "mlruns", "evil", "linked"])
def test_files_elsewhere_are_refused(folder: Path, tmp_path: Path, place: str):
    (tmp_path / "evil").mkdir()
    (tmp_path / "mlruns" / "out").symlink_to(tmp_path / "evil")
    where = tmp_path / ("mlruns/out" if place == "linked" else place)
    for uri in (f"file://{where}", str(where), f"http://127.0.0.1{where}", f"file://host{where}"):
        with pytest.raises(InputError, match="not loaded, since its files are not in "):
            seals.own_folder(uri, "version 1")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_a_champion_made_by_rest_runs_no_code(
    folder: Path, tmp_path: Path, empty: Path, monkeypatch: pytest.MonkeyPatch
):
    """The attack itself, by someone who even has the page's password: a version whose code lies in their own folder."""
    import mlflow

    from fedcore.pipeline.record import mlflow_page, promotion, registry, runs

    monkeypatch.setattr(environment, "STATE", tmp_path)
    monkeypatch.setattr(environment, "TRACKING", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    shutil.copyfile(empty, tmp_path / "mlflow.db")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(environment.TRACKING)
    record = runs.Record()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    evil = tmp_path / "evil"
    (evil / "code").mkdir(parents=True)
    (evil / "code" / "mynets.py").write_text(f"open({str(tmp_path / 'caught')!r}, 'w')\n")

    def post(path: str, **body: Any) -> Any:
        user = b64encode(b"fedcore:secret").decode()
        headers = {"Authorization": f"Basic {user}", "Content-Type": "application/json"}
        place = f"http://127.0.0.1:{port}/api/2.0/mlflow/{path}"
        with urllib.request.urlopen(urllib.request.Request(place, json.dumps(body).encode(), headers)) as answer:
            return json.loads(answer.read())

    page = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "--port", str(port), "--factory", f"{mlflow_page.__name__}:create"],
        env=mlflow_page.settings(port, "fedcore:secret"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        for _ in range(600):
            try:
                experiment = post("experiments/create", name="evil", artifact_location=evil.as_uri())["experiment_id"]
                break
            except urllib.error.HTTPError:
                raise
            except OSError:
                time.sleep(0.1)
        run = post("runs/create", experiment_id=experiment)["run"]["info"]
        post("registered-models/create", name=NAME)
        made = post("model-versions/create", name=NAME, source=run["artifact_uri"], run_id=run["run_id"])
        assert made["model_version"]["version"] == "1"
        post("registered-models/alias", name=NAME, alias="champion", version="1")
        with pytest.raises(InputError, match=r"^version 1 of fedcore-digits: not loaded, since its files are not in "):
            promotion.find_files(record.client, None)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", environment.TRACKING)
        assert predict.own_files((registry.read() or {})["digits"].find("1")) is None
        version = promotion.find(record.client, "digits", "champion")
        with pytest.raises(InputError, match="not loaded, since its files are not in "):
            promotion.read_origin(record.client, version)
        assert not (tmp_path / "caught").exists()
    finally:
        page.terminate()
        page.wait()
        mlflow.set_tracking_uri(before)


def test_a_loaded_models_code_does_not_stay_on_the_path(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """It holds a part of fedcore, which a worker that gets the path would take for the whole."""
    seen: list[list[str]] = []
    monkeypatch.setattr(models.serving, "load", lambda _: seen.append([*sys.path]) or SimpleNamespace(models=()))
    before = [*sys.path]
    models.load(folder)
    assert seen == [[str(folder / "code"), *before]]
    assert sys.path == before
