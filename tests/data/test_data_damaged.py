"""Damaged files of data: each is refused in one line that names it, or read; nothing else comes of it."""

from __future__ import annotations

import bz2
import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from scipy.io import savemat
from sets import refusal, written

from fedcore.data import load
from fedcore.types import InputError

LABELS = list("abc") * 10
PIXELS = " ".join(f"{k}:0.5" for k in range(1, 257))


def leaf(**user: Any) -> bytes:
    return json.dumps({"users": ["a"], "user_data": {"a": {"x": [[0.5] * 784], "y": [1], **user}}}).encode()


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
@pytest.mark.parametrize("sizes", [(2**32 - 1, 0, 2**32 - 1), (2**32 - 1,) * 3, (0, 28, 28)])
def test_an_idx_file_of_odd_sizes_is_refused(tmp_path: Path, name: str, sizes: tuple[int, ...]):
    file = written(tmp_path) / "MNIST" / "raw" / name
    raw = file.read_bytes()
    header = raw[:4] + struct.pack(f">{raw[3]}I", *sizes[: raw[3]])
    file.write_bytes(header)
    assert name in refusal("mnist", root=tmp_path, download=False)


@pytest.mark.parametrize(
    "line",
    [
        f"1 99999999999999999999:1 {PIXELS}",
        f"1 2147483648:1 {PIXELS}",
        f"nan {PIXELS}",
        f"1e300 {PIXELS}",
        f"-inf {PIXELS}",
    ],
)
def test_a_line_of_usps_with_numbers_out_of_range_is_refused(tmp_path: Path, line: str):
    (tmp_path / "USPS").mkdir()
    for name in ("usps.bz2", "usps.t.bz2"):
        (tmp_path / "USPS" / name).write_bytes(bz2.compress(f"{line}\n".encode()))
    assert "USPS/usps.bz2" in refusal("usps", root=tmp_path, download=False)


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        leaf(x=[[10**400] * 784]),
        leaf(x=[[None] * 784]),
        leaf(x=[["a"] * 784]),
        leaf(x={}),
        b'{"users": [[]]}',
    ],
)
def test_json_that_is_no_leaf_is_refused(tmp_path: Path, content: bytes):
    (tmp_path / "all_data").mkdir()
    (tmp_path / "all_data" / "1.json").write_bytes(content)
    assert "all_data/1.json: is not as LEAF writes FEMNIST" in refusal("leaf", path=tmp_path)


ODD = {"list": [[1, 2]] * 30, "struct": [{"a": 1}] * 30, "bytes": [b"\xff"] * 30}


@pytest.mark.parametrize("kind", ODD)
def test_a_parquet_column_of_neither_numbers_nor_names_is_not_read(tmp_path: Path, kind: str):
    file = tmp_path / "t.parquet"
    pq.write_table(pa.table({"u": [i / 2 for i in range(30)], "odd": ODD[kind], "y": LABELS}), file)
    assert load("table", path=file, label="y").train.x.shape == (30, 1)
    said = refusal("table", path=file, label="odd")
    assert said == f"data.path = {file}: no column 'odd'; it has: u, y"


def test_parquet_columns_of_one_name_are_refused(tmp_path: Path):
    file = tmp_path / "t.parquet"
    numbers = pa.array([0.5] * 30)
    pq.write_table(pa.Table.from_arrays([numbers, numbers, pa.array(LABELS)], names=["u", "u", "y"]), file)
    assert "two of them named 'u'" in refusal("table", path=file, label="y")


# any bytes


def mnist_files(root: Path) -> tuple[list[Path], Callable[[], Any]]:
    return sorted((written(root) / "MNIST/raw").iterdir()), lambda: load("mnist", root=root, download=False)


def usps_files(root: Path) -> tuple[list[Path], Callable[[], Any]]:
    files = [root / "USPS" / name for name in ("usps.bz2", "usps.t.bz2")]
    files[0].parent.mkdir()
    for file in files:
        file.write_bytes(bz2.compress(f"1 {PIXELS}\n".encode() * 4))
    return files, lambda: load("usps", root=root, download=False)


def leaf_files(root: Path) -> tuple[list[Path], Callable[[], Any]]:
    (root / "all_data").mkdir()
    (root / "all_data" / "1.json").write_bytes(leaf())
    return [root / "all_data" / "1.json"], lambda: load("leaf", path=root)


def table_files(root: Path, kind: str) -> tuple[list[Path], Callable[[], Any]]:
    frame, file = pd.DataFrame({"u": np.arange(30) / 7, "y": LABELS}), root / f"t.{kind}"
    frame.to_csv(file, index=False) if kind == "csv" else frame.to_parquet(file)
    return [file], lambda: load("table", path=file, label="y")


def record_files(root: Path) -> tuple[list[Path], Callable[[], Any]]:
    file = root / "CWRU" / "105.mat"
    file.parent.mkdir()
    savemat(file, {"X105_DE_time": np.linspace(-1, 1, 2000)[:, None]})
    return [file], lambda: load("cwru", root=root, download=False, window=64, train=5, test=2)


def picture_files(root: Path) -> tuple[list[Path], Callable[[], Any]]:
    files = [root / name for name in ("a/1.png", "a/2.jpg", "b/1.bmp", "b/2.tif")]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(np.arange(300, dtype=np.uint8).reshape(10, 10, 3)).save(file)
    return files, lambda: load("image_folder", path=root, size=8)


SETS: dict[str, Callable[[Path], tuple[list[Path], Callable[[], Any]]]] = {
    "mnist": mnist_files, "usps": usps_files, "leaf": leaf_files, "cwru": record_files, "pictures": picture_files,
    "csv": lambda root: table_files(root, "csv"), "parquet": lambda root: table_files(root, "parquet"),
}  # fmt: skip


def damage(content: bytes, draw: random.Random) -> bytes:
    """Cut a file off, flip bits in it, or put other bytes into its head or middle."""
    found = bytearray(content)
    head = draw.randrange(min(len(found), 64))
    match draw.randrange(5):
        case 0:
            del found[draw.randrange(len(found)) :]
        case 1:
            for _ in range(draw.choice([1, 3, 10])):
                found[draw.randrange(len(found))] ^= 1 << draw.randrange(8)
        case 2:
            found[head : head + 4] = draw.choice([b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff"])
        case 3:
            place = draw.randrange(len(found))
            found[place : place + draw.randrange(8)] = draw.choice(
                [b"nan", b"1e999", b"-1", b"9" * 30, b"[", b"\n", b'"']
            )
        case 4:
            found[head:head] = draw.randbytes(20)
    return bytes(found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the readers, about what they are given
@pytest.mark.parametrize("name", SETS)
def test_damaged_bytes_are_refused_in_one_line_or_read(tmp_path: Path, name: str):
    files, read = SETS[name](tmp_path)
    draw = random.Random(name)
    for number in range(40):
        file = files[number % len(files)]
        whole = file.read_bytes()
        file.write_bytes(damage(whole, draw))
        try:
            read()
        except InputError as refused:
            line = str(refused)
            assert "\n" not in line
            assert str(tmp_path) in line
        file.write_bytes(whole)
    read()  # the whole files are still read
