"""Files and folders of training, validation and test examples, and of sites."""

from pathlib import Path

import numpy as np
import pytest
import torch
from dataset_files import refusal
from PIL import Image

import fedcore as fc
from fedcore.data import load
from fedcore.data.folders import split_name
from fedcore.partition import partition

CONTENT = "u,y\n1,p\n2,q\n"


def table_files(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(CONTENT)
    return folder


@pytest.mark.parametrize(
    ("stem", "expected"),
    [
        ("data_0_train", ("data_0", "train")), ("train_x", ("x", "train")), ("x-val", ("x", "val")),
        ("X.Test", ("X", "test")), ("validation", ("", "val")), ("contest", ("contest", None)),
        ("trainer_a", ("trainer_a", None)),
    ],
)  # fmt: skip
def test_a_name_says_the_part(stem: str, expected: tuple[str, str | None]):
    assert split_name(stem) == expected


LAYOUTS = {
    "after the name": ["data_0_train.csv", "data_0_test.csv", "data_1_train.csv", "data_1_test.csv"],
    "before the name": ["train_data_0.csv", "test-data_0.csv", "train_data_1.csv", "test-data_1.csv"],
    "folders": ["train/data_0.csv", "test/data_0.csv", "train/data_1.csv", "test/data_1.csv"],
    "holdout": ["data_0_train.csv", "data_0_holdout.csv", "data_1_train.csv", "data_1_hold_out.csv"],
    "both": ["train/data_0_train.csv", "test/data_0_test.csv", "train/data_1_train.csv", "test/data_1_test.csv"],
    "val instead of test": ["data_0_train.csv", "data_0_val.csv", "data_1_train.csv", "data_1_val.csv"],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.slow
def test_files_of_parts_are_marked_rows_of_one_device(tmp_path: Path, layout: str):
    data = load("table", path=table_files(tmp_path, *LAYOUTS[layout]), label="y")
    assert sorted(zip(data.device or (), data.split or (), strict=True)) == [
        (device, part) for device in ("data_0", "data_1") for part in ("test", "test", "train", "train")
    ]
    parts = "train, val (as test)" if "val" in layout else "train, test"
    assert data.notes == (f"files: {parts} for each of 2 devices; rows keep their part (federation.test is not used)",)


@pytest.mark.parametrize("other", ["eval", "test1", "north"])
@pytest.mark.slow
def test_a_device_that_is_named_as_a_part_is_pointed_out(tmp_path: Path, other: str):
    data = load("table", path=table_files(tmp_path, "train.csv", f"{other}.csv"), label="y")
    line = f"files: 'train' is read as a device, as {other!r} are; call files of parts train, val and test"
    assert (sorted(set(data.device or ())), data.notes) == (sorted(["train", other]), (line,))


@pytest.mark.slow
def test_three_parts_of_each_device(tmp_path: Path):
    names = [f"{part}/{device}.csv" for part in ("train", "valid", "test") for device in "ab"]
    data = load("table", path=table_files(tmp_path, *names), label="y")
    divided = partition(data, name="by_device", min_size=1, shared_test=0.0, seed=0)
    assert {who: {part: len(index) for part, index in own.items()} for who, own in divided.devices.items()} == {
        who: {"train": 2, "val": 2, "test": 2, "unlabelled": 0} for who in "ab"
    }


@pytest.mark.parametrize("names", [("train.csv", "test.csv"), ("adult_train.csv", "adult_test.csv")])
@pytest.mark.slow
def test_two_files_of_all_rows_name_no_device(tmp_path: Path, names: tuple[str, str]):
    table_files(tmp_path, *names)
    data = load("table", path=tmp_path, label="y")
    assert data.device is None
    assert sorted(data.split or ()) == ["test", "test", "train", "train"]
    for name in names:
        (tmp_path / name).write_text("u,who,y\n1,a,p\n2,b,q\n")
    assert load("table", path=tmp_path, label="y", device="who").device == ("a", "b", "a", "b")


def test_names_that_only_look_like_parts_are_devices(tmp_path: Path):
    data = load("table", path=table_files(tmp_path, "wind_test.csv", "water_test.csv", "road.csv"), label="y")
    assert {*(data.device or ())} == {"wind_test", "water_test", "road"}
    assert data.split is None


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a_train.csv", "a_test.csv", "b.csv"], "'b' has no file for test; is b.csv a device of its own?"),
        (["a_train.csv", "a_test.csv", "b_train.csv"], "'b' has no file for test; is b_train.csv a device of its own?"),
        (["train/a.csv", "train/b.csv", "test/a.csv"], "'b' has no file for test; is train/b.csv a device of its own?"),
        (["train.csv", "test.csv", "sample.csv"], "'sample' has no file for test"),
        (
            ["a_train.csv", "train_a.csv", "a_test.csv"],
            "train_a.csv and a_train.csv are one device's for train; join them",
        ),
        (["train.csv", "test.csv", "holdout.csv"], "test.csv and holdout.csv are one device's for test; join them"),
    ],
)
def test_parts_of_some_devices_are_asked_about(tmp_path: Path, names: list[str], said: str):
    line = refusal("table", path=table_files(tmp_path, *names), label="y")
    assert line.startswith(f"data.path = {tmp_path}: ")
    assert said in line


