"""A user's pictures, one folder per class: `<path>/<class>/<any name>.jpg`, or .png and the other usual types.

Above the classes may be a folder per site, `<path>/<site>/<class>/...`, and above or below the sites folders for
training, validation and testing, `<path>/train/<class>/...`.
"""

import math
import os
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from fedcore.data import Dataset
from fedcore.data.files import one_line
from fedcore.data.folders import PARTS, check_exclude, part_folders, roles_of
from fedcore.data.pixels import Scaling, scale, side
from fedcore.data.schema import Schema
from fedcore.errors import InputError
from fedcore.types.federation import Data

TYPES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


PAGED = (".gif", ".webp", ".png", ".tif", ".tiff")
"""Types that may have several pages or frames, or transparency."""

BITS, SAMPLES, SIGNED = 258, 339, 2
"""Tags of pictures (.tif): bits of a sample, and what samples are, with its value for signed numbers."""

LARGEST = 100_000_000
"""The most pixels of a picture that is read: some 400 MB in memory."""


@dataclass(frozen=True)
class ClassFolder:
    """A folder of the pictures of one class. site, part: None if there are no folders for them."""

    folder: Path
    site: str | None = None
    part: str | None = None


def image_folder(
    path: str | Path, size: int = 32, gray: bool = False, scaling: Scaling = "none", sites: bool | None = None,
    exclude: Sequence[str | int] = (),
) -> Dataset:  # fmt: skip
    """Return pictures, x (N, 3, size, size) uint8, or (N, 1, size, size) if `gray`.

    Classes and examples are sorted by the names of folders and files. A picture is rotated by its EXIF orientation,
    its shorter side is scaled to `size` (bilinear, antialiased), and its central square is kept; transparency is
    dropped. Hidden files and files of other types are ignored.

    Folders train and test give a shared test set; with train and val, val is that; with all three, val gives the
    validation examples. With sites, each site keeps its own parts, as rows of a table with `split`.

    Args:
        path: the folder.
        size: side of a picture in pixels, 1 to 1024.
        gray: one channel, the luminance, instead of three.
        scaling: see :func:`fedcore.data.pixels.scale`.
        sites: whether there is a folder per site, each with a folder per class; the sites are the devices. None: if
            the pictures lie one folder deeper than classes, and sites have classes in common.
        exclude: names of sites to leave out, of which no picture is read.
    """
    if isinstance(exclude, str):
        raise InputError(f"data.exclude = {exclude!r}: must be a list, for example [{exclude}]")
    path, wanted, excluded = Path(path), side(size), tuple(map(str, exclude))
    folders = find_folders(path, sites)
    named = sorted({folder.site for folder in folders if folder.site is not None})
    if excluded and not named:
        raise InputError(f"data.exclude = {[*excluded]}: the folders in data.path = {path} name no devices")
    check_exclude(excluded, named)
    read = {of.folder for of in folders}
    folders = [folder for folder in folders if folder.site not in excluded]
    first = [folder for folder in folders if folder.part in (None, "train")]
    classes = tuple(sorted({folder.folder.name for folder in first}))
    if len(classes) < 2:
        where = (first[0].folder.parent if not named else path) if first else path
        raise InputError(
            f"data.path = {where}: {len(classes)} folders with pictures; a folder for each of at least 2 classes is "
            "needed"
        )
    _check_parts(path, folders, classes)
    parts = dict.fromkeys(folder.part for folder in folders if folder.part is not None)
    roles: dict[str | None, str] = {None: "train"}
    roles.update(roles_of(parts).items())
    trained = [folder for folder in folders if named or roles[folder.part] != "test"]
    train, counts = squares(trained, classes, wanted, gray)
    marks = np.repeat([roles[folder.part] for folder in trained], counts).tolist()
    tested = [folder for folder in folders if folder not in trained]
    dataset = Dataset(
        train, squares(tested, classes, wanted, gray)[0] if tested else None, classes,
        tuple(np.repeat([str(folder.site) for folder in trained], counts).tolist()) if named else None,
        tuple(marks) if {*marks} != {"train"} else None, schema=Schema(tuple(train.x.shape[1:]), "uint8", classes),
        notes=(
            *_notes(named, {str(part): roles[part] for part in parts}, excluded),
            *_advice(path, read, {"classes": classes, "devices": named}),
        ),
    )  # fmt: skip
    return scale(dataset, scaling)


def find_folders(path: Path, sites: bool | None) -> list[ClassFolder]:
    """Return the folders of the classes, sorted by part, site and class."""
    inner = subfolders(path)
    parts = part_folders(inner)
    if not parts:
        return _in_part(path, None, has_sites(path, inner) if sites is None else sites)
    if sites is None:
        sites = has_sites(parts["train"], subfolders(parts["train"]))
    return [class_folder for part, folder in parts.items() for class_folder in _in_part(folder, part, sites)]


