"""Links into MLflow's page: the answer of each study's last request, its methods, the pair that it compares; champions.

The last two open a saved view, as "Share" on MLflow's page makes one: a tag of the experiment with the filter, the
columns and the charts, as MLflow's page (3.17) reads them.
"""

import json
from collections.abc import Iterable, Iterator
from urllib.parse import urlencode

from mlflow import MlflowClient
from mlflow.entities import Run

from fedcore.core.metrics import ACCURACY, METRICS, Metric, recorded
from fedcore.pipeline.cache.store import digest_of
from fedcore.pipeline.record import promotion
from fedcore.pipeline.record.contents import EARLIER
from fedcore.pipeline.record.registry import CHAMPION, FAMILY
from fedcore.pipeline.record.result import name_study
from fedcore.pipeline.record.runs import PAIR, PART, REQUEST, ROWS, TRAINING, last_asked, run_page

VIEW = "mlflow.sharedViewState."
"""What the tag of a saved view begins with; the rest is its name."""

SHOWN = (
    "test/{}", "test/{}_low", "test/{}_high", "test/worst_device", "shared/{}", "traffic/up_MB", "traffic/down_MB",
)  # fmt: skip
"""The metrics of a saved view, by the one that decides; MLflow's page sorts them by name, and has room for five."""
BOUNDS = ("shared/{}_low", "shared/{}_high")
"""Further metrics, of which the page would draw bars if none were marked as deleted."""


def links(client: MlflowClient, experiment: str) -> Iterator[tuple[str, str]]:
    """Yield what a link shows, and its part after the server's address.

    On other data, or where a part of its methods and seeds is asked since, a study has further ones.
    """
    studies = sorted(client.search_runs([experiment], "tags.`fedcore.kind` = 'study'"), key=last_asked)
    last: dict[tuple[str, str, str, bool], Run] = {}
    for study in studies:
        name, size, dataset = (study.data.tags.get(f"fedcore.{tag}", "") for tag in ("study", "size", "dataset"))
        if not (part := bool(study.data.tags.get(PART))):
            last.pop((name, size, dataset, True), None)
        last[name, size, dataset, part] = study
    for (name, size, dataset, part), study in last.items():
        several = dataset and len({key[2] for key in last if key[:2] == (name, size)}) > 1
        title = name_study(name, size) + f", {dataset}" * bool(several)
        title += ", part" if part and (name, size, dataset, False) in last else ""
        where = study.info.run_id
        yield f"{title}: answer", run_page(experiment, where)
        query = f"tags.`mlflow.parentRunId` = '{where}' and tags.kind = 'method'"
        rows = {run.data.tags["method"]: run for run in client.search_runs([experiment], query, max_results=1000)}
        if not rows:  # of an earlier version: a row for each seed
            query = f"tags.`mlflow.parentRunId` = '{study.data.tags.get(ROWS, where)}'"
            runs = client.search_runs([experiment], query, max_results=1000)
        else:
            runs = [*rows.values()]
        words = f"{title} {study.data.tags.get(REQUEST, '')}"
        yield f"{title}: methods", save_view(client, experiment, f"methods {words}", query, runs)
        pair = [row for row in json.loads(study.data.tags.get(PAIR, "[]")) if row in rows]
        if len(pair) == 2:
            ids = ", ".join(f"'{rows[row].info.run_id}'" for row in pair)
            query, runs = f"attributes.run_id IN ({ids})", [rows[row] for row in pair]
            yield f"{title}: {' and '.join(pair)}", save_view(client, experiment, f"pair {words}", query, runs, True)
    for name, versions in promotion.all_versions(client).items():
        if champion := versions.aliases.get(CHAMPION):
            yield f"champion of {name}", f"#/models/{FAMILY}{name}/versions/{champion}"


def save_view(
    client: MlflowClient, experiment: str, words: str, query: str, runs: Iterable[Run], charts: bool = False
) -> str:
    """Save a view of the runs that a query finds, the best first, in place of one with the same words; return its link.

    charts: show bars.
    """
    key = digest_of(words)[:12]
    client.set_experiment_tag(experiment, f"{VIEW}{key}", json.dumps(state(query, [*runs], charts)))
    mode = {"compareRunsMode": "CHART"} if charts else {}
    return f"#/experiments/{experiment}/runs?{urlencode({'viewStateShareKey': key, **mode})}&{TRAINING}"


def state(query: str, runs: list[Run], charts: bool) -> dict[str, object]:
    """Return a saved view of runs: by the metric that decides, the best first; columns; and bars in a section each."""
    metric = decider(runs)
    recorded = {name for run in runs for name in run.data.metrics}
    names, bounds = (
        [name for name in (name.format(metric.name) for name in of) if name in recorded] for of in (SHOWN, BOUNDS)
    )
    if bounds and not any(name.startswith("test/") for name in names):
        names, bounds = [*names, *bounds], []  # of a study whose devices have no test rows
    names = names or [f"{prefix}{metric.name}" for prefix in EARLIER.values() if f"{prefix}{metric.name}" in recorded]
    sections = [*dict.fromkeys(name.partition("/")[0] for name in [*names, *bounds])]
    columns = [f"tags.`{name}`" for name in ("method", "setting", "seeds", "data")]
    return {
        "searchFilter": query, "orderByKey": f"metrics.`{names[0]}`" if names else "attributes.start_time",
        "orderByAsc": metric.less, "selectedColumns": [*columns, *(f"metrics.`{name}`" for name in names)],
        "runListHidden": False, "isAccordionReordered": True,
        "compareRunCharts": [
            {
                "uuid": name, "type": "BAR", "runsCountToCompare": 20, "metricSectionId": name.partition("/")[0],
                "deleted": name.endswith(("low", "high")), "isGenerated": False, "metricKey": name, "displayName": name,
            }
            for name in [*names, *bounds]
        ] if charts else None,
        "compareRunSections": [
            {"uuid": name, "name": name, "display": True, "isReordered": True, "deleted": False, "isGenerated": False}
            for name in sections
        ] if charts else None,
    }  # fmt: skip


def decider(runs: Iterable[Run]) -> Metric:
    """Return the metric that decides among runs: the one that they name, or whose mean on test data they have."""
    for run in runs:
        if promotion.METRIC in run.data.tags:
            return recorded(run.data.tags[promotion.METRIC])
        for name in METRICS:
            if f"test/{name}" in run.data.metrics or f"shared/{name}" in run.data.metrics:
                return METRICS[name]
    return ACCURACY
