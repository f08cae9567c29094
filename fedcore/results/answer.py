"""The answer to a comparison: what to do, by how much it pays, for whom, at what cost, and how sure that is.

The rule, for the devices on their own test data and for a new device on the shared test set:

1. A row that is no control and whose devices send nothing trains alone; the other rows that are no controls combine.
   Controls are never recommended.
2. The gain of a row is its accuracy minus that of another, after the last round, mean over devices, seed by seed. Its
   spread is the standard deviation over seeds. With fewer than two common seeds the answer is "cannot say".
3. The best row that combines has the highest mean. With its gain g on the best row that trains alone, spread s and the
   difference m that matters:  g > s and g >= m: use it.  |g| + s <= m: no difference that matters.  g + s < m: train
   alone.  Otherwise: cannot say.
4. Another row is as good as the best if their difference plus its spread is at most m. Of those that rule 3 would also
   recommend, the one with the least traffic is recommended. A row within the spread alone is "not told apart".
5. If the recommended row does not exceed always guessing by more than the spread, the models have learnt nothing, and
   the answer is "cannot say". If a control exceeds it so, the answer says it.
6. A device is helped or hurt if its accuracy, mean over seeds, differs from training alone by at least m.
7. A budget leaves out the rows that combine and whose devices send and receive more in total. If none is left, the
   devices train alone.

:mod:`fedcore.report.phrases` puts it into words.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import pandas as pd

from fedcore.results.summary import PLACE, last_round

MIN_EFFECT = 0.01
"""The least difference in accuracy that matters, a fraction, unless a user sets another."""

GUESS = "majority"
"""The label of the control that always guesses the commonest label."""

Place: TypeAlias = tuple[str, str, str]
"""study, dataset, setting"""

Runs: TypeAlias = Mapping[str, pd.DataFrame]
"""method -> accuracy, seeds x devices"""


class Action(StrEnum):
    """What to do."""

    USE = "use"
    ALONE = "train alone"
    SAME = "no difference"
    UNSURE = "cannot say"


@dataclass(frozen=True)
class Gain:
    """A difference in accuracy, paired over seeds, as fractions: mean, standard deviation and least over seeds."""

    mean: float
    spread: float
    least: float
    seeds: int

    @property
    def sure(self) -> bool:
        """Whether it is above zero by more than the spread."""
        return self.mean > self.spread + 1e-12

    def within(self, min_effect: float) -> bool:
        """Whether it is so small, spread included, that it does not matter."""
        return abs(self.mean) + self.spread <= min_effect + 1e-12


@dataclass(frozen=True)
class Advice:
    """The answer on one test set.

    method: the recommended row; where nothing can be said, the best one if there is any. accuracy: its own, that of
    training alone and of always guessing, means over devices and seeds. gain: of the best combining row (with USE: of
    the recommended one) on training alone; over_guess: of the recommended row on always guessing; None: unknown.
    equal: rows that are as good as the recommended one, apart: those within the spread that may differ by what matters.
    better_controls: controls above it by more than the spread. reason: why nothing can be said.
    """

    action: Action
    method: str | None = None
    accuracy: float | None = None
    best: str | None = None
    gain: Gain | None = None
    over_guess: Gain | None = None
    equal: tuple[str, ...] = ()
    indistinguishable: tuple[str, ...] = ()
    better_controls: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Devices:
    """Changes of single devices against training alone, means over seeds, as fractions.

    helped, hurt: the number of devices that gain or lose at least what matters, of `count`. lowest: the device that
    changes least, or loses most. worst, worst_alone: the lowest accuracy of a device, mean over seeds.
    """

    count: int
    helped: int
    hurt: int
    lowest: str
    lowest_change: float
    worst: float
    worst_alone: float


@dataclass(frozen=True)
class Answer:
    """The answer for one setting.

    own: for its devices, on their own test data; None if they have none. new: for a new device, on the shared test set;
    None without one. devices: what the recommended (otherwise the best combining) row does to single devices. up, down:
    bytes that a device sends and receives in total with that row, mean over devices and seeds.
    """

    min_effect: float
    own: Advice | None
    new: Advice | None
    devices: Devices | None = None
    up: float = 0.0
    down: float = 0.0

    @property
    def advice(self) -> Advice:
        """The advice that decides: for the devices, or if they have no test data for a new device."""
        return self.own or self.new or Advice(Action.UNSURE, reason="there is no test data")

    @property
    def advised(self) -> str | None:
        """The row to use, None where nothing can be said."""
        return None if self.advice.action is Action.UNSURE else self.advice.method


def answers(table: pd.DataFrame, controls: frozenset[str], min_effect: float = MIN_EFFECT) -> dict[Place, Answer]:
    """Return the answer for each setting of a tidy table. controls: labels that are never recommended."""
    found = {}
    for key, rows in table.groupby(PLACE, sort=False):
        study, dataset, setting = map(str, key)
        found[study, dataset, setting] = answer(rows, controls, min_effect)
    return found


def answer(
    table: pd.DataFrame, controls: frozenset[str], min_effect: float = MIN_EFFECT, budget: float = math.inf
) -> Answer:
    """Return the answer for the one setting of a tidy table.

    min_effect: the least difference that matters, a fraction. budget: the most bytes that a device may send and receive
    in total, mean over devices and seeds.
    """
    return _answer(_read(table, controls), controls, min_effect, budget)


def answers_by_budget(
    table: pd.DataFrame, controls: frozenset[str], min_effect: float = MIN_EFFECT
) -> dict[float, Answer]:
    """Return the answer for the one setting of a tidy table for each budget where it may change, from 0 bytes up.

    Between two of these budgets the answer is that for the lower one, and from the last one on it is :func:`answer`.
    """
    scores = _read(table, controls)
    budgets = sorted({0.0} | {sent for name, sent in scores.traffic.items() if name not in controls | scores.alone})
    return {budget: _answer(scores, controls, min_effect, budget) for budget in budgets}


def device_changes(
    table: pd.DataFrame, controls: frozenset[str], min_effect: float = MIN_EFFECT
) -> tuple[pd.Series, dict[str, tuple[pd.Series, Devices]]]:
    """Return what each row of one setting does to single devices, against the best row that trains alone.

    Returns the accuracy of training alone by device, named by its row, and row -> the changes by device and their
    count: means over seeds, as fractions, on the devices' own test data. Both are empty without a row to compare with.
    """
    scores = _read(table, controls)
    if not scores.alone & {*scores.tested}:
        return pd.Series(dtype=float), {}
    name = _best(scores.tested, scores.alone & {*scores.tested})
    alone = scores.tested[name]
    changes = {row: (run - alone).mean().dropna() for row, run in scores.tested.items() if row != name}
    return alone.mean().rename(name), {
        row: (change, _changes(scores.tested[row], alone, min_effect)) for row, change in changes.items() if len(change)
    }


# the rule


@dataclass(frozen=True)
class _Scores:
    """One setting's accuracies on its devices' own and on the shared test set, and the bytes of each row.

    alone: the rows that train alone.
    """

    tested: Runs
    shared: Runs
    up: Mapping[str, float]
    down: Mapping[str, float]
    alone: frozenset[str]

    @property
    def traffic(self) -> dict[str, float]:
        """The bytes that a device sends and receives with each row."""
        return {name: self.up[name] + self.down[name] for name in self.up}


def _read(table: pd.DataFrame, controls: frozenset[str]) -> _Scores:
    scores = last_round(table)
    accuracy = scores[scores["metric"] == "accuracy"]
    up, down = (_traffic(table, way) for way in ("bytes_up", "bytes_down"))
    tested, shared = (_runs(accuracy[accuracy["split"] == split]) for split in ("test", "shared"))
    return _Scores(tested, shared, up, down, frozenset(name for name in up if not up[name]) - controls)


def _answer(scores: _Scores, controls: frozenset[str], min_effect: float, budget: float) -> Answer:
    tested, alone = scores.tested, scores.alone & {*scores.tested}
    own, new = (_advise(runs, scores.alone & {*runs}, controls, scores.traffic, min_effect, budget) if runs else None
                for runs in (tested, scores.shared))  # fmt: skip
    chosen = own or new
    row = (chosen.method if chosen.action is Action.USE else chosen.best) if chosen else None
    changes = None
    if own is not None and row is not None and alone:
        changes = _changes(tested[row], tested[_best(tested, alone)], min_effect)
    return Answer(min_effect, own, new, changes, scores.up.get(row or "", 0.0), scores.down.get(row or "", 0.0))


def _advise(
    runs: Runs,
    alone: frozenset[str],
    controls: frozenset[str],
    traffic: Mapping[str, float],
    min_effect: float,
    budget: float,
) -> Advice:
    """Apply the rule on one test set. alone: rows that train alone. traffic: bytes of each row."""
    every = [name for name in runs if name not in alone | controls]
    combining = [name for name in every if traffic[name] <= budget]
    if not combining and not (every and alone):
        return Advice(Action.UNSURE, reason="no row fits the budget" if every else "no row combines models")
    if not combining:
        return _without_rival(runs, _best(runs, alone), controls)
    best = _best(runs, combining)
    if not alone:
        return Advice(
            Action.UNSURE, best, _mean(runs[best]), best, reason="no row trains alone; add one, such as local_only"
        )
    reference = runs[_best(runs, alone)]
    gain = gain_of(runs[best], reference)
    if gain is None:
        return Advice(
            Action.UNSURE, best, _mean(runs[best]), best,
            reason="at least two seeds are needed",
        )  # fmt: skip
    action = decide(gain, min_effect)
    method = _best(runs, alone)
    if action is Action.USE:
        as_good = [name for name in combining if _is_as_good(runs[name], runs[best], min_effect)]
        worthy = [name for name in as_good if decide(gain_of(runs[name], reference), min_effect) is Action.USE]
        method = min([best, *worthy], key=lambda name: (traffic[name], name != best, name))
        gain = gain_of(runs[method], reference)
    elif action is Action.UNSURE:
        method = best
    rivals = [name for name in combining if name != method]
    equal = tuple(name for name in rivals if _is_as_good(runs[name], runs[method], min_effect))
    over_guess = _over_guess(runs, method, controls)
    reason = ""
    if over_guess is not None and not over_guess.sure:
        action, reason = Action.UNSURE, _nothing_learnt(method)
    return Advice(
        action, method, _mean(runs[method]), best, gain, over_guess, equal,
        tuple(name for name in rivals if name not in equal and _is_indistinguishable(runs[name], runs[method])),
        tuple(name for name in runs if name in controls and _exceeds(runs[name], runs[method])),
        reason,
    )  # fmt: skip


def _without_rival(runs: Runs, method: str, controls: frozenset[str]) -> Advice:
    """Return the advice to train alone where no row that combines fits the budget."""
    over_guess = _over_guess(runs, method, controls)
    if over_guess is not None and not over_guess.sure:
        return Advice(Action.UNSURE, method, _mean(runs[method]), reason=_nothing_learnt(method))
    return Advice(Action.ALONE, method, _mean(runs[method]), over_guess=over_guess)


def _over_guess(runs: Runs, method: str, controls: frozenset[str]) -> Gain | None:
    return gain_of(runs[method], runs[GUESS]) if GUESS in runs and GUESS in controls else None


def _nothing_learnt(method: str) -> str:
    return f"{method} is not above always guessing, so the models have learnt nothing"


def decide(gain: Gain | None, min_effect: float) -> Action:
    """Return what the gain of combining on training alone calls for: the module's rule 3."""
    if gain is None:
        return Action.UNSURE
    if gain.sure and gain.mean >= min_effect - 1e-12:
        return Action.USE
    if gain.within(min_effect):
        return Action.SAME
    return Action.ALONE if gain.mean + gain.spread < min_effect else Action.UNSURE


