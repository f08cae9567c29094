"""The final fit of a version: its method once more, by cached steps, on all labelled rows of the devices.

It repeats the configuration of a study's run with the same seed, and refuses if the data, the settings or the code are
no longer those of that run. Killed and repeated it finds its steps in the cache and its run in the record.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

from fedcore.config.studies import run_section
from fedcore.errors import InputError, plural
from fedcore.execute.workers import Workers
from fedcore.pipeline.cache.keys import Digest
from fedcore.pipeline.orchestration.session import Session, open_run_session
from fedcore.pipeline.record.result import FinalFit, Origin, PreparedData, PromotionCandidate, Result
from fedcore.pipeline.record.writer import RecordWriter
from fedcore.pipeline.run import forecast, partitions
from fedcore.pipeline.run.chunks import count_local_steps
from fedcore.pipeline.run.run_method import config_digest, count_examples, run_method
from fedcore.pipeline.run.step_functions import divide_finally
from fedcore.pipeline.work import build
from fedcore.results import tidy
from fedcore.types.federation import Federation
from fedcore.types.method import Threshold


def open_fit(params: Mapping[str, Any], origin: Origin, writer: RecordWriter) -> AbstractContextManager[Session]:
    """Open the session of a final fit: its store, and the engine that computes its steps."""
    setting = replace(origin.setting, methods=(origin.row,))
    return open_run_session("final fit", run_section(params), [setting], writer.warm_up)


def fit(session: Session, params: Mapping[str, Any], origin: Origin, source: PromotionCandidate) -> Result:
    """Fit the method of a version's run on all rows. Raises InputError if it is no longer that run's."""
    setting, row, seed = origin.setting, origin.row, origin.seed
    dataset = partitions.read_dataset(session.store, setting.data)
    advice = f"promote it as it is with: fedcore promote {setting.model_name} --version {source.version} --no-final-fit"
    changed = f"have changed since its run; run its study again, or {advice}"
    if dataset.digest != origin.data:
        raise InputError(f"version {source.version}: the data, or how they are read, {changed}")
    study = PreparedData(dataset, partitions.divide_dataset(session.steps, dataset, setting.federation, seed))
    fed = partitions.build_federation(session.steps, setting, study)
    method = build(row, fed.public.nets, count_examples(session.store, study))
    hardware = session.steps.hardware
    if origin.config != config_digest(setting, study, fed, row, method, seed, origin.size, setting.every, hardware):
        raise InputError(f"version {source.version}: code, packages or hardware {changed}")
    divided = partial(divide_finally, held_out=method.held_out)  # what tested the method trains it, too
    final = PreparedData(dataset, session.steps.run_inline(divided, dataset, study.partition))
    fed = partitions.build_federation(session.steps, setting, final, final_fit=method.held_out)
    before, rows = (count_examples(session.store, job) for job in (study, final))
    session.print_line(announce(session, params, origin, source, fed, before, rows))
    session.expect_steps(count_local_steps(method, len(fed.devices)))
    rounds = max(stage.rounds for stage in method.stages)
    result = run_method(session, setting, final, fed, row, seed, origin.size, rounds)
    read, partition = partitions.read_prepared(session.store, final)
    left = len(partition.shared) if read.test is None or len(partition.shared) else len(read.test)
    about = FinalFit(source.version, source.run, study, before, rows, method.held_out, left)
    return replace(
        result, config=Digest().of(("final fit", result.config)), table=tidy.without_scores(result.table), final=about,
        threshold=origin.threshold,
    )  # fmt: skip


def announce(
    session: Session, params: Mapping[str, Any], origin: Origin, source: PromotionCandidate, fed: Federation,
    before: Mapping[str, int], rows: Mapping[str, int],
) -> str:  # fmt: skip
    """Say what a final fit trains on and how long that takes, before it starts.

    The seconds of this project's steps, which trained on the study's rows, grow with the rows.
    """
    steps = session.steps
    workers = Workers(run_section(params).workers).count
    dry_run = forecast.DryRun(steps.store, workers, steps.accelerator, steps.together)
    total, less = sum(rows.values()), sum(before.values())
    method = build(origin.row, fed.public.nets)
    plan = dry_run.play(method, fed, origin.seed, max(stage.rounds for stage in method.stages))
    seconds = sum(step.wall for step in plan.steps.values()) * total / max(less, 1)
    on = f"{total:,} rows of {plural(len(rows), 'device')} in place of {less:,}"
    takes = f"training takes about {max(1, round(seconds)):,} s, start and saving 10 to 60 s more"
    what = f"{origin.row.label}, seed {origin.seed}, on {on}; {takes}"
    return f"final fit of version {source.version}: {what}{threshold_taken(origin.threshold, source.version)}"


def threshold_taken(threshold: Threshold | None, version: str) -> str:
    """Say that a final fit, whose validation rows train, predicts by the threshold of the study's version."""
    if threshold is None:
        return ""
    words = f"{threshold.label!r} from probability {threshold.value:.3g} on"
    return f"; {words}, taken over from version {version}, whose validation rows chose it"
