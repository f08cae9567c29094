"""A simulated test rig: a motor's bearing with one defect, three sensors, four loads; needs no file.

The model is McFadden and Smith's (J. Sound Vib. 96, 1984): a rolling defect causes impacts at a multiple of the shaft's
speed, weighted by the local load, and each impact excites the structure's modes on its way to a sensor. We add slip of
the balls (Randall and Antoni, Mech. Syst. Signal Process. 25, 2011), a second impact of opposite sign where a ball
leaves the defect, the shaft's harmonics, and noise. The bearing is an SKF 6205 with the speeds and sampling rate of the
Bearing Data Center's rig. We chose the sizes of all effects.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np

from fedcore.data import Dataset
from fedcore.data.bearings import CLASSES, LOADS, LOCATIONS, LONGEST, Record, Signal, WindowOptions, examples
from fedcore.types.method import generator as torch_generator

RATE = 12_000
"""Samples per second."""
SAMPLES = LONGEST
"""Samples of a record, 10.15 s."""
SPARE = 1024
"""Samples dropped before a record, where the circular convolution wraps its end around."""

SPEED = (1797, 1772, 1750, 1730)
"""Speed of the shaft at each load, revolutions per minute."""

BALLS, BALL, PITCH = 9, 0.3126, 1.537
"""Number of balls; their diameter and the pitch diameter, inches."""
CAGE = (1 - BALL / PITCH) / 2
ORDER = {
    "inner": BALLS * (1 - CAGE),  # 5.415
    "ball": PITCH / BALL * (1 - (BALL / PITCH) ** 2),  # 4.714: it hits both races in each of its revolutions
    "outer": BALLS * CAGE,  # 3.585
}
"""Impacts per revolution of the shaft, by the part with the defect; CAGE: revolutions of the cage, .398."""
ZONE = {"inner": (0.7, 1.0), "ball": (0.5, CAGE), "outer": (0.0, 0.0)}
"""Depth of the load zone's modulation of a part's impacts, and its order per revolution of the shaft."""
SLIP, JITTER = 0.01, 0.4
"""Standard deviations of the time between impacts and of an impact's height, fractions."""
HIT, EXIT = 0.1, -0.6
"""Height of an impact, g, for a mode of gain 1 at `UNIT` Hz; height of the second as a multiple of the first."""

SHARED, OWN = 6, 3
"""Number of modes of the whole rig, and of further modes at each sensor's location."""
BAND, DAMPING = (300.0, 5600.0), (0.015, 0.06)
"""Ranges of the modes' frequency, Hz, and damping, as a fraction of critical."""
SPREAD, UNIT = 1.0, 2000.0
"""Standard deviation of the log gain of a mode at a sensor; for acceleration, gains are times (frequency / UNIT)^2."""
ALIKE = 0.65
"""Largest cosine allowed between the responses of two locations; rigs above it are drawn again."""
SHIFT, REGAIN = 0.03, 0.35
"""Standard deviations of the change of frequencies (fraction) and of log gains when a bearing is mounted."""
NEAR = (1.0, 0.7, 0.45)
"""Fraction of the bearing's and the shaft's vibration that arrives at each location."""
RING = 2048
"""Samples of an impulse response, .17 s, after which the slowest mode is at 1/120."""

HARMONICS = (0.04, 0.02, 0.01)
"""Amplitudes of the shaft's harmonics, g."""
NOISE, COLOUR = 0.04, 0.5
"""AR(1) noise of each sensor: standard deviation of the innovations, g, and coefficient."""


def bearings(*, windows: WindowOptions) -> Dataset:
    """Return the simulated rig's twelve devices with ten classes each, x (N, 1, window / 2) float32.

    Args:
        windows: how records become examples.
    """
    return examples(records(windows.seed), windows)


def records(seed: int) -> Iterator[Record]:
    """Yield the record of every sensor, load and class."""
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
    """Return the force at the defect, (length,): one impact as a ball enters it and one as it leaves.

    shaft: revolutions per second. An impact between two samples is divided between them.
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
    rolling = np.pi * shaft * PITCH * (1 - (BALL / PITCH) ** 2) / 2  # inches per second, the same at both races
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
    """Return the vibration of the shaft, (length,)."""
    multiples = np.arange(1, len(HARMONICS) + 1)[:, None]
    turns = multiples * shaft * np.arange(length) / RATE + rng.random(multiples.shape)
    vibration: Signal = np.array(HARMONICS) @ np.cos(2 * np.pi * turns)
    return vibration


@dataclass(frozen=True)
class Modes:
    """Modes at each location, (locations, modes): Hz, fraction of critical, gain; the first SHARED are the rig's."""

    frequency: Signal
    damping: Signal
    gain: Signal

    def ring(self) -> Signal:
        """Return each sensor's response to an impact of height 1, (locations, RING)."""
        turns = 2 * np.pi * self.frequency[..., None] * np.arange(RING) / RATE
        damping = self.damping[..., None]
        each = np.exp(-damping * turns) * np.sin(np.sqrt(1 - damping**2) * turns)
        rings: Signal = np.einsum("lm,lmt->lt", self.gain * (self.frequency / UNIT) ** 2, each)
        return rings


def rig(seed: int) -> Modes:
    """Return the first drawn rig whose largest cosine is at most ALIKE."""
    drafts = (draw_rig(generator(seed, "rig", k)) for k in count())
    return next(modes for modes in drafts if largest_cosine(modes) <= ALIKE)


def draw_rig(rng: np.random.Generator) -> Modes:
    """Draw the modes of a rig."""
    frequency, damping = draw_property(BAND, rng), draw_property(DAMPING, rng)
    return Modes(frequency, damping, np.exp(SPREAD * rng.standard_normal(frequency.shape)))


def draw_property(between: tuple[float, float], rng: np.random.Generator) -> Signal:
    """Draw a property of each mode, (locations, modes): the first SHARED columns are the same in each row."""
    everywhere = np.tile(rng.uniform(*between, SHARED), (len(LOCATIONS), 1))
    return np.concatenate([everywhere, rng.uniform(*between, (len(LOCATIONS), OWN))], axis=1)


def largest_cosine(modes: Modes) -> float:
    """Return the largest cosine between the spectra of two locations' responses to an impact."""
    spectra = np.abs(np.fft.rfft(modes.ring()))
    spectra /= np.linalg.norm(spectra, axis=1, keepdims=True)
    return float(np.triu(spectra @ spectra.T, 1).max())


def remount(modes: Modes, rng: np.random.Generator) -> Modes:
    """Return the modes after mounting another bearing."""
    shift = 1 + SHIFT * rng.standard_normal(modes.frequency.shape[1])
    gain = modes.gain * np.exp(REGAIN * rng.standard_normal(modes.gain.shape))
    return Modes(modes.frequency * shift, modes.damping, gain)


def generator(*parts: object) -> np.random.Generator:
    """Return a random generator that depends only on the words."""
    return np.random.default_rng(torch_generator(*parts).initial_seed())
