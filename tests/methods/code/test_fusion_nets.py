"""Fusion of the registered nets by their tables, against right answers: permuted, split and merged ones."""

import pytest
import torch
from narrow_nets import NARROW, images, narrow, seeded
from torch import Tensor

from fedcore import nets
from fedcore.core.aggregation import evenly, mean
from fedcore.methods.code.fusion import align, code, units
from fedcore.methods.code.transport import Transport
from fedcore.types.federation import Axes, Net, Params

EXACT, NEWTON = Transport("exact"), Transport(reg=1e-4, max_iterations=200)


def network(net: Net, seed: int) -> Params:
    """Initial tensors, with norms and biases that tell units apart as those of a trained net do."""
    generator = seeded(seed)
    params = nets.init(net, generator)
    for name, tensor in params.items():
        if tensor.dim() == 1:
            tensor.add_(0.1 * torch.randn(tensor.shape, generator=generator))
            if name.endswith("running_var"):
                tensor.abs_().add_(0.1)
    return params


def gather(params: Params, axes: Axes, picks: dict[str, Tensor]) -> Params:
    """Take units by number on every axis that carries them; outgoing weights are divided by a unit's copies."""
    widths, out = units(params, axes), dict(params)
    for name, labels in axes.items():
        for axis, label in enumerate(labels):
            if label is not None:
                pick = picks[label]
                x = out[name].movedim(axis, 0).unflatten(0, (widths[label], -1))[pick]
                if axis:
                    copies = torch.bincount(pick, minlength=widths[label])[pick]
                    x = x / copies.reshape(-1, *[1] * (x.dim() - 1))
                out[name] = x.flatten(0, 1).movedim(0, axis)
    return out


def shuffles(params: Params, axes: Axes, seed: int) -> dict[str, Tensor]:
    """An order of every label's units, in which the first is not the first."""
    generator = seeded(seed)
    orders = {label: torch.randperm(n, generator=generator) for label, n in units(params, axes).items()}
    return {label: order if order[0] else order.roll(1) for label, order in orders.items()}


def outputs(net: Net, params: Params, x: Tensor, training: bool = False) -> Tensor:
    """The logits, so scaled that the largest is about one."""
    module = net.build().train(training)
    module.load_state_dict(params)
    with torch.no_grad():
        return module(x)


def same(found: Tensor, wanted: Tensor) -> None:
    scale = wanted.abs().max()
    torch.testing.assert_close(found / scale, wanted / scale, rtol=0, atol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True], ids=["running", "batch"])
@pytest.mark.parametrize("case", NARROW)
def test_shuffling_along_the_table_leaves_the_function(case: str, training: bool) -> None:
    net, shape = narrow(case)
    params = network(net, 0)
    shuffled = gather(params, net.table, shuffles(params, net.table, 1))
    moved = [name for name in net.table if not torch.equal(shuffled[name], params[name])]
    assert len(moved) == len(net.table) - 1  # all but the last layer's bias
    x = images(shape)
    found, wanted = (outputs(net, tensors, x, training) for tensors in (shuffled, params))
    torch.testing.assert_close(found / wanted.abs().max(), wanted / wanted.abs().max(), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("transport", [EXACT, NEWTON], ids=["exact", "newton"])
@pytest.mark.parametrize("case", NARROW)
def test_shuffled_net_fuses_back_to_itself(case: str, transport: Transport) -> None:
    net, _ = narrow(case)
    target = network(net, 0)
    model = gather(target, net.table, shuffles(target, net.table, 1))
    torch.testing.assert_close(align(model, target, net.table, transport)[0], target, rtol=0, atol=1e-5)
    torch.testing.assert_close(code([model, target], net.table, transport)[0], target, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("copies", [2, 3])
@pytest.mark.parametrize("case", NARROW)
def test_split_and_merged_units_leave_the_function(case: str, copies: int) -> None:
    (net, shape), (wider, _) = narrow(case), narrow(case, copies)
    small = network(net, 0)
    picks = {label: order.repeat(copies) for label, order in shuffles(small, net.table, 1).items()}
    wide = gather(small, net.table, picks)
    x = images(shape)
    wanted = outputs(net, small, x)
    same(outputs(wider, wide, x), wanted)
    split, merged = align(small, wide, net.table, EXACT)[0], align(wide, small, net.table, EXACT)[0]
    torch.testing.assert_close(split, wide, rtol=0, atol=1e-5)
    torch.testing.assert_close(merged, small, rtol=0, atol=1e-5)
    same(outputs(wider, split, x), wanted)
    same(outputs(net, merged, x), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("case", NARROW)
def test_unequal_widths_take_the_targets_shapes(case: str) -> None:
    """CODE, Remark 3."""
    (net, shape), (wider, _) = narrow(case), narrow(case, 2)
    for own, other in ((net, wider), (wider, net)):
        fused, plans = code([network(own, 0), network(other, 1)], own.table, EXACT)
        assert {name: tuple(x.shape) for name, x in fused.items()} == nets.shapes(other)
        assert bool(outputs(other, fused, images(shape)).isfinite().all())
        assert [*plans[0]] == [*units(fused, own.table)]


def test_a_mean_of_nets_with_norms_has_the_mean_statistics() -> None:
    net, shape = narrow("resnet20")
    models = [network(net, seed) for seed in range(3)]
    for k, model in enumerate(models):
        model["stem.norm1.num_batches_tracked"] = torch.tensor(5 + k)
    found = mean(models, evenly(3))
    for name in ("stem.norm1.running_mean", "stem.norm1.running_var", "stem.norm1.weight", "stem.conv1.weight"):
        torch.testing.assert_close(found[name], sum(model[name] for model in models) / 3)
    assert found["stem.norm1.num_batches_tracked"].item() == 5
    assert bool(outputs(net, found, images(shape)).isfinite().all())
    torch.testing.assert_close(mean([models[0]] * 3, torch.tensor([1.0, 0.0, 0.0])), models[0], rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["lenet", "mcmahan_cnn"])
def test_whole_nets_come_back_as_well(case: str) -> None:
    net = nets.net(case, shape=(1, 28, 28), classes=10)
    target = network(net, 0)
    model = gather(target, net.table, shuffles(target, net.table, 1))
    torch.testing.assert_close(align(model, target, net.table, EXACT)[0], target, rtol=0, atol=1e-6)
