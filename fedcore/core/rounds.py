"""The only loop over rounds. It samples devices, counts traffic, checks updates and scores models."""

import hashlib
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import Any, Protocol

import torch
from torch import Tensor

from fedcore.builders import name_of, takes
from fedcore.core.evaluation import drop_training_data, score
from fedcore.core.messages import received_model
from fedcore.core.threats import after_local, before_combine, require_devices
from fedcore.errors import Diverged, InputError, TooFew
from fedcore.nets import key, shapes
from fedcore.types.federation import NO_DATA, Device, Federation, Handle, Net, Params, Splits, is_handle
from fedcore.types.method import (
    Combine,
    Deploy,
    Message,
    Method,
    PairCombine,
    PairStage,
    Report,
    RoundInfo,
    Scores,
    Stage,
    StepId,
    Unit,
    Update,
    generator,
    require_tensors,
    step_word,
)

FEWEST, TOGETHER = 4, 1000
"""Devices of one model that are scored in a step, if there are so many; the first step scores the shared test set."""

LARGEST = {torch.float32: torch.finfo(torch.float32).max ** 0.5, torch.float64: 2.0**100}
"""What numbers of an update must be below, by their type: squares of float32 are finite, too, and a sum of squares in
float64 is one of numbers up to 1e15."""
TOO_LARGE = {
    torch.float32: "values whose squares are not finite; lower the learning rate",
    torch.float64: "sums above 1e30; scale the inputs",
}
NO_EXAMPLES = Splits(NO_DATA, NO_DATA, NO_DATA)
"""What a function that makes a device's model may see of its data."""


class Execute(Protocol):
    """Runs steps: in this process, in worker processes, as cached tasks, or on real devices. Results may be references.

    `map` may return fewer results than there are calls: the other devices are absent. An execute with a true attribute
    `in_parts` keeps results for other methods, so that the parts of a device's step are steps of their own. A method
    `capacity` returns how many steps run at a time, which then share the scoring of one model.
    """

    def __call__(self, fn: Callable[..., Any], /, *args: Any) -> Any: ...

    def map(self, fn: Callable[..., Any], calls: Mapping[Any, tuple[Any, ...]], /) -> dict[Any, Any]: ...


@dataclass(frozen=True)
class State:
    """All that the next round depends on. stage, round: the next turn. memories: of the devices that have one.

    replays: the updates that hostile devices send again, see :class:`fedcore.types.federation.Threats`.
    delivered: devices that have taken part since their message was sent: it does not travel again. of, seed, rows: the
    functions of the method whose state it is, see `functions`, the run's seed, and `digest_of_rows`; the loop itself
    leaves them empty.
    """

    server: Params | Handle
    messages: Mapping[str, Message | Handle]
    memories: Mapping[str, Params | Handle] = field(default_factory=dict)
    replays: Mapping[str, Update | Handle] = field(default_factory=dict)
    stage: int = 0
    round: int = 0
    delivered: frozenset[str] = frozenset()
    of: tuple[str, ...] = ()
    seed: int | None = None
    rows: str = ""


@dataclass(frozen=True)
class RoundResult:
    """The outcome of one turn.

    up, down: bytes that each device sent and received in this turn. A message counts once, when its device takes part;
    the method's last turn includes those that devices still lack, unless they are away then. scores: of the models
    deployed after this turn, or None if it was not evaluated. report: the server's findings in this turn. absent: the
    devices that were asked and did not answer.
    """

    round_info: RoundInfo
    state: State
    up: Mapping[str, int]
    down: Mapping[str, int]
    scores: Scores | None = None
    report: Report | Handle = field(default_factory=Report)
    absent: tuple[str, ...] = ()


def begin(method: Method, fed: Federation, seed: int, execute: Execute) -> State:
    """Return the state before the first turn. Raises InputError for threats that the method cannot be put to."""
    require_devices(method, fed.threats, len(fed.devices))
    server, messages = execute(method.begin, fed.public, seed)
    return State(server, messages)


def functions(method: Method) -> tuple[str, ...]:
    """Return the names of a method's functions, whatever settings they have."""
    parts = (part for stage in method.stages for part in (stage.local, stage.combine))
    return tuple(name_of(part) for part in (method.begin, *parts, method.deploy))


def digest_of_rows(fed: Federation) -> str:
    """Return a digest of the rows that each device trains on."""
    digest = hashlib.blake2b(digest_size=16)
    for name, device in sorted(fed.devices.items()):
        for part in (device.data.train.x, device.data.train.y):
            digest.update(f"{name} {part.dtype} {[*part.shape]}".encode())
            digest.update(part.contiguous().view(-1).numpy().data)
    return digest.hexdigest()


