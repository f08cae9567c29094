"""FADA's parts: dynamic attention by hand and by another k-means, features, what confuses whom, refusals."""

from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from federations import NET, SGD, Recorder, bits, data, device_of, federation, half, last, model, trained
from links import GIVEN
from torch import nn
from torch.nn.functional import cross_entropy

from fedcore import InputError, Net, evenly, mean, nets
from fedcore.core.rounds import run
from fedcore.core.training import flatten_net, predict
from fedcore.methods import method
from fedcore.methods.st_lf import adversaries
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
from fedcore.types.federation import by_word
from fedcore.types.method import Message, Model, PairStage, RoundInfo, StepId, Update, generator

ALIGNMENT = Alignment(
    start="own", steps=3, batch=4, lr=0.1, weight=0.5, shown=16, sharpness=1.0, hidden=6, identifier_steps=30,
    identifier_lr=0.5,
)  # fmt: skip
RIVAL = identifier("fada", NET, 6)
X = data(9).x
ROUND_INFO = RoundInfo(5, 2, 0, ("a", "b"), ("a", "b"))


def apart(points: np.ndarray) -> float:
    """sum over ordered pairs of |f_i - f_j|, one pair after another."""
    return sum(float(np.linalg.norm(a - b)) for a, b in product(points, points))


@pytest.mark.slow
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


# FADA and psi-FADA: what they reduce to, whose links they have, what travels, what is refused.
ALIGNED = {
    "rounds": 2, "start": "own", "steps": 3, "batch": 4, "lr": 0.1, "weight": 0.5, "shown": 6, "sharpness": 1.0,
    "hidden": 5, "identifier_steps": 4, "identifier_lr": 0.1,
}  # fmt: skip


WHOLE = {name: value for name, value in (GIVEN | ALIGNED).items() if name != "combine"}


DRAWN = {
    name: WHOLE[name] for name in ("nets", "training", "shared_init", "powers", "rates", "bits", "costs", *ALIGNED)
}


fada, psi_fada = partial(method, "fada", **WHOLE), partial(method, "psi_fada", **DRAWN)


EVEN = "defg"


"""Devices with as many examples each."""


def start(seed):
    return nets.init(NET, generator(seed, "init"))


def models(built, one):
    return {name: built.deploy(one.state.memories[name], one.state.messages[name]) for name in one.state.messages}


def everywhere(given, names):
    return given | {"nets": dict.fromkeys(names, NET)}


def stepped(params, sets):
    """One step of the gradient of the mean over sets of their mean cross-entropies, written out."""
    tensors = {name: tensor.clone().requires_grad_() for name, tensor in params.items()}
    loss = 0
    for examples in sets:
        x = examples.inputs()
        for layer in ("fc1", "fc2"):
            x = torch.relu(x @ tensors[f"{layer}.weight"].T + tensors[f"{layer}.bias"])
        loss = loss + cross_entropy(x @ tensors["fc3.weight"].T + tensors["fc3.bias"], examples.y) / len(sets)
    gradients = torch.autograd.grad(loss, [*tensors.values()])
    return {
        name: tensor - ALIGNED["lr"] * logit_grad
        for (name, tensor), logit_grad in zip(params.items(), gradients, strict=True)
    }


def aligned(built):
    """What devices kept and sent in each turn of the alignment: (device, memory, update)."""
    execute = Recorder()
    list(run(built, half(), 1, execute))
    of = [(unit, result) for fn, unit, result in execute.steps if getattr(fn, "func", fn) is adversaries.align]
    return [(unit, memory, sent) for unit, (memory, sent) in of]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rival"), [("fada", "fedavg_alpha"), ("psi_fada", "psi_fedavg")])
