"""README and docs/ point at things that exist: files, headings, modules, and targets of make; the site is built."""

import os
import re
import shlex
import subprocess
import sys
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pandas as pd
import pytest
import torch
from federations import NBYTES, NET, device_of, federation

import fedcore as fc
from fedcore import nets
from fedcore.cli.main import fedcore
from fedcore.config.request import parse, plan_jobs
from fedcore.core.training import predict
from fedcore.methods import METHODS
from fedcore.results.summary import COLUMNS as SUMMARY
from fedcore.results.summary import PART, SPLITS
from fedcore.results.tidy import COLUMNS as TABLE
from fedcore.types.method import generator

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CHANGES = ROOT / "CHANGELOG.md"
MADE = ROOT / "docs" / "papers.md"
"""The site makes this page, see docs/assets/papers_page.py."""

FOLDERS = "benchmarks|claims|docs|examples|fedcore|flows|papers|studies|tasks|tests"
"""A path that begins with one of them is a file or folder of the project."""


def prose(page: Path) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings by GitHub's rules: lower case, no punctuation, a hyphen per space."""
    found: dict[str, int] = {}
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        found[anchor] = found.get(anchor, -1) + 1
        if found[anchor]:
            found[f"{anchor}-{found[anchor]}"] = 0
    return set(found)


def broken_links(page: Path) -> list[str]:
    """Return the page's relative links that lead to no file, or to no heading of one."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if target == MADE:
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


def missing_paths(page: Path) -> list[str]:
    """Return the page's paths into the project's folders that lead nowhere; <name> and * stand for anything."""
    paths = re.findall(rf"(?<![\w./-])((?:{FOLDERS})/[\w./*<>-]*[\w*>])", page.read_text())
    return [path for path in paths if not any(ROOT.glob(re.sub(r"<\w+>", "*", path)))]


def missing_modules(page: Path) -> list[str]:
    """Return the modules that a command runs with `python -m` and that cannot be found.

    Benchmarks, which no test runs, are imported too.
    """
    names = set(re.findall(r"python -m ([\w.]+\w)", page.read_text()))
    for name in names:
        if name.startswith("benchmarks."):
            import_module(name)
    return [name for name in sorted(names) if find_spec(name) is None]


@pytest.mark.parametrize("page", [*PAGES, CHANGES], ids=lambda page: page.relative_to(ROOT).as_posix())
@pytest.mark.slow
def test_a_page_points_at_things_that_exist(page: Path):
    assert broken_links(page) == []
    assert missing_paths(page) == []
    assert missing_modules(page) == []


COMMANDS = "init|preview|plan|run|show|promote|predict|ui|prune|status"


def commands_in_sentences(names: str) -> list[tuple[str, str, str]]:
    """Return the commands in the pages' sentences and tables: page, sub-command, words.

    tests/test_commands.py goes further with those in blocks.
    """
    texts = {page.name: re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S) for page in PAGES}
    return [
        (page, name, words)
        for page, text in texts.items()
        for name, words in re.findall(rf"`fedcore ({names})(?= |`) *([^\n`#]*)", text)
        if (words or name not in ("init", "predict"))
        and not re.search(r"\b(NAME|MODEL|NUMBER|KEY|FOLDER)\b|\.\.\.", words)
    ]


def losses_of_the_page() -> str:
    """Return the first block of docs/losses.md, which is mylosses.py."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs/losses.md").read_text(), re.DOTALL)[0]


LOSSES: dict[str, dict[str, Any]] = {
    "focal": {"gamma": 0.0}, "smoothed": {"share": 0.0}, "near": {"mu": 0.0}, "distilled": {"weight": 0.0},
    "steady": {"weight": 0.0},
}  # fmt: skip
"""The losses of the page, each with what makes it cross-entropy."""


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.slow
def test_a_loss_of_the_page_trains_and_contains_cross_entropy(name: str):
    names: dict[str, Any] = {"__name__": "shown"}
    exec(compile(losses_of_the_page(), "losses.md", "exec"), names)
    assert {key for key, value in names.items() if getattr(value, "__module__", "") == "shown"} == {*LOSSES}

    def model(loss: Any) -> fc.Message:
        fed = federation()
        result = fc.run(fc.fedavg(rounds=2, training={"epochs": 4, "loss": loss}), fed, progress=False)
        return result.rounds[-1].state.messages["a"].params

    plain = model("ce")
    torch.testing.assert_close(model(partial(names[name], **LOSSES[name])), plain, rtol=0, atol=1e-5)
    assert max((model(names[name])[key] - x).abs().max() for key, x in plain.items()) > 1e-4


