"""Summary of the tidy table: last round, mean and spread, worst device, bytes, ranks."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

import pandas as pd

from fedcore.core.metrics import RMSE, Metric
from fedcore.results.criterion import LEFT_OUT, Criterion, SettingKey, half_width, label_std, measured, ratio_of_test

Criteria: TypeAlias = Mapping[SettingKey, Criterion] | Criterion
"""What decides in each setting, or in all."""

SETTING_KEY = ["study", "dataset", "setting"]
ROW = [*SETTING_KEY, "method"]
RUN = [*ROW, "seed"]
NO_SECONDS = pd.DataFrame(columns=["study", "setting", "method", "seed", "kind", "wall", "cpu"])
SPLITS = {"test": "own test", "shared": "shared test"}
OWN = ("train", "val", "test")
"""Splits of a device's own examples: means over them are over the devices that count."""
SCORED = (*OWN, "shared")
"""The splits with scores; the others hold bytes and the server's reports."""
TRAFFIC = ("bytes_up", "bytes_down", "prepare_up", "prepare_down")
"""Bytes: of a method's messages, and before its first round of the numbers that prepare examples, if there are any.

The latter are the same for every method, so that a row without `bytes_up` is still one that trains alone.
"""
LESS = frozenset(
    {"loss", "cost", "mae", "rmse", "largest_share", "similarity_other", "iterations", "violation", "bound", "excess"}
    | {*TRAFFIC, "seconds", "nets_run", "macs"}
)
"""Metrics of which less is better; the worst device has the largest value."""
PART = ["mean", "std_devices", "std_seeds", "margin", "worst", "macro_f1", "loss", "loss_std_devices", "rank", "gap"]
COST = ("nets_run", "macs")
COLUMNS = [
    *ROW, "control", "metric", "primary", "rank", *(f"{split}_{part}" for split in SPLITS for part in PART), *TRAFFIC,
    *COST, "wall", "cpu", "rounds", "n_devices", "n_measured", "n_seeds",
]  # fmt: skip
GROUPS = [*ROW, "group", "split", "metric", "mean", "std_devices", "std_seeds", "n_devices", "n_seeds"]
SCORE = "score"
"""What stands for the metric that decides, the greater the better, see :func:`with_scores`."""


def bounds(metric: Metric) -> tuple[float, float]:
    """Return the least and the greatest value that a metric can have, at which its intervals end."""
    return 0.0 if metric.per == 100 or metric.less else -math.inf, math.inf if metric.less else 1.0


def last_round(table: pd.DataFrame) -> pd.DataFrame:
    """Return the score rows of every run's last evaluated round, not of its best one."""
    last = table[table["split"].isin(SCORED)]
    for clock in ("stage", "round"):
        last = last[last[clock] == last.groupby(RUN)[clock].transform("max")]
    return last


