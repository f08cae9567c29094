"""ST-LF: what is transferred, by hand; that with the right weights it is local training; what is sent, what refused."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from federations import NET, SGD, Recorder, bits, data, federation, last, model, trained

from fedcore import nets
from fedcore.evaluate import evaluate, outputs
from fedcore.execute.workers import Inline
from fedcore.links import Problem, Solution, best_links, divergence, energy_of_links, programs, protocol
from fedcore.links.bound import source_bound, target_bound
from fedcore.links.divergence import Divergence
from fedcore.links.forms import Step
from fedcore.links.protocol import Bound, Program, Radio, binary, link_costs, plan_links, report
from fedcore.local import train
from fedcore.methods import method
from fedcore.methods.st_lf import of_program
from fedcore.results.reports import final_numbers
from fedcore.rounds import run
from fedcore.types import (
    Data,
    Device,
    Federation,
    InputError,
    Message,
    Model,
    PairStage,
    Splits,
    StepId,
    Turn,
    Update,
    generator,
)

GIVEN = {
    "nets": dict.fromkeys("abcd", NET), "training": SGD, "common": True, "pair_rounds": 3, "pair_iterations": 2,
    "pair_batch": 4, "pair_lr": 0.05, "held_out": 0.25, "constants": "assumed", "delta": 1e-3, "unlabelled": 1e3,
    "phi_s": 1.0, "phi_t": 5.0, "phi_e": 1.0, "powers": (23.0, 25.0), "rates": (63e6, 85e6), "bits": 1e9,
    "costs": None, "solver": "exact", "tol": 3e-3, "max_iterations": 60, "combine": "parameters",
}  # fmt: skip
st_lf = partial(method, "st_lf", **GIVEN)
BOUND, RADIO = Bound("assumed", 1e-3, 1e3, 1.0, 5.0, 1.0), Radio((23.0, 25.0), (63e6, 85e6), 1e9, None)
NAMES = tuple("abcd")
TURN = Turn(5, 2, 0, tuple((a, b) for i, a in enumerate(NAMES) for b in NAMES[i + 1 :]), NAMES)
NONE = data(0)


def half(names: str = "abcd", unknown: str = "cd") -> Federation:
    """Devices of which some know no label."""
    fed = federation(names)
    blank = {}
    for name in unknown:
        there = fed.devices[name]
        hidden = Data(there.data.train.x, torch.full_like(there.data.train.y, -1))
        blank[name] = replace(there, data=Splits(NONE, NONE, there.data.test, hidden))
    return replace(fed, devices={**fed.devices, **blank})


def planted(d: np.ndarray) -> dict[tuple[str, str], Update]:
    """What pairs would send if their data were so far apart: d = 2 |1 - 2 err|."""
    place = {name: i for i, name in enumerate(NAMES)}
    return {
        (a, b): Update(extra={"errors": torch.full((2,), (1 - d[place[a], place[b]] / 2) / 2), "sent": torch.tensor(6)})
        for a, b in TURN.units
    }


def reported(*rows: tuple[float, float, float]) -> dict[str, torch.Tensor]:
    return {"report": torch.tensor(rows, dtype=torch.float64)}


D = np.array([[0, 1, 0.2, 1.8], [1, 0, 1.6, 0.4], [0.2, 1.6, 0, 1], [1.8, 0.4, 1, 0]])
REPORTS = reported((0.1, 500, 600), (0.2, 400, 500), (0, 0, 700), (0, 0, 800))


def formed(server=REPORTS, d=D, turn=TURN, bound=BOUND, radio=RADIO, solver="exact"):
    """The server's memory, its messages and its report after planted reports and divergences."""
    program = Program(solver, 3e-3, 60)
    return plan_links(server, planted(d), turn, bound=bound, radio=radio, program=program, weights=of_program)


def sent(names=NAMES):
    return {name: Update(model(name), size=7) for name in names}


# what is transferred


