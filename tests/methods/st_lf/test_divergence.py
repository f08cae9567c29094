"""Algorithm 1: what it finds on real digits, and that it is a stage over pairs like any other."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest
import torch
from dataset_files import REAL, real
from federations import NET, SGD, federation
from sklearn.datasets import load_digits
from torch import nn

from fedcore import Data, Device, InputError, Net, Splits, initial_messages, load, received_model
from fedcore.core.rounds import run
from fedcore.core.training import descend, flatten_net, plain_step, predict
from fedcore.execute.workers import Inline
from fedcore.methods.st_lf.divergence import (
    Divergence,
    both_errors,
    converse,
    divergence,
    estimate,
    estimate_side,
    examples,
    matrix,
)
from fedcore.nets import init, net, use_generator
from fedcore.types.method import Message, Method, PairStage, StepId

SETTINGS = Divergence(pair_rounds=50, pair_iterations=5, pair_batch=64, pair_lr=0.04, held_out=0.2)
PAIRS = {"same": (range(10), range(10)), "overlapping": (range(6), range(4, 10)), "disjoint": (range(5), range(5, 10))}
NOTHING = Data(torch.empty(0), torch.empty(0, dtype=torch.int64))


def holding(name: str, examples: Data, digits: Sequence[int], part: int, count: int, how: Net) -> Device:
    """A device with the part-th `count` examples of those digits; half of them without labels."""
    index = torch.isin(examples.y, torch.tensor(list(digits))).nonzero()[:, 0][part * count : (part + 1) * count]
    seen, hidden = (Data(examples.x[half], examples.y[half]) for half in (index[::2], index[1::2]))
    return Device(name, how, Splits(seen, NOTHING, NOTHING, hidden))


def found(examples: Data, count: int) -> dict[str, float]:
    """The mean d over four seeds of each pair."""
    how = net("mlp", shape=tuple(examples.x.shape[1:]), classes=2, widths=[64])
    means = {}
    for name, (one, other) in PAIRS.items():
        pair = holding("a", examples, one, 0, count, how), holding("b", examples, other, 1, count, how)
        d = []
        for seed in range(4):
            _, update = estimate((), (), pair, StepId(seed, 0, 0, ("a", "b")), net=how, settings=SETTINGS)
            d.append(divergence(update.extra["errors"]).item())
        means[name] = sum(d) / len(d)
    return means


@real
@pytest.mark.slow
def test_on_mnist_same_overlapping_and_disjoint_digits_are_told_apart() -> None:
    d = found(load("mnist", root=REAL, download=False).train, 1000)
    assert d["same"] < 0.3
    assert 0.8 < d["overlapping"] < 1.1
    assert d["disjoint"] > 1.2


@pytest.mark.slow
def test_on_small_digits_they_are_ordered() -> None:
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))  # they come writer by writer
    d = found(Data(torch.from_numpy(images).float()[order] / 16, torch.from_numpy(labels)[order]), 400)
    assert d["same"] < 0.4 < d["overlapping"] < d["disjoint"]
    assert d["disjoint"] > 1.1


@pytest.mark.slow
def test_a_classifier_with_dropout_draws_from_its_pair_alone() -> None:
    how = net("stlf_cnn", shape=(1, 16, 16), classes=2, dropout=0.5)
    data = Data(torch.rand(60, 1, 16, 16, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 10)
    pair = holding("a", data, range(5), 0, 30, how), holding("b", data, range(5, 10), 0, 30, how)
    settings, found = Divergence(pair_rounds=4, pair_iterations=2, pair_batch=8, pair_lr=0.1, held_out=0.2), []
    for state in (1, 2):
        torch.manual_seed(state)
        with recorded(nn.Dropout) as masks:
            estimate((), (), pair, StepId(0, 0, 0, ("a", "b")), net=how, settings=settings)
        found.append(masks)
    assert len(found[0]) == 16
    assert all(map(torch.equal, *found))


def test_d_is_symmetric_in_the_errors_and_between_0_and_2() -> None:
    for errors, d in (((0.5, 0.5), 0), ((0.0, 1.0), 0), ((0.0, 0.0), 2), ((1.0, 1.0), 2), ((0.1, 0.3), 1.2)):
        assert divergence(torch.tensor(errors)).item() == pytest.approx(d)


def in_one_piece(pair: Sequence[Device], at: StepId, how: Net, settings: Divergence) -> list[float]:
    """Algorithm 1 by one who has both devices' examples: the errors of the two."""
    parts, training = [examples(device, at, settings) for device in pair], replace(SGD, lr=settings.pair_lr, momentum=0)
    models = [flatten_net(how, init(how, at.generator("init"))) for _ in pair]
    steps = [plain_step(model, training, settings.pair_rounds * settings.pair_iterations) for model in models]
    draws = [at.generator(f"batches {place}") for place in (0, 1)]
    with use_generator(at.generator("noise")):
        for _ in range(settings.pair_rounds):
            for place, (x, _) in enumerate(parts):
                size = settings.pair_iterations, min(settings.pair_batch, len(x))
                descend(
                    Data(x, torch.full((len(x),), place)),
                    [*torch.randint(len(x), size, generator=draws[place])],
                    steps[place],
                )
            mean = (models[0].vector + models[1].vector) / 2
            for model in models:
                model.vector.copy_(mean)
    params = models[0].params()
    return [
        float((predict(params, how, held, 256).argmax(1) != place).double().mean())
        for place, (_, held) in enumerate(parts)
    ]


