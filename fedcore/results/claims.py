"""A paper's claims as rules over the tidy table: each holds, holds in most settings, does not, or was not tested.

A rule is one of these forms; A and B are rows of a study or differences of two ("code_ot - lmf"), and one may be a
number; KEY is a key of the study's grid, or "round":

    A > B                       A is above B: the interval of the difference is above 0
    A ~ B within 0.02           they differ by at most 0.02
    A rises with KEY            A at the key's last value is above A at its first: the interval is above 0
    A falls with KEY            A at the key's last value is below A at its first, likewise
    A rises with KEY pairwise   the same on each problem, see below; also: falls
    A stays within 0.05 with KEY    A at the key's first and last value differ by at most 0.05

Numbers are ordered by size, names as in the grid. A row's value is the mean over devices; `metric` may choose their
standard deviation, "std of test.accuracy", or the worst device, "worst of test.accuracy": the minimum, or the maximum
of a metric of which less is better (:data:`fedcore.results.summary.LESS`). It is the value after the last round, or
after round `round`, counted over all stages; a method of a single round has one value at any time.

A rule is tested in every setting of the grid that matches `where` (a trend: in every group of settings that differ only
in the key). `where` has two keys besides those of the grid: with `domain: A` the values are those of the devices with
data of domain A (:func:`fedcore.results.summary.groups`), with `labelled: true` those of the devices with labelled
training examples.

**Interval.** Differences are taken seed by seed, and a rule needs SEEDS seeds. The interval of their mean is that of
the answer (:func:`fedcore.results.intervals.half_width`) at the confidence LEVEL, so that it is above 0 in at most 5 %
of cases if the difference is 0 on average. It assumes that the differences are about normal, and that seeds draw
devices' data and initial models anew from one dataset. A test set that is the same with every seed, such as a dataset's
official one, adds nothing to the spread: the claim is then judged for that test set alone. A rule with "within"
compares the mean with the tolerance; its interval is only shown.

**Settings.** A claim holds if its rule holds in each setting, and holds in most if a one-sided sign test over settings,
of the hypothesis that it holds in half of them or fewer, has p < .05: one failure takes eight settings. The test takes
settings as independent; those that share data are not quite.

**Pairwise.** A problem is a seed, a setting of the other keys and, where the metric differs between devices, a device.
The change from the key's first to its last value is taken on each problem, of which there must be two. The rule holds
if the mean of these changes, over all problems, exceeds twice its standard error. Thus neither the level of a problem
nor the number of settings hides a change that all problems share. The key must not change the problem: a solver's
tolerance, not the partition.

**Gates.** A claim is tested only where the experiment is valid: every :class:`Gate` of its study must hold there, by
its mean over seeds (:func:`closed`), and for a claim with `round` after that round too, unless it looks at what a run
says once, such as the accuracy of an auxiliary model. A gate without values is closed.

**Ceiling.** Where all rows of `A > B` or of a trend over the grid are so close to 1, the best value of their metric,
that no difference can be seen, the claim is not tested. The limit is CEILING or, where FEW test examples are worth
more, 1 less their worth. It applies to metrics with a best value of 1, also to their standard deviation over devices
and their worst device, and to rules that compare rows, not one row with a number. A study's `ceiling` is another limit,
or none.

**Convergence.** Where a study says `converged: true`, a claim about the end (without `round`) that compares scores of
rows is tested only where none of these rows still gains: from the last evaluated round within the first nine tenths of
its rounds to the last one, its mean may not gain more than its standard deviation over seeds after the last round. In a
claim that one row is better than another only the one behind counts, since the one ahead could only lead by more. A row
of one round has nothing to converge; one of several rounds that was scored after the last alone does not pass.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import pandas as pd
from annotated_types import Ge

from fedcore.results.criterion import METRICS, RATIO, ratio_of_test
from fedcore.results.intervals import half_width
from fedcore.results.summary import LESS, SCORED, groups
from fedcore.types import InputError, Share

NUMBER = r"-?\d*\.?\d+(?:e[+-]?\d+)?"
SIDE = rf"{NUMBER}|\w+(?: - \w+)?"
RULE = re.compile(
    rf"(?P<a>{SIDE}) (?:> (?P<below>{SIDE})|~ (?P<near>{SIDE}) within (?P<margin>{NUMBER})"
    rf"|(?:(?P<way>rises|falls)|stays within (?P<room>{NUMBER})) with (?P<key>[\w.]+)(?P<paired> pairwise)?)"
)
FORMS = (
    "A > B, A ~ B within NUMBER, A rises with KEY, A falls with KEY, A stays within NUMBER with KEY, "
    "A rises or falls with KEY pairwise"
)
METRIC = re.compile(r"(?:(?P<how>std|worst) of )?(?P<split>\w+)\.(?P<metric>.+)")
DOMAIN, LABELLED = "domain", "labelled"
DEVICES = {DOMAIN: "the devices' domain", LABELLED: "devices with labels"}
"""The keys of `where` that choose devices, with their meaning; a grid may have none of these names."""

LEVEL = 0.9
"""The confidence of the two-sided interval of a difference: 5 % of differences that are 0 are below it, 5 % above."""

SEEDS = 3
"""The fewest seeds of a tested difference."""

MOST = 0.05
"""A claim holds in most settings if the sign test's p is below this."""

