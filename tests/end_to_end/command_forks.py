"""Commands as forks of one process that has imported what the project's packages import.

A flow takes six seconds of a core to import PyTorch, Prefect and others, the process of its record two for MLflow, and
the tests start some fifty flows. The process of this file, started once, imports those packages; a command is a fork of
it that goes on as `python -m MODULE` does: its folder, environment, `sys.path` and output are those of a new process.
Nothing of the project is imported before, since every scenario has a copy of its own. At its end a fork joins its
threads, calls its exit handlers and is gone. A new process also clears all that it has imported; in a fork that copies
each page with an object, which takes half a second of a core. Where a test looks at every line that a command writes,
the fork is started as `whole`: it does so too.

Commands that DVC starts are forks if `CommandForks.path` comes first on its PATH: the `python` and the
`fedcore` there ask for one. Otherwise
they are new processes, as those of Prefect's worker are, where packages are imported with the project's settings.
"""

import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any

PACKAGES = (
    "torch", "scipy.io", "scipy.optimize", "scipy.stats", "sklearn.datasets", "sklearn.linear_model",
    "sklearn.preprocessing", "pandas", "cvxpy", "ot", "pyarrow.pandas_compat", "pyarrow.parquet", "matplotlib.pyplot",
    "matplotlib.backends.backend_agg", "PIL.Image", "rich.progress", "pydantic", "jinja2", "yaml", "psutil",
    "safetensors.torch", "mlflow.pyfunc", "mlflow.store.model_registry.sqlalchemy_store",
    "mlflow.store.tracking.sqlalchemy_store", "sqlalchemy.dialects.sqlite", "prefect.task_engine", "dvc.cli.parser",
    "dvc.repo", "ruamel.yaml", "scmrepo.git", "git",
)  # fmt: skip
SETTINGS = {
    "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING", "DO_NOT_TRACK": "1",
}  # fmt: skip
"""What is read as packages are imported, as fedcore.pipeline.environment sets it."""
SIZE = 1 << 17
"""Bytes of the longest request, which holds an environment."""
ASK = """#!{python} -IS
import json, os, socket, sys
words = ["-m", "fedcore", *sys.argv[1:]] if sys.argv[0].endswith("fedcore") else sys.argv[1:]
if words[:1] != ["-m"]:
    os.execv({python!r}, [{python!r}, *words])
asking = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
asking.connect({path!r})
order = dict(module=words[1], words=words[2:], cwd=os.getcwd(), env=dict(os.environ), whole=False)
socket.send_fds(asking, [json.dumps(order).encode()], [1, 2])
code = int(asking.recv(99))
sys.exit(code if code >= 0 else 128 - code)
"""
"""A program that has a module run as a fork, with its own output, and leaves with its exit code."""


