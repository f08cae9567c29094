"""A command that is repeated computes again, unless everything is as it was."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import date, timedelta
from importlib.util import cache_from_source
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

import fedcore
from fedcore.config import files, studies
from fedcore.pipeline import environment
from fedcore.pipeline.run import repeat

SCHEMA = """
create table runs (run_uuid, status, lifecycle_stage); create table tags (run_uuid, key, value);
create table registered_models (name); create table registered_model_aliases (name, alias, version);
create table model_versions (name, version, run_id, storage_location, current_stage);
create table model_version_tags (name, version, key, value);
insert into runs values ('1f', 'FINISHED', 'active'), ('2e', 'FINISHED', 'active');
insert into tags values ('1f', 'study', 'code'), ('2e', 'study', 'dfl'), ('1f', 'latest', 'true');
insert into registered_models values ('fedcore-digits');
insert into model_versions values ('fedcore-digits', 1, '1f', 'here', 'None');
"""

FILES = (
    "params.yaml", "studies/code.yaml", "claims/code.yaml", "tasks/fuse.py", "flows/federate.py", "data/table.csv",
    "../elsewhere/net.py", "../elsewhere/deeper.py", "../elsewhere/weights.bin", "../lib/fedcore/core/rounds.py",
    "results/weights.bin", "results.py",
)  # fmt: skip
"""Each is an input; who imports `net` imports `deeper`, which reads the weights."""

LEFT = ("runs/a1b2/report.html", "runs/a1b2/table.parquet", "runs/a1b2/code-0/models.json")
HISTORY = "runs/history.jsonl"


class Project:
    """A project in which a command only reads. changes: done while it runs. settings: what is run, if not the usual."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch
        self.changes: Callable[[], Any] = lambda: None
        self.request = SimpleNamespace(prepared=False, promote=False)
        self.run = SimpleNamespace(engine="local", store=None)
        self.data: dict[str, Any] = {"name": "table", "path": "data/table.csv", "root": "a:b"}
        home = folder / "project"
        for name in (*FILES, *LEFT, HISTORY):
            self.write(home / name, f"of {name}")
        self.write(Path(cache_from_source(str(home / FILES[7]))), "compiled")
        self.write(home / HISTORY, '{"study": "code"}\n')
        for name in ("steps", "blobs"):
            (home / ".fedcore" / name).mkdir(parents=True)
        for name in ("mlruns/1f", "mlruns/2e", "../site/torch-2.0.dist-info"):
            (home / name).mkdir(parents=True)
        database = home / "mlflow.db"
        with closing(sqlite3.connect(database)) as opened, opened:
            opened.executescript(SCHEMA)
        patch.chdir(home)
        tracking = f"sqlite:///{database}"
        own = {"HOME": home, "STATE": home / ".fedcore", "ARTIFACTS": home / "mlruns", "TRACKING": tracking}
        own |= {name.upper(): home / ".fedcore" / name for name in ("steps", "blobs")}
        for name, value in own.items():
            patch.setattr(environment, name, value)
        patch.setattr(repeat, "FOLDER", home / ".fedcore/repeats")
        patch.setattr(fedcore, "__file__", str(folder / "lib/fedcore/__init__.py"))
        patch.setattr(sys, "path", [str(folder / "site")])
        patch.setattr(studies, "run_section", lambda params: self.run)
        patch.setattr(files, "template", Path)
        patch.setenv("MLFLOW_TRACKING_URI", tracking)
        patch.delenv("PREFECT_API_URL", raising=False)

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def computes(self, *words: str) -> bool:
        """Type the command; tells whether it computes."""
        tick()
        key = repeat.key_of(words)
        if repeat.show(key):
            return False
        with repeat.watch(key) as watch:
            job: Any = SimpleNamespace(study="code", settings=[SimpleNamespace(data=self.data)])
            watch.plan(self.request, {}, [job])  # type: ignore[arg-type]
            for name in (FILES[6], cache_from_source(FILES[7]), FILES[8], FILES[10], FILES[11], HISTORY):
                Path(name).read_bytes()
            os.listdir("../elsewhere")
            self.changes()
            with repeat.printed("stderr"):
                click.echo("a warning", err=True)
            repeat.note("0 steps computed, 2 from the cache\n", Path("runs/a1b2"))
            with repeat.printed():
                sys.stdout.write("the answer\n")
        return True

    def sql(self, statement: str) -> None:
        with closing(sqlite3.connect("mlflow.db")) as opened, opened:
            opened.execute(statement)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project(tmp_path, monkeypatch)


def tick() -> None:
    """Wait until the clock of the disk has gone on, as it has when a real run ends."""
    before = os.stat(".").st_ctime_ns
    while os.stat(".").st_ctime_ns == before:
        os.utime(".")


