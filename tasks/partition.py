"""From a dataset to a federation."""

from collections.abc import Callable

from fedcore.data import Dataset
from fedcore.partition import Partition
from fedcore.pipeline import work


@work.partition
def partition(part: Callable[[Dataset], Partition], dataset: Dataset) -> Partition:
    """Assign the examples of a dataset to devices, and each device's to training, validation and test."""
    return part(dataset)
