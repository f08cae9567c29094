"""A save brings the same files back, writes only what is new, and refuses what is damaged or none of its own."""

import json
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedcore.cli import save as commands
from fedcore.errors import InputError
from fedcore.pipeline import backup, environment
from fedcore.pipeline.cache import journal
from fedcore.pipeline.cache.store import digest_of
from fedcore.pipeline.command import Failed
from fedcore.pipeline.record import seals

FILES = {
    "mlruns/1/model/tensors": b"\0\1\2", "mlruns/1/model/copy": b"\0\1\2", "runs/history.jsonl": b"{}\n",
    "results/summary.csv": b"a,b\n", ".fedcore/registered/abc": b"", ".fedcore/blobs/ab/abc.safetensors": b"blob",
    ".fedcore/steps/1": b"step", ".fedcore/journal.jsonl": b"{}\n",
}  # fmt: skip
OTHERS = {".fedcore/password": b"secret", ".fedcore/prefect/prefect.db": b"", "params.yaml": b"run: {}\n"}

Enter = Callable[[str], Path]


@pytest.fixture
def enter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Enter:
    """Make a project's folder the one of the process."""

    def into(name: str) -> Path:
        home = tmp_path / name
        (home / ".fedcore").mkdir(parents=True, exist_ok=True)
        monkeypatch.setattr(environment, "HOME", home)
        monkeypatch.setattr(environment, "STATE", home / ".fedcore")
        monkeypatch.setattr(journal, "FLOWS", home / ".fedcore" / "flows")
        monkeypatch.chdir(home)
        return home

    return into


def fill(home: Path) -> None:
    for name, content in {**FILES, **OTHERS}.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_bytes(content)
    with closing(sqlite3.connect(home / "mlflow.db")) as database, database:
        database.execute("create table aliases (name text, version int)")
        database.execute("insert into aliases values ('champion', 3)")


def found(home: Path) -> dict[str, bytes]:
    files = {path.relative_to(home).as_posix(): path for path in home.rglob("*") if path.is_file()}
    apart = (".lock", "mlflow.db", backup.IDENTITY)
    return {name: path.read_bytes() for name, path in files.items() if not name.endswith(apart)}


@pytest.mark.parametrize("place", ["folder", "memory://save/one"])
def test_what_is_saved_comes_back(enter: Enter, tmp_path: Path, place: str):
    place = place if "://" in place else str(tmp_path / place)
    fill(enter("here"))
    files, _, written = backup.save(place, cache=True)
    assert (files, written) == (len(FILES) + 2, len({*FILES.values()}) + 2)  # equal files: one object
    assert backup.save(place, cache=True)[2] == 0
    there = enter("there")
    assert backup.restore(place)[2] == len(FILES) + 2
    assert found(there) == FILES
    with closing(sqlite3.connect(there / "mlflow.db")) as database:
        assert database.execute("select * from aliases").fetchall() == [("champion", 3)]
    assert backup.restore(place)[2] == 0


def test_of_equal_files_a_save_writes_one(enter: Enter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fill(enter("here"))
    monkeypatch.setattr(commands, "enter_project", lambda: None)
    said = CliRunner().invoke(commands.save, [str(tmp_path / "saved")]).stdout
    assert said.endswith("saved: 6 written, the others equal these or were there\n")
    assert said.startswith("7 files, ")


def test_without_the_cache_it_stays(enter: Enter, tmp_path: Path):
    fill(enter("here"))
    backup.save(str(tmp_path / "saved"))
    there = enter("there")
    backup.restore(str(tmp_path / "saved"))
    assert {*found(there)} == {name for name in FILES if not name.startswith(backup.CACHE)}


def test_a_later_save_deletes_what_it_no_longer_names(enter: Enter, tmp_path: Path):
    home = enter("here")
    fill(home)
    backup.save(str(tmp_path / "saved"))
    (home / "runs" / "history.jsonl").write_bytes(b"{}\n{}\n")
    assert backup.save(str(tmp_path / "saved"))[2] == 1
    objects = [path for path in (tmp_path / "saved" / "objects").rglob("*") if path.is_file()]
    named = json.loads((tmp_path / "saved" / "manifest.json").read_text())["files"]
    assert sorted(path.name for path in objects) == sorted({digest for digest, _ in named.values()})


def test_a_damaged_save_is_refused_before_anything_is_written(enter: Enter, tmp_path: Path):
    fill(enter("here"))
    backup.save(str(tmp_path / "saved"))
    named = json.loads((tmp_path / "saved" / "manifest.json").read_text())["files"]
    digest, _ = named["results/summary.csv"]
    spoilt = tmp_path / "saved" / "objects" / digest[:2] / digest
    there = enter("there")
    for spoil in (lambda: spoilt.write_bytes(b"a,c\n"), spoilt.unlink):
        spoil()
        with pytest.raises(InputError, match="missing or damaged"):
            backup.restore(str(tmp_path / "saved"))
        assert found(there) == {}


@pytest.mark.parametrize(
    "name",
    [
        "params.yaml", "../outside", "runs/../flows/a.py", "/etc/passwd", ".fedcore/password", "runs//a", "./runs/a",
        "runs/a\0",
    ],
)  # fmt: skip
def test_a_place_outside_of_a_save_is_refused(enter: Enter, tmp_path: Path, name: str):
    enter("here")
    said = {"format": 1, "files": {name: ["0" * 40, 1]}}
    (tmp_path / "manifest.json").write_text(json.dumps(said))
    with pytest.raises(InputError, match="which no save holds"):
        backup.restore(str(tmp_path))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 9}', '{"format": 1, "files": {"a": 1}}'])
