"""The same command again, with everything as it was: it prints the result of that run, and computes nothing.

A run by hand leaves a file at its end, named by a digest of the command: its words, folder, environment, terminal and
day, Python and the processor. The file has what was printed as the result, and a digest of all else on which that
rests. A file is the same while its size, dates and inode are. Any doubt ends in the usual way. Imports nothing slow.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, redirect_stderr, redirect_stdout, suppress
from datetime import date, datetime
from glob import glob
from hashlib import blake2b
from importlib.util import source_from_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import fedcore
from fedcore.errors import is_installed
from fedcore.pipeline import environment
from fedcore.pipeline.files import LAST
from fedcore.pipeline.record import registry
from fedcore.pipeline.record.database import database_file
from fedcore.pipeline.state import write_atomic

if TYPE_CHECKING:
    from fedcore.config.request import Job, Request

FOLDER = environment.STATE / "repeats"
HISTORY = "runs/history.jsonl"

WRITTEN = (".dvc/tmp", "champions", "mlruns", "pipeline", "results", "runs")
"""The folders to which runs write in a project, beside hidden ones."""

OF_A_SHELL = ("_", "OLDPWD", "PWD", "SHLVL")
"""Variables that another shell sets otherwise."""

RUNS = """
select run_uuid, status, lifecycle_stage, tags.key, tags.value from runs join tags using (run_uuid)
where run_uuid in (select run_uuid from tags where key = 'study' and value = ?) order by run_uuid, tags.key
"""
"""What MLflow's database has of a study, but for its numbers, which are never changed."""

_WATCHES: list[Watch] = []
"""That of this process's command, if it may be repeated."""


def key_of(words: Sequence[str]) -> str:
    """Return the digest of a command, for today."""
    variables = sorted((name, value) for name, value in os.environ.items() if name not in OF_A_SHELL)
    screen = [*os.get_terminal_size(sys.stdout.fileno())] if sys.stdout.isatty() else []
    machine = environment.processor_name(), sorted(glob("/dev/nvidia*")), sys.version, sys.flags, sys.warnoptions
    return _digest([*words], os.getcwd(), str(environment.HOME), variables, screen, machine, date.today())


def show(key: str) -> bool:
    """Print what the command printed, if everything is as it was; tells whether it is."""
    try:
        seal, _, content = (FOLDER / key).read_text().partition("\n")
        known = json.loads(content) if seal == _digest(key, content) else {}
        if not known or _digest(_inputs(known), _results(known)) != known["state"]:
            return False
    except (OSError, ValueError, sqlite3.Error):
        return False
    for stream, text in known["printed"]:
        getattr(sys, stream).write(text)
    with suppress(OSError, ValueError):
        Path(known["folder"]).with_name(LAST).write_text(f"{Path(known['folder']).name}\n")
    return True


class Watch:
    """What the run of a command opens to read, and prints. folder: of its results."""

    def __init__(self, key: str, opened: Sequence[str]) -> None:
        self.key, self.opened, self.folder = key, opened, Path()
        self.printed: list[tuple[str, str]] = []
        self.before = {*_status(_walk(os.getcwd()))}
        FOLDER.mkdir(parents=True, exist_ok=True)
        os.utime(FOLDER)
        self.start = os.stat(FOLDER).st_ctime_ns  # by the clock of the disk
        ours = os.environ["MLFLOW_TRACKING_URI"] == environment.TRACKING and "PREFECT_API_URL" not in os.environ
        self.may_repeat = ours

    def plan(self, request: Request, params: dict[str, Any], jobs: Sequence[Job]) -> None:
        """Say what is run. What does more than to compute here from files is not repeated."""
        from fedcore.config.files import template
        from fedcore.config.studies import run_section

        run, data = run_section(params), [setting.data for job in jobs for setting in job.settings]
        texts = [value for of in data for name, value in of.items() if isinstance(value, str) and name != "root"]
        self.roots = [str(Path(fedcore.__file__).parent), *{text for text in texts if os.path.exists(text)}]
        self.before |= {*_status(path for root in self.roots for path in _walk(root))}
        self.studies = sorted({job.study for job in jobs})
        edited = _programs(Path()) != _programs(template())  # they may do and print anything
        more = request.prepared or request.promote or edited or run.engine != "local" or run.store
        self.may_repeat &= not more and not any(":" in text for text in texts)  # a function, or an address

    def keep(self) -> None:
        """Keep what the run printed, unless something on which that rests has changed meanwhile."""
        known = {
            "files": sorted(self._files()), "roots": self.roots, "folder": str(self.folder), "studies": self.studies,
            "printed": [("stdout", f"nothing has changed since {datetime.now():%H:%M}\n"), *self.printed],
        }  # fmt: skip
        with suppress(OSError, sqlite3.Error):
            inputs = _inputs(known)
            if any(self._changed(*one) for one in inputs["files"]) or self.before - {*inputs["files"]}:
                return
            content = json.dumps({**known, "state": _digest(inputs, _results(known))})
            for other in FOLDER.iterdir():
                if date.fromtimestamp(other.stat().st_mtime) < date.today():
                    other.unlink(missing_ok=True)
            write_atomic(FOLDER / self.key, f"{_digest(self.key, content)}\n{content}".encode(), durable=False)

    def _files(self) -> Iterator[str]:
        """Yield what this command has opened to read, listed, or not found, but what it has written itself.

        Folders that are walked, or of installed packages, are left out: Python leaves its caches there.
        """
        looked_up = str(environment.STATE), *map(os.path.abspath, ("mlflow.db", HISTORY)), "/proc/", "/sys/"
        written = tuple(f"{os.path.abspath(name)}/" for name in WRITTEN)
        walked = tuple(f"{os.path.abspath(root)}/" for root in ("", *self.roots))
        for path in {*map(os.path.abspath, self.opened)}:
            with suppress(ValueError):  # not compiled
                path = source_from_cache(path)
            if f"{path}/".startswith(written):
                ours = self._changed(*_status([path])[0])
            else:
                ours = os.path.isdir(path) and (f"{path}/".startswith(walked) or is_installed(Path(path)))
            if not (ours or path.startswith(looked_up)):
                yield path

    def _changed(self, path: str, *status: int) -> bool:
        """Tell whether a file was written since this command began, or what is not there may have been removed."""
        place = os.path.dirname(path)
        if status or place == os.getcwd() or not os.path.isdir(place):
            return status[2:3] >= (self.start,)
        return os.stat(place).st_ctime_ns >= self.start


