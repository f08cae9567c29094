"""Combine many results: the tidy table, the summary, the answers, the page, and the models to propose."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from fedcore import spreadsheet
from fedcore.config.papers import Papers, of_study
from fedcore.config.settings import apart, slug
from fedcore.config.studies import Study, find_study, run_section, title_for
from fedcore.core.metrics import METRICS
from fedcore.errors import InputError
from fedcore.pipeline import files
from fedcore.pipeline.cache.store import digest_of
from fedcore.pipeline.record.result import ComparedMethod, ComparedRequest, Evidence, StudyOnData, worst_devices
from fedcore.pipeline.record.writer import RecordWriter
from fedcore.pipeline.run import history
from fedcore.report import figures
from fedcore.report.answers import answer_numbers, brief, markdown, study_answers
from fedcore.report.history import changes
from fedcore.report.page import TREND, Comparison, draw, html
from fedcore.report.tables import FEW, csv, score_table
from fedcore.results.advice import Action, Answer
from fedcore.results.answer import answers
from fedcore.results.criterion import LEFT_OUT, RATIO, Criterion, SettingKey
from fedcore.results.judging import judge_all, verdict_table
from fedcore.results.outcomes import Outcomes, from_json
from fedcore.results.scores import SetScores
from fedcore.results.summary import (
    NO_SECONDS,
    SPLITS,
    bounds,
    by_group,
    of_counted,
    runs_on,
    split_by_setting,
    summarise,
)
from fedcore.results.tidy import choose, transfer_seconds

if TYPE_CHECKING:
    from fedcore.pipeline.record.runs import Record

HEADLINE = {
    "test/{metric}": "test_mean", "test/worst_device": "test_worst", "shared/{metric}": "shared_mean",
    "traffic/up_MB": "bytes_up", "traffic/down_MB": "bytes_down", "seconds": "wall",
}  # fmt: skip
"""The numbers of each row in the record, by the name of the metric that decides -> columns of the summary."""


@dataclass(frozen=True)
class ComparisonInput:
    """What results say. studies: by name. table: the results' rows, and those that the studies derive from them."""

    studies: dict[str, Study]
    table: pd.DataFrame
    summary: pd.DataFrame
    answers: dict[SettingKey, Answer]


def compare(
    params: Mapping[str, Any], results: Sequence[Path], seconds: Sequence[Path],
    partitions: Mapping[tuple[str, str], Path], papers: Papers | None = None, inputs: ComparisonInput | None = None,
    trends: Mapping[tuple[str, str], bytes] | None = None,
) -> Comparison:  # fmt: skip
    """Compare results that are in some folders.

    partitions: their pictures, and trends: pictures of earlier runs, by study and setting. inputs: what their tables
    say, if this command has just made them.
    """
    if inputs is None:
        for missing in (path for folder in results if not (path := folder / files.TABLE).is_file()):
            raise InputError(f"{missing}: no such file; make it with: dvc repro")
        spent = [spreadsheet.read(folder / files.SECONDS) for folder in seconds if (folder / files.SECONDS).is_file()]
        tables = [pd.read_parquet(folder / files.TABLE) for folder in results]
        inputs = answer(params, tables, spent, read_runs(results))
    chosen, table, summary = inputs.studies, inputs.table, inputs.summary
    shown = "Who holds what (first seed)."
    pictures = {setting_key: {shown: path.read_bytes()} for setting_key, path in partitions.items()}
    for folder in results:
        if (folder / files.PICTURES / files.INDEX).is_file():
            index = spreadsheet.read(folder / files.PICTURES / files.INDEX, na_filter=False)
            for setting, file, caption in zip(index["setting"], index["file"], index["caption"], strict=True):
                setting_key = (folder.name.rpartition("-")[0], setting)
                pictures.setdefault(setting_key, {})[caption] = (folder / files.PICTURES / file).read_bytes()
    for setting_key, drawn in (trends or {}).items():
        pictures.setdefault(setting_key, {})[TREND] = drawn
    runs = read_runs(results)
    points = {study: {run["setting"]: run["point"] for run in runs if run["study"] == study} for study in chosen}
    criteria = criteria_of(params, chosen, table)
    counted = of_counted(table, criteria)
    verdicts = [
        (study, verdict)
        for study, of in chosen.items()
        for verdict in judge_all(
            of.claims, of.valid, counted[counted["study"] == study], points[study], of.ceiling, of.converged
        )
    ]
    grids = {
        study: figures.png(figures.accuracy_along(summary[summary["study"] == study], points[study], key))
        for study in chosen
        if (key := chosen[study].x_axis) and any(key in point for point in points[study].values())
    }
    sizes = table[table["split"] != LEFT_OUT].groupby(["study", "setting"], sort=False)["device"].nunique()
    questions = {str(name): title_for(chosen[str(name)].title, of) for name, of in sizes.groupby("study", sort=False)}
    return Comparison(
        table, summary, by_group(counted), questions, pictures, verdict_table(verdicts), grids,
        draw(table, summary, criteria),
        {study: paper for study in chosen if (paper := of_study(papers or {}, study))}, inputs.answers,
        read_outcomes(results), runs,
    )  # fmt: skip


