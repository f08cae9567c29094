"""Datasets by name, and what a dataset is."""

from fedcore.data.dataset import Dataset, schema_of
from fedcore.data.registry import DATASETS, USER_DATASETS, is_users, load, loader_of

__all__ = ["DATASETS", "USER_DATASETS", "Dataset", "is_users", "load", "loader_of", "schema_of"]
