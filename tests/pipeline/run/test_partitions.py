"""Datasets and partitions on their way into a run."""

from dataclasses import replace
from pathlib import Path

from partitions import LABELS, SETTINGS, dataset

from fedcore.partition import partition
from fedcore.pipeline.cache.store import Store
from fedcore.pipeline.record.result import PreparedData
from fedcore.pipeline.run.partitions import dropped_line, read_dataset


def test_what_files_looked_like_changes_no_key(tmp_path: Path):
    store, data = Store(tmp_path), dataset(LABELS)
    told = replace(data, notes=("read: columns separated by tabs",))
    assert read_dataset(store, {}, told) == read_dataset(store, {}, data)


def test_a_run_names_the_devices_that_it_drops(tmp_path: Path):
    store, data = Store(tmp_path), dataset(LABELS, ["tiny"] * 3 + ["a", "b"] * 98 + ["a"])
    section = {"partition": "by_device", "devices": 4, "min_size": 11, "drop_small": True}
    divided = partition(data, **{**SETTINGS, "name": "by_device", "min_size": 11}, drop_small=True)
    prepared = PreparedData(store.put(data), store.put(divided))
    assert dropped_line(store, prepared, section) == "1 devices below federation.min_size=11 are dropped: tiny"
    assert dropped_line(store, prepared, {**section, "drop_small": False}) == ""
