"""A net as one vector: laid out and taken back, without sharing memory."""

import pytest
import torch

from fedcore import nets
from fedcore.core.flat_nets import flatten_net, to_params, to_vector
from fedcore.nets.copies import load

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
