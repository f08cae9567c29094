"""Models on links, by hand: what a target runs, the bytes and the energy, the bounds and their noise."""

import numpy as np
import pytest
import torch
from federations import NET, bits, data, half, model
from links import NAMES, REPORTS, ROUND_INFO, D, formed

from fedcore.core.evaluation import outputs
from fedcore.methods.st_lf import protocol
from fedcore.methods.st_lf.bound import target_bound
from fedcore.methods.st_lf.problem import energy_of_links
from fedcore.methods.st_lf.sending import add_noise, review, send_models
from fedcore.types.method import Model, StepId, Update


def sent(names=NAMES):
    return {name: Update(model(name), size=7) for name in names}


WEIGHTS = torch.tensor([[0, 0, 0.3, 1], [0, 0, 0.7, 0], [0, 0, 0, 0], [0, 0, 0, 0]], dtype=torch.float64)


def linked(how):
    server = REPORTS | {
        "psi": torch.tensor([0.0, 0, 1, 1], dtype=torch.float64),
        "alpha": WEIGHTS,
        "energy": torch.arange(16, dtype=torch.float64).reshape(4, 4),
    }
    updates = sent("ab") | {name: Update() for name in "cd"}
    return *send_models(server, updates, ROUND_INFO, how=how), updates


def test_targets_get_the_weighted_mean_and_sources_keep_their_own_model():
    _, messages, _, updates = linked("parameters")
    mine = {name: protocol.deploy_received(sent()[name].params, messages[name]) for name in NAMES}
    by_hand = {key: 0.3 * x + 0.7 * updates["b"].params[key] for key, x in updates["a"].params.items()}
    torch.testing.assert_close(mine["c"].members[0], by_hand)
    assert bits(mine["d"].members[0]) == bits(updates["a"].params)  # one source: its model, bit by bit
    for name in "ab":
        assert messages[name].nbytes == 0
        assert bits(mine[name]) == bits(Model((sent()[name].params,)))


def test_outputs_are_the_weighted_mean_of_what_the_sources_say():
    _, messages, _, updates = linked("outputs")
    mine = protocol.deploy_received(sent()["c"].params, messages["c"])
    assert [bits(member) for member in mine.members] == [bits(updates[name].params) for name in "ab"]
    x = data(9).x
    said = [outputs(Model((updates[name].params,)), NET, x).exp() for name in "ab"]
    torch.testing.assert_close(outputs(mine, NET, x).exp(), 0.3 * said[0] + 0.7 * said[1])
    one = protocol.deploy_received(sent()["d"].params, messages["d"])
    assert bits(one) == bits(Model((updates["a"].params,)))


def test_what_links_carry_and_cost_is_reported_by_device():
    server, _, report, updates = linked("parameters")
    found = report.devices["links"]
    weight = float(updates["a"].nbytes)
    assert [*found] == [*NAMES]
    assert all([*numbers] == [*found["a"]] for numbers in found.values())
    columns = {name: [numbers[name] for numbers in found.values()] for name in found["a"]}
    assert [*columns] == ["target", "error", "links_out", "links_in", "sent", "received", "energy", "exchanged"]
    assert columns["links_out"] == [2, 1, 0, 0]
    assert columns["links_in"] == [0, 0, 2, 1]
    assert columns["sent"] == [2 * weight, weight, 0, 0]
    assert columns["received"] == [0, 0, 2 * weight, weight]
    assert columns["energy"] == [2 + 3, 6, 0, 0]
    assert sum(columns["energy"]) == energy_of_links(server["energy"].numpy(), WEIGHTS.numpy())
    assert columns["target"] == [0, 0, 1, 1]
    assert columns["error"] == [150 / 600, 180 / 500, 1, 1]


def test_bounds_of_a_targets_error_are_those_of_its_one_source():
    """Corollary 1 is T_ij, and Theorem 2 the source's error and half of the divergence."""
    server, *_ = formed()
    _, _, told = send_models(server, sent("ab") | {name: Update() for name in "cd"}, ROUND_INFO, how="parameters")
    found = told.devices["links"]
    assert all("theorem_2" not in found[name] for name in "ab")
    error = np.array([150 / 600, 180 / 500, 1, 1])
    bounds = target_bound(error, np.array([600.0, 500, 700, 800]), D, delta=1e-3, constants="assumed")
    for j, name in enumerate("cd", 2):
        i = int(server["alpha"][:, j].argmax())
        assert found[name]["theorem_2"] == pytest.approx(error[i] + D[i, j] / 2)
        assert found[name]["corollary_1"] == pytest.approx(bounds[i, j])


def test_targets_measure_how_often_their_sources_disagree():
    """Theorem 2 grows by sum_i alpha_ij sum_k alpha_kj D_ijk, with D counted by hand; one source has no noise."""
    _, messages, _, updates = linked("outputs")
    fed = half()
    told = {name: protocol.compare_members(model(name), messages[name], fed.devices[name], StepId(0, 4, 0, name))[1]
            for name in NAMES}  # fmt: skip
    x = fed.devices["c"].data.unlabelled.x
    says = [outputs(Model((updates[name].params,)), NET, x).argmax(1) for name in "ab"]
    apart = float((says[0] != says[1]).double().mean())
    assert apart > 0
    assert told["c"].extra["differ"].tolist() == [[0, apart], [apart, 0]]
    server = {"alpha": WEIGHTS, "psi": torch.tensor([0.0, 0, 1, 1]), "theorem_2": torch.ones(4, dtype=torch.float64)}
    server, sent_now, found = add_noise(server, told, ROUND_INFO)
    assert not sent_now
    assert found.devices["noise"]["c"]["theorem_2"] == pytest.approx(1 + 2 * 0.3 * 0.7 * apart)
    assert found.devices["noise"]["d"] == {"noise": 0.0, "theorem_2": 1.0}


def test_a_review_completes_what_is_known_of_targets():
    links = {"a": {"target": 0.0, "energy": 3.0}, "b": {"target": 1.0, "theorem_2": 0.5, "corollary_1": 4.0},
             "c": {"target": 1.0}}  # fmt: skip
    right = {"a": 0.9, "b": 0.25, "c": 0.75}
    scores = {name: {"test": {"accuracy": right[name], "macro_f1": right[name] / 2}} for name in right}
    found = review({"links": links, "program": {}}, scores)
    assert found == {
        "links": {
            "a": {**links["a"], "source_accuracy": 0.9, "source_macro_f1": 0.45},
            "b": {**links["b"], "accuracy": 0.25, "slack_theorem_2": -0.25, "slack_corollary_1": 3.25},
            "c": {"target": 1.0, "accuracy": 0.75},
        },
        "program": {},
    }
    assert [*found["links"]["b"]][-2:] == ["slack_theorem_2", "slack_corollary_1"]  # rows come in this order
