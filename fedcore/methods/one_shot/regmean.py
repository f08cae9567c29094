r"""RegMean (Jin et al. 2023, "Dataless Knowledge Fusion by Merging Weights of Language Models"), one shot.

Every linear layer becomes the one nearest to all devices' layers on their own inputs:

    W = (sum_i W_i G_i) (sum_i G_i)^-1,   G_i = damped sum of a a' over device i's examples,  a = (input, 1)

Devices send these sums beside their models; everything else (norms, convolutions in groups) is averaged by size, as in
the paper. Departures: the bias belongs to its layer, as the weight of a constant input; a convolution is a linear layer
on the patches under its kernel; a small multiple of the identity keeps the sum invertible where an input is always 0.

**Repair.** A merged net's hidden units vary less than those of the nets it is made of. REPAIR (Jordan et al. 2023)
rescales them, layer by layer, so that each unit's mean and deviation, before its activation, are the goal's
(:func:`fedcore.methods.one_shot.closed_form.rescale`).

The goal is what all devices' units show together, each on its own device's examples; it follows from the sums that
were sent, z = W_i a, as does what the merged net's first layer shows. Each further hidden layer takes an exchange of
three numbers per unit, since its inputs change with the layer below. Departure: the paper averages deviations over two
nets on the same examples, here the variance between devices counts as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedcore.builders import training_defaults
from fedcore.core.aggregation import by_size, mean
from fedcore.core.messages import initial_messages, own_params, received_model, require_shared_init, to_everyone
from fedcore.core.secure_sum import require_everyone
from fedcore.core.training import Training, train
from fedcore.errors import InputError
from fedcore.methods.code.fusion import ONE_TO_ONE, carry, common_axes
from fedcore.methods.code.fusion import align as align_units
from fedcore.methods.one_shot import closed_form as closed
from fedcore.nets import require_equal
from fedcore.nets.copies import load
from fedcore.nets.inputs import layer_inputs, linear_layers
from fedcore.types.federation import Axes, Device, Net, Params
from fedcore.types.method import Message, Method, Model, RoundInfo, Stage, StepId, Update, step_word
from fedcore.types.ranges import Amount, Share

Grams: TypeAlias = dict[str, Tensor]
"""layer -> the sum of a a' over a device's examples, (D + 1, D + 1) float64."""

GRAM = "gram/"
"""Prefix of the entries of an update that hold the upper triangles of its Gram matrices, by layer."""

OUTPUTS, GOAL = "outputs", "goal/"
"""The entry of an update with the sums of a layer's outputs, (3, m), see `closed.output_sums`; prefix of the entries of
the server's memory with the sums that the merged net's layers are to have."""


@training_defaults(shared_init=True)
def regmean(
    *,
    nets: Mapping[str, Net],
    training: Training,
    share: Share = 0.9,
    damping: Amount = 1e-3,
    align: Literal["none", "exact"] = "none",
    repair: bool = False,
) -> Method:
    """RegMean (Jin et al. 2023): each linear layer becomes the nearest to the devices' layers on their inputs.

    Args:
        share: factor of the entries of G beside its diagonal, from 0 to 1, .9 in the paper; 0 weights each input by
            itself.
        damping: multiple of the identity that is added to each G, relative to the mean of its diagonal, from 0.
        align: "exact" first brings every model's units into the order of those of the device with the most examples,
            which models that do not start from a common one need; "none" leaves them.
        repair: whether the merged net's hidden units are rescaled (REPAIR).

    Raises:
        InputError: for models that neither start from a common one nor are aligned.
    """
    net = require_equal(nets)
    if align == "none":
        require_shared_init("regmean", training.shared_init, "averages layers unit by unit", "regmean.align: exact")
    axes = common_axes(nets) if align == "exact" else None
    combine = partial(merge, net=net, axes=axes, share=share, damping=damping, repair=repair)
    stage = Stage(partial(train, training=training), combine, attach=add_grams)
    begin = partial(initial_messages, shared_init=training.shared_init)
    if not repair:
        return Method(begin, (stage,), received_model)
    upper = closed.plain_layers(net, "regmean.repair = true")[1:-1]
    again = Stage(partial(send_outputs, layers=upper), partial(repair_layer, layers=upper), len(upper))
    return Method(begin, (stage, again), run_parts)


@step_word("sum")
def add_grams(update: Update, device: Device, step_id: StepId) -> Update:
    """Add the Gram matrices of the inputs of the model's layers."""
    grams = input_grams(device, update.params)
    return replace(update, extra={f"{GRAM}{name}": closed.triangle(gram).float() for name, gram in grams.items()})


def input_grams(device: Device, params: Params) -> Grams:
    """Return the Gram matrices of the inputs of each layer of a model on the device's training examples."""
    module, data = load(device.net, params).eval(), device.data.train
    sizes = {name: inputs_of(params, name) for name in linear_layers(module)}
    grams = {name: torch.zeros(size, size, dtype=torch.float64) for name, size in sizes.items()}

    def add(name: str, rows: Tensor) -> None:
        a = closed.append_one(rows) if f"{name}.bias" in params else rows
        grams[name] += a.T @ a

    for part in closed.batches(params, len(data)):
        layer_inputs(module, data.inputs(part), add)
    return grams


