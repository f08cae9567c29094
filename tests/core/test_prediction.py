"""A model's predictions are those of its module."""

import pytest
import torch
from torch import nn

from fedcore import nets
from fedcore.core.flat_nets import flatten_net, to_params, to_vector
from fedcore.core.prediction import accuracy, predict
from fedcore.nets.copies import load
from fedcore.types.federation import Data, Net
from fedcore.types.method import generator


def plain() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 9), nn.ReLU(), nn.Linear(9, 3))


def normed() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))


NETS = {
    "by hand": nets.net("mlp", shape=(1, 6, 6), classes=3, widths=[9, 5]),
    "autograd": Net(plain),
    "batch norm": Net(normed),
}


@pytest.mark.parametrize("net", NETS.values(), ids=NETS)
def test_predictions_are_the_modules_own(net):
    rng = generator("prediction")
    params = {name: tensor + 1 if "running" in name else tensor for name, tensor in nets.init(net, rng).items()}
    x = torch.randint(0, 256, (11, 1, 6, 6), generator=rng).to(torch.uint8)
    examples = Data(x, torch.randint(0, 3, (11,), generator=rng))
    module = net.build().eval()
    module.load_state_dict(params)
    expected = module(x / 255).detach()
    for inputs, batch in ((x, 4), (examples.inputs(), 100)):
        torch.testing.assert_close(predict(params, net, inputs, batch), expected)
    right = (expected.argmax(1) == examples.y).double().mean().item()
    assert accuracy(params, net, examples) == right
    assert predict(params, net, x[:0], 4).shape == (0, 3)


# A net as one vector: laid out and taken back, without sharing memory.
BY_HAND = nets.net("mlp", shape=(1, 6, 6), classes=3, widths=[9, 5])


def start(net, seed=5):
    return nets.init(net, torch.Generator().manual_seed(seed))


def test_modules_do_not_share_parameters():
    first, second = flatten_net(BY_HAND, start(BY_HAND, 1)), flatten_net(BY_HAND, start(BY_HAND, 2))
    first.vector.zero_()
    torch.testing.assert_close(second.params(), start(BY_HAND, 2), rtol=0, atol=0)
    assert first.params().keys() == second.params().keys()


def test_tensors_of_another_net_are_not_taken():
    with pytest.raises(RuntimeError, match=r"fc1\.bias"):
        load(BY_HAND, {**start(BY_HAND), "fc1.bias": torch.zeros(1)})


@pytest.mark.parametrize("name", ["mlp", "lenet", "resnet20"])
def test_numbers_by_name_are_laid_out_as_the_net_is_and_come_back(name):
    """Whatever the memory order of its tensors; zero where a tensor is missing."""
    net = nets.net(name, shape=(1, 28, 28), classes=3, **({"widths": [9]} if name == "mlp" else {}))
    params = start(net)
    flat = flatten_net(net, params)
    assert torch.equal(to_vector(flat, params), flat.vector)
    back = to_params(flat, flat.vector)
    assert set(back) == set(flat.parameters)
    for key, x in back.items():
        assert torch.equal(x, params[key])
        assert x.is_contiguous()
        x.zero_()
    assert flat.vector.any()
    last = list(flat.parameters)[-1]
    alone = to_vector(flat, {last: params[last]})
    assert torch.equal(to_params(flat, alone)[last], params[last])
    assert alone.count_nonzero() == params[last].count_nonzero()
