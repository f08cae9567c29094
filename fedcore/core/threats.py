"""Devices that are hostile (Byzantine), late or drop out, and the server's bound on what they send.

A threat changes what a device *sends*, after its honest step and for every method alike: `after_local` and
`before_combine` are the loop's two hooks, which change nothing where nobody misbehaves. Who is
hostile depends on (seed, name), who is late or drops out on (seed, stage, round, name): not on the method, and the
devices that are hostile at one share are so at every greater one.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch

from fedcore.builders import takes
from fedcore.core.aggregation import shorten
from fedcore.errors import InputError
from fedcore.types.federation import Handle, Params, Threats
from fedcore.types.method import (
    Combine,
    Message,
    Method,
    PairStage,
    Report,
    RoundInfo,
    Sends,
    Sent,
    Stage,
    StepId,
    Update,
    generator,
    step_word,
)

CONDUCT = "conduct"
"""The topic of the report: in how many rounds a device attacked, dropped out, was late, was clipped, was refused."""


def split_threats(section: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of a federation in two parts: those of `Threats`, and the others."""
    names = {field.name for field in fields(Threats)}
    return (
        {key: value for key, value in section.items() if key in names},
        {key: value for key, value in section.items() if key not in names},
    )


def hostile_devices(threats: Threats, names: Iterable[str], seed: int) -> tuple[str, ...]:
    """Return the hostile devices: those with the least draws, round(hostile C) of them, in the order of their names."""
    names = sorted(names)
    drawn = {name: torch.rand((), generator=generator(seed, "hostile", name)).item() for name in names}
    return tuple(sorted(sorted(names, key=drawn.__getitem__)[: round(threats.hostile * len(names))]))


def dropouts(threats: Threats, round_info: RoundInfo) -> tuple[str, ...]:
    """Return the sampled devices that send nothing in this turn; at least one sends."""
    units = [str(unit) for unit in round_info.units]
    drawn = {name: torch.rand((), generator=round_info.step_id(name).generator("drop")).item() for name in units}
    dropped = [name for name in units if drawn[name] < threats.drop]
    return tuple(name for name in dropped if len(dropped) < len(units) or name != max(units, key=drawn.__getitem__))


def require_devices(method: Method, threats: Threats | None, count: int) -> None:
    """Refuse threats to steps of pairs and to masked updates, and copies where a round may have no honest device."""
    for stage in method.stages if threats else ():
        if isinstance(stage, PairStage):
            raise InputError(
                "federation.hostile, drop, deadline and bound: must not be set for a method with steps of pairs"
            )
        if stage.sends == "masked" and threats and (threats.hostile or threats.bound):
            raise InputError(
                "federation.hostile and bound: must not be set with secure_aggregation = true, whose server sees no "
                "single update"
            )
        liars = round(threats.hostile * count) if threats and threats.attack == "duplicate" else 0
        if stage.combine and stage.sends != "counts" and liars >= max(1, round(stage.fraction * count)):
            why = f"a round may have no honest device to copy, as {liars} of {count} are hostile; lower that, or raise"
            raise InputError(f"federation.attack = duplicate: {why} the method's fraction")


def borne(threats: Threats | None, stage: Stage | PairStage) -> Threats | None:
    """Return the threats that a stage bears: a control's devices tell the truth, which no bound measures."""
    honest = threats and isinstance(stage, Stage) and stage.sends == "counts"
    return replace(threats, hostile=0.0, bound=None) if threats and honest else threats


def require_numbers(update: Update, setting: str) -> None:
    """Refuse a threat to whole numbers alone, such as trees, which it would leave as they are."""
    tensors = [*update.params.values(), *update.extra.values()]
    if tensors and not any(tensor.is_floating_point() for tensor in tensors):
        raise InputError(f"{setting}: changes no whole numbers, and this method sends nothing else; leave it out")


def after_local(
    stage: Stage | PairStage, round_info: RoundInfo, threats: Threats | None, execute: Any,
    messages: Mapping[str, Message | Handle], replays: Mapping[str, Update | Handle],
    updates: Mapping[Any, Update | Handle],
) -> tuple[dict[Any, Update | Handle], Mapping[str, Update | Handle]]:  # fmt: skip
    """Return the updates as they are sent: those of hostile devices corrupted, those of dropouts left out.

    The loop's hook between the local steps and the server's. Returns also the updates that hostile devices send again
    in later rounds. execute: see :class:`fedcore.core.rounds.Execute`.
    """
    threats = borne(threats, stage)
    if not threats or not isinstance(stage, Stage) or stage.combine is None:
        return dict(updates), replays
    hostile = [name for name in hostile_devices(threats, round_info.names, round_info.seed) if name in updates]
    false: Mapping[str, Update | Handle] = {}
    if threats.attack == "stale":
        replays = {name: updates[name] for name in hostile} | {**replays}
        false = {name: replays[name] for name in hostile}
    elif threats.attack == "duplicate":
        honest = [name for name in updates if name not in hostile]
        false = execute.map(repeat, {name: (updates[name], updates[honest[0]]) for name in hostile if honest})
    elif hostile:
        attack = partial(corrupt, threats=threats, sends=stage.sends)
        calls = {name: (updates[name], messages[name], round_info.step_id(name)) for name in hostile}
        false = execute.map(attack, calls)
    dropped = dropouts(threats, round_info)
    return {name: false.get(name, update) for name, update in updates.items() if name not in dropped}, replays


