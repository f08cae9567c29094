"""Harm a flow at random for as long as wanted, and see that nothing is lost: `make soak`.

    python -m soak [seconds=3600] [seed=0] [out=results/soak.csv] [only=kill,spoil]

Every trial harms one flow, runs it again to its end, and compares it with an undisturbed one: the same digests of
models and tables, an equal record (runs, points, versions, models, inputs), no process left, at most one line of error.
Between two trials it tries cases of the fuzz (fuzz.py). Each trial follows from its number alone.
"""

import csv
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import fuzz
import numpy as np
import psutil
from damaged_files import damage
from kill_at import outcome
from project import SOURCES, Project, Said, digests, small

from fedcore.pipeline.backup import CACHE, RECORD

FAMILIES = {
    "averages": ["methods=[local_only,fedavg_3]"],
    "one shot": ["methods=[code_ot,lmf,ensemble]"],
    "soft targets": ["methods=[dfl,fd]", "methods.rounds=3", "training.shared_init=true"],
    "hostile": ["methods=[fedavg_3]", "federation.hostile=0.5", "federation.attack=noise", "federation.drop=0.2"],
    "shared cells": [
        "study=fedasa", "methods=[fedasa,fedper]", "methods.rounds=2", "data.train=4", "fedasa.steps=10",
    ],
    "links": ["study=st_lf", "methods=[st_lf]", "federation.devices=4", "st_lf.pair_rounds=2"],
}  # fmt: skip
WORDS = ["training.epochs=8", "run.workers=2"]
PARTS = ("flow", "child", "server")
BATCH = 300
"""Cases of the fuzz between two trials."""
GROWTH = 100e6
"""Bytes by which the server's memory may grow while a flow is fired at most 40 times."""


@dataclass(frozen=True)
class Outcome:
    """What a finished flow leaves."""

    results: dict[str, str]
    record: dict[str, int]


@dataclass
class Soak:
    """A project in a folder of its own, and what an undisturbed flow of each family leaves there."""

    folder: Path
    calm: dict[str, Outcome] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    harm: Counter[str] = field(default_factory=Counter)
    """kind of trial -> processes killed, files damaged, flows at once or flows fired"""

    def __post_init__(self) -> None:
        self.project = Project.copy(self.folder / "project", change=small)

    def command(self, family: str) -> list[str]:
        return [sys.executable, "-m", "fedcore", "run", *FAMILIES[family], *WORDS]

    def start(self, family: str, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(family), cwd=self.project.folder, env=self.project.environment(), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
        )  # fmt: skip

    def forget(self) -> None:
        """Delete all that flows leave, but for the server."""
        of_cache = (".fedcore/steps", ".fedcore/blobs", ".fedcore/journal.jsonl")
        for path in ("runs", "mlruns", "champions", "mlflow.db", *of_cache):
            place = self.project.folder / path
            if place.is_dir():
                shutil.rmtree(place)
            else:
                place.unlink(missing_ok=True)

    def outcome(self) -> Outcome:
        results = {
            path: digest
            for path, digest in digests(self.project.folder / "runs").items()
            if path.endswith(("table.parquet", "models.json"))
        }
        return Outcome(results, self.project.record())

    def undisturbed(self, family: str) -> Outcome:
        if family not in self.calm:
            self.forget()
            start = time.monotonic()
            said = said_by(self.start(family))
            if said.code:
                raise RuntimeError(f"an undisturbed flow failed: {said.err}")
            self.seconds[family] = time.monotonic() - start
            self.calm[family] = self.outcome()
        return self.calm[family]

    def unlike(self, family: str) -> list[str]:
        """Return how what a finished flow left differs from what an undisturbed one leaves."""
        found, calm = self.outcome(), self.calm[family]
        wrong = ["other results"] if found.results != calm.results else []
        if found.record != calm.record:
            wrong.append(f"another record: {found.record}, not {calm.record}")
        return wrong


