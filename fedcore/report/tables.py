"""The tables that the page and the terminal show, as formatted text, and a summary as CSV."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from fedcore import spreadsheet
from fedcore.core.metrics import recorded
from fedcore.results.criterion import half_width, ratio_of_test
from fedcore.results.outcomes import Outcomes
from fedcore.results.summary import SPLITS, format_bytes, join_words, standings

FEW = 3
"""A study with more settings is shown in short: one table in the terminal, fewer pictures on the page."""
LINKS = {
    "accuracy": "targets' accuracy, %", "target": "targets", "links_out": "links", "energy": "energy of all links",
    "share": "energy, % of the most", "theorem_2": "Theorem 2", "corollary_1": "Corollary 1",
}  # fmt: skip
"""The columns of the table of links, as in ST-LF's Tables I and II: column -> its head."""
INTERVAL = " ± 95 %"
"""What ± stands for, in the head of a column: half of the 95 % interval of a mean over seeds."""
ANY = "any"
"""In place of half an interval that has every value from 0 to 100 %."""
GUESS = "majority"
"""The control that guesses one class for all devices."""
MEANT = {
    "test_std_devices": "std over devices: how far devices' scores lie apart, mean over seeds.",
    "nets_run": "nets run: models that a device runs for a prediction.",
}
"""Of columns whose heads do not say it."""
NARROW = ("rank", "method", "test", "test_worst", "shared")
"""The columns of a table for Prefect's and MLflow's pages, which have little room beside their lists."""
SUMMED = ("target", "links_out", "energy")


class Cell(NamedTuple):
    """The text of a cell. right: it counts what is right. value: its number, to sort by."""

    text: str
    right: bool = False
    value: float | None = None


class Line(NamedTuple):
    """A line of a table. control: it belongs to a control."""

    cells: list[Cell]
    control: bool


@dataclass(frozen=True)
class Table:
    """kind: scores, domains or links. title, unit: above the table; "" for none. notes: sentences below it."""

    kind: str
    heads: list[str]
    lines: list[Line]
    title: str = ""
    unit: str = ""
    notes: tuple[str, ...] = ()


def csv(summary: pd.DataFrame) -> str:
    """Return the summary as CSV text; the same text for the same numbers."""
    return str(spreadsheet.write(summary, index=False, float_format="%.6g", lineterminator="\n"))


def where_it_holds(numbers: str) -> str:
    """Return a claim's numbers for readers: "in 2 of 3; ..." says where the rule holds, whatever the verdict."""
    return f"holds {numbers}" if numbers.startswith("in ") else numbers


def quantity(text: str, value: float) -> Cell:
    """Return the cell of a number, which sorts by it; nan has no place in the order."""
    return Cell(text, value=None if pd.isna(value) else float(value))


def notes(rows: pd.DataFrame, shown: Collection[str] = ()) -> tuple[str, ...]:
    """Return what the table of one setting does not say: fewer seeds, traffic before rounds, and of columns `shown`."""
    lines = []
    most = rows["n_seeds"].max()
    for few, names in rows[rows["n_seeds"] < most].groupby("n_seeds")["method"]:
        have = "has" if len(names) == 1 else "have"
        lines.append(f"{join_words(names)} {have} {few} of {most} seeds; the rank compares only these seeds.")
    if not all(_says_something(row, split) for _, row in rows.iterrows() for split in SPLITS):
        lines.append(f"± {ANY}: with so few seeds the 95 % interval has every value.")
    guess = rows[(rows["method"] == GUESS) & (rows["metric"] == "balanced_accuracy")]
    if (guess["test_std_devices"] > 0).any():
        lines.append(f"{GUESS} is above chance, since some device's test rows lack a class in a seed.")
    up, down = (format_bytes((rows[way] / rows["n_devices"]).max()) for way in ("prepare_up", "prepare_down"))
    if rows["prepare_down"].max() > 0:
        lines.append(f"Each device also sends {up} and receives {down} once, for numbers that prepare its examples.")
    return (*lines, *(MEANT[name] for name in shown if name in MEANT))