def test_planted_divergences_give_the_links_worked_out_from_s_t_and_k():
    """c is near a and d near b, and neither has a label: each target listens to its neighbour."""
    server, messages, report = formed()
    torch.testing.assert_close(report.matrices["divergence"], torch.from_numpy(D))
    error = np.array([0.1 * 500 + 100, 0.2 * 400 + 100, np.nan, np.nan]) / [600, 500, 700, 800]
    error[2:] = 1e3
    sizes, how = np.array([600.0, 500, 700, 800]), {"delta": 1e-3, "constants": "assumed"}
    problem = Problem(
        source_bound(error, sizes, **how), target_bound(error, sizes, D, **how), link_costs(5, 4, RADIO), 1, 5, 1
    )
    psi = np.array([0.0, 0, 1, 1])
    assert server["psi"].tolist() == psi.tolist()
    np.testing.assert_array_equal(server["alpha"].numpy(), best_links(problem, psi))
    assert {name: bool(message.extra["sends"]) for name, message in messages.items()} == {
        name: bool(server["alpha"][i].any()) for i, name in enumerate(NAMES)
    }
    assert server["energy"].tolist() == problem.energy.tolist()
    assert float(report.matrices["gap"]) == 0
    assert report.devices["program"] == {name: {"gap": 0.0} for name in NAMES}
    assert bits({name: report.matrices[name] for name in ("psi", "alpha", "energy")}) == bits(
        {name: server[name] for name in ("psi", "alpha", "energy")}
    )


WEIGHTS = torch.tensor([[0, 0, 0.3, 1], [0, 0, 0.7, 0], [0, 0, 0, 0], [0, 0, 0, 0]], dtype=torch.float64)


def linked(how):
    server = REPORTS | {
        "psi": torch.tensor([0.0, 0, 1, 1], dtype=torch.float64),
        "alpha": WEIGHTS,
        "energy": torch.arange(16, dtype=torch.float64).reshape(4, 4),
    }
    updates = sent("ab") | {name: Update() for name in "cd"}
    return *protocol.send_models(server, updates, TURN, how=how), updates


def test_targets_get_the_weighted_mean_and_sources_keep_their_own_model():
    _, messages, _, updates = linked("parameters")
    mine = {name: protocol.deploy(sent()[name].params, messages[name]) for name in NAMES}
    by_hand = {leaf: 0.3 * x + 0.7 * updates["b"].params[leaf] for leaf, x in updates["a"].params.items()}
    torch.testing.assert_close(mine["c"].members[0], by_hand)
    assert bits(mine["d"].members[0]) == bits(updates["a"].params)  # one source: its model, bit by bit
    for name in "ab":
        assert messages[name].nbytes == 0
        assert bits(mine[name]) == bits(Model((sent()[name].params,)))


def test_outputs_are_the_weighted_mean_of_what_the_sources_say():
    _, messages, _, updates = linked("outputs")
    mine = protocol.deploy(sent()["c"].params, messages["c"])
    assert [bits(member) for member in mine.members] == [bits(updates[name].params) for name in "ab"]
    x = data(9).x
    said = [outputs(Model((updates[name].params,)), NET, x).exp() for name in "ab"]
    torch.testing.assert_close(outputs(mine, NET, x).exp(), 0.3 * said[0] + 0.7 * said[1])
    one = protocol.deploy(sent()["d"].params, messages["d"])
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


def test_the_order_of_devices_does_not_matter():
    """The same costs, handed over with the devices in another order, give the same links."""
    order = [2, 0, 3, 1]
    costs = link_costs(5, 4, RADIO)

    def links(index):
        radio = replace(RADIO, costs=costs[np.ix_(index, index)].tolist())
        server, *_ = formed({"report": REPORTS["report"][index]}, D[np.ix_(index, index)], radio=radio)
        return server["psi"], server["alpha"]

    (psi, alpha), (moved, weights) = links([0, 1, 2, 3]), links(order)
    assert torch.equal(moved, psi[order])
    assert torch.equal(weights, alpha[order][:, order])