def test_a_split_column_beside_files_of_parts_is_refused(tmp_path: Path):
    table_files(tmp_path, "train.csv", "test.csv")
    assert "data.split = 'u': the names of the files" in refusal("table", path=tmp_path, label="y", split="u")


# pictures


def picture_files(folder: Path, counts: dict[str, int]) -> Path:
    """Write so many pictures into each folder; all pixels of the n-th picture of all are n."""
    value = 0
    for name, count in counts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            Image.fromarray(np.full((4, 4), value, np.uint8)).save(folder / name / f"{number}.png")
            value += 1
    return folder


def values(x: object) -> list[int]:
    return x[:, 0, 0, 0].tolist()  # type: ignore[index]


def test_train_and_val_are_training_and_test_pictures(tmp_path: Path):
    counts = {"train/ants": 2, "train/bees": 3, "val/ants": 1, "val/bees": 1}
    data = load("image_folder", path=picture_files(tmp_path, counts), size=4, gray=True)
    assert data.classes == ("ants", "bees")
    assert data.train.y.tolist() == [0, 0, 1, 1, 1]
    assert data.test is not None
    assert values(data.test.x) == [5, 6]
    assert data.split is None
    assert data.notes == ("folders: train, and val as the test set, shared by all devices",)


def test_train_val_and_test_pictures_keep_their_parts(tmp_path: Path):
    counts = {"train/ants": 20, "train/bees": 20, "val/ants": 4, "val/bees": 4, "test/ants": 2, "test/bees": 2}
    data = load("image_folder", path=picture_files(tmp_path, counts), size=4, gray=True)
    assert data.test is not None
    assert len(data.test) == 4
    assert data.split == ("train",) * 40 + ("val",) * 8
    divided = partition(data, name="iid", devices=2, min_size=1, seed=0)
    held = [np.concatenate([own[part] for own in divided.devices.values()]) for part in ("train", "val", "test")]
    assert [sorted(index.tolist()) for index in held] == [[*range(40)], [*range(40, 48)], []]


def test_a_folder_per_site_makes_devices(tmp_path: Path):
    counts = {"north/cat": 2, "north/dog": 1, "south/dog": 2, "south/fox": 1}
    data = load("image_folder", path=picture_files(tmp_path, counts), size=4, gray=True)
    assert data.classes == ("cat", "dog", "fox")
    assert data.device == ("north",) * 3 + ("south",) * 3
    assert data.train.y.tolist() == [0, 0, 1, 1, 1, 2]
    assert values(data.train.x) == [*range(6)]
    assert data.notes == ("folders: 2 devices, each with a folder per class",)
    without = load("image_folder", path=tmp_path, size=4, exclude=["north"])
    assert without.classes == ("dog", "fox")
    assert without.device == ("south",) * 3
    assert without.notes[1:] == ("left out by data.exclude: north",)
    line = refusal("image_folder", path=tmp_path, exclude=["nroth"])
    assert line.startswith("data.exclude = 'nroth': did you mean north? allowed: north, south")
    assert "no picture" in refusal("image_folder", path=tmp_path, sites=False)