def touch(name: str) -> None:
    """Replace the content of a file by one of the same size, and keep the date of that."""
    status = os.stat(name)
    Path(name).write_text(Path(name).read_text()[::-1])
    os.utime(name, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_what_is_known_is_printed_again(project: Project, capsys: pytest.CaptureFixture[str]):
    assert project.computes("study=code")
    assert capsys.readouterr() == ("the answer\n", "a warning\n")
    assert not project.computes("study=code")
    out, err = capsys.readouterr()
    assert err == "a warning\n"
    assert out.startswith("nothing has changed since ")
    assert out.endswith("0 steps computed, 2 from the cache\nthe answer\n")
    assert Path("runs/last").read_text() == "a1b2\n"


@pytest.mark.slow
def test_whatever_a_run_rests_on_is_computed_again_once_it_changes(project: Project):
    """Each file is replaced by one of its size and date; and others come, go, or have a line more."""

    class Tomorrow(date):
        @classmethod
        def today(cls) -> "Tomorrow":
            real = date.today() + timedelta(1)
            return cls(real.year, real.month, real.day)

    def damage() -> None:
        kept = repeat.FOLDER / repeat.key_of([])
        kept.write_text(kept.read_text().replace("the answer", "an answer"))

    def rename(old: str, new: str) -> Callable[[], Any]:
        return lambda: Path(old).rename(new)

    changes: dict[str, Callable[[], Any]] = {name: lambda name=name: touch(name) for name in (*FILES, *LEFT)}
    changes |= {f"no {name}": Path(name).unlink for name in (LEFT[0], LEFT[2])}
    changes |= {
        "a study more": lambda: project.write(Path("studies/mine.yaml"), "{}"),
        "nights": lambda: project.write(Path("nightly.yaml"), "{}"),
        "a module before another": lambda: project.write(Path("../site/net.py"), ""),
        "a version": rename("../site/torch-2.0.dist-info", "../site/torch-2.1.dist-info"),
        "threads": lambda: project.patch.setenv("OMP_NUM_THREADS", "7"),
        "a variable": lambda: project.patch.setenv("FEDCORE_ANYTHING", "1"),
        "another place of modules": lambda: sys.path.append(str(Path("tasks").absolute())),
        "their order": lambda: sys.path.reverse(),
        "the processor": lambda: project.patch.setattr(environment, "processor_name", lambda: "another"),
        "a file in a folder that a net lists": lambda: project.write(Path("../elsewhere/more.bin"), ""),
        "warnings that stop": lambda: project.patch.setattr(sys, "warnoptions", ["error"]),
        "another fedcore": lambda: project.write(Path("../lib/fedcore/more.py"), ""),
        "history": lambda: project.write(Path(HISTORY), '{"study": "code"}\n{"study": "code"}\n'),
        "deleted run": lambda: project.sql("update runs set lifecycle_stage = 'deleted' where run_uuid = '1f'"),
        "another request is the last": lambda: project.sql("update tags set value = 'false' where key = 'latest'"),
        "a champion": lambda: project.sql(
            "insert into registered_model_aliases values ('fedcore-digits', 'champion', 1)"
        ),
        "no artifacts": rename("mlruns/1f", "mlruns/aside"),
        "the cache": lambda: (rename(".fedcore/blobs", ".fedcore/x")(), Path(".fedcore/blobs").mkdir()),
        "a damaged answer": damage,
        "tomorrow": lambda: project.patch.setattr(repeat, "date", Tomorrow),
    }  # fmt: skip
    assert project.computes()
    assert not project.computes()
    for name, change in changes.items():
        change()
        assert project.computes(), name
        project.write(Path(LEFT[0]), "a page")  # as a run writes it, whose inputs are all there
        project.write(Path(LEFT[2]), "models")
        project.computes()
        assert not project.computes(), name
    assert project.computes("study=code")
    Path("mlflow.db").unlink()
    assert project.computes()


def test_what_other_studies_leave_is_no_change(project: Project):
    project.computes()
    project.sql("update tags set value = 'x' where run_uuid = '2e'")
    project.write(Path(HISTORY), '{"study": "code"}\n{"study": "dfl"}\n')
    project.write(Path("runs/c3d4/report.html"), "another page")
    project.write(Path(".fedcore/steps/5a"), "another step")
    project.patch.setenv("OLDPWD", "/another")
    assert not project.computes()


@pytest.mark.slow
def test_a_run_in_doubt_is_not_repeated(project: Project):
    def keeps() -> bool:
        project.computes()
        return repeat.FOLDER.is_dir() and any(repeat.FOLDER.iterdir())

    def swap() -> None:
        Path("data").rename("aside")
        Path("../other").rename("data")

    def stop() -> None:
        raise KeyboardInterrupt

    project.write(Path("../other/table.csv"), "older")
    for of, name, value in (
        (project.request, "promote", True), (project.request, "prepared", True), (project.run, "engine", "dask"),
        (project.run, "store", "s3://bucket"), (project, "data", {"name": "my.module:load"}),
        (project, "changes", lambda: touch("data/table.csv")), (project, "changes", Path(FILES[7]).unlink),
        (project, "changes", lambda: touch("results.py")), (project, "changes", swap),
        (project, "changes", Path("data/table.csv").unlink), (project, "changes", Path("mlflow.db").unlink),
        (files, "template", lambda: Path("../lib")),
    ):  # fmt: skip
        before = {path: path.read_bytes() for path in map(Path, (*FILES, "mlflow.db"))}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(of, name, value)
            assert not keeps(), (name, value)
        for path, content in before.items():
            path.write_bytes(content)
    for variable, address in (("PREFECT_API_URL", "http://a"), ("MLFLOW_TRACKING_URI", "http://b")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(variable, address)
            assert not keeps(), variable
    assert keeps()
    project.sql("update runs set status = 'RUNNING'")
    project.changes = stop
    with pytest.raises(KeyboardInterrupt):
        project.computes()
    assert not [*repeat.FOLDER.iterdir()]


@pytest.mark.slow
def test_it_is_looked_up_without_slow_packages():
    slow = "{'torch', 'pandas', 'numpy', 'prefect', 'mlflow', 'pydantic'}"
    script = f"import sys, fedcore.cli.run, fedcore.pipeline.run.repeat; print({slow} & {{*sys.modules}})"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "set()\n"
