"""A method's rounds as cached, resumable steps."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedcore.rounds import Round, State, begin, finish, measure, next_turn, play, take_turn
from fedcore.types import Federation, Method, PairStage, step_word
from tasks.cache.store import Damaged
from tasks.prefect.steps import Steps

SEGMENT = 30.0
"""Seconds of repeated rounds between two checkpoints; one round if that takes longer."""

KEPT = 2
"""Checkpoints of a stage that a run keeps of those it wrote."""


def rounds(method: Method, fed: Federation, seed: int, steps: Steps, every: int) -> Iterator[Round]:
    """Play a method's turns, as fedcore.rounds.run does.

    In a stage of one round each device is a step. Repeated rounds are a step per segment, inside which nothing is
    written; a crash loses no more than a segment. The last KEPT checkpoints stay, the others are dropped: a run that
    finds its segments needs the last one only, see `restored`.
    """
    state = next_turn(method, begin(method, fed, seed, steps))
    trail: list[State] = []  # where this stage's segments began
    written: list[State] = []  # checkpoints of this stage that this run wrote and keeps
    while state.stage < len(method.stages):
        trail = [*(trail if state.round else ()), state]
        left = method.stages[state.stage].rounds - state.round
        if left == 1 and state.round == 0:
            played = [play(method, fed, seed, steps, state)]
        else:
            played = segment(method, fed, seed, steps, trail, every, left)
            written = [*(written if state.round else ()), *([] if steps.done[-1].cached else [played[-1].state])]
            for old in written[:-KEPT]:
                steps.drop(parts(old), but=[parts(one) for one in written[-KEPT:]])
            written = written[-KEPT:]
        for number, one in enumerate(played, 1):
            over = number == len(played) and next_turn(method, one.state).stage == len(method.stages)
            if over:
                yield finish(method, fed, steps, one)
            elif one.scores is None and one.state.round % every == 0:
                yield replace(one, scores=measure(method, fed, one.state, steps))
            else:
                yield one
        state = next_turn(method, played[-1].state)


def work(method: Method, devices: int) -> int:
    """Return how many local steps a method takes on so many devices."""
    units = [devices * (devices - 1) // 2 if isinstance(stage, PairStage) else devices for stage in method.stages]
    return sum(
        stage.rounds * max(1, round(stage.fraction * count)) for stage, count in zip(method.stages, units, strict=True)
    )


def segment(
    method: Method, fed: Federation, seed: int, steps: Steps, trail: Sequence[State], every: int, left: int
) -> list[Round]:
    """Play the next rounds of a stage, at most `left`, or find them played. trail: where its segments began, this last.

    The key of a segment does not hold how many rounds are to come, so that a longer run goes on where a shorter one
    ended. One that a longer run left may go too far for a shorter run, which then plays its own.
    """
    state, places = trail[-1], [(*parts(one), one.stage, one.round) for one in trail]

    def needed(found: Any) -> Any:
        """The reports must be there, and what the stage ends with; what is inside it only tells how it went."""
        return found["reports"], found["state"] if len(found["rounds"]) == left else ()

    found = steps.here(stretch, method, fed, seed, places[-1], every, unkeyed=(left, places), needed=needed)
    if len(found["rounds"]) > left:
        found = steps.here(stretch, method, fed, seed, places[-1], every, left, unkeyed=(places,), needed=needed)
    server, messages, memories = found["state"]
    reports = steps.store.get(found["reports"])
    made = []
    for number, ((up, down, scores), report) in enumerate(zip(found["rounds"], reports, strict=True), 1):
        here = replace(state, round=state.round + number)
        turn = take_turn(method.stages[state.stage], replace(state, round=state.round + number - 1), fed, seed)
        made.append(Round(turn, here, up, down, scores, report))
    made[-1] = replace(made[-1], state=replace(made[-1].state, server=server, messages=messages, memories=memories))
    return made


def parts(state: State) -> tuple[Any, dict[str, Any], dict[Any, Any]]:
    """Return what of a state is stored: the server's, the messages, the memories."""
    return state.server, dict(state.messages), dict(state.memories)


@step_word("rounds")
def stretch(
    execute: Any, method: Method, fed: Federation, seed: int, place: tuple[Any, ...], every: int, left: int,
    places: Sequence[tuple[Any, ...]],
) -> dict[str, Any]:  # fmt: skip
    """Play at most `left` rounds, for about SEGMENT seconds.

    Returns the state after them, and of each round the numbers and the report.

    places: where the stage's segments began, `place` last. execute: a tasks.prefect.steps.InMemory. It is not named
    in the signature, as a step's key covers the source that its function reaches, and how a segment is run is not what
    it finds.
    """
    state = restored(execute, method, fed, seed, places)
    end = time.monotonic() + SEGMENT
    made: list[tuple[Mapping[str, int], Mapping[str, int], Any]] = []
    reports: list[Any] = []
    while not made or (len(made) < left and time.monotonic() < end):
        played = play(method, fed, seed, execute, state)
        state = played.state
        execute.played(len(played.turn.units))
        scores = measure(method, fed, state, execute) if state.round % every == 0 else None
        made.append((dict(played.up), dict(played.down), scores))
        reports.append(played.report)
    return {"state": parts(state), "rounds": made, "reports": reports}


def restored(execute: Any, method: Method, fed: Federation, seed: int, places: Sequence[tuple[Any, ...]]) -> State:
    """Return the state of the last place, loaded, or played again from the last one whose checkpoint is still whole.

    Raises Damaged if not even the stage's beginning is.
    """
    for place in reversed(places):
        try:
            state = State(*execute.store.get(place[:3]), *place[3:])
        except Damaged:
            if place is places[0]:
                raise
        else:
            break
    while state.round < places[-1][4]:
        state = play(method, fed, seed, execute, state).state
    return state