CEILING = 0.995
"""A mean from here on is at the ceiling of a metric whose best value is 1: the gain left is half a point at most."""

NEARLY_ALL = 0.9
"""The share of its rounds after which a row that has converged gains no more than its spread over seeds."""

FEW = 5
"""Test examples in which two rows must differ, all in one direction, to be told apart (sign test: .5 ** 5 < .05)."""

Ceiling: TypeAlias = Share | Literal["auto"] | None
"""From which mean on rows are too good to differ; "auto": by CEILING and FEW; None: never."""

BEST_ONE = frozenset(metric.column for metric in METRICS.values() if metric.per == 100)
"""The metrics with a best value of 1."""

RUN = ["method", "setting", "seed"]
TURN = ["stage", "round"]

Points = Mapping[str, Mapping[str, Any]]
"""setting -> its point in the study's grid: key -> value"""


@dataclass(frozen=True)
class Rule:
    """A rule in parts. a, below, near: its sides. paired: it compares on each problem. See above."""

    a: str
    below: str | None
    near: str | None
    margin: str | None
    way: str | None
    room: str | None
    key: str | None
    paired: str | None

    @property
    def labels(self) -> set[str]:
        """The rows that the rule names."""
        sides = (self.a, self.below, self.near)
        return {label for side in sides if side and _number(side) is None for label in side.split(" - ")}

    @property
    def tolerance(self) -> float | None:
        """The largest difference allowed; None: the rule tests which value is greater."""
        margin = self.margin or self.room
        return float(margin) if margin else None

    @property
    def compares_rows(self) -> bool:
        """Whether it compares rows with one another or a row with itself in another setting, not with a number."""
        return self.key != "round" if self.key else len(self.labels) > 1

    def holds(self, difference: float, margin: float) -> bool:
        """Tell whether a difference decides for the rule. margin: half of its interval."""
        return difference - margin > 1e-12 if self.tolerance is None else abs(difference) <= self.tolerance


def read_rule(key: str, text: str, metric: str) -> Rule:
    """Return the parts of a rule; raises InputError, which names the key, for an invalid rule or `metric`."""
    found = RULE.fullmatch(text)
    rule = Rule(**found.groupdict()) if found else None
    if rule is None or not rule.labels or (rule.paired and rule.room):
        raise InputError(f"{key} = {text!r}: must be one of {FORMS}; A or B may be a number")
    if METRIC.fullmatch(metric) is None:
        raise InputError(
            f"metric = {metric!r}: must be a split and a metric, e.g. shared.accuracy, std of test.accuracy or worst "
            "of test.accuracy"
        )
    return rule


