"""What a paper claims, as rules over the tidy table: each holds, does not hold, or was not tested, with the numbers.

A rule is a sentence of a small language; A and B are rows of a study, or differences of two ("code_ot - lmf"), KEY is
a key of the study's grid, or "round":

    A > B                   A is above B by more than the spread
    A ~ B within 0.02       they differ by no more than that
    A rises with KEY        A at the key's last value is above A at its first, by more than the spread
    A falls with KEY

Numbers are ordered by size, names as the grid has them.

A rule is put to every setting of the grid that `where` admits (a trend: to every group of settings that differ in the
key alone) and holds if it holds in each. As in :mod:`fedcore.summary`, differences are taken seed by seed and their
spread is the standard deviation over seeds; a single seed tests nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pandas as pd

from fedcore.types import Refused

RULE = re.compile(
    r"(?P<a>\w+)( - (?P<a2>\w+))? "
    r"(?:> (?P<b>\w+)( - (?P<b2>\w+))?"
    r"|~ (?P<near>\w+)( - (?P<near2>\w+))? within (?P<margin>[0-9.e-]+)"
    r"|(?P<way>rises|falls) with (?P<key>[\w.]+))"
)

Points = Mapping[str, Mapping[str, Any]]
"""setting -> its point in the study's grid: key -> value"""


@dataclass(frozen=True)
class Claim:
    """says: what the paper says. rule: see above. where: values (or lists of values) of grid keys. of: split.metric.

    Raises Refused for a rule that cannot be read.
    """

    says: str
    rule: str
    where: Mapping[str, Any] = field(default_factory=dict)
    of: str = "shared.accuracy"

    def __post_init__(self) -> None:
        if RULE.fullmatch(self.rule) is None:
            raise Refused(
                f"rule = {self.rule!r}: must be one of A > B, A ~ B within NUMBER, A rises with KEY, A falls with KEY"
            )
        if "." not in self.of:
            raise Refused(f"of = {self.of!r}: must be a split and a metric, e.g. shared.accuracy")

    @property
    def labels(self) -> set[str]:
        """The rows that the rule names."""
        found = RULE.fullmatch(self.rule)
        assert found is not None
        return {found[name] for name in ("a", "a2", "b", "b2", "near", "near2") if found[name]}


class Evidence(NamedTuple):
    """What a rule came to at one place of the grid: the difference it asks for, over so many seeds."""

    place: str
    difference: float
    spread: float
    seeds: int
    holds: bool


class Verdict(NamedTuple):
    """A claim and what speaks for or against it; without evidence it was not tested."""

    claim: Claim
    evidence: tuple[Evidence, ...]

    @property
    def word(self) -> str:
        if not self.evidence:
            return "not tested"
        return "holds" if all(one.holds for one in self.evidence) else "does not hold"

    @property
    def numbers(self) -> str:
        """The share of places where the rule holds, and the place that speaks most against it."""
        if not self.evidence:
            return "needs two seeds, and the rows and settings it names"
        yes = sum(one.holds for one in self.evidence)
        against = [one for one in self.evidence if not one.holds] or self.evidence
        least = min(against, key=lambda one: abs(one.difference) if one.holds else -abs(one.difference))
        where = f" at {least.place}" if len(self.evidence) > 1 else ""
        return (
            f"in {yes} of {len(self.evidence)}; {'least' if yes == len(self.evidence) else 'most against'}: "
            f"{least.difference:+.3g} ± {least.spread:.2g}{where} ({least.seeds} seeds)"
        )


def judge(claim: Claim, table: pd.DataFrame, points: Points) -> Verdict:
    """Put a claim to one study's tidy table. points: the settings of the table, in the grid's order."""
    found = RULE.fullmatch(claim.rule)
    assert found is not None
    part = found.groupdict()
    admitted = [setting for setting, point in points.items() if _admits(claim.where, point)]
    split, _, metric = claim.of.rpartition(".")
    rows = table[(table["split"] == split) & (table["metric"] == metric) & table["setting"].isin(admitted)]
    a = _quantity(rows, part["a"], part["a2"])
    if part["key"]:
        places = _by_round(a) if part["key"] == "round" else _by_key(a, part["key"], {s: points[s] for s in admitted})
        sign = 1 if part["way"] == "rises" else -1
        differences = {place: sign * (last - first) for place, first, last in places}
    else:
        b = _quantity(rows, part["b"] or part["near"], part["b2"] or part["near2"])
        gap = _last(a) - _last(b)
        differences = {setting: gap.xs(setting) for setting in admitted if setting in gap.index.unique("setting")}
    evidence = []
    for place, difference in differences.items():
        values = difference.dropna()
        if len(values) > 1:
            mean, spread = float(values.mean()), float(values.std())
            holds = abs(mean) <= float(part["margin"]) if part["margin"] else mean > spread
            evidence.append(Evidence(place, mean, spread, len(values), holds))
    return Verdict(claim, tuple(evidence))


def _admits(where: Mapping[str, Any], point: Mapping[str, Any]) -> bool:
    wanted = {key: value if isinstance(value, list) else [value] for key, value in where.items()}
    return all(key in point and point[key] in values for key, values in wanted.items())


def _quantity(rows: pd.DataFrame, label: str, less: str | None) -> pd.Series:
    """Return a row's means over devices, by setting, seed and turn; of a difference, those of the last turn."""
    mine = rows[rows["method"] == label]
    means = mine.groupby(["setting", "seed", "stage", "round"])["value"].mean()
    return means if less is None else _last(means) - _last(_quantity(rows, less, None))


def _last(means: pd.Series) -> pd.Series:
    """Return the last turn's values, by setting and seed."""
    if means.index.nlevels == 2:
        return means
    return means.dropna().groupby(["setting", "seed"]).last()


def _by_round(means: pd.Series) -> Iterator[tuple[str, pd.Series, pd.Series]]:
    """Yield each setting with its values, by seed, after the first and after the last evaluated turn."""
    if means.index.nlevels == 2:
        return
    turns = means.dropna().groupby(["setting", "seed"])
    first, last = turns.first(), turns.last()
    for setting in first.index.unique("setting"):
        if turns.size().xs(setting).min() > 1:
            yield setting, first.xs(setting), last.xs(setting)


def _by_key(means: pd.Series, key: str, points: Points) -> Iterator[tuple[str, pd.Series, pd.Series]]:
    """Yield each group of settings that differ in the key alone, with the values at its smallest and largest."""
    final = _last(means)
    known = set(final.index.unique("setting"))
    groups: dict[str, dict[Any, str]] = {}
    for setting, point in points.items():
        if key in point and setting in known:
            others = " ".join(f"{name.rpartition('.')[2]}={value}" for name, value in point.items() if name != key)
            groups.setdefault(others, {})[_kept(point[key])] = setting
    for place, settings in groups.items():
        if len(settings) > 1:
            values = list(settings) if any(isinstance(value, str | tuple) for value in settings) else sorted(settings)
            low, high = values[0], values[-1]
            words = place or f"{key.rpartition('.')[2]} from {low} to {high}"
            yield words, final.xs(settings[low]), final.xs(settings[high])


def _kept(value: Any) -> Any:
    """Return a grid's value as the key of a dict."""
    return tuple(value) if isinstance(value, list) else value
