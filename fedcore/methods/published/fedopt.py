r"""FedOpt (Reddi et al. 2021, Algorithms 1 and 2): the server takes the mean change for a gradient of an optimiser.

Delta = sum_k p_k x_k - x                                        the mean change, p_k by examples
momentum    m <- beta1 m + Delta;              x <- x + lr m      FedAvgM (Hsu et al. 2019)
adagrad     v <- v + Delta^2                                      FedAdagrad (Algorithm 2)
yogi        v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)        FedYogi
adam        v <- beta2 v + (1 - beta2) Delta^2                    FedAdam
            m <- beta1 m + (1 - beta1) Delta;  x <- x + lr m / (sqrt(v) + tau)   of the last three

At first m = 0 and v = tau^2, as in the paper, which corrects no bias.

Departures. Changes are weighted by examples, as in the paper's experiments; its algorithms weigh them evenly. Devices
send their models, from which the server takes x: as many bytes. Buffers, which have no gradient, become their mean.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Literal, TypeAlias

from annotated_types import Ge, Lt
from torch import Tensor

from fedcore.builders import training_defaults
from fedcore.core.aggregation import Aggregator, Averaging, hyper_model
from fedcore.core.messages import (
    begin_with_memory,
    from_memory,
    received_model,
    require_shared_init,
    to_everyone,
    to_memory,
)
from fedcore.core.training import Training, train
from fedcore.nets import parameters, require_equal
from fedcore.types.federation import Net, Params
from fedcore.types.method import Message, Method, RoundInfo, Update, step_word
from fedcore.types.ranges import Positive

Rule: TypeAlias = Literal["momentum", "adam", "yogi", "adagrad"]
Decay: TypeAlias = Annotated[float, Ge(0), Lt(1)]

FIRST, SECOND = "first/", "second/"
"""Prefixes of m and v in the server's memory."""

SECOND_MOMENTS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "adam": lambda v, square, beta2: beta2 * v + (1 - beta2) * square,
    "yogi": lambda v, square, beta2: v - (1 - beta2) * square * (v - square).sign(),
    "adagrad": lambda v, square, beta2: v + square,
}
"""v, Delta^2 and beta2 -> the new v."""


@training_defaults(shared_init=True)
def fedopt(
    *,
    nets: Mapping[str, Net],
    training: Training,
    averaging: Averaging,
    rule: Rule = "adam",
    server_lr: Positive = 0.03,
    beta1: Decay = 0.9,
    beta2: Decay = 0.99,
    tau: Positive = 1e-3,
) -> Method:
    """FedAvgM, FedAdam, FedYogi or FedAdagrad: the server steps along the mean change (Reddi et al. 2021).

    Args:
        rule: the server's optimiser: "momentum" (FedAvgM), "adam", "yogi" or "adagrad".
        server_lr: the server's learning rate, above 0. Of momentum, with 1 and beta1 0, FedAvg but for rounding; of the
            others about the farthest that a parameter moves in a round, which the paper tunes per dataset.
        beta1: share of the movement that stays from round to round, from 0, below 1.
        beta2: share of the second moment that stays, from 0, below 1; of adam and yogi.
        tau: adaptivity: changes well below it are hardly scaled up, above 0; not of momentum.
    """
    learnt = parameters(require_equal(nets))
    require_shared_init("fedopt", training.shared_init)
    move = partial(move_model, learnt=learnt, rule=rule, server_lr=server_lr, beta1=beta1, beta2=beta2, tau=tau)
    stage = averaging.stage(partial(train, training=training), move)
    return Method(begin_with_memory, (stage,), received_model)


@step_word("average")
def move_model(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, learnt: tuple[str, ...], rule: Rule,
    server_lr: float, beta1: float, beta2: float, tau: float, aggregator: Aggregator,
) -> tuple[Params, Mapping[str, Message]]:  # fmt: skip
    """Take a step of the server's optimiser along the mean change.

    learnt: the names of the parameters; other tensors are buffers.
    """
    before = from_memory(server)
    model = hyper_model(updates, aggregator)
    moments: Params = {}
    for name in learnt:
        change = model[name] - before[name]
        m = server.get(f"{FIRST}{name}", change.new_zeros(change.shape))
        if rule == "momentum":
            m = beta1 * m + change
            step = m
        else:
            m = beta1 * m + (1 - beta1) * change
            v = server.get(f"{SECOND}{name}", change.new_full(change.shape, tau**2))
            v = SECOND_MOMENTS[rule](v, change.square(), beta2)
            step = m / (v.sqrt() + tau)
            moments[f"{SECOND}{name}"] = v
        moments[f"{FIRST}{name}"] = m
        model[name] = before[name] + server_lr * step
    return to_memory(model) | moments, to_everyone(round_info.names, Message(model))
