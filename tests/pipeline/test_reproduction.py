"""How a run is made again; scenarios/installed.py makes one."""

import json
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedcore.config.request import ask, parse, plan_jobs
from fedcore.errors import InputError
from fedcore.pipeline import environment, reproduction
from fedcore.pipeline.command import Failed

COMMIT = "0123456789" * 4


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run in the record, with a command, data of DVC's and a change."""
    monkeypatch.setattr(environment, "HOME", tmp_path / "a project")
    monkeypatch.setattr(environment, "ARTIFACTS", tmp_path)
    files = tmp_path / "artifacts"
    files.mkdir()
    (files / "setting.json").write_text(json.dumps({"data": {"path": "data/m.csv"}, "command": ["study=s", "a.b=[1]"]}))
    (files / "uncommitted.patch").write_text("-a\n+b\n")
    tags = {"mlflow.source.git.commit": COMMIT, "data_md5": "ff", "fedcore.config": "c", "fedcore.result": "r"}
    info = SimpleNamespace(run_id="ab" * 16, artifact_uri=files.as_uri())
    return SimpleNamespace(info=info, data=SimpleNamespace(tags=tags))


def test_the_commands_bring_commit_changes_data_and_settings(run: Any, tmp_path: Path):
    lines = reproduction.commands(run, tmp_path / "again")
    assert reproduction.in_words(lines, tmp_path / "again").splitlines() == [
        f"git clone --quiet '{tmp_path}/a project' {tmp_path}/again",
        f"cd {tmp_path}/again",
        f"git checkout --quiet {COMMIT}",
        f"git apply {tmp_path}/artifacts/uncommitted.patch",
        f"dvc cache dir --quiet --local '{tmp_path}/a project/.dvc/cache'",
        "dvc checkout --quiet data/m.csv.dvc",
        "fedcore run study=s 'a.b=[1]'",
    ]


def test_data_that_dvc_did_not_track_are_said(run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    reproduction.commands(run, tmp_path / "again")
    assert capsys.readouterr().err == ""
    del run.data.tags["data_md5"]
    assert "dvc" not in {line[0] for line in reproduction.commands(run, tmp_path / "again")}
    said = "fedcore: data/m.csv: DVC did not track these data, so no command brings them back\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("commit", ["", "--help", COMMIT[:39]])
def test_a_run_without_a_commit_cannot_be_repeated(run: Any, tmp_path: Path, commit: str):
    run.data.tags |= {"mlflow.source.git.commit": commit, "runs": "12345678aa 87654321bb"}
    with pytest.raises(InputError, match=r"^RUN = 'abababab': has no .*; take one of its seeds: 12345678, 87654321$"):
        reproduction.commands(run, tmp_path / "again")


@pytest.mark.parametrize(
    ("config", "result", "message"),
    [
        ("c", "r", None),
        ("c", "other", "the result is other, and was r"),
        ("d", "r", "code, packages or data are others now"),
    ],
)
def test_a_run_is_the_same_by_its_digests(run: Any, tmp_path: Path, config: str, result: str, message: str | None):
    with sqlite3.connect(tmp_path / "made.db") as made:
        made.execute("create table tags (run_uuid, key, value)")
        rows = [("x", "fedcore.config", config), ("x", "fedcore.result", result)]
        made.executemany("insert into tags values (?, ?, ?)", rows)
    made.close()
    folder = tmp_path / "again"
    lines = [["mkdir", str(folder)], ["cp", str(tmp_path / "made.db"), "mlflow.db"]]
    if message is None:
        assert reproduction.make(run, lines, folder) == "the same result: r"
        with pytest.raises(InputError, match=r"^--folder = .* is there already; name another one$"):
            reproduction.make(run, lines, folder)
    else:
        with pytest.raises(Failed, match=message):
            reproduction.make(run, lines, folder)


def test_the_words_of_a_row_ask_for_it_alone():
    request = parse(["study=code", "code_ot.reg=0.1", "data.root='a b'", "federation.hidden=[a, 'null', '1']"])
    _, (job, *_) = plan_jobs(parse(["study=code"]))
    again = ask([*request.words(job, {2, 0}, "code_ot")])
    assert (again.studies, again.size, again.seeds, again.methods) == (["code"], job.size, [0, 2], ["code_ot"])
    assert again.changes == request.changes
