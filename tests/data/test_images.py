"""Sets of grey images in idx files, and USPS."""

import bz2
import hashlib
import re
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from dataset_files import NOWHERE, REAL, idx, real, refusal, same, serving, written, zipped

from fedcore.data import load
from fedcore.data.images import SUBSETS, TEST, TRAIN, WRITERS


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """A data folder with 20 training and 10 test images."""
    return written(tmp_path)


def test_mnist_plain_and_gzipped_files_give_the_same(mnist):
    plain = load("mnist", root=mnist, download=False)
    assert plain.train.x.shape == (20, 1, 28, 28)
    assert plain.train.x.dtype == torch.uint8
    assert plain.train.y.tolist() == [*range(10)] * 2
    assert plain.test is not None
    assert len(plain.test) == 10
    first = (mnist / "MNIST" / "raw" / TRAIN[0]).read_bytes()[16 : 16 + 784]
    assert plain.train.x[0].flatten().tolist() == list(first)
    zipped(mnist / "MNIST" / "raw")
    same(plain, load("mnist", root=str(mnist), download=False))


@pytest.mark.parametrize("name", TRAIN + TEST)
def test_mnist_missing_file(mnist, name):
    (mnist / "MNIST" / "raw" / name).unlink()
    line = refusal("mnist", root=mnist, download=False)
    assert f"MNIST/raw/{name} " in line
    assert "missing" in line
    assert "data.download" in line


DAMAGE = {
    "truncated": (lambda raw: raw[:-1], "after its header where"),
    "too long": (lambda raw: raw + b"\0", "after its header where"), "no header": (lambda raw: raw[:6], "no idx file"),
    "empty": (lambda raw: b"", "no idx file"), "wrong magic": (lambda raw: b"\0\0\x0d" + raw[3:], "no idx file"),
    "html": (lambda raw: b"<html>404</html>", "no idx file"),
    "no examples": (lambda raw: raw[:4] + bytes(4) + raw[8 : 4 + 4 * raw[3]], "is empty"),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAIN)
@pytest.mark.parametrize("damage", DAMAGE)
def test_mnist_damaged_file(mnist, name, damage):
    file = mnist / "MNIST" / "raw" / name
    change, why = DAMAGE[damage]
    file.write_bytes(change(file.read_bytes()))
    line = refusal("mnist", root=mnist, download=False)
    assert "MNIST/raw/train-" in line
    assert why in line
    assert "replace it" in line


@pytest.mark.parametrize("keep", [0, 5, -9, -1])
def test_mnist_damaged_gzip(mnist, keep):
    zipped(mnist / "MNIST" / "raw")
    file = mnist / "MNIST" / "raw" / f"{TRAIN[1]}.gz"
    file.write_bytes(file.read_bytes()[:keep])
    assert f"MNIST/raw/{TRAIN[1]}.gz" in refusal("mnist", root=mnist, download=False)


def test_mnist_files_that_do_not_fit_each_other(mnist):
    raw = mnist / "MNIST" / "raw"
    good = (raw / TRAIN[1]).read_bytes()
    (raw / TRAIN[1]).write_bytes(idx(np.zeros(19, np.uint8)))
    assert "19 labels for 20 images" in refusal("mnist", root=mnist, download=False)
    (raw / TRAIN[1]).write_bytes(idx(np.full(20, 10, np.uint8)))
    assert "the label 10, but labels are 0 to 9" in refusal("mnist", root=mnist, download=False)
    (raw / TRAIN[1]).write_bytes(good)
    (raw / TRAIN[0]).write_bytes(idx(np.zeros((20, 16, 16), np.uint8)))
    assert "(16, 16) pixels" in refusal("mnist", root=mnist, download=False)


@pytest.mark.slow  # imports torchvision
def test_mnist_download(mnist, tmp_path_factory, monkeypatch):
    expected = load("mnist", root=mnist, download=False)
    zipped(mnist / "MNIST" / "raw")
    files = sorted((mnist / "MNIST" / "raw").iterdir())
    torchvision = pytest.importorskip("torchvision")
    source = torchvision.datasets.MNIST
    sums = [(file.name, hashlib.md5(file.read_bytes()).hexdigest()) for file in files]
    monkeypatch.setattr(source, "resources", sums)

    monkeypatch.setattr(source, "mirrors", [f"{NOWHERE}/"])
    line = refusal("mnist", root=tmp_path_factory.mktemp("offline"), download=True)
    assert "download failed" in line
    assert "MNIST/raw" in line

    with serving(files[0].parent) as address:
        monkeypatch.setattr(source, "mirrors", [f"{address}/"])
        same(expected, load("mnist", root=tmp_path_factory.mktemp("online"), download=True))