def run(
    method: Method, fed: Federation, seed: int, execute: Execute, state: State | None = None, every: int = 1,
    least: int = 1,
) -> Iterator[RoundResult]:  # fmt: skip
    """Run a method turn by turn, from the start or from the state of an earlier run.

    execute: runs the steps; it may keep their results as references, which the loop never opens.
    every: evaluate after every so many rounds of a stage; the last turn is always evaluated. least: how many of the
    sampled devices must answer in a round, or all if fewer are sampled; raises TooFew where they do not.
    """
    require_devices(method, fed.threats, len(fed.devices))  # those of an earlier run may have been others
    state = begin(method, fed, seed, execute) if state is None else state
    while (state := next_round(method, state)).stage < len(method.stages):
        played = play(method, fed, seed, execute, state, least)
        state = played.state
        if next_round(method, state).stage == len(method.stages):
            yield finish(method, fed, execute, played)
        elif state.round % every == 0:
            yield replace(played, scores=measure(method, fed, state, execute))
        else:
            yield played


def require_state(method: Method, fed: Federation, state: State, seed: int) -> None:
    """Refuse what is no state, one that is not of these devices, rows and seed, and one after which no round is left.

    Refused is also one of an earlier version, which tells no rows: memories were others, too.
    """
    if not isinstance(state, State):
        raise InputError(f"run.state is a {type(state).__name__}: must be the state of an earlier result, result.state")
    if state.messages.keys() != fed.devices.keys():
        raise InputError("run.state: belongs to other devices than the federation's")
    if state.of and state.of != (*(of := functions(method))[: len(state.of) - 1], of[-1]):  # stages may follow
        raise InputError("run.state: belongs to another method; go on with the same method, with any settings")
    if state.seed not in (None, seed):  # another seed's test rows are among those that it has learnt from
        raise InputError(f"run.state: belongs to seed {state.seed}, not {seed}; go on with the same seed")
    if state.of and state.rows != digest_of_rows(fed):  # nor may other rows than its own be tested on
        raise InputError(
            "run.state: its devices trained on other rows than the federation's, or with an earlier version of "
            "fedcore; go on with the same data, divided alike"
        )
    for name, device in fed.devices.items():
        expected = shapes(device.net)
        message, memory = state.messages[name], state.memories.get(name, {})
        for params in (
            message.params if isinstance(message, Message) else {},
            memory if isinstance(memory, dict) else {},
        ):
            if other := [key for key, part in params.items() if tuple(part.shape) != expected.get(key, part.shape)]:
                raise InputError(f"run.state: belongs to another net; tensor {other[0]} of {name} has another shape")
    if next_round(method, state).stage >= len(method.stages):
        count, rounds = len(method.stages), method.stages[-1].rounds
        why = f"stage {count}, the last, has run its {rounds}, and only more of its own can follow"
        why = why if count > 1 else f"the method has {rounds}, give it more"
        raise InputError(f"run.state: no round is left after it; {why}")


def next_round(method: Method, state: State) -> State:
    """Return the state with stage and round of the next turn; at the end, stage is the number of stages.

    An update that is sent again is one of the same stage.
    """
    while state.stage < len(method.stages) and state.round >= method.stages[state.stage].rounds:
        state = replace(state, stage=state.stage + 1, round=0, replays={})
    return state


def play(method: Method, fed: Federation, seed: int, execute: Execute, state: State, least: int = 1) -> RoundResult:
    """Run one round of one stage: every sampled unit's local step, then the server's. least: see `run`."""
    stage = method.stages[state.stage]
    round_info = sample_round(stage, state, fed, seed)
    memories, updates = run_local(stage, round_info, fed, execute, state)
    absent = tuple(name for unit in round_info.units if unit not in updates for name in members(unit))
    if len(updates) < min(least, len(round_info.units)):
        raise TooFew(
            f"round {state.round + 1} of stage {state.stage + 1}: {len(updates)} of {len(round_info.units)} devices "
            f"answered, at least {least} must; absent: {', '.join(absent)}"
        )
    updates, replays = after_local(stage, round_info, fed.threats, execute, state.messages, state.replays, updates)
    up, down, delivered = count_traffic(stage, round_info, state, updates, absent)
    server, messages, report = state.server, state.messages, Report()
    if stage.combine is not None:
        combine = before_combine(stage, fed.threats)
        wanted = {n: messages[n] for unit in updates for n in members(unit)} if takes(combine, "sent") else None
        more = () if wanted is None else (wanted,)
        server, sent, report = execute(receive, combine, server, updates, round_info, fed.public.nets, *more)
        messages, delivered = {**messages, **sent}, delivered - sent.keys()
    memories = {name: memory for name, memory in {**state.memories, **memories}.items() if memory}
    state = State(server, messages, memories, replays, state.stage, state.round + 1, delivered)
    return RoundResult(round_info, state, up, down, report=report, absent=absent)


