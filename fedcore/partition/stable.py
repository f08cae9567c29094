"""A key of each example that depends on nothing but the example, and numbers drawn by it.

What is held out by such a number stays held out when examples are added, files are reordered or a device joins.
"""

from collections.abc import Callable
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from fedcore.data import Dataset, schema_of

Keys = NDArray[np.uint64]


def row_keys(dataset: Dataset, name: Callable[[str], str] = str) -> Keys:
    """Return a key of each example, (N,): of its id if the dataset has ids, else of its content, label and device.

    Equal examples have equal keys. The content of a row of a table is that of the columns of `Schema.keyed`, by
    name: a number, or a text as itself, so that a new category changes no other row's key. Numbers count as float32,
    as in earlier versions. Names are those of `dataset.earlier` where it has them. name: what stands for a name.
    """
    if dataset.ids is not None:
        return np.array([_hash(name(word).encode()) for word in dataset.ids], dtype=np.uint64)
    y, earlier, schema = dataset.train.y, dict(dataset.earlier), schema_of(dataset)
    y = y.float() if y.is_floating_point() else y
    labels = [dataset.classes[k] if dataset.task.has_classes else str(k) for k in y.tolist()]
    devices = earlier.get(schema.device or "", dataset.device or [""] * len(labels))
    heads = zip(earlier.get(schema.label or "", labels), devices, strict=True)
    rows = _contents(dataset, name)
    return np.array(
        [_hash("\x1f".join(map(name, head)).encode() + row.tobytes()) for head, row in zip(heads, rows, strict=True)],
        dtype=np.uint64,
    )


def uniform(keys: Keys, *parts: object) -> NDArray[np.float64]:
    """Return a number in [0, 1) of each key, (N,), by the key and some words alone, e.g. (seed, "split")."""
    salt = "\x1f".join(map(str, parts)).encode()
    return np.array([_hash(salt + key.tobytes()) >> 11 for key in keys], dtype=np.float64) / 2**53


def _contents(dataset: Dataset, name: Callable[[str], str]) -> NDArray[np.generic]:
    """Return the content of each example, (N, ...)."""
    x, schema = dataset.train.x.numpy(), dataset.schema
    if schema is None or not schema.columns:
        return x if x.dtype == np.uint8 else x.astype(np.float32)
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
