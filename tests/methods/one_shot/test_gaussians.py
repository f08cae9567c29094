"""Gaussians against scikit-learn's decomposition, draws against the stated moments, and targets by hand."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import signals
import torch
from federations import NBYTES, NET, NETS, SGD, bits, data, device_of, federation, last, model
from sklearn.decomposition import PCA
from torch.nn.functional import cross_entropy

from fedcore import nets
from fedcore.core.messages import to_weights
from fedcore.core.rounds import run
from fedcore.core.training import flatten_net, minibatches, predict
from fedcore.data.task import mix_probabilities
from fedcore.errors import InputError
from fedcore.execute.workers import Inline
from fedcore.methods import method
from fedcore.methods.one_shot.ensembles import voting_weights
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
from fedcore.types.federation import Data, Federation, Splits, nbytes
from fedcore.types.method import RoundInfo, Update, generator

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


# Distillation on Gaussian draws: with no draw from them it cannot do, with hard targets alone it needs no models.
FEW = {"rank": 2, "minimum": 3, "draws": 200, "epochs": 2, "batch": 16, "lr": 0.01}
distillation = partial(method, "gaussian_distillation", nets=NETS, training=SGD, shared_init=False, **FEW)
FED = federation()


@pytest.mark.slow
def test_it_is_its_parts_one_after_the_other():
    *_, one = run(distillation(), FED, 5, Inline())
    (sent,) = {id(message): message for message in one.state.messages.values()}.values()
    round_info = one.round_info
    parts, counts, models = {}, [], []
    alone = last(method("local_only", nets=NETS, training=SGD, shared_init=False), FED, 5).state.memories
    for name, there in FED.devices.items():
        n = torch.bincount(there.data.train.y, minlength=3)
        x = there.data.train.x
        parts[name] = {k: gaussian(x[there.data.train.y == k], 2) for k in range(3) if n[k] >= 3}
        counts.append(n)
        models.append(alone[name])
    x, y = draw(parts, torch.stack(counts), 200, round_info.generator("draws"))
    votes = to_weights(voting_weights(torch.stack(counts), "counts").float())
    answers = mix_probabilities([predict(params, NET, x, 200) for params in models], votes, 1.0, None).exp()
    training = replace(SGD, optimiser="adam", lr=0.01, schedule="cosine", batch=16, epochs=2)
    expected = learn(NET, x, targets_of(y, answers, 0.5), training, round_info)
    torch.testing.assert_close(dict(sent.params), expected)
    assert one.scores["a"]["shared"] == one.scores["c"]["shared"]


def test_with_hard_targets_alone_the_models_do_not_matter():
    updates = [{}, {}]
    round_info = RoundInfo(0, 1, 0, ("a", "b"), ("a", "b"))
    for i, found in enumerate(updates):
        for name in "ab":
            extra = {"labels/counts": torch.tensor([9, 9, 0])}
            for k in (0, 1):
                extra |= {
                    f"gaussian/{k}/{part}": tensor
                    for part, tensor in vars(gaussian(torch.randn(9, 4, generator=generator(name, k)), 2)).items()
                }
            found[name] = Update(model(name, i), extra, 18)
    sent = [distillation(hard=1.0).stages[1].combine({}, found, round_info)[1]["a"].params for found in updates]
    assert bits(sent[0]) == bits(sent[1])
    mixed = [distillation().stages[1].combine({}, found, round_info)[1]["a"].params for found in updates]
    assert bits(mixed[0]) != bits(mixed[1])


@pytest.mark.slow
def test_it_beats_the_best_device_where_each_knows_one_class():
    """Three devices, a class each: no device is above chance on all classes, the net made of draws is."""
    centres = 3 * torch.eye(3, 4)

    def around(k, count, *words):
        return centres[k] + torch.randn(count, 4, generator=generator(k, *words))

    def held(k, *words):
        return Data(around(k, 40, *words), torch.full((40,), k))

    devices = {
        name: replace(device_of(name), data=Splits(held(k, "train"), held(k, "val"), held(k, "test")))
        for k, name in enumerate("abc")
    }
    every = Data(torch.cat([around(k, 50, "all") for k in range(3)]), torch.arange(3).repeat_interleave(50))
    fed = Federation(devices, every, 3)
    built = distillation(draws=3000, minimum=20, epochs=5)
    best = last(method("best_local", nets=NETS, training=SGD, shared_init=False, rank_by="test"), fed).scores["a"][
        "shared"
    ]
    assert best["accuracy"] < 0.5
    assert last(built, fed).scores["a"]["shared"]["accuracy"] > 0.85
    personal = last(distillation(draws=3000, minimum=20, epochs=5, personal=True), fed)
    assert all(score["test"]["accuracy"] > 0.95 for score in personal.scores.values())


def test_what_travels_is_counted():
    *_, one = run(distillation(), FED, 0, Inline())
    for name, there in FED.devices.items():
        n = torch.bincount(there.data.train.y, minlength=3)
        ranks = [min(2, count - 1) for count in n.tolist() if count >= 3]
        numbers = sum(4 + q * 4 + q + 1 for q in ranks)
        assert one.up[name] == NBYTES + 3 * 8 + 4 * numbers
    assert one.down == dict.fromkeys("abc", NBYTES)
    assert not one.state.memories


def test_nets_that_differ_get_a_net_each():
    wide = nets.net("mlp", shape=(4,), classes=3, widths=[7])
    fed = replace(FED, devices=FED.devices | {"b": replace(FED.devices["b"], net=wide)})
    one = last(distillation(nets=fed.public.nets), fed, 1)
    assert nbytes(one.state.messages["a"].params) == nbytes(one.state.messages["c"].params) == NBYTES
    assert {name: tuple(tensor.shape) for name, tensor in one.state.messages["b"].params.items()} == nets.shapes(wide)


def test_a_device_with_few_examples_or_no_labels_takes_part():
    train = FED.devices["a"].data.train
    few = replace(FED.devices["a"], data=replace(FED.devices["a"].data, train=Data(train.x[:2], train.y[:2])))
    none = Data(train.x[:0], train.y[:0])
    blind = replace(FED.devices["b"], data=Splits(none, none, none))
    fed = replace(FED, devices=FED.devices | {"a": few, "b": blind})
    one = last(distillation(personal=True), fed, 1)
    assert one.up == dict.fromkeys("abc", 0)
    assert one.scores["b"]["shared"]["accuracy"] > 0
    assert [*one.state.memories] == ["a", "c"]


def test_too_few_examples_of_any_class_are_refused():
    with pytest.raises(InputError, match=r"^minimum = 100: no device has as many labelled examples; lower it$"):
        last(distillation(minimum=100), FED)
    with pytest.raises(InputError, match=r"^minimum = 100: no device has as many labelled examples; lower it$"):
        distillation(minimum=100, sizes={"a": 99, "b": 1})
    distillation(minimum=99, sizes={"a": 99, "b": 1})


def test_a_class_of_which_nobody_tells_is_named():
    y = FED.devices["c"].data.train.y
    counts = torch.bincount(y, minlength=3)
    assert sorted(counts.tolist()) == [2, 4, 6]
    rare = counts.argmin().item()
    alone = replace(FED, devices={"c": FED.devices["c"]})
    *_, one = run(distillation(minimum=4), alone, 0, Inline())
    assert one.report.words == {"warning": f"no device has 4 examples of class {{{rare}}}: not drawn"}
    *_, every = run(distillation(minimum=2), alone, 0, Inline())
    assert every.report.words == {}


@pytest.mark.slow
def test_personal_distillation_is_the_personal_row_bit_by_bit():
    same = {"nets": NETS, "training": SGD, "shared_init": False, **FEW}
    one, two = last(method("personal_distillation", **same), FED, 2), last(distillation(personal=True), FED, 2)
    assert bits(one.state) == bits(two.state)
    assert one.scores == two.scores


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ensemble", "stack", "personal_distillation"])
def test_signals_are_examples_like_any_others(name):
    """Of shape (1, 32), for a convolutional net with cells; draws have that shape."""
    fed = signals.federation()
    settings = {key: value for key, value in FEW.items() if name == "personal_distillation"}
    one = last(method(name, nets=fed.public.nets, training=SGD, shared_init=False, **settings), fed)
    assert all(0 <= score["shared"]["accuracy"] <= 1 for score in one.scores.values())
    if name == "personal_distillation":
        assert {part: tuple(x.shape) for part, x in one.state.messages["a"].params.items()} == nets.shapes(signals.NET)
