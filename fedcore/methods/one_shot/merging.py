r"""Nets that are merged layer by layer, each layer by least squares: RegMean and PLeaS.

**RegMean** (Jin et al. 2023, "Dataless Knowledge Fusion by Merging Weights of Language Models"), one shot.

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

**PLeaS** (Nasery et al. 2025, "PLeaS: Merging Models with Permutations and Least Squares").

Models are brought into one order of units. Then the merged net is built layer by layer, from the input on: each layer
is the linear one that comes nearest to what every device's own layer says of the device's examples,

    W = (sum_i z_i a')(sum a a' + lambda I)^-1      sums over all devices' examples, lambda: `damping` times the mean
                                                    diagonal of sum a a'

a = (input, 1): the layer's input in the merged net as far as it is; z_i: the output, before its activation, of the
layer in the device's own model. Thus a layer makes up for what the layers below it lost, which RegMean does not.

Each layer takes an exchange: the device sends the two sums and gets the layer. Alignment takes one before: the device
sends its model and gets the order of its units. Without it, devices never send a model. Departures: models of many
devices, each with examples of its own, in place of two with the same; units are matched by weights, one to one, all of
them; sums travel, not examples; the damping.
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
from fedcore.nets import require_equal, shapes
from fedcore.nets.copies import load
from fedcore.nets.inputs import layer_inputs, linear_layers
from fedcore.nets.tables import reorder
from fedcore.types.federation import Axes, Device, Net, Params, add_prefix, strip_prefix
from fedcore.types.method import Message, Method, Model, RoundInfo, Sent, Stage, StepId, Update, step_word
from fedcore.types.ranges import Amount, Share

__all__ = ["pleas", "regmean"]

Grams: TypeAlias = dict[str, Tensor]
"""layer -> the sum of a a' over a device's examples, (D + 1, D + 1) float64."""

GRAM = "gram/"
"""Prefix of the entries of an update of RegMean that hold the upper triangles of its Gram matrices, by layer."""

OUTPUTS, GOAL = "outputs", "goal/"
"""The entry of an update with the sums of a layer's outputs, (3, m), see `closed.output_sums`; prefix of the entries of
the server's memory with the sums that the merged net's layers are to have."""

SUM, CROSS = "gram", "cross"
"""Entries of an update of PLeaS: the upper triangle of sum a a', and sum a z' (D + 1, m), float32."""

ORDER, MERGED = "order/", "merged/"
"""Prefixes of entries of PLeaS: of a message, the device's unit in each place of the common order, by label, (n,)
int64; of a device's memory, the merged net's layers."""


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
) -> Sent:  # fmt: skip
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
    return params, Update(extra={OUTPUTS: sums}, size=len(data))


@step_word("rescale")
def repair_layer(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, layers: Sequence[str]
) -> Sent:
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


@training_defaults(shared_init=True)
def pleas(
    *, nets: Mapping[str, Net], training: Training, align: Literal["none", "exact"] = "none", damping: Amount = 1e-3
) -> Method:
    """PLeaS (Nasery et al. 2025): nets are merged layer by layer, by permutations and least squares.

    Args:
        align: "exact" first brings every model's units into the order of those of the device with the most examples,
            which models that do not start from a common one need; "none" leaves them, and no model is ever sent.
        damping: lambda relative to the mean of the diagonal, from 0.

    Raises:
        InputError: for models that neither start from a common one nor are aligned.
    """
    net = require_equal(nets)
    if align == "none":
        require_shared_init("pleas", training.shared_init, "merges models unit by unit", "pleas.align: exact")
    layers, axes = closed.plain_layers(net, "pleas"), common_axes(nets) if align == "exact" else None
    matching = (Stage(offer_model, partial(match, axes=axes)),) if axes is not None else ()
    combine = partial(solve_layer, net=net, layers=layers, damping=damping)
    fit = Stage(partial(send_sums, layers=layers, axes=axes), combine, len(layers))
    stages = (Stage(partial(train, training=training), None), *matching, fit)
    begin = partial(initial_messages, shared_init=training.shared_init)
    return Method(begin, stages, partial(deploy_merged, layers=layers))


@step_word("upload", trains=False)
def offer_model(memory: Params, message: Message, device: Device, step_id: StepId) -> tuple[Params, Update]:
    """Send the model; the device keeps it."""
    return memory, Update(own_params(memory), size=len(device.data.train))


def match(server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, axes: Axes) -> Sent:
    """Send each device the order of its units."""
    require_everyone(updates, round_info.names, "pleas", closed.EVERYONE)
    models = {name: update.params for name, update in updates.items()}
    reference = max(models, key=lambda name: updates[name].size)
    orders = {name: orders_of(model, models[reference], axes) for name, model in models.items()}
    return server, {name: Message(extra=add_prefix(ORDER, order)) for name, order in orders.items()}


def orders_of(model: Params, target: Params, axes: Axes) -> dict[str, Tensor]:
    """Return label -> the model's unit that takes the place of each unit of the target, (n,) int64."""
    return {label: plan.plan.argmax(0) for label, plan in align_units(model, target, axes, ONE_TO_ONE)[1].items()}


