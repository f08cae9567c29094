"""Devices that lie, are late or drop out, and the server's bound on what they send.

A threat changes what a device *sends*, after its honest step and for every method alike; the loop applies it. Who is
hostile depends on (seed, name), who is late or drops out on (seed, stage, round, name): not on the method, and the
devices that are hostile at one share are so at every greater one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

import torch

from fedcore.types import (
    Combine,
    InputError,
    Message,
    Params,
    Report,
    RoundInfo,
    Sends,
    Sent,
    StepId,
    Threats,
    Update,
    generator,
    step_word,
)

CONDUCT = "conduct"
"""The topic of the report: in how many rounds a device attacked, dropped out, was late, was clipped, was refused."""


def split_threats(section: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of a federation in two parts: those of `Threats`, and the others."""
    mine = {field.name for field in fields(Threats)}
    return (
        {key: value for key, value in section.items() if key in mine},
        {key: value for key, value in section.items() if key not in mine},
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
    gone = [name for name in units if drawn[name] < threats.drop]
    return tuple(name for name in gone if len(gone) < len(units) or name != max(units, key=drawn.__getitem__))


@step_word("attack")
def corrupt(update: Update, message: Message, step_id: StepId, *, threats: Threats, sends: Sends) -> Update:
    r"""Return a hostile device's update, theta its honest model, theta_0 the one it was sent, s the strength.

    sign_flip: theta_0 - s (theta - theta_0). scale: theta_0 + s (theta - theta_0). noise: theta_0 + s r z, r the root
    mean square of theta - theta_0 and z standard normal, leaf by leaf.

    Other tensors of the update are falsified about zero, and so are changes and leaves that it was not sent.
    """
    draws = step_id.generator("attack")

    def lie(params: Params, about: Params) -> Params:
        found = dict(params)
        for name, leaf in params.items():
            if leaf.is_floating_point():
                start = about.get(name, torch.zeros_like(leaf))
                change = leaf - start
                if threats.attack == "noise":
                    size = change.square().mean().sqrt() if change.numel() else 0.0
                    change = torch.randn(leaf.shape, generator=draws).to(leaf) * size
                elif threats.attack == "sign_flip":
                    change = -change
                found[name] = start + threats.strength * change
        return found

    return replace(update, params=lie(update.params, origin(message, sends)), extra=lie(update.extra, {}))


def origin(message: Message, sends: Sends) -> Params:
    """Return the leaves from which an update's are measured: those that its device was sent, or zeros."""
    return message.params if sends == "model" else {}


@step_word("combine")
def admit(
    combine: Combine,
    threats: Threats,
    messages: Mapping[str, Message],
    sends: Sends,
    server: Params,
    updates: Mapping[str, Update],
    round_info: RoundInfo,
) -> Sent:
    """Combine the updates that are in time and within the bound, and report by name which are not.

    messages: what each device was sent. Raises InputError if no update is within the bound.
    """
    late_devices = find_late(threats, updates, round_info)
    in_time = {name: update for name, update in updates.items() if name not in late_devices}
    beyond: set[str] = set()
    if threats.bound is not None:
        beyond = {name for name, update in in_time.items() if norm(update, messages[name], sends) > threats.bound}
    if threats.bound is not None and threats.beyond == "clip":
        kept = in_time | {name: clip(in_time[name], messages[name], sends, threats.bound) for name in beyond}
    else:
        kept = {name: update for name, update in in_time.items() if name not in beyond}
    if not kept:
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
    found = combine(server, kept, round_info)
    report = found[2] if len(found) == 3 else Report()
    words = {**report.words, "hostile": ", ".join(hostile)} if hostile else report.words
    return found[0], found[1], replace(report, counts={CONDUCT: counts}, words=words)


def find_late(threats: Threats, updates: Mapping[str, Update], round_info: RoundInfo) -> set[str]:
    """Return the devices whose updates come after the deadline; the first one to come never does.

    A device needs e n_k / mean(n), e exponential with mean 1 (the straggling devices of Lee et al. 2018, without their
    constant), n_k its examples.
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
    """Return the length of the change that an update's model stands for, over all floating-point leaves."""
    start = origin(message, sends)
    squares = [
        (leaf - start[name] if name in start else leaf).double().square().sum()
        for name, leaf in update.params.items()
        if leaf.is_floating_point()
    ]
    return math.sqrt(sum(square.item() for square in squares))


def clip(update: Update, message: Message, sends: Sends, bound: float) -> Update:
    """Return the update with its change shortened to the bound (Sun et al. 2019, sec. 4, norm thresholding)."""
    start, factor = origin(message, sends), bound / norm(update, message, sends)
    shorter = {
        name: (start[name] + factor * (leaf - start[name]) if name in start else factor * leaf)
        if leaf.is_floating_point()
        else leaf
        for name, leaf in update.params.items()
    }
    return replace(update, params=shorter)
