"""What a model says of examples: logits, features, and how many of its classes are right."""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from fedcore.data.task import label_kind_of
from fedcore.nets import key
from fedcore.nets.copies import load_to_evaluate
from fedcore.nets.inputs import forward_features, require_features, takes_channels_last, takes_integers
from fedcore.nets.mlp import MLP
from fedcore.nets.parts import require_last_layer
from fedcore.types.federation import Data, Net, Params

SCORING_BATCH = 1024
"""Examples per batch of predictions; bounds memory."""

IMAGE_BATCH = 32
"""The same for convolutional nets, whose activations should fit into the cache and stay below 32 MB, above which each
allocation is fresh memory: McMahan's CNN takes three fifths of the time of 1024, ResNet-20 a third."""

TOGETHER = 256
"""Smaller batches of several devices' examples are filled up to it; those of convolutional nets to IMAGE_BATCH."""

WORTH = 16
"""The fewest smaller batches for which that is tried, which takes some six passes for each size of them."""


def predict(params: Params, net: Net, x: Tensor, batch: int = SCORING_BATCH) -> Tensor:
    """Return the logits (N, K) of examples (N, *shape), float32 or uint8, in evaluation mode.

    batch: examples at a time; at most IMAGE_BATCH for a convolutional net.
    """
    return predict_all(params, net, [x], batch)[0]


def predict_all(params: Params, net: Net, parts: Sequence[Tensor], batch: int) -> list[Tensor]:
    """Return what `predict` does for each part of some examples, which may be none.

    Batches smaller than TOGETHER are filled up with those of other parts, where each gets the bits that it gets alone.
    """
    if net.content and len(parts) > 1:  # a module of a user's own, which may change as it predicts
        return [predict(params, net, x, batch) for x in parts]
    module = load_to_evaluate(net, params)
    if takes_channels_last(module):
        module.to(memory_format=torch.channels_last)
    if any(tensor.dim() > 2 for tensor in params.values()):
        batch = min(batch, IMAGE_BATCH)
    batches = [torch.split(x, batch) for x in parts]
    every = [rows for part in batches for rows in part]
    size = min(batch, TOGETHER)
    few = [number for number, rows in enumerate(every) if len(rows) < size] if is_own(module) else []
    if len(few) >= WORTH:
        alike = {count: _alike(module, key(net), every[few[0]], size, count) for count in {len(every[i]) for i in few}}
        few = [number for number in few if alike[len(every[number])]]
    with torch.no_grad():
        answers = _answers(module, every) if len(few) < WORTH else _together(module, every, {*few}, size)
        return [torch.cat([next(answers) for _ in part]) for part in batches]


def features(params: Params, net: Net, x: Tensor) -> Tensor:
    """Return the input of the last layer, (N, d), of examples (N, *shape), float32 or uint8, in evaluation mode.

    Raises InputError if the net does not call its last layer as a module.
    """
    require_last_layer(net)
    module = load_to_evaluate(net, params)
    with torch.no_grad():
        batches = map(as_inputs, torch.split(x, IMAGE_BATCH))
        return torch.cat([require_features(*forward_features(module, rows))[0] for rows in batches]).float()


def is_own(module: nn.Module) -> bool:
    """Tell whether a net is fedcore's own and looks no numbers up: no example's answer depends on the others."""
    return type(module).__module__.startswith("fedcore.") and not takes_integers(module)


def _answers(module: nn.Module, batches: Iterable[Tensor]) -> Iterator[Tensor]:
    unchanged = type(module) is MLP
    return (module(as_inputs(rows, unchanged)).float() for rows in batches)


def _together(module: nn.Module, batches: Sequence[Tensor], few: Collection[int], size: int) -> Iterator[Tensor]:
    """Return the answers of each batch, those of the `few` from batches of that size."""
    shared: dict[int, Tensor] = {}
    waiting: list[int] = []
    for number in [*sorted(few), None]:
        if waiting and (number is None or sum(len(batches[i]) for i in (*waiting, number)) > size):
            counts = [len(batches[i]) for i in waiting]
            answers = module(_filled([batches[i] for i in waiting], size)).float()
            shared |= zip(waiting, torch.split(answers[: sum(counts)], counts), strict=True)
            waiting = []
        waiting += [] if number is None else [number]
    others = _answers(module, [rows for number, rows in enumerate(batches) if number not in shared])
    return (shared[number] if number in shared else next(others) for number in range(len(batches)))


def _filled(batches: Sequence[Tensor], size: int) -> Tensor:
    rows = as_inputs(torch.cat([*batches]))
    return torch.cat([rows, rows.new_zeros(size - len(rows), *rows.shape[1:])])


_ALIKE: dict[tuple[object, ...], bool] = {}


def _alike(module: nn.Module, of: bytes, like: Tensor, size: int, count: int) -> bool:
    """Tell whether so many examples get the same bits alone and anywhere in a batch; tried once in a process.

    Of a few inputs one row in a hundred has others, so that three batches are tried in all their places.
    """
    cache_key = (of, like.shape[1:], like.device, torch.get_num_threads(), size, count)
    if cache_key not in _ALIKE:
        draws = torch.Generator().manual_seed(0)
        tried = (torch.randn(size, *like.shape[1:], generator=draws, device="cpu").to(like.device) for _ in range(3))
        with torch.no_grad():
            _ALIKE[cache_key] = all(
                torch.equal(module(x[first : first + count].clone()), whole[first : first + count])
                for x, whole in ((x, module(x.clone())) for x in tried)
                for first in (*range(0, size - count, count), size - count)
            )
    return _ALIKE[cache_key]


def as_inputs(rows: Tensor, unchanged: bool = False) -> Tensor:
    """Return a batch of examples, float32, which a module may change in place unless it is known not to."""
    return rows.float().div_(255) if rows.dtype == torch.uint8 else rows if unchanged else rows.clone()


def accuracy(params: Params, net: Net, data: Data) -> float:
    """Return the fraction of examples that the model classifies correctly, nan without examples.

    Where labels are no classes it is the score of their kind, in [0, 1] (:class:`fedcore.data.task.LabelKind`).
    """
    if len(data) == 0:
        return math.nan
    return label_kind_of(data.y).score(predict(params, net, data.x), data.y)
