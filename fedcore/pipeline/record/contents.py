"""What a run holds: metrics, parameters, files and descriptions.

A few headline numbers sort first; the means of everything else are below `topic/`:

accuracy, accuracy_std, accuracy_worst     of devices' own test data: mean over the devices that count in the answer,
                                           spread and the worst of them
shared_accuracy, ...                       on the shared test set
validation_accuracy, ...                   on the devices' validation data
                                           (accuracy stands for the metric that decides; if it is another one, the
                                           other scores are below topic/test., topic/shared. and topic/val.)
bytes_up, bytes_down                       of all devices, in all rounds so far
prepare_up, prepare_down                   of all devices, before the first round, if they exchange anything then
seconds, seconds_cpu                       of all steps

The numbers of single devices are rows of two artifacts: the table of all rounds, and a table of the last one.
"""

import io
import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from mlflow.entities import Metric

from fedcore import __version__
from fedcore.core.metrics import ACCURACY
from fedcore.core.metrics import Metric as Decider
from fedcore.pipeline.cache.store import digest_of
from fedcore.pipeline.files import FINAL_FIT, OUTCOMES, SETTING
from fedcore.pipeline.record import origin
from fedcore.pipeline.record.result import Result
from fedcore.results import tidy
from fedcore.results.criterion import Criterion, measured
from fedcore.results.summary import OWN, groups

PREFIX = {"test": "", "shared": "shared_", "val": "validation_"}
"""split -> the prefix of its metrics"""
DEVICES = "devices.json"
"""The artifact with the last numbers of each device, in the format of MLflow's tables."""

NOTE = 8000
"""The most characters that MLflow keeps of a run's description."""

REST = "The rest is on the page, among the artifacts."


def metrics(
    table: pd.DataFrame, seconds: pd.DataFrame, start: int, decides: Criterion = Criterion()
) -> Iterator[Metric]:
    """Yield a run's metrics over its turns, counted from 1. decides: the metric that decides, and which devices count.

    If devices are in several groups, also the decider's mean in each, e.g. accuracy_in_A. Times are the run's start
    plus the step, so that writing twice gives one point.
    """
    turns = {
        round_info: i for i, round_info in enumerate(sorted(set(zip(table["stage"], table["round"], strict=True))), 1)
    }
    members = groups(table).drop_duplicates("device").set_index("device")["group"]
    decider, weights = decides.metric, measured(table, decides).weights
    sent: dict[str, float] = {}
    rows = table[table["value"].notna()]
    for (stage, number, split, metric), part in rows.groupby(["stage", "round", "split", "metric"], sort=True):
        step, name = turns[stage, number], safe_name(str(metric))
        own = split in OWN
        counted = part[part["device"].isin(weights)] if own else part
        if counted.empty:
            continue
        means = tidy.over_devices(counted, members, weights if own else None)
        if split == "traffic":
            sent[name] = sent.get(name, 0.0) + float(part["value"].sum())
            named = {name: sent[name]}
        elif split in PREFIX and metric == decider.column:
            key = f"{PREFIX[split]}{decider.name}"
            named = {key: means.pop("mean"), **{f"{key}_{safe_name(word)}": value for word, value in means.items()}}
        elif split in PREFIX and decider == ACCURACY:
            named = {f"{PREFIX[split]}{name}": means["mean"]}
        else:
            named = {f"topic/{split}.{name}": means["mean"]}
        for key, value in named.items():
            yield Metric(key, float(value), start + step, step)
    for column, key in {"wall": "seconds", "cpu": "seconds_cpu"}.items():
        yield Metric(key, float(seconds[column].sum()), start, 0)
        for kind, value in zip(seconds["kind"], seconds[column], strict=True):
            yield Metric(f"topic/seconds.{kind}.{column}", float(value), start, 0)


