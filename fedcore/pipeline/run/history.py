"""The history of a project: a line for each study, setting and run, with its date, also of `dvc repro`.

runs/history.jsonl has an object in each line, the oldest first; a line is never changed:

date                            when the run ended, with the zone of this machine's clock
study, size, setting            what was asked
dataset, task                   the data's name, and that of the registered model
data, rows                      the digest of what was read, and its number of rows
partition, devices              the digest of the partitions of all seeds, and the number of devices
seeds                           of the run
metric, positive, rule          that decides, and the label that it is of; weights, least_test and costs, if not the
                                usual ones; none in lines of earlier versions
min_effect                      the least difference that matters, "" if it is the usual one
action, method                  the answer, and the row that it recommends, if any
value                           of that row, or else of the best one, in the metric's own unit
gain, gain_low, gain_high       of the best row that combines on training alone with its interval; positive is better
best, best_value, alone_value   the best row that combines, its value, and that of training alone
validated                       whether validation data chose that row
sites                           device -> value with that row on its own test data, mean over seeds
worst                           the lowest of them among devices that are measured
bytes                           that a device sends and receives in total with that row
seconds                         of the steps that this run computed
champion, challenge             the version that was the champion after the run, and what was said of the candidate: its
                                gain on the champion with the interval, and on which rows
result                          the digest of all results of the setting
settings                        method -> what its runs had set, as in the record; what is the same for all is below ""
tasks                           edited task -> the digest of its source; of those that took part
whole                           whether all methods and seeds of the study were asked; of `dvc repro` there is none
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from filelock import FileLock

from fedcore.pipeline import environment
from fedcore.pipeline.record import registry
from fedcore.pipeline.state import read_lines, to_lines, write_atomic

if TYPE_CHECKING:
    from fedcore.data import Dataset
    from fedcore.pipeline.cache.store import Store
    from fedcore.pipeline.record.result import Result
    from fedcore.results.advice import Answer
    from fedcore.results.criterion import SettingKey

HISTORY = Path("runs") / "history.jsonl"
HELD = environment.STATE / "history.jsonl"
"""The lines of the stages of `dvc repro`, until its last one has challenged the champion."""
SAME = ("study", "size", "setting", "data", "result")
"""A line with the same values, rule and least difference, of the same day, is not written again."""

Line: TypeAlias = dict[str, Any]


def lines_of(results: Iterable[Result], answers: Mapping[SettingKey, Answer], store: Store) -> list[Line]:
    """Return a line for each study and setting of a run that ends now; `append` completes it."""
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    by_setting: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        by_setting.setdefault((result.setting.study, result.setting.name), []).append(result)
    answer_of = {(study, setting): answer for (study, _, setting), answer in answers.items()}
    return [line_of(now, of_setting, answer_of[setting_key], store) for setting_key, of_setting in by_setting.items()]


def line_of(date: str, results: Sequence[Result], answer: Answer, store: Store) -> Line:
    """Return the line of one setting. results: of all its methods and seeds."""
    from fedcore.pipeline.cache.store import digest_of  # which imports PyTorch: a status reads, too

    first, advice, dataset = results[0], answer.advice, store.get(results[0].prepared.dataset)
    computed = {step.key: step.wall for result in results for step in result.steps if not step.cached}
    gain = advice.gain
    return {
        "date": date, "study": first.setting.study, "size": first.size, "setting": first.setting.name,
        "dataset": first.setting.data_name, "task": first.setting.model_name, "data": first.prepared.dataset.digest,
        "rows": len(dataset.train),
        "partition": digest_of("\n".join(sorted({result.prepared.partition.digest for result in results}))),
        "devices": len(first.fed.devices), "seeds": sorted({result.seed for result in results}),
        "metric": (metric := answer.criterion.metric).name,
        "positive": answer.criterion.positive if metric.of_positive else None,
        "rule": answer.criterion.rule(first.setting.scoring.get("costs") or {}), "min_effect": answer.criterion.least,
        "action": str(advice.action), "method": answer.advised, "value": advice.value,
        "gain": gain and gain.mean, "gain_low": gain and gain.low,
        "gain_high": gain and gain.high, "best": advice.best, "best_value": advice.best_value,
        "alone_value": advice.alone_value, "validated": advice.validated,
        "sites": sites(results, answer.advised or advice.best, answer),
        "worst": answer.devices and answer.devices.worst,
        "bytes": answer.up + answer.down, "seconds": round(sum(computed.values()), 1), "champion": None,
        "challenge": "", "settings": settings_of(results, dataset),
        "tasks": tasks_of(results),
        "result": digest_of("\n".join(sorted({f"{of.config} {of.digest}" for of in results}))),
    }  # fmt: skip


def settings_of(results: Iterable[Result], dataset: Dataset) -> dict[str, dict[str, str]]:
    """Return method -> its settings, without what validation rows choose; those that all share are below ""."""
    from fedcore.pipeline.record.result import cut_value, params_of  # takes pandas

    own: dict[str, set[tuple[str, str]]] = {}
    for result in results:
        rates, label = result.setting.rates, result.row.label
        used = params_of(result, dataset) | ({"training.lr": rates[label]} if label in rates else {})
        own[label] = {(key, cut_value(value)) for key, value in used.items() if key not in ("seed", "threshold")}
    shared = set[tuple[str, str]].intersection(*own.values())
    return {"": dict(sorted(shared)), **{label: dict(sorted(of - shared)) for label, of in own.items()}}


def tasks_of(results: Iterable[Result]) -> dict[str, str]:
    """Return each edited task that took part -> the digest of its source."""
    from fedcore.pipeline.cache.keys import Digest
    from fedcore.pipeline.work import edited

    bodies = edited()
    return {name: Digest().of(bodies[name]) for name in sorted({name for result in results for name in result.tasks})}


def sites(results: Sequence[Result], row: str | None, answer: Answer) -> dict[str, float]:
    """Return device -> the value of a row's models on its own test data, mean over the seeds that have one."""
    import pandas as pd  # which reading a history does not need

    from fedcore.results.summary import last_round

    if not (tables := [result.table for result in results if result.row.label == row]):
        return {}
    last = last_round(pd.concat(tables))
    own = last[(last["split"] == "test") & (last["metric"] == answer.criterion.metric.column)]
    return {str(device): float(value) for device, value in own.groupby("device")["value"].mean().dropna().items()}


