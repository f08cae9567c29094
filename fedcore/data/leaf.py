"""Sets as LEAF (Caldas et al. 2018) writes them, by user: FEMNIST's handwritten characters, and vectors of numbers.

The format: `<path>/train/*.json` and `<path>/test/*.json`, or `<path>/all_data/*.json`, each
{"users": [name, ...], "user_data": {name: {"x": [[number, ...], ...], "y": [label, ...]}}}. An image of FEMNIST is 784
numbers, written row by row, 0 is ink and 1 paper; labels 0-9 are digits, 10-35 capitals, 36-61 lower-case letters. A
vector of any other length, as in LEAF's synthetic set, has whole numbers as labels.
"""

from __future__ import annotations

import json
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from fedcore.data import Dataset
from fedcore.data.files import one_line
from fedcore.data.pixels import Scaling, scale
from fedcore.types import Data, InputError

CLASSES = (*digits, *ascii_uppercase, *ascii_lowercase)
SIDE = 28


READS = "data.name = 'leaf' reads images of FEMNIST and vectors of numbers"

UserData: TypeAlias = dict[str, tuple[NDArray[np.float32], NDArray[np.int64]]]
"""user -> examples (n, F), labels (n,)"""


def leaf(path: str | Path, scaling: Scaling = "none") -> Dataset:
    """Read a LEAF folder, x (N, 1, 28, 28) float32 as written, or (N, F) of vectors; `device` is the user.

    `split` is the folder, train or test; None for all_data. The classes of vectors are the labels that are there.

    Args:
        path: the folder that LEAF's scripts write.
        scaling: of images, see :func:`fedcore.data.pixels.scale`.
    """
    path = Path(path)
    folders = ("train", "test") if (path / "train").is_dir() else ("all_data",)
    x, y, users, split = [], [], [], []
    size: int | None = None
    for folder in folders:
        files = sorted((path / folder).glob("*.json"))
        if not files:
            raise InputError(f"data.path = {path}: no {folder}/*.json; LEAF writes train and test, or all_data")
        for file in files:
            found, size = read(file, size)
            for user, (examples, labels) in found.items():
                x.append(examples)
                y.append(labels)
                users += [user] * len(labels)
                split += [folder] * len(labels)
    if not users or size is None:
        raise InputError(f"data.path = {path}: no examples; the users of its files have none")
    inputs, labels = (np.concatenate([part for part in parts if len(part)]) for parts in (x, y))
    device, marks = tuple(users), tuple(split) if len(folders) == 2 else None
    if size == SIDE * SIDE:
        images = torch.from_numpy(inputs).reshape(-1, 1, SIDE, SIDE)
        return scale(Dataset(Data(images, torch.from_numpy(labels)), None, CLASSES, device, marks), scaling)
    if scaling != "none":
        raise InputError(
            f"data.scaling = {scaling!r}: must be none, vectors have no pixels; try federation.scale=device"
        )
    classes, places = np.unique(labels, return_inverse=True)
    data = Data(torch.from_numpy(inputs), torch.from_numpy(places.astype(np.int64)))
    return Dataset(data, None, tuple(map(str, classes.tolist())), device, marks)


def read(file: Path, size: int | None) -> tuple[UserData, int | None]:
    """Return each user's examples in one file, and how many numbers one has. size: that of other files."""
    try:
        content = json.loads(file.read_bytes())
        users, held = content["users"], content["user_data"]
        if sorted(users) != sorted(held):
            raise ValueError("its users are not those of user_data")
        found: UserData = {}
        for user in users:
            x, y = held[user]["x"], held[user]["y"]
            if size is None and len(x):
                size = 0 if isinstance(x[0], str) else len(x[0])
            found[user] = examples(user, x, y, SIDE * SIDE if size is None else size)
        return found, size
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError, MemoryError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else one_line(error)
        raise InputError(f"data.path = {file}: cannot be read ({why}); {READS}, as LEAF writes them") from error


def examples(user: str, x: Any, y: Any, size: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return one user's examples of `size` numbers each, checked."""
    what, classes = ("image", len(CLASSES)) if size == SIDE * SIDE else ("vector", 2**31)
    if len(x) != len(y):
        raise ValueError(f"user {user!r} has {len(y)} labels for {len(x)} {what}s")
    if any(isinstance(example, str) for example in x):
        raise ValueError(f"user {user!r} has a text for an example")
    if not all(type(label) is int and 0 <= label < classes for label in y):
        allowed = f"0 to {classes - 1}" if what == "image" else "a whole number"
        raise ValueError(f"user {user!r} has a label that is not {allowed}")
    if not all(len(example) == size > 0 for example in x):
        raise ValueError(f"user {user!r} has {'an image' if what == 'image' else 'a vector'} without {size} numbers")
    with np.errstate(over="ignore"):  # values too large become inf, refused below
        numbers = np.asarray(x, np.float32).reshape(-1, size)
    if not np.isfinite(numbers).all():
        raise ValueError(f"user {user!r} has {'a pixel' if what == 'image' else 'a number'} that is no finite number")
    return numbers, np.asarray(y, np.int64)
