"""The pipeline on ever more devices: seconds, memory, disk, database rows and tasks, beside the library's bare loop.

A made-up table with 20 rows per device (or rows=100), 12 features and 4 classes; every device trains a net of 1,012
parameters on the half of them that validation, test and the shared test set leave. Three runs: `one_shot` (fedavg, one
round), `sampled` (fedavg, 10 rounds of a tenth of the devices) and `alone` (local_only, where each device keeps a model
that is scored and stored). Each is one command, `fedcore run`, in a fresh folder, beside a script that
calls `fedcore.run`, both with two workers and with the start of Python; Prefect's server is started before. Both run
twice, once for their seconds and once for their memory, since to look at the memory slows a process down. Memory is the
largest sum of the proportional sets of all processes, the server's among them: a page that several processes share
counts once (on macOS, which has no such number, for each).

    python -m benchmarks.scale OUT [run ...] [devices ...] [rows=20] [rounds=10] [widths=32,16]
    python -m benchmarks.scale draw OUT                                     a picture of OUT, beside it
    python -m benchmarks.scale memory                                       of three parts, printed (Linux)

OUT: a CSV file, to which a row is appended for each run. `memory` prints what a part is given or returns, and by how
much a process grows at most while it works: the tidy table of ten evaluated rounds, returned; the server's mean of the
devices' updates, given; the scores of a model on 2,000 examples, given.
"""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import yaml

HERE = Path(__file__).parents[1]
FEATURES, CLASSES, WIDTHS, SHARED, WORKERS = 12, 4, (32, 16), 2000, 2
RUNS = {
    "one_shot": {"method": "fedavg", "rounds": 1, "training": {"shared_init": True}},
    "sampled": {"method": "fedavg", "rounds": 10, "fraction": 0.1, "training": {"shared_init": True, "epochs": 20}},
    "alone": {"method": "local_only"},
}
ROWS = 20
DEVICES = (16, 64, 256, 1000, 4000, 10_000)
EVERY = 10
PAUSE = 0.5
"""Seconds between two looks at the processes."""
PANELS = {
    "processor seconds": {"cpu": "the pipeline", "bare_cpu": "the bare loop"},
    "GB of memory": {"memory": "the pipeline", "bare_memory": "the bare loop"},
    "MB on disk": {"disk": "all files"},
    "rows and tasks": {"prefect_rows": "Prefect", "mlflow_rows": "MLflow", "tasks": "tasks of Prefect"},
}
UNITS = {"GB of memory": 1e9, "MB on disk": 1e6}


@dataclass(frozen=True)
class Case:
    """What is run. rows: of each device. rounds: None: as the run has it. widths: of the net's hidden layers."""

    run: str
    devices: int
    rows: int = ROWS
    rounds: int | None = None
    widths: tuple[int, ...] = WIDTHS

    @property
    def method(self) -> dict[str, Any]:
        return RUNS[self.run] | ({} if self.rounds is None else {"rounds": self.rounds})

    @property
    def parameters(self) -> int:
        return sum(before * after + after for before, after in pairwise((FEATURES, *self.widths, CLASSES)))


@dataclass(frozen=True)
class Used:
    """What a command used: wall and processor seconds, and the most memory at a time in bytes."""

    wall: float
    cpu: float
    memory: int


def write_table(path: Path, devices: int, each: int) -> None:
    """Write the table, so many rows for each device: the classes have means of their own, each device an offset."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, CLASSES, (devices, each))
    means, offsets = rng.normal(size=(CLASSES, FEATURES)), rng.normal(size=(devices, 1, FEATURES)) / 2
    x = (means[y] + offsets + rng.normal(size=(devices, each, FEATURES))).reshape(-1, FEATURES)
    frame = pd.DataFrame(x.round(4), columns=[f"x{i}" for i in range(FEATURES)])
    frame["device"] = np.repeat([f"d{i:05}" for i in range(devices)], each)
    frame["label"] = [f"c{label}" for label in y.ravel()]
    frame.to_csv(path, index=False)


def library(table: Path, case: Case) -> None:
    """Play a run with nothing but fedcore, in this process and two workers."""
    import fedcore as fc

    settings = {**case.method}
    data = fc.load("table", path=str(table), label="label", device="device")
    fed = fc.federate(data, fc.by_device(), net=fc.mlp(*case.widths), shared_examples=SHARED)
    fc.run(fc.method(settings.pop("method"), **settings), fed, seed=0, workers=WORKERS, every=EVERY, progress=False)


def measure(command: Sequence[str], home: Path, server: Sequence[psutil.Process] = (), watch: bool = False) -> Used:
    """Run a command to its end. server: processes that it uses. watch: look at their memory, too."""
    environment = {**os.environ, "FEDCORE_HOME": str(home), "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"}
    seconds: dict[tuple[int, float], float] = {}
    before = sum(map(processor, server))
    start, most = time.perf_counter(), 0
    process = psutil.Popen([sys.executable, *command], cwd=home, env=environment)
    while process.poll() is None:
        tree = [process]
        with suppress(psutil.Error):
            tree += process.children(recursive=True)
        for one in tree:
            with suppress(psutil.Error):
                seconds[one.pid, one.create_time()] = processor(one)
        if watch:
            most = max(most, sum(map(memory, [*tree, *server])))
        with suppress(psutil.TimeoutExpired):
            process.wait(PAUSE)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
    used = sum(seconds.values()) + sum(map(processor, server)) - before
    return Used(time.perf_counter() - start, used, most)


def memory(process: psutil.Process) -> int:
    """Return the bytes of a process, of shared pages its part; 0 once it has ended."""
    try:
        used = process.memory_full_info()
    except psutil.Error:
        return 0
    return int(getattr(used, "pss", used.rss))


def processor(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def rows(path: Path) -> int:
    """Return the rows of all tables of a database."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        tables = database.execute("select name from sqlite_master where type = 'table'").fetchall()
        return sum(database.execute(f'select count(*) from "{name}"').fetchone()[0] for (name,) in tables)


