"""MOON (Li, He and Song 2021) by a loss of one's own: features near the global model's, far from the last ones."""

from functools import partial

import torch
from torch.nn.functional import cosine_similarity, cross_entropy

import fedcore as fc


def contrast(batch, *, mu, tau):
    """Return CE + mu l_con (3): l_con is the cross-entropy of choosing the global model's features."""
    last = {name: batch.memory.get(f"last/{name}", tensor) for name, tensor in batch.message.params.items()}
    others = [batch.with_params(params).features for params in (batch.message.params, last)]
    likeness = torch.stack([cosine_similarity(batch.features, other) / tau for other in others], 1)
    return cross_entropy(batch.logits, batch.y) + mu * cross_entropy(likeness, torch.zeros_like(batch.y))


def train_and_remember(memory, message, device, step_id, *, training, loss):
    """Train, and keep the model for the next round's contrast."""
    memory, update = fc.train(memory, message, device, step_id, training=training, loss=loss)
    return memory | {f"last/{name}": tensor for name, tensor in update.params.items()}, update


@fc.training_defaults(shared_init=True)
def moon(*, training, rounds: fc.Count = 10, mu: fc.Amount = 1.0, tau: fc.Positive = 0.5):
    """Build MOON, without the paper's projection head.

    Args:
        training: how a device trains.
        rounds: communication rounds, from 1.
        mu: weight of the contrast, from 0; 0 is FedAvg.
        tau: temperature of the cosine similarities, above 0.
    """
    local = partial(train_and_remember, training=training, loss=partial(contrast, mu=mu, tau=tau))
    stage = fc.Stage(local, fc.average_models, rounds)
    return fc.Method(partial(fc.initial_messages, shared_init=True), (stage,), fc.received_model)