def has_sites(path: Path, inner: Sequence[Path]) -> bool:
    """Tell whether folders are sites rather than classes. Raises InputError if that is not clear."""
    below = {folder: subfolders(folder) for folder in inner}
    below = {folder: subfolders_of for folder, subfolders_of in below.items() if subfolders_of}
    names = [folder.name for subfolders_of in below.values() for folder in subfolders_of]
    if own := next((folder for folder in inner if pictures(folder.iterdir())), None):
        both = [deeper.name for folders in below.values() for deeper in folders if pictures(deeper.iterdir())]
        if len({*both}) < len(both):
            raise InputError(
                f"data.path = {path}: is {own.name!r} a class or a site? It has pictures, and folders such as "
                f"{both[0]!r} have; set data.sites=false for classes, data.sites=true for sites, or move the others"
            )
        return False
    if names and len({*names}) == len(names):
        example = next(iter(below.values()))[0]
        raise InputError(
            f"data.path = {path}: is {example.parent.name!r} a site, and {example.name!r} in it a class? No two "
            "folders share a class; set data.sites=true if they are sites, or put a class's pictures into its folder"
        )
    return bool(names)


def _in_part(path: Path, part: str | None, sites: bool) -> list[ClassFolder]:
    """Return the folders of the classes in one part, or in all parts of each site."""
    if not sites:
        return [ClassFolder(folder, None, part) for folder in subfolders(path)]
    class_folders = []
    for site in subfolders(path):
        inner = subfolders(site)
        parts = part_folders(inner) if part is None else {}
        for name, folder in parts.items():
            class_folders += [ClassFolder(inner_folder, site.name, name) for inner_folder in subfolders(folder)]
        if not parts:
            class_folders += [ClassFolder(inner_folder, site.name, part) for inner_folder in inner]
    if len({folder.part is None for folder in class_folders}) > 1:
        whole = next(folder.site for folder in class_folders if folder.part is None)
        raise InputError(
            f"data.path = {path}: device {whole!r} has no folders train and test, others have; give all the same"
        )
    return class_folders


def _check_parts(path: Path, folders: Sequence[ClassFolder], classes: Sequence[str]) -> None:
    """Refuse a class that only folders for validation or testing have, and such a folder without classes."""
    for of in folders:
        if of.folder.name not in classes:
            where = path / "train" if of.site is None else f"the devices' {'folders train' if of.part else 'folders'}"
            raise InputError(f"data.path = {of.folder}: no such class in {where}; it has: {', '.join(classes)}")
    for folder in part_folders(subfolders(path)).values():
        if not subfolders(folder):
            raise InputError(f"data.path = {folder}: no folder of a class; remove it, or give it those of train")


def _notes(sites: Sequence[str], roles: Mapping[str, str], exclude: Sequence[str]) -> tuple[str, ...]:
    """Return lines about how the folders were understood."""
    lines = [f"folders: {len(sites) - len(exclude):,} devices, each with a folder per class"] if sites else []
    if roles:
        whose = "of each device" if sites else "shared by all devices"
        if roles.get("val") == "test":
            lines += [f"folders: train, and val as the test set, {whose}"]
        else:
            lines += [f"folders: {', '.join(roles)}; test {whose}"]
    lines += [f"left out by data.exclude: {', '.join(exclude)}"] if exclude else []
    return tuple(lines)


