"""ST-LF: that with the right weights it is local training; what is sent, what refused (tests/links has its parts)."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from federations import NET, SGD, Recorder, bits, data, federation, half, last, model, trained
from links import GIVEN

from fedcore import nets
from fedcore.core.evaluation import evaluate
from fedcore.core.rounds import run
from fedcore.core.training import train
from fedcore.errors import InputError
from fedcore.execute.workers import Inline
from fedcore.methods import method
from fedcore.methods.st_lf import divergence, protocol
from fedcore.methods.st_lf.divergence import Divergence
from fedcore.methods.st_lf.protocol import binary, report_errors
from fedcore.results.reports import final_numbers
from fedcore.types.federation import Data, Device, Splits
from fedcore.types.method import Message, Model, PairStage, StepId, generator

st_lf = partial(method, "st_lf", **GIVEN)
NONE = data(0)


# reductions


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["exact", "successive", "cvxpy", "repaired"])
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
        if fn is protocol.report_errors:
            assert not update.params
            assert {name: x.shape for name, x in update.extra.items()} == {"report": (3,)}
        elif fn is divergence.estimate:
            assert not update.params
            assert {name: x.numel() for name, x in update.extra.items()} == {"errors": 2, "sent": 1}
        elif fn is protocol.offer_model:
            assert not update.extra
            assert unit not in "cd" or not update.params


def test_a_report_has_all_examples_and_the_error_on_labelled_ones():
    there = federation("a").devices["a"]
    there = replace(there, data=replace(there.data, unlabelled=Data(data(11).x, torch.full((11,), -1))))
    memory = model("a")
    _, update = report_errors(memory, Message(), there, StepId(0, 1, 0, "a"))
    right = sum(evaluate(Model((memory,)), NET, part)["accuracy"] * len(part)
                for part in (there.data.train, there.data.val))  # fmt: skip
    assert update.extra["report"].tolist() == pytest.approx([1 - right / 13, 13, 24])


# bad input


def test_a_device_without_data_is_refused_by_name():
    empty = Device("b", NET, Splits(NONE, NONE, NONE))
    with pytest.raises(InputError, match=r"^device b: it has no examples; at least one is needed"):
        report_errors(model("b"), Message(), empty, StepId(0, 1, 0, "b"))


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
    with pytest.raises(InputError, match=r"^training\.shared_init = false: st_lf\.combine = parameters"):
        st_lf(shared_init=False)
    assert st_lf(shared_init=False, combine="outputs")


# the authors' public code


@pytest.mark.slow
@pytest.mark.parametrize("length", [{"epochs": 2}, {"steps": 3}])
def test_pretraining_is_federated_averaging_and_then_local_training(length: dict[str, int]):
    """Averages of the labelled devices' models by their examples; all devices then start from the last one."""
    fed, start = half(), nets.init(NET, generator(4, "init"))
    for stage in range(3):
        models = {name: train({}, Message(start), fed.devices[name], StepId(4, stage, 0, name),
                              training=replace(SGD, **length))[1] for name in "ab"}  # fmt: skip
        counts = {name: update.size for name, update in models.items()}
        start = {key: sum(counts[name] / sum(counts.values()) * models[name].params[key] for name in "ab")
                 for key in start}  # fmt: skip
    built = st_lf(pretrain=3, **{f"pretrain_{key}": value for key, value in length.items()})
    reached = [one.state for one in run(built, fed, 4, Inline())]
    torch.testing.assert_close(reached[2].messages["d"].params, start)
    alone = train({}, Message(start), fed.devices["b"], StepId(4, 3, 0, "b"), training=SGD)[1].params
    torch.testing.assert_close(reached[-1].memories["b"], alone)
    with pytest.raises(InputError, match=r"^training\.shared_init = false: st_lf\.pretrain averages"):
        st_lf(pretrain=1, shared_init=False, combine="outputs")


# the noise of combining hypotheses


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