@contextmanager
def watch(key: str) -> Iterator[Watch]:
    """Watch the run of a command. If it fails, or is interrupted, nothing of it is kept."""
    from fedcore.nets.custom import files_read  # imports PyTorch

    (FOLDER / key).unlink(missing_ok=True)
    with files_read(everywhere=True) as opened:
        _WATCHES[:] = [watch := Watch(key, opened)]
        try:
            yield watch
        finally:
            _WATCHES.clear()
    if watch.may_repeat:
        watch.keep()


def printed(stream: str = "stdout") -> AbstractContextManager[Any]:
    """Keep what the body prints, for a command that repeats this one."""
    tee: Any = _Tee(stream, getattr(sys, stream))
    return redirect_stdout(tee) if stream == "stdout" else redirect_stderr(tee)


def note(line: str, folder: Path | None = None) -> None:
    """Keep a line that only a repeated command prints, or the folder of the results."""
    for watch in _WATCHES:
        watch.printed.append(("stdout", line))
        watch.folder = folder or watch.folder


class _Tee:
    def __init__(self, name: str, stream: TextIO) -> None:
        self._name, self._stream = name, stream

    def write(self, text: str) -> int:
        length = self._stream.write(text)  # first: click tries whether it takes bytes
        for watch in _WATCHES:
            watch.printed.append((self._name, text))
        return length

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _programs(folder: Path) -> dict[Path, bytes]:
    paths = [path for name in ("flows", "tasks") for path in (folder / name).rglob("*.py")]
    return {path.relative_to(folder): path.read_bytes() for path in paths}


def _inputs(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run rests on: files, and the names in the folders of programs."""
    walked = [path for root in (os.getcwd(), *known["roots"]) for path in _walk(root)]
    names = [(place, sorted(os.listdir(place))) for place in sys.path if os.path.isdir(place)]
    return {"files": _status({*known["files"], *walked}), "names": names}


def _results(known: Mapping[str, Any]) -> list[Any]:
    """Return what a run has left: its files, its steps' folders, and its studies in the history and the record."""
    path = database_file(environment.TRACKING)
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)) as database:
        rows = [row for study in known["studies"] for row in database.execute(RUNS, [study])]
    history = Path(HISTORY).read_text().splitlines()
    lines = [line for line in history if any(f'"study": {json.dumps(study)}' in line for study in known["studies"])]
    artifacts = sorted({run for run, *_ in rows} & {*os.listdir(environment.ARTIFACTS)})
    cache = [folder.stat().st_ino for folder in (environment.STEPS, environment.BLOBS)]
    return [_status(_walk(known["folder"])), rows, repr(registry.read()), lines, artifacts, cache]


def _status(paths: Iterable[str]) -> list[tuple[Any, ...]]:
    """Return paths, each with size, dates and inode if it is there."""
    of = [(path, os.stat(path) if os.path.exists(path) else None) for path in sorted(paths)]
    return [(path, *((one and (one.st_size, one.st_mtime_ns, one.st_ctime_ns, one.st_ino)) or ())) for path, one in of]


def _walk(root: str) -> Iterator[str]:
    """Yield the files at a path, those of a project that runs write aside. Raises OSError for links to folders."""
    written = WRITTEN if root == os.getcwd() else ()
    if os.path.isfile(root):
        yield root
    for place, folders, names in os.walk(root):
        outer = place == root
        folders[:] = [
            name for name in folders if name[0] != "." and name != "__pycache__" and not (outer and name in written)
            and not os.path.exists(f"{place}/{name}/pyvenv.cfg")
        ]  # fmt: skip
        if not written and any(os.path.islink(f"{place}/{name}") for name in folders):
            raise OSError(f"{place}: has links to folders")
        yield from (f"{place}/{name}" for name in names if not (outer and written and name.startswith("mlflow.db")))


def _digest(*values: Any) -> str:
    return blake2b(repr(values).encode(), digest_size=20).hexdigest()
