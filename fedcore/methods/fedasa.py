"""FedASA (Deng et al. 2024, Algorithm 1): each device shares the stem and as many cells as fit its data and its budget.

The server trains an auxiliary model on examples of its own. In the alignment rounds it finds for each device the cell
whose features are nearest to those of the auxiliary model's cell l (8); from then on the device shares at that depth.
Every round it aggregates each cell over the devices that share it (9) and sends each device its own part back.

Departures. In the alignment rounds the paper's devices send their whole model (line 5); here the stem and all cells
that their budget allows, which is all that (8) uses: heads are never sent. A device may share the stem alone (m = 0),
as in Table VI; (8) prints m in [M]. In an alignment round (9) runs over the depths just found. The auxiliary model,
which the paper calls poor (78 % accuracy), is stopped after a few steps. With `common`, the server's first
message is the whole initial model, whatever the budget, as in step (i) of Section III.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import torch

from fedcore.cells import (
    FIGURES,
    Distance,
    distances,
    hyper_model,
    leaves_up_to,
    max_depth,
    merge_models,
    report,
    require_comparable,
    sample_submodels,
    train_shared,
)
from fedcore.local import Training, accuracy, descend, flatten_net, minibatches, plain_step
from fedcore.messages import initial_messages
from fedcore.nets import init, require_equal, shapes, use_generator
from fedcore.types import (
    Count,
    Data,
    Depth,
    Device,
    InputError,
    Message,
    Method,
    Net,
    Params,
    Positive,
    Public,
    Report,
    Stage,
    StepId,
    Turn,
    Update,
    generator,
    nbytes,
)

Budget: TypeAlias = dict[str, Positive] | list[Positive] | Positive | None
"""C_k: the most bytes that a device may send in a round; one for all, one for each by name or in the devices' order;
None: no limit."""

AUXILIARY, HYPER = "auxiliary/", "hyper/"
"""Prefixes in the server's memory: the auxiliary model, its examples and accuracy; the hyper-model."""


