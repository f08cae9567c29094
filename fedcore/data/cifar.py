r"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): colour images of 32 x 32 pixels with an official test set.

The loaders read the Python version: as torchvision unpacks it, e.g. cifar-10-batches-py/data_batch_1, a pickled dict
with the pixels, an array (N, 3072), and lists of labels; or as torchvision downloads it, e.g. cifar-10-python.tar.gz,
after a check of its MD5.

A pickle is a program: `pickle.load` runs any function that the file names. :class:`Batch` does not. A pickle can call
only the objects that :meth:`Batch.find_class` returns (every opcode that names an object goes through it; the others
build numbers, strings, lists and dicts, call an existing object, or set its state). It returns only
:class:`PickledArray`, and only for the names that a numpy array needs; any other name raises an error before its module
is imported. `PickledArray` only stores its arguments. So the pickle calls nothing outside this module, not even numpy's
own reconstruction: :func:`unpickle` checks the number and type of the bytes and makes the array itself.
"""

import hashlib
import math
import pickle
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from fedcore.builders import unknown_value
from fedcore.data import Dataset
from fedcore.data.files import ROOT, damaged_file, labelled_images, obtain, one_line
from fedcore.data.pixels import Moments, Scaling, scale
from fedcore.types.federation import Data

PIXELS = 3 * 32 * 32

Rows: TypeAlias = tuple[NDArray[np.uint8], NDArray[Any]]
"""Pixels (N, 3072) and labels (N,)"""


@dataclass(frozen=True)
class Source:
    """A dataset: torchvision's class, the folder, its files (the test set last), the archive.

    moments: of the 50,000 training images (:mod:`fedcore.data.pixels`).
    """

    name: str
    python: str
    files: tuple[str, ...]
    archive: str
    md5: str
    moments: Moments


CIFAR10 = Source(
    "CIFAR10", "cifar-10-batches-py", (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"),
    "cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a",
    ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
)  # fmt: skip
CIFAR100 = Source(
    "CIFAR100", "cifar-100-python", ("train", "test"), "cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85",
    ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
)  # fmt: skip

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

FINE = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
    motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
    poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
    squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm
"""
COARSE = """
    aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices
    household_furniture insects large_carnivores large_man-made_outdoor_things large_natural_outdoor_scenes
    large_omnivores_and_herbivores medium_mammals non-insect_invertebrates people reptiles small_mammals trees
    vehicles_1 vehicles_2
"""


def cifar10(root: str | Path = ROOT, download: bool = True, scaling: Scaling = "none") -> Dataset:
    """Return CIFAR-10, x (N, 3, 32, 32) uint8, with its official test set.

    Args:
        root: the folder of all datasets.
        download: fetch missing files.
        scaling: see :func:`fedcore.data.pixels.scale`.
    """
    return scale(cifar(CIFAR10, Path(root), download, "labels", CLASSES), scaling, CIFAR10.moments)


def cifar100(
    root: str | Path = ROOT, download: bool = True, labels: str = "fine", scaling: Scaling = "none"
) -> Dataset:
    """Return CIFAR-100, x (N, 3, 32, 32) uint8, with its official test set.

    Args:
        root: the folder of all datasets.
        download: fetch missing files.
        labels: "fine" for 100 classes, or "coarse" for 20 superclasses of five classes each.
        scaling: see :func:`fedcore.data.pixels.scale`.
    """
    if labels not in ("fine", "coarse"):
        raise unknown_value("data.labels", labels, ("fine", "coarse"))
    classes = tuple((FINE if labels == "fine" else COARSE).split())
    return scale(cifar(CIFAR100, Path(root), download, f"{labels}_labels", classes), scaling, CIFAR100.moments)


def cifar(source: Source, root: Path, download: bool, labels: str, classes: tuple[str, ...]) -> Dataset:
    """Read a dataset with one kind of labels."""
    parts = []
    for file, raw in batches(source, root, download).items():
        try:
            x, y = unpickle(raw, labels)
        except Exception as error:  # damaged bytes make the readers raise anything
            raise damaged_file(root, file, f"is no batch of {source.name} ({one_line(error)})") from error
        parts.append(labelled_images(root, file, x.reshape(-1, 3, 32, 32), y, len(classes)))
    *train, test = parts
    everything = Data(torch.cat([part.x for part in train]), torch.cat([part.y for part in train]))
    return Dataset(everything, test, classes)


def batches(source: Source, root: Path, download: bool) -> dict[Path, bytes]:
    """Return the path and the bytes of a dataset's files; those of the archive get the path of their copy."""
    files = [f"{source.python}/{name}" for name in source.files]
    if all((root / file).is_file() for file in files):
        return {root / file: (root / file).read_bytes() for file in files}

    def fetch(sets: Any) -> object:
        return sets.utils.download_url(getattr(sets, source.name).url, root, source.archive, source.md5)

    wanted = [source.archive]
    if not download and not (root / source.archive).is_file() and (root / source.python).is_dir():
        wanted = files  # name the missing ones of a partial folder
    archive = obtain(root, source.name, wanted, download, fetch)[0]
    return {root / name: raw for name, raw in unpack(source, root, archive, files).items()}


def unpack(source: Source, root: Path, archive: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Return some files of the archive without writing them to disk."""
    try:
        with archive.open("rb") as file:
            checksum = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if checksum != source.md5:
            raise ValueError(f"its MD5 is {checksum}, not {source.md5}")
        with tarfile.open(archive, "r:gz") as tar:
            inner = ((member.name, tar.extractfile(member)) for member in tar if member.name in names)
            contents = {name: batch.read() for name, batch in inner if batch is not None}
    except (OSError, EOFError, ValueError, zlib.error, tarfile.TarError) as error:
        raise damaged_file(root, archive, f"cannot be used ({one_line(error)})") from error
    for name in names:
        if name not in contents:
            raise damaged_file(root, archive, f"has no file {name}")
    return {name: contents[name] for name in names}


class PickledArray:
    """Replaces numpy's array and dtype in a pickle; it only stores the arguments and the state."""

    def __init__(self, *made_of: Any) -> None:
        self.made_of, self.state = made_of, ()

    def __setstate__(self, state: Any) -> None:
        self.state = state


class Batch(pickle.Unpickler):
    """Reads a pickled batch and calls nothing but `PickledArray`; see the module's docstring."""

    NAMES = frozenset(
        {("numpy", "ndarray"), ("numpy", "dtype")}
        | {(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")}
    )

    def find_class(self, module: str, name: str) -> type[PickledArray]:
        if (module, name) not in self.NAMES:
            raise pickle.UnpicklingError(f"it asks for {module[:40]}.{name[:40]}, which no batch needs; not run")
        return PickledArray


def unpickle(raw: bytes, labels: str) -> Rows:
    """Return the pixels of a batch and one kind of its labels; its strings are bytes if Python 2 wrote it."""
    batch = Batch(BytesIO(raw), encoding="bytes").load()
    contents = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
    array, y = contents["data"], np.asarray(contents[labels])
    _, shape, dtype, by_column, values = array.state
    if dtype.made_of[0] not in ("u1", b"u1") or by_column or shape[1:] != (PIXELS,) or len(values) != math.prod(shape):
        raise ValueError(f"its pixels are not rows of {PIXELS} bytes")
    if y.ndim != 1 or y.dtype.kind != "i":
        raise ValueError("its labels are not whole numbers")
    return np.frombuffer(values, np.uint8).reshape(shape), y
