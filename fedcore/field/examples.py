"""A device's examples as one file, which it alone reads: tensors as plain bytes, see :mod:`fedcore.field.wire`."""

from __future__ import annotations

from pathlib import Path

import torch

from fedcore.field.wire import pack, unpack, write_file
from fedcore.types import Data, InputError, Splits

PARTS = ("train", "val", "test", "unlabelled")


def write_examples(path: str | Path, data: Splits) -> None:
    """Write a device's splits, for the file's owner only."""
    content = pack({}, {part: {"x": of.x, "y": of.y} for part in PARTS for of in [getattr(data, part)]})
    write_file(Path(path), content)


def read_examples(path: Path) -> Splits:
    """Read what `write_examples` wrote. Raises InputError for another file, or numbers that are no examples."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    _, tensors = unpack(content, str(path))
    if tensors.keys() != {*PARTS} or any(part.keys() != {"x", "y"} for part in tensors.values()):
        raise InputError(f"{path}: holds no examples")
    parts = {}
    for name, part in tensors.items():
        x, y = part["x"], part["y"]
        if y.is_floating_point():
            raise InputError(f"{path}: {name} has numbers as labels; in the field labels are classes")
        if y.ndim != 1 or x.ndim < 1 or len(x) != len(y) or y.dtype != torch.int64:
            raise InputError(f"{path}: {name} has inputs {tuple(x.shape)} and labels {tuple(y.shape)}")
        if x.is_floating_point() and not bool(torch.isfinite(x).all()):
            raise InputError(f"{path}: {name} has inputs that are not finite")
        if x.is_floating_point() and x.dtype != torch.float32:
            raise InputError(f"{path}: {name} has inputs of {x.dtype}; nets take torch.float32: x.float()")
        if len(y) and int(y.min()) < 0:
            raise InputError(f"{path}: {name} has class {int(y.min())}; classes are numbered from 0")
        parts[name] = Data(x, y)
    return Splits(**parts)
