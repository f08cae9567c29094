"""Train, combine and evaluate: every method of a study, on one federation for each setting and seed."""

from __future__ import annotations

from typing import Any

from prefect import flow, get_run_logger

from fedcore.config.request import Request, SizeName, StudyName
from fedcore.config.studies import Seeds
from fedcore.pipeline.orchestration import schedule
from fedcore.pipeline.run.final_fit import fit, open_fit
from fedcore.pipeline.run.requests import name_run, open_record, open_run
from tasks.record import record, record_final_fit
from tasks.report import propose, report


@flow(name="federate", flow_run_name=name_run, persist_result=False, **schedule.options())
def federate(
    studies: list[StudyName] | None = None, size: SizeName | None = None, seeds: Seeds | None = None,
    methods: list[str] = [], changes: dict[str, Any] = {}, promote: bool = False, final_fit: bool = True,  # noqa: B006
) -> None:  # fmt: skip
    """Run every study, seed, setting and method of a request, and report what the results say.

    Data, partitions and the rounds of a method are cached steps, in which the project's tasks take part. Each method
    that computes anything is a flow run of its own. Where the answer for a new device asks for it, the best rows are
    trained once more without each device. A model that is promoted is fitted once more before, on all rows of the
    devices.

    Args:
        studies: those of studies/ to run; params.yaml's if there are none
        size: one that all of these studies have; params.yaml's if there is none
        seeds: whole numbers; params.yaml's if there are none
        methods: labels of the study, or names of methods; all rows of the study if there are none
        changes: keys of params.yaml with dots, and their values, such as {"code_ot.reg": 0.1}
        promote: make the model that the run proposes the champion, if it is better than the present one
        final_fit: before its promotion, train that model once more on all labelled rows of the devices
    """
    request = Request.of_flow(
        studies=studies, size=size, seeds=seeds, methods=methods, changes=changes, promote=promote, final_fit=final_fit
    )
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
        configs, answer = report(run)
        for origin, source in propose(run, configs):
            with open_fit(run.params, origin, writer) as session:
                fitted = fit(session, run.params, origin, source)
                record_final_fit(writer, session.store, fitted, promote=True)
    get_run_logger().info(answer.strip())  # the last line of the page's log
