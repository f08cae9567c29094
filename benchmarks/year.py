"""A year in an hour: a project's nights on made data that grow, beside an oracle that knows the law of every night.

Each night the rows of the day are predicted by the champion, which tells drift, and appended to the project's table;
then the flow of `fedcore run` trains, answers and challenges the champion, and the cache is pruned to 30 nights. The
project is made by `fedcore init`. Ten nights share a process and a server of Prefect, whose database is pruned to 30
nights after them.

A row is ok if its load is above zero, but for noise. What happens, by night:

joins   a fourth site
shift   the sensor of the load reads four more: the old models are wrong about half of the new rows
heat    for a twelfth of the year the sensor of the heat, on which nothing depends, reads two more
fails   the table is written without the column to predict
rare    one new row in twelve is a fault, before it was one in two
full    the disk of the blobs fills: for root a small one is mounted, for others ENOSPC is emulated

    nice python -m benchmarks.year FOLDER [nights=120] [start=0]    the year; FOLDER/year.csv grows night by night
    python -m benchmarks.year draw year.csv                         its picture, year.png beside it, and its table

The first command goes on after the last night of year.csv, whenever it was stopped or killed. With a start the nights
before it bring rows only, and the first champion is that of the night after them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

FIRST = 600
"""Rows of the first night."""
KEPT = 30
"""Nights for which an unused step is kept."""
SERVED = 10
"""Nights of one process and one server of Prefect."""
MUST, MUST_NOT = 0.2, 0.02
"""The index of population stability of two laws from which on drift must be told, and below which it must not."""
LEAST = 0.03
"""The true gain from which on a promotion is due."""
ROOM = 3
"""The files for which there is room before the disk is full, or the pages."""


@dataclass(frozen=True)
class Calendar:
    """The nights of what happens. daily: new rows of a night."""

    nights: int = 120
    daily: int = 40
    joins: int = 20
    shift: int = 40
    heat: tuple[int, int] = (60, 70)
    fails: int = 75
    rare: int = 80
    full: int = 100


SHORT = Calendar(6, 240, 1, 2, (3, 4), 3, 4, 5)
"""What a test runs."""


def draw(calendar: Calendar, night: int, rows: int, rng: np.random.Generator) -> pd.DataFrame:
    """Return new rows of a night."""
    sites = "abcd" if night >= calendar.joins else "abc"
    sign = np.where(rng.random(rows) < (1 / 12 if night >= calendar.rare else 1 / 2), -1, 1)
    load = sign * np.abs(rng.normal(size=rows))
    ok = load + 0.3 * rng.normal(size=rows) > 0
    first, last = calendar.heat
    return pd.DataFrame({
        "site": [sites[i % len(sites)] for i in range(rows)],
        "load": (load + 4 * (night >= calendar.shift)).round(6),
        "heat": (rng.normal(size=rows) + 2 * (first <= night < last)).round(6),
        "state": np.where(ok, "ok", "fault"),
    })  # fmt: skip


def law(calendar: Calendar, nights: list[int], rng: np.random.Generator, most: int = 20_000) -> pd.DataFrame:
    """Return a large draw of the rows of these nights together."""
    counts = np.array([FIRST if night == 0 else calendar.daily for night in nights], dtype=float)
    shares = np.maximum(1, counts / counts.sum() * most).astype(int)
    return pd.concat([draw(calendar, n, int(rows), rng) for n, rows in zip(nights, shares, strict=True)])


def stability(held: pd.Series[Any], new: pd.Series[Any]) -> float:
    """Return the population stability index of two large draws of a column."""
    if held.dtype == object or str(held.dtype).startswith("str"):
        names = sorted({*held, *new})
        a, b = (np.array([(one == name).mean() for name in names]) for one in (held, new))
    else:
        edges = np.quantile(held, np.linspace(0, 1, 11)[1:-1])
        a, b = (np.bincount(np.searchsorted(edges, one), minlength=10) / len(one) for one in (held, new))
    a, b = (np.maximum(one, 1e-4) for one in (a, b))
    return float(((b - a) * np.log(b / a)).sum())


COLUMNS = ("load", "heat", "state")
"""Of which drift may be told; that of the label is told of the predicted classes."""


class Year:
    """A project whose nights are replayed. rows: of the nights that are over."""

    def __init__(self, folder: Path, calendar: Calendar) -> None:
        self.folder, self.calendar = folder, calendar
        self.project = folder / "project"
        self.judge = np.random.default_rng(1)
        self.results = folder / "year.csv"
        self.rows: list[dict[str, Any]] = []
        if self.results.is_file():
            self.rows = pd.read_csv(self.results, dtype={"candidate": "str", "champion": "str"}).to_dict("records")

    def next(self, start: int) -> int:
        """Return the night to play next."""
        return int(self.rows[-1]["night"]) + 1 if self.rows else start

    @property
    def champion(self) -> str | None:
        """The champion after the last night, also if that of a night that was killed is another."""
        known = (row.get("champion") for row in reversed(self.rows))
        return next((one for one in known if isinstance(one, str) and one), None)

    def begin(self) -> None:
        """Make the project, unless it is there."""
        if (self.project / "params.yaml").is_file():
            return
        from click.testing import CliRunner

        from fedcore.cli.init import init

        self.folder.mkdir(parents=True, exist_ok=True)
        source = self.folder / "machines.csv"
        self.draw(0, FIRST).to_csv(source, index=False)
        words = [str(self.project), "--data", str(source), "--label", "state", "--device", "site"]
        CliRunner().invoke(init, words, catch_exceptions=False)

    def draw(self, night: int, rows: int) -> pd.DataFrame:
        return draw(self.calendar, night, rows, np.random.default_rng([0, night]))

    def trained_on(self, version: str) -> list[int]:
        """Return the nights whose rows were there when a version was made."""
        first = next(row["night"] for row in self.rows if version in (row.get("candidate"), row.get("champion")))
        return [*range(first + 1)]

    @property
    def table(self) -> Path:
        return self.project / "data" / "machines.csv"

    def write_table(self, last: int) -> None:
        """Write the project's table with the rows of all nights up to one."""
        days = [(0, FIRST), *((night, self.calendar.daily) for night in range(1, last + 1))]
        pd.concat([self.draw(*day) for day in days]).to_csv(self.table, index=False)

    def replay(self, start: int) -> None:
        """Play the nights of one server; the file of the results grows night by night."""
        os.chdir(self.project)
        from fedcore.cli.project import enter_project, open_template

        enter_project()
        open_template()
        from fedcore.pipeline.orchestration.session import prefect_server

        with prefect_server():
            first = self.next(start)
            for night in range(first, min(first + SERVED, self.calendar.nights)):
                self.rows.append(self.play(night))
                pd.DataFrame(self.rows).to_csv(self.results, index=False)

    def end_server(self) -> None:
        """Stop Prefect's server."""
        from fedcore.pipeline.orchestration import server

        server.stop()

    @property
    def age(self) -> float:
        """The days since the end of the night that lies KEPT nights back."""
        return (time.time() - float(self.rows[-KEPT]["ended"])) / 86_400

    def play(self, night: int) -> dict[str, Any]:
        """Play a night; returns its row."""
        from fedcore.pipeline import environment
        from fedcore.pipeline.cache.shared import prune
        from fedcore.pipeline.cache.store import Store
        from fedcore.pipeline.run import history

        began = time.monotonic()
        new = self.draw(night, self.calendar.daily)
        self.judge = np.random.default_rng([1, night])  # the same of a night whenever it is played
        champion = self.champion
        row: dict[str, Any] = {"night": night, **self.tell_drift(night, new, champion)}
        self.write_table(night)
        row["outcome"] = self.run(night)
        row |= self.judge_versions(night, champion) if row["outcome"] == "ok" else {"promoted": False}
        if len(self.rows) >= KEPT:
            prune(environment.STEPS, Store(environment.BLOBS), self.age)
        row |= {"rows": len(pd.read_csv(self.table)), "seconds": round(time.monotonic() - began, 1)}
        row["ended"] = round(time.time())
        row |= {"history": len(history.read()), **self.megabytes()}
        print(row, flush=True)
        return row

    def run(self, night: int) -> str:
        """Run the project's flow as `fedcore run` does, and promote a better model; returns how it ended."""
        from fedcore.cli.project import flow
        from fedcore.config.request import ask
        from fedcore.errors import InputError
        from fedcore.pipeline.command import Failed, cause

        request = ask(["methods=[local_only,fedavg,majority]", "seeds=[0]", "run.new_device=shared",
                       "run.lr_factors=[]", "run.workers=1", "promote=true"])  # fmt: skip
        whole = self.table.read_bytes()
        try:
            if night == self.calendar.fails:
                pd.read_csv(self.table).drop(columns="state").to_csv(self.table, index=False)
            with full_disk() if night == self.calendar.full else nullcontext():
                flow("federate", "federate")(request)
        except (Failed, InputError, OSError) as error:
            return (cause(error) or str(error)).replace(str(self.project.resolve()), "PROJECT")
        finally:
            self.table.write_bytes(whole)
        return "ok"

    def versions(self) -> dict[str, str]:
        """Return alias -> version of the project's model."""
        from fedcore.pipeline.record import registry

        known = registry.read() or {}
        return dict(known["machines-state"].aliases) if "machines-state" in known else {}

    def tell_drift(self, night: int, new: pd.DataFrame, champion: str | None) -> dict[str, Any]:
        """Predict the night's rows by the champion; returns what is told to have moved, and how far the laws are.

        Also the accuracy of the champion on the law of the night.
        """
        if champion is None:
            return {}
        from fedcore.cli.predict import compare, label
        from fedcore.pipeline.record import models, promotion
        from fedcore.pipeline.record.runs import Record

        _, folder = promotion.find_files(Record().client, f"machines-state/{champion}")
        served, reference = models.load(folder), models.load_reference(folder)
        rows = new.drop(columns="state")
        predicted, rows, _ = label(rows, pd.RangeIndex(1, len(rows) + 1, name="row"), served, None, None)
        lines = compare(rows, predicted, served, reference, None).lines
        drifted = {name: any(f"'{name}'" in line for line in lines) for name in COLUMNS[:2]}
        drifted["state"] = any("predicted" in line for line in lines)
        held = law(self.calendar, self.trained_on(champion), self.judge)
        now = law(self.calendar, [night], self.judge)
        right, held_said = (self.said(champion, one) for one in (now, held))
        moved = {name: stability(held[name], now[name]) for name in COLUMNS[:2]}
        moved["state"] = stability(held_said, right)
        known = now["site"].isin([*served.devices])
        return {
            "accuracy": round(float((right == now["state"].to_numpy())[known.to_numpy()].mean()), 4),
            **{f"told {name}": drifted[name] for name in COLUMNS},
            **{f"moved {name}": round(moved[name], 4) for name in COLUMNS},
        }

    def said(self, version: str, rows: pd.DataFrame) -> pd.Series[Any]:
        """Return the labels that a version predicts."""
        from fedcore.pipeline.record import models, promotion
        from fedcore.pipeline.record.runs import Record

        served = models.load(promotion.find_files(Record().client, f"machines-state/{version}")[1])
        sites = [*served.devices]
        rows = rows.drop(columns="state").reset_index(drop=True)
        if len(served.models) > 1:  # each site has its own: rows of a site unknown to it are not scored
            rows["site"] = rows["site"].where(rows["site"].isin(sites), sites[0])
        return served.predict(rows)["label"].reset_index(drop=True)

    def judge_versions(self, night: int, before: str | None) -> dict[str, Any]:
        """Return the night's candidate, whether it was promoted, and its true gain on the champion before.

        The gain is that of the studies' models on a large draw of all nights' rows, mean over the sites that both know.
        """
        now = self.versions()
        if "candidate" not in now:
            return {}
        from fedcore.pipeline.record import models, promotion, registry
        from fedcore.pipeline.record.runs import Record

        client, name = Record().client, "fedcore-machines-state"
        row = {"candidate": now["candidate"], "champion": now.get("champion", "")}
        row["promoted"] = now.get("champion") != before
        if before is None:
            return row
        rival = promotion.study_version(client, client.get_model_version(name, before))
        assert rival is not None
        held = law(self.calendar, [*range(night + 1)], self.judge).reset_index(drop=True)
        sites = [
            {*models.load(promotion.find_files(client, f"machines-state/{one}")[1]).devices}
            for one in (now["candidate"], rival.version)
        ]
        held = held[held["site"].isin(sites[0] & sites[1])].reset_index(drop=True)
        right = [
            (self.said(str(one), held) == held["state"]).groupby(held["site"]).mean().mean()
            for one in (now["candidate"], rival.version)
        ]
        version = client.get_model_version(name, now["candidate"])
        return {**row, "better": version.tags[registry.BETTER], "gain": round(right[0] - right[1], 4)}

    def megabytes(self) -> dict[str, float]:
        from fedcore.pipeline import environment

        parts = {
            "blobs": environment.BLOBS, "steps": environment.STEPS, "Prefect": environment.PREFECT,
            "MLflow": self.project / "mlflow.db", "mlruns": self.project / "mlruns",
        }  # fmt: skip
        return {f"{name} MB": round(nbytes(path) / 1e6, 2) for name, path in parts.items()}


