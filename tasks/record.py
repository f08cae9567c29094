"""Record results in MLflow."""

from fedcore.field.session import FieldRun
from fedcore.pipeline.cache.store import Store
from fedcore.pipeline.orchestration.session import console
from fedcore.pipeline.orchestration.task_runs import task
from fedcore.pipeline.record.result import Result
from fedcore.pipeline.record.writer import RecordWriter
from fedcore.pipeline.run.requests import ReadySetting, Run


@task("record {result.name}")
def record(run: Run, ready: ReadySetting, result: Result) -> None:
    """Write a method's result to its MLflow run: models, matrices, metrics, pictures and the digest of its data."""
    run.record(ready, result)


@task("record {result.name}")
def record_final_fit(writer: RecordWriter, store: Store, result: Result, promote: bool) -> None:
    """Register a final fit's models as a version that names its study's run and, if wanted, make it the champion."""
    writer.save_final_fit(store, result, promote)


@task("record {field_run.folder.name}")
def record_field(field_run: FieldRun) -> None:
    """Write a run on real devices to the record, and propose its model."""
    from fedcore.pipeline.record.field import record as record_run  # takes MLflow, which other flows do without

    for line in record_run(field_run):
        console.print(line)
