"""What a round keeps that ends early, and parts of a loss that are trained with the net."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from federations import ADAM, SGD, bits, device_of, federation, last, model, workers
from plain_loops import chain
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedcore import Batch, Data, InputError, Net, Splits, nets, train, with_parts
from fedcore.config.methods import configure
from fedcore.core.prediction import predict
from fedcore.core.rounds import run
from fedcore.execute.workers import Inline
from fedcore.methods import method
from fedcore.types.method import Message, StepId, generator

A = device_of("a")


@pytest.mark.slow
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
        update = train({}, start, device, step, training=replace(training, patience=patience))[1]
        assert bits(update.params) == bits(loss_after(best + 1)[1])
        assert update.steps == best + 1  # of a minibatch each
    assert 0 < first < 29  # else nothing was stopped


class Replaced(nn.Module):
    """A mean that each step replaces by another tensor, or changes in place."""

    def __init__(self, in_place: bool):
        super().__init__()
        self.first, self.second, self.in_place = nn.Linear(4, 8), nn.Linear(8, 3), in_place
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.training:
            mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
            self.mean = self.mean.copy_(mean) if self.in_place else mean
        return self.second(torch.relu(h - self.mean))


def test_patience_keeps_a_buffer_that_each_step_replaces():
    found = []
    for in_place in (True, False):
        net = Net(partial(Replaced, in_place))
        training = replace(ADAM, lr=0.1, batch=8, epochs=60, patience=2)
        start = Message(nets.init(Net(partial(Replaced, True)), torch.Generator().manual_seed(1)))
        step = StepId(0, 0, 0, "a")
        found.append(train({}, start, replace(A, net=net), step, training=training)[1].params)
        assert len(found[-1]["mean"].unique()) > 1
    assert bits(found[0]) == bits(found[1])


def test_patience_without_validation_examples_takes_all_epochs():
    none = Data(A.data.val.x[:0], A.data.val.y[:0])
    device, step = replace(A, data=Splits(A.data.train, none, none)), StepId(0, 0, 0, "a")
    one, other = (train({}, Message(), device, step, training=replace(ADAM, patience=p))[1].params for p in (1, None))
    assert bits(one) == bits(other)


def test_patience_is_refused_where_epochs_are_not_counted_or_all_needed():
    with pytest.raises(InputError, match=r"^training.patience = 2: counts epochs, which training.steps = 5 replaces"):
        replace(SGD, patience=2, steps=5)
    for name in ("scaffold", "fednova", "perfedavg", "pfedme", "apfl"):
        with pytest.raises(InputError, match=f"^training.patience = 2: {name} needs all steps of a round"):
            method(name, nets={"a": A.net}, training=replace(SGD, patience=2, shared_init=True))


def test_a_final_fit_keeps_the_validation_rows_that_stop_it():
    assert method("fedavg", nets={"a": A.net}, training=replace(SGD, patience=2)).held_out == ("val",)
    assert method("fedavg", nets={"a": A.net}, training=SGD).held_out == ()


# A loss's own trainable parts: trained as parameters of the net would be, sent only where a method says so.
AT = StepId(3, 0, 1, "a")


def ce(batch: Batch) -> Tensor:
    return cross_entropy(batch.logits, batch.y)


KINDS = [{}, {"momentum": 0.9, "weight_decay": 0.1}, {"optimiser": "adam", "lr": 0.01, "optimiser_state": "keep"}]


def table(net: Net) -> nn.Module:
    """Prototypes of three classes, among features of five numbers."""
    return nn.Embedding(3, 5)


@with_parts(table)
def near_prototypes(batch: Batch, weight: float = 0.5) -> Tensor:
    apart = (batch.features - batch.parts(batch.y)).square().sum(1).mean()
    return cross_entropy(batch.logits, batch.y) + weight * apart


@pytest.mark.slow
@pytest.mark.parametrize("settings", KINDS, ids=["sgd", "momentum", "adam"])
def test_a_losss_parts_are_trained_as_parameters_of_the_net_would_be(settings):
    """Against PyTorch's optimiser over both, in two rounds; what Adam keeps is kept for both."""
    device, training = device_of("a", Net(chain)), replace(SGD, loss=near_prototypes, epochs=1, **settings)
    module, parts = chain(), table(Net(chain))
    module.load_state_dict(nets.init(Net(chain), replace(AT, round=0).generator("init")))
    parts.load_state_dict(nets.init(Net(partial(table, Net(chain))), replace(AT, round=0).generator("parts")))
    kept = training.optimiser_state == "keep"
    memory, params, optimiser = {}, {}, None
    for number in range(2):
        step = replace(AT, stage=0, round=number)
        memory, update = train(memory, Message(params), device, step, training=training)
        params = update.params
        if optimiser is None or not kept:
            both = [*module.parameters(), *parts.parameters()]
            extra = {"momentum": training.momentum} if training.optimiser == "sgd" else {}
            kind = torch.optim.SGD if training.optimiser == "sgd" else torch.optim.Adam
            optimiser = kind(both, training.lr, weight_decay=training.weight_decay, **extra)
        data = device.data.train
        for index in torch.randperm(len(data), generator=step.generator("batches")).split(training.batch):
            optimiser.zero_grad()
            x, y = data.x[index], data.y[index]
            z = module[:-1](x)
            loss = cross_entropy(module[-1](z), y) + 0.5 * (z - parts(y)).square().sum(1).mean()
            loss.backward()
            optimiser.step()
    found = {name.removeprefix("parts/"): tensor for name, tensor in memory.items() if name.startswith("parts/")}
    torch.testing.assert_close(found, dict(parts.state_dict()), rtol=0, atol=1e-6)
    torch.testing.assert_close(params, dict(module.state_dict()), rtol=0, atol=1e-6)


