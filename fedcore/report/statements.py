"""A claim's rule and numbers in words, with both sides in their unit, for readers who do not know the rows' names."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from fedcore.results.claims import Rule, number_of, read_rule

DIFFERENCE = re.compile(
    r"([+-][\d.e+-]+) \[([+-][\d.e+-]+), ([+-][\d.e+-]+)\](?: at (.*?))? \((\d+) seeds\)"  # no named groups: not HTML
)
"""The difference in a claim's numbers, see :class:`fedcore.results.verdicts.Verdict`: the fields of Difference."""


class Difference(NamedTuple):
    """A difference with the ends of its interval, the setting that it is of, and the number of seeds."""

    mean: float
    low: float
    high: float
    place: str
    seeds: int

    @classmethod
    def find(cls, numbers: str) -> Difference | None:
        """Return the first difference in a claim's numbers, None without one."""
        match = DIFFERENCE.search(numbers)
        if match is None:
            return None
        mean, low, high, place, seeds = match.groups()
        return cls(float(mean), float(low), float(high), place or "", int(seeds))


Names = Mapping[str, str]
"""Rows, keys and settings -> words; "KEY=" stands for all values of a key, with {} for the value."""


class Unit(NamedTuple):
    """What a claim compares: its name, a unit after differences, and how often it is in the claim's number."""

    what: str
    unit: str
    times: float = 1.0


ACCURACY = Unit("", "points", 100.0)
UNITS = {
    "links.energy": Unit("energy per device", "J"),
    "links.links_out": Unit("links that leave a device", ""),
    "links.target": Unit("share of devices that are targets", "points", 100.0),
    "std of test.loss": Unit("spread of the loss over devices", ""),
    "traffic.bytes_up": Unit("bytes that a device sends in a round", "MB", 1e-6),
    "transport.excess": Unit("cost above the cheapest", ""),
    "worst of links.slack_theorem_2": Unit("Theorem 2's bound minus the error, least over receivers", ""),
    "worst of links.slack_corollary_1": Unit("Corollary 1's bound minus the error, least over receivers", ""),
}
"""What a claim compares, where it is no accuracy."""


def said(row: pd.Series, names: Names, what: str = "") -> str:
    """Return a claim's rule in words. what: in place of the name of what it compares."""
    rule, unit = _rule(row), _unit(row)
    a, other = _named(rule.a, names), rule.below or rule.near
    of = f" ({what or unit.what})" if what or unit.what else ""
    if rule.key:
        way = rule.direction or f"stays within {rule.room}"
        return f"{what or unit.what or 'accuracy'} of {a} {way} with {names.get(rule.key, rule.key)}"
    limit = number_of(str(other))
    if limit is not None and " - " in rule.a:
        lead, behind = (_named(label, names) for label in rule.a.split(" - "))
        return f"{lead} ahead of {behind} by {_plain(limit, unit)}{of}"
    if rule.near:
        return f"{a} and {_named(rule.near, names)} within {_plain(float(str(rule.margin)), unit)}{of}"
    if number_of(rule.a) is not None:
        return f"{what or unit.what or _named(str(other), names)} below {rule.a}"
    if limit is not None:
        return f"{what or unit.what or a} above {_plain(limit, unit)}"
    return f"{a} above {_named(str(other), names)}{of}"


def measured(row: pd.Series, names: Names, what: str = "", *, tallied: bool = True) -> str:
    """Return a claim's rule and its numbers in words. tallied: with the counts of its settings."""
    rule, unit, numbers = _rule(row), _unit(row), str(row["numbers"])
    found = Difference.find(numbers)
    if row["verdict"] == "not tested":
        reason = next((words for start, words in REASONS.items() if start in numbers), numbers.partition(";")[0])
        near = re.search(r"at the ceiling: ([\d.]+) of 1", numbers)
        reason += f" ({near[1].removeprefix('0')} and more)" if near else ""
        so_far = f"; so far {_sides(row, rule, unit)}{_difference(found, unit)}" if found else ""
        return f"{said(row, names, what)}: {reason}{so_far}"
    settings, place = "", ""
    if int(float(row.get("tested_in") or 0)) > 1:
        settings = f"{tally(row.to_frame().T)}; " if tallied else ""
        where = _place(found.place, names) if found and found.place else ""
        place = f"{'widest' if rule.tolerance is not None else 'weakest'} {f'({where})' if where else 'setting'}: "
    limit = number_of(str(rule.below))
    if found and limit is not None and " - " in rule.a:
        mean, low = (unit.times * (value + limit) for value in (found.mean, found.low))
        surely = f"surely {f'by {low:.1f}' if low > 0 else 'by none'}"
        lead = f"{'leads by' if mean > 0 else 'lead'} {mean:.1f} points, {surely} (needed: {unit.times * limit:g})"
        return f"{said(row, names, what)}: {settings}{place}{lead}"
    for side, sign in ((rule.a, -1), (str(rule.below), 1)):
        if found and (limit := number_of(side)) is not None:
            allowed = f"{'needed: more' if sign > 0 else 'allowed: less'} than {_plain(limit, unit)}"
            return f"{said(row, names, what)}: {settings}{place}{_of_limit(found, unit, limit, sign)} ({allowed})"
    return f"{said(row, names, what)}: {settings}{place}{_sides(row, rule, unit)}{_difference(found, unit)}"


