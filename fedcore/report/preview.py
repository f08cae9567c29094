"""The preview of a user's data: what is learnt from, what is left out and why, and who holds what.

It computes nothing, and needs neither Prefect nor MLflow, so that it comes quickly.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedcore.config.request import USER_STUDY
from fedcore.config.settings import Setting
from fedcore.core.metrics import METRICS
from fedcore.data import Dataset, schema_of
from fedcore.data.encoding import decimal_setting
from fedcore.data.names import typed, typed_setting
from fedcore.data.overview import (
    OFFSET,
    SPREAD,
    columns,
    encoded,
    identifies,
    missing_cells,
    offsets,
    rounded,
    spans,
    telling,
)
from fedcore.data.overview import rising as rising_columns
from fedcore.data.prepare import LEAST_OWN, preparation_bytes
from fedcore.data.schema import MISSING_VALUES
from fedcore.data.tables import with_others
from fedcore.data.task import NO_LABEL, SEQUENCES
from fedcore.errors import InputError, plural
from fedcore.nets.inputs import largest_integer
from fedcore.partition import Index, Partition, training
from fedcore.partition.examples import final_partition
from fedcore.partition.new_devices import new_sites
from fedcore.partition.stable import contradicted, row_keys
from fedcore.partition.tables import counts, counts_of, dropped_devices, dropped_note, expected_tests, shares_of
from fedcore.report.names import shorten
from fedcore.report.terminal import one_line, plain_table, standard
from fedcore.results.criterion import LARGEST, LEAST_TEST, UNEQUAL, Criterion, free_mistakes, measured_by
from fedcore.results.threshold import LEAST_OF_KIND

WIDTH = 80
"""Characters in a line where there is no terminal and COLUMNS does not say it."""

COLUMNS, LEFT, CLASSES = 13, 3, 6
"""The most columns, columns left out and classes that are shown."""

DEVICES = 20
"""The most devices that are listed; of more of them three are, and all are counted by problem."""

RARE = 0.05
"""A class with a smaller share of the rows is pointed out, unless there are so many that half of an even share is."""

COPIES = 0.05
"""A larger share of test rows that equal a training row is pointed out."""

CONTRADICTED = 0.02
"""A larger share of rows with the columns of a row with another label is pointed out where equal rows stay together."""

DIFFERENT = 0.8
"""Devices of whose rows a larger share differs are compared."""

GROUPS, EACH = 10, 12
"""A column of so many whole numbers at least, each in so few rows at most, may say whose a row is."""

VARIED = 20
"""A column of more numbers has equal ones by copies, not by chance."""

FEW = 10
"""A device with fewer training examples is pointed out."""

COUNTED = Criterion(least_test=LEAST_TEST)
"""By which devices count where nothing is set."""

NAMED = 6
"""The most devices with a problem that are named, of more than DEVICES; and mistakes that cost nothing."""

OF, REST = "train", "{} more, %"
SETTLES = re.compile(r"(\w+\.\w+)=(\w+)(?=, macro_f1|\. Other| is suggested| keeps equal rows|, not stable,)")
"""The setting in a line of advice that settles it."""
UNDECIDED = re.compile(r"(.+?)(?:: | tells? | each tell ).*; if (?:it|so)\b")
"""A line of advice that the user must decide on, by what it is about."""
LEAST = 10
"""Characters that the name of a class is shortened to before fewer classes are shown."""

PADDING = 2
"""Characters between two columns of a table."""
VALUES = 20
"""Characters that a column's values get before the devices that lack some."""


