"""A simulated test rig: a motor's bearing with one defect, three sensors, four loads; needs no file.

The model is McFadden and Smith's (J. Sound Vib. 96, 1984): a rolling defect hits at a multiple of the shaft's speed,
weighted by the load it carries there, and every hit rings the structure's modes on its way to a sensor. Added to it:
slip of the balls (Randall and Antoni, Mech. Syst. Signal Process. 25, 2011), a second hit of the other sign where a
ball leaves the defect, the shaft's own harmonics, and noise. The bearing is an SKF 6205 as in the Bearing Data Center's
rig, with its speeds and rate of sampling. The sizes of all effects are ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Annotated

import numpy as np
from annotated_types import Le

from fedcore.data import Dataset
from fedcore.data.bearings import (
    CLASSES,
    LOADS,
    LOCATIONS,
    Locations,
    Record,
    Scaling,
    Signal,
    Window,
    WindowOptions,
    Windows,
    examples,
)
from fedcore.types import Amount, Count
from fedcore.types import generator as torch_generator

RATE = 12_000
"""Samples a second."""
SAMPLES = 119 * 1024
"""Of a record: 10.15 s."""
SPARE = 1024
"""Samples before a record that are dropped: there the circular convolution folds its end into its beginning."""

SPEED = (1797, 1772, 1750, 1730)
"""Of the shaft at each load, revolutions a minute."""

BALLS, BALL, PITCH = 9, 0.3126, 1.537
"""Number and diameter of the balls, diameter of the circle on which they run, inches."""
CAGE = (1 - BALL / PITCH) / 2
ORDER = {
    "inner": BALLS * (1 - CAGE),  # 5.415
    "ball": PITCH / BALL * (1 - (BALL / PITCH) ** 2),  # 4.714: it hits both races in each of its turns
    "outer": BALLS * CAGE,  # 3.585
}
"""Hits in each revolution of the shaft, by the part that has the defect; CAGE: turns of the cage, .398."""
ZONE = {"inner": (0.7, 1.0), "ball": (0.5, CAGE), "outer": (0.0, 0.0)}
"""How much the load zone modulates a part's hits, and how often in each revolution of the shaft."""
SLIP, JITTER = 0.01, 0.4
"""Deviation of the time from hit to hit and of a hit's height, fractions."""
HIT, EXIT = 0.1, -0.6
"""Height of a hit, g, for a mode of gain 1 at `UNIT` Hz, and that of the second one as a multiple of the first."""

SHARED, OWN = 6, 3
"""Modes of the whole rig, and further ones of each sensor's place."""
BAND, DAMPING = (300.0, 5600.0), (0.015, 0.06)
"""Of the modes: Hz, of critical."""
SPREAD, UNIT = 1.0, 2000.0
"""Deviation of the logarithm of a mode's gain at a sensor. Sensors measure acceleration: times (frequency / UNIT)^2."""
ALIKE = 0.65
"""Largest cosine between the answers of two places: a rig is drawn until its sensors differ so much."""
SHIFT, REGAIN = 0.03, 0.35
"""What mounting the next bearing does to frequencies (fraction) and to gains (deviation of their logarithm)."""
NEAR = (1.0, 0.7, 0.45)
"""What of the bearing's and the shaft's vibration arrives at each location."""
RING = 2048
"""Samples that a hit rings, .17 s: by then the slowest mode is at 1/120."""

HARMONICS = (0.04, 0.02, 0.01)
"""Amplitudes of the shaft's harmonics, g."""
NOISE, COLOUR = 0.04, 0.5
"""Of each sensor, an AR(1) process: deviation of its innovations, g, and coefficient."""


def bearings(
    window: Annotated[Window, Le(SAMPLES)] = 1024,
    train: Count = 80,
    test: Windows = 20,
    scaling: Scaling = "none",
    noise: Amount = 0.0,
    seed: int = 0,
    server: Windows = 16,
    locations: Locations | None = None,
) -> Dataset:
    """Return the simulated rig's twelve devices with ten classes each, x (N, 1, window / 2) float32.

    The settings are those of :class:`fedcore.data.bearings.WindowOptions`; `seed` also makes another rig.
    """
    places = LOCATIONS if locations is None else tuple(locations)
    return examples(records(seed), WindowOptions(window, train, test, scaling, noise, seed, server, places))


