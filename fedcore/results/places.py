"""Where a rule is put to the test: places of a study's grid, and the differences there, seed by seed."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pandas as pd

from fedcore.results.claims import DEVICES, DOMAIN, LABELLED, METRIC, Rule, number_of
from fedcore.results.summary import LESS, groups

RUN = ["method", "setting", "seed"]
TURN = ["stage", "round"]

Points = Mapping[str, Mapping[str, Any]]
"""setting -> its point in the study's grid: key -> value"""


class Place(NamedTuple):
    """A place of the grid: its settings, and the tested difference on each problem (seeds, or seeds and devices).

    sides: the means that it is the difference of, A and B or a key's first and last value; none of pooled problems.
    """

    name: str
    settings: tuple[str, ...]
    difference: pd.Series
    sides: tuple[float, ...] = ()


def find_places(
    rule: Rule, of: str, where: Mapping[str, Any], table: pd.DataFrame, points: Points, at: int | None = None,
    once: bool = False,
) -> Iterator[Place]:  # fmt: skip
    """Yield the places that a rule is put to, with differences in its direction. once: see :func:`_until`."""
    admitted = [setting for setting, point in points.items() if admits(where, point)]
    rows = select_rows(of, where, table[table["setting"].isin(admitted)], at, once, by_device=bool(rule.paired))
    a = _side(rows, rule.a)
    if rule.key:
        assert not isinstance(a, float)
        here = {setting: points[setting] for setting in admitted}
        sign = -1 if rule.direction == "falls" else 1
        for name, settings, first, last in _by_round(a) if rule.key == "round" else _by_key(a, rule.key, here):
            yield _place(name, settings, sign * (last - first), first, last)
    else:
        sides = last_turn(a), last_turn(_side(rows, str(rule.below or rule.near)))
        gap = sides[0] - sides[1]
        assert not isinstance(gap, float)
        gaps, own_sides = _by_setting(gap), [side if isinstance(side, float) else _by_setting(side) for side in sides]
        for setting in admitted:
            if setting in gaps:
                here_alone = (side if isinstance(side, float) else side.get(setting, math.nan) for side in own_sides)
                yield _place(setting, (setting,), gaps[setting], *here_alone)


def _place(name: str, settings: tuple[str, ...], difference: pd.Series, *sides: pd.Series | float) -> Place:
    """Return a place with the means of both sides on the problems that both have."""
    shared = difference.index[difference.notna()]
    means = (side if isinstance(side, float) else _mean(side.reindex(shared)) for side in sides)
    return Place(name, settings, difference, tuple(means))


def _mean(values: pd.Series) -> float:
    """Return the mean of values that are all known, nan without any."""
    return float(values.to_numpy(float).mean()) if len(values) else math.nan


def _by_setting(values: pd.Series) -> dict[str, pd.Series]:
    """Return each setting's values, by what else the index tells apart."""
    rows, inner = values.groupby(level="setting").indices, values.droplevel("setting")
    return {str(setting): inner.iloc[positions] for setting, positions in rows.items()}


def select_rows(
    of: str, where: Mapping[str, Any], table: pd.DataFrame, at: int | None, once: bool, by_device: bool
) -> pd.Series:
    """Return the values to compare by method, setting, seed and turn: over devices, or by device if they differ."""
    match = METRIC.fullmatch(of)
    assert match is not None
    rows = table[(table["split"] == match["split"]) & (table["metric"] == match["metric"])]
    if at is not None:
        rows = _until(rows, at, table, once)
    if DOMAIN in where:
        names = groups(table)
        rows = rows.merge(names[names["group"].isin([str(name) for name in _as_list(where[DOMAIN])])])
    if LABELLED in where:
        counts = table[(table["split"] == "data") & (table["metric"] == "examples")]
        wanted = counts[(counts["value"] > 0).isin(_as_list(where[LABELLED]))]
        rows = rows.merge(wanted[[*RUN, "device"]])
    if by_device and match["how"] is None and (rows.groupby([*RUN, *TURN])["value"].std() > 0).any():
        return rows.set_index([*RUN, "device", *TURN])["value"].sort_index()
    worst = "max" if match["metric"] in LESS else "min"
    how = {None: "mean", "std": "std", "worst": worst}[match["how"]]
    over: pd.Series = rows.groupby([*RUN, *TURN])["value"].agg(how)
    return over


def _until(rows: pd.DataFrame, at: int, table: pd.DataFrame, once: bool) -> pd.DataFrame:
    """Return the rows up to a round, counted over all stages, of runs that have values after that very round.

    A run of one round in all has the same value at any time. once: so has a run with values after one round alone.
    """
    rows = count_rounds(rows, table)
    rows = rows.assign(still=rows["total"] == 1)
    if once:
        rows["still"] |= rows.groupby(RUN)["step"].transform("nunique") == 1
    rows = rows[(rows["step"] <= at) | rows["still"]]
    return rows[(rows.groupby(RUN)["step"].transform("max") == at) | rows["still"]]


def count_rounds(rows: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with their round counted over all stages, `step`, and the number of rounds in all, `total`."""
    rounds = table.groupby([*RUN, "stage"])["round"].max()
    sums = rounds.groupby(RUN).cumsum()
    before, total = (sums - rounds).rename("before"), rounds.groupby(RUN).sum().rename("total")
    rows = rows.join(before, on=[*RUN, "stage"]).join(total, on=RUN)
    return rows.assign(step=rows["before"] + rows["round"])


def _side(rows: pd.Series, side: str) -> pd.Series | float:
    """Return a row's values by setting, seed and turn; a difference's values of the last turn; or the number."""
    number = number_of(side)
    if number is not None:
        return number
    a, *less = (rows[rows.index.get_level_values("method") == label].droplevel("method") for label in side.split(" - "))
    return last_turn(a) - last_turn(less[0]) if less else a


def _problems(values: pd.Series) -> list[str]:
    """Return the levels of the index that tell problems apart."""
    return [str(name) for name in values.index.names if name not in TURN]


def last_turn(values: Any) -> Any:
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
    final = last_turn(values)
    run_settings = set(final.index.unique("setting"))
    groups: dict[str, dict[Any, str]] = {}
    for setting, point in points.items():
        if key in point and setting in run_settings:
            others = " ".join(f"{name.rpartition('.')[2]}={value}" for name, value in point.items() if name != key)
            value = point[key]
            groups.setdefault(others, {})[tuple(value) if isinstance(value, list) else value] = setting
    for name, settings in groups.items():
        if len(settings) > 1:
            ordered = list(settings) if any(isinstance(value, str | tuple) for value in settings) else sorted(settings)
            low, high = ordered[0], ordered[-1]
            title = name or f"{key.rpartition('.')[2]} from {low} to {high}"
            ends = settings[low], settings[high]
            yield title, ends, final.xs(ends[0]), final.xs(ends[1])


def admits(where: Mapping[str, Any], point: Mapping[str, Any]) -> bool:
    wanted = {key: _as_list(value) for key, value in where.items() if key not in DEVICES}
    return all(key in point and point[key] in values for key, values in wanted.items())


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def pool(places: list[Place]) -> Place:
    """Return all problems of some places as those of one."""
    return Place("", (), pd.concat([place.difference for place in places], ignore_index=True))
