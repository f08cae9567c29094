"""Every command in a block of README.md and docs/ works.

A scenario or a test runs it, or, if it needs hours, a cluster or an installation, it is carried up to the computing. A
block without a language holds commands; what has no rule here fails. Output is in blocks of language `text`.
"""

import ast
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from itertools import dropwhile, groupby
from pathlib import Path

import click
import numpy as np
import pandas as pd
import pytest
import torch
from dataset_files import idx, read_once
from packaging.requirements import Requirement
from PIL import Image
from test_docs import PAGES, ROOT, losses_of_the_page

import fedcore as fc
from fedcore import nets
from fedcore.cli.init import LOOK
from fedcore.cli.main import fedcore
from fedcore.config.request import Job, ask, plan_jobs
from fedcore.data.images import TEST, TRAIN
from fedcore.errors import InputError

pytestmark = pytest.mark.slow

RUN = {("fedcore", "run"), ("fedcore", "plan")}


@dataclass(frozen=True)
class Command:
    """A command of a page, without the variables before it."""

    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.words)}"


def commands() -> Iterator[Command]:
    """Yield the commands of all blocks without a language."""
    for page in PAGES:
        for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            if language:
                continue
            for line in re.sub(r"<folder with (\w+)>", r"\1", block.replace("\\\n", " ")).splitlines():
                split = shlex.shlex(line, posix=True, punctuation_chars=";&")
                split.whitespace_split = True
                for separates, group in groupby(split, lambda word: word in (";", "&")):
                    words = tuple(dropwhile(re.compile("[A-Z_]+=").match, group))
                    if words and not separates:
                        yield Command(page.name, words)