@pytest.mark.slow
def test_the_flow_accepts_every_command_of_the_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Every `fedcore run ...` has known settings; the modules that it names are those of the pages."""
    modules = (ROOT / "docs/own_net.md").read_text()
    module = "\n\n".join(re.findall(r"```python\n(.*?)```", modules, re.DOTALL))
    (tmp_path / "mynets.py").write_text(module)
    (tmp_path / "mylosses.py").write_text(losses_of_the_page())
    for name in ("own_method", "mymethods", "mymodule"):
        (tmp_path / f"{name}.py").write_text((ROOT / "examples/own_method.py").read_text())
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(ROOT)
    commands = commands_in_sentences("run|plan|preview")
    assert len(commands) > 5
    for _, _, words in commands:
        assert plan_jobs(parse(shlex.split(words)))


def test_every_command_of_the_pages_has_known_words():
    for page, name, words in commands_in_sentences(COMMANDS):
        command = fedcore.get_command(click.Context(fedcore), name)
        assert command is not None
        assert command.make_context(name, shlex.split(words)), (page, words)


def test_a_target_of_make_that_a_page_names_exists():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        assert set(re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(), re.MULTILINE)) <= targets, page.name


def test_every_benchmark_has_a_page_with_its_figures():
    """What measures nothing that a page says goes; docs/development.md only lists them."""
    texts = [*(page for page in PAGES if page.name != "development.md"), ROOT / "docs" / "results" / "runs.csv"]
    said = "".join(page.read_text() for page in texts)
    names = [path.stem for path in (ROOT / "benchmarks").glob("[a-z]*.py") if "__main__" in path.read_text()]
    assert [name for name in names if not re.search(rf"benchmarks[./]{name}\b", said)] == []


def test_a_page_that_a_message_names_is_one_that_fedcore_prints():
    """`fedcore docs NAME`: an installed fedcore has the pages, but no folder docs."""
    kept = [*(ROOT / "fedcore").rglob("*.py"), *(ROOT / "ops").glob("*.*")]
    texts = [path.read_text() for path in (ROOT / "params.yaml", ROOT / "studies/my_data.yaml", *kept)]
    assert not [text for text in texts[:2] if "docs/" in text]
    named = {name for text in texts for name in re.findall(r"fedcore docs ([a-z_/]+)", text)} - {"lists"}
    assert len(named) > 10
    assert [name for name in sorted(named) if not (ROOT / f"docs/{name}.md").is_file()] == []


def test_nobody_is_told_to_install_from_an_index():
    """No package index has fedcore: `pip install` takes a clone, a wheel or a project's requirements.txt."""
    texts = [*PAGES, *(path for room in ("fedcore", "ops", "flows", "tasks") for path in (ROOT / room).rglob("*.*"))]
    found = [
        path
        for path in texts
        if path.suffix != ".pyc" and re.search(r"pip install\s+'?fedcore\b(?!-)", path.read_text())
    ]
    assert found == []


def test_columns_name_every_column_of_table_and_summary():
    text = (ROOT / "docs/columns.md").read_text().partition("## Splits and metrics")[0]
    table, _, both = text.partition("The **summary**")
    summary, _, parts = both.partition("| column after")
    lines = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    assert {word for line in lines for word in re.findall(r"`(\w+)`", line)} == {*TABLE, *SUMMARY, *PART} - {
        f"{split}_{part}" for split in SPLITS for part in PART
    }
    assert all(f"`{name}`" in table for name in TABLE)
    assert all(f"`{name}`" in summary for name in SUMMARY if name.partition("_")[0] not in SPLITS)
    assert all(f"`{name}`" in parts for name in PART)


def shown_method(word: str) -> dict[str, Any]:
    """Return the names of the block of docs/method_parts.md that has this word."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/method_parts.md").read_text(), re.DOTALL)
    (block,) = (block for block in blocks if word in block)
    names: dict[str, Any] = {"__name__": "shown"}
    exec(compile(block, "method_parts.md", "exec"), names)
    return names


@pytest.mark.slow
def test_the_method_that_shares_the_head_averages_that_alone():
    """In its first round the head is FedAvg's and the rest is that of local training; later training starts there."""
    fed, training = federation(), {"epochs": 1}
    one, two = (
        fc.run(fc.method(shown_method("lg_fedavg")["lg_fedavg"], rounds=n, training=training), fed) for n in (1, 2)
    )
    averaged = fc.run(fc.fedavg(rounds=1, training=training), fed)
    head, below = fc.layers(NET)["fc3"], [*fc.layers(NET)["fc1"], *fc.layers(NET)["fc2"]]
    assert head == ("fc3.weight", "fc3.bias")
    for name in fed.devices:
        sent, kept = one.state.messages[name].params, one.state.memories[name]
        assert {*sent} == {*head}
        assert all(torch.equal(sent[key], averaged.state.messages[name].params[key]) for key in head)
        assert {*kept} == {*below}
        device = fed.devices[name]
        _, update = fc.train(
            kept, one.state.messages[name], device, fc.StepId(0, 0, 1, name), training=fc.Training(epochs=1)
        )
        assert all(torch.equal(update.params[key], two.state.memories[name][key]) for key in below)
    assert one.rounds[0].up == dict.fromkeys("abc", 4 * (3 * 4 + 3))