def test_bounds_of_a_targets_error_are_those_of_its_one_source():
    """Corollary 1 is T_ij, and Theorem 2 the source's error and half of the divergence."""
    server, *_ = formed()
    _, _, told = protocol.send_models(server, sent("ab") | {name: Update() for name in "cd"}, TURN, how="parameters")
    found = told.devices["links"]
    assert all("theorem_2" not in found[name] for name in "ab")
    error = np.array([150 / 600, 180 / 500, 1, 1])
    bounds = target_bound(error, np.array([600.0, 500, 700, 800]), D, delta=1e-3, constants="assumed")
    for j, name in enumerate("cd", 2):
        i = int(server["alpha"][:, j].argmax())
        assert found[name]["theorem_2"] == pytest.approx(error[i] + D[i, j] / 2)
        assert found[name]["corollary_1"] == pytest.approx(bounds[i, j])


# reductions


@pytest.mark.parametrize("solver", ["exact", "successive", "repaired"])
def test_free_sources_are_all_sources_and_keep_local_training_exactly(solver):
    built, fed = st_lf(phi_s=0.0, solver=solver), federation("abcd")
    one = last(built, fed, 3)
    alone = trained(fed, SGD, 3, nets.init(NET, generator(3, "init")))
    for name in fed.devices:
        deployed = built.deploy(one.state.memories[name], one.state.messages[name])
        assert bits(deployed) == bits(Model((alone[name].params,)))
    assert one.state.server["psi"].tolist() == [0] * 4
    assert not any(one.up.values())


def test_unlabelled_devices_run_the_one_labelled_ones_model_bit_by_bit():
    built, fed = st_lf(), half(unknown="bcd")
    one = last(built, fed, 3)
    source = trained(fed, SGD, 3, nets.init(NET, generator(3, "init")))["a"].params
    for name, there in fed.devices.items():
        deployed = built.deploy(one.state.memories[name], one.state.messages[name])
        assert bits(deployed) == bits(Model((source,)))
        assert one.scores[name]["test"] == evaluate(Model((source,)), NET, there.data.test)
    assert one.up == {"a": sum(x.nbytes for x in source.values()), "b": 0, "c": 0, "d": 0}
    assert len(half(unknown="bcd").devices["b"].data.test) == 5  # labels are there to be reported


# what travels


def test_only_linked_sources_send_models_and_reports_are_three_numbers():
    execute = Recorder()
    list(run(st_lf(), half(), 1, execute))
    updates = {(fn.func if isinstance(fn, partial) else fn, unit): result[1] for fn, unit, result in execute.steps
               if isinstance(result, tuple)}  # fmt: skip
    for (fn, unit), update in updates.items():
        if fn is protocol.report:
            assert not update.params
            assert {leaf: x.shape for leaf, x in update.extra.items()} == {"report": (3,)}
        elif fn is divergence.estimate:
            assert not update.params
            assert {leaf: x.numel() for leaf, x in update.extra.items()} == {"errors": 2, "sent": 1}
        elif fn is protocol.offer:
            assert not update.extra
            assert unit not in "cd" or not update.params


def test_a_report_has_all_examples_and_the_error_on_labelled_ones():
    there = federation("a").devices["a"]
    there = replace(there, data=replace(there.data, unlabelled=Data(data(11).x, torch.full((11,), -1))))
    memory = model("a")
    _, update = report(memory, Message(), there, StepId(0, 1, 0, "a"))
    right = sum(evaluate(Model((memory,)), NET, part)["accuracy"] * len(part)
                for part in (there.data.train, there.data.val))  # fmt: skip
    assert update.extra["report"].tolist() == pytest.approx([1 - right / 13, 13, 24])


# bad input


def test_a_device_without_data_is_refused_by_name():
    empty = Device("b", NET, Splits(NONE, NONE, NONE))
    with pytest.raises(InputError, match=r"^device b: it has no examples; at least one is needed"):
        report(model("b"), Message(), empty, StepId(0, 1, 0, "b"))