def test_without_alignment_it_is_fedavg_of_devices_of_equal_size(name, rival):
    fed, seed = half(EVEN, "fg") if name == "fada" else federation(EVEN), 3
    mine = method(name, **everywhere({"fada": WHOLE, "psi_fada": DRAWN}[name], EVEN) | {"rounds": 0})
    kept = {key: GIVEN[key] for key in (GIVEN if name == "fada" else [*DRAWN, "combine"]) if key in GIVEN}
    its = method(rival, **everywhere(kept, EVEN))
    one, two = last(mine, fed, seed), last(its, fed, seed)
    assert one.state.server["psi"].any()
    torch.testing.assert_close(one.state.server["alpha"], two.state.server["alpha"])
    for x in EVEN:
        mine_there, its_there = models(mine, one)[x], models(its, two)[x]
        torch.testing.assert_close(mine_there.members, its_there.members)
    assert one.report.devices == two.report.devices


@pytest.mark.slow
def test_without_alignment_a_target_runs_the_even_mean_of_the_sources():
    built, fed = fada(rounds=0, sharpness=9.0), half()
    one, alone = last(built, fed, 3), trained(fed, SGD, 3, start(3))
    for name, deployed in models(built, one).items():
        expected = mean([alone[x].params for x in "ab"], evenly(2)) if name in "cd" else alone[name].params
        assert bits(deployed) == bits(Model((expected,)))


@pytest.mark.slow
def test_with_weight_zero_a_copy_is_the_source_trained_further():
    """Full batches, so that which examples are drawn when does not matter: steps of the gradient, written out."""
    built, fed = fada(weight=0.0, batch=100), half(unknown="bcd")
    one = last(built, fed, 3)
    params = trained(fed, SGD, 3, start(3))["a"].params
    for _ in range(ALIGNED["rounds"] * ALIGNED["steps"]):
        params = stepped(params, [fed.devices["a"].data.train])
    for name in "bcd":
        torch.testing.assert_close(models(built, one)[name].members[0], params)


@pytest.mark.slow
def test_from_the_targets_model_it_is_descent_of_the_sources_mean_loss():
    """Weight 0, even attention, one step on all examples: each round is one step, as FedAvg's would be."""
    built, fed = fada(start="target", weight=0.0, sharpness=0.0, steps=1, batch=100, rounds=4), half()
    one, alone = last(built, fed, 3), trained(fed, SGD, 3, start(3))
    params = mean([alone[x].params for x in "ab"], evenly(2))
    for _ in range(4):
        params = stepped(params, [fed.devices[x].data.train for x in "ab"])
    for name in "cd":
        torch.testing.assert_close(models(built, one)[name].members[0], params)
    for name in "ab":
        assert bits(models(built, one)[name]) == bits(Model((alone[name].params,)))


@pytest.mark.slow
def test_with_one_source_and_weight_zero_the_start_of_copies_is_irrelevant():
    fed = half(unknown="bcd")
    found = [last(fada(start=way, weight=0.0), fed, 3) for way in ("own", "target")]
    assert found[0].scores == found[1].scores
    assert found[0].up["b"] < found[1].up["b"]  # targets send their model


@pytest.mark.slow
def test_the_adversaries_change_the_targets_and_not_the_sources():
    built, fed = fada(), half()
    with_them, without = last(built, fed, 3), last(fada(weight=0.0), fed, 3)
    alone = trained(fed, SGD, 3, start(3))
    for name in "ab":
        assert bits(models(built, with_them)[name]) == bits(Model((alone[name].params,)))
    for name in "cd":
        assert bits(models(built, with_them)[name]) != bits(models(built, without)[name])


