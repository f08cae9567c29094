from dataclasses import replace
from functools import partial

import pytest
import torch
from federations import (
    ADAM,
    NET,
    NETS,
    SGD,
    bits,
    constant,
    disputed,
    federation,
    fused,
    last,
    model,
    ranked,
    sending,
    shuffled,
    trained,
)

from fedcore import InputError, Net, nets
from fedcore.core.rounds import run
from fedcore.core.training import predict
from fedcore.execute.workers import Inline, one_thread
from fedcore.methods import method
from fedcore.methods.code.fusion import align, carry
from fedcore.methods.code.transport import Transport
from fedcore.results.reports import folds
from fedcore.types.method import Message, Report, RoundInfo, StepId, Update, generator

GIVEN = {
    "nets": NETS, "training": SGD, "shared_init": False, "rounds": 1, "order": "ascending", "rank_by": "validation",
    "solver": "newton", "reg": 0.01, "tol": 1e-7, "max_iterations": 10_000, "p": 1,
}  # fmt: skip
PLANS = Transport(**{name: GIVEN[name] for name in ("solver", "reg", "tol", "max_iterations", "p")})
code_ot = partial(method, "code_ot", **GIVEN)
no_alignment = partial(method, "no_alignment", nets=NETS, training=SGD, shared_init=False)
X = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))


# Oracles


@pytest.mark.parametrize(
    "settings",
    [{}, {"p": 2}, {"solver": "exact"}, {"solver": "sinkhorn", "reg": 0.03}],
    ids=["newton", "squared", "exact", "sinkhorn"],
)
@pytest.mark.slow
def test_a_permuted_network_fuses_back_to_itself(settings):
    models = [*(shuffled(model(), NET, k) for k in (1, 2, 3)), model()]
    for params in models:
        torch.testing.assert_close(predict(params, NET, X, 50), predict(model(), NET, X, 50))
    assert not any(torch.equal(params["fc2.weight"], model()["fc2.weight"]) for params in models[:-1])
    found = fused(code_ot(**settings), ranked(*models))
    torch.testing.assert_close(found, model(), rtol=0, atol=1e-5)
    blind = fused(no_alignment(rank_by="validation"), ranked(*models))
    assert (blind["fc2.weight"] - model()["fc2.weight"]).abs().max() > 0.1


def test_the_fused_model_has_the_units_of_the_best():
    models = [model(), shuffled(model(), NET, 1), shuffled(model(), NET, 2)]
    torch.testing.assert_close(fused(code_ot(), ranked(*models)), models[-1], rtol=0, atol=1e-5)
    torch.testing.assert_close(fused(code_ot(order="descending"), ranked(*models)), models[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"p": 2}, {"solver": "exact"}], ids=["newton", "squared", "exact"])
@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.slow
def test_identical_devices_are_a_fixed_point(settings, count):
    found = fused(code_ot(**settings), ranked(*[model()] * count))
    torch.testing.assert_close(found, model(), rtol=0, atol=1e-6)


# Reductions


@pytest.mark.slow
@pytest.mark.parametrize("rank_by", ["validation", "test"])
@pytest.mark.parametrize("names", ["a", "ab", "abcde"])
def test_without_alignment_it_is_the_geometric_weighting_to_the_bit(rank_by, names):
    fed = federation(names)
    found = last(code_ot(training=ADAM, rank_by=rank_by, solver="identity"), fed, 2)
    expected = last(no_alignment(training=ADAM, rank_by=rank_by), fed, 2)
    assert bits(found.state.messages) == bits(expected.state.messages)
    assert found.scores == expected.scores
    if len(names) > 1:
        aligned = last(code_ot(training=ADAM, rank_by=rank_by), fed, 2)
        assert bits(aligned.state.messages) != bits(expected.state.messages)


@pytest.mark.slow
def test_one_device_is_that_device():
    alone = federation("b")
    one = last(code_ot(), alone, 3)
    assert bits(one.state.messages["b"].params) == bits(trained(alone, SGD, 3)["b"].params)
    assert one.report == Report()


@pytest.mark.slow
def test_one_shot_is_the_first_round_of_three():
    fed = federation()
    (alone,) = run(code_ot(), fed, 4, Inline())
    rounds = list(run(code_ot(rounds=3), fed, 4, Inline()))
    assert [(one.round_info.stage, one.round_info.round) for one in rounds] == [(0, 0), (1, 0), (1, 1)]
    assert bits(replace(rounds[0].state, delivered=alone.state.delivered)) == bits(alone.state)  # who has its message
    assert rounds[0].scores == alone.scores


