"""A deployment, on demand and by schedule."""

import json
import sqlite3
import sys
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from project import Project, Said, Seen, end, wait

from scenarios.place import Place


@dataclass(frozen=True)
class Deployed:
    """first: `prefect deployment run`. wrong: with a wrong parameter. scheduled: after an interval
    schedule was added. runs: all flow runs of the deployment. schedules: those of prefect.yaml, as deployed. answers:
    the artifacts of the studies' answers. aliases: of registered models, with their versions. told: the events of
    which a command of nightly.yaml was told. paused: whether Prefect's automation saw a promotion. arrows: for each
    method of the first run, its task runs with those that they wait for. lines: of its log. tables: by their keys the
    artifacts of devices, folds, the champion and what was cached.
    """

    first: Seen
    wrong: Said
    scheduled: Seen
    schedules: list[dict[str, Any]]
    runs: list[dict[str, Any]]
    log: str
    answers: list[dict[str, Any]]
    aliases: dict[str, int]
    told: list[dict[str, Any]]
    paused: bool
    arrows: dict[str, dict[str, set[str]]]
    lines: list[str]
    tables: dict[str, dict[str, Any]]


def deployed(place: Place) -> Deployed:
    """Use the project's own server, which prefect.toml names, without any setting."""
    host, here = place.host, place.join(Project(place.host.folder))
    here.look()
    keeps = f"import sys; open({str(place.folder / 'told')!r}, 'a').write(sys.stdin.read() + chr(10))"
    settings = {"retries": 1, "time_limit": 600, "alerts": {"command": [sys.executable, "-c", keeps], "least_free": 0}}
    (here.folder / "nightly.yaml").write_text(json.dumps(settings))
    pauses = create_pool_that_pauses(host, f"fedcore.project.{here.folder.name}", "fedcore.promoted")
    here.run("prefect", "work-pool", "create", "local", "--type", "process", "--overwrite")
    here.run("prefect", "--no-prompt", "deploy", "--all")
    log = place.folder / "worker.log"
    worker = here.start("prefect", "worker", "start", "--pool", "local", log=log, PREFECT_WORKER_QUERY_SECONDS="2")
    try:
        run = ("prefect", "deployment", "run", "federate/nightly")
        first = here.look(here.run(*run, "--param", "seeds=[0]", "--watch"))
        here.run("prefect", "deployment", "schedule", "ls", "federate/nightly")
        wrong = here.run(*run, "--params", '{"methodz": ["lmf"]}', code=None)
        (plan,) = host.ask("deployments/filter", {})
        here.run("prefect", "deployment", "schedule", "create", "federate/nightly", "--interval", "60", "--accept-yes")

        def runs() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = host.ask("flow_runs/filter", {"deployments": {"id": {"any_": [plan["id"]]}}})
            return [r for r in found if r["state_type"] not in ("SCHEDULED", "PENDING", "RUNNING")]

        wait("a scheduled run that has ended", lambda: [r for r in runs() if r["auto_scheduled"]], every=0.5)
        answers = host.ask("artifacts/filter", {"artifacts": {"key": {"like_": "answer-"}}})
        with closing(sqlite3.connect(here.folder / "mlflow.db")) as db:
            aliases = dict(db.execute("select alias, version from registered_model_aliases").fetchall())
        done = here.look()
        (first_run,) = [run for run in runs() if not run["auto_scheduled"]]
        inside = {"flow_runs": {"parent_flow_run_id": {"any_": [first_run["id"]]}}}
        own = {first_run["id"], *(run["id"] for run in host.ask("flow_runs/filter", inside))}  # others share the server
        keys = ["devices-lmf", "folds-lmf", "champion", "from-the-cache"]
        tables = host.ask("artifacts/filter", {"artifacts": {"key": {"any_": keys}}})
        lines = host.ask("logs/filter", {"logs": {"flow_run_id": {"any_": [first_run["id"]]}}})
        told = [json.loads(line) for line in (place.folder / "told").read_text().splitlines()]
        return Deployed(
            first,
            wrong,
            done,
            plan["schedules"],
            runs(),
            log.read_text(),
            answers,
            aliases,
            told,
            host.ask(f"work_pools/{pauses}")["is_paused"],
            arrows(host, first_run["id"]),
            [line["message"] for line in lines if line["name"] == "prefect.flow_runs"],
            {table["key"]: table for table in tables if table["flow_run_id"] in own},
        )
    finally:
        end(worker)


def create_pool_that_pauses(host: Project, resource: str, event: str) -> str:
    """Create a work pool and an automation that pauses it at an event; returns its name."""
    pool = host.ask("work_pools/", {"name": f"until {event}", "type": "process"})
    match = {"prefect.resource.id": resource}
    trigger = {"type": "event", "posture": "Reactive", "match": match, "expect": [event], "threshold": 1, "within": 0}
    pause = {"type": "pause-work-pool", "source": "selected", "work_pool_id": pool["id"]}
    host.ask("automations/", {"name": pool["name"], "trigger": trigger, "actions": [pause]})
    return quote(pool["name"])


def arrows(host: Project, flow_run: str) -> dict[str, dict[str, set[str]]]:
    """Return for each flow run inside one its task runs, each with those that an arrow leads from, by their names."""
    found = {}
    for inner in host.ask("flow_runs/filter", {"flow_runs": {"parent_flow_run_id": {"any_": [flow_run]}}}):
        nodes = host.ask("task_runs/filter", {"flow_runs": {"id": {"any_": [inner["id"]]}}})
        names = {node["id"]: node["name"] for node in nodes}
        found[inner["name"]] = {
            node["name"]: {names[source["id"]] for inputs in node["task_inputs"].values() for source in inputs}
            for node in nodes
        }
    return found
