r"""MOON (Li, He and Song 2021, Algorithm 1): features near the global model's, far from the device's own last ones.

l = CE + mu l_con
l_con = -log exp(sim(z, z_glob)/tau) / (exp(sim(z, z_glob)/tau) + exp(sim(z, z_prev)/tau))

z, z_glob and z_prev are the features of one example by the model in training, by the one that was sent and by the one
that the device last sent, which it keeps; sim is the cosine. Before a device's first round z_prev is z_glob, where
l_con is constant. Three passes per step in place of one; FedAvg's traffic.

Departures. Features are the input of the net's last layer: the paper adds a projection head of two layers to its nets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy

from fedcore.builders import needs_one_label, training_defaults
from fedcore.core.aggregation import Averaging
from fedcore.core.losses import Batch, OwnLoss, own_loss
from fedcore.core.messages import initial_messages, received_model
from fedcore.core.training import Training, fit, flatten_net, require_cross_entropy, starting_params
from fedcore.nets import require_equal
from fedcore.types.federation import Device, Net, Params
from fedcore.types.method import Message, Method, StepId, Update
from fedcore.types.ranges import Amount, Positive

LAST = "last/"
"""Prefix of the tensors in a device's memory that hold the model that it last sent."""


@needs_one_label("contrasts the features of an example")
@training_defaults(shared_init=True)
def moon(
    *, nets: Mapping[str, Net], training: Training, averaging: Averaging, mu: Amount = 1.0, tau: Positive = 0.5
) -> Method:
    """Build MOON.

    Args:
        averaging: how many rounds, with how many devices, and how the server combines what they send.
        mu: weight of the contrast, from 0 (the paper: .1 to 10); 0 is FedAvg by size, bit by bit.
        tau: temperature of the cosines, above 0 (the paper: .5).
    """
    require_equal(nets)
    require_cross_entropy("moon", training)
    loss = partial(contrastive_loss, mu=mu, tau=tau) if mu else None
    stage = averaging.stage(partial(train_contrasted, training=training, loss=loss))
    return Method(partial(initial_messages, shared_init=training.shared_init), (stage,), received_model)


def train_contrasted(
    memory: Params, message: Message, device: Device, step_id: StepId, *, training: Training, loss: OwnLoss | None
) -> tuple[Params, Update]:
    """Train from the model that was sent, by the contrastive loss; keep the new model for the next contrast."""
    sent = starting_params({}, message, device, step_id)
    flat = flatten_net(device.net, sent)
    chosen = training if loss is None else replace(training, loss=loss)
    moments = fit(flat, device, step_id, chosen, memory, message=Message(sent))
    params = flat.params()
    last = {} if loss is None else {f"{LAST}{name}": tensor for name, tensor in params.items()}
    return last | moments, Update(params, size=len(device.data.train))


def contrastive_loss(batch: Batch, *, mu: float, tau: float) -> Tensor:
    """Return CE + mu l_con: l_con is the cross-entropy of telling the global model's features from the last ones."""
    sent = batch.message.params
    last = {name: batch.memory.get(f"{LAST}{name}", tensor) for name, tensor in sent.items()}
    likeness = [cosine_similarity(batch.features, batch.with_params(params).features) / tau for params in (sent, last)]
    first = torch.zeros(len(batch.y), dtype=torch.int64, device=batch.y.device)
    return own_loss(batch.logits, batch.y) + mu * cross_entropy(torch.stack(likeness, 1), first)