def test_without_any_label_it_is_refused():
    with pytest.raises(InputError, match=r"^federation\.unlabelled: no device has a label"):
        last(st_lf(), half(unknown="abcd"))


@pytest.mark.parametrize(
    ("costs", "words"),
    [
        ([[0.0, 1], [1, 0]], r"st_lf\.costs: shape \(2, 2\) does not fit 4 devices"),
        ([[0.0, 1], [1]], r"st_lf\.costs: its rows differ in length"),
        ([[0.0, -1, 1, 1]] * 4, r"st_lf\.costs: -1 is negative"),
    ],
)
def test_costs_that_do_not_fit_are_refused_before_anything_runs(costs, words):
    with pytest.raises(InputError, match=words):
        st_lf(costs=costs)


def test_parameters_that_start_apart_are_refused_and_outputs_are_not():
    with pytest.raises(InputError, match=r"^training\.init = per_device: st_lf\.combine = parameters"):
        st_lf(common=False)
    assert st_lf(common=False, combine="outputs")


@pytest.fixture
def unsolved():
    """A process that remembers no program's answer, before and after."""
    protocol.solve_cached.cache_clear()
    yield
    protocol.solve_cached.cache_clear()


@pytest.mark.slow
def test_rows_that_pose_the_same_program_have_it_solved_once(unsolved, monkeypatch):
    posed, solve = [], protocol.solve
    monkeypatch.setattr(protocol, "solve", lambda problem, **how: posed.append(problem) or solve(problem, **how))
    first, again = formed(), formed()
    assert len(posed) == 1
    assert bits(first) == bits(again)
    problem = protocol.pose_program(REPORTS, divergence.matrix(planted(D), NAMES).numpy(), TURN, BOUND, RADIO)
    assert [x.tolist() for x in (posed[0].source, posed[0].target, posed[0].energy)] == [
        x.tolist() for x in (problem.source, problem.target, problem.energy)
    ]
    dear = {"bound": replace(BOUND, phi_e=2.0)}
    for other in (dear, {"d": D / 2}, {"turn": replace(TURN, seed=6)}, {"solver": "repaired"}):
        formed(**other)
    assert len(posed) == 5


def test_a_solver_that_fails_is_a_warning_that_names_its_stand_in(unsolved, monkeypatch):
    monkeypatch.setitem(programs.FORMS, "cone", lambda around: Step(None, np.inf, "NumericalError"))
    server, _, told = formed(solver="successive")
    status = "cone: NumericalError at iteration 1; fallback: local search"
    assert told.words == {"status": status, "warning": f"the program was not solved as asked; {status}"}
    assert server["psi"].tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("status", ["cone: Solved", "cone: max_iterations"])  # the latter is its own end, no failure
def test_a_solver_that_ends_is_no_warning(status):
    answer = Solution(np.zeros(1), np.zeros((1, 1)), 0.0, 0.0, 1, 0.0, status)
    assert protocol.report_solution(answer, "a").words == {"status": status}


def test_gap_iterations_fall_and_rise_of_a_program_are_reported():
    def solution(gap, *trace):
        answer = Solution(np.zeros(1), np.zeros((1, 1)), 0.0, gap, 1, 0.0, "", trace)
        return protocol.report_solution(answer, "ab").devices["program"]

    expected = {"gap": 0.25, "iterations": 4, "fall": 3 / 8, "rise": 2 / 8}
    assert solution(0.25, 8.0, 4.0, 6.0, 5.0) == {"a": expected, "b": expected}
    assert solution(0.0)["a"] == {"gap": 0}
    assert solution(np.nan, 8.0)["a"] == {"iterations": 1, "fall": 0, "rise": 0}


