"""What a run of one method tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fedcore.data import Dataset
from fedcore.pipeline import environment
from fedcore.pipeline.cache.store import Store
from fedcore.types import Data, Report

environment.prepare()  # Prefect reads its settings when it is imported

from fedcore.pipeline.record.result import PreparedData
from fedcore.pipeline.run.run_method import name_classes


def test_a_warning_names_the_classes_of_the_data(tmp_path: Path):
    store = Store(tmp_path)
    data: Any = store.put(Dataset(Data(torch.zeros(2, 1), torch.tensor([0, 1])), None, ("leak", "worn")))
    told = [Report(words={"warning": "nobody has {1}"})]
    assert name_classes(store, PreparedData(data, data), told) == [Report(words={"warning": "nobody has 'worn'"})]
    assert name_classes(store, PreparedData(None, None), [Report()]) == [Report()]  # type: ignore[arg-type]
