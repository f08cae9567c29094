"""Nets whose first parts are shared and whose other parts are personal (FedASA, Deng et al. 2024, Section III; FedPer).

Parts are in forward order: the stem (operator o_0), cell1, ..., cellM (o_1, ..., o_M), head. A device at depth m shares
the stem and m cells; the other parts are personal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from itertools import takewhile
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from fedcore import nets
from fedcore.local import (
    IMAGE_BATCH,
    MOMENTS,
    WHOLE,
    FlatNet,
    ManualGradients,
    Pieces,
    Training,
    fit,
    flatten_net,
    load,
    starting_params,
)
from fedcore.messages import to_everyone
from fedcore.mixing import mean_of_users
from fedcore.robust import MEAN, Mixing
from fedcore.types import Data, Device, InputError, Message, Model, Net, Params, Report, StepId, Turn, Update

Distance: TypeAlias = Literal["printed", "unit_norm"]
"""How features are compared in (8): as they are, or each example's scaled to norm 1."""

FIGURES = ("fedcore.cells.figures:alignment",)


def parts(net: Net) -> dict[str, tuple[str, ...]]:
    """Return part -> its leaves: stem, cell1, ..., head; of other nets the layers or blocks on top, e.g. fc1, fc2.

    A part's name is the prefix of its leaves' names, without the prefix that all leaves have in common.
    """
    paths = [leaf.split(".")[:-1] for leaf in nets.shapes(net)]
    above = len([*takewhile(lambda steps: len({*steps}) == 1, zip(*paths, strict=False))])
    return _group_leaves(net, lambda leaf: ".".join(leaf.split(".")[:-1][: above + 1]))


def layers(net: Net) -> dict[str, tuple[str, ...]]:
    """Return layer -> its leaves, at any depth of nesting: stem.conv1, ..., head.fc2. The last one classifies."""
    return _group_leaves(net, lambda leaf: leaf.rpartition(".")[0])


def _group_leaves(net: Net, group: Callable[[str], str]) -> dict[str, tuple[str, ...]]:
    """Group leaves by name; a group without a matrix (a norm) joins the one before it."""
    shapes = nets.shapes(net)
    groups: dict[str, list[str]] = {}
    for leaf in shapes:
        groups.setdefault(group(leaf), []).append(leaf)
    joined: dict[str, tuple[str, ...]] = {}
    for name, leaves in groups.items():
        alone = not joined or any(len(shapes[leaf]) > 1 for leaf in leaves)
        place = name if alone else [*joined][-1]
        joined[place] = (*joined.get(place, ()), *leaves)
    return joined


def max_depth(net: Net) -> int:
    """Return M, the number of cells: parts between the first, which is the stem, and the last, which is the head."""
    return len(parts(net)) - 2


def leaves_up_to(net: Net, depth: int) -> tuple[str, ...]:
    """Return the leaves of the stem and of the first `depth` cells."""
    return tuple(leaf for part in [*parts(net).values()][: depth + 1] for leaf in part)


def depth_of(net: Net, leaves: Collection[str]) -> int:
    """Return the greatest depth whose leaves are all among `leaves`; -1 without the whole stem."""
    whole = [set(part) <= set(leaves) for part in parts(net).values()][:-1]
    return [*whole, False].index(False) - 1


def train_shared(
    memory: Params,
    message: Message,
    device: Device,
    step_id: StepId,
    *,
    shared: Collection[str],
    training: Training,
    personal_lr: float | None,
) -> tuple[Params, Update]:
    r"""Train shared theta and personal phi together; send theta (Algorithm 1, lines 21-24).

    theta <- theta - eta_g grad L,  phi <- phi - eta_h grad L   (13)

    shared: the leaves of theta, the net's first ones. eta_g is training's rate, eta_h personal_lr (None: the same).
    Leaves of the message replace those in memory, which is the device's whole model after its last training.
    """
    flat = flatten_net(device.net, starting_params({}, Message({**memory, **message.params}), device, step_id))
    moments = fit(flat, device, step_id, training, memory, pieces=cut_pieces(flat, shared, training.lr, personal_lr))
    params = flat.params()
    sent = {leaf: x for leaf, x in params.items() if leaf in shared}
    return params | moments, Update(sent, size=len(device.data.train))


def cut_pieces(flat: FlatNet, shared: Collection[str], lr: float, personal_lr: float | None) -> Pieces:
    """Cut the vector at the first personal leaf."""
    personal = [leaf.storage_offset() for name, leaf in flat.leaves.items() if name not in shared]
    if personal_lr is None or personal_lr == lr or not personal:
        return WHOLE
    return ((slice(None, personal[0]), 1.0), (slice(personal[0], None), personal_lr / lr))