def tasks(path: Path) -> int:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        return int(database.execute("select count(*) from task_run").fetchone()[0])


def disk(folder: Path) -> int:
    """Return the bytes that the files below a folder take on the disk."""
    return sum(512 * path.lstat().st_blocks for path in folder.rglob("*"))


def play(case: Case, home: Path) -> dict[str, object]:
    """Return the numbers of a case in an empty folder."""
    table = home / "table.csv"
    write_table(table, case.devices, case.rows)
    numbers = _numbers(case, table, home / "time", watch=False)
    memory = _numbers(case, table, home / "memory", watch=True)
    return numbers | {name: memory[name] for name in ("memory", "bare_memory")}


def _numbers(case: Case, table: Path, home: Path, watch: bool) -> dict[str, object]:
    state = home / "home"
    for name in ("claims", "papers", "studies"):
        (state / name).mkdir(parents=True)
    shutil.copyfile(HERE / "params.yaml", state / "params.yaml")
    title, methods = "What do {devices} devices cost?", {case.run: case.method}
    (state / "studies" / "scale.yaml").write_text(
        yaml.safe_dump({"scale": {"title": title, "methods": methods, "sizes": {"small": {}}}})
    )
    words = (
        "study=scale", "seed=0", "data.name=table", f"data.path={table}", "data.label=label", "data.device=device",
        "federation.partition=by_device", f"federation.shared_examples={SHARED}", "net.name=mlp",
        f"net.widths={list(case.widths)}", f"run.every={EVERY}", f"run.workers={WORKERS}",
    )  # fmt: skip
    server = [sys.executable, "-m", "fedcore.pipeline.orchestration.server"]
    environment = {**os.environ, "FEDCORE_HOME": str(state), "PYTHONPATH": str(HERE)}
    try:
        subprocess.run([*server, "start"], cwd=state, env=environment, check=True)
        top = psutil.Process(json.loads((state / ".fedcore" / "server.json").read_text())["pid"])
        load = os.getloadavg()[0]
        flow = measure(["-m", "fedcore", "run", *words], state, [top, *top.children(recursive=True)], watch)
        alone = ["-m", "benchmarks.scale", "library", str(table), json.dumps(asdict(case))]
        bare = measure(alone, home, watch=watch)
    finally:
        subprocess.run([*server, "stop"], cwd=state, env=environment, check=False)
    prefect = state / ".fedcore" / "prefect" / "prefect.db"
    return {
        "run": case.run, "devices": case.devices, "rows": case.rows, "rounds": case.method.get("rounds", 1),
        "parameters": case.parameters, "wall": round(flow.wall, 1), "cpu": round(flow.cpu, 1), "memory": flow.memory,
        "bare_wall": round(bare.wall, 1), "bare_cpu": round(bare.cpu, 1), "bare_memory": bare.memory,
        "wall_ratio": round(flow.wall / bare.wall, 2), "cpu_ratio": round(flow.cpu / bare.cpu, 2), "disk": disk(state),
        "tasks": tasks(prefect), "prefect_rows": rows(prefect), "mlflow_rows": rows(state / "mlflow.db"),
        "load": round(load, 1),
    }  # fmt: skip


def build_table(devices: int, parameters: int) -> tuple[float, float]:
    """Return the MB of a tidy table, and by how much this process grows at most while it is built."""
    from fedcore.core.rounds import RoundResult, State
    from fedcore.results import tidy
    from fedcore.types.method import Report, RoundInfo

    names = tuple(f"d{i:05}" for i in range(devices))
    scores = {n: {s: {"accuracy": 0.5, "macro_f1": 0.5, "loss": 1.0} for s in ("val", "test", "shared")} for n in names}
    sent, state = dict.fromkeys(names, 4 * parameters), State({}, {})
    played = [RoundResult(RoundInfo(0, 0, at, names, names), state, sent, sent, scores) for at in range(EVERY)]
    row = tidy.Row("scale", "table", "base", "fedavg", 0)
    table, grown = growth(lambda: tidy.rows(row, played, [Report()] * EVERY, {}))
    return int(table.memory_usage(deep=True).sum()) / 1e6, grown


