"""What holds for a flow that a deployment runs: tries, a limit of time, and who is told that it failed (nightly.yaml).

`fedcore run` needs none of it: whoever calls it sees how it ends, and it tells a failure by itself.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from prefect import get_client, runtime
from prefect.client.schemas.objects import FlowRun, FlowRunPolicy, State
from prefect.flows import Flow

from fedcore.config import nightly
from fedcore.errors import InputError, OneLine
from fedcore.pipeline import alerts


def options() -> dict[str, Any]:
    """Return the arguments of a flow's decorator; none where no worker of Prefect runs this process."""
    if not alerts.scheduled():
        return {}
    settings = nightly.read()
    logging.getLogger("prefect.flow_runs").addFilter(_shorten)
    return {
        "retries": settings.retries, "retry_delay_seconds": int(settings.retry_delay),
        "timeout_seconds": settings.time_limit, "on_failure": [notify_failure], "on_crashed": [notify_failure],
    }  # fmt: skip


@contextmanager
def refusing() -> Iterator[None]:
    """Let refused input fail a deployment's run at once: another try would be refused as well."""
    try:
        yield
    except InputError:
        if alerts.scheduled():
            with get_client(sync_client=True) as client:
                client.update_flow_run(runtime.flow_run.id, empirical_policy=FlowRunPolicy(retries=0))
        raise


def _shorten(record: logging.LogRecord) -> bool:
    """Let an error that says in a line what is wrong be that line on the page, and the run's last line its answer."""
    if record.exc_info and isinstance(error := record.exc_info[1], OneLine):
        record.msg, record.args, record.exc_info = str(error), (), None
        again, error.logged = hasattr(error, "logged"), True  # type: ignore[attr-defined]
        return not again
    return not record.getMessage().startswith("Finished in state")


def notify_failure(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Tell, after the last try, that a run of a deployment failed, or its process was killed: Prefect names these."""
    reason = next(iter((state.message or state.name or "").splitlines()), "")
    # The name on the page, which the run has had since it began; whoever sees that it was killed knows the one before.
    with suppress(Exception), get_client(sync_client=True) as client:
        flow_run = client.read_flow_run(flow_run.id)
    alerts.notify_failure(nightly.read().alerts, f"{flow_run.name}: {reason}")
