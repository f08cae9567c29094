r"""Methods that hold a device's features near what others have learnt: MOON and FedProto.

MOON (Li, He and Song 2021, Algorithm 1): features near the global model's, far from the device's own last ones.

    l = CE + mu l_con
    l_con = -log exp(sim(z, z_glob)/tau) / (exp(sim(z, z_glob)/tau) + exp(sim(z, z_prev)/tau))

z, z_glob and z_prev are the features of one example by the model in training, by the one that was sent and by the one
that the device last sent, which it keeps; sim is the cosine. Before a device's first round z_prev is z_glob, where
l_con is constant. Three passes per step in place of one; FedAvg's traffic. Departure: features are the input of the
net's last layer; the paper adds a projection head of two layers to its nets.

FedProto (Tan et al. 2022, Algorithm 1): devices exchange the mean features of classes, and no model.

    C_i^(j) = 1/|D_ij| sum over the device's examples of class j of f_i(x)       a prototype, (d,)
    C^(j) = sum_i |D_ij| / N_j C_i^(j)      over the devices that have class j, N_j = sum_i |D_ij|
    L = CE + lambda/B sum over a minibatch of ||f_i(x) - C^(y)||^2 / d

f_i is the input of the last layer of the device's own net. Nets may differ, but for the number of features d. A device
sends (K, d) prototypes and (K,) counts, and receives as much. Departures: as printed the mean has a further factor, one
over the number of devices with the class, which would shrink it. In L single examples are held near the prototypes, as
in the authors' code; the text has the means of a minibatch. Classes are told by the net's last layer; the paper also
takes the nearest prototype. The first round has no prototypes.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy, mse_loss, one_hot

from fedcore.builders import needs_classes, needs_one_label, training_defaults
from fedcore.core.aggregation import Averaging, Course
from fedcore.core.losses import Batch, OwnLoss, own_loss
from fedcore.core.messages import begin_sampled, initial_messages, merge_models, received_model, to_sampled
from fedcore.core.training import Training, features, fit, flatten_net, require_cross_entropy, starting_params
from fedcore.errors import InputError
from fedcore.nets import require_equal, shapes
from fedcore.types.federation import Device, Net, Params, add_prefix
from fedcore.types.method import Message, Method, RoundInfo, Sent, Stage, StepId, Update
from fedcore.types.ranges import Amount, Positive

__all__ = ["fedproto", "moon"]

LAST = "last/"
"""Prefix of the tensors in a device's memory that hold the model that it last sent."""

PROTOTYPES, COUNTS = "prototypes", "counts"
"""Entries of updates and messages: (K, d), and how many examples each class has, (K,) float32."""


@needs_one_label("contrasts the features of an example")
@training_defaults(shared_init=True)
def moon(
    *, nets: Mapping[str, Net], training: Training, averaging: Averaging, mu: Amount = 1.0, tau: Positive = 0.5
) -> Method:
    """MOON (Li et al. 2021): features stay near the global model's and away from the device's last ones.

    Args:
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
    last = {} if loss is None else add_prefix(LAST, params)
    return last | moments, Update(params, size=len(device.data.train))


def contrastive_loss(batch: Batch, *, mu: float, tau: float) -> Tensor:
    """Return CE + mu l_con: l_con is the cross-entropy of telling the global model's features from the last ones."""
    sent = batch.message.params
    last = {name: batch.memory.get(f"{LAST}{name}", tensor) for name, tensor in sent.items()}
    likeness = [cosine_similarity(batch.features, batch.with_params(params).features) / tau for params in (sent, last)]
    first = torch.zeros(len(batch.y), dtype=torch.int64, device=batch.y.device)
    return own_loss(batch.logits, batch.y) + mu * cross_entropy(torch.stack(likeness, 1), first)


@needs_classes("averages features by label")
@training_defaults(shared_init=True)
def fedproto(*, nets: Mapping[str, Net], training: Training, course: Course, strength: Amount = 1.0) -> Method:
    """FedProto (Tan et al. 2022): devices exchange mean features of classes, and no model.

    If `fraction` is below 1, all devices start from one model, which is sent until a device has taken part.

    Args:
        strength: lambda, which holds features near their class's prototype, from 0; 0 is local training, round after
            round, bit by bit.

    Raises:
        InputError: for nets of different numbers of features; with a fraction below 1 for nets or first models that
            differ.
    """
    require_cross_entropy("fedproto", training)
    if len({width(net) for net in nets.values()}) > 1:
        raise InputError("net.variants: fedproto averages features, the last layers must have equally many inputs")
    begin = begin_sampled("fedproto", nets, training.shared_init, course.fraction)
    local = partial(train_near_prototypes, training=training, strength=strength)
    return Method(begin, (Stage(local, average_prototypes, course.rounds, course.fraction),), merge_models)


def width(net: Net) -> int:
    """Return d, the number of inputs of the net's last layer."""
    return [shape for shape in shapes(net).values() if len(shape) > 1][-1][1]


def train_near_prototypes(
    memory: Params, message: Message, device: Device, step_id: StepId, *, training: Training, strength: float
) -> tuple[Params, Update]:
    """Train the device's own model; send its prototypes and how many examples each is the mean of."""
    flat = flatten_net(device.net, starting_params(memory, message, device, step_id))
    if strength and message.extra:
        training = replace(training, loss=partial(prototype_loss, strength=strength))
    moments = fit(flat, device, step_id, training, memory, message=message)
    params, examples = flat.params(), device.data.train
    classes = [shape for shape in shapes(device.net).values() if len(shape) > 1][-1][0]
    members = one_hot(examples.y, classes).float()  # (N, K)
    counts = members.sum(0)
    means = members.T @ features(params, device.net, examples.x) / counts.clamp(min=1)[:, None]
    return params | moments, Update(extra={PROTOTYPES: means, COUNTS: counts}, size=len(examples))


def prototype_loss(batch: Batch, *, strength: float) -> Tensor:
    """Return L; classes that no device has have no prototype."""
    sent = batch.message.extra
    has_prototype = (sent[COUNTS][batch.y] > 0).float()[:, None]
    distance = mse_loss(batch.features * has_prototype, sent[PROTOTYPES][batch.y] * has_prototype)
    return cross_entropy(batch.logits, batch.y) + strength * distance


def average_prototypes(server: Params, updates: Mapping[str, Update], round_info: RoundInfo) -> Sent:
    """Send every device the prototypes of all devices' examples, and the counts.

    Those that never took part also get the initial model, if the server has it.
    """
    counts = torch.stack([update.extra[COUNTS] for update in updates.values()])  # (C, K)
    shares = counts / counts.sum(0).clamp(min=1)
    means = torch.stack([update.extra[PROTOTYPES] for update in updates.values()])
    message = Message(extra={PROTOTYPES: (shares[:, :, None] * means).sum(0), COUNTS: counts.sum(0)})
    return to_sampled(server, updates, round_info.names, message)