def average(devices: int, parameters: int) -> tuple[float, float]:
    """Return the MB of all devices' updates, and by how much this process grows at most while they are averaged."""
    import torch

    from fedcore.core.aggregation import by_size, mean

    members = [{"leaf": torch.ones(parameters)} for _ in range(devices)]
    _, grown = growth(lambda: mean(members, by_size([10] * devices)))
    return 4 * devices * parameters / 1e6, grown


def score(devices: int, parameters: int) -> tuple[float, float]:
    """Return the MB of a model and 2,000 examples, and by how much this process grows at most while it is scored."""
    import torch

    from fedcore import nets
    from fedcore.core.evaluation import evaluate
    from fedcore.types.federation import Data
    from fedcore.types.method import Model

    width = max(1, round((parameters - CLASSES) / (FEATURES + 1 + CLASSES)))
    net = nets.net("mlp", shape=(FEATURES,), classes=CLASSES, widths=[width])
    model = Model((nets.init(net, torch.Generator()),))
    data = Data(torch.ones(SHARED, FEATURES), torch.arange(SHARED) % CLASSES)
    _, grown = growth(lambda: [evaluate(model, net, data) for _ in range(devices)])
    return 4 * (parameters + SHARED * FEATURES) / 1e6, grown


def growth(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return a call's result, and by how many MB this process grows at most meanwhile."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident("VmRSS")
    return call(), max(0.0, resident("VmHWM") - before)


def resident(what: str) -> float:
    (found,) = re.findall(rf"{what}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found) / 1e3


PARTS: dict[str, tuple[Callable[[int, int], tuple[float, float]], list[tuple[int, int]]]] = {
    "the tidy table": (build_table, [(1000, 1012), (10_000, 1012)]),
    "the server's step": (average, [(1000, 1012), (10_000, 1012), (1000, 36_740), (1000, 271_364)]),
    "scoring": (score, [(10, 1012), (10, 36_740), (10, 271_364)]),
}
"""The parts of a run whose memory is measured, with numbers of devices and parameters."""


def print_memory() -> None:
    """Print the memory of the parts, each in a process of its own."""
    print("part,devices,parameters,MB given or returned,MB grown at most")
    for name, (_, cases) in PARTS.items():
        for devices, parameters in cases:
            words = [sys.executable, "-m", "benchmarks.scale", "part", name, str(devices), str(parameters)]
            print(name, devices, parameters, subprocess.check_output(words, text=True).strip(), sep=",", flush=True)


def main(out: Path, words: Sequence[str]) -> None:
    runs = [word for word in words if word in RUNS] or list(RUNS)
    options = dict(word.split("=") for word in words if "=" in word)
    more: dict[str, Any] = {name: int(options[name]) for name in ("rows", "rounds") if name in options}
    if "widths" in options:
        more["widths"] = tuple(map(int, options["widths"].split(",")))
    # The folders go at the end: where thousands of files were just deleted, ext4 takes seconds longer to make new ones.
    with tempfile.TemporaryDirectory(prefix="scale-") as home:
        for devices in [int(word) for word in words if word.isdigit()] or DEVICES:
            for run in runs:
                place = Path(home) / f"{run}-{devices}"
                place.mkdir()
                row = pd.DataFrame([play(Case(run, devices, **more), place)])
                print(row.T.to_string(header=False), flush=True)
                row.to_csv(out, mode="a", header=not out.exists(), index=False)


def draw(out: Path) -> None:
    """Draw the columns of a file over devices: a colour for each run, a line for each column."""
    from matplotlib.figure import Figure

    from fedcore.report.figures.drawing import COLOURS, LINES, bare

    table = (
        pd.read_csv(out)
        .query(f"rows == {ROWS} and parameters == {Case('one_shot', 1).parameters}")
        .query("rounds == rounds.groupby(run).transform('min')")
        .drop_duplicates(["run", "devices"], keep="last")
        .sort_values("devices")
    )
    figure = Figure(figsize=(10, 7), layout="constrained")
    for panel, (title, columns) in zip(figure.subplots(2, 2).ravel(), PANELS.items(), strict=True):
        for colour, (run, rows) in zip(COLOURS, table.groupby("run", sort=False), strict=False):
            for line, (column, word) in zip(LINES, columns.items(), strict=False):
                values = rows[column] / UNITS.get(title, 1)
                panel.loglog(
                    rows["devices"], values, line, marker="o", markersize=4, color=colour, label=f"{run}: {word}"
                )
        panel.set_title(title, loc="left", fontsize=10)
        panel.set_xlabel("devices")
        panel.legend(fontsize=7, frameon=False)
        bare(panel)
    figure.savefig(out.with_suffix(".png"), dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["draw", out]:
            draw(Path(out))
        case ["memory"]:
            print_memory()
        case ["part", name, devices, parameters]:
            print(*(f"{found:.1f}" for found in PARTS[name][0](int(devices), int(parameters))), sep=",")
        case ["library", table, words]:
            given = json.loads(words)
            library(Path(table), Case(**{**given, "widths": tuple(given["widths"])}))
        case [out, *words]:
            main(Path(out).resolve(), words)
