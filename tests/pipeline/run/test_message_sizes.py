"""What a plan takes a message's size to be, beside what is sent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from federations import SGD, federation
from signals import federation as signals

from fedcore.config.methods import MethodConfig
from fedcore.core import training
from fedcore.core.rounds import run
from fedcore.execute.workers import Inline
from fedcore.methods.fedasa import fedasa
from fedcore.pipeline.cache.store import Store
from fedcore.pipeline.run.message_sizes import message_bytes


@pytest.mark.slow
@pytest.mark.parametrize(("name", "stage"), [("fedavg", 0), ("fd", 0), ("scaffold", 0), ("ensemble", 1), ("st_lf", 1)])
def test_a_plan_counts_messages_as_large_as_they_are(name: str, stage: int, tmp_path: Path):
    fed = federation("abc")
    sizes = {who: len(device.data.train) for who, device in fed.devices.items()}
    row = MethodConfig(name, name, replace(SGD, optimiser_state="fresh", shared_init=True), {})
    turns = list(run(row.build(fed.public.nets, sizes), fed, 0, Inline()))
    sent = next(round_info for round_info in turns if any(round_info.up.values()))
    assert sent.round_info.stage == stage
    assert message_bytes(row, fed, sizes, Store(tmp_path)) == {stage: sent.up["c"]}


def test_devices_that_send_nothing_have_no_message(tmp_path: Path):
    fed = federation("ab")
    row = MethodConfig("local_only", "local_only", SGD, {})
    assert message_bytes(row, fed, {"a": 6, "b": 9}, Store(tmp_path)) == {}


def test_pretraining_is_a_single_minibatch_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[int] = []
    real = training.descend
    monkeypatch.setattr(
        training, "descend", lambda data, batches, step: seen.append(len(batches)) or real(data, batches, step)
    )
    settings = {"pretrain": 1, "pretrain_steps": 50}
    row = MethodConfig("st_lf", "st_lf", replace(SGD, optimiser_state="fresh", shared_init=True), settings)
    assert message_bytes(row, federation("ab"), {"a": 6, "b": 9}, Store(tmp_path))
    assert seen == [1]


@pytest.mark.slow
def test_a_server_trains_for_a_single_minibatch_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """FedASA's messages are as large whatever its auxiliary model has learnt."""
    fed, seen = signals("abc"), []
    real = fedasa.descend
    monkeypatch.setattr(
        fedasa, "descend", lambda data, batches, step: seen.append(len(batches)) or real(data, batches, step)
    )
    sizes = {who: len(device.data.train) for who, device in fed.devices.items()}
    row = MethodConfig("fedasa", "fedasa", replace(SGD, shared_init=True), {"steps": 40, "target": None})
    found = message_bytes(row, fed, sizes, Store(tmp_path))
    assert seen == [1]
    (turn, *_) = run(row.build(fed.public.nets, sizes), fed, 0, Inline())
    assert found == {0: turn.up[max(sizes, key=lambda who: sizes[who])]}
