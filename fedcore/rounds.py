"""The only loop over rounds, and what it alone does: sampling, counting traffic, refusing bad updates, scoring."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Protocol

import torch

from fedcore.evaluate import examined, score
from fedcore.messages import received
from fedcore.nets import key, shapes
from fedcore.types import (
    Combine,
    Deploy,
    Federation,
    Handle,
    InputError,
    Message,
    Method,
    Net,
    PairCombine,
    PairStage,
    Params,
    Report,
    Scores,
    Stage,
    Turn,
    Unit,
    Update,
    generator,
)


class Execute(Protocol):
    """How a step is run: here, in worker processes, or as a cached task. What a step returns may be a reference."""

    def __call__(self, fn: Callable[..., Any], /, *args: Any) -> Any: ...

    def map(self, fn: Callable[..., Any], calls: Mapping[Any, tuple[Any, ...]], /) -> dict[Any, Any]: ...


@dataclass(frozen=True)
class State:
    """All that the next round depends on. stage, round: the next turn. memories holds only devices that have one."""

    server: Params | Handle
    messages: Mapping[str, Message | Handle]
    memories: Mapping[str, Params | Handle] = field(default_factory=dict)
    stage: int = 0
    round: int = 0


@dataclass(frozen=True)
class Round:
    """What one turn left behind.

    up, down: bytes that each device sent and received in this turn. The method's last turn also brings everyone the
    final model. scores: of the models as deployed after this turn, or None where it was not evaluated. report: what
    the server found in this turn.
    """

    turn: Turn
    state: State
    up: Mapping[str, int]
    down: Mapping[str, int]
    scores: Scores | None = None
    report: Report | Handle = field(default_factory=Report)


def begin(method: Method, fed: Federation, seed: int, execute: Execute) -> State:
    """Return the state before the first turn."""
    server, messages = execute(method.begin, fed.public, seed)
    return State(server, messages)


def run(
    method: Method, fed: Federation, seed: int, execute: Execute, state: State | None = None, every: int = 1
) -> Iterator[Round]:
    """Play a method's turns one by one, from the start or from a state that an earlier run left.

    execute: runs the steps; it may keep their results as references, the loop never looks inside them.
    every: evaluate after each so many rounds of a stage; the method's end is always evaluated.
    """
    state = begin(method, fed, seed, execute) if state is None else state
    while (state := upcoming(method, state)).stage < len(method.stages):
        played = play(method, fed, seed, execute, state)
        state = played.state
        if upcoming(method, state).stage == len(method.stages):
            yield finish(method, fed, execute, played)
        elif state.round % every == 0:
            yield replace(played, scores=measure(method, fed, state, execute))
        else:
            yield played


def upcoming(method: Method, state: State) -> State:
    """Return the same state with stage and round of the next turn; stage is beyond the last one at the end."""
    while state.stage < len(method.stages) and state.round >= method.stages[state.stage].rounds:
        state = replace(state, stage=state.stage + 1, round=0)
    return state


def play(method: Method, fed: Federation, seed: int, execute: Execute, state: State) -> Round:
    """Play one turn."""
    stage = method.stages[state.stage]
    turn = take_turn(stage, state, fed, seed)
    out = execute.map(stage.local, {unit: (*inputs(unit, state, fed), turn.step_id(unit)) for unit in turn.units})
    updates: dict[Any, Update | Handle] = {unit: update for unit, (_, update) in out.items()}
    present = {name for unit in turn.units for name in members(unit)}
    up = dict.fromkeys(turn.names, 0)
    down = {name: state.messages[name].nbytes if name in present else 0 for name in turn.names}
    server, messages = state.server, state.messages
    report: Report | Handle = Report()
    new = {} if isinstance(stage, PairStage) else {name: memory for name, (memory, _) in out.items()}
    if stage.combine is None:
        new = execute(to_memories, updates)
    else:
        for unit, update in updates.items():
            up[members(unit)[0]] += update.nbytes
        server, sent, report = execute(receive, stage.combine, state.server, updates, turn, fed.public.nets)
        messages = {**state.messages, **sent}
    memories = {name: memory for name, memory in {**state.memories, **new}.items() if memory}
    state = State(server, messages, memories, state.stage, state.round + 1)
    return Round(turn, state, up, down, report=report)


def to_memories(updates: Mapping[str, Update]) -> dict[str, Params]:
    """Return the models that would have been sent, as their devices' memories."""
    return {name: update.params for name, update in updates.items()}


