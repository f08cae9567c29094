"""Boosted trees as a net: the bytes of an xgboost model in one tensor, which nobody has to trust as a pickle.

The bytes are xgboost's binary JSON, equal for any number of threads. Their number is the net's shape, so that each
model runs on a net of its own.
"""

from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from fedcore.errors import Diverged, require_extra
from fedcore.types.federation import Net

TREES = "trees"
"""The tensor that holds the bytes, (n,) uint8; without trees it is empty."""


def xgboost() -> Any:
    """Return the library; raises InputError where it is not installed."""
    require_extra("trees")
    return import_module("xgboost")


def load_trees(trees: Tensor) -> Any:
    """Return the xgboost model of some bytes, binary JSON or JSON."""
    booster = xgboost().Booster({"nthread": torch.get_num_threads()})
    booster.load_model(bytearray(trees.cpu().numpy().tobytes()))
    return booster


def save_trees(booster: Any) -> Tensor:
    """Return the bytes of an xgboost model, (n,) uint8."""
    return torch.frombuffer(booster.save_raw("ubj"), dtype=torch.uint8).clone()


def to_rows(x: Tensor, *labels: Any, **options: Any) -> Any:
    """Return examples (N, *shape) as xgboost takes them, which refuses infinite numbers; as nets' training does."""
    if x.isinf().any():
        raise Diverged("trees: x has numbers that float32 does not hold once they are scaled; leave their rows out")
    return xgboost().DMatrix(x.flatten(1).cpu().numpy(), *labels, **options)


class Trees(nn.Module):
    """Sums of trees: x (B, *shape) -> (B, outputs): logits, or numbers; zeros without trees.

    Args:
        size: bytes of the model.
        outputs: classes, labels, or 1 for a number. Of two classes the trees have one sum, the second one's logit.
    """

    def __init__(self, size: int, outputs: int) -> None:
        super().__init__()
        self.register_buffer(TREES, torch.zeros(size, dtype=torch.uint8))
        self.outputs = outputs
        self._booster: Any = None

    def forward(self, x: Tensor) -> Tensor:
        trees = self.get_buffer(TREES)
        if not trees.any():
            return x.new_zeros(len(x), self.outputs)
        if self._booster is None:
            self._booster = load_trees(trees)
        sums = torch.from_numpy(self._booster.predict(to_rows(x), output_margin=True)).to(x).view(len(x), -1)
        return sums if sums.shape[1] == self.outputs else torch.cat([torch.zeros_like(sums), sums], 1)


def net(size: int, outputs: int) -> Net:
    """Return the net of a model of so many bytes."""
    return Net(partial(Trees, size, outputs))
