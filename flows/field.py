"""A method on real devices: run it with those that are connected, record it, propose its model."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from prefect import flow

from fedcore.field.session import choose_method, play
from fedcore.pipeline.orchestration import schedule
from fedcore.pipeline.orchestration.session import console
from tasks.record import record_field


@flow(name="field", flow_run_name="field {kit}", persist_result=False, **schedule.options())
def field(
    kit: str, name: str | None = None, method: str | None = None, deadline: float = 600.0, least: int | None = None
) -> None:
    """Run a method with the devices of a server's kit, on the rows that they have today.

    name: of the run, which goes on from its last turn; None: today's. method: None: the answer of the devices' study.
    deadline: seconds of a step. least: None: all devices must answer.
    """
    place = Path(kit)
    with schedule.refusing():
        config = choose_method(place, method, {})
    field_run = play(
        place, config, name or f"night{date.today():%Y%m%d}", seconds=deadline, least=least, said=console.print
    )
    record_field(field_run)
