"""A paper's claims as rules over the tidy table: each holds, does not hold, or was not tested, with the numbers.

A rule is one of these forms; A and B are rows of a study or differences of two ("code_ot - lmf"), and one may be a
number; KEY is a key of the study's grid, or "round":

    A > B                   A is above B by more than the spread
    A ~ B within 0.02       they differ by at most 0.02
    A rises with KEY        A at the key's last value is above A at its first, by more than the spread
    A falls with KEY        A at the key's last value is below A at its first, by more than the spread
    A stays within 0.05 with KEY    A at the key's first and last value differ by at most 0.05

Numbers are ordered by size, names as in the grid. A row's value is the mean over devices; `of` may choose their
standard deviation, "std of test.accuracy", or the worst device, "worst of test.accuracy": the minimum, or the maximum
of a metric of which less is better (:data:`fedcore.results.summary.LESS`).

A rule is tested in every setting of the grid that matches `where` (a trend: in every group of settings that differ only
in the key) and holds if it holds in each. `where` has one key besides those of the grid: with `domain: A` the values
are those of the devices with data of domain A (:func:`fedcore.results.summary.groups`). As in the summary, differences
are taken seed by seed and their spread is the standard deviation over seeds; a single seed tests nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pandas as pd

from fedcore.results.summary import LESS, groups
from fedcore.types import InputError

NUMBER = r"-?\d*\.?\d+(?:e[+-]?\d+)?"
SIDE = rf"{NUMBER}|\w+(?: - \w+)?"
RULE = re.compile(
    rf"(?P<a>{SIDE}) (?:> (?P<below>{SIDE})|~ (?P<near>{SIDE}) within (?P<margin>{NUMBER})"
    rf"|(?:(?P<way>rises|falls)|stays within (?P<room>{NUMBER})) with (?P<key>[\w.]+))"
)
OF = re.compile(r"(?:(?P<how>std|worst) of )?(?P<split>\w+)\.(?P<metric>.+)")
DOMAIN = "domain"
"""The key of `where` that chooses devices; a grid may have none of this name."""

Points = Mapping[str, Mapping[str, Any]]
"""setting -> its point in the study's grid: key -> value"""


@dataclass(frozen=True)
class Claim:
    """says: the paper's claim. rule, of: see above. where: values (or lists of values) of grid keys, and of `domain`.

    Raises InputError for an invalid rule or `of`.
    """

    says: str
    rule: str
    where: Mapping[str, Any] = field(default_factory=dict)
    of: str = "shared.accuracy"

    def __post_init__(self) -> None:
        if RULE.fullmatch(self.rule) is None or not self.labels:
            raise InputError(
                f"rule = {self.rule!r}: must be one of A > B, A ~ B within NUMBER, A rises with KEY, A falls with KEY, "
                "A stays within NUMBER with KEY; "
                "A or B may be a number"
            )
        if OF.fullmatch(self.of) is None:
            raise InputError(
                f"of = {self.of!r}: must be a split and a metric, e.g. shared.accuracy, std of test.accuracy or worst "
                "of test.accuracy"
            )

    @property
    def parts(self) -> dict[str, str | None]:
        """The parts of the rule by name."""
        found = RULE.fullmatch(self.rule)
        assert found is not None
        return found.groupdict()

    @property
    def labels(self) -> set[str]:
        """The rows that the rule names."""
        sides = [self.parts[name] for name in ("a", "below", "near")]
        return {label for side in sides if side and _number(side) is None for label in side.split(" - ")}

    @property
    def tolerance(self) -> float | None:
        """The largest difference allowed; None: the rule tests which value is greater."""
        margin = self.parts["margin"] or self.parts["room"]
        return float(margin) if margin else None

    @property
    def domains(self) -> list[str] | None:
        """The groups of devices whose values count; None: all devices."""
        return [str(name) for name in _as_list(self.where[DOMAIN])] if DOMAIN in self.where else None


class Evidence(NamedTuple):
    """The result of a rule at one place of the grid: the tested difference and its spread over the seeds."""

    place: str
    difference: float
    spread: float
    seeds: int
    holds: bool


class Verdict(NamedTuple):
    """A claim and its evidence; a claim without evidence was not tested."""

    claim: Claim
    evidence: tuple[Evidence, ...]

    @property
    def word(self) -> str:
        if not self.evidence:
            return "not tested"
        return "holds" if all(one.holds for one in self.evidence) else "does not hold"

    @property
    def numbers(self) -> str:
        """The share of places where the rule holds, and the place with the strongest evidence against it."""
        if not self.evidence:
            return "needs two seeds, and the rows, settings and domains it names"
        yes = sum(one.holds for one in self.evidence)
        against = [one for one in self.evidence if not one.holds] or self.evidence
        if self.claim.tolerance is None:
            worst, word = min(against, key=lambda one: one.difference), "least"
        else:
            worst, word = max(against, key=lambda one: abs(one.difference)), "largest"
        where = f" at {worst.place}" if len(self.evidence) > 1 else ""
        return (
            f"in {yes} of {len(self.evidence)}; {word if yes == len(self.evidence) else 'most against'}: "
            f"{worst.difference:+.3g} ± {worst.spread:.2g}{where} ({worst.seeds} seeds)"
        )


