"""What a script decides by arithmetic: how often it evaluates, and in how many processes it trains."""

import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import own_modules
import pytest
import torch
from torch.overrides import TorchFunctionMode

import fedcore as fc
from fedcore.api import effort, runs
from fedcore.api.effort import Effort, processes, stays
from fedcore.execute.workers import Engine

LONG = Effort(rounds=40, training=1.0, evaluation=0.75, units=10)


def data(count: int = 120, devices: int = 3) -> Any:
    draws = np.random.default_rng(0)
    return fc.federate(fc.from_arrays(draws.random((count, 6), dtype=np.float32), draws.integers(0, 2, count)),
                       fc.iid(), devices=devices)  # fmt: skip


def test_evaluation_stays_near_a_fifth():
    assert LONG.every == 4
    for rounds in (10, 12, 40, 41, 1000):  # the last of which is always evaluated
        some = replace(LONG, rounds=rounds)
        assert 0.12 < 1 - rounds / some.seconds(some.every) <= 0.2
    assert replace(LONG, rounds=2).every == 1  # quick: each round
    assert replace(LONG, evaluation=0.2).every == 1
    assert replace(LONG, rounds=1, evaluation=50.0).every == 1


def test_work_grows_with_rows_epochs_and_rounds():
    def of(fed: Any, **settings: Any) -> Effort:
        config = fc.fedavg(rounds=2, training={"epochs": 1, "batch": 4, **settings})
        federation = fed.federation(0)
        return effort.effort(config.build(federation.public.nets), config.training, federation)

    few = of(data())
    assert (few.rounds, few.units) == (2, 3)
    assert of(data(), epochs=3).training == pytest.approx(3 * few.training)
    assert of(data(1200)).training > 8 * few.training
    assert of(data(1200)).evaluation > few.evaluation


def test_processes_are_taken_where_they_are_faster(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(effort, "cores", lambda: 4)
    assert processes([LONG], 1, 1, []) == 4
    assert processes([replace(LONG, units=2)], 1, 1, []) == 2
    assert processes([replace(LONG, rounds=3)], 1, 1, []) is None  # short
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(processes([LONG], 1, 1, [])))
    thread.start()
    thread.join()
    assert found == [None]
    assert capsys.readouterr().err == ""
    assert processes([LONG], 1, 1, [lambda: 0]) is None
    assert "is a function of this program; workers=4" in capsys.readouterr().err


def test_what_cannot_travel_stays():
    assert stays([fc.train, np.zeros(2), "text"]) is None
    assert "cannot" in str(stays([threading.Lock()]))


@pytest.mark.slow
def test_a_run_takes_what_is_decided_and_typed_values_win(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Effort, "every", 2)
    fed, method = data(), fc.fedavg(rounds=4, training={"epochs": 1})
    chosen, typed = fc.run(method, fed), fc.run(method, fed, every=1)
    assert [result.scores is not None for result in chosen.rounds] == [False, True, False, True]
    assert all(result.scores is not None for result in typed.rounds)
    asked: list[Any] = []
    monkeypatch.setattr(runs, "processes", lambda *args: asked.append(args[1:3]))
    runs.planned([method], fed, [0, 1], None, None, None, "none")
    assert asked == [(2, 2)]
    assert runs.planned([method], fed, [0], 2, 3, None, "none") == (2, 3)
    claimed = fc.compare([method, fc.local_only(training={"epochs": 1})], fed, range(3), claims=["fedavg > local_only"])
    assert claimed.table["round"].nunique() == 5 or claimed.table["round"].nunique() == 4


class Elsewhere(Engine):
    def call(self, fn: Any, *args: Any, **_: Any) -> Any:
        return pickle.loads(b"c__main__\nscale\n.")


@pytest.mark.slow
def test_a_function_that_workers_cannot_find_is_named():
    assert effort.differing_value(Elsewhere(), [], [lambda: 0]) == "scale"


