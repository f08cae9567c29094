"""Cosine similarity of several devices' data."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from fedcore.types.federation import Data


def cosines(examples: Data, owned: Mapping[str, NDArray[np.int64]]) -> pd.DataFrame:
    """Return the cosine similarity of the devices' mean features, (C, C) with their names; 0 for a mean of zeros.

    owned: device -> indices into the examples, at least one. The scale of a device's features does not matter.
    A mean is over the values that are not missing.
    """
    parts = (examples.inputs(torch.from_numpy(index)).flatten(1).double() for index in owned.values())
    means = np.stack([(x.nanmean(0).nan_to_num() if x.isnan().any() else x.mean(0)).numpy() for x in parts])
    means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), np.finfo(float).tiny)
    return pd.DataFrame(means @ means.T, index=list(owned), columns=list(owned))