def test_a_review_completes_what_is_known_of_targets():
    links = {"a": {"target": 0.0, "energy": 3.0}, "b": {"target": 1.0, "theorem_2": 0.5, "corollary_1": 4.0},
             "c": {"target": 1.0}}  # fmt: skip
    scores = {name: {"test": {"accuracy": right}} for name, right in (("a", 0.9), ("b", 0.25), ("c", 0.75))}
    found = protocol.review({"links": links, "program": {}}, scores)
    assert found == {
        "links": {
            "a": {**links["a"], "source_accuracy": 0.9},
            "b": {**links["b"], "accuracy": 0.25, "slack_theorem_2": -0.25, "slack_corollary_1": 3.25},
            "c": {"target": 1.0, "accuracy": 0.75},
        },
        "program": {},
    }
    assert [*found["links"]["b"]][-2:] == ["slack_theorem_2", "slack_corollary_1"]  # rows come in this order


# the authors' public code


def test_pretraining_is_federated_averaging_and_then_local_training():
    """Averages of the labelled devices' models by their examples; all devices then start from the last one."""
    fed, start = half(), nets.init(NET, generator(4, "init"))
    for stage in range(3):
        models = {name: train({}, Message(start), fed.devices[name], StepId(4, stage, 0, name),
                              training=replace(SGD, epochs=2))[1] for name in "ab"}  # fmt: skip
        counts = {name: update.size for name, update in models.items()}
        start = {leaf: sum(counts[name] / sum(counts.values()) * models[name].params[leaf] for name in "ab")
                 for leaf in start}  # fmt: skip
    built = st_lf(pretrain=3, pretrain_epochs=2)
    reached = [one.state for one in run(built, fed, 4, Inline())]
    torch.testing.assert_close(reached[2].messages["d"].params, start)
    alone = train({}, Message(start), fed.devices["b"], StepId(4, 3, 0, "b"), training=SGD)[1].params
    torch.testing.assert_close(reached[-1].memories["b"], alone)
    with pytest.raises(InputError, match=r"^training\.init = per_device: st_lf\.pretrain averages"):
        st_lf(pretrain=1, common=False, combine="outputs")


def test_the_factor_of_divergences_is_in_t_alone():
    server, turn = REPORTS, TURN
    plain, more = (protocol.pose_program(server, D, turn, replace(BOUND, phi_d=phi), RADIO) for phi in (1.0, 100.0))
    np.testing.assert_allclose(more.target - plain.target, 99 * D / 2)
    np.testing.assert_array_equal(more.source, plain.source)


# the noise of combining hypotheses


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
    server, sent_now, found = protocol.add_noise(server, told, TURN)
    assert not sent_now
    assert found.devices["noise"]["c"]["theorem_2"] == pytest.approx(1 + 2 * 0.3 * 0.7 * apart)
    assert found.devices["noise"]["d"] == {"noise": 0.0, "theorem_2": 1.0}


@pytest.mark.slow
def test_measured_noise_is_in_the_last_report_and_needs_outputs():
    built = st_lf(combine="outputs", disagreement="measured", solver="successive")
    rounds = list(run(built, half(), 3, Inline()))
    with_noise = final_numbers(built, [one.report for one in rounds], rounds[-1].scores)
    assert {*with_noise} == {"inference", "links", "program"}
    targets = [numbers for numbers in with_noise["links"].values() if numbers["target"]]
    assert all("noise" in numbers and "slack_theorem_2" in numbers for numbers in targets)
    with pytest.raises(InputError, match=r"^st_lf\.disagreement = measured: targets need"):
        st_lf(disagreement="measured")


def test_the_classifier_is_the_devices_net_with_two_classes():
    assert nets.shapes(binary(NET))["fc3.weight"] == (2, 4)
    convolutional = nets.net("lenet", shape=(1, 16, 16), classes=10)
    assert [*nets.shapes(binary(convolutional)).values()][-1] == (2,)
    stage = st_lf().stages[2]
    assert isinstance(stage, PairStage)
    assert stage.local.keywords["settings"] == Divergence(3, 2, 4, 0.05, 0.25)
