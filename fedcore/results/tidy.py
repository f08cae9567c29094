"""Rounds as rows of one tidy table."""

from array import array
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedcore.core.metrics import Metric
from fedcore.core.rounds import RoundResult, members
from fedcore.errors import InputError
from fedcore.results import reports
from fedcore.results.chance import PROBE, TRIED
from fedcore.results.criterion import LEFT_OUT, Criterion, measured
from fedcore.results.summary import LESS, SCORED, TRAFFIC
from fedcore.types.method import Method, Numbers, Report, RoundInfo

COLUMNS = ["study", "dataset", "setting", "method", "seed", "stage", "round", "device", "split", "metric", "value"]

OWN_SPLITS = frozenset({*SCORED, LEFT_OUT, PROBE, TRIED, "traffic", "data", "inference"})
"""The splits of a table whose numbers no method reports."""


class Row(NamedTuple):
    """A row of a comparison: one method on one setting of a study, with one seed."""

    study: str
    dataset: str
    setting: str
    method: str
    seed: int


def of_run(
    row: Row, method: Method, played: Sequence[RoundResult], turn_reports: Sequence[Report], data: Numbers,
    preparation_bytes: Numbers | None = None, new_sites: Numbers | None = None,
) -> pd.DataFrame:  # fmt: skip
    """Return the table of a method's run, in a script, in the pipeline or on real devices.

    turn_reports: the reports of all rounds, or of none. data: device -> numbers of its data. preparation_bytes: as for
    `rows`. new_sites: the scores on sites that took no part, see `with_left_out`.

    Raises InputError for a topic of a report whose rows would stand among those of fedcore.
    """
    reported = reports.final_numbers(method, turn_reports, played[-1].scores)
    for topic in (*reported, *(topic for report in turn_reports for topic in report.series)):
        if topic in OWN_SPLITS:
            raise InputError(
                f"method {row.method}: topic {topic!r} of its Report is a split of others; call it otherwise"
            )
    extra_metrics = {"data": data, **reported, **reports.costs(played[-1].scores)}
    turn_reports = turn_reports or [Report()] * len(played)
    return with_left_out(rows(row, played, turn_reports, extra_metrics, preparation_bytes), new_sites or {})


def rows(
    row: Row, played: Sequence[RoundResult], turn_reports: Sequence[Report], extra_metrics: Mapping[str, Numbers],
    preparation_bytes: Numbers | None = None,
) -> pd.DataFrame:  # fmt: skip
    """Return a method's rounds as tidy rows: scores and series of evaluated rounds, bytes of all rounds.

    Bytes are those of the devices that took part in a round: of ten thousand devices a few may do.

    turn_reports: the reports of all rounds; a topic of their series becomes a split, with its numbers in each device's
    rows.
    extra_metrics: split -> device -> metric -> value, once: numbers of the device's data and of the server's reports.
    preparation_bytes: device -> metric -> bytes, once, in the first round: the traffic before it.
    """
    first = played[0].round_info
    columns = _Columns()
    for device, numbers in (preparation_bytes or {}).items():
        columns.add(first, device, "traffic", numbers)
    for result, report in zip(played, turn_reports, strict=True):
        present = {name for unit in result.round_info.units for name in members(unit)} - {*result.absent}
        for metric, sent in (("bytes_up", result.up), ("bytes_down", result.down)):
            for device, count in sent.items():
                if count or device in present:
                    columns.add(result.round_info, device, "traffic", {metric: count})
        for device, splits in (result.scores or {}).items():
            for split, metrics in splits.items():
                if split in SCORED:
                    columns.add(result.round_info, device, split, metrics)
            for topic, numbers in report.series.items():
                columns.add(result.round_info, device, topic, numbers)
    for split, devices in extra_metrics.items():
        for device, numbers in devices.items():
            columns.add(played[-1].round_info, device, split, numbers)
    return columns.table(row)


def numbers_of(
    counts: Mapping[str, tuple[int, int, int]], shared: int, same_test: bool, labels: int | None,
    label_std: float | None,
) -> dict[str, dict[str, float]]:  # fmt: skip
    """Return the numbers of devices' data that say which ones count.

    counts: training and test examples of each, and the classes of the latter. labels: of each example, if several.
    """
    known = {"shared_examples": shared, "same_test": same_test or None, "labels": labels, "label_std": label_std}
    beside = {key: float(value) for key, value in known.items() if value is not None}
    names = ("examples", "test_examples", "test_classes")
    return {who: dict(zip(names, map(float, of), strict=True)) | beside for who, of in counts.items()}


class _Columns:
    """The columns of a table while it is built: as tuples, its rows would take more memory than the table."""

    def __init__(self) -> None:
        self.texts: dict[str, list[str]] = {"device": [], "split": [], "metric": []}
        self.numbers = {"stage": array("q"), "round": array("q")}
        self.values = array("d")

    def add(self, at: RoundInfo, device: str, split: str, numbers: Mapping[str, float]) -> None:
        """Append a row for each number."""
        count = len(numbers)
        self.numbers["stage"].extend(repeat(at.stage, count))
        self.numbers["round"].extend(repeat(at.round + 1, count))
        self.values.extend(numbers.values())
        self.texts["device"].extend(repeat(device, count))
        self.texts["split"].extend(repeat(split, count))
        self.texts["metric"].extend(numbers)

    def table(self, row: Row) -> pd.DataFrame:
        """Return the table, whose other columns are those of `row`."""
        columns: dict[str, Any] = dict(zip(COLUMNS, row, strict=False))
        columns |= {name: np.array(values) for name, values in self.numbers.items()}
        for name in ("device", "split", "metric"):  # one after the other: what is done is given back
            columns[name] = pd.array(self.texts.pop(name), dtype="str")
        return pd.DataFrame(columns | {"value": np.array(self.values)}, copy=False)