class CommandForks:
    """The process that commands are forked from; it ends with this one. Any thread may call."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        command = [sys.executable, __file__, str(theirs.fileno())]
        self._folder = tempfile.TemporaryDirectory()
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | SETTINGS
        env["PREFECT_HOME"] = self._folder.name
        self._process = subprocess.Popen(command, env=env, cwd=self._folder.name, pass_fds=[theirs.fileno()])
        theirs.close()
        self.path = Path(self._folder.name) / "bin"
        self.path.mkdir()
        asked = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        asked.bind(f"{self._folder.name}/asked")
        asked.listen()
        for name in ("python", "fedcore"):
            (self.path / name).write_text(ASK.format(python=sys.executable, path=asked.getsockname()))
            (self.path / name).chmod(0o755)
        threading.Thread(target=self._accept, args=(asked,), daemon=True).start()

    def _accept(self, asked: socket.socket) -> None:
        while True:
            threading.Thread(target=self._serve, args=(asked.accept()[0],), daemon=True).start()

    def _serve(self, asking: socket.socket) -> None:
        """Fork for a program of the text ASK, and send it the exit code; it takes the fork along when it is killed."""
        with asking:
            request, descriptors, _, _ = socket.recv_fds(asking, SIZE, 2)
            pid = self.ask(json.loads(request), descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            ended = os.pidfd_open(pid)
            if asking in select.select([ended, asking], [], [])[0]:
                os.killpg(pid, signal.SIGKILL)
            os.close(ended)
            code = self.ask({"pid": pid})
            with suppress(OSError):
                asking.send(str(code).encode())

    def start(
        self, module: str, words: Sequence[str], cwd: Path, env: Mapping[str, str], log: Path | None, whole: bool
    ) -> "Command":
        """Start `python -m module words`, its output into a file if one is named."""
        out = log.open("w+") if log else tempfile.TemporaryFile("w+")  # noqa: SIM115  # the command's
        err = out if log else tempfile.TemporaryFile("w+")  # noqa: SIM115
        order = {"module": module, "words": list(words), "cwd": str(cwd), "env": dict(env), "whole": whole}
        pid = self.ask(order, [out.fileno(), err.fileno()])
        return Command(self, pid, [module, *words], out, err)

    def ask(self, order: Mapping[str, Any], descriptors: Sequence[int] = ()) -> int:
        with self._lock:
            socket.send_fds(self._channel, [json.dumps(order).encode()], descriptors)
            answer = self._channel.recv(SIZE)
        if not answer:
            raise ConnectionError("the process that commands are forked from has ended")
        return int(answer)

    def close(self) -> None:
        self._channel.close()
        self._process.wait()
        self._folder.cleanup()


class Command:
    """A running command; used as `subprocess.Popen` is."""

    def __init__(self, forks: CommandForks, pid: int, args: list[str], out: IO[str], err: IO[str]) -> None:
        self.pid, self.args = pid, args
        self.returncode: int | None = None
        self._forks, self._files = forks, (out, err)
        self._output = ("", "")
        self._descriptor = os.pidfd_open(pid)  # its parent collects it only when asked, so this is the one

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._descriptor], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            os.close(self._descriptor)
            self._output = (_read(self._files[0]), _read(self._files[1]))
            self.returncode = self._forks.ask({"pid": self.pid})
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Return all output, as often as asked."""
        self.wait(timeout)
        return self._output

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _read(file: IO[str]) -> str:
    """Return what a file holds, and close it; a file that is closed holds nothing."""
    if file.closed:
        return ""
    with file:
        file.seek(0)
        return file.read()


# In the process that commands are forked from


def await_order(channel: socket.socket) -> dict[str, Any]:
    """Fork at each order, and return it in the fork, which has its output. Ends with the process at the other end."""
    while True:
        request, descriptors, _, _ = socket.recv_fds(channel, SIZE, 2)
        if not request:
            os._exit(0)
        order: dict[str, Any] = json.loads(request)
        if "pid" in order:
            answer = os.waitstatus_to_exitcode(os.waitpid(order["pid"], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                channel.close()
                os.setsid()
                nothing = os.open(os.devnull, os.O_RDONLY)
                for number, descriptor in enumerate([nothing, *descriptors]):
                    os.dup2(descriptor, number)
                    os.close(descriptor)
                return order
            for descriptor in descriptors:
                os.close(descriptor)
        channel.send(str(answer).encode())


def main() -> None:
    paths = sys.path[1:]
    for package in PACKAGES:
        import_module(package)
    from prefect import context

    gc.freeze()
    order = await_order(socket.socket(fileno=int(sys.argv[1])))
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    sys.path[:] = [order["cwd"], *filter(None, order["env"].get("PYTHONPATH", "").split(os.pathsep)), *paths]
    sys.path_importer_cache.clear()
    sys.argv = [order["module"], *order["words"]]
    if order["module"] == "prefect":  # flows read its settings anew themselves, once they have a server
        context.refresh_global_settings_context()
    run(order["module"], order["whole"])


def run(module: str, whole: bool) -> None:
    """Run a module as `python -m` does, and end."""
    import atexit  # here, since the module's names replace those of this file
    import os
    import sys
    import threading

    code = 0
    try:
        runpy._run_module_as_main(module)  # type: ignore[attr-defined]  # what `python -m` itself calls
    except SystemExit as leaving:
        code = leaving.code or 0
        if whole or not isinstance(code, int):
            raise
    if not whole:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code & 0xFF)


if __name__ == "__main__":
    main()
