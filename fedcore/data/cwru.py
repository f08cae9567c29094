"""The bearing records of Case Western Reserve University's Bearing Data Center: defects at the drive end, 12 kHz.

Each run of about ten seconds is a MATLAB file, `CWRU/<number>.mat`, with a column of acceleration in g per sensor:
X<number>_DE_time (drive end), _FE_ (fan end) and _BA_ (base), the number in three digits. The records of normal
bearings have no base sensor.
"""

import logging
from collections.abc import Iterator, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
from numpy.typing import NDArray

from fedcore.data import Dataset
from fedcore.data.bearings import CLASSES, DEVICES, LOADS, LOCATIONS, Record, Signal, WindowOptions, examples
from fedcore.data.files import ROOT, damaged_file, one_line
from fedcore.data.matlab import arrays
from fedcore.errors import InputError

FIRST = dict(zip(CLASSES, (97, 105, 169, 209, 118, 185, 222, 130, 197, 234), strict=True))
"""Number of each class's file at load 0; loads 1, 2 and 3 follow. Outer race: at 6 o'clock, in the load zone."""

NUMBERS = {first + load: (kind, load) for kind, first in FIRST.items() for load in LOADS}

SENSORS = dict(zip(LOCATIONS, ("DE", "FE", "BA"), strict=True))

RATE = 12_000
"""Samples per second."""
LONGEST = 11 * RATE
"""Maximum samples in the record of a defect. The 36 published ones have 121,265 to 122,917, ten seconds; the same
defects at 48,000 per second (109.mat to 241.mat) have at least 240,000. A file does not state its rate, and normal
bearings were published in one form only, of at least 243,938 samples, which are used unchanged.
"""

SOURCE = "https://engineering.case.edu/bearingdatacenter"
ADDRESS = "https://engineering.case.edu/sites/default/files/{}.mat"
PATIENCE = 60
"""Timeout of a download, seconds."""

log = logging.getLogger(__name__)


def cwru(root: str | Path = ROOT, download: bool = True, *, windows: WindowOptions) -> Dataset:
    """Return twelve devices with up to ten classes each, x (N, 1, window / 2) float32.

    If a file or a sensor is missing, the device lacks that class, which is logged in one line; a device without any
    class is left out.

    Args:
        root: the folder of all datasets.
        download: fetch missing files.
        windows: how records become examples.

    Raises:
        InputError: if a download fails, or if no file has a record of one of the `locations`.
    """
    root = Path(root)
    if download:
        fetch(root)
    numbers = [number for number in NUMBERS if file_of(root, number).is_file()]
    if not numbers:
        raise InputError(
            f"data.root = {root}: none of the {len(NUMBERS)} files CWRU/{min(NUMBERS)}.mat to CWRU/{max(NUMBERS)}.mat "
            f"is there; put the published ones there ({SOURCE}), or set data.download = true where there is a network"
        )
    dataset = examples((record for number in numbers for record in records(root, number)), windows)
    for location in windows.locations or ():
        if location not in (dataset.domain or ()):
            raise InputError(
                f"data.locations = {windows.locations}: no file below {root} has a record of {location} "
                f"(columns X..._{SENSORS[location]}_time); leave it out, or put the published files there ({SOURCE})"
            )
    log_missing(dataset, windows.used_locations, [number for number in NUMBERS if number not in numbers])
    return dataset


def file_of(root: Path, number: int) -> Path:
    return root / "CWRU" / f"{number}.mat"


def records(root: Path, number: int) -> Iterator[Record]:
    """Yield the record of each sensor in one file."""
    kind, load = NUMBERS[number]
    for location, signal in read_signals(root, number).items():
        source = f"CWRU/{number}.mat, {SENSORS[location]},"
        yield Record(f"{location}{load}", kind, signal, source)


def read_signals(root: Path, number: int) -> dict[str, Signal]:
    """Return location -> samples of its sensor, (T,)."""
    try:
        return columns(file_of(root, number), number)
    except ValueError as error:
        raise damaged_file(root, file_of(root, number), str(error)) from error


MOST = 10_000_000
"""The most values of an array that is read; published ones have less than half a million."""


def columns(file: Path, number: int) -> dict[str, Signal]:
    """Return location -> its column of a file, (T,). Raises ValueError if the format differs from the published one."""
    names = {location: f"X{number:03d}_{sensor}_time" for location, sensor in SENSORS.items()}
    try:
        there = arrays(file)
        signals = {at: real(name, there[name]) for at, name in names.items() if name in there}
    except (OSError, ValueError, MemoryError) as error:
        raise ValueError(f"is no MATLAB file that can be read ({one_line(error)})") from error
    if not signals:
        others = f"; it holds {', '.join(there)}: of another run, or at 48,000 samples a second" if there else ""
        raise ValueError(f"has none of {', '.join(names.values())}{others}")
    for location, signal in signals.items():
        if signal.ndim != 2 or signal.shape[1] != 1:
            raise ValueError(f"has in {names[location]} no column of numbers (its shape is {signal.shape})")
        if not np.isfinite(signal).all():
            raise ValueError(f"has in {names[location]} a value that is no finite number")
        if NUMBERS[number][0] != CLASSES[0] and len(signal) > LONGEST:
            raise ValueError(
                f"has in {names[location]} {len(signal)} samples, more than {LONGEST}: {RATE:,} a second for ten "
                "seconds are wanted, this may be a record at 48,000"
            )
    return {location: signal[:, 0] for location, signal in signals.items()}


def real(name: str, values: NDArray[Any] | None) -> NDArray[np.float64]:
    """Return a copy of an array's values."""
    if values is None:
        raise ValueError(f"{name} has no real numbers")
    if values.size > MOST:
        raise ValueError(f"{values.size:,} values in {name}, at most {MOST:,} are read")
    return np.array(values, np.float64)


def fetch(root: Path) -> None:
    """Download the missing files; each is checked before it gets its name."""

    for number in NUMBERS:
        file = file_of(root, number)
        if file.is_file():
            continue
        part = file.with_suffix(".part")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            request = Request(ADDRESS.format(number), headers={"User-Agent": "Mozilla/5.0 (fedcore)"})
            with urlopen(request, timeout=PATIENCE) as answer:
                part.write_bytes(answer.read())
            columns(part, number)
            part.replace(file)
        except (OSError, HTTPException, ValueError) as error:
            part.unlink(missing_ok=True)
            if isinstance(error, HTTPError):
                error.close()  # it holds the connection
            raise InputError(
                f"data.root = {root}: CWRU/{number}.mat is not there and the download failed ({one_line(error)}); put "
                f"the published file there ({SOURCE}), or set data.download = false to go on with those that are there"
            ) from error


def log_missing(dataset: Dataset, locations: Sequence[str], missing: list[int]) -> None:
    """Log the missing classes of each device at these locations in one line."""
    present = set(zip(dataset.device or (), dataset.train.y.tolist(), strict=True))
    there = [device for device in DEVICES if device in (dataset.device or ())]
    lacking = {kind: [device for device in there if (device, k) not in present] for k, kind in enumerate(CLASSES)}
    gaps = [f"no {kind} at {', '.join(devices)}" for kind, devices in lacking.items() if devices]
    if absent := [device for device in DEVICES if device[0] in locations and device not in there]:
        gaps.append(f"nothing at all of {', '.join(absent)}")
    if missing:
        gaps.append(f"not there: {', '.join(f'{number}.mat' for number in missing)}")
    if gaps:
        log.warning("the CWRU set is not complete: %s", "; ".join(gaps))
