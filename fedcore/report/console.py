"""A console that prints names from data as text."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

INSTEAD = "\N{REPLACEMENT CHARACTER}"


class PlainConsole(Console):
    """Prints a control character, which could steer the terminal or turn the line around, as a replacement character.

    rich lets most of them pass. Its own styles are not text, and stay.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                text = "".join(c if c.isprintable() or c == "\n" else INSTEAD for c in segment.text)
                yield Segment(text, segment.style)
