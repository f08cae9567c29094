"""Your own method with a memory at the server: FedAvg with server momentum (FedAvgM, Hsu et al. 2019).

`python examples/server_momentum.py` compares it with FedAvg where devices differ much; the pipeline takes it as a row
`server_momentum:fedavgm`. The library has it, too: `fc.fedopt(rule="momentum")`.
"""

from functools import partial

import fedcore as fc


@fc.training_defaults(shared_init=True)
def fedavgm(*, training, rounds: fc.Count = 10, fraction: fc.Fraction = 1.0, beta: fc.Share = 0.9):
    """FedAvgM: the server steps along the mean change, with momentum.

    Args:
        training: how a device trains.
        rounds: communication rounds, from 1.
        fraction: share of the devices that take part in a round, above 0, at most 1.
        beta: share of the velocity that stays from round to round, from 0 to 1; 0 is FedAvg.
    """
    stage = fc.Stage(partial(fc.train, training=training), partial(move, beta=beta), rounds, fraction)
    return fc.Method(begin, (stage,), fc.received_model)


def begin(public, seed):
    """Send every device one initial model; remember it, and that it stands still."""
    _, messages = fc.initial_messages(public, seed, shared_init=True)
    model = messages[public.names[0]].params
    return remember(model, {name: x.new_zeros(x.shape) for name, x in model.items()}), messages


def move(server, updates, round_info, *, beta):
    """Move the model by its velocity: v <- beta v + (mean of the devices' models - w), w <- w + v."""
    average = fc.mean([u.params for u in updates.values()], fc.by_size([u.size for u in updates.values()]))
    velocity = {name: beta * server[f"velocity/{name}"] + x - server[f"model/{name}"] for name, x in average.items()}
    model = {name: server[f"model/{name}"] + v for name, v in velocity.items()}
    return remember(model, velocity), fc.to_everyone(round_info.names, fc.Message(model))


def remember(model, velocity):
    """Return the server's memory: tensors by name."""
    return {f"model/{name}": x for name, x in model.items()} | {f"velocity/{name}": v for name, v in velocity.items()}


if __name__ == "__main__":
    fed = fc.federate(fc.load("digits"), fc.dirichlet(0.1), devices=8)
    training = {"epochs": 1, "shared_init": True}
    rows = [fc.fedavg(rounds=10, training=training), fc.method(fedavgm, training=training)]
    print(fc.compare(rows, fed, seeds=range(3)).summary[["method", "rank", "test_mean", "test_worst"]])
