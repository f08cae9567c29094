"""The numbers behind the page's charts, slider and tables: one table of plain values for each setting."""

import math
from typing import Any, TypeAlias

import pandas as pd

from fedcore.errors import printable
from fedcore.report.phrases import headed
from fedcore.results.advice import Action, Answer
from fedcore.results.answer import answers_by_budget, device_changes
from fedcore.results.summary import SPLITS, format_bytes, front

Numbers: TypeAlias = dict[str, Any]
"""What JSON can hold."""

DIGITS = 5
"""Decimals of a fraction: a thousandth of a percentage point."""
BYTES = 1
"""Decimals of a mean number of bytes: budgets and rows are means that were taken in different orders."""


def chart_numbers(table: pd.DataFrame, rows: pd.DataFrame, answer: Answer) -> Numbers:
    """Return what the charts of one setting show.

    table: the setting's part of the tidy table. rows: its summary. answer: of the setting.

    metric: its name in words, what values are multiplied by to be shown, the unit of differences, and whether less is
    better. splits: the test sets with values. rows: one for each method: bytes that a device sends and receives, and
    for each split the value, half of its interval, the worst device, the rank, and whether it is on the front of
    values and bytes. ticks: bytes and their text. budgets: the answers from
    :func:`fedcore.results.answer.answers_by_budget`, those of neighbours merged if they say the same. alone: the value
    of each device that trains alone, by the row `reference`; changes: by how much each method's value is greater, the
    devices whose change is shown, and whether the counts may be chance.
    """
    criterion, controls = answer.criterion, frozenset(rows["method"][rows["control"]])
    sent = ((rows["bytes_up"] + rows["bytes_down"]) / rows["n_devices"]).fillna(0.0)
    fronts = {f"{split}_front": rows["method"].isin(front(rows, split)) for split in SPLITS}
    each = rows.assign(sent=sent, **fronts).to_dict("records")
    records = [{str(key): value for key, value in row.items()} | {"sent": round(row["sent"], BYTES)} for row in each]
    alone, changes = device_changes(table, controls, criterion)
    metric = criterion.metric
    return {
        "metric": {"words": criterion.words, "per": metric.per, "unit": metric.unit, "less": metric.less},
        "splits": {split: name for split, name in SPLITS.items() if rows[f"{split}_mean"].notna().any()},
        "rows": [_row(row) for row in records],
        "ticks": ticks([row["sent"] for row in records]),
        "budgets": budget_steps(answers_by_budget(table, controls, answer)),
        "reference": str(alone.name) if len(alone) else None,
        "alone": _by_device(alone),
        "changes": {
            method: {
                "devices": _by_device(metric.sign * change),
                "helped": counts.helped,
                "hurt": counts.hurt,
                "shown": sorted(map(printable, counts.shown)),
                "chance": answer.measured.everyone or counts.may_be_chance,
            }
            for method, (change, counts) in changes.items()
        },
    }


def _by_device(values: pd.Series) -> dict[str, float]:
    return {printable(str(device)): round(value, DIGITS) for device, value in values.items()}


def budget_steps(answers: dict[float, Answer]) -> list[Numbers]:
    """Return the answer for each range of budgets, neighbours that say the same being one.

    below: the end of the range in bytes, None for the last one. text: the range in words. advised: split -> the row to
    use, if any. shown: the row whose changes of single devices the answer counts. unsure: whether it cannot say.
    """
    steps: list[Numbers] = []
    for budget, answer in answers.items():
        sets = {"test": answer.own, "shared": answer.new}
        unsure = {split for split, advice in sets.items() if advice is None or advice.action is Action.UNSURE}
        advised = {split: None if split in unsure else advice and advice.method for split, advice in sets.items()}
        said = dict(zip(("headline", "sentences"), headed(answer), strict=True))
        unsaid = answer.advice.action is Action.UNSURE
        texts = {**said, "advised": advised, "shown": answer.advice.judged, "unsure": unsaid}
        if steps and steps[-1]["said"] == texts:
            continue
        if steps:
            steps[-1] |= {"below": round(budget, BYTES)}
        steps.append({"from": budget, "below": None, "said": texts})
    for step in steps:
        low, high = format_bytes(step.pop("from")), step["below"] and format_bytes(step["below"])
        step["text"] = f"{low} or more" if high is None else f"less than {high}" if low == "0" else f"{low} to {high}"
    return steps


def ticks(sent: list[float]) -> list[tuple[float, str]]:
    """Return the powers of ten around the positive numbers of bytes, with their text; none without any."""
    positive = [value for value in sent if value > 0]
    if not positive:
        return []
    low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    return [(10.0**power, format_bytes(10.0**power)) for power in range(low, max(high, low + 1) + 1)]


def _row(row: dict[str, Any]) -> Numbers:
    each = row["n_devices"]
    return {
        "method": row["method"],
        "control": bool(row["control"]),
        "sent": row["sent"],
        "traffic": f"sends {format_bytes(row['bytes_up'] / each)}, receives {format_bytes(row['bytes_down'] / each)}",
        **{
            split: {
                "mean": round(row[f"{split}_mean"], DIGITS),
                "margin": None if pd.isna(row[f"{split}_margin"]) else round(row[f"{split}_margin"], DIGITS),
                "worst": round(row[f"{split}_worst"], DIGITS),
                "rank": None if pd.isna(row[f"{split}_rank"]) else int(row[f"{split}_rank"]),
                "front": bool(row[f"{split}_front"]),
            }
            for split in SPLITS
            if pd.notna(row[f"{split}_mean"])
        },
    }
