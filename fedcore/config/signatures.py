"""Checks of settings against the signature of the function that takes them, before anything runs; and their help.

A setting is declared once, where it is used: the signature has its type and its default, the docstring a line about it.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import is_dataclass
from functools import cache
from inspect import Parameter, Signature, cleandoc, signature
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic_core import ErrorDetails

from fedcore.builders import CONTEXT, settings_of, suggestion
from fedcore.errors import COSTS, InputError

M = TypeVar("M", bound=BaseModel)

SECRET = re.compile(r"(?<=//)[^/@\s]+(?=@)|(?<=\?)[^'\"]+")
"""What an address may say of a user, or after a question mark: no line about it shows that."""

UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
"""The types of pydantic's errors about a key that a section does not have."""

PLAIN = {
    "Input should be": "must be", "greater than or equal to": "at least", "less than or equal to": "at most",
    "greater than": "above", "less than": "below", "a valid integer": "a whole number", "a valid number": "a number",
    "a valid string": "a text", "a valid boolean": "true or false",
}  # fmt: skip
LISTS = ("list_type", "tuple_type", "sequence_str")
"""The types of pydantic's errors about a value that should be a list."""

FEW = 4
"""So many choices need no guess which one is meant."""

MEMBERS = ("str", "int", "float")
"""Members of a union, as pydantic names them in the place of an element of a list."""


class Section(BaseModel):
    """A section of settings: unknown keys are refused, values are frozen."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, arbitrary_types_allowed=True, coerce_numbers_to_str=True
    )


def matching(pattern: str, must: str) -> Callable[[str], str]:
    """Return what refuses a text that a pattern does not match. must: what it must be."""

    def require(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"must be {must}")
        return text

    return require


@cache
def model(
    fn: Callable[..., Any], context: tuple[str, ...] = (), others: tuple[Callable[..., Any], ...] = ()
) -> type[BaseModel]:
    """Return the pydantic model of a callable's settings: its arguments except those in `context`.

    others: callables whose settings belong to them as well.
    """
    fields: dict[str, Any] = {
        name: (hint, ... if default is Parameter.empty else default)
        for function in (fn, *others)
        for name, (hint, default) in settings_of(function, context).items()
    }
    return create_model(getattr(fn, "__name__", "Settings"), __base__=Section, **fields)


def check(kind: type[M], where: str, values: Any) -> M:
    """Return the values as a model; raises InputError with the key, the value and the allowed values in one line.

    where: the name of their section; "" if their keys are typed without one.
    """
    if not isinstance(values, Mapping):
        raise InputError(f"{where} = {values!r}: must be a section with keys {', '.join(kind.model_fields)}")
    try:
        checked = kind.model_validate(dict(values), strict=False)
    except ValidationError as error:
        raise InputError(_line(kind, where, error.errors())) from None
    refuse_other_kinds(where, values, checked)
    return checked


def check_arguments(fn: Callable[..., Any], **values: Any) -> None:
    """Check some of a function's arguments by its annotations; raises InputError as `check` does."""
    others = tuple(name for name in signature(fn).parameters if name not in values)
    kind = model(fn, others)
    if "costs" in values:
        kind.model_fields["costs"].examples = [f"costs={COSTS}"]
    check(kind, fn.__name__, values)


