"""Where a script's steps run: in this process or in workers, those of devices on an accelerator if it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from fedcore.core.rounds import Execute
from fedcore.core.together import SideBySide, Together
from fedcore.errors import InputError
from fedcore.execute.accelerator import accelerate, find_accelerator
from fedcore.execute.workers import Inline, Workers
from fedcore.nets.randomness import keep_generators

Accelerator: TypeAlias = Literal["none", "auto", "cuda"]


@dataclass(frozen=True)
class OnAccelerator:
    """Runs the server's steps as another executor does, and those of devices on an accelerator of that kind."""

    execute: Execute
    kind: str

    def __call__(self, fn: Callable[..., Any], *args: Any) -> Any:
        return self.execute(fn, *args)

    def map(self, fn: Callable[..., Any], calls: Mapping[Any, tuple[Any, ...]]) -> dict[Any, Any]:
        return self.execute.map(accelerate(fn, self.kind), calls)


@contextmanager
def executor(
    workers: int | None, accelerator: Accelerator = "none", together: int = 1, where: str = "run"
) -> Iterator[Execute]:
    """Open what runs the steps. workers: processes; None: this one.

    accelerator: "none", "auto" (one if there is one) or its name. together: devices that train together on it. where:
    the function that the user called. Raises InputError for an accelerator that is not there.
    """
    kind = None if accelerator == "none" else find_accelerator("auto")
    if accelerator not in ("none", "auto") and kind is None:
        raise InputError(f"{where}.accelerator = {accelerator!r}: there is none here; use auto or none")
    if together > 1 and workers is not None:
        raise InputError(f"{where}.together = {together}: devices train together in this process; leave workers out")
    with keep_generators(), Workers(workers) if workers is not None else Inline() as execute:
        if kind is None:
            yield SideBySide(execute)
        else:
            yield OnAccelerator(execute, kind) if together == 1 else Together(kind, together)
