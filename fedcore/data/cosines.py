"""How alike the data of several owners are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from fedcore.types import Data


def cosines(examples: Data, owned: Mapping[str, NDArray[np.int64]]) -> pd.DataFrame:
    """Return the cosine between the owners' mean features, (C, C) with their names; 0 where all of a mean is 0.

    owned: owner -> indices into the examples, at least one. The scale of an owner's features does not matter.
    """
    parts = (examples.inputs(torch.from_numpy(index)) for index in owned.values())
    means = np.stack([x.flatten(1).double().mean(0).numpy() for x in parts])
    means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), np.finfo(float).tiny)
    return pd.DataFrame(means @ means.T, index=list(owned), columns=list(owned))
