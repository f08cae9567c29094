"""What flows leave behind for others to read: a line for each step that they needed, and a mark while they run."""

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
"""time in seconds since 1970, process, flow, step, unit, key, cached, and the seconds wall and cpu."""


@dataclass(frozen=True)
class Step:
    """What became of one step.

    kind: the function's name. cached: whether an earlier result was used. wall, cpu: seconds it took when it was
    computed, in this run or an earlier one.
    """

    kind: str
    unit: str
    key: str
    cached: bool
    wall: float
    cpu: float


def note(line: Line) -> None:
    """Add a line, with the time."""
    with JOURNAL.open("a") as journal:
        journal.write(_written({"time": round(time.time(), 3), **line}))


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
