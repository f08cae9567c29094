"""A template process: PyTorch is imported in it, so that a worker forked from it starts in milliseconds.

A worker that starts as a new Python process takes two to three seconds of a core to import PyTorch. A program that
starts several workers opens a template first, and may fork other processes from it, too. Only a process with one
thread can be forked safely, so this must happen before anything that starts threads is imported. Where it cannot be
done, workers start as new processes.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from subprocess import TimeoutExpired
from typing import NoReturn, TypeAlias

SIZE = 1 << 17
"""Bytes of the longest request. One holds `sys.path`."""

Job: TypeAlias = tuple[str, str, list[str]]
"""A module, its function, and texts that follow the descriptor as arguments."""

_open: Template | None = None


class Template:
    """This process's handle of the template process, which ends with this process. Any thread may call."""

    def __init__(self, serve: Callable[[int], None]) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        if os.fork() == 0:
            self._channel.close()
            _answer_requests(theirs, serve)
        theirs.close()

    def fork(self, connection: socket.socket, nice: int, job: Job | None = None) -> Forked:
        """Start a process that calls serve(descriptor of `connection`). Raises OSError if the template has ended.

        job: what it calls instead of `serve`.
        """
        request = {"path": sys.path, "nice": nice, "job": job}
        return Forked(self, self._ask(request, [connection.fileno()]))

    def collect(self, pid: int) -> int:
        """Return the exit code of an ended process, negative for a signal. Raises OSError if the template has ended."""
        return self._ask({"pid": pid}, [])

    def _ask(self, request: Mapping[str, object], descriptors: list[int]) -> int:
        with self._lock:
            socket.send_fds(self._channel, [json.dumps(request).encode()], descriptors)
            answer = self._channel.recv(SIZE)
        if not answer:
            raise ConnectionError("the template process has ended")
        return int(answer)

    def close(self) -> None:
        """End the template process. Workers go on."""
        self._channel.close()


class Forked:
    """A process forked from the template; used as `subprocess.Popen` is."""

    def __init__(self, template: Template, pid: int) -> None:
        self._template, self._pid = template, pid
        self._code: int | None = None
        self._descriptor = os.pidfd_open(pid)  # the template collects a process only when asked, so this is the one

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def poll(self) -> int | None:
        """Return the exit code, None while the process runs."""
        with suppress(TimeoutExpired):
            self.wait(0.0)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, 0 if it is unknown. Raises TimeoutExpired."""
        if self._code is None:
            if not select.select([self._descriptor], [], [], timeout)[0]:
                raise TimeoutExpired("worker", timeout or 0.0)
            self._code = 0
            with suppress(OSError):
                self._code = self._template.collect(self._pid)
        return self._code

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` is None where Python ends
        close(self._descriptor)


def open_template(serve: Callable[[int], None]) -> None:
    """Open this process's template, if it has none and can be forked: on Linux, with one thread.

    serve: :func:`fedcore.execute.workers.serve`, all that a worker runs.
    """
    global _open
    if _open is None and sys.platform == "linux" and _one_thread() and _holds_processes():
        _open = Template(serve)


def _one_thread() -> bool:
    return len(list(Path("/proc/self/task").iterdir())) == 1


def _holds_processes() -> bool:
    """Tell whether this system gives descriptors of processes, which some kernels and containers refuse."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return hasattr(signal, "pidfd_send_signal")


def fork_worker(connection: socket.socket, nice: int, job: Job | None = None) -> Forked | None:
    """Fork a worker, or a process with another job, from this process's template. Returns None without one."""
    if _open is not None:
        with suppress(OSError):
            return _open.fork(connection, nice, job)
    return None


# In the template process


def _answer_requests(channel: socket.socket, serve: Callable[[int], None]) -> NoReturn:
    try:
        os.setpgid(0, 0)  # only the first process handles Ctrl-C
        gc.freeze()
        while True:
            request, descriptors, _, _ = socket.recv_fds(channel, SIZE, 1)
            if not request:
                break
            order = json.loads(request)
            if descriptors:
                answer = os.fork()
                if answer == 0:
                    channel.close()
                    _become_worker(serve, descriptors[0], **order)
                os.close(descriptors[0])
            else:
                answer = os.waitstatus_to_exitcode(os.waitpid(order["pid"], 0)[1])
            channel.send(str(answer).encode())
    finally:
        os._exit(0)  # never go on with the program


def _become_worker(
    serve: Callable[[int], None], descriptor: int, path: list[str], nice: int, job: Job | None
) -> NoReturn:
    code = 1
    try:
        os.setpgid(0, 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a service manager may end all processes
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        os.nice(nice)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.path[:] = path
        gc.set_threshold(700, 10, 10)
        keep_freed_memory()
        if job is None:
            serve(descriptor)
        else:
            module, function, texts = job
            getattr(import_module(module), function)(descriptor, *texts)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


MEMORY = {"MALLOC_MMAP_THRESHOLD_": (-3, 32 << 20), "MALLOC_TRIM_THRESHOLD_": (-1, 256 << 20)}
"""glibc's variables, their numbers for mallopt and the values, below which it keeps freed memory. By default a worker
returns its activations after every minibatch and gets new pages to be zeroed: a fifth of a step of VGG-11 or
MobileNetV2, up to a quarter for DFL's CNN, depending on earlier allocations. Values in the environment take
precedence."""


ENVIRONMENT = {variable: str(value) for variable, (_, value) in MEMORY.items()}


def keep_freed_memory() -> None:
    """Set what a new process would read from the environment."""
    for variable, (number, value) in MEMORY.items():
        if variable not in os.environ:
            with suppress(AttributeError):  # another C library
                ctypes.CDLL(None).mallopt(number, value)
