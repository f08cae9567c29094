"""A step of two devices as two sides with messages between them, see :class:`fedcore.types.Sides`."""

from __future__ import annotations

from collections.abc import Generator

from fedcore.types import Params


def converse(one: Generator[Params, Params, Params], other: Generator[Params, Params, Params]) -> list[Params]:
    """Run both sides in this process, in turns; return their results."""
    sides, results, inbox = [one, other], dict[int, Params](), [Params(), Params()]
    for side in sides:
        next(side)
    while len(results) < len(sides):
        for place, side in enumerate(sides):
            if place not in results:
                try:
                    inbox[place], inbox[1 - place] = {}, side.send(inbox[place])
                except StopIteration as end:
                    results[place] = end.value
    return [results[place] for place in range(len(sides))]
