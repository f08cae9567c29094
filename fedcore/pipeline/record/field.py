"""The record of a run on real devices: one run with the tag `fedcore.simulated` = false, and its model, proposed.

A model that needs no device's memory or numbers is registered as any other. A personal one stays on its devices; what
is registered then is the recipe: the method, its settings and the schema, as they travelled.
"""

import json
from dataclasses import replace

from mlflow.entities import Run

from fedcore.config.methods import MethodConfig, configure
from fedcore.config.params import read
from fedcore.core.metrics import METRICS
from fedcore.field.plan import Plan
from fedcore.field.session import FieldRun
from fedcore.field.study import SETTING, STUDY, criterion_of, left_devices, models_of, schema_of, table_of
from fedcore.pipeline.cache.store import digest_of
from fedcore.pipeline.record import models, promotion
from fedcore.pipeline.record.contents import about_data, user_tags
from fedcore.pipeline.record.registry import CANDIDATE, PERSONAL, SIMULATED
from fedcore.pipeline.record.result import CERTAIN, StudyOnData, rule_of
from fedcore.pipeline.record.runs import Record, has_result
from fedcore.results.summary import NO_SECONDS

RECIPE = "recipe"
"""The folder of a run's artifacts that stands for personal models."""


def record(field_run: FieldRun) -> list[str]:
    """Write a run to the record, unless it is there, and propose its model; return lines about it."""
    setup, stored, label, study = field_run.setup, field_run.stored, field_run.label, field_run.setup.study
    lines = "".join(f"{name} {answer['data']}\n" for name, answer in sorted(stored.devices.items()))
    of_data = digest_of(lines)
    result = digest_of(table_of(stored, setup, label).to_csv(index=False))
    config = digest_of(f"field {of_data} {stored.plan.to_json()}")
    metric = METRICS["accuracy" if study is None else study.metric]
    data = "devices" if study is None else study.data
    tags = {
        "fedcore.kind": "field", SIMULATED: "false", "fedcore.study": STUDY if study is None else study.name,
        "fedcore.setting": SETTING, "fedcore.size": "field", "fedcore.method": label,
        "fedcore.seed": str(stored.plan.seed), promotion.METRIC: metric.name, "fedcore.dataset": data,
        "fedcore.data": of_data, "fedcore.partition": of_data,
    }  # fmt: skip
    keeper = Record()
    if not ((run := keeper.find(config)) and has_result(run, result)):
        schema = schema_of(setup, stored)
        rows = sum(answer["examples"] for answer in stored.devices.values())
        profile = {"examples": rows, "classes": list(schema.classes), "shape": list(schema.shape)}
        title = "On real devices" if study is None else f"On real devices: {study.title}"
        about = about_data(data, of_data, profile)
        parent = keeper.parent(StudyOnData(tags["fedcore.study"], "field", data, of_data), title, about)
        run = keeper.open(config, f"{label} field {field_run.folder.name}", tags | user_tags(tags), parent)
        _register(keeper, run, field_run, tags)
        plan = stored.plan
        training = {f"training.{key}": value for key, value in plan.training.items()}
        keeper.write(
            run, table=table_of(stored, setup, label), seconds=NO_SECONDS,
            params={"run": plan.run, "seed": plan.seed, "method": plan.method, **training, **plan.settings},
            about=about, turn_reports=(), drawn={}, schema=schema,
            criterion=replace(criterion_of(setup), metric=metric),
            files={
                "field.json": _about(field_run), "plan.json": stored.plan.to_json().encode(),
                "left.csv": left_devices(stored, label).to_csv(index=False).encode(),
            },
        )  # fmt: skip
        keeper.close(run, result)
    return [proposal.line for proposal in keeper.propose({config: CERTAIN}, rule_of(read()))[0]]


def find_answer(model_name: str) -> tuple[MethodConfig, int]:
    """Return the method and the seed of a model's candidate, which a study proposed, or a run on real devices."""
    keeper = Record()
    version = promotion.find(keeper.client, model_name, CANDIDATE)
    if version.tags.get(SIMULATED) != "false":
        origin, _ = keeper.find_source(model_name, CANDIDATE)
        return origin.row, origin.seed
    plan = Plan.from_json(promotion.read_artifact(keeper.client, version.run_id, "plan.json").decode())
    label = version.tags["fedcore.method"]
    return configure(plan.method, plan.settings, plan.training, label=label), plan.seed


def rates_of_rows(study: str, setting: str, size: str) -> dict[str, float]:
    """Return label -> learning rate of the last runs of a setting, all on the data of the last one."""
    keeper, rates, data = Record(), dict[str, float](), ""
    same = {"fedcore.study": study, "fedcore.setting": setting, "fedcore.size": size}
    query = f"tags.`fedcore.study` = '{study}'"
    for run in keeper.client.search_runs([keeper.experiment], query, order_by=["attributes.start_time DESC"]):
        tags, rate = run.data.tags, run.data.params.get("training.lr")
        if (
            rate is not None
            and same.items() <= tags.items()
            and tags["fedcore.data"] == (data := data or tags["fedcore.data"])
        ):
            rates.setdefault(tags["fedcore.method"], float(rate))
    return rates


def _register(keeper: Record, run: Run, field_run: FieldRun, tags: dict[str, str]) -> None:
    """Register the models of a run, or their recipe, once."""
    setup, stored = field_run.setup, field_run.stored
    model_name = "field" if setup.study is None else setup.study.task
    deployed = models_of(stored, setup)
    if deployed is not None:
        distinct = list({id(model): (model, net) for model, net in deployed.values()}.values())
        index_of = {id(model): number for number, (model, _) in enumerate(distinct)}
        devices = {name: index_of[id(model)] for name, (model, _) in deployed.items()}
        given = schema_of(setup, stored), setup.nets, distinct, devices, None, setup.scoring.costs
        logged = keeper.log_model(run, field_run.label, lambda folder: models.write(folder, *given))
        keeper.register(run, logged, model_name, tags)
        return
    keeper.log_artifacts(run, {f"{RECIPE}/plan.json": stored.plan.to_json().encode()})
    keeper.register(
        run, f"{run.info.artifact_uri}/{RECIPE}", model_name, {**tags, PERSONAL: "true"},
        "Models that stay on their devices: fedcore device predict uses them there.",
    )  # fmt: skip


def _about(field_run: FieldRun) -> bytes:
    """Return the roster, absences, bytes and versions of a run."""
    stored = field_run.stored
    about, turns = {}, stored.turns
    for name in stored.plan.nets:
        joined, (wire_up, wire_down) = name in stored.devices, stored.wire[name]
        about[name] = {
            "joined": joined, "versions": dict(stored.plan.versions) if joined else None,
            "absent": [f"{at.stage + 1}/{at.round + 1}" for t in turns if name in t.absent for at in [t.round_info]],
            "bytes_up": sum(turn.up.get(name, 0) for turn in turns),
            "bytes_down": sum(turn.down.get(name, 0) for turn in turns),
            "wire_up": wire_up, "wire_down": wire_down, **stored.prepare.get(name, {}),
        }  # fmt: skip
    return (json.dumps(about, indent=1) + "\n").encode()
