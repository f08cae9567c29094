"""Transforms of images (N, C, H, W) uint8: resizing, grey to three channels, blending with photographs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor

from fedcore.types import InputError

Picture: TypeAlias = NDArray[np.uint8]
"""(H, W, 3)"""


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


def blend(x: Tensor, photos: Sequence[Callable[[], Picture]], random: torch.Generator) -> Tensor:
    """Return |crop - image| for each channel, (N, 3, S, S), of grey images (N, 1, S, S).

    The crop is as large as the image, at a random place of a random photograph. (Ganin et al. 2016, sec. 5.2.4.)
    photos: each returns a photograph of at least S x S pixels; one is in memory at a time.
    """
    size = x.shape[-1]
    images = x.numpy().astype(np.int16)
    blend = np.empty((len(x), 3, size, size), np.uint8)
    which, top, left = torch.rand(3, len(x), generator=random, dtype=torch.float64).numpy()
    which = (which * len(photos)).astype(int)
    for k, photo in enumerate(photos):
        mine = np.flatnonzero(which == k)
        crops = sliding_window_view(photo(), (size, size), axis=(0, 1))  # (H - S + 1, W - S + 1, 3, S, S)
        rows, columns = (
            (place[mine] * count).astype(int) for place, count in zip((top, left), crops.shape[:2], strict=True)
        )
        blend[mine] = np.abs(crops[rows, columns] - images[mine])
    return torch.from_numpy(blend)