@step_word("sum")
def send_sums(
    memory: Params, message: Message, device: Device, step_id: StepId, *, layers: Sequence[str], axes: Axes | None
) -> tuple[Params, Update]:
    """Send the sums of a layer. The device remembers its model, in the common order, and the layers merged so far."""
    orders = strip_prefix(ORDER, message.extra)
    model = reorder(own_params(memory), orders, axes) if orders and axes is not None else own_params(memory)
    merged = merged_layers(memory, message)
    layer, data = layers[step_id.round], device.data.train
    own, so_far = (load(device.net, params).eval() for params in (model, {**model, **merged}))
    weights = closed.matrix(model, layer).double()
    outputs, size = weights.shape
    gram, cross = torch.zeros(size, size, dtype=torch.float64), torch.zeros(size, outputs, dtype=torch.float64)
    for part in closed.batches(model, len(data)):
        a, inputs = (rows_of(module, layer, data.inputs(part)) for module in (so_far, own))
        gram += a.T @ a
        cross += a.T @ (inputs @ weights.T)
    sent = {SUM: closed.triangle(gram).float(), CROSS: cross.float()}
    return model | add_prefix(MERGED, merged), Update(extra=sent, size=len(data))


def rows_of(module: torch.nn.Module, layer: str, x: Tensor) -> Tensor:
    """Return the rows a = (input, 1) of a layer, (R, D + 1) float64."""
    rows: dict[str, Tensor] = {}
    layer_inputs(module, x, rows.__setitem__)
    if layer not in rows:
        raise InputError(f"pleas merges every layer, but the net's forward never calls {layer!r}; leave that layer out")
    return closed.append_one(rows[layer]).double()


def solve_layer(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, net: Net, layers: Sequence[str],
    damping: float,
) -> Sent:  # fmt: skip
    """Send everyone the layer that fits the sums of all devices."""
    require_everyone(updates, round_info.names, "pleas", closed.EVERYONE)
    layer, like = layers[round_info.round], {name: torch.empty(shape) for name, shape in shapes(net).items()}
    outputs, inputs = len(like[f"{layer}.bias"]), like[f"{layer}.weight"][0].numel() + 1
    gram = closed.sum_over(updates, SUM, (inputs * (inputs + 1) // 2,))
    cross = closed.sum_over(updates, CROSS, (inputs, outputs))
    solution = closed.ridge(closed.from_triangle(gram, inputs), cross, damping)
    if solution is None:
        raise InputError(
            f"pleas.damping = {damping}: the inputs of layer {layer} do not determine its weights; set more"
        )
    sent = add_prefix(MERGED, closed.to_layer(solution.T, like, layer))
    return server, to_everyone(round_info.names, Message(extra=sent))


def merged_layers(memory: Params, message: Message) -> Params:
    """Return the parameters of the merged net that the device has."""
    return strip_prefix(MERGED, {**memory, **message.extra})


def deploy_merged(memory: Params, message: Message, *, layers: Sequence[str]) -> Model:
    """Run the merged net; before it is whole the device's own model, or the initial one."""
    merged = merged_layers(memory, message)
    return Model((merged if f"{layers[-1]}.bias" in merged else own_params(memory) or message.params,))
