"""Transforms of images (N, C, H, W) uint8: resizing, grey to three channels, blending with photographs.

And the scaling of a whole set: `data.scaling` is "none" (pixels in [0, 1] when used) or "standard", (x - mean) / std
with one mean and deviation per channel for all images, of training and test alike. These are the constants that are in
use for a published set (to four digits those of its training images), or else the moments of the set's training
examples.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor

from fedcore.builders import unknown_value
from fedcore.data import Dataset
from fedcore.data.prepare import standardise_channels
from fedcore.data.schema import Fit
from fedcore.errors import InputError
from fedcore.types.federation import Data

Picture: TypeAlias = NDArray[np.uint8]
"""(H, W, 3)"""

Scaling: TypeAlias = Literal["none", "standard"]
Moments: TypeAlias = tuple[Sequence[float], Sequence[float]]
"""Mean and standard deviation of each channel, of pixels in [0, 1]."""


def side(size: int) -> int:
    """Check the height and width of images, in pixels, and return it."""
    if not 1 <= size <= 1024:
        raise InputError(f"data.size = {size}: must be 1 to 1024 pixels")
    return size


def resize(x: Tensor, size: int) -> Tensor:
    """Resize images to `size` x `size`, bilinear (antialiased where they shrink) and rounded."""
    if x.shape[-2:] == (size, size):
        return x
    resized = torch.nn.functional.interpolate(x.float(), size=(size, size), mode="bilinear", antialias=True)
    return resized.round_().clamp_(0, 255).to(torch.uint8)


def to_rgb(x: Tensor) -> Tensor:
    """Return images with three channels; a grey channel is copied."""
    return x.expand(-1, 3, -1, -1).contiguous()


def to_gray(x: Tensor) -> Tensor:
    """Return images with one channel: of three ones their luminance, .299 R + .587 G + .114 B (ITU-R BT.601)."""
    if x.shape[1] == 1:
        return x
    return torch.cat([_luminance(part) for part in torch.split(x, 1_000)])


def _luminance(x: Tensor) -> Tensor:
    red, green, blue = (part * weight for part, weight in zip(torch.split(x, 1, 1), (0.299, 0.587, 0.114), strict=True))
    return red.add_(green).add_(blue).round_().to(torch.uint8)


def blend(x: Tensor, photos: Sequence[Callable[[], Picture]], random: torch.Generator) -> Tensor:
    """Return |crop - image| for each channel, (N, 3, S, S), of grey images (N, 1, S, S).

    The crop is as large as the image, at a random place of a random photograph. (Ganin et al. 2016, sec. 5.2.4.)
    photos: each returns a photograph of at least S x S pixels; one is in memory at a time.
    """
    size = x.shape[-1]
    images = x.numpy()
    blend = np.empty((len(x), 3, size, size), np.uint8)
    which, top, left = torch.rand(3, len(x), generator=random, dtype=torch.float64).numpy()
    which = (which * len(photos)).astype(int)
    for k, photo in enumerate(photos):
        index = np.flatnonzero(which == k)
        crops = sliding_window_view(photo(), (size, size), axis=(0, 1))  # (H - S + 1, W - S + 1, 3, S, S)
        rows, columns = (
            (corner[index] * count).astype(int) for corner, count in zip((top, left), crops.shape[:2], strict=True)
        )
        crop, image = crops[rows, columns], images[index]
        blend[index] = np.maximum(crop, image) - np.minimum(crop, image)
    return torch.from_numpy(blend)


def scale(dataset: Dataset, scaling: str, published: Moments | None = None) -> Dataset:
    """Return a set of images with the pixels that `scaling` asks for, see above; standardised ones are float32.

    published: moments; None: those of the training examples, without the ones that the source marks as test.
    A channel of one value is only centred. Raises InputError for another word than "none" and "standard".
    """
    if scaling not in get_args(Scaling):
        raise unknown_value("data.scaling", scaling, get_args(Scaling))
    if scaling == "none":
        return dataset
    channels = Fit((), *map(tuple, published or moments(dataset)))

    def standardise(part: Data) -> Data:
        return Data(standardise_channels(part.inputs(), channels), part.y)

    return replace(
        dataset, train=standardise(dataset.train), test=None if dataset.test is None else standardise(dataset.test),
        server=None if dataset.server is None else standardise(dataset.server),
        schema=None if dataset.schema is None else replace(dataset.schema, channels=channels),
        channels=channels if dataset.train.x.dtype == torch.uint8 else None,
    )  # fmt: skip


def moments(dataset: Dataset) -> Moments:
    """Return the moments of the training examples; 1 in place of a deviation of 0."""
    marks = dataset.split or ("train",) * len(dataset.train)
    x = dataset.train.inputs(torch.tensor([mark != "test" for mark in marks])).double()
    return x.mean((0, 2, 3)).tolist(), [deviation or 1.0 for deviation in x.std((0, 2, 3), correction=0).tolist()]
