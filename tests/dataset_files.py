"""Small files of published sets, as the tests of the loaders write them."""

import gzip
import json
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial, wraps
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch

from fedcore.data import Dataset, cwru, domains, images, load
from fedcore.data.images import TEST, TRAIN
from fedcore.errors import InputError

REAL = Path(os.environ.get("FEDCORE_DATA", "."))
real = pytest.mark.skipif(
    "FEDCORE_DATA" not in os.environ, reason="FEDCORE_DATA names no data folder: real sets not read"
)
CASES = REAL.parent / "cases"
cases = pytest.mark.skipif(not CASES.is_dir(), reason="no folder cases beside FEDCORE_DATA: people's cases not read")


def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what is read of the published sets' files: the studies and the pages' runs read the same ones many times."""
    for module, name in ((images, "read_examples"), (domains, "mnist_m"), (cwru, "read_signals")):
        monkeypatch.setattr(module, name, kept(getattr(module, name)))


def kept(read: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that reads once with the same arguments."""
    results = cache(read)
    return wraps(read)(lambda *args, **settings: results(*args, **settings))


def refusal(name: str, **settings: object) -> str:
    """Return the one line with which a dataset is refused."""
    with pytest.raises(InputError) as caught:
        load(name, **settings)
    line = str(caught.value)
    assert "\n" not in line
    return line


def idx(values: np.ndarray) -> bytes:
    kind = 8 if values.dtype == np.uint8 else 12
    big = values.astype(values.dtype.newbyteorder(">"))
    return bytes((0, 0, kind, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape) + big.tobytes()


def written(root: Path, folder: str = "MNIST", train=TRAIN, test=TEST, classes: int = 10, first: int = 0) -> Path:
    """Write a set of 2 * classes training and `classes` test images below `root`."""
    rng = np.random.default_rng(0)
    raw = root / folder / "raw"
    raw.mkdir(parents=True)
    for names, count in ((train, 2 * classes), (test, classes)):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % classes + first).astype(np.uint8)
        for name, values in zip(names, (images, labels), strict=True):
            (raw / name).write_bytes(idx(values))
    return root


def zipped(folder: Path) -> None:
    """Replace every file of a folder by its gzip-ed form."""
    for file in list(folder.iterdir()):
        file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes(), mtime=0))
        file.unlink()


def same(one: Dataset, other: Dataset) -> None:
    for a, b in ((one.train, other.train), (one.test, other.test)):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            torch.testing.assert_close(a.x, b.x, rtol=0, atol=0)
            torch.testing.assert_close(a.y, b.y, rtol=0, atol=0)
    assert (one.classes, one.device, one.split, one.domain) == (other.classes, other.device, other.split, other.domain)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None: ...


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve a folder; gives its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


NOWHERE = "http://127.0.0.1:9"  # nobody answers: as without a network


def leaf_file(file: Path, users: dict[str, tuple[list, list]]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    data = {name: {"x": x, "y": y} for name, (x, y) in users.items()}
    counts = [len(y) for _, y in users.values()]
    file.write_text(json.dumps({"users": list(users), "num_samples": counts, "user_data": data}))
    return file


def drawn(*values: float) -> list[list[float]]:
    """Images whose first pixel of the second row has this value, all others are paper."""
    return [[1.0] * 28 + [value] + [1.0] * 755 for value in values]
