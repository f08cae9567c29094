"""Devices train together in the repeated rounds of a chunk as well."""

from pathlib import Path

import pytest
import torch
from federations import SGD, federation

from fedcore.core import stacked
from fedcore.core.rounds import begin, run
from fedcore.execute.workers import Inline
from fedcore.methods import method
from fedcore.pipeline import environment
from fedcore.pipeline.cache.keys import Digest
from fedcore.pipeline.cache.store import Store

environment.prepare()  # Prefect reads its settings when it is imported

from fedcore.pipeline.orchestration.cached_steps import InMemory
from fedcore.pipeline.orchestration.shards import nested_on, word_of
from fedcore.pipeline.run.chunks import compute_chunk, stored_parts


@pytest.mark.slow
def test_devices_train_together_in_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sizes: list[int] = []
    real = stacked.descend
    monkeypatch.setattr(stacked, "descend", lambda descents: [sizes.append(len(descents)), real(descents)][1])
    fed, store = federation("ab"), Store(tmp_path)
    nets = {name: device.net for name, device in fed.devices.items()}
    built = method(
        "fedavg", nets=nets, training=SGD, shared_init=True, rounds=3, fraction=1.0, weights="size", upload="model"
    )
    execute = InMemory(store, Inline(), lambda count: None, "cpu", 2)  # type: ignore[arg-type]
    place = (*stored_parts(begin(built, fed, 0, Inline())), 0, 0)
    found = compute_chunk(execute, built, fed, 0, place, 1, 3, [place])
    assert sizes == [2, 2, 2]
    expected = [*run(built, fed, 0, Inline())][-1].state.messages["a"].params
    for name, tensor in store.get(found["state"][1]["a"]).params.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_chunks_key_knows_how_many_train_together():
    steps = [nested_on(compute_chunk, kind, most) for kind, most in ((None, 1), ("cpu", 1), ("cpu", 2), ("cpu", 3))]
    assert len({Digest().of(step) for step in steps}) == 4
    assert {word_of(step) for step in steps} == {"rounds"}