def summarise(
    table: pd.DataFrame, seconds: pd.DataFrame, controls: frozenset[str],
    criteria: Criteria = Criterion(),
) -> pd.DataFrame:  # fmt: skip
    """Return one row per study, dataset, setting and method: methods by rank, then controls, the best first.

    criteria: the metric that is compared, and the devices that count, of each setting or of all.

    For each split, `test` (the device's test examples) and `shared` (the shared test set):
    *_mean: the metric, mean over devices, then over seeds. *_std_devices: mean over seeds of the standard
    deviation over devices. *_std_seeds: standard deviation over seeds of the mean over devices; nan for one seed.
    *_margin: half of the 95 % interval of the mean over seeds, which ± stands for in every table; nan for one seed.
    *_worst: mean over seeds of the worst value of a device. *_macro_f1, *_loss: means over these devices, each alike,
    and seeds. *_loss_std_devices: as *_std_devices, of the loss.
    *_gap: by how much the row is worse than the best of the methods with all seeds, see :func:`gap_to`; its luck with
    fewer seeds is no merit. *_rank: the methods in the order of their gaps, 1 for the best. Neither says whether a
    difference is more than chance: that is :mod:`fedcore.results.answer`.

    metric: the name of the metric. primary: the split that decides `rank`: `test` if every method has it in every seed,
    else `shared`. control: a row that the methods must beat; it is no candidate and has no rank, but a gap. bytes_up,
    bytes_down: of all devices and rounds, mean over seeds. prepare_up, prepare_down: of all devices before the first
    round, the same for every method (:func:`fedcore.data.prepare.preparation_bytes`); 0 if none. nets_run, macs: nets
    that a device runs for an example, and the multiplications in their linear and convolutional layers, means over
    devices and seeds. wall, cpu: seconds of all steps, mean over seeds, nan if unknown (`seconds` may be empty).
    rounds: number of rounds of all stages. n_measured: devices whose own test data count.
    """
    deciders = {}
    for key, part, criterion in with_criteria(table, criteria):
        deciders[key] = part, criterion.of_table(part), measured(part, criterion)
    scores = last_round(of_counted(table, criteria))
    rows = _traffic_and_cost(table).join(_counts(table)).join(_seconds(seconds, table))
    for split in SPLITS:
        for metric in ("macro_f1", "loss"):
            values = scores[(scores["split"] == split) & (scores["metric"] == metric)]
            devices = values.groupby(RUN)["value"].agg(["mean", "std"]).groupby(ROW).mean()
            rows = rows.join(devices["mean"].rename(f"{split}_{metric}"))
            if metric == "loss":
                rows = rows.join(devices["std"].rename(f"{split}_loss_std_devices"))
    rows = rows.reset_index()
    ranked = []
    for key, (part, here, counted) in deciders.items():
        of_setting = rows[(rows[SETTING_KEY] == list(key)).all(axis=1)]
        score = scores[(scores[SETTING_KEY] == list(key)).all(axis=1) & (scores["metric"] == here.metric.column)]
        ratios = {split: ratio_of_test(part, split, counted.weights) for split in SPLITS}
        of_setting = of_setting.assign(metric=here.metric.name, n_measured=len(counted.weights))
        ranked.append(_rank(of_setting, score, controls, here.metric, pd.Series(counted.weights, dtype=float), ratios))
    return pd.concat(ranked, ignore_index=True)[COLUMNS] if ranked else pd.DataFrame(columns=COLUMNS)


def split_by_setting(table: pd.DataFrame) -> Iterator[tuple[SettingKey, pd.DataFrame]]:
    """Yield the rows of each study, dataset and setting, in the order of the table."""
    for key, rows in table.groupby(SETTING_KEY, sort=False):
        study, dataset, setting = map(str, key)
        yield (study, dataset, setting), rows


def with_criteria(table: pd.DataFrame, criteria: Criteria) -> Iterator[tuple[SettingKey, pd.DataFrame, Criterion]]:
    """Yield the rows of each setting, and what decides there."""
    for key, rows in split_by_setting(table):
        yield key, rows, criteria if isinstance(criteria, Criterion) else criteria[key]


def of_counted(table: pd.DataFrame, criteria: Criteria) -> pd.DataFrame:
    """Return a table without scores on the examples of devices that do not count (:func:`measured`).

    Where no device is tested, all count.
    """
    parts = [
        part[~part["split"].isin(OWN) | part["device"].isin(measured(part, criterion).weights or part["device"])]
        for _, part, criterion in with_criteria(table, criteria)
    ]
    return pd.concat(parts).sort_index(kind="stable") if parts else table


def groups(table: pd.DataFrame) -> pd.DataFrame:
    """Return each device's group: columns study, dataset, setting, method, seed, device, group.

    A group is all devices whose training data come from one domain: data.in_<domain> is 1.
    """
    of = table[(table["split"] == "data") & table["metric"].str.startswith("in_") & (table["value"] == 1)]
    return of.assign(group=of["metric"].str.removeprefix("in_"))[[*RUN, "device", "group"]]