@pytest.mark.slow
def test_the_method_that_reads_a_devices_data_runs():
    names = shown_method("attach=")
    result = fc.run(fc.method(names["by_loss"], rounds=2, training={"epochs": 1}), federation())
    numbers = 1 + 5  # the loss, and the hidden activations
    assert result.rounds[0].up == dict.fromkeys("abc", NBYTES + 4 * numbers)
    update = names["add_loss"](fc.Update(nets.init(NET, generator("x"))), device_of("a"), None)
    logits = predict(update.params, NET, device_of("a").data.train.x, 9)
    weight, bias = (update.params[f"fc1.{part}"] for part in ("weight", "bias"))
    torch.testing.assert_close(
        update.extra["loss"], -logits.log_softmax(1)[range(6), device_of("a").data.train.y].mean()
    )
    hidden = (device_of("a").data.train.x @ weight.T + bias).clamp(min=0).mean(0)
    torch.testing.assert_close(update.extra["hidden"], hidden)


def test_a_page_that_points_nowhere_is_found_out(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("# One, two\n[a](#one-two) [b](#one) [c](other.md) `fedcore/none.py` `python -m benchmarks_none`\n")
    assert broken_links(page) == ["#one", "other.md"]
    assert missing_paths(page) == ["fedcore/none.py"]
    assert missing_modules(page) == ["benchmarks_none"]


@pytest.mark.parametrize(("name", "lines"), [("README.md", 80), ("CHANGELOG.md", 200)])
def test_what_is_read_first_is_short(name: str, lines: int):
    assert len((ROOT / name).read_text().splitlines()) <= lines


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, "WARNING" in done.stderr) == (0, False), done.stderr
    methods = (tmp_path / "site" / "api" / "methods" / "index.html").read_text()
    assert all(f">{name}</" in methods for name in METHODS)
    assert "no number to compare" in (tmp_path / "site" / "papers" / "index.html").read_text()


def test_the_pages_scores_from_mlflow_keep_settings_apart(monkeypatch: pytest.MonkeyPatch, capsys: Any):
    runs = pd.DataFrame({f"tags.{tag}": ["a", "a"] for tag in ("study", "method", "data")})
    runs = runs.assign(**{"tags.seed": "0", "tags.setting": ["one", "two"], "metrics.test/accuracy": [0.25, 0.75]})
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(search_runs=lambda **_: runs))
    exec(re.findall(r"```python\n(.*?)```", (ROOT / "docs/mlflow.md").read_text(), re.DOTALL)[0])
    assert re.findall(r"0\.\d+", capsys.readouterr().out) == ["0.25", "0.75"]


ROOMS = ("core", "nets", "methods/dfl", "methods/fedasa", "methods/st_lf", "methods/code", "methods/one_shot")


@pytest.mark.parametrize("family", ["code", "dfl", "fedasa", "one_shot", "st_lf"])
def test_the_functions_that_a_family_page_names_exist(family: str):
    """`module.name` in the tables from the paper to the code, of a module of its rooms."""
    modules = {path.stem: path for room in ROOMS for path in (ROOT / "fedcore" / room).glob("[a-z]*.py")}
    sources = {name: path.read_text() for name, path in modules.items()}
    sources["training"] += sources["training_settings"]
    text = (ROOT / "docs" / "methods" / f"{family}.md").read_text()
    named = re.findall(r"`([a-z_]+)\.([A-Za-z_]\w*)(?:\.\w+)?(?:\([^`]*\))?`", text)
    settings = {*METHODS, "training", "federation", "data", "net", "run", "fc"}
    missing = [
        f"{module}.{name}"
        for module, name in named
        if module in sources
        and name != "py"
        and module not in settings - {"training"}
        and not re.search(rf"^(def|class|    def|    ) ?{name}\b|^{name}\b", sources[module], re.MULTILINE)
    ]
    assert missing == []


def rows_of_privacy() -> dict[str, list[str]]:
    """Return method -> the other cells of its row in the page's table."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / "docs/privacy.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        names = re.findall(r"`(\w+)`", cells[0]) if line.startswith("| `") else []
        for name in names:
            assert name not in found, f"{name} has two rows"
            found[name] = cells[1:]
    return found


def test_every_method_has_a_row_about_privacy_and_every_row_a_method():
    assert set(rows_of_privacy()) == set(METHODS)


def test_every_row_about_privacy_says_what_leaves_and_what_can_be_read():
    for name, (sent, read, _) in rows_of_privacy().items():
        assert sent, name
        assert read, name