def before_combine(stage: Stage | PairStage, threats: Threats | None) -> Any:
    """Return the server's step: the stage's own, or one that first leaves out what is late or beyond the bound."""
    threats = borne(threats, stage)
    if not threats or not isinstance(stage, Stage) or stage.combine is None:
        return stage.combine
    return partial(admit, stage.combine, threats, stage.sends)


@step_word("attack")
def repeat(update: Update, other: Update) -> Update:
    """Return another device's update in place of one, whose size it keeps, and tensors that the other has not."""
    params = {name: other.params.get(name, tensor) for name, tensor in update.params.items()}
    return replace(other, params=params, size=update.size)


@step_word("attack")
def corrupt(update: Update, message: Message, step_id: StepId, *, threats: Threats, sends: Sends) -> Update:
    r"""Return a hostile device's update, theta its honest model, theta_0 the one it was sent, s the strength.

    sign_flip: theta_0 - s (theta - theta_0). scale: theta_0 + s (theta - theta_0). noise: theta_0 + s r z, r the root
    mean square of theta - theta_0 and z standard normal, tensor by tensor.

    Other tensors of the update are corrupted about zero, and so are changes and tensors that it was not sent.
    """
    require_numbers(update, f"federation.attack = {threats.attack}")
    draws = step_id.generator("attack")

    def distort(params: Params, about: Params) -> Params:
        corrupted = dict(params)
        for name, tensor in params.items():
            if tensor.is_floating_point():
                start = about.get(name, torch.zeros_like(tensor))
                change = tensor - start
                if threats.attack == "noise":
                    size = change.square().mean().sqrt() if change.numel() else 0.0
                    change = torch.randn(tensor.shape, generator=draws).to(tensor) * size
                elif threats.attack == "sign_flip":
                    change = -change
                corrupted[name] = start + threats.strength * change
        return corrupted

    return replace(update, params=distort(update.params, origin(message, sends)), extra=distort(update.extra, {}))


def origin(message: Message, sends: Sends) -> Params:
    """Return the tensors from which an update's are measured: those that its device was sent, or zeros."""
    return message.params if sends == "model" else {}


@step_word("combine")
def admit(
    combine: Combine, threats: Threats, sends: Sends, server: Params, updates: Mapping[str, Update],
    round_info: RoundInfo, *, sent: Mapping[str, Message],
) -> Sent:  # fmt: skip
    """Combine the updates that are in time and within the bound, and report by name which are not.

    sent: what each device was sent. Raises InputError if no update is within the bound.
    """
    late_devices = find_late(threats, updates, round_info)
    in_time = {name: update for name, update in updates.items() if name not in late_devices}
    beyond: set[str] = set()
    if threats.bound is not None:
        beyond = {name for name, update in in_time.items() if norm(update, sent[name], sends) > threats.bound}
    if threats.bound is not None and threats.beyond == "clip":
        admitted = in_time | {name: clip(in_time[name], sent[name], sends, threats.bound) for name in beyond}
    else:
        admitted = {name: update for name, update in in_time.items() if name not in beyond}
    if not admitted:
        raise InputError(
            f"federation.bound = {threats.bound}: every update of round {round_info.round + 1} is beyond it; raise it, "
            "or set federation.beyond to clip"
        )
    hostile = hostile_devices(threats, round_info.names, round_info.seed)
    events = {
        "attacked": (threats.hostile, {*hostile} & {*updates}),
        "dropped": (threats.drop, dropouts(threats, round_info)),
        "late": (threats.deadline, late_devices),
        "clipped" if threats.beyond == "clip" else "refused": (threats.bound, beyond),
    }
    counts = {
        name: {event: float(name in who) for event, (setting, who) in events.items() if setting}
        for name in round_info.names
    }
    combined = combine(server, admitted, round_info, **({"sent": sent} if takes(combine, "sent") else {}))
    report = combined[2] if len(combined) == 3 else Report()
    texts = {**report.words, "hostile": ", ".join(hostile)} if hostile else report.words
    return combined[0], combined[1], replace(report, counts={**(report.counts or {}), CONDUCT: counts}, words=texts)


def find_late(threats: Threats, updates: Mapping[str, Update], round_info: RoundInfo) -> set[str]:
    """Return the devices whose updates come after the deadline; the first one to come never does.

    A device needs e n_k / mean(n), e exponential with mean 1 (the straggling devices of Lee et al. 2018, without their
    constant), n_k its examples, as it tells them; 1 where they are masked or hidden by noise.
    """
    if threats.deadline is None:
        return set()
    examples = sum(max(1, update.size) for update in updates.values()) / len(updates)
    taken = {
        name: torch.empty(()).exponential_(generator=round_info.step_id(name).generator("time")).item()
        * (max(1, update.size) / examples)
        for name, update in updates.items()
    }
    first = min(taken, key=taken.__getitem__)
    return {name for name, time in taken.items() if time > threats.deadline and name != first}


def norm(update: Update, message: Message, sends: Sends) -> float:
    """Return the length of the change that an update's model stands for, over all floating-point tensors."""
    require_numbers(update, "federation.bound")
    start = origin(message, sends)
    squares = [
        (tensor - start[name] if name in start else tensor).double().square().sum()
        for name, tensor in update.params.items()
        if tensor.is_floating_point()
    ]
    return math.sqrt(sum(square.item() for square in squares))


def clip(update: Update, message: Message, sends: Sends, bound: float) -> Update:
    """Return the update with its change shortened to the bound (Sun et al. 2019, sec. 4, norm thresholding)."""
    factor = bound / norm(update, message, sends)
    return replace(update, params=shorten(update.params, origin(message, sends), factor))