def merge_models(memory: Params, message: Message) -> Model:
    """Run the leaves of the message, and the device's own where it has none."""
    model = {leaf: x for leaf, x in memory.items() if not leaf.startswith(MOMENTS)}
    return Model((model | message.params,))


def average(
    server: Params, updates: Mapping[str, Update], turn: Turn, *, mixing: Mixing = MEAN
) -> tuple[Params, Mapping[str, Message]]:
    """Send every device the mean of the updates, weighted by examples, or what stands in its place."""
    return server, to_everyone(turn.names, Message(hyper_model(updates, mixing)))


def exchange(
    server: Params, updates: Mapping[str, Update], turn: Turn, *, mixing: Mixing = MEAN
) -> tuple[Params, Mapping[str, Message]]:
    """Aggregate cell by cell (9) and send each device what it shares (sampling)."""
    return server, sample_submodels(hyper_model(updates, mixing), updates)


def hyper_model(updates: Mapping[str, Update], mixing: Mixing = MEAN) -> Params:
    """Return all leaves of the updates, aggregated (9), each over the devices that sent it."""
    sizes = {name: update.size for name, update in updates.items()}
    return mean_of_users({name: update.params for name, update in updates.items()}, sizes, mixing)


def sample_submodels(hyper: Params, updates: Mapping[str, Update]) -> dict[str, Message]:
    """Return for each device those leaves of the hyper-model that it used; equal messages are one."""
    used = {name: tuple(update.params) for name, update in updates.items()}
    drawn = {leaves: Message({leaf: hyper[leaf] for leaf in leaves}) for leaves in used.values()}
    return {name: drawn[leaves] for name, leaves in used.items()}


def features(net: Net, module: nn.Module, x: Tensor) -> list[Tensor]:
    """Return g^0(x), ..., g^M(x), the outputs of the stem and of each cell: inputs (B, *shape) -> (B, ...) each."""
    if isinstance(module, ManualGradients):
        return module.activations(dict(module.named_parameters()), x)[1:-1]
    found: list[Tensor] = []
    starts = [*parts(net)][1:]
    for name, child in module.named_children():
        if name in starts:
            found.append(x)
        if name == starts[-1]:
            break
        x = child(x)
    return found


def require_comparable(net: Net) -> None:
    """Refuse a net whose features cannot be computed part by part."""
    with nets.use_generator(torch.Generator()):
        module = net.build()
    if not isinstance(module, nn.Sequential | ManualGradients) or max_depth(net) < 0:
        raise InputError(
            "net.name: aligning cells needs a net that is a sequence of at least two layers, such as cells"
        )


def distances(
    net: Net, models: Mapping[str, Params], auxiliary: tuple[Net, Params], cell: int, data: Data, distance: Distance
) -> dict[str, Tensor]:
    r"""Return device -> d (M_k + 1,) float64, how far each of its cells is from the auxiliary model's cell l.

    d_m = E_x ||g_aux^l(x) - g_k^m(x)||^2   (8), m = 0, ..., M_k

    models: leaves up to depth M_k. data: D_aux. A cell whose features have another shape is infinitely far.
    """
    blank = {leaf: torch.zeros(shape) for leaf, shape in nets.shapes(net).items()}
    modules = {name: load(net, blank | params).eval() for name, params in models.items()}
    found = {name: torch.zeros(depth_of(net, params) + 1).double() for name, params in models.items()}
    aim = load(auxiliary[0], auxiliary[1]).eval()
    with torch.no_grad():
        for start in range(0, len(data), IMAGE_BATCH):
            x = data.inputs(slice(start, start + IMAGE_BATCH))
            wanted = _scale(features(auxiliary[0], aim, x)[cell], distance)
            for name, module in modules.items():
                for m, feature in enumerate(features(net, module, x)[: len(found[name])]):
                    if feature[0].numel() == wanted[0].numel():
                        found[name][m] += (wanted - _scale(feature, distance)).square().sum().double() / len(data)
                    else:
                        found[name][m] = torch.inf
    return found


def report(depths: Mapping[str, int], apart: Mapping[str, Tensor]) -> Report:
    """Report the depth chosen for each device, and the distance of each cell.

    Topic "alignment": depth, and distance_0, distance_1, ... without infinite ones. Matrix "distance/<device>"
    (M_k + 1,): all of them, see `distances`.
    """
    finite = {
        name: {f"distance_{m}": x for m, x in enumerate(d.tolist()) if math.isfinite(x)} for name, d in apart.items()
    }
    devices = {name: {"depth": float(depth), **finite[name]} for name, depth in depths.items()}
    return Report(devices={"alignment": devices}, matrices={f"distance/{name}": d for name, d in apart.items()})


def _scale(feature: Tensor, distance: Distance) -> Tensor:
    flat = feature.flatten(1)
    return flat if distance == "printed" else nn.functional.normalize(flat)
