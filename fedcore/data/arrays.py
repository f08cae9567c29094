"""Datasets from a user's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fedcore.data import Dataset
from fedcore.types import Data, InputError


def from_arrays(x: ArrayLike, y: ArrayLike, *, device: Sequence[object] | None = None) -> Dataset:
    """Return a dataset of the given examples.

    x: (N, *shape), uint8 (scaled to [0, 1] when used) or other numbers, converted to float32. y: (N,), strings or
    whole numbers; the classes are the sorted distinct values. device: the device that recorded each example, for
    `by_device`.
    Raises InputError if lengths differ, a number is not finite, or a label is missing (nan, None, -1) or is a quantity.
    """
    inputs, labels = np.asarray(x), np.asarray(y)
    if inputs.ndim < 2 or labels.shape != inputs.shape[:1]:
        raise InputError(f"from_arrays: x {inputs.shape} and y {labels.shape} must be (N, *shape) and (N,)")
    if device is not None and len(device) != len(labels):
        raise InputError(f"from_arrays: device names {len(device)} of {len(labels)} examples")
    if inputs.dtype != np.uint8:
        inputs = inputs.astype(np.float32)
        if not np.isfinite(inputs).all():
            raise InputError("from_arrays: x has values that are not finite numbers")
    _require_classes(labels)
    classes, numbers = np.unique(labels, return_inverse=True)
    data = Data(torch.from_numpy(np.ascontiguousarray(inputs)), torch.from_numpy(numbers.astype(np.int64)))
    owners = None if device is None else tuple(map(str, device))
    return Dataset(data, None, tuple(map(str, classes.tolist())), owners)


def _require_classes(labels: NDArray[Any]) -> None:
    """Refuse labels that are missing, or quantities."""
    numeric = labels.dtype.kind in "fiu"
    for number, label in enumerate(labels.tolist()):
        if label is None or label != label or (numeric and label == -1):
            raise InputError(
                f"from_arrays: y[{number}] = {label}: a label is missing; leave the example out, or name it"
            )
        if isinstance(label, float) and not label.is_integer():
            raise InputError(f"from_arrays: y[{number}] = {label}: labels must be classes, whole numbers or strings")
