"""FedASA (Deng et al. 2024, Algorithm 1): each device shares the stem and as many cells as fit its data and its budget.

The server trains an auxiliary model on examples of its own. In the alignment rounds it finds for each device the cell
whose features are nearest to those of the auxiliary model's cell l (8); from then on the device shares at that depth.
Every round it aggregates each cell over the devices that share it (9) and sends each device its own part back.

Departures. In the alignment rounds the paper's devices send their whole model (line 5); here the stem and all cells
that their budget allows, which is all that (8) uses: heads are never sent. A device may share the stem alone (m = 0),
as in Table VI; (8) prints m in [M]. In an alignment round (9) runs over the depths just found. With `shared_init`, the
server's first message is the whole initial model, whatever the budget, as in step (i) of Section III. The auxiliary
model has an accuracy of 78.12 % (Sections III-B and V-A); the paper says neither which examples measure it nor where
the model starts. Here the server holds out a share of its examples, stops training near that accuracy on them, and
starts from weights of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from fedcore import nets
from fedcore.builders import training_defaults
from fedcore.core.aggregation import HYPER, MEAN, Aggregator, exchange_parts
from fedcore.core.messages import initial_messages, own_params
from fedcore.core.prediction import IMAGE_BATCH
from fedcore.core.training import (
    SENT,
    Training,
    accuracy,
    at_round,
    balanced_grad,
    descend,
    flatten_net,
    minibatches,
    plain_step,
    refuse,
    train_shared,
)
from fedcore.errors import InputError
from fedcore.nets import init, require_equal, shapes, use_generator
from fedcore.nets.copies import load
from fedcore.nets.parts import depth_of, features, max_depth, names_up_to, require_comparable
from fedcore.types.federation import Data, Device, Net, Params, Public, add_prefix, nbytes
from fedcore.types.method import Message, Method, Model, Report, RoundInfo, Stage, StepId, Update, generator
from fedcore.types.ranges import Chance, Count, Depth, Fraction, Positive, Share

Distance: TypeAlias = Literal["printed", "unit_norm"]
"""How features are compared in (8): as they are, or each example's scaled to norm 1."""

FIGURES = ("fedcore.report.figures.reports:alignment",)


def distances(
    net: Net, models: Mapping[str, Params], auxiliary: tuple[Net, Params], cell: int, data: Data, distance: Distance
) -> dict[str, Tensor]:
    r"""Return device -> d (M_k + 1,) float64, how far each of its cells is from the auxiliary model's cell l.

    d_m = E_x ||g_aux^l(x) - g_k^m(x)||^2   (8), m = 0, ..., M_k

    models: parameters up to depth M_k. data: D_aux. A cell whose features have another shape is infinitely far.
    """
    blank = {name: torch.zeros(shape) for name, shape in nets.shapes(net).items()}
    modules = {name: load(net, blank | params).eval() for name, params in models.items()}
    distance_of = {name: torch.zeros(depth_of(net, params) + 1).double() for name, params in models.items()}
    reference = load(auxiliary[0], auxiliary[1]).eval()
    with torch.no_grad():
        for start in range(0, len(data), IMAGE_BATCH):
            x = data.inputs(slice(start, start + IMAGE_BATCH))
            wanted = _scale(features(auxiliary[0], reference, x)[cell], distance)
            for name, module in modules.items():
                for m, feature in enumerate(features(net, module, x)[: len(distance_of[name])]):
                    if feature[0].numel() == wanted[0].numel():
                        distance_of[name][m] += (wanted - _scale(feature, distance)).square().sum().double() / len(data)
                    else:
                        distance_of[name][m] = torch.inf
    return distance_of


def report_distances(depths: Mapping[str, int], distance_of: Mapping[str, Tensor]) -> Report:
    """Report the depth chosen for each device, and the distance of each cell.

    Topic "alignment": depth, and distance_0, distance_1, ... without infinite ones. Matrix "distance/<device>"
    (M_k + 1,): all of them, see `distances`.
    """
    finite = {
        name: {f"distance_{m}": x for m, x in enumerate(d.tolist()) if math.isfinite(x)}
        for name, d in distance_of.items()
    }
    devices = {name: {"depth": float(depth), **finite[name]} for name, depth in depths.items()}
    return Report(devices={"alignment": devices}, matrices={f"distance/{name}": d for name, d in distance_of.items()})