@dataclass(frozen=True)
class Claim:
    """A paper's claim as a rule.

    Args:
        statement: the claim in words.
        rule: what must hold, see above.
        metric: the split and the metric that it compares, "split.metric"; shared.accuracy by default.
        round: the round whose values count, over all stages; the last one by default.
        where: values (or lists of values) of the grid's keys and of DEVICES.

    Raises:
        InputError: for an invalid rule or `metric`.
    """

    statement: str
    rule: str
    where: Mapping[str, Any] = field(default_factory=dict)
    metric: str = "shared.accuracy"
    round: Annotated[int, Ge(1)] | None = None

    def __post_init__(self) -> None:
        read_rule("rule", self.rule, self.metric)

    @property
    def parts(self) -> Rule:
        return read_rule("rule", self.rule, self.metric)

    @property
    def labels(self) -> set[str]:
        return self.parts.labels


@dataclass(frozen=True)
class Gate:
    """A condition of a study's claims.

    Args:
        require: a rule.
        reason: why the claims are not tested where it fails, e.g. "sources are at chance".
        where: the settings that it concerns, and the devices that it looks at.
        metric: as for `Claim`.

    Raises:
        InputError: as `Claim` does.
    """

    require: str
    reason: str
    where: Mapping[str, Any] = field(default_factory=dict)
    metric: str = "shared.accuracy"

    def __post_init__(self) -> None:
        rule = read_rule("require", self.require, self.metric)
        if rule.paired or rule.key not in (None, "round"):
            raise InputError(
                f"require = {self.require!r}: a gate looks at one setting at a time, not at a key of the grid"
            )

    @property
    def parts(self) -> Rule:
        return read_rule("require", self.require, self.metric)

    @property
    def labels(self) -> set[str]:
        return self.parts.labels


class Evidence(NamedTuple):
    """The result of a rule at one place of the grid: the tested difference, its spread over seeds, half its interval.

    Of a pairwise rule: the mean over problems, its standard error and twice that; seeds: the number of problems; agree:
    of those that change in the rule's direction.
    """

    place: str
    difference: float
    spread: float
    margin: float
    seeds: int
    holds: bool
    agree: int | None = None


class Verdict(NamedTuple):
    """A claim and its evidence; a claim without evidence was not tested. closed: place -> why it was not tested."""

    claim: Claim
    evidence: tuple[Evidence, ...]
    closed: Mapping[str, str] = {}

    @property
    def held(self) -> int:
        """The number of settings where the rule holds."""
        return sum(one.holds for one in self.evidence)

    @property
    def p(self) -> float | None:
        """The sign test's p over settings; None for a rule that was not tested, or on pooled problems."""
        if not self.evidence or self.claim.parts.paired:
            return None
        from scipy.stats import binomtest  # half a second, which a list of champions does not need

        return float(binomtest(self.held, len(self.evidence), alternative="greater").pvalue)

    @property
    def word(self) -> str:
        if not self.evidence:
            return "not tested"
        if self.held == len(self.evidence):
            return "holds"
        return "holds in most" if self.p is not None and self.p < MOST else "does not hold"

    @property
    def numbers(self) -> str:
        """The settings where the rule holds, and the one with the strongest evidence against it."""
        reasons = "; ".join(dict.fromkeys(self.closed.values()))
        if not self.evidence:
            return reasons or "needs three seeds, and the rows, rounds, settings and domains it names"
        places = len(self.evidence) + len(self.closed)
        untested = f"; not tested in {len(self.closed)} of {places}: {reasons}" if self.closed else ""
        return self._tested + untested

    @property
    def _tested(self) -> str:
        places = len(self.evidence)
        against = [one for one in self.evidence if not one.holds] or self.evidence
        if self.claim.parts.tolerance is None:
            worst, word = min(against, key=lambda one: one.difference), "least"
        else:
            worst, word = max(against, key=lambda one: abs(one.difference)), "largest"
        if worst.agree is not None:
            change = f"mean {worst.difference:+.3g}, standard error {worst.spread:.2g}"
            return f"in {worst.agree} of {worst.seeds} problems; {change}"
        where = f" at {worst.place}" if places > 1 else ""
        low, mean, high = (f"{_plain(worst.difference + way * worst.margin):+.3g}" for way in (-1, 0, 1))
        sign_test = f" (sign test p = {self.p:.2g})" if 0 < self.held < places else ""
        return (
            f"in {self.held} of {places} setting{'s' * (places > 1)}{sign_test}; "
            f"{word if self.held == places else 'strongest counter-example'}: "
            f"{mean} [{low}, {high}]{where} ({worst.seeds} seeds)"
        )


