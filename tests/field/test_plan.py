"""A plan names a method; nobody can name anything else."""

import json
import sys
from dataclasses import replace

import pytest
import torch
from every_method import ROWS
from federations import NETS, bits, federation
from in_process import plan_for

from fedcore import InputError, method
from fedcore.core.rounds import run
from fedcore.execute.workers import Inline
from fedcore.field.plan import Plan, check_tensors, plan_of

PLAN = plan_for(ROWS["code_ot"], federation("ab"))


def changed(**parts):
    return json.dumps({**json.loads(PLAN.to_json()), **parts})


def test_a_plan_that_has_travelled_builds_the_same_method():
    fed = federation("ab")
    method, nets = Plan.from_json(PLAN.to_json()).build()
    there = list(
        run(method, replace(fed, devices={n: replace(d, net=nets[n]) for n, d in fed.devices.items()}), 0, Inline())
    )
    here = list(run(ROWS["code_ot"].build(fed.public.nets), fed, 0, Inline()))
    assert [bits(one.state) for one in there] == [bits(one.state) for one in here]


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", "null", changed(run="../x"), changed(run=3), changed(method=None), changed(seed=0.5),
        changed(classes=True), changed(shape=["4"]), changed(more=1), changed(training=[1]), changed(nets=None),
        changed(nets={"a": 9}), changed(nets={"a": "0"}), changed(versions=5), "[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_plan_is_refused_in_one_line(text):
    with pytest.raises(InputError, match=r"^plan: no plan of a run \([^\n]*\)$"):
        Plan.from_json(text)


@pytest.mark.parametrize("place", ["os:system", "builtins:eval", "fedcore.nets.mlp:signature", "torch.hub:load"])
def test_a_plan_cannot_name_a_function_that_is_no_net_of_fedcore(place):
    kind = list(json.loads(PLAN.to_json())["kinds"][0])
    with pytest.raises(InputError, match=r"^net: not a net of the library: "):
        Plan.from_json(changed(kinds=[[place, *kind[1:]]])).build()


@pytest.mark.parametrize("loss", ["this:function", "subprocess:run", "fedcore.core.losses:cross_entropy", "", None])
def test_a_plan_cannot_have_a_loss_imported(loss):
    training = {**json.loads(PLAN.to_json())["training"], "loss": loss}
    with pytest.raises(InputError, match=r"^training.loss = .*: must be one of ce, .* in the field$"):
        Plan.from_json(changed(training=training)).build()
    assert "this" not in sys.modules


def test_a_builder_of_a_script_cannot_run_in_the_field():
    def mine(*, nets):
        return ROWS["fedavg"].build(nets)

    with pytest.raises(InputError, match=r"^method mine: must be one of fedcore's own"):
        plan_of(method(mine), {"a": NETS["a"]}, 0, "trial", (4,), 3)


def test_a_wrong_setting_is_refused_before_anything_runs():
    wrong = Plan.from_json(changed(settings={**json.loads(PLAN.to_json())["settings"], "rounds": 0}))
    with pytest.raises(InputError, match="rounds"):
        wrong.build()


@pytest.mark.parametrize("tensor", [torch.zeros(5), torch.zeros(5, 4, dtype=torch.float64), torch.zeros(5, 4, 1)])
def test_a_tensor_has_the_shape_and_type_of_its_net(tensor):
    check_tensors({"fc1.weight": torch.zeros(5, 4), "other": tensor}, NETS["a"], "who")
    with pytest.raises(InputError, match=r"^who: tensor fc1.weight is torch\."):
        check_tensors({"fc1.weight": tensor}, NETS["a"], "who")
