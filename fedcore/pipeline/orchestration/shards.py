"""Which calls of a map are one step; imports no Prefect."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from fedcore.core.evaluation import score
from fedcore.core.together import placed_on, run_on_together
from fedcore.execute.accelerator import accelerate, trains
from fedcore.pipeline.cache.calls import load_call_save, load_calls_save
from fedcore.pipeline.cache.store import refs
from fedcore.pipeline.work import around, word_of

MANY = 256
"""The most calls of a map that are a step each."""

SHARD = 64
"""Calls in a step where there are more than MANY: Prefect takes longer for a step than a small device's training."""

QUICK = {"deploy", "evaluate"}
"""Steps that take a few milliseconds where models and data are small, less than Prefect takes for a step."""

SMALL = 8 * 2**20
"""The most bytes that such calls of one step refer to; devices with more than half of it have a step each."""

FEW = 1000
"""The most values that they refer to: a call that scores a thousand devices is a step of its own."""


def evaluated(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a step's function, in the project's task if it scores models."""
    scores: Callable[..., Any] = around("evaluate", fn) if fn is score else fn
    return scores


def nested_on(fn: Callable[..., Any], accelerator: str | None, together: int) -> Callable[..., Any]:
    """Return what the key of a step that runs other steps there knows as its function."""
    fn = around("evaluate", fn)  # its rounds are scored inside
    step: Callable[..., Any] = run_on_together
    return accelerate(fn, accelerator) if together == 1 else partial(step, fn, accelerator, together)


def map_in_shards(
    fn: Callable[..., Any], calls: Mapping[Any, tuple[Any, ...]], accelerator: str | None, together: int,
    run: Callable[..., dict[Any, Any]], shares_steps: bool = True,
) -> dict[Any, Any]:  # fmt: skip
    """Run a step on each unit's arguments, where it is worth it on the accelerator, by run(step, calls, accelerator).

    Where calls share a step, it is run(step, shards' calls, accelerator, work, True), whose results are lists.
    shares_steps: whether others do than those of devices that train together.
    """
    fn = evaluated(fn)
    accelerator, together = placed_on(fn, calls, accelerator, together)
    vectorised = is_vectorised(fn, together)
    shards = into_shards(fn, calls, together) if shares_steps or vectorised else {}
    if len(shards) in (0, len(calls)):
        return run(accelerate(fn, accelerator), calls, accelerator)
    step = partial(run_on_together, fn, accelerator) if vectorised else accelerate(fn, accelerator)
    sharded = {label: tuple(shard.values()) for label, shard in shards.items()}
    values = run(step, sharded, accelerator, load_call_save if vectorised else load_calls_save, True)
    return {unit: result for label, shard in shards.items() for unit, result in zip(shard, values[label], strict=True)}


def is_vectorised(fn: Any, together: int) -> bool:
    """Tell whether the calls of a function share steps since their devices train together on an accelerator."""
    return together > 1 and trains(fn) and word_of(fn) not in QUICK


def into_shards(fn: Any, calls: Mapping[Any, tuple[Any, ...]], together: int = 1) -> dict[str, dict[Any, Any]]:
    """Divide the calls of devices into shards that follow one another, each a step of its own.

    So many devices as train `together` share a step. Else, of more than MANY calls SHARD share a step; of fewer those
    of a QUICK function, up to SMALL bytes and FEW values; the others are shards of one. A step's key covers its own
    devices, so that one that changes costs its shard.
    """
    if is_vectorised(fn, together):
        units = list(calls)
        parts = [units[first : first + together] for first in range(0, len(units), together)]
        return {_of_shard(part): {unit: calls[unit] for unit in part} for part in parts}
    many = len(calls) > MANY
    if not many and word_of(fn) not in QUICK:
        return {label_of(unit): {unit: args} for unit, args in calls.items()}
    shards: list[dict[Any, Any]] = []
    full = 2.0
    for unit, args in calls.items():
        references = [] if many else refs(args)
        share = 1 / SHARD if many else max(sum(ref.nbytes for ref in references) / SMALL, len(references) / FEW)
        if full + share > 1:
            shards.append({})
            full = 0.0
        shards[-1][unit] = args
        full += share
    return {_of_shard([*shard]): shard for shard in shards}


def _of_shard(units: Sequence[Any]) -> str:
    return f"{label_of(units[0])} to {label_of(units[-1])}"


def label_of(unit: Any) -> str:
    return " and ".join(unit) if isinstance(unit, tuple) else str(unit)
