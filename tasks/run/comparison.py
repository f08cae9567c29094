"""Combine many results: the tidy table, the summary, the page, and the alias of the best model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fedcore.results.answer import Answer, Place, answers
from fedcore.results.claims import judge_all, verdict_table
from fedcore.results.figures import accuracy_along, png
from fedcore.results.summary import NO_SECONDS, by_group, summarise
from fedcore.results.tidy import choose, transfer_seconds
from fedcore.types import InputError
from tasks.config.files import CLAIMS, GROUPS, INDEX, PAGE, PICTURES, RUNS, SECONDS, SUMMARY, TABLE
from tasks.config.papers import Paper, Papers, of_study
from tasks.config.settings import slug
from tasks.config.studies import Study, find_study, run_section
from tasks.report.page import html
from tasks.report.plots import Plots, draw
from tasks.report.tables import csv


@dataclass(frozen=True)
class Comparison:
    """The tables and pictures of a comparison. groups: the summary by group of devices. pictures: those that the runs
    drew, by study and setting. along: each study's accuracy over its grid. plots: those of the tables. papers: each
    study's conditions and figures. answers: what to do in each setting.
    """

    table: pd.DataFrame
    summary: pd.DataFrame
    groups: pd.DataFrame
    questions: dict[str, str]
    pictures: dict[tuple[str, str], dict[str, bytes]]
    claims: pd.DataFrame
    along: dict[str, bytes]
    plots: Plots
    papers: dict[str, Paper]
    answers: dict[Place, Answer]


def compare(
    params: Mapping[str, Any],
    results: Sequence[Path],
    seconds: Sequence[Path],
    divisions: Iterable[Path],
    papers: Papers | None = None,
) -> Comparison:
    """Compare results that are in some folders. divisions: pictures of partitions."""
    for missing in (path for folder in results if not (path := folder / TABLE).is_file()):
        raise InputError(f"{missing}: no such file; make it with: dvc repro")
    table = pd.concat([pd.read_parquet(folder / TABLE) for folder in results], ignore_index=True)
    chosen = {study: find_study(params, study) for study in table["study"].unique()}
    table = pd.concat([table, *derived(table, chosen)], ignore_index=True)
    spent = [pd.read_csv(folder / SECONDS) for folder in seconds if (folder / SECONDS).is_file()]
    frame = pd.concat(spent, ignore_index=True) if spent else NO_SECONDS
    studies = list(chosen)
    pictures: dict[tuple[str, str], dict[str, bytes]] = {}
    names = {slug(name): name for name in table["setting"].unique()}
    for path in divisions:
        place = (path.parts[-4], names.get(path.parts[-3], path.parts[-3]))
        pictures.setdefault(place, {})["Who holds what (first seed)."] = path.read_bytes()
    for folder in results:
        if (folder / PICTURES / INDEX).is_file():
            index = pd.read_csv(folder / PICTURES / INDEX, dtype=str, keep_default_na=False)
            for setting, file, caption in zip(index["setting"], index["file"], index["caption"], strict=True):
                place = (folder.name.rpartition("-")[0], setting)
                pictures.setdefault(place, {})[caption] = (folder / PICTURES / file).read_bytes()
    given = controls(results)
    tuned = {label for one in chosen.values() for label, rows in one.tuned.items() if given.issuperset(rows)}
    summary = summarise(table, frame, given | tuned)
    matters = run_section(params).matters
    points = grid(results)
    verdicts = [
        (study, verdict)
        for study in studies
        for rows in [table[table["study"] == study]]
        for verdict in judge_all(chosen[study].claims, chosen[study].valid, rows, points[study])
    ]
    grids = {
        study: png(accuracy_along(summary[summary["study"] == study], points[study], key))
        for study in studies
        if (key := chosen[study].along) and any(key in point for point in points[study].values())
    }
    return Comparison(
        table,
        summary,
        by_group(table),
        {study: chosen[study].title for study in studies},
        pictures,
        verdict_table(verdicts),
        grids,
        draw(table, summary),
        {study: paper for study in studies if (paper := of_study(papers or {}, study))},
        answers(table, given | tuned, matters),
    )


def derived(table: pd.DataFrame, studies: Mapping[str, Study]) -> Iterator[pd.DataFrame]:
    """Yield what studies derive from their results: tuned rows, and the seconds of a transfer on a given link."""
    for name, study in studies.items():
        mine = table[table["study"] == name]
        more = [choose(mine, label, rows) for label, rows in study.tuned.items()]
        yield from more
        if study.link is not None:
            yield transfer_seconds(pd.concat([mine, *more]), study.link)


def grid(results: Iterable[Path]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return study -> setting -> its point in the study's grid."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for folder in results:
        for run in json.loads((folder / RUNS).read_text()):
            found.setdefault(run["study"], {})[run["setting"]] = run["point"]
    return found


def controls(results: Iterable[Path]) -> frozenset[str]:
    """Return the labels of controls."""
    runs = [run for folder in results for run in json.loads((folder / RUNS).read_text())]
    return frozenset(run["method"] for run in runs if run["control"])


def write(found: Comparison, versioned: Path, unversioned: Path) -> None:
    """Write a comparison: tables and pictures to `versioned`, those with seconds and the page to `unversioned`."""
    versioned.mkdir(parents=True, exist_ok=True)
    unversioned.mkdir(parents=True, exist_ok=True)
    found.table.to_parquet(versioned / TABLE, index=False)
    for (study, setting), picture in found.plots.comparisons.items():
        (versioned / f"{slug(f'{study}-{setting}')}.png").write_bytes(picture)
    for place, picture in found.plots.courses.items():
        (versioned / f"{slug('-'.join(filter(None, place)))}-rounds.png").write_bytes(picture)
    for study, picture in found.along.items():
        (versioned / f"{study}.png").write_bytes(picture)
    (versioned / CLAIMS).write_text(csv(found.claims))
    (unversioned / SUMMARY).write_text(csv(found.summary))
    if len(found.groups):
        (unversioned / GROUPS).write_text(csv(found.groups))
    else:
        (unversioned / GROUPS).unlink(missing_ok=True)
    whole = html(
        found.table, found.summary, found.questions, found.pictures, found.claims, found.along, found.groups,
        found.plots, found.papers, found.answers,
    )  # fmt: skip
    (unversioned / PAGE).write_text(whole)


def champions(results: Iterable[Path]) -> dict[str, str]:
    """Return the runs with the best models on validation data: alias -> configuration digest.

    The best run of a setting has the highest mean accuracy over the devices' validation splits, among runs with one
    model for all devices; controls are excluded, and the shared test set is not used. The first study's first setting
    has the alias `champion`, others `champion-<study>-<setting>`. A setting without validation examples has none.
    """
    best: dict[tuple[str, str], tuple[float, str]] = {}
    for folder in results:
        for run in json.loads((folder / RUNS).read_text()):
            place = best.setdefault((run["study"], run["setting"]), (-1.0, ""))
            if run["candidate"] and run["validation"] is not None and run["validation"] > place[0]:
                best[run["study"], run["setting"]] = (run["validation"], run["config"])
    names = ["champion", *(re.sub(r"[^A-Za-z0-9]+", "-", f"champion-{s}-{t}") for s, t in list(best)[1:])]
    return {name: config for name, (_, config) in zip(names, best.values(), strict=True) if config}