def read_outcomes(results: Iterable[Path]) -> dict[tuple[str, str], dict[str, Outcomes]]:
    """Return the outcomes of each study, setting and method, summed over the seeds that are in some folders."""
    outcomes: dict[tuple[str, str], dict[str, Outcomes]] = {}
    for path in (folder / files.OUTCOMES for folder in results if (folder / files.OUTCOMES).is_file()):
        for stored in json.loads(path.read_text()):
            by_method = outcomes.setdefault((path.parent.name.rpartition("-")[0], stored["setting"]), {})
            of_seed, before = from_json(stored), by_method.get(stored["method"])
            by_method[stored["method"]] = before + of_seed if before else of_seed
    return outcomes


def answer(
    params: Mapping[str, Any], tables: Sequence[pd.DataFrame], seconds: Sequence[pd.DataFrame],
    runs: Sequence[Mapping[str, Any]], refused: Mapping[tuple[str, str], str] = MappingProxyType({}),
) -> ComparisonInput:  # fmt: skip
    """Return what some tables say.

    seconds: of their steps, as far as they are known. runs: what made them. refused: see
    :class:`fedcore.pipeline.run.requests.Run`.
    """
    whole = pd.concat(tables, ignore_index=True)
    chosen = {study: find_study(params, study) for study in whole["study"].unique()}
    table = pd.concat([whole, *derived(params, whole, chosen)], ignore_index=True)
    spent = pd.concat(seconds, ignore_index=True) if seconds else NO_SECONDS
    tuned = (row for study in chosen.values() for row in study.tuned.items())
    known = frozenset(run["method"] for run in runs if run["control"])
    never = known.union(label for label, rows in tuned if known.issuperset(rows))
    criteria = criteria_of(params, chosen, table)
    said = with_runs(answers(table, never, criteria), runs, refused)
    return ComparisonInput(chosen, table, summarise(table, spent, never, criteria), said)


def with_runs(
    found: Mapping[SettingKey, Answer], runs: Sequence[Mapping[str, Any]], refused: Mapping[tuple[str, str], str]
) -> dict[SettingKey, Answer]:
    """Return answers that know what the runs behind them had set, and which rows were refused."""
    tasks, weighted, made = (defaultdict[tuple[str, str], set[str]](set) for _ in range(3))
    for run in runs:
        made[run["study"], run["setting"]].add(run["method"])
        tasks[run["study"], run["setting"]].update(run.get("tasks", ()))
        weighted[run["study"], run["setting"]].update([run["method"]] * run.get("weighted", False))
    free = {(run["study"], run["setting"]): run["free"] for run in runs if "free" in run}
    alone = {(run["study"], run["setting"]): run["own_scale"] for run in runs if "own_scale" in run}
    by_few = sorted((run for run in runs if "few" in run), key=lambda run: -run["few"][1])  # the fewest last
    few = {(run["study"], run["setting"]): tuple(run["few"]) for run in by_few}
    whys = {study: {label: why for (of, label), why in refused.items() if why and of == study} for study, *_ in found}
    return {
        (study, size, name): replace(
            of, tasks=tuple(sorted(tasks[study, name])), weighted=frozenset(weighted[study, name]),
            refused={label: why for label, why in whys[study].items() if label not in made[study, name]},
            free=free.get((study, name), ""), own_scale=alone.get((study, name), 0), few=few.get((study, name)),
        )
        for (study, size, name), of in found.items()
    }  # fmt: skip


def criteria_of(
    params: Mapping[str, Any], studies: Mapping[str, Study], table: pd.DataFrame
) -> dict[SettingKey, Criterion]:
    """Return what decides in each setting of a tidy table."""
    run = run_section(params)
    return {setting_key: run.of(studies[setting_key[0]]).criterion for setting_key, _ in split_by_setting(table)}


