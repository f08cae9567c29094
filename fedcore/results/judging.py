"""Judging a claim: whether its rule holds, in how many settings, and how surely.

**Interval.** Differences are taken seed by seed, and a rule needs SEEDS seeds. The interval of their mean is that of
the answer (:func:`fedcore.results.criterion.half_width`) at the confidence LEVEL, so that it is above 0 in at most 5 %
of cases if the difference is 0 on average. It assumes that the differences are about normal, and that seeds draw
devices' data and initial models anew from one dataset. A test set that is the same with every seed, such as a dataset's
official one, adds nothing to the spread: the claim is then judged for that test set alone. A rule with "within"
compares the mean with the tolerance; its interval is only shown.

**Settings.** A claim holds if its rule holds in each setting, and holds in most if a one-sided sign test over settings,
of the hypothesis that it holds in half of them or fewer, has p < .05: one failure takes eight settings. The test takes
settings as independent; those that share data are not quite. A claim that neither holds nor holds in most is
contradicted if the whole interval is on the other side (with "within", outside of the tolerance) in more settings than
chance explains, which makes it so in 5 % of them (binomial test): in one of one, two of two to seven, three of eight to
sixteen. Otherwise it is not shown.

**Pairwise.** A problem is a seed, a setting of the other keys and, where the metric differs between devices, a device.
The change from the key's first to its last value is taken on each problem, of which there must be two. The rule holds
if the mean of these changes, over all problems, exceeds twice its standard error. Thus neither the level of a problem
nor the number of settings hides a change that all problems share. The key must not change the problem: a solver's
tolerance, not the partition.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from fedcore.core.metrics import ACCURACY, RMSE
from fedcore.results.claims import Claim, Gate, Rule
from fedcore.results.criterion import RATIO, Criterion, half_width
from fedcore.results.places import Place, Points, find_places, pool
from fedcore.results.summary import SCORE, SCORED, with_scores
from fedcore.results.validity import Ceiling, Sizes, at_ceiling, closed, not_converged, read_sizes

LEVEL = 0.9
"""The confidence of the two-sided interval of a difference: 5 % of differences that are 0 are below it, 5 % above."""

SEEDS = 3
"""The fewest seeds of a tested difference."""

MOST = 0.05
"""A claim holds in most settings if the sign test's p is below this."""

BY_CHANCE = 0.05
"""The share of settings in which the whole interval is on the other side by chance; see :attr:`Verdict.word`."""

NUMBERS = ("holds_in", "contradicted_in", "tested_in", "p", "a", "b")
"""Columns of a table of verdicts."""


class Evidence(NamedTuple):
    """The result of a rule at one place of the grid: the tested difference, its spread over seeds, half its interval.

    Of a pairwise rule: the mean over problems, its standard error and twice that; seeds: the number of problems; agree,
    against: of those that change in the rule's direction, and the other way. contradicted: whether the whole interval
    is on the other side. sides: the means that it is the difference of (:class:`fedcore.results.places.Place`).
    """

    place: str
    difference: float
    spread: float
    margin: float
    seeds: int
    holds: bool
    contradicted: bool = False
    agree: int | None = None
    against: int | None = None
    sides: tuple[float, ...] = ()

    @property
    def interval(self) -> str:
        """The difference with its interval, "+0.1 [+0.05, +0.15]"; a single seed has none."""
        if math.isnan(self.margin):
            return f"{self.difference:+.3g}"
        low, mean, high = (f"{_plain(self.difference + sign * self.margin):+.3g}" for sign in (-1, 0, 1))
        return f"{mean} [{low}, {high}]"


