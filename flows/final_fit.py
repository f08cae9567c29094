"""The final fit of a version: its method once more on all rows of the devices, as a version to be promoted."""

from __future__ import annotations

from prefect import flow

from fedcore.config.params import read
from fedcore.pipeline.record.runs import Record
from fedcore.pipeline.run.final_fit import fit, open_fit
from fedcore.pipeline.run.requests import open_record
from tasks.record import record_final_fit


@flow(name="final-fit", flow_run_name="final fit of {model} version {version}", persist_result=False)
def final_fit(model: str, version: str) -> None:
    """Train the method of a registered version on all labelled rows of each device, and register the models."""
    params, (origin, source) = read(), Record().find_source(model, version)
    with open_record() as writer, open_fit(params, origin, writer) as session:
        fitted = fit(session, params, origin, source)
        record_final_fit(writer, session.store, fitted, promote=False)