@pytest.mark.slow
def test_later_shots_train_on_from_the_fused_model():
    fed = federation()
    first, second = run(code_ot(rounds=2), fed, 4, Inline())
    local = code_ot(rounds=2).stages[1].local
    with one_thread():
        updates = {
            name: local({}, Message(first.state.messages[name].params), there, StepId(4, 1, 0, name))[1]
            for name, there in fed.devices.items()
        }
    assert bits(second.state.messages["a"].params) == bits(fused(code_ot(), updates))
    assert bits(second.state.messages) != bits(first.state.messages)


# Order and exam


@pytest.mark.parametrize(
    ("order", "expected"), [("ascending", 8 / 4 + 80 / 4 + 800 / 2), ("descending", 8 / 2 + 80 / 4 + 800 / 4)]
)
def test_the_last_of_the_order_counts_half(order, expected):
    updates = {
        "a": Update(constant(80.0), score=0.5),
        "b": Update(constant(800.0), score=0.9),
        "c": Update(constant(8.0), score=0.1),
    }
    assert bits(fused(code_ot(order=order, solver="identity"), updates)) == bits(constant(expected))


@pytest.mark.parametrize(("rank_by", "order"), [("validation", "abc"), ("test", "cab")])
@pytest.mark.slow
def test_the_exam_decides(rank_by, order):
    updates, examples = disputed()
    found = fused(code_ot(rank_by=rank_by), updates, examples)
    renamed = ranked(*(updates[name].params for name in order))
    assert bits(found) == bits(fused(code_ot(), renamed))
    assert bits(found) != bits(fused(code_ot(order="descending"), renamed))


# What the server remembers and reports


def test_a_report_has_the_plans_of_its_round_and_memory_has_none():
    fed, seen = federation(), set()
    for one in run(code_ot(rounds=3, rank_by="test"), fed, 3, Inline()):
        matrices = one.report.matrices
        plans = {name: tensor for name, tensor in matrices.items() if name.startswith("plan/")}
        folds = {name.split("/")[1] for name in plans}
        assert len(folds) == 2  # three models are folded twice, named by the model that is folded in
        shapes = {f"plan/{fold}/{label}": (n, n) for fold in folds for label, n in (("h1", 5), ("h2", 4))}
        assert {name: tuple(tensor.shape) for name, tensor in plans.items()} == shapes
        assert all(tensor.sum().item() == pytest.approx(1, abs=1e-5) for tensor in plans.values())
        assert matrices["solver/violation"].shape == (4,)
        assert matrices["solver/violation"].max() < 1e-7
        assert set(one.report.devices["transport"]) == folds
        assert set(one.state.server) == {"test/x", "test/y"}
        assert one.state.server["test/x"] is fed.test.x
        seen.add(frozenset(folds))
    assert len(seen) == 3  # the order of the models changes from shot to shot


def test_the_plan_of_a_permutation_is_that_permutation():
    updates = ranked(model(), shuffled(model(), NET, 1))
    one = last(sending(code_ot(), updates), federation("ab"))
    plan = one.report.matrices["plan/b/h1"]
    moved = 5 * plan.T @ model()["fc1.weight"]
    torch.testing.assert_close(moved, updates["b"].params["fc1.weight"], rtol=0, atol=1e-5)
    numbers = {f"solver/{name}" for name in ("iterations", "violation", "bound", "partners")}
    assert set(one.report.matrices) == {"plan/b/h1", "plan/b/h2"} | numbers
    assert one.state.server == {}


@pytest.mark.slow
def test_the_reported_folds_make_the_fused_model_again():
    """Of their order, devices, weights and matrices alone."""
    updates = ranked(*(model(name) for name in "abcd"))
    found = folds([last(sending(code_ot(), updates), federation("abcd")).report])
    assert [(fold.order, fold.device, fold.into, fold.weight) for fold in found if fold.layer == "h1"] == [
        (1, "a", "b", 0.125), (2, "b", "c", 0.125), (3, "c", "d", 0.25),
    ]  # fmt: skip
    assert [fold.name for fold in found][:2] == ["01 a into b, layer h1", "01 a into b, layer h2"]
    so_far = {name: x.double() for name, x in updates["a"].params.items()}
    for fold in found:
        n, m = fold.matrix.shape
        for name, labels in NET.table.items():
            for axis in (axis for axis, label in enumerate(labels) if label == fold.layer):
                so_far[name] = carry(so_far[name], axis, (n if axis else m) * fold.matrix.double())
        if fold.layer == "h2":  # the last one of a fold
            so_far = {name: (x + updates[fold.into].params[name]) / 2 for name, x in so_far.items()}
    expected = fused(code_ot(), updates)
    torch.testing.assert_close({name: x.float() for name, x in so_far.items()}, expected, rtol=0, atol=1e-5)


