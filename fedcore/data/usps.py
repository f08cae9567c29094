"""USPS, handwritten digits from envelopes (Hull 1994), in libsvm's files as torchvision stores them.

The format: bzip2-ed text, one line per image: the digit plus one, then "i:v" for each pixel i = 1..256, v in [-1, 1].
"""

from __future__ import annotations

import bz2
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.data import Dataset
from fedcore.data.files import ROOT, damaged_file, labelled_images, obtain, one_line
from fedcore.data.pixels import Scaling, resize, scale, side
from fedcore.types.federation import Data

LARGEST = 1 << 26
"""The most bytes of a decompressed file; the larger published one has a third of it."""

FILES = ("USPS/usps.bz2", "USPS/usps.t.bz2")
SIDE = 16


def usps(root: str | Path = ROOT, download: bool = True, size: int | None = None, scaling: Scaling = "none") -> Dataset:
    """Return USPS, x (N, 1, 16, 16) uint8, with its official test set.

    v becomes floor((v + 1) / 2 * 255), as in torchvision. The MD5 of an existing file is not checked.

    Args:
        root: the folder of all datasets.
        download: fetch missing files.
        size: resize to so many pixels a side, bilinear (28 as in MNIST).
        scaling: see :func:`fedcore.data.pixels.scale`.
    """
    root = Path(root)
    wanted = SIDE if size is None else side(size)

    def fetch(sets: Any) -> None:
        for url, name, md5 in sets.USPS.split_list.values():
            if not (root / "USPS" / name).is_file():
                sets.utils.download_url(url, root / "USPS", name, md5)

    train, test = (read_examples(root, file) for file in obtain(root, "USPS", FILES, download, fetch))
    train, test = (Data(resize(part.x, wanted), part.y) for part in (train, test))
    return scale(Dataset(train, test, tuple("0123456789")), scaling)


def read_examples(root: Path, file: Path) -> Data:
    """Return the images of one file."""
    from sklearn.datasets import load_svmlight_file  # here, as it takes most of a second to import

    try:
        with bz2.open(file) as opened:
            text = opened.read(LARGEST + 1)
        if len(text) > LARGEST:
            raise ValueError(f"more than {LARGEST:,} bytes when decompressed")
        values, labels = load_svmlight_file(BytesIO(text), n_features=SIDE * SIDE, zero_based=False)
    except (OSError, EOFError, ValueError, IndexError, OverflowError, MemoryError) as error:
        raise damaged_file(root, file, f"cannot be read ({one_line(error)})") from error
    if (np.diff(values.indptr) != SIDE * SIDE).any():
        raise damaged_file(root, file, f"has a line without all {SIDE * SIDE} pixels")
    v = values.toarray().astype(np.float32)
    if not (np.abs(v) <= 1).all():
        raise damaged_file(root, file, "has a value outside [-1, 1]")
    pixels = ((v + 1) / 2 * 255).astype(np.uint8).reshape(-1, 1, SIDE, SIDE)
    if not (np.abs(labels) <= 10).all():  # nor is it infinite or no number
        raise damaged_file(root, file, "has a label that is not 1 to 10")
    return labelled_images(root, file, pixels, labels.astype(np.int64), 10, first=1)