@cache
def run_by_tests() -> set[tuple[str, ...]]:
    """Return the words of the calls in tests/end_to_end that run a command, as far as they are constants."""
    found = set()
    for file in (ROOT / "tests" / "end_to_end").rglob("*.py"):
        tree = ast.parse(file.read_text())
        names = {
            target.id: constants(node.value.elts, {})
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in ("run", "start"):
                found.add(constants(node.args, names))
            elif node.func.attr == "fork":  # of an installed fedcore, or of DVC (scenarios/installed.py)
                (module,) = constants([one.value for one in node.keywords if one.arg == "module"], {}) or ("fedcore",)
                found.add((module, *constants(node.args, names)))
            elif node.func.attr == "repro":  # of a project: a command of DVC
                found.add(("dvc", *constants(node.args, names)))
    return found


def constants(values: list[ast.expr], names: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    words: list[str] = []
    for value in values:
        if isinstance(value, ast.Constant):
            words.append(str(value.value))
        elif isinstance(value, ast.Starred) and isinstance(value.value, ast.Name):
            words += names.get(value.value.id, ())
    return tuple(words)


# What a command is carried through that no test runs as it stands


def jobs_of(words: tuple[str, ...]) -> list[Job]:
    """Plan a run; it downloads nothing."""
    return plan_jobs(ask([*(word for word in words if word != "--save"), "data.download=false"]))[1]


def preview(*words: str) -> None:
    from fedcore.report.preview import preview as show

    (job, *_) = jobs_of(words)
    show(job.settings[0], job.seed)


def parse(*words: str) -> None:
    """Parse the words of a command that reads the record, or that makes a project."""
    command = fedcore.get_command(click.Context(fedcore), words[0])
    assert command is not None
    command.make_context(words[0], [*words[1:]])


def example(name: str, *rest: str) -> None:
    assert not rest
    assert f'("{Path(name).stem}"' in (ROOT / "tests" / "test_examples.py").read_text(), "test_examples runs it"


def make(*targets: str) -> None:
    """Let make say what it would run."""
    subprocess.run(["make", "--dry-run", *targets], cwd=ROOT, check=True, capture_output=True)


def install(*words: str) -> None:
    given = list(words)
    assert given.pop(0) == "install"
    for option in ("--constraint", "--index-url"):
        if option in given:
            at = given.index(option)
            assert option != "--constraint" or (ROOT / given[at + 1]).is_file()
            del given[at : at + 2]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = (ROOT / "constraints.txt").read_text()
    for word in given:
        if word != "--no-deps":
            clone_or_wheel = r"^(\.|fedcore-[\w.]+-py3-none-any\.whl)(?=\[)"
            asked = Requirement(re.sub(clone_or_wheel, project["name"], word))
            assert asked.extras <= {*project["optional-dependencies"]}
            assert asked.name == project["name"] or f"\n{asked.name}==" in pins


def dask(kind: str, *words: str) -> None:
    module = import_module(f"distributed.cli.dask_{kind}")
    module.main.make_context(kind, list(words))


def serve(*words: str) -> None:
    from mlflow.models.cli import commands as models

    models.get_command(None, words[1]).make_context(words[1], list(words[2:]))


def override(*words: str) -> None:
    """Change a copy of params.yaml as `dvc exp run -S` does, and plan the studies."""
    from dvc.utils.hydra import apply_overrides

    assert words[:2] == ("exp", "run")
    assert {*words[2::2]} == {"-S"}
    apply_overrides(Path("params.yaml"), list(words[3::2]))
    assert jobs_of(())


def exists(path: str, *rest: str) -> None:
    assert (ROOT / path).exists()


def nothing(*words: str) -> None:
    """A word of the shell."""


RULES: dict[str, Callable[..., None]] = {
    "fedcore preview": preview, "fedcore": parse, "cd": nothing, "python": example, "make": make,
    "pip": install, ".venv/bin/pip": install, ".venv/bin/pytest": exists, ".venv/bin/python": exists, "dask": dask,
    "mlflow": serve,
    "dvc": override, "export": nothing, "source": nothing, "python3 -m venv": nothing,
}  # fmt: skip


def rule_of(words: tuple[str, ...]) -> Callable[[], None] | None:
    """Return what carries a command, by the longest beginning that has a rule; None if there is no rule."""
    if words[:2] == ("python", "-m") and words[2].startswith("benchmarks."):
        return lambda: exists(f"{words[2].replace('.', '/')}.py")
    for count in range(len(words), 0, -1):
        if (found := RULES.get(" ".join(words[:count]))) is not None and not (count == 1 and words[1:2] == ("-m",)):
            return lambda: found(*words[count:])
    return None


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder like a user's: settings, studies, modules, a table, sites, pictures, and images in MNIST's layout."""
    here = tmp_path_factory.mktemp("user")
    shutil.copyfile(ROOT / "params.yaml", here / "params.yaml")
    for name in ("studies", "claims", "papers", "examples"):
        (here / name).symlink_to(ROOT / name)
    modules = (ROOT / "docs/own_net.md").read_text()
    shown = re.findall(r"```python\n(.*?)```", modules, re.DOTALL)
    (here / "mynets.py").write_text("\n\n".join(shown))
    (here / "mylosses.py").write_text(losses_of_the_page())
    read, *_ = re.findall(r"```python\n(import numpy.*?)```", (ROOT / "docs/arrays.md").read_text(), re.DOTALL)
    (here / "mydata.py").write_text(read)
    for name in ("own_method", "mymethods", "mymodule"):
        shutil.copyfile(ROOT / "examples" / "own_method.py", here / f"{name}.py")
    rng = np.random.default_rng(0)
    (here / "data" / "sites").mkdir(parents=True)
    rows = pd.DataFrame(rng.normal(size=(600, 6)), columns=list("abcdef"))
    rows["fault"] = np.array(["leak", "none", "worn"])[np.arange(600) % 3]
    machines = [f"machine {i % 4}" for i in range(600)]
    np.savez(
        here / "data" / "windows.npz",
        x=rng.normal(size=(600, 120)),
        fault=rows["fault"].to_numpy(str),
        machine=machines,
    )
    for name, part in rows.groupby(np.arange(600) // 100):
        part.to_csv(here / "data" / "sites" / f"site_{name}.csv", index=False)
    rows["machine"] = [f"plant_{i}" for i in np.arange(600) // 100]
    shutil.copyfile(ROOT / "examples" / "machines.csv", here / "data" / "machines.csv")
    rows.assign(hours=np.arange(600) / 7).drop(columns="fault").to_csv(here / "data/wear.csv", index=False)
    faults = rows["fault"]
    held = {name: (faults == name).astype(int) for name in ("leak", "worn")}
    rows.assign(**held).drop(columns="fault").to_csv(here / "data/faults.csv", index=False)
    for i in range(1600):
        file = here / "FOLDER" / f"class {i % 4}" / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (8, 8, 3), np.uint8)).save(file, compress_level=0)
    for name in ("shapes", "cifar4000"):
        (here / "data" / name).symlink_to(here / "FOLDER")
    net = nets.net("mlp", shape=(1, 8, 8), classes=10, widths=[64, 32])
    fc.write_weights(nets.init(net, torch.Generator()), here / "base.safetensors")
    line = "What is the city but the people? True, the people are the city. " * 4
    letters = [(line[i : i + 20], line[i + 20]) for i in range(100)]
    text = {"x": [given for given, _ in letters], "y": [wanted for _, wanted in letters]}
    roles = {"users": ["SICINIUS", "CITIZENS"], "user_data": dict.fromkeys(("SICINIUS", "CITIZENS"), text)}
    (here / "data" / "shakespeare" / "all_data").mkdir(parents=True)
    (here / "data" / "shakespeare" / "all_data" / "a.json").write_text(json.dumps(roles))
    post = ["1", "a date", "NO_QUERY", "a user", line]
    posts = {"x": [post] * 60, "y": [i % 2 for i in range(60)]}
    users = {"users": ["u0", "u1"], "user_data": dict.fromkeys(("u0", "u1"), posts)}
    (here / "data" / "sent140" / "all_data").mkdir(parents=True)
    (here / "data" / "sent140" / "all_data" / "a.json").write_text(json.dumps(users))
    raw = here / "datasets" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for names, count in ((TRAIN, 11_000), (TEST, 1_000)):
        images, labels = rng.integers(0, 256, (count, 28, 28), np.uint8), (np.arange(count) % 10).astype(np.uint8)
        for name, values in zip(names, (images, labels), strict=True):
            (raw / name).write_bytes(idx(values))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        patch.syspath_prepend(here)
        yield here


def test_every_command_is_run_by_a_test_or_carried_up_to_the_computing(place: Path):
    others = {one for one in commands() if one.words[:2] not in RUN and one.words not in run_by_tests()}
    wrong = []
    for one in sorted(others, key=str):
        shutil.copyfile(ROOT / "params.yaml", place / "params.yaml")
        carry = rule_of(one.words)
        if carry is None:
            wrong.append(f"{one}: no test runs it, and there is no rule")
            continue
        try:
            carry()
        except (Exception, SystemExit) as error:
            wrong.append(f"{one}: {error!r}")
    shutil.copyfile(ROOT / "params.yaml", place / "params.yaml")
    assert wrong == []


def test_a_scenario_runs_every_line_of_the_readme():
    """From top to bottom, in a fresh clone (scenarios/installed.py); what `make test` would run is looked at there."""
    shell = ("cd", "python3", "source")  # `Environment.make` makes another one
    lines = [one.words for one in commands() if one.page == "README.md" and one.words[0] not in shell]
    assert len(lines) > 4
    assert [words for words in lines if words not in run_by_tests() | {("make", "test")}] == []


def test_the_tutorial_is_run_by_a_scenario_and_shows_its_preview(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    lines = [one.words for one in commands() if one.page == "tutorial.md" and one.words[0] == "fedcore"]
    elsewhere = {"preview", "predict", "ui"}
    assert [words for words in lines if words not in run_by_tests() and words[1] not in elsewhere] == []
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")
    data = {"name": "table", "path": "examples/machines.csv", "label": "fault", "device": "site"}
    preview(*(f"data.{key}={value}" for key, value in data.items()), "federation.hold_out=stable")
    made, shown, *_ = re.findall(r"```text\n(.*?)```", (ROOT / "docs/tutorial.md").read_text(), re.DOTALL)
    assert f"try five methods: {LOOK}\nThe best methods run again, each time without one of 4 devices: " in made
    assert shown.startswith("data/machines.csv\n")
    assert capsys.readouterr().out.partition("\n")[2].strip() == shown.partition("\n")[2].strip()


REAL = ["domains", "mnist_m", "cwru"]
"""Not made up here: skipped where FEDCORE_DATA does not have them, with all domains."""
SETS = ["digits", "mnist", "bearings", "table", "image_folder", "mydata:read", "leaf", *REAL]


@pytest.mark.parametrize("name", SETS)
def test_every_run_of_the_pages_is_forecast(
    place: Path, planned: dict[str, Job], name: str, monkeypatch: pytest.MonkeyPatch
):
    """The first setting and seed of each: data are read and divided, methods built, rounds gone through."""
    from fedcore.pipeline.cache.store import Store
    from fedcore.pipeline.run.forecast import forecast

    read_once(monkeypatch)
    mine = {said: job for said, job in planned.items() if job.settings[0].data["name"] == name}
    waiting, now, absent, wrong = iter(mine), "", [], []

    def each() -> Iterator[Job]:
        nonlocal now
        for now in waiting:
            yield mine[now]

    while now != [*mine][-1]:
        try:  # all at once: a set is then read once
            assert [*forecast(each(), Store(place / "blobs"), 1, None)]
        except InputError as error:
            missing = name in REAL and str(error).startswith("data.root = ")
            (absent if missing else wrong).append(f"{now}: {error}")
    assert wrong == []
    if absent:
        pytest.skip(f"sets that are not there, for {len(absent)} of {len(mine)} commands: {absent[0]}")


@pytest.fixture(scope="module")
def planned(place: Path) -> dict[str, Job]:
    """The runs of the pages, each with its first setting and seed, and the rows that none before has on its data."""
    found, seen = {}, set()
    for one in {one.words: one for one in commands() if one.words[:2] in RUN}.values():
        (job, *_) = jobs_of(one.words[2:])
        assert {setting.data["name"] for setting in job.settings} <= {*SETS}, one
        first = job.settings[0]
        rows = {(first.data["name"], str(first.net), row.label): row for row in first.methods}
        new = tuple(row for key, row in rows.items() if key not in seen) or first.methods[:1]
        seen |= rows.keys()
        found[str(one)] = job.model_copy(update={"settings": [replace(first, methods=new)]})
    assert len(found) > 60
    return found


def test_a_command_without_a_rule_is_found():
    assert rule_of(("python", "-m", "nothing")) is None
    assert rule_of(("fedavg", "run")) is None
    assert ("dvc", "repro") in run_by_tests()
