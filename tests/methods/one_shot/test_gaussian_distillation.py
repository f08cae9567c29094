"""Distillation on Gaussian draws: with no draw from them it cannot do, with hard targets alone it needs no models."""

from dataclasses import replace
from functools import partial

import pytest
import signals
import torch
from federations import NBYTES, NET, NETS, SGD, bits, device_of, federation, last, model

from fedcore import nets
from fedcore.core.messages import to_weights
from fedcore.core.rounds import run
from fedcore.core.training import predict
from fedcore.data.task import mix_probabilities
from fedcore.errors import InputError
from fedcore.execute.workers import Inline
from fedcore.methods import method
from fedcore.methods.one_shot.ensembles import voting_weights
from fedcore.methods.one_shot.gaussians import draw, gaussian, learn, targets_of
from fedcore.types.federation import Data, Federation, Splits, nbytes
from fedcore.types.method import RoundInfo, Update, generator

FEW = {"rank": 2, "minimum": 3, "draws": 200, "epochs": 2, "batch": 16, "lr": 0.01}
distillation = partial(method, "gaussian_distillation", nets=NETS, training=SGD, shared_init=False, **FEW)
FED = federation()


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
