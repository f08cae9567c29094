"""The forest plot of the page of results: the lead of each method on its rivals, a dot for each setting."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

from benchmarks.judge_anew import BY_SEED, FILES, RESULTS, by_seed, stands
from benchmarks.paper_pages import PaperPages
from fedcore.config.studies import find_study
from fedcore.report.figures.drawing import BLUE, GREY
from fedcore.results.criterion import MIN_EFFECT, RATIO, half_width
from fedcore.results.judging import LEVEL

PAIR = re.compile(r"(?P<a>\w+) > (?P<b>\w+)(?: in (?P<where>.+))?")
MOST = 100.0
"""The end of the axis, in points."""


def values_by_seed(file: str, params: Mapping[str, Any]) -> pd.DataFrame:
    """Return the accuracies of a file after the last round, by setting and seed, a column for each row.

    file: a key of BY_SEED, or a file of docs/results without ".csv": with a column or a line for each seed, or with
    their mean alone, as seed 0.
    """
    if file in BY_SEED:
        study = find_study(params, str(pd.read_csv(RESULTS / f"{file}-claims.csv")["study"].iloc[0]))
        rows = BY_SEED[file](f"{FILES.get(file, file)}.csv", study).table
        rows = rows[(rows["metric"] == "accuracy") & rows["split"].isin(["shared", "test", "links"])]
        rows = rows[rows["round"] == rows.groupby(["setting", "method", "seed"])["round"].transform("max")]
    else:
        rows = pd.read_csv(RESULTS / f"{file}.csv", comment="#")
        if "seed" not in rows:
            means = "shared_mean" in rows
            rows = rows.assign(seed=0) if means else by_seed(f"{file}.csv", "setting")
        names = {"shared": "value", "accuracy": "value", "40": "value", "shared_mean": "value"}
        rows = rows.rename(columns=names).assign(setting=rows.get("setting", ""))
        if "round" in rows:
            last = rows[rows["round"] == rows["round"].max()]
            rows = last.assign(setting=last["spectrum"] + " " + last["loss"])
    return rows.pivot_table("value", ["setting", "seed"], "method")


def dots(pages: PaperPages, params: Mapping[str, Any]) -> pd.DataFrame:
    """Return the dots: paper, rival, file, setting, lead and the ends of its interval in points, seeds, calibrated."""
    found = []
    for page in pages.values():
        for line in page.forest:
            for file in line.files:
                values = values_by_seed(file, params)
                for match in filter(None, map(PAIR.fullmatch, line.pairs)):
                    rows = ("a", "b")
                    if not {match[row] for row in rows} <= set(values):
                        continue
                    near = file in BY_SEED and stands(file, f"{match['a']} > {match['b']}", "shared.accuracy", pages)
                    for setting, some in values.groupby("setting"):
                        gap = 100 * (some[match["a"]] - some[match["b"]]).dropna()
                        if gap.empty or not re.search(match["where"] or "", str(setting)):
                            continue
                        half = half_width(float(gap.std()), len(gap), RATIO, LEVEL) if len(gap) > 1 else np.nan
                        ends = (gap.mean(), gap.mean() - half, gap.mean() + half)
                        numbers = [round(float(end), 3) for end in ends]
                        pair = f"{match['a']} - {match['b']}"
                        found.append((page.name, line.rival, file, setting, pair, *numbers, len(gap), near))
    columns = ["paper", "rival", "file", "setting", "rows", "lead", "low", "high", "seeds", "calibrated"]
    return pd.DataFrame(found, columns=columns)


def draw(forest: pd.DataFrame, path: Path) -> None:
    """Draw the plot as SVG, narrow enough for a telephone; points on an axis that is linear up to one."""
    papers = list(forest.groupby("paper", sort=False))
    high = [rows["rival"].nunique() for _, rows in papers]
    with rc_context({"svg.hashsalt": "fedcore", "svg.fonttype": "none", "font.size": 8}):
        figure = Figure(figsize=(4.4, 0.21 * (sum(high) + 2.2 * len(high))), layout="constrained")
        panels = figure.subplots(len(papers), 1, sharex=True, height_ratios=[n + 0.9 for n in high], squeeze=False)
        for panel, (paper, rows) in zip(panels[:, 0], papers, strict=True):
            rivals = list(dict.fromkeys(rows["rival"]))
            panel.axvspan(-100 * MIN_EFFECT, 100 * MIN_EFFECT, color="0.88", linewidth=0)
            panel.axvline(0, color=GREY, linewidth=0.7)
            for line, rival in enumerate(rivals):
                some = rows[rows["rival"] == rival]
                height = line + np.linspace(-0.28, 0.28, len(some) + 2)[1:-1]
                for y, one in zip(height, some.itertuples(), strict=True):
                    low, end = (float(np.clip(value, -MOST, MOST)) for value in (one.low, one.high))
                    panel.hlines(y, low, end, color=BLUE, linewidth=0.6, alpha=0.5)
                    fill = BLUE if one.calibrated else "white"
                    panel.plot(one.lead, y, "o", color=BLUE, markersize=3, markeredgewidth=0.7, markerfacecolor=fill)
            panel.set_yticks(range(len(rivals)), rivals)
            panel.set_ylim(len(rivals) - 0.45, -0.55)
            panel.set_title(paper, loc="left", fontsize=8.5, fontweight="bold", pad=2)
            panel.set_xscale("symlog", linthresh=1, linscale=0.6)
            panel.set_xlim(-MOST, MOST)
            panel.set_xticks([-50, -10, -3, 0, 3, 10, 50], ["-50", "-10", "-3", "0", "3", "10", "50"])
            panel.minorticks_off()
            panel.tick_params(axis="y", length=0)
            panel.spines[["top", "right", "left"]].set_visible(False)
        panels[-1, 0].set_xlabel("behind   ←   lead in percentage points   →   ahead")
        figure.savefig(path, metadata={"Date": None})
