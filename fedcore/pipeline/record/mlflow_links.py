"""Links into MLflow's page with filter and order set: the methods of a study, a comparison, the champions.

The parts of an address are those that MLflow's page itself writes there when a user filters and sorts.
"""

from collections.abc import Iterator
from statistics import fmean
from urllib.parse import urlencode

from mlflow import MlflowClient
from mlflow.entities import Run

from fedcore.core.metrics import ACCURACY, METRICS, Metric
from fedcore.pipeline.record import promotion
from fedcore.pipeline.record.registry import CHAMPION, FAMILY
from fedcore.pipeline.record.runs import ROWS

TRAINING = "workflowType=machine_learning"
"""Opens MLflow's page in its mode for training; the mode for language models is the default."""

STUDY_TAGS = ("study", "size", "dataset")


def links(client: MlflowClient, experiment: str) -> Iterator[tuple[str, str]]:
    """Yield what a link shows, and its part after the server's address.

    A study that has run on other data, or with other rows or seeds, since has links to its last run of that name.
    """
    studies = client.search_runs([experiment], "tags.`fedcore.kind` = 'study'", order_by=["attributes.end_time"])
    last = {tuple(study.data.tags.get(f"fedcore.{tag}", "") for tag in STUDY_TAGS): study for study in studies}
    for (name, size, dataset), study in last.items():
        several = sum(key[:2] == (name, size) for key in last) > 1
        title = f"{name} ({size}, {dataset})" if several and dataset else f"{name} ({size})"
        query = f"tags.`mlflow.parentRunId` = '{study.data.tags.get(ROWS, study.info.run_id)}'"
        yield f"{title}: answer", f"{runs_page(experiment)}/{study.info.run_id}?{TRAINING}"
        runs = client.search_runs([experiment], query, max_results=1000)
        metric = METRICS[next((run.data.tags.get(promotion.METRIC) for run in runs), None) or ACCURACY.name]
        yield f"{title}: methods", best_first(experiment, query, metric)
        if pair := best_and_alone(runs, metric):
            ids = ", ".join(f"'{run.info.run_id}'" for run in pair)
            methods = " and ".join(run.data.tags["fedcore.method"] for run in pair)
            url = best_first(experiment, f"attributes.run_id IN ({ids})", metric, compareRunsMode="CHART")
            yield f"{title}: {methods}", url
    for name in promotion.names(client):
        champion = promotion.alias(client, name, CHAMPION)
        if champion is not None:
            yield f"champion of {name.removeprefix(FAMILY)}", f"#/models/{name}/versions/{champion.version}"


def runs_page(experiment: str) -> str:
    """Return the part of a link that names the runs of an experiment."""
    return f"#/experiments/{experiment}/runs"


def best_first(experiment: str, query: str, metric: Metric, **more: str) -> str:
    """Return the part of a link that shows the runs that a query finds, by the metric that decides, the best first."""
    order = {"orderByKey": f"metrics.`{metric.name}`", "orderByAsc": str(metric.less).lower()}
    return f"{runs_page(experiment)}?{urlencode({'searchFilter': query, **order, **more}, safe='')}&{TRAINING}"


def best_and_alone(runs: list[Run], metric: Metric) -> list[Run]:
    """Return a run of the best method that sends something, and one of the best that trains alone, if both are.

    The best by the mean over seeds; a method with fewer seeds than others was stopped, since it cannot win. The runs
    are those of each method's first seed.
    """
    scored = [run for run in runs if run.data.tags["fedcore.kind"] == "method" and metric.name in run.data.metrics]
    rows: dict[tuple[str, ...], list[Run]] = {}
    for run in sorted(scored, key=lambda run: int(run.data.tags.get("fedcore.seed", 0))):
        rows.setdefault((run.data.tags.get("fedcore.setting", ""), run.data.tags["fedcore.method"]), []).append(run)
    most = max(map(len, rows.values()), default=0)
    whole = [row for row in rows.values() if len(row) == most]
    whole.sort(key=lambda row: -metric.sign * fmean(run.data.metrics[metric.name] for run in row))
    sides = [[row[0] for row in whole if bool(row[0].data.metrics["bytes_up"]) is sends] for sends in (True, False)]
    return [side[0] for side in sides] if all(sides) else []
