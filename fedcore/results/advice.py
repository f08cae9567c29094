"""What an answer says; :mod:`fedcore.results.answer` decides it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from fedcore.results.chance import AtChance
from fedcore.results.criterion import RATIO, Criterion, Measured
from fedcore.results.gains import Gain


class Action(StrEnum):
    """What to do."""

    USE = "use"
    ALONE = "train alone"
    SAME = "no difference"
    UNSURE = "cannot say"


@dataclass(frozen=True)
class Advice:
    """The answer on one test set.

    method: the recommended row; where nothing can be said, the best one if there is any. value: its mean over devices
    and seeds; best_value, alone_value: those of the best row that combines and of `alone`, the best other. gain: of the
    best combining row (with USE: of the recommended one) on training alone; over_guess: of that to use on always
    guessing; None: unknown. guess: the stronger of the rows that guess. equal: rows that are as good as the recommended
    one; indistinguishable: those that may differ by what matters, though the interval includes 0.
    at_chance: rows that are no better than guessing. better_controls: controls above it. validated: whether the best
    row was chosen on validation data. reason: why nothing can be said. best_by_seed: the best row's mean over devices,
    the greater the better. best_gain: its mean gain on training alone, of one seed too; nan without a common one.
    ratio: test examples for each training example. ahead: a row that is ahead on the test data by more than what
    matters, its value there, and the one of its kind that is taken; None without.
    """

    action: Action
    method: str | None = None
    value: float | None = None
    best: str | None = None
    gain: Gain | None = None
    over_guess: Gain | None = None
    guess: str | None = None
    equal: tuple[str, ...] = ()
    indistinguishable: tuple[str, ...] = ()
    at_chance: tuple[str, ...] = ()
    better_controls: tuple[str, ...] = ()
    validated: bool = False
    best_value: float | None = None
    alone: str | None = None
    alone_value: float | None = None
    best_gain: float | None = None
    reason: str = ""
    best_by_seed: Mapping[object, float] = field(default_factory=dict)
    ratio: float = RATIO
    ahead: tuple[str, float, str] | None = None

    @property
    def judged(self) -> str | None:
        """The row to use; where none that combines is recommended, the best of these."""
        return self.method if self.action is Action.USE else self.best


@dataclass(frozen=True)
class Devices:
    """Changes of single devices against training alone, means over seeds.

    helped, hurt: the number of devices that gain or lose at least what matters, of `count`. lowest: the device that
    changes least, or loses most. worst, worst_alone: the lowest value of a device, mean over seeds. shown: devices that
    change for sure: 0 is not in their interval over seeds, corrected for the number of devices. lacking: devices that
    are not among the `count`, and the row that has no value there in any seed.
    """

    count: int
    helped: int
    hurt: int
    lowest: str
    lowest_change: float
    worst: float
    worst_alone: float
    shown: frozenset[str] = frozenset()
    lacking: tuple[tuple[str, ...], str] = ((), "")

    @property
    def may_be_chance(self) -> bool:
        """Whether some device is hurt, and the one that loses most does not for sure."""
        return bool(self.hurt) and self.lowest not in self.shown


@dataclass(frozen=True)
class NewDevice:
    """The answer for a device that takes no part, from devices that took none.

    advice: as for the devices, with the devices that took no part in the place of seeds. measured: which of them count.
    in_turn: whether all devices were left out one by one; otherwise they are new sites. worst: the device on which the
    recommended row (otherwise the best combining one) does worst, worst_value: its value there, mean over seeds, and
    worst_alone: that of one device's model. without: rows that have no model for a new device.
    """

    advice: Advice
    measured: Measured
    in_turn: bool
    worst: str = ""
    worst_value: float | None = None
    worst_alone: float | None = None
    without: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """The answer for one setting.

    criterion: what decides. own: for its devices, on their own test data; None if they have none. new: on the shared
    test set; None without one. new_device: for a new device, where some took no part; None where all did. devices: what
    the recommended (otherwise the best combining) row does to single devices. measured: which devices count. up, down:
    bytes that a device sends and receives in total with that row, mean over devices and seeds. causes: the likely cause
    why each row of `advice.at_chance` is no better than guessing. learns: whether the best row of a kind is better than
    guessing for sure. probed: the simple models that see the label in the columns; None: they were not asked. stopped:
    rows with fewer seeds than the others, since they could not win; seeds: of those, and of the others. over_all: where
    some devices do not count, the gain of that row on training alone over all that have test data, with its interval
    over these, its `seeds`. tasks: the project's edited ones, which took part.
    pooled: the gain of a model of all devices' rows on `advice.method`, if its interval is above 0.
    misses_rare: whether a metric decides that counts a rare class, and that row misses many rows of one.
    weighted: the rows that are trained with class weights; None: unknown. remedies: what was tried in a run of one
    seed, a row with a setting -> its gain on validation data. refused: rows that were typed and have no result ->
    why. by_rows: where sizes of devices differ much, the row to use if each weighs as much as its test rows; None:
    the same, or none. simple: see :func:`fedcore.results.answer.simplest`. free: a line on mistakes without a cost.
    own_scale: from how many rows on a new device scales its own; 0: not. few: a class with too few test rows
    for the metric, and the least number of them in a seed.
    """

    criterion: Criterion
    own: Advice | None
    new: Advice | None
    devices: Devices | None = None
    measured: Measured = field(default_factory=lambda: Measured({}))
    up: float = 0.0
    down: float = 0.0
    new_device: NewDevice | None = None
    causes: Mapping[str, AtChance] = field(default_factory=dict)
    stopped: tuple[str, ...] = ()
    seeds: tuple[int, int] = (0, 0)
    over_all: Gain | None = None
    pooled: Gain | None = None
    tasks: tuple[str, ...] = ()
    misses_rare: bool = False
    weighted: frozenset[str] | None = None
    remedies: Mapping[str, float] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    learns: bool = True
    probed: tuple[str, ...] | None = None
    by_rows: str | None = None
    simple: str | None = None
    free: str = ""
    own_scale: int = 0
    few: tuple[str, int] | None = None

    @property
    def min_effect(self) -> float:
        """The least difference that matters, in the unit of the metric."""
        return self.criterion.min_effect

    @property
    def advice(self) -> Advice:
        """The advice that decides: for the devices, or if they have no test data for a new device."""
        of_new = self.new_device and self.new_device.advice
        return self.own or of_new or self.new or Advice(Action.UNSURE, reason="there is no test data")

    def is_guess(self, row: str) -> bool:
        """Tell whether a row is no better than always guessing: on average, or by an interval that excludes a gain."""
        over = self.advice.over_guess if row == self.advice.method else None
        return row in self.advice.at_chance or (over is not None and over.high < self.min_effect)

    def told(self, other: "Answer") -> "Answer":
        """Return another answer to the same runs, which knows of these what this one does."""
        known = ("tasks", "refused", "weighted", "free", "own_scale", "few")
        return replace(other, **{name: getattr(self, name) for name in known})

    @property
    def counts_may_be_chance(self) -> bool:
        """Whether the counts of devices that are helped and hurt may be chance: docs/answer.md, rule 7."""
        unsure = self.advice.action is Action.UNSURE or self.measured.everyone
        return unsure or (self.devices is not None and self.devices.may_be_chance)

    @property
    def nothing_learns(self) -> bool:
        """Whether rows are at chance, and none is above guessing for sure: then a probe decides why."""
        return bool(self.causes) and not self.learns

    @property
    def advised(self) -> str | None:
        """The row to use, None where nothing can be said."""
        return None if self.advice.action is Action.UNSURE else self.advice.method
