"""Every loader, on files that the test writes (and MNIST itself where FEDCORE_DATA names a data folder)."""

import gzip
import hashlib
import os
import struct
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pandas as pd
import pytest
import torch

from fedcore.data import Dataset, load
from fedcore.data.images import TEST, TRAIN
from fedcore.types import Refused


def refusal(name: str, **settings: object) -> str:
    """Return the one line with which a dataset is refused."""
    with pytest.raises(Refused) as caught:
        load(name, **settings)
    line = str(caught.value)
    assert "\n" not in line
    return line


# the registry and the embedded digits


def test_unknown_dataset_is_refused_with_the_nearest_name():
    line = refusal("minst")
    assert "data.name = 'minst'" in line
    assert "did you mean 'mnist'" in line
    assert "digits, mnist, table" in line


def test_a_setting_that_a_loader_does_not_take_is_refused():
    line = refusal("table", path="a.csv", label="y", sep=";")
    assert "'sep'" in line
    assert "path, label, device, split, features" in line


def test_digits():
    digits = load("digits")
    assert digits.train.x.shape == (1797, 1, 8, 8)
    assert digits.train.x.dtype == torch.float32
    assert digits.train.y.dtype == torch.int64
    assert digits.test is None
    assert digits.classes == tuple("0123456789")
    sixteenths = digits.train.inputs() * 16
    assert sixteenths.unique().tolist() == list(range(17))  # 0..16 dark pixels, nothing lost
    assert digits.train.y.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


# idx files


def idx(values: np.ndarray) -> bytes:
    return bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """A data folder with 20 training and 10 test images; the test images are gzip-ed."""
    rng = np.random.default_rng(0)
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for names, count in ((TRAIN, 20), (TEST, 10)):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        for name, values in zip(names, (images, (np.arange(count) % 10).astype(np.uint8)), strict=True):
            (raw / name).write_bytes(idx(values))
    return tmp_path


def same(one: Dataset, other: Dataset) -> None:
    for a, b in ((one.train, other.train), (one.test, other.test)):
        assert a is not None
        assert b is not None
        torch.testing.assert_close(a.x, b.x, rtol=0, atol=0)
        torch.testing.assert_close(a.y, b.y, rtol=0, atol=0)


def zipped(root: Path) -> None:
    """Replace every file by its gzip-ed form."""
    for file in list((root / "MNIST" / "raw").iterdir()):
        file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes(), mtime=0))
        file.unlink()


def test_mnist_plain_and_gzipped_files_give_the_same(mnist):
    plain = load("mnist", root=mnist, download=False)
    assert plain.train.x.shape == (20, 1, 28, 28)
    assert plain.train.x.dtype == torch.uint8
    assert plain.train.y.tolist() == [*range(10)] * 2
    assert plain.test is not None
    assert len(plain.test) == 10
    first = (mnist / "MNIST" / "raw" / TRAIN[0]).read_bytes()[16 : 16 + 784]
    assert plain.train.x[0].flatten().tolist() == list(first)
    zipped(mnist)
    same(plain, load("mnist", root=str(mnist), download=False))


@pytest.mark.parametrize("name", TRAIN + TEST)
def test_mnist_missing_file(mnist, name):
    (mnist / "MNIST" / "raw" / name).unlink()
    line = refusal("mnist", root=mnist, download=False)
    assert f"MNIST/raw/{name} " in line
    assert "missing" in line
    assert "data.download" in line


DAMAGE = {
    "truncated": (lambda raw: raw[:-1], "where its header"),
    "too long": (lambda raw: raw + b"\0", "where its header"),
    "no header": (lambda raw: raw[:6], "no idx file"),
    "empty": (lambda raw: b"", "no idx file"),
    "wrong magic": (lambda raw: b"\0\0\x0d" + raw[3:], "no idx file"),
    "html": (lambda raw: b"<html>404</html>", "no idx file"),
    "no examples": (lambda raw: raw[:4] + bytes(4) + raw[8 : 4 + 4 * raw[3]], "labels for"),
}


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
    zipped(mnist)
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


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None: ...


