"""Links into MLflow's page with filter, order and columns set: the methods of a study, a comparison, the champions.

MLflow keeps a view as a tag of the experiment, in JSON; a link names it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import quote

from mlflow import MlflowClient
from mlflow.entities import Run

from fedcore.pipeline.record import promotion
from fedcore.pipeline.record.registry import CHAMPION, FAMILY

VIEW = "mlflow.sharedViewState."
TRAINING = "workflowType=machine_learning"
"""Opens MLflow's page in its mode for training; the mode for language models is the default."""
METRICS = ("accuracy", "accuracy_worst", "shared_accuracy", "bytes_up", "seconds")
COLUMNS = [*(f"metrics.`{name}`" for name in METRICS), "tags.`fedcore.method`", "tags.`fedcore.setting`",
           "tags.`fedcore.seed`"]  # fmt: skip


def links(client: MlflowClient, experiment: str) -> Iterator[tuple[str, str]]:
    """Yield what a link shows, and its part after the server's address; saves the views that links name."""
    studies = client.search_runs([experiment], "tags.`fedcore.kind` = 'study'", order_by=["attributes.start_time"])
    for study in studies:
        name, size = study.data.tags["fedcore.study"], study.data.tags["fedcore.size"]
        query = f"tags.`mlflow.parentRunId` = '{study.info.run_id}'"
        key, words = f"{name}-{size}", f"{name} ({size})"
        client.set_experiment_tag(experiment, f"{VIEW}{key}", json.dumps(view(query)))
        yield f"{words}: answer", f"{runs_page(experiment)}/{study.info.run_id}?{TRAINING}"
        yield f"{words}: methods", f"{runs_page(experiment)}?viewStateShareKey={quote(key)}&{TRAINING}"
        runs = client.search_runs([experiment], query, max_results=1000)
        if pair := best_and_alone(runs):
            ids = ", ".join(f"'{run.info.run_id}'" for run in pair)
            charts = view(f"attributes.run_id IN ({ids})") | bars()
            client.set_experiment_tag(experiment, f"{VIEW}{key}-best", json.dumps(charts))
            shown = " and ".join(run.data.tags["fedcore.method"] for run in pair)
            place = f"viewStateShareKey={quote(key)}-best&compareRunsMode=CHART"
            yield f"{words}: {shown}", f"{runs_page(experiment)}?{place}&{TRAINING}"
    for name in promotion.names(client):
        champion = promotion.alias(client, name, CHAMPION)
        if champion is not None:
            yield f"champion of {name.removeprefix(FAMILY)}", f"#/models/{name}/versions/{champion.version}"


def runs_page(experiment: str) -> str:
    """Return the part of a link that names the runs of an experiment."""
    return f"#/experiments/{experiment}/runs"


def bars() -> dict[str, object]:
    """Return the part of a view that draws a bar chart of each of METRICS."""
    charts = [
        {"uuid": name, "type": "BAR", "runsCountToCompare": 10, "metricSectionId": "all", "deleted": False,
         "isGenerated": False, "metricKey": name, "displayName": name}
        for name in METRICS
    ]  # fmt: skip
    section = {"uuid": "all", "name": "The best beside training alone", "display": True, "isReordered": False,
               "deleted": False, "isGenerated": False}  # fmt: skip
    return {"compareRunCharts": charts, "compareRunSections": [section], "autoRefreshEnabled": False}


def view(query: str) -> dict[str, object]:
    """Return the view of the runs that a query finds, the most accurate first."""
    return {
        "searchFilter": query, "orderByKey": "metrics.`accuracy`", "orderByAsc": False, "startTime": "ALL",
        "lifecycleFilter": "Active", "modelVersionFilter": "All Runs", "datasetsFilter": [],
        "selectedColumns": COLUMNS,
    }  # fmt: skip


def best_and_alone(runs: list[Run]) -> list[Run]:
    """Return the most accurate run of a method that sends something, and that of one that trains alone, if both are."""
    known = [run for run in runs if run.data.tags["fedcore.kind"] == "method" and "accuracy" in run.data.metrics]
    known.sort(key=lambda run: -run.data.metrics["accuracy"])
    sides = [[run for run in known if bool(run.data.metrics["bytes_up"]) is sends] for sends in (True, False)]
    return [side[0] for side in sides] if all(sides) else []