def device_table(table: pd.DataFrame, decider: Decider = ACCURACY) -> bytes:
    """Return the last numbers of each device as a table of MLflow: a row per device, a column per split and metric.

    decider: the metric that decides, whose columns come first.
    """
    last = tidy.final(table).assign(column=table["split"] + "." + table["metric"])
    order = dict.fromkeys([*last["column"][last["metric"] == decider.column], *last["column"]])
    wide = last.pivot_table("value", "device", "column", sort=False, dropna=False)[[*order]]
    cells_of = wide.reset_index().astype(object).where(lambda cells: cells.notna(), None)
    return json.dumps({"columns": list(cells_of), "data": cells_of.to_numpy().tolist()}).encode()


def read_device_table(content: bytes) -> pd.DataFrame:
    """Return what :func:`device_table` wrote, indexed by device."""
    parts = json.loads(content)
    return pd.DataFrame(parts["data"], columns=parts["columns"]).set_index("device")


def safe_name(name: str) -> str:
    """Return a name that MLflow accepts; a name that had to change ends in a digest, so that names stay distinct."""
    plain = re.sub(r"^[.]+|[^A-Za-z0-9_. :-]", "_", name)[:100]
    return plain if plain == name else f"{plain}-{digest_of(name.encode())[:6]}"


def describe_final_fit(result: Result) -> str:
    """Say what a final fit is, on which rows, and which score stands for it."""
    final = result.final
    assert final is not None
    limit = "" if "val" not in final.held_out else " but for validation rows, by which the method chooses"
    left = f" {final.left:,} rows of the shared test set stay out." if final.left else ""
    if final.left and "shared" in final.held_out:
        left = f" The shared test set stays out, {final.left:,} rows, as the method chooses by it."
    threshold = (
        f" {result.threshold.label!r} is predicted from probability {result.threshold.value:.3g} on, which "
        "validation rows of that study decided." if result.threshold else ""
    )  # fmt: skip
    return (
        f"Final fit of version {final.version}: {result.row.label} once more, with the same settings, code and seed "
        f"({result.seed}), on all labelled rows of each device{limit}: {sum(final.rows.values()):,} rows in place of "
        f"{sum(final.before.values()):,}, those marked as test among them.{left} Nothing tests it: the "
        f"{result.metric.words} to expect is that of version {final.version}, measured by study {result.setting.study} "
        f"({result.size}), not its own.{threshold} Dataset {final.study.dataset.digest}; {FINAL_FIT} of its run counts "
        "the rows of each device."
    )


def origin_files(result: Result) -> dict[str, bytes]:
    """Return what made a result, its outcomes, and the rows of a final fit, as files of its run."""
    files = {SETTING: origin.to_json(origin.origin_of(result))}
    if (final := result.final) is not None:
        card = {
            "final_fit_of": final.version, "study_run": final.run, "dataset": final.study.dataset.digest,
            "rows": final.rows, "rows_in_study": final.before, "held_out": final.held_out,
            "shared_rows_left_out": final.left, "config": result.config, "fedcore": __version__,
        }  # fmt: skip
        files[FINAL_FIT] = (json.dumps(card, indent=1) + "\n").encode()
    if result.outcomes is not None:
        files[OUTCOMES] = (json.dumps(result.outcomes.to_json()) + "\n").encode()
    return files


def shorten_note(note: str) -> str:
    """Leave out the last parts of a description, each a paragraph or a table, until MLflow can keep it."""
    if len(note) <= NOTE:
        return note
    parts = note.split("\n\n")
    while parts and (len("\n\n".join([*parts, REST])) > NOTE or parts[-1].startswith("#")):  # no title without a table
        parts.pop()
    return "\n\n".join([*parts, REST])


def params_of(result: Result) -> dict[str, Any]:
    """Return all settings of a run by their keys in params.yaml."""
    setting = result.setting
    sections = {"data": setting.data, "federation": setting.federation, "net": setting.net}
    flat = {f"{section}.{key}": value for section, values in sections.items() for key, value in values.items()}
    decided = {"threshold": result.threshold.value} if result.threshold else {}
    return {
        "study": setting.study, "setting": setting.name, "seed": result.seed, **flat, **result.row.flat(), **decided,
    }  # fmt: skip


def cut_value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 500 else text[:497] + "..."


def to_parquet(table: pd.DataFrame) -> bytes:
    out = io.BytesIO()
    table.to_parquet(out, index=False)
    return out.getvalue()


def to_npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()
