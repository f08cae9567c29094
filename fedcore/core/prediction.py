"""What a model says of examples: logits, features, and how many of its classes are right."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from fedcore.data.task import label_kind_of
from fedcore.nets.copies import load_to_evaluate
from fedcore.nets.inputs import forward_features, require_features, takes_channels_last
from fedcore.nets.mlp import ManualGradients
from fedcore.nets.parts import require_last_layer
from fedcore.types.federation import Data, Net, Params

SCORING_BATCH = 1024
"""Examples per batch of predictions; bounds memory."""

IMAGE_BATCH = 32
"""The same for convolutional nets, whose activations should fit into the cache and stay below 32 MB, above which each
allocation is fresh memory: McMahan's CNN takes three fifths of the time of 1024, ResNet-20 a third."""


def predict(params: Params, net: Net, x: Tensor, batch: int) -> Tensor:
    """Return the logits (N, K) of examples (N, *shape), float32 or uint8, in evaluation mode.

    batch: examples at a time; at most IMAGE_BATCH for a convolutional net.
    """
    module = load_to_evaluate(net, params)
    if takes_channels_last(module):
        module.to(memory_format=torch.channels_last)
    if any(tensor.dim() > 2 for tensor in params.values()):
        batch = min(batch, IMAGE_BATCH)
    with torch.no_grad():
        return torch.cat([module(rows).float() for rows in _batches(x, batch, isinstance(module, ManualGradients))])


def features(params: Params, net: Net, x: Tensor) -> Tensor:
    """Return the input of the last layer, (N, d), of examples (N, *shape), float32 or uint8, in evaluation mode.

    Raises InputError if the net does not call its last layer as a module.
    """
    require_last_layer(net)
    module = load_to_evaluate(net, params)
    with torch.no_grad():
        features = [require_features(*forward_features(module, rows))[0] for rows in _batches(x, IMAGE_BATCH)]
        return torch.cat(features).float()


def _batches(x: Tensor, size: int, unchanged: bool = False) -> Iterator[Tensor]:
    """Return batches of the examples, float32, which a module may change in place unless it is known not to."""
    for rows in torch.split(x, size):
        yield rows.float().div_(255) if rows.dtype == torch.uint8 else rows if unchanged else rows.clone()


def accuracy(params: Params, net: Net, data: Data) -> float:
    """Return the fraction of examples that the model classifies correctly, nan without examples.

    Where labels are no classes it is the score of their kind, in [0, 1] (:class:`fedcore.data.task.LabelKind`).
    """
    if len(data) == 0:
        return math.nan
    return label_kind_of(data.y).score(predict(params, net, data.x, SCORING_BATCH), data.y)
