"""Worker processes and programs of the tests, as forks of one process that has imported PyTorch.

A new process takes two seconds of a core to import it. This process has threads and cannot be forked itself, as a
flow's can before its imports, so the template of its workers (fedcore.execute.template) is a program of its own.
"""

import contextlib
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import clone_state
import pytest

from fedcore.execute import template
from fedcore.execute.workers import Workers

PROGRAM = """
import socket, sys
from fedcore.execute import template, workers
template._answer_requests(socket.socket(fileno=int(sys.argv[1])), workers.serve)
"""
ROOT = Path(__file__).parents[1]


class Apart(template.Template):
    """A template that is a program of its own, started by the first worker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process: subprocess.Popen[bytes] | None = None

    def fork(self, connection: socket.socket, nice: int, job: template.Job | None = None) -> template.Forked:
        with self._lock:
            if self._process is None:
                command = [sys.executable, "-c", PROGRAM, str(self._theirs.fileno())]
                env = {**os.environ, "PYTHONPATH": str(ROOT)}
                self._process = subprocess.Popen(command, env=env, pass_fds=[self._theirs.fileno()])
                self._theirs.close()
        return super().fork(connection, nice, job)

    def close(self) -> None:
        super().close()
        self._theirs.close()
        if self._process is not None:
            self._process.wait()


@contextlib.contextmanager
def new_processes() -> Iterator[None]:
    """Workers that start meanwhile are new processes, no forks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(template, "_open", None)
        yield


class Ended(NamedTuple):
    """A program's exit code and output, and the packages that were imported then."""

    code: int
    out: str
    err: str
    imported: set[str]


def ended(words: list[str], folder: Path, environment: Mapping[str, str], strict: bool = True) -> Ended:
    """Run `python *words`, of which the first is -m or a file, in this process; to be called in a fork of its own.

    strict: warnings are errors.
    """
    os.chdir(folder)
    os.environ.update(environment)
    clone_state.refuse()
    if strict:
        warnings.simplefilter("error")
    sys.argv = words[words[0] == "-m" :]
    saved = os.dup(1), os.dup(2)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        for number, file in ((1, out), (2, err)):
            os.dup2(file.fileno(), number)
        code = 0
        try:
            if words[0] == "-m":
                runpy.run_module(words[1], run_name="__main__", alter_sys=True)
            else:
                sys.path.insert(0, str(Path(words[0]).parent))
                runpy.run_path(words[0], run_name="__main__")
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
            if isinstance(leaving.code, str):
                sys.stderr.write(f"{leaving.code}\n")
        except BaseException:
            code = 1
            traceback.print_exc()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            for number, descriptor in zip((1, 2), saved, strict=True):
                os.dup2(descriptor, number)
        out.seek(0), err.seek(0)
        imported = {name.partition(".")[0] for name in sys.modules}
        return Ended(code, out.read().decode(), err.read().decode(), imported)


def run(*words: str, folder: Path, strict: bool = True, **environment: str) -> Ended:
    """Run `python *words` in a fork."""
    return run_all([words], folder, strict, **environment)[0]


def run_all(commands: Iterable[Sequence[str]], folder: Path, strict: bool = True, **environment: str) -> list[Ended]:
    """Run one `python *words` after another in the same fork, which keeps what they have imported."""
    with Workers(1) as one:
        return [one.call(ended, [*words], folder, environment, strict) for words in commands]
