"""How large a method's messages are, without a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fedcore.config.methods import MethodConfig
from fedcore.core.rounds import device_step
from fedcore.execute.workers import Inline
from fedcore.pipeline.cache.store import Store
from fedcore.types.federation import Federation, Params
from fedcore.types.method import Stage, StepId


def message_bytes(row: MethodConfig, fed: Federation, sizes: Mapping[str, int], store: Store) -> dict[int, int]:
    """Return the first stage in which devices send, with the bytes of a message; nothing if that is a stage of pairs.

    The device with the most examples takes its steps, with a single minibatch in place of its epochs, also in
    ST-LF's pretraining and where a server trains, as FedASA's its auxiliary model.
    """
    short = {key: 1 for key in row.settings if key in ("pretrain_steps", "steps")}
    once = replace(row, training=replace(row.training, steps=1), settings={**row.settings, **short})
    method = once.build(fed.public.nets, sizes)
    name = max(sizes, key=lambda name: sizes[name])
    device = store.get(fed.devices[name])
    _, messages = Inline().call(method.begin, store.get(fed.public), 0)
    memory: Params = {}
    for number, stage in enumerate(method.stages):
        if not isinstance(stage, Stage):
            break
        step = StepId(0, number, 0, name)
        memory, update = Inline().call(device_step(stage), memory, messages[name], device, step)
        if stage.combine is not None:
            return {number: update.nbytes}
    return {}
