"""Where a script's steps run."""

from typing import Any

import pytest
import torch
from federations import bits
from simulated_device import KIND, SimulatedDevice

import fedcore as fc
from fedcore.api import executor as place
from fedcore.api.executor import OnAccelerator
from fedcore.core import together as vectorised


@pytest.mark.slow
def test_devices_train_on_the_accelerator_to_the_same_bits(monkeypatch: pytest.MonkeyPatch):
    fed = fc.federate(fc.load("digits"), fc.iid(), devices=2, net=fc.mlp(4), examples=100)
    config = fc.fedavg(rounds=2, training={"epochs": 1})
    plain = fc.run(config, fed, progress=False)
    monkeypatch.setattr(torch.cuda, "manual_seed", lambda seed: None)
    monkeypatch.setattr(place, "find_accelerator", lambda wanted: KIND)
    monkeypatch.setattr(OnAccelerator, "map", on_it(OnAccelerator.map, done := []))
    moved = fc.run(config, fed, progress=False, accelerator="auto")
    assert sum(done) > 0
    assert [bits(one) for one in plain.rounds] == [bits(one) for one in moved.rounds]


def on_it(run: Any, done: list[int]) -> Any:
    def map_calls(self: OnAccelerator, fn: Any, calls: Any) -> Any:
        with SimulatedDevice() as elsewhere:
            found = run(self, fn, calls)
        done.append(elsewhere.count)
        return found

    return map_calls


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
@pytest.mark.parametrize(("name", "says"), [("cuda", "there is none here"), ("gpu", "'none', 'auto' or 'cuda'")])
def test_an_accelerator_that_is_not_there_is_refused(name: Any, says: str):
    fed = fc.federate(fc.load("digits"), fc.iid(), devices=2, net=fc.mlp(4), examples=100)
    with pytest.raises(fc.InputError, match=says):
        fc.run(fc.local_only(), fed, accelerator=name)


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"together": 0}, "greater than or equal to 1"), ({"together": 4, "workers": 1}, "leave workers")],
)
def test_a_wrong_together_is_refused(settings: dict[str, Any], says: str):
    fed = fc.federate(fc.load("digits"), fc.iid(), devices=2, net=fc.mlp(4), examples=100)
    with pytest.raises(fc.InputError, match=says):
        fc.compare([fc.local_only()], fed, seeds=[0], **settings)


@pytest.mark.slow
def test_devices_train_together_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(place, "find_accelerator", lambda wanted: "cpu")
    run, groups = vectorised.run_on_together, []
    monkeypatch.setattr(vectorised, "run_on_together", lambda *args: groups.append(len(args) - 2) or run(*args))
    fed = fc.federate(fc.load("digits"), fc.iid(), devices=3, net=fc.mlp(4), examples=100)
    config = fc.fedavg(rounds=2, training={"epochs": 1})
    plain = fc.run(config, fed, progress=False).rounds[-1].state.messages["device-00"].params
    together = (
        fc.run(config, fed, progress=False, accelerator="auto", together=2)
        .rounds[-1]
        .state.messages["device-00"]
        .params
    )
    assert set(groups) == {1, 2}  # whether their last digits differ depends on the processor
    assert all(torch.allclose(plain[name], together[name], atol=1e-5) for name in plain)