def test_models_that_are_aligned_to_the_best_weigh_alike():
    build = partial(method, "lmf", nets=NETS, training=SGD, rank_by="validation", shared_init=False)
    found = folds([last(sending(build(), ranked(*map(model, "abc"))), federation("abc")).report])
    assert [(fold.order, fold.device, fold.into, fold.weight) for fold in found if fold.layer == "h2"] == [
        (1, "a", "c", 1 / 3), (2, "b", "c", 1 / 3),
    ]  # fmt: skip


# What is refused


def test_a_net_without_a_table_is_refused():
    with pytest.raises(InputError, match=r"^net\.name: .*no table of axes"):
        code_ot(nets={"a": Net(NET.build)})


# Unequal widths


WIDE = nets.net("mlp", shape=(4,), classes=3, widths=[7, 6])


def mixed(**settings):
    """What each device is sent after the shot of devices a and c (narrow) and b and d (wide); the best is narrow."""
    given = {name: WIDE if name in "bd" else NET for name in "abcd"}
    updates = {"d": Update(model("d", net=WIDE), score=0.1), "b": Update(model("b", net=WIDE), score=0.2)}
    updates |= {"c": Update(model("c"), score=0.3), "a": Update(model("a"), score=0.4)}
    (stage,) = code_ot(nets=given, **settings).stages
    _, messages, report = stage.combine({}, updates, RoundInfo(0, 0, 0, ("a", "b", "c", "d"), ("a", "b", "c", "d")))
    return report, messages, updates


def test_models_of_unequal_widths_fuse_and_return_in_each_devices_shapes():
    report, messages, updates = mixed()
    for name, message in messages.items():
        shapes = {key: tuple(x.shape) for key, x in message.params.items()}
        assert shapes == nets.shapes(WIDE if name in "bd" else NET)
    assert tuple(report.matrices["plan/c/h1"].shape) == (7, 5)
    assert messages["a"] is messages["c"]
    assert messages["b"] is messages["d"]  # aligned to the better of the two wide models, once
    fit = align(messages["a"].params, updates["b"].params, NET.table, PLANS)[0]
    assert bits(messages["b"].params) == bits(fit)


def test_wide_devices_get_the_fused_function_if_models_are_split_copies():
    """Each of NET's units is there twice in the wide net, with half of its outgoing weights: the same function."""
    small = model("small")
    wide = nets.net("mlp", shape=(4,), classes=3, widths=[10, 8])
    copy = {
        "fc1.weight": small["fc1.weight"].repeat_interleave(2, 0),
        "fc1.bias": small["fc1.bias"].repeat_interleave(2, 0),
        "fc2.weight": small["fc2.weight"].repeat_interleave(2, 0).repeat_interleave(2, 1) / 2,
        "fc2.bias": small["fc2.bias"].repeat_interleave(2, 0),
        "fc3.weight": small["fc3.weight"].repeat_interleave(2, 1) / 2,
        "fc3.bias": small["fc3.bias"],
    }
    updates = {"b": Update(copy, score=0.1), "a": Update(small, score=0.2)}
    (stage,) = code_ot(nets={"a": NET, "b": wide}, solver="exact").stages
    _, messages, _ = stage.combine({}, updates, RoundInfo(0, 0, 0, ("a", "b"), ("a", "b")))
    x = torch.randn(9, 4, generator=generator("x"))
    expected = predict(small, NET, x, 9)
    torch.testing.assert_close(predict(messages["a"].params, NET, x, 9), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(predict(messages["b"].params, wide, x, 9), expected, rtol=1e-5, atol=1e-6)


def test_nets_of_unequal_depth_are_refused():
    deep = nets.net("mlp", shape=(4,), classes=3, widths=[5, 4, 4])
    with pytest.raises(InputError, match=r"^net\.variants: .*widths only"):
        code_ot(nets={"a": NET, "b": deep})


@pytest.mark.parametrize("name", ["fedavg", "best_local", "half_best", "no_alignment"])
def test_what_is_taken_tensor_by_tensor_needs_equal_nets(name):
    memory = {"rounds": 1, "fraction": 1.0, "weights": "size"} if name == "fedavg" else {"rank_by": "validation"}
    with pytest.raises(InputError, match=r"^net\.variants: .*equal nets"):
        method(name, nets={"a": NET, "b": WIDE}, training=SGD, shared_init=False, **memory)