@pytest.mark.slow  # imports torchvision
def test_mnist_download(mnist, tmp_path_factory, monkeypatch):
    expected = load("mnist", root=mnist, download=False)
    zipped(mnist)
    files = sorted((mnist / "MNIST" / "raw").iterdir())
    torchvision = pytest.importorskip("torchvision")
    source = torchvision.datasets.MNIST
    sums = [(file.name, hashlib.md5(file.read_bytes()).hexdigest()) for file in files]
    monkeypatch.setattr(source, "resources", sums)

    monkeypatch.setattr(source, "mirrors", ["http://127.0.0.1:9/"])  # nobody answers: as without a network
    line = refusal("mnist", root=tmp_path_factory.mktemp("offline"), download=True)
    assert "download failed" in line
    assert "MNIST/raw" in line

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=files[0].parent)) as server:
        Thread(target=server.serve_forever).start()
        monkeypatch.setattr(source, "mirrors", [f"http://127.0.0.1:{server.server_port}/"])
        same(expected, load("mnist", root=tmp_path_factory.mktemp("online"), download=True))
        server.shutdown()


@pytest.mark.skipif("FEDCORE_DATA" not in os.environ, reason="FEDCORE_DATA names no data folder: MNIST itself not read")
def test_mnist_itself():
    mnist = load("mnist", root=os.environ["FEDCORE_DATA"], download=False)
    assert mnist.test is not None
    assert mnist.train.x.shape == (60000, 1, 28, 28)
    assert mnist.train.y.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert mnist.test.y.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert mnist.train.inputs().mean().item() == pytest.approx(0.1307, abs=1e-4)  # the mean that everyone subtracts


# tables

ROWS = pd.DataFrame(
    {
        "a": [1.5, 2.5, -3.0, 4.0],
        "b": [1, 2, 3, 4],
        "kind": ["ok", "bad", "ok", "bad"],
        "who": ["north", "south", "north", "south"],
        "part": ["train", "train", "test", "val"],
    }
)


def written(rows: pd.DataFrame, file: Path) -> Path:
    file.parent.mkdir(exist_ok=True)
    if file.suffix == ".csv":
        rows.to_csv(file, index=False)
    else:
        rows.to_parquet(file)
    return file


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_table(tmp_path, suffix):
    file = written(ROWS, tmp_path / f"t{suffix}")
    data = load("table", path=file, label="kind", device="who", split="part")
    assert data.train.x.tolist() == [[1.5, 1], [2.5, 2], [-3, 3], [4, 4]]
    assert data.train.x.dtype == torch.float32
    assert data.train.y.tolist() == [1, 0, 1, 0]
    assert data.test is None
    assert data.classes == ("bad", "ok")
    assert data.device == ("north", "south", "north", "south")
    assert data.split == ("train", "train", "test", "val")
    plain = load("table", path=str(file), label="kind", features=["b"])
    assert plain.train.x.tolist() == [[1], [2], [3], [4]]
    assert (plain.device, plain.split) == (None, None)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([10, 9, 9, 100], ("9", "10", "100")),
        ([1.0, 0.5, -2.0, 1.0], ("-2", "0.5", "1")),
        ([True, False, True, True], ("False", "True")),
        (["b10", "b9", "b9", "a"], ("a", "b10", "b9")),
    ],
)
def test_table_classes_are_sorted(tmp_path, suffix, labels, classes):
    data = load("table", path=written(ROWS.assign(kind=labels), tmp_path / f"t{suffix}"), label="kind")
    assert data.classes == classes
    assert [float(data.classes[k] == str(v).removesuffix(".0")) for k, v in zip(data.train.y, labels, strict=True)] == [
        1
    ] * 4


def test_table_folder_is_a_device_a_file(tmp_path):
    written(ROWS[:3], tmp_path / "d" / "west.csv")
    written(ROWS[3:].assign(kind="new"), tmp_path / "d" / "east.parquet")
    (tmp_path / "d" / ".hidden").touch()
    data = load("table", path=tmp_path / "d", label="kind")
    assert data.device == ("east", "west", "west", "west")
    assert data.classes == ("bad", "new", "ok")
    assert data.train.y.tolist() == [1, 2, 0, 2]
    assert data.train.x[:, 1].tolist() == [4, 1, 2, 3]


def test_table_one_changed_file_leaves_the_others_bit_for_bit(tmp_path):
    for name in ("a", "b"):
        written(ROWS, tmp_path / "d" / f"{name}.csv")
    before = load("table", path=tmp_path / "d", label="kind")
    written(ROWS.assign(a=ROWS.a * 1e6 + 0.1, b=[0.5, 7, 8, 9]), tmp_path / "d" / "a.csv")
    after = load("table", path=tmp_path / "d", label="kind")
    assert not torch.equal(before.train.x[:4], after.train.x[:4])
    torch.testing.assert_close(before.train.x[4:], after.train.x[4:], rtol=0, atol=0)