def judge(claim: Claim, table: pd.DataFrame, points: Points) -> Verdict:
    """Test a claim on one study's tidy table. points: the settings of the table, in the grid's order."""
    part = claim.parts
    admitted = [setting for setting, point in points.items() if _admits(claim.where, point)]
    rows = _rows(claim, table[table["setting"].isin(admitted)])
    a = _side(rows, str(part["a"]))
    differences: dict[str, pd.Series]
    if part["key"]:
        assert not isinstance(a, float)
        places = _by_round(a) if part["key"] == "round" else _by_key(a, part["key"], {s: points[s] for s in admitted})
        sign = -1 if part["way"] == "falls" else 1
        differences = {place: sign * (last - first) for place, first, last in places}
    else:
        gap = _last(a) - _last(_side(rows, str(part["below"] or part["near"])))
        assert not isinstance(gap, float)
        differences = {setting: gap.xs(setting) for setting in admitted if setting in gap.index.unique("setting")}
    evidence = []
    for place, difference in differences.items():
        values = difference.dropna()
        if len(values) > 1:
            mean, spread = float(values.mean()), float(values.std())
            holds = mean > spread if claim.tolerance is None else abs(mean) <= claim.tolerance
            evidence.append(Evidence(place, mean, spread, len(values), holds))
    return Verdict(claim, tuple(evidence))


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _admits(where: Mapping[str, Any], point: Mapping[str, Any]) -> bool:
    wanted = {key: _as_list(value) for key, value in where.items() if key != DOMAIN}
    return all(key in point and point[key] in values for key, values in wanted.items())


def _rows(claim: Claim, table: pd.DataFrame) -> pd.Series:
    """Return the values to compare, over devices, by method, setting, seed and turn."""
    found = OF.fullmatch(claim.of)
    assert found is not None
    rows = table[(table["split"] == found["split"]) & (table["metric"] == found["metric"])]
    if claim.domains is not None:
        of = groups(table)
        rows = rows.merge(of[of["group"].isin(claim.domains)])
    worst = "max" if found["metric"] in LESS else "min"
    how = {None: "mean", "std": "std", "worst": worst}[found["how"]]
    over: pd.Series = rows.groupby(["method", "setting", "seed", "stage", "round"])["value"].agg(how)
    return over


def _number(side: str) -> float | None:
    return float(side) if re.fullmatch(NUMBER, side) else None


def _side(rows: pd.Series, side: str) -> pd.Series | float:
    """Return a row's values by setting, seed and turn; a difference's values of the last turn; or the number."""
    number = _number(side)
    if number is not None:
        return number
    a, *less = (rows[rows.index.get_level_values("method") == label].droplevel("method") for label in side.split(" - "))
    return _last(a) - _last(less[0]) if less else a


def _last(values: Any) -> Any:
    """Return the last turn's values, by setting and seed; a number is returned unchanged."""
    if isinstance(values, float) or values.index.nlevels == 2:
        return values
    return values.dropna().groupby(["setting", "seed"]).last()


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
    """Yield each group of settings that differ only in the key, with the values at its first and last value."""
    final = _last(means)
    known = set(final.index.unique("setting"))
    groups: dict[str, dict[Any, str]] = {}
    for setting, point in points.items():
        if key in point and setting in known:
            others = " ".join(f"{name.rpartition('.')[2]}={value}" for name, value in point.items() if name != key)
            groups.setdefault(others, {})[_hashable(point[key])] = setting
    for place, settings in groups.items():
        if len(settings) > 1:
            values = list(settings) if any(isinstance(value, str | tuple) for value in settings) else sorted(settings)
            low, high = values[0], values[-1]
            words = place or f"{key.rpartition('.')[2]} from {low} to {high}"
            yield words, final.xs(settings[low]), final.xs(settings[high])


def _hashable(value: Any) -> Any:
    """Return a grid's value as the key of a dict."""
    return tuple(value) if isinstance(value, list) else value


def verdict_table(verdicts: Iterable[tuple[str, Verdict]]) -> pd.DataFrame:
    """Return a row for each claim of a study: its text, the rule, the verdict and the numbers."""
    rows = [
        {
            "study": study, "says": verdict.claim.says, "rule": verdict.claim.rule, "of": verdict.claim.of,
            "where": ", ".join(f"{key} = {value}" for key, value in verdict.claim.where.items()),
            "verdict": verdict.word, "numbers": verdict.numbers,
        }
        for study, verdict in verdicts
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["study", "says", "rule", "of", "where", "verdict", "numbers"])
