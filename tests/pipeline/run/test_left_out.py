"""Sites whose rows are all marked test, scored by the pipeline."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedcore as fc
from fedcore.core.rounds import run as rounds
from fedcore.execute.workers import Inline
from fedcore.pipeline import environment
from fedcore.pipeline.cache.store import Ref, Store

environment.prepare()  # Prefect reads its settings when it is imported

from fedcore.errors import InputError
from fedcore.pipeline.record.result import PreparedData
from fedcore.pipeline.run.left_out import MOST, federation_without, leaves_out, score_sites


class Steps(Inline):
    """Steps in this process, on stored values."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def run_inline(self, fn: Any, *refs: Ref) -> Any:
        return fn(*map(self.store.get, refs))


@pytest.mark.parametrize("marked", [True, False])
def test_the_pipeline_scores_a_new_site_as_a_script_does(tmp_path: Path, marked: bool):
    rng = np.random.default_rng(0)
    x, site = rng.normal(size=(160, 3)), np.arange(160) % 4
    split = np.where(site == 3, "test" if marked else "train", np.array(["train", "train", "test"])[np.arange(160) % 3])
    data = fc.from_arrays(x, (x[:, 0] > 0).astype(int), device=[f"s{i}" for i in site])
    data = replace(data, split=tuple(split.tolist()))
    fed = fc.federate(data, fc.by_device(), net=fc.mlp(6))
    config = fc.fedavg(rounds=2, training={"epochs": 1})
    federation = fed.federation()
    method = config.build(federation.public.nets)
    store = Store(tmp_path)
    prepared: Any = PreparedData(store.put(data), store.put(fed.partition()))
    steps: Any = Steps(store)
    *_, last = rounds(method, federation, 0, steps)
    found = score_sites(steps, prepared, "none", method, federation, last.state)
    table = fc.run(config, fed).table
    rows = table[table["split"] == "left_out"]
    assert found == ({"s3": dict(zip(rows["metric"], rows["value"], strict=True))} if marked else {})
    assert {*rows["device"]} == ({"s3"} if marked else set())


def rows(devices: int, named: bool = True) -> fc.Dataset:
    x = np.random.default_rng(0).normal(size=(20 * devices, 3))
    owners = [f"s{i % devices:02d}" for i in range(len(x))]
    return fc.from_arrays(x, (x[:, 0] > 0).astype(int), device=owners if named else None)


@pytest.mark.parametrize("scale", ["none", "device", "common"])
def test_the_federation_without_a_device_is_that_of_a_script(tmp_path: Path, scale: Any):
    fed, store = fc.federate(rows(4), fc.by_device(), net=fc.mlp(6), scale=scale), Store(tmp_path)
    prepared, steps = PreparedData(store.put(fed.dataset), store.put(fed.partition(1))), Steps(store)
    found, examples = federation_without(steps, fed.federation(1), prepared, scale, "s02")
    expected, theirs = fed.left_out("s02", 1)
    assert [*found.devices] == [*expected.devices] == ["s00", "s01", "s03"]
    pairs = [(examples, theirs), (found.test, expected.test)]
    for name, device in expected.devices.items():
        assert found.devices[name].net == device.net
        pairs += [
            (found.devices[name].data.train, device.data.train),
            (found.devices[name].data.test, device.data.test),
        ]
    for one, other in pairs:
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.y, other.y)


@pytest.mark.parametrize(("asked", "devices", "named", "expected"), [
    ("auto", 4, True, True), ("auto", MOST + 1, True, False), ("auto", 4, False, False), ("shared", 4, True, False),
    ("left_out", MOST + 1, True, True), ("left_out", 4, False, True),
])  # fmt: skip
def test_what_leaves_devices_out(tmp_path: Path, asked: Any, devices: int, named: bool, expected: bool):
    data, store = rows(devices, named), Store(tmp_path)
    fed = fc.federate(data, fc.by_device() if named else fc.iid(), devices=devices, min_size=1)
    assert leaves_out(asked, store, PreparedData(store.put(data), store.put(fed.partition()))) == expected


def test_one_device_cannot_be_left_out(tmp_path: Path):
    store, fed = Store(tmp_path), fc.federate(rows(1), fc.by_device())
    with pytest.raises(InputError, match=r"run.new_device = 'left_out': needs at least two devices"):
        leaves_out("left_out", store, PreparedData(store.put(fed.dataset), store.put(fed.partition())))
