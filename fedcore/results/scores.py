"""The values of one setting that its answer is decided by, read from the tidy table."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import pandas as pd

from fedcore.results.criterion import LEFT_OUT, Criterion, Measured, is_same_test, measured, measured_new, ratio_of_test
from fedcore.results.gains import Gain, gain_of
from fedcore.results.summary import last_round, mean_over_devices, runs_on

Runs: TypeAlias = Mapping[str, pd.DataFrame]
"""method -> values, seeds x devices, the greater the better"""


@dataclass(frozen=True)
class SetScores:
    """One test set of one setting: the values of each row on it and on validation data, and how to average them.

    weights: device -> its weight in means over devices. ratio: test examples for each training example. validated: the
    values that choose the best row; empty: those on the test set do. same_test: whether every seed tests the same
    examples of a device. Gains and means are kept, as each budget asks for most of them again.
    """

    tested: Runs
    validated: Runs
    weights: pd.Series
    ratio: float
    same_test: bool = False
    _gains: dict[tuple[str, str, int], Gain | None] = field(default_factory=dict, init=False, repr=False)
    _means: dict[tuple[str, bool], float] = field(default_factory=dict, init=False, repr=False)

    def mean(self, name: str, validated: bool = False) -> float:
        """Return a row's mean over devices, then over seeds, on the test set or on validation data."""
        if (name, validated) not in self._means:
            runs = self.validated if validated else self.tested
            self._means[name, validated] = _mean(runs[name], self.weights)
        return self._means[name, validated]

    def best(self, names: Iterable[str]) -> str:
        """Return the row with the highest mean where rows are chosen; of equal ones the first by name.

        A row that was stopped, with fewer seeds than others, is it only if it is above the best of these on its own
        seeds.
        """
        chosen = [*names]
        validated = self.validates(chosen)
        runs = self.validated if validated else self.tested
        most = max(len(runs[name]) for name in chosen)
        full = [name for name in chosen if len(runs[name]) == most]
        best = min(full, key=lambda name: (-round(self.mean(name, validated), 12), name))
        for name in sorted({*chosen} - {*full}):
            same = runs[best].reindex(runs[name].index)
            best = name if self.mean(name, validated) > _mean(same, self.weights) + 1e-12 else best
        return best

    def validates(self, names: Iterable[str]) -> bool:
        """Whether validation data choose among these rows."""
        return {*names} <= {*self.validated}

    def lead(self, name: str, other: str) -> float:
        """Return by how much a row's mean is above another's, in their common seeds."""
        return _mean(self.tested[name] - self.tested[other], self.weights)

    def gain(self, name: str, other: str, among: int = 1) -> Gain | None:
        """Return the gain of a row on another, None without two common seeds. among: the rows it was chosen from."""
        asked = (name, other, among)
        if asked not in self._gains:
            runs = self.tested[name], self.tested[other]
            self._gains[asked] = gain_of(*runs, self.weights, self.ratio, among, self.same_test)
        return self._gains[asked]


def _mean(run: pd.DataFrame, weights: pd.Series) -> float:
    return float(mean_over_devices(run, weights).mean())


@dataclass(frozen=True)
class Scores:
    """One setting's values on its devices' own and on the shared test set, and the bytes of each row.

    alone: the rows that train alone. left_out: the values on devices that took no part, a row of the frames for each of
    these `new_devices`; without: rows that have none; in_turn: whether they are devices that were left out one by one.
    table: all of it. all_tested: as own.tested, also of the devices that do not count.
    """

    criterion: Criterion
    controls: frozenset[str]
    own: SetScores
    new: SetScores
    up: Mapping[str, float]
    down: Mapping[str, float]
    alone: frozenset[str]
    measured: Measured
    left_out: SetScores | None
    new_devices: Measured
    in_turn: bool
    without: tuple[str, ...]
    table: pd.DataFrame
    all_tested: Runs

    @property
    def traffic(self) -> dict[str, float]:
        """The bytes that a device sends and receives with each row."""
        return {name: self.up[name] + self.down[name] for name in self.up}


def read_scores(table: pd.DataFrame, controls: frozenset[str], criterion: Criterion) -> Scores:
    """Read what decides from the table of one setting. controls: labels that are never recommended."""
    criterion = criterion.of_table(table)
    scores = last_round(table)
    up, down = (_traffic(table, direction) for direction in ("bytes_up", "bytes_down"))
    tested, validated, shared = (runs_on(scores, split, criterion.metric) for split in ("test", "val", "shared"))
    counted, all_tested = measured(table, criterion), tested
    weights = pd.Series(counted.weights, dtype=float)
    tested, validated = (
        {name: part for name, run in runs.items() if (part := run[run.columns.intersection(weights.index)]).notna()
         .any(axis=None)} for runs in (tested, validated)
    )  # fmt: skip
    taking_part = [str(name) for name in table["device"][table["split"] != LEFT_OUT].unique()]
    alike = pd.Series(1.0, index=taking_part)
    own = SetScores(tested, validated, weights, ratio_of_test(table, "test", counted.weights), is_same_test(table))
    new = SetScores(shared, {}, alike, ratio_of_test(table, "shared", counted.weights))
    alone = frozenset(name for name in up if not up[name]) - controls
    left_out = runs_on(table, LEFT_OUT, criterion.metric)
    measured_elsewhere = measured_new(table, criterion)
    tried = {str(name) for name in table["method"][table["split"] == LEFT_OUT]}
    return Scores(
        criterion, controls, own, new, up, down, alone, counted,
        _by_device(left_out, measured_elsewhere, own, len(taking_part)), measured_elsewhere,
        {*measured_elsewhere.weights} <= {*taking_part}, tuple(sorted(tried - {*left_out})), table,
        all_tested,
    )  # fmt: skip


def _by_device(left_out: Runs, counted: Measured, own: SetScores, taking_part: int) -> SetScores | None:
    """Return the values on the devices that took no part, with the devices in the place of seeds.

    The best row is chosen by the validation data of the devices that took part, in the seeds that all rows have there.
    """
    if not left_out:
        return None
    seeds = sorted(set.intersection(*({*run.index} for run in left_out.values())))
    names = list(counted.weights)
    tested = {name: run.loc[seeds].mean().reindex(names).to_frame("all") for name, run in left_out.items()}
    means = {name: _mean(run.reindex(seeds), own.weights) for name, run in own.validated.items() if name in tested}
    validated = {name: pd.DataFrame({"all": [mean]}) for name, mean in means.items()}
    return SetScores(tested, validated, pd.Series({"all": 1.0}), 1 / max(1, taking_part - 1))


def _traffic(table: pd.DataFrame, direction: str) -> dict[str, float]:
    """Return the bytes of each row in one direction, of all rounds, mean over devices and seeds.

    Devices are those of the table: in a simulation all, in the field those that have joined.
    """
    rows = table[(table["split"] == "traffic") & (table["metric"] == direction)]
    part = table[table["split"] != LEFT_OUT]
    devices = part.groupby(["method", "seed"])["device"].nunique().groupby("method").sum()  # some are never sampled
    means = rows.groupby("method")["value"].sum().div(devices, fill_value=0.0)
    return {str(name): float(mean) for name, mean in means.items()}