def tally(rows: pd.DataFrame) -> str:
    """Return in how many of all settings claims hold, in how many their opposite does, and how many are open."""
    held, opposite, tested = (
        sum(int(float(value or 0)) for value in rows[name]) for name in ("holds_in", "contradicted_in", "tested_in")
    )
    return f"{held} yes, {opposite} opposite, {tested - held - opposite} open"


def _of_limit(found: Difference, unit: Unit, limit: float, sign: int) -> str:
    """Return a value that a rule compares with a number, with its interval. sign: -1 where it must be the smaller."""
    ends = (found.mean, found.low, found.high) if sign > 0 else (found.mean, found.high, found.low)
    mean, low, high = (unit.times * (limit + sign * value) + 0.0 for value in ends)
    return f"{mean:.3g}{f' {unit.unit}' if unit.unit else ''} [{low:.3g}, {high:.3g}]"


REASONS = {
    "not converged": "too early to say, since the row behind still gained when the runs ended",
    "at the ceiling": "both are nearly perfect",
    "a rule needs three": "fewer than three seeds",
}
"""Words of a claim that was not tested -> why, in plain ones."""


def _rule(row: pd.Series) -> Rule:
    return read_rule("rule", str(row["rule"]), "shared.accuracy")


def _unit(row: pd.Series) -> Unit:
    return UNITS.get(str(row["of"]).partition(" after round ")[0], ACCURACY)


def _named(side: str, names: Names) -> str:
    if " - " in side:
        return " minus ".join(_named(label, names) for label in side.split(" - "))
    return names.get(side, side)


def _sides(row: pd.Series, rule: Rule, unit: Unit) -> str:
    """Return both means, "0.53 against 0.10: "; of a key its first and last; an empty text if they were not kept."""
    a, b = (float(row[name]) if str(row.get(name, "")) else math.nan for name in ("a", "b"))
    if math.isnan(a) or math.isnan(b):
        return ""
    if rule.key:
        return f"from {_level(a, unit)} to {_level(b, unit)}: "
    digits = 4 if unit is ACCURACY and round(a, 3) == round(b, 3) and a != b else 3
    return f"{_level(a, unit, digits)} against {_level(b, unit, digits)}: "


def _level(value: float, unit: Unit, digits: int = 3) -> str:
    if unit.unit == "points":
        return f"{value:.{digits}f}".removeprefix("0")
    return f"{value * unit.times:.3g}{f' {unit.unit}' if unit.unit else ''}"


def _difference(found: Difference | None, unit: Unit) -> str:
    """Return a difference with its interval in its unit, "+43 points [+30, +56]"."""
    if found is None:
        return ""
    mean, low, high = (unit.times * value for value in found[:3])
    digits = 1 if max(abs(mean), abs(low), abs(high)) >= 1 else 2
    text = [f"{value:+.{digits}f}" if unit.unit == "points" else f"{value:+.3g}" for value in (mean, low, high)]
    seeds = "" if found.seeds == 3 else f" ({found.seeds} seeds)"
    return f"{text[0]}{f' {unit.unit}' if unit.unit else ''} [{text[1]}, {text[2]}]{seeds}"


def _plain(value: float, unit: Unit) -> str:
    return f"{value * unit.times:g} {unit.unit}".strip()


def _place(place: str, names: Names) -> str:
    """Return a setting in words: "devices=4 alpha=1" as "4 devices, unequal labels"."""
    if place in names or "=" not in place:
        return names.get(place, place)
    words = []
    for part in place.split():
        key, _, value = part.partition("=")
        words.append(names.get(part, names.get(f"{key}=", f"{key} {value}").format(value)))
    return ", ".join(filter(None, words))


def join(statements: Sequence[str]) -> str:
    """Return statements one after another; what all begin or end with is said once."""
    if len(statements) < 2:
        return "".join(statements)
    parts = [statement.split(" above ") for statement in statements]
    if all(len(part) == 2 for part in parts):
        first, second = ({part[side] for part in parts} for side in (0, 1))
        if len(first) == 1:
            *most, last = (part[1] for part in parts)
            return f"{first.pop()} above {', '.join(most)} and {last}"
        if len(second) == 1:
            *most, last = (part[0] for part in parts)
            return f"{', '.join(most)} and {last} above {second.pop()}"
    return "; ".join(statements)
