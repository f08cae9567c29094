"""MOON (Li, He and Song 2021) with its projection head, which is trained on each device and never sent."""

from functools import partial

import torch
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy

import fedcore as fc


def projection(net):
    """Return two layers on the features of the net, as in the paper: d -> d -> 16."""
    width = [layer for layer in net.build().modules() if isinstance(layer, nn.Linear)][-1].in_features
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 16))


@fc.with_parts(projection)
def contrast(batch, *, mu, tau):
    """Return CE + mu l_con (3), of projected features."""
    last = {name: batch.memory.get(f"last/{name}", tensor) for name, tensor in batch.message.params.items()}
    others = [batch.parts(batch.with_params(params).features).detach() for params in (batch.message.params, last)]
    likeness = torch.stack([cosine_similarity(batch.parts(batch.features), other) / tau for other in others], 1)
    return cross_entropy(batch.logits, batch.y) + mu * cross_entropy(likeness, torch.zeros_like(batch.y))


def train_and_remember(memory, message, device, step_id, *, training, loss):
    """Train, and keep the model for the next round's contrast."""
    memory, update = fc.train(memory, message, device, step_id, training=training, loss=loss)
    return memory | {f"last/{name}": tensor for name, tensor in update.params.items()}, update


@fc.training_defaults(shared_init=True)
def moon_projection(*, training, rounds: fc.Count = 10, mu: fc.Amount = 1.0, tau: fc.Positive = 0.5):
    """Build MOON. rounds: communication rounds. mu: weight of the contrast. tau: temperature of the cosines."""
    local = partial(train_and_remember, training=training, loss=partial(contrast, mu=mu, tau=tau))
    stage = fc.Stage(local, fc.average_models, rounds)
    return fc.Method(partial(fc.initial_messages, shared_init=True), (stage,), fc.received_model)
