"""What people wait for, all of it in one go, and the table of docs/speed.md; at most twelve minutes.

    python -m benchmarks.speed [--out docs/results/speed.csv] [--project PROJECT] [--before CHECKOUT] [--only WORD,...]
                               [--tests now] [--minutes 12]

A made-up CSV of 20,000 rows, 14 sites and 8 inputs becomes a project, in which ten methods run with three seeds
("answer"); the same run once more finds everything in the cache ("cached"); then come the bytes of that project
("disk"), the commands that read results ("commands"; in PROJECT if it is named, where `make run` has ended), a net of
one's own ("own") and one exchange of 10,000 devices ("exchange"). With --before each line is
measured with another checkout of this repository, too, in turns and with the same interpreter, if that one has it.
Parts that --only must name: `make run` and `make test` in a fresh clone, where "commands" then run ("fresh", half an
hour of --minutes for each checkout), and every method of study `my_data` on that CSV ("methods", some ten).

The file has a row for each line: what, its unit, before, now, the goal, the load of the machine, and the command alone.
With the file of the docs, the table of docs/speed.md is written anew, with the conditions. A figure that is missing has
its reason on stderr: a command failed, or the time was up.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd

from fedcore.pipeline.environment import processor_name

HERE = Path(__file__).parents[1]
OUT = HERE / "docs" / "results" / "speed.csv"
PAGE = HERE / "docs" / "speed.md"
BEGIN, END = "<!-- written by benchmarks.speed -->\n", "<!-- end -->\n"
ROWS, SITES, INPUTS = 20_000, 14, 8
METHODS = (
    "local_only", "fedavg", "fedprox", "scaffold", "fedper", "ditto", "dfl", "code_ot", "ensemble", "analytic",
)  # fmt: skip
RUN = ("run", f"methods=[{','.join(METHODS)}]", "seeds=[0,1,2]", "run.new_device=shared")
FLOW = f"fedcore {RUN[0]} '{RUN[1]}' {' '.join(RUN[2:])}"
START = time.monotonic()
REPETITIONS = 3
PROCESSES = 3
"""Processes of tests that `make test` starts, at least."""
UNASKED = ("answer", "cached", "disk", "commands", "own", "exchange")
"""The parts that are measured if --only names none."""


@dataclass(frozen=True)
class Line:
    """A line of the table. goal: None where none is set."""

    what: str
    unit: str
    goal: float | None
    command: str


COMMANDS = {
    "fedcore --help": (["--help"], None),
    "answers and tables": (["show"], 1.0),
    "list of champions": (["promote"], 1.5),
    "state of a project": (["status"], None),
    "data and devices": (["preview"], None),
    "what a run would compute": (["plan"], None),
    "labels of 199 rows": (["predict", "{rows}", "--out", "{labels}"], 2.0),
}
FIRST = Line("first provisional answer", "s", 10.0, FLOW)
ANSWER = Line("answer of ten methods, three seeds", "s", 30.0, FLOW)
ANSWER_CPU = Line("the same, the flow's process and those that it waits for", "s of a processor", None, FLOW)
CACHED = Line("the same, all of it cached", "s", None, FLOW)
NIGHT = Line("growth of Prefect's files by a cached run", "MB", 1.0, FLOW)
PARTS = {"cache": "blobs", "Prefect's files": "prefect"}
DISK = Line("disk after it: cache and MLflow's files", "MB", None, "du -cm .fedcore/blobs mlruns")
OWN = Line("a net of one's own, of a plain loop", "ratio", 1.0, "python -m benchmarks.own_net 3")
EXCHANGE = Line(
    "one exchange of 10,000 devices, of the bare loop", "ratio", 1.1, "python -m benchmarks.scale OUT one_shot 10000"
)
EXCHANGE_CPU = Line("the same, of a processor's seconds", "ratio", 1.1, EXCHANGE.command)
EVERY = ("run", "seeds=[0,1,2]", "run.new_device=shared")
EVERY_METHOD = Line("every method of my_data, three seeds", "s", 148.0, f"fedcore {' '.join(EVERY)}")
EVERY_DISK = Line("disk after it: cache and MLflow's files", "MB", 390.0, EVERY_METHOD.command)
MAKE_RUN = Line("make run, from nothing", "s", 180.0, "git clone, make run")
MAKE_DISK = Line("disk after it: cache and MLflow's files", "MB", 420.0, "du -cm .fedcore/blobs mlruns")
MAKE_TEST = Line("make test after it", "s", 300.0, "make test")


class Clock:
    """How long all of it may take, in seconds from the start of this process: then a command is ended, none begun."""

    limit = 700.0


@dataclass
class Side:
    """A checkout, its folder of projects, and what was measured with it: line -> figures."""

    name: str
    checkout: Path
    folder: Path
    found: dict[Line, list[float]] = field(default_factory=dict)

    def note(self, line: Line, figure: float) -> None:
        self.found.setdefault(line, []).append(figure)

    @property
    def project(self) -> Path:
        return self.folder / "sites"

    @property
    def fresh(self) -> Path:
        return self.folder / "fresh"

    def start(self, words: Sequence[str], cwd: Path, **more: str) -> subprocess.Popen[str]:
        """Start Python with this checkout's code."""
        environment = {key: value for key, value in os.environ.items() if key not in ("FEDCORE_HOME", "FEDCORE_DATA")}
        set_here = {
            "PYTHONPATH": str(self.checkout),
            "PYTHONSAFEPATH": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            **more,
        }
        return subprocess.Popen(
            [sys.executable, *words], cwd=cwd, env=environment | set_here, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def run(self, words: Sequence[str], cwd: Path, **more: str) -> str:
        """Return what a command prints. Raises RuntimeError with its last line if it fails."""
        process = self.start(words, cwd, **more)
        with ended_in_time(process):
            out, err = process.communicate()
        if process.returncode:
            raise RuntimeError((err.strip() or out.strip() or f"exit code {process.returncode}").splitlines()[-1])
        return out


def left() -> float:
    return max(0.0, START + Clock.limit - time.monotonic())


@contextmanager
def ended_in_time(process: subprocess.Popen[str]) -> Iterator[None]:
    """Kill a process that still runs when the time is up, and those that it started. Raises RuntimeError then."""
    killer = threading.Timer(left(), lambda: os.killpg(process.pid, signal.SIGKILL))
    killer.daemon = True
    killer.start()
    try:
        yield
    finally:
        killer.cancel()
    if process.returncode and not left():
        raise RuntimeError("the time was up")


def write_table(path: Path, rows: int = ROWS) -> None:
    """Write a table of two classes, a law that differs a little from site to site."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, INPUTS))
    site = rng.integers(0, SITES, rows)
    laws = rng.normal(size=INPUTS) + 0.4 * rng.normal(size=(SITES, INPUTS))
    chance = 1 / (1 + np.exp(-((x + np.sin(x)) * laws[site]).sum(1) / 2))
    frame = pd.DataFrame(x.round(4), columns=[f"x{i}" for i in range(INPUTS)])
    frame["site"] = [f"s{one:02d}" for one in site]
    frame["fault"] = np.where(rng.random(rows) < chance, "yes", "no")
    frame.to_csv(path, index=False)


@contextmanager
def measured() -> Iterator[list[float]]:
    """Yield a list that has the wall and processor seconds of the body's child processes afterwards."""
    spent: list[float] = []
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    yield spent
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent += [
        time.perf_counter() - start,
        after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    ]


def megabytes(*folders: Path) -> float:
    """Return the MB of the files in some folders, of one with several names once."""
    found = [path.stat() for folder in folders for path in folder.rglob("*") if path.is_file()]
    return sum({(one.st_dev, one.st_ino): one.st_size for one in found}.values()) / 1e6


def play(side: Side, words: Sequence[str] = RUN, place: Path | None = None) -> tuple[float, float, float]:
    """Run methods; returns the seconds to the first provisional answer and to the end, and the processor's."""
    first = float("nan")
    with measured() as spent:
        start = time.perf_counter()
        flow = side.start(["-m", "fedcore", *words], place or side.project)
        assert flow.stdout is not None
        assert flow.stderr is not None
        with ended_in_time(flow):
            for text in flow.stdout:
                if "so far" in text and first != first:
                    first = time.perf_counter() - start
            errors = flow.stderr.read()
            flow.wait()
        if flow.returncode:
            raise RuntimeError((errors.strip() or f"exit code {flow.returncode}").splitlines()[-1])
    return first, *spent


def stop(side: Side, place: Path | None = None) -> None:
    side.start(["-m", "fedcore.pipeline.orchestration.server", "stop"], place or side.project).communicate()


def begin(side: Side, name: str) -> Path:
    """Make a project of the made-up table."""
    table = side.folder / f"{name}.csv"
    write_table(table)
    words = ["init", name, "--data", str(table), "--label", "fault", "--device", "site"]
    side.run(["-m", "fedcore", *words], side.folder)
    return side.folder / name


def answer(side: Side) -> None:
    begin(side, "sites")
    first, wall, cpu = play(side)
    if first == first:
        side.note(FIRST, first)
    side.note(ANSWER, wall)
    side.note(ANSWER_CPU, cpu)


def cached(side: Side) -> None:
    stop(side)
    files = side.project / ".fedcore" / "prefect"
    before = megabytes(files)
    _, wall, _ = play(side)
    side.note(CACHED, wall)
    stop(side)
    side.note(NIGHT, megabytes(files) - before)


def disk(side: Side) -> None:
    side.note(DISK, megabytes(side.project / ".fedcore" / "blobs", side.project / "mlruns"))


def methods(side: Side) -> None:
    project = begin(side, "methods")
    try:
        side.note(EVERY_METHOD, play(side, EVERY, project)[1])
        side.note(EVERY_DISK, megabytes(project / ".fedcore" / "blobs", project / "mlruns"))
    finally:
        stop(side, project)


def fresh(side: Side, tests: bool = True) -> None:
    """Time `make run` and, if wanted, `make test` in a clone that nobody has used, with its own new environment."""
    subprocess.run(["git", "clone", "--quiet", str(side.checkout), str(side.fresh)], check=True)
    environment = {key: value for key, value in os.environ.items() if key not in ("FEDCORE_HOME", "PYTHONPATH")}
    python = Path(sys.base_prefix) / "bin" / "python3"
    for line, target in ((MAKE_RUN, "run"), (MAKE_TEST, "test"))[: 1 + tests]:
        with measured() as spent:
            process = subprocess.Popen(
                ["make", target, f"PYTHON={python}"], cwd=side.fresh, env=environment, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            with ended_in_time(process):
                said, _ = process.communicate()
        if process.returncode:
            why = f"make {target}: {said.strip()[-200:]}"
            if target != "test" or len(re.findall(r"^.*\d+ passed.* in [\d.]+s", said, re.MULTILINE)) < PROCESSES:
                raise RuntimeError(why)
            complain(f"{side.name}: its seconds count, though tests failed: {why}")  # all of them have run
        side.note(line, spent[0])
        if target == "run":
            side.note(MAKE_DISK, megabytes(side.fresh / ".fedcore" / "blobs", side.fresh / "mlruns"))


def commands(side: Side, project: Path | None) -> None:
    """Measure each command once; `predict` takes the made-up project, whose model is promoted first."""
    rows, labels = side.folder / "rows.csv", side.folder / "labels.csv"
    if not rows.exists() and side.project.is_dir():
        write_table(rows, 199)
        try:
            side.run(["-m", "fedcore", "promote", "sites-fault", "--no-final-fit"], side.project)
        except RuntimeError as error:
            complain(f"{side.name}: no model to predict with: {error}")
    for what, (words, goal) in COMMANDS.items():
        ended = side.fresh if side.fresh.is_dir() else project
        place = ended if ended and "{rows}" not in words else side.project
        if not place.is_dir():
            continue
        filled = [word.format(rows=rows, labels=labels) for word in words]
        try:
            with measured() as spent:
                side.run(["-m", "fedcore", *filled], place)
        except RuntimeError as error:
            complain(f"{side.name}: {what}: {error}")
        else:
            said = "fedcore " + " ".join(word.format(rows="rows.csv", labels="labels.csv") for word in words)
            side.note(Line(what, "s of a processor", goal, said), spent[1])


def own(side: Side) -> None:
    side.note(OWN, ratio(side.run(["-m", "benchmarks.own_net", "3"], side.checkout), r"ratio +([\d.]+)"))


def exchange(side: Side) -> None:
    """Measure an exchange; its folder stays until the end, see `scale.main`: deleted files make later ones slow."""
    code = (
        "import sys; from pathlib import Path; from benchmarks import scale; home = Path(sys.argv[1]);"
        "case = scale.Case('one_shot', 10_000); scale.write_table(home / 'table.csv', case.devices, case.rows);"
        "found = scale._numbers(case, home / 'table.csv', home / 'time', watch=False);"
        "print('wall', found['wall_ratio'], 'cpu', found['cpu_ratio'])"
    )
    home = side.folder / "exchange"
    home.mkdir()
    said = side.run(["-c", code, str(home)], side.checkout)
    side.note(EXCHANGE, ratio(said, r"wall ([\d.]+)"))
    side.note(EXCHANGE_CPU, ratio(said, r"cpu ([\d.]+)"))


def ratio(printed: str, pattern: str) -> float:
    found = re.search(pattern, printed)
    if found is None:
        raise RuntimeError(f"no ratio in {printed[-200:]!r}")
    return float(found[1])


def complain(why: str) -> None:
    print(f"benchmarks.speed: {why}", file=sys.stderr, flush=True)


def measure(
    sides: Sequence[Side], asked: Sequence[str], project: Path | None, untested: Sequence[str] = ()
) -> dict[str, float]:
    """Measure all parts, the sides in turns; returns the load of the machine before each part."""
    parts: dict[str, tuple[Callable[[Side], None], int]] = {
        "fresh": (lambda side: fresh(side, side.name not in untested), 1),
        "answer": (answer, 1), "cached": (cached, 1), "disk": (disk, 1),
        "commands": (lambda side: commands(side, project), REPETITIONS),
        "own": (own, 1), "exchange": (exchange, 1),
        "methods": (methods, 1),
    }  # fmt: skip
    loads = {}
    for name, (part, times) in parts.items():
        if name not in (asked or UNASKED):
            continue
        loads[name] = os.getloadavg()[0]
        for number in range(times):
            for side in sides if number % 2 == 0 else sides[::-1]:
                if not left():
                    complain(f"{side.name}: {name}: the time was up")
                    continue
                begun = time.perf_counter()
                try:
                    part(side)
                except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
                    complain(f"{side.name}: {name}: {error}")
                complain(f"{side.name}: {name}: {time.perf_counter() - begun:.0f} s")
    return loads


def write(out: Path, sides: Sequence[Side], load: float) -> list[dict[str, str]]:
    """Write and print the table: the medians. Returns its rows."""
    known = dict.fromkeys(line for side in sides for line in side.found)
    rows = [
        {
            "what": line.what, "unit": line.unit,
            **{side.name: f"{median(side.found[line]):.2f}" if line in side.found else "" for side in sides},
            "goal": "" if line.goal is None else f"{line.goal:g}", "load": f"{load:.1f}", "command": line.command,
        }
        for line in known
    ]  # fmt: skip
    if not rows:
        sys.exit("benchmarks.speed: nothing was measured")
    with out.open("w", newline="") as file:
        table = csv.DictWriter(file, [*rows[0]], lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    print(out.read_text(), end="")
    return rows


def page(text: str, rows: Sequence[Mapping[str, str]], conditions: str) -> str:
    """Return the text of a page with another table between its marks. Raises ValueError without marks."""
    columns = [name for name in rows[0] if name != "load"]
    above = ["", *(row["command"] for row in rows)]
    said = [
        "the same" if row["command"] == last else f"`{row['command']}`" for row, last in zip(rows, above, strict=False)
    ]
    lines = [
        columns,
        ["---"] * len(columns),
        *([*map(row.get, columns[:-1]), last] for row, last in zip(rows, said, strict=True)),
    ]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    before, _, rest = text.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError(f"{PAGE} has no marks")
    return f"{before}{BEGIN}{conditions}\n\n{table}\n{END}{after}"


def conditions(sides: Sequence[Side], load: float, seconds: float) -> str:
    """Return the lines above the table: when, where, beside what."""
    named = [f"{side.name} is commit {commit(side.checkout)}" for side in sides]
    return (
        f"{date.today():%d %B %Y}, {os.cpu_count()} cores of {processor_name()}, load {load:.1f} before, in "
        f"{seconds / 60:.0f} minutes; {', '.join(named)} ([speed.csv](results/speed.csv))."
    )


def commit(checkout: Path) -> str:
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=checkout, capture_output=True, text=True)
    return found.stdout.strip() or "unknown"


def main() -> None:
    asked = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    asked.add_argument("--out", type=Path, default=OUT)
    asked.add_argument("--project", type=Path, help="where make run has ended; the made-up project by default")
    asked.add_argument("--before", type=Path, help="another checkout")
    asked.add_argument("--only", default="", help=f"parts: {', '.join(UNASKED)}, fresh, methods")
    asked.add_argument("--tests", choices=("both", "now"), default="both", help="whose make test is timed in fresh")
    asked.add_argument("--minutes", type=float, default=Clock.limit / 60, help="after which what still runs is ended")
    args = asked.parse_args()
    Clock.limit = 60 * args.minutes
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="speed-") as folder:
        named = {"before": args.before, "now": HERE} if args.before else {"now": HERE}
        sides = [Side(name, checkout.resolve(), Path(folder, name)) for name, checkout in named.items()]
        for side in sides:
            side.folder.mkdir()
        ended = args.project.resolve() if args.project else None
        try:
            parts = [part for part in args.only.split(",") if part]
            measure(sides, parts, ended, ["before"] if args.tests == "now" else [])
        finally:
            for side in sides:
                for project in (side.project, side.fresh):
                    if project.is_dir():
                        stop(side, project)
        rows = write(args.out, sides, load)
        if args.out.resolve() == OUT:
            said = conditions(sides, load, time.monotonic() - START)
            PAGE.write_text(page(PAGE.read_text(), rows, said))


if __name__ == "__main__":
    main()