def derived(params: Mapping[str, Any], table: pd.DataFrame, studies: Mapping[str, Study]) -> Iterator[pd.DataFrame]:
    """Yield what studies derive from their results: tuned rows, and the seconds of a transfer on a given link."""
    for name, study in studies.items():
        rows_of = table[table["study"] == name]
        criterion = run_section(params).of(study).criterion
        more = [choose(rows_of, label, rows, criterion) for label, rows in study.tuned.items()]
        yield from more
        if study.link is not None:
            yield transfer_seconds(pd.concat([rows_of, *more]), study.link)


def read_runs(results: Iterable[Path]) -> list[dict[str, Any]]:
    """Return what some folders say of their runs, see :attr:`fedcore.pipeline.record.result.Result.entry`."""
    return [run for folder in results for run in json.loads((folder / files.RUNS).read_text())]


def write(compared: Comparison, versioned: Path, unversioned: Path) -> None:
    """Write a comparison: tables and pictures to `versioned`, those with seconds and the page to `unversioned`."""
    versioned.mkdir(parents=True, exist_ok=True)
    unversioned.mkdir(parents=True, exist_ok=True)
    compared.table.to_parquet(versioned / files.TABLE, index=False)
    (versioned / files.PLOTS).mkdir(exist_ok=True)
    for (study, setting), picture in compared.plots.comparisons.items():
        (versioned / files.PLOTS / f"{slug(f'{study}-{setting}')}.png").write_bytes(picture)
    (curves := versioned / files.CURVES).mkdir(exist_ok=True)
    for name, rows in compared.summary.groupby("study", sort=False):  # as `dvc plots` draws the metric that decides
        keys = rows.assign(split=rows["primary"], metric=rows["metric"].map(lambda name: METRICS[name].column))
        course = compared.plots.curves.merge(keys[["study", "setting", "method", "split", "metric"]])
        drawn = course[["setting", "method", "step", "mean"]].rename(columns={"step": "round", "mean": "value"})
        (curves / f"{slug(str(name))}.csv").write_text(csv(drawn))
    for study, picture in compared.along.items():
        (versioned / files.PLOTS / f"{study}.png").write_bytes(picture)
    (versioned / files.BRIEF).write_text(brief(compared.answers))
    numbers = answer_numbers(compared.summary, compared.answers)
    (versioned / files.METRICS).write_text(json.dumps(numbers, indent=1) + "\n")
    (versioned / files.CLAIMS).write_text(csv(compared.claims))
    (unversioned / files.SUMMARY).write_text(csv(compared.summary))
    (unversioned / files.GROUPS).unlink(missing_ok=True)
    if len(compared.groups):
        (unversioned / files.GROUPS).write_text(csv(compared.groups))
    (unversioned / files.PAGE).write_text(html(compared))


def notes(summary: pd.DataFrame, answers: Mapping[SettingKey, Answer], worst: Mapping[Any, Any]) -> dict[str, str]:
    """Return each study's answer in Markdown, with its tables; those of more than FEW settings are left out."""
    boxes, found = study_answers(answers), {}
    for study, of in summary.groupby("study", sort=False):
        tables = {
            f"{setting} ({dataset})": score_table(rows, worst.get((str(study), setting), {}))
            for (_, dataset, setting), rows in split_by_setting(of)
        }
        found[str(study)] = markdown(boxes[str(study)], tables if len(tables) <= FEW else {})
    return found


