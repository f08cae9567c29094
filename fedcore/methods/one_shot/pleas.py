r"""Permutations and least squares (Nasery et al. 2025, "PLeaS: Merging Models with Permutations and Least Squares").

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
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from fedcore.builders import training_defaults
from fedcore.core.messages import initial_messages, own_params, require_shared_init, to_everyone
from fedcore.core.secure_sum import require_everyone
from fedcore.core.training import Training, train
from fedcore.errors import InputError
from fedcore.methods.code.fusion import ONE_TO_ONE, align, common_axes
from fedcore.methods.one_shot import closed_form as closed
from fedcore.nets import require_equal, shapes
from fedcore.nets.copies import load
from fedcore.nets.inputs import layer_inputs
from fedcore.nets.tables import reorder
from fedcore.types.federation import Axes, Device, Net, Params, add_prefix, strip_prefix
from fedcore.types.method import Message, Method, Model, RoundInfo, Sent, Stage, StepId, Update, step_word
from fedcore.types.ranges import Amount

GRAM, CROSS = "gram", "cross"
"""Entries of an update: the upper triangle of sum a a', and sum a z' (D + 1, m), float32."""

ORDER, MERGED = "order/", "merged/"
"""Prefixes of entries: of a message, the device's unit in each place of the common order, by label, (n,) int64; of a
device's memory, the merged net's layers."""


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
    orders = {name: align_units(model, models[reference], axes) for name, model in models.items()}
    return server, {name: Message(extra=add_prefix(ORDER, order)) for name, order in orders.items()}


def align_units(model: Params, target: Params, axes: Axes) -> dict[str, Tensor]:
    """Return label -> the model's unit that takes the place of each unit of the target, (n,) int64."""
    return {label: plan.plan.argmax(0) for label, plan in align(model, target, axes, ONE_TO_ONE)[1].items()}


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
        a, inputs = (inputs_of(module, layer, data.inputs(part)) for module in (so_far, own))
        gram += a.T @ a
        cross += a.T @ (inputs @ weights.T)
    return model | add_prefix(MERGED, merged), Update(extra={GRAM: closed.triangle(gram).float(), CROSS: cross.float()})


def inputs_of(module: torch.nn.Module, layer: str, x: Tensor) -> Tensor:
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
    gram = closed.sum_over(updates, GRAM, (inputs * (inputs + 1) // 2,))
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
