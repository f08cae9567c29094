"""Kill a command at its events, and compare what the next one leaves: python -m kill_at START MOST WORDS... -- CHECK...

An event changes files in the current folder or beside it: what Python's audit hooks see, and each write of a file and
of SQLite, of which half is on the disk when the command is killed: in the middle of a blob, or of a commit.
START: a folder, of which a copy takes the place of the current folder's parent before each kill. MOST: of events, drawn
at random; 0: all. CHECK: a command that must work in what an undisturbed one leaves, and so in what is equal to it.

Commands are forks of this process, which has imported what they import. One is killed at an event, sometimes twice, and
then runs to its end: each file, folder and row must be as an undisturbed one leaves it.
"""

import _pyio
import _sqlite3
import builtins
import ctypes
import gc
import hashlib
import io
import os
import random
import re
import shutil
import signal
import sqlite3
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

CHANGES = {"os.rename", "os.remove", "os.link", "os.symlink", "os.mkdir", "os.rmdir", "os.truncate", "sqlite3.connect"}
FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
PLACES_OF_CALLS = 18
"""The place of `xSetSystemCall` among the pointers of SQLite's struct of its file system, of which `int`s fill two."""


class Events:
    """Counts events and kills this process at one of them."""

    def __init__(self, number: int) -> None:
        self.number, self.seen, self.home = number, 0, os.path.dirname(os.getcwd())

    def reached(self, path: str) -> bool:
        """Count an event of a file, and tell whether it is the one."""
        here = os.path.abspath(path).startswith(self.home)
        self.seen += here
        return here and self.seen == self.number

    def look(self, event: str, args: tuple[object, ...]) -> None:
        """Kill at what an audit hook sees."""
        writes = event in CHANGES or (event == "open" and isinstance(args[2], int) and args[2] & FLAGS)
        if writes and self.reached(os.fsdecode(str(args[0]))):
            die()

    def write(self, real: Callable[..., int], descriptor: int, content: Any, *rest: int) -> int:
        """Write a content, or half of it before this process dies."""
        if self.reached(os.readlink(f"/proc/self/fd/{descriptor}")):
            real(content[: len(content) // 2], *rest)
            die()
        return real(content, *rest)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def patch_files(events: Events) -> None:
    """Let each write of Python's files be an event: `_pyio` opens those that are written, over a class of ours."""
    real, plain = os.sendfile, io.open

    class Raw(io.FileIO):
        def write(self, content: Any) -> int:
            return events.write(super().write, self.fileno(), memoryview(content).cast("B"))

    def opened(file: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
        return (_pyio.open if {*mode} & {*"wax+"} else plain)(file, mode, *rest, **more)

    def sendfile(out: int, source: int, offset: int, count: int) -> int:
        return events.write(lambda part: real(out, source, offset, len(part)), out, range(count))

    _pyio.FileIO, _pyio.BufferedWriter, _pyio.TextIOWrapper = Raw, io.BufferedWriter, io.TextIOWrapper  # type: ignore
    builtins.open = io.open = opened  # type: ignore[assignment]
    os.sendfile = sendfile  # type: ignore[assignment]


def patch_database(events: Events) -> list[Any]:
    """Let each write of SQLite be an event; return what must stay in memory for it."""
    find = ctypes.CDLL(_sqlite3.__file__).sqlite3_vfs_find
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    system = find(None)
    pointers = ctypes.cast(system, ctypes.POINTER(ctypes.c_void_p))
    of_vfs = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    change = of_vfs(pointers[PLACES_OF_CALLS])
    pwrite = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64)

    def written(descriptor: int, address: int, count: int, offset: int) -> int:
        content = ctypes.string_at(address, count)
        return events.write(partial(os.pwrite, descriptor), descriptor, content, offset)

    call = pwrite(written)
    for name in (b"pwrite", b"pwrite64"):
        change(system, name, ctypes.cast(call, ctypes.c_void_p))
    return [call, change]


def command(number: int, words: Sequence[str], log: Path) -> int:
    """Run a command in a fork, killed at an event; return its exit code; for 0 its log ends in the number of events."""
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code, events = 0, Events(number)
    for stream in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    try:
        stay = patch_database(events)
        patch_files(events)
        sys.addaudithook(events.look)
        import_module("fedcore.cli.main").main([*words])
        threading._shutdown()  # type: ignore[attr-defined]
        del stay
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 1
    if not number:
        sys.stdout.write(f"{events.seen} events\n")
    sys.stdout.flush()
    os._exit(code)


def outcome(folder: Path) -> dict[str, str]:
    """Return each entry's mode, and a file's digest but for times; of a database that of its rows."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts):
        content = path.read_bytes() if path.is_file() else b""
        if path.suffix == ".db":
            with closing(sqlite3.connect(path)) as database:
                content = "\n".join(sorted(database.iterdump())).encode()
        if path.suffix == ".db" or path.name == "manifest.json":
            content = re.sub(rb"\b1\d{12}\b|\b20\d\d-\d\d-\d\dT[\d:.+Z-]+", b"time", content)
        digest = hashlib.blake2b(content, digest_size=8).hexdigest()
        found[str(path.relative_to(folder))] = f"{path.lstat().st_mode:o} {digest}"
    return found


def main(start: Path, most: int, words: Sequence[str], check: Sequence[str]) -> int:
    """Write what is wrong after kills of a command, a line each; return the number of kills."""
    import_module("fedcore.pipeline.environment").prepare()
    for module in walk_packages(import_module("fedcore").__path__, "fedcore."):
        if not module.name.startswith("fedcore.field"):
            import_module(module.name)
    gc.freeze()
    here = Path.cwd()
    log = here.parent.with_name("log")

    def leave(*numbers: int) -> dict[str, str]:
        """Return what commands leave that are killed at events, or not (0)."""
        for entry in here.parent.iterdir():
            for path in entry.iterdir() if entry == here else [entry]:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(start, here.parent, symlinks=True, dirs_exist_ok=True)
        log.unlink(missing_ok=True)
        codes = [command(number, words, log) for number in numbers]
        if codes.pop() or codes[:1] not in ([], [-signal.SIGKILL]) or "Traceback" in log.read_text():
            return {f"exit codes {codes}": log.read_text()}
        return outcome(here.parent)

    calm = leave(0)
    count = int(log.read_text().split()[-2])
    assert command(0, check, log) == 0, log.read_text()
    numbers = sorted(random.Random(count).sample(range(1, count + 1), min(most or count, count)))
    trials = [[number] for number in numbers] + [[number, number] for number in numbers[:: len(numbers) // 100 + 1]]
    for trial in trials:
        if differ := sorted({*leave(*trial, 0).items()} ^ {*calm.items()}):
            sys.stdout.write(f"{words[0]} killed at events {trial} of {count}: {differ[:3]}\n")
            sys.stdout.flush()
    return sum(map(len, trials))


if __name__ == "__main__":
    at = sys.argv.index("--")
    kills = main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:at], sys.argv[at + 1 :])
    sys.stdout.write(f"{kills} kills\n")
