"""The parts of a net in forward order: the stem (operator o_0), cell1, ..., cellM (o_1, ..., o_M), head.

A device at depth m shares the stem and m cells; the other parts are personal (FedASA, Deng et al. 2024, Section III).
"""

from collections.abc import Callable, Collection
from itertools import takewhile

from torch import Tensor, nn

from fedcore.errors import InputError
from fedcore.nets.copies import template
from fedcore.nets.mlp import MLP
from fedcore.nets.params import shapes
from fedcore.types.federation import Net


def parts(net: Net) -> dict[str, tuple[str, ...]]:
    """Return part -> the names of its tensors: stem, cell1, ..., head; of other nets the blocks on top, e.g. fc1, fc2.

    A part's name is the prefix of its tensors' names, without the prefix that all names have in common.
    """
    paths = [name.split(".")[:-1] for name in shapes(net)]
    above = len([*takewhile(lambda steps: len({*steps}) == 1, zip(*paths, strict=False))])
    return _group_names(net, lambda name: ".".join(name.split(".")[:-1][: above + 1]))


def layers(net: Net) -> dict[str, tuple[str, ...]]:
    """Return layer -> the names of its tensors, at any depth: stem.conv1, ..., head.fc2. The last one classifies.

    Raises InputError for a net of one's own where another one does.
    """
    require_last_layer(net)
    return _group_names(net, lambda name: name.rpartition(".")[0])


def require_last_layer(net: Net) -> None:
    """Refuse a net of one's own whose last layer, in the order of their names, is not the one that classifies."""
    if net.misplaced:
        raise InputError(net.misplaced)


def _group_names(net: Net, group: Callable[[str], str]) -> dict[str, tuple[str, ...]]:
    """Group the names of tensors; a group without a matrix (a norm) joins the one before it."""
    shapes_of = shapes(net)
    groups: dict[str, list[str]] = {}
    for key in shapes_of:
        groups.setdefault(group(key), []).append(key)
    joined: dict[str, tuple[str, ...]] = {}
    for name, keys in groups.items():
        alone = not joined or any(len(shapes_of[key]) > 1 for key in keys)
        target = name if alone else [*joined][-1]
        joined[target] = (*joined.get(target, ()), *keys)
    return joined


def max_depth(net: Net) -> int:
    """Return M, the number of cells: parts between the first, which is the stem, and the last, which is the head."""
    return len(parts(net)) - 2


def names_up_to(net: Net, depth: int) -> tuple[str, ...]:
    """Return the names of the tensors of the stem and of the first `depth` cells."""
    return tuple(name for part in [*parts(net).values()][: depth + 1] for name in part)


def depth_of(net: Net, names: Collection[str]) -> int:
    """Return the greatest depth whose tensors are all among `names`; -1 without the whole stem."""
    whole = [set(part) <= set(names) for part in parts(net).values()][:-1]
    return [*whole, False].index(False) - 1


def features(net: Net, module: nn.Module, x: Tensor) -> list[Tensor]:
    """Return g^0(x), ..., g^M(x), the outputs of the stem and of each cell: inputs (B, *shape) -> (B, ...) each."""
    if isinstance(module, MLP):
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
    if type(template(net)).forward not in (nn.Sequential.forward, MLP.forward) or max_depth(net) < 0:
        needs = "a net that is a sequence of at least two layers, such as cells"
        raise InputError(f"net.name: aligning cells needs {needs}")
