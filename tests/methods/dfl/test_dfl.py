"""DFL: with threshold 1 it is FedAvg; its rounds by a plain loop; what travels, stays and is reported."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from federations import ADAM, NBYTES, NET, NETS, SGD, Recorder, bits, federation, last, workers
from plain_loops import draw_batches
from torch import nn
from torch.nn.functional import cross_entropy, kl_div

from fedcore import Device, InputError, Net, Splits, nets
from fedcore.core.rounds import run
from fedcore.core.training import predict
from fedcore.execute.workers import Inline
from fedcore.methods import method
from fedcore.methods.dfl.soft_targets import COUNTS, SOFT, SUMS
from fedcore.pipeline.cache.keys import key
from fedcore.types.method import generator

GIVEN = {
    "nets": NETS, "training": SGD, "shared_init": True, "rounds": 4, "fraction": 1.0, "ratio": "threshold",
    "threshold": 0.6, "temperature": 1.0, "weighting": "counts",
}  # fmt: skip
dfl = partial(method, "dfl", **GIVEN)
FED = federation("abcde")


def fedavg(**changes):
    given = {"nets": NETS, "training": SGD, "shared_init": True, "rounds": 4, "fraction": 1.0, "weights": "size"}
    return method("fedavg", **given | {"upload": "delta"} | changes)


def normed() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(),
        nn.Linear(3, 3),
    )  # fmt: skip


NORMED = Net(normed)


# Threshold 1


@pytest.mark.slow
@pytest.mark.parametrize("fraction", [1.0, 0.4])
@pytest.mark.parametrize(
    "training",
    [SGD, replace(SGD, momentum=0.5), ADAM, replace(ADAM, optimiser_state="keep")],
    ids=["sgd", "momentum", "adam", "kept"],
)
def test_with_threshold_1_it_is_fedavg_bit_by_bit(training, fraction):
    changes = {"training": training, "fraction": fraction}
    one, two = last(dfl(threshold=1.0, **changes), FED, 2), last(fedavg(**changes), FED, 2)
    for name in FED.devices:
        assert bits(one.state.messages[name].params) == bits(two.state.messages[name].params)
    assert bits(one.state.memories) == bits(two.state.memories)
    assert one.scores == two.scores
    assert bits(last(dfl(**changes), FED, 2).state.messages["a"].params) != bits(two.state.messages["a"].params)


@pytest.mark.slow
def test_with_batch_norm_as_well():
    """Buffers travel with the rest; a count of batches is not averaged, a lone last example is left out."""
    fed, known = federation("abc", NORMED), dict.fromkeys("abc", NORMED)
    one, two = last(dfl(threshold=1.0, nets=known), fed, 2), last(fedavg(nets=known), fed, 2)
    assert bits(one.state.messages["a"].params) == bits(two.state.messages["a"].params)
    counted = one.state.messages["a"].params["2.num_batches_tracked"]
    a_round = len([n for n in range(0, 6, SGD.batch) if 6 - n > 1]) * SGD.epochs
    assert counted.dtype == torch.int64
    assert counted.item() == 4 * a_round


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["size", "even"])
def test_changes_and_models_average_to_the_same_but_for_rounding(weights):
    one, two = (last(fedavg(upload=upload, weights=weights), FED, 1) for upload in ("delta", "model"))
    torch.testing.assert_close(one.state.messages["a"].params, two.state.messages["a"].params)
    assert (one.up, one.down) == (two.up, two.down)


# Rounds


def by_a_plain_loop(fed, seed, turns, rhos, temperature, reduction="batchmean"):
    """Algorithms 1 and 2 by autograd in double precision; a label that nobody has keeps its row."""
    w = {key: x.double() for key, x in nets.init(NET, generator(seed, "init")).items()}
    table, seen = torch.zeros(3, 3).double(), torch.zeros(3, dtype=torch.bool)
    for number, (names, rho) in enumerate(zip(turns, rhos, strict=True)):
        models, sizes, sums, counts = [], [], torch.zeros(3, 3).double(), torch.zeros(3).double()
        soft = torch.where(seen[:, None], (table / temperature).softmax(1), torch.eye(3).double())
        for name in names:
            module, examples = NET.build().double(), fed.devices[name].data.train
            module.load_state_dict(w)
            optimiser = torch.optim.SGD(module.parameters(), SGD.lr)
            for index in draw_batches(fed.devices[name], number, SGD, seed):
                logits, y = module(examples.x[index].double()), examples.y[index]
                kl = kl_div((logits / temperature).log_softmax(1), soft[y], reduction=reduction)
                optimiser.zero_grad()
                (rho * cross_entropy(logits, y) + (1 - rho) * temperature**2 * kl).backward()
                optimiser.step()
            with torch.no_grad():
                for z, y in zip(module(examples.x.double()), examples.y.tolist(), strict=True):
                    sums[y] += z
                    counts[y] += 1
            models.append(module.state_dict())
            sizes.append(len(examples))
        w = {key: sum(n * m[key] for n, m in zip(sizes, models, strict=True)) / sum(sizes) for key in w}
        table = torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], table)
        seen |= counts > 0
    return w, table, seen


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning")
@pytest.mark.parametrize(("temperature", "reduction"), [(1.0, "batchmean"), (3.0, "batchmean"), (1.0, "mean")])
@pytest.mark.parametrize(
    ("ratio", "rhos"),
    [("threshold", [1, 0.5, 0.4, 0.4]), ("dynamic", [1, 0.5, 0.25, 0]), ("fixed", [1, 0.4, 0.4, 0.4])],
)
def test_rounds_are_those_of_the_algorithm(ratio, rhos, temperature, reduction):
    built = dfl(ratio=ratio, threshold=0.4, temperature=temperature, fraction=0.4, reduction=reduction)
    rounds = list(run(built, FED, 1, Inline()))
    turns = [one.round_info.units for one in rounds]
    assert len({*turns}) > 1
    w, table, seen = by_a_plain_loop(FED, 1, turns, rhos, temperature, reduction)
    message = rounds[-1].state.messages["a"]
    torch.testing.assert_close(message.params, w, rtol=1e-4, atol=1e-5, check_dtype=False)
    torch.testing.assert_close(message.extra[SOFT][seen], table[seen], rtol=1e-4, atol=1e-4)
    assert [one.report.series["distillation"]["rho"] for one in rounds] == pytest.approx(rhos)


@pytest.mark.slow
def test_rounds_resume_and_run_in_workers_with_the_same_bits():
    built = dfl(fraction=0.4)
    rounds = [*run(built, FED, 3, Inline())]
    assert [bits(one) for one in run(built, FED, 3, workers(2))] == [bits(one) for one in rounds]
    again = [bits(one) for one in run(built, FED, 3, Inline(), state=rounds[1].state)]
    assert again == [bits(one) for one in rounds[2:]]


def test_who_joins_late_gets_the_latest_model_and_soft_targets():
    built, asked = dfl(fraction=0.2, rounds=8), []

    class Asked(Inline):
        def map(self, fn, calls):
            asked.append({unit: args[1] for unit, args in calls.items()})
            return super().map(fn, calls)

    rounds = list(run(built, FED, 1, Asked(), every=99))
    seen = set()
    for number, messages in enumerate(asked[:8]):
        for name in set(messages) - seen if number else ():
            before = rounds[number - 1].state
            assert messages[name] is before.messages["a"]
            assert torch.equal(messages[name].extra[SOFT], before.server[SOFT])
            late = number
        seen |= set(messages)
    assert late > 1


# What travels, stays and is reported


@pytest.mark.slow
def test_a_round_is_fedavgs_traffic_and_two_tables():
    """Three classes: 9 doubles down; 9 doubles and 3 counts up. In round 1 there is no table to send."""
    rounds = list(run(dfl(rounds=2), FED, 1, Inline()))
    table, counts = 9 * 8, 3 * 8
    assert [set(one.up.values()) for one in rounds] == [{NBYTES + table + counts}] * 2
    assert set(rounds[0].down.values()) == {NBYTES}
    assert set(rounds[1].down.values()) == {2 * (NBYTES + table)}  # the last turn brings everyone the final model


@pytest.mark.slow
def test_a_device_keeps_nothing_and_sends_changes_sums_and_counts():
    execute = Recorder()
    one = [*run(dfl(rounds=2), FED, 1, execute)][-1]
    assert one.state.memories == {}
    sent = [result[1] for _, _, result in execute.steps if isinstance(result, tuple)]
    assert len(sent) == 10
    assert all(set(update.extra) == {SUMS, COUNTS} for update in sent)
    assert all(update.params["fc1.weight"].abs().max() < 0.5 for update in sent)


def test_logits_are_those_of_the_trained_model_in_evaluation_mode():
    fed, known = federation("a", NORMED), {"a": NORMED}
    one = last(dfl(nets=known, rounds=1), fed)
    model, examples = one.state.messages["a"].params, fed.devices["a"].data.train
    logits = predict(model, NORMED, examples.x, 100)
    for label in set(examples.y.tolist()):
        expected = logits[examples.y == label].double().mean(0)
        torch.testing.assert_close(one.state.server[SOFT][label], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_label_that_no_device_has_stays_one_hot_and_does_no_harm():
    def without(device: Device) -> Device:
        keep = device.data.train.y != 2
        train = replace(device.data.train, x=device.data.train.x[keep], y=device.data.train.y[keep])
        return replace(device, data=Splits(train, device.data.val, device.data.test))

    fed = replace(FED, devices={name: without(there) for name, there in FED.devices.items()})
    for weighting in ("counts", "examples"):
        one = last(dfl(weighting=weighting, temperature=3.0), fed)
        assert one.report.matrices["soft_targets"][2].tolist() == [0, 0, 1]
        assert all(bool(tensor.isfinite().all()) for tensor in one.state.messages["a"].params.values())


@pytest.mark.slow
def test_every_round_reports_its_soft_targets_and_numbers():
    for one in run(dfl(temperature=3.0), FED, 0, Inline()):
        soft = one.report.matrices["soft_targets"]
        torch.testing.assert_close(soft, (one.state.server[SOFT] / 3).softmax(1).float())
        told = one.report.series["distillation"]
        assert [*told] == ["rho", "diagonal", "right"]
        assert told["diagonal"] == pytest.approx(soft.diagonal().mean().item())


# Keys and refusals


@pytest.mark.slow
def test_a_step_depends_on_the_number_of_rounds_only_where_rho_does():
    def local(**changes):
        return key(dfl(**changes).stages[0].local)

    assert local() != local(rounds=5)
    assert local(ratio="dynamic") != local(ratio="dynamic", rounds=5)
    assert local(ratio="fixed") == local(ratio="fixed", rounds=5)


def test_what_cannot_be_used_is_refused():
    with pytest.raises(
        InputError, match=r"^training.shared_init = false: dfl averages changes to one model; use true$"
    ):
        dfl(shared_init=False)
    with pytest.raises(InputError, match=r"^training.shared_init = false: fedavg.upload = delta averages changes"):
        fedavg(shared_init=False)
    with pytest.raises(InputError, match=r"^training.loss = fedasa_eq12: dfl"):
        dfl(training=replace(SGD, loss="fedasa_eq12"))
    with pytest.raises(InputError, match=r"^net.variants: "):
        dfl(nets={"a": NET, "b": NORMED})