def _says_something(row: pd.Series, split: str) -> bool:
    """Tell whether the interval of a mean leaves out any value that its metric can have."""
    mean, margin = row[f"{split}_mean"], row[f"{split}_margin"]
    return not (recorded(row["metric"]).per == 100 and margin >= max(mean, 1 - mean))


def cells(rows: pd.DataFrame) -> tuple[dict[str, str], list[dict[str, Cell]]]:
    """Return the heads of one setting's table, by column, and its lines. Columns without any value are left out."""
    heads = {"rank": "rank", "method": "method"}
    lines = [
        {"rank": quantity(standing, rank), "method": Cell(str(method))}
        for standing, rank, method in zip(standings(rows), rows["rank"], rows["method"], strict=True)
    ]
    metric = recorded(rows["metric"].iloc[0])
    unit = {100: "%", 1000: "per 1,000"}.get(metric.per, "")
    if metric.name != "accuracy":
        unit = f"{metric.words} {unit}".strip()
    several = {"test": rows["n_measured"].max() > 1, "shared": rows["n_devices"].max() > 1}
    for split in [split for split in SPLITS if rows[f"{split}_mean"].notna().any()]:
        interval = rows[f"{split}_margin"].notna().any()
        heads[split] = f"{SPLITS[split]}\n{unit}{INTERVAL * bool(interval)}"
        parts = {"std_devices": "std over\ndevices", "worst": "worst\ndevice"} if several[split] else {}
        heads |= {f"{split}_{part}": head + ",\nshared" * (split == "shared") for part, head in parts.items()}
        for line, (_, row) in zip(lines, rows.iterrows(), strict=True):
            mean, margin = (metric.scaled(row[f"{split}_{part}"]) for part in ("mean", "margin"))
            margin = margin if _says_something(row, split) else ANY
            text = f"{mean} ± {margin:>4}" if margin != "-" else mean
            line[split] = quantity(text, row[f"{split}_mean"])
            for part in parts:
                value = row[f"{split}_{part}"]
                line[f"{split}_{part}"] = quantity(metric.scaled(value), value)
    up, down = (rows[f"bytes_{way}"] / rows["n_devices"] for way in ("up", "down"))
    further = {"bytes_up": ("up per\ndevice", up, format_bytes), "bytes_down": ("down per\ndevice", down, format_bytes)}
    if rows["rounds"].max() > 1:
        further["bytes_round"] = "up per\ndevice,\nround", up / rows["rounds"], format_bytes
    if rows["macs"].max() > rows["macs"].min():
        further["nets_run"] = "nets\nrun", rows["nets_run"], "{:,.0f}".format
        further["macs"] = "multiplications\nper example", rows["macs"], "{:,.0f}".format
    for clock, word in {"wall": "seconds", "cpu": "seconds\nof CPU"}.items():
        if rows[clock].notna().any():
            further[clock] = word, rows[clock], "{:.1f}".format
    for name, (head, values, form) in further.items():
        heads[name] = head
        for line, value in zip(lines, values, strict=True):
            line[name] = quantity("-" if pd.isna(value) else form(value), value)
    return heads, lines


def score_table(rows: pd.DataFrame, worst: Mapping[str, str] | None = None) -> Table:
    """Return the table of one setting's summary: a line for each method.

    worst: row -> its worst device; the table is then a narrow one, which names it.
    """
    heads, body = cells(rows)
    if worst is not None:
        heads = {key: head for key, head in heads.items() if key in NARROW}
        body = [{key: line[key] for key in heads} for line in body]
        for line in body:
            if "test_worst" in line and (name := worst.get(line["method"].text)):
                line["test_worst"] = Cell(f"{line['test_worst'].text} ({name})")
    lines = [Line(list(line.values()), bool(control)) for line, control in zip(body, rows["control"], strict=True)]
    return Table("scores", list(heads.values()), lines, notes=notes(rows, heads))


