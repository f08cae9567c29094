"""Train, combine and evaluate: every method of a study, on one federation for each setting and seed."""

from __future__ import annotations

from prefect import flow

from fedcore.config.request import Request
from fedcore.pipeline.orchestration.steps import as_is
from fedcore.pipeline.run.requests import name_run, open_record, open_run
from tasks import STEPS
from tasks.record import record
from tasks.report import report


@flow(name="federate", flow_run_name=name_run, persist_result=False)
def federate(request: Request) -> None:
    """Run every study, seed, setting and method of a request, and report what the results say.

    Data, divisions and the rounds of a method are cached steps, which the tasks of `tasks.STEPS` run.
    """
    with open_record() as writer:
        with open_run(request, STEPS, writer) as run:
            for ready in run.prepare():
                for method in ready.setting.methods:
                    if result := run.run_method(ready, method):
                        record(as_is(run), as_is(ready), as_is(result))
        report(as_is(run))