@pytest.mark.slow
def test_where_everyone_is_a_source_it_is_local_training():
    built, fed = fada(phi_s=0.0), federation("abcd")
    one, alone = last(built, fed, 3), trained(fed, SGD, 3, start(3))
    assert bits(models(built, one)) == bits({name: Model((update.params,)) for name, update in alone.items()})
    assert not any(one.up.values())
    assert not one.state.server["alpha"].any()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_sources_targets_and_energies_are_st_lfs_and_every_link_is_there(seed):
    one, other = last(fada(), half(), seed), last(method("st_lf", **GIVEN), half(), seed)
    mine, its = one.state.server, other.state.server
    for name in ("psi", "energy"):
        assert bits(mine[name]) == bits(its[name])
    psi, alpha = mine["psi"], mine["alpha"]
    assert torch.equal(one.report.matrices["alpha"], alpha)
    torch.testing.assert_close(alpha.sum(0), psi)
    assert torch.equal(alpha > 0, (psi == 0)[:, None] & (psi == 1))
    found = one.report.devices["links"]
    assert sum(row["energy"] for row in found.values()) == pytest.approx(float(mine["energy"][alpha > 0].sum()))
    assert [row["links_out"] for row in found.values()] == [2, 2, 0, 0]
    assert [row["received"] for row in found.values()] == [0, 0, *[2 * sum(x.nbytes for x in model().values())] * 2]


@pytest.mark.slow
@pytest.mark.parametrize(("changed", "known"), [({}, False), ({"sharpness": 0.0}, True), ({"rounds": 0}, True)])
def test_it_reports_bounds_of_even_weights_alone(changed, known):
    one = last(fada(**changed), half(), 0)
    of_targets = [row for row in one.report.devices["links"].values() if row["target"]]
    assert len(of_targets) == 2
    for bound in ("theorem_2", "corollary_1"):
        assert [bound in row for row in of_targets] == [known] * 2
        assert (bound in one.state.server) == known


@pytest.mark.slow
def test_psi_fada_draws_the_sources_of_rnd_psi_also_without_labels():
    unlabelled = 0
    rnd = {
        name: GIVEN[name] for name in ("nets", "training", "shared_init", "powers", "rates", "bits", "costs", "combine")
    }
    rnd["sources"] = "all"
    for seed in range(4):
        built = psi_fada(sources="all")
        one = last(built, half(), seed)
        psi, alpha = one.state.server["psi"], one.state.server["alpha"]
        its = last(method("rnd_psi", **rnd), half(), seed).state.server
        assert bits(psi) == bits(its["psi"])
        assert bits(one.state.server["energy"]) == bits(its["energy"])
        torch.testing.assert_close(alpha.sum(0), psi)
        assert torch.equal(alpha > 0, (psi == 0)[:, None] & (psi == 1))
        unlabelled += int((psi[2:] == 0).any() and bool(psi.any()))
    assert unlabelled
    assert len(built.stages) == 4
    assert not any(isinstance(stage, PairStage) for stage in built.stages)


@pytest.mark.slow
def test_weights_follow_how_far_each_sources_gap_fell_between_two_turns():
    """Dynamic attention of the last turn, worked out from what targets remember."""
    heard = [(memory, sent) for unit, memory, sent in aligned(fada(sharpness=3.0)) if unit == "c" and sent.extra]
    turns, weights = [memory["gaps/"] for memory, _ in heard], [sent.extra["attention"] for _, sent in heard]
    assert len(turns) == ALIGNED["rounds"] + 1
    assert weights[0].tolist() == [0.5, 0.5]
    for before, now, weight in zip(turns, turns[1:], weights[1:], strict=False):
        rise = 3 * ((before[0] - now[0]) - (before[1] - now[1]))
        assert float(weight[0]) == pytest.approx(1 / (1 + float(torch.exp(-rise))))
        assert float(weight.sum()) == pytest.approx(1)
    assert weights[-1].tolist() != [0.5, 0.5]


@pytest.mark.slow
def test_the_order_of_devices_does_not_matter():
    fed, order = half(), "cabd"
    moved = replace(fed, devices={name: fed.devices[name] for name in order})
    one, two = last(fada(), fed, 2), last(fada(), moved, 2)
    place = [order.index(name) for name in "abcd"]
    torch.testing.assert_close(two.state.server["alpha"][place][:, place], one.state.server["alpha"])
    for name in "abcd":
        torch.testing.assert_close(models(fada(), one)[name].members, models(fada(), two)[name].members)


