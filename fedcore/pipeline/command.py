"""A command's help, and how it ends: what a user must know stands in one line on stderr. Imports nothing slow.

Exit codes: 0; 1 if the run cannot go on for a reason outside of it (run it again); 2 for bad input; 128 and the
number of the signal that stopped it, 130 for Ctrl-C, 141 if whoever reads its output has left, as `head` does. An error
of the code, or of a user's own method, is 1 with its traceback, without the frames of other packages.
"""

import errno
import os
import re
import select
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from fedcore.errors import InputError, OneLine, shorten_traceback

CONTINUE = "finished steps are kept, run the same command to continue"
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Errors of a write for which there is no room."""
DENIED = {errno.EROFS, errno.EACCES, errno.EPERM}
"""Errors of a use of a file for which there is no right."""
SAID = re.compile(r"\(os error (\d+)\)|Error code (\d+) \(")
"""How safetensors and PyTorch name an error of the system, in exceptions that are none of OSError."""
STDOUT = 1
"""The number of standard output's file."""


class Failed(OneLine, RuntimeError):
    """The run cannot go on, for a reason outside of it; what is finished is kept."""


def no_room(error: OSError, path: object) -> str:
    """Return the line for a write that found no room."""
    return f"{path}: no room to write: {os.strerror(error.errno or 0)}; {CONTINUE}"


@contextmanager
def naming(path: object) -> Iterator[None]:
    """Let an error of a write that names no file, as one in the midst of a file does, name this folder."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL | DENIED and not error.filename:
            error.filename = str(path)
        raise


def cause(error: BaseException | None) -> str:
    """Return the line for an error whose cause lies outside of the code, or "": no room, no right, no memory, ...

    It may be the cause of another error that a library raised.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        line = _system_error(error)
        path = isinstance(line, OSError) and (line.filename2 or line.filename)  # a copy's second is what is written
        if isinstance(line, OSError) and line.errno in FULL:
            return no_room(line, path or "a file")
        if isinstance(line, OSError) and line.errno in DENIED:
            return f"{path or 'a file'}: {os.strerror(line.errno or 0)}; {CONTINUE}"
        if isinstance(line, MemoryError) or (isinstance(line, OSError) and line.errno == errno.ENOMEM):
            return f"no memory left: use fewer workers (run.workers) or smaller settings; {CONTINUE}"
        if type(line).__name__ == "DamagedBlob":  # by its name: its module is slow
            return f".fedcore/blobs: {line}, deleted beside this run; the same command computes it again"
        if (type(line).__module__, type(line).__name__) == ("sqlite3", "OperationalError"):
            return f"a database of this project: {line}; {CONTINUE}"
        error = error.__cause__
    return ""


def _system_error(error: BaseException) -> BaseException:
    """Return the error of the system that an exception has as text, or the exception itself.

    Of a folder that could not be copied it is the first: it has those of its files as texts.
    """
    if isinstance(error, shutil.Error):
        for source, target, why in error.args[0] if isinstance(error.args[0], list) else ():
            if number := re.match(r"\[Errno (\d+)\]", str(why)):
                return OSError(int(number[1]), "", str(source), None, str(target))
    elif not isinstance(error, OSError) and (match := SAID.search(str(error))):
        return OSError(int(match[1] or match[2]), "")
    return error


class Stopped(KeyboardInterrupt):
    """A signal asks this process to end."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def report_bad_input(stopped: str = f"stopped; {CONTINUE}") -> Iterator[None]:
    """Report in one line why a command ended early, and exit with its code. stopped: what a signal's line says."""
    try:
        with _stop_on_signals():
            try:
                yield
            finally:
                sys.stdout.flush()  # what waits is written here, where an error of it is still reported
    except KeyboardInterrupt as signalled:
        _leave(128 + getattr(signalled, "number", signal.SIGINT), stopped)
    except Failed as error:
        _leave(1, str(error))
    except InputError as error:
        _leave(2, str(error))
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _reader_left():
            os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)  # Python writes what is left as it ends
            sys.exit(128 + signal.SIGPIPE)
        if line := cause(error):
            _leave(1, str(Failed(line)))
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            _leave(2, str(InputError(f"{error.filename}: {os.strerror(error.errno)}")))
        shorten_traceback(error)
        traceback.print_exception(error)
        sys.exit(1)


def _reader_left() -> bool:
    """Return whether standard output is a pipe that nobody reads any more; another pipe's error is one of the code."""
    poll = select.poll()
    poll.register(STDOUT, select.POLLOUT)  # poll() needs an event mask on macOS
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _leave(code: int, line: str) -> None:
    sys.stderr.write(f"fedcore: {line}\n")
    sys.exit(code)


@contextmanager
def _stop_on_signals() -> Iterator[None]:
    """Let the signals that end a process raise Stopped, so that it leaves neither workers nor marks behind.

    A second signal ends the process at once. One that is ignored, as under nohup, stays ignored. One that comes while
    Python frees an object, whose errors it drops, comes again: Prefect's own handler raises, too.
    """

    def stop(number: int, frame: object) -> None:
        for other in before:
            signal.signal(other, lambda number, frame: os._exit(128 + number))
        raise Stopped(number)

    def again(dropped: "sys.UnraisableHookArgs") -> None:
        error = dropped.exc_value
        if not isinstance(error, Stopped) and type(error).__name__ != "TerminationSignal":
            dropping(dropped)
            return
        number = getattr(error, "number", signal.SIGTERM)
        if isinstance(error, Stopped):
            signal.signal(number, stop)
        threading.Timer(0.1, os.kill, (os.getpid(), number)).start()  # here it would be dropped as well

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    dropping, sys.unraisablehook = sys.unraisablehook, again
    with suppress(ValueError):  # not in the main thread
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, stop)
    try:
        yield
    finally:
        sys.unraisablehook = dropping
        with suppress(ValueError):
            for number, handler in before.items():
                signal.signal(number, handler)
