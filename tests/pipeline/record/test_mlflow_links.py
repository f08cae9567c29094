"""Links into MLflow's page: each study's answer, methods and comparison, and the champions."""

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from fedcore.pipeline.record import promotion
from fedcore.pipeline.record.mlflow_links import TRAINING, links
from fedcore.pipeline.record.registry import registered
from fedcore.pipeline.record.runs import ROWS

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # MLflow's own


def test_links_name_the_study_its_methods_and_the_champion(client: Any):
    experiment = client.create_experiment("fedcore of this test")

    def run(kind: str, method: str = "", accuracy: float = 0.0, sent: float = 0.0, parent: str = "") -> str:
        tags = {"fedcore.kind": kind, "fedcore.study": "code", "fedcore.size": "small", "fedcore.method": method}
        made = client.create_run(experiment, tags={**tags, "mlflow.parentRunId": parent}).info.run_id
        if kind != "study":
            client.log_metric(made, "accuracy", accuracy)
            client.log_metric(made, "bytes_up", sent)
        return str(made)

    client.set_terminated(run("study"), end_time=1)  # on older data
    study = run("study")
    client.set_terminated(study, end_time=2)
    alone = run("method", "local_only", 0.6, 0.0, study)
    run("method", "lmf", 0.5, 10.0, study)
    best = run("method", "code_ot", 0.7, 10.0, study)
    run("control", "majority", 0.9, 10.0, study)
    name = registered("links")
    client.create_registered_model(name)
    promotion.promote(client, client.create_model_version(name, "file:///nowhere", best))
    found = dict(links(client, experiment))
    runs = f"#/experiments/{experiment}/runs"
    assert found["code (small): answer"] == f"{runs}/{study}?{TRAINING}"
    assert found["champion of links"] == f"#/models/{name}/versions/1"
    methods, compared = (parts(found[f"code (small): {words}"]) for words in ("methods", "code_ot and local_only"))
    assert methods.pop("path") == compared.pop("path") == runs
    for place in (methods, compared):
        assert (place["orderByKey"], place["orderByAsc"]) == ("metrics.`accuracy`", "false")
        assert f"workflowType={place['workflowType']}" == TRAINING
    assert compared["compareRunsMode"] == "CHART"
    shown = client.search_runs([experiment], methods["searchFilter"], order_by=[f"{methods['orderByKey']} DESC"])
    assert [one.data.tags["fedcore.method"] for one in shown] == ["majority", "code_ot", "local_only", "lmf"]
    assert {one.info.run_id for one in client.search_runs([experiment], compared["searchFilter"])} == {best, alone}


def test_links_go_by_the_metric_that_decides(client: Any):
    experiment = client.create_experiment("fedcore of a test of costs")
    study = client.create_run(experiment, tags={"fedcore.kind": "study", "fedcore.study": "code"}).info.run_id
    for method, cost, accuracy, sent in (("a", 0.2, 0.6, 1.0), ("b", 0.3, 0.9, 1.0), ("local_only", 0.5, 0.5, 0.0)):
        tags = {"fedcore.kind": "method", "fedcore.method": method, "mlflow.parentRunId": study}
        run = client.create_run(experiment, tags={**tags, promotion.METRIC: "cost"}).info.run_id
        for name, value in {"cost": cost, "accuracy": accuracy, "bytes_up": sent}.items():
            client.log_metric(run, name, value)
    found = {words.partition(": ")[2]: place for words, place in links(client, experiment)}
    assert [*found][:3] == ["answer", "methods", "a and local_only"]
    place = parts(found["methods"])
    assert (place["orderByKey"], place["orderByAsc"]) == ("metrics.`cost`", "true")
    again = client.create_run(experiment, tags={"fedcore.kind": "study", "fedcore.study": "code", ROWS: study})
    client.set_terminated(study, end_time=1)
    client.set_terminated(again.info.run_id, end_time=2)
    found = {words.partition(": ")[2]: place for words, place in links(client, experiment)}
    assert again.info.run_id in found["answer"]  # of another request, whose rows are below the first one's run
    assert parts(found["methods"]) == place


def test_links_compare_methods_by_their_mean(client: Any):
    """The best single run, and the best of a stopped method, are others."""
    experiment = client.create_experiment("fedcore of a test of seeds")
    study = client.create_run(experiment, tags={"fedcore.kind": "study", "fedcore.study": "code"}).info.run_id
    scores = {"steady": (0.8, 0.8), "lucky": (0.9, 0.5), "stopped": (0.95,), "local_only": (0.6, 0.7)}
    made = {}
    for method, values in scores.items():
        for seed, value in enumerate(values):
            tags = {"fedcore.kind": "method", "fedcore.method": method, "fedcore.seed": str(seed)}
            run = client.create_run(experiment, tags={**tags, "mlflow.parentRunId": study}).info.run_id
            client.log_metric(run, "accuracy", value)
            client.log_metric(run, "bytes_up", float(method != "local_only"))
            made[method, seed] = run
    found = {words.partition(": ")[2]: place for words, place in links(client, experiment)}
    shown = client.search_runs([experiment], parts(found["steady and local_only"])["searchFilter"])
    assert {run.info.run_id for run in shown} == {made["steady", 0], made["local_only", 0]}


def parts(place: str) -> dict[str, str]:
    """Return the path of a link, which stands behind "#", and what the page reads from its query."""
    path, _, query = urlsplit(place).fragment.partition("?")
    return {"path": f"#{path}", **{name: value for name, (value,) in parse_qs(query).items()}}
