"""Boosted trees: xgboost's own bytes on one device, and bagging that adds up by hand."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from federations import NETS, SGD, bits, data, device_of, federation, last

from fedcore import Data, InputError, Splits, nets
from fedcore.core.evaluation import outputs
from fedcore.core.gradients import class_weights
from fedcore.data.task import label_kind_of
from fedcore.errors import Diverged
from fedcore.methods import builder, method
from fedcore.methods.published.trees import OUTPUTS, Boosting, boost, join_trees
from fedcore.nets.trees import TREES, load_trees
from fedcore.types.federation import NO_DATA, nbytes
from fedcore.types.method import Message, StepId

xgboost = pytest.importorskip("xgboost", reason="xgboost is not installed: make test installs it")

KINDS = {
    "classes": lambda y, x: y,
    "two": lambda y, x: (y > 0).long(),
    "number": lambda y, x: x[:, 0] * x[:, 1],
    "labels": lambda y, x: (x[:, :2] > 0).float(),
}
OBJECTIVE = {
    "classes": {"objective": "multi:softprob", "num_class": 3, "base_score": 0.0},
    "two": {"objective": "binary:logistic", "base_score": 0.5},
    "number": {"objective": "reg:squarederror", "base_score": 0.0},
    "labels": {"objective": "binary:logistic", "base_score": 0.5},
}
NUMBER_OF = {"classes": 3, "two": 2, "number": 1, "labels": 2}


def federation_of(kind, names="abc"):
    """Devices of which each has 60 examples or more, with labels of a kind."""

    def rows(count, *words):
        drawn = data(count, *words)
        return Data(drawn.x, KINDS[kind](drawn.y, drawn.x))

    devices = {
        name: replace(device_of(name), data=Splits(rows(60 + k, name), rows(9, name, "val"), rows(9, name, "test")))
        for k, name in enumerate(names)
    }
    return replace(federation(names), devices=devices, test=rows(20, "shared"), classes=NUMBER_OF[kind])


def plain(kind, rows, rounds, eta=0.3, before=None):
    """Trees by xgboost itself; its other settings are its own."""
    settings = OBJECTIVE[kind] if before is None else {k: v for k, v in OBJECTIVE[kind].items() if k != "base_score"}
    matrix = xgboost.DMatrix(rows.x.numpy(), rows.y.numpy())
    return xgboost.train(settings | {"eta": eta, "nthread": 1, "verbosity": 0}, matrix, rounds, xgb_model=before)


def built(name, fed, **settings):
    return method(name, nets={of: NETS[of] for of in fed.devices}, training=SGD, **settings)


def test_infinite_numbers_are_refused_in_one_line_by_trees_as_by_nets():
    fed, x = federation_of("two"), torch.full((1, *device_of("a").data.train.x.shape[1:]), torch.inf)
    row, turn = built("xgb_local", fed, trees=2), last(built("xgb_local", fed, trees=2), fed)
    model = row.deploy(turn.state.memories["a"], turn.state.messages["a"])
    with pytest.raises(Diverged, match=r"^trees: x has numbers that float32 does not hold"):
        outputs(model, NETS["a"], x)


def content(tensor):
    return tensor.numpy().tobytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_one_device_is_xgboost_itself_to_the_bit(kind):
    fed = federation_of(kind, "a")
    expected = bytes(plain(kind, fed.devices["a"].data.train, 4).save_raw("ubj"))
    for name, settings in (
        ("xgb_local", {"trees": 4}), ("xgb_bagging", {"rounds": 4}), ("xgb_bagging", {"rounds": 2, "trees": 2}),
    ):  # fmt: skip
        state = last(row := built(name, fed, **settings), fed).state
        model = row.deploy(state.memories.get("a", {}), state.messages["a"])
        assert content(model.members[0][TREES]) == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_what_a_model_says_is_what_xgboost_says(kind):
    fed = federation_of(kind, "a")
    rows, there = plain(kind, fed.devices["a"].data.train, 4), fed.devices["a"]
    state = last(row := built("xgb_local", fed, trees=4), fed).state
    y = label_kind_of(fed.test.y)
    answers = outputs(row.deploy(state.memories["a"], state.messages["a"]), there.net, fed.test.x, y)
    expected = rows.predict(xgboost.DMatrix(fed.test.x.numpy()), output_margin=kind in ("number", "labels"))
    found = answers if kind in ("number", "labels") else answers.exp()
    np.testing.assert_allclose((found[:, 1] if kind == "two" else found.squeeze(1)).numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_bagging_adds_the_trees_of_all_devices_up_by_hand(kind):
    """Two rounds: every device goes on from the sum of all trees, with a third of eta."""
    fed, x = federation_of(kind), federation_of(kind).test.x.numpy()
    state = last(built("xgb_bagging", fed, rounds=2), fed).state
    first = [plain(kind, there.data.train, 1, 0.1) for there in fed.devices.values()]
    sent = state.messages["a"].extra[TREES]
    whole = load_trees(sent)
    half = whole[: len(fed.devices)]
    second = [plain(kind, there.data.train, 1, 0.1, half)[3:] for there in fed.devices.values()]
    margins = [tree.predict(xgboost.DMatrix(x), output_margin=True) for tree in (*first, *second)]
    np.testing.assert_allclose(whole.predict(xgboost.DMatrix(x), output_margin=True), sum(margins), atol=1e-6)
    learner = json.loads(whole.save_raw("json"))["learner"]["gradient_booster"]["model"]
    each = {"classes": 3, "labels": 2}.get(kind, 1)
    assert [tree["id"] for tree in learner["trees"]] == [*range(6 * each)]
    assert learner["tree_info"] == [*range(each)] * 6
    assert learner["iteration_indptr"] == [*range(0, 6 * each + 1, each)]
    assert learner["gbtree_model_param"]["num_trees"] == str(6 * each)


@pytest.mark.slow
def test_bytes_are_the_same_for_any_threads_and_after_a_reload():
    there, message = federation_of("classes").devices["a"], without_trees(3)
    found = set()
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            trees = boost(message, there.data.train, StepId(0, 0, 0, "a"), 3, Boosting(subsample=0.5))
            found |= {content(trees), bytes(load_trees(trees).save_raw("ubj")), content(join_trees([trees]))}
    finally:
        torch.set_num_threads(before)
    assert len(found) == 1


def without_trees(outputs):
    return Message(extra={TREES: torch.empty(0, dtype=torch.uint8), OUTPUTS: torch.tensor([outputs])})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_pooled_is_xgboost_on_the_rows_of_all_devices_that_have_any(kind):
    fed = federation_of(kind)
    blank = replace(fed.devices["b"], data=replace(fed.devices["b"].data, train=NO_DATA))
    fed = replace(fed, devices={**fed.devices, "b": blank})
    one, (a, c) = last(built("pooled", fed, trees=3), fed), (fed.devices[name].data.train for name in "ac")
    rows = Data(torch.cat([a.x, c.x]), torch.cat([a.y, c.y]))
    assert {content(message.extra[TREES]) for message in one.state.messages.values()} == {
        bytes(plain(kind, rows, 3).save_raw("ubj"))
    }
    assert one.up == {"a": nbytes({"x": a.x, "y": a.y}), "b": 0, "c": nbytes({"x": c.x, "y": c.y})}
    assert builder("pooled").control


@pytest.mark.slow
def test_what_is_sent_counts_as_traffic():
    fed = federation_of("classes")
    one = last(built("xgb_bagging", fed, rounds=1), fed)
    sent = len(one.state.messages["a"].extra[TREES])
    assert one.down == dict.fromkeys("abc", 8 + sent + 8)
    assert one.up == {
        name: len(boost(without_trees(3), there.data.train, StepId(0, 0, 0, name), 1, Boosting(), devices=3))
        for name, there in fed.devices.items()
    }
    alone = last(built("xgb_local", fed, trees=2), fed)
    assert (alone.up, alone.down) == (dict.fromkeys("abc", 0), dict.fromkeys("abc", 8))


def test_a_device_without_a_label_runs_the_trees_of_the_others():
    fed = federation_of("classes")
    blank = replace(fed.devices["a"], data=replace(fed.devices["a"].data, train=NO_DATA))
    without = replace(fed, devices={**fed.devices, "a": blank})
    state = last(built("xgb_bagging", fed, rounds=1), without).state
    assert content(state.messages["a"].extra[TREES]) == content(
        join_trees(
            [
                boost(without_trees(3), fed.devices[name].data.train, StepId(0, 0, 0, name), 1, Boosting(), devices=3)
                for name in "bc"
            ]
        )
    )
    row = built("xgb_local", fed, trees=1)
    alone = last(row, without).state
    unsure = outputs(row.deploy(alone.memories["a"], alone.messages["a"]), blank.net, fed.test.x)
    torch.testing.assert_close(unsure.exp(), torch.full((20, 3), 1 / 3))


@pytest.mark.slow
def test_subsamples_follow_from_the_seed():
    fed = federation_of("classes")
    one, again, other = (last(built("xgb_local", fed, trees=1, subsample=0.5), fed, seed).state for seed in (0, 0, 1))
    assert bits(one) == bits(again)
    assert bits(one.memories) != bits(other.memories)


def test_class_weights_are_those_of_the_nets_and_balance_a_models_classes():
    fed = federation_of("two")
    for name, rounds in (("xgb_local", {}), ("xgb_bagging", {"rounds": 1}), ("pooled", {})):
        row, plainly = (
            method(name, nets={of: NETS[of] for of in fed.devices}, training=training, trees=1, **rounds)
            for training in (replace(SGD, class_weights="balanced"), SGD)
        )
        one, other = (last(each, fed).state for each in (row, plainly))
        assert bits(one) != bits(other), name
    rows = fed.devices["a"].data.train
    matrix = xgboost.DMatrix(rows.x.numpy(), rows.y.numpy(), weight=class_weights(rows.y)[rows.y].numpy())
    settings = OBJECTIVE["two"] | {"eta": 0.3, "nthread": 1, "verbosity": 0}
    found = boost(without_trees(2), rows, StepId(0, 0, 0, "a"), 2, Boosting(), "balanced")
    assert content(found) == bytes(xgboost.train(settings, matrix, 2).save_raw("ubj"))


def test_embeddings_and_a_lack_of_xgboost_are_refused(monkeypatch):
    tokens = nets.net("lstm", shape=(8,), classes=3)
    with pytest.raises(InputError, match=r"^xgb_local: takes inputs as quantities; "):
        method("xgb_local", nets={"a": tokens}, training=SGD)
    monkeypatch.setitem(__import__("sys").modules, "xgboost", None)
    with pytest.raises(InputError, match=r"^xgboost is not installed; .* pip install '\.\[trees\]' "):
        built("xgb_bagging", federation("a"))
