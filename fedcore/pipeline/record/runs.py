"""The record in MLflow: one run per method, seed and configuration, under a parent per study, size and data.

A comparison has a run for its request, and below it one for each method with the means over seeds. Tags say what a run
is: `kind` is seed, control, final fit, method, study or field; `latest` is true for those of a study's last request.

MLflow is never an input to a computation. A run is identified by the digest of its configuration, so that a retried,
resumed or repeated flow continues the same run. It writes the same values again under the same keys and times, and
MLflow keeps each of them once.
"""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
import torch
from filelock import FileLock
from mlflow import MlflowClient, entities
from mlflow.entities import LoggedModel, Metric, Param, Run, RunTag
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.tracking.context.default_context import DefaultRunContext
from mlflow.utils.mlflow_tags import MLFLOW_GIT_COMMIT, MLFLOW_LOGGED_ARTIFACTS, MLFLOW_SOURCE_NAME
from mlflow.utils.time import get_current_time_millis

from fedcore import data as sources
from fedcore.api.serving import tensors_file
from fedcore.config.settings import apart, slug
from fedcore.core.metrics import recorded
from fedcore.data import drift
from fedcore.data.encoding import from_json, to_json
from fedcore.data.schema import Schema as DataSchema
from fedcore.errors import InputError
from fedcore.partition import Partition
from fedcore.pipeline import environment
from fedcore.pipeline.cache.store import Ref, Store
from fedcore.pipeline.command import naming
from fedcore.pipeline.files import HELD, PATCH, SCHEMA, STEPS, TABLE, TRAINED
from fedcore.pipeline.record import contents, models, promotion, registry, seals, tracked
from fedcore.pipeline.record.challenge import HOLD_OUT, files_of, lay_out, split_keys
from fedcore.pipeline.record.database import EXPERIMENT, open_database, relocate
from fedcore.pipeline.record.pictures import draw
from fedcore.pipeline.record.result import (
    CERTAIN,
    ComparedRequest,
    Evidence,
    Notice,
    Origin,
    PreparedData,
    PromotionCandidate,
    Result,
    Rule,
    StudyOnData,
    cut_value,
    params_of,
    worst_devices,
)
from fedcore.results import reports
from fedcore.results.criterion import Criterion
from fedcore.types.method import Report

REQUEST, ROWS = "fedcore.request", "fedcore.rows"
"""Tags of a study's run: the request whose numbers it has; and if another one was the first on its data, that run."""
PAIR = "fedcore.pair"
"""The tag of a request's run with the rows that its answer compares."""
LATEST, REQUESTS = "latest", "requests"
"""Tags of a run: whether it is of its study's last request; and the requests that have it."""
CHANGED = "changed"
"""The tag of a request's run with what changed since the last other run of its study."""
ASKED, PART = "fedcore.asked", "fedcore.part"
"""Tags of a request's run: when it was asked last, in ms; "true" if not all methods and seeds of the study were."""
WORST = "worst_device"
"""The tag of a run with the name of the device that metric test/worst_device is of; over seeds, by its mean."""
MOST_REQUESTS = 100
"""The requests that a run names, the last ones."""

TRAINING = "workflowType=machine_learning"
"""Opens another page of MLflow's in that mode; the mode for language models is the default."""


def run_page(experiment: str, run: str) -> str:
    """Return the address of a run's page, after that of MLflow's server."""
    return f"#/experiments/{experiment}/runs/{run}?{TRAINING}"