def test_parts_that_the_server_sends_come_first():
    device, sent = device_of("a", Net(chain)), {"parts/weight": torch.full((3, 5), 2.0)}
    still = replace(SGD, loss=near_prototypes, lr=1e-12)
    memory, update = train({}, Message(extra=sent), device, AT, training=still)
    torch.testing.assert_close(memory["parts/weight"], sent["parts/weight"])
    assert update.extra == {}


@pytest.mark.parametrize("name", ["fedavg", "fedper", "ditto", "fedrep", "fedbabu", "fedprox"])
@pytest.mark.slow
def test_methods_send_and_deploy_models_without_a_losss_parts(name):
    fed = federation("abc", Net(chain))
    training = replace(SGD, shared_init=True, epochs=1)
    turns = [
        last(configure(name, {"rounds": 2}, vars(replace(training, loss=loss))).build(fed.public.nets), fed)
        for loss in (near_prototypes, ce)
    ]
    assert turns[0].up == turns[1].up
    kept = any(key.startswith("parts/") for key in turns[0].state.memories.get("a", {}))
    assert kept == (name != "fedbabu")  # at last it trains heads alone, in a stage without a server


@pytest.mark.parametrize("name", ["scaffold", "perfedavg", "pfedme", "fedasa"])
def test_a_losss_parts_are_refused_where_they_are_not_trained(name: str):
    with pytest.raises(
        InputError, match=f"^training.loss = .*near_prototypes: {name} does not train a loss's own parts"
    ):
        method(name, nets={"a": Net(chain)}, training=replace(SGD, loss=near_prototypes, shared_init=True))


def test_a_losss_parts_are_kept_by_fednova():
    fed = federation("ab", Net(chain))
    training = replace(SGD, loss=near_prototypes)
    built = method("fednova", nets=fed.public.nets, training=training, shared_init=True, rounds=2)
    first, second = (turn.state.memories["a"]["parts/weight"] for turn in run(built, fed, 0, Inline()))
    assert not torch.equal(first, second)


@pytest.mark.slow
def test_a_losss_parts_reach_worker_processes():
    fed = federation("ab", Net(chain))
    loss = with_parts(lambda net: nn.Embedding(3, 5))(lambda batch: near_prototypes(batch))
    built = method("fedavg", nets=fed.public.nets, training=replace(SGD, loss=loss), shared_init=True, rounds=2)
    one, two = (list(run(built, fed, 0, execute)) for execute in (Inline(), workers(1)))
    assert [bits(turn) for turn in one] == [bits(turn) for turn in two]
