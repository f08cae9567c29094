"""Datasets by name, and what a dataset is."""

from fedcore.data.dataset import Dataset, schema_of
from fedcore.data.registry import DATASETS, OWN, load, unknown_value

__all__ = ["DATASETS", "OWN", "Dataset", "load", "schema_of", "unknown_value"]
