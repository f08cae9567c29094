"""Small files of every kind of data, and damage to their bytes."""

import bz2
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from dataset_files import written
from PIL import Image
from scipy.io import savemat

from fedcore.data import load

LABELS = list("abc") * 10
PIXELS = " ".join(f"{k}:0.5" for k in range(1, 257))


def leaf(**user: Any) -> bytes:
    return json.dumps({"users": ["a"], "user_data": {"a": {"x": [[0.5] * 784], "y": [1], **user}}}).encode()


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
