"""The same ten digits from several domains, as one dataset that names the domain of each example.

Published sets (read or downloaded), all 3 x 28 x 28: mnist, usps (scaled up, or with a border of zeros), mnist_m.
Domains made from scikit-learn's digits without any file, all 3 x 16 x 16:

* digits: white on black, scaled up.
* digits_inverted: black on white, at three quarters of the size, with a border. The inversion reverses the evidence of
  every pixel: a model of plain digits is worse than chance on them, although they are as easy to learn. Collections of
  real digits differ in size and border as well (MNIST has a border, USPS fills the frame).
* digits_photo: over scikit-learn's photographs, as in MNIST-M.

Each of scikit-learn's digits is in only one of these three domains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch.nn.functional import pad

from fedcore.builders import unknown_value
from fedcore.data import Dataset
from fedcore.data.digits import enlarge
from fedcore.data.files import ROOT
from fedcore.data.images import mnist, usps
from fedcore.data.mnist_m import mnist_m, photographs
from fedcore.data.pixels import Scaling, blend, resize, scale, to_gray, to_rgb
from fedcore.errors import InputError
from fedcore.types.federation import Data
from fedcore.types.method import generator

PUBLISHED = ("mnist", "usps", "mnist_m")
EMBEDDED = ("digits", "digits_inverted", "digits_photo")

SIDE = 16
BORDER = 2


def domains(
    domains: Sequence[str],
    root: str | Path = ROOT,
    download: bool = True,
    photos: str | Path | None = None,
    seed: int = 0,
    usps_frame: Literal["enlarged", "padded"] = "enlarged",
    gray: bool = False,
    scaling: Scaling = "none",
) -> Dataset:
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