def _scale(feature: Tensor, distance: Distance) -> Tensor:
    flat = feature.flatten(1)
    return flat if distance == "printed" else nn.functional.normalize(flat)


Budget: TypeAlias = dict[str, Positive] | list[Positive] | Positive | None
"""C_k: the most bytes that a device may send in a round; one for all, one for each by name or in the devices' order;
None: no limit."""

Start: TypeAlias = Literal["own", "devices"]
"""Where the auxiliary model starts: from weights of its own, or from the devices' common initial model."""

AUXILIARY, DEPTH = "auxiliary/", "depth/"
"""Prefixes in the server's memory: the auxiliary model, its examples, accuracy and steps; the devices' depths."""

SHORTER = tuple(eighths / 8 for eighths in range(1, 8))
"""Lengths of the auxiliary model's last step that are tried, as fractions of it."""


@training_defaults(shared_init=True)
def fedasa(
    *,
    nets: Mapping[str, Net],
    training: Training,
    rounds: Count = 10,
    fraction: Fraction = 1.0,
    alignment_rounds: Count = 1,
    auxiliary: Depth | None = None,
    auxiliary_init: Start = "own",
    target: Share | None = 0.7812,
    steps: Count = 500,
    held_out: Chance = 0.2,
    cell: Depth | None = None,
    distance: Distance = "printed",
    budget: Budget = None,
    personal_lr: Positive | None = None,
    aggregator: Aggregator = MEAN,
) -> Method:
    """FedASA (Deng et al. 2024): the server chooses how many cells each device shares.

    Args:
        rounds: T, communication rounds, from 1.
        fraction: share of the devices that take part in a round after the alignment rounds, in which all do; above 0,
            at most 1. In the paper all do.
        alignment_rounds: t_0, the first of them, in which depths are found, from 1.
        auxiliary: L, cells of the auxiliary model; None: as many as the devices' nets have.
        auxiliary_init: where its training starts: "own", from weights of its own, or "devices", from their common ones.
        target: accuracy near which its training ends, from 0 to 1 (Sections III-B and V-A); None: after `steps` alone.
        steps: minibatches that its training never exceeds, from 1.
        held_out: share of the server's examples that measure its accuracy, above 0 and below 1.
        cell: l, the auxiliary cell that is compared, from 0 to L; None: L // 2.
        distance: how features are compared in (8): "printed", as they are, or "unit_norm", each scaled to norm 1.
        budget: C_k, the most bytes that a device may send in a round; a number for all, or one for each in the devices'
            order or by name; None: no limit.
        personal_lr: eta_h, learning rate of the personal part, above 0; None: training's, which is eta_g.
        aggregator: how the server combines what devices send.

    Raises:
        InputError: for a net whose cells cannot be compared, and a budget below the size of the stem.
    """
    net = require_equal(nets)
    refuse("fedasa", training, "parts")
    require_comparable(net)
    cells = max_depth(net) if auxiliary is None else auxiliary
    if cells > max_depth(net):
        raise InputError(
            f"fedasa.auxiliary = {cells}: the devices' nets have {max_depth(net)} cells, it can have no more"
        )
    if cell is not None and cell > cells:
        raise InputError(f"fedasa.cell = {cell}: the auxiliary model has cells 0 (the stem) to {cells}")
    limits = depths_within(budget, nets)
    aligning = min(alignment_rounds, rounds)
    memory = net if cells == max_depth(net) else shorten(net, cells)
    middle = cells // 2 if cell is None else cell
    find = partial(align, net=net, auxiliary=memory, cell=middle, distance=distance, aggregator=aggregator)
    combine = partial(mix, net=net, aggregator=aggregator)
    most = partial(train_part, limits=limits, training=training, personal_lr=personal_lr)
    own = None if personal_lr is None else personal_lr * training.round_decay**aligning
    same = partial(train_part, limits=None, training=at_round(training, aligning), personal_lr=own)
    stages = (Stage(most, find, aligning), Stage(same, combine, rounds - aligning, fraction))
    learn = partial(train_auxiliary, net=memory, training=training, target=target, steps=steps, held_out=held_out)
    begin = partial(
        begin_aligning, auxiliary=memory, start=auxiliary_init, learn=learn, shared_init=training.shared_init
    )
    return Method(begin, stages[: 1 + (rounds > aligning)], run_part, figures=FIGURES)