def test_workers_that_have_another_value_are_not_taken(monkeypatch: pytest.MonkeyPatch, capsys: Any):
    monkeypatch.setattr(runs, "differing_value", lambda *_: "T")
    fed, method = data(), fc.fedavg(rounds=1, training={"epochs": 1})
    with pytest.raises(fc.InputError, match=r"^run.workers = 2: a worker .* lacks T as it is here; set it in its file"):
        fc.run(method, fed, workers=2)
    monkeypatch.setattr(runs, "processes", lambda *_: 2)
    chosen, alone = fc.run(method, fed), fc.run(method, fed, every=1)
    assert chosen.table.value.equals(alone.table.value)
    assert capsys.readouterr().err.startswith("trains in one process, since a worker process, which imports files anew")


class Plain(TorchFunctionMode):
    def __torch_function__(self, fn: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return fn(*args, **(kwargs or {}))


@contextmanager
def hooked() -> Iterator[None]:
    hook = torch.nn.modules.module.register_module_forward_hook(lambda module, inputs, output: output * 1.5)
    yield
    hook.remove()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of_all", "name"),
    [
        (hooked, "torch.nn.modules.module._global_forward_hooks"), (Plain, "torch.overrides"),
    ],
)  # fmt: skip
def test_hooks_and_modes_of_all_of_pytorch_are_not_in_workers_and_refused(of_all: Any, name: str):
    method, fed = fc.fedavg(rounds=1, training={"epochs": 1}), data()
    with of_all(), pytest.raises(fc.InputError, match=rf"^run.workers = 2: a worker .* lacks {name} as it is here"):
        fc.run(method, fed, workers=2, progress=False)


@pytest.mark.slow
def test_a_scripts_value_may_change_between_runs_of_one_federation():
    """A net of a script is pickled by value, with what its functions read."""
    scale = 1.0

    class Scaled(torch.nn.Module):
        def __init__(self, shape: Any, classes: int) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(shape[0], classes)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            outputs: torch.Tensor = self.layer(x * scale)
            return outputs

    draws = np.random.default_rng(0)
    rows = fc.from_arrays(draws.random((60, 6), dtype=np.float32), draws.integers(0, 2, 60))
    fed, method = fc.federate(rows, fc.iid(), devices=2, net=fc.net(Scaled)), fc.fedavg(rounds=1)
    fc.run(method, fed, workers=1)
    scale = 7.0
    there, here = fc.run(method, fed, workers=1), fc.run(method, fed)
    assert there.table.value.equals(here.table.value)


class Kept:
    __slots__ = ("file",)
    act = property(lambda self: own_modules.ACT)


KEPT, LATER = Kept(), MappingProxyType({"file": own_modules})
KEPT.file = own_modules
WAYS = [
    "getattr(own_modules, 'ACT')", "vars(own_modules)['ACT']", "attrgetter('ACT')(own_modules)", "KEPT.file.ACT",
    "sys.modules['own_modules'].ACT", "import_module('own_modules').ACT", "__import__('own_modules').ACT", "KEPT.act",
    "[getattr(own_modules, name) for name in ('ACT', 'CLASSES')]", "LATER['file'].ACT",
]  # fmt: skip


SCALE = ContextVar("SCALE", default=1.0)


def test_a_context_variable_is_a_value():
    functions = [lambda batch: batch / SCALE.get()]
    before = effort.users_values([], functions)
    SCALE.set(3.0)
    assert effort.users_values([], functions) != before


@pytest.mark.slow
def test_whatever_way_code_reads_a_value_set_in_a_file_is_seen(monkeypatch: pytest.MonkeyPatch):
    functions = [eval(f"lambda batch: {way}", globals()) for way in WAYS]
    before = [effort.users_values([], [function]) for function in functions]
    monkeypatch.setattr(own_modules, "ACT", "another")
    after = [effort.users_values([], [function]) for function in functions]
    assert [way for way, *both in zip(WAYS, before, after, strict=True) if both[0] == both[1]] == []