def without_scores(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that do not say how good a model is: those of a final fit, which nothing tests."""
    return table[~table["split"].isin(SCORED)].reset_index(drop=True)


def with_left_out(table: pd.DataFrame, scores: Numbers) -> pd.DataFrame:
    """Return a method's table, of one seed, with the scores on devices that took no part as rows of its last round.

    scores: device -> metric -> value, see :func:`fedcore.core.new_device.score_new`.
    """
    if not scores:
        return table
    last = final(table).iloc[-1]
    row = [last[name] for name in COLUMNS[:7]]
    rows = [
        (*row, device, LEFT_OUT, metric, value)
        for device, numbers in scores.items()
        for metric, value in numbers.items()
    ]
    return pd.concat([table, pd.DataFrame(rows, columns=COLUMNS)], ignore_index=True)


def over_devices(rows: pd.DataFrame, groups: pd.Series, weights: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return the mean, worst and spread of one metric over devices; for scores also each group's mean, in_<name>.

    rows: of one split, metric and round. groups: device -> group; group means need at least two groups. weights: of the
    devices in the mean; None: all alike.
    """
    values = rows["value"]
    split, metric = rows["split"].iloc[0], rows["metric"].iloc[0]
    worst = values.max() if metric in LESS else values.min()
    mean = values.mean() if weights is None else np.average(values, weights=rows["device"].map(weights))
    numbers = {"mean": mean, "worst": worst, "std": values.std()}
    if split in SCORED and len(groups.unique()) > 1:
        means = values.groupby(rows["device"].map(groups)).mean()
        numbers |= {f"in_{name}": mean for name, mean in means.items()}
    return {word: float(value) for word, value in numbers.items()}


def has(table: pd.DataFrame, split: str) -> bool:
    """Return whether every device has examples of a split."""
    values = table[(table["split"] == split) & (table["metric"] == "loss")]["value"]
    return len(values) > 0 and bool(values.notna().all())


def final(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of each method's last round."""
    round_order = table["stage"] * 1_000_000 + table["round"]
    last = round_order.groupby([table["setting"], table["method"], table["seed"]]).transform("max")
    return table[round_order == last]


def choose(
    table: pd.DataFrame, label: str, candidates: Sequence[str], criterion: Criterion = Criterion()
) -> pd.DataFrame:
    """Return the rows of the best candidate on validation data, under another label, in each setting and seed.

    The best has the best mean over the validation splits of the devices that count (:func:`measured`) after its last
    round, by the metric that decides; of equal ones the first counts. Each choice costs the training of all candidates
    and one evaluation of each on these splits. Settings and seeds without one of the candidates, or without validation
    examples, have no choice. Scores on new devices need one in each seed that has any: others' seeds are not cut.
    """
    decides, weights = dict[Any, Metric](), dict[Any, Mapping[str, float]]()
    for setting, rows in table.groupby("setting"):
        here = criterion.of_table(rows)
        decides[setting], weights[setting] = here.metric, measured(rows, here).weights
    last = final(table[table["method"].isin(candidates)])
    if last.empty:
        return table.iloc[:0]
    of_setting = last["setting"].map(decides)
    scores = last.assign(value=last["value"] * of_setting.map(lambda metric: metric.sign))
    scores = scores[(last["split"] == "val") & (last["metric"] == of_setting.map(lambda metric: metric.column))]
    counts = [
        weights[setting].get(device, 0.0) if weights[setting] else 1.0
        for setting, device in zip(scores["setting"], scores["device"], strict=True)
    ]
    scores = scores.assign(count=counts, value=scores["value"] * counts)[scores["value"].notna()]
    sums = scores.groupby(["study", "setting", "seed", "method"])[["value", "count"]].sum()
    means = (sums["value"] / sums["count"].where(sums["count"] > 0)).unstack("method")  # noqa: PD010
    means = means.reindex(columns=list(candidates)).dropna()
    if means.empty:
        return table.iloc[:0]
    best = means.idxmax(axis=1).rename("method").reset_index()
    chosen = table.merge(best, on=["study", "setting", "seed", "method"]).assign(method=label)[COLUMNS]
    own, most = (
        of[(of["split"] == LEFT_OUT) & of["value"].notna()].groupby("setting")["seed"].nunique()
        for of in (chosen, table)
    )
    few = own.index[own < most.reindex(own.index)]
    return chosen[(chosen["split"] != LEFT_OUT) | ~chosen["setting"].isin(few)]


def transfer_seconds(table: pd.DataFrame, rate: float) -> pd.DataFrame:
    """Return traffic.seconds, (bytes up + bytes down) / rate, of each device that sent or received in a round.

    rate: of a device's link, bytes per second in either direction; one after the other, without latency.
    """
    sent = table[(table["split"] == "traffic") & table["metric"].isin(TRAFFIC)]
    key_columns = [name for name in COLUMNS if name not in ("metric", "value")]
    total = sent.groupby(key_columns, sort=False)["value"].sum().div(rate).reset_index()
    return total[total["value"] > 0].assign(metric="seconds")[COLUMNS]
