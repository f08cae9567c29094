"""Copies of a module: the same function, nothing shared but parameters, which are to be replaced."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from fedcore import nets
from fedcore.nets import net
from fedcore.nets.copies import Copy, _copy_of, load
from fedcore.types.federation import Net

PLAIN = {"mlp": {"widths": [6, 4]}, "lenet": {}, "resnet20": {"width": 0.25}, "mobilenet_v2": {"width": 0.1}}


class Odd(nn.Module):
    """State of every kind: buffers stored and not, one of them twice, lists, and perhaps what cannot be pickled."""

    def __init__(self, function=None):
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("hidden", torch.ones(3), persistent=False)
        self.again, self.weights = self.hidden, [self.one.weight]
        self.calls: list[int] = []
        self.function = function

    def forward(self, x):
        self.calls.append(len(x))
        self.hidden += 1
        x = self.two(self.one(x)) * self.hidden
        return self.function(x) if self.function is not None else x


def double(x):
    return 2 * x


@pytest.mark.parametrize("name", PLAIN)
def test_a_copy_is_the_module(name: str):
    module = net(name, shape=(3, 32, 32), classes=4, **PLAIN[name]).build().eval()
    made = Copy(module).load(module.state_dict(), torch.device("cpu"))
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(made(x), module(x))
    assert repr(made) == repr(module)
    assert {id(m) for m in made.modules()}.isdisjoint(id(m) for m in module.modules())


@pytest.mark.parametrize("function", [None, double, partial(torch.mul, 2), lambda x: 2 * x])
def test_a_module_has_its_own_state(function):
    odd = Net(partial(Odd, function), copied=True)
    params = nets.init(odd, torch.Generator())
    first, second, expected = load(odd, params), load(odd, params), Odd(function)
    expected.load_state_dict(params)
    x = torch.ones(2, 3)
    assert torch.equal(first(x), expected(x))
    assert torch.equal(first(x), expected(x))
    assert (first.calls, second.calls) == ([2, 2], [])
    assert second.hidden.tolist() == [1, 1, 1]
    assert first.again is first.hidden
    assert first.one.weight is first.weights[0]
    assert first.one.weight.data_ptr() == params["one.weight"].data_ptr()


def test_what_can_be_pickled_is():
    """Otherwise the fast way would never be taken, and nothing would tell."""
    assert _copy_of(nets.key(Net(partial(Odd, double)))) is not None
    assert _copy_of(nets.key(Net(partial(Odd, lambda x: x)))) is None
    for name, settings in {**PLAIN, "lstm": {"vocabulary": 5}}.items():
        known = net(name, shape=(3, 32, 32) if name != "lstm" else (4,), classes=4, **settings)
        assert known.copied
        assert _copy_of(nets.key(known)) is not None


class Counting(nn.Linear):
    """Loads its tensors in a way of its own."""

    loaded = 0

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self.loaded += 1


def test_a_module_with_its_own_way_of_loading_keeps_it():
    net = Net(partial(Counting, 2, 3))
    assert load(net, nets.init(net, torch.Generator())).loaded == 1


@pytest.mark.parametrize("change", [{"weight": torch.zeros(3, 5)}, {"more": torch.zeros(1)}, {"bias": None}])
def test_tensors_that_do_not_fit_are_refused(change: dict[str, Any]):
    net = Net(partial(nn.Linear, 2, 3))
    given = {
        name: tensor for name, tensor in (nets.init(net, torch.Generator()) | change).items() if tensor is not None
    }
    with pytest.raises(RuntimeError, match="Error"):
        load(net, given)


def test_a_loaded_module_is_as_pytorch_loads_it():
    net = nets.net("resnet20", shape=(3, 32, 32), classes=3)
    params = nets.init(net, torch.Generator())
    ours, theirs = load(net, params), net.build()
    theirs.load_state_dict(params, assign=True)
    for kind in ("named_parameters", "named_buffers"):
        mine, plain = dict(getattr(ours, kind)()), dict(getattr(theirs, kind)())
        assert mine.keys() == plain.keys()
        for name in mine:
            assert mine[name].data_ptr() == plain[name].data_ptr() == params[name].data_ptr()
            assert mine[name].requires_grad == plain[name].requires_grad
