"""What a run holds: metrics, parameters, tables, files and descriptions.

Final numbers are metrics without a step, so that MLflow's page draws them as bars:

test/accuracy, test/worst_device           of devices' own test data: mean over the devices that count in the answer,
                                           and the worst of them
shared/accuracy, val/accuracy              on the shared test set; on the devices' validation data
                                           (accuracy stands for the metric that decides)
traffic/up_MB, traffic/down_MB             of all devices, in all rounds
seconds                                    of all steps

A method of several rounds has the same after each round, with the losses, below `round/`. All other means are columns
of the table ROUNDS, a row for each round; the numbers of single devices are rows of DEVICES, those of the last round,
and of the table of all rounds.
"""

import io
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from mlflow import data as mlflow_data
from mlflow.data.code_dataset_source import CodeDatasetSource
from mlflow.entities import Dataset as MlflowDataset
from mlflow.entities import Metric, RunTag
from mlflow.utils.mlflow_tags import MLFLOW_LOGGED_ARTIFACTS

from fedcore import __version__
from fedcore.core.metrics import ACCURACY
from fedcore.core.metrics import Metric as Decider
from fedcore.data import Dataset
from fedcore.pipeline.cache.store import digest_of
from fedcore.pipeline.files import FINAL_FIT, OUTCOMES, SETTING
from fedcore.pipeline.record.result import Result
from fedcore.results import tidy
from fedcore.results.criterion import Criterion, measured
from fedcore.results.reports import Fold
from fedcore.results.summary import OWN, groups

EARLIER = {"test": "", "shared": "shared_", "val": "validation_"}
"""split -> what stood before the name of its metric in runs of earlier versions"""
DEVICES = "devices.json"
"""The artifact with the last numbers of each device, in the format of MLflow's tables."""
ROUNDS = "rounds.json"
"""That with the means over devices after each round."""
FOLDS = "plans/folds.json"
"""That with the transport matrices of a fusion, in its order."""
RATES = "learning_rates.json"
"""That with the learning rates that were tried."""
METHODS, LEFT = "methods.json", "left_out.json"
"""Those of a request's run: a row for each method; for each run without a device, scored on that device."""

NOTE = 8000
"""The most characters that MLflow keeps of a run's description."""

REST = "The rest is on the page, among the artifacts."


def rounds(table: pd.DataFrame, decides: Criterion = Criterion()) -> pd.DataFrame:
    """Return the means over devices after each turn, from 1: a column for each split and metric, such as test/loss.

    decides: the metric that decides, and which devices count. It has its spread and worst too, and where devices are in
    several groups the mean of each, such as test/accuracy_in_A. Traffic is the sum of all devices and turns so far.
    """
    turns = {at: i for i, at in enumerate(sorted(set(zip(table["stage"], table["round"], strict=True))), 1)}
    members = groups(table).drop_duplicates("device").set_index("device")["group"]
    decider, weights = decides.metric, measured(table, decides).weights
    sent: dict[str, float] = {}
    cells: dict[int, dict[str, float]] = {turn: {"round": turn} for turn in turns.values()}
    weight = table["device"].map(weights).where(table["split"].isin(OWN), 1.0)
    rows = table.assign(weight=weight, weighted=weight * table["value"])[table["value"].notna() & weight.notna()]
    by_column = rows.groupby(["stage", "round", "split", "metric"], sort=True)
    decided = {key: part for key, part in by_column if key[2] in EARLIER and key[3] == decider.column}
    for key, total, count in by_column[["weighted", "weight"]].sum().itertuples():
        stage, number, split, metric = key
        turn, name = cells[turns[stage, number]], f"{split}/{metric}"
        if split == "traffic":
            sent[name] = sent.get(name, 0.0) + total
        turn[name] = sent[name] if split == "traffic" else total / count
        if key in decided:
            spread = tidy.over_devices(decided[key], members, weights if split in OWN else None)
            turn |= {f"{name}_{word}": value for word, value in spread.items() if word != "mean"}
    return pd.DataFrame(cells.values())


def metrics(means: pd.DataFrame, seconds: float | None, start: int, decider: Decider = ACCURACY) -> Iterator[Metric]:
    """Yield a run's metrics. means: of :func:`rounds`. seconds: of all its steps, if they are known.

    Times are the run's start plus the step, so that writing twice gives one point.
    """
    final = {f"{split}/{decider.name}": f"{split}/{decider.column}" for split in EARLIER}
    final["test/worst_device"] = f"test/{decider.column}_worst"
    traffic = {f"traffic/{way}_MB": f"traffic/bytes_{way}" for way in ("up", "down")}
    losses = {f"{split}/loss": f"{split}/loss" for split in EARLIER}
    for key, column in {**losses, **final, **traffic}.items():
        values = means[column].dropna() / (1e6 if key in traffic else 1) if column in means else pd.Series()
        if len(values) and key not in losses.keys() - final.keys():
            yield Metric(key, float(values.iloc[-1]), start, 0)
        if len(means) > 1:
            for step, value in zip(means["round"][values.index], values, strict=True):
                yield Metric(f"round/{key.replace('/', '_')}", float(value), start + int(step), int(step))
    if seconds is not None:
        yield Metric("seconds", seconds, start, 0)