def finish(method: Method, fed: Federation, execute: Execute, last: Round) -> Round:
    """Return the last turn with the final models sent to everyone (where a server was involved) and evaluated."""
    down = dict(last.down)
    if any(stage.combine is not None for stage in method.stages):
        for name in down:
            down[name] += last.state.messages[name].nbytes
    return replace(last, down=down, scores=measure(method, fed, last.state, execute))


def members(unit: Unit) -> tuple[str, ...]:
    """Return the names of the devices in a unit."""
    return (unit,) if isinstance(unit, str) else unit


def inputs(unit: Unit, state: State, fed: Federation) -> tuple[Any, Any, Any]:
    """Return a unit's memory, message and device; for a pair each is a pair."""
    if isinstance(unit, str):
        return state.memories.get(unit) or {}, state.messages[unit], fed.devices[unit]
    memories, messages, devices = zip(*(inputs(name, state, fed) for name in unit), strict=True)
    return memories, messages, devices


def take_turn(stage: Stage | PairStage, state: State, fed: Federation, seed: int) -> Turn:
    """Choose who takes part: all units, or a fraction of them (at least one) drawn without replacement."""
    names = tuple(fed.devices)
    units: list[Unit] = list(combinations(names, 2)) if isinstance(stage, PairStage) else list(names)
    if stage.fraction < 1:
        count = max(1, round(stage.fraction * len(units)))
        drawn = torch.randperm(len(units), generator=generator(seed, state.stage, state.round, "sample"))[:count]
        units = [units[i] for i in sorted(drawn.tolist())]
    return Turn(seed, state.stage, state.round, tuple(units), names)


def receive(
    combine: Combine | PairCombine,
    server: Params,
    updates: Mapping[Any, Update],
    turn: Turn,
    nets: Mapping[str, Net],
) -> tuple[Params, Mapping[str, Message], Report]:
    """Combine updates after checking each; raises InputError, naming the device, for one that cannot be used."""
    for unit, update in updates.items():
        check(unit, update, nets[unit] if isinstance(unit, str) else None)
    found = combine(server, updates, turn)
    return found if len(found) == 3 else (*found, Report())


def check(unit: Unit, update: Update, net: Net | None) -> None:
    """Refuse an update with a value that is not finite, or with a leaf that the device's net does not have so."""
    who = " and ".join(members(unit))
    expected = shapes(net) if net is not None else {}
    for name, leaf in (*update.params.items(), *update.extra.items()):
        if leaf.is_floating_point() and not bool(torch.isfinite(leaf).all()):
            raise InputError(f"update of {who}: leaf {name} has values that are not finite; lower the learning rate")
    for name, leaf in update.params.items() if net is not None else ():
        if name not in expected:
            raise InputError(f"update of {who}: leaf {name} is not one of its net's ({', '.join(expected)})")
        if tuple(leaf.shape) != expected[name]:
            raise InputError(
                f"update of {who}: leaf {name} has shape {tuple(leaf.shape)}, its net has {expected[name]}"
            )


def measure(method: Method, fed: Federation, state: State, execute: Execute) -> Scores:
    """Score what every device would run now. Devices that run the same model share one evaluation of it."""
    calls = {
        names[0]: (*what, {name: examined(fed.devices[name]) for name in names}, fed.test)
        for names, what in deployments(method, fed, state)
    }
    scores: Scores = {}
    for part in execute.map(score, calls).values():
        scores |= part
    return {name: scores[name] for name in fed.devices}


def deployments(method: Method, fed: Federation, state: State) -> list[tuple[list[str], tuple[Deploy, Any, Any]]]:
    """Return the devices that run the same model, and what makes it: deploy, memory, message.

    Memories tell devices apart only where what they run may come from there: SCAFFOLD's devices all run one model.
    """
    memories = {} if method.deploy is received else state.memories
    groups: dict[Any, list[str]] = {}
    for name, device in fed.devices.items():
        groups.setdefault((same(memories.get(name)), same(state.messages[name]), key(device.net)), []).append(name)
    return [
        (names, (method.deploy, memories.get(names[0]) or {}, state.messages[names[0]])) for names in groups.values()
    ]


def same(value: Any) -> Any:
    """Return what tells two values apart: the digest of one that lies elsewhere, else the object itself."""
    return value.digest if isinstance(value, Handle) else id(value)