def fedasa(
    *,
    nets: Mapping[str, Net],
    training: Training,
    common: bool,
    rounds: Count = 10,
    alignment_rounds: Count = 1,
    auxiliary: Depth | None = None,
    steps: Count = 30,
    cell: Depth | None = None,
    distance: Distance = "printed",
    budget: Budget = None,
    personal_lr: Positive | None = None,
) -> Method:
    """Build FedASA. All devices take part in every round.

    rounds: T. alignment_rounds: t_0, the first of them. auxiliary: L, cells of the auxiliary model; None: as many as
    the devices' nets have. steps: minibatches of its training. cell: l, 0 to L; None: L // 2. distance: how
    features are compared. budget: C_k. personal_lr: eta_h; None: training's rate, which is eta_g.
    """
    require_equal(nets)
    net = next(iter(nets.values()))
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
    find = partial(align, net=net, auxiliary=memory, cell=cells // 2 if cell is None else cell, distance=distance)
    most = partial(train_most, limits=limits, training=training, personal_lr=personal_lr)
    same = partial(train_same, training=training, personal_lr=personal_lr)
    stages = (Stage(most, find, aligning), Stage(same, mix, rounds - aligning))
    begin = partial(begin_aligning, auxiliary=memory, steps=steps, training=training, common=common)
    return Method(begin, stages[: 1 + (rounds > aligning)], merge_models, figures=FIGURES)


def shorten(net: Net, cells: int) -> Net:
    """Return the same net with so many cells."""
    if not isinstance(net.build, partial) or "cells" not in net.build.keywords:
        raise InputError(f"fedasa.auxiliary = {cells}: only net.name = cells can be made with fewer cells; use null")
    return Net(partial(net.build.func, *net.build.args, **{**net.build.keywords, "cells": cells}))


def depths_within(budget: Budget, nets: Mapping[str, Net]) -> dict[str, int]:
    """Return the greatest depth within each device's budget; refuses a budget below the size of the stem."""
    if isinstance(budget, list):
        if len(budget) != len(nets):
            raise InputError(
                f"fedasa.budget: {len(budget)} numbers for {len(nets)} devices ({', '.join(nets)}, in this order)"
            )
        budget = dict(zip(nets, budget, strict=True))
    if isinstance(budget, dict):
        if wrong := [name for name in budget if name not in nets]:
            raise InputError(f"fedasa.budget: {', '.join(wrong)} is no device; the devices are {', '.join(nets)}")
        if left := [name for name in nets if name not in budget]:
            raise InputError(f"fedasa.budget: it must name every device; left out: {', '.join(left)}")
    limits = {}
    for name, net in nets.items():
        leaves = init(net, torch.Generator())
        costs = [nbytes({leaf: leaves[leaf] for leaf in leaves_up_to(net, m)}) for m in range(max_depth(net) + 1)]
        here = budget[name] if isinstance(budget, dict) else math.inf if budget is None else budget
        if here < costs[0]:
            raise InputError(f"fedasa.budget: {name} has {here:.0f} bytes a round, the least that fits is {costs[0]}")
        limits[name] = sum(cost <= here for cost in costs) - 1
    return limits


def begin_aligning(
    public: Public, seed: int, *, auxiliary: Net, steps: int, training: Training, common: bool
) -> tuple[Params, Mapping[str, Message]]:
    """Draw the initial model and train the auxiliary one from the same leaves; the server stores both.

    Its leaves are named auxiliary/<leaf>, its examples auxiliary/x, its accuracy on them auxiliary/accuracy, and the
    hyper-model's leaves hyper/<leaf>.
    """
    if len(public.server_data) == 0:
        raise InputError("fedasa: the server has no examples of its own to train the auxiliary model on")
    _, messages = initial_messages(public, seed, common=common)
    whole = init(next(iter(public.nets.values())), generator(seed, "init"))
    trained = teach(
        auxiliary, {leaf: whole[leaf] for leaf in shapes(auxiliary)}, public.server_data, training, steps, seed
    )
    hyper = {f"{HYPER}{leaf}": x for leaf, x in whole.items() if common}
    right = torch.tensor(accuracy(trained, auxiliary, public.server_data), dtype=torch.float64)
    memory = {f"{AUXILIARY}{leaf}": x for leaf, x in trained.items()} | {f"{AUXILIARY}x": public.server_data.x}
    return hyper | memory | {f"{AUXILIARY}accuracy": right}, messages


def teach(net: Net, start: Params, data: Data, training: Training, steps: int, seed: int) -> Params:
    """Train the auxiliary model for so many steps on the server's examples."""
    flat = flatten_net(net, start)
    enough = replace(training, steps=None, epochs=math.ceil(steps / max(len(data) // training.batch, 1)))
    with use_generator(generator(seed, "auxiliary", "noise")):
        batches = minibatches(flat, len(data), enough, generator(seed, "auxiliary"))[:steps]
        descend(data, batches, plain_step(flat, enough, len(batches)))
    return flat.params()


def train_most(
    memory: Params,
    message: Message,
    device: Device,
    step_id: StepId,
    *,
    limits: Mapping[str, int],
    training: Training,
    personal_lr: float | None,
) -> tuple[Params, Update]:
    """Train the whole model; send the stem and as many cells as the budget allows."""
    shared = leaves_up_to(device.net, limits[device.name])
    return train_shared(memory, message, device, step_id, shared=shared, training=training, personal_lr=personal_lr)


def train_same(
    memory: Params, message: Message, device: Device, step_id: StepId, *, training: Training, personal_lr: float | None
) -> tuple[Params, Update]:
    """Train the whole model; send the leaves that the message had."""
    return train_shared(
        memory, message, device, step_id, shared=message.params.keys(), training=training, personal_lr=personal_lr
    )


def align(
    server: Params,
    updates: Mapping[str, Update],
    turn: Turn,
    *,
    net: Net,
    auxiliary: Net,
    cell: int,
    distance: Distance,
) -> tuple[Params, Mapping[str, Message], Report]:
    """Find the alignment vector m* (8), aggregate the cells (9) and sample (lines 5-17).

    Report m*_k and the distances of every device, and the auxiliary model's accuracy.
    """
    model = {leaf: server[f"{AUXILIARY}{leaf}"] for leaf in shapes(auxiliary)}
    examples = Data(server[f"{AUXILIARY}x"], torch.empty(len(server[f"{AUXILIARY}x"])))
    sent = {name: update.params for name, update in updates.items()}
    apart = distances(net, sent, (auxiliary, model), cell, examples, distance)
    depths = {name: int(d.argmin()) for name, d in apart.items()}
    used = {
        name: replace(update, params={leaf: update.params[leaf] for leaf in leaves_up_to(net, depths[name])})
        for name, update in updates.items()
    }
    found, place = report(depths, apart), f"{AUXILIARY}accuracy"
    return *aggregate(server, used), replace(found, matrices={**found.matrices, place: server[place]})


def mix(server: Params, updates: Mapping[str, Update], turn: Turn) -> tuple[Params, Mapping[str, Message]]:
    """Aggregate and sample; alignment is over, so drop the auxiliary model."""
    return aggregate({name: x for name, x in server.items() if not name.startswith(AUXILIARY)}, updates)


def aggregate(server: Params, updates: Mapping[str, Update]) -> tuple[Params, Mapping[str, Message]]:
    """Replace the operators of the updates in the hyper-model (9), keep the others, and sample."""
    hyper = hyper_model(updates)
    return server | {f"{HYPER}{leaf}": x for leaf, x in hyper.items()}, sample_submodels(hyper, updates)
