"""The preview of a user's data: what is learnt from, what is left out and why, and who holds what.

It reads and divides the data and computes nothing else. It needs neither Prefect nor MLflow, so that it comes quickly.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedcore.config.request import USER_STUDY, Job, ReadData
from fedcore.config.settings import Setting
from fedcore.core.threats import split_threats
from fedcore.data import USER_DATASETS, Dataset, load, schema_of
from fedcore.data.overview import OFFSET, SPREAD, columns, offset, spans
from fedcore.data.prepare import preparation_bytes
from fedcore.partition import Partition, partition, training
from fedcore.partition.tables import counts
from fedcore.report.terminal import standard

COLUMNS, LEFT, DEVICES, CLASSES = 13, 3, 8, 6
"""The most columns, columns left out, devices and classes that are shown, so that a preview has at most 40 lines."""


def print_preview(
    setting: Setting, seed: int, tolerant: bool = False, console: Console | None = None
) -> tuple[Dataset, Partition]:
    """Read a setting's data, divide them and print what they are; returns both.

    tolerant: also show data that a run refuses for their missing cells. Raises InputError for data that cannot be used.
    """
    console = console or standard()
    settings = {key: value for key, value in setting.data.items() if key != "name"}
    refusing = tolerant and settings.get("missing") == "refuse"
    dataset = load(setting.data["name"], **{**settings, **({"missing": "median"} if refusing else {})})
    _, section = split_threats(setting.federation)
    way = {"name" if key == "partition" else key: value for key, value in section.items() if key != "scale"}
    divided = partition(dataset, seed=seed, **way)
    where = str(setting.data.get("path", setting.data["name"]))
    console.print(Text(where, style="bold"), no_wrap=True, overflow="ellipsis")
    console.print(Text(_contents(dataset, divided)))
    schema = schema_of(dataset)
    if schema.columns:
        console.print(_columns(dataset))
        _more(console, "columns", len(schema.columns), COLUMNS)
    for name, why in islice(schema.left_out.items(), LEFT):
        console.print(Text(f"left out: {name}, {why}"))
    _more(console, "columns left out", len(schema.left_out), LEFT)
    for line in _advice(setting, dataset, divided, refusing):
        console.print(Text(line))
    console.print()
    console.print(_devices(counts(dataset, divided), dataset.classes))
    _more(console, "devices", len(divided.devices), DEVICES)
    console.print()
    return dataset, divided


def show_own(jobs: Iterable[Job]) -> ReadData:
    """Print the preview of the first job whose data are a user's own; raises InputError if they cannot be used.

    Returns what it has read and divided, which a run need not do again.
    """
    for setting, seed in ((setting, job.seed) for job in jobs for setting in job.settings):
        if setting.data["name"] in USER_DATASETS:
            dataset, divided = print_preview(setting, seed)
            return ReadData({setting.source: dataset}, {(setting.source, setting.division, seed): divided})
    return ReadData()


def _contents(dataset: Dataset, divided: Partition) -> str:
    """Return how much of everything there is."""
    schema = schema_of(dataset)
    if schema.columns:
        taken = len(schema.columns) + len(schema.left_out)
        what = f"{len(schema.columns)} of {taken} columns, {len(schema.inputs)} inputs"
    else:
        what = f"{' x '.join(map(str, schema.shape))} numbers each"
    label = "" if schema.label is None else f" of {schema.label}"
    return (
        f"{len(dataset.train):,} examples, {what}, "
        f"{len(dataset.classes)} classes{label}, {len(divided.devices)} devices, "
        f"{len(divided.shared) if dataset.test is None else len(dataset.test):,} shared test examples"
    )


def _columns(dataset: Dataset) -> Table:
    """Return the table of the columns that are learnt from."""
    table = _table("column", "kind", "missing", "values")
    for _, row in columns(dataset).head(COLUMNS).iterrows():
        of = next(one for one in schema_of(dataset).columns if one.name == row["column"])
        shown = ", ".join(of.categories[:CLASSES]) + (", ..." if len(of.categories) > CLASSES else "")
        if row["kind"] == "number":
            shown = f"{_amount(row['low'])} to {_amount(row['high'])}"
        missing = f"{row['missing']:,} ({row['missing'] / len(dataset.train):.1%})" if row["missing"] else "-"
        table.add_row(Text(row["column"]), row["kind"], missing, Text(shown or "False, True"))
    return table


def _devices(held: pd.DataFrame, classes: tuple[str, ...]) -> Table:
    """Return the table of each device's examples, and the shares of its training examples by class."""
    parts = [name for name in held.columns if name.startswith("n_") and name not in classes]
    shown = list(classes[:CLASSES])
    table = _table("device", *(name.removeprefix("n_") for name in parts), *(f"{name}, %" for name in shown))
    if len(classes) > CLASSES:
        table.add_column(f"{len(classes) - CLASSES} more classes, %", justify="right")
    for who, row in held.head(DEVICES).iterrows():
        shares = 100 * row[list(classes)].astype(float) / max(row[list(classes)].sum(), 1)
        rest = [f"{shares[list(classes[CLASSES:])].sum():.0f}"] if len(classes) > CLASSES else []
        table.add_row(
            Text(str(who)), *(f"{row[name]:,}" for name in parts), *(f"{shares[name]:.0f}" for name in shown), *rest
        )
    return table


