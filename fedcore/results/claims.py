"""A paper's claims as rules over the tidy table: each holds, perhaps in most settings, is contradicted, or neither.

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

:mod:`fedcore.results.judging` judges it, and :mod:`fedcore.results.validity` says where it can be tested.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from annotated_types import Ge

from fedcore.errors import InputError

NUMBER = r"-?\d*\.?\d+(?:e[+-]?\d+)?"
LABEL = rf"(?!{NUMBER}(?:\s|$))\w\S*"
"""A row's label, such as `fedprox` or `mu=0.1`; no number."""
SIDE = rf"{NUMBER}|{LABEL}(?: - {LABEL})?"
RULE = re.compile(
    rf"(?P<a>{SIDE}) (?:> (?P<below>{SIDE})|~ (?P<near>{SIDE}) within (?P<margin>{NUMBER})"
    rf"|(?:(?P<direction>rises|falls)|stays within (?P<room>{NUMBER})) with (?P<key>[\w.]+)(?P<paired> pairwise)?)"
)
FORMS = (
    "A > B, A ~ B within NUMBER, A rises with KEY, A falls with KEY, A stays within NUMBER with KEY, "
    "A rises or falls with KEY pairwise"
)
METRIC = re.compile(r"(?:(?P<how>std|worst) of )?(?P<split>\w+)\.(?P<metric>.+)")
DOMAIN, LABELLED = "domain", "labelled"

DEVICES = {DOMAIN: "the devices' domain", LABELLED: "devices with labels"}
"""The keys of `where` that choose devices, with their meaning; a grid may have none of these names."""


@dataclass(frozen=True)
class Rule:
    """A rule in parts. a, below, near: its sides. paired: it compares on each problem. See above."""

    a: str
    below: str | None
    near: str | None
    margin: str | None
    direction: str | None
    room: str | None
    key: str | None
    paired: str | None

    @property
    def labels(self) -> set[str]:
        """The rows that the rule names."""
        sides = (self.a, self.below, self.near)
        return {label for side in sides if side and number_of(side) is None for label in side.split(" - ")}

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

    def contradicted(self, difference: float, margin: float) -> bool:
        """Tell whether the whole interval of a difference is on the other side, or outside of the tolerance."""
        if self.tolerance is None:
            return difference + margin < -1e-12
        return abs(difference) - margin > self.tolerance + 1e-12


def read_rule(key: str, text: str, metric: str) -> Rule:
    """Return the parts of a rule; raises InputError, which names the key, for an invalid rule or `metric`."""
    match = RULE.fullmatch(text)
    rule = Rule(**match.groupdict()) if match else None
    if rule is None or not rule.labels or (rule.paired and rule.room):
        raise InputError(f"{key} = {text!r}: must be one of {FORMS}; A or B may be a number")
    if METRIC.fullmatch(metric) is None:
        raise InputError(
            f"metric = {metric!r}: must be a split and a metric, e.g. shared.accuracy, std of test.accuracy or worst "
            "of test.accuracy"
        )
    return rule


def number_of(side: str) -> float | None:
    return float(side) if re.fullmatch(NUMBER, side) else None


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
