"""Checks of settings against the signature of the function that takes them, before anything runs.

A setting is declared once, where it is used: the signature has its type and its default.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from inspect import Parameter
from types import UnionType
from typing import Any, TypeVar, Union, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic_core import ErrorDetails

from fedcore.builders import CONTEXT, settings_of, suggestion
from fedcore.core.training import Training
from fedcore.types import InputError

M = TypeVar("M", bound=BaseModel)

SECRET = re.compile(r"(?<=//)[^/@\s]+(?=@)|(?<=\?)[^'\"]+")
"""What an address may say of a user, or after a question mark: no line about it shows that."""

LISTS = ("list_type", "tuple_type", "sequence_str")
"""The types of pydantic's errors about a value that should be a list."""


class Section(BaseModel):
    """A section of settings: unknown keys are refused, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, arbitrary_types_allowed=True)


@cache
def model(fn: Callable[..., Any], given: tuple[str, ...] = ()) -> type[BaseModel]:
    """Return the pydantic model of a callable's settings: its arguments except those in `given`."""
    fields: dict[str, Any] = {
        name: (hint, ... if default is Parameter.empty else default)
        for name, (hint, default) in settings_of(fn, given).items()
    }
    return create_model(getattr(fn, "__name__", "Settings"), __base__=Section, **fields)


def check(model: type[M], where: str, values: Any) -> M:
    """Return the values as a model; raises InputError with the key, the value and the allowed values in one line.

    where: the name of their section; "" if their keys are typed without one.
    """
    if not isinstance(values, Mapping):
        raise InputError(f"{where} = {values!r}: must be a section with keys {', '.join(model.model_fields)}")
    try:
        found = model.model_validate(dict(values), strict=False)
        refuse_other_kinds(where, values, found)
        return found
    except ValidationError as error:
        errors = sorted(error.errors(), key=lambda one: one["type"] != "extra_forbidden")  # a typo also misses its key
        first, place = errors[0], errors[0]["loc"]
        said = _said(first)
        field = model.model_fields.get(str(place[0])) if place else None
        if field is not None and get_origin(field.annotation) in (Union, UnionType):  # each member says what it misses
            mine = [other for other in errors if other["loc"][:1] == place[:1]]
            said = said if len(mine) == 1 else ", or ".join(dict.fromkeys(other["msg"] for other in mine))
            place = place[:1]
        key = _key(where, *place)
        others = len({other["loc"][:1] for other in errors}) - 1
        more = f" (and {others} more)" if others else ""
        match first["type"]:
            case "missing":
                raise InputError(f"{key}: is missing{more}") from None
            case "extra_forbidden":
                raise InputError(f"{unknown(key, model.model_fields)}{more}") from None
        said = said.removeprefix("Value error, ")
        shown = SECRET.sub("...", repr(first["input"]))
        raise InputError(f"{key} = {shown}: {said[0].lower()}{said[1:]}{more}") from None


def _key(*parts: object) -> str:
    return ".".join(filter(None, map(str, parts)))


def _said(error: ErrorDetails) -> str:
    """Return what an error of pydantic says; of a value in the place of a list, how the list would be written."""
    given, needed = error["input"], error.get("ctx", {}).get("class")
    if error["type"] not in LISTS and needed != "Sequence":
        return error["msg"]
    if not isinstance(given, str | int | float):
        return "must be a list"
    return f"must be a list, for example [{','.join(part.strip() for part in str(given).split(','))}]"


def refuse_other_kinds(key: str, given: Any, taken: Any) -> None:
    """Refuse a text or a truth value that was taken as a number, such as '1' or true, and a number as a truth value.

    given, taken: a value before and after validation.
    """
    if isinstance(given, Mapping) and isinstance(taken, Mapping | BaseModel):
        values = taken if isinstance(taken, Mapping) else taken.__dict__
        for name in given.keys() & values.keys():
            refuse_other_kinds(_key(key, name), given[name], values[name])
    elif isinstance(given, list | tuple) and isinstance(taken, list | tuple) and len(given) == len(taken):
        for number, (before, after) in enumerate(zip(given, taken, strict=True)):
            refuse_other_kinds(f"{key}.{number}", before, after)
    elif isinstance(taken, bool) and not isinstance(given, bool):
        raise InputError(f"{key} = {given!r}: must be true or false")
    elif type(taken) in (int, float) and isinstance(given, bool | str):
        raise InputError(f"{key} = {given!r}: must be a number")
    elif type(taken) is int and abs(taken) >= 2**63:
        raise InputError(f"{key} = {given!r}: must be a number below 2^63")


def check_method(
    build: Callable[..., Any], name: str, settings: Mapping[str, Any], training: Mapping[str, Any], where: str
) -> tuple[dict[str, Any], Training, bool]:
    """Return the complete settings of a method, its training, and whether devices start from a common model.

    training: settings of :class:`fedcore.core.training.Training`, and `init`, "common" or "per_device" (the default).
    name, where: the sections of the settings and of the training, for messages.

    Raises InputError for a setting that is unknown or out of range.
    """
    given = check(model(build, CONTEXT), name, settings).model_dump()
    rest = dict(training)
    init = rest.pop("init", "per_device")
    if init not in ("common", "per_device"):
        raise InputError(f"{where}.init = {init!r}: allowed: common, per_device")
    return given, Training(**check(model(Training), where, rest).model_dump()), init == "common"


def settings_for(
    fn: Callable[..., Any],
    where: str,
    section: Mapping[str, Any],
    others: Iterable[Callable[..., Any]],
    given: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return the settings of a section that a function takes; the others must be settings of one of `others`."""
    mine, everyones = model(fn, given), union(tuple(others), given)
    chosen = {key: value for key, value in section.items() if key in mine.model_fields}
    rest = {key: value for key, value in section.items() if key not in chosen}
    for key in (key for key in rest if key not in everyones.model_fields):
        raise unknown(f"{where}.{key}", mine.model_fields, everyones.model_fields)
    check(everyones, where, rest)
    return check(mine, where, chosen).model_dump()


@cache
def union(functions: tuple[Callable[..., Any], ...], given: tuple[str, ...] = ()) -> type[BaseModel]:
    """Return the model of the settings of all these functions; a setting may have any of their types for it."""
    types: dict[str, list[Any]] = {}
    for fn in functions:
        for name, (hint, _) in settings_of(fn, given).items():
            types.setdefault(name, [None]).append(hint)
    fields: dict[str, Any] = {name: (Union[tuple(of)], None) for name, of in types.items()}  # noqa: UP007
    return create_model("Settings", __base__=Section, **fields)


def unknown(key: str, allowed: Iterable[str], known: Iterable[str] = ()) -> InputError:
    """Return the error for an unknown key, with a suggestion from the allowed keys and those known elsewhere."""
    allowed = list(allowed)
    hint = suggestion(key.rpartition(".")[2], [*allowed, *known])
    return InputError(f"{key}: no such key (allowed: {', '.join(allowed) or 'none'}){hint}")