def nbytes(path: Path) -> int:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


@contextmanager
def full_disk() -> Iterator[None]:
    """Let blobs find no room: root mounts a disk of ROOM pages in their place, which is taken away at the end.

    For others the state files of this process find none, but for the first ROOM.
    """
    import errno

    from fedcore.pipeline import environment, state

    size = f"size={ROOM * 4}k"
    mount = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(environment.BLOBS)]
    if os.getuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0:
        try:
            yield
        finally:
            subprocess.run(["umount", "--lazy", str(environment.BLOBS)], check=True)
        return
    written = count()

    def refuse(*places: Any) -> None:
        if next(written) >= ROOM:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(*places)

    replace, state.os.replace = state.os.replace, refuse  # type: ignore[assignment]
    try:
        yield
    finally:
        state.os.replace = replace


def check(year: pd.DataFrame) -> dict[str, list[int]]:
    """Return what the oracle finds -> nights.

    right, wrong, missed: promotions of models that are truly better by anything, by nothing, and nights on which one
    that is better by LEAST stayed. told, false, silent: columns that moved, did not, and were not told.
    """
    gains = year["gain"].fillna(0)
    promoted = year["promoted"].eq(True) & year["gain"].notna()
    checks = {
        "right": year[promoted & (gains > 0)], "wrong": year[promoted & (gains <= 0)],
        "missed": year[~promoted & (gains >= LEAST)], "failed": year[year["outcome"] != "ok"],
    }  # fmt: skip
    for name in COLUMNS:
        reported, moved = year[f"told {name}"].eq(True), year[f"moved {name}"]
        checks[f"told {name}"] = year[reported & (moved >= MUST)]
        checks[f"false {name}"] = year[reported & (moved < MUST_NOT)]
        checks[f"silent {name}"] = year[~reported & (moved >= MUST)]
    return {name: rows["night"].tolist() for name, rows in checks.items()}