@pytest.mark.slow
@real
def test_mnist_itself():
    mnist = load("mnist", root=REAL, download=False)
    assert mnist.test is not None
    assert mnist.train.x.shape == (60000, 1, 28, 28)
    assert mnist.train.y.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert mnist.test.y.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert mnist.train.inputs().mean().item() == pytest.approx(0.1307, abs=1e-4)  # the mean that everyone subtracts


# writers


def write_writers(root: Path, rows: np.ndarray) -> Path:
    file = root / WRITERS
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(idx(rows.astype(np.int32)))
    return file


def rows_of(count: int = 20) -> np.ndarray:
    """Rows as QMNIST's: the digit, a series, the writer (3, 4, 1000 or 1001), the rest."""
    digit = np.arange(count) % 10
    writer = np.array([3, 1000, 4, 1001])[np.arange(count) % 4]
    return np.stack([digit, np.full(count, 4), writer, *np.zeros((5, count), int)], axis=1)


def test_mnist_writers(mnist):
    plain = load("mnist", root=mnist, download=False)
    assert plain.device is None
    file = write_writers(mnist, rows_of())
    data = load("mnist", root=mnist, download=False, writers=True)
    assert data.device == ("writer-0003", "writer-1000", "writer-0004", "writer-1001") * 5
    torch.testing.assert_close(data.train.x, plain.train.x, rtol=0, atol=0)
    zipped(file.parent)
    same(data, load("mnist", root=mnist, download=False, writers=True))


def test_mnist_writers_refused(mnist):
    line = refusal("mnist", root=mnist, download=False, writers=True)
    assert line.startswith(f"data.root = {mnist}: {WRITERS} (plain or .gz) is missing")
    rows = rows_of()
    rows[7, 0] = 8
    write_writers(mnist, rows)
    assert "its digits are not the labels" in refusal("mnist", root=mnist, download=False, writers=True)
    write_writers(mnist, rows_of(19))
    assert "its digits are not the labels" in refusal("mnist", root=mnist, download=False, writers=True)
    write_writers(mnist, rows_of()[:, :2])
    assert "has 2 columns" in refusal("mnist", root=mnist, download=False, writers=True)
    file = write_writers(mnist, rows_of())
    file.write_bytes(file.read_bytes()[:-1])
    said = refusal("mnist", root=mnist, download=False, writers=True)
    assert "has 639 bytes after its header where (20, 8) needs 640" in said
    file.write_bytes(idx(rows_of().astype(np.uint8)))
    assert "is no idx file of int32" in refusal("mnist", root=mnist, download=False, writers=True)


@real
@pytest.mark.slow
def test_writers_of_mnist_itself():
    device = load("mnist", root=REAL, download=False, writers=True).device
    assert device is not None
    _, counts = np.unique(device, return_counts=True)
    assert (len(counts), counts.min(), counts.max(), np.median(counts)) == (539, 19, 131, 116)


# Fashion-MNIST and EMNIST


def test_fashion_mnist(tmp_path):
    root = written(tmp_path, "FashionMNIST")
    data = load("fashion_mnist", root=root, download=False)
    assert data.train.y.tolist() == [*range(10)] * 2
    assert data.classes[0] == "T-shirt/top"
    assert data.classes[9] == "Ankle boot"
    last = (root / "FashionMNIST" / "raw" / TEST[0]).read_bytes()[-784:]
    assert data.test is not None
    assert data.test.x[-1].flatten().tolist() == list(last)
    zipped(root / "FashionMNIST" / "raw")
    same(data, load("fashion_mnist", root=root, download=False))
    (root / "FashionMNIST" / "raw" / f"{TEST[1]}.gz").unlink()
    assert f"FashionMNIST/raw/{TEST[1]} (plain or .gz)" in refusal("fashion_mnist", root=root, download=False)


def emnist(root: Path, subset: str, classes: int, first: int = 0) -> Path:
    train, test = (
        [f"emnist-{subset}-{part}-{what}" for what in ("images-idx3-ubyte", "labels-idx1-ubyte")]
        for part in ("train", "test")
    )
    return written(root, "EMNIST", train, test, classes, first)


CASES = {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}


