"""Methods are found in their files, and none imports another one."""

import math
from dataclasses import replace
from functools import partial
from importlib import import_module

import grimp
import numpy as np
import pytest
import torch
from every_method import ROWS
from federations import NET, NETS, SGD, Recorder, bits, device_of, federation, last, trained, workers
from sklearn.metrics import log_loss

import fedcore as fc
from fedcore import Data, InputError, Splits, initial_messages, nets, received_model, to_everyone
from fedcore.core.aggregation import evenly, mean
from fedcore.core.evaluation import evaluate
from fedcore.core.rounds import run
from fedcore.core.training import predict, train
from fedcore.execute.workers import Inline, one_thread
from fedcore.methods import METHODS, builder, method, needs_sums_alone, require_real
from fedcore.types.method import Message, Method, Model, PairStage, Stage, StepId, Update, generator

MODULES = sorted({*METHODS.values()})
GRAPH = grimp.build_graph("fedcore")


def test_batches_of_one_row_are_refused_for_batch_norm():
    """It has no statistics of them, so nothing would be trained."""
    nets = {"a": fc.resnet20().make(shape=(3, 8, 8), classes=3)}
    with pytest.raises(InputError, match=r"training.batch = 1: a net with batch norm trains on at least 2 rows"):
        method("local_only", nets=nets, training=replace(SGD, batch=1))
    method("local_only", nets=nets, training=replace(SGD, batch=2))


DECAYING = {
    "code_ot": {}, "lmf": {}, "fedasa": {"steps": 1}, "fedasa, two alignments": {"steps": 1, "alignment_rounds": 2},
}  # fmt: skip


