"""A method's rounds as cached, resumable steps."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fedcore.core.rounds import RoundResult, State, begin, finish, measure, next_round, play, sample_round
from fedcore.errors import Diverged
from fedcore.pipeline.cache.store import DamagedBlob
from fedcore.pipeline.orchestration.graph import Graph
from fedcore.types.federation import Federation
from fedcore.types.method import Method, PairStage, step_word

CHUNK = 30.0
"""Seconds between two checkpoints of a stage; one round if that takes longer."""

KEPT = 2
"""The number of checkpoints of a stage that a run keeps."""


def rounds(method: Method, fed: Federation, seed: int, steps: Graph, every: int) -> Iterator[RoundResult]:
    """Yield a method's rounds, as fedcore.core.rounds.run does.

    In a stage of one round each device is a step. In a stage of several rounds each chunk is a step that writes
    nothing before its end, so that a crash loses at most a chunk. The last KEPT checkpoints stay, earlier ones are
    deleted; a run whose chunks are cached needs none, see `restore`. The state after the last round of all may go
    too, unless it took long to compute: models are deployed by then, and a longer run computes its last chunk again.
    """
    state = next_round(method, begin(method, fed, seed, steps))
    starts: list[State] = []  # where this stage's chunks began
    written: list[State] = []  # checkpoints of this stage that this run has written and not deleted
    while state.stage < len(method.stages):
        starts = [*(starts if state.round else ()), state]
        left = method.stages[state.stage].rounds - state.round
        if left == 1 and state.round == 0:
            played = [play(method, fed, seed, steps, state)]
        else:
            played = play_chunk(method, fed, seed, steps, starts, every, left)
            written = [*(written if state.round else ()), *([] if steps.done[-1].cached else [played[-1].state])]
            for old in written[:-KEPT]:
                steps.drop(old, keep=written[-KEPT:])
            written = written[-KEPT:]
            if _ends(method, played[-1].state):
                release(method, fed, seed, steps, starts, played[-1].state)
        for number, result in enumerate(played, 1):
            if number == len(played) and _ends(method, result.state):
                yield finish(method, fed, steps, result)
            elif result.scores is None and result.state.round % every == 0:
                yield replace(result, scores=measure(method, fed, result.state, steps))
            else:
                yield result
        state = next_round(method, played[-1].state)


def _ends(method: Method, state: State) -> bool:
    """Tell whether no round follows a state."""
    return next_round(method, state).stage == len(method.stages)


def release(method: Method, fed: Federation, seed: int, steps: Graph, starts: Sequence[State], end: State) -> None:
    """Let memories at a method's end be deleted, if its last chunk took at most CHUNK seconds.

    A step that needs them computes them again, from `starts`.
    """

    def recompute(execute: Any) -> Any:
        return stored_parts(restore(execute, method, fed, seed, [*starts, end]))

    cheap = steps.done[-1].wall <= CHUNK
    steps.release((end.server, end.memories, end.replays), list(starts), recompute, cheap)


def count_local_steps(method: Method, devices: int) -> int:
    """Return the number of local steps of a method on this number of devices."""
    units = [devices * (devices - 1) // 2 if isinstance(stage, PairStage) else devices for stage in method.stages]
    return sum(
        stage.rounds * max(1, round(stage.fraction * count)) for stage, count in zip(method.stages, units, strict=True)
    )


def play_chunk(
    method: Method, fed: Federation, seed: int, steps: Graph, starts: Sequence[State], every: int, left: int
) -> list[RoundResult]:
    """Run the next rounds of a stage, at most `left`, or find them in the cache.

    starts: the states at the starts of the stage's chunks, this one last. The number of remaining rounds is not part
    of a chunk's key, so that a longer run continues a shorter one. A chunk of a longer run may go too far for a
    shorter run, which then computes its own.
    """
    state = starts[-1]
    last = _ends(method, replace(state, round=state.round + left))

    def needed(chunk: Any) -> Any:
        """The blobs that must exist: the reports, and the state at the stage's end; of the last stage the messages."""
        _, messages, *_ = chunk["state"]
        end = messages if last else chunk["state"]
        return chunk["reports"], end if len(chunk["rounds"]) == left else ()

    def name(chunk: Any) -> str:
        first, last = state.round + 1, state.round + len(chunk["rounds"])
        return f"rounds {first} to {last}" if last > first else f"round {first}"

    run = partial(steps.run_nested, compute_chunk, method, fed, seed, state, every, needed=needed, name=name)
    chunk = run(unkeyed=(left, starts))
    if len(chunk["rounds"]) > left:
        chunk = run(left, unkeyed=(starts,))
    reports = steps.store.get(chunk["reports"])
    nothing = dict.fromkeys(fed.devices, 0)
    results = []
    for number, ((up, down, scores), report) in enumerate(zip(chunk["rounds"], reports, strict=True), 1):
        here = replace(state, round=state.round + number)
        round_info = sample_round(method.stages[state.stage], replace(state, round=state.round + number - 1), fed, seed)
        results.append(RoundResult(round_info, here, nothing | up, nothing | down, scores, report))
    server, messages, memories, replays = chunk["state"]
    at, delivered = results[-1].state.round, frozenset(chunk["delivered"])
    end = State(server, messages, memories, replays, state.stage, at, delivered)
    results[-1] = replace(results[-1], state=end)
    return results


