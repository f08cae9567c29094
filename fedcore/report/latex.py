"""A comparison as tables for a paper, for LaTeX with booktabs."""

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

import pandas as pd

from fedcore.core.metrics import Metric, recorded
from fedcore.results.summary import SPLITS, format_bytes, last_round

Spread: TypeAlias = Literal["interval", "std"]
"""What follows a mean: half of its 95 % interval over seeds, as in the answer, or the standard deviation over seeds."""

ESCAPED = {"\\": r"\textbackslash{}", **{sign: f"\\{sign}" for sign in "&%$#_{}"}, "~": r"\textasciitilde{}"}


def method_table(summary: pd.DataFrame, spread: Spread = "interval") -> str:
    """Return a row per method, the best first: mean and spread on each split, the worst device, bytes per device.

    The best mean is bold. summary: of one setting.
    """
    metric = recorded(summary["metric"].iloc[0])
    splits = [split for split in SPLITS if summary[f"{split}_mean"].notna().any()]
    seeds = int(summary["n_seeds"].max())
    kind = {"interval": r" ($\pm$ 95\,\%)", "std": r" ($\pm$ std)"}[spread] if seeds > 1 else ""
    heads = [
        "Method", *(head for split in splits for head in (f"{SPLITS[split].capitalize()}{kind}", "worst")), "up",
        "down",
    ]  # fmt: skip
    rows = []
    for _, row in summary.iterrows():
        cells = [escape(row["method"])]
        for split in splits:
            rank = row[f"{split}_rank"]
            half = row[f"{split}_{'margin' if spread == 'interval' else 'std_seeds'}"]
            cells += [
                number(row[f"{split}_mean"], half, metric, bold=not pd.isna(rank) and rank == 1),
                number(row[f"{split}_worst"], math.nan, metric),
            ]
        rows.append([*cells, *(escape(format_bytes(row[f"bytes_{way}"] / row["n_devices"])) for way in ("up", "down"))])
    spread_words = {"interval": r"95\,\% interval", "std": "standard deviation"}[spread]
    over = f"; $\\pm$: {spread_words} over {seeds} seeds" if seeds > 1 else "; one seed"
    return tabular(heads, rows, f"{_unit(metric)}{over}. Bytes: of one device, in all rounds.")


def device_table(table: pd.DataFrame, metric: Metric, methods: Sequence[str], split: str = "test") -> str:
    """Return a row per device, a column per method: the metric at last, mean over seeds; the best is bold."""
    last = last_round(table)
    last = last[(last["split"] == split) & (last["metric"] == metric.column)]
    values = last.pivot_table("value", "device", "method", aggfunc="mean", sort=False).reindex(columns=[*methods])
    rows = []
    for device, row in values.iterrows():
        best = (metric.sign * row).max()
        cells = [number(value, math.nan, metric, bold=metric.sign * value == best) for value in row]
        rows.append([escape(device), *cells])
    return tabular(["Device", *map(escape, methods)], rows, f"{_unit(metric)} on {SPLITS[split]} data.")


def number(mean: float, half: float, metric: Metric, bold: bool = False) -> str:
    """Return a mean and half of its interval in the metric's unit, per cent without the sign: $94.8 \\pm 1.2$."""
    if math.isnan(mean):
        return "--"
    decimals = 3 if metric.per == 1 else 1
    value = f"{metric.per * mean:.{decimals}f}"
    text = f"\\mathbf{{{value}}}" if bold else value
    return f"${text}$" if math.isnan(half) else f"${text} \\pm {metric.per * half:.{decimals}f}$"


def tabular(heads: Sequence[str], rows: Sequence[Sequence[str]], note: str) -> str:
    """Return a table of text and numbers, with a comment that says what they are."""
    lines = [" & ".join(row) + r" \\" for row in [heads, *rows]]
    begin = rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}"
    parts = [f"% {note}", begin, r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join(parts)


def escape(text: object) -> str:
    """Return a text as LaTeX prints it."""
    return "".join(ESCAPED.get(sign, sign) for sign in str(text))


def _unit(metric: Metric) -> str:
    """Return what the numbers are: accuracy in per cent."""
    unit = {100: " in per cent", 1000: " per 1,000 rows", 1: ""}[metric.per]
    return f"{metric.words[0].upper()}{metric.words[1:]}{unit}"
