"""Gaussians against scikit-learn's decomposition, draws against the stated moments, and targets by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from federations import NET, SGD, data
from sklearn.decomposition import PCA
from torch.nn.functional import cross_entropy

from fedcore import nets
from fedcore.core.training import flatten_net, minibatches
from fedcore.methods.one_shot.gaussians import (
    ALL,
    draw,
    draw_weights,
    gaussian,
    learn,
    read_sketch,
    sketch,
    soft_target_grad,
    targets_of,
)
from fedcore.types.federation import Data
from fedcore.types.method import RoundInfo, generator

ROUND_INFO = RoundInfo(3, 1, 0, ("a",), ("a",))


def examples(count, *shape, rank=3):
    """Examples with `rank` strong directions and weak noise."""
    size = int(np.prod(shape))
    mixing = torch.randn(rank, size, generator=generator("mixing"))
    x = torch.randn(count, rank, generator=generator("x")) @ mixing
    return (x + 0.1 * torch.randn(count, size, generator=generator("noise")) + 2).reshape(count, *shape)


@pytest.mark.parametrize(("count", "shape"), [(50, (12,)), (7, (12,)), (9, (3, 4)), (60, (2, 3, 4))])
@pytest.mark.parametrize("rank", [1, 4, 30])
def test_a_gaussian_is_scikit_learns_decomposition(count, shape, rank):
    x = examples(count, *shape)
    found, q = gaussian(x, rank), min(rank, count - 1, x[0].numel())
    reference = PCA(svd_solver="full").fit(x.flatten(1).double().numpy())
    variances = reference.explained_variance_ * (count - 1) / count
    assert found.axes.shape == (q, *shape)
    np.testing.assert_allclose(found.mean.flatten(), reference.mean_, rtol=1e-5)
    np.testing.assert_allclose(found.variances, variances[:q], rtol=1e-4)
    np.testing.assert_allclose(found.residual * x[0].numel(), variances[q:].sum(), rtol=1e-3, atol=1e-4)
    for mine, its in zip(found.axes.flatten(1).numpy(), reference.components_, strict=False):
        assert abs(mine @ its) == pytest.approx(1, abs=1e-4)


@pytest.mark.slow
def test_draws_have_the_stated_mean_and_covariance():
    x = examples(40, 2, 3)
    one = gaussian(x, 2)
    drawn = one.draw(200_000, generator("draws")).flatten(1).double()
    axes = one.axes.flatten(1).double()
    covariance = (axes.T * one.variances) @ axes + one.residual * torch.eye(6)
    torch.testing.assert_close(drawn.mean(0), x.flatten(1).double().mean(0), rtol=0, atol=0.02)
    torch.testing.assert_close(torch.cov(drawn.T), covariance.double(), rtol=0.02, atol=0.05)
    centred = x.flatten(1).double() - x.flatten(1).double().mean(0)
    assert covariance.trace().item() == pytest.approx(centred.square().sum().item() / 40, rel=1e-4)


def test_a_gaussian_of_equal_examples_draws_that_example():
    one = gaussian(torch.full((5, 4), 0.25), 3)
    torch.testing.assert_close(one.draw(9, generator("same")), torch.full((9, 4), 0.25))


def test_draws_are_not_clipped_and_pixels_are_scaled():
    x = torch.randint(0, 2, (40, 1, 4, 4), generator=generator("pixels"), dtype=torch.uint8) * 255
    (found,) = read_sketch(sketch(Data(x, torch.zeros(40, dtype=torch.int64)), 2, 15, 20)).values()
    torch.testing.assert_close(found.mean, (x / 255).mean(0))
    drawn = found.draw(100, generator("clip"))
    assert drawn.shape == (100, 1, 4, 4)
    assert drawn.min() < -0.2 < 1.2 < drawn.max()


def test_a_device_tells_of_classes_with_enough_examples():
    held = data(60, "told")
    y = torch.tensor([0] * 20 + [1] * 19 + [2] * 21)
    told = read_sketch(sketch(Data(held.x, y), 3, 15, 20))
    assert [*told] == [0, 2]
    torch.testing.assert_close(told[2].mean, held.x[39:].mean(0))
    few = Data(held.x[:24], torch.arange(24) % 3)  # eight of each
    together = read_sketch(sketch(few, 3, 15, 20))
    assert [*together] == [ALL]
    torch.testing.assert_close(together[ALL].mean, few.x.mean(0))
    assert sketch(Data(held.x[:19], y[:19]), 3, 15, 20) == {}
    assert sketch(Data(held.x[:0], y[:0]), 3, 15, 20) == {}


def test_draws_are_shared_by_counts_of_labels():
    """Class 1 has 45 examples, 30 on a, of which it tells, and 15 on b, which tells of class 2 alone; c mixes."""
    counts = torch.tensor([[25, 30, 0], [0, 15, 40], [8, 7, 6], [3, 0, 0]])
    found = draw_weights([[0, 1], [2], [ALL], []], counts)
    torch.testing.assert_close(found, torch.tensor([28.0, 45, 40, 21], dtype=torch.float64))
    near, far = gaussian(data(9).x, 2), gaussian(data(9).x + 50, 2)
    x, y = draw({"a": {0: near, 1: far}, "b": {ALL: near}}, torch.tensor([[3, 9], [4, 4]]), 4000, generator("shares"))
    assert torch.bincount(y + 1).div(4000).tolist() == pytest.approx([0.4, 0.15, 0.45], abs=0.03)
    assert x[y == 1].mean() > 45
    assert x[y != 1].mean() < 5


def test_a_target_is_part_label_and_part_ensemble():
    answers = torch.tensor([[0.2, 0.8], [0.6, 0.4]])
    torch.testing.assert_close(
        targets_of(torch.tensor([0, ALL]), answers, 0.25), torch.tensor([[0.4, 0.6], [0.6, 0.4]])
    )
    torch.testing.assert_close(targets_of(torch.tensor([0, 1]), answers, 1.0), torch.eye(2))


@pytest.mark.slow
def test_the_net_learns_by_pytorchs_adam_and_cosine():
    x, targets = data(30).x, torch.rand(30, 3, generator=generator("targets")).softmax(1)
    training = replace(SGD, optimiser="adam", lr=0.01, schedule="cosine", batch=8, epochs=3)
    found = learn(NET, x, targets, training, ROUND_INFO)
    module = NET.build()
    module.load_state_dict(nets.init(NET, ROUND_INFO.generator("init")))
    batches = minibatches_of(training)
    optimiser = torch.optim.Adam(module.parameters(), 0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, len(batches))
    for rows in batches:
        optimiser.zero_grad()
        cross_entropy(module(x[rows]), targets[rows]).backward()
        optimiser.step()
        schedule.step()
    torch.testing.assert_close(found, dict(module.state_dict()), rtol=1e-3, atol=1e-5)


def minibatches_of(training):
    return minibatches(
        flatten_net(NET, nets.init(NET, generator("any"))), 30, training, ROUND_INFO.generator("batches")
    )


def test_the_slope_is_the_gradient_of_soft_cross_entropy():
    targets, rows = torch.rand(6, 3, generator=generator("t")).softmax(1), torch.tensor([4, 1])
    logits = torch.randn(2, 3, generator=generator("z"), requires_grad=True)
    cross_entropy(logits, targets[rows], reduction="sum").backward()
    torch.testing.assert_close(soft_target_grad(targets)(logits.detach(), rows), logits.grad)
