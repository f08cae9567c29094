"""The handwritten digits that come with scikit-learn: 1,797 images, 10 classes, no official test set."""

from __future__ import annotations

import numpy as np
import torch

from fedcore.data import Dataset
from fedcore.data.pixels import Scaling, resize, scale
from fedcore.types.federation import Data


def digits(scaling: Scaling = "none") -> Dataset:
    """Return the digits, x (1797, 1, 8, 8) float32 in [0, 1], or standardised.

    The source counts dark pixels in 4 x 4 blocks, 0..16. Sixteenths are exact in float32; uint8 is divided by 255.

    Args:
        scaling: see :func:`fedcore.data.pixels.scale`.
    """
    from sklearn.datasets import load_digits  # here, as it takes most of a second to import

    x, y = load_digits(return_X_y=True)
    images = torch.from_numpy((x / 16).astype(np.float32)).reshape(-1, 1, 8, 8)
    everyone = Data(images, torch.from_numpy(y.astype(np.int64)))
    return scale(Dataset(everyone, None, tuple("0123456789")), scaling)


def enlarge(size: int) -> Data:
    """Return the digits, resized by :func:`pixels.resize`, x (1797, 1, size, size) uint8."""
    small = digits().train
    return Data(resize(small.x * 255, size), small.y)
