"""Links into MLflow's page with filter and order set: the methods of a study, a comparison, the champions.

The parts of an address are those that MLflow's page itself writes there when a user filters and sorts.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlencode

from mlflow import MlflowClient
from mlflow.entities import Run

from fedcore.pipeline.record import promotion
from fedcore.pipeline.record.registry import CHAMPION, FAMILY

TRAINING = "workflowType=machine_learning"
"""Opens MLflow's page in its mode for training; the mode for language models is the default."""

PLACE = ("study", "size", "dataset")


def links(client: MlflowClient, experiment: str) -> Iterator[tuple[str, str]]:
    """Yield what a link shows, and its part after the server's address.

    A study that has run on other data since has links to its last run on data of that name.
    """
    studies = client.search_runs([experiment], "tags.`fedcore.kind` = 'study'", order_by=["attributes.end_time"])
    last = {tuple(study.data.tags.get(f"fedcore.{tag}", "") for tag in PLACE): study for study in studies}
    for (name, size, dataset), study in last.items():
        several = sum(place[:2] == (name, size) for place in last) > 1
        words = f"{name} ({size}, {dataset})" if several and dataset else f"{name} ({size})"
        query = f"tags.`mlflow.parentRunId` = '{study.info.run_id}'"
        yield f"{words}: answer", f"{runs_page(experiment)}/{study.info.run_id}?{TRAINING}"
        yield f"{words}: methods", most_accurate_first(experiment, query)
        if pair := best_and_alone(client.search_runs([experiment], query, max_results=1000)):
            ids = ", ".join(f"'{run.info.run_id}'" for run in pair)
            shown = " and ".join(run.data.tags["fedcore.method"] for run in pair)
            place = most_accurate_first(experiment, f"attributes.run_id IN ({ids})", compareRunsMode="CHART")
            yield f"{words}: {shown}", place
    for name in promotion.names(client):
        champion = promotion.alias(client, name, CHAMPION)
        if champion is not None:
            yield f"champion of {name.removeprefix(FAMILY)}", f"#/models/{name}/versions/{champion.version}"


def runs_page(experiment: str) -> str:
    """Return the part of a link that names the runs of an experiment."""
    return f"#/experiments/{experiment}/runs"


def most_accurate_first(experiment: str, query: str, **more: str) -> str:
    """Return the part of a link that shows the runs that a query finds, in the order of their accuracy."""
    order = {"orderByKey": "metrics.`accuracy`", "orderByAsc": "false"}
    return f"{runs_page(experiment)}?{urlencode({'searchFilter': query, **order, **more}, safe='')}&{TRAINING}"


def best_and_alone(runs: list[Run]) -> list[Run]:
    """Return the most accurate run of a method that sends something, and that of one that trains alone, if both are."""
    known = [run for run in runs if run.data.tags["fedcore.kind"] == "method" and "accuracy" in run.data.metrics]
    known.sort(key=lambda run: -run.data.metrics["accuracy"])
    sides = [[run for run in known if bool(run.data.metrics["bytes_up"]) is sends] for sends in (True, False)]
    return [side[0] for side in sides] if all(sides) else []