@pytest.mark.parametrize("subset", SUBSETS)
def test_emnist(tmp_path, subset):
    classes = CASES[subset]
    root = emnist(tmp_path, subset, classes, first=int(subset == "letters"))
    data = load("emnist", root=root, download=False, subset=subset)
    assert data.train.y.tolist() == [*range(classes)] * 2  # letters, too, count from 0 now
    assert len(data.classes) == classes
    stored = (root / "EMNIST" / "raw" / f"emnist-{subset}-train-images-idx3-ubyte").read_bytes()[16 : 16 + 784]
    upright = [stored[28 * column + row] for row in range(28) for column in range(28)]
    assert data.train.x[0].flatten().tolist() == upright
    zipped(root / "EMNIST" / "raw")
    same(data, load("emnist", root=str(root), download=False, subset=subset))


def test_emnist_names_of_classes(tmp_path):
    torchvision = {  # as in its EMNIST.classes_split_dict, without the unused first letter
        "byclass": "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
        "bymerge": "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt",
        "balanced": "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt",
        "letters": "abcdefghijklmnopqrstuvwxyz", "digits": "0123456789", "mnist": "0123456789",
    }  # fmt: skip
    assert {name: "".join(classes) for name, classes in SUBSETS.items()} == torchvision
    assert load("emnist", root=emnist(tmp_path, "byclass", 62), download=False).classes[10] == "A"


def test_emnist_refused(tmp_path):
    line = refusal("emnist", root=tmp_path, download=False, subset="letter")
    assert line.startswith("data.subset = 'letter': did you mean letters? allowed: byclass, bymerge")
    said = refusal("emnist", root=tmp_path, download=False, subset="letters")
    assert "EMNIST/raw/emnist-letters-train-images-idx3-ubyte (plain or .gz) is missing" in said
    emnist(tmp_path, "letters", 26)  # from 0
    line = refusal("emnist", root=tmp_path, download=False, subset="letters")
    assert "has the label 0, but labels are 1 to 26" in line


# USPS


def usps_line(label: int, values: np.ndarray) -> str:
    return f"{label} " + " ".join(f"{i + 1}:{v:.6f}" for i, v in enumerate(values)) + " \n"


