"""FedDyn (Acar et al. 2021) by a loss of one's own: a penalty on each device that makes all devices' optima one."""

from functools import partial

from torch.nn.functional import cross_entropy

import fedcore as fc


def penalised(batch, *, alpha):
    """Return CE - <g_k, w> + alpha/2 ||w - w^t||^2: w^t is the model that was sent, g_k the device's gradient."""
    loss = cross_entropy(batch.logits, batch.y)
    for name, w in batch.params.items():
        near = (w - batch.message.params[name]).square().sum()
        loss = loss - (batch.memory.get(f"g/{name}", 0) * w).sum() + alpha / 2 * near
    return loss


def train_penalised(memory, message, device, step_id, *, training, alpha):
    """Train and send the model; keep g_k <- g_k - alpha (w_k - w^t)."""
    own, update = fc.train(memory, message, device, step_id, training=training, loss=partial(penalised, alpha=alpha))
    moved = {f"g/{name}": tensor - message.params[name] for name, tensor in update.params.items()}
    return own | {name: memory.get(name, 0) - alpha * change for name, change in moved.items()}, update


def correct_mean(server, updates, round_info, *, sent, alpha):
    """Keep h <- h - alpha/m sum(w_k - w^t) over m devices in all; send mean(w_k) - h / alpha."""
    before, models = next(iter(sent.values())).params, [update.params for update in updates.values()]
    average = fc.mean(models, fc.evenly(len(models)))
    share = alpha * len(updates) / len(round_info.names)
    h = {name: server.get(name, 0) - share * (tensor - before[name]) for name, tensor in average.items()}
    return h, fc.to_everyone(round_info.names, fc.Message({name: average[name] - h[name] / alpha for name in h}))


@fc.training_defaults(shared_init=True)
def dyn(*, training, rounds: fc.Count = 10, fraction: fc.Fraction = 1.0, alpha: fc.Positive = 0.1):
    """Build FedDyn. rounds: from 1. fraction: of devices in a round. alpha: weight of the penalty, above 0."""
    local, combine = partial(train_penalised, training=training, alpha=alpha), partial(correct_mean, alpha=alpha)
    stage = fc.Stage(local, combine, rounds, fraction)
    return fc.Method(partial(fc.initial_messages, shared_init=True), (stage,), fc.received_model)
