"""MNIST-M: handwritten digits over photographs (Ganin et al. 2016, sec. 5.2.4).

The crops of the published images were never recorded, so this dataset is of the same kind but has other pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from fedcore.builders import unknown_value
from fedcore.data import Dataset
from fedcore.data.digits import enlarge
from fedcore.data.files import ROOT
from fedcore.data.images import SIDE, mnist
from fedcore.data.pictures import TYPES, picture, pictures
from fedcore.data.pixels import Picture, Scaling, blend, scale
from fedcore.errors import InputError
from fedcore.types.federation import Data
from fedcore.types.method import generator


def mnist_m(
    root: str | Path = ROOT,
    download: bool = True,
    base: str = "mnist",
    photos: str | Path | None = None,
    seed: int = 0,
    scaling: Scaling = "none",
) -> Dataset:
    """Return digits over photographs, x (N, 3, 28, 28) uint8: |crop - digit| for each channel.

    Args:
        root: the folder of all datasets.
        download: fetch missing files.
        base: "mnist": MNIST's digits with its official test set; "digits": scikit-learn's 1,797, scaled up from 8 x 8
            (bilinear), without a test set.
        photos: see :func:`photographs`; training and test digits share them.
        seed: of the crops, which depend on the names of the photographs as well.
        scaling: see :func:`fedcore.data.pixels.scale`.
    """
    if base not in ("mnist", "digits"):
        raise unknown_value("data.base", base, ("mnist", "digits"))
    digits = mnist(root, download) if base == "mnist" else Dataset(enlarge(SIDE), None, tuple("0123456789"))
    train, test = digits.train, digits.test
    x = train.x if test is None else torch.cat([train.x, test.x])
    colours = blend(x, photographs(photos, SIDE), generator(seed, "mnist_m"))
    blended = Dataset(
        Data(colours[: len(train)], train.y),
        None if test is None else Data(colours[len(train) :], test.y),
        digits.classes,
    )
    return scale(blended, scaling)


def photographs(folder: str | Path | None, least: int) -> Sequence[Callable[[], Picture]]:
    """Return a reader for each photograph below `folder`, at any depth, by name; None: scikit-learn's two samples.

    Each photograph needs at least `least` pixels a side.
    """
    if folder is None:
        from sklearn.datasets import load_sample_images  # here, as it takes most of a second to import

        return [partial(np.asarray, image) for image in load_sample_images().images]
    files = pictures(Path(folder).rglob("*"))
    if not files:
        raise InputError(f"data.photos = {folder}: no photograph ({', '.join(TYPES)}) there; null: scikit-learn's two")
    return [partial(photograph, file, least) for file in files]


def photograph(file: Path, least: int) -> Picture:
    """Read one photograph. Raises InputError if a side has fewer than `least` pixels."""
    photo = np.asarray(picture("data.photos", file))
    if min(photo.shape[:2]) < least:
        raise InputError(f"data.photos = {file}: {photo.shape[1]} x {photo.shape[0]} pixels; at least {least} a side")
    return photo
