"""The parts of a net in forward order: the stem (operator o_0), cell1, ..., cellM (o_1, ..., o_M), head.

A device at depth m shares the stem and m cells; the other parts are personal (FedASA, Deng et al. 2024, Section III).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import takewhile

import torch
from torch import Tensor, nn

from fedcore.nets.leaves import shapes
from fedcore.nets.mlp import ManualGradients
from fedcore.nets.randomness import use_generator
from fedcore.types import InputError, Net


def parts(net: Net) -> dict[str, tuple[str, ...]]:
    """Return part -> its leaves: stem, cell1, ..., head; of other nets the layers or blocks on top, e.g. fc1, fc2.

    A part's name is the prefix of its leaves' names, without the prefix that all leaves have in common.
    """
    paths = [leaf.split(".")[:-1] for leaf in shapes(net)]
    above = len([*takewhile(lambda steps: len({*steps}) == 1, zip(*paths, strict=False))])
    return _group_leaves(net, lambda leaf: ".".join(leaf.split(".")[:-1][: above + 1]))


def layers(net: Net) -> dict[str, tuple[str, ...]]:
    """Return layer -> its leaves, at any depth of nesting: stem.conv1, ..., head.fc2. The last one classifies.

    Raises InputError for a net of one's own where another one does.
    """
    require_last_layer(net)
    return _group_leaves(net, lambda leaf: leaf.rpartition(".")[0])


def require_last_layer(net: Net) -> None:
    """Refuse a net of one's own whose last layer, in the order of their names, is not the one that classifies."""
    if net.misplaced:
        raise InputError(net.misplaced)


def _group_leaves(net: Net, group: Callable[[str], str]) -> dict[str, tuple[str, ...]]:
    """Group leaves by name; a group without a matrix (a norm) joins the one before it."""
    leaf_shapes = shapes(net)
    groups: dict[str, list[str]] = {}
    for leaf in leaf_shapes:
        groups.setdefault(group(leaf), []).append(leaf)
    joined: dict[str, tuple[str, ...]] = {}
    for name, leaves in groups.items():
        alone = not joined or any(len(leaf_shapes[leaf]) > 1 for leaf in leaves)
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


def features(net: Net, module: nn.Module, x: Tensor) -> list[Tensor]:
    """Return g^0(x), ..., g^M(x), the outputs of the stem and of each cell: inputs (B, *shape) -> (B, ...) each."""
    if isinstance(module, ManualGradients):
        return module.activations(dict(module.named_parameters()), x)[1:-1]
    outputs: list[Tensor] = []
    starts = [*parts(net)][1:]
    for name, child in module.named_children():
        if name in starts:
            outputs.append(x)
        if name == starts[-1]:
            break
        x = child(x)
    return outputs


def require_comparable(net: Net) -> None:
    """Refuse a net whose features cannot be computed part by part."""
    with use_generator(torch.Generator()):
        module = net.build()
    if not isinstance(module, nn.Sequential | ManualGradients) or max_depth(net) < 0:
        raise InputError(
            "net.name: aligning cells needs a net that is a sequence of at least two layers, such as cells"
        )
