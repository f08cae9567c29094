"""FADA's parts: dynamic attention by hand and by another k-means, features, what confuses whom, refusals."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from federations import NET, bits, data, device_of, model
from torch import nn
from torch.nn.functional import cross_entropy

from fedcore import nets
from fedcore.core.training import flatten_net, predict
from fedcore.errors import InputError
from fedcore.methods.st_lf.adversaries import (
    SOURCE,
    TARGET,
    Alignment,
    attention,
    features,
    fixed_sample,
    gap,
    identifier,
    load_identifier,
    train_against,
    train_identifier,
)
from fedcore.nets.inputs import forward_features
from fedcore.types.federation import Net
from fedcore.types.method import RoundInfo, StepId, generator

ALIGNMENT = Alignment(
    start="own",
    steps=3,
    batch=4,
    lr=0.1,
    weight=0.5,
    shown=16,
    sharpness=1.0,
    hidden=6,
    identifier_steps=30,
    identifier_lr=0.5,
)
RIVAL = identifier("fada", NET, 6)
X = data(9).x
ROUND_INFO = RoundInfo(5, 2, 0, ("a", "b"), ("a", "b"))


def apart(points: np.ndarray) -> float:
    """sum over ordered pairs of |f_i - f_j|, one pair after another."""
    return sum(float(np.linalg.norm(a - b)) for a, b in product(points, points))


def test_the_gap_of_separate_clusters_equals_the_value_by_hand():
    """{0, 3} and {100, 104, 107}: (2 * 3) / (2 * 2) + 2 * (4 + 7 + 3) / (2 * 3) = 1.5 + 14 / 3."""
    points = torch.tensor([[0.0, 0], [100, 0], [3, 0], [104, 0], [107, 0]])
    assert gap(points, 2, 0) == pytest.approx(1.5 + 14 / 3)
    assert gap(points, 5, 0) == 0
    assert gap(points, 10, 0) == 0  # no more clusters than features
    assert gap(points[:1].repeat(4, 1), 3, 0) == 0


def test_the_gap_is_the_formula_on_clusters_of_an_independent_k_means():
    """Five clouds far from one another, which SciPy's k-means finds too."""
    from scipy.cluster.vq import kmeans2

    draws = generator("clouds")
    middles = 20 * torch.eye(5, 8)
    points = middles.repeat_interleave(12, 0) + torch.randn(60, 8, generator=draws)
    _, found = kmeans2(points.double().numpy(), middles.double().numpy(), minit="matrix")
    parts = [points.double().numpy()[found == r] for r in range(5)]
    assert [len(part) for part in parts] == [12] * 5
    assert gap(points, 5, 3) == pytest.approx(sum(apart(part) / (2 * len(part)) for part in parts))


def test_the_gap_scales_with_features_and_is_invariant_to_shifts():
    points = torch.randn(40, 3, generator=generator("gap"))
    assert gap(3 * points, 4, 0) == pytest.approx(3 * gap(points, 4, 0), rel=1e-5)
    assert gap(points + 7, 4, 0) == pytest.approx(gap(points, 4, 0), rel=1e-4)
    assert gap(points, 4, 0) == gap(points, 4, 0)


def test_attention_is_the_softmax_of_what_gaps_fell_by():
    before, now = torch.tensor([3.0, 2, 1]).double(), torch.tensor([2.0, 2, 1.5]).double()
    exact = np.exp([2.0, 0, -1]) / np.exp([2.0, 0, -1]).sum()
    np.testing.assert_allclose(attention(before, now, 2.0).numpy(), exact)
    assert attention(before, now, 0.0).tolist() == [1 / 3] * 3
    assert attention(now, now, 5.0).tolist() == [1 / 3] * 3
    far = attention(1e4 * before, 1e4 * now, 1.0)
    assert (far > 0).all()
    assert far.sum() == 1
    order = torch.tensor([2, 0, 1])
    torch.testing.assert_close(attention(before[order], now[order], 2.0), attention(before, now, 2.0)[order])


