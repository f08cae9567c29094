"""The plots that both the page and DVC's outputs show."""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from fedcore.core.metrics import METRICS
from fedcore.report import figures
from fedcore.report.tables import FEW, split_by_setting
from fedcore.results.criterion import Criterion, SettingKey
from fedcore.results.summary import curves

PANELS = 12
"""A study with more settings has no picture of accuracy over rounds."""


@dataclass(frozen=True)
class Plots:
    """PNG files by (study, setting). comparisons: accuracies of all methods. courses: accuracy over rounds."""

    comparisons: dict[tuple[str, str], bytes]
    courses: dict[tuple[str, str], bytes]


def draw(table: pd.DataFrame, summary: pd.DataFrame, criteria: Mapping[SettingKey, Criterion] | Criterion) -> Plots:
    """Draw each setting's comparison, where a study has at most FEW of them, and accuracy over rounds.

    criteria: which devices count.
    """
    count = summary.groupby("study")["setting"].nunique()
    return Plots(
        {
            (study, setting): figures.png(figures.comparison(rows))
            for (study, _, setting), rows in split_by_setting(summary)
            if count[study] <= FEW
        },
        courses(curves(table, criteria), summary),
    )


def courses(course: pd.DataFrame, summary: pd.DataFrame) -> dict[tuple[str, str], bytes]:
    """Draw accuracy over rounds: (study, setting) -> a picture, for each setting in which a method has several rounds.

    A study with more than FEW settings, at most PANELS, has one picture of them all: (study, ""). course: see `curves`.
    """
    pictures = {}
    for study, rows in summary[summary["rounds"] > 1].groupby("study", sort=False):
        of_study = course[(course["study"] == study) & course["setting"].isin(rows["setting"])]
        metrics = dict(zip(rows["setting"].astype(str), rows["metric"], strict=True))
        count = summary[summary["study"] == study]["setting"].nunique()
        if count <= FEW:
            for setting in dict.fromkeys(rows["setting"]):
                pictures[str(study), str(setting)] = figures.png(
                    figures.curves(of_study[of_study["setting"] == setting], METRICS[metrics[str(setting)]])
                )
        elif count <= PANELS:
            order = {name: position for position, name in enumerate(dict.fromkeys(summary["setting"]))}
            pictures[str(study), ""] = figures.png(
                figures.curves(
                    of_study.sort_values("setting", key=lambda names: names.map(order), kind="stable"),
                    METRICS[rows["metric"].iloc[0]],
                )
            )
    return pictures