def _line(kind: type[BaseModel], where: str, errors: list[ErrorDetails]) -> str:
    """Return one line for the first of pydantic's errors, and the keys of the others."""
    errors = sorted(errors, key=lambda error: error["type"] not in UNKNOWN)  # a misspelt key is missing as well
    first, location = errors[0], errors[0]["loc"]
    field = kind.model_fields.get(str(location[0])) if location else None
    message = _message(first)
    if field is not None and get_origin(field.annotation) in (Union, UnionType):  # every member has its own error
        members = dict.fromkeys(plain(error["msg"]) for error in errors if error["loc"][:1] == location[:1])
        if len(members) > 1:
            expected = " ".join(error.get("ctx", {}).get("expected", "") for error in errors)
            known = list(dict.fromkeys(re.findall("'(.*?)'", expected)))
            literal = all(error["type"] == "literal_error" for error in errors if error["loc"][:1] == location[:1])
            one = f"must be {', '.join(map(repr, known[:-1]))} or {known[-1]!r}" if literal else ""
            message = (one or ", or ".join(members)) + suggestion(str(first["input"]), known)
        location = location[:1]
    message += f", for example {field.examples[0]}" if field is not None and field.examples else ""
    within = [part for part in location if "[" not in str(part)]  # not the members of a union
    key = _key(where, *(part for i, part in enumerate(within) if not (i > 1 and part in MEMBERS)))
    others = dict.fromkeys(str(error["loc"][0]) for error in errors if error["loc"][:1] not in ((), location[:1]))
    more = f" (and {', '.join(others)})" if others else ""
    if first["type"] == "missing":
        return f"{key}: is missing{more}"
    if first["type"] in UNKNOWN:
        return f"{unknown(key, _fields(kind, location[:-1]))}{more}"
    value = SECRET.sub("...", repr(first["input"]))
    return f"{key} = {value}: {message}{more}"


def _fields(kind: Any, location: tuple[int | str, ...]) -> Collection[str]:
    """Return the names of the fields of a model or dataclass, or of the one at a place inside it."""
    for step in location:
        kind = get_type_hints(kind)[str(step)] if isinstance(kind, type) else get_args(kind)[-1]  # or of its elements
    return get_type_hints(kind)


def _key(*parts: object) -> str:
    return ".".join(filter(None, map(str, parts)))


def _message(error: ErrorDetails) -> str:
    """Return pydantic's message; where a list was expected, show how to write it."""
    value, context = error["input"], error.get("ctx", {})
    if error["type"] == "literal_error":
        choices = re.findall("'(.*?)'", context["expected"])
        hint = suggestion(str(value), choices)
        return plain(error["msg"]) + ("" if len(choices) <= FEW and "did you mean" in hint else hint)
    if error["type"] == "string_type" and isinstance(value, bool):
        return f"""{plain(error["msg"])}; as a name it is written "'{value}'\""""
    if error["type"] not in LISTS and context.get("class") != "Sequence":
        return plain(error["msg"]) + ", with a point" * (error["type"] == "float_parsing" and "," in str(value))
    if not isinstance(value, str | int | float):
        return "must be a list"
    return f"must be a list, for example [{','.join(part.strip() for part in str(value).split(','))}]"


def plain(message: str) -> str:
    """Return a message of pydantic in words that say what a value must be."""
    message = re.sub(
        r", (unable to|got a number) .*| after validation, not 0$", "", message.removeprefix("Value error, ")
    )
    for theirs, ours in PLAIN.items():
        message = message.replace(theirs, ours)
    return message[0].lower() + message[1:]


def refuse_other_kinds(key: str, value: Any, checked: Any) -> None:
    """Refuse a text or a truth value that was taken as a number, such as '1' or true, and a number as a truth value.

    value, checked: before and after validation.
    """
    if isinstance(value, Mapping) and isinstance(checked, Mapping | BaseModel):
        fields = checked if isinstance(checked, Mapping) else checked.__dict__
        for name in value.keys() & fields.keys():
            refuse_other_kinds(_key(key, name), value[name], fields[name])
    elif isinstance(value, list | tuple) and isinstance(checked, list | tuple) and len(value) == len(checked):
        for number, (before, after) in enumerate(zip(value, checked, strict=True)):
            refuse_other_kinds(f"{key}.{number}", before, after)
    elif isinstance(checked, bool) and not isinstance(value, bool):
        raise InputError(f"{key} = {value!r}: must be true or false")
    elif type(checked) in (int, float) and isinstance(value, bool | str):
        raise InputError(f"{key} = {value!r}: must be a number")
    elif type(checked) is int and abs(checked) >= 2**63:
        raise InputError(f"{key} = {value!r}: must be a number below 2^63")


