"""How far a device's cells are from the auxiliary model's, and what is reported of it (FedASA, Section III-B)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from fedcore import nets
from fedcore.core.prediction import IMAGE_BATCH
from fedcore.nets.copies import load
from fedcore.nets.parts import depth_of, features
from fedcore.types.federation import Data, Net, Params
from fedcore.types.method import Report

Distance: TypeAlias = Literal["printed", "unit_norm"]
"""How features are compared in (8): as they are, or each example's scaled to norm 1."""

FIGURES = ("fedcore.report.figures.fedasa:alignment",)


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
