"""DFL (Liu et al., Algorithms 1 and 2): FedAvg whose devices also learn from everyone's label-wise mean logits.

Departures. Soft targets are weighted by the examples of a label that a device has, not by |D_k| (`weighting`); a label
that nobody chosen has keeps its soft target, one that nobody ever had is one-hot. In round 1 there are none yet and
rho is 1. A step (4) is one minibatch's; Algorithm 2 prints one per epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fedcore import distillation
from fedcore.builders import trains
from fedcore.distillation import SOFT, Kind, Ratio, Weighting, distilled, likelihoods, refreshed, shown
from fedcore.local import Training, fit, lay, starting
from fedcore.messages import apply_changes, everyone, first_kept, kept, one_start, received
from fedcore.mixing import by_size, changes
from fedcore.nets import require_equal
from fedcore.types import (
    Count,
    Device,
    Fraction,
    Message,
    Method,
    Net,
    Params,
    Positive,
    Public,
    Report,
    Share,
    Stage,
    StepId,
    Turn,
    Update,
)


@trains(init="common")
def dfl(
    *,
    nets: Mapping[str, Net],
    training: Training,
    common: bool,
    rounds: Count = 10,
    fraction: Fraction = 1.0,
    ratio: Kind = "threshold",
    threshold: Share = 0.6,
    temperature: Positive = 1.0,
    weighting: Weighting = "counts",
) -> Method:
    """Build DFL.

    rounds: R. fraction: c, share of devices per round. ratio: how the hard labels' share rho of the loss (3) goes:
    "threshold", max(1 - r/R, T) (6); "dynamic", 1 - r/R; "fixed", T in all rounds but the first. threshold: T; with 1
    this is FedAvg that sends changes. temperature: tau of the soft targets and of the KL part, which is weighted by
    tau^2; the paper's loss has none, which is 1. weighting: of the soft targets, by "counts" of each label or by
    "examples", |D_k|, as printed (2).
    """
    require_equal(nets)
    one_start("dfl", common)
    distillation.hard_label_loss("dfl", training)
    rho = distillation.ratio(ratio, threshold, rounds)
    stage = Stage(
        partial(train_and_show, training=training, rho=rho, temperature=temperature),
        partial(combine, rho=rho, temperature=temperature, weighting=weighting),
        rounds,
        fraction,
    )
    return Method(begin, (stage,), received, figures=distillation.FIGURES)


def begin(public: Public, seed: int) -> tuple[Params, Mapping[str, Message]]:
    """Initialise the model and the soft targets (Algorithm 1, line 1), of which none is known yet and none sent."""
    server, messages = first_kept(public, seed)
    return server | {SOFT: distillation.unseen(public.classes)}, messages


def train_and_show(
    memory: Params,
    message: Message,
    device: Device,
    step_id: StepId,
    *,
    training: Training,
    rho: Ratio,
    temperature: float,
) -> tuple[Params, Update]:
    """Train on hard labels and soft targets (3); send how the model changed (5) and its label-wise logits.

    Without soft targets, or with rho 1, this is FedAvg's training, bit by bit.
    """
    laid = lay(device.net, starting({}, message, device, step_id))
    table, share = message.extra.get(SOFT), rho.at(step_id.round)
    slope = None
    if table is not None and share < 1:
        slope = distilled(likelihoods(table, temperature), share, 1 - share, temperature)
    moments = fit(laid, device, step_id, training, memory, slope=slope)
    params = laid.params()
    update = Update(changes(params, message.params), shown(params, device), len(device.data.train))
    return moments, update


def combine(
    server: Params,
    updates: Mapping[str, Update],
    turn: Turn,
    *,
    rho: Ratio,
    temperature: float,
    weighting: Weighting,
) -> tuple[Params, Mapping[str, Message], Report]:
    """Move the model (1), refresh the soft targets (2), and send both to everyone: who joins late has them too.

    It reports rho and the soft targets.
    """
    sent = list(updates.values())
    model = apply_changes(server, [update.params for update in sent], by_size([update.size for update in sent]))
    table = refreshed(server[SOFT], sent, weighting)
    report = distillation.report(table, temperature, rho=rho.at(turn.round))
    return kept(model) | {SOFT: table}, everyone(turn.names, Message(model, {SOFT: table})), report
