"""Local training: the steps of single devices on their own examples."""

from fedcore.pipeline.work import attach, local
from fedcore.types.federation import Device, Params
from fedcore.types.method import Attach, Local, Message, StepId, Update


@local("train")
def train(part: Local, memory: Params, message: Message, device: Device, step_id: StepId) -> tuple[Params, Update]:
    """Train a device's model on its examples, as its method does."""
    return part(memory, message, device, step_id)


@attach("rank")
def rank(part: Attach, update: Update, device: Device, step_id: StepId) -> Update:
    """Measure what the ranking of models needs (CODE, Algorithm 1, line 5)."""
    return part(update, device, step_id)
