"""Train, combine and evaluate: every method of a study, on one federation for each setting and seed."""

from __future__ import annotations

from prefect import flow

from fedcore.config.request import Request
from fedcore.pipeline.orchestration import schedule
from fedcore.pipeline.run.final_fit import fit, open_fit
from fedcore.pipeline.run.requests import name_run, open_record, open_run
from tasks.record import record, record_final_fit
from tasks.report import propose, report


@flow(name="federate", flow_run_name=name_run, persist_result=False, **schedule.options())
def federate(request: Request) -> None:
    """Run every study, seed, setting and method of a request, and report what the results say.

    Data, partitions and the rounds of a method are cached steps, in which the project's tasks take part. Each method
    that computes anything is a flow run of its own. Where the answer for a new device asks for it, the best rows are
    trained once more without each device. A model that is promoted is fitted once more before, on all rows of the
    devices.
    """
    with open_record() as writer:
        with open_run(request, writer) as run:
            for ready in run.prepare():
                for method in ready.setting.methods:
                    result = run.run_method(ready, method)
                    if result and result.computed:
                        record(run, ready, result)
                    elif result:
                        run.record(ready, result)
            run.leave_out_devices()
        for origin, source in propose(run, report(run)):
            with open_fit(run.params, origin, writer) as session:
                fitted = fit(session, run.params, origin, source)
                record_final_fit(writer, session.store, fitted, promote=True)
