"""A user's own LEAF folder and picture folders."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from dataset_files import drawn, leaf_file, refusal, same
from PIL import Image

from fedcore.data import load

# LEAF


def test_leaf_with_train_and_test(tmp_path):
    leaf_file(tmp_path / "train" / "b.json", {"f2": (drawn(0.5), [61])})
    leaf_file(tmp_path / "train" / "a.json", {"f1": (drawn(0.1, 0.2), [0, 10]), "f0": (drawn(0.3), [36])})
    leaf_file(tmp_path / "test" / "a.json", {"f1": (drawn(0.4), [9]), "f3": ([], [])})
    data = load("leaf", path=str(tmp_path))
    assert data.train.x.shape == (5, 1, 28, 28)
    assert data.train.x.dtype == torch.float32
    torch.testing.assert_close(data.train.x[:, 0, 1, 0], torch.tensor([0.1, 0.2, 0.3, 0.5, 0.4]), rtol=0, atol=0)
    assert data.train.x.sum() == pytest.approx(5 * 783 + 1.5)
    assert data.train.y.tolist() == [0, 10, 36, 61, 9]
    assert data.device == ("f1", "f1", "f0", "f2", "f1")
    assert data.split == ("train",) * 4 + ("test",)
    assert data.test is None
    assert len(data.classes) == 62
    assert [data.classes[k] for k in (0, 9, 10, 35, 36, 61)] == list("09AZaz")


def test_leaf_with_all_data(tmp_path):
    leaf_file(tmp_path / "all_data" / "a.json", {"u": (drawn(0.0, 1.0), [3, 4])})
    data = load("leaf", path=tmp_path)
    assert (data.device, data.split) == (("u", "u"), None)


LEAF_REFUSED = {
    "no json": ("{", "cannot be read"),
    "a list": ("[1]", "cannot be read"),
    "no users": ('{"user_data": {}}', "no 'users'"),
    "other users": ('{"users": ["a"], "user_data": {"b": {"x": [], "y": []}}}', "not those of user_data"),
    "no pixels": ('{"users": ["a"], "user_data": {"a": {"y": [1]}}}', "no 'x'"),
    "a number for images": ('{"users": ["a"], "user_data": {"a": {"x": 1, "y": [1]}}}', "cannot be read"),
    "a text with a number": ('{"users": ["a"], "user_data": {"a": {"x": ["hi"], "y": [1]}}}', "that is not one letter"),
    "a user twice": ('{"users": ["a"], "user_data": {"a": {"x": [], "y": []}, "a": {}}}', "'a' stands twice"),
    "texts of unequal length": (
        '{"users": ["a"], "user_data": {"a": {"x": ["hello", "you"], "y": ["a", "b"]}}}',
        "no text of 5 letters",
    ),
    "a text among numbers": ('{"users": ["a"], "user_data": {"a": {"x": [[1], "hi"], "y": [1, 2]}}}', "has a text for"),
    "texts in a list": ('{"users": ["a"], "user_data": {"a": {"x": [["1", "to"]], "y": [1]}}}', "could not convert"),
}


@pytest.mark.parametrize("case", LEAF_REFUSED)
def test_leaf_refused(tmp_path, case):
    content, why = LEAF_REFUSED[case]
    file = leaf_file(tmp_path / "all_data" / "a.json", {})
    file.write_text(content)
    line = refusal("leaf", path=tmp_path)
    assert line.startswith(f"data.path = {file}: cannot be read (")
    assert "; data.name = 'leaf' reads images of FEMNIST, vectors of numbers, texts of Shakespeare and posts" in line
    assert why in line


@pytest.mark.parametrize(
    ("x", "y", "why"),
    [
        (drawn(0.5), [1, 2], "2 labels for 1 images"), (drawn(0.5), [62], "a label that is not 0 to 61"),
        (drawn(0.5), [-1], "a label that is not 0 to 61"), (drawn(0.5), [1.5], "a label that is not 0 to 61"),
        ([[0.0] * 783], [1], "an image without 784 numbers"), (drawn(float("nan")), [1], "no finite number"),
        (drawn(1e300), [1], "no finite number"), ([["a"] * 784], [1], "could not convert"),
    ],
)  # fmt: skip
def test_leaf_examples_refused(tmp_path, x, y, why):
    leaf_file(tmp_path / "all_data" / "a.json", {"good": (drawn(0.5), [1]), "u": (x, y)})
    assert why in refusal("leaf", path=tmp_path)


def test_leaf_vectors_keep_their_digits_until_they_are_scaled(tmp_path):
    x = [[1.7e9 + k, k / 10] for k in range(8)]
    leaf_file(tmp_path / "all_data" / "a.json", {"u": (x, [0, 1] * 4)})
    assert load("leaf", path=tmp_path).train.x.tolist() == x
    leaf_file(tmp_path / "all_data" / "a.json", {"u": ([[row, row] for row in x], [0, 1] * 4)})  # each of two lists
    assert "'u' has an example of lists, not of numbers" in refusal("leaf", path=tmp_path)


def test_a_leaf_user_in_two_files_is_refused(tmp_path):
    for name in ("a.json", "b.json"):
        leaf_file(tmp_path / "all_data" / name, {"u": (drawn(0.5), [1])})
    assert "b.json: user 'u' stands in a.json, too" in refusal("leaf", path=tmp_path)


def test_leaf_texts_of_shakespeare(tmp_path):
    leaf_file(
        tmp_path / "train" / "a.json", {"ROMEO": (["But so", "ut sof"], ["f", "t"]), "JULIET": (["O Rome"], ["o"])}
    )
    leaf_file(tmp_path / "test" / "a.json", {"ROMEO": (["café?\n"], ["!"])})
    data = load("leaf", path=tmp_path)
    assert len(data.classes) == 81  # LEAF's eighty, and one more
    assert ["".join(data.classes[int(k)] for k in row) for row in data.train.x] == [
        "But so", "ut sof", "O Rome", "café?\n",
    ]  # fmt: skip
    assert [data.classes[k] for k in data.train.y] == ["f", "t", "o", "!"]
    assert "".join(data.classes[:3]) == "\n !"
    assert data.classes[-1] == "é"
    assert data.device == ("ROMEO", "ROMEO", "JULIET", "ROMEO")
    assert data.split == ("train",) * 3 + ("test",)
    assert "texts have no pixels" in refusal("leaf", path=tmp_path, scaling="standard")
    each = load("leaf", path=tmp_path, per_step=True)
    assert each.task.name == "sequence_labelling"
    assert ["".join(data.classes[int(k)] for k in row) for row in each.train.y[:3]] == ["ut sof", "t soft", " Romeo"]
    assert each.device == data.device


def post(text):
    return ["1467810369", "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", "a_user", text]


def test_leaf_posts_of_sent140(tmp_path):
    leaf_file(tmp_path / "train" / "a.json", {"u0": ([post("so good, so good"), post("no")], [1, 0])})
    leaf_file(tmp_path / "test" / "a.json", {"u0": ([post("so bad")], [0]), "u1": ([], [])})
    data = load("leaf", path=tmp_path)
    assert data.train.x.shape == (3, 25)
    # by frequency, then alphabet: good 2, so 3, the comma 4, no 5; bad is in no training post
    assert data.train.x[:, -5:].tolist() == [[3, 2, 4, 3, 2], [0, 0, 0, 0, 5], [0, 0, 0, 3, 1]]
    assert data.train.y.tolist() == [1, 0, 0]
    assert data.classes == ("negative", "positive")
    assert data.device == ("u0",) * 3
    assert data.split == ("train", "train", "test")
    assert "texts have no pixels" in refusal("leaf", path=tmp_path, scaling="standard")
    assert "data.per_step = True: is for texts of letters" in refusal("leaf", path=tmp_path, per_step=True)


@pytest.mark.parametrize(
    ("x", "y", "why"),
    [
        ([post("good")], [4], "user 'u' has a label that is not 0 or 1"),
        ([post("good")[1:]], [1], "user 'u' has an example that is no post"),
        ([post(None)], [1], "user 'u' has an example that is no post"),
        ([post("good")], [], "user 'u' has 0 labels for 1 posts"),
    ],
)
def test_leaf_posts_refused(tmp_path, x, y, why):
    leaf_file(tmp_path / "all_data" / "a.json", {"good": ([post("fine")], [1]), "u": (x, y)})
    assert why in refusal("leaf", path=tmp_path)


def test_leaf_vectors_of_numbers(tmp_path):
    leaf_file(tmp_path / "train" / "a.json", {"f0": ([[0.5, -2, 3], [1, 2, 3]], [7, 3]), "f1": ([[4, 5, 6]], [3])})
    leaf_file(tmp_path / "test" / "a.json", {"f0": ([[7, 8, 9]], [12]), "f1": ([], [])})
    data = load("leaf", path=tmp_path)
    assert data.train.x.tolist() == [[0.5, -2, 3], [1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert data.train.x.dtype == torch.float32
    assert data.classes == ("3", "7", "12")
    assert data.train.y.tolist() == [1, 0, 0, 2]
    assert data.device == ("f0", "f0", "f1", "f0")
    assert data.split == ("train",) * 3 + ("test",)
    line = refusal("leaf", path=tmp_path, scaling="standard")
    assert line.startswith("data.scaling = 'standard': must be none, vectors have no pixels")


@pytest.mark.parametrize(
    ("x", "y", "why"),
    [
        ([[1.0, 2.0]], [1], "user 'u' has a vector without 3 numbers"),
        ([[1.0, 2.0, float("inf")]], [1], "user 'u' has a number that is no finite number"),
        ([[1.0, 2.0, 3.0]], [1.5], "user 'u' has a label that is not a whole number"),
        ([1.0], [1], "has no len"),
    ],
)
def test_leaf_vectors_refused(tmp_path, x, y, why):
    leaf_file(tmp_path / "all_data" / "a.json", {"good": ([[1, 2, 3]], [1]), "u": (x, y)})
    assert why in refusal("leaf", path=tmp_path)


def test_leaf_folders_refused(tmp_path):
    said = refusal("leaf", path=tmp_path / "none")
    assert said == f"data.path = {tmp_path / 'none'}: no all_data/*.json; LEAF writes train and test, or all_data"
    leaf_file(tmp_path / "train" / "a.json", {"u": ([], [])})
    assert "no test/*.json" in refusal("leaf", path=tmp_path)
    leaf_file(tmp_path / "test" / "a.json", {})
    assert "no examples" in refusal("leaf", path=tmp_path)


# pictures


def draw(file: Path, pixels: object, mode: str = "RGB", size: tuple[int, int] = (4, 4), **options: object) -> Path:
    """Write a picture of `size` (height, width), of one colour or of given pixels."""
    file.parent.mkdir(parents=True, exist_ok=True)
    channels = (3,) if mode == "RGB" else ()
    array = np.ascontiguousarray(np.broadcast_to(np.asarray(pixels, np.uint8), (*size, *channels)))
    Image.fromarray(array).save(file, **options)
    return file


def test_image_folder(tmp_path):
    draw(tmp_path / "dog" / "z.png", (1, 2, 3))
    draw(tmp_path / "dog" / "a.bmp", (4, 5, 6))
    draw(tmp_path / "cat" / "1.gif", 7, "L")
    draw(tmp_path / "bird" / "x.PNG", 8, "L")
    draw(tmp_path / "bird" / ".hidden.png", 9, "L")
    draw(tmp_path / ".cache" / "x.png", 9, "L")
    (tmp_path / "bird" / "notes.txt").touch()
    (tmp_path / "labels.csv").touch()
    data = load("image_folder", path=str(tmp_path), size=4)
    assert data.classes == ("bird", "cat", "dog")
    assert data.train.y.tolist() == [0, 1, 2, 2]
    assert data.train.y.dtype == torch.int64
    assert data.train.x.shape == (4, 3, 4, 4)
    assert data.train.x.dtype == torch.uint8
    assert data.train.x.is_contiguous()
    assert [x[:, 0, 0].tolist() for x in data.train.x] == [[8] * 3, [7] * 3, [4, 5, 6], [1, 2, 3]]
    assert data.test is None
    assert load("image_folder", path=tmp_path).train.x.shape == (4, 3, 32, 32)
    gray = load("image_folder", path=tmp_path, size=2, gray=True)
    assert gray.train.x.shape == (4, 1, 2, 2)
    assert gray.train.x[:, 0, 0, 0].tolist() == [8, 7, 5, 2]  # 0.299 red + 0.587 green + 0.114 blue
    same(data, load("image_folder", path=tmp_path, size=4))


def test_pixels_stay_where_they_are_and_the_middle_is_kept(tmp_path):
    wide = np.arange(4 * 8 * 3).reshape(4, 8, 3)
    draw(tmp_path / "a" / "wide.png", wide, size=(4, 8))
    draw(tmp_path / "b" / "tall.png", wide.transpose(1, 0, 2), size=(8, 4))
    data = load("image_folder", path=tmp_path, size=4)
    assert data.train.x[0].tolist() == wide[:, 2:6].transpose(2, 0, 1).tolist()
    assert data.train.x[1].tolist() == wide.transpose(1, 0, 2)[2:6].transpose(2, 0, 1).tolist()
    half = load("image_folder", path=tmp_path, size=2).train.x[0].float()  # the shorter side from 4 to 2
    middle = torch.from_numpy(wide[:, 2:6].transpose(2, 0, 1).copy()).float()
    expected = torch.nn.functional.interpolate(middle[None], size=(2, 2), mode="bilinear", antialias=True)[0]
    # the crop's two outer columns weigh in differently: the whole picture is scaled, then cut
    assert (half - expected).abs().max() <= 3


def test_a_picture_is_turned_as_its_camera_noted(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright: turn by 90 degrees clockwise
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[:4] = 255  # light above
    for name in ("a", "b"):
        draw(tmp_path / name / "x.png", pixels, size=(8, 8), exif=exif)
    x = load("image_folder", path=tmp_path, size=8).train.x[0, 0]
    assert (x[:, :4] == 0).all()
    assert (x[:, 4:] == 255).all()  # now on the right


def test_image_folder_with_a_test_set(tmp_path):
    for part, names in (("train", "abc"), ("test", "ac")):
        for k, name in enumerate(names):
            draw(tmp_path / part / name / "x.png", 10 * k + len(part), "L")
    data = load("image_folder", path=tmp_path, size=4, gray=True)
    assert data.test is not None
    assert data.classes == ("a", "b", "c")
    assert data.train.y.tolist() == [0, 1, 2]
    assert data.test.y.tolist() == [0, 2]
    assert data.train.x[:, 0, 0, 0].tolist() == [5, 15, 25]
    assert data.test.x[:, 0, 0, 0].tolist() == [4, 14]
    draw(tmp_path / "test" / "d" / "x.png", 0, "L")
    line = refusal("image_folder", path=tmp_path)
    assert line == f"data.path = {tmp_path / 'test' / 'd'}: no such class in {tmp_path / 'train'}; it has: a, b, c"


def deep_png(kind: int, channels: int) -> bytes:
    """Return a PNG of one pixel with 16 bits per channel, in colour or with transparency."""
    header, pixel = struct.pack(">IIBBBBB", 1, 1, 16, kind, 0, 0, 0), zlib.compress(b"\0" + b"\x0f\xff" * channels)
    chunks = ((b"IHDR", header), (b"IDAT", pixel), (b"IEND", b""))
    parts = (struct.pack(">I", len(of)) + name + of + struct.pack(">I", zlib.crc32(name + of)) for name, of in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def planes_tiff(bits: int) -> bytes:
    """Return a TIFF of one pixel, 7 8 9, whose three colours stand apart."""
    end = 10 + 12 * 10 + 4
    entries = [
        (256, 1, 1), (257, 1, 1), (258, 3, end), (259, 1, 1), (262, 1, 2), (273, 3, end + 6), (277, 1, 3), (278, 1, 1),
        (279, 3, end + 12), (284, 1, 2),
    ]  # fmt: skip
    fields = b"".join(struct.pack("<HHII", tag, 3, count, value) for tag, count, value in entries)
    planes = [np.array([value], f"<u{bits // 8}").tobytes() for value in (7, 8, 9)]
    starts = [end + 18 + len(planes[0]) * k for k in range(3)]
    return (
        b"II*\0"
        + struct.pack("<IH", 8, 10)
        + fields
        + bytes(4)
        + struct.pack("<9H", *[bits] * 3, *starts, *[len(planes[0])] * 3)
        + b"".join(planes)
    )


def test_image_folder_refused(tmp_path):
    folder = tmp_path / "d"
    assert "no such folder" in refusal("image_folder", path=folder)
    folder.mkdir()
    assert refusal("image_folder", path=folder).startswith(f"data.path = {folder}: 0 folders with pictures")
    draw(folder / "a" / "x.png", 0)
    assert refusal("image_folder", path=folder).startswith(f"data.path = {folder}: 1 folders with pictures")
    (folder / "b").mkdir()
    line = refusal("image_folder", path=folder)
    assert line.startswith(f"data.path = {folder / 'b'}: no picture (.jpg")
    file = draw(folder / "b" / "x.jpg", 0, size=(64, 64))
    whole = file.read_bytes()
    for raw in (b"", b"<html>404</html>", whole[:-100]):
        file.write_bytes(raw)
        assert refusal("image_folder", path=folder).startswith(f"data.path = {file}: cannot be used (")
    file.unlink()
    deep = folder / "b" / "x.png"
    Image.fromarray(np.full((4, 4), 40000, np.uint16)).save(deep)
    assert f"data.path = {deep}: cannot be used (it has more than 8 bits" in refusal("image_folder", path=folder)
    for kind, channels in ((2, 3), (4, 2), (6, 4)):
        deep.write_bytes(deep_png(kind, channels))
        assert f"data.path = {deep}: cannot be used (it has more than 8 bits" in refusal("image_folder", path=folder)
    deep.unlink()
    deep = folder / "b" / "x.tif"
    deep.write_bytes(planes_tiff(16))
    assert f"data.path = {deep}: cannot be used (it has more than 8 bits" in refusal("image_folder", path=folder)
    Image.new("L", (1, 1), 7).save(deep, tiffinfo={339: 2})
    assert "or signed ones (mode L)" in refusal("image_folder", path=folder)
    deep.write_bytes(planes_tiff(8))
    assert load("image_folder", path=folder, size=1).train.x[1].tolist() == [[[7]], [[8]], [[9]]]
    deep.unlink()
    deep = folder / "b" / "x.png"
    (folder / "b" / "x.ppm").write_bytes(b"P6 1 1 4095\n" + b"\x0f\xff" * 3)  # which says its largest value
    assert load("image_folder", path=folder, size=1).train.x[1].tolist() == [[[255]]] * 3
    (folder / "b" / "x.ppm").unlink()
    draw(deep, 0)
    assert refusal("image_folder", path=folder, size=0).startswith("data.size = 0: must be 1 to 1024")
    for part in ("train", "test"):
        (tmp_path / "e" / part).mkdir(parents=True)
    assert refusal("image_folder", path=tmp_path / "e").startswith(f"data.path = {tmp_path / 'e'}: 0 folders")
    for name in "ab":
        draw(tmp_path / "e" / "train" / name / "x.png", 0)
    line = refusal("image_folder", path=tmp_path / "e")
    assert line.startswith(f"data.path = {tmp_path / 'e' / 'test'}: no folder of a class")
