"""Datasets by name, and what a dataset is."""

from fedcore.data.dataset import Dataset, schema_of
from fedcore.data.registry import DATASETS, USER_DATASETS, load

__all__ = ["DATASETS", "USER_DATASETS", "Dataset", "load", "schema_of"]
