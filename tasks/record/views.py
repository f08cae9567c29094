"""Links into MLflow's page with filter, order and columns set: the methods of a study, a comparison, the champions.

MLflow keeps a view as a tag of the experiment, in JSON; a link names it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import quote

from mlflow import MlflowClient
from mlflow.entities import Run

from tasks.record import promotion

VIEW = "mlflow.sharedViewState."
METRICS = ("accuracy", "accuracy_worst", "shared_accuracy", "bytes_up", "seconds")
COLUMNS = [*(f"metrics.`{name}`" for name in METRICS), "tags.`fedcore.method`", "tags.`fedcore.setting`",
           "tags.`fedcore.seed`"]  # fmt: skip


def links(client: MlflowClient, experiment: str) -> Iterator[tuple[str, str]]:
    """Yield what a link shows, and its part after the server's address; saves the views that links name."""
    studies = client.search_runs([experiment], "tags.`fedcore.kind` = 'study'", order_by=["attributes.start_time"])
    for study in studies:
        name, size = study.data.tags["fedcore.study"], study.data.tags["fedcore.size"]
        query = f"tags.`mlflow.parentRunId` = '{study.info.run_id}'"
        key = f"{name}-{size}"
        client.set_experiment_tag(experiment, f"{VIEW}{key}", json.dumps(view(query)))
        yield f"{name} ({size}): answer", f"#/experiments/{experiment}/runs/{study.info.run_id}"
        yield f"{name} ({size}): methods", f"#/experiments/{experiment}/runs?viewStateShareKey={quote(key)}"
        runs = client.search_runs([experiment], query, max_results=1000)
        if pair := best_and_alone(runs):
            chosen, here = (quote(json.dumps(ids)) for ids in ([run.info.run_id for run in pair], [experiment]))
            shown = " and ".join(run.data.tags["fedcore.method"] for run in pair)
            yield (
                f"{name} ({size}): {shown}",
                f"#/compare-runs?runs={chosen}&experiments={here}",
            )
    for name in promotion.names(client):
        champion = promotion.alias(client, name, promotion.CHAMPION)
        if champion is not None:
            yield f"champion of {name.removeprefix(promotion.FAMILY)}", f"#/models/{name}/versions/{champion.version}"


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