def _advice(path: Path, read: Collection[Path], names: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield lines on folders whose names look alike, and on files that are not read, in folders of classes or not."""
    from fedcore.data.names import alike

    for what, group in ((what, group) for what, of in names.items() for group in alike(of)):
        yield f"{what}: {', '.join(map(repr, group[:4]))} look alike, and are apart; rename folders to join them"
    for what, of in names.items():
        if parts := [name for name in of if name.lower() in PARTS]:
            rest = ", ".join(repr(name) for name in of if name not in parts)
            yield f"{what}: {parts[0]!r} is read as one, as {rest} are; call folders of parts train, val and test"
    files = sorted(file for file in files_below(path) if file.parent in read and file.suffix.lower() in PAGED)
    if pages := [*filter(has_pages, files)]:
        yield f"of {len(pages):,} pictures with several pages the first is read, such as {pages[0].relative_to(path)}"
    if clear := [*filter(is_transparent, files)]:
        yield f"{len(clear):,} pictures have transparency, which is dropped, such as {clear[0].relative_to(path)}"
    yield from not_read(path, read, "in no class's folder", "move them into one, or set data.sites")


def not_read(path: Path, read: Collection[Path], where: str, advice: str) -> Iterator[str]:
    """Yield lines on pictures below a folder that lie in none of those that are read, and on other files in these."""
    files = files_below(path)
    beside = sorted(file for file in files if file.suffix.lower() in TYPES and file.parent not in read)
    if beside:
        example = beside[0].relative_to(path)
        yield f"not read: {len(beside):,} pictures that lie {where}, such as {example}; {advice}"
    others = Counter(file.suffix for file in files if file.suffix.lower() not in TYPES and file.parent in read)
    if others:
        kinds = ", ".join(f"{count:,} {suffix or 'without one'}" for suffix, count in others.most_common(3))
        yield f"not read: files of other types in folders of pictures ({kinds}); convert those that are pictures"


def files_below(path: Path) -> list[Path]:
    """Return the files in a folder, however deep, without hidden ones."""
    files = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    return [file for file in files if not any(part.startswith(".") for part in file.relative_to(path).parts)]


def subfolders(path: Path) -> list[Path]:
    """Return the folders in a folder, sorted by name, without hidden ones."""
    if not path.is_dir():
        raise InputError(f"data.path = {path}: no such folder; give one that holds a folder of pictures for each class")
    return sorted(inner for inner in path.iterdir() if inner.is_dir() and not inner.name.startswith("."))


def squares(folders: Iterable[ClassFolder], classes: Sequence[str], size: int, gray: bool) -> tuple[Data, list[int]]:
    """Read the pictures of some folders as squares; returns them, and how many each folder has."""
    x, y, counts = [], [], []
    for folder in (source.folder for source in folders):
        files = pictures(folder.iterdir())
        if not files:
            raise InputError(f"data.path = {folder}: no picture ({', '.join(TYPES)}); add some, or remove the folder")
        x += [square(file, size, gray) for file in files]
        y += [classes.index(folder.name)] * len(files)
        counts.append(len(files))
    return Data(torch.from_numpy(np.ascontiguousarray(np.stack(x))), torch.tensor(y)), counts


def square(file: Path, size: int, gray: bool) -> NDArray[np.uint8]:
    """Read one picture as a square, (1 or 3, size, size)."""
    whole = ImageOps.fit(picture("data.path", file), (size, size), Image.Resampling.BILINEAR)
    return np.asarray(whole.convert("L" if gray else "RGB")).reshape(size, size, -1).transpose(2, 0, 1)


def pictures(files: Iterable[Path]) -> list[Path]:
    """Return the files whose names end in one of TYPES, sorted, without hidden ones."""
    return sorted(f for f in files if f.suffix.lower() in TYPES and f.is_file() and not f.name.startswith("."))


def has_pages(file: Path) -> bool:
    """Tell whether a file holds several pictures: pages or frames."""
    with suppress(Exception), Image.open(file) as opened:  # a damaged one is refused when it is read
        return bool(getattr(opened, "is_animated", False))
    return False


def is_transparent(file: Path) -> bool:
    """Tell whether a pixel of a picture is not opaque."""
    with suppress(Exception), Image.open(file) as opened:
        return opened.has_transparency_data and bool(np.asarray(opened.convert("RGBA"))[..., 3].min() < 255)
    return False


def picture(key: str, file: Path) -> Image.Image:
    """Read one picture in colour, rotated by its EXIF orientation. Refuses more than 8 bits: Pillow would clip them."""
    try:
        with warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning):
            opened = Image.open(file)
        with opened:
            if math.prod(opened.size) > LARGEST:
                width, height = opened.size
                raise ValueError(f"it has {width:,} x {height:,} pixels, at most {LARGEST:,} are read: make it smaller")
            deep = re.search(r"\w+;16[BLN]", str(opened.tile))  # in colour Pillow keeps the high byte: 4095 is dark
            tags = getattr(opened, "tag_v2", {})  # Pillow reads separate planes of 16 bits, and signed bytes, as bytes
            odd = max(tags.get(BITS, (8,))) > 8 or SIGNED in tags.get(SAMPLES, ())
            if deep or odd or opened.mode.startswith(("I", "F")):
                mode = (deep or [opened.mode])[0]
                raise ValueError(f"it has more than 8 bits per channel, or signed ones (mode {mode}): convert it")
            return ImageOps.exif_transpose(opened).convert("RGB")
    except Exception as error:  # damaged bytes make the readers raise anything, a SyntaxError among others
        raise InputError(f"{key} = {file}: cannot be used ({one_line(error)}); replace or remove it") from error
