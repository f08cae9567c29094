"""The journal of steps: a line for each step that a flow needed, with the blobs that it refers to.

Beside it, a mark for each flow that is running.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tasks.cache.store import write_whole
from tasks.config import environment

JOURNAL = environment.STATE / "journal.jsonl"
FLOWS = environment.STATE / "flows"

Line = dict[str, Any]
"""time in seconds since 1970, process, flow, step, unit, key, cached, the seconds wall and cpu, and blobs: the digests
of those that the step's result refers to."""


@dataclass(frozen=True)
class Step:
    """The outcome of one step.

    kind: the word for it, such as train, fuse or evaluate. cached: whether an earlier result was used. wall, cpu:
    seconds it took when it was computed, in this run or an earlier one. blobs: digests of those that its result refers
    to.
    """

    kind: str
    unit: str
    key: str
    cached: bool
    wall: float
    cpu: float
    blobs: tuple[str, ...]


def note(line: Line) -> None:
    """Add a line, with the time; in a single write, so that lines of flows that run side by side do not mix."""
    with JOURNAL.open("ab", buffering=0) as journal:
        journal.write(_written({"time": round(time.time(), 3), **line}).encode())


def lines() -> list[Line]:
    """Return the journal's lines, but for one that a killed process has left half written."""
    read = []
    for line in JOURNAL.read_text().splitlines() if JOURNAL.exists() else ():
        try:
            read.append(json.loads(line))
        except ValueError:
            continue
    return read


def rewrite(kept: list[Line]) -> None:
    """Replace the journal by these lines."""
    write_whole(JOURNAL, "".join(map(_written, kept)).encode())


def _written(line: Line) -> str:
    return json.dumps(line) + "\n"


def marks() -> list[Path]:
    """Return the marks of the flow runs that have not ended, or were killed."""
    return [*FLOWS.iterdir()] if FLOWS.is_dir() else []


def alive(mark: Path) -> bool:
    """Tell whether the process of a flow run's mark is there."""
    try:
        return psutil.pid_exists(int(mark.read_text() or 0))
    except FileNotFoundError:  # its flow ended just now
        return False
