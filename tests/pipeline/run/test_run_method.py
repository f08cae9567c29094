"""What a run of one method tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fedcore as fc
from fedcore.data import Dataset
from fedcore.pipeline import environment
from fedcore.pipeline.cache.store import Store
from fedcore.types import Data, Report

environment.prepare()  # Prefect reads its settings when it is imported

from fedcore.pipeline.record.result import PreparedData
from fedcore.pipeline.run.run_method import name_classes, prepared_bytes
from fedcore.pipeline.run.step_functions import distribute


def test_a_warning_names_the_classes_of_the_data(tmp_path: Path):
    store = Store(tmp_path)
    data: Any = store.put(Dataset(Data(torch.zeros(2, 1), torch.tensor([0, 1])), None, ("leak", "worn")))
    told = [Report(words={"warning": "nobody has {1}"})]
    assert name_classes(store, PreparedData(data, data), told) == [Report(words={"warning": "nobody has 'worn'"})]
    assert name_classes(store, PreparedData(None, None), [Report()]) == [Report()]  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", ["none", "common"])
def test_the_pipeline_prepares_and_counts_as_a_script_does(tmp_path: Path, scale: Any):
    data = fc.load("digits")
    fed = fc.federate(data, devices=4, scale=scale)
    held, shared, server = distribute(data, fed.partition(), scale=scale)
    for name, device in fed.federation().devices.items():
        for part in ("train", "val", "test"):
            assert torch.equal(getattr(held[name], part).x, getattr(device.data, part).x)
    assert torch.equal(shared.x, fed.federation().test.x)
    assert not len(server)
    store = Store(tmp_path)
    prepared: Any = PreparedData(store.put(data), store.put(fed.partition()))
    counted = prepared_bytes(store, prepared, scale)
    rows = fc.run(fc.majority(), fed).table.set_index("metric")
    assert counted == ({"prepare_up": 8 + 16 * 64, "prepare_down": 16 * 64} if scale == "common" else {})
    for metric, value in counted.items():
        assert rows.loc[metric, "value"].tolist() == [value] * 4
