"""The record in MLflow: one run per method, seed and configuration, under a parent per study.

MLflow is never an input to a computation. A run is identified by the digest of its configuration, so that a retried,
resumed or repeated flow continues the same run. It writes the same values again under the same keys and times, and
MLflow keeps each of them once.
"""

from __future__ import annotations

import io
import json
import math
import re
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import torch
from filelock import FileLock
from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, Run
from mlflow.models import ModelSignature
from mlflow.types import Schema, TensorSpec
from torch import Tensor

from fedcore import data as sources
from fedcore import nets
from fedcore.data.encoding import to_json
from fedcore.data.schema import Schema as DataSchema
from fedcore.results import figures, reports, tidy
from fedcore.results.figures import png
from fedcore.results.summary import curves, groups
from fedcore.types import Model, Net, Params, Report
from tasks.cache.store import Store, digest_of
from tasks.config import environment
from tasks.config.files import SCHEMA
from tasks.record.result import Result
from tasks.report import pictures

EXPERIMENT = "fedcore"
REGISTERED = "fedcore-global"
BATCH = 1000


class Deployed(torch.nn.Module):
    """A deployed model as a module of its own: x (B, *shape) float32 -> log-probabilities (B, K)."""

    def __init__(self, net: Net, model: Model) -> None:
        super().__init__()
        self.members = torch.nn.ModuleList(_module(net, params) for params in model.members)
        self.log_weights = [math.log(weight) for weight in model.weights]

    def forward(self, x: Tensor) -> Tensor:
        parts = [member(x).log_softmax(1) + w for member, w in zip(self.members, self.log_weights, strict=True)]
        return parts[0] if len(parts) == 1 else torch.logsumexp(torch.stack(parts), 0)


def _module(net: Net, params: Params) -> torch.nn.Module:
    module = net.build()
    module.load_state_dict(params)
    return module.eval()


def create_database(uri: str) -> None:
    """Create MLflow's database atomically, if it is a file that does not exist.

    MLflow creates it by dozens of migrations; a database whose migrations were interrupted cannot be opened again.
    """
    kind, _, place = uri.partition("sqlite:///")
    path = Path(place)
    if kind or not place or path.exists():
        return
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    MlflowClient(f"sqlite:///{part}")
    part.replace(path)


