"""The control of DFL: FedAvg with smoothed labels, by PyTorch's own label smoothing."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from federations import ADAM, NBYTES, NET, NETS, SGD, bits, federation, last
from torch.nn.functional import cross_entropy

from fedcore import nets
from fedcore.core.aggregation import by_size, mean
from fedcore.core.rounds import run
from fedcore.errors import InputError
from fedcore.execute.workers import Inline
from fedcore.methods import builder, method
from fedcore.types.method import StepId, generator

GIVEN = {"nets": NETS, "training": SGD, "shared_init": True, "rounds": 4, "fraction": 1.0}
label_smoothing = partial(method, "label_smoothing", **GIVEN, ratio="threshold", threshold=0.6)


@pytest.mark.slow
@pytest.mark.parametrize("fraction", [1.0, 0.5])
@pytest.mark.parametrize("training", [SGD, ADAM, replace(ADAM, optimiser_state="keep")], ids=["sgd", "adam", "kept"])
@pytest.mark.parametrize("shared_init", [True, False])
def test_with_threshold_1_it_is_fedavg_bit_by_bit(training, fraction, shared_init):
    changes, fed = {"training": training, "fraction": fraction, "shared_init": shared_init}, federation("abcd")
    one = last(label_smoothing(threshold=1.0, **changes), fed, 2)
    two = last(method("fedavg", **GIVEN | changes, weights="size"), fed, 2)
    assert bits(one.state.messages) == bits(two.state.messages)
    assert bits(one.state.memories) == bits(two.state.memories)
    assert (one.scores, one.up, one.down) == (two.scores, two.up, two.down)


@pytest.mark.parametrize(
    ("ratio", "shares"), [("threshold", [0, 0.4, 0.4]), ("dynamic", [0, 2 / 3, 1]), ("fixed", [0, 0.4, 0.4])]
)
def test_a_plain_loop_with_pytorchs_label_smoothing(ratio, shares):
    fed, sent = federation(), nets.init(NET, generator(1, "init"))
    for number, share in enumerate(shares):
        members = []
        for name, there in fed.devices.items():
            module, examples = NET.build(), there.data.train
            module.load_state_dict(sent)
            draw = StepId(1, 0, number, name).generator("batches")
            optimiser = torch.optim.SGD(module.parameters(), SGD.lr)
            for _ in range(SGD.epochs):
                for index in torch.randperm(len(examples), generator=draw).split(SGD.batch):
                    optimiser.zero_grad()
                    cross_entropy(module(examples.x[index]), examples.y[index], label_smoothing=share).backward()
                    optimiser.step()
            members.append({key: x.clone() for key, x in module.state_dict().items()})
        sent = mean(members, by_size([len(there.data.train) for there in fed.devices.values()]))
    rounds = list(run(label_smoothing(rounds=3, ratio=ratio), fed, 1, Inline()))
    torch.testing.assert_close(rounds[-1].state.messages["a"].params, sent, rtol=1e-4, atol=1e-5)
    rho = [one.report.series["distillation"]["rho"] for one in rounds]
    assert rho == pytest.approx([1 - share for share in shares])


def test_nothing_more_than_the_model_travels():
    for number, one in enumerate(run(label_smoothing(rounds=2), federation(), 1, Inline())):
        assert set(one.up.values()) == {NBYTES}
        assert set(one.down.values()) == {NBYTES * (1 + number)}


def test_it_is_a_control_and_needs_cross_entropy():
    assert hasattr(builder("label_smoothing"), "control")
    with pytest.raises(InputError, match=r"^training.loss = fedasa_table3: label_smoothing"):
        label_smoothing(training=replace(SGD, loss="fedasa_table3"))
