"""Partitions: which device holds which examples, and how it prepares them."""

from fedcore.partition.examples import server_examples, splits
from fedcore.partition.final import final_partition, final_splits, shared_examples_of
from fedcore.partition.held_out import split_device
from fedcore.partition.partitions import check_labels, partition
from fedcore.partition.parts import PARTS, Partition, training
from fedcore.partition.schemes import (
    AUTO,
    PARTITIONS,
    Index,
    by_device,
    by_domain,
    by_writer,
    device_dirichlet,
    dirichlet,
    dirichlet_capped,
    draws,
    few_classes,
    iid,
    label_skew,
    quantity_skew,
    shards,
)

__all__ = [
    "AUTO", "PARTITIONS", "PARTS", "Index", "Partition", "by_device", "by_domain", "by_writer", "check_labels",
    "device_dirichlet", "dirichlet", "dirichlet_capped", "draws", "few_classes", "final_partition", "final_splits",
    "iid", "label_skew", "partition", "quantity_skew", "server_examples", "shards", "shared_examples_of",
    "split_device", "splits", "training",
]  # fmt: skip
