"""FedProx (Li et al. 2020) by a loss of one's own: cross-entropy, and a penalty on leaving the global model."""

from functools import partial

from torch.nn.functional import cross_entropy

import fedcore as fc


def near(batch, *, mu):
    """Return CE + mu/2 ||w - w^t||^2, w^t the model that was sent."""
    distance = sum((tensor - batch.message.params[name]).square().sum() for name, tensor in batch.params.items())
    return cross_entropy(batch.logits, batch.y) + mu / 2 * distance


@fc.training_defaults(shared_init=True)
def prox(*, training, rounds: fc.Count = 10, fraction: fc.Fraction = 1.0, mu: fc.Amount = 0.01):
    """FedProx: FedAvg with a penalty on the distance from the model that was sent.

    Args:
        training: how a device trains.
        rounds: communication rounds, from 1.
        fraction: share of the devices that take part in a round, above 0, at most 1.
        mu: weight of the penalty, from 0; 0 is FedAvg.
    """
    local = partial(fc.train, training=training, loss=partial(near, mu=mu))
    return fc.Method(
        partial(fc.initial_messages, shared_init=True),
        (fc.Stage(local, fc.average_models, rounds, fraction),),
        fc.received_model,
    )
