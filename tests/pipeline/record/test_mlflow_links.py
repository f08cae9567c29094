"""Links into MLflow's page: each study's answer, methods and comparison, and the champions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fedcore.pipeline.record import promotion
from fedcore.pipeline.record.mlflow_links import METRICS, TRAINING, VIEW, links
from fedcore.pipeline.record.registry import registered

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

    study = run("study")
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
    assert found["code (small): methods"] == f"{runs}?viewStateShareKey=code-small&{TRAINING}"
    compared = found["code (small): code_ot and local_only"]
    assert compared == f"{runs}?viewStateShareKey=code-small-best&compareRunsMode=CHART&{TRAINING}"
    assert found["champion of links"] == f"#/models/{name}/versions/1"
    state = json.loads(client.get_experiment(experiment).tags[f"{VIEW}code-small"])
    assert state["orderByKey"] == "metrics.`accuracy`"
    shown = client.search_runs([experiment], state["searchFilter"], order_by=["metrics.`accuracy` DESC"])
    assert [one.data.tags["fedcore.method"] for one in shown] == ["majority", "code_ot", "local_only", "lmf"]
    charts = json.loads(client.get_experiment(experiment).tags[f"{VIEW}code-small-best"])
    assert {one.info.run_id for one in client.search_runs([experiment], charts["searchFilter"])} == {best, alone}
    assert [chart["metricKey"] for chart in charts["compareRunCharts"]] == [*METRICS]
