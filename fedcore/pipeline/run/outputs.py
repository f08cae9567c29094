"""The folders to which flows and the stages of `dvc repro` write, and what they write there."""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from os.path import exists, isfile, relpath
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from rich.progress import track as progress

from fedcore.builders import name_of, settings_of
from fedcore.config.files import read_mapping
from fedcore.config.papers import read_papers
from fedcore.config.params import read
from fedcore.config.request import Job
from fedcore.config.settings import Setting
from fedcore.config.studies import Run as RunSection
from fedcore.config.studies import find_study, grid_points, run_section
from fedcore.data.files import ROOT
from fedcore.data.registry import is_own, loader_of
from fedcore.errors import InputError
from fedcore.pipeline import answers
from fedcore.pipeline.cache.keys import own_places
from fedcore.pipeline.cache.store import Store, digest_of
from fedcore.pipeline.command import naming
from fedcore.pipeline.environment import processor_name
from fedcore.pipeline.files import LAST, PAGE
from fedcore.pipeline.record.result import Evidence, Result, StudyOnData, rule_of, worst_devices
from fedcore.pipeline.record.tracked import RECORD
from fedcore.pipeline.record.writer import RecordWriter
from fedcore.pipeline.run import comparison, history, partitions, repeat, run_method
from fedcore.report import figures
from fedcore.report.answers import brief, study_answers
from fedcore.report.history import changes, trends
from fedcore.report.page import Comparison
from fedcore.report.terminal import print_answers, print_claims, print_summary
from fedcore.results import tidy
from fedcore.results.reports import folds

PIPELINE = Path("pipeline")
"""The outputs of the stages of `dvc repro`."""
RESULTS = Path("results")
"""The page and the summary of `dvc repro`, which contain seconds."""
PROCESSOR = Path("dvc.processor")
"""What computed the outputs that dvc.lock has: the processor's model, and the instructions that PyTorch chose on it."""
RUNS = Path("runs")
"""Where runs by hand write, each to a folder of its own."""
SECONDS = RUNS / "seconds"


def data_folder(setting: Setting) -> Path:
    return PIPELINE / "data" / setting.study / setting.dataset


def partition_folder(setting: Setting, seed: int) -> Path:
    return PIPELINE / "partition" / setting.study / setting.slug / f"seed-{seed}"


def plan_settings() -> tuple[RunSection, list[Setting]]:
    """Return params.yaml's section run, and the settings of its studies; raises InputError before anything is read."""
    params = read()
    section = run_section(params)
    return section, [setting for study in section.studies for setting in grid_points(params, study, section.size, {})]


def write_plan() -> None:
    """Write all settings that a run of the studies uses, so that DVC runs a stage again if they change.

    Print a line for each file that they name and whose changes DVC would miss.

    pipeline/plan/{data,partition,federate}/STUDY.json contain no titles, no claims, and no methods that the study does
    not compare.
    """
    params = read()
    section, every = run_section(params), list[Setting]()
    for name in section.studies:
        every += (points := grid_points(params, name, section.size, {}))
        study = find_study(params, name, "run.studies")
        own = section.of(study)
        settings = [asdict(point) | {"data": point.content} for point in points]
        left_out, stops = own.new_device not in (None, "shared"), own.stop_rows == "auto"
        chooses = left_out or stops or any(point.rates for point in points)  # by what decides the answer
        plans: dict[str, Any] = {
            "data": {point.dataset: point.content for point in points},
            "partition": {"seeds": section.seeds, "points": {p.slug: [p.dataset, p.federation] for p in points}},
            "federate": {
                "size": section.size, "seeds": section.seeds, "show": study.figures, "settings": settings,
                **({"new_device": own.new_device} if left_out else {}), **({"stop_rows": True} if stops else {}),
                **({"rule": own.model_dump(include={"weigh", "least_test", "min_effect"})} if chooses else {}),
            },
        }  # fmt: skip
        for stage, plan in plans.items():
            path = PIPELINE / "plan" / stage / f"{name}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(plan, indent=1, default=name_of) + "\n")  # of a loss of one's own
    print(*(f"fedcore: {line}\n" for line in missed_files(params, every)), sep="", end="")


