"""FedProto (Tan et al. 2022) by a loss of one's own: devices exchange mean features of classes, and no model."""

from functools import partial

from torch.nn.functional import cross_entropy, mse_loss, one_hot

import fedcore as fc


def near_prototypes(batch, *, weight):
    """Return CE + weight times the mean squared distance of the features from their class's prototype."""
    loss, sent = cross_entropy(batch.logits, batch.y), batch.message.extra
    if not sent:
        return loss
    known = sent["known"][batch.y, None]
    return loss + weight * mse_loss(batch.features * known, sent["prototypes"][batch.y] * known)


def train_own(memory, message, device, step_id, *, training, loss):
    """Train the device's own model; send the sums of its features by class, and the counts."""
    moments, update = fc.train(memory, message, device, step_id, training=training, loss=loss)
    chosen = one_hot(device.data.train.y, len([*update.params.values()][-1])).float()  # (N, K)
    sums = chosen.T @ fc.features(update.params, device.net, device.data.train.x)
    return moments | update.params, fc.Update(extra={"sums": sums, "counts": chosen.sum(0)})


def average(server, updates, round_info):
    """Send the mean features of every class, and which classes anybody has."""
    sums, counts = (sum(update.extra[name] for update in updates.values()) for name in ("sums", "counts"))
    extra = {"prototypes": sums / counts.clamp(min=1)[:, None], "known": (counts > 0).float()}
    return server, fc.to_everyone(round_info.names, fc.Message(extra=extra))


def proto(*, training, rounds: fc.Count = 10, weight: fc.Amount = 1.0):
    """Build FedProto. rounds: communication rounds, from 1. weight: of the distance, from 0; 0 is local training."""
    stage = fc.Stage(
        partial(train_own, training=training, loss=partial(near_prototypes, weight=weight)), average, rounds
    )
    return fc.Method(partial(fc.initial_messages, shared_init=training.shared_init), (stage,), fc.merge_models)