class Record:
    """Writes runs (of a flow: `tasks.record.writer`)."""

    def __init__(self) -> None:
        self.lock = FileLock(environment.STATE / "mlflow.lock")
        with self.lock:
            create_database(mlflow.get_tracking_uri())
            self.client = MlflowClient()
            found = self.client.get_experiment_by_name(EXPERIMENT)
            self.experiment = found.experiment_id if found else self._create()

    def _create(self) -> str:
        return str(self.client.create_experiment(EXPERIMENT, artifact_location=environment.ARTIFACTS.as_uri()))

    def save(self, store: Store, result: Result, title: str) -> None:
        """Write a method's result to its run, unless the run has it."""
        if self.is_complete(result.config, result.digest):
            return
        setting = result.setting
        tags = {
            "fedcore.kind": "control" if result.control else "method", "fedcore.study": setting.study,
            "fedcore.setting": setting.name, "fedcore.size": result.size, "fedcore.method": result.row.label,
            "fedcore.seed": str(result.seed), "fedcore.dataset": setting.data["name"],
            "fedcore.partition": result.prepared.partition.digest,
        }  # fmt: skip
        run = self.open(result.config, result.name, tags, self.parent(setting.study, result.size, title))
        held: sources.Dataset = store.get(result.prepared.dataset)
        shape, classes = tuple(held.train.x.shape[1:]), list(held.classes)
        # The model is logged first, since MLflow copies the metrics that its run already has to it one by one.
        if result.shared is not None:
            net = next(iter(result.fed.devices.values())).net
            model = self.model(run, net, store.get(result.shared), shape, classes)
            if not result.control:
                self.register(run, model, tags)
        profile = {"examples": len(held.train), "classes": classes, "shape": list(shape)}
        self.write(
            run, params=_params(result), table=result.table, seconds=result.seconds,
            dataset=(setting.data["name"], result.prepared.dataset.digest, profile), turn_reports=result.reports,
            drawings=_pictures(store, result),
            models={} if result.shared is not None else {d: store.path(ref) for d, ref in result.models.items()},
            schema=result.schema(store),
        )  # fmt: skip
        self.close(run, result.digest)

    def find(self, config: str) -> Run | None:
        """Return the run of a configuration."""
        query = f"tags.`fedcore.config` = '{config}'"
        runs = self.client.search_runs([self.experiment], query, max_results=1)
        return runs[0] if runs else None

    def is_complete(self, config: str, result: str) -> bool:
        """Tell whether a configuration's run already has this result."""
        run = self.find(config)
        return run is not None and run.data.tags.get("fedcore.result") == result and run.info.status == "FINISHED"

    def open(self, config: str, name: str, tags: Mapping[str, str], parent: str | None) -> Run:
        """Return the run of a configuration; creates it if there is none."""
        with self.lock:
            run = self.find(config)
            if run is None:
                lineage = {"mlflow.parentRunId": parent} if parent else {}
                run = self.client.create_run(
                    self.experiment, run_name=name, tags={"fedcore.config": config, **tags, **lineage}
                )
            elif run.info.status != "RUNNING":
                self.client.update_run(run.info.run_id, status="RUNNING")
        return run

    def parent(self, study: str, size: str, title: str) -> str:
        """Return the id of a study's run."""
        run = self.open(
            f"study {study} {size}", f"{study} ({size})",
            {"fedcore.kind": "study", "fedcore.study": study, "fedcore.size": size, "mlflow.note.content": title}, None,
        )  # fmt: skip
        self.client.set_terminated(run.info.run_id, "FINISHED")
        return str(run.info.run_id)

    def write(
        self,
        run: Run,
        *,
        params: Mapping[str, Any],
        table: pd.DataFrame,
        seconds: pd.DataFrame,
        dataset: tuple[str, str, Mapping[str, Any]],
        turn_reports: Sequence[Report],
        drawings: Mapping[str, pictures.Picture],
        models: Mapping[str, Path],
        schema: DataSchema | None = None,
    ) -> None:
        """Write a run's parameters, metrics, dataset, schema, reports, pictures, models; again, it changes nothing."""
        where = run.info.run_id
        self.client.log_batch(where, params=[Param(key, _shorten(value)) for key, value in params.items()])
        start = run.info.start_time
        courses = reports.series(turn_reports)
        metrics = list(_metrics(table, seconds, start, courses))
        name, digest, profile = dataset
        entity = Dataset(
            name, digest[:36], "code", json.dumps({"tags": {"fedcore.dataset": name}}), None, json.dumps(profile)
        )
        self.client.log_inputs(where, [DatasetInput(entity, [InputTag("mlflow.data.context", "federation")])])
        words = {f"words/{_safe_name(name)}.txt": text for one in turn_reports for name, text in one.words.items()}
        files = {path: text.encode() for path, text in words.items()}
        arrays = {metric: torch.tensor(course) for numbers in courses.values() for metric, course in numbers.items()}
        for name, leaf in {**reports.matrices(turn_reports), **arrays}.items():
            path = "/".join(_safe_name(part) for part in name.split("/"))
            files[f"arrays/{path}.npy"] = _npy(leaf.numpy())
            if leaf.ndim == 1:
                key = path.replace("/", ".")
                metrics += [Metric(key, x, start + i, i) for i, x in enumerate(leaf.tolist()) if math.isfinite(x)]
        for first in range(0, len(metrics), BATCH):
            self.client.log_batch(where, metrics=metrics[first : first + BATCH])
        files |= {f"pictures/{name}.png": picture() for name, picture in drawings.items()}
        files |= {SCHEMA: to_json(schema).encode()} if schema else {}
        files |= {f"devices/{_safe_name(device)}.safetensors": path.read_bytes() for device, path in models.items()}
        self._artifacts(where, files)

    def close(self, run: Run, result: str) -> None:
        self.client.set_tag(run.info.run_id, "fedcore.result", result)
        self.client.set_terminated(run.info.run_id, "FINISHED")

    def model(self, run: Run, net: Net, model: Model, shape: tuple[int, ...], classes: list[str]) -> str:
        """Log the model that all devices run, once per run; returns its id."""
        where = run.info.run_id
        for logged in self.client.search_logged_models([self.experiment], f"source_run_id = '{where}'"):
            if str(logged.status) == "READY":
                return str(logged.model_id)
            self.client.delete_logged_model(logged.model_id)
        with mlflow.start_run(run_id=where):
            info = mlflow.pytorch.log_model(
                **_export_arguments(net, model, shape, classes), name="global",
                validate_serving_input=False,  # it would load each model again
            )  # fmt: skip
        return str(info.model_id)

    def register(self, run: Run, model_id: str, tags: Mapping[str, str]) -> None:
        """Register a run's global model, once."""
        with self.lock:
            if self.client.search_model_versions(f"run_id = '{run.info.run_id}'"):
                return
            if not self.client.search_registered_models(f"name = '{REGISTERED}'"):
                self.client.create_registered_model(REGISTERED, description="Models that all devices of a run share")
            self.client.create_model_version(
                REGISTERED, f"models:/{model_id}", run.info.run_id, tags=dict(tags), model_id=model_id
            )

    def set_champion(self, alias: str, config: str) -> None:
        """Point an alias to the version of a configuration's run."""
        run = self.find(config)
        versions = self.client.search_model_versions(f"run_id = '{run.info.run_id}'") if run else []
        if versions:
            self.client.set_registered_model_alias(REGISTERED, alias, versions[0].version)

    def _artifacts(self, run_id: str, files: Mapping[str, bytes]) -> None:
        """Log files in one call, since MLflow looks up the run for each. files: path in the run -> content."""
        with tempfile.TemporaryDirectory() as folder:
            for path, content in files.items():
                local = Path(folder) / path
                local.parent.mkdir(parents=True, exist_ok=True)
                local.write_bytes(content)
            self.client.log_artifacts(run_id, folder)