@pytest.mark.parametrize("order", ["part/site", "site/part"])
def test_sites_with_parts_keep_their_own_test_pictures(tmp_path: Path, order: str):
    places = [(site, part) for site in ("north", "south") for part in ("train", "test")]
    if order == "part/site":
        counts = {f"{part}/{site}/{label}": 2 for site, part in places for label in "ab"}
    else:
        counts = {f"{site}/{part}/{label}": 2 for site, part in places for label in "ab"}
    data = load("image_folder", path=picture_files(tmp_path, counts), size=4)
    assert data.test is None
    assert sorted(zip(data.device or (), data.split or (), strict=True)) == sorted(places * 4)


def test_sites_without_a_class_in_common_are_asked_about(tmp_path: Path):
    picture_files(tmp_path, {"north/cat": 1, "south/dog": 1})
    line = refusal("image_folder", path=tmp_path)
    assert "is 'north' a site, and 'cat' in it a class?" in line
    assert "data.sites=true" in line
    assert load("image_folder", path=tmp_path, size=4, sites=True).device == ("north", "south")


CLASSES = {"cat": 1, "dog": 1}
SITES = {f"{site}/{label}": 1 for site in ("north", "south") for label in CLASSES}
BESIDE = "not read: {} pictures that lie in no class's folder, such as {}; move them into one, or set data.sites"
ALIKE = "{} look alike, and are apart; rename folders to join them"
SAID = {
    "one folder deeper": ({**CLASSES, "cat/2024": 2}, {}, BESIDE.format(2, "cat/2024/0.png")),
    "a folder each deeper": ({**CLASSES, "cat/05": 1, "dog/06": 2}, {}, BESIDE.format(3, "cat/05/0.png")),
    "as deep as sites'": ({**SITES, "north": 1, "south": 1}, {"sites": False}, BESIDE.format(4, "north/cat/0.png")),
    "beside the classes": ({**CLASSES, ".": 3}, {}, BESIDE.format(3, "0.png")),
    "beside those of sites": ({**SITES, "north": 1}, {"sites": True}, BESIDE.format(1, "north/0.png")),
    "beside parts": ({f"{p}/{of}": 1 for p in ("train", "test") for of in CLASSES} | {"test": 2}, {},
                     BESIDE.format(2, "test/0.png")),
    "case of classes": ({**CLASSES, "Dog": 1}, {}, "classes: " + ALIKE.format("'Dog', 'dog'")),
    "blanks of classes": ({**CLASSES, "dog ": 1}, {}, "classes: " + ALIKE.format("'dog', 'dog '")),
    "forms of classes": ({"K\u00f6": 1, "Ko\u0308": 1}, {}, "classes: " + ALIKE.format("'Ko\u0308', 'K\u00f6'")),
    "numbers of classes": ({"1": 1, "01": 1}, {}, "classes: " + ALIKE.format("'01', '1'")),
    "a part as a site": ({f"{of}/{label}": 1 for of in ("train", "eval") for label in CLASSES}, {},
                         "devices: 'train' is read as one, as 'eval' are; call folders of parts train, val and test"),
    "case of sites": ({**SITES, "North/cat": 1}, {}, "devices: " + ALIKE.format("'North', 'north'")),
}  # fmt: skip
"""Counts of pictures in folders, settings, and the line that says what is unread, or apart."""