def domain_table(groups: pd.DataFrame, rows: pd.DataFrame) -> Table:
    """Return one setting's accuracies, or errors, by domain, on the primary split: a line for each row of its summary.

    groups: the setting's part of :func:`fedcore.results.summary.by_group`.
    """
    split, metric = rows["primary"].iloc[0], recorded(groups["metric"].iloc[0])
    columns = {
        (row["method"], row["group"]): metric.scaled(row["mean"])
        for _, row in groups[groups["split"] == split].iterrows()
    }
    names = sorted({group for _, group in columns})
    lines = [
        Line([Cell(str(method)), *(Cell(columns.get((method, name), "-")) for name in names)], bool(control))
        for method, control in zip(rows["method"], rows["control"], strict=True)
    ]
    unit = "%" if metric.per == 100 else "in the label's unit"
    title = f"{metric.words[0].upper()}{metric.words[1:]} by domain"
    return Table("domains", ["method", *names], lines, title, f"{SPLITS[split]}, {unit}")


def confusion_table(outcomes: Outcomes) -> Table | None:
    """Return how often each class is taken for each, with recall and precision; None if it was not counted."""
    counts = outcomes.confusion
    if not len(counts):
        return None
    right, truth, guessed = counts.diagonal(), counts.sum(1), counts.sum(0)

    def share(hits: float, of: float) -> Cell:
        return Cell(f"{100 * hits / of:.1f}" if of else "-")

    lines = [
        Line([Cell(name), *(Cell(f"{n:,}", i == j) for j, n in enumerate(row)), share(right[i], truth[i])], False)
        for i, (name, row) in enumerate(zip(outcomes.classes, counts, strict=True))
    ]
    last = Line([Cell("precision, %"), *map(share, right, guessed), share(right.sum(), counts.sum())], True)
    heads = ["label", *outcomes.classes, "recall, %"]
    return Table("confusion", heads, [*lines, last], "Predicted classes", f"of {outcomes.examples:,} own test rows")


def link_table(table: pd.DataFrame, rows: pd.DataFrame) -> Table | None:
    """Return targets, their accuracy, links and energy: a line for each method that forms links; None without any.

    table: the setting's part of the tidy table. rows: its summary.
    """
    by_setting = links(table)
    if not by_setting:
        return None
    names = [name for name in LINKS if any(name in row for row in by_setting.values())]

    def text(value: float, margin: float) -> str:
        return "-" if math.isnan(value) else f"{value:.3g}" + ("" if math.isnan(margin) else f" ± {margin:.3g}")

    none = math.nan, math.nan
    lines = [
        Line([Cell(str(method)), *(Cell(text(*by_setting[method].get(name, none))) for name in names)], bool(control))
        for method, control in zip(rows["method"], rows["control"], strict=True)
        if method in by_setting
    ]
    return Table("links", ["method", *(LINKS[name] for name in names)], lines, "Who teaches whom", INTERVAL.strip())


def links(table: pd.DataFrame) -> dict[str, dict[str, tuple[float, float]]]:
    """Return method -> column of LINKS -> its mean and half of its 95 % interval, from one setting's tidy table.

    Accuracies and bounds are means over targets; links, targets and energy are sums over devices. share: the method's
    energy as a percentage of the greatest energy of a method.
    """
    by_setting: dict[str, dict[str, tuple[float, float]]] = {}
    ratio = ratio_of_test(table, "test", dict.fromkeys(table["device"].unique(), 1.0))
    rows = table[(table["split"] == "links") & table["metric"].isin(LINKS)]
    for (method, metric), part in rows.groupby(["method", "metric"], sort=False):
        seeds = part.groupby("seed")["value"]
        values = seeds.sum() if metric in SUMMED else seeds.mean()
        times = 100 if metric == "accuracy" else 1
        half = half_width(float(values.std()), len(values), ratio)
        by_setting.setdefault(str(method), {})[str(metric)] = times * float(values.mean()), times * half
    most = max((row["energy"][0] for row in by_setting.values() if "energy" in row), default=0.0)
    for row in by_setting.values():
        if most and "energy" in row:
            row["share"] = 100 * row["energy"][0] / most, math.nan
    return by_setting
