"""Sites whose rows are all marked test, scored by the pipeline."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedcore as fc
from fedcore.core.rounds import run as rounds
from fedcore.execute.workers import Inline
from fedcore.pipeline import environment
from fedcore.pipeline.cache.store import Ref, Store

environment.prepare()  # Prefect reads its settings when it is imported

from fedcore.pipeline.record.result import PreparedData
from fedcore.pipeline.run.left_out import score_sites


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
