"""Links into MLflow's page: each study's answer, methods and comparison, and the champions."""

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from fedcore.pipeline.record import promotion
from fedcore.pipeline.record.mlflow_links import VIEW, links
from fedcore.pipeline.record.registry import registered
from fedcore.pipeline.record.runs import ASKED, PAIR, PART, ROWS, TRAINING

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # MLflow's own

HARD = "m s{0} 'q\" %20 x\ny \u202eü 🙂"
"""A dataset's name, that of its file."""


def study_run(client: Any, experiment: str, end: int, **tags: str) -> str:
    """Make the run of a request."""
    own = {"fedcore.kind": "study", "fedcore.study": "code", "fedcore.size": "small", **tags}
    where = str(client.create_run(experiment, tags=own).info.run_id)
    client.set_terminated(where, end_time=end)
    return where


def view(client: Any, experiment: str, place: str) -> dict[str, Any]:
    """Return the saved view that a link opens."""
    key = parts(place)["viewStateShareKey"]
    saved: dict[str, Any] = json.loads(client.get_experiment(experiment).tags[f"{VIEW}{key}"])
    return saved


def test_links_name_the_study_its_methods_and_the_champion(client: Any):
    """The pair is the answer's, and not the two best means."""
    experiment = client.create_experiment("fedcore of this test")
    study_run(client, experiment, 1, **{"fedcore.dataset": "older"})
    study = study_run(client, experiment, 2, **{PAIR: '["code_ot", "local_only"]', "fedcore.dataset": HARD})
    made = {}
    for method, cost in {"local_only": 0.6, "lmf": 0.2, "code_ot": 0.3}.items():
        tags = {"kind": "method", "method": method, "mlflow.parentRunId": study}
        made[method] = client.create_run(experiment, tags=tags).info.run_id
        for name, value in {
            "test/cost": cost,
            "test/worst_device": 0.9,
            "traffic/up_MB": 1.0,
            "shared/cost_low": 0.1,
        }.items():
            client.log_metric(made[method], name, value)
    name = registered("links")
    client.create_registered_model(name)
    promotion.promote(client, client.create_model_version(name, "file:///nowhere", made["lmf"]))
    found = dict(links(client, experiment))
    runs, title = f"#/experiments/{experiment}/runs", f"code, {HARD}"
    assert found[f"{title}: answer"] == f"{runs}/{study}?{TRAINING}"
    assert found["champion of links"] == f"#/models/{name}/versions/1"
    methods, pair = (found[f"{title}: {words}"] for words in ("methods", "code_ot and local_only"))
    assert parts(methods)["path"] == parts(pair)["path"] == runs
    assert parts(pair)["compareRunsMode"] == "CHART"
    for place, expected in ((methods, {*made}), (pair, {"code_ot", "local_only"})):
        assert f"workflowType={parts(place)['workflowType']}" == TRAINING
        saved = view(client, experiment, place)
        assert (saved["orderByKey"], saved["orderByAsc"]) == ("metrics.`test/cost`", True)
        assert {"tags.`method`", "metrics.`test/cost`", "metrics.`traffic/up_MB`"} <= {*saved["selectedColumns"]}
        assert "metrics.`shared/cost_low`" not in saved["selectedColumns"]  # the page has room for five
        shown = client.search_runs([experiment], saved["searchFilter"])
        assert {run.data.tags["method"] for run in shown} == expected
    charts = view(client, experiment, pair)["compareRunCharts"]
    keys = ["test/cost", "test/worst_device", "traffic/up_MB", "shared/cost_low"]
    assert [(chart["metricKey"], chart["deleted"]) for chart in charts] == [(k, k.endswith("low")) for k in keys]
    tags = client.get_experiment(experiment).tags
    assert dict(links(client, experiment)) == found
    assert client.get_experiment(experiment).tags == tags  # no view is saved twice


def test_without_local_test_rows_shared_intervals_are_shown(client: Any):
    experiment = client.create_experiment("fedcore of a test without local rows")
    tags = {"kind": "method", "method": "scaffold", "mlflow.parentRunId": study_run(client, experiment, 1)}
    made = client.create_run(experiment, tags=tags).info.run_id
    for name in ("shared/accuracy", "shared/accuracy_low", "shared/accuracy_high"):
        client.log_metric(made, name, 0.9)
    columns = view(client, experiment, dict(links(client, experiment))["code: methods"])["selectedColumns"]
    assert columns[-3:] == [f"metrics.`shared/accuracy{end}`" for end in ("", "_low", "_high")]


def test_a_part_of_a_study_has_links_of_its_own(client: Any):
    experiment = client.create_experiment("fedcore of a part")
    whole = study_run(client, experiment, 1)
    part = study_run(client, experiment, 2, **{PART: "true"})
    found = dict(links(client, experiment))
    assert (whole in found["code: answer"], part in found["code, part: answer"]) == (True, True)
    study_run(client, experiment, 0, **{ASKED: "3"})  # asked again
    assert not [words for words, _ in links(client, experiment) if "part" in words]


def test_methods_of_an_earlier_version_are_shown_by_seed(client: Any):
    experiment = client.create_experiment("fedcore of an earlier version")
    study = study_run(client, experiment, 1)
    again = study_run(client, experiment, 2, **{ROWS: study})
    tags = {"fedcore.kind": "method", "fedcore.method": "a", "mlflow.parentRunId": study, promotion.METRIC: "cost"}
    row = client.create_run(experiment, tags=tags).info.run_id
    client.log_metric(row, "cost", 0.2)
    found = {words.partition(": ")[2]: place for words, place in links(client, experiment)}
    assert [*found][:2] == ["answer", "methods"]
    assert again in found["answer"]
    saved = view(client, experiment, found["methods"])
    assert (saved["orderByKey"], saved["orderByAsc"]) == ("metrics.`cost`", True)
    assert [run.info.run_id for run in client.search_runs([experiment], saved["searchFilter"])] == [row]


def parts(place: str) -> dict[str, str]:
    """Return the path of a link, which stands behind "#", and what the page reads from its query."""
    path, _, query = urlsplit(place).fragment.partition("?")
    return {"path": f"#{path}", **{name: value for name, (value,) in parse_qs(query).items()}}