def test_a_manifest_that_is_none_is_refused(enter: Enter, tmp_path: Path, text: str):
    enter("here")
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(InputError, match="not the manifest of a save"):
        backup.restore(str(tmp_path))


def test_a_project_with_a_record_of_its_own_stays_as_it_is(enter: Enter, tmp_path: Path):
    fill(enter("here"))
    backup.save(str(tmp_path / "saved"))
    there = enter("there")
    (there / "runs").mkdir()
    (there / "runs" / "history.jsonl").write_bytes(b"mine\n")
    with pytest.raises(InputError, match=r"history\.jsonl: is another file"):
        backup.restore(str(tmp_path / "saved"))
    assert found(there) == {"runs/history.jsonl": b"mine\n"}


def test_what_cannot_be_saved_is_said_in_a_line(enter: Enter, tmp_path: Path):
    home = enter("here")
    with pytest.raises(InputError, match="nothing to save"):
        backup.save(str(tmp_path / "saved"))
    with pytest.raises(InputError, match="no such file; fedcore save writes it"):
        backup.restore(str(tmp_path / "none"))
    with pytest.raises(InputError, match="Protocol not known"):
        backup.save("nowhere://a/b")
    fill(home)
    (tmp_path / "file").touch()
    with pytest.raises(Failed, match="file"):
        backup.save(str(tmp_path / "file" / "below"))


@pytest.mark.parametrize("names", [["results"], ["mlflow.db/a"], ["runs/history.jsonl/a"], ["runs/a", "runs/a/b"]])
def test_a_save_cannot_put_a_file_in_the_place_of_a_folder(enter: Enter, tmp_path: Path, names: list[str]):
    home = enter("here")
    fill(home)
    before = found(home)
    content = b"x"
    object_ = tmp_path / "saved" / "objects" / digest_of(content)[:2] / digest_of(content)
    object_.parent.mkdir(parents=True)
    object_.write_bytes(content)
    said = {"format": 1, "files": {name: [digest_of(content), 1] for name in names}}
    (tmp_path / "saved" / "manifest.json").write_text(json.dumps(said))
    with pytest.raises(InputError, match=r"is in the place of|which no save holds"):
        backup.restore(str(tmp_path / "saved"))
    assert found(home) == before


def test_a_save_leaves_the_files_of_others(enter: Enter, tmp_path: Path):
    fill(enter("here"))
    mine = tmp_path / "mine"
    (mine / "objects" / "ab").mkdir(parents=True)
    (mine / "objects" / "ab" / "picture").write_bytes(b"mine")
    backup.save(str(mine))
    assert (mine / "objects" / "ab" / "picture").read_bytes() == b"mine"
    (mine / "manifest.json").write_text('{"name": "my page"}')
    with pytest.raises(InputError, match=r"manifest\.json: not the manifest of a save"):
        backup.save(str(mine))
    assert (mine / "manifest.json").read_text() == '{"name": "my page"}'


@pytest.mark.parametrize("place", ["results/saved", ".fedcore/blobs/saved", "mlruns/saved in it"])
def test_a_save_is_no_part_of_the_next(enter: Enter, place: str):
    home = enter("here")
    fill(home)
    with pytest.raises(InputError, match="is in what is saved"):
        backup.save(place, cache=True)
    assert not (home / place).exists()