def gain_of(run: pd.DataFrame, other: pd.DataFrame) -> Gain | None:
    """Return the gain of a run on another, seeds x devices; None without two common seeds."""
    common = (run.mean(axis=1) - other.mean(axis=1)).dropna()
    if len(common) < 2:
        return None
    return Gain(float(common.mean()), float(common.std()), float(common.min()), len(common))


def _is_as_good(run: pd.DataFrame, best: pd.DataFrame, min_effect: float) -> bool:
    gain = gain_of(run, best)
    return gain is not None and gain.within(min_effect)


def _is_indistinguishable(run: pd.DataFrame, best: pd.DataFrame) -> bool:
    gain = gain_of(run, best)
    return gain is None or abs(gain.mean) <= gain.spread + 1e-12


def _exceeds(run: pd.DataFrame, best: pd.DataFrame) -> bool:
    gain = gain_of(run, best)
    return gain is not None and gain.sure


def _best(runs: Runs, names: Iterable[str]) -> str:
    """Return the row with the highest mean accuracy; of equal ones the first by name."""
    return min(names, key=lambda name: (-round(_mean(runs[name]), 12), name))


def _mean(run: pd.DataFrame) -> float:
    return float(run.mean(axis=1).mean())


def _runs(accuracy: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return each row's accuracies on one split, seeds x devices; rows without any value are left out."""
    values = accuracy.set_index(["method", "seed", "device"])["value"].unstack()  # noqa: PD010
    runs = {str(name): values.loc[name] for name in values.index.unique("method")}
    return {name: run for name, run in runs.items() if run.notna().any(axis=None)}


def _traffic(table: pd.DataFrame, way: str) -> dict[str, float]:
    """Return the bytes of each row in one direction, of all rounds, mean over devices and seeds."""
    rows = table[(table["split"] == "traffic") & (table["metric"] == way)]
    devices = table.groupby(["method", "seed"])["device"].nunique().groupby("method").sum()  # some never take part
    means = rows.groupby("method")["value"].sum().div(devices, fill_value=0.0)
    return {str(name): float(mean) for name, mean in means.items()}


def _changes(run: pd.DataFrame, alone: pd.DataFrame, min_effect: float) -> Devices:
    """Return what a row does to single devices."""
    change = (run - alone).mean().dropna()
    lowest = str(change.idxmin())
    return Devices(
        len(change), int((change >= min_effect - 1e-12).sum()), int((change <= -min_effect + 1e-12).sum()), lowest,
        float(change[lowest]), float(run.min(axis=1).mean()), float(alone.min(axis=1).mean()),
    )  # fmt: skip
