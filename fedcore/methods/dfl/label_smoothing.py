"""FedAvg whose hard labels are smoothed by 1 - rho, rho as in DFL: the control of DFL's soft targets.

At temperature 1 DFL's loss is cross-entropy against rho onehot(y) + (1 - rho) soft target; here the soft target is the
even one (Szegedy et al. 2016), which nobody has to learn or to send.
"""

from collections.abc import Mapping
from functools import partial

from fedcore.builders import control, needs_classes, training_defaults
from fedcore.core.aggregation import average_models
from fedcore.core.messages import initial_messages, received_model
from fedcore.core.training import Training, fit, flatten_net, require_cross_entropy, starting_params
from fedcore.methods.dfl import soft_targets as distillation
from fedcore.methods.dfl.soft_targets import Kind, Ratio, report_series, smoothing_grad
from fedcore.nets import require_equal
from fedcore.types.federation import Device, Net, Params
from fedcore.types.method import Message, Method, Report, RoundInfo, Stage, StepId, Update
from fedcore.types.ranges import Count, Fraction, Share


@needs_classes("smooths labels")
@control
@training_defaults(shared_init=True)
def label_smoothing(
    *,
    nets: Mapping[str, Net],
    training: Training,
    rounds: Count = 10,
    fraction: Fraction = 1.0,
    ratio: Kind = "threshold",
    threshold: Share = 0.6,
) -> Method:
    """Build the control.

    Args:
        rounds: communication rounds, from 1.
        fraction: share of the devices that take part in a round, above 0, at most 1.
        ratio: how rho changes from round to round, as for `dfl`: "threshold", "dynamic" or "fixed".
        threshold: T, from 0 to 1; with 1 this is fedavg.
    """
    require_equal(nets)
    require_cross_entropy("label_smoothing", training)
    rho = distillation.ratio(ratio, threshold, rounds)
    stage = Stage(
        partial(train_smoothed, training=training, rho=rho), partial(average_and_report, rho=rho), rounds, fraction
    )
    return Method(partial(initial_messages, shared_init=training.shared_init), (stage,), received_model)


def train_smoothed(
    memory: Params, message: Message, device: Device, step_id: StepId, *, training: Training, rho: Ratio
) -> tuple[Params, Update]:
    """Train on labels smoothed by 1 - rho; with rho 1 this is FedAvg's training, bit by bit."""
    flat = flatten_net(device.net, starting_params({}, message, device, step_id))
    share = 1 - rho.at(step_id.round)
    moments = fit(flat, device, step_id, training, memory, logit_grad=smoothing_grad(share) if share else None)
    return moments, Update(flat.params(), size=len(device.data.train))


def average_and_report(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, rho: Ratio
) -> tuple[Params, Mapping[str, Message], Report]:
    """Average the models by examples; report rho."""
    return *average_models(server, updates, round_info), report_series(rho=rho.at(round_info.round))
