"""A round that ends early keeps the model of its best epoch."""

from dataclasses import replace

import pytest
import torch
from federations import ADAM, SGD, bits, device_of, model
from torch.nn.functional import cross_entropy

from fedcore.core.prediction import predict
from fedcore.core.training import train
from fedcore.errors import InputError
from fedcore.methods import method
from fedcore.types.federation import Data, Splits
from fedcore.types.method import Message, StepId, generator

A = device_of("a")


def test_patience_keeps_the_epoch_of_the_least_validation_loss():
    """An epoch at a time, by separate calls that keep Adam's moments: the best of them, and no more than are needed."""
    rng = generator("patience")
    x, y = torch.randn(90, 4, generator=rng), torch.randint(0, 3, (90,), generator=rng)
    parts = [Data(x[part], y[part]) for part in (slice(60), slice(60, 80), slice(80, 90))]
    device = replace(A, data=Splits(*parts))
    step, start = StepId(0, 0, 0, "a"), Message(model("a"))
    training = replace(ADAM, lr=0.05, batch=60, epochs=30)

    def loss_after(epochs):
        params = train({}, start, device, step, training=replace(training, epochs=epochs))[1].params
        return cross_entropy(predict(params, device.net, device.data.val.x, 99), device.data.val.y).item(), params

    losses = [loss_after(epochs)[0] for epochs in range(1, 31)]
    first = next(i for i in range(30) if i and losses[i] >= min(losses[:i]))
    for patience in (1, 4, 40):
        best, waited = 0, 0
        for number in range(1, 30):
            best, waited = (number, 0) if losses[number] < losses[best] else (best, waited + 1)
            if waited == patience:
                break
        found = train({}, start, device, step, training=replace(training, patience=patience))[1].params
        assert bits(found) == bits(loss_after(best + 1)[1])
    assert 0 < first < 29  # else nothing was stopped


def test_patience_without_validation_examples_takes_all_epochs():
    none = Data(A.data.val.x[:0], A.data.val.y[:0])
    device, step = replace(A, data=Splits(A.data.train, none, none)), StepId(0, 0, 0, "a")
    one, other = (train({}, Message(), device, step, training=replace(ADAM, patience=p))[1].params for p in (1, None))
    assert bits(one) == bits(other)


def test_patience_is_refused_where_epochs_are_not_counted_or_all_needed():
    with pytest.raises(InputError, match=r"^training.patience = 2: counts epochs, which training.steps = 5 replaces"):
        replace(SGD, patience=2, steps=5)
    for name in ("scaffold", "fednova", "perfedavg", "pfedme"):
        with pytest.raises(InputError, match=f"^training.patience = 2: {name} needs all steps of a round"):
            method(name, nets={"a": A.net}, training=replace(SGD, patience=2, shared_init=True))


def test_a_final_fit_keeps_the_validation_rows_that_stop_it():
    assert method("fedavg", nets={"a": A.net}, training=replace(SGD, patience=2)).held_out == ("val",)
    assert method("fedavg", nets={"a": A.net}, training=SGD).held_out == ()