class Record:
    """Writes runs (of a flow: `fedcore.pipeline.record.writer`)."""

    def __init__(self) -> None:
        self.lock = FileLock(environment.STATE / "mlflow.lock")
        self.began = get_current_time_millis()
        with self.lock:
            open_database(mlflow.get_tracking_uri())
            self.client = MlflowClient()
            experiment = self.client.get_experiment_by_name(EXPERIMENT)
            mode = {"mlflow.experimentKind": "custom_model_development"}  # opens MLflow's page for training on its runs
            self.experiment = str(
                experiment.experiment_id if experiment
                else self.client.create_experiment(EXPERIMENT, environment.ARTIFACTS.as_uri(), mode)
            )  # fmt: skip
            relocate(mlflow.get_tracking_uri(), environment.ARTIFACTS)

    def save(self, store: Store, result: Result, title: str, drawn: Mapping[str, bytes] | None = None) -> None:
        """Write a method's result to its run, unless the run has it. drawn: its pictures, if they exist.

        The run of a final fit is below the study's run whose method it repeats, and names the data of that one.
        """
        with self.lock:
            if (run := self.find(result.config)) and has_result(run, result.digest):
                tables = [of["path"] for of in json.loads(run.data.tags.get(MLFLOW_LOGGED_ARTIFACTS, "[]"))]
                if result.tried and contents.RATES not in tables:
                    self.log_artifacts(run, {contents.RATES: contents.rate_table(result)})
                    self.client.log_batch(run.info.run_id, tags=[contents.tables_tag([*tables, contents.RATES])])
                if drawn is not None:
                    # A step was computed again, perhaps since a blob was damaged that was MLflow's file, too.
                    for logged in self.logged(run):
                        self.share(logged, store, result)
            else:
                self._save(store, result, title, drawn)

    def _save(self, store: Store, result: Result, title: str, drawn: Mapping[str, bytes] | None) -> None:
        """Write a method's result to its run."""
        setting, final = result.setting, result.final
        kind = "final fit" if final else "control" if result.row.control else "method"
        study = final.study if final else result.prepared
        hold_out = setting.federation.get("hold_out")
        name = None if result.row.control else registry.registered(setting.model_name)
        criterion = replace(result.criterion, metric=result.metric)
        of_label = [f"of {criterion.positive!r}"] if criterion.metric.of_positive else []
        rule = "; ".join(filter(None, [*of_label, criterion.rule(setting.scoring.get("costs") or {})]))
        tags = {
            "fedcore.kind": kind, "fedcore.study": setting.study, "fedcore.dataset": setting.data_name,
            "fedcore.setting": setting.name, "fedcore.size": result.size, "fedcore.method": result.row.label,
            "fedcore.seed": str(result.seed), promotion.METRIC: result.metric.name,
            "fedcore.data": study.dataset.digest, "fedcore.partition": study.partition.digest,
            **({registry.FINAL_FIT_OF: final.version, registry.STUDY_RUN: final.run} if final else {}),
            **({HOLD_OUT: hold_out} if hold_out else {}),
            **({promotion.MODEL: name} if name else {}),
            promotion.SERVES_NEW: "yes" if len(distinct_models(result)[0]) == 1 else "no",
            **({"fedcore.edited_tasks": ", ".join(result.tasks)} if result.tasks else {}),
            **({promotion.RULE: rule} if rule else {}),
        }  # fmt: skip
        worst = [(WORST, device) for of in worst_devices(result.table, criterion).values() for device in of.values()]
        shown = {**contents.user_tags(tags), **result.thread, **({} if final else {LATEST: "false", **dict(worst)})}
        dataset, partition = result.prepared.load(store)
        schema = result.schema(dataset, partition)
        profile = {"examples": len(dataset.train), "classes": list(dataset.classes), "shape": list(schema.shape)}
        digest, path = result.prepared.dataset.digest, setting.data.get("path")
        about = contents.about_data(setting.data_name, digest, profile, dataset, path)
        parent = final.run if final else self.parent(result.study, title, about)
        run = self.open(result.config, result.name, tags | shown, parent)
        model = self.model(run, store, result, schema, dataset, partition)
        if name:
            seals.seal(name, model.artifact_location)
        if final:
            self.register(run, model, setting.model_name, tags, contents.describe_final_fit(result))
        self.write(
            run, params=params_of(result, dataset), table=result.table, seconds=result.seconds,
            about=about, turn_reports=result.reports, drawn=draw(store, result) if drawn is None else drawn,
            schema=schema, criterion=criterion,
            files=contents.origin_files(result) | ({} if final else uncommitted())
            | (keys_of_rows(store, result.prepared, hold_out == "stable_each") if hold_out else {}),
        )  # fmt: skip
        self.close(run, result.digest)

    def search(self, query: str = "") -> list[Run]:
        """Return all runs that a query of MLflow's finds."""
        runs: list[Run] = mlflow.search_runs([self.experiment], query, output_format="list")
        return runs

    def find(self, config: str) -> Run | None:
        """Return the run of a configuration."""
        runs = self.client.search_runs([self.experiment], f"tags.`fedcore.config` = '{config}'", max_results=1)
        return runs[0] if runs else None

    def open(self, config: str, name: str, tags: Mapping[str, str], parent: str | None) -> Run:
        """Return the run of a configuration; creates it if there is none."""
        with self.lock:
            existing = self.find(config)
            if existing is None:
                lineage = {"mlflow.parentRunId": parent} if parent else {}
                tags = {"fedcore.config": config, **tags, **lineage, **source_tags()}
                return self.client.create_run(self.experiment, None if parent else self.began, tags, name)
            if existing.info.status != "RUNNING":
                self.client.update_run(existing.info.run_id, status="RUNNING")
            return existing

    def parent(self, of: StudyOnData, title: str, about: entities.Dataset | None = None) -> str:
        """Return the id of a study's run on its data; on other data it has another run.

        about: the dataset, with its number of `examples`, which the run gets once as parameter `rows`.
        """
        with self.lock:
            run = self.find(of.config)
            if run and run.info.status == "FINISHED" and (about is None or "rows" in run.data.params):
                return str(run.info.run_id)
            run = self.open(of.config, of.name, of.tags | {"mlflow.note.content": title}, None)
        where = str(run.info.run_id)
        if about and "rows" not in run.data.params:
            self.client.log_batch(where, params=[Param("rows", str(json.loads(about.profile)["examples"]))])
            self.log_dataset(where, about)
        self.client.set_terminated(where, "FINISHED")
        return where

    def log_dataset(self, where: str, about: entities.Dataset) -> None:
        tag = entities.InputTag("mlflow.data.context", "federation")
        self.client.log_inputs(where, [entities.DatasetInput(about, [tag])])

    def _tag(self, run: Run, tags: Mapping[str, str]) -> None:
        """Set tags of a run in one call, unless it has them."""
        if not tags.items() <= run.data.tags.items():
            self.client.log_batch(run.info.run_id, tags=[RunTag(key, value) for key, value in tags.items()])

    def write(
        self, run: Run, *, params: Mapping[str, Any], table: pd.DataFrame, seconds: pd.DataFrame,
        about: entities.Dataset, turn_reports: Sequence[Report], drawn: Mapping[str, bytes],
        schema: DataSchema | None = None, files: Mapping[str, bytes] | None = None, criterion: Criterion = Criterion(),
    ) -> None:  # fmt: skip
        """Write a run's parameters, metrics, tables, dataset, schema, reports, pictures; again, it changes nothing.

        files: further ones, path in the run -> content. criterion: the metric that decides, and the devices that count.
        """
        where, start = run.info.run_id, run.info.start_time
        means = contents.rounds(table, criterion)
        points = list(contents.metrics(means, float(seconds["wall"].sum()), start, criterion.metric))
        self.log_dataset(where, about)
        words = [pair for report in turn_reports for pair in report.words.items()]
        files = {**(files or {}), **{f"words/{contents.safe_name(name)}.txt": text.encode() for name, text in words}}
        courses = [*reports.series(turn_reports).values()]
        arrays = {metric: torch.tensor(course) for numbers in courses for metric, course in numbers.items()}
        folds = contents.fold_files(reports.folds(turn_reports))
        for name, tensor in {**reports.matrices(turn_reports), **arrays}.items():
            if not (folds and name.startswith("plan/")):  # it is a fold's
                path = "/".join(contents.safe_name(part) for part in name.split("/"))
                files[f"arrays/{path}.npy"] = contents.to_npy(tensor.numpy())
        tables = {
            contents.DEVICES: contents.device_table(table, criterion.metric), contents.ROUNDS: contents.to_table(means),
            STEPS: contents.to_table(seconds[["kind", "wall", "cpu"]]),
        }  # fmt: skip
        tables |= {contents.FOLDS: folds.pop(contents.FOLDS)} if folds else {}
        files |= tables | folds | {TABLE: table.to_parquet(index=False)}
        files |= {f"pictures/{name}.png": picture for name, picture in drawn.items()}
        files |= {SCHEMA: to_json(schema).encode()} if schema else {}
        self.log_artifacts(run, files)
        named = [Param(key, cut_value(value)) for key, value in params.items()]
        tag = contents.tables_tag(path for path in (*tables, contents.RATES) if path in files)
        self.client.log_batch(where, points, named, [tag])

    def close(self, run: Run, result: str) -> None:
        self.client.set_tag(run.info.run_id, "fedcore.result", result)
        self.client.set_terminated(run.info.run_id, "FINISHED")

    def model(
        self, run: Run, store: Store, result: Result, schema: DataSchema, dataset: sources.Dataset, partition: Partition
    ) -> LoggedModel:
        """Log the models that the devices of a run deploy, once per run; returns their entry.

        dataset, partition: the dataset and the partition that they were trained on.
        """

        def fill(folder: Path) -> None:
            distinct, devices = distinct_models(result)
            loaded = [(store.get(ref), net) for ref, net in distinct]
            costs = result.fed.scoring.costs
            models.write(folder, schema, result.setting.nets, loaded, devices, result.threshold, costs)
            models.write_reference(folder, dataset, partition)

        logged = self.log_model(run, result.row.label, fill)
        self.share(logged, store, result)
        return logged

    def log_model(self, run: Run, label: str, fill: Callable[[Path], object]) -> LoggedModel:
        """Log the models that a function writes to a folder, once per run; returns their entry.

        An entry whose logging was cut short is continued.
        """
        where = run.info.run_id
        begun = None
        for logged in self.logged(run):
            if str(logged.status) == "READY":
                return logged
            begun = logged
        logged = begun or mlflow.initialize_logged_model(
            re.sub(r"\W+", "-", label), source_run_id=where, experiment_id=self.experiment
        )
        # A run must not have a model among its outputs twice.
        named = begun and {output.model_id for output in self.client.get_run(where).outputs.model_outputs}
        if not named or logged.model_id not in named:
            self.client.log_outputs(where, [entities.LoggedModelOutput(logged.model_id, step=0)])
        with tempfile.TemporaryDirectory() as folder, naming(folder), models.quiet():
            fill(Path(folder) / models.FOLDER)
            what = models.log_arguments(Path(folder))
            card = mlflow.models.Model(
                logged.artifact_location, where, model_uuid=logged.model_id, metadata=what["metadata"],
                model_id=logged.model_id,
            )  # fmt: skip
            mlflow.pyfunc.save_model(path=f"{folder}/logged", mlflow_model=card, **what)
            self.log_files(logged.artifact_location, f"{folder}/logged")
        self.client.finalize_logged_model(logged.model_id, entities.LoggedModelStatus.READY)
        return logged

    def logged(self, run: Run) -> list[LoggedModel]:
        """Return the models that a run has logged or begun to log."""
        return [*self.client.search_logged_models([self.experiment], f"source_run_id = '{run.info.run_id}'")]

    def share(self, logged: LoggedModel, store: Store, result: Result) -> None:
        """Let the files of a logged model be the store's blobs of its models, if they are in this project."""
        with suppress(InputError):
            folder = seals.own_folder(logged.artifact_location, logged.name)
            for i, (ref, _) in enumerate(distinct_models(result)[0]):
                store.share(ref, folder / "data" / models.FOLDER / tensors_file(i))

    def register(
        self, run: Run, logged: LoggedModel | str, model_name: str, tags: Mapping[str, str],
        description: str | None = None,
    ) -> ModelVersion:  # fmt: skip
        """Register a run's models, once, or what is at a place of its artifacts; returns their version."""
        name = registry.registered(model_name)
        model_id, place = (None, logged) if isinstance(logged, str) else (logged.model_id, logged.artifact_location)
        with self.lock:
            for version in self.client.search_model_versions(f"run_id = '{run.info.run_id}'"):
                return version
            seals.seal(name, place)
            create = partial(
                self.client.create_model_version, name, f"models:/{model_id}" if model_id else place, run.info.run_id,
                tags=dict(tags), model_id=model_id, description=description,
            )  # fmt: skip
            try:
                return create()
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
                self.client.create_registered_model(name, description="The models that the devices of a run deploy")
                return create()
            finally:
                relocate(mlflow.get_tracking_uri(), environment.ARTIFACTS)

    def version_of(self, run: Run) -> ModelVersion | None:
        """Return the version of a run's models, which are registered if they are not; None for a control."""
        for version in self.client.search_model_versions(f"run_id = '{run.info.run_id}'"):
            return version
        name = run.data.tags.get(promotion.MODEL)
        if name is None:
            return None
        (logged,) = self.logged(run)
        seals.check(name, logged.artifact_location, f"run {run.info.run_id}")
        own = ("fedcore.config", "fedcore.result", promotion.MODEL)
        tags = {key: tag for key, tag in run.data.tags.items() if key.startswith("fedcore.") and key not in own}
        return self.register(run, logged, name.removeprefix(registry.FAMILY), tags)

    def register_run(self, model_name: str, begin: str) -> ModelVersion:
        """Return the version of the run whose id begins so; raises InputError unless it is one of that model."""
        query = f"tags.`{promotion.MODEL}` = '{registry.registered(model_name)}' and attributes.run_id LIKE '{begin}%'"
        runs = self.client.search_runs([self.experiment], query) if begin.isalnum() else []
        version = self.version_of(runs[0]) if len(runs) == 1 else None
        if version is None:
            raise InputError(
                f"--run = {begin!r}: no run of {model_name} begins so; fedcore promote {model_name} --seeds"
            )
        answered = self.search(f"tags.kind = 'method' and tags.runs LIKE '%{version.run_id}%'")
        last = max(answered, key=lambda of: (of.data.tags[LATEST] == "true", of.info.start_time), default=None)
        if last and (shown := last.data.tags.get(registry.SHOWN)):
            self.client.set_model_version_tag(version.name, version.version, registry.SHOWN, shown)
            version = self.client.get_model_version(version.name, version.version)
        return version

    def propose(
        self, configs: Mapping[str, Evidence], rule: Rule, promote: bool = False, final_fit: bool = False
    ) -> tuple[list[Notice], list[PromotionCandidate]]:
        """Propose the versions of configurations' runs, the first one for each registered model; returns notices of
        them, and those to be promoted by a final fit that is not there yet.

        See :mod:`fedcore.pipeline.record.promotion`. configs: why each is proposed. promote: those that
        are better, by their final fit or as they are.
        """
        notices, candidates = [], []
        with self.lock:
            for version, config in self._versions(configs):
                proposal = promotion.mark_candidate(self.client, version, rule, configs[config])
                final = promotion.final_fit_of(self.client, version) if final_fit else None
                if not (promote and proposal.accepted):
                    notices.append(Notice(proposal.advice))
                elif final_fit and final is None:
                    candidates.append(PromotionCandidate(config, str(version.version), version.run_id))
                else:
                    try:
                        promotion.promote(self.client, final or version, proposal)
                        notices.append(Notice(proposal.promoted(final), "promoted"))
                    except InputError as reason:
                        notices.append(Notice(f"{proposal}; it stays a candidate: {reason}"))
            notices += [*self._of_one_name(configs), *self._for_new_devices(configs)]
        return notices, candidates

    def _of_one_name(self, configs: Mapping[str, Evidence]) -> Iterable[Notice]:
        """Yield a line for each registered model that runs on several tables share, of which it is of one."""
        found = {config: run.data for config in configs if (run := self.find(config))}
        for version, config in self._versions(configs):
            own = found[config].params.get("data.path")
            of_name = (of.params for of in found.values() if of.tags.get(promotion.MODEL) == version.name)
            if others := dict.fromkeys(path for of in of_name if (path := of.get("data.path")) != own):
                name = version.name.removeprefix(registry.FAMILY)
                yield Notice(
                    f"{name} version {version.version} is of {own} alone: {', '.join(map(str, others))} has the same "
                    "name and label, and so the same registered model; give the files different names to have both"
                )

    def _for_new_devices(self, configs: Mapping[str, Evidence]) -> list[Notice]:
        """Return how to promote what the answer for new devices recommends, where it is not what is proposed."""
        proposed, lines = {config for _, config in self._versions(configs)}, dict[str, Notice]()
        for config in (config for config, why in configs.items() if why.new and config not in proposed):
            if (run := self.find(config)) and (model := run.data.tags.get(promotion.MODEL, "")):
                command = f"fedcore promote {model.removeprefix(registry.FAMILY)}"
                how = f": {command} --run={run.info.run_id[:8]}"
                if run.data.tags.get(promotion.SERVES_NEW) == "no":
                    own = "only devices' own models are recorded"
                    how = f"; {own}, so take a row with new devices: yes: {command} --list"
                line = f"For new devices the answer is {run.data.tags.get('fedcore.method')}{how}"
                lines.setdefault(model, Notice(line))
        return [*lines.values()]

    def check_drift(self, store: Store, result: Result) -> list[Notice]:
        """Compare the training rows of a result with those of its model's champion; returns a line about them.

        There is none without a champion, without a reference of it, and if both have the same data. While they drift, a
        tag of the champion names the last run before they did.
        """
        champion = promotion.alias(self.client, registry.registered(result.setting.model_name), registry.CHAMPION)
        if champion is None or champion.tags.get("fedcore.data") == result.prepared.dataset.digest:
            return []
        try:
            folder = files_of(champion)
        except InputError as refused:
            return [Notice(str(refused))]
        if (reference := models.load_reference(folder)) is None:
            return []
        schema = from_json((folder / "data" / models.FOLDER / SCHEMA).read_bytes())
        dataset, partition = result.prepared.load(store)
        beside = f"{champion.name}: training rows beside those of the champion, version {champion.version}"
        now = result.schema(dataset, partition)
        kinds, present = ({column.name: column.kind for column in of.columns} for of in (schema, now))
        fixed = ("classes", "task") + ("shape",) * (not kinds) + ("spelling",) * (now.columns != schema.columns)
        if not kinds.items() <= present.items() or any(getattr(now, key) != getattr(schema, key) for key in fixed):
            return [Notice(f"{beside}: drift not checked: other columns or classes")]
        if kinds:
            dataset = replace(dataset, train=replace(dataset.train, x=lay_out(dataset, schema)))
        changes = drift.lines(models.compare_training(reference, schema, dataset, partition))
        tag = registry.BEFORE_DRIFT
        if changes and tag not in champion.tags:
            last = promotion.alias(self.client, champion.name, registry.CANDIDATE) or champion
            self.client.set_model_version_tag(champion.name, champion.version, tag, registry.study_run(last))
        elif not changes and tag in champion.tags:
            self.client.delete_model_version_tag(champion.name, champion.version, tag)
        return [Notice(f"{beside}: {'; '.join(changes) or 'nothing has moved'}", "drifted" if changes else None)]

    def find_source(self, model_name: str, word: str) -> tuple[Origin, PromotionCandidate]:
        """Return a version by its number or alias, as one to be fitted finally, with what made it."""
        version = promotion.find(self.client, model_name, word)
        origin = promotion.read_origin(self.client, version)
        return origin, PromotionCandidate(origin.config, str(version.version), version.run_id)

    def save_final_fit(self, store: Store, result: Result, promote: bool) -> list[Notice]:
        """Write a final fit to its run and, if wanted, make it the champion; returns a line about that."""
        assert result.final is not None
        name = registry.registered(result.setting.model_name)
        with self.lock:
            version = self.client.get_model_version(name, result.final.version)
            proposal = promotion.last_comparison(self.client, version) if promote else None
            self.save(store, result, "", {})
            run = self.find(result.config)
            if proposal is None or run is None:
                return []
            (final,) = self.client.search_model_versions(f"run_id = '{run.info.run_id}'")
            line = proposal.promoted(final)
            promotion.promote(self.client, final, proposal)
            self.client.set_model_version_tag(name, final.version, registry.PROPOSAL, line)
        return [Notice(line, "promoted")]

    def _versions(self, configs: Mapping[str, Evidence]) -> Iterable[tuple[ModelVersion, str]]:
        """Return the first version for each registered model of configurations' runs, with its configuration."""
        first: dict[str, tuple[ModelVersion, str]] = {}
        for config, evidence in configs.items():
            run = None if evidence.new == "only" else self.find(config)
            name = str(run and run.data.tags.get(promotion.MODEL))
            late = name in first or (evidence.first and promotion.alias(self.client, name, registry.CHAMPION))
            if run and not late and (version := self.version_of(run)):
                first[version.name] = version, config
        return first.values()

    def _of_request(self, of: StudyOnData, compared: ComparedRequest, study: str) -> str:
        """Return the run for a request's numbers: the study's if it is the first on these data, else one of its own.

        study: the id of the study's run, below which the runs of all requests' rows are. MLflow deletes no number, so
        that in one run the rows and seeds of one request would stand beside those of another.
        """
        first, request = self.client.get_run(study), compared.request
        owner = first.data.tags.get(REQUEST)
        if owner == request:
            return study
        if owner is None and not first.data.metrics:
            self.client.set_tag(study, REQUEST, request)
            if compared.differs:
                self.client.update_run(study, name=f"{of.name} {compared.differs}")
            return study
        config, tags = f"{of.config} {request}", of.tags | {REQUEST: request, ROWS: study}
        differs = f" {compared.differs}" if compared.differs else f", {compared.size}"
        where = str(self.open(config, f"{of.name}{differs}, {request[:4]}", tags, None).info.run_id)
        for given in first.inputs.dataset_inputs:
            self.log_dataset(where, given.dataset)
        return where

    def export(self, configs: Mapping[str, bool], folder: Path) -> None:
        """Write the runs of configurations to a folder, in place of those there (fedcore/pipeline/record/tracked.py).

        configs: whether each is proposed, which brings its models. A run of another project has no files here, nor one
        that has lost them.
        """
        shutil.rmtree(folder, ignore_errors=True)
        runs = {config: run for config in configs if (run := self.find(config))}
        for config, name in apart(runs, lambda config: slug(runs[config].info.run_name)).items():
            run = runs[config]
            with suppress(InputError, FileNotFoundError):
                where = [seals.own_folder(of.artifact_location, of.name) for of in self.logged(run) if configs[config]]
                files = where[0] / "data" / models.FOLDER if where else None
                tracked.write_run(run, folder / name, files)

    def restore(self, studies: Path) -> dict[str, Evidence]:
        """Write the runs that DVC has brought to a clone (fedcore/pipeline/record/tracked.py), and register champions.

        Nothing is computed. Returns the configurations of the proposed runs. These have no result, so that a run of the
        same configuration here writes them again, with all of their files. studies: the folder with the results of each
        study.
        """
        proposed = {}
        for card in sorted(studies.glob(f"*/{tracked.RECORD}/*/{tracked.RUN}")):
            run = self._restore_run(card.parent)
            if (card.parent / tracked.MODELS).is_dir():
                proposed[run.data.tags["fedcore.config"]] = CERTAIN
        for champion in sorted((environment.HOME / tracked.CHAMPIONS).glob(f"*/{tracked.RECORD}")):
            studied, *final = sorted(champion.iterdir())
            version = self.version_of(self._restore_run(studied))
            if final and version:
                of = {registry.FINAL_FIT_OF: str(version.version), registry.STUDY_RUN: version.run_id}
                files = champion.parent / "data" / models.FOLDER
                version = self.version_of(self._restore_run(final[0], of, files))
            if version:
                self.client.set_registered_model_alias(version.name, registry.CHAMPION, version.version)
        return proposed

    def _restore_run(self, folder: Path, of: Mapping[str, str] = {}, files: Path | None = None) -> Run:
        """Write a run. of: the tags of a final fit. files: its models; by default those in the folder, if any."""
        card = json.loads((folder / tracked.RUN).read_text())
        tags = {**card["tags"], **of}
        study = StudyOnData(*(tags[f"fedcore.{name}"] for name in ("study", "size", "dataset", "data")))
        about = next((entities.Dataset(**dataset) for dataset in card["datasets"]), None)
        parent = of.get(registry.STUDY_RUN) or self.parent(study, "", about)
        run = self.open(card["config"], card["name"], {**tags, **contents.user_tags(tags)}, parent)
        self._tag(run, tags)  # of a champion it may have more than its study's run
        where, start, paths = run.info.run_id, run.info.start_time, folder / tracked.FILES
        points: list[Metric] = []
        if (paths / contents.ROUNDS).is_file():
            means = contents.read_device_table((paths / contents.ROUNDS).read_bytes(), "round").reset_index()
            points = [*contents.metrics(means, None, start, recorded(tags[promotion.METRIC]))]
        if about:
            self.log_dataset(where, about)
        self.log_files(run.info.artifact_uri, str(paths))
        known = (contents.DEVICES, contents.ROUNDS, contents.FOLDS, contents.RATES)
        tables = contents.tables_tag(name for name in known if (paths / name).is_file())
        self.client.log_batch(where, points, [Param(key, value) for key, value in card["params"].items()], [tables])
        if (files or folder / tracked.MODELS).is_dir():
            copy = partial(shutil.copytree, files or folder / tracked.MODELS)
            seals.seal(tags[promotion.MODEL], self.log_model(run, tags["fedcore.method"], copy).artifact_location)
        self.client.set_terminated(where, "FINISHED")
        return self.client.get_run(where)

    def describe(self, of: StudyOnData, compared: ComparedRequest) -> None:
        """Write a comparison to its request's run, and the numbers of each method to one below it.

        The runs of its seeds, and these, are the study's last ones: others lose tag `latest`, but not to a part's, nor
        those on the other data of the same request.
        """
        where = self.parent(of, compared.title)
        with self.lock:  # an equal flow at the same time writes no second points
            where = self._of_request(of, compared, where)
            asked = sorted(self.search(f"tags.study = '{of.study}' and tags.kind = 'study'"), key=last_asked)
            whole = [run for run in asked if run.info.run_id != where and not run.data.tags.get(PART)]
            last = [run for run in whole if run.data.tags.get(LATEST) == "true"] or whole[-1:]
            stays = {run.data.tags.get(REQUESTS, "") for run in last if compared.part} - {""}
            tags = {LATEST: str(not stays).lower(), REQUESTS: compared.request[:8]}
            query = f"tags.study = '{of.study}' and tags.{LATEST} = 'true'"
            before = {run.data.tags["fedcore.config"]: run for run in self.search(query)}
            current, beside = {where}, {contents.user_tags(other.tags)["data"] for other in compared.beside}
            for method in compared.methods:
                seeds = [run for config in method.configs if (run := before.get(config) or self.find(config))]
                for seed in seeds:
                    requests = dict.fromkeys([*seed.data.tags.get(REQUESTS, "").split(), tags[REQUESTS]])
                    named = {REQUESTS: " ".join([*requests][-MOST_REQUESTS:])}
                    named[LATEST] = str(not stays or bool(stays & {*requests})).lower()
                    self._tag(seed, contents.user_tags(seed.data.tags) | named)
                ids = [seed.info.run_id for seed in seeds]
                pages = [run_page(self.experiment, where) for where in ids]
                links = ", ".join(f"[{seed.info.run_name}]({page})" for seed, page in zip(seeds, pages, strict=True))
                own = {"fedcore.kind": "row", "fedcore.method": method.label, "fedcore.setting": method.setting}
                more = {"kind": "method", "seeds": str(len(method.configs)), "runs": " ".join(ids)}
                more |= {promotion.RULE: compared.rule, registry.SHOWN: method.shown}
                more |= {WORST: method.worst} if method.worst else {}
                more["mlflow.note.content"] = f"Devices, models and transport matrices are in {links}."
                config = f"{of.config} {compared.request} {method.setting} {method.label}"
                row = self.open(config, method.name, {}, where)
                self._numbers(row, method.numbers, {**tags, **contents.user_tags(of.tags | own), **more}, compared.rule)
                took = round(1000 * method.numbers.get("seconds", 0.0))  # MLflow's Duration, however often it is asked
                self.client.set_terminated(row.info.run_id, "FINISHED", row.info.start_time + took)
                current |= {row.info.run_id, *ids}
            for other in before.values():
                tagged = other.data.tags
                stays_too = tagged.get("data") in beside or stays & {*tagged.get(REQUESTS, "").split()}
                if other.info.run_id not in current and not stays_too:
                    self._tag(other, {LATEST: "false"})
            run = self.client.get_run(where)
            self.client.set_terminated(where, "FINISHED", run.info.end_time if REQUESTS in run.data.tags else None)
            changed = compared.changed or run.data.tags.get(CHANGED, "")
            parts = [compared.title, changed, compared.note]
            note = {"mlflow.note.content": contents.shorten_note("\n\n".join(filter(None, parts)))}
            note |= {CHANGED: changed} if changed else {}
            note |= {ASKED: str(get_current_time_millis()), PART: "true" if compared.part else ""}
            note |= {PAIR: json.dumps(compared.pair)} if compared.pair else {}
            self._numbers(run, compared.numbers, {**tags, **note, **contents.user_tags(of.tags)}, compared.rule)
            several = len({of.setting for of in compared.methods}) > 1
            rows = [
                {"method": of.label, **({"setting": of.setting} if several else {}), **of.numbers}
                | {WORST: of.worst, "setting": of.setting} for of in compared.methods
            ]  # fmt: skip
            tables = {contents.METHODS: contents.to_table(pd.DataFrame(rows))}
            tables |= {contents.LEFT: contents.to_table(pd.DataFrame(compared.left_out))} if compared.left_out else {}
            self.log_artifacts(run, {**compared.files, **tables})
            self.client.log_batch(where, tags=[contents.tables_tag(tables)])

    def _numbers(self, run: Run, numbers: Mapping[str, float], tags: Mapping[str, str], rule: str) -> None:
        """Write numbers without a step, as far as they are new, tags and any rule; the first seconds of all stay."""
        now, known = get_current_time_millis(), run.data.metrics
        new = {key: value for key, value in numbers.items() if known.get(key) != value}
        points = [Metric(key, value, now, 0) for key, value in new.items() if key != "seconds" or key not in known]
        params, named = [Param("rule", rule)] * bool(rule), [RunTag(key, value) for key, value in tags.items()]
        self.client.log_batch(run.info.run_id, points, params, named)

    def log_files(self, place: str, folder: str) -> None:
        """Log a folder's files. place: that of a run or model, which may be relative, also in another folder."""
        own = place.startswith(f"{environment.ARTIFACTS.name}/")
        get_artifact_repository(str(environment.ARTIFACTS.parent / place) if own else place).log_artifacts(folder)

    def log_artifacts(self, run: Run, files: Mapping[str, bytes]) -> None:
        """Log files of a run in one call. files: path in the run -> content."""
        with tempfile.TemporaryDirectory() as folder, naming(folder):
            for path, content in files.items():
                local = Path(folder) / path
                local.parent.mkdir(parents=True, exist_ok=True)
                local.write_bytes(content)
            self.log_files(run.info.artifact_uri, folder)


