"""What a partition refuses, and how it says so."""

import dataclasses

import pytest
import torch
from partitions import LABELS, SETTINGS, dataset, refusal

from fedcore.errors import InputError
from fedcore.partition import Partition, check_labels, partition
from fedcore.types.federation import Data


def test_a_label_that_no_device_has_is_refused():
    data = dataset(LABELS)
    line = refusal(dataclasses.replace(data, classes=(*data.classes, "ghost")))
    assert "label 'ghost'" in line
    assert "nothing" in line
    official = Data(torch.ones(1, 3), torch.tensor([5]))
    line = refusal(dataclasses.replace(data, classes=(*data.classes, "ghost"), test=official))
    assert "'ghost' (found in: shared test)" in line
    marks = ["train" if label < 4 else "test" for label in LABELS]
    assert "'c4' (found in: test, shared test)" in refusal(dataset(LABELS, None, marks))
    made = partition(data, **SETTINGS)
    check_labels(data, made)
    gone = {who: {**own, "train": own["train"][LABELS[own["train"]] != 3]} for who, own in made.devices.items()}
    with pytest.raises(InputError, match=r"label 'c3' .found in: val, test, shared test"):
        check_labels(data, Partition.of(gone, made.shared))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"alpha": 0.0}, ["federation.alpha = 0.0", "above 0"]),
        ({"alpha": -1}, ["federation.alpha = -1"]),
        ({"alpha": float("nan")}, ["federation.alpha = nan"]),
        ({"alpha": float("inf")}, ["federation.alpha = inf"]),
        ({"devices": 0}, ["federation.devices = 0", "1 to 160"]),
        ({"devices": 161}, ["federation.devices = 161", "1 to 160"]),
        ({"name": "iid", "devices": 161}, ["federation.devices = 161"]),
        ({"min_size": 41}, ["federation.min_size = 41", "at most 40"]),
        ({"name": "iid", "min_size": 41}, ["federation.min_size = 41", "40 examples"]),
        ({"alpha": 1e-3, "devices": 30}, ["federation.min_size = 2", "federation.alpha = 0.001", "raise alpha"]),
        ({"shared_test": 0.001}, ["federation.shared_test = 0.001", "raise it"]),
        ({"val": 0.5, "test": 0.5}, ["federation.val + federation.test", "below 1"]),
        ({"name": "by_device"}, ["federation.partition = 'by_device'", "data.device"]),
        ({"name": "by_writer"}, ["federation.partition = 'by_writer'", "data.device"]),
        ({"name": "by_domain"}, ["federation.partition = 'by_domain'", "name no domains"]),
        ({"name": "label_skew", "share": 0.1}, ["federation.share = 0.1", "1 / 5"]),
        ({"name": "quantity_skew", "alpha": 0}, ["federation.alpha = 0", "above 0"]),
        ({"name": "quantity_skew", "min_size": 41}, ["federation.min_size = 41", "at most 40"]),
        ({"name": "few_classes", "classes": 6}, ["federation.classes = 6", "1 to 5"]),
        ({"name": "few_classes", "classes": 1}, ["federation.classes = 1", "at least 2", "4 devices", "5 classes"]),
        ({"domains": "split"}, ["federation.domains = 'split'", "name no domains"]),
        ({"unlabelled": 0.9}, ["federation.unlabelled = 0.9", "4 devices"]),
        ({"examples": 3}, ["federation.devices = 4", "1 to 3"]),
        ({"examples": 7}, ["federation.min_size = 2", "at most 1"]),
        ({"name": "dirichelt"}, ["federation.partition = 'dirichelt'", "did you mean dirichlet?"]),
    ],
)
def test_refused(changes, said):
    line = refusal(dataset(LABELS), **changes)
    for words in said:
        assert words in line


def test_devices_of_the_data_are_refused_by_name():
    owners = ["lonely"] + ["b"] * 199
    assert "'lonely' has 1 examples" in refusal(dataset(LABELS, owners), name="by_device")
    marks = ["val"] + ["train"] * 199
    line = refusal(dataset(LABELS, owners, marks), name="by_device", min_size=1, shared_test=0.0)
    assert "device 'lonely' has no row marked train" in line
