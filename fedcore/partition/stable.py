"""A key of each example that depends on nothing but the example, and numbers drawn by it.

What is held out by such a number stays held out when examples are added, files are reordered or a device joins.
"""

from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from fedcore.data import Dataset, schema_of
from fedcore.data.prepare import undo_channels
from fedcore.data.schema import Fit

Keys = NDArray[np.uint64]
HoldOut: TypeAlias = Literal["random", "stable", "stable_each"]
"""What decides which examples are held out, see :func:`fedcore.partition.partition`."""


def row_keys(dataset: Dataset, name: Callable[[str], str] = str, each: bool = False) -> Keys:
    """Return a key of each example, (N,): of its id if the dataset has ids, else of its content, label and device.

    Equal examples have equal keys. The content of a row of a table is that of the columns of `Schema.keyed`, by
    name: a number, or a text as itself, so that a new category changes no other row's key. Numbers count as float32,
    as in earlier versions. Names are those of `dataset.earlier` where it has them. name: what stands for a name. each:
    whether the second of equal examples, the third, ... have keys of their own, if the dataset has no ids.
    """
    if dataset.ids is not None:
        return np.array([_hash(name(word).encode()) for word in dataset.ids], dtype=np.uint64)
    y, earlier, schema = dataset.train.y, dict(dataset.earlier), schema_of(dataset)
    y = y.float() + 0.0 if y.is_floating_point() else y  # no -0
    labels = [dataset.classes[k] if dataset.task.has_classes else str(k) for k in y.tolist()]
    devices = earlier.get(schema.device or "", dataset.device or [""] * len(labels))
    heads = zip(earlier.get(schema.label or "", labels), devices, strict=True)
    rows = _contents(dataset, name)
    keys = np.array(
        [_hash("\x1f".join(map(name, head)).encode() + row.tobytes()) for head, row in zip(heads, rows, strict=True)],
        dtype=np.uint64,
    )
    if each:
        order = np.argsort(keys, kind="stable")
        before = np.arange(len(keys)) - np.searchsorted(keys[order], keys[order])  # equal ones that come first
        for place in np.flatnonzero(before):
            keys[order[place]] = _hash(keys[order[place]].tobytes() + before[place].tobytes())
    return keys


def contradicted(dataset: Dataset) -> NDArray[np.bool_]:
    """Tell which examples have the content and the device of one with another label, (N,)."""
    schema, data = schema_of(dataset), dataset.train
    names = tuple(pair for pair in dataset.earlier if pair[0] != schema.label)
    blank = replace(dataset, train=replace(data, y=torch.zeros(len(data), dtype=torch.int64)), earlier=names, ids=None)
    content = np.unique(row_keys(blank), return_inverse=True)[1]
    labels = np.unique(np.stack([content, dataset.strata]), axis=1)[0]
    several: NDArray[np.bool_] = np.bincount(labels)[content] > 1
    return several


def uniform(keys: Keys, *parts: object) -> NDArray[np.float64]:
    """Return a number in [0, 1) of each key, (N,), by the key and some words alone, e.g. (seed, "split")."""
    salt = "\x1f".join(map(str, parts)).encode()
    return np.array([_hash(salt + key.tobytes()) >> 11 for key in keys], dtype=np.float64) / 2**53


def _contents(dataset: Dataset, name: Callable[[str], str]) -> NDArray[np.generic]:
    """Return the content of each example, (N, ...)."""
    x, schema = dataset.train.x.numpy(), dataset.schema
    if schema is None or not schema.columns:
        if schema is not None and schema.channels != Fit():  # its moments are others when pictures are added
            return (undo_channels(dataset.train.x, schema.channels) * 255).round().byte().numpy()
        return x if x.dtype == np.uint8 else x.astype(np.float32) + np.float32(0.0)  # no -0
    parts, earlier = {}, dict(dataset.earlier)
    for column, inputs in schema.by_column(x):
        if column.name in earlier:
            words = earlier[column.name]
            parts[column.name] = np.array([_hash(name(word).encode()) for word in words], dtype=np.uint64)
        elif column.kind == "text":
            codes = np.array([_hash(name(word).encode()) for word in ("", *column.categories)], dtype=np.uint64)
            parts[column.name] = codes[np.where(inputs.any(axis=1), inputs.argmax(axis=1) + 1, 0)]
        else:
            value = inputs[:, 0].astype(np.float32).astype(np.float64) + 0.0  # no -0
            parts[column.name] = np.where(np.isnan(value), np.nan, value).view(np.uint64)
    return np.stack([parts[name] for name in sorted(column.name for column in schema.keyed)], axis=1)


def _hash(content: bytes) -> int:
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "little")