def describe(
    compared: Comparison, studies: Mapping[tuple[str, str], StudyOnData], writer: RecordWriter | Record, page: Path,
    parts: Collection[str] = (),
) -> None:  # fmt: skip
    """Write each study to its runs in the record: the answer, its tables, headline numbers, the page and pictures.

    studies: (study, setting) -> the run that is about it; on several data a run for each. parts: studies asked in part.
    """
    worst = worst_devices(compared.table, {key: one.criterion for key, one in compared.answers.items()})
    since, typed = dict[str, str](), ""
    if isinstance(writer, RecordWriter):
        since, typed = changes(writer.history, history.read()), writer.typed
    for of in dict.fromkeys(studies.values()):
        settings = {setting for (study, setting), other in studies.items() if other == of and study == of.study}
        rows = compared.summary[(compared.summary["study"] == of.study) & compared.summary["setting"].isin(settings)]
        answered = {key: one for key, one in compared.answers.items() if key[0] == of.study and key[2] in settings}
        if rows.empty:
            continue
        (text,) = notes(rows, answered, worst).values()
        drawn = {
            f"pictures/{slug(setting)}.png": png
            for (study, setting), png in compared.plots.comparisons.items()
            if study == of.study and setting in settings
        }
        configs: dict[tuple[str, str], list[str]] = {}
        validated: dict[tuple[str, str], list[float | None]] = {}
        for run in compared.runs:
            if run["study"] == of.study and run["setting"] in settings:
                configs.setdefault((run["setting"], run["method"]), []).append(run["config"])
                validated.setdefault((run["setting"], run["method"]), []).append(run["validation"])
        numbers = numbers_of_rows(rows, new_device_numbers(compared.table, of.study, answered))
        for setting, row, name in zip(rows["setting"], rows["method"], rows["metric"], strict=True):
            if known := [value for value in validated.get((setting, row), []) if value is not None]:
                numbers[setting, row][f"val/{name}"] = METRICS[name].sign * fmean(known)
        by_setting = {key[-1]: one for key, one in answered.items()}
        methods = tuple(
            ComparedMethod(
                setting, row, own, tuple(configs.get((setting, row), ())), worst[of.study, setting].get(row),
                evidence_for(row, by_setting.get(setting)).tag,
            )
            for (setting, row), own in numbers.items()
        )  # fmt: skip
        left = compared.table[compared.table["split"].eq(LEFT_OUT) & compared.table["study"].eq(of.study)]
        left = left[left["setting"].isin(settings)]
        by_device = left.pivot_table("value", ["setting", "method", "seed", "device"], "metric")
        pairs = [(answer.advice.judged, answer.advice.alone) for answer in answered.values()]
        pair = tuple(name for name in pairs[0] if name) if len(pairs) == 1 and all(pairs[0]) else ()
        others = (other for other in dict.fromkeys(studies.values()) if other.study == of.study and other != of)
        made_by = [*sorted(config for of_row in configs.values() for config in of_row), *deciders_of(answered)]
        asked = ComparedRequest(
            digest_of("\n".join(made_by)), compared.questions[of.study], text, numbers_of_answers(answered), methods,
            pair, drawn | {files.PAGE: page.read_bytes()}, by_device.reset_index().to_dict("records"),
            part=of.study in parts, changed=since.get(of.study, ""), typed=typed, rule="; ".join(rules_of(answered)),
            beside=tuple(others),
        )  # fmt: skip
        writer.describe(of, asked)


def evidence_for(row: str, answer: Answer | None) -> Evidence:
    """Return whether a setting's answer recommends a row, or for new devices alone, and whether the row guesses."""
    if answer is None:
        return Evidence(shown=False)
    advice = answer.new_device.advice if answer.new_device else None
    new = advice is not None and advice.action is Action.USE and advice.method == row
    return Evidence(shown=answer.advised == row, guesses=answer.is_guess(row), new="only" if new else "")


def rules_of(answers: Mapping[SettingKey, Answer]) -> list[str]:
    """Return the rules of means that are not the usual ones, without costs, which are a part of configurations."""
    return sorted({one.criterion.rule({}) for one in answers.values()} - {""})


def deciders_of(answers: Mapping[SettingKey, Answer]) -> list[str]:
    """Return what else makes another comparison of equal configurations: rules, and the least difference in `run`."""
    least = {f"min_effect = {of.criterion.least}" for of in answers.values() if of.criterion.least}
    return [*rules_of(answers), *sorted(least)]


def numbers_of_rows(
    summary: pd.DataFrame, more: Mapping[tuple[str, str], Mapping[str, float]]
) -> dict[tuple[str, str], dict[str, float]]:
    """Return (setting, row) -> the numbers of one study by their names in the record. more: further ones."""
    numbers: dict[tuple[str, str], dict[str, float]] = {}
    for _, row in summary.iterrows():
        values = {key.format(metric=row["metric"]): row[column] for key, column in HEADLINE.items()}
        for split in SPLITS:
            mean, margin = row[f"{split}_mean"], row[f"{split}_margin"]
            low, high = np.clip([mean - margin, mean + margin], *bounds(METRICS[row["metric"]]))
            values |= {f"{split}/{row['metric']}_low": low, f"{split}/{row['metric']}_high": high}
        own = (row["setting"], row["method"])
        numbers[own] = {
            key: float(value) / (1e6 if key.endswith("_MB") else 1)
            for key, value in {**values, **more.get(own, {})}.items()
            if pd.notna(value)
        }
    return numbers