def append(lines: Sequence[Line]) -> None:
    """Append lines, unless the same result of the same day is there. If killed, it has written all of them or none."""
    if not lines:
        return
    after = {
        task: {"champion": entry.aliases.get(registry.CHAMPION), "challenge": entry.challenge}
        for task, entry in (registry.read() or {}).items()
    }
    with FileLock(environment.STATE / "history.lock", mode=0o600):
        content = HISTORY.read_bytes() if HISTORY.exists() else b""
        recorded = {_identity(line) for line in read()}
        new = [line | after.get(line["task"], {}) for line in lines if _identity(line) not in recorded]
        if new:
            end = b"\n" if content and not content.endswith(b"\n") else b""
            write_atomic(HISTORY, content + end + to_lines(new))
        if HELD.is_file():
            written = {_identity(line) for line in lines}
            write_atomic(HELD, to_lines(line for line in read(HELD) if _identity(line) not in written))


def hold(lines: Sequence[Line]) -> None:
    """Keep lines until `append` is given them."""
    with FileLock(environment.STATE / "history.lock", mode=0o600):
        write_atomic(HELD, to_lines([*read(HELD), *lines]))


def read(path: Path | None = None) -> list[Line]:
    """Return the lines in their order, except damaged ones. path: of the file, HISTORY by default."""
    return read_lines(path or HISTORY, _check)


def _check(line: Line) -> Line:
    datetime.fromisoformat(line["date"])
    _identity(line)
    return line


def _identity(line: Line) -> tuple[str, ...]:
    decides = (str(line.get(name) or "") for name in ("rule", "min_effect"))
    return (str(line["date"])[:10], *(str(line[name]) for name in SAME), *decides)
