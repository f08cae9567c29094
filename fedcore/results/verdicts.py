"""A claim and the evidence for it, in words and as a table."""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pandas as pd

from fedcore.results.claims import Claim

MOST = 0.05
"""A claim holds in most settings if the sign test's p is below this."""

BY_CHANCE = 0.05
"""The share of settings in which the whole interval is on the other side by chance; see :attr:`Verdict.word`."""


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


NUMBERS = ("holds_in", "contradicted_in", "tested_in", "p", "a", "b")