def missed_files(params: Mapping[str, Any], settings: Iterable[Setting]) -> Iterator[str]:
    """Yield a line for each file or folder in the project that settings name and no dep of its stage covers."""
    named: dict[str, list[str]] = {"data": [], "federate": []}
    for of in settings:
        takes, own = settings_of(loader_of(of.data["name"])), is_own(of.data["name"])
        data = {key: value for key, value in of.data.items() if own or "Path" in str(takes.get(key))}
        named["data"] += _texts([value for key, value in data.items() if (key, value) != ("root", ROOT)])
        words = _texts([of.nets, [[row.name, row.settings, row.training.settings()] for row in of.methods]])
        named["federate"] += [word for word in words if ":" in word or (isfile(word) and re.search("[./]", word))]
    for stage, texts in named.items():
        with suppress(InputError, KeyError, TypeError, ValueError):  # no dvc.yaml, or one of another make
            deps = read_mapping(Path("dvc.yaml"), "stages")["stages"][stage]["deps"]
            deps = [path for dep in deps for path in ([dep] if isinstance(dep, str) else dep)]
            value = partial(re.sub, r"\$\{(\w+)\.(\w+)}", lambda key: str(params.get(key[1], {}).get(key[2])))
            places = own_places(text.partition(":")[0] for text in texts if re.fullmatch(r"\w+(\.\w+)*:\w+", text))
            for path in dict.fromkeys(Path(relpath(of)) for of in (*filter(exists, texts), *map(str, places))):
                if path.parts[:1] != ("..",) and not any(path.is_relative_to(relpath(value(dep))) for dep in deps):
                    yield f'dvc.yaml: add "- {path}" to deps of stage {stage}, or dvc repro misses a change of it'


def _texts(value: Any) -> list[str]:
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [value] if isinstance(value, str) else [text for part in parts for text in _texts(part)]


def write_run(
    params: Mapping[str, Any], jobs: list[Job], results: Mapping[str, list[Result]], inputs: comparison.ComparisonInput,
    store: Store, writer: RecordWriter, lines: Sequence[history.Line],
) -> dict[str, Evidence]:  # fmt: skip
    """Write, compare and print the results of a run outside of `dvc repro`; returns what to propose, as `proposals`.

    lines: of the history.
    """
    everything = [result for job in jobs for result in results[job.name]]
    with repeat.printed():
        print_summary(inputs.summary)  # before pictures and pages, which take longer
    made_by = [*(result.config for result in everything), *comparison.deciders_of(inputs.answers)]
    folder = RUNS / digest_of("".join(made_by))[:12]
    folders = [folder / job.name for job in jobs]
    for job in progress(jobs, "writing results", transient=True, disable=not sys.stdout.isatty()):
        run_method.save(store, results[job.name], folder / job.name, folder / job.name)
    pictures, notes = {}, {}
    for result in {(r.setting.study, r.setting.name): r for r in reversed(everything)}.values():
        setting = result.setting
        divided = folder / "partition" / setting.study / setting.slug / f"seed-{result.seed}"
        partitions.save_partition(store, result.prepared, divided)
        pictures[setting.study, setting.name] = divided / "who.png"
        notes[setting.study, setting.name] = partitions.notes(store, result.prepared, setting.federation)
    writer.history += lines
    drawn = {key: figures.png(figure) for key, figure in trends([*history.read(), *writer.history]).items()}
    compared = comparison.compare(params, folders, folders, pictures, read_papers(params["studies"]), inputs, drawn)
    comparison.write(replace(compared, notes=notes), folder, folder)
    answers.keep(study_answers(compared.answers), None, folder)
    studies = {(result.setting.study, result.setting.name): result.study for result in everything}
    parts = {line["study"] for line in writer.history if not line["whole"]}
    comparison.describe(compared, studies, writer, folder / PAGE, parts)
    (RUNS / LAST).write_text(f"{folder.name}\n")  # a restored folder's date is of the restore
    repeat.note("", folder)
    with repeat.printed():
        print_claims(compared.claims)
        print(f"page: {folder / PAGE}   record: fedcore ui")
    return comparison.proposals(folders, compared.answers, parts)


def is_whole(jobs: Sequence[Job], study: str) -> bool:
    """Tell whether jobs have all methods of a study, and all seeds of params.yaml, whatever was typed."""
    params, own = read(), [job for job in jobs if job.study == study]
    asked, every = (
        {row.label for setting in settings for row in setting.methods}
        for settings in ([one for job in own for one in job.settings], grid_points(params, study, own[0].size, {}))
    )
    return asked >= every and {job.seed for job in own} >= {*run_section(params).seeds}


def report(
    params: Mapping[str, Any], jobs: list[Job], results: Mapping[str, list[Result]], store: Store,
    writer: RecordWriter, prepared: bool, refused: Mapping[tuple[str, str], str],
) -> tuple[dict[str, Evidence], str]:  # fmt: skip
    """Answer what the results say, print it, leave it on Prefect's page, and write all outputs of a run.

    refused: see `comparison.answer`. Returns what to propose, as `comparison.proposals`, nothing of a stage of
    `dvc repro`, whose last one does; and the answer in lines.
    """
    everything = [result for job in jobs for result in results[job.name]]
    tables, seconds = [result.table for result in everything], [result.seconds for result in everything]
    answered = comparison.answer(params, tables, seconds, [result.entry for result in everything], refused)
    lines = history.lines_of(everything, answered.answers, store)
    lines = lines if prepared else [line | {"whole": is_whole(jobs, line["study"])} for line in lines]
    since = changes(lines, history.read())
    worst = worst_devices(answered.table, {key: one.criterion for key, one in answered.answers.items()})
    for study, text in comparison.notes(answered.summary, answered.answers, worst).items():
        publish(f"answer {study}", "\n\n".join(filter(None, [since.get(study), text])), f"{study}: what to do")
    with repeat.printed():
        print_answers(study_answers(answered.answers))
    with naming(PIPELINE if prepared else RUNS):
        if prepared:
            for job in jobs:
                folder = PIPELINE / "federate" / job.study / job.name
                run_method.save(store, results[job.name], folder, SECONDS / job.name)
            for study in {job.study: job for job in jobs}:
                folders = [PIPELINE / "federate" / study / job.name for job in jobs if job.study == study]
                best = {
                    c
                    for c, why in comparison.proposals(folders, answered.answers).items()
                    if not why.first and why.new != "only"
                }
                configs = {run["config"]: run["config"] in best for run in comparison.read_runs(folders)}
                writer.export(configs, PIPELINE / "federate" / study / RECORD)
            history.hold(lines)
            return {}, brief(answered.answers)
        return write_run(params, jobs, results, answered, store, writer, lines), brief(answered.answers)