def normalised(classes: int = 2) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.ReLU(), nn.Linear(6, classes))


@pytest.mark.parametrize("build", [partial(normalised), net("mlp", shape=(4,), classes=2, widths=[3]).build])
@pytest.mark.slow
def test_two_sides_give_the_errors_of_one_who_has_all_examples(build: partial[nn.Module]) -> None:
    how, settings = Net(build), Divergence(pair_rounds=6, pair_iterations=3, pair_batch=5, pair_lr=0.3, held_out=0.4)
    draws = torch.Generator().manual_seed(0)
    pair = [
        Device(
            name,
            how,
            Splits(
                Data(torch.randn(size, 4, generator=draws) + shift, torch.zeros(size, dtype=torch.int64)),
                NOTHING,
                NOTHING,
            ),
        )
        for name, size, shift in (("a", 40, 0.0), ("b", 55, 0.7))
    ]
    at = StepId(3, 0, 0, ("a", "b"))
    _, update = estimate(({}, {}), (Message(), Message()), (pair[0], pair[1]), at, net=how, settings=settings)
    assert update.extra["errors"].tolist() == in_one_piece(pair, at, how, settings)


def test_a_side_refuses_what_is_no_classifier() -> None:
    how, settings = net("mlp", shape=(4,), classes=2, widths=[3]), replace(SETTINGS, pair_rounds=2)
    device = federation("a", how).devices["a"]
    side = estimate_side({}, Message(), device, StepId(0, 0, 0, ("a", "b")), 0, net=how, settings=settings)
    next(side)
    sent = side.send({})
    with pytest.raises(InputError, match=r"^divergence: the other device sent torch.float32 \(1,\), no classifier$"):
        side.send({"classifier": sent["classifier"][:1]})
    for error in (torch.tensor(1.5, dtype=torch.float64), torch.ones(2), torch.tensor(torch.nan, dtype=torch.float64)):
        with pytest.raises(InputError, match=r"^divergence: an error must be 0 to 1$"):
            both_errors({"error": error}, {"error": torch.tensor(0.5, dtype=torch.float64)}, settings=settings)


@contextmanager
def recorded(kind: type[nn.Module]) -> Iterator[list[torch.Tensor]]:
    """Collect what layers of this kind put out while they train."""
    seen: list[torch.Tensor] = []

    def keep(module: nn.Module, _: object, out: torch.Tensor) -> None:
        if isinstance(module, kind) and module.training:
            seen.append(out.detach().clone())

    hook = nn.modules.module.register_module_forward_hook(keep)
    try:
        yield seen
    finally:
        hook.remove()


def remember(server, updates, round_info):
    return {"apart": matrix(updates, round_info.names)}, {}


def test_it_is_a_stage_over_pairs_whose_server_sees_errors_only() -> None:
    how = net("mlp", shape=(4,), classes=2, widths=[3])
    settings = Divergence(pair_rounds=3, pair_iterations=2, pair_batch=4, pair_lr=0.1, held_out=0.5)
    stage = PairStage(partial(estimate, net=how, settings=settings), remember)
    last = list(
        run(Method(partial(initial_messages, shared_init=True), (stage,), received_model), federation(), 0, Inline())
    )[-1]
    apart = last.state.server["apart"]
    assert apart.shape == (3, 3)
    assert torch.equal(apart, apart.T)
    assert not apart.diagonal().any()
    assert set(last.up.values()) == {0, 24, 48}  # two errors and a count per pair, on the first device's account
    again = list(
        run(Method(partial(initial_messages, shared_init=True), (stage,), received_model), federation(), 0, Inline())
    )[-1]
    assert torch.equal(again.state.server["apart"], apart)


def test_a_device_without_examples_to_hold_out_is_refused() -> None:
    lone = Device("a", NET, Splits(Data(torch.zeros(1, 4), torch.zeros(1, dtype=torch.int64)), NOTHING, NOTHING))
    with pytest.raises(InputError, match=r"divergence.held_out: device a has 1 examples; must have at least two"):
        estimate((), (), (lone, lone), StepId(0, 0, 0, ("a", "a")), net=NET, settings=SETTINGS)


# Two sides of a step, in one place.
def side(place, words, heard):
    """Say so many words; tell at the end how many one has heard."""
    received = yield {}
    for word in words:
        heard += list(received)
        received = yield {word: torch.zeros(1)}
    heard += list(received)
    return {"place": torch.tensor(place), "count": torch.tensor(len(heard))}


def test_each_side_hears_what_the_other_said_last():
    one, other = [], []
    results = converse(side(0, "ace", one), side(1, "bdf", other))
    assert (one, other) == ([*"bdf"], [*"ace"])
    assert [(int(result["place"]), int(result["count"])) for result in results] == [(0, 3), (1, 3)]


def test_a_side_that_ends_first_says_nothing_more():
    one, other = [], []
    results = converse(side(0, "abcd", one), side(1, "x", other))
    assert (one, other) == ([*"x"], [*"ab"])
    assert [int(result["place"]) for result in results] == [0, 1]