@pytest.mark.parametrize("name", DECAYING)
@pytest.mark.slow
def test_a_rate_decays_over_all_rounds(name: str):
    """Though the first ones are a stage of their own: with one device it is that device's descent, as FedAvg's is."""
    fed = federation("b", fc.mlp(5, 5, 5).make(shape=(4,), classes=3, widths=(5, 5, 5)))
    training = {"optimiser": "sgd", "lr": 0.5, "batch": 100, "round_decay": 0.1, "shared_init": True}
    methods = fc.fedavg, getattr(fc, name.partition(",")[0])
    expected, found = (
        next(iter(fc.run(of(rounds=3, training=training, **more), fed, progress=False).models.values()))
        for of, more in zip(methods, ({}, DECAYING[name]), strict=True)
    )
    for key, tensor in expected.model.members[0].items():
        torch.testing.assert_close(found.model.members[0][key], tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_rate_decays_over_pretraining():
    settings = ROWS["psi_fedavg"].settings | {"pretrain": 3}
    links = method("psi_fedavg", nets=NETS, training=replace(SGD, round_decay=0.5), shared_init=True, **settings)
    assert [stage.local.keywords["training"].lr for stage in links.stages[:3]] == [0.1, 0.05, 0.025]


@pytest.mark.parametrize("module", MODULES)
def test_a_method_imports_no_other_one(module: str):
    assert not GRAPH.find_upstream_modules(module) & {*MODULES}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.slow
def test_a_method_is_found_in_a_room_of_its_family(name: str):
    assert builder(name).__name__ == name
    assert METHODS[name].split(".")[:2] == ["fedcore", "methods"]
    assert len(METHODS[name].split(".")) == 4
    module = import_module(METHODS[name])
    assert name in getattr(module, "__all__", [METHODS[name].rpartition(".")[2]])


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.slow
def test_methods_that_see_what_no_server_gets_are_refused(name: str):
    row = ROWS[name]
    simulated = {
        "best_source": "its links come from test ", "pooled": "its devices send their examples",
        "xgb_bagging": "its server would read trees ",
    }  # fmt: skip
    if name in simulated:
        with pytest.raises(InputError, match=f"^method {name}: runs in a simulation only: {simulated[name]}"):
            require_real(name, row.build(NETS))
    else:
        require_real(name, row.build(NETS))


def test_a_step_of_pairs_that_has_no_two_sides_is_refused():
    built = ROWS["st_lf"].build(NETS)
    stages = tuple(replace(stage, sides=None) if isinstance(stage, PairStage) else stage for stage in built.stages)
    with pytest.raises(InputError, match=r"^method st_lf: runs in a simulation only: its steps of pairs see two dev"):
        require_real("st_lf", replace(built, stages=stages))


@pytest.mark.parametrize(
    ("name", "changed", "masked"),
    [
        ("fedavg", {}, False), ("fedavg", {"secure_aggregation": True}, True),
        ("analytic", {"secure_aggregation": True}, True), ("analytic", {"clip": 4.0, "epsilon": 8.0}, False),
        ("dfl", {"secure_aggregation": True}, False),
    ],
)  # fmt: skip
def test_a_builder_says_with_which_settings_sums_are_enough(name: str, changed: dict[str, object], masked: bool):
    row = ROWS[name]
    assert needs_sums_alone(name, {**row.settings, **changed}) == masked


# Three methods that are not in the registry, of the kinds that the loop must carry as it is.
TEN = federation("abcdefghij")


NAMES = tuple(nets.shapes(NET))


HEAD = ("fc3.weight", "fc3.bias")


def whole_fedavg(**settings):
    given = {"nets": NETS, "training": SGD, "shared_init": True, "rounds": 1, "fraction": 1.0, "weights": "even"}
    return method("fedavg", **given | settings)


def begin_personal(public, seed, *, personal):
    server, messages = initial_messages(public, seed, shared_init=True)
    return server, {name: Message(part(message.params, personal, False)) for name, message in messages.items()}


def part(params, names, inside):
    return {name: x for name, x in params.items() if (name in names) == inside}


def train_personal(memory, message, device, step_id, *, training, personal):
    _, update = train(memory, message, device, step_id, training=training)
    return part(update.params, personal, True), replace(update, params=part(update.params, personal, False))


def average_all(server, updates, round_info):
    return server, to_everyone(
        round_info.names, Message(mean([update.params for update in updates.values()], evenly(len(updates))))
    )


def deploy_personal(memory, message):
    return Model(({**message.params, **memory},))


def fedper(personal=HEAD, rounds=3):
    local = partial(train_personal, training=SGD, personal=personal)
    begin = partial(begin_personal, personal=personal)
    return Method(begin, (Stage(local, average_all, rounds),), deploy_personal)


def test_personal_tensors_never_travel():
    execute = Recorder()
    rounds = list(run(fedper(), federation(), 0, execute))
    updates = [result[1] for _, _, result in execute.steps if isinstance(result, tuple)]
    assert len(updates) == 3 * len(rounds) == 9
    body = set(NAMES) - set(HEAD)
    for update in updates:
        assert update.params.keys() | update.extra.keys() == body
    for one in rounds:
        for message in one.state.messages.values():
            assert message.params.keys() | message.extra.keys() == body
        assert one.state.server == {}
        assert {name: tuple(memory) for name, memory in one.state.memories.items()} == dict.fromkeys("abc", HEAD)
        assert one.up == dict.fromkeys("abc", 256 - 4 * (12 + 3))


@pytest.mark.slow
def test_personal_tensors_are_those_of_a_plain_loop():
    fed = federation()
    body = part(nets.init(NET, generator(2, "init")), HEAD, False)
    heads = {name: {} for name in fed.devices}
    for number in range(3):
        with one_thread():
            updates = {
                name: train(heads[name], Message(body), there, StepId(2, 0, number, name), training=SGD)[1].params
                for name, there in fed.devices.items()
            }
        heads = {name: part(params, HEAD, True) for name, params in updates.items()}
        body = mean([part(params, HEAD, False) for params in updates.values()], evenly(3))
    one = last(fedper(), fed, 2)
    for name, there in fed.devices.items():
        assert bits(one.state.memories[name]) == bits(heads[name])
        assert bits(one.state.messages[name].params) == bits(body)
        assert one.scores[name]["test"] == evaluate(Model(({**body, **heads[name]},)), NET, there.data.test)
    assert one.scores["a"]["shared"] != one.scores["b"]["shared"]


@pytest.mark.slow
def test_nothing_personal_is_fedavg_and_all_personal_is_local_training():
    fed = federation()
    shared, averaged = (last(built, fed, 2) for built in (fedper(()), whole_fedavg(rounds=3)))
    assert bits(shared.state.messages) == bits(averaged.state.messages)
    assert shared.scores == averaged.scores
    alone = last(fedper(NAMES, rounds=1), fed, 2)
    assert alone.scores == last(method("local_only", nets=NETS, training=SGD, shared_init=False), fed, 2).scores
    assert alone.up == dict.fromkeys("abc", 0)
    sent = {name: update.params for name, update in trained(fed, SGD, 2).items()}
    assert bits(alone.state.memories) == bits(sent)


def estimate(memory, message, device, step_id):
    """How far two devices' examples lie apart, and a draw of the pair's own."""
    one, other = (there.data.train.x for there in device)
    drawn = torch.rand(1, generator=step_id.generator("pair"))
    return {}, Update({}, {"apart": (one.mean(0) - other.mean(0)).norm()[None], "drawn": drawn})


def remember(server, updates, round_info):
    """Keep the distances as a matrix (C, C)."""
    apart = torch.zeros(len(round_info.names), len(round_info.names))
    for (a, b), update in updates.items():
        i, j = round_info.names.index(a), round_info.names.index(b)
        apart[i, j] = apart[j, i] = update.extra["apart"]
    return server | {"apart": apart}, {}


def mix_near(server, updates, round_info):
    """W_ij proportional to exp(-4 d_ij)."""
    weights = (-4 * server["apart"]).softmax(1)
    mixed = [mean([update.params for update in updates.values()], row) for row in weights]
    return server, {name: Message(params) for name, params in zip(updates, mixed, strict=True)}


def neighbours():
    stages = (PairStage(estimate, remember), Stage(partial(train, training=SGD), mix_near, 2))
    return Method(partial(initial_messages, shared_init=True), stages, received_model)


def far(name):
    """A device whose examples lie elsewhere."""
    there = device_of(name)
    moved = Data(there.data.train.x + 10, there.data.train.y)
    return replace(there, data=Splits(moved, there.data.val, there.data.test))


def apart():
    fed = federation("abcd")
    return replace(fed, devices={**fed.devices, "c": far("c"), "d": far("d")})


def test_what_pairs_found_weighs_the_means_of_later_stages():
    fed = apart()
    pairs, once, twice = run(neighbours(), fed, 3, Inline())
    assert pairs.round_info.units == (("a", "b"), ("a", "c"), ("a", "d"), ("b", "c"), ("b", "d"), ("c", "d"))
    centres = torch.stack([there.data.train.x.mean(0) for there in fed.devices.values()])
    distances = torch.tensor([[math.dist(x, y) for y in centres.tolist()] for x in centres.tolist()])
    torch.testing.assert_close(pairs.state.server["apart"], distances)
    assert bits(pairs.state.server) == bits(once.state.server) == bits(twice.state.server)
    with one_thread():
        models = [
            train({}, pairs.state.messages[name], there, StepId(3, 1, 0, name), training=SGD)[1].params
            for name, there in fed.devices.items()
        ]
    powers = (-4 * distances).exp()
    for i, name in enumerate(fed.devices):
        by_hand = {
            key: sum(powers[i, j] * params[key] for j, params in enumerate(models)) / powers[i].sum() for key in NAMES
        }
        torch.testing.assert_close(once.state.messages[name].params, by_hand, rtol=1e-4, atol=1e-6)
    assert len({score["shared"]["loss"] for score in twice.scores.values()}) == 4


@pytest.mark.slow
def test_far_devices_do_not_touch_each_other():
    """At distance 20 the other group's weight is below what a float can hold: the near pair's models alone decide."""
    fed = apart()
    together = last(neighbours(), fed, 3).state.messages
    alone = last(neighbours(), replace(fed, devices={name: fed.devices[name] for name in "ab"}), 3).state.messages
    for name in "ab":
        torch.testing.assert_close(together[name].params, alone[name].params)
    assert not torch.allclose(together["a"].params["fc3.bias"], together["c"].params["fc3.bias"])


def hand_out(server, updates, round_info):
    """Send everyone everyone's models, and how much each counts: one's own as much as all others together."""
    models = {f"{name}/{key}": x for name, update in updates.items() for key, x in update.params.items()}
    count = len(round_info.names)
    weights = {
        name: torch.tensor([0.5 if name == other else 0.5 / (count - 1) for other in round_info.names])
        for name in round_info.names
    }
    return server, {name: Message(models, {"weights": weights[name]}) for name in round_info.names}


def deploy_all(memory, message):
    names = dict.fromkeys(key.partition("/")[0] for key in message.params)
    members = tuple({key: message.params[f"{name}/{key}"] for key in NAMES} for name in names)
    return Model(members, tuple(message.extra["weights"].tolist()))


def ensemble():
    return Method(
        partial(initial_messages, shared_init=False), (Stage(partial(train, training=SGD), hand_out),), deploy_all
    )


def test_weighted_outputs_are_the_mixture_computed_by_hand():
    fed = federation()
    one = last(ensemble(), fed, 5)
    updates = trained(fed, SGD, 5)
    assert one.down == dict.fromkeys("abc", 3 * 256 + 3 * 4)
    for name, there in fed.devices.items():
        deployed = deploy_all({}, one.state.messages[name])
        assert len(deployed.members) == 3
        shares = np.array([0.5 if name == other else 0.25 for other in "abc"])
        assert deployed.weights == tuple(shares)
        for split, examples in (("val", there.data.val), ("test", there.data.test), ("shared", fed.test)):
            logits = np.stack([predict(u.params, NET, examples.x, 50).double().numpy() for u in updates.values()])
            powers = np.exp(logits)
            mixture = np.einsum("m,mnk->nk", shares, powers / powers.sum(2, keepdims=True))
            found = one.scores[name][split]
            assert found["accuracy"] == (mixture.argmax(1) == examples.y.numpy()).mean()
            assert found["loss"] == pytest.approx(log_loss(examples.y, mixture, labels=range(3)), rel=1e-5)
    assert len({score["shared"]["loss"] for score in one.scores.values()}) == 3


SCAFFOLD = method("scaffold", nets=NETS, training=SGD, shared_init=True, rounds=4, fraction=0.3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("built", "fed"),
    [(SCAFFOLD, TEN), (fedper(), federation()), (neighbours(), apart()), (ensemble(), federation())],
    ids=["memory", "personal", "pairs", "outputs"],
)
def test_the_same_bits_in_worker_processes_and_after_a_stop(built, fed):
    here, there = ([bits(one) for one in run(built, fed, 8, execute)] for execute in (Inline(), workers(2)))
    assert here == there
    states = [one.state for one in run(built, fed, 8, Inline())]
    assert here == [bits(one) for one in run(built, fed, 8, Inline())]
    for done, state in enumerate(states, 1):
        assert [bits(one) for one in run(built, fed, 8, workers(2), state=state)] == here[done:]
