"""What holds for a flow that a deployment runs: tries, a limit of time, and who is told that it failed (nightly.yaml).

`fedcore run` needs none of it: whoever calls it sees how it ends, and it tells a failure by itself.
"""

from typing import Any

from prefect.client.schemas.objects import FlowRun, State
from prefect.flows import Flow

from fedcore.config import nightly
from fedcore.pipeline import alerts


def options() -> dict[str, Any]:
    """Return the arguments of a flow's decorator; none where no worker of Prefect runs this process."""
    if not alerts.scheduled():
        return {}
    settings = nightly.read()
    return {
        "retries": settings.retries, "retry_delay_seconds": settings.retry_delay,
        "timeout_seconds": settings.time_limit, "on_failure": [notify_failure], "on_crashed": [notify_failure],
    }  # fmt: skip


def notify_failure(flow: Flow[..., Any], run: FlowRun, state: State[Any]) -> None:
    """Tell, after the last try, that a run of a deployment failed."""
    reason = next(iter((state.message or state.name or "").splitlines()), "")
    alerts.notify_failure(nightly.read().alerts, f"{run.name}: {reason}")
