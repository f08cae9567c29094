"""Where a claim can be tested: where its gates hold, rows are not at the ceiling, and they have converged.

**Gates.** A claim is tested only where the experiment is valid: every :class:`Gate` of its study must hold there, by
its mean over seeds (:func:`closed`), and for a claim with `round` after that round too, unless it looks at what a run
says once, such as the accuracy of an auxiliary model. A gate without values is closed.

**Ceiling.** Where all rows of `A > B` or of a trend over the grid are so close to 1, the best value of their metric,
that no difference can be seen, the claim is not tested. The limit is CEILING or, where FEW test examples are worth
more, 1 less their worth. It applies to metrics with a best value of 1, also to their standard deviation over devices
and their worst device, and to rules that compare rows, not one row with a number. A study's `ceiling` is another limit,
or none.

**Convergence.** Where a study says `converged: true`, a claim about the end (without `round`) that compares scores of
rows is tested only where none of these rows still gains surely, from the last evaluated round within the first nine
tenths of its rounds to the last one: the gain is taken seed by seed, so that it counts however far seeds lie apart, and
is sure if Student's two-sided interval of its mean, at the confidence SURE, is above 0; of a single seed any gain
counts. A row of one round has nothing to converge; one of several rounds that was scored after the last alone does not
pass.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedcore.core.metrics import METRICS
from fedcore.results.claims import METRIC, Claim, Gate, Rule, number_of
from fedcore.results.criterion import half_width, ratio_of_test
from fedcore.results.places import Place, Points, admits, count_rounds, find_places, last_turn, select_rows
from fedcore.results.summary import LESS, SCORE, SCORED
from fedcore.types.ranges import Share

CEILING = 0.995
"""A mean from here on is at the ceiling of a metric whose best value is 1: the gain left is half a point at most."""

NEARLY_ALL = 0.9
"""The share of its rounds after which a row that has converged surely gains no more."""

SURE = 0.9
"""The confidence of the interval of a row's gain."""

FEW = 5
"""Test examples in which two rows must differ, all in one direction, to be told apart (sign test: .5 ** 5 < .05)."""

Ceiling: TypeAlias = Share | Literal["auto"] | None
"""From which mean on rows are too good to differ; "auto": by CEILING and FEW; None: never."""

BEST_ONE = frozenset(metric.column for metric in METRICS.values() if metric.per == 100) | {SCORE}
"""The metrics with a best value of 1, and the score of a number as label."""


class Sizes(NamedTuple):
    """Test examples of a setting, nan if unknown, and their number for each training example, by split."""

    tests: Mapping[str, float]
    ratio: Mapping[str, float]


def read_sizes(table: pd.DataFrame) -> dict[str, Sizes]:
    """Return setting -> its test examples, from a tidy table; settings whose data it does not describe are missing."""
    sizes = {}
    for setting, rows in table[table["split"] == "data"].groupby("setting"):
        means = rows.groupby(["metric", "device"])["value"].mean()
        devices = dict.fromkeys(map(str, rows["device"].unique()), 1.0)
        tests = float(means["test_examples"].sum()) if "test_examples" in means else math.nan
        shared = float(means["shared_examples"].mean()) if "shared_examples" in means else math.nan
        own = ratio_of_test(rows, "test", devices)
        ratio = {"test": own, "val": own, "shared": ratio_of_test(rows, "shared", devices)}
        sizes[str(setting)] = Sizes({"test": tests, "shared": shared}, ratio)
    return sizes


def closed(gates: Iterable[Gate], table: pd.DataFrame, points: Points, at: int | None = None) -> dict[str, str]:
    """Return the settings in which no claim can be tested, each with the reason: a gate that fails there.

    A gate fails in a setting if its rule fails for the means over seeds, or if any seed has no value for it. at: the
    round whose values count, as for a claim; what a run says once counts whenever it says it.
    """
    reasons: dict[str, str] = {}
    for gate in gates:
        rule, tested = gate.parts, set()
        for setting, _, difference, _ in find_places(rule, gate.metric, gate.where, table, points, at, once=True):
            values = difference.astype(float).dropna()
            if {*table.loc[table["setting"] == setting, "seed"]} <= {*values.index}:
                tested.add(setting)
                mean = float(values.mean())
                if not rule.holds(mean, 0.0):
                    reasons.setdefault(setting, f"{gate.reason} ({_measured(rule, mean)})")
        for setting in points:
            if setting not in tested and admits(gate.where, points[setting]):
                reasons.setdefault(setting, f"no values for {gate.require} ({gate.metric}); otherwise: {gate.reason}")
    return reasons


