"""Image sets in idx files, laid out as torchvision does: `<root>/<name>/raw/<file>`, plain or gzip-ed.

The format: two zero bytes, a type (8: uint8), the number of dimensions, each dimension (big-endian uint32), the values.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from io import StringIO
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedcore.data import Dataset
from fedcore.types import Data, Refused


@dataclass(frozen=True)
class Source:
    """name: torchvision's class and folder. shape: height and width in pixels. classes: their names, in order."""

    name: str
    shape: tuple[int, int]
    classes: tuple[str, ...]


MNIST = Source("MNIST", (28, 28), tuple("0123456789"))

TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def mnist(root: str | Path, download: bool) -> Dataset:
    """Return MNIST, x (N, 1, 28, 28) uint8, with its official test set."""
    return images(MNIST, Path(root), download)


def images(source: Source, root: Path, download: bool) -> Dataset:
    """Read a source's four files below `root`; fetch them first where some are missing and `download` is set."""
    if download and missing(source, root):
        fetch(source, root)
    for name in missing(source, root):
        raise Refused(
            f"data.root = {root}: {source.name}/raw/{name} (plain or .gz) is missing; put torchvision's files for "
            f"{source.name} there, or set data.download = true where there is a network"
        )
    train, test = ([find(source, root, name) for name in part] for part in (TRAIN, TEST))
    return Dataset(read(source, root, *train), read(source, root, *test), source.classes)


def find(source: Source, root: Path, name: str) -> Path:
    """Return where a file is: plain if it is there, else gzip-ed."""
    plain = root / source.name / "raw" / name
    return plain if plain.is_file() else plain.with_name(f"{name}.gz")


def missing(source: Source, root: Path) -> list[str]:
    return [name for name in TRAIN + TEST if not find(source, root, name).is_file()]


def read(source: Source, root: Path, images: Path, labels: Path) -> Data:
    """Return one part of a source, its images and labels checked against each other."""
    x, y = idx(root, images, 3), idx(root, labels, 1)
    if not 0 < len(y) == len(x):
        raise damaged(root, labels, f"has {len(y)} labels for {len(x)} images")
    if x.shape[1:] != source.shape:
        raise damaged(root, images, f"has images of {x.shape[1:]} pixels, not {source.shape}")
    if y.max() >= len(source.classes):
        raise damaged(root, labels, f"has the label {y.max()}, but labels are 0 to {len(source.classes) - 1}")
    return Data(torch.from_numpy(x).unsqueeze(1), torch.from_numpy(y.astype(np.int64)))


def idx(root: Path, file: Path, dimensions: int) -> NDArray[np.uint8]:
    """Return the values of one idx file of uint8 with this many dimensions."""
    try:
        raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(root, file, f"cannot be read ({error})") from error
    start = 4 + 4 * dimensions
    if raw[:4] != bytes((0, 0, 8, dimensions)) or len(raw) < start:
        raise damaged(
            root, file, f"is no idx file of bytes with {dimensions} dimensions (it starts with {raw[:4].hex()})"
        )
    shape = struct.unpack(f">{dimensions}I", raw[4:start])
    if len(raw) != start + math.prod(shape):
        raise damaged(root, file, f"has {len(raw)} bytes where its header {shape} needs {start + math.prod(shape)}")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape).copy()


def damaged(root: Path, file: Path, what: str) -> Refused:
    """Return the refusal of one file, named as found below the root."""
    shown = file.relative_to(root).as_posix()
    return Refused(f"data.root = {root}: {shown} {what}; replace it, or delete it and set data.download = true")


def fetch(source: Source, root: Path) -> None:
    """Let torchvision download what is missing (it checks MD5 sums)."""
    try:
        with redirect_stdout(StringIO()):  # it prints every mirror that fails
            getattr(import_module("torchvision.datasets"), source.name)(root, download=True)
    except (ImportError, OSError, RuntimeError) as error:
        why = " ".join(str(error).split())
        raise Refused(
            f"data.root = {root}: {source.name} is not there and the download failed ({why}); "
            f"put torchvision's files into {source.name}/raw, or choose another data.name"
        ) from error