def records(seed: int) -> Iterator[Record]:
    """Give the record of every sensor, load and class."""
    length = SPARE + SAMPLES
    modes = rig(seed)
    rings = np.stack([remount(modes, generator(seed, "mount", kind)).ring() for kind in CLASSES], axis=1)
    paths = np.fft.rfft(rings, length)  # (locations, classes, frequencies)
    colour = 1 / (1 - COLOUR * np.exp(-2j * np.pi * np.fft.rfftfreq(length)))
    for load in LOADS:
        shaft = SPEED[load] / 60
        for k, kind in enumerate(CLASSES):
            rng = generator(seed, "run", load, kind)
            hits = np.fft.rfft(impacts(kind, shaft, length, rng))
            turning = harmonics(shaft, length, rng)
            for at, location in enumerate(LOCATIONS):
                white = rng.standard_normal(2 * len(colour)).view(np.complex128) * np.sqrt(length / 2)
                arriving = np.fft.irfft(NEAR[at] * hits * paths[at, k] + NOISE * colour * white, length)
                signal = arriving + NEAR[at] * turning
                yield Record(f"{location}{load}", kind, signal[SPARE:], "a simulated record")


def impacts(kind: str, shaft: float, length: int, rng: np.random.Generator) -> Signal:
    """Return the force at the defect, (length,): a hit where a ball meets it and one where it leaves.

    shaft: revolutions a second. A time between two samples is shared between them.
    """
    part, _, size = kind.partition("_")
    if part not in ORDER:
        return np.zeros(length)
    rate = ORDER[part] * shaft
    gaps = 1 + SLIP * rng.standard_normal(int(1.1 * rate * length / RATE))
    times = (np.cumsum(gaps) - rng.random()) / rate
    depth, order = ZONE[part]
    load = HIT * (1 + depth * np.cos(2 * np.pi * (order * shaft * times + rng.random())))
    load *= 1 + JITTER * rng.standard_normal(len(times))
    rolling = np.pi * shaft * PITCH * (1 - (BALL / PITCH) ** 2) / 2  # inches a second, the same at both races
    at = np.concatenate([times, times + int(size) / 1000 / rolling]) * RATE
    height = np.concatenate([load, EXIT * load])
    inside = (at >= 0) & (at < length - 1)
    at, height = at[inside], height[inside]
    before = at.astype(np.int64)
    late = at - before
    force: Signal = np.zeros(length)
    np.add.at(force, before, height * (1 - late))
    np.add.at(force, before + 1, height * late)
    return force


def harmonics(shaft: float, length: int, rng: np.random.Generator) -> Signal:
    """Return the shaft's own vibration, (length,)."""
    multiples = np.arange(1, len(HARMONICS) + 1)[:, None]
    turns = multiples * shaft * np.arange(length) / RATE + rng.random(multiples.shape)
    vibration: Signal = np.array(HARMONICS) @ np.cos(2 * np.pi * turns)
    return vibration


@dataclass(frozen=True)
class Modes:
    """What rings at each location, (locations, modes): Hz, of critical, and gain; the first SHARED ring everywhere."""

    frequency: Signal
    damping: Signal
    gain: Signal

    def ring(self) -> Signal:
        """Return what each sensor measures of a hit of height 1, (locations, RING)."""
        turns = 2 * np.pi * self.frequency[..., None] * np.arange(RING) / RATE
        damping = self.damping[..., None]
        each = np.exp(-damping * turns) * np.sin(np.sqrt(1 - damping**2) * turns)
        rings: Signal = np.einsum("lm,lmt->lt", self.gain * (self.frequency / UNIT) ** 2, each)
        return rings


def rig(seed: int) -> Modes:
    """Return the first rig drawn whose sensors differ."""
    drafts = (draw_rig(generator(seed, "rig", k)) for k in count())
    return next(modes for modes in drafts if largest_cosine(modes) <= ALIKE)


def draw_rig(rng: np.random.Generator) -> Modes:
    """Draw a rig."""
    frequency, damping = draw_property(BAND, rng), draw_property(DAMPING, rng)
    return Modes(frequency, damping, np.exp(SPREAD * rng.standard_normal(frequency.shape)))


def draw_property(between: tuple[float, float], rng: np.random.Generator) -> Signal:
    """Draw a property of each mode, (locations, modes): the first SHARED columns are the same in each row."""
    everywhere = np.tile(rng.uniform(*between, SHARED), (len(LOCATIONS), 1))
    return np.concatenate([everywhere, rng.uniform(*between, (len(LOCATIONS), OWN))], axis=1)


def largest_cosine(modes: Modes) -> float:
    """Return the largest cosine between the spectra of what two locations measure of a hit."""
    spectra = np.abs(np.fft.rfft(modes.ring()))
    spectra /= np.linalg.norm(spectra, axis=1, keepdims=True)
    return float(np.triu(spectra @ spectra.T, 1).max())


def remount(modes: Modes, rng: np.random.Generator) -> Modes:
    """Return the modes after another bearing was mounted."""
    shift = 1 + SHIFT * rng.standard_normal(modes.frequency.shape[1])
    gain = modes.gain * np.exp(REGAIN * rng.standard_normal(modes.gain.shape))
    return Modes(modes.frequency * shift, modes.damping, gain)


def generator(*words: object) -> np.random.Generator:
    """Return a random generator that depends on the words alone."""
    return np.random.default_rng(torch_generator(*words).initial_seed())