def merge(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, net: Net, axes: Axes | None, share: float,
    damping: float, repair: bool,
) -> tuple[Params, Mapping[str, Message]]:  # fmt: skip
    """Send everyone the mean of the models, in which each linear layer is replaced by its regression mean.

    repair: its first layer is rescaled; the server remembers the others that are to be, and their goals.
    """
    names = sorted(updates)
    models = [updates[name].params for name in names]
    sizes = [updates[name].size for name in names]
    layers = [*linear_layers(load(net, models[0]))]
    grams = [unpack(name, updates[name], layers) for name in names]
    if axes is not None:
        reference = models[sizes.index(max(sizes))]
        moved = [move(model, of, reference, axes) for model, of in zip(models, grams, strict=True)]
        models, grams = [model for model, _ in moved], [of for _, of in moved]
    merged = mean(models, by_size(sizes))
    for layer in layers:
        if not any(bool(of[layer].any()) for of in grams):
            continue  # nobody has an example that passes this layer: the mean stays
        weights = [closed.matrix(model, layer) for model in models]
        layer_mean = closed.regression_mean(weights, [closed.damped(of[layer], share, damping) for of in grams])
        if layer_mean is None:
            raise InputError(
                f"regmean.damping = {damping}: the inputs of layer {layer} do not determine its weights; set more"
            )
        merged |= closed.to_layer(layer_mean, merged, layer)
    if repair and len(layers) > 1:
        goals = {layer: outputs_of(models, grams, layer) for layer in layers[:-1]}
        first, *upper = layers[:-1]
        sums = closed.output_sums(closed.matrix(merged, first), torch.stack([of[first] for of in grams]).sum(0))
        merged |= closed.to_layer(closed.rescale(closed.matrix(merged, first), sums, goals[first]), merged, first)
        server = {f"{GOAL}{layer}": goals[layer] for layer in upper}
        server |= {name: x for name, x in merged.items() if name.rpartition(".")[0] in upper}
    return server, to_everyone(round_info.names, Message(merged))


def outputs_of(models: Sequence[Params], grams: Sequence[Grams], layer: str) -> Tensor:
    """Return the sums of a layer's outputs in all devices' own models, (3, m), see `closed.output_sums`."""
    sums = [closed.output_sums(closed.matrix(p, layer), of[layer]) for p, of in zip(models, grams, strict=True)]
    return torch.stack(sums).sum(0)


@step_word("sum")
def send_outputs(
    memory: Params, message: Message, device: Device, step_id: StepId, *, layers: Sequence[str]
) -> tuple[Params, Update]:
    """Send the sums of a layer's outputs over the device's examples. The memory is the merged net, as far as it is."""
    params, layer, data = own_params({**memory, **message.params}), layers[step_id.round], device.data.train
    module, weights = load(device.net, params).eval(), closed.matrix(params, layer).double()
    sums = torch.zeros(3, len(weights), dtype=torch.float64)

    def add(name: str, rows: Tensor) -> None:
        if name == layer:
            z = closed.append_one(rows).double() @ weights.T
            sums.add_(torch.stack([z.sum(0), z.square().sum(0), torch.full((z.shape[1],), float(len(z)))]))

    for part in closed.batches(params, len(data)):
        layer_inputs(module, data.inputs(part), add)
    return params, Update(extra={OUTPUTS: sums})


@step_word("rescale")
def repair_layer(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, layers: Sequence[str]
) -> tuple[Params, Mapping[str, Message]]:
    """Send everyone a layer whose outputs have the goal's means and deviations."""
    require_everyone(updates, round_info.names, "regmean.repair = true", closed.EVERYONE)
    layer = layers[round_info.round]
    weights = closed.matrix(server, layer)
    sums = closed.sum_over(updates, OUTPUTS, (3, len(weights)))
    layer_params = closed.to_layer(closed.rescale(weights, sums, server[f"{GOAL}{layer}"]), server, layer)
    return server, to_everyone(round_info.names, Message(layer_params))


def run_parts(memory: Params, message: Message) -> Model:
    """Run the merged net: the device's part of it, and the layer received last."""
    return Model((own_params({**memory, **message.params}),))


def inputs_of(params: Params, layer: str) -> int:
    """Return the length of a."""
    return params[f"{layer}.weight"][0].numel() + (f"{layer}.bias" in params)


def unpack(name: str, update: Update, layers: Sequence[str]) -> Grams:
    """Return a device's Gram matrices; raises InputError, naming it, for one of another size."""
    grams: Grams = {}
    for layer in layers:
        size, entry = inputs_of(update.params, layer), f"{GRAM}{layer}"
        entries = update.extra.get(entry, torch.empty(0))
        closed.require_sums(name, entries, (size * (size + 1) // 2,), entry)
        grams[layer] = closed.from_triangle(entries.double(), size)
    return grams


def move(model: Params, grams: Grams, reference: Params, axes: Axes) -> tuple[Params, Grams]:
    """Return a model in the units of the reference, and its Gram matrices in the same order of inputs."""
    aligned, plans = align_units(model, reference, axes, ONE_TO_ONE)
    moved: Grams = {}
    for layer, gram in grams.items():
        weight = f"{layer}.weight"
        shape = model[weight].shape[1:]
        order = torch.eye(len(gram), dtype=torch.float64)
        inputs = order[: shape.numel(), : shape.numel()].reshape(-1, *shape)
        for axis, label in enumerate(axes[weight][1:], start=1):
            if label is not None:
                plan = plans[label].plan
                inputs = carry(inputs, axis, len(plan) * plan)
        order[: shape.numel(), : shape.numel()] = inputs.flatten(1)
        moved[layer] = order.T @ gram @ order
    return aligned, moved