class Verdict(NamedTuple):
    """A claim and its evidence; a claim without evidence was not tested.

    closed: place -> why it was not tested. so_far: what is known where rows have not converged or seeds are too few.
    """

    claim: Claim
    evidence: tuple[Evidence, ...]
    closed: Mapping[str, str] = {}
    so_far: tuple[Evidence, ...] = ()

    @property
    def held(self) -> int:
        """The number of settings where the rule holds."""
        return sum(evidence.holds for evidence in self.evidence)

    @property
    def contradicted(self) -> int:
        """The number of settings where the opposite holds."""
        return sum(evidence.contradicted for evidence in self.evidence)

    @property
    def p(self) -> float | None:
        """The sign test's p over settings; None for a rule that was not tested, or on pooled problems."""
        return None if not self.evidence or self.claim.parts.paired else self._chance_of(self.held, 0.5)

    def _chance_of(self, count: int, rate: float) -> float:
        """Return how probable so many settings or more are if each counts by chance, at that rate."""
        from scipy.stats import binomtest  # half a second, which a list of champions does not need

        return float(binomtest(count, len(self.evidence), rate, alternative="greater").pvalue)

    @property
    def word(self) -> str:
        """The verdict; see :mod:`fedcore.results.judging`."""
        if not self.evidence:
            return "not tested"
        if self.held == len(self.evidence):
            return "holds"
        if self.p is not None and self.p < MOST:
            return "holds in most"
        opposite = self._chance_of(self.contradicted, BY_CHANCE)
        return "contradicted" if opposite <= BY_CHANCE + 1e-12 else "not shown"

    @property
    def named(self) -> Evidence | None:
        """The evidence of which the numbers are: what speaks most against the rule; None without any."""
        against = [evidence for evidence in self.evidence if not evidence.holds] or self.evidence or self.so_far
        if self.claim.parts.tolerance is None:
            return min(against, key=lambda evidence: evidence.difference, default=None)
        return max(against, key=lambda evidence: abs(evidence.difference), default=None)

    @property
    def numbers(self) -> str:
        """In how many settings the rule holds, and the one with the strongest evidence against it."""
        reasons = "; ".join(dict.fromkeys(self.closed.values()))
        if not self.evidence:
            so_far = f"; so far {self._named_words}" if self.so_far else ""
            return (reasons or "needs three seeds, and the rows, rounds, settings and domains it names") + so_far
        settings = len(self.evidence) + len(self.closed)
        untested = f"; not tested in {len(self.closed)} of {settings}: {reasons}" if self.closed else ""
        return self._tested + untested

    @property
    def _tested(self) -> str:
        count, named = len(self.evidence), self.named
        assert named is not None
        if named.agree is not None:
            change = f"mean {named.difference:+.3g}, standard error {named.spread:.2g}"
            return f"in {named.agree} of {named.seeds} problems; {change}"
        sign_test = f" (sign test p = {self.p:.2g})" if 0 < self.held < count else ""
        opposite = f", the opposite in {self.contradicted}" if self.contradicted else ""
        if self.held == count:
            word = "least" if self.claim.parts.tolerance is None else "largest"
        else:  # a difference in the rule's direction speaks for it, if not surely
            supports = self.claim.parts.tolerance is None and named.difference > 0
            word = "weakest setting" if supports else "strongest counter-example"
        return f"in {self.held} of {count} setting{'s' * (count > 1)}{sign_test}{opposite}; {word}: {self._named_words}"

    @property
    def _named_words(self) -> str:
        named = self.named
        assert named is not None
        where = f" at {named.place}" if len(self.evidence or self.so_far) > 1 else ""
        return f"{named.interval}{where} ({named.seeds} seed{'s' * (named.seeds > 1)})"


def judge(
    claim: Claim, table: pd.DataFrame, points: Points, closed: Mapping[str, str] | None = None,
    ceiling: Ceiling = "auto", sizes: Mapping[str, Sizes] | None = None, converged: bool = False,
) -> Verdict:  # fmt: skip
    """Test a claim on one study's tidy table. points: the settings of the table, in the grid's order.

    closed: setting -> why no claim can be tested there, see :func:`closed`. sizes: :func:`read_sizes` of the table.
    converged: whether rows must have converged, see :mod:`fedcore.results.validity`.
    """
    shut = closed or {}
    sizes = read_sizes(table) if sizes is None else sizes
    rule, reasons, places = claim.parts, {}, []
    for place in find_places(rule, claim.metric, claim.where, table, points, claim.round):
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
    reasons |= at_ceiling(claim, places, table, points, ceiling, sizes)
    places = [place for place in places if place.name not in reasons]
    early = not_converged(claim, places, table) if converged else {}
    split = claim.metric.rpartition(" of ")[2].partition(".")[0]
    evidence, so_far = [], []
    for place in [pool(places)] if rule.paired and places else places:
        ratios = [sizes[setting].ratio.get(split, RATIO) for setting in place.settings if setting in sizes]
        measured = _measure(rule, place, max(ratios, default=RATIO))
        if measured is None:
            continue
        if place.name in early:
            reasons[place.name] = early[place.name]
            so_far.append(measured)
        elif measured.seeds < (2 if rule.paired else SEEDS):
            least = "a rule on problems needs two" if rule.paired else "a rule needs three"
            unit = f"{'problem' if rule.paired else 'seed'}{'s' * (measured.seeds > 1)}"
            reasons[place.name] = f"{measured.seeds} {unit}, {least}"
            so_far.append(measured)
        else:
            evidence.append(measured)
    return Verdict(claim, tuple(evidence), reasons, tuple(so_far))


