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

import numpy as np
import pandas as pd

from fedcore.core.metrics import ACCURACY, RMSE
from fedcore.results.claims import Claim, Gate, Rule
from fedcore.results.criterion import RATIO, Criterion, half_width
from fedcore.results.places import Place, Points, find_places, pool
from fedcore.results.summary import SCORE, SCORED, with_scores
from fedcore.results.validity import Ceiling, Sizes, at_ceiling, closed, not_converged, read_sizes
from fedcore.results.verdicts import Evidence, Verdict

LEVEL = 0.9
"""The confidence of the two-sided interval of a difference: 5 % of differences that are 0 are below it, 5 % above."""

SEEDS = 3
"""The fewest seeds of a tested difference."""


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