def said_by(flow: subprocess.Popen[str]) -> Said:
    out, err = flow.communicate(timeout=900)
    return Said(flow.returncode, out, err)


def complaints(said: Said, codes: set[int]) -> list[str]:
    """Return what is wrong with how a flow ended; a damaged file that it sets aside is worth a line, too."""
    errors = [line for line in said.err.splitlines() if "; set aside as " not in line]
    found = [f"exit code {said.code}"] if said.code not in codes else []
    if "Traceback" in said.all:
        found.append(f"a traceback that ends in {said.all.splitlines()[-1]!r}")
    elif len(errors) > 1:
        found.append(f"{len(errors)} lines of error, such as {errors[0]!r}")
    return found


# Trials: each harms, and returns what was wrong with how the harmed flow ended


def processes(soak: Soak, flow: subprocess.Popen[str], part: str) -> list[psutil.Process]:
    """Return the processes of one part of a flow that runs, the oldest first."""
    match part:
        case "flow":
            return [psutil.Process(flow.pid)]
        case "child":
            return sorted(psutil.Process(flow.pid).children(recursive=True), key=lambda one: one.pid)
        case _:
            return [psutil.Process(soak.project.server())]


def kill(soak: Soak, family: str, draw: random.Random) -> list[str]:
    """Kill the flow, one of its children or its server at random moments, each time in what the last one left.

    A flow that ends before its moment is compared with the undisturbed one, and the next one starts from nothing.
    """
    soak.forget()
    wrong = []
    for part in draw.choices(PARTS, k=draw.randrange(4, 11)):
        flow = soak.start(family)
        until = time.monotonic() + draw.uniform(0.05, 1) * soak.seconds[family]
        while flow.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        if early := flow.poll() is not None:
            wrong += soak.unlike(family)
        else:
            with suppress(psutil.NoSuchProcess, IndexError):  # it ended at this moment, or has no child yet
                draw.choice(processes(soak, flow, part)).kill()
                soak.harm["kill"] += 1
        wrong += complaints(said_by(flow), {0} if early else {0, 1, -signal.SIGKILL})
        if early:
            soak.forget()
    return wrong


def spoil(soak: Soak, family: str, draw: random.Random) -> list[str]:
    """Damage, empty or replace some files that an earlier flow left, and run it again."""
    soak.forget()
    said_by(soak.start(family))
    state = soak.project.folder / ".fedcore"
    places = [*(state / "steps").iterdir(), *(state / "blobs").glob("*/*"), state / "journal.jsonl"]
    for path in draw.sample(sorted(places), min(len(places), draw.randrange(1, 9))):
        soak.harm["spoil"] += 1
        match draw.randrange(4):
            case 0:
                path.write_bytes(damage(path.read_bytes(), draw))
            case 1:
                path.write_bytes(b"")
            case 2:
                path.unlink()
            case _:
                path.unlink()
                path.mkdir()
    return complaints(said_by(soak.start(family)), {0})


def fill(soak: Soak, family: str, draw: random.Random) -> list[str]:
    """Let the flow write no file beyond a random size, as on a full disk."""
    soak.forget()
    most = int(10 ** draw.uniform(3, 6.5))
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (most, most))
    soak.harm["full"] += 1
    return complaints(said_by(soak.start(family, preexec_fn=limit)), {0, 1})


def turn_back(soak: Soak, family: str, draw: random.Random) -> list[str]:
    """Give what is there a date of next year, or of long ago, as after a jump of the clock."""
    soak.forget()
    said_by(soak.start(family))
    moved = draw.choice([-4e8, 3e7])
    for path in (soak.project.folder / ".fedcore").rglob("*"):
        if path.is_file() and draw.random() < 0.5:
            soak.harm["clock"] += 1
            with suppress(FileNotFoundError):
                os.utime(path, (path.stat().st_atime + moved,) * 2)
    return complaints(said_by(soak.start(family)), {0})


