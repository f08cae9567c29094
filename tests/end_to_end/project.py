"""A copy of the project in its own folder, used by commands as a user would."""

import atexit
import base64
import compileall
import hashlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from command_forks import Command, CommandForks

ROOT = Path(__file__).parents[2]
SOURCES = ("fedcore", "flows", "tasks")
LIMIT = 1200.0
"""Seconds after which a command or any other wait counts as hanging, far more than a slow machine needs."""
FOREIGN = ("PREFECT_", "MLFLOW_", "FEDCORE_", "DVC_", "GIT_")
FORKED = ("fedcore", "empty_record", "run_probes", "refusals", "upgrade", "dvc", "prefect", "kill_at")
"""Modules that are run as forks (command_forks.py); Prefect's worker starts its flows itself, and so does DVC."""
Process: TypeAlias = "subprocess.Popen[str] | Command"
TABLES = {
    "runs": "runs", "points": "metrics", "versions": "model_versions", "models": "logged_models", "inputs": "inputs"
}  # fmt: skip

METHODS: dict[str, dict[str, Any]] = {
    "local_only": {}, "fedavg_3": {"method": "fedavg", "rounds": 3, "training": {"epochs": 1, "shared_init": True}},
    "lmf": {}, "code_ot": {}, "best_local": {},
}  # fmt: skip

ALONE = (("prefect", "worker"), ("fedcore", "ui"))
"""Commands that are new processes all the same: they serve others until they are stopped."""

PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4//8/AAX+Av4N70a4AAAAAElFTkSuQmCC")
"""A PNG file of one white pixel."""

PAPER = "figures: [{name: Fig. 1, shows: a drawing, status: nothing to run}]\n"
"""A paper that names no study, since tests have their own."""


def small(params: dict[str, Any]) -> None:
    """Reduce the default study to seconds: four devices, a narrow net, one seed, five methods."""
    params["run"] |= {"studies": ["code"], "seeds": [0], "workers": 1}
    params["federation"] |= {"devices": 4, "alpha": 1.0}
    params["net"]["widths"] = [16, 8]
    params["training"] |= {"epochs": 5, "batch": 32}
    params["studies"]["code"]["methods"] = METHODS


def read_params(folder: Path) -> dict[str, Any]:
    """Return a project's parameters, with its studies (their claims aside) as section `studies`."""
    files = [yaml.load(path.read_text(), yaml.CSafeLoader) for path in sorted((folder / "studies").iterdir())]
    params = yaml.safe_load((folder / "params.yaml").read_text())
    return {**params, "studies": {name: study for file in files for name, study in file.items()}}


def write_params(folder: Path, params: Mapping[str, Any]) -> None:
    """Write what `read_params` returns; all studies stand in one file."""
    (folder / "studies").mkdir(parents=True, exist_ok=True)
    for path in (folder / "studies").iterdir():
        path.unlink()
    sections = {name: section for name, section in params.items() if name != "studies"}
    for path, content in (("params.yaml", sections), ("studies/all.yaml", params.get("studies", {}))):
        (folder / path).write_text(yaml.dump(content, Dumper=yaml.CSafeDumper, sort_keys=False))


@dataclass(frozen=True)
class Said:
    """A command's exit code and output."""

    code: int
    out: str
    err: str

    @property
    def all(self) -> str:
        return self.out + self.err


@dataclass(frozen=True)
class Seen:
    """The state of a project: steps since the last look, the record's counts, digests of the outputs."""

    steps: list[dict[str, Any]]
    record: dict[str, int]
    outs: dict[str, str]
    said: Said | None = None

    def computed(self, kind: str | None = None) -> list[dict[str, Any]]:
        return [step for step in self.steps if not step["cached"] and kind in (None, step["step"])]

    def count(self, kind: str) -> int:
        return sum(step["step"] == kind for step in self.steps)