class _Place(NamedTuple):
    """A place of the grid: its settings, and the tested difference on each problem (seeds, or seeds and devices)."""

    name: str
    settings: tuple[str, ...]
    difference: pd.Series


class Sizes(NamedTuple):
    """Test examples of a setting, nan if unknown, and their number for each training example, by split."""

    tests: Mapping[str, float]
    ratio: Mapping[str, float]


def judge(
    claim: Claim,
    table: pd.DataFrame,
    points: Points,
    closed: Mapping[str, str] | None = None,
    ceiling: Ceiling = "auto",
    sizes: Mapping[str, Sizes] | None = None,
    converged: bool = False,
) -> Verdict:
    """Test a claim on one study's tidy table. points: the settings of the table, in the grid's order.

    closed: setting -> why no claim can be tested there, see :func:`closed`. sizes: :func:`read_sizes` of the table.
    converged: whether rows must have converged, see above.
    """
    shut = closed or {}
    sizes = read_sizes(table) if sizes is None else sizes
    rule, reasons, places = claim.parts, {}, []
    for place in _places(rule, claim.metric, claim.where, table, points, claim.round):
        why = next((shut[setting] for setting in place.settings if setting in shut), None)
        if why is None:
            places.append(place)
        else:
            reasons[place.name] = why
    if not places and not reasons:  # there is nothing to compare
        if claim.round is not None:
            reasons = dict.fromkeys(points, f"no values after round {claim.round}")
        elif shut.keys() >= points.keys():
            reasons = dict(shut)
    reasons |= _at_ceiling(claim, places, table, points, ceiling, sizes)
    places = [place for place in places if place.name not in reasons]
    if converged:
        reasons |= _not_converged(claim, places, table)
        places = [place for place in places if place.name not in reasons]
    split = claim.metric.rpartition(" of ")[2].partition(".")[0]
    evidence = []
    for place in [_pool(places)] if rule.paired and places else places:
        values = place.difference.dropna()
        seeds = len(values)
        if rule.paired and seeds > 1:
            mean, error = float(values.mean()), float(values.std()) / seeds**0.5
            agree = int((values > 0).sum())
            evidence.append(Evidence(place.name, mean, error, 2 * error, seeds, rule.holds(mean, 2 * error), agree))
        elif seeds >= SEEDS and not rule.paired:
            mean, spread = float(values.mean()), float(values.std())
            known = [sizes[setting].ratio.get(split, RATIO) for setting in place.settings if setting in sizes]
            margin = half_width(spread, seeds, max(known, default=RATIO), LEVEL)
            evidence.append(Evidence(place.name, mean, spread, margin, seeds, rule.holds(mean, margin)))
        elif seeds:
            least = "a rule on problems needs two" if rule.paired else "a rule needs three"
            reasons[place.name] = f"{seeds} {'problem' if rule.paired else 'seed'}{'s' * (seeds > 1)}, {least}"
    return Verdict(claim, tuple(evidence), reasons)


