"""A federation that runs again, after a value that its nets' constructors read was changed."""

import pytest
import torch
from torch import nn

import fedcore as fc
from fedcore.nets.weights import write_weights

FACTOR, WAYS = 1.0, {"act": nn.Tanh}


class Number(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.first, self.last, self.factor = nn.Linear(shape[0], 4), nn.Linear(4, classes), FACTOR

    def forward(self, x):
        return self.last(torch.tanh(self.first(x) * self.factor))


class Layer(nn.Module):
    factor = 1.0

    def __init__(self, shape, classes):
        super().__init__()
        self.first, self.last = nn.Linear(shape[0], 4), nn.Linear(4, classes)
        self.act = WAYS["act"]() if self.factor == 1 else nn.Sigmoid()

    def forward(self, x):
        return self.last(self.act(self.first(x)))


class Held(Number):
    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.factor, self._held = 1.0, [FACTOR]

    def forward(self, x):
        return self.last(torch.tanh(self.first(x) * self._held[0]))


def build(shape, classes):
    return nn.Sequential(nn.Linear(shape[0], 4), nn.LeakyReLU(FACTOR / 10), nn.Linear(4, classes))


CHANGES = {
    "a number": (Number, lambda patch: patch.setitem(globals(), "FACTOR", 4.0)),
    "a layer in a table": (Layer, lambda patch: patch.setitem(WAYS, "act", nn.ReLU)),
    "an attribute of the class": (Layer, lambda patch: patch.setattr(Layer, "factor", 4.0)),
    "a private list": (Held, lambda patch: patch.setitem(globals(), "FACTOR", 4.0)),
    "a setting of a layer": (build, lambda patch: patch.setitem(globals(), "FACTOR", 4.0)),
}
METHOD = fc.fedavg(rounds=2, training={"optimiser": "sgd", "lr": 0.1, "epochs": 2})


def divided(which, **settings):
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=draws)
    data = fc.from_arrays(x.numpy(), (x[:, 0] > 0).long().numpy(), device=["a", "b"] * 30)
    return fc.federate(data, fc.by_device(), net=fc.net(which, **settings), shared_test=0.2), x.numpy()


def losses(result):
    return result.table.query("metric == 'loss'")["value"].tolist()


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("own", [False, True])
def test_its_nets_are_made_as_they_are_now(what, own, monkeypatch):
    which, change = CHANGES[what]
    fed, x = divided(which)
    again = fed.federation() if own else fed
    first = fc.run(METHOD, again)
    assert losses(fc.run(METHOD, again)) == losses(first)
    assert fc.run(METHOD, again).fed is again  # nothing is made anew
    before = None if own else first.models["a"].probabilities(x)
    change(monkeypatch)
    later, new = fc.run(METHOD, again), divided(which)[0]
    assert losses(later) == losses(fc.run(METHOD, new.federation() if own else new)) != losses(first)
    if not own:
        assert (first.models["a"].probabilities(x) == before).all()
        assert (later.models["a"].probabilities(x) != before).any()


def test_its_nets_that_start_from_a_file_are_those_of_a_plain_loop(tmp_path, monkeypatch):
    start = Number((3,), 2).state_dict()
    write_weights(start, tmp_path / "of.safetensors")
    fed, _ = divided(Number, weights=str(tmp_path / "of.safetensors"))
    sgd = {"optimiser": "sgd", "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "schedule": "constant"}
    method = fc.local_only(training=sgd | {"batch": 100, "epochs": 3})
    first = fc.run(method, fed)
    assert fc.run(method, fed).fed is fed
    monkeypatch.setitem(globals(), "FACTOR", 4.0)
    table = fc.run(method, fed).table.query("device == 'a' and split == 'test' and metric == 'loss'")
    device, module = fed.federation().devices["a"].data, Number((3,), 2)
    module.load_state_dict(start)
    optimiser = torch.optim.SGD(module.parameters(), 0.1)
    for _ in range(3):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(device.train.x), device.train.y).backward()
        optimiser.step()
    expected = nn.functional.cross_entropy(module(device.test.x), device.test.y).item()
    assert table["value"].iloc[-1] == pytest.approx(expected, rel=1e-5)
    assert table["value"].iloc[-1] not in losses(first)


@pytest.mark.parametrize("what", ["dataset", "dataset's examples", "device"])
def test_rows_changed_in_place_are_those_of_a_new_federation(what):
    fed = divided(Number)[0]
    first = fc.run(METHOD, fed)
    assert fed.federation() is fed.federation()
    if what == "dataset":
        fed.dataset.train.y[:] = 1 - fed.dataset.train.y
    elif what == "dataset's examples":
        fed.dataset.train.x.mul_(-1)
    else:
        fed.federation().devices["a"].data.train.y[:] = 0
    new = fc.federate(fed.dataset, fc.by_device(), net=fc.net(Number), shared_test=0.2)
    assert losses(fc.run(METHOD, fed)) == losses(fc.run(METHOD, new))
    assert (losses(fc.run(METHOD, fed)) == losses(first)) == (what == "device")