def preview(
    setting: Setting, seed: int, console: Console | None = None, criterion: Criterion = COUNTED,
    check: Callable[[Dataset], object] = lambda _: None,
) -> None:  # fmt: skip
    """Print what a setting's data are, also data that a run refuses for what settings mend, and these settings.

    Raises InputError for data that cannot be used. check: what else refuses them.
    """
    refusing = setting.data.get("missing") == "refuse"
    read = replace(setting, data=setting.data | {"missing": "median"}) if refusing else setting
    refusals, mends = list[str](), dict[str, Any]()
    found: tuple[Dataset, Partition] | None = None
    while found is None:
        try:
            found = read.read_data(seed)
        except InputError as error:
            before = dict(mends)
            for key, value in error.mends.items():
                section, name = key.split(".")
                own = getattr(read, section)
                known = () if own.get(name) == MISSING_VALUES else own.get(name) or ()
                mends[key] = [*dict.fromkeys([*known, *value])] if isinstance(value, list) else value
                read = replace(read, **{section: own | {name: mends[key]}})
            if mends == before or setting.data.get("features"):
                raise
            refusals.append(str(error))
    check(found[0])
    criterion.require_task(found[0].task.name)
    lines = print_preview(replace(setting, data=read.data), *found, refusing, console, criterion, refusals)
    if refusing and columns(found[0])["missing"].any():
        mends["data.missing"] = "common_median"
    mends |= {key: value for line in lines for key, value in SETTLES.findall(line)}
    if mends:
        values = {key: typed(value) if isinstance(value, list) else str(value).lower() for key, value in mends.items()}
        line = shlex.join(f"{key}={value}" for key, value in values.items())
        undecided = dict.fromkeys(names[1] for of in lines if (names := UNDECIDED.match(of)))
        unsure = f"Decide on {', '.join(undecided)} (above). To settle the rest"
        settle = one_line(f"{unsure if undecided else 'To settle all of this'}: fedcore preview --save {line}")
        (console or standard(WIDTH)).print(settle, soft_wrap=True)


def print_preview(
    setting: Setting, dataset: Dataset, divided: Partition, refusing: bool = False, console: Console | None = None,
    criterion: Criterion = COUNTED, refusals: Sequence[str] = (),
) -> list[str]:  # fmt: skip
    """Print what a setting's data are; returns the lines of advice.

    refusing: whether a run refuses missing cells; refusals: what else it refuses. criterion: which devices count.
    """
    console, section = console or standard(WIDTH), setting.federation
    where = str(setting.data.get("path", setting.data["name"]))
    console.print(one_line(shorten([where], console.width)[0], style="bold"))
    console.print(one_line(_contents(dataset, divided)))
    for line in dataset.notes:
        console.print(one_line(_note(line, setting, dataset)))
    schema = schema_of(dataset)
    examples_of = {who: np.concatenate([*parts.values()]) for who, parts in divided.devices.items()}
    gaps = missing_cells(dataset, examples_of)
    if schema.columns:
        console.print(_columns(dataset, gaps, examples_of, console.width))
        _more(console, "columns", len(schema.columns), COLUMNS)
    for name, why in islice(schema.left_out.items(), LEFT):
        console.print(one_line(f"left out: {name}, {with_others(name, why, setting.data.get('categorical') or ())}"))
    _more(console, "columns left out", len(schema.left_out), LEFT)
    advice = _advice(setting, dataset, divided, refusing, int(gaps.to_numpy().sum()))
    for line in [*advice, *refusals]:
        console.print(one_line(line))
    console.print()
    held_of, amounts = counts(dataset, divided), _amounts(dataset, divided)
    classes = () if dataset.task.standardised else (*held_of.columns[: len(dataset.classes)],)
    console.print(_devices(held_of, gaps, classes, console.width, amounts, dataset.task.predicts_classes))
    for line in _problems(setting, dataset, divided, gaps, examples_of, criterion):
        console.print(one_line(line))
    if section["drop_small"]:
        dropped = dropped_devices(dataset, divided, section["partition"], section["devices"])
        console.print(one_line(dropped_note([*map(visible, dropped)], section)), end="\n" if dropped else "")
    console.print()
    return advice


def _note(line: str, setting: Setting, dataset: Dataset) -> str:
    """Return a line about how a file was understood, with settings that data have it without: digests depend on it."""
    name = line.partition(": numbers such as ")[0]
    texts = re.search(r": '(.*)' and others are texts, not numbers; ", line)
    unset = texts and setting.data.get("decimal", "auto") == "auto"
    columns_of = (*dict(encoded(dataset)).values(), dataset.train.y.numpy()) if unset else ()
    settings = decimal_setting(texts[1], columns_of) if texts and unset else ""
    return with_others(name, line, setting.data.get("categorical") or ()) + f", or set {settings}" * bool(settings)


def _contents(dataset: Dataset, divided: Partition) -> str:
    """Return how much of everything there is."""
    schema = schema_of(dataset)
    if schema.columns:
        taken = len(schema.columns) + len(schema.left_out)
        what = f"{len(schema.columns)} of {plural(taken, 'column')}, {plural(len(schema.inputs), 'input')}"
    else:
        inputs = ", ".join(f"{part.name} {' x '.join(map(str, part.shape)) or 1}" for part in schema.several)
        what = f"{inputs or ' x '.join(map(str, schema.shape))} numbers each"
    label = "" if schema.label is None else f" of {schema.label}"
    labels = f"{len(dataset.classes)} {'classes' if dataset.task.predicts_classes else 'labels'}{label}"
    labels += "" if dataset.task != SEQUENCES else " for each step"
    labels = f"the number {dataset.classes[0]}" if dataset.task.standardised else labels
    shared = len(divided.shared if dataset.test is None else dataset.test)
    held = f"{labels}, {plural(len(divided.devices), 'device')}, {plural(shared, 'shared test example')}"
    return f"{len(dataset.train):,} examples, {what}, {held}"