def numbers_of_answers(answers: Mapping[SettingKey, Answer]) -> dict[str, float]:
    """Return what the answers of one study say in numbers; of several settings by these, the first FEW."""
    numbers: dict[str, float] = {}
    plain = apart((setting for _, _, setting in answers), lambda name: re.sub(r"[^\w. -]", "_", name))
    for (_, _, setting), answer in [*answers.items()][:FEW]:
        advice = answer.advice
        prefix = "" if len(answers) == 1 else f"{plain[setting]}/"
        best = advice.value if advice.judged == advice.method else advice.best_value
        values = {"best": best, "alone": advice.alone_value}
        if advice.gain is not None:
            values |= {"gain": advice.gain.mean, "gain_low": advice.gain.low, "gain_high": advice.gain.high}
        numbers |= {f"{prefix}{key}": float(value) for key, value in values.items() if value is not None}
    return numbers


def new_device_numbers(
    table: pd.DataFrame, study: str, answers: Mapping[SettingKey, Answer]
) -> dict[tuple[str, str], dict[str, float]]:
    """Return (setting, row) -> the means over devices that took no part, as numbers of the record."""
    numbers: dict[tuple[str, str], dict[str, float]] = {}
    for (_, _, setting), answer in answers.items():
        if answer.new_device is None:
            continue
        rows = table[(table["study"] == study) & (table["setting"] == setting)]
        criterion = answer.criterion.of_table(rows)
        for row, values in runs_on(rows, LEFT_OUT, criterion.metric).items():
            mean = values[list(answer.new_device.measured.weights)].mean().mean()
            numbers[setting, str(row)] = {f"new_device/{criterion.metric.name}": criterion.metric.sign * float(mean)}
    return numbers


def proposals(
    results: Iterable[Path], answers: Mapping[SettingKey, Answer], parts: Collection[str] = ()
) -> dict[str, Evidence]:
    """Return the configurations of the runs to propose as champions, for each study and setting, and why.

    It is the row that the answer recommends, with the first seed. If nothing can be said, it is the best on validation
    data; but as a first champion the simplest that serves every device: the best that trains alone, or else of those
    with one model for all. Controls are never proposed, and nothing is without a score. Of several settings the first
    is one whose answer recommends, and of these, or else of all, the best on validation data. parts: as for `describe`.
    """
    by_setting: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = {}
    for run in read_runs(results):
        if not run["control"]:
            by_method = by_setting.setdefault((run["study"], run["setting"]), {})
            by_method.setdefault(run["method"], []).append(run)
    said = {(study, setting): answer for (study, _, setting), answer in answers.items()}
    chosen: dict[str, tuple[Evidence, float]] = {}
    for setting_key, rows in by_setting.items():
        by_seed = {name: pd.Series({run["seed"]: run["validation"] for run in runs}) for name, runs in rows.items()}
        known = {name: values.to_frame("all") for name, values in by_seed.items() if values.notna().all()}
        scores = SetScores(known, {}, pd.Series({"all": 1.0}), RATIO)
        answer, whole = said.get(setting_key), setting_key[0] not in parts
        advised, simple = (answer.advised, answer.simple) if answer else (None, None)
        serving = [simple] if simple in known else [name for name in known if rows[name][0]["candidate"]] or [*known]
        best = scores.best(known) if known else None
        names = [advised] if advised else [*dict.fromkeys([scores.best(serving), best] if known else ())]
        of_new = answer.new_device.advice if answer and answer.new_device else None
        for_new = of_new.method if of_new and of_new.action is Action.USE else None
        for name in dict.fromkeys([*names, for_new]):
            if name in rows:
                new: Literal["", "also", "only"] = "" if name != for_new else "also" if name in names else "only"
                config = min(rows[name], key=lambda run: run["seed"])["config"]
                guesses = answer is not None and answer.is_guess(name)
                evidence = Evidence(
                    len(rows[name]), advised is not None, name not in (advised, best), whole, guesses, new
                )
                chosen[config] = evidence, scores.mean(name) if name in known else -math.inf
    ordered = sorted(
        chosen.items(),
        key=lambda item: (item[1][0].new == "only", not item[1][0].shown, not item[1][0].first, -item[1][1]),
    )
    return {config: evidence for config, (evidence, _) in ordered}
