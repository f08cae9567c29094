"""Datasets of grey images in torchvision's files.

Those of 28 x 28 pixels are idx files, `<root>/<set>/raw/<file>`, plain or gzip-ed (.gz); :mod:`fedcore.data.files`
describes their format. USPS, handwritten digits from envelopes (Hull 1994), are libsvm's: bzip2-ed text, one line per
image, the digit plus one, then "i:v" for each pixel i = 1..256, v in [-1, 1].

torchvision fetches them and does not read them: to import it takes 1.4 s of a processor, to read MNIST here .2 s. Its
MNIST unpickles an old `processed/training.pt` and takes no .gz in a folder that it may not write to; its USPS wraps a
pixel outside [-1, 1] around.
"""

import bz2
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any

import numpy as np

from fedcore.builders import unknown_value
from fedcore.data import Dataset
from fedcore.data.files import ROOT, damaged_file, idx, labelled_images, obtain, one_line
from fedcore.data.pixels import Moments, Scaling, resize, scale, side
from fedcore.types.federation import Data

SIDE = 28
USPS_SIDE = 16
MNIST: Moments = ([0.1307], [0.3081])
FASHION: Moments = ([0.2860], [0.3530])
"""Of the 60,000 training images (:mod:`fedcore.data.pixels`)."""

TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

USPS_FILES = ("USPS/usps.bz2", "USPS/usps.t.bz2")
MOST_TEXT = 1 << 26
"""The most bytes of a decompressed file of USPS; the larger published one has a third of it."""

WRITERS = "QMNIST/raw/qmnist-train-labels-idx2-int"

CLOTHES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"
)  # fmt: skip

MERGED = (*digits, *ascii_uppercase, *"abdefghnqrt")
"""Lower-case letters that look like their capital share its class (Cohen et al. 2017, sec. II-B)."""

SUBSETS: dict[str, tuple[str, ...]] = {
    "byclass": (*digits, *ascii_uppercase, *ascii_lowercase), "bymerge": MERGED, "balanced": MERGED,
    "letters": tuple(ascii_lowercase), "digits": tuple(digits), "mnist": tuple(digits),
}  # fmt: skip
"""Classes of each subset of EMNIST, in the order of their labels."""


def mnist(root: str | Path = ROOT, download: bool = True, writers: bool = False, scaling: Scaling = "none") -> Dataset:
    """Return MNIST, x (N, 1, 28, 28) uint8, with its official test set.

    Args:
        root: the folder of all datasets.
        download: fetch missing files.
        writers: `device` names the writer of each training digit, by QMNIST (Yadav and Bottou 2019): "writer-0123" is
            NIST's writer 123; 539 of them wrote 19 to 131 digits each. Only QMNIST's file of training labels is needed.
        scaling: see :func:`fedcore.data.pixels.scale`.
    """
    root = Path(root)
    dataset = images(root, "MNIST", TRAIN, TEST, tuple(digits), download)
    if writers:
        dataset = replace(dataset, device=read_writers(root, dataset.train, download))
    return scale(dataset, scaling, MNIST)


def fashion_mnist(root: str | Path = ROOT, download: bool = True, scaling: Scaling = "none") -> Dataset:
    """Return Fashion-MNIST (Xiao et al. 2017), x (N, 1, 28, 28) uint8, with its official test set.

    Args:
        root: the folder of all datasets.
        download: fetch missing files.
        scaling: see :func:`fedcore.data.pixels.scale`.
    """
    return scale(images(Path(root), "FashionMNIST", TRAIN, TEST, CLOTHES, download), scaling, FASHION)


def emnist(
    root: str | Path = ROOT, download: bool = True, subset: str = "byclass", scaling: Scaling = "none"
) -> Dataset:
    """Return a subset of EMNIST (Cohen et al. 2017), x (N, 1, 28, 28) uint8, with its official test set.

    The files hold transposed images and count letters from 1; the loader reverts both.

    Args:
        root: the folder of all datasets.
        download: fetch missing files.
        subset: its name, such as "balanced" (47 classes) or "letters" (26).
        scaling: see :func:`fedcore.data.pixels.scale`.
    """
    if subset not in SUBSETS:
        raise unknown_value("data.subset", subset, SUBSETS)
    train, test = (
        [f"emnist-{subset}-{part}-{what}" for what in ("images-idx3-ubyte", "labels-idx1-ubyte")]
        for part in ("train", "test")
    )
    first, classes = 1 if subset == "letters" else 0, SUBSETS[subset]
    read = images(Path(root), "EMNIST", train, test, classes, download, first, transposed=True, split=subset)
    return scale(read, scaling)


