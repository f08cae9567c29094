"""Random input by grammars: each case is read, or refused in one line, and changes no file.

A case is a kind and a number, from which all of it is drawn: `python -m fuzz settings 17` tries one again.
"""

import contextlib
import io
import random
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from damaged_files import SETS, damage

from fedcore import InputError, Message, load
from fedcore.config.params import read
from fedcore.config.request import ask, plan_jobs
from fedcore.pipeline.cache import journal
from fedcore.pipeline.cache.records import parse, seal_of
from fedcore.pipeline.cache.store import DamagedBlob, Store

ROOT = Path(__file__).parents[2]
PROJECT = ("params.yaml", "studies", "claims", "papers")
HANGS = 20.0
"""Seconds of CPU after which a case counts as hanging."""

Draw = random.Random
Case = Callable[[Path, Draw], Callable[[], object]]
"""(folder, draw) -> the call that reads what was written into the folder."""

NUMBERS = [
    "0", "-1", "1", "2", "1.5", "1e999", "-1e-320", ".nan", ".inf", "1e20", "99999999999999999999", "0x10", "1_0",
]  # fmt: skip
TEXTS = [
    "", "~", "null", "true", "no", "a", "'1'", '"\\u202e"', "ü", "=1+1", "../../x", "2001-01-01", "a b", "!!python/x y",
]  # fmt: skip
"""Pieces of YAML; with its numbers, lists and mappings of them."""


def value(draw: Draw, depth: int = 0) -> str:
    """Return a YAML value in flow style."""
    match draw.randrange(6 if depth < 3 else 2):
        case 0 | 4:
            return draw.choice(NUMBERS)
        case 1 | 5:
            return draw.choice(TEXTS)
        case 2:
            return f"[{', '.join(value(draw, depth + 1) for _ in range(draw.randrange(4)))}]"
        case _:
            return f"{{{', '.join(f'{word(draw)}: {value(draw, depth + 1)}' for _ in range(draw.randrange(3)))}}}"


@cache
def keys() -> list[str]:
    """Return every dotted key of the parameters and words of requests."""

    def below(section: Any, prefix: str) -> Iterator[str]:
        for name, part in section.items():
            yield f"{prefix}{name}"
            if isinstance(part, dict):
                yield from below(part, f"{prefix}{name}.")

    given = read(ROOT)
    studies = [f"studies.{name}" for name in given.pop("studies")]
    request = ["study", "studies", "method", "methods", "seed", "seeds", "size", "prepared", "promote", "final_fit"]
    request += ["changes"]
    more = [f"federation.{name}" for name in ("attack", "strength", "drop", "deadline", "bound", "beyond")]
    return [*below(given, ""), *studies, *request, *more, "data.columns", "data.missing", "net.maps"]


def word(draw: Draw) -> str:
    """Return a key, often a known one, sometimes changed in a letter."""
    found = draw.choice(keys())
    if draw.random() < 0.2:
        at = draw.randrange(len(found))
        found = found[:at] + draw.choice(["", "x", ".", " ", "ü", "-"]) + found[at + 1 :]
    return found


def change_lines(text: str, draw: Draw) -> str:
    """Delete, double, swap or indent lines of a YAML file, or change a value in one."""
    lines = text.splitlines()
    for _ in range(draw.choice([1, 1, 2, 5])):
        at = draw.randrange(len(lines))
        match draw.randrange(8):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, lines[at])
            case 2:
                other = draw.randrange(len(lines))
                lines[at], lines[other] = lines[other], lines[at]
            case 3:
                lines[at] = " " * draw.randrange(5) + lines[at]
            case 4 | 5:
                lines[at] = f"{lines[at].partition(':')[0]}: {value(draw)}"
            case 6:
                lines[at] += draw.choice([" &a", " *a", ": :", " {", "]", "\t", "\x00", " # x", " !!binary x"])
            case _:
                lines.insert(at, draw.choice(["<<: *a", "- 1", "? [1]", "---", "...", "%YAML 9", "key: &a [*a]"]))
        if not lines:
            lines.append("")
    return "\n".join(lines) + "\n"


def settings(folder: Path, draw: Draw) -> Callable[[], object]:
    """Words on the command line."""
    words = [
        f"{word(draw)}{draw.choice(['=', '=', '=', '=', '', '=='])}{value(draw)}"
        for _ in range(draw.choice([1, 1, 2, 3]))
    ]
    return lambda: plan_jobs(ask(words))