def shorten(net: Net, cells: int) -> Net:
    """Return the same net with so many cells."""
    if not isinstance(net.build, partial) or "cells" not in net.build.keywords:
        raise InputError(f"fedasa.auxiliary = {cells}: only net.name = cells can be made with fewer cells; use null")
    build = partial(net.build.func, *net.build.args, **{**net.build.keywords, "cells": cells})
    return replace(net, build=build, axes=None)


def depths_within(budget: Budget, nets: Mapping[str, Net]) -> dict[str, int]:
    """Return the greatest depth within each device's budget C_k (6); refuses a budget below the size of the stem."""
    if isinstance(budget, list):
        if len(budget) != len(nets):
            raise InputError(
                f"fedasa.budget: {len(budget)} numbers for {len(nets)} devices ({', '.join(nets)}, in this order)"
            )
        budget = dict(zip(nets, budget, strict=True))
    if isinstance(budget, dict):
        if wrong := [name for name in budget if name not in nets]:
            raise InputError(f"fedasa.budget: {', '.join(wrong)}: not a device; the devices are {', '.join(nets)}")
        if left := [name for name in nets if name not in budget]:
            raise InputError(f"fedasa.budget: it must name every device; left out: {', '.join(left)}")
    limits = {}
    net = next(iter(nets.values()))  # they are equal
    params = init(net, torch.Generator())
    costs = [nbytes({part: params[part] for part in names_up_to(net, m)}) for m in range(max_depth(net) + 1)]
    for name in nets:
        here = budget[name] if isinstance(budget, dict) else math.inf if budget is None else budget
        if here < costs[0]:
            raise InputError(f"fedasa.budget: {name} has {here:.0f} bytes a round, the least that fits is {costs[0]}")
        limits[name] = sum(cost <= here for cost in costs) - 1
    return limits


def begin_aligning(
    public: Public, seed: int, *, auxiliary: Net, start: Start, learn: Callable[..., AuxiliaryModel], shared_init: bool
) -> tuple[Params, Mapping[str, Message]]:
    """Draw the initial model and train the auxiliary one; the server stores both.

    The auxiliary model's parameters are named auxiliary/<name>, the server's examples auxiliary/x, its accuracy on the
    held-out ones auxiliary/accuracy, its steps auxiliary/steps, and the hyper-model's parameters hyper/<name>.
    """
    if len(public.server_data) < 2:
        raise InputError(
            f"fedasa: the server has {len(public.server_data)} examples; the auxiliary model needs one to learn from "
            "and one to be tested on (of all datasets, bearings and cwru alone give the server examples)"
        )
    _, messages = initial_messages(public, seed, shared_init=shared_init)
    whole = init(next(iter(public.nets.values())), generator(seed, "init"))
    first = whole if start == "devices" else init(auxiliary, generator(seed, "auxiliary", "init"))
    trained = learn({name: first[name] for name in shapes(auxiliary)}, public.server_data, seed=seed)
    hyper = add_prefix(HYPER, whole) if shared_init else {}
    numbers = {name: torch.tensor(float(getattr(trained, name))).double() for name in ("accuracy", "steps")}
    memory = trained.params | {"x": public.server_data.x} | numbers
    return hyper | add_prefix(AUXILIARY, memory), messages


class AuxiliaryModel(NamedTuple):
    """The auxiliary model after `steps` minibatches, with its accuracy on held-out examples (a fraction)."""

    params: Params
    accuracy: float
    steps: int


