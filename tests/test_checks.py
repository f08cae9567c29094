"""Scripts that check the tree: lines and words above their limits, what differs between checkouts, an old dvc.lock."""

import sys
from pathlib import Path

import budget
import digests
import dvc_lock
import prose
import pytest
import yaml

LINES = {"fedcore/one.py": 4, "fedcore/core/a.py": 10, "fedcore/core/deep/b.py": 2, "tests/core/test_a.py": 31}


@pytest.fixture
def lines(tmp_path: Path) -> dict[str, budget.Counter[str]]:
    for path, count in LINES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x\n" * count)
    return budget.rooms([*LINES, "fedcore/core/deleted.py"], tmp_path)


def test_lines_above_their_budget_are_named(lines: dict[str, budget.Counter[str]]):
    assert lines == {"fedcore": {".": 4, "core": 12}, "tests": {"core": 31}}
    shown, above = budget.table(lines, {"fedcore": {".": 4, "core": 11}, "tests": {}})
    assert above == ["fedcore/core: 12 lines", "tests/core: 31 lines"]
    assert [line.split() for line in shown[1:]] == [
        [".", "4", "4"], ["core", "12", "11", "31", "0"], ["sum", "16", "15", "31", "0"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "here", "late"), [(901, "this", 1), (900, "this", 0), (901, "that", 0), (None, "this", 0)]
)
def test_seconds_above_their_budget_count_on_its_processor(seconds: float | None, here: str, late: int):
    line, above = budget.time_of(seconds, {"seconds": 900, "processor": "this"}, here)
    assert above == [line] * late
    assert ("not measured" in line) == (seconds is None)


def test_what_is_written_is_a_budget_that_holds(lines: dict[str, budget.Counter[str]]):
    old = {"fedcore": {"gone": 3}, "tests": {}, "seconds": 900, "processor": "this"}
    new = yaml.safe_load(budget.write(lines, None, old, "that"))
    assert new == {**old, "fedcore": {".": 10, "core": 20}, "tests": {"core": 40}}
    assert budget.table(lines, new)[1] == []
    now = yaml.safe_load(budget.write(lines, 812.0, old, "that"))
    assert (now["seconds"], now["processor"]) == (1020, "that")


@pytest.mark.slow
def test_the_seconds_of_a_command_that_succeeds_are_noted(tmp_path: Path):
    work = "import time\nwhile time.process_time() < {}: pass\nraise SystemExit({})"
    assert budget.measure([sys.executable, "-Sc", work.format(0.6, 0)], tmp_path / "noted") == 0
    assert float((tmp_path / "noted").read_text()) >= 1
    assert budget.measure([sys.executable, "-Sc", work.format(0, 3)], tmp_path / "failed") == 3
    assert not (tmp_path / "failed").exists()


def test_the_budget_of_the_project_has_all_its_parts():
    parts = yaml.safe_load((budget.ROOT / "tests/budget.yaml").read_text())
    assert [*parts] == [*budget.TREES, "seconds", "processor"]
    assert all(type(n) is int for n in [*parts["fedcore"].values(), *parts["tests"].values(), parts["seconds"]])


def test_results_are_compared_byte_for_byte(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    before, after = (tmp_path / name / "pipeline/federate/code" for name in ("before", "after"))
    for folder in (before, after):
        folder.mkdir(parents=True)
    words = [str(tmp_path / "before"), str(tmp_path / "after")]
    assert digests.main(words) == 2
    assert "no models.json or table.parquet below pipeline/; make them there with" in capsys.readouterr().out
    for folder in (before, after):
        (folder / "models.json").write_bytes(b"one")
        (folder / "seconds.csv").write_text(folder.parts[-4])
    assert digests.main(words) == 0
    assert capsys.readouterr().out == "equal, byte for byte: 1 files, 3 bytes\n"
    (after / "models.json").write_bytes(b"One")
    (after / "table.parquet").write_bytes(b"two")
    assert digests.main(words) == 1
    assert capsys.readouterr().out.splitlines() == [
        "pipeline/federate/code/models.json: differs", "pipeline/federate/code/table.parquet: only after",
    ]  # fmt: skip
    assert digests.main(words[:1]) == 2


def test_a_lock_of_another_tree_is_seen_by_what_git_keeps():
    outputs = [{"changed deps": {"pipeline/data": "deleted"}}, {"changed outs": {"pipeline/plan": "not in cache"}}]
    assert dvc_lock.others({"plan": outputs}) == []
    assert dvc_lock.others(
        {
            "plan": [{"changed deps": {"fedcore": "modified", "params.yaml": {"run.size": "new"}}}, *outputs],
            "compare": [{"changed outs": {"dvc.processor": "new"}}, "changed command"],
        }
    ) == ["plan: fedcore, params.yaml", "compare: dvc.processor, changed command"]


PAGE = """\
# How?

One fact. It calls `fedcore run x` ([more](none.md)); see e.g. this: {long}.

* An item

| a | b |
| --- | --- |
| {long} | c |

```
fedcore run
```
"""


def test_words_and_sentences_of_a_page_are_counted(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(PAGE.format(long=" ".join(["word"] * 30)))
    assert prose.count_page(page, tmp_path) == {
        "words": 41 + 33, "sentences": 3, "sentence_words": 2 + 37 + 2, "long": 1, "very_long": 0,
        "long_cells": 1, "dead_links": 1, "no_example": 0,
    }  # fmt: skip
    assert prose.compare({"words": 74, "long_cells": 1}, {"words": 73, "long_cells": 1}) == ["words: 74, at most 73"]


def test_messages_that_are_long_or_odd_are_found(tmp_path: Path) -> None:
    (tmp_path / "fedcore").mkdir()
    long = " ".join(["word"] * 26)
    lines = [f"print('{long}')", "InputError(f'{x}: is no y')", f"print('{long[:60]}.\\n{long[60:]}')", "print(f'{x}')"]
    (tmp_path / "fedcore" / "a.py").write_text("\n".join(lines))
    assert prose.bad_messages(tmp_path) == [f"fedcore/a.py:1: {long}", "fedcore/a.py:2: X: is no y"]