@cache
def source_tags() -> dict[str, str]:
    """Return MLflow's tags of who writes runs, by which command, and of the project's commit."""
    commit = git("rev-parse", "HEAD").decode().strip()
    tags = {**DefaultRunContext().tags(), MLFLOW_SOURCE_NAME: "fedcore", "processor": environment.processor_name()}
    return tags | ({MLFLOW_GIT_COMMIT: commit} if commit else {})


@cache
def uncommitted() -> dict[str, bytes]:
    """Return the project's changes that no commit has as a file of a run, if there are any."""
    changes = git("diff", "--binary", "--relative", "HEAD", "--", ".", ":!dvc.lock")
    return {PATCH: changes} if changes else {}


def git(*arguments: str) -> bytes:
    """Return the output of a git command in the current folder; none if it fails, or where there is no git."""
    try:
        ran = subprocess.run(["git", *arguments], capture_output=True)
    except OSError:
        return b""
    return ran.stdout if ran.returncode == 0 else b""


@lru_cache(maxsize=8)
def keys_of_rows(store: Store, of: PreparedData, each: bool = False) -> dict[str, bytes]:
    """Return the keys of the rows that a run may learn from, and of others, as files; a study's seeds share them."""
    trained, held = split_keys(*of.load(store), each)
    return {TRAINED: contents.to_npy(trained), HELD: contents.to_npy(held)}


def last_asked(run: Run) -> int:
    """Return when a request's run was asked last, in ms."""
    return int(run.data.tags.get(ASKED, run.info.end_time or 0))


def has_result(run: Run, result: str) -> bool:
    """Tell whether a run is complete and has this result."""
    return bool(run.data.tags.get("fedcore.result") == result and run.info.status == "FINISHED")


def distinct_models(result: Result) -> tuple[list[tuple[Ref, int]], dict[str, int]]:
    """Return the different models of a result's devices, each with the index of its net, and device -> its model."""
    nets = len(result.setting.nets)
    runs = {name: (result.models[name], i % nets) for i, name in enumerate(result.fed.devices)}
    distinct = list(dict.fromkeys(runs.values()))
    return distinct, {name: distinct.index(what) for name, what in runs.items()}