def train_auxiliary(
    start: Params, data: Data, *, net: Net, training: Training, target: float | None, steps: int, held_out: float,
    seed: int,
) -> AuxiliaryModel:  # fmt: skip
    """Train on the server's examples, a share of them held out, until the accuracy on those reaches the target.

    Returns the model whose accuracy was nearest to the target; without a target the one after all steps. One step can
    move the accuracy by ten points, so shorter ones are tried in place of the step that reaches the target.
    """
    order = torch.randperm(len(data), generator=generator(seed, "auxiliary", "held out"))
    count = min(max(round(held_out * len(data)), 1), len(data) - 1)
    held_out_data, rest = (Data(data.x[index], data.y[index]) for index in (order[:count], order[count:]))
    flat = flatten_net(net, start)
    enough = replace(training, steps=steps, patience=None)

    def measure(number: int) -> AuxiliaryModel:
        params = flat.params()
        return AuxiliaryModel(params, accuracy(params, net, held_out_data), number)

    def path(target: float) -> Iterator[AuxiliaryModel]:
        yield measure(0)
        for number, batch in enumerate(batches, 1):
            before = flat.vector.clone()
            descend(rest, [batch], step)
            reached = measure(number)
            yield reached
            if reached.accuracy >= target:
                after = flat.vector.clone()
                for share in SHORTER:
                    flat.vector.copy_(before.lerp(after, share))
                    yield measure(number)
                return

    with use_generator(generator(seed, "auxiliary", "noise")):
        batches = minibatches(flat, len(rest), enough, generator(seed, "auxiliary"))
        step = plain_step(flat, enough, len(batches), logit_grad=balanced_grad(enough, rest))
        if target is None:
            descend(rest, batches, step)
            return measure(len(batches))
        goal = target
        return min(path(goal), key=lambda model: abs(model.accuracy - goal))


def train_part(
    memory: Params, message: Message, device: Device, step_id: StepId, *, limits: Mapping[str, int] | None,
    training: Training, personal_lr: float | None,
) -> tuple[Params, Update]:  # fmt: skip
    """Train the whole model; send the stem and as many cells as the budget allows, or (None) what the message had."""
    shared = message.params.keys() if limits is None else names_up_to(device.net, limits[device.name])
    own, update = train_shared(
        memory, message, device, step_id, shared=shared, training=training, personal_lr=personal_lr
    )
    return {**update.params, **{name: x for name, x in own.items() if not name.startswith(SENT)}}, update


def run_part(memory: Params, message: Message) -> Model:
    """Run the tensors of the message; the device's memory, which is its whole model, has the others."""
    return Model((own_params(memory) | message.params,))


def align(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, net: Net, auxiliary: Net, cell: int,
    distance: Distance, aggregator: Aggregator,
) -> tuple[Params, Mapping[str, Message], Report]:  # fmt: skip
    """Find the alignment vector m* (8), aggregate the cells (9) and sample (lines 5-17).

    Report m*_k and the distances of every device, and for topic "auxiliary" the auxiliary model's accuracy and steps.
    """
    model = {name: server[f"{AUXILIARY}{name}"] for name in shapes(auxiliary)}
    examples = Data(server[f"{AUXILIARY}x"], torch.empty(len(server[f"{AUXILIARY}x"])))
    sent = {name: update.params for name, update in updates.items()}
    distance_of = distances(net, sent, (auxiliary, model), cell, examples, distance)
    depths = {name: int(d.argmin()) for name, d in distance_of.items()}
    used = {
        name: replace(update, params={part: update.params[part] for part in names_up_to(net, depths[name])})
        for name, update in updates.items()
    }
    server = server | {f"{DEPTH}{name}": torch.tensor(m) for name, m in depths.items()}
    report = report_distances(depths, distance_of)
    numbers = {word: server[f"{AUXILIARY}{word}"].item() for word in ("accuracy", "steps")}
    return *share(server, used, round_info, net, aggregator), replace(
        report, devices={**report.devices, "auxiliary": dict.fromkeys(depths, numbers)}
    )


def mix(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, net: Net, aggregator: Aggregator
) -> tuple[Params, Mapping[str, Message]]:
    """Aggregate and sample; alignment is over, so drop the auxiliary model."""
    server = {name: x for name, x in server.items() if not name.startswith(AUXILIARY)}
    return share(server, updates, round_info, net, aggregator)


def share(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, net: Net, aggregator: Aggregator
) -> tuple[Params, Mapping[str, Message]]:
    """Replace the operators of the updates in the hyper-model (9), keep the others, and send every device its part.

    A device whose updates never came in the alignment rounds has the stem.
    """
    depths = {name: int(server.get(f"{DEPTH}{name}", 0)) for name in round_info.names}
    return exchange_parts(server, updates, {name: names_up_to(net, m) for name, m in depths.items()}, aggregator)
