"""Steps of the pipeline without a server of Prefect: a task run is called at once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedcore.pipeline import environment
from fedcore.pipeline.orchestration.task_runs import Nodes


class Ended:
    """Stands in for the future of a task run that has ended. name: of the run; parents: the runs that it waits for."""

    def __init__(self, run: Callable[[], Any], name: str, parents: list[Any]) -> None:
        self.name, self.parents = name, parents
        self.error: BaseException | None = None
        try:
            self.state = run()
        except BaseException as error:
            self.error = error

    def result(self) -> None:
        if self.error is not None:
            raise self.error

    def add_done_callback(self, fn: Callable[[Any], None]) -> None:
        fn(self)


def run_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Ended]:
    """Let graphs keep records and locks in a folder and call task runs at once; returns these, as they come."""
    (folder / "steps").mkdir(exist_ok=True)
    monkeypatch.setattr(environment, "STEPS", folder / "steps")
    monkeypatch.setattr(environment, "LOCKS", folder / "locks")
    nodes: list[Ended] = []

    def start(self: Nodes, task: Any, parents: list[Any]) -> Ended:
        nodes.append(node := Ended(task.fn, task.task_run_name(), parents))
        return node

    monkeypatch.setattr(Nodes, "start", start)
    return nodes
