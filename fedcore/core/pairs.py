"""A step of two devices as two sides with messages between them, see :class:`fedcore.types.method.Sides`."""

from __future__ import annotations

from collections.abc import Generator

from fedcore.types.federation import Params


def converse(first: Generator[Params, Params, Params], second: Generator[Params, Params, Params]) -> list[Params]:
    """Run both sides in this process, in turns; return their results."""
    sides, results, inbox = [first, second], dict[int, Params](), [Params(), Params()]
    for side in sides:
        next(side)
    while len(results) < len(sides):
        for position, side in enumerate(sides):
            if position not in results:
                try:
                    inbox[position], inbox[1 - position] = {}, side.send(inbox[position])
                except StopIteration as end:
                    results[position] = end.value
    return [results[position] for position in range(len(sides))]
