"""A run's first seconds: which process computes when, as a picture.

    python -m benchmarks.first_seconds OUT.png [seconds]

The made-up CSV of `benchmarks.speed` becomes a project, whose ten methods run; the seconds (15 by default) from the
command on are drawn: for each process the share of a core that it used in each fifth of a second (Linux).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import psutil
from matplotlib.figure import Figure

from benchmarks.speed import HERE, RUN, Side, begin, stop
from fedcore.report.figures.drawing import COLOURS, bare

STEP = 0.2
LEAST = 0.3
"""Seconds of a processor below which a process is not shown."""


def watch(top: psutil.Process, seconds: float) -> dict[tuple[str, int], list[tuple[float, float]]]:
    """Return (what a process is, its number) -> (seconds since the start, its processor's seconds), until `seconds`."""
    start, used = time.monotonic(), {}
    while (now := time.monotonic() - start) < seconds:
        found = {one.pid: one for one in (top, *top.children(recursive=True), *servers(top))}
        for one in found.values():
            with suppress(psutil.Error):
                times = one.cpu_times()
                used.setdefault((what(one, top), one.pid), []).append((now, times.user + times.system))
        time.sleep(STEP)
    return used


def servers(top: psutil.Process) -> list[psutil.Process]:
    """Return the project's server, which is a session of its own."""
    here = top.cwd()
    return [
        one for one in psutil.process_iter(["cmdline"])
        if "prefect server" in " ".join(one.info["cmdline"] or ()) and one.cwd() == here
    ]  # fmt: skip


def what(one: psutil.Process, top: psutil.Process) -> str:
    if "prefect" in " ".join(one.cmdline()):
        return "Prefect's server"
    return "the flow" if one == top else "a worker or the record"


def draw(used: dict[tuple[str, int], list[tuple[float, float]]], first: float, out: Path) -> None:
    shown = [(name, points) for (name, _), points in used.items() if points[-1][1] > LEAST]
    figure = Figure(figsize=(9, 0.9 * len(shown) + 0.6), layout="constrained")
    panels = figure.subplots(len(shown), sharex=True, squeeze=False).ravel()
    for panel, colour, (name, points) in zip(panels, COLOURS * 4, shown, strict=False):
        shares = [(now, (cpu - before) / (now - then)) for (then, before), (now, cpu) in pairwise(points)]
        panel.fill_between(*zip(*shares, strict=True), step="pre", color=colour, alpha=0.7)
        panel.axvline(first, color="black", linewidth=0.8)
        panel.set_title(name, loc="left", fontsize=9)
        panel.set_ylim(0, 1.3)
        panel.set_yticks([0, 1])
        bare(panel)
    panels[-1].set_xlabel("seconds from the command on; the line: the first provisional answer")
    figure.savefig(out, dpi=110, metadata={"Software": None})


def main(out: Path, seconds: float) -> None:
    with tempfile.TemporaryDirectory(prefix="first-") as folder:
        side = Side("now", HERE, Path(folder))
        try:
            for name in ("earlier", "sites"):  # a user's first project makes Prefect's database
                project = begin(side, name)
            started, first = time.monotonic(), [seconds]
            flow = side.start(["-m", "fedcore", *RUN], project)
            reader = threading.Thread(target=note_first, args=(flow, started, first), daemon=True)
            reader.start()
            used = watch(psutil.Process(flow.pid), seconds)
            draw(used, first[0], out)
        finally:
            os.killpg(flow.pid, signal.SIGKILL)
            stop(side)


def note_first(flow: subprocess.Popen[str], started: float, first: list[float]) -> None:
    """Note when the flow says its first provisional answer."""
    assert flow.stdout is not None
    for text in flow.stdout:
        if "so far" in text:
            first[0] = min(first[0], time.monotonic() - started)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 15.0)