def yaml_file(pattern: str) -> Case:
    """Return the case of a changed file of the project."""

    def case(folder: Path, draw: Draw) -> Callable[[], object]:
        path = draw.choice(sorted(folder.glob(pattern)))
        text = change_lines(path.read_text(), draw)
        content = text.encode() if draw.random() < 0.9 else damage(text.encode(), draw)
        path.write_bytes(content)
        study = draw.choice(sorted(key.removeprefix("studies.") for key in keys() if key.startswith("studies.")))
        return lambda: plan_jobs(ask([f"study={study}"]))

    return case


def rules(folder: Path, draw: Draw) -> Callable[[], object]:
    """Claims made of the words of rules."""
    parts = [
        "code_ot", "lmf", "-", ">", "~", "within", "0.1", "-0.1", "rises", "falls", "stays", "with", "round",
        "pairwise", "nan", "'", "x" * 99,
    ]  # fmt: skip
    rule = " ".join(draw.choice(parts) for _ in range(draw.randrange(1, 9)))
    more = draw.choice(
        [
            "", ", metric: test.accuracy", ", metric: worst of", ", round: 0", f", where: {value(draw)}",
            f", round: {value(draw)}",
        ]
    )  # fmt: skip
    (folder / "claims" / "code.yaml").write_text(f'code_fig8:\n- {{statement: x, rule: "{rule}"{more}}}\n')
    return lambda: plan_jobs(ask(["study=code_fig8"]))


def cell(draw: Draw) -> str:
    return draw.choice(
        [
            "1", "2.5", "a", "b", "", "NA", "nan", "inf", "1e999", '"x,y"', '"', "\u202e", "=1+1", "2001-01-01",
            "9" * 40, "é", "\x00", '"a\nb"', "\x1b[31m",
        ]
    )  # fmt: skip


def table(folder: Path, draw: Draw) -> Callable[[], object]:
    """A CSV file of odd cells, sometimes with ragged rows."""
    width, ragged = draw.randrange(1, 6), draw.random() < 0.2
    names = [
        draw.choice(["u", "v", "w", "y", "device", "part", " u", "=x", "", "ü", "u.1", '"u\nv"', "\x1b[2J"])
        for _ in range(width)
    ]
    if draw.random() < 0.8:
        names = [*dict.fromkeys([*names, "y"])]
    plain = draw.random() < 0.6
    lines = [",".join(names)]
    for _ in range(draw.choice([0, 1, 12, 40])):
        count = len(names) + (draw.choice([-1, 1]) if ragged and draw.random() < 0.2 else 0)
        lines.append(
            ",".join(draw.choice("abc12345") if plain and draw.random() < 0.95 else cell(draw) for _ in range(count))
        )
    path = folder / "t.csv"
    path.write_bytes(
        draw.choice(["\n", "\n", "\r\n"])
        .join(lines)
        .encode(draw.choice(["utf-8", "utf-8", "utf-16", "latin-1"]), "replace")
    )
    more = {
        key: draw.choice(options)
        for key, options in (
            ("device", [None, "device", "u"]),
            ("missing", ["refuse", "median", "drop"]),
            ("split", [None, "part"]),
        )
        if draw.random() < 0.5
    }
    return lambda: load("table", path=path, label="y", **{key: one for key, one in more.items() if one})


def damaged_set(name: str) -> Case:
    """Return the case of a damaged file of a dataset."""

    def case(folder: Path, draw: Draw) -> Callable[[], object]:
        files, load_set = SETS[name](folder)
        file = draw.choice(files)
        file.write_bytes(damage(file.read_bytes(), draw))
        return load_set

    return case


def blob(folder: Path, draw: Draw) -> Callable[[], object]:
    """A damaged blob is noticed: its digest names it."""
    store = Store(folder / "blobs")
    ref = store.put(Message({"w": torch.arange(12.0)}, {"x": torch.ones(3)}))
    path = store.path(ref)
    whole = path.read_bytes()
    path.write_bytes(damage(whole, draw))
    same = path.read_bytes() == whole

    def call() -> None:
        try:
            Store(folder / "blobs").get(ref)
        except DamagedBlob:
            assert not same
        else:
            assert same

    return call