def judge_all(
    claims: Iterable[Claim], gates: Collection[Gate], table: pd.DataFrame, points: Points, ceiling: Ceiling = "auto",
    converged: bool = False,
) -> Iterator[Verdict]:  # fmt: skip
    """Test the claims of one study, each where all gates hold: in the end and, for a claim with `at`, at that round."""
    sizes = read_sizes(table)
    shut: dict[int | None, dict[str, str]] = {None: closed(gates, table, points)}
    for claim in claims:
        if claim.round not in shut:
            shut[claim.round] = closed(gates, table, points, claim.round) | shut[None]
        yield judge(claim, table, points, shut[claim.round], ceiling, sizes, converged)


def read_sizes(table: pd.DataFrame) -> dict[str, Sizes]:
    """Return setting -> its test examples, from a tidy table; settings whose data it does not describe are missing.

    A shared test set counts as at most RATIO for each training example: an official one may be larger, but it is the
    same with every seed, and training examples drawn from a large set have little in common.
    """
    found = {}
    for setting, rows in table[table["split"] == "data"].groupby("setting"):
        means = rows.groupby(["metric", "device"])["value"].mean()
        devices = dict.fromkeys(map(str, rows["device"].unique()), 1.0)
        tests = float(means["test_examples"].sum()) if "test_examples" in means else math.nan
        shared = float(means["shared_examples"].mean()) if "shared_examples" in means else math.nan
        own = ratio_of_test(rows, "test", devices)
        ratio = {"test": own, "val": own, "shared": min(ratio_of_test(rows, "shared", devices), RATIO)}
        found[str(setting)] = Sizes({"test": tests, "shared": shared}, ratio)
    return found


def _at_ceiling(
    claim: Claim, places: Iterable[_Place], table: pd.DataFrame, points: Points, ceiling: Ceiling,
    sizes: Mapping[str, Sizes],
) -> dict[str, str]:  # fmt: skip
    """Return the places where all rows of a claim are too good to differ, each with the reason."""
    rule, found = claim.parts, METRIC.fullmatch(claim.metric)
    assert found is not None
    split, metric = found["split"], found["metric"]
    if ceiling is None or not rule.compares_rows or rule.tolerance is not None or rule.paired:
        return {}
    if split not in SCORED or metric not in BEST_ONE:
        return {}
    here = table[table["setting"].isin([setting for place in places for setting in place.settings])]
    turns = _last(_rows(f"{split}.{metric}", claim.where, here, claim.round, once=False, by_device=False))
    means = turns.groupby(["setting", "method"]).mean().unstack("method")  # noqa: PD010
    reached = {}
    for place in places:
        values = means.reindex(index=[*place.settings], columns=sorted(rule.labels)).to_numpy()
        if (least := float(values.min())) >= min(_limit(ceiling, sizes.get(name), split) for name in place.settings):
            reached[place.name] = least
    are = f"{' and '.join(sorted(rule.labels))} {'are' if len(rule.labels) > 1 else 'is'}"
    return dict.fromkeys(reached, f"{are} at the ceiling: {min(reached.values(), default=1.0):.4g} of 1")


def _not_converged(claim: Claim, places: Iterable[_Place], table: pd.DataFrame) -> dict[str, str]:
    """Return the places where a row of a claim about the end still gains, each with the reason."""
    rule, found = claim.parts, METRIC.fullmatch(claim.metric)
    assert found is not None
    if claim.round is not None or not rule.compares_rows or rule.paired or found["split"] not in SCORED:
        return {}
    here = table[table["method"].isin(rule.labels)]
    scores = _rows(f"{found['split']}.{found['metric']}", claim.where, here, None, once=False, by_device=False)
    curves = _count_rounds(scores.dropna().rename("value").reset_index(), here)
    sign = -1 if found["metric"] in LESS else 1
    reasons: dict[str, str] = {}
    for (method, setting), curve in curves.groupby(["method", "setting"]):
        why = _gain(curve.pivot_table("value", "step", "seed"), sign)
        for place in places:
            if (
                why
                and setting in place.settings
                and method in _behind(rule, place, sign if found["how"] is None else 0)
            ):
                reasons.setdefault(place.name, f"not converged: {method} {why}")
    return reasons


