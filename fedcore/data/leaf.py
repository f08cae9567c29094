"""FEMNIST as LEAF (Caldas et al. 2018) prepares it: handwritten characters by writer.

The format: `<path>/train/*.json` and `<path>/test/*.json`, or `<path>/all_data/*.json`, each
{"users": [name, ...], "user_data": {name: {"x": [[784 numbers], ...], "y": [label, ...]}}}; an image is written row by
row, 0 is ink and 1 paper; labels 0-9 are digits, 10-35 capitals, 36-61 lower-case letters.
"""

from __future__ import annotations

import json
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedcore.data import Dataset
from fedcore.data.files import one_line
from fedcore.data.pixels import Scaling, scale
from fedcore.types import Data, InputError

CLASSES = (*digits, *ascii_uppercase, *ascii_lowercase)
SIDE = 28


def leaf(path: str | Path, scaling: Scaling = "none") -> Dataset:
    """Read a LEAF folder, x (N, 1, 28, 28) float32 as written; `device` is the user.

    `split` is the folder, train or test; None for all_data. scaling: see :func:`fedcore.data.pixels.scale`.
    """
    path = Path(path)
    folders = ("train", "test") if (path / "train").is_dir() else ("all_data",)
    x, y, users, split = [], [], [], []
    for folder in folders:
        files = sorted((path / folder).glob("*.json"))
        if not files:
            raise InputError(f"data.path = {path}: no {folder}/*.json; LEAF writes train and test, or all_data")
        for file in files:
            for user, (images, labels) in read(file).items():
                x.append(images)
                y.append(labels)
                users += [user] * len(labels)
                split += [folder] * len(labels)
    if not users:
        raise InputError(f"data.path = {path}: no examples; the users of its files have none")
    data = Data(torch.from_numpy(np.concatenate(x)).reshape(-1, 1, SIDE, SIDE), torch.from_numpy(np.concatenate(y)))
    return scale(Dataset(data, None, CLASSES, tuple(users), tuple(split) if len(folders) == 2 else None), scaling)


def read(file: Path) -> dict[str, tuple[NDArray[np.float32], NDArray[np.int64]]]:
    """Return each user's images (n, 784) and labels (n,) in one file."""
    try:
        content = json.loads(file.read_bytes())
        users, held = content["users"], content["user_data"]
        if sorted(users) != sorted(held):
            raise ValueError("its users are not those of user_data")
        return {user: examples(user, held[user]["x"], held[user]["y"]) for user in users}
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError, MemoryError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else one_line(error)
        raise InputError(f"data.path = {file}: is not as LEAF writes FEMNIST ({why}); make it again") from error


def examples(user: str, x: Any, y: Any) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return one user's examples, checked."""
    if len(x) != len(y):
        raise ValueError(f"user {user!r} has {len(y)} labels for {len(x)} images")
    if not all(type(label) is int and 0 <= label < len(CLASSES) for label in y):
        raise ValueError(f"user {user!r} has a label that is not 0 to {len(CLASSES) - 1}")
    if not all(len(image) == SIDE * SIDE for image in x):
        raise ValueError(f"user {user!r} has an image without {SIDE * SIDE} numbers")
    with np.errstate(over="ignore"):  # values too large become inf, refused below
        images = np.asarray(x, np.float32).reshape(-1, SIDE * SIDE)
    if not np.isfinite(images).all():
        raise ValueError(f"user {user!r} has a pixel that is no finite number")
    return images, np.asarray(y, np.int64)