def settings_for(
    fn: Callable[..., Any], where: str, section: Mapping[str, Any], others: Iterable[Callable[..., Any]],
    context: tuple[str, ...] = (),
) -> dict[str, Any]:  # fmt: skip
    """Return the settings of a section that a function takes; the others must be settings of one of `others`."""
    taken, all_settings = model(fn, context), union(tuple(others), context)
    chosen = {key: value for key, value in section.items() if key in taken.model_fields}
    rest = {key: value for key, value in section.items() if key not in chosen}
    for key in (key for key in rest if key not in all_settings.model_fields):
        raise unknown(f"{where}.{key}", taken.model_fields, all_settings.model_fields)
    check(all_settings, where, rest)
    return dict(check(taken, where, chosen))


@cache
def union(functions: tuple[Callable[..., Any], ...], context: tuple[str, ...] = ()) -> type[BaseModel]:
    """Return the model of the settings of all these functions; a setting may have any of their types for it."""
    types: dict[str, list[Any]] = {}
    for fn in functions:
        for name, (hint, _) in settings_of(fn, context).items():
            types.setdefault(name, [None]).append(hint)
    fields: dict[str, Any] = {name: (Union[tuple(hints)], None) for name, hints in types.items()}  # noqa: UP007
    return create_model("Settings", __base__=Section, **fields)


def unknown(key: str, allowed: Iterable[str], elsewhere: Iterable[str] = ()) -> InputError:
    """Return the error for an unknown key, with a suggestion from the allowed keys and those known elsewhere."""
    allowed = list(allowed)
    hint = suggestion(key.rpartition(".")[2], [*allowed, *elsewhere])
    return InputError(f"{key}: no such key{hint} (allowed: {', '.join(allowed) or 'none'})")


_SECTION = re.compile(r"^Args:\n((?:[ ]{4}.*(?:\n|\Z))*)", re.MULTILINE)
_ENTRY = re.compile(r"^    (\w+): .*(?:\n {8}.*)*", re.MULTILINE)


def method_help(build: Callable[..., Any], others: Mapping[str, str], context: tuple[str, ...] = CONTEXT) -> str:
    """Return a builder's docstring; a dataclass among its arguments is replaced by the lines of its fields.

    others: the lines of further arguments, by name. context: the arguments that are no settings.
    """
    entries = [*setting_lines(build, context).values(), *(f"    {name}: {text}" for name, text in others.items())]
    section, doc = "Args:\n" + "\n".join(entries), cleandoc(build.__doc__ or "")
    if _SECTION.search(doc):
        return _SECTION.sub(lambda _: f"{section}\n", doc, count=1).rstrip()
    text, raises, errors = doc.partition("\n\nRaises:")
    return f"{text}\n\n{section}{raises}{errors}"


def setting_lines(fn: Callable[..., Any], context: tuple[str, ...] = CONTEXT) -> dict[str, str]:
    """Return the lines about each setting in the docstrings of a builder and of the dataclasses that it takes."""
    section = _SECTION.search(cleandoc(fn.__doc__ or ""))
    own = {entry[1]: entry[0] for entry in _ENTRY.finditer(section[1])} if section else {}
    hints, lines = get_type_hints(fn), dict[str, str]()
    for name in (name for name in signature(fn).parameters if name not in context):
        if is_dataclass(hints.get(name)):
            lines |= setting_lines(hints[name])
        elif name in own:
            lines[name] = own[name]
    return lines


def stand_for(
    source: Callable[..., Any], make: Callable[..., Any], name: str, doc: str | None,
    takes: Mapping[str, tuple[Any, Any]], *, by_position: bool = False,
) -> Callable[..., Any]:  # fmt: skip
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