def stored_parts(state: State) -> tuple[Any, dict[str, Any], dict[Any, Any], dict[str, Any]]:
    """Return the stored parts of a state: the server's memory, messages, devices' memories, updates to be replayed."""
    return state.server, dict(state.messages), dict(state.memories), dict(state.replays)


@step_word("rounds")
def compute_chunk(
    execute: Any, method: Method, fed: Federation, seed: int, start: State, every: int, left: int,
    starts: Sequence[State],
) -> dict[str, Any]:  # fmt: skip
    """Run at most `left` rounds, for about CHUNK seconds, up to one that diverges; raises Diverged in the first.

    Returns the state after them, and the numbers and the report of each round: the bytes of devices that send or
    receive any, as thousands may do neither.

    starts: those of the stage's chunks, `start` last. execute: OnEngine of
    fedcore.pipeline.orchestration.graph. The signature does not name this type: a step's key covers the source
    that its function uses, and the result does not depend on how a chunk is run.
    """
    state = restore(execute, method, fed, seed, starts)
    end = time.monotonic() + CHUNK
    numbers: list[tuple[Mapping[str, int], Mapping[str, int], Any]] = []
    reports: list[Any] = []
    while not numbers or (len(numbers) < left and time.monotonic() < end):
        try:
            played = play(method, fed, seed, execute, state)
            scores = measure(method, fed, played.state, execute) if played.state.round % every == 0 else None
        except Diverged:
            if not numbers:
                raise
            break
        state = played.state
        execute.advance(len(played.round_info.units))
        numbers.append((positive(played.up), positive(played.down), scores))
        reports.append(played.report)
    return {"state": stored_parts(state), "delivered": sorted(state.delivered), "rounds": numbers, "reports": reports}


def positive(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the counts that are not 0."""
    return {name: count for name, count in counts.items() if count}


def restore(execute: Any, method: Method, fed: Federation, seed: int, checkpoints: Sequence[State]) -> State:
    """Load the last checkpoint, or compute it again from the last one that is intact.

    Raises DamagedBlob if none is, nor the start of the stage.
    """
    for checkpoint in reversed(checkpoints):
        try:
            state: State = execute.store.get(checkpoint)
        except DamagedBlob:
            if checkpoint is checkpoints[0]:
                raise
        else:
            break
    while state.round < checkpoints[-1].round:
        state = play(method, fed, seed, execute, state).state
    return state