def images(
    root: Path, source: str, train: Sequence[str], test: Sequence[str], classes: tuple[str, ...], download: bool,
    first: int = 0, transposed: bool = False, **settings: str,
) -> Dataset:  # fmt: skip
    """Read a dataset's four files, the images and labels for training and test; labels count from `first`.

    settings: of torchvision's class, which fetches them.
    """

    def part(pixels: Path, labels: Path) -> Data:
        x, y = idx(root, pixels, 3), idx(root, labels, 1)
        if x.shape[1:] != (SIDE, SIDE):
            raise damaged_file(root, pixels, f"has images of {x.shape[1:]} pixels, not {(SIDE, SIDE)}")
        if transposed:
            x = x.swapaxes(1, 2)
        return labelled_images(root, labels, x[:, None], y, len(classes), first)

    def fetch(sets: Any) -> object:
        return getattr(sets, source)(root, download=True, **settings)

    files = obtain(root, source, [f"{source}/raw/{name}" for name in (*train, *test)], download, fetch, gz=True)
    return Dataset(part(*files[:2]), part(*files[2:]), classes)


def read_writers(root: Path, train: Data, download: bool) -> tuple[str, ...]:
    """Return the writer of each of MNIST's training digits.

    A row of the file belongs to an image of MNIST: column 0 is its digit (checked), column 2 its writer.
    """

    def fetch(sets: Any) -> object:
        url, md5 = sets.QMNIST.resources["train"][1]
        return sets.utils.download_url(url, root / "QMNIST" / "raw", md5=md5)

    (file,) = obtain(root, "QMNIST", [WRITERS], download, fetch, gz=True)
    rows = idx(root, file, 2, kind=12)
    if rows.shape[1] < 3:
        raise damaged_file(root, file, f"has {rows.shape[1]} columns, but the writer is in the third")
    if not np.array_equal(rows[:, 0], train.y):
        raise damaged_file(
            root, file, "does not match these images: its digits are not the labels of MNIST's training images"
        )
    return tuple(f"writer-{writer:04d}" for writer in rows[:, 2].tolist())


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
    wanted = USPS_SIDE if size is None else side(size)

    def fetch(sets: Any) -> None:
        for url, name, md5 in sets.USPS.split_list.values():
            if not (root / "USPS" / name).is_file():
                sets.utils.download_url(url, root / "USPS", name, md5)

    train, test = (read_examples(root, file) for file in obtain(root, "USPS", USPS_FILES, download, fetch))
    train, test = (Data(resize(part.x, wanted), part.y) for part in (train, test))
    return scale(Dataset(train, test, tuple("0123456789")), scaling)


def read_examples(root: Path, file: Path) -> Data:
    """Return the images of one file."""
    from sklearn.datasets import load_svmlight_file  # here, as it takes most of a second to import

    try:
        with bz2.open(file) as opened:
            text = opened.read(MOST_TEXT + 1)
        if len(text) > MOST_TEXT:
            raise ValueError(f"more than {MOST_TEXT:,} bytes when decompressed")
        values, labels = load_svmlight_file(BytesIO(text), n_features=USPS_SIDE * USPS_SIDE, zero_based=False)
    except (OSError, EOFError, ValueError, IndexError, OverflowError, MemoryError) as error:
        raise damaged_file(root, file, f"cannot be read ({one_line(error)})") from error
    if (np.diff(values.indptr) != USPS_SIDE * USPS_SIDE).any():
        raise damaged_file(root, file, f"has a line without all {USPS_SIDE * USPS_SIDE} pixels")
    v = values.toarray().astype(np.float32)
    if not (np.abs(v) <= 1).all():
        raise damaged_file(root, file, "has a value outside [-1, 1]")
    pixels = ((v + 1) / 2 * 255).astype(np.uint8).reshape(-1, 1, USPS_SIDE, USPS_SIDE)
    if not (np.abs(labels) <= 10).all():  # nor is it infinite or no number
        raise damaged_file(root, file, "has a label that is not 1 to 10")
    return labelled_images(root, file, pixels, labels.astype(np.int64), 10, first=1)
