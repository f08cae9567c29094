"""Series over rounds and last values of a method's reports.

`reports` always holds one :class:`fedcore.types.method.Report` per turn, in order.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedcore.errors import InputError
from fedcore.types.federation import Params
from fedcore.types.method import Method, Numbers, Report, Scores

WARNING = "warning"
"""The name of the words that are shown to the user."""


def series(reports: Sequence[Report]) -> dict[str, dict[str, list[float]]]:
    """Return topic -> metric -> one number per turn, nan for turns without it."""
    pairs = ((topic, metric) for report in reports for topic, of in report.series.items() for metric in of)
    courses: dict[str, dict[str, list[float]]] = {}
    for topic, metric in dict.fromkeys(pairs):
        courses.setdefault(topic, {})[metric] = [one.series.get(topic, {}).get(metric, math.nan) for one in reports]
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
                sums |= {metric: sums.get(metric, 0.0) + count for metric, count in numbers.items()}
    return total


def final_numbers(method: Method, reports: Sequence[Report], scores: Scores | None) -> Mapping[str, Numbers]:
    """Return the devices' final numbers, completed by the method's review of the last scores."""
    numbers = devices(reports)
    return numbers if scores is None or method.review is None else method.review(numbers, scores)


def costs(scores: Scores | None) -> Mapping[str, Numbers]:
    """Return the costs of the models that devices run, if they are scored."""
    return {} if scores is None else {"inference": {name: splits["inference"] for name, splits in scores.items()}}


def matrices(reports: Sequence[Report]) -> Params:
    """Return the last matrices by name: those of one turn for each kind, the part of a name before its first slash."""
    last: dict[str, Params] = {}
    for report in reports:
        kinds: dict[str, Params] = {}
        for name, matrix in report.matrices.items():
            kinds.setdefault(name.partition("/")[0], {})[name] = matrix
        last |= kinds
    return {name: matrix for kind in last.values() for name, matrix in kind.items()}


@dataclass(frozen=True)
class Fold:
    """A transport matrix of a fusion, in its order from 1.

    device: whose model, with those that were folded before, has the rows' units; into: whose model has the columns'.
    weight: of the device's model in the result, nan if unknown. matrix: (rows, columns), the mass that each unit gives.
    """

    order: int
    device: str
    into: str
    layer: str
    weight: float
    iterations: int
    violation: float
    matrix: Tensor

    @property
    def name(self) -> str:
        return f"{self.order:02d} {self.device} into {self.into}, layer {self.layer}"

    @property
    def file(self) -> str:
        """The name without what a file's name must not have."""
        return re.sub(r"[^\w., #-]", "_", self.name)

    @property
    def units(self) -> tuple[list[str], list[str]]:
        """The names of the rows' and of the columns' units."""
        rows, columns = self.matrix.shape
        return (
            [f"{self.device} {self.layer} {i}" for i in range(rows)],
            [f"{self.into} {self.layer} {j}" for j in range(columns)],
        )

    def sides(self, among: Sequence["Fold"]) -> tuple[str, str]:
        """Say whose units the rows and the columns are. among: all folds; what another one led into is fused."""
        fused = self.device in {fold.into for fold in among}
        return f"units of {f'the fused model ({self.device})' if fused else self.device}", f"units of {self.into}"

    @property
    def row(self) -> dict[str, str | float]:
        """What a table says of it."""
        sizes = dict(zip(("rows", "columns"), self.matrix.shape, strict=True))
        return {
            "order": self.order, "device": self.device, "into": self.into, "weight": self.weight, "layer": self.layer,
            **sizes, "iterations": self.iterations, "violation": self.violation,
        }  # fmt: skip


def folds(reports: Sequence[Report]) -> list[Fold]:
    """Return the folds of the last fusion that is reported; none where its order was not."""
    by_name = matrices(reports)
    of = json.loads(next((report.words["folds"] for report in reversed(reports) if "folds" in report.words), "{}"))
    plans = [(*name.split("/", 1)[1].rpartition("/"), x) for name, x in by_name.items() if name.startswith("plan/")]
    solver = [by_name[f"solver/{name}"].tolist() for name in ("iterations", "violation")] if plans else [[], []]
    order = {fold: number for number, fold in enumerate(dict.fromkeys(fold for fold, *_ in plans), 1)}
    return [
        Fold(order[fold], of[fold][0], of[fold][1], layer, of[fold][2], int(iterations), violation, matrix)
        for (fold, _, layer, matrix), iterations, violation in zip(plans, *solver, strict=True)
        if fold in of
    ]


def load_plans(folder: str | Path) -> list[Fold]:
    """Return the transport matrices of a fusion in its order.

    Args:
        folder: the artifacts `plans` of a run in MLflow, see docs/plans.md.
    """
    file = Path(folder) / "folds.json"
    if not file.is_file():
        raise InputError(f"folder = {str(folder)!r}: has no folds.json; give the artifacts `plans` of a run that fuses")
    table = json.loads(file.read_text())
    loaded = []
    for cells in table["data"]:
        row = dict(zip(table["columns"], cells, strict=True))
        matrix = torch.from_numpy(np.load(Path(folder) / Path(row.pop("file")).name, allow_pickle=False))
        loaded.append(Fold(**{key: row[key] for key in row if key not in ("rows", "columns")}, matrix=matrix))
    return loaded


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
