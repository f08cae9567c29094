"""A server, a work pool and a worker on loopback: the deployment of prefect.yaml, by hand and by schedule."""

import json

from scenarios import Deployed

DEVICES = 4


def test_a_deployment_run_completes(deployed: Deployed):
    assert deployed.first.said is not None
    assert "Flow run finished successfully" in deployed.first.said.all
    assert len(deployed.first.computed("train")) == 2 * DEVICES  # the second time for the final fit, on more rows
    assert deployed.first.record["runs"] == 1 + 1 + 1 + 1  # the study, its method, the seed, the final fit


def test_a_parameter_leaves_those_of_the_file(deployed: Deployed):
    (by_hand,) = (run for run in deployed.runs if not run["auto_scheduled"])
    assert by_hand["parameters"] == {"promote": True, "seeds": [0]}


def test_the_log_has_the_steps_by_name_and_the_answer_last(deployed: Deployed):
    assert any(line.startswith("fuse: ") for line in deployed.lines)
    assert not any("Finished in state" in line for line in deployed.lines)
    assert deployed.lines[-1].startswith("code: Cannot say")
    assert deployed.tables["from-the-cache"]["data"].partition("\n")[0] in deployed.lines


def test_a_wrong_parameter_is_refused_before_a_run_exists(deployed: Deployed):
    assert deployed.wrong.code != 0
    assert "methodz" in deployed.wrong.all
    assert len([run for run in deployed.runs if not run["auto_scheduled"]]) == 1


def test_the_nightly_schedule_is_there_and_rests(deployed: Deployed):
    (schedule,) = deployed.schedules
    assert schedule["schedule"]["cron"] == "0 2 * * *"
    assert schedule["active"] is False


def test_an_activated_interval_schedule_runs_from_the_cache(deployed: Deployed):
    scheduled = [run for run in deployed.runs if run["auto_scheduled"]]
    assert [run["state_name"] for run in scheduled] == ["Completed"] * len(scheduled)
    assert len({step["key"] for step in deployed.scheduled.steps}) > 2 * DEVICES
    assert deployed.scheduled.computed() == []
    assert deployed.scheduled.record == deployed.first.record


def test_runs_are_named_by_study_size_and_seeds(deployed: Deployed):
    assert {run["name"] for run in deployed.runs} == {"code, small, seed 0"}


def test_each_run_leaves_the_answer_and_the_table(deployed: Deployed):
    """Other scenarios use the same server, for the same study."""
    mine = [one for one in deployed.answers if one["flow_run_id"] in {run["id"] for run in deployed.runs}]
    assert {one["flow_run_id"] for one in mine} == {run["id"] for run in deployed.runs}
    for one in mine:
        assert (one["key"], one["type"]) == ("answer-code", "markdown")
        assert "**code (digits): Cannot say**" in one["data"]
        assert "| 1 | lmf |" in one["data"]


def test_a_computed_method_leaves_a_table_of_its_devices(deployed: Deployed):
    table = deployed.tables["devices-lmf"]
    rows = json.loads(table["data"])
    assert [*rows[0]] == ["device", "shared", "test", "val", "bytes_down", "bytes_up"]
    assert len(rows) == DEVICES
    assert all(0 <= row["test"] <= 1 and row["bytes_up"] > 0 for row in rows)
    assert "in MLflow: tags.`fedcore.config` = '" in table["description"]


def test_a_fusion_leaves_the_order_of_its_folds(deployed: Deployed):
    rows = json.loads(deployed.tables["folds-lmf"]["data"])
    first = rows[0]["into"]
    assert [row["order"] for row in rows] == sorted(row["order"] for row in rows)
    assert {row["into"] for row in rows} == {first}
    assert len({first, *(row["device"] for row in rows)}) == DEVICES


def test_the_page_says_which_model_is_in_use(deployed: Deployed):
    (row,) = json.loads(deployed.tables["champion"]["data"])
    assert deployed.told[0]["text"].endswith(f"promoted: {row['outcome']}")
    assert row["outcome"] in deployed.lines


def test_the_nightly_run_promotes_the_final_fit_of_the_first_model(deployed: Deployed):
    assert deployed.aliases == {"candidate": 1, "champion": 2}


def test_the_promotion_alone_is_told(deployed: Deployed):
    """By the command of nightly.yaml; the later runs promote nothing."""
    (told,) = deployed.told
    assert told["event"] == "promoted"
    assert "its final fit, version 2, promoted; it is the first champion" in told["text"]
    assert deployed.paused, "an automation of Prefect did not see the event"


def test_every_run_completed(deployed: Deployed):
    assert {run["state_name"] for run in deployed.runs} == {"Completed"}
    assert not [word for word in ("Traceback", "UserWarning") if word in deployed.log]


def test_each_method_is_drawn_as_its_paper_draws_it(deployed: Deployed):
    """A flow run for each method that computes anything; arrows as references were read. A control has none."""
    (drawn,) = (drawn for name, drawn in deployed.arrows.items() if name == "lmf, base, seed 0")
    assert not [name for name in deployed.arrows if name.startswith("majority")]
    ranks = {name for name in drawn if name.startswith("rank")}
    assert drawn["fuse"] == ranks
    assert drawn["deploy"] == drawn["evaluate"] == {"fuse"}
    assert ranks == {"rank: 4 of 4 from the cache"} or {drawn[name].pop() for name in ranks} == {
        name.replace("rank", "train") for name in ranks
    }
