"""The seconds that people wait for a command in a project where everything is computed.

Each command runs as often as that, in turns with the others; processor seconds of itself and its children, and wall
seconds, medians. A command that the project has no model, table or answer for is left out, with its reason.

    python -m benchmarks.first_touch PROJECT [TABLE.csv [repetitions]]
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median


def commands(table: str | None) -> dict[str, list[str]]:
    by_name = {
        "help": ["--help"],
        "show, a line each": ["show", "--brief"],
        "show": ["show"],
        "champions": ["promote"],
        "status": ["status"],
        "plan": ["plan"],
        "preview": ["preview"],
    }
    return by_name | ({"predict": ["predict", str(Path(table).resolve()), "--out", "labels.csv"]} if table else {})


def spent(words: list[str], project: str) -> tuple[float, float]:
    """Return a command's processor and wall seconds. Raises CalledProcessError."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(["fedcore", *words], cwd=project, check=True, capture_output=True, text=True)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def main(project: str, table: str | None = None, repetitions: str = "3") -> None:
    seconds: dict[str, list[tuple[float, float]]] = {}
    for _ in range(int(repetitions)):
        for name, words in commands(table).items():
            try:
                seconds.setdefault(name, []).append(spent(words, project))
            except subprocess.CalledProcessError as error:
                print(f"{name}: {error.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
    print("command,processor,wall")
    for name, found in seconds.items():
        if found:
            print(f'"{name}",{median(cpu for cpu, _ in found):.2f},{median(wall for _, wall in found):.2f}')


if __name__ == "__main__":
    main(*sys.argv[1:])
