"""Vibration records of a bearing as examples: magnitude spectra of windows without overlap (FedASA).

There are twelve devices, one for each task of Deng et al. 2024 (sec. V-A): three sensor locations at four motor loads,
"A0" to "C3". Each has ten classes: a normal bearing, and a defect of 7, 14 or 21 thousandths of an inch in one of three
parts. The records are published (:mod:`fedcore.data.cwru`) or simulated (:mod:`fedcore.data.simulated_rig`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Annotated, Literal, TypeAlias, get_args

import numpy as np
import torch
from annotated_types import Ge, Le, MinLen, MultipleOf
from numpy.typing import NDArray

from fedcore.builders import unknown_value
from fedcore.data import Dataset
from fedcore.errors import InputError
from fedcore.types.federation import Data
from fedcore.types.method import generator
from fedcore.types.ranges import Amount, Count

LOCATIONS = ("A", "B", "C")
"""Sensor locations: drive end, fan end, base."""

LOADS = (0, 1, 2, 3)
"""Motor loads, hp."""

DEVICES = tuple(f"{location}{load}" for location in LOCATIONS for load in LOADS)

PARTS = ("inner", "ball", "outer")
SIZES = (7, 14, 21)
"""Defect sizes, mil (thousandths of an inch)."""

CLASSES = ("normal", *(f"{part}_{size}" for part in PARTS for size in SIZES))
"""In the order of the paper's table IV."""

SCALINGS = ("none", "rms")

Reading: TypeAlias = Literal["magnitude", "divided", "normalised"]

Signal: TypeAlias = NDArray[np.float64]

Windows: TypeAlias = Annotated[int, Ge(0)]

LONGEST = 119 * 1024
"""Most samples of a window: those of a simulated record, 10.15 s; the published ones of defects have hardly more."""


@dataclass(frozen=True)
class Record:
    """One sensor's record of one class, (T,) samples; error messages call it `source`."""

    device: str
    kind: str
    signal: Signal
    source: str


@dataclass(frozen=True)
class WindowOptions:
    """Settings that turn records into examples.

    Args:
        window: samples per example, even.
        train: windows per class and device, the first ones of a record, from 1.
        test: the same, the last ones, from 0: they share no sample with the others, and do not depend on `train`.
        scaling: "none": eq. (7) as printed; "rms": divided by the root mean square of all features of the device's
            training examples.
        noise: standard deviation of added white noise, as a multiple of the record's root mean square, from 0; the draw
            depends on seed, device and class.
        seed: of the noise, and of the simulated rig.
        server: windows per class that the server records at the first location (the paper's auxiliary set), taken after
            the training windows; no device has them.
        locations: those whose devices take part; None: all.
        spectrum: "magnitude", eq. (7) as printed; "divided", by the samples of a window, as public loaders do;
            "normalised", each window's magnitudes brought to [-1, 1], as they go on.
    """

    window: Annotated[int, Ge(2), Le(LONGEST), MultipleOf(2)] = 1024
    train: Count = 80
    test: Windows = 20
    scaling: Literal["none", "rms"] = "none"
    noise: Amount = 0.0
    seed: int = 0
    server: Windows = 16
    locations: Annotated[list[Literal["A", "B", "C"]], MinLen(1)] | None = None
    spectrum: Reading = "magnitude"

    @property
    def used_locations(self) -> Sequence[str]:
        """The locations whose devices take part."""
        return LOCATIONS if self.locations is None else self.locations

    def __post_init__(self) -> None:
        if self.window < 2 or self.window % 2:
            raise InputError(f"data.window = {self.window}: must be an even number of samples, at least 2")
        if self.train < 1:
            raise InputError(f"data.train = {self.train}: must be at least 1, a device without examples cannot train")
        if self.test < 0:
            raise InputError(f"data.test = {self.test}: must be at least 0")
        if self.scaling not in SCALINGS:
            raise unknown_value("data.scaling", self.scaling, SCALINGS)
        if self.spectrum not in get_args(Reading):
            raise unknown_value("data.spectrum", self.spectrum, get_args(Reading))
        if self.server < 0:
            raise InputError(f"data.server = {self.server}: must be at least 0")
        for location in self.used_locations or ("",):
            if location not in LOCATIONS:
                raise unknown_value("data.locations", list(self.used_locations), LOCATIONS)
        if not 0 <= self.noise < np.inf:
            raise InputError(f"data.noise = {self.noise}: must be a finite number, at least 0")