def _behind(rule: Rule, place: _Place, sign: int) -> set[str]:
    """Return the rows whose further gain could change a verdict. sign: 1, -1 where less is better, 0 if unknown."""
    if rule.below not in rule.labels or rule.a not in rule.labels or not sign:
        return rule.labels
    return {str(rule.below) if sign * float(place.difference.mean()) > 0 else rule.a}


def _gain(curve: pd.DataFrame, sign: int) -> str:
    """Say how a row still gains in its last rounds; an empty text if it has converged. curve: by round and seed."""
    end = curve.index[-1]
    before = curve.index[curve.index <= NEARLY_ALL * end]
    if end == 1:
        return ""
    if before.empty:
        return "was scored at its end alone"
    gain = sign * float((curve.loc[end] - curve.loc[before[-1]]).mean())
    spread = float(curve.loc[end].std())
    if not gain > (0.0 if math.isnan(spread) else spread) + 1e-12:
        return ""
    return f"gains {gain:.2g} from round {before[-1]:g} to {end:g}, its spread over seeds is {spread:.2g}"


def _limit(ceiling: float | Literal["auto"], sizes: Sizes | None, split: str) -> float:
    """Return from which mean on rows are at the ceiling of a metric whose best value is 1."""
    if ceiling != "auto":
        return ceiling
    tests = sizes.tests.get(split, math.nan) if sizes else math.nan
    return min(CEILING, 1 - FEW / tests) if tests > 0 else CEILING


def closed(gates: Iterable[Gate], table: pd.DataFrame, points: Points, at: int | None = None) -> dict[str, str]:
    """Return the settings in which no claim can be tested, each with the reason: a gate that fails there.

    A gate fails in a setting if its rule fails for the means over seeds, or if any seed has no value for it. at: the
    round whose values count, as for a claim; what a run says once counts whenever it says it.
    """
    found: dict[str, str] = {}
    for gate in gates:
        rule, seen = gate.parts, set()
        for setting, _, difference in _places(rule, gate.metric, gate.where, table, points, at, once=True):
            values = difference.astype(float).dropna()
            if {*table.loc[table["setting"] == setting, "seed"]} <= {*values.index}:
                seen.add(setting)
                mean = float(values.mean())
                if not rule.holds(mean, 0.0):
                    found.setdefault(setting, f"{gate.reason} ({_measured(rule, mean)})")
        for setting in points:
            if setting not in seen and _admits(gate.where, points[setting]):
                found.setdefault(setting, f"no values for {gate.require} ({gate.metric}); otherwise: {gate.reason}")
    return found


def _measured(rule: Rule, difference: float) -> str:
    """Say the value that a gate's rule found, and the value that it needs."""
    if rule.key:
        needs = f"within {rule.room}" if rule.room else f"{rule.way}"
        return f"{rule.a} changes by {-difference if rule.way == 'falls' else difference:+.3g}, needs: {needs}"
    other = rule.below or rule.near
    assert other is not None
    low, high = _number(rule.a), _number(other)
    if low is not None:
        subject, value, bound = other, low - difference, f"{low:g}"
    elif high is not None:
        subject, value, bound = rule.a, high + difference, f"{high:g}"
    else:
        subject, value, bound = f"{rule.a} minus {other}", difference, "0"
    sign = f"~ {bound} within {rule.margin}" if rule.near else f"{'<' if low is not None else '>'} {bound}"
    return f"{subject} = {value:.3g}, needs {sign}"


