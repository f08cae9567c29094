"""A method's rounds as cached, resumable steps."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from fedcore.rounds import Round, State, begin, finish, measure, play, take_turn, upcoming
from fedcore.types import Federation, Method
from tasks.steps import Steps

SEGMENT = 30.0
"""Seconds of repeated rounds between two checkpoints; one round if that takes longer."""


def rounds(method: Method, fed: Federation, seed: int, steps: Steps, every: int) -> Iterator[Round]:
    """Play a method's turns, as fedcore.rounds.run does.

    In a stage of one round each device is a step. Repeated rounds are a step per segment, inside which nothing is
    written; a crash loses no more than a segment.
    """
    state = upcoming(method, begin(method, fed, seed, steps))
    while state.stage < len(method.stages):
        left = method.stages[state.stage].rounds - state.round
        if left == 1 and state.round == 0:
            played = [play(method, fed, seed, steps, state)]
        else:
            played = segment(method, fed, seed, steps, state, every, left)
        for number, one in enumerate(played, 1):
            over = number == len(played) and upcoming(method, one.state).stage == len(method.stages)
            if over:
                yield finish(method, fed, steps, one)
            elif one.scores is None and one.state.round % every == 0:
                yield replace(one, scores=measure(method, fed, one.state, steps))
            else:
                yield one
        state = upcoming(method, played[-1].state)


def work(method: Method, devices: int) -> int:
    """Return how many local steps a method takes on so many devices."""
    units = [devices * (devices - 1) // 2 if stage.over == "pairs" else devices for stage in method.stages]
    return sum(
        stage.rounds * max(1, round(stage.fraction * count)) for stage, count in zip(method.stages, units, strict=True)
    )


def segment(
    method: Method, fed: Federation, seed: int, steps: Steps, state: State, every: int, left: int
) -> list[Round]:
    """Play the next rounds of a stage, at most `left`, or find them played.

    The key of a segment does not hold how many rounds are to come, so that a longer run goes on where a shorter one
    ended. One that a longer run left may go too far for a shorter run, which then plays its own.
    """
    place = (state.server, dict(state.messages), dict(state.own), state.stage, state.round)
    found = steps.here(stretch, method, fed, seed, place, every, unkeyed=(left,))
    if len(found["rounds"]) > left:
        found = steps.here(stretch, method, fed, seed, place, every, left)
    server, messages, own = found["state"]
    made = []
    for number, (up, down, scores) in enumerate(found["rounds"], 1):
        here = replace(state, round=state.round + number)
        turn = take_turn(method.stages[state.stage], replace(state, round=state.round + number - 1), fed, seed)
        made.append(Round(turn, here, up, down, scores))
    made[-1] = replace(made[-1], state=replace(made[-1].state, server=server, messages=messages, own=own))
    return made


def stretch(
    execute: Any, method: Method, fed: Federation, seed: int, place: tuple[Any, ...], every: int, left: int
) -> dict[str, Any]:
    """Play at most `left` rounds, for about SEGMENT seconds; returns the state after them and each round's numbers.

    execute: a tasks.steps.InMemory. It is not named in the signature, as a step's key covers the source that its
    function reaches, and how a segment is run is not what it finds.
    """
    server, messages, own, stage, number = place
    server, messages, own = execute.store.get((server, messages, own))
    state = State(server, messages, own, stage, number)
    end = time.monotonic() + SEGMENT
    made: list[tuple[Mapping[str, int], Mapping[str, int], Any]] = []
    while not made or (len(made) < left and time.monotonic() < end):
        played = play(method, fed, seed, execute, state)
        state = played.state
        execute.played(len(played.turn.units))
        scores = measure(method, fed, state, execute) if state.round % every == 0 else None
        made.append((dict(played.up), dict(played.down), scores))
    return {"state": (state.server, dict(state.messages), dict(state.own)), "rounds": made}
