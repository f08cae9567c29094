"""Your own method: FedAvg with the median of each number in place of the mean (Yin et al. 2018).

`python examples/own_method.py` compares it with FedAvg; the pipeline takes it as a row `own_method:median`.
"""

from functools import partial

import torch

import fedcore as fc


@fc.training_defaults(shared_init=True)
def median(*, training, rounds: fc.Count = 10, fraction: fc.Fraction = 1.0):
    """FedAvg with the median of each number in place of the mean.

    Args:
        training: how a device trains.
        rounds: communication rounds, from 1.
        fraction: share of the devices that take part in a round, above 0, at most 1.
    """
    stage = fc.Stage(partial(fc.train, training=training), take_median, rounds, fraction)
    return fc.Method(partial(fc.initial_messages, shared_init=training.shared_init), (stage,), fc.received_model)


def take_median(server, updates, round_info):
    """Send everyone the median of the models that were sent."""
    models = [update.params for update in updates.values()]
    model = {name: torch.stack([one[name] for one in models]).quantile(0.5, 0) for name in models[0]}
    return server, fc.to_everyone(round_info.names, fc.Message(model))


if __name__ == "__main__":
    fed = fc.federate(fc.load("digits"), fc.dirichlet(0.5), devices=8)
    training = {"epochs": 1, "shared_init": True}
    rows = [fc.fedavg(rounds=10, training=training), fc.method(median, training=training)]
    print(fc.compare(rows, fed, seeds=range(3)).summary[["method", "rank", "test_mean", "test_worst"]])