def with_scores(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table that also has a row "score" for each value of the metric that decides unless another is chosen.

    The score is that value, or of the root mean squared error of a number 1 - error / deviation of the labels: 0 for a
    guess of their mean, 1 for the truth.
    """
    tables = [table]
    for _, rows_of in table.groupby("setting"):
        metric = Criterion().of_table(rows_of).metric
        rows = rows_of[rows_of["split"].isin(SCORED) & (rows_of["metric"] == metric.column)]
        value = 1 - rows["value"] / label_std(rows_of) if metric == RMSE else rows["value"]
        tables.append(rows.assign(metric=SCORE, value=value))
    return pd.concat(tables, ignore_index=True)


def by_group(table: pd.DataFrame) -> pd.DataFrame:
    """Return the last round's accuracy of each group of devices: a row per study, setting, method, group and split.

    Where it is not measured it is the metric that decides unless another is chosen; `metric` names it. mean,
    std_devices, std_seeds: as in :func:`summarise`, over the group's devices. n_devices: size of the group, mean over
    seeds. Settings with fewer than two groups are omitted.
    """
    deciders = {key: Criterion().of_table(part).metric.column for key, part in table.groupby(SETTING_KEY)}
    scores = last_round(table)
    wanted = pd.MultiIndex.from_frame(scores[SETTING_KEY]).map(deciders)
    scores = scores[(scores["metric"] == wanted) & scores["split"].isin(SPLITS) & scores["value"].notna()]
    of = groups(table)
    grouped = scores.merge(of[of.groupby(SETTING_KEY)["group"].transform("nunique") > 1], on=[*RUN, "device"])
    by = [*ROW, "group", "split", "metric"]
    devices = grouped.groupby([*by, "seed"], sort=False)["value"].agg(["mean", "std", "count"])
    seeds = devices.groupby(by, sort=False)
    columns = {"mean": ("mean", "mean"), "std_devices": ("std", "mean"), "std_seeds": ("mean", "std")}
    means = seeds.agg(**columns, n_devices=("count", "mean"), n_seeds=("mean", "size"))
    return means.reset_index()[GROUPS]


def _traffic_and_cost(table: pd.DataFrame) -> pd.DataFrame:
    """Return each row's bytes and cost of an answer, nan where unknown, indexed by ROW in the order of the table."""
    means = {}
    for split, names, how in (("traffic", TRAFFIC, "sum"), ("inference", COST, "mean")):
        for name in names:
            of = table[(table["split"] == split) & (table["metric"] == name)]
            means[name] = of.groupby(RUN)["value"].agg(how).groupby(ROW).mean()
    rows = pd.DataFrame(means, index=pd.MultiIndex.from_frame(table[ROW].drop_duplicates()))
    return rows.fillna({"prepare_up": 0.0, "prepare_down": 0.0})


def _counts(table: pd.DataFrame) -> pd.DataFrame:
    """Return the number of rounds, devices and seeds of each row."""
    rounds = table[[*RUN, "stage", "round"]].drop_duplicates().groupby(RUN).size().groupby(ROW).max()
    groups = table[table["split"] != LEFT_OUT].groupby(ROW)
    devices, seeds = groups["device"].nunique(), groups["seed"].nunique()
    return pd.DataFrame({"rounds": rounds, "n_devices": devices, "n_seeds": seeds})


def _seconds(seconds: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Return each row's seconds; no rows if none are known."""
    if seconds.empty:
        return pd.DataFrame(columns=["wall", "cpu"], index=pd.MultiIndex.from_frame(table[ROW][:0]), dtype=float)
    timed = table[ROW].drop_duplicates().merge(seconds, on=["study", "setting", "method"])
    return timed.groupby(RUN)[["wall", "cpu"]].sum().groupby(ROW).mean()


def runs_of(values: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return each row's values, seeds x devices; rows without any value are left out."""
    wide = values.set_index(["method", "seed", "device"])["value"].unstack()  # noqa: PD010 (pivot_table would not raise where a row stands twice)
    runs = {str(name): wide.loc[name] for name in wide.index.unique("method")}
    return {name: run for name, run in runs.items() if run.notna().any(axis=None)}


def runs_on(scores: pd.DataFrame, split: str, metric: Metric) -> dict[str, pd.DataFrame]:
    """Return each row's values of a metric on a split, seeds x devices, the greater the better."""
    values = scores[(scores["split"] == split) & (scores["metric"] == metric.column)]
    return runs_of(values.assign(value=metric.sign * values["value"]))


def mean_over_devices(run: pd.DataFrame, weights: pd.Series | None = None) -> pd.Series:
    """Return the mean over the devices that have a value, seed by seed. weights: of the devices; None: all alike."""
    if weights is None:
        return run.mean(axis=1)
    weighted = run.notna() * weights.reindex(run.columns).fillna(0.0)
    total = weighted.sum(axis=1)
    return (run.fillna(0.0) * weighted).sum(axis=1) / total.where(total > 0)


def _rank(
    rows: pd.DataFrame, scores: pd.DataFrame, controls: frozenset[str], metric: Metric, weights: pd.Series,
    ratios: Mapping[str, float],
) -> pd.DataFrame:  # fmt: skip
    """Add means, ranks and gaps to the rows of one setting and sort them. scores: of the metric that decides."""
    rows = rows.copy()
    sign, everywhere, seeds = metric.sign, {}, rows.set_index("method")["n_seeds"]
    for split in SPLITS:
        runs = runs_of(scores[scores["split"] == split])
        over = weights if split == "test" else None
        means = {name: mean_over_devices(run, over) for name, run in runs.items()}
        worst = {name: run.max(axis=1) if metric.less else run.min(axis=1) for name, run in runs.items()}
        columns = {
            "mean": {name: mean.mean() for name, mean in means.items()},
            "std_devices": {name: run.std(axis=1).mean() for name, run in runs.items()},
            "std_seeds": {name: mean.std() for name, mean in means.items()},
            "margin": {name: half_width(mean.std(), mean.count(), ratios[split]) for name, mean in means.items()},
            "worst": {name: value.mean() for name, value in worst.items()},
        }
        for part, values in columns.items():
            rows[f"{split}_{part}"] = rows["method"].map(values).astype(float)
        everywhere[split] = bool(rows["method"].isin(list(runs)).all()) and all(
            run.notna().any(axis=1).all() and len(run) == seeds[name] for name, run in runs.items()
        )
        better = {name: sign * run for name, run in runs.items()}
        gaps = gaps_to_best(better, controls, over)
        rows[f"{split}_rank"] = (
            rows["method"].map(gaps.drop([*controls], errors="ignore").rank(method="min")).astype("Int64")
        )
        rows[f"{split}_gap"] = rows["method"].map(gaps).astype(float)
    primary = "test" if everywhere["test"] else "shared"
    rows["primary"] = primary
    rows["rank"] = rows[f"{primary}_rank"]
    rows["control"] = rows["method"].isin(controls)
    order = rows.assign(order=rows[f"{primary}_gap"].fillna(-sign * rows[f"{primary}_mean"]).round(12))
    return order.sort_values(["control", "order", "method"]).drop(columns="order")


def gaps_to_best(runs: Mapping[str, pd.DataFrame], controls: frozenset[str], weights: pd.Series | None) -> pd.Series:
    """Return by how much each run is worse than the best that is no control, of those with the most seeds.

    runs: method -> values, seeds x devices, the greater the better. weights: of the devices.
    """
    methods = {name: run for name, run in runs.items() if name not in controls}
    most = max(map(len, methods.values()), default=0)
    means = {name: mean_over_devices(run, weights).mean() for name, run in methods.items() if len(run) == most}
    best = max(sorted(means), key=lambda name: round(means[name], 12), default=None)
    gaps = {} if best is None else {name: gap_to(run, methods[best], weights) for name, run in runs.items()}
    return pd.Series(gaps, dtype=float).round(12)


def gap_to(run: pd.DataFrame, best: pd.DataFrame, weights: pd.Series | None = None) -> float:
    """Return the best run's value minus a run's: seed by seed, or of the means if they have no seed in common.

    run, best: seeds x devices. A seed fixes the partition, the initial models and the random draws, and affects all
    methods alike.
    """
    best_mean, mean = mean_over_devices(best, weights), mean_over_devices(run, weights)
    common = (best_mean - mean).dropna()
    return float(common.mean() if len(common) else best_mean.mean() - mean.mean())


def weighted_means(scores: pd.DataFrame, by: list[str]) -> pd.Series:
    """Return the mean of each group of rows by their weights."""
    groups = scores.groupby(by, sort=False)
    if (scores["weight"] == 1).all():
        return groups["value"].mean()
    weighted = scores.assign(value=scores["value"] * scores["weight"]).groupby(by, sort=False)["value"].sum()
    return weighted / groups["weight"].sum()


def curves(table: pd.DataFrame, criteria: Criteria = Criterion()) -> pd.DataFrame:
    """Return every score over rounds: mean over devices and seeds, and half of its 95 % interval over seeds.

    Columns: study, dataset, setting, method, split, metric, step, mean, margin. step: rounds so far, of all stages.
    Splits without any value are omitted. criteria: which devices count.
    """
    rounds = table.groupby([*ROW, "stage"])["round"].max()
    before = (rounds.groupby(ROW).cumsum() - rounds).rename("before")
    weights, parts = {}, []
    for key, rows, criterion in with_criteria(table, criteria):
        weights[key] = measured(rows, criterion).weights
        of_setting = rows[rows["split"].isin(SCORED)].dropna(subset="value")
        weight = of_setting["device"].map(weights[key]).where(of_setting["split"].isin(OWN), 1.0)  # nan: does not count
        parts.append(of_setting.assign(weight=weight)[weight.notna()].join(before, on=[*ROW, "stage"]))
    scores = pd.concat(parts)
    step = scores["round"] + scores["before"]
    means = weighted_means(scores.assign(step=step), [*RUN, "split", "metric", "step"]).rename("value")
    course = means.groupby([*ROW, "split", "metric", "step"], sort=False).agg(["mean", "std", "count"]).reset_index()
    ratios = {
        (*key, split): ratio_of_test(rows, split, weights[key])
        for key, rows in split_by_setting(table)
        for split in course["split"].unique()
    }
    places = zip(*(course[name] for name in (*SETTING_KEY, "split")), strict=True)
    spreads = zip(course.pop("std"), course.pop("count"), map(ratios.__getitem__, places), strict=True)
    course["margin"] = [half_width(*spread) for spread in spreads]
    return course.sort_values("step", kind="stable", ignore_index=True)


def standings(summary: pd.DataFrame) -> list[str]:
    """Return the standing of each row of a summary: its rank, or "control"; "-" without a value."""
    pairs = zip(summary["rank"], summary["control"], strict=True)
    return ["control" if control else "-" if pd.isna(rank) else str(rank) for rank, control in pairs]


def front(summary: pd.DataFrame, split: str) -> list[str]:
    """Return the methods of one setting that no other method matches or exceeds for fewer bytes, by rising bytes.

    summary: rows of one setting. split: "test" or "shared". Controls, and rows without a value, are left out.
    """
    rows = summary[~summary["control"].astype(bool) & summary[f"{split}_gap"].notna()]
    order = rows.assign(cost=rows["bytes_up"] + rows["bytes_down"]).sort_values(["cost", f"{split}_gap", "method"])
    before = order[f"{split}_gap"].cummin().shift(fill_value=math.inf)
    return [str(name) for name in order["method"][order[f"{split}_gap"] < before]]


def join_words(words: Iterable[str]) -> str:
    """Join words as in a sentence: a, b and c."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def format_bytes(nbytes: float) -> str:
    """Format a number of bytes: 0, 512 B, 3.4 MB (steps of 1,000)."""
    if math.isnan(nbytes):
        return "-"
    power = min(int(math.log10(max(nbytes, 1)) // 3), 4)
    return f"{nbytes / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}" if nbytes else "0"