def warm_up() -> None:
    """Export a small model and discard it; the first export takes seconds for imports."""
    net = nets.net("mlp", shape=(1,), classes=2, widths=[1])
    model = Model((nets.init(net, torch.Generator()),))
    with tempfile.TemporaryDirectory() as folder:
        mlflow.pytorch.save_model(**_export_arguments(net, model, (1,), ["a", "b"]), path=f"{folder}/model")


def _export_arguments(net: Net, model: Model, shape: tuple[int, ...], classes: list[str]) -> dict[str, Any]:
    """Return MLflow's arguments to log or save a model."""
    inputs = Schema([TensorSpec(np.dtype(np.float32), (-1, *shape))])
    outputs = Schema([TensorSpec(np.dtype(np.float32), (-1, len(classes)))])
    return {
        "pytorch_model": Deployed(net, model).eval(), "signature": ModelSignature(inputs, outputs),
        "input_example": np.zeros((2, *shape), np.float32), "pip_requirements": ["torch"],
        "metadata": {"classes": classes},
    }  # fmt: skip


def _params(result: Result) -> dict[str, Any]:
    """Return all settings of a run by their keys in params.yaml."""
    setting = result.setting
    sections = {"data": setting.data, "federation": setting.federation, "net": setting.net}
    flat = {f"{section}.{key}": value for section, values in sections.items() for key, value in values.items()}
    return {"study": setting.study, "setting": setting.name, "seed": result.seed, **flat, **result.row.flat()}


def _pictures(store: Store, result: Result) -> dict[str, pictures.Picture]:
    """Return a run's pictures: accuracy by device and over rounds, the method's figures, and the study's pictures."""
    split = "test" if tidy.has(result.table, "test") else "shared"
    made: dict[str, pictures.Picture] = {"devices": lambda: png(figures.per_device(result.table, split=split))}
    if result.table["round"].max() > 1:
        made["rounds"] = lambda: png(figures.curves(curves(result.table)))
    made |= pictures.of_method(result.figures, result.row.label, result.reports)
    place = (store, result.prepared.dataset, result.prepared.partition)
    if "similarity" in result.show:
        made["similarity"] = partial(pictures.similarity_map, *place)
    if result.embedding is not None:
        made["features"] = partial(pictures.feature_map, *place, {result.row.label: result.embedding})
    return made


def _safe_name(name: str) -> str:
    """Return a name that MLflow accepts; a name that had to change ends in a digest, so that names stay distinct."""
    plain = re.sub(r"^[.]+|[^A-Za-z0-9_. :-]", "_", name)[:100]
    return plain if plain == name else f"{plain}-{digest_of(name.encode())[:6]}"


def _shorten(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 500 else text[:497] + "..."


def _metrics(
    table: pd.DataFrame, seconds: pd.DataFrame, start: int, shared_topics: Collection[str]
) -> Iterable[Metric]:
    """Yield every value per round and device, their mean, worst and spread over devices, and the seconds by step.

    If devices are in several groups, also the mean score of each group, e.g. test.accuracy.in_A.

    Values of single devices have the prefix "devices/"; splits in `shared_topics` have none. A device without traffic
    in a round has no point for it. Steps count the turns from 1. Times are the run's start plus the step, so that
    writing twice gives one point.
    """
    turns = {
        turn: number for number, turn in enumerate(sorted(set(zip(table["stage"], table["round"], strict=True))), 1)
    }
    members = groups(table).drop_duplicates("device").set_index("device")["group"]
    known = table[table["value"].notna()]
    for (stage, number, split, metric), part in known.groupby(["stage", "round", "split", "metric"], sort=True):
        step = turns[stage, number]
        values = part["value"]
        named = {
            f"devices/{split}.{_safe_name(str(metric))}.{_safe_name(device)}": value
            for device, value in zip(part["device"], values, strict=True)
            if split not in shared_topics and (value or split != "traffic")
        }
        if split == "traffic":
            named |= {f"{metric}": values.sum()}
        else:
            found = tidy.over_devices(part, members)
            named |= {f"{split}.{_safe_name(str(metric))}": found.pop("mean")}
            named |= {f"{split}.{_safe_name(str(metric))}.{_safe_name(word)}": value for word, value in found.items()}
        for name, value in named.items():
            yield Metric(name, float(value), start + step, step)
    for kind, wall, cpu in zip(seconds["kind"], seconds["wall"], seconds["cpu"], strict=True):
        yield Metric(f"seconds.{kind}.wall", float(wall), start, 0)
        yield Metric(f"seconds.{kind}.cpu", float(cpu), start, 0)


def _npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()
