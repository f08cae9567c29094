"""Help: a docstring with a line for each setting, wherever the setting is declared."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from inspect import Parameter, Signature, cleandoc, signature
from typing import Any, get_type_hints

from fedcore.builders import CONTEXT

_SECTION = re.compile(r"^Args:\n((?:[ ]{4}.*(?:\n|\Z))*)", re.MULTILINE)
_ENTRY = re.compile(r"^    (\w+): .*(?:\n {8}.*)*", re.MULTILINE)


def method_help(build: Callable[..., Any], others: Mapping[str, str]) -> str:
    """Return a builder's docstring; a dataclass among its arguments is replaced by the lines of its fields.

    others: the lines of further arguments, by name.
    """
    entries = [*setting_lines(build).values(), *(f"    {name}: {text}" for name, text in others.items())]
    section, doc = "Args:\n" + "\n".join(entries), cleandoc(build.__doc__ or "")
    if _SECTION.search(doc):
        return _SECTION.sub(lambda _: f"{section}\n", doc, count=1).rstrip()
    return f"{doc}\n\n{section}"


def setting_lines(fn: Callable[..., Any]) -> dict[str, str]:
    """Return the lines about each setting in the docstrings of a builder and of the dataclasses that it takes."""
    section = _SECTION.search(cleandoc(fn.__doc__ or ""))
    own = {entry[1]: entry[0] for entry in _ENTRY.finditer(section[1])} if section else {}
    hints, lines = get_type_hints(fn), dict[str, str]()
    for name in signature(fn).parameters:
        if is_dataclass(hints.get(name)) and name not in CONTEXT:
            lines |= setting_lines(hints[name])
        elif name in own:
            lines[name] = own[name]
    return lines


def stand_for(
    source: Callable[..., Any],
    make: Callable[..., Any],
    name: str,
    doc: str | None,
    takes: Mapping[str, tuple[Any, Any]],
    *,
    by_position: bool = False,
) -> Callable[..., Any]:
    """Let `make` show the name, help and settings of what it makes; `inspect` finds the file and code of the source.

    takes: setting -> annotation and default. by_position: whether settings may be given without their names.
    """
    kind = Parameter.POSITIONAL_OR_KEYWORD if by_position else Parameter.KEYWORD_ONLY
    make.__module__, make.__name__, make.__qualname__, make.__doc__ = source.__module__, name, name, doc
    make.__annotations__ = {key: hint for key, (hint, _) in takes.items()}
    make.__wrapped__ = source  # type: ignore[attr-defined]
    make.__signature__ = Signature(  # type: ignore[attr-defined]
        [Parameter(key, kind, default=default, annotation=hint) for key, (hint, default) in takes.items()]
    )
    return make