def run_local(
    stage: Stage | PairStage, round_info: RoundInfo, fed: Federation, execute: Execute, state: State
) -> tuple[Mapping[str, Params | Handle], dict[Any, Update | Handle]]:
    """Return the memories of the devices that answered after their local steps, and the updates of these units."""
    calls = {unit: (*inputs(unit, state, fed), round_info.step_id(unit)) for unit in round_info.units}
    if isinstance(stage, PairStage):
        return {}, {unit: update for unit, (_, update) in execute.map(stage.local, calls).items()}
    if getattr(execute, "in_parts", False):
        return run_parts(stage, calls, execute)
    out = execute.map(device_step(stage), calls)
    check_steps(stage, out)
    return {name: memory for name, (memory, _) in out.items()}, {name: update for name, (_, update) in out.items()}


def device_step(stage: Stage) -> Callable[..., tuple[Params, Update]]:
    """Return all that a device does in a turn as one function, which is the local step if nothing follows it."""
    return stage.local if stage.attach is None and stage.combine is not None else partial(visit, stage)


def visit(stage: Stage, memory: Params, message: Message, device: Device, step_id: StepId) -> tuple[Params, Update]:
    """Take a device's whole part in a turn: its step, what it attaches, and what it keeps.

    Returns its memory and what it sends: nothing in a stage without `combine`, where it keeps its update's model.
    """
    memory, update = stage.local(memory, message, device, step_id)
    if stage.attach is not None:
        update = stage.attach(update, device, step_id)
    return (memory, update) if stage.combine is not None else (update.params, Update())


def run_parts(
    stage: Stage, calls: Mapping[Any, tuple[Any, ...]], execute: Execute
) -> tuple[Mapping[str, Params | Handle], dict[Any, Update | Handle]]:
    """Return what `visit` does, by steps of which several methods may share some."""
    out = execute.map(stage.local, calls)
    check_steps(stage, out)
    memories = {name: memory for name, (memory, _) in out.items()}
    updates = {name: update for name, (_, update) in out.items()}
    if stage.attach is not None:
        more = {name: (update, *calls[name][2:]) for name, update in updates.items()}
        updates = execute.map(stage.attach, more)
    return memories if stage.combine is not None else execute(to_memories, updates), updates


def check_steps(stage: Stage, out: Mapping[Any, Any]) -> None:
    """Refuse what is not a device's memory and its update. A step elsewhere has left references to both."""
    for unit, pair in out.items():
        if not isinstance(pair, tuple) or len(pair) != 2 or not (isinstance(pair[1], Update) or is_handle(pair[1])):
            raise InputError(f"{name_of(stage.local)}: must return (memory, update), returned {described(pair)}")
        if isinstance(pair[0], dict):
            require_tensors(f"memory of {unit}", pair[0])


def count_traffic(
    stage: Stage | PairStage, round_info: RoundInfo, state: State, updates: Mapping[Any, Update | Handle],
    absent: Collection[str] = (),
) -> tuple[dict[str, int], dict[str, int], frozenset[str]]:  # fmt: skip
    """Return the bytes that each device sends and receives, and the devices that have their messages now.

    A message travels to a device that takes part and lacks it; a pair's update is its first device's traffic.
    """
    present = {name for unit in round_info.units for name in members(unit)} - {*absent}
    lacking = present - state.delivered
    down = {name: state.messages[name].nbytes if name in lacking else 0 for name in round_info.names}
    up = dict.fromkeys(round_info.names, 0)
    for unit, update in updates.items() if stage.combine is not None else ():
        up[members(unit)[0]] += update.nbytes
    return up, down, state.delivered | present


@step_word("store")
def to_memories(updates: Mapping[str, Update]) -> dict[str, Params]:
    """Return each update's model as its device's memory."""
    return {name: update.params for name, update in updates.items()}