def imported(folder: Path, draw: Draw) -> Callable[[], object]:
    """A damaged output of a stage is no stored value, or another one."""
    store = Store(folder / "blobs")
    path = store.path(store.put(Message({"w": torch.arange(12.0)}))).rename(folder / "out.safetensors")
    path.write_bytes(damage(path.read_bytes(), draw))
    spoilt = path.read_bytes()

    def call() -> None:
        with contextlib.suppress(DamagedBlob):
            ref = store.import_blob(path)
            assert store.path(ref).read_bytes() == spoilt
            store.path(ref).unlink()  # the copy that was asked for

    return call


def record(folder: Path, draw: Draw) -> Callable[[], object]:
    """A damaged record of a step is not believed."""
    import json

    said = {"value": {"plain": draw.random()}, "wall": 0.5, "cpu": 0.25}
    said |= {"seal": seal_of("key", said)}
    content = json.dumps(said).encode()
    assert parse("key", content) == said
    spoilt = damage(content, draw)

    def call() -> None:
        assert parse("key", spoilt) in (None, said)  # only its layout may differ

    return call


def lines(folder: Path, draw: Draw) -> Callable[[], object]:
    """A damaged journal: what cannot be read is skipped."""
    whole = b'{"time": 1.5, "key": "a", "blobs": ["b"]}\n' * 4
    (folder / "journal.jsonl").write_bytes(damage(whole, draw))

    def call() -> None:
        before, journal.JOURNAL = journal.JOURNAL, folder / "journal.jsonl"
        try:
            assert len(journal.read()) <= 8
        finally:
            journal.JOURNAL = before

    return call


KINDS: dict[str, tuple[int, Case]] = {
    "settings": (8, settings), "params": (4, yaml_file("params.yaml")), "studies": (4, yaml_file("studies/*.yaml")),
    "claims": (2, yaml_file("claims/*.yaml")), "rules": (2, rules), "table": (4, table),
    **{name: (1, damaged_set(name)) for name in SETS}, "blob": (1, blob), "imported": (1, imported),
    "record": (1, record), "journal": (1, lines),
}  # fmt: skip
"""kind -> (weight, case)"""


@dataclass
class Found:
    """Of a number of cases: how many were read and refused, by kind; and the broken ones: (kind, seed, what came)."""

    read: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    broken: list[tuple[str, int, str]] = field(default_factory=list)


def attempt(kind: str, seed: int, found: Found) -> None:
    """Try one case in a folder of its own, which is the current one meanwhile."""
    _, case = KINDS[kind]
    draw = Draw(f"{kind} {seed}")
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        folder = Path(name)
        if kind in ("settings", "params", "studies", "claims", "rules"):
            for part in PROJECT:
                copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copyfile
                copy(ROOT / part, folder / part)
        with (
            contextlib.chdir(folder),
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            call = case(folder, draw)
            before, start = files(folder), time.process_time()
            try:
                call()
                found.read[kind] += 1
            except InputError as refused:
                found.refused[kind] += 1
                if not str(refused).isprintable():
                    found.broken.append((kind, seed, f"not one line: {str(refused)!r}"))
            except Exception as error:
                at = traceback.extract_tb(error.__traceback__)[-1]
                found.broken.append(
                    (kind, seed, f"{type(error).__name__} at {Path(at.filename).name}:{at.lineno}: {error}")
                )
            if time.process_time() - start > HANGS:
                found.broken.append((kind, seed, "took too long"))
            if files(folder) != before:
                found.broken.append((kind, seed, "changed a file"))


def files(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*") if path.is_file()}


def cases(first: int, count: int) -> Iterator[tuple[str, int]]:
    """Yield kinds, as often as they weigh, and seeds."""
    turns = [kind for kind, (weight, _) in KINDS.items() for _ in range(weight)]
    for seed in range(first, first + count):
        yield turns[seed % len(turns)], seed


def run(first: int, count: int) -> Found:
    found = Found()
    for kind, seed in cases(first, count):
        attempt(kind, seed, found)
    return found


if __name__ == "__main__":
    told = Found()
    attempt(sys.argv[1], int(sys.argv[2]), told)
    sys.stdout.write(f"{told}\n")