def picture(year: pd.DataFrame, calendar: Calendar, path: Path) -> None:
    """Draw the champion's true accuracy on each night's law, what is told to have moved, and bytes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 8), layout="constrained")
    top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=[3, 2, 3])
    night = year["night"]
    top.plot(night, 100 * year["accuracy"], color="C0")
    top.set_ylabel("true accuracy, %")
    top.set_title("The champion on each night's rows; a line: promoted", fontsize=10)
    for at in night[year["promoted"].eq(True)]:
        top.axvline(at, color="C2", linewidth=1)
    happens = {name: getattr(calendar, name) for name in ("joins", "shift", "fails", "rare", "full")}
    for name, at in happens.items():
        if at <= night.max():
            top.annotate(name, (at, 0.02), xycoords=("data", "axes fraction"), rotation=90, fontsize=8)
    for i, name in enumerate(COLUMNS):
        reported = year[f"told {name}"].eq(True)
        must = year[f"moved {name}"] >= MUST
        middle.scatter(night[must], [i + 0.2] * int(must.sum()), s=10, color="0.6")
        middle.scatter(night[reported], [i] * int(reported.sum()), s=10, color="C3")
    middle.set_yticks(range(len(COLUMNS)), ["load", "heat", "predicted"])
    middle.set_ylim(-0.5, len(COLUMNS) - 0.2)
    middle.set_title("Drift: told (red), and of the laws (grey)", fontsize=10)
    for name in ("blobs", "Prefect", "MLflow", "mlruns"):
        bottom.plot(night, year[f"{name} MB"], label=name)
    bottom.set_ylabel("MB")
    bottom.set_xlabel("night")
    bottom.legend(fontsize=8)
    figure.savefig(path, dpi=90)


def summary(year: pd.DataFrame) -> str:
    """Return what the oracle finds and the project keeps, as a table in Markdown."""
    checks = check(year)

    def total(kind: str) -> int:
        return sum(len(checks[f"{kind} {name}"]) for name in COLUMNS)

    def nights(kind: str) -> str:
        return ", ".join(map(str, checks[kind])) or "none"

    seconds = year["seconds"][year["outcome"] == "ok"]
    growth = (year["mlruns MB"].iloc[-1] - year["mlruns MB"].iloc[0]) / max(len(year) - 1, 1)
    rows = {
        "numbers of the nights that promoted a truly better model": nights("right"),
        "nights that promoted another one": nights("wrong"),
        f"nights that did not promote a model better by {100 * LEAST:.0f} points": nights("missed"),
        f"drift of a column's distribution, or of the predicted classes, by {MUST} (PSI) or more":
            f"{total('told')} of {total('told') + total('silent')} reported",
        f"drift reported where distributions differ by less than {MUST_NOT}":
            f"{total('false')} times in {int(year['moved load'].notna().sum())} nights and three columns",
        "numbers of the nights that failed, each in one line": nights("failed"),
        "history": f"{int(year['history'].iloc[-1])} lines of {len(seconds)} nights that ended",
        "blobs, Prefect's database":
            f"at most {year['blobs MB'].max():.1f} and {year['Prefect MB'].max():.1f} MB",
        "MLflow's files, without `keep.record`":
            f"{year['mlruns MB'].iloc[-1]:.0f} MB, {growth:.1f} more each night",
        "a night": f"{seconds.median():.0f} s in the middle, {seconds.min():.0f} at best",
    }  # fmt: skip
    return "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows.items())])


def main(words: list[str]) -> None:
    if words[0] == "draw":
        path = Path(words[1])
        year = pd.read_csv(path)
        picture(year, calendar_of(len(year)), path.with_suffix(".png"))
        print(summary(year))
        return
    folder = Path(words[0]).resolve()
    options = dict(word.split("=", 1) for word in words[1:])
    nights, start = int(options.get("nights", Calendar().nights)), int(options.get("start", 0))
    calendar = calendar_of(nights)
    os.environ["FEDCORE_HOME"] = str(folder / "project")  # before the pipeline is imported
    if "serve" in options:  # the process of some nights
        Year(folder, calendar).replay(start)
        return
    Year(folder, calendar).begin()
    here = [sys.executable, "-m", "benchmarks.year", str(folder), f"nights={nights}", f"start={start}", "serve=once"]
    while Year(folder, calendar).next(start) < nights:
        subprocess.run(here, check=True)
        Year(folder, calendar).end_server()
    print(summary(pd.read_csv(folder / "year.csv")))


def calendar_of(nights: int) -> Calendar:
    return SHORT if nights == SHORT.nights else Calendar(nights)


if __name__ == "__main__":
    main(sys.argv[1:])