def crowd(soak: Soak, family: str, draw: random.Random) -> list[str]:
    """Run up to four equal flows at once."""
    soak.forget()
    flows = [soak.start(family) for _ in range(draw.randrange(2, 5))]
    soak.harm["crowd"] += len(flows)
    return [wrong for flow in flows for wrong in complaints(said_by(flow), {0})]


def replay(soak: Soak, family: str, draw: random.Random) -> list[str]:
    """Run the flow again and again, as a schedule does that fires late: neither cache, record nor server grows."""
    soak.forget()
    wrong = complaints(said_by(soak.start(family)), {0})
    before, memory = stored(soak.project), psutil.Process(soak.project.server()).memory_info().rss
    for _ in range(draw.randrange(20, 41)):
        soak.harm["replay"] += 1
        wrong += complaints(said_by(soak.start(family)), {0})
    if (after := stored(soak.project)) != before:
        wrong.append(f"the cache grew from {before} to {after} files and bytes")
    if (grown := psutil.Process(soak.project.server()).memory_info().rss - memory) > GROWTH:
        wrong.append(f"the server's memory grew by {grown / 1e6:.0f} MB")
    return wrong


@contextmanager
def mounted(place: Path, *words: str) -> Iterator[None]:
    """Mount over a folder of the project, and leave in it afterwards what was written meanwhile."""
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    subprocess.run(["mount", *words, str(place)], check=True)
    try:
        yield
        kept = Path(tempfile.mkdtemp(dir=place.parent, prefix=".kept-"))
        shutil.copytree(place, kept, dirs_exist_ok=True)
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
    shutil.copytree(kept, place, dirs_exist_ok=True)
    shutil.rmtree(kept)


def fill_disk(soak: Soak, family: str, draw: random.Random) -> list[str]:
    """Let a folder be on a disk of some pages that fills."""
    soak.forget()
    place = soak.project.folder / draw.choice(PLACES)
    soak.harm["disk"] += 1
    with mounted(place, "-t", "tmpfs", "-o", f"size={4 * draw.randrange(1, 100)}k", "tmpfs"):
        said = said_by(soak.start(family))
    return complaints(said, {0, 1})


def forbid(soak: Soak, family: str, draw: random.Random) -> list[str]:
    """Let a folder be read-only: the flow is refused in one line before it computes anything."""
    soak.forget()
    place = soak.project.folder / draw.choice(PLACES)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    soak.harm["read only"] += 1
    subprocess.run(["mount", "--bind", str(place), str(place)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(place)], check=True)
        said = said_by(soak.start(family))
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
    computed = [step for step in soak.project.journal() if not step["cached"]]
    return complaints(said, {1}) + [f"{len(computed)} steps were computed"] * bool(computed)


STRANGER = """
import encodings.idna, os, sys
from http.client import HTTPConnection
from urllib.parse import urlsplit
home, address = sys.argv[1:]
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
for name in ("password", "server.json", "journal.jsonl", "server.log", "blobs", "steps", "prefect"):
    path = os.path.join(home, ".fedcore", name)
    try:
        os.listdir(path) if os.path.isdir(path) else open(path).close()
        print("may read", name)
    except OSError:
        pass
for name in ("params.yaml", "mlflow.db", "mlruns/stranger", "runs/stranger", ".fedcore/stranger", "stranger"):
    try:
        open(os.path.join(home, name), "a").close()
        print("may write", name)
    except OSError:
        pass
server = HTTPConnection(urlsplit(address).netloc, timeout=30)
server.request("GET", urlsplit(address).path + "/admin/version")
if server.getresponse().status == 200:
    print("is answered by the server")
"""
"""What another user of the machine tries."""