def examples(records: Iterable[Record], cut: WindowOptions) -> Dataset:
    """Return the examples of all records, sorted by device, class and time: x (N, 1, window / 2) float32.

    `domain` is the device's location; `split` is "test" for the last windows of each record.
    """
    spectra, others = {}, {}
    for record in records:
        at, count = (DEVICES.index(record.device), CLASSES.index(record.kind)), server_windows(record, cut)
        spectra_of = spectrum(windows(record, cut), cut.spectrum)
        if record.device[0] in cut.used_locations:
            spectra[at] = np.delete(spectra_of, np.s_[cut.train : cut.train + count], axis=0)
        if count:
            others[at] = spectra_of[cut.train : cut.train + count]
    order = sorted(spectra)
    if not order:
        raise InputError(f"data.locations = {list(cut.used_locations)}: no record of these locations")
    x = np.concatenate(
        [block for _, own in groupby(order, lambda at: at[0]) for block in scale_spectra(own, spectra, cut)]
    )
    each = cut.train + cut.test
    devices = tuple(DEVICES[device] for device, _ in order for _ in range(each))
    y = torch.tensor([kind for _, kind in order]).repeat_interleave(each)
    return Dataset(
        train=Data(torch.from_numpy(x.astype(np.float32)[:, None]), y), test=None, classes=CLASSES, device=devices,
        split=(("train",) * cut.train + ("test",) * cut.test) * len(order),
        domain=tuple(device[0] for device in devices), server=server_examples(others, cut) if others else None,
    )  # fmt: skip


def server_examples(spectra: dict[tuple[int, int], Signal], cut: WindowOptions) -> Data:
    """Return the server's examples, scaled as on a device."""
    order = sorted(spectra)
    x = np.concatenate([*scale_spectra(order, spectra, replace(cut, train=cut.server))])
    y = torch.tensor([kind for _, kind in order]).repeat_interleave(cut.server)
    return Data(torch.from_numpy(x.astype(np.float32)[:, None]), y)


def server_windows(record: Record, cut: WindowOptions) -> int:
    """Return the number of a record's windows that the server holds."""
    return cut.server if record.device[0] == LOCATIONS[0] else 0


def windows(record: Record, cut: WindowOptions) -> Signal:
    """Return a record's first and last windows, (train + server + test, window), with noise."""
    signal = record.signal
    if cut.noise:
        draws = generator(cut.seed, "noise", record.device, record.kind)
        white = torch.randn(len(signal), generator=draws, dtype=torch.float64).numpy()
        signal = signal + cut.noise * np.sqrt(np.mean(signal**2)) * white
    count, first = len(signal) // cut.window, cut.train + server_windows(record, cut)
    if count < first + cut.test:
        wanted = f"data.train + data.test = {cut.train} + {cut.test}"
        if server_windows(record, cut):
            wanted = f"data.train + data.test + data.server = {cut.train} + {cut.test} + {cut.server}"
        if not count:
            raise InputError(
                f"data.window = {cut.window}: {record.source} has {len(signal)} samples; take a shorter window"
            )
        raise InputError(f"{wanted}: {record.source} holds {count} windows of {cut.window} samples; take fewer")
    whole = signal[: count * cut.window].reshape(count, cut.window)
    return np.concatenate([whole[:first], whole[count - cut.test :]])


def spectrum(windows: Signal, reading: Reading = "magnitude") -> Signal:
    """Return |X_d|, d = 0..S/2 - 1, of windows (..., S): the first half of eq. (7), which the other half mirrors.

    reading: as in :class:`WindowOptions`; a window of equal magnitudes is brought to -1.
    """
    sizes: Signal = np.abs(np.fft.rfft(windows))[..., :-1]
    if reading == "magnitude":
        return sizes
    if reading == "divided":
        sizes /= windows.shape[-1]
        return sizes
    sizes -= sizes.min(-1, keepdims=True)
    most = sizes.max(-1, keepdims=True)
    return np.asarray(2 * sizes / np.where(most > 0, most, 1) - 1)


def scale_spectra(
    own: Iterable[tuple[int, int]], spectra: dict[tuple[int, int], Signal], cut: WindowOptions
) -> Iterator[Signal]:
    """Yield one device's spectra in the order of `own`, scaled by `cut.scaling`."""
    blocks = [spectra[at] for at in own]
    rms = 1.0
    if cut.scaling == "rms":
        rms = float(np.sqrt(np.mean([block[: cut.train] ** 2 for block in blocks]))) or 1.0
    return (block / rms for block in blocks)