def _advice(setting: Setting, dataset: Dataset, divided: Partition, refusing: bool) -> list[str]:
    """Return what the user should know or choose."""
    lines = []
    schema, found = schema_of(dataset), columns(dataset)
    gaps = int(found["missing"].sum())
    if schema.dropped:
        lines.append(f"missing: {schema.dropped:,} rows with a missing cell are dropped")
    if gaps and refusing:
        lines.append(f"missing: {gaps:,} cells; a run needs data.missing=median or data.missing=drop")
    elif gaps:
        whose = (
            "the device's training rows" if schema.missing == "median" else "each device's training rows, on average"
        )
        lines.append(f"missing: {gaps:,} cells; a number is filled with the median of {whose}; a text has no category")
    if not refusing and (sent := preparation_bytes(schema, setting.federation["scale"])):
        up, down = sent.values()
        lines.append(
            f"before the first round each device sends {up:,.0f} bytes and receives {down:,.0f}, to prepare rows"
        )
    whole = (found["low"] % 1 == 0) & (found["high"] % 1 == 0) & (found["values"] == len(dataset.train))
    for name in found["column"][whole].head(1):
        lines.append(f"{name}: another whole number in each row; if it is an identifier: data.ignore=[{name}]")
    if setting.federation["scale"] == "none":
        lines += _scale_advice(setting, dataset, divided)
    return lines


def _scale_advice(setting: Setting, dataset: Dataset, divided: Partition) -> list[str]:
    """Return the scale to choose where columns, or devices within a class, differ much; nothing where they do not."""
    widest, share = spans(dataset), offset(dataset, training(divided))
    if share is not None and share > OFFSET:
        why, scale = "devices differ within a class", "device"
    elif widest is not None and widest[1] > SPREAD * widest[0]:
        few, many = map(_amount, widest)
        why, scale = f"spans {few} to {many}", "common"
    else:
        return []
    both = "; size=scales tries both" if setting.study == USER_STUDY else ""
    return [f"scales: {why}: federation.scale={scale} is suggested{both}"]


def _amount(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"


def _more(console: Console, what: str, count: int, shown: int) -> None:
    if count > shown:
        console.print(f"... and {count - shown} more {what}", style="dim")


def _table(*heads: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for i, head in enumerate(heads):
        left = i == 0 or head in ("kind", "values")
        table.add_column(Text(head), justify="left" if left else "right", no_wrap=True, overflow="ellipsis")
    return table
