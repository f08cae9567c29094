"""A device's examples as one file, which it alone reads: tensors as plain bytes, see :mod:`fedcore.field.wire`."""

from pathlib import Path

import torch

from fedcore.data.task import NO_LABEL
from fedcore.errors import InputError
from fedcore.field.wire import pack, unpack, write_file
from fedcore.types.federation import Data, Splits

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
        if y.is_floating_point() and y.ndim == 1:
            raise InputError(
                f"{path}: {name} has numbers as labels, which devices standardise by a study's schema; give a table, "
                "--data rows.csv"
            )
        fits_type = y.dtype == (torch.float32 if y.is_floating_point() else torch.int64)
        if y.ndim not in (1, 2) or x.ndim < 1 or len(x) != len(y) or not fits_type:
            raise InputError(f"{path}: {name} has inputs {tuple(x.shape)} and labels {tuple(y.shape)}")
        if x.is_floating_point() and not bool(torch.isfinite(x).all()):
            raise InputError(f"{path}: {name} has inputs that are not finite")
        if x.is_floating_point() and x.dtype != torch.float32:
            raise InputError(f"{path}: {name} has inputs of {x.dtype}; nets take torch.float32: x.float()")
        if y.is_floating_point():
            if not bool(((y == 0) | (y == 1)).all()):
                raise InputError(f"{path}: {name} has labels that are neither 0 nor 1")
        elif y.numel() and int(y.min()) < (0 if y.ndim == 1 else NO_LABEL):
            raise InputError(f"{path}: {name} has class {int(y.min())}; classes are numbered from 0")
        parts[name] = Data(x, y)
    return Splits(**parts)
