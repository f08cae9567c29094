"""Run a command of fedcore, and kill it at one of its events: python -m kill_at NUMBER COUNT WORDS...

An event changes files of the current folder: what Python's audit hooks see in this process, and each write of a file
and of SQLite, of which half is on the disk when the command is killed: in the middle of a blob, or of a commit.
NUMBER: of the event, from 1; 0 kills at none. COUNT: a file for the number of events of a command that was not killed.
"""

import _sqlite3
import builtins
import ctypes
import io
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

CHANGES = {"os.rename", "os.remove", "os.link", "os.symlink", "os.mkdir", "os.rmdir", "os.truncate", "sqlite3.connect"}
FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
PLACES_OF_CALLS = 18
"""The place of `xSetSystemCall` among the pointers of SQLite's struct of its file system, of which `int`s fill two."""


class Events:
    """Counts events and kills this process at one of them."""

    def __init__(self, number: int) -> None:
        self.number, self.seen, self.home = number, 0, os.getcwd()

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
    """Let each write of Python's files be an event."""
    plain = io.open

    class Raw(io.FileIO):
        def write(self, content: Any) -> int:
            return events.write(super().write, self.fileno(), memoryview(content).cast("B"))

    def opened(
        file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None, newline: Any = None,
        closefd: bool = True, opener: Any = None,
    ) -> Any:  # fmt: skip
        if not {*mode} & {*"wax"} or "+" in mode:
            return plain(file, mode, buffering, encoding, errors, newline, closefd, opener)
        raw = Raw(file, mode.translate({ord("b"): None, ord("t"): None}), closefd, opener)
        if buffering == 0:
            return raw
        file = io.BufferedWriter(raw)
        return file if "b" in mode else io.TextIOWrapper(file, encoding, errors, newline)

    def sendfile(out: int, source: int, offset: int, count: int) -> int:
        return events.write(lambda part: real(out, source, offset, len(part)), out, range(count))

    real = os.sendfile
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


def main(number: int, count: Path, words: list[str]) -> None:
    events = Events(number)
    stay = patch_database(events)
    patch_files(events)
    sys.addaudithook(events.look)
    from fedcore.cli.main import main as fedcore

    try:
        fedcore(words)
    finally:
        total, events.number = events.seen, 0
        count.write_text(str(total))
        del stay


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
