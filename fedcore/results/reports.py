"""Series over rounds and last values of a method's reports.

`reports` always holds one :class:`fedcore.types.method.Report` per turn, in order.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from fedcore.types.federation import Params
from fedcore.types.method import Method, Numbers, Report, Scores

WARNING = "warning"
"""The name of the words that are shown to the user."""


def series(reports: Sequence[Report]) -> dict[str, dict[str, list[float]]]:
    """Return topic -> metric -> one number per turn, nan for turns without it."""
    names = dict.fromkeys(
        (topic, metric) for report in reports for topic, numbers in report.series.items() for metric in numbers
    )
    courses: dict[str, dict[str, list[float]]] = {}
    for topic, metric in names:
        courses.setdefault(topic, {})[metric] = [
            report.series.get(topic, {}).get(metric, math.nan) for report in reports
        ]
    return courses


def devices(reports: Sequence[Report]) -> dict[str, Numbers]:
    """Return topic -> device -> metric -> number, of the topic's last turn, or its counts; sorted by topic."""
    last = {topic: numbers for report in reports for topic, numbers in report.devices.items()}
    return dict(sorted({**last, **counts(reports)}.items()))


def counts(reports: Sequence[Report]) -> dict[str, dict[str, dict[str, float]]]:
    """Return topic -> device -> metric -> the sum of its counts over the turns."""
    total: dict[str, dict[str, dict[str, float]]] = {}
    for report in reports:
        for topic, numbers_by_device in (report.counts or {}).items():
            for device, numbers in numbers_by_device.items():
                sums = total.setdefault(topic, {}).setdefault(device, {})
                for metric, count in numbers.items():
                    sums[metric] = sums.get(metric, 0.0) + count
    return total


def final_numbers(method: Method, reports: Sequence[Report], scores: Scores | None) -> Mapping[str, Numbers]:
    """Return the devices' final numbers, completed by the method's review of the last scores, and the models' cost."""
    numbers = devices(reports)
    if scores is None:
        return numbers
    reviewed = numbers if method.review is None else method.review(numbers, scores)
    return {**reviewed, "inference": {name: splits["inference"] for name, splits in scores.items()}}


def matrices(reports: Sequence[Report]) -> Params:
    """Return the last matrices by name: those of one turn for each kind, the part of a name before its first slash."""
    last: dict[str, Params] = {}
    for report in reports:
        kinds: dict[str, Params] = {}
        for name, matrix in report.matrices.items():
            kinds.setdefault(name.partition("/")[0], {})[name] = matrix
        last |= kinds
    return {name: matrix for kind in last.values() for name, matrix in kind.items()}


def over_rounds(reports: Sequence[Report], name: str) -> dict[int, Tensor]:
    """Return turn, counted from 1 -> the matrix of that name, for the turns that have it."""
    return {number: report.matrices[name] for number, report in enumerate(reports, 1) if name in report.matrices}


def words(reports: Sequence[Report], name: str) -> list[str]:
    """Return the distinct strings of that name, in the order of their first turn."""
    return [*dict.fromkeys(report.words[name] for report in reports if name in report.words)]


def name_classes(reports: Sequence[Report], classes: Sequence[str]) -> list[Report]:
    """Return the reports with the name of class k in the place of {k} in their warnings; a server knows only k."""

    def name(match: re.Match[str]) -> str:
        number = int(match[1])
        return repr(classes[number]) if number < len(classes) else match[0]

    return [
        replace(report, words={**report.words, WARNING: re.sub(r"\{(\d+)\}", name, report.words[WARNING])})
        if WARNING in report.words
        else report
        for report in reports
    ]
