"""A run or a study with the devices of a server's kit, over the server that stays or over one of its own."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedcore.api.federation import method
from fedcore.config.methods import MethodConfig
from fedcore.core.rounds import RoundResult
from fedcore.errors import InputError
from fedcore.field import station
from fedcore.field.kits import only_one, read_kit
from fedcore.field.runs import Setup, StoredRun, plan_run, read_run, read_setup, run_with_devices
from fedcore.field.study import FieldStudy, rows_of, run_study

Notify = Callable[[str], None]

SHOWN = {
    "accuracy": "accuracy {:.3f}, mean of {} devices",
    "rmse": "root mean squared error {:.4g}, mean of {} devices",
    "macro_f1": "macro F1 {:.3f}, mean of {} devices",
}
"""How a turn's mean is written."""


def choose_method(kit: Path, name: str | None, settings: Mapping[str, Any]) -> MethodConfig:
    """Return the method that is asked for: a row of the study, any method, or by default the study's answer."""
    study = read_setup(kit).study
    if name is None:
        name = None if study is None else study.answer
        if name is None:
            raise InputError("--method: name one; the study of these kits has no answer")
    if study is not None and name in (configs := study.configs):
        row = configs[name]
        if not settings:
            return row
        training = row.training.settings()
        return method(str(row.name), training=training, label=row.label, **{**row.settings, **settings})
    return method(name, **settings)


@contextmanager
def open_link(kit: Path, setup: Setup, seconds: float, notify: Notify) -> Iterator[tuple[Any, set[str]]]:
    """Open the way to the devices, and wait for them; who is away is named, and waited for no more."""
    with only_one(kit, "setup.json"):  # of two runs at once each would take the other's steps from the devices
        link: Any = station.find(kit)
        if link is None:
            from fedcore.field.cells import Cells

            link = Cells(read_kit(kit))
        try:
            if away := link.wait_for([*setup.devices], seconds):
                notify(f"not connected: {', '.join(away)}")
            yield link, {*away}
        finally:
            link.close()


@dataclass(frozen=True)
class FieldRun:
    """A run on real devices that is over. label: of its method."""

    folder: Path
    setup: Setup
    label: str
    stored: StoredRun


Played = FieldRun
"""Its name in the tasks of projects that were made before."""


def play(
    kit: Path, config: MethodConfig, name: str, seed: int | None = None, *, seconds: float, least: int | None = None,
    said: Notify = lambda line: None,
) -> FieldRun:  # fmt: skip
    """Run a method with a kit's devices to its end; a run of that name goes on from its last turn.

    seed: None: the study's. least: None: all devices must answer.
    """
    setup, folder = read_setup(kit), kit / "runs" / name
    seed = (0 if setup.study is None else setup.study.seed) if seed is None else seed
    plan_run(setup, config, seed, folder)
    with open_link(kit, setup, seconds, said) as (link, away):
        turns = run_with_devices(
            link, setup, config, seed, folder, seconds=seconds, least=least or len(setup.devices), notify=said,
            away=away,
        )  # fmt: skip
        for turn in turns:
            said(summary(turn))
    return FieldRun(folder, setup, config.label, read_run(folder))


def play_study(
    kit: Path, labels: Sequence[str], seeds: Sequence[int], *, seconds: float, least: int | None = None,
    notify: Notify = lambda line: None,
) -> FieldStudy:  # fmt: skip
    """Compare the rows of a kit's study on its devices. labels: of the rows; all of them if there are none."""
    setup = read_setup(kit)
    rows = rows_of(setup, labels)
    with open_link(kit, setup, seconds, notify) as (link, away):
        return run_study(
            link, setup, rows, seeds, kit / "runs", seconds=seconds, least=least or len(setup.devices), notify=notify,
            away=away,
        )  # fmt: skip


def summary(turn: RoundResult) -> str:
    """Return a turn in one line: who is absent, and a mean over devices, each on its own test examples.

    It is of the accuracy; of a number as label of the root mean squared error, of several labels of macro F1.
    """
    tested = [splits["test"] for splits in (turn.scores or {}).values() if "test" in splits]
    metric = next((name for name in SHOWN if any(name in scores for scores in tested)), "")
    values = [scores[metric] for scores in tested if scores.get(metric, math.nan) == scores.get(metric, math.nan)]
    absent = f"; absent: {', '.join(turn.absent)}" if turn.absent else ""
    mean = SHOWN[metric].format(sum(values) / len(values), len(values)) if values else "not scored"
    return f"stage {turn.state.stage + 1}, round {turn.state.round}: {mean}{absent}"
