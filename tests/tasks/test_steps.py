"""Every step of a method has a task by trade, and a task runs the job that it is given."""

from typing import Any

import pytest
from every_method import ROWS
from federations import NET

from fedcore.pipeline import environment

environment.prepare()  # Prefect reads its settings when it is imported

from fedcore.core.rounds import receive
from fedcore.pipeline.orchestration import steps as orchestration
from fedcore.pipeline.orchestration.shards import word_of
from tasks import STEPS

BESIDE = {"partition", "distribute", "describe", "rounds", "deploy", "evaluate", "embed"}
"""Words of the pipeline's own steps, which belong to no method."""
GENERAL = {"close", "keep", "mask", "rescale", "personalise", "guess", "attack"}
"""Words of short steps that the general task runs."""


def words(name: str) -> set[str]:
    method = ROWS[name].build(dict.fromkeys("abcd", NET))
    functions = [method.begin]
    for stage in method.stages:
        functions += [stage.local, stage.combine, getattr(stage, "attach", None)]
    return {word_of(fn) for fn in functions if fn is not None and fn is not receive}


WORDS = {name: words(name) for name in ROWS}


@pytest.mark.parametrize("name", ROWS)
def test_the_steps_of_a_method_have_tasks(name: str):
    assert WORDS[name] - GENERAL <= STEPS.keys()


def test_every_task_is_used():
    assert STEPS.keys() <= set().union(*WORDS.values()) | BESIDE


@pytest.mark.parametrize("word", STEPS)
def test_a_task_runs_its_job_and_seals_the_record(word: str, monkeypatch: pytest.MonkeyPatch):
    ran: list[str] = []

    def work() -> dict[str, Any]:
        ran.append(word)
        return {"value": word, "wall": 0.5, "cpu": 0.25}

    job = orchestration.Job(work)
    monkeypatch.setitem(orchestration._JOBS, 7, job)
    record = STEPS[word].fn("key", 7)
    assert (ran, job.ran) == ([word], True)
    assert record == orchestration.with_checksum("key", {"value": word, "wall": 0.5, "cpu": 0.25})
    assert STEPS[word].fn.__doc__