def _columns(dataset: Dataset, gaps: pd.DataFrame, examples_of: Mapping[str, Index], width: int) -> Table:
    """Return the table of the columns that are learnt from.

    gaps: the missing cells of each device and column. examples_of: the devices' examples.
    """
    listed = columns(dataset).head(COLUMNS)
    lacks = dict(zip(map(str, listed["column"]), listed["missing"], strict=True))
    missing = [f"{n:,} ({n / len(dataset.train):.1%})" if n else "-" for n in lacks.values()]
    where = [_where(gaps[name], examples_of, n) if name in gaps else "-" for name, n in lacks.items()]
    names = shorten([*listed["column"]], width // 4)
    heads, cells = ["column", "kind", "missing"], [names, [*listed["kind"]], missing]
    taken = sum(max(map(len, [head, *column])) + PADDING for head, column in zip(heads, cells, strict=True))
    if len(gaps.columns):  # names, which are typed, and shares have their room before it
        where = shorten(where, width - taken - VALUES - 2 * PADDING)
        heads, cells = [*heads, "on devices"], [*cells, where]
        taken += max(map(len, ["on devices", *where])) + PADDING
    room = max(width - taken - PADDING, 12)
    values = []
    for of, (_, row) in zip(schema_of(dataset).columns, listed.iterrows(), strict=False):
        texts = _list((*of.categories, *["empty"] * of.ticks) or ("False", "True"), room)
        values.append(f"{_amount(row['low'])} to {_amount(row['high'])}" if row["kind"] == "number" else texts)
    table = _table(*heads, "values")
    for cells_of_row in zip(*cells, values, strict=True):
        table.add_row(*map(one_line, cells_of_row))
    return table


def _where(gaps: pd.Series, examples_of: Mapping[str, Index], count: int) -> str:
    """Return which devices lack cells of a column, and how many, or else how many devices do. count: of all rows."""
    lacking = gaps[gaps > 0]
    whole = [who for who, n in lacking.items() if n == len(examples_of[str(who)])]
    if len(lacking) <= 2:
        counts_of = zip(shorten([visible(str(who)) for who in lacking.index], 10), lacking.items(), strict=True)
        return ", ".join(f"{name} {count:,}{' (all)' if who in whole else ''}" for name, (who, count) in counts_of)
    rest = int(count - gaps.sum())
    parts = [f", {len(whole):,} wholly"] * bool(whole) + [f", {rest:,} on no device"] * (rest > 0)
    return f"{len(lacking):,} of {len(gaps):,}{''.join(parts)}"


def _list(labels: Sequence[str], room: int) -> str:
    """Return as many words as there is room for, shortened so that at least two are shown."""
    few = shorten([*labels[:CLASSES]], max((room - 7) // 2, 4))
    for count in range(len(few), 0, -1):
        text = ", ".join(few[:count]) + (", ..." if count < len(labels) else "")
        if len(text) <= room:
            return text
    return few[0]


def _amounts(dataset: Dataset, divided: Partition) -> dict[str, dict[str, str]]:
    """Return what labels are in each device's training rows: what -> device -> text; nothing of classes.

    Of a number as label it is the mean and the deviation.
    """
    if not dataset.task.standardised:
        return {}
    y = {who: dataset.train.y.numpy()[own["train"]].astype(float) for who, own in divided.devices.items()}
    return {
        f"mean {dataset.classes[0]}": {who: _amount(values.mean()) for who, values in y.items()},
        "deviation": {who: _amount(values.std()) for who, values in y.items()},
    }


def _devices(
    counts: pd.DataFrame, gaps: pd.DataFrame, classes: tuple[str, ...], width: int,
    amounts: Mapping[str, Mapping[str, str]], one_each: bool,
) -> Table:  # fmt: skip
    """Return the table of each device's examples, and the shares of its training examples by class, or with each label.

    Of more than CLASSES classes it shows those with the most training examples.
    Of more than DEVICES it shows that with the fewest training examples, the median one and that with the most.
    amounts: further columns, by device. one_each: whether an example has one of the classes, so that shares add up.
    """
    parts = [name for name in counts.columns if name.startswith("n_") and name not in classes]
    rows, labels = counts, [visible(str(who)) for who in counts.index]
    if len(counts) > DEVICES:
        order = counts["n_train"].argsort(kind="stable").to_numpy()
        rows = counts.iloc[[order[0], order[(len(order) - 1) // 2], order[-1]]]
        labels = [f"{kind}: {who}" for kind, who in zip(("fewest", "median", "most"), rows.index, strict=True)]
    if len(gaps.columns):
        amounts = {"missing": {str(who): f"{int(count):,}" for who, count in gaps.sum(axis=1).items()}, **amounts}
    heads = [*(name.removeprefix("n_") for name in parts), *amounts]
    numbers = [
        [*(f"{row[name]:,}" for name in parts), *(of[str(who)] for of in amounts.values())]
        for who, row in rows.iterrows()
    ]
    names = shorten(labels, width // 4)
    before = [["device", *names], *zip(heads, *numbers, strict=True)]
    room = width - sum(max(map(len, cells)) + PADDING for cells in before)
    if len(classes) > CLASSES:
        classes = tuple(counts[[*classes]].sum().sort_values(ascending=False, kind="stable").index)
    titles = [*map(visible, classes)]
    counts_down = range(min(len(classes), CLASSES), 1, -1)
    fitting = (n for n in counts_down if _width(shorten(titles[:n], LEAST), len(classes) - n) <= room)
    count = next(fitting, min(len(classes), 1))
    listed, rest = list(classes[:count]), len(classes) - count
    whole = (n for n in range(room, LEAST, -1) if _width(shorten(titles[:count], n), rest) <= room)
    short = shorten(titles[:count], next(whole, LEAST))
    shown = [*(f"{name}, %" for name in short), *[REST.format(rest)] * (rest > 0)]
    table = _table("device", *heads, *(f"{OF}\n{head}" for head in shown))
    for name, cells, (_, row) in zip(names, numbers, rows.iterrows(), strict=True):
        size = row[list(classes)].sum() if one_each else row["n_train"]
        shares = 100 * row[list(classes)].astype(float) / max(size, 1)
        beyond = shares[list(classes[count:])]
        others = [f"{beyond.sum() if one_each else beyond.mean():.0f}"] if rest else []
        table.add_row(one_line(name), *cells, *(f"{shares[label]:.0f}" for label in listed), *others)
    return table


def _width(names: Sequence[str], rest: int) -> int:
    """Return the width of the columns of some classes, and of that of the `rest` others."""
    heads = [*(f"{name}, %" for name in names), *[REST.format(rest)] * (rest > 0)]
    return sum(max(len(head), len(OF)) + PADDING for head in heads)


def _problems(
    setting: Setting, dataset: Dataset, divided: Partition, gaps: pd.DataFrame, examples_of: Mapping[str, Index],
    criterion: Criterion = COUNTED,
) -> list[str]:  # fmt: skip
    """Return a line for each problem of devices: how many and which have it.

    Which devices count in means is told as the answer has it: of given devices by what is to be expected. Where these
    differ much in size it is asked how they should count.
    """
    sizes = counts(dataset, divided)
    labelled = (counts_of(dataset, divided, "train") > 0).sum(axis=1)
    lacks = {
        who: [str(name) for name in gaps if count_of[str(name)] == len(examples_of[who])]
        for who, count_of in ((str(who), dict(row)) for who, row in gaps.iterrows())
    }
    untested = sizes.index[sizes["n_test"] == 0]
    expected = expected_tests(dataset, divided, shares_of(setting.federation))
    tests, seen = sizes["n_test"], (counts_of(dataset, divided, "test") > 0).sum(axis=1)
    if expected is not None:
        tests, seen = expected["expected_test"], expected["expected_classes"]
    least_test = criterion.least_test
    counts_in = measured_by(tests, seen if dataset.task.predicts_classes else seen[:0], criterion)
    few_tests = tests.index[(tests > 0) & tests.index.isin(counts_in.few)]
    counted = "though all count" if counts_in.everyone else "left out of means (run.least_test=0 counts all)"
    few = f"fewer than {least_test} test rows" + " with this seed" * (expected is None)
    if expected is not None and {*few_tests} != {*sizes.index[(sizes["n_test"] > 0) & (sizes["n_test"] < least_test)]}:
        few = f"fewer than {least_test} expected test rows (the table shows one seed)"
    problems = {
        f"fewer than {FEW} training examples": sizes.index[sizes["n_train"] < FEW],
        "no label": sizes.index[labelled == 0],
        "one class only": sizes.index[(labelled == 1) & dataset.task.predicts_classes],
        f"{few}, {counted}": few_tests,
        "no test example of its own": untested if dataset.split is not None or len(untested) < len(sizes) else [],
        "no validation example of its own": sizes.index[sizes["n_val"] == 0] if sizes["n_val"].any() else [],
        "no value in a column": [who for who in examples_of if lacks[who]],
    }
    lines = []
    if len(sizes) > DEVICES:
        least, most = sizes["n_train"].min(), sizes["n_train"].max()
        lines.append(f"{len(sizes):,} devices with {least:,} to {most:,} training examples each")
    for what, devices in problems.items():
        names = [visible(who) + f" ({', '.join(lacks[who])})" * what.endswith("column") for who in map(str, devices)]
        shown = names if len(sizes) <= DEVICES else names[:NAMED]
        if names:
            more = f" and {len(names) - len(shown):,} more" if len(names) > len(shown) else ""
            lines.append(f"{what}: {len(names):,} of {len(sizes):,} devices: {', '.join(shown)}{more}")
    rows = sizes["n_train"][sizes.index.isin(counts_in.weights)]
    if criterion.weigh == "devices" and len(rows) and rows.max() >= UNEQUAL * rows.min():
        span = f"{rows.min():,} to {rows.max():,} training examples"
        lines.append(f"each device counts alike, with {span}; if rows matter, not devices: run.weigh=examples")
    return lines


def _advice(setting: Setting, dataset: Dataset, divided: Partition, refusing: bool, held: int) -> list[str]:
    """Return what the user should know or choose. held: the missing cells in devices' own rows."""
    lines = _rare(setting, dataset, divided)
    lines += filter(None, [free_mistakes(setting.scoring.get("costs"), dataset.classes, NAMED)])
    scored = new_sites(dataset, divided)
    for new, rows in new_sites(replace(dataset, ids=None), divided).items():
        count = len(scored.get(new, ()))
        more = f"; left out, as their data.id trains: {plural(len(rows) - count, 'row')}" * (count < len(rows))
        lines.append(f"new device: {new}: {plural(count, 'row')}, all marked test; it is scored, not trained on{more}")
    schema, table = schema_of(dataset), columns(dataset)
    gaps = int(table["missing"].sum())
    cells = plural(gaps, "cell") + f" ({held:,} on devices)" * (held < gaps)
    if schema.dropped:
        lines.append(f"missing: dropped, {plural(schema.dropped, 'row')} with an empty cell")
    if gaps and refusing:
        need = "a run needs data.missing=common_median, median or drop (fedcore docs missing)"
        lines.append(f"missing: {cells}; {need}")
    elif gaps:
        whose = "its device's median" if schema.missing == "median" else "the mean of the devices' medians"
        lines.append(f"missing: {cells}; an empty number becomes {whose}, an empty text no category")
    if not refusing and (sent := preparation_bytes(schema, setting.federation["scale"])):
        up, down = sent.values()
        lines.append(
            f"before the first round each device sends {up:,.0f} bytes and receives {down:,.0f}, to prepare rows"
        )
    (times, numbered), ignored = _may_be_names(dataset), setting.data.get("ignore") or ()
    if times:
        what = f"{', '.join(times)}: rising with the rows, as a time, so new rows lie beyond those of training"
        lines.append(f"{what}; if it is a time: {typed_setting('data.ignore', [*ignored, *times])}")
    if numbered:
        what = f"{', '.join(numbered)}: a different whole number in each row"
        lines.append(f"{what}; if it is an identifier: {typed_setting('data.ignore', [*ignored, *numbered])}")
    y = dataset.train.y.numpy()
    if dataset.task.standardised and schema.label and identifies(schema.label, y):
        lines.append(f"{schema.label}, the label: a different whole number in each row, as an identifier has")
    if schema.columns and (dataset.task.standardised or dataset.task.has_classes):
        index = np.concatenate([*training(divided).values()])
        lines += telling(encoded(dataset, index), y[index], ignored)
    too_coarse, apart = coarse(dataset, divided, setting.federation["scale"])
    lines += too_coarse
    lines += _copies(dataset, divided, setting.federation.get("hold_out"))
    lines += _whose(dataset, table, setting.federation.get("hold_out")) if dataset.ids is None else []
    alike = {name.rstrip("0123456789") for name in schema.inputs}  # as the columns word0, word1, ... are named
    plain = dataset.train.x.ndim == 2 and len(alike) < 2 and schema.numeric.all()
    largest = largest_integer(dataset.train.x) if plain else None
    if largest is not None and largest > 1 and setting.nets[0].get("name") == "auto":
        lines.append(
            f"whole numbers from 0 to {largest}, which net.name=auto learns as quantities; if they are words: "
            f"net.name=lstm or transformer, net.vocabulary={largest + 1}"
        )
    shares = offsets(dataset, training(divided))
    far = shares[shares > OFFSET].index.tolist()
    if far and setting.federation["scale"] == "common":
        more = f" and {len(far) - LEFT:,} more" * (len(far) > LEFT)
        lines.append(f"{', '.join(far[:LEFT])}{more}: levels differ by device; federation.scale=device may help")
    if setting.federation["scale"] == "none":
        lines += _scale_advice(setting, dataset, shares.median(), apart)
    return lines


def _numbers(dataset: Dataset) -> dict[str, NDArray[np.float64]]:
    """Return the cells of each column of numbers."""
    inputs = schema_of(dataset).inputs
    names = [column.name for column in schema_of(dataset).columns if column.kind == "number"]
    return {name: dataset.train.x[:, inputs.index(name)].numpy() for name in names}


def _may_be_names(dataset: Dataset) -> tuple[list[str], list[str]]:
    """Return the columns of numbers that may be times, and those that may be names of rows."""
    cells_of = _numbers(dataset)
    numbered = [name for name, values in cells_of.items() if identifies(name, values)]
    return [name for name in rising_columns(cells_of, dataset.device) if name not in numbered], numbered


def _whose(dataset: Dataset, table: pd.DataFrame, hold_out: str | None) -> list[str]:
    """Return lines about columns that may name the rows, or say whose they are, such as a patient of several visits."""
    schema, rows = schema_of(dataset), f"{len(dataset.train):,}"
    numbers = [line.partition(": ")[0] for line in dataset.notes if "are texts, not numbers" in line]
    texts = {name: why.split(" ")[0] for name, why in schema.left_out.items() if " different texts," in why}
    texts = {name: count for name, count in texts.items() if name not in numbers}
    ids = [name for name, count in texts.items() if count == rows]
    lines = [f"{of}: another text in each row; if it names the rows: {shlex.quote(f'data.id={of}')}" for of in ids[:1]]
    groups = [f"{name} ({count} texts)" for name, count in texts.items() if count != rows]
    for name in table["column"][(table["kind"] == "number") & (table["values"] >= GROUPS)]:
        values = dataset.train.x[:, schema.inputs.index(name)].numpy()
        each = np.unique(values[~np.isnan(values)], return_counts=True)[1]
        if each.min() > 1 and each.max() <= min(2 * each.min(), EACH) and not (values % 1).any():
            groups.append(f"{name} ({len(each)} numbers)")
    which = ", ".join(groups[:LEFT])
    stable = " with federation.hold_out=stable" * (hold_out != "stable")
    named = groups[0].rpartition(" (")[0] if len(groups) == 1 else "NAME"
    one = f"if so, {shlex.quote(f'data.id={named}')}{stable} keeps each one's rows together, to train or to test"
    return lines + [f"{which}: may say whose rows they are, such as a patient's; {one}"] * bool(groups)


def _copies(dataset: Dataset, divided: Partition, hold_out: str | None = None) -> list[str]:
    """Return lines about test rows that equal a training row of their device, if many, on devices that are copies, and
    on rows that stand twice or more.

    Rows of one id are on one side, wherever they are. Where equal columns have unequal labels, rows are equal by
    chance, and a rule that keeps such rows together keeps those of the other labels apart from them.
    """
    owner, schema = dataset.device if dataset.ids is None else None, schema_of(dataset)
    nameless = tuple(pair for pair in dataset.earlier if pair[0] != schema.device)
    every = row_keys(dataset if owner is None else replace(dataset, device=None, earlier=nameless))
    keys = every if owner is None else every + pd.factorize(np.asarray(owner))[0].astype(np.uint64)
    trains = np.concatenate([*training(divided).values()])
    tests = np.concatenate([own["test"] for own in divided.devices.values()])
    copies = int(np.isin(keys[tests], keys[trains]).sum())
    stable = "federation.hold_out=stable keeps equal rows of a device on one side"
    mend = stable if dataset.split is None else "leave one of each out, or data.split"
    line = f"copies: {copies:,} of {len(tests):,} test rows equal a training row; {mend}"
    if dataset.ids is not None:  # by which rows are parted, unless a column does it
        mend = "give rows of one id one part, or leave data.split out"
        line = f"data.id: {copies:,} of {len(tests):,} test rows have the {schema.id or 'id'} of a training row; {mend}"
    twins = [] if owner is None else _twins(pd.DataFrame({"device": owner, "key": every}))
    # where all columns have few values, rows are equal by chance
    columns = dataset.train.x[trains].T if schema.columns and dataset.ids is None else ()
    if 2 * (different := len(np.unique(keys[trains]))) <= len(trains) and any(
        len(of[~of.isnan()].unique()) > max(VARIED, different / 2) for of in columns
    ):
        why = "analytic takes each for a new one and fits too closely; analytic.reg=0.1 helps"
        twins.append(f"equal rows: {len(trains):,} training rows, {different:,} different ones; {why}")
    if (other := contradicted(dataset)).mean() > CONTRADICTED and dataset.ids is None:
        why = "with federation.hold_out=stable_each, not stable, each is held out by itself"
        line = f"equal but for the label: {other.sum():,} rows have all columns of a row with another label; {why}"
        return [line] * (hold_out == "stable") + twins
    return [line] * (copies > COPIES * len(tests)) + twins


def _twins(rows: pd.DataFrame) -> list[str]:
    """Return a line about devices of which most rows are on another one, too. rows: device and key of each.

    Both have mostly different rows: those with few values are equal by chance.
    """
    whole, rows = rows["device"].value_counts(), rows.drop_duplicates()
    each = rows["device"].value_counts()
    varied = each.index[(each >= FEW) & (each > DIFFERENT * whole.reindex(each.index))]
    rows = rows[rows["device"].isin(varied)]
    several = rows[rows.groupby("key")["key"].transform("size").between(2, DEVICES)]
    pairs = several.merge(several, on="key").query("device_x != device_y").value_counts(["device_x", "device_y"])
    most = pairs[pairs.to_numpy() > each.reindex(pairs.index.get_level_values(0)).to_numpy() / 2]
    found = dict(sorted(most.index, reverse=True))
    names = ", ".join(f"{visible(who)} (on {visible(other)})" for who, other in islice(sorted(found.items()), LEFT))
    more = f" and {len(found) - LEFT:,} more" * (len(found) > LEFT)
    line = f"copies: most rows of {names}{more} are on two devices, to train on one and test on the other; data.exclude"
    return [f"{line} leaves a device out"] * bool(found)


def coarse(dataset: Dataset, divided: Partition, scale: str) -> tuple[list[str], bool]:
    """Return a line for each column of which half of a device's numbers differ by few steps, and what mends it.

    Such are times since 1970, levels of devices that lie far apart, and numbers beside one that is far from all.
    Returns also whether, without a scale, numbers lie so far apart that scale=device keeps more digits than common.
    """
    own = training(divided if dataset.split is not None else final_partition(dataset, divided))  # whatever the seed
    owner = np.repeat([*own], [*map(len, own.values())])
    numbers = pd.DataFrame(_numbers(dataset), range(len(dataset.train))).iloc[np.concatenate([*own.values()])]
    apart = scale == "none" and len(rounded(numbers, owner, "device")) < len(rounded(numbers, owner, "common"))
    lines = []
    lost = rounded(numbers, owner, scale)
    others = {of: rounded(numbers, owner, of) for of in ("common", "device") if len(lost) and of != scale}
    for name, here in lost.groupby("column", sort=False):
        worst = here.iloc[(here["step"] / here["span"]).argmax()]
        left = {of: found[found["column"] == name] for of, found in others.items()}
        best = min(left, key=lambda of: len(left[of]))
        mends, rest = len(left[best]) < len(here), left[best] if len(left[best]) < len(here) else here
        advice = [f"federation.scale={best}"] * mends
        if len(rest) and rest["double"].all():
            advice.append("subtract a constant")
        elif len(rest):
            own = numbers[name][owner == rest["device"].iloc[0]]
            far = own.iloc[(own - own.median()).abs().argmax()]
            advice.append(f"leave {far:.9g} on {rest['device'].iloc[0]} and cells like it empty")
        more = f" and on {plural(len(here) - 1, 'other device')}" * (len(here) > 1)
        kind = "float64" if worst["double"] else "float32"
        lines.append(
            f"{name}: {kind} keeps these numbers in steps of {_amount(worst['step'])}, over a span of "
            f"{_amount(worst['span'])} of half of them on {worst['device']}{more}: {', and '.join(advice)}"
        )
    return lines, apart


def _rare(setting: Setting, dataset: Dataset, divided: Partition) -> list[str]:
    """Return what to decide by where one class has most of the examples, and whether its own rows are too few."""
    if not dataset.task.predicts_classes:
        return []
    y = dataset.train.y.numpy()
    counts_of = np.bincount(y[y != NO_LABEL], minlength=len(dataset.classes))
    shares = counts_of / max(counts_of.sum(), 1)
    rare, least, large = dataset.classes[int(counts_of.argmin())], shares.min(), shares.max() > LARGEST
    if not large and least >= min(RARE, 1 / len(shares) / 2):
        return []
    positive = shlex.quote(f"run.positive={typed([rare])[1:-1]}")
    line = f"class {rare}: only {least:.1%} of the rows, so accuracy"
    metric = setting.metric if setting.metric != "auto" else "balanced_accuracy" if large else "accuracy"
    if not large and metric == "accuracy":
        return [f"{line} hardly counts it; run.metric=balanced_accuracy, macro_f1, or recall ({positive})"]
    decided = "set run.metric=auto" if metric == "accuracy" else f"the answer is by {METRICS[metric].words}"
    recall = f"run.metric=recall with {positive}"
    others = {("recall", rare): "run.costs", ("cost", None): recall}
    other = others.get((metric, setting.scoring.get("positive")), f"{recall}, or run.costs")
    weighed = metric == "cost" and any(of.training.class_weights != "none" for of in setting.methods)
    twice = "; costs need true probabilities: training.class_weights=none" * weighed
    lines = [f"{line} says little: {decided}{twice}. Other metrics: {other} (fedcore docs metric)"]
    if not dataset.task.has_classes:
        return lines
    index = {part: np.concatenate([own[part] for own in divided.devices.values()]) for part in ("val", "test")}
    val, test = (int((y[rows] == counts_of.argmin()).sum()) for rows in index.values())
    if test < LEAST_OF_KIND:
        lines.append(
            f"class {rare}: {plural(test, 'test row')} in all; {LEAST_OF_KIND} or more are needed, such as by "
            "federation.test=0.4 (fedcore docs metric)"
        )
    if setting.threshold is not None and val < LEAST_OF_KIND:
        few = f"{plural(val, 'validation row')} in all; below {LEAST_OF_KIND} no threshold is chosen"
        lines.append(f"class {rare}: {few}, run.threshold=validation has no effect")
    return lines


def _scale_advice(setting: Setting, dataset: Dataset, share: float, apart: bool) -> list[str]:
    """Return the scale to choose where columns, or devices within a class, differ much; nothing where they do not.

    share: the median of `offsets`. apart: whether numbers lie so far apart that scale=device keeps more digits than
    common.
    """
    widest = spans(dataset)
    if apart or share > OFFSET:
        why, scale = "common would round numbers" if apart else "devices differ within a class", "device"
    elif widest is not None and widest[1] > SPREAD * widest[0]:
        few, many = map(_amount, widest)
        why, scale = f"spans {few} to {many}", "common"
    else:
        return []
    both = "; size=scales tries both" if setting.study == USER_STUDY else ""
    new = f"; a new device is then scaled by its own rows, from {LEAST_OWN} on" if scale == "device" else ""
    return [f"scales: {why}: federation.scale={scale} is suggested{both}{new}"]


def visible(name: str) -> str:
    """Return a name, in quotes where a blank at an end, or another character that is not seen, would hide in a list."""
    return name if name == name.strip() != "" and name.isprintable() else repr(str(name))


def _amount(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"


def _more(console: Console, what: str, count: int, printed: int) -> None:
    if count > printed:
        console.print(f"... and {count - printed} more {what}", style="dim")


def _table(*heads: str) -> Table:
    table = plain_table()
    for i, head in enumerate(heads):
        left = i == 0 or head in ("kind", "values")
        one = Text("\n").join(map(one_line, head.split("\n")))
        table.add_column(one, justify="left" if left else "right", vertical="bottom", no_wrap=True, overflow="ellipsis")
    return table