@dataclass
class Project:
    """api: the Prefect server to use; None: the folder's own, as a user without settings has it. password: of `api`.

    read: the number of steps that were looked at. steps: those of the journal, as it was at `journal_at`.
    """

    folder: Path
    api: str | None = None
    sources: Path | None = None
    password: str | None = None
    started: list[Process] = field(default_factory=list)
    read: int = 0
    steps: list[dict[str, Any]] = field(default_factory=list)
    journal_at: tuple[int, int] | None = None

    @classmethod
    def copy(
        cls,
        folder: Path,
        api: str | None = None,
        change: Callable[[dict[str, Any]], None] = small,
        password: str | None = None,
        pictures: bool = True,
    ) -> "Project":
        """Copy the project, with its parameters changed; its sources as they were at the first copy.

        pictures: their figures become PNG files, which takes a flow a second of a core; else all are one pixel.
        """
        for name in SOURCES:
            shutil.copytree(Path(compiled().name, name), folder / name)
        files = (
            ".dvcignore", ".gitignore", ".dvc/config", ".dvc/.gitignore", ".dvc/plots/curves.json", "dvc.yaml",
            "prefect.yaml", "prefect.toml",
        )  # fmt: skip
        for name in (*files, "data/README.md"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
        shutil.copytree(ROOT / "claims", folder / "claims")
        (folder / "papers").mkdir()
        (folder / "papers/code.yaml").write_text(PAPER)
        params = read_params(ROOT)
        change(params)
        write_params(folder, params)
        project = cls(folder, api, password=password)
        if not pictures:
            project.edit("fedcore/report/figures/drawing.py", "png", f"return {PIXEL!r}")
        return project

    def environment(self, **more: str) -> dict[str, str]:
        """The caller's environment without its settings of Prefect, MLflow and the project."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        sources = [str(self.sources or self.folder), str(Path(__file__).parent)]
        return {
            **kept, "PATH": os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)]),
            "PYTHONPATH": os.pathsep.join(sources), "COLUMNS": "200",
            **{f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
            **({"PREFECT_API_URL": self.api} if self.api else {}),
            **({"PREFECT_API_AUTH_STRING": self.password} if self.password else {}), **more,
        }  # fmt: skip

    def start(self, *command: str, log: Path | None = None, whole: bool = False, **environment: str) -> Process:
        """Start a command, its output into a file if one is named; what it started is ended by `stop`.

        whole: it ends as a new process does, see command_forks.py.
        """
        words = command[2:] if command[:2] == ("python", "-m") else command
        if words[0] in FORKED and words[:2] not in ALONE:
            forked = forks().start(words[0], words[1:], self.folder, self.environment(**environment), log, whole)
            self.started.append(forked)
            return forked
        if command[0] == "fedcore":
            command = (sys.executable, "-m", *command)
        with log.open("w") if log else nullcontext(subprocess.PIPE) as out:
            process = subprocess.Popen(
                command, cwd=self.folder, env=self.environment(**environment), stdin=subprocess.DEVNULL, text=True,
                stdout=out, stderr=subprocess.STDOUT if log else out, start_new_session=True,
            )  # fmt: skip
        self.started.append(process)
        return process

    def run(
        self, *command: str, code: int | None = 0, limit: float = LIMIT, whole: bool = False, **environment: str
    ) -> Said:
        """Run a command to its end; `code` is the exit code that it must have (None: any)."""
        process = self.start(*command, whole=whole, **environment)
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            end(process)
            out, err = process.communicate()
            raise AssertionError(f"{' '.join(command)}: not done after {limit} s\n{out}\n{err}") from None
        said = Said(process.returncode, out, err)
        assert code is None or said.code == code, f"{' '.join(command)}: exit code {said.code}\n{out}\n{err}"
        return said

    def federate(self, *words: str, **options: Any) -> Said:
        return self.run("fedcore", "run", *words, **options)

    def repro(self, *words: str) -> Said:
        """Run DVC; its stages are forks too."""
        path = os.pathsep.join([str(forks().path), self.environment()["PATH"]])
        return self.run("dvc", *words, PATH=path)

    def stop(self) -> None:
        for process in self.started:
            if process.poll() is None:
                end(process)
            with suppress(ValueError):  # its pipes are closed already
                process.communicate()

    def look(self, said: Said | None = None) -> Seen:
        """Return the state of the project, with the steps since the last look."""
        steps = self.journal()
        new, self.read = steps[self.read :], len(steps)
        return Seen(new, self.record(), digests(self.folder / "pipeline"), said)

    def journal(self) -> list[dict[str, Any]]:
        """Return the steps so far; the file is read when it has changed, as tests ask a hundred times a second."""
        path = self.folder / ".fedcore" / "journal.jsonl"
        if not path.exists():
            return []
        state = path.stat()
        if self.journal_at != (at := (state.st_mtime_ns, state.st_size)):
            lines = path.read_text().split("\n")[:-1]  # what follows the last is being written
            self.journal_at, self.steps = at, [json.loads(line) for line in lines]
        return self.steps

    def record(self) -> dict[str, int]:
        """Count MLflow's entries."""
        path = self.folder / "mlflow.db"
        if not path.exists():
            return dict.fromkeys(TABLES, 0)
        with closing(sqlite3.connect(path)) as database:
            return {n: database.execute(f"select count(*) from {table}").fetchone()[0] for n, table in TABLES.items()}

    def processes(self) -> dict[int, str]:
        """Return the processes that work in the folder, by id, with their commands: none that is ending."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if Path(os.readlink(entry / "cwd")) == self.folder:
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return {process: command for process, command in found.items() if command}

    def server(self) -> int:
        """Return the process id of the project's own Prefect server, which leads its group."""
        return int(json.loads((self.folder / ".fedcore" / "server.json").read_text())["pid"])

    def ask(self, what: str, body: Mapping[str, Any] | None = None) -> Any:
        """Ask the Prefect server."""
        content = None if body is None else json.dumps(body).encode()
        token = base64.b64encode((self.password or "").encode()).decode()
        headers = {"Content-Type": "application/json", "Authorization": f"Basic {token}"}
        request = urllib.request.Request(f"{self.api}/{what}", content, headers)
        with urllib.request.urlopen(request, timeout=LIMIT) as answer:
            return json.load(answer)

    def edit(self, path: str, function: str, line: str) -> None:
        """Put a line after the docstring of a function."""
        import ast

        file = self.folder / path
        lines = file.read_text().splitlines(keepends=True)
        (node,) = (n for n in ast.parse("".join(lines)).body if isinstance(n, ast.FunctionDef) and n.name == function)
        first = node.body[1] if ast.get_docstring(node) else node.body[0]
        lines.insert(first.lineno - 1, f"{' ' * first.col_offset}{line}\n")
        file.write_text("".join(lines))

    def commit(self, what: str) -> None:
        self.run("git", "add", "--all")
        self.run("git", "commit", "--quiet", "--message", what)


@cache
def compiled() -> tempfile.TemporaryDirectory[str]:
    """Return a folder of the sources and their compiled modules, which else each project would make for itself."""
    made = tempfile.TemporaryDirectory()
    for name in SOURCES:
        shutil.copytree(ROOT / name, Path(made.name, name), ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(made.name, quiet=2)
    return made


@cache
def forks() -> CommandForks:
    """Return the process from which all projects' commands are forked."""
    process = CommandForks()
    atexit.register(process.close)
    return process


def end(process: Process) -> None:
    """End a process and all that it started."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
            return


def wait(what: str, ready: Callable[[], Any], limit: float = LIMIT, every: float = 0.05) -> Any:
    """Wait until `ready` returns something and return it; fails after `limit` seconds."""
    until = time.monotonic() + limit
    while not (found := ready()):
        assert time.monotonic() < until, f"{what}: not seen in {limit} s"
        time.sleep(every)
    return found


def digests(folder: Path) -> dict[str, str]:
    """Return the digest of every file below a folder, by its path."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(p.relative_to(folder)): hashlib.blake2b(p.read_bytes(), digest_size=8).hexdigest() for p in files}