@pytest.mark.slow
def test_names_that_begin_like_others_and_have_strokes_are_told_apart():
    fed, new = half(), dict(zip("abcd", ("b/c", "x", "y", "y/0"), strict=True))
    named = replace(fed, devices={new[k]: replace(there, name=new[k]) for k, there in fed.devices.items()})
    built = method("fada", **everywhere(WHOLE, new.values()) | {"steps": 1, "batch": 100, "shown": 100})
    its = fada(steps=1, batch=100, shown=100)
    one, two = last(built, named, 2), last(its, fed, 2)
    assert one.state.server["psi"].tolist() == two.state.server["psi"].tolist() == [0, 0, 1, 1]
    for stage in (built, its):
        assert stage.stages[-1].rounds == 1
    assert {new[name]: count for name, count in two.up.items()} == one.up


@pytest.mark.slow
def test_updates_hold_features_weights_and_models_but_no_examples():
    hidden, steps = 4, aligned(fada())
    assert len(steps) == 4 * (2 * ALIGNED["rounds"] + 2)
    for unit, _, sent in steps:
        kinds = {name.split("/")[0] for name in sent.extra}
        shown = [x for name, x in sent.extra.items() if name.startswith("features")]
        assert all(x.shape == (min(ALIGNED["shown"], len(x)), hidden) for x in shown)
        if unit in "cd":
            assert not sent.params
            assert kinds in (set(), {"features", "attention"})
        elif sent.params:
            assert kinds == {"features"}
        else:
            assert kinds in (set(), {"features", "model"})


@pytest.mark.slow
def test_the_server_ends_without_features_and_with_empty_messages():
    one = last(fada(), half(), 1)
    assert not [name for name in one.state.server if name.startswith(("features", "identifier", "model"))]
    assert all(message == Message() for message in one.state.messages.values())


def test_a_pairs_identifier_is_trained_once_both_have_sent_features():
    server = {"psi": torch.tensor([0.0, 1, 0, 1])}
    names, round_info = tuple("abcd"), RoundInfo(1, 3, 0, tuple("abcd"), tuple("abcd"))
    settings = adversaries.Alignment("own", 1, 4, 0.1, 1.0, 8, 1.0, 5, 2, 0.1)
    act = partial(adversaries.identify, rival=adversaries.identifier("fada", NET, 5), alignment=settings)
    shown = {name: torch.randn(3, 4, generator=generator(name)) for name in names}
    none = dict.fromkeys(names, Update())
    server, messages = act(server, none | {x: Update(model(x), {"features/": shown[x]}) for x in "ac"}, round_info)
    assert [*by_word("model/", messages["b"].extra)] == ["a", "c"]
    assert not by_word("identifier/", messages["b"].extra)
    assert [bool(messages[x].extra["sends"]) for x in names] == [False, True, False, True]
    server, messages = act(server, none | {x: Update(extra={"features/": shown[x]}) for x in "bd"}, round_info)
    assert [bool(messages[x].extra["sends"]) for x in names] == [True, False, True, False]
    assert [*by_word("identifier/", messages["a"].extra)] == ["b", "d"]
    assert not by_word("model/", messages["a"].extra)
    assert len(by_word("identifier/", server)) == 4


def test_bad_input_is_refused_in_one_line():
    with pytest.raises(InputError, match=r"^training\.shared_init = false: fada mixes models that must start from one"):
        fada(shared_init=False)
    with pytest.raises(InputError, match=r"^psi_fada\.costs: shape \(2, 2\) does not fit 4 devices"):
        psi_fada(costs=[[0.0, 1], [1, 0]])
    with pytest.raises(InputError, match=r"^federation\.unlabelled: no device has a label"):
        last(psi_fada(), half(unknown="abcd"))
    other = nets.net("mlp", shape=(4,), classes=3, widths=[7, 4])
    with pytest.raises(InputError, match=r"^net\.variants: "):
        fada(nets={**dict.fromkeys("abc", NET), "d": other})