def _measured(rule: Rule, difference: float) -> str:
    """Say the value that a gate's rule found, and the value that it needs."""
    if rule.key:
        needs = f"within {rule.room}" if rule.room else f"{rule.direction}"
        return f"{rule.a} changes by {-difference if rule.direction == 'falls' else difference:+.3g}, needs: {needs}"
    other = rule.below or rule.near
    assert other is not None
    low, high = number_of(rule.a), number_of(other)
    if low is not None:
        subject, value, bound = other, low - difference, f"{low:g}"
    elif high is not None:
        subject, value, bound = rule.a, high + difference, f"{high:g}"
    else:
        subject, value, bound = f"{rule.a} minus {other}", difference, "0"
    sign = f"~ {bound} within {rule.margin}" if rule.near else f"{'<' if low is not None else '>'} {bound}"
    return f"{subject} = {value:.3g}, needs {sign}"


def at_ceiling(
    claim: Claim, places: Iterable[Place], table: pd.DataFrame, points: Points, ceiling: Ceiling,
    sizes: Mapping[str, Sizes],
) -> dict[str, str]:  # fmt: skip
    """Return the places where all rows of a claim are too good to differ, each with the reason."""
    rule, of = claim.parts, METRIC.fullmatch(claim.metric)
    assert of is not None
    split, metric = of["split"], of["metric"]
    if ceiling is None or not rule.compares_rows or rule.tolerance is not None or rule.paired:
        return {}
    if split not in SCORED or metric not in BEST_ONE:
        return {}
    here = table[table["setting"].isin([setting for place in places for setting in place.settings])]
    turns = last_turn(select_rows(f"{split}.{metric}", claim.where, here, claim.round, once=False, by_device=False))
    means = turns.groupby(["setting", "method"]).mean().unstack("method")  # noqa: PD010
    lowest = means.reindex(columns=sorted(rule.labels)).min(axis=1, skipna=False).to_dict()
    reached = {}
    for place in places:
        values = [lowest.get(name, math.nan) for name in place.settings]
        if (least := float(np.min(values))) >= min(_limit(ceiling, sizes.get(name), split) for name in place.settings):
            reached[place.name] = least
    are = f"{' and '.join(sorted(rule.labels))} {'are' if len(rule.labels) > 1 else 'is'}"
    return dict.fromkeys(reached, f"{are} at the ceiling: {min(reached.values(), default=1.0):.4g} of 1")


def _limit(ceiling: float | Literal["auto"], sizes: Sizes | None, split: str) -> float:
    """Return from which mean on rows are at the ceiling of a metric whose best value is 1."""
    if ceiling != "auto":
        return ceiling
    tests = sizes.tests.get(split, math.nan) if sizes else math.nan
    return min(CEILING, 1 - FEW / tests) if tests > 0 else CEILING


def not_converged(claim: Claim, places: Iterable[Place], table: pd.DataFrame) -> dict[str, str]:
    """Return the places where a row of a claim about the end still gains, each with the reason."""
    rule, of = claim.parts, METRIC.fullmatch(claim.metric)
    assert of is not None
    if claim.round is not None or not rule.compares_rows or rule.paired or of["split"] not in SCORED:
        return {}
    here = table[table["method"].isin(rule.labels)]
    scores = select_rows(f"{of['split']}.{of['metric']}", claim.where, here, None, once=False, by_device=False)
    curves = count_rounds(scores.dropna().rename("value").reset_index(), here)
    sign = -1 if of["metric"] in LESS else 1
    reasons: dict[str, str] = {}
    curves = curves.groupby(["method", "setting", "step", "seed"])["value"].mean().reset_index()
    steps, seeds, values = (curves[name].to_numpy() for name in ("step", "seed", "value"))
    of_each: Mapping[Any, Any] = curves.groupby(["method", "setting"]).indices
    for (method, setting), rows in of_each.items():
        why = _gain(steps[rows], seeds[rows], values[rows], sign)
        for place in places:
            if why and setting in place.settings:
                reasons.setdefault(place.name, f"not converged: {method} {why}")
    return reasons


def _gain(steps: NDArray[np.int64], seeds: NDArray[np.int64], values: NDArray[np.float64], sign: int) -> str:
    """Say how a row still gains in its last rounds; an empty text if it has converged.

    values: at the row's rounds, `steps`, in order, and its seeds.
    """
    end = steps[-1]
    if end == 1:
        return ""
    earlier = steps[steps <= NEARLY_ALL * end]
    if not len(earlier):
        return "was scored only at its end"
    before, last = steps == earlier[-1], steps == end
    _, first, second = np.intersect1d(seeds[before], seeds[last], assume_unique=True, return_indices=True)
    with np.errstate(invalid="ignore"):  # of a row that diverged, where nothing is known of infinity less infinity
        gains = sign * (values[last][second] - values[before][first])
    gains = gains[np.isfinite(gains)]
    gain = float(gains.mean()) if len(gains) else math.nan
    margin = half_width(float(gains.std(ddof=1)), len(gains), 0.0, SURE) if len(gains) > 1 else 0.0
    if not gain - margin > 1e-12:
        return ""
    interval = f" [{gain - margin:.2g}, {gain + margin:.2g}]" if len(gains) > 1 else ""
    return f"gains {gain:.2g}{interval} from round {earlier[-1]:g} to {end:g}"
