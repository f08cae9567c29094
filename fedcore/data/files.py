"""Files of published datasets below a data folder: download, reading and one-line errors that name the file.

A file's name is its path below the folder, e.g. "MNIST/raw/train-labels-idx1-ubyte".

The idx format: two zero bytes, a type (8: uint8, 12: int32), the number of dimensions, each dimension (uint32), the
values; everything big-endian.
"""

import gzip
import math
import os
import struct
import zlib
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from http.client import HTTPException
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedcore.errors import InputError, message_of
from fedcore.types.federation import Data

ROOT = os.environ.get("FEDCORE_DATA", "datasets")
"""Default folder of published datasets."""

KINDS = {8: "bytes", 12: "int32"}

LARGEST = 1 << 30
"""The most bytes of values that an idx file may have; the largest published one (EMNIST) has half of it."""


def obtain(
    root: Path, source: str, files: Sequence[str], download: bool, fetch: Callable[[Any], object], gz: bool = False
) -> list[Path]:
    """Return the paths of a dataset's files; with `download`, fetch missing ones first.

    source: torchvision's name of the dataset. fetch: called with torchvision.datasets. gz: accept gzip-ed files too.
    Raises InputError if a download fails or a file is missing.
    """

    def path_of(file: str) -> Path:
        plain = root / file
        return plain.with_name(f"{plain.name}.gz") if gz and not plain.is_file() else plain

    def missing() -> list[str]:
        return [file for file in files if not path_of(file).is_file()]

    if download and missing():
        try:
            with redirect_stdout(StringIO()):  # it prints every mirror that fails
                fetch(import_module("torchvision.datasets"))
        except (ImportError, OSError, RuntimeError, HTTPException) as error:
            folder = files[0].rpartition("/")[0] or "the folder"
            raise InputError(
                f"data.root = {root}: {source} is not there and the download failed ({one_line(error)}); "
                f"put torchvision's files into {folder}, or choose another data.name"
            ) from error
    for file in missing():
        raise InputError(
            f"data.root = {root}: {file} {'(plain or .gz) ' if gz else ''}is missing; put torchvision's files for "
            f"{source} there, or set data.download = true where there is a network"
        )
    return [path_of(file) for file in files]


def damaged_file(root: Path, file: Path, what: str) -> InputError:
    """Return the error for one file, named by its path below the root."""
    name = file.relative_to(root).as_posix()
    return InputError(f"data.root = {root}: {name} {what}; replace it, or delete it and set data.download = true")


def one_line(error: object) -> str:
    """Return an error's message as one line of moderate length."""
    return message_of(error)[:300]


def idx(root: Path, file: Path, dimensions: int, kind: int = 8) -> NDArray[Any]:
    """Return the values of one idx file, read-only, with so many dimensions and the type `kind` of KINDS.

    No more is decompressed than its header says, and one byte to see that nothing follows.
    """
    start = 4 + 4 * dimensions
    item = np.dtype(np.uint8 if kind == 8 else ">i4")
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as opened:
            header = opened.read(start)
            if header[:4] != bytes((0, 0, kind, dimensions)) or len(header) < start:
                found = f"with {dimensions} dimensions (it starts with {header[:4].hex()})"
                raise damaged_file(root, file, f"is no idx file of {KINDS[kind]} {found}")
            shape = struct.unpack(f">{dimensions}I", header[4:])
            needed = math.prod(shape) * item.itemsize
            if needed > LARGEST:
                raise damaged_file(
                    root, file, f"has the header {shape}: {needed:,} bytes, at most {LARGEST:,} are read"
                )
            raw = opened.read(needed + 1)
    except (OSError, EOFError, zlib.error, MemoryError) as error:
        raise damaged_file(root, file, f"cannot be read ({one_line(error)})") from error
    if len(raw) != needed:
        length = f"more than {needed}" if len(raw) > needed else f"{len(raw)}"
        raise damaged_file(root, file, f"has {length} bytes after its header where {shape} needs {needed}")
    if not math.prod(shape):  # numpy refuses an empty array whose other dimensions are too large
        raise damaged_file(root, file, f"is empty: its header says {shape}")
    return np.frombuffer(raw, item).reshape(shape)


def labelled_images(
    root: Path, file: Path, x: NDArray[np.uint8], y: NDArray[Any], classes: int, first: int = 0
) -> Data:
    """Check and copy images (N, C, H, W) and labels (N,); the labels of the file begin at `first`."""
    if not 0 < len(y) == len(x):
        raise damaged_file(root, file, f"has {len(y)} labels for {len(x)} images")
    for label in (y.max(), y.min()):
        if not first <= label < first + classes:
            raise damaged_file(root, file, f"has the label {label}, but labels are {first} to {first + classes - 1}")
    return Data(torch.from_numpy(np.array(x, order="C")), torch.from_numpy(y.astype(np.int64) - first))
