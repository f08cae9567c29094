"""How a method does on a device that took no part: its model there, and the scores on the device's examples.

The server has a model for such a device if it sent one message to all devices with its net, and that message alone,
without a memory, makes a whole model. FedPer has none, since each device keeps a head of its own, and ST-LF has none,
since each device gets models of its own. Where nothing is sent, the device would run another device's model: its score
is the mean over the devices.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch

from fedcore.builders import takes
from fedcore.core.evaluation import evaluate, missing_tensor
from fedcore.core.rounds import Execute, State, deployments, identity
from fedcore.data.task import count_different
from fedcore.errors import InputError
from fedcore.nets import key
from fedcore.types.federation import Data, Federation, Handle, Net, Params, Scoring, is_handle
from fedcore.types.method import Deploy, Message, Method, step_word

NEVER = 10**9
"""Rounds between evaluations where only the last one is needed."""


def trains_alone(method: Method) -> bool:
    """Tell whether the method's devices send nothing."""
    return all(stage.combine is None for stage in method.stages)


def has_model_for_new(method: Method, fed: Federation, state: State, execute: Execute) -> bool:
    """Tell whether a method has a model for a device that took no part; asked with the shared test set."""
    device = next(iter(fed.devices.values()))
    return "examples" in score_new(method, fed, state, execute, device.net, {device.name: fed.test})[device.name]


def score_new(
    method: Method, fed: Federation, state: State, execute: Execute, net: Net, examples: Mapping[str, Data | Handle]
) -> dict[str, dict[str, float]]:
    """Return device -> metric -> value on the examples of devices that took no part.

    fed, state: the federation that was trained, and its last state. net: of the new devices. Beside the metrics there
    are `examples` and `classes`, the numbers of examples and of their classes. `accuracy`, alone, is nan if the method
    has no model for a new device.
    """
    models = new_models(method, fed, state, net) if examples else []
    scored = [fed.scoring] if fed.scoring else []
    calls = {
        (device, str(number)): (*what, rows, *scored)
        for device, rows in examples.items()
        for number, what in enumerate(models)
    }
    scores = execute.map(score_model, calls) if calls else {}
    return {device: mean_scores([scores[device, str(number)] for number in range(len(models))]) for device in examples}


def new_models(
    method: Method, fed: Federation, state: State, net: Net
) -> list[tuple[Deploy, Params | Handle, Message | Handle, Net]]:
    """Return what a new device may run, deploy, memory, message and net: the shared model, or each device's own.

    A method whose models depend on the device has none.
    """
    if trains_alone(method):
        return [(*what, fed.devices[name].net) for names, what in deployments(method, fed, state) for name in names]
    sent = [state.messages[name] for name, device in fed.devices.items() if key(device.net) == key(net)]
    shared = sent and all(_same(sent[0], other) for other in sent[1:]) and not takes(method.deploy, "device")
    return [(method.deploy, {}, sent[0], net)] if shared else []


@step_word("evaluate")
def score_model(
    deploy: Deploy, memory: Params, message: Message, net: Net, examples: Data, scoring: Scoring = Scoring()
) -> dict[str, float]:
    """Score a model on some examples; empty if memory and message do not make a whole one."""
    try:
        model = deploy(memory, message)
    except (InputError, KeyError):  # a part is missing that the memory would hold
        return {}
    if missing_tensor(model, net):
        return {}
    sizes = {"examples": float(len(examples)), "classes": float(count_different(examples.y))}
    return evaluate(model, net, examples, scoring) | sizes


def mean_scores(of_models: list[dict[str, float]]) -> dict[str, float]:
    """Return the mean of the scores of several models on the same examples."""
    scored = [scores for scores in of_models if scores]
    if not scored:
        return {"accuracy": math.nan}
    return {metric: sum(scores[metric] for scores in scored) / len(scored) for metric in scored[0]}


def _same(first: Any, second: Any) -> bool:
    """Tell whether two messages are equal; references by their digests."""
    if is_handle(first) or is_handle(second) or first is second:
        return bool(identity(first) == identity(second))
    return all(
        left.keys() == right.keys() and all(torch.equal(tensor, right[name]) for name, tensor in left.items())
        for left, right in ((first.params, second.params), (first.extra, second.extra))
    )
