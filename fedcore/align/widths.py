"""Nets that differ from device to device: what can be combined nevertheless, and how a result gets back into each.

Aligning needs nets of the same depth, of any widths (CODE, Remark 3); averaging leaf by leaf needs equal ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fedcore.align.fusion import Options, align
from fedcore.nets import key
from fedcore.types import Axes, InputError, Message, Net, Params


def common_axes(nets: Mapping[str, Net]) -> Axes:
    """Return the axes table that all nets share; raises InputError where one has none, or another."""
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
    options: Options,
) -> dict[str, Message]:
    """Return what to send each device: the fused model in the shapes of its own net.

    models: what was sent, the best last. Where a net has other shapes than the fused model, the fused model is aligned
    to the best model of that net, once for all devices that have it: the reverse of the step that brought the smaller
    or larger ones in. The paper, which lets widths differ, does not say what they get back.
    """
    best = {key(nets[name]): model for name, model in models.items()}
    sent = {kind: Message(_fit(fused, model, axes, options)) for kind, model in best.items()}
    return {name: sent[key(nets[name])] for name in names}


def _fit(fused: Params, model: Params, axes: Axes, options: Options) -> Params:
    if all(leaf.shape == model[name].shape for name, leaf in fused.items()):
        return fused
    return align(fused, model, axes, **options)[0]
