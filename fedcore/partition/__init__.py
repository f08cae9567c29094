"""Partitions: which device holds which examples, and how it prepares them."""

from fedcore.partition.examples import final_partition, final_splits, server_examples, shared_examples_of, splits
from fedcore.partition.held_out import split_device
from fedcore.partition.partitions import PARTS, Partition, check_labels, partition, training
from fedcore.partition.schemes import AUTO, PARTITIONS, Index, draws

__all__ = [
    "AUTO", "PARTITIONS", "PARTS", "Index", "Partition", "check_labels", "draws", "final_partition", "final_splits",
    "partition", "server_examples", "shared_examples_of", "split_device", "splits", "training",
]  # fmt: skip