def about_data(
    name: str, digest: str, profile: Mapping[str, Any], dataset: Dataset | None = None, path: str | None = None
) -> MlflowDataset:
    """Return what MLflow shows of a dataset: its name, eight digits of its digest, its columns and its file."""
    code = CodeDatasetSource({"fedcore.dataset": name})  # MLflow's own would name this machine's program and user
    if dataset is None:
        return MlflowDataset(name, digest[:8], "code", code.to_json(), None, json.dumps(profile))
    columns = dataset.schema.columns if dataset.schema else ()
    kinds = pd.DataFrame({column.name: [0.0 if column.kind == "number" else ""] for column in columns})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*can be interpreted in multiple ways", category=UserWarning)
        named: Any = {"source": path or code, "name": name, "digest": digest[:8]}
        given: Any = (
            mlflow_data.from_pandas(kinds, **named)
            if columns
            else mlflow_data.from_numpy(np.asarray(dataset.train.x[:1]), **named)
        )
    entity = given._to_mlflow_entity()
    return MlflowDataset(name, digest[:8], entity.source_type, entity.source, entity.schema, json.dumps(profile))


def user_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the tags by which a user finds a run, of the record's own ones: kind, method, seed, study and data."""
    kind = tags["fedcore.kind"]
    data = f"{tags.get('fedcore.dataset', '')} {tags.get('fedcore.data', '')[:8]}".strip()
    found = {name: tags.get(f"fedcore.{name}") for name in ("study", "setting", "size", "method", "seed")}
    found |= {"kind": {"method": "seed"}.get(kind, kind), "data": data}
    return {name: value for name, value in found.items() if value}


def score(recorded: Mapping[str, float], split: str, metric: str) -> float | None:
    """Return a run's final mean of the metric that decides, also of a run of an earlier version; None without it."""
    return recorded.get(f"{split}/{metric}", recorded.get(f"{EARLIER[split]}{metric}"))


def to_table(frame: pd.DataFrame) -> bytes:
    """Return rows in the format of MLflow's tables; its own function would append them to those of another try."""
    cells = frame.astype(object).where(frame.notna(), None)
    return json.dumps({"columns": [*map(str, frame)], "data": cells.to_numpy().tolist()}).encode()


def rate_table(result: Result) -> bytes:
    """Return the learning rates that were tried as a table of MLflow, with their last means; none where one diverged.

    That of the result is `chosen`.
    """
    decides, rows = replace(result.criterion, metric=result.metric), []
    for rate, table in result.tried.items():
        last: Any = {} if table is None else rounds(table, decides).iloc[-1]
        names = [f"{split}/{name}" for name in (result.metric.column, "loss") for split in EARLIER]
        numbers = {name: last[name] for name in names if name in last}
        rows.append({"learning_rate": rate, "chosen": rate == result.row.training.lr, **numbers})
    return to_table(pd.DataFrame(rows))


def fold_files(folds: Sequence[Fold]) -> dict[str, bytes]:
    """Return a fusion's transport matrices as files, each as an array and as text with its units, and their table."""
    files, rows = {}, []
    for fold in folds:
        path = f"plans/{fold.file}"
        files[f"{path}.npy"] = to_npy(fold.matrix.numpy())
        files[f"{path}.csv"] = pd.DataFrame(fold.matrix.numpy(), *fold.units).to_csv(float_format="%.6g").encode()
        rows.append({**fold.row, "file": f"{path}.npy"})
    return files | ({FOLDS: to_table(pd.DataFrame(rows))} if rows else {})


def tables_tag(paths: Iterable[str]) -> RunTag:
    """Return the tag by which MLflow's page shows files as tables."""
    return RunTag(MLFLOW_LOGGED_ARTIFACTS, json.dumps([{"path": path, "type": "table"} for path in paths]))


def device_table(table: pd.DataFrame, decider: Decider = ACCURACY) -> bytes:
    """Return the last numbers of each device as a table of MLflow: a row per device, a column per split and metric.

    decider: the metric that decides, whose columns come first, and of these that of test data.
    """
    last = tidy.final(table).assign(column=table["split"] + "/" + table["metric"])  # MLflow's page shows no dotted one
    first = [name for split in EARLIER if (name := f"{split}/{decider.column}") in {*last["column"]}]
    order = dict.fromkeys([*first, *last["column"]])
    wide = last.pivot_table("value", "device", "column", sort=False, dropna=False)[[*order]]
    return to_table(wide.reset_index())


def read_device_table(content: bytes, index: str = "device") -> pd.DataFrame:
    """Return a table of a run, such as :func:`device_table` wrote, by its index; one of before has dots in its head."""
    parts = json.loads(content)
    return pd.DataFrame(parts["data"], columns=[name.replace(".", "/") for name in parts["columns"]]).set_index(index)


def safe_name(name: str) -> str:
    """Return a name that MLflow accepts; a name that had to change ends in a digest, so that names stay distinct."""
    plain = re.sub(r"^[.]+|[^A-Za-z0-9_. :-]", "_", name)[:100]
    return plain if plain == name else f"{plain}-{digest_of(name)[:6]}"


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
    files = {SETTING: result.origin.to_json(result.command)}
    if (final := result.final) is not None:
        card = {
            "final_fit_of": final.version, "study_run": final.run, "dataset": final.study.dataset.digest,
            "rows": final.rows, "rows_in_study": final.before, "held_out": final.held_out,
            "shared_rows_left_out": final.left, "config": result.config, "fedcore": __version__,
        }  # fmt: skip
        files[FINAL_FIT] = (json.dumps(card, indent=1) + "\n").encode()
    if result.tried:
        files[RATES] = rate_table(result)
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


def to_npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()