def _measure(rule: Rule, place: Place, ratio: float) -> Evidence | None:
    """Return the evidence at a place, however few its seeds; None without any. ratio: of :func:`half_width`."""
    values = place.difference.to_numpy(float)
    values = values[~np.isnan(values)]
    seeds = len(values)
    if not seeds:
        return None
    with np.errstate(invalid="ignore"):  # of a row that diverged
        mean, spread = float(values.mean()), float(values.std(ddof=1)) if seeds > 1 else math.nan
    agree: int | None = None
    against: int | None = None
    if rule.paired:
        spread = spread / seeds**0.5
        margin = 2 * spread
        agree, against = int((values > 0).sum()), int((values < 0).sum())
    else:
        margin = half_width(spread, seeds, ratio, LEVEL) if seeds > 1 else math.nan
    holds, contradicted = rule.holds(mean, margin), rule.contradicted(mean, margin)
    return Evidence(place.name, mean, spread, margin, seeds, holds, contradicted, agree, against, place.sides)


def judge_all(
    claims: Iterable[Claim], gates: Collection[Gate], table: pd.DataFrame, points: Points, ceiling: Ceiling = "auto",
    converged: bool = False,
) -> Iterator[Verdict]:  # fmt: skip
    """Test the claims of one study, each where all gates hold: in the end and, for a claim with `at`, at that round.

    Where labels are numbers, accuracy, which is the default, stands for the score of :func:`with_scores`: the greater
    is the better, as in a rule about accuracy. Where there are several it stands for macro F1.
    """
    if (metric := Criterion().of_table(table).metric) != ACCURACY:
        name = SCORE if metric == RMSE else metric.column
        claims = [replace(claim, metric=in_place_of_accuracy(claim.metric, name)) for claim in claims]
        gates = [replace(gate, metric=in_place_of_accuracy(gate.metric, name)) for gate in gates]
        table = with_scores(table) if name == SCORE else table
    sizes = read_sizes(table)
    shut: dict[int | None, dict[str, str]] = {None: closed(gates, table, points)}
    for claim in claims:
        if claim.round not in shut:
            shut[claim.round] = closed(gates, table, points, claim.round) | shut[None]
        yield judge(claim, table, points, shut[claim.round], ceiling, sizes, converged)


def in_place_of_accuracy(metric: str, name: str) -> str:
    """Return what a claim compares, with another metric in the place of the accuracy on a split of the data."""
    of, _, column = metric.rpartition(".")
    return f"{of}.{name}" if column == ACCURACY.column and of.rpartition(" of ")[2] in SCORED else metric


def _plain(value: float) -> float:
    """Return the value without rounding errors that would be read as a number."""
    return round(value, 12) + 0.0  # and without the sign of -0


def verdict_table(verdicts: Iterable[tuple[str, Verdict]]) -> pd.DataFrame:
    """Return a row for each claim of a study: its text, the rule, the verdict and the numbers.

    holds_in, contradicted_in, tested_in: the number of settings where it holds, where its opposite does, and where it
    was tested; for a pairwise rule, of problems. p: of the sign test over settings. a, b: the means of which the
    numbers are the difference: A and B, or those at a key's first and last value.
    """
    rows = []
    for study, verdict in verdicts:
        claim, named = verdict.claim, verdict.named
        counts = verdict.held, verdict.contradicted, len(verdict.evidence)
        if named is not None and named.agree is not None and verdict.evidence:
            counts = named.agree, named.against or 0, named.seeds
        sides = (named.sides if named is not None else ()) or (math.nan, math.nan)
        text = {
            "study": study, "says": claim.statement, "rule": claim.rule,
            "of": claim.metric if claim.round is None else f"{claim.metric} after round {claim.round}",
            "where": ", ".join(f"{key} = {value}" for key, value in claim.where.items()),
            "verdict": verdict.word, "numbers": verdict.numbers,
        }  # fmt: skip
        numbers = dict(zip(NUMBERS, (*counts, verdict.p, *sides), strict=True))
        rows.append(text | numbers)
    columns = ["study", "says", "rule", "of", "where", "verdict", "numbers", *NUMBERS]
    return pd.DataFrame(rows, columns=columns).astype({"p": float})