def finish(method: Method, fed: Federation, execute: Execute, last: RoundResult) -> RoundResult:
    """Return the last turn, evaluated unless it is, with the final messages sent to all who lack them and are scored.

    Without a server none are sent. A run that goes on from there sends them to nobody again.
    """
    down, state = dict(last.down), last.state
    scores = measure(method, fed, state, execute) if last.scores is None else last.scores
    if any(stage.combine is not None for stage in method.stages):
        lacking = (down.keys() - state.delivered) & scores.keys()  # not a device that is away
        for name in lacking:
            down[name] += state.messages[name].nbytes
        state = replace(state, delivered=state.delivered | lacking)
    return replace(last, state=state, down=down, scores=scores)


def members(unit: Unit) -> tuple[str, ...]:
    """Return the names of the devices in a unit."""
    return (unit,) if isinstance(unit, str) else unit


def inputs(unit: Unit, state: State, fed: Federation) -> tuple[Any, Any, Any]:
    """Return a unit's memory, message and device; for a pair each is a pair."""
    if isinstance(unit, str):
        return state.memories.get(unit) or {}, state.messages[unit], fed.devices[unit]
    memories, messages, devices = zip(*(inputs(name, state, fed) for name in unit), strict=True)
    return memories, messages, devices


def sample_round(stage: Stage | PairStage, state: State, fed: Federation, seed: int) -> RoundInfo:
    """Return the next turn with all units, or a fraction of them (at least one) sampled without replacement."""
    names = tuple(fed.devices)
    units: list[Unit] = list(combinations(names, 2)) if isinstance(stage, PairStage) else list(names)
    if stage.fraction < 1:
        count = max(1, round(stage.fraction * len(units)))
        drawn = torch.randperm(len(units), generator=generator(seed, state.stage, state.round, "sample"))[:count]
        units = [units[i] for i in sorted(drawn.tolist())]
    return RoundInfo(seed, state.stage, state.round, tuple(units), names)


def receive(
    combine: Combine | PairCombine, server: Params, updates: Mapping[Any, Update], round_info: RoundInfo,
    nets: Mapping[str, Net], sent: Mapping[str, Message] | None = None,
) -> tuple[Params, Mapping[str, Message], Report]:  # fmt: skip
    """Check and combine updates, and check what the server sends.

    sent: the messages that devices had, for a function that takes them.

    Raises InputError, naming the device, for an update or a message that cannot be used, and naming the function for a
    result that is none.
    """
    updates = {unit: updates[unit] for unit in round_info.units if unit in updates}  # whoever answered first
    fine = are_below([x for of in updates.values() for part in (of.params, of.extra) for x in part.values()], LARGEST)
    for unit, update in updates.items():
        check(unit, update, nets[unit] if isinstance(unit, str) else None, fine)
    combined = combine(server, updates, round_info, **({} if sent is None else {"sent": sent}))
    if (
        not isinstance(combined, tuple)
        or len(combined) not in (2, 3)
        or not all(isinstance(part, Mapping) for part in combined[:2])
    ):
        wanted = "(server, messages) or (server, messages, report)"
        cure = "one message for all is fc.to_everyone(names, message)"
        raise InputError(f"{name_of(combine)}: must return {wanted}, returned {described(combined)}; {cure}")
    require_tensors("the server's memory", combined[0])
    check_sent(combined[1], round_info)
    return combined if len(combined) == 3 else (*combined, Report())


def described(value: Any) -> str:
    """Return the type of a value, for messages; of a tuple the types of its parts."""
    if isinstance(value, tuple):
        return f"({', '.join(map(described, value))})"
    return type(value).__name__


def check_sent(messages: Mapping[str, Message], round_info: RoundInfo) -> None:
    """Refuse a message to nobody, and a model that is not finite, from which no device could train."""
    for device, message in {id(message): (device, message) for device, message in messages.items()}.values():
        who = f"the server's message to {device} in round {round_info.round + 1}"
        if device not in round_info.names or not isinstance(message, Message):
            raise InputError(f"{who}: must be a Message to a device; it is {described(message)}")
        require_detached(who, message.params, message.extra)
        # others may be infinite: the logits of a one-hot target
        for name, tensor in () if are_below(message.params.values(), {}) else message.params.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise Diverged(f"{who}: tensor {name} has values that are not finite; lower the learning rate")


def require_detached(what: str, *parts: Params) -> None:
    """Refuse tensors that still record gradients, from which no device could train."""
    for part in parts:
        for name, tensor in part.items():
            if tensor.requires_grad:
                raise InputError(f"{what}: tensor {name} records its gradient; send tensor.detach()")