@pytest.fixture
def usps(tmp_path: Path) -> Path:
    """Ten training images with values of both ends, and five for the test."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "USPS"
    folder.mkdir()
    for name, count in (("usps.bz2", 10), ("usps.t.bz2", 5)):
        values = rng.uniform(-1, 1, (count, 256))
        values[:, :3] = -1, 0, 1
        text = "".join(usps_line(k % 10 + 1, row) for k, row in enumerate(values))
        (folder / name).write_bytes(bz2.compress(text.encode()))
    return tmp_path


def test_usps(usps):
    data = load("usps", root=usps, download=False)
    assert data.test is not None
    assert data.train.x.shape == (10, 1, 16, 16)
    assert data.test.x.shape == (5, 1, 16, 16)
    assert data.train.y.tolist() == [*range(10)]  # in the files 1 to 10
    for name, part in (("usps.bz2", data.train), ("usps.t.bz2", data.test)):
        text = bz2.decompress((usps / "USPS" / name).read_bytes()).decode()
        v = np.array(re.findall(r":(\S+)", text), np.float32).reshape(-1, 1, 16, 16)
        assert part.x.tolist() == ((v + 1) / 2 * 255).astype(np.uint8).tolist()  # torchvision's
    assert data.train.x[0, 0, 0, :3].tolist() == [0, 127, 255]


def test_usps_scaled(usps):
    from PIL import Image

    small = load("usps", root=usps, download=False)
    same(small, load("usps", root=usps, download=False, size=16))
    for size in (28, 8):
        data = load("usps", root=usps, download=False, size=size)
        assert data.train.x.shape == (10, 1, size, size)
        assert data.test is not None
        image = Image.fromarray(small.train.x[3, 0].numpy()).resize((size, size), Image.Resampling.BILINEAR)
        apart = (data.train.x[3, 0].int() - torch.from_numpy(np.array(image)).int()).abs().max()
        assert apart <= 1  # two libraries that round at different places


USPS_DAMAGE = {
    "truncated": (lambda raw: raw[:-5], "cannot be read"),
    "html": (lambda raw: b"<html>404</html>", "cannot be read"),
    "empty": (lambda raw: b"", "cannot be read"),
    "no examples": (lambda raw: bz2.compress(b""), "0 labels for 0 images"),
    "words": (lambda raw: bz2.compress(b"1 1:oops \n"), "cannot be read"),
    "a missing pixel": (lambda raw: bz2.compress(usps_line(1, np.zeros(255)).encode()), "without all 256"),
    "a pixel too many": (lambda raw: bz2.compress(usps_line(1, np.zeros(257)).encode()), "cannot be read"),
    "a large value": (lambda raw: bz2.compress(usps_line(1, np.full(256, 1.1)).encode()), "outside [-1, 1]"),
    "nan": (lambda raw: bz2.compress(usps_line(1, np.full(256, np.nan)).encode()), "outside [-1, 1]"),
    "label 0": (lambda raw: bz2.compress(usps_line(0, np.zeros(256)).encode()), "the label 0, but labels are 1 to 10"),
}


@pytest.mark.parametrize("damage", USPS_DAMAGE)
@pytest.mark.slow
def test_usps_refused(usps, damage):
    file = usps / "USPS" / "usps.t.bz2"
    change, why = USPS_DAMAGE[damage]
    file.write_bytes(change(file.read_bytes()))
    line = refusal("usps", root=usps, download=False)
    assert line.startswith(f"data.root = {usps}: USPS/usps.t.bz2 ")
    assert why in line


def test_usps_missing_or_of_no_size(usps):
    (usps / "USPS" / "usps.t.bz2").unlink()
    assert ": USPS/usps.t.bz2 is missing" in refusal("usps", root=usps, download=False)
    for size in (0, -3, 5000):
        said = refusal("usps", root=usps, download=False, size=size)
        assert said.startswith(f"data.size = {size}: must be 1 to 1024")


@pytest.mark.slow
@real
def test_usps_itself():
    data = load("usps", root=REAL, download=False)
    assert data.test is not None
    assert data.train.y.bincount().tolist() == [1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644]
    assert data.test.y.bincount().tolist() == [359, 264, 198, 166, 200, 160, 170, 147, 166, 177]


# downloads


@pytest.mark.slow  # imports torchvision
def test_downloads(tmp_path, usps, monkeypatch):
    sets = pytest.importorskip("torchvision").datasets

    def md5(file: Path) -> str:
        return hashlib.md5(file.read_bytes()).hexdigest()

    served = tmp_path / "served"
    writers = write_writers(written(served), rows_of())
    zipped(writers.parent)
    writers = writers.with_name(f"{writers.name}.gz")
    written(served, "FashionMNIST")
    zipped(served / "FashionMNIST" / "raw")
    clothes = sorted((served / "FashionMNIST" / "raw").iterdir())
    letters = emnist(tmp_path / "letters", "letters", 26, first=1) / "EMNIST" / "raw"
    zipped(letters)
    with ZipFile(served / "gzip.zip", "w") as archive:
        for file in letters.iterdir():
            archive.write(file, f"gzip/{file.name}")
    digits = sorted((usps / "USPS").iterdir())
    with serving(tmp_path) as address:
        monkeypatch.setitem(
            sets.QMNIST.resources,
            "train",
            [("nobody asks for the images", ""), (f"{address}/served/QMNIST/raw/{writers.name}", md5(writers))],
        )
        monkeypatch.setattr(sets.FashionMNIST, "mirrors", [f"{address}/served/FashionMNIST/raw/"])
        monkeypatch.setattr(sets.FashionMNIST, "resources", [(file.name, md5(file)) for file in clothes])
        monkeypatch.setattr(sets.EMNIST, "url", f"{address}/served/gzip.zip")
        monkeypatch.setattr(sets.EMNIST, "md5", md5(served / "gzip.zip"))
        monkeypatch.setattr(
            sets.USPS, "split_list", {f.name: (f"{address}/USPS/{f.name}", f.name, md5(f)) for f in digits}
        )
        there = written(tmp_path / "there")
        data = load("mnist", root=there, download=True, writers=True)
        assert data.device == ("writer-0003", "writer-1000", "writer-0004", "writer-1001") * 5
        assert len(load("fashion_mnist", root=there, download=True).train) == 20
        same(
            load("emnist", root=there, download=True, subset="letters"),
            load("emnist", root=tmp_path / "letters", download=False, subset="letters"),
        )
        same(load("usps", root=there, download=True), load("usps", root=usps, download=False))
        monkeypatch.setattr(sets.USPS, "split_list", {"test": (f"{NOWHERE}/none", "usps.t.bz2", "0")})
        rebuilt = there / "USPS" / "usps.bz2"
        rebuilt.write_bytes(bz2.compress(bz2.decompress(rebuilt.read_bytes()), 1))  # another MD5
        same(load("usps", root=there, download=True), load("usps", root=usps, download=False))
        (there / "USPS" / "usps.t.bz2").unlink()
        line = refusal("usps", root=there, download=True)
        assert "USPS is not there and the download failed" in line
        assert "into USPS," in line