def _pool(places: list[_Place]) -> _Place:
    """Return all problems of some places as those of one."""
    return _Place("", (), pd.concat([place.difference for place in places], ignore_index=True))


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _admits(where: Mapping[str, Any], point: Mapping[str, Any]) -> bool:
    wanted = {key: _as_list(value) for key, value in where.items() if key not in DEVICES}
    return all(key in point and point[key] in values for key, values in wanted.items())


def _places(
    rule: Rule, of: str, where: Mapping[str, Any], table: pd.DataFrame, points: Points, at: int | None = None,
    once: bool = False,
) -> Iterator[_Place]:  # fmt: skip
    """Yield the places that a rule is put to, with differences in its direction. once: see :func:`_until`."""
    admitted = [setting for setting, point in points.items() if _admits(where, point)]
    rows = _rows(of, where, table[table["setting"].isin(admitted)], at, once, by_device=bool(rule.paired))
    a = _side(rows, rule.a)
    if rule.key:
        assert not isinstance(a, float)
        here = {setting: points[setting] for setting in admitted}
        sign = -1 if rule.way == "falls" else 1
        for name, settings, first, last in _by_round(a) if rule.key == "round" else _by_key(a, rule.key, here):
            yield _Place(name, settings, sign * (last - first))
    else:
        gap = _last(a) - _last(_side(rows, str(rule.below or rule.near)))
        assert not isinstance(gap, float)
        for setting in admitted:
            if setting in gap.index.unique("setting"):
                yield _Place(setting, (setting,), gap.xs(setting))


def _rows(
    of: str, where: Mapping[str, Any], table: pd.DataFrame, at: int | None, once: bool, by_device: bool
) -> pd.Series:
    """Return the values to compare by method, setting, seed and turn: over devices, or by device if they differ."""
    found = METRIC.fullmatch(of)
    assert found is not None
    rows = table[(table["split"] == found["split"]) & (table["metric"] == found["metric"])]
    if at is not None:
        rows = _until(rows, at, table, once)
    if DOMAIN in where:
        names = groups(table)
        rows = rows.merge(names[names["group"].isin([str(name) for name in _as_list(where[DOMAIN])])])
    if LABELLED in where:
        counts = table[(table["split"] == "data") & (table["metric"] == "examples")]
        wanted = counts[(counts["value"] > 0).isin(_as_list(where[LABELLED]))]
        rows = rows.merge(wanted[[*RUN, "device"]])
    if by_device and found["how"] is None and (rows.groupby([*RUN, *TURN])["value"].std() > 0).any():
        return rows.set_index([*RUN, "device", *TURN])["value"].sort_index()
    worst = "max" if found["metric"] in LESS else "min"
    how = {None: "mean", "std": "std", "worst": worst}[found["how"]]
    over: pd.Series = rows.groupby([*RUN, *TURN])["value"].agg(how)
    return over


def _until(rows: pd.DataFrame, at: int, table: pd.DataFrame, once: bool) -> pd.DataFrame:
    """Return the rows up to a round, counted over all stages, of runs that have values after that very round.

    A run of one round in all has the same value at any time. once: so has a run with values after one round alone.
    """
    rows = _count_rounds(rows, table)
    rows = rows.assign(still=rows["total"] == 1)
    if once:
        rows["still"] |= rows.groupby(RUN)["step"].transform("nunique") == 1
    rows = rows[(rows["step"] <= at) | rows["still"]]
    return rows[(rows.groupby(RUN)["step"].transform("max") == at) | rows["still"]]