def are_below(tensors: Iterable[Tensor], largest: Mapping[torch.dtype, float]) -> bool:
    """Tell, in one pass, whether norms say that all numbers are finite and below what their type may have at most.

    They say so unless a number is not, or hundreds are near it.
    """
    kinds: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.is_floating_point() and tensor.numel():
            kinds.setdefault(tensor.dtype, []).append(tensor.detach())
    norms = {kind: torch.stack([*torch._foreach_norm(of)]) for kind, of in kinds.items()}
    return all(bool((of < largest.get(kind, math.inf)).all()) for kind, of in norms.items())


def check(unit: Unit, update: Update, net: Net | None, fine: bool = False) -> None:
    """Refuse an update that is not finite, or that has a tensor of another name or shape than the device's net.

    A number that is not below LARGEST counts as none: no step could be taken from a mean with it.
    fine: whether all its numbers are known to be finite and small enough.
    """
    who = " and ".join(members(unit))
    expected = shapes(net) if net is not None else {}
    require_detached(f"update of {who}", update.params, update.extra)
    for name, tensor in () if fine else (*update.params.items(), *update.extra.items()):
        if tensor.is_floating_point() and not bool((tensor.abs() < LARGEST.get(tensor.dtype, math.inf)).all()):
            finite = bool(torch.isfinite(tensor).all())
            why = TOO_LARGE[tensor.dtype] if finite else "values that are not finite; lower the learning rate"
            raise Diverged(f"update of {who}: tensor {name} has {why}")
    for name, tensor in update.params.items() if net is not None else ():
        if name not in expected:
            raise InputError(f"update of {who}: tensor {name} is not one of its net's ({', '.join(expected)})")
        if tuple(tensor.shape) != expected[name]:
            raise InputError(
                f"update of {who}: tensor {name} has shape {tuple(tensor.shape)}, its net has {expected[name]}"
            )


def measure(method: Method, fed: Federation, state: State, execute: Execute) -> Scores:
    """Score the model that each device would run now. Devices with the same model share evaluations, see TOGETHER.

    A device that does not answer has no scores.
    """
    scored = {n: device if fed.scoring.train else drop_training_data(device) for n, device in fed.devices.items()}
    groups, calls = deployments(method, fed, state), {}
    processes = getattr(execute, "capacity", int)()
    parts = 2 * processes // len(groups) if processes > 1 else 1  # two for each process: the first takes longer
    for names, what in groups:
        size = min(TOGETHER, max(FEWEST, math.ceil(len(names) / max(parts, 1))))
        for first in range(0, len(names), size):
            devices = {name: scored[name] for name in names[first : first + size]}
            test = NO_DATA if first else fed.test
            calls[names[first]] = (*what, devices, test, *([fed.scoring] if fed.scoring else []))
    scores: Scores = {}
    for scores_of_part in execute.map(score, calls).values():
        scores |= scores_of_part
    for names in (names for names, _ in groups if len({*names} & calls.keys()) > 1):
        there = [name for name in names if name in scores]
        for split in ("shared", "inference") if there else ():
            each = [scores[name][split] for name in there]
            of_all = next((of for of in each if not any(map(math.isnan, of.values()))), each[0])
            scores |= {name: {**scores[name], split: of_all} for name in there}
    return {name: scores[name] for name in fed.devices if name in scores}


def deployments(method: Method, fed: Federation, state: State) -> list[tuple[list[str], tuple[Deploy, Any, Any]]]:
    """Return groups of devices that run the same model, each with the arguments that make it: deploy, memory, message.

    Memories are compared only where the model may depend on them: SCAFFOLD's devices all run one model.
    """
    memories = {} if method.deploy is received_model else state.memories
    alone = takes(method.deploy, "device")
    groups: dict[Any, list[str]] = {}
    for name, device in fed.devices.items():
        of = name if alone else (identity(memories.get(name)), identity(state.messages[name]), key(device.net))
        groups.setdefault(of, []).append(name)
    found: list[tuple[list[str], tuple[Deploy, Any, Any]]] = []
    for names in groups.values():
        deploy: Any = method.deploy
        if alone:
            deploy = partial(deploy, device=Device(names[0], fed.devices[names[0]].net, NO_EXAMPLES))
        found.append((names, (deploy, memories.get(names[0]) or {}, state.messages[names[0]])))
    return found


def deploy_on(deploy: Deploy, name: str, net: Net) -> Deploy:
    """Return a method's `deploy` for one device, of memory and message alone."""
    of: Any = deploy
    return partial(of, device=Device(name, net, NO_EXAMPLES)) if takes(deploy, "device") else deploy


def identity(value: Any) -> Any:
    """Return a key that differs for different values: a reference's digest, otherwise the object's id."""
    return value.digest if is_handle(value) else id(value)
