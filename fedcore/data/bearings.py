"""Vibration records of a bearing as examples: windows without overlap, each as its magnitude spectrum (FedASA).

Twelve devices, one for each task of Deng et al. 2024 (sec. V-A): three places of the sensor at four loads of the motor,
"A0" to "C3". Each has ten classes: a sound bearing, and a defect of 7, 14 or 21 thousandths of an inch in one of its
three parts. Published records (:mod:`fedcore.data.cwru`) and simulated ones (:mod:`fedcore.data.rig`) become examples
here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from fedcore.data import Dataset, unknown
from fedcore.types import Data, Refused, generator

LOCATIONS = ("A", "B", "C")
"""Where a sensor sits: drive end, fan end, base."""

LOADS = (0, 1, 2, 3)
"""Of the motor, hp."""

DEVICES = tuple(f"{location}{load}" for location in LOCATIONS for load in LOADS)

PARTS = ("inner", "ball", "outer")
SIZES = (7, 14, 21)
"""Of a defect, mil: thousandths of an inch."""

CLASSES = ("normal", *(f"{part}_{size}" for part in PARTS for size in SIZES))
"""In the order of the paper's table IV."""

SCALINGS = ("none", "rms")

Signal: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Record:
    """What one sensor recorded of one class: (T,) samples; `source` names it in a refusal."""

    device: str
    kind: str
    signal: Signal
    source: str


@dataclass(frozen=True)
class Cut:
    """How records become examples.

    window: samples of an example, even. train, test: windows of each class and device: the first and the last ones of
    a record, so that they share no sample and the test windows are the same for any `train`. scaling: "none", eq. (7)
    as it stands; "rms": divided by the root mean square of all features of the device's training examples. noise: white
    noise of so many times the record's root mean square is added first; its draws depend on seed, device and class.
    """

    window: int
    train: int
    test: int
    scaling: str
    noise: float
    seed: int

    def __post_init__(self) -> None:
        if self.window < 2 or self.window % 2:
            raise Refused(f"data.window = {self.window}: must be an even number of samples, at least 2")
        if self.train < 1:
            raise Refused(f"data.train = {self.train}: must be at least 1, a device without examples cannot train")
        if self.test < 0:
            raise Refused(f"data.test = {self.test}: must be at least 0")
        if self.scaling not in SCALINGS:
            raise unknown("data.scaling", self.scaling, SCALINGS)
        if not 0 <= self.noise < np.inf:
            raise Refused(f"data.noise = {self.noise}: must be a finite number, at least 0")


def examples(records: Iterable[Record], cut: Cut) -> Dataset:
    """Return the examples of all records by device, class and time: x (N, 1, window / 2) float32.

    `device` is the device's name, `domain` its location, `split` says which windows are the last ones.
    """
    spectra = {(DEVICES.index(r.device), CLASSES.index(r.kind)): spectrum(windows(r, cut)) for r in records}
    order = sorted(spectra)
    x = np.concatenate([block for _, own in groupby(order, lambda at: at[0]) for block in scaled(own, spectra, cut)])
    each = cut.train + cut.test
    devices = tuple(DEVICES[device] for device, _ in order for _ in range(each))
    y = torch.tensor([kind for _, kind in order]).repeat_interleave(each)
    return Dataset(
        train=Data(torch.from_numpy(x.astype(np.float32)[:, None]), y),
        test=None,
        classes=CLASSES,
        device=devices,
        split=(("train",) * cut.train + ("test",) * cut.test) * len(order),
        domain=tuple(device[0] for device in devices),
    )


def windows(record: Record, cut: Cut) -> Signal:
    """Return a record's first and last windows, (train + test, window), with noise."""
    signal = record.signal
    if cut.noise:
        draws = generator(cut.seed, "noise", record.device, record.kind)
        white = torch.randn(len(signal), generator=draws, dtype=torch.float64).numpy()
        signal = signal + cut.noise * np.sqrt(np.mean(signal**2)) * white
    held = len(signal) // cut.window
    if held < cut.train + cut.test:
        raise Refused(
            f"data.train + data.test = {cut.train} + {cut.test}: {record.source} holds {held} windows of {cut.window} "
            "samples; take fewer"
        )
    whole = signal[: held * cut.window].reshape(held, cut.window)
    return np.concatenate([whole[: cut.train], whole[held - cut.test :]])


def spectrum(windows: Signal) -> Signal:
    """Return |X_d|, d = 0..S/2 - 1, of windows (..., S): the first half of eq. (7), the other half mirrors it."""
    return np.abs(np.fft.rfft(windows))[..., :-1]


def scaled(own: Iterable[tuple[int, int]], spectra: dict[tuple[int, int], Signal], cut: Cut) -> Iterator[Signal]:
    """Give one device's spectra in the order of `own`, scaled as `cut` says."""
    blocks = [spectra[at] for at in own]
    rms = 1.0
    if cut.scaling == "rms":
        rms = float(np.sqrt(np.mean([block[: cut.train] ** 2 for block in blocks]))) or 1.0
    return (block / rms for block in blocks)


def similarity(dataset: Dataset) -> pd.DataFrame:
    """Return the cosine between the devices' mean features, (C, C) with their names (FedASA, fig. 1).

    Over all of a device's examples. The scale of a device's features does not matter.
    """
    if dataset.device is None:
        raise Refused("data.name: this dataset names no devices to compare")
    owners = np.asarray(dataset.device)
    names = sorted(set(dataset.device))
    x = dataset.train.inputs().flatten(1).double().numpy()
    means = np.stack([x[owners == name].mean(axis=0) for name in names])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    return pd.DataFrame(means @ means.T, index=names, columns=names)
