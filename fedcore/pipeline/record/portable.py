"""A new record from the runs that DVC has brought to a clone (fedcore/pipeline/record/tracked.py): nothing is computed.

The runs have no result, so that a run of the same configuration here writes them again, with all of their files.
"""

import json
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pandas as pd
from mlflow.entities import Dataset, Metric, Param, Run

from fedcore.core.metrics import METRICS
from fedcore.pipeline import environment
from fedcore.pipeline.record import models, promotion, seals
from fedcore.pipeline.record.contents import DEVICES, FOLDS, RATES, ROUNDS, metrics, tables_tag, user_tags
from fedcore.pipeline.record.registry import CHAMPION, FINAL_FIT_OF, STUDY_RUN
from fedcore.pipeline.record.result import CERTAIN, Evidence, StudyOnData
from fedcore.pipeline.record.runs import Record
from fedcore.pipeline.record.tracked import CHAMPIONS, FILES, MODELS, RECORD, RUN


def restore(record: Record, studies: Path) -> dict[str, Evidence]:
    """Write all runs, and register the champions; returns the configurations of the proposed ones.

    studies: the folder with the results of each study.
    """
    proposed = {}
    for card in sorted(studies.glob(f"*/{RECORD}/*/{RUN}")):
        run = _write(record, card.parent)
        if (card.parent / MODELS).is_dir():
            proposed[run.data.tags["fedcore.config"]] = CERTAIN
    for champion in sorted((environment.HOME / CHAMPIONS).glob(f"*/{RECORD}")):
        studied, *final = sorted(champion.iterdir())
        version = record.version_of(_write(record, studied))
        if final and version:
            of = {FINAL_FIT_OF: str(version.version), STUDY_RUN: version.run_id}
            version = record.version_of(_write(record, final[0], of, champion.parent / "data" / models.FOLDER))
        if version:
            record.client.set_registered_model_alias(version.name, CHAMPION, version.version)
    return proposed


def _write(record: Record, folder: Path, of: Mapping[str, str] = {}, files: Path | None = None) -> Run:
    """Write a run. of: the tags of a final fit. files: its models; by default those in the folder, if there are any."""
    card = json.loads((folder / RUN).read_text())
    tags = {**card["tags"], **of}
    study = StudyOnData(*(tags[f"fedcore.{name}"] for name in ("study", "size", "dataset", "data")))
    about = next((Dataset(**dataset) for dataset in card["datasets"]), None)
    parent = of.get(STUDY_RUN) or record.parent(study, "", about)
    run = record.open(card["config"], card["name"], {**tags, **user_tags(tags)}, parent)
    where, start, paths = run.info.run_id, run.info.start_time, folder / FILES
    points: list[Metric] = []
    if (paths / ROUNDS).is_file():
        means = json.loads((paths / ROUNDS).read_text())
        frame = pd.DataFrame(means["data"], columns=means["columns"])
        points = [*metrics(frame, None, start, METRICS[tags[promotion.METRIC]])]
    if about:
        record.log_dataset(where, about)
    record.log_files(run.info.artifact_uri, str(paths))
    tables = tables_tag(name for name in (DEVICES, ROUNDS, FOLDS, RATES) if (paths / name).is_file())
    record.client.log_batch(where, points, [Param(key, value) for key, value in card["params"].items()], [tables])
    if (files or folder / MODELS).is_dir():
        logged = record.log_model(run, tags["fedcore.method"], partial(shutil.copytree, files or folder / MODELS))
        seals.seal(tags[promotion.MODEL], logged.artifact_location)
    record.client.set_terminated(where, "FINISHED")
    return record.client.get_run(where)
