"""Examples that can be told apart, and how they are asked to be divided."""

import numpy as np
import pytest
import torch

from fedcore import Data, Dataset, InputError
from fedcore.partition import Partition, partition
from fedcore.partition.tables import to_frame

SETTINGS = {
    "name": "dirichlet", "devices": 4, "alpha": 1.0, "min_size": 2, "val": 0.1, "test": 0.2, "shared_test": 0.2,
    "seed": 0,
}  # fmt: skip

LABELS = np.arange(200) % 5
OWNERS = [f"site {'abcd'[i % 4]}" for i in range(200)]
DOMAINS = ["east" if i % 8 < 5 else "west" for i in range(200)]
FROM_DATA = {"by_device": ["site a", "site b", "site c", "site d"], "by_domain": ["east", "west"]}
"""The devices of the partitions that take them from the data."""

LARGE = np.arange(4000) % 5
"""Labels enough to tell shares apart."""
HALF = {"name": "iid", "devices": 10, "unlabelled": 0.5, "hidden": "random"}
"""Half of the devices know no label, the others a random part."""
LEAVES_OUT = ("device_dirichlet",)
"""Partitions that may leave out examples, to keep sizes equal."""


def dataset(
    labels: np.ndarray,
    owners: list[str] | None = None,
    marks: list[str] | None = None,
    domains: list[str] | None = None,
) -> Dataset:
    """Examples (n, 1, n * n) that can be told apart, of as many classes as there are labels up to the largest."""
    n = torch.arange(len(labels), dtype=torch.float32)
    data = Data(torch.stack([n, torch.ones_like(n), n * n], dim=1), torch.from_numpy(labels.astype(np.int64)))
    classes = tuple(f"c{k}" for k in range(labels.max() + 1))
    return Dataset(data, None, classes, *(tuple(names) if names else None for names in (owners, marks, domains)))


def equal(one: Partition, other: Partition) -> bool:
    return to_frame(one).equals(to_frame(other))


def refusal(data: Dataset, **changes: object) -> str:
    """Return the one line with which a partition is refused."""
    with pytest.raises(InputError) as caught:
        partition(data, **{**SETTINGS, **changes})
    line = str(caught.value)
    assert "\n" not in line
    return line


def everything(made: Partition) -> np.ndarray:
    parts = [index for own in made.devices.values() for index in own.values()]
    return np.sort(np.concatenate([*parts, made.shared]))
