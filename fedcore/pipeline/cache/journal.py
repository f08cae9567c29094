"""The journal of steps: a line for each step that a flow needed, with the blobs that its result refers to.

There is also a mark for each flow that is running.
"""

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock

from fedcore.pipeline import environment
from fedcore.pipeline.state import read_lines, to_lines, write_atomic

JOURNAL = environment.STATE / "journal.jsonl"
FLOWS = environment.STATE / "flows"
LAST = environment.STATE / "last_run.json"

Line = dict[str, Any]
"""Keys: time (seconds since 1970), process, flow, step, unit, key, cached, wall and cpu (seconds), blobs: the digests
of those that the step's result refers to, and calls: of how many devices' steps it consists, if of several."""


@dataclass(frozen=True)
class Step:
    """The outcome of one step.

    kind: its word, such as train, fuse or evaluate. cached: whether it was a cache hit. wall, cpu: the seconds that it
    took when it was computed, in this run or an earlier one. blobs: the digests of those that its result refers to.
    calls: how many devices' steps it consists of.
    """

    kind: str
    unit: str
    key: str
    cached: bool
    wall: float
    cpu: float
    blobs: tuple[str, ...]
    calls: int = 1


def append(line: Line) -> None:
    """Append a line with the current time, in a single write, so that lines of concurrent flows do not mix."""
    with JOURNAL.open("ab", buffering=0) as journal:
        journal.write(to_lines([{"time": round(time.time(), 3), **line}]))


def read() -> list[Line]:
    """Return the journal's lines, except those that are damaged."""
    return read_lines(JOURNAL, _check)


def note_run(written: int) -> None:
    """Note from when to when this process has run, and how many runs of methods it has written."""
    begun, ended = psutil.Process().create_time(), round(time.time(), 3)  # as a line's time
    run = {"process": os.getpid(), "begun": begun, "ended": ended, "written": written}
    write_atomic(LAST, json.dumps(run).encode())


def beside_steps(workers: int) -> tuple[float, int] | None:
    """Return the seconds of the last run beside its steps, and its runs of methods; None if it is not known."""
    try:
        last = json.loads(LAST.read_bytes())
        begun, ended = float(last["begun"]), float(last["ended"])
        lines = (line for line in read() if begun <= line["time"] <= ended and line.get("cached") is False)
        computing = sum(float(line.get("wall", 0.0)) for line in lines if line.get("process") == last["process"])
        return max(0.0, ended - begun - computing / workers), int(last["written"])
    except (OSError, ValueError, TypeError, LookupError):
        return None


def kinds() -> dict[str, str]:
    """Return the digest of each blob -> the kind of the step that returned it last."""
    return {digest: str(line.get("step", "")) for line in read() for digest in line.get("blobs", ())}


def _check(line: Any) -> Line:
    """Return a line if it has all that is read of one; raises ValueError, TypeError or LookupError otherwise."""
    checked: Line = {**line, "time": float(line["time"]), "key": str(line["key"])}
    if not all(isinstance(digest, str) for digest in line.get("blobs", ())):
        raise ValueError("blobs are named by digests")
    return checked


def marks() -> list[Path]:
    """Return the marks of the flow runs that are running or were killed."""
    return [mark for mark in FLOWS.iterdir() if not mark.name.startswith(".")] if FLOWS.is_dir() else []


@contextmanager
def running(flow_run: str) -> Iterator[Path]:
    """Mark a flow run as running in this process; yields the mark, which the outermost of such bodies removes."""
    mark, own = FLOWS / flow_run, str(os.getpid()).encode()
    with starting():
        outermost = not (mark.is_file() and mark.read_bytes() == own)
        write_atomic(mark, own)
    try:
        yield mark
    finally:
        if outermost:
            mark.unlink(missing_ok=True)


def starting() -> FileLock:
    """Return the lock that a flow holds when it starts, and pruning to its end: no flow starts meanwhile."""
    FLOWS.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(FLOWS.with_suffix(".lock"), mode=0o600)


def alive(mark: Path) -> bool:
    """Tell whether the process of a flow run's mark is alive. A mark that is damaged, or gone by now, has none."""
    try:
        return psutil.pid_exists(int(mark.read_bytes()))
    except (OSError, ValueError, OverflowError):
        return False


def remove_mark(mark: Path) -> None:
    """Remove a mark, or whatever lies in its place."""
    if mark.is_dir():
        shutil.rmtree(mark)
    else:
        mark.unlink(missing_ok=True)
