"""A user's pictures, one folder per class: `<path>/<class>/<any name>.jpg`, or .png and the other usual types.

`<path>/train/<class>/...` and `<path>/test/<class>/...` together give an official test set.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from fedcore.data import Dataset
from fedcore.data.files import one_line
from fedcore.data.pixels import Scaling, scale, side
from fedcore.data.schema import Schema
from fedcore.types import Data, InputError

TYPES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


def image_folder(path: str | Path, size: int = 32, gray: bool = False, scaling: Scaling = "none") -> Dataset:
    """Return pictures, x (N, 3, size, size) uint8, or (N, 1, size, size) if `gray`.

    Classes and examples are sorted by the names of folders and files. A picture is rotated by its EXIF orientation,
    its shorter side is scaled to `size` (bilinear, antialiased), and its central square is kept; transparency is
    dropped. Hidden files and files of other types are ignored. scaling: see :func:`fedcore.data.pixels.scale`.
    """
    path, wanted = Path(path), side(size)
    folders = subfolders(path)
    paired = [folder.name for folder in folders] == ["test", "train"]
    classes = subfolders(path / "train") if paired else folders
    names = tuple(folder.name for folder in classes)
    if len(names) < 2:
        raise InputError(
            f"data.path = {classes[0].parent if classes else path}: {len(names)} folders with pictures; a folder for "
            "each of at least 2 classes is needed"
        )
    train = squares(classes, names, wanted, gray)
    schema = Schema(tuple(train.x.shape[1:]), "uint8", names)
    if not paired:
        return scale(Dataset(train, None, names, schema=schema), scaling)
    tested = subfolders(path / "test")
    for folder in tested:
        if folder.name not in names:
            raise InputError(f"data.path = {folder}: no such class in {path / 'train'}; it has: {', '.join(names)}")
    if not tested:
        raise InputError(f"data.path = {path / 'test'}: no folder of a class; remove it, or give it those of train")
    return scale(Dataset(train, squares(tested, names, wanted, gray), names, schema=schema), scaling)


def subfolders(path: Path) -> list[Path]:
    """Return the folders in a folder, sorted by name, without hidden ones."""
    if not path.is_dir():
        raise InputError(f"data.path = {path}: no such folder; give one that holds a folder of pictures for each class")
    return sorted(inner for inner in path.iterdir() if inner.is_dir() and not inner.name.startswith("."))


def squares(folders: Iterable[Path], classes: tuple[str, ...], size: int, gray: bool) -> Data:
    """Read the pictures of some classes as squares."""
    x, y = [], []
    for folder in folders:
        files = pictures(folder.iterdir())
        if not files:
            raise InputError(f"data.path = {folder}: no picture ({', '.join(TYPES)}); add some, or remove the folder")
        x += [square(file, size, gray) for file in files]
        y += [classes.index(folder.name)] * len(files)
    return Data(torch.from_numpy(np.ascontiguousarray(np.stack(x))), torch.tensor(y))


def square(file: Path, size: int, gray: bool) -> NDArray[np.uint8]:
    """Read one picture as a square, (1 or 3, size, size)."""
    whole = ImageOps.fit(picture("data.path", file), (size, size), Image.Resampling.BILINEAR)
    return np.asarray(whole.convert("L" if gray else "RGB")).reshape(size, size, -1).transpose(2, 0, 1)


def pictures(files: Iterable[Path]) -> list[Path]:
    """Return the files whose names end in one of TYPES, sorted, without hidden ones."""
    return sorted(f for f in files if f.suffix.lower() in TYPES and f.is_file() and not f.name.startswith("."))


def picture(key: str, file: Path) -> Image.Image:
    """Read one picture in colour, rotated by its EXIF orientation. Refuses more than 8 bits: Pillow would clip them."""
    try:
        with Image.open(file) as opened:
            if opened.mode.startswith(("I", "F")):
                raise ValueError(f"it has more than 8 bits per channel (mode {opened.mode}): convert it")
            return ImageOps.exif_transpose(opened).convert("RGB")
    except Exception as error:  # damaged bytes make the readers raise anything, a SyntaxError among others
        raise InputError(f"{key} = {file}: cannot be used ({one_line(error)}); replace or remove it") from error