REFUSED = {
    # name: (content of t.csv, settings, what the line must say)
    "missing label column": ("a,y\n1,0\n2,1\n", {"label": "z"}, ["no column 'z'", "a, y"]),
    "missing feature column": ("a,y\n1,0\n2,1\n", {"features": ["a", "c"]}, ["no column 'c'"]),
    "missing device column": ("a,y\n1,0\n2,1\n", {"device": "d"}, ["no column 'd'"]),
    "nan in a feature": ("a,b,y\n1,1,0\n2,,1\n", {}, ["column 'b', row 2", "'nan'"]),
    "inf in a feature": ("a,y\n1,0\n-inf,1\n", {}, ["column 'a', row 2", "-inf"]),
    "too large for float32": ("a,y\n1,0\n1e300,1\n", {}, ["column 'a', row 2"]),
    "a word among numbers": ("a,b,y\n1,1,0\n2,oops,1\n", {}, ["column 'b', row 2", "'oops'", "data.features"]),
    "a column of words": ("a,b,y\n1,x,0\n2,z,1\n", {"features": ["b"]}, ["column 'b', row 1", "'x'"]),
    "nan in the label": ("a,y\n1,0\n2,1\n3,\n", {}, ["column 'y', row 3"]),
    "inf in the label": ("a,y\n1,0\n2,inf\n", {}, ["column 'y', row 2"]),
    "nan in the device": ("a,d,y\n1,,0\n2,q,1\n", {"device": "d"}, ["column 'd', row 1"]),
    "unknown split": (
        "a,s,y\n1,train,0\n2,dev,1\n",
        {"split": "s"},
        ["column 's', row 2", "'dev'", "train, val, test"],
    ),
    "empty file": ("", {}, ["cannot be read"]),
    "header only": ("a,y\n", {}, ["no rows"]),
    "one row": ("a,y\n1,0\n", {}, ["1 rows"]),
    "one class": ("a,y\n1,0\n2,0\n", {}, ["1 different label", "'y'"]),
    "no feature": ("y,z\n0,p\n1,q\n", {}, ["no column of numbers"]),
    "label as feature": ("a,y\n1,0\n2,1\n", {"features": ["a", "y"]}, ["'y' is there twice"]),
    "row too long": ("a,y\n1,0\n2,1,7\n", {}, ["cannot be read"]),
    "all rows too long": ("a,y\n1,0,5\n2,1,7\n", {}, ["cannot be read"]),
    "line break in a cell": ('a,b,y\n1,1,0\n2,"oo\nps",1\n', {}, ["row 2"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_table_refused(tmp_path, case):
    content, settings, said = REFUSED[case]
    (tmp_path / "t.csv").write_text(content)
    line = refusal("table", path=tmp_path / "t.csv", **{"label": "y", **settings})
    assert line.startswith((f"data.path = {tmp_path / 't.csv'}: ", "data.features = "))
    for words in said:
        assert words in line


def test_table_files_refused(tmp_path):
    assert "no such file" in refusal("table", path=tmp_path / "none.csv", label="y")
    (tmp_path / "t.xlsx").touch()
    assert "'.xlsx'" in refusal("table", path=tmp_path / "t.xlsx", label="y")
    (tmp_path / "t.csv").write_bytes(b"a,y\n\xff\xfe,1\n")
    assert "t.csv" in refusal("table", path=tmp_path / "t.csv", label="y")
    whole = written(ROWS, tmp_path / "t.parquet").read_bytes()
    for keep in range(0, len(whole), 97):
        (tmp_path / "t.parquet").write_bytes(whole[:keep])
        assert "t.parquet: cannot be read" in refusal("table", path=tmp_path / "t.parquet", label="kind")


def test_table_folder_refused(tmp_path):
    folder = tmp_path / "d"
    folder.mkdir()
    assert "empty" in refusal("table", path=folder, label="kind")
    written(ROWS, folder / "a.csv")
    assert "data.device = 'who'" in refusal("table", path=folder, label="kind", device="who")
    written(ROWS.rename(columns={"b": "c"}), folder / "b.csv")
    line = refusal("table", path=folder, label="kind")
    assert "b.csv" in line
    assert "no column 'b'" in line
    written(ROWS.assign(c=1), folder / "b.csv")
    assert "b.csv: column 'c' is not in" in refusal("table", path=folder, label="kind")
    written(ROWS[:0], folder / "b.csv")
    assert "b.csv: no rows" in refusal("table", path=folder, label="kind")
    (folder / "b.csv").unlink()
    written(ROWS, folder / "a.parquet")
    assert "two files are named 'a'" in refusal("table", path=folder, label="kind")
    (folder / "a.parquet").rename(folder / "notes.txt")
    assert "notes.txt" in refusal("table", path=folder, label="kind")
