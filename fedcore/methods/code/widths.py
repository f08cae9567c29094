"""Nets of different widths: how they are combined, and how the result is fitted to each.

Aligning needs nets of the same depth, of any widths (CODE, Remark 3); averaging needs equal ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fedcore.errors import InputError
from fedcore.methods.code.fusion import align
from fedcore.methods.code.transport import Transport
from fedcore.nets import key
from fedcore.types.federation import Axes, Net, Params
from fedcore.types.method import Message


def common_axes(nets: Mapping[str, Net]) -> Axes:
    """Return the axes table that all nets share; raises InputError if one has none or a different one."""
    tables = [net.table for net in nets.values()]
    if any(other != tables[0] for other in tables):
        raise InputError(
            "net.variants: nets of unequal depth or kind cannot be aligned, they may differ in widths only"
        )
    return tables[0]


def fit_widths(
    fused: Params,
    models: Mapping[str, Params],
    nets: Mapping[str, Net],
    names: Iterable[str],
    axes: Axes,
    transport: Transport,
) -> dict[str, Message]:
    """Return each device's message: the fused model in the shapes of its own net.

    models: the devices' models, the best last. If a net has other shapes than the fused model, the fused model is
    aligned to the best model of that net, once for all devices that have it. The paper, which allows different widths,
    does not say what such devices receive.
    """
    best = {key(nets[name]): model for name, model in models.items()}
    sent = {kind: Message(_fit(fused, model, axes, transport)) for kind, model in best.items()}
    return {name: sent[key(nets[name])] for name in names}


def _fit(fused: Params, model: Params, axes: Axes, transport: Transport) -> Params:
    if all(tensor.shape == model[name].shape for name, tensor in fused.items()):
        return fused
    return align(fused, model, axes, transport)[0]
