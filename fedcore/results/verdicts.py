"""A claim and the evidence for it, in words and as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pandas as pd

from fedcore.results.claims import Claim

MOST = 0.05
"""A claim holds in most settings if the sign test's p is below this."""


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
        low, mean, high = (f"{_plain(worst.difference + sign * worst.margin):+.3g}" for sign in (-1, 0, 1))
        sign_test = f" (sign test p = {self.p:.2g})" if 0 < self.held < places else ""
        return (
            f"in {self.held} of {places} setting{'s' * (places > 1)}{sign_test}; "
            f"{word if self.held == places else 'strongest counter-example'}: "
            f"{mean} [{low}, {high}]{where} ({worst.seeds} seeds)"
        )


def _plain(value: float) -> float:
    """Return the value without rounding errors that would be read as a number."""
    return round(value, 12) + 0.0  # and without the sign of -0


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