def publish(name: str, content: str | list[dict[str, Any]], description: str) -> None:
    """Leave a text in Markdown, or a table, as an artifact of this flow run; artifacts of one name have one key."""
    from prefect import artifacts  # loads Prefect, which a printed answer does not need

    key = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    key += "" if re.fullmatch(r"[\w =.,-]*", name, re.ASCII) else f"-{digest_of(name)[:8]}"
    if isinstance(content, str):
        artifacts.create_markdown_artifact(key=key, markdown=content, description=description)
    else:
        artifacts.create_table_artifact(key=key, table=content, description=description)


def publish_result(result: Result) -> None:
    """Leave a method's last scores and its traffic by device as an artifact, with the filter of its run in MLflow.

    The folds of a fusion follow in their order.
    """
    table = result.table[result.table["metric"].isin([result.metric.column, "bytes_up", "bytes_down"])]
    scores, sent = tidy.final(table[table["split"] != "traffic"]), table[table["split"] == "traffic"]
    parts = [scores.pivot_table("value", "device", "split"), sent.pivot_table("value", "device", "metric", "sum")]
    rows = pd.concat(parts, axis=1).reset_index(names="device")
    where = f"{result.metric.words} by split, and bytes; in MLflow: tags.`fedcore.config` = '{result.config}'"
    publish(f"devices {result.row.label}", json.loads(rows.to_json(orient="records")), where)
    if fused := folds(result.reports):
        order = pd.DataFrame([fold.row for fold in fused])[["order", "device", "into", "weight", "layer"]]
        chain = {fold.device for fold in fused} & {fold.into for fold in fused}
        what = "a chain, each device's side is the model fused so far" if chain else "in this order"
        what = f"which device was fused into which model: {what}; learning rate {result.row.training.lr:g}"
        publish(f"folds {result.row.label}", json.loads(order.to_json(orient="records")), what)


def stage_folders() -> tuple[list[Path], list[Path], dict[tuple[str, str], Path]]:
    """Return the folders of results and of seconds, and the pictures of partitions, for the studies of the run."""
    run, points = plan_settings()
    names = [(study, f"{study}-{seed}") for study in run.studies for seed in run.seeds]
    pictures = {(p.study, p.name): partition_folder(p, run.seeds[0]) / "who.png" for p in points}
    return [PIPELINE / "federate" / study / name for study, name in names], [SECONDS / n for _, n in names], pictures


def stage_studies() -> dict[tuple[str, str], StudyOnData]:
    """Return (study, setting) -> the study and the data that the stages of `dvc repro` have read for it."""
    section, points = plan_settings()
    return {
        (point.study, point.name): StudyOnData(
            point.study, section.size, point.data_name, partitions.digest_of_stage(data_folder(point))
        )
        for point in points
    }


def compare_stages() -> Comparison:
    """Compare the results of the stages of `dvc repro`, and write the comparison."""
    params = read()
    compared = comparison.compare(params, *stage_folders(), read_papers(params["studies"]))
    with naming(RESULTS):
        comparison.write(compared, PIPELINE / "compare", RESULTS)
        answers.keep(study_answers(compared.answers), PIPELINE / "compare", RESULTS)
    PROCESSOR.write_text(f"{processor_name()}, {torch.backends.cpu.get_cpu_capability()}\n")
    return compared


def open_clone() -> None:
    """Write the record of a clone from what DVC has brought, and say what is proposed; nothing is computed."""
    from fedcore.pipeline.record import runs  # takes MLflow

    record = runs.Record()
    proposed = record.restore(PIPELINE / "federate")
    with suppress(InputError):  # DVC has brought champions alone
        comparison.describe(compared := compare_stages(), stage_studies(), record, RESULTS / PAGE)
        why = comparison.proposals(stage_folders()[0], compared.answers)
        proposed = {config: why.get(config, proposed[config]) for config in [*why, *proposed] if config in proposed}
    notices, _ = record.propose(proposed, rule_of(read()))
    print("the record has what DVC has brought", *(notice.line for notice in notices), sep="\n")
