"""Names that fit a narrow column and can still be told apart."""

from collections.abc import Sequence
from functools import partial

from fedcore.errors import printable

GAP = "\N{HORIZONTAL ELLIPSIS}"

ONLY = "base"
"""The name of a setting whose study has no other one."""


def in_words(study: str, setting: str, dataset: str) -> str:
    """Return the name of a study's setting on its data; the only setting of a study needs no name."""
    return f"{study} ({dataset})" if setting == ONLY else f"{study}: {setting} ({dataset})"


def shorten(names: Sequence[str], width: int) -> list[str]:
    """Return names of at most `width` characters, from 4: of a longer one both ends, with GAP between them.

    Characters that could end or turn the line are their escape sequences. Where names become equal, other parts of all
    are kept, then those after their common beginning; where that does not help, names are numbered.
    """
    names = [*map(printable, names)]
    width, different = max(width, 4), len({*names})
    if max(map(len, names), default=0) <= width:
        return names
    long = [name for name in names if len(name) > width]
    alike = next((position for position, letters in enumerate(zip(*long, strict=False)) if len({*letters}) > 1), width)
    middle = width // 2
    cuts = [partial(_cut, head=head, width=width) for head in sorted(range(width), key=lambda head: abs(head - middle))]
    for cut in [*cuts, partial(_skip, alike=alike, width=width)]:
        short = [cut(name) for name in names]
        if len({*short}) == different:
            return short
    order = {name: str(number) for number, name in enumerate(dict.fromkeys(names), 1)}
    return [f"{name[: width - 1 - len(order[name])]}{GAP}{order[name]}" for name in names]


def _cut(name: str, head: int, width: int) -> str:
    """Return a name's first `head` characters and its last ones."""
    return name if len(name) <= width else f"{name[:head]}{GAP}{name[len(name) - (width - 1 - head) :]}"


def _skip(name: str, alike: int, width: int) -> str:
    """Return a name's first character, and what comes after its first `alike` ones."""
    if len(name) <= width:
        return name
    rest = f"{name[:1]}{GAP}{name[alike:]}"
    return rest if len(rest) <= width else f"{rest[: width - 1]}{GAP}"
