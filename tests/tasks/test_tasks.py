"""A project's tasks stand around the parts of methods, and leave no trace before they are edited."""

import subprocess
import sys

import pytest
from every_method import ROWS
from federations import NET
from project import ROOT

import tasks
from fedcore.pipeline import work

PARTS = ("local", "attach", "combine")
WORDS = {
    (place, work.word_of(getattr(stage, place)))
    for row in ROWS.values()
    for stage in row.build(dict.fromkeys("abcd", NET)).stages
    for place in PARTS
    if getattr(stage, place, None) is not None
}


def test_every_task_stands_around_a_part_of_some_method():
    assert {(place, word) for place, word in work.TASKS if place in PARTS} <= WORDS


def test_the_tasks_are_the_trades_of_the_papers():
    assert sorted({body.__name__ for body in work.TASKS.values()}) == [
        "average", "deploy", "distil", "evaluate", "form_links", "fuse", "partition", "rank", "share_cells", "train",
    ]  # fmt: skip
    assert all(getattr(tasks, body.__module__.rpartition(".")[2]) for body in work.TASKS.values())


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.slow
def test_tasks_that_nobody_edited_leave_methods_as_they_are(name: str):
    assert work.edited() == {}
    method = ROWS[name].build(dict.fromkeys("abcd", NET))
    assert work.with_tasks(method) is method


@pytest.mark.slow
def test_a_worker_that_loads_a_task_loads_no_orchestrator():
    script = "import tasks, sys; print(sorted({'prefect', 'mlflow', 'pandas'} & {*sys.modules}))"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    assert told.stdout == "[]\n"
