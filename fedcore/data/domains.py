"""The same ten digits: scikit-learn's, those of MNIST-M, and several domains as one dataset.

`digits` are scikit-learn's 1,797 images, without an official test set. `mnist_m` are digits over photographs
(Ganin et al. 2016, sec. 5.2.4); the crops of the published images were never recorded, so this dataset is of the same
kind but has other pixels. `domains` names the domain of each example.

Published sets (read or downloaded), all 3 x 28 x 28: mnist, usps (scaled up, or with a border of zeros), mnist_m.
Domains made from scikit-learn's digits without any file, all 3 x 16 x 16:

* digits: white on black, scaled up.
* digits_inverted: black on white, at three quarters of the size, with a border. The inversion reverses the evidence of
  every pixel: a model of plain digits is worse than chance on them, although they are as easy to learn. Collections of
  real digits differ in size and border as well (MNIST has a border, USPS fills the frame).
* digits_photo: over scikit-learn's photographs, as in MNIST-M.

Each of scikit-learn's digits is in only one of these three domains.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import distribution
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch.nn.functional import pad

from fedcore.builders import unknown_value
from fedcore.data import Dataset
from fedcore.data.files import ROOT
from fedcore.data.images import SIDE as MNIST_SIDE
from fedcore.data.images import mnist, usps
from fedcore.data.pictures import TYPES, picture, pictures
from fedcore.data.pixels import Picture, Scaling, blend, resize, scale, to_gray, to_rgb
from fedcore.errors import InputError
from fedcore.types.federation import Data
from fedcore.types.method import generator

PUBLISHED = ("mnist", "usps", "mnist_m")
EMBEDDED = ("digits", "digits_inverted", "digits_photo")

SIDE = 16
BORDER = 2

DIGITS = "sklearn/datasets/data/digits.csv.gz"
"""Scikit-learn's digits, in its package."""


def digits(scaling: Scaling = "none") -> Dataset:
    """Return the digits, x (1797, 1, 8, 8) float32 in [0, 1], or standardised.

    The source counts dark pixels in 4 x 4 blocks, 0..16. Sixteenths are exact in float32; uint8 is divided by 255.

    Args:
        scaling: see :func:`fedcore.data.pixels.scale`.
    """
    # As sklearn.datasets.load_digits reads them, whose import takes most of a second.
    table = np.loadtxt(str(distribution("scikit-learn").locate_file(DIGITS)), delimiter=",")
    images = torch.from_numpy((table[:, :-1] / 16).astype(np.float32)).reshape(-1, 1, 8, 8)
    everyone = Data(images, torch.from_numpy(table[:, -1].astype(np.int64)))
    return scale(Dataset(everyone, None, tuple("0123456789")), scaling)


def enlarge(size: int) -> Data:
    """Return the digits, resized by :func:`pixels.resize`, x (1797, 1, size, size) uint8."""
    small = digits().train
    return Data(resize(small.x * 255, size), small.y)


def mnist_m(
    root: str | Path = ROOT, download: bool = True, base: str = "mnist", photos: str | Path | None = None,
    seed: int = 0, scaling: Scaling = "none",
) -> Dataset:  # fmt: skip
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
    plain = mnist(root, download) if base == "mnist" else Dataset(enlarge(MNIST_SIDE), None, tuple("0123456789"))
    train, test = plain.train, plain.test
    x = train.x if test is None else torch.cat([train.x, test.x])
    colours = blend(x, photographs(photos, MNIST_SIDE), generator(seed, "mnist_m"))
    blended = Dataset(
        Data(colours[: len(train)], train.y),
        None if test is None else Data(colours[len(train) :], test.y),
        plain.classes,
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


def domains(
    domains: Sequence[str], root: str | Path = ROOT, download: bool = True, photos: str | Path | None = None,
    seed: int = 0, usps_frame: Literal["enlarged", "padded"] = "enlarged", gray: bool = False,
    scaling: Scaling = "none",
) -> Dataset:  # fmt: skip
    """Return several digit domains in the order given, x (N, 3, 28, 28) or (N, 3, 16, 16) uint8.

    The test set joins the official ones; the embedded digits have none. The public code of ST-LF's authors pads USPS
    and has one channel, but for MNIST-M alone.

    Args:
        domains: some of "mnist", "usps" and "mnist_m", or the embedded ones.
        root: the folder of all datasets.
        download: fetch missing files.
        photos: of `mnist_m`.
        seed: of the crops of `mnist_m`; it also divides the digits among the embedded domains, independently of the
            chosen ones.
        usps_frame: how USPS' 16 x 16 pixels fill 28 x 28, enlarged (bilinear) or padded with zeros.
        gray: one channel, the colours' luminance.
        scaling: see :func:`fedcore.data.pixels.scale`; all domains are scaled alike, by the moments of all of them, and
            differ as before.
    """
    for k, name in enumerate(domains):
        if name not in PUBLISHED + EMBEDDED:
            raise unknown_value("data.domains", name, PUBLISHED + EMBEDDED)
        if name in domains[:k]:
            raise InputError(f"data.domains = {list(domains)}: {name!r} is there twice")
    published = [name for name in domains if name in PUBLISHED]
    if not domains or 0 < len(published) < len(domains):
        raise InputError(
            f"data.domains = {list(domains)}: choose some of {', '.join(PUBLISHED)}, or some of {', '.join(EMBEDDED)} "
            "(their images differ in size)"
        )
    make: dict[str, Callable[[], Dataset]] = {
        "mnist": lambda: mnist(root, download),
        "usps": lambda: padded(usps(root, download)) if usps_frame == "padded" else usps(root, download, size=28),
        "mnist_m": lambda: mnist_m(root, download, photos=photos, seed=seed),
    }
    sets = [
        make[name]() if name in make else Dataset(embedded_domain(name, photos, seed), None, ()) for name in domains
    ]
    tests = [dataset.test for dataset in sets if dataset.test is not None]
    joined = Dataset(
        train=concatenate([dataset.train for dataset in sets], gray),
        test=concatenate(tests, gray) if len(tests) == len(sets) else None,
        classes=tuple("0123456789"),
        domain=tuple(name for name, dataset in zip(domains, sets, strict=True) for _ in range(len(dataset.train))),
    )
    return scale(joined, scaling)


def concatenate(parts: Sequence[Data], gray: bool) -> Data:
    channels = to_gray if gray else to_rgb
    return Data(torch.cat([channels(part.x) for part in parts]), torch.cat([part.y for part in parts]))


def padded(dataset: Dataset, border: int = 6) -> Dataset:
    """Return images with a border of zeros, in pixels."""

    def framed(part: Data) -> Data:
        return Data(pad(part.x, [border] * 4), part.y)

    return replace(dataset, train=framed(dataset.train), test=None if dataset.test is None else framed(dataset.test))


def embedded_domain(name: str, photos: str | Path | None, seed: int) -> Data:
    """Return one embedded domain: every third of scikit-learn's digits, shuffled and then sorted by class."""
    everyone = enlarge(SIDE)
    shuffled = torch.randperm(len(everyone), generator=generator(seed, "domains"))
    by_class = shuffled[everyone.y[shuffled].argsort(stable=True)]
    third = by_class[EMBEDDED.index(name) :: len(EMBEDDED)].sort().values
    x = everyone.x[third]
    if name == "digits_inverted":
        x = 255 - pad(resize(x, SIDE - 2 * BORDER), [BORDER] * 4)
    if name == "digits_photo":
        x = blend(x, photographs(photos, SIDE), generator(seed, "domains", name))
    return Data(x, everyone.y[third])