def _count_rounds(rows: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with their round counted over all stages, `step`, and the number of rounds in all, `total`."""
    rounds = table.groupby([*RUN, "stage"])["round"].max()
    sums = rounds.groupby(RUN).cumsum()
    before, total = (sums - rounds).rename("before"), rounds.groupby(RUN).sum().rename("total")
    rows = rows.join(before, on=[*RUN, "stage"]).join(total, on=RUN)
    return rows.assign(step=rows["before"] + rows["round"])


def _plain(value: float) -> float:
    """Return the value without rounding errors that would be read as a number."""
    return round(value, 12) + 0.0  # and without the sign of -0


def _number(side: str) -> float | None:
    return float(side) if re.fullmatch(NUMBER, side) else None


def _side(rows: pd.Series, side: str) -> pd.Series | float:
    """Return a row's values by setting, seed and turn; a difference's values of the last turn; or the number."""
    number = _number(side)
    if number is not None:
        return number
    a, *less = (rows[rows.index.get_level_values("method") == label].droplevel("method") for label in side.split(" - "))
    return _last(a) - _last(less[0]) if less else a


def _problems(values: pd.Series) -> list[str]:
    """Return the levels of the index that tell problems apart."""
    return [str(name) for name in values.index.names if name not in TURN]


def _last(values: Any) -> Any:
    """Return the last turn's values, by setting and problem; a number, or the last turn's values, unchanged."""
    if isinstance(values, float) or TURN[0] not in values.index.names:
        return values
    return values.dropna().groupby(_problems(values)).last()


def _by_round(values: pd.Series) -> Iterator[tuple[str, tuple[str, ...], pd.Series, pd.Series]]:
    """Yield each setting with its values, by problem, after the first and after the last evaluated turn."""
    if TURN[0] not in values.index.names:
        return
    turns = values.dropna().groupby(_problems(values))
    first, last = turns.first(), turns.last()
    for setting in first.index.unique("setting"):
        if turns.size().xs(setting).min() > 1:
            yield setting, (setting,), first.xs(setting), last.xs(setting)


def _by_key(values: pd.Series, key: str, points: Points) -> Iterator[tuple[str, tuple[str, ...], pd.Series, pd.Series]]:
    """Yield each group of settings that differ only in the key, with the values at its first and last value."""
    final = _last(values)
    known = set(final.index.unique("setting"))
    groups: dict[str, dict[Any, str]] = {}
    for setting, point in points.items():
        if key in point and setting in known:
            others = " ".join(f"{name.rpartition('.')[2]}={value}" for name, value in point.items() if name != key)
            groups.setdefault(others, {})[_hashable(point[key])] = setting
    for place, settings in groups.items():
        if len(settings) > 1:
            ordered = list(settings) if any(isinstance(value, str | tuple) for value in settings) else sorted(settings)
            low, high = ordered[0], ordered[-1]
            words = place or f"{key.rpartition('.')[2]} from {low} to {high}"
            ends = settings[low], settings[high]
            yield words, ends, final.xs(ends[0]), final.xs(ends[1])


def _hashable(value: Any) -> Any:
    """Return a grid's value as the key of a dict."""
    return tuple(value) if isinstance(value, list) else value


def verdict_table(verdicts: Iterable[tuple[str, Verdict]]) -> pd.DataFrame:
    """Return a row for each claim of a study: its text, the rule, the verdict and the numbers.

    holds_in, tested_in: the number of settings where it holds and was tested; for a pairwise rule, of problems. p: of
    the sign test over settings.
    """
    rows = [
        {
            "study": study, "says": claim.statement, "rule": claim.rule,
            "of": claim.metric if claim.round is None else f"{claim.metric} after round {claim.round}",
            "where": ", ".join(f"{key} = {value}" for key, value in claim.where.items()),
            "verdict": verdict.word, "numbers": verdict.numbers,
            "holds_in": verdict.held if paired is None else paired.agree,
            "tested_in": len(verdict.evidence) if paired is None else paired.seeds,
            "p": verdict.p,
        }
        for study, verdict in verdicts
        for claim in [verdict.claim]
        for paired in [next((one for one in verdict.evidence if one.agree is not None), None)]
    ]  # fmt: skip
    columns = ["study", "says", "rule", "of", "where", "verdict", "numbers", "holds_in", "tested_in", "p"]
    return pd.DataFrame(rows, columns=columns).astype({"p": float})