class Named(nn.Module):
    """A net whose layers are called in another way than in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(x)))


@pytest.mark.parametrize("which", ["mlp", "cnn", "own"])
def test_features_are_what_enters_the_last_layer(which):
    net, x = {
        "mlp": (NET, X),
        "cnn": (nets.net("stlf_cnn", shape=(1, 16, 16), classes=3), torch.rand(3, 1, 16, 16)),
        "own": (Net(Named), X),
    }[which]
    params = model("features", net=net)
    weight, bias = [*params.values()][-2:]
    found = features(params, net, x)
    torch.testing.assert_close(found @ weight.T + bias, predict(params, net, x, 32))
    flat = flatten_net(net, params)
    seen, logits = forward_features(flat.module, x)
    torch.testing.assert_close(logits, seen @ weight.T + bias)
    assert identifier("fada", net, 5).build().layers == ["fc1", "fc2"]
    assert nets.shapes(identifier("fada", net, 5))["fc1.weight"] == (5, found.shape[1])


@pytest.mark.parametrize(("aim", "labelled", "judges"), [*product([SOURCE, TARGET], [True, False], [1, 2])])
def test_a_step_descends_the_loss_as_written(aim, labelled, judges):
    """One step on all examples against autograd on the formula, and identifiers stay as they are."""
    there, params = device_of("a"), model("a")
    rivals = [model("rival", k, net=RIVAL) for k in range(judges)]
    modules = [load_identifier(RIVAL, tensors) for tensors in rivals]
    one = replace(ALIGNMENT, steps=1, batch=100)
    found = train_against(params, NET, there.data.train, modules, aim, labelled, generator("draws"), one)
    tensors = {name: tensor.clone().requires_grad_() for name, tensor in params.items()}
    x, y = there.data.train.inputs(), there.data.train.y
    hidden = x
    for layer in ("fc1", "fc2"):
        hidden = torch.relu(hidden @ tensors[f"{layer}.weight"].T + tensors[f"{layer}.bias"])
    said = [
        torch.relu(hidden @ rival["fc1.weight"].T + rival["fc1.bias"]) @ rival["fc2.weight"].T + rival["fc2.bias"]
        for rival in rivals
    ]
    loss = 0.5 * sum(-each.log_softmax(1)[:, aim].mean() for each in said) / judges
    if labelled:
        loss = loss + cross_entropy(hidden @ tensors["fc3.weight"].T + tensors["fc3.bias"], y)
    loss.backward()
    expected = {name: tensor - 0.1 * (0 if tensor.grad is None else tensor.grad) for name, tensor in tensors.items()}
    torch.testing.assert_close(found, {name: tensor.detach() for name, tensor in expected.items()})
    assert [bits(dict(module.state_dict())) for module in modules] == [bits(tensors) for tensors in rivals]


def told(rival, seen):
    return predict(rival, RIVAL, seen, 100).argmax(1)


@pytest.mark.slow
def test_training_against_an_identifier_undoes_its_accuracy():
    there, params = device_of("a"), model("a")
    mine = features(params, NET, data(40, "mine").x)
    other = mine + 1
    rival = train_identifier(None, mine, other, ROUND_INFO, RIVAL, replace(ALIGNMENT, identifier_steps=200))
    assert (told(rival, mine) == SOURCE).float().mean() > 0.9
    assert (told(rival, other) == TARGET).float().mean() > 0.9
    hard = replace(ALIGNMENT, steps=100, batch=100, lr=0.3, weight=1.0)
    x = there.data.train
    confused = train_against(params, NET, x, [load_identifier(RIVAL, rival)], TARGET, False, generator("draws"), hard)
    assert (told(rival, features(params, NET, x.x)) == SOURCE).float().mean() > 0.9
    assert (told(rival, features(confused, NET, x.x)) == TARGET).float().mean() > 0.9


def test_an_identifier_goes_on_from_where_it_was_and_sees_both_sides_alike():
    mine, other = torch.randn(50, 4, generator=generator("s")), torch.randn(5, 4, generator=generator("t")) + 2
    once = train_identifier(None, mine, other, ROUND_INFO, RIVAL, ALIGNMENT)
    assert bits(once) == bits(train_identifier(None, mine, other, ROUND_INFO, RIVAL, ALIGNMENT))
    assert bits(once) != bits(train_identifier(once, mine, other, ROUND_INFO, RIVAL, ALIGNMENT))
    assert (told(once, other) == TARGET).all()  # although there are ten times as many of the source's


def test_weight_zero_without_labels_leaves_a_model_as_it_is():
    params = model("a")
    still = replace(ALIGNMENT, weight=0.0)
    rivals = [load_identifier(RIVAL, model("rival", net=RIVAL))]
    found = train_against(params, NET, device_of("a").data.train, rivals, SOURCE, False, generator("draws"), still)
    assert bits(found) == bits(params)


def test_the_same_examples_are_shown_in_every_turn():
    held = data(30, "shown")
    first, later = (fixed_sample(held, "a", StepId(1, 3, round, "a"), 7) for round in (0, 4))
    assert torch.equal(first, later)
    assert len(first.unique(dim=0)) == 7
    assert not torch.equal(first, fixed_sample(held, "b", StepId(1, 3, 0, "b"), 7))
    assert torch.equal(fixed_sample(held, "a", StepId(1, 3, 0, "a"), 30), held.x)


def test_a_device_with_nothing_to_train_on_is_refused_by_name():
    with pytest.raises(InputError, match=r"^device a: it has no example to train on; at least one is needed"):
        fixed_sample(data(0), "a", StepId(0, 0, 0, "a"), 5)


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Conv2d(1, 3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x).mean((2, 3))


class Inlined(Named):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.body(x)) @ self.head.weight.T + self.head.bias


def test_a_net_without_a_linear_last_layer_is_refused():
    with pytest.raises(InputError, match=r"^net: fada needs a net whose last layer is linear"):
        identifier("fada", Net(Conv), 5)
    net = Net(Inlined)
    with pytest.raises(InputError, match=r"^net: its last layer is not called"):
        features(model("own", net=net), net, X)