def intrude(soak: Soak, family: str, draw: random.Random) -> list[str]:
    """Let another user try to read and write the project, and to speak to its server, while a flow runs."""
    soak.forget()
    for folder in (soak.folder, soak.project.folder):
        folder.chmod(0o755)
    flow = soak.start(family)
    time.sleep(draw.uniform(0.2, 1) * soak.seconds[family])
    soak.harm["stranger"] += 1
    address = json.loads((soak.project.folder / ".fedcore" / "server.json").read_text())["url"]
    words = [sys.executable, "-c", STRANGER, str(soak.project.folder), address]
    tried = subprocess.run(words, cwd="/", capture_output=True, text=True, check=True)
    return [f"another user {line}" for line in tried.stdout.splitlines()] + complaints(said_by(flow), {0})


AT_EVENTS = {
    "save": ["save", "../new", "--cache"], "save again": ["save", "../saved"], "restore": ["restore", "../saved"],
    "prune": ["prune", "--days", "0"],
    "promote": ["promote", "digits", "--version", "1", "--no-final-fit"],
    "predict": ["predict", "new.npy", "--out", "out.csv", "--device", "device-00"],
}  # fmt: skip
"""Commands that are killed at their events, one after another."""
EVENTS = 40
"""The most events of a trial."""


def stop_at_events(soak: Soak, family: str, draw: random.Random) -> list[str]:
    """Kill a command at one event after another, see kill_at.py; what is restored is the source, file by file."""
    if not (soak.folder / "ready").exists():
        prepare(soak)
    kind = draw.choice(sorted(AT_EVENTS))
    place = soak.folder / "event" / "project"
    place.mkdir(parents=True, exist_ok=True)
    project = Project(place, soak.project.api, sources=soak.project.folder, password=soak.project.password)
    path = f"{Path(__file__).parent}{os.pathsep}{project.environment()['PYTHONPATH']}"
    start = [str(soak.folder / ("clone" if kind == "restore" else "ready")), str(EVENTS)]
    said = project.run(
        "python", "-m", "kill_at", *start, *AT_EVENTS[kind], "--", *AT_EVENTS["predict"], PYTHONPATH=path
    )
    *wrong, kills = said.out.splitlines()
    soak.harm["event"] += int(kills.split()[0])
    if kind == "restore":
        here, there = (outcome(folder) for folder in (place, soak.folder / "ready" / "project"))
        names = [name for name in there if name.startswith(RECORD + CACHE)]
        wrong += [f"{name} is not the source's" for name in names if here.get(name, "")[-16:] != there[name][-16:]]
    soak.forget()
    return wrong


def prepare(soak: Soak) -> None:
    """Make a small project with a champion, its save, and a clone without a record."""
    soak.forget()
    home, fedcore = soak.project.folder, partial(soak.project.run, "fedcore")
    fedcore("run", "methods=[fedavg_3]", *WORDS)
    fedcore("promote", "digits", "--no-final-fit")
    np.save(home / "new.npy", np.zeros((3, 1, 8, 8), np.float32))
    fedcore("save", "../saved", "--cache")
    for name, without in (("ready", ()), ("clone", ("mlflow.db", "mlruns", "runs", ".fedcore"))):
        gone = {str(home): {*SOURCES, *without}, str(home / ".fedcore"): {"prefect"}}
        shutil.copytree(home, soak.folder / name / "project", ignore=lambda folder, _, gone=gone: gone.get(folder, ()))
        shutil.copytree(soak.folder / "saved", soak.folder / name / "saved")


def stored(project: Project) -> tuple[int, int]:
    """Return the number and the bytes of the files of steps and blobs."""
    files = [path for name in ("steps", "blobs") for path in (project.folder / ".fedcore" / name).rglob("*")]
    sizes = [path.stat().st_size for path in files if path.is_file()]
    return len(sizes), sum(sizes)


