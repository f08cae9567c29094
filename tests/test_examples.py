"""Each example runs, in a process of its own, and says what it should; README begins with one."""

import importlib
import json
import os
import re
from ast import literal_eval
from pathlib import Path

import pandas as pd
import pytest
import torch
from process_forks import run

import fedcore as fc
from fedcore.report.answers import study_answers
from fedcore.results.answer import answers
from fedcore.results.criterion import Criterion
from fedcore.types.method import RoundInfo, Update

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def said(program: Path, folder: Path) -> str:
    """Return what a program prints that may import the library and the examples; it must not warn."""
    done = run(str(program), folder=folder, PYTHONPATH=os.pathsep.join([str(ROOT), str(EXAMPLES)]))
    assert done.code == 0, done.err
    assert done.err == ""
    return done.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("own_table", ["fedper > local_only", "press-2 now: ['"]),
        ("own_number", ["Decided by root mean squared error", "press-2, hours left: ["]),
        ("own_method", ["fedavg", "median"]),
        ("server_momentum", ["fedavg", "fedavgm"]),
    ],
)
def test_an_example_runs(name: str, words: list[str], tmp_path: Path):
    out = said(EXAMPLES / f"{name}.py", tmp_path)
    assert all(word in out for word in words)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_quick_start_says_its_own_numbers(tmp_path: Path):
    """A processor may move them by tenths of a point (docs/processor.md)."""
    words = re.search(r"(\d+)% right against (\d+)%", (EXAMPLES / "quick_start.py").read_text())
    assert words is not None
    means = dict(re.findall(r"^\d+ +(\w+) +\S+ +(\S+)", said(EXAMPLES / "quick_start.py", tmp_path), re.MULTILINE))
    for number, name in zip(words.groups(), ("code_ot", "local_only"), strict=True):
        assert abs(float(number) - 100 * float(means[name])) <= 1


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path):
    cells = json.loads((EXAMPLES / "tour.ipynb").read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert not any(cell.get("outputs") for cell in cells)
    (tmp_path / "tour.py").write_text("\n\n".join([*sources, 'print(comparison.summary["method"].tolist())']))
    assert sorted(literal_eval(said(tmp_path / "tour.py", tmp_path).splitlines()[-1])) == [
        "damped", "fedavg", "local_only", "majority", "majority_per_device",
    ]  # fmt: skip


def test_server_momentum_keeps_its_velocity(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    module = importlib.import_module("server_momentum")
    still = {"w": torch.zeros(1)}
    updates = {"a": Update({"w": torch.ones(1)}), "b": Update({"w": torch.full((1,), 5.0)}, size=3)}
    round_info = RoundInfo(0, 0, 0, ("a", "b"), ("a", "b"))
    memory, _ = module.move(module.remember(still, still), updates, round_info, beta=0.5)
    memory, messages = module.move(memory, updates, round_info, beta=0.5)
    assert messages["b"].params["w"].item() == 4 + 0.5 * 4
    plain, _ = module.move(memory, updates, round_info, beta=0.0)
    assert plain["model/w"].item() == 4  # FedAvg's mean


def test_an_own_method_fits_into_forty_lines():
    assert len((EXAMPLES / "own_method.py").read_text().splitlines()) <= 40


FIRST = ROOT / "docs" / "results" / "first-answer.csv"
"""The last round of each device, seed and row of study code by `make run`: what its answer follows from."""
CONTROLS = frozenset({"best_local", "half_best", "no_alignment", "majority", "majority_per_device"})


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_answer_that_a_page_begins_with_is_that_of_make_run(page: str):
    """Its words and numbers by today's rules, on numbers that the next test computes anew."""
    rows = pd.read_csv(FIRST).melt(["method", "seed", "device"], var_name="name")
    rows[["split", "metric"]] = rows.pop("name").str.split("/", expand=True)
    rows = rows.assign(study="code", dataset="digits", setting="base", stage=0, round=1)
    (boxes,) = study_answers(answers(rows, CONTROLS, Criterion(least_test=0))).values()
    now = " ".join([f"{boxes[0].title}:", boxes[0].headline, *boxes[0].sentences])
    (shown, *_) = re.findall(r"```text\n(code .*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert now.startswith(" ".join(shown.split())), "\n  ".join([boxes[0].title, *boxes[0].sentences])


@pytest.mark.slow
def test_the_numbers_of_the_first_answer_are_those_of_make_run():
    """Of a seed, by a script; another processor may move them by an example or two (docs/processor.md)."""
    fed = fc.federate(fc.load("digits"), fc.dirichlet(0.5), devices=16, net=fc.mlp(64, 32))
    training = {"optimiser": "adam", "lr": 0.01, "batch": 16, "epochs": 20}
    rows = pd.read_csv(FIRST).query("seed == 0")
    for method in (fc.local_only(training=training), fc.analytic(features=200)):
        table = fc.run(method, fed, seed=0, progress=False).table
        for split in ("test", "val"):
            now = table.query("split == @split and metric == 'accuracy'").set_index("device")["value"]
            kept = rows[rows["method"] == method.label].set_index("device")[f"{split}/accuracy"]
            assert (now - kept).abs().mean() < 0.01, (method.label, split)


def test_the_first_code_of_the_readme_is_the_quick_start():
    first = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert first is not None
    assert first[1] == (EXAMPLES / "quick_start.py").read_text()
