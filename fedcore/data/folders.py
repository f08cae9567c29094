"""Folders as people have them: names that say whether a file or a folder is for training, validation or testing."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedcore.builders import unknown_value
from fedcore.errors import InputError

PARTS = {
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "test": "test",
    "testing": "test", "holdout": "test", "hold_out": "test",
}  # fmt: skip
"""A word in a name -> the part of the examples."""

_WORD = "|".join(PARTS)
_FIRST = re.compile(rf"({_WORD})[-_. ]+(.+)", re.IGNORECASE)
_LAST = re.compile(rf"(.+?)[-_. ]+({_WORD})", re.IGNORECASE)


@dataclass(frozen=True)
class Source:
    """A file of rows.

    device: whose rows they are, None if the name does not say it. part: train, val, test or None; named: the part that
    the name says, which may be another one.
    """

    file: Path
    device: str | None = None
    part: str | None = None
    named: str | None = None


def listing(folder: Path) -> list[Path]:
    """Return what is in a folder, sorted by name, without hidden files and folders."""
    return sorted(inner for inner in folder.iterdir() if not inner.name.startswith("."))


def part_folders(inner: Iterable[Path]) -> dict[str, Path]:
    """Return part -> folder if all are folders for training and for validation or testing, else nothing."""
    folders = list(inner)
    parts = {PARTS.get(folder.name.lower(), ""): folder for folder in folders if folder.is_dir()}
    whole = len(parts) == len(folders) > 1 and "train" in parts and "" not in parts
    return {part: parts[part] for part in dict.fromkeys(PARTS.values()) if part in parts} if whole else {}


def roles_of(parts: Collection[str]) -> dict[str, str]:
    """Return what each part is used for: itself, but without a part for testing that for validation is it."""
    return {part: "test" if part == "val" and "test" not in parts else part for part in parts}


def split_name(stem: str) -> tuple[str, str | None]:
    """Return a name without the word for its part, and the part; a name of that word alone is empty.

    "data_0_train" is ("data_0", "train"), "val-x" is ("x", "val"), "north" is ("north", None).
    """
    if part := PARTS.get(stem.lower()):
        return "", part
    if match := _LAST.fullmatch(stem):
        return match[1], PARTS[match[2].lower()]
    if match := _FIRST.fullmatch(stem):
        return match[2], PARTS[match[1].lower()]
    return stem, None


def find_sources(path: Path, suffixes: str) -> list[Source]:
    """Return a path's files of rows: itself, or those of a folder, sorted by name.

    In a folder each file is a device. Files such as a_train and a_test, or a in folders train and test, are parts of
    device a; every device must have the same parts. If they name one device only, or none, `device` is None. Without a
    part for testing, that for validation is it. suffixes: those of files that can be read, for messages.
    """
    if not path.is_dir():
        return [Source(path)]
    inner = listing(path)
    if not inner:
        raise InputError(f"data.path = {path}: the folder is empty; it needs a {suffixes} file per device")
    if folders := part_folders(inner):
        sources = [Source(file, _device(file, part), part) for part in folders for file in listing(folders[part])]
    else:
        sources = [Source(file, *split_name(file.stem)) for file in inner]
        parts = {source.part for source in sources} - {None}
        if "train" not in parts or len(parts) < 2:
            sources = [Source(file, file.stem) for file in inner]
    _check_alike(path, sources)
    if sources[0].part is None:
        return sources
    roles, alone = roles_of({str(source.part) for source in sources}), len({source.device for source in sources}) == 1
    return [
        Source(source.file, None if alone else source.device, roles[str(source.part)], source.part)
        for source in sources
    ]


def describe(sources: Sequence[Source]) -> list[str]:
    """Return a line about the parts that the names of files say, and on devices whose names are those of parts."""
    if odd := [source.device for source in sources if split_name(source.device or "x")[0] == ""]:
        others = ", ".join([repr(source.device) for source in sources if source.device not in odd][:3])
        return [f"files: {odd[0]!r} is read as a device, as {others} are; call files of parts train, val and test"]
    roles = {source.named: source.part for source in sources if source.part is not None}
    named = [part if part == roles[part] else f"{part} (as {roles[part]})" for part in PARTS if part in roles]
    if not named:
        return []
    devices = {source.device for source in sources} - {None}
    whose = f"for each of {len(devices):,} devices" if devices else "for all rows together"
    return [f"files: {', '.join(named)} {whose}; rows keep their part (federation.test is not used)"]


def check_exclude(exclude: Sequence[str], devices: Sequence[str]) -> None:
    """Raise InputError for a name in data.exclude that is no device's, and if no device is left."""
    for name in exclude:
        if name not in devices:
            raise unknown_value("data.exclude", name, devices)
    if exclude and len({*exclude}) == len(devices):
        raise InputError(f"data.exclude = {[*exclude]}: leaves no device; name fewer of {', '.join(devices)}")


def _device(file: Path, part: str) -> str:
    name, own = split_name(file.stem)
    return name if own == part else file.stem


def _check_alike(path: Path, sources: Iterable[Source]) -> None:
    """Raise InputError for two files of the same device and part, and for devices with different parts."""
    files: dict[str, dict[str | None, Path]] = {}
    for source in sources:
        parts = files.setdefault(source.device or "", {})
        if source.part in parts:
            of = f" for {source.part}" if source.part else ""
            raise InputError(
                f"data.path = {path}: {source.file.name} and {parts[source.part].name} are one device's{of}; join them"
            )
        parts[source.part] = source.file
    most = max(files.values(), key=lambda parts: (len(parts), "train" in parts))
    for device, parts in files.items():
        if parts.keys() != most.keys():
            lacks = next((part for part in most if part not in parts), None)
            example, file = most[lacks] if lacks else next(iter(most.values())), next(iter(parts.values()))
            fault = f"no file for {lacks}" if lacks else "other files"
            raise InputError(
                f"data.path = {path}: {example.relative_to(path)} seems to be a device's file for "
                f"{lacks or 'one part'}, but {device or file.stem!r} has {fault}; is {file.relative_to(path)} a device "
                "of its own? Give all devices the same files, or rename those that are no part"
            )