TRIALS: dict[str, tuple[int, Callable[[Soak, str, random.Random], list[str]]]] = {
    "kill": (6, kill), "spoil": (2, spoil), "full": (1, fill), "clock": (1, turn_back), "crowd": (1, crowd),
    "replay": (2, replay), "disk": (2, fill_disk), "read only": (1, forbid), "stranger": (1, intrude),
    "event": (2, stop_at_events),
}  # fmt: skip
"""kind -> (weight, trial)"""
ROOT = {"disk", "read only", "stranger"}
"""Trials that only root can make: they mount, or run as another user."""
PLACES = (".fedcore/blobs", ".fedcore/steps", "mlruns", "runs")


def attempt(soak: Soak, kind: str, number: int) -> list[str]:
    """Make one trial; return all that is wrong with it."""
    draw = random.Random(f"{kind} {number}")
    family = draw.choice(sorted(FAMILIES))
    soak.undisturbed(family)
    wrong = TRIALS[kind][1](soak, family, draw)
    wrong += [f"then: {one}" for one in complaints(said_by(soak.start(family)), {0})]
    wrong += soak.unlike(family)
    if left := [command for command in soak.project.processes().values() if "prefect" not in command]:
        wrong.append(f"left behind: {left[0]}")
    return [f"{family}: {one}" for one in wrong]


def main(seconds: float, seed: int, out: Path, only: Sequence[str]) -> int:
    """Soak; write a line for each kind of trial and of case. Returns the number of things that were wrong.

    only: the kinds of trials to make; the fuzz is always made, "fuzz" makes nothing else.
    """
    if os.getuid() and ROOT & {*only}:
        sys.stdout.write(f"left out, as they need root: {', '.join(sorted(ROOT & {*only}))}\n")
        only = [kind for kind in only if kind not in ROOT]
    kinds = [kind for kind in only if kind != "fuzz" for _ in range(TRIALS[kind][0])]
    made: Counter[str] = Counter()
    walls: Counter[str] = Counter()
    wrong: dict[str, list[str]] = {}
    cases, end = fuzz.Found(), time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        soak = Soak(Path(name))
        try:
            number = seed
            while time.monotonic() < end:
                start = time.monotonic()
                for kind, case in fuzz.cases(number * BATCH, BATCH):
                    fuzz.attempt(kind, case, cases)
                walls["fuzz"] += time.monotonic() - start  # type: ignore[assignment]
                start = time.monotonic()
                if kinds and start < end:
                    kind = random.Random(number).choice(kinds)
                    said = attempt(soak, kind, number)
                    made[kind] += 1
                    walls[kind] += time.monotonic() - start  # type: ignore[assignment]
                    wrong.setdefault(kind, []).extend(f"{number}: {one}" for one in said)
                    sys.stdout.write(f"{kind} {number}: {'; '.join(said) or 'as undisturbed'}\n")
                    sys.stdout.flush()
                number += 1
        finally:
            soak.project.stop()
            soak.project.run(sys.executable, "-m", "fedcore.pipeline.orchestration.server", "stop")
    broken = [f"{kind} {case}: {what}" for kind, case, what in cases.broken]
    tried = cases.read.total() + cases.refused.total() + len(broken)
    rows = [
        *((kind, made[kind], soak.harm[kind], f"{seed} to {number - 1}", round(walls[kind]), len(wrong[kind]),
           " | ".join(wrong[kind])) for kind in sorted(made)),
        ("fuzz", tried, tried, f"{seed * BATCH} to {number * BATCH - 1}", round(walls["fuzz"]), len(broken),
         " | ".join(broken)),
    ]  # fmt: skip
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([("kind", "trials", "harms", "seeds", "wall", "wrong", "found"), *rows])
    sys.stdout.writelines(f"{line}\n" for line in broken)
    return len(broken) + sum(map(len, wrong.values()))


if __name__ == "__main__":
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    found = main(
        float(given.get("seconds", 3600)),
        int(given.get("seed", 0)),
        Path(given.get("out", "results/soak.csv")),
        given.get("only", ",".join(TRIALS)).split(","),
    )
    sys.exit(1 if found else 0)