@pytest.mark.parametrize("case", SAID)
@pytest.mark.slow
def test_pictures_that_are_not_read_and_folders_that_look_alike_are_said(tmp_path: Path, case: str):
    counts, settings, line = SAID[case]
    data = load("image_folder", path=picture_files(tmp_path, counts), size=4, **settings)
    assert [note for note in data.notes if not note.startswith("folders: ")] == [line]


def test_files_of_other_types_and_pages_are_counted(tmp_path: Path):
    picture_files(tmp_path, CLASSES)
    pages = [Image.new("RGB", (4, 4), (number, 0, 0)) for number in range(2)]
    for name in ("cat/9.gif", "dog/9.tiff"):
        pages[0].save(tmp_path / name, save_all=True, append_images=pages[1:])
    pages[0].save(tmp_path / "dog" / "one.tif")
    for name in ("cat/1.heic", "cat/2.heic", "dog/3.JFIF", "cat/.hidden", "readme.txt"):
        (tmp_path / name).write_text("")
    assert load("image_folder", path=tmp_path, size=4).notes == (
        "of 2 pictures with several pages the first is read, such as cat/9.gif",
        "not read: files of other types in folders of pictures (2 .heic, 1 .JFIF); convert those that are pictures",
    )


def test_pictures_whose_transparency_is_dropped_are_counted(tmp_path: Path):
    """An opaque picture with a channel for it is as others are."""
    picture_files(tmp_path, CLASSES)
    for number, alpha in enumerate((0, 254, 255)):
        Image.new("RGBA", (4, 4), (0, 0, 0, alpha)).save(tmp_path / "dog" / f"clear{number}.png")
    Image.new("P", (4, 4), 1).save(tmp_path / "cat" / "palette.gif", transparency=1)
    Image.new("P", (4, 4), 1).save(tmp_path / "cat" / "opaque.gif", transparency=2)
    assert load("image_folder", path=tmp_path, size=4).notes == (
        "3 pictures have transparency, which is dropped, such as cat/palette.gif",
    )


@pytest.mark.parametrize("extra", [{"north": 1}, {"north": 1, "south": 2}])
def test_pictures_at_two_depths_that_may_be_sites_are_asked_about(tmp_path: Path, extra: dict[str, int]):
    line = refusal("image_folder", path=picture_files(tmp_path, SITES | extra))
    assert "is 'north' a class or a site? It has pictures, and folders such as 'cat' have; set data.sites=false" in line
    assert load("image_folder", path=tmp_path, size=4, sites=True).device == ("north",) * 2 + ("south",) * 2


def test_no_sites_to_leave_out(tmp_path: Path):
    picture_files(tmp_path, {"cat": 1, "dog": 1})
    assert "name no devices" in refusal("image_folder", path=tmp_path, exclude=["cat"])
    assert "data.exclude = 'cat': must be a list" in refusal("image_folder", path=tmp_path, exclude="cat")


def test_classes_of_the_test_folders_alone_are_refused(tmp_path: Path):
    counts = {"n/train/a": 1, "n/train/b": 1, "n/test/a": 1, "s/train/a": 1, "s/train/b": 1, "s/test/c": 1}
    line = refusal("image_folder", path=picture_files(tmp_path, counts))
    assert line.startswith(f"data.path = {tmp_path / 's/test/c'}: no such class in ")


@pytest.mark.slow
def test_a_model_of_standardised_pictures_takes_those_of_the_files(tmp_path: Path):
    """Bytes are standardised as the data were; what is standardised already is taken as it is."""
    files = picture_files(tmp_path, {"dark": 8, "light": 8})
    raw = load("image_folder", path=files, size=4)
    data = load("image_folder", path=files, size=4, scaling="standard")
    divided = fc.federate(data, fc.iid(), devices=2, min_size=1, net=fc.mlp(4))
    model = fc.run(fc.local_only(training={"epochs": 1}), divided, progress=False).models["device-00"]
    assert raw.train.x.dtype == torch.uint8
    np.testing.assert_array_equal(model.probabilities(raw.train.x.numpy()), model.probabilities(data.train.x.numpy()))