@pytest.mark.parametrize("name", ["my backup", "50%20", "a::b", "Müll?", "x#y", "*"])
@pytest.mark.slow
def test_a_folder_has_the_name_that_was_typed(enter: Enter, tmp_path: Path, name: str):
    fill(enter("here"))
    backup.save(str(tmp_path / name))
    assert {path.name for path in tmp_path.iterdir()} == {"here", name}
    there = enter("there")
    backup.restore(str(tmp_path / name))
    assert "results/summary.csv" in found(there)


def killed_at(number: int, command: Callable[[], object]) -> bool:
    """Run a command in a fork that is killed at that file operation; tell whether it came so far."""
    if (pid := os.fork()) == 0:
        left = iter(range(number, -1, -1))

        def kill(event: str, _: object) -> None:
            if event in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "sqlite3.connect") and not next(
                left
            ):
                os._exit(9)

        sys.addaudithook(kill)
        command()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9


@pytest.mark.slow
def test_a_killed_restore_and_a_killed_save_are_mended_by_the_next(enter: Enter, tmp_path: Path):
    """At every file operation of each; the files are the source's, and .fedcore has none that nobody owns."""
    saved = str(tmp_path / "saved")
    fill(enter("here"))
    backup.save(saved, cache=True)
    number, coming = 0, True
    while coming:
        there = enter(f"there {number}")
        coming = killed_at(number, lambda: backup.restore(saved))
        backup.restore(saved)
        assert found(there) == FILES
        assert {path.name for path in (there / ".fedcore").iterdir()} == {
            "blobs", "flows.lock", "journal.jsonl", "project", "registered", "steps",
        }  # fmt: skip
        number += 1
    assert number > 3 * len(FILES)
    number, coming = 0, True
    while coming:
        home = enter("here")
        (home / "results" / "summary.csv").write_text(f"{number}\n")
        coming = killed_at(number, lambda: backup.save(saved, cache=True))
        backup.save(saved, cache=True)
        number += 1
    assert number > len(FILES)
    clone = enter("clone")
    backup.restore(saved)
    assert found(clone) == {name: content for name, content in found(home).items() if name not in OTHERS}
    assert not [path for path in (tmp_path / "saved").rglob("*") if path.name.endswith(".part")]


def test_what_an_earlier_restore_left_beside_a_model_is_no_part_of_it(enter: Enter, tmp_path: Path):
    home = enter("here")
    fill(home)
    whole = seals.digest("name", home / "mlruns" / "1")
    part = home / "mlruns" / "1" / "model" / f".{os.urandom(8).hex()}.part"
    part.write_bytes(b"half")
    assert seals.digest("name", home / "mlruns" / "1") == whole
    backup.save(str(tmp_path / "saved"))
    assert "part" not in (tmp_path / "saved" / "manifest.json").read_text()
    there = enter("there")
    (there / part.relative_to(home)).parent.mkdir(parents=True)
    (there / part.relative_to(home)).write_bytes(b"half")
    backup.restore(str(tmp_path / "saved"))
    assert seals.digest("name", there / "mlruns" / "1") == whole
    assert not (there / part.relative_to(home)).exists()


def test_a_save_of_another_project_stays_unless_told(enter: Enter, tmp_path: Path):
    place = str(tmp_path / "saved")
    fill(enter("here"))
    backup.save(place)
    before = found(tmp_path / "saved")
    fill(enter("there"))
    with pytest.raises(InputError, match=r"has the save of another project, 'here' of .*; name another place"):
        backup.save(place)
    assert found(tmp_path / "saved") == before
    enter("clone")
    backup.restore(place)
    assert backup.save(place)[2] == 0  # the same project
    enter("there")
    backup.save(place, replace=True)
    enter("here")
    with pytest.raises(InputError, match="another project, 'there'"):
        backup.save(place)


def test_a_save_that_was_killed_leaves_the_one_before(enter: Enter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """At whichever file: what the manifest names is there until the next manifest is."""
    home = enter("here")
    fill(home)
    backup.save(str(tmp_path / "saved"))
    kept = found(home)
    whole = backup.put
    for last in range(3):
        for name in FILES:
            (home / name).write_bytes(f"{name} {last}".encode())
        puts = iter(range(last, -1, -1))

        def put(files: object, path: str, content: bytes, left: Iterator[int] = puts) -> None:
            if next(left) == 0:
                raise KeyboardInterrupt
            whole(files, path, content)

        monkeypatch.setattr(backup, "put", put)
        with pytest.raises(KeyboardInterrupt):
            backup.save(str(tmp_path / "saved"))
        monkeypatch.setattr(backup, "put", whole)
        clone = enter(f"clone {last}")
        backup.restore(str(tmp_path / "saved"))
        assert found(clone) == {name: kept[name] for name in FILES if not name.startswith(backup.CACHE)}
        enter("here")
