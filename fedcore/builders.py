"""Builders: importing them by name, and reading their settings from their signatures.

A method's builder takes its settings as keyword-only arguments, and those of CONTEXT that it needs. An argument that is
a dataclass stands for its fields, so that settings shared by several methods are declared once.
"""

import difflib
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass, replace
from functools import cache, partial
from importlib import import_module
from inspect import Parameter, isclass, isfunction, signature
from types import MappingProxyType
from typing import Any, TypeVar, cast, get_type_hints

from fedcore.errors import InputError

CONTEXT = ("nets", "training", "class_weights")
"""Arguments that a method's builder gets besides its settings: every device's architecture, local training, and of
methods that have none what it says of class weights."""

NET_CONTEXT = ("shape", "classes", "per_step", "several")
"""Arguments of a net that the data determine; the last two only of nets that can have an output for each step, or
several inputs."""

PARTITION_CONTEXT = ("dataset", "name", "seed")
"""Arguments of a partition besides its settings."""

RENAMED = {
    "exam": "rank_by", "shots": "rounds", "mixing": "aggregation", "matters": "min_effect", "init": "shared_init",
    "moments": "optimiser_state", "kept": "keep", "printed": "fedasa_eq12", "table3": "fedasa_table3",
    "recommended": "personal_distillation", "mine": "my_data", "field": "published", "along": "x_axis",
    "sums": "secure_aggregation", "sends": "upload", "change": "delta",
    "show": "figures", "says": "statement", "of": "metric", "at": "round", "when": "require", "why": "reason",
}  # fmt: skip
"""Words of earlier versions -> those that took their place: keys, values, methods and studies."""

F = TypeVar("F", bound=Callable[..., Any])


def _mark(**attributes: object) -> Callable[[F], F]:
    """Return a decorator that gives a builder attributes."""

    def mark(build: F) -> F:
        for name, value in attributes.items():
            setattr(build, name, value)
        return build

    return mark


def control(build: F) -> F:
    """Mark a builder's method as a control: a baseline for others, never ranked as the best method."""
    return _mark(control=True)(build)


def simulation_only(reason: str) -> Callable[[F], F]:
    """Mark a method that a simulation can run and real devices cannot.

    reason: a clause, e.g. "its links come from test labels, which no server gets".
    """
    return _mark(simulation_only=reason)


def sums_alone(**setting: object) -> Callable[[F], F]:
    """Mark a builder whose server needs nothing but sums over devices where a setting has this value.

    What its devices send is masked then, so that the server sees no single update.
    """
    return _mark(sums_alone=setting)


def needs_classes(reason: str, **settings: Any) -> Callable[[F], F]:
    """Mark what labels that are no classes do not allow: the whole method, or settings with these values.

    reason: what it does with them, e.g. "averages outputs by label".
    """
    return _mark(needs_classes=(reason, settings))


def needs_one_label(reason: str) -> Callable[[F], F]:
    """Mark a method that labels for each step of an example do not allow.

    reason: what it does with an example's label or features, e.g. "regresses on the label of an example".
    """
    return _mark(needs_one_label=reason)


def needs_bounded_labels(setting: str, reason: str) -> Callable[[F], F]:
    """Mark a setting that a number as label does not allow, since no number is the greatest.

    reason: what it does, e.g. "adds noise that hides labels up to a size".
    """
    return _mark(needs_bounded_labels=(setting, reason))


def training_defaults(**changes: Any) -> Callable[[F], F]:
    """Set a method's own defaults of local training: settings of `Training`."""
    return _mark(training_defaults=changes)


def import_builder(path: str, key: str) -> Callable[..., Any]:
    """Return the class or function at "package.module:name"; raises InputError, naming the key, where there is none."""
    module, _, attribute = path.partition(":")
    try:
        target = getattr(import_module(module), attribute)
    except (ImportError, ValueError) as error:
        raise InputError(f"{key}: {path!r} cannot be imported: {error}") from None
    except AttributeError:
        raise InputError(f"{key}: {module} has no {attribute!r}") from None
    if not isfunction(target) and not isclass(target):
        raise InputError(f"{key}: {path!r} is neither a class nor a function")
    builder: Callable[..., Any] = target
    return builder


@contextmanager
def suggesting(path: object) -> Iterator[None]:
    """Let the error for "package.module:name" suggest a class or function of that module by a similar name."""
    try:
        yield
    except InputError as refused:
        module, _, name = str(path).partition(":")
        if not str(refused).endswith(f"{module} has no {name!r}"):
            raise
        own = [of for of, value in vars(sys.modules[module]).items() if isfunction(value) or isclass(value)]
        raise InputError(f"{refused}{suggestion(name, [of for of in own if of[0] != '_'])}") from None


def name_of(fn: object) -> str:
    """Return the place of a function, "package.module:function", whatever arguments are bound to it."""
    while isinstance(fn, partial):
        fn = fn.func
    return f"{getattr(fn, '__module__', '?')}:{getattr(fn, '__qualname__', type(fn).__qualname__)}"


def takes(fn: Callable[..., Any], name: str) -> bool:
    """Tell whether a function must be given an argument by that name, which is not bound to it yet."""
    parameter = signature(fn).parameters.get(name)
    return parameter is not None and parameter.kind is Parameter.KEYWORD_ONLY and parameter.default is Parameter.empty


def can_take(fn: Any, arguments: str, *named: str) -> bool:
    """Tell whether a function can be called with these arguments by position; one in C need not say so.

    arguments: their names. named: those that it is given by name if it must be.
    """
    own = fn if isclass(fn) else getattr(fn, "forward", fn)  # of a module
    try:
        signature(own).bind(*arguments.split(", "), **{name: None for name in named if takes(own, name)})
    except (TypeError, ValueError) as error:
        return isinstance(error, ValueError)
    return True


@cache
def parameters(fn: Callable[..., Any]) -> Mapping[str, Parameter]:
    """Return a callable's parameters by name."""
    return signature(fn).parameters


@cache
def _hints(fn: Callable[..., Any], extras: bool) -> Mapping[str, Any]:
    """Return a callable's annotations by name, evaluated. extras: with what `Annotated` adds."""
    return MappingProxyType(get_type_hints(fn, include_extras=extras))


def settings_of(fn: Callable[..., Any], context: Collection[str] = ()) -> dict[str, tuple[Any, Any]]:
    """Return a callable's settings, without those in `context`: name -> (type, default or `Parameter.empty`)."""
    hints = _hints(fn, extras=True)
    settings: dict[str, tuple[Any, Any]] = {}
    for name, parameter in parameters(fn).items():
        if name in context:
            continue
        hint = hints.get(name, Any)
        if is_dataclass(hint):
            of, given = settings_of(cast(type, hint)), parameter.default
            settings |= {key: (kind, getattr(given, key, default)) for key, (kind, default) in of.items()}
        else:
            settings[name] = hint, parameter.default
    return settings


def group_settings(fn: Callable[..., Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with the fields of a dataclass argument replaced by an instance of it."""
    grouped, hints = dict(settings), _hints(fn, extras=False)
    for name in parameters(fn):
        kind = hints.get(name)
        if name not in grouped and isinstance(kind, type) and is_dataclass(kind):
            fields = {field: grouped.pop(field) for field in settings_of(kind) if field in grouped}
            default, own = parameters(fn)[name].default, group_settings(kind, fields)
            grouped[name] = replace(default, **own) if isinstance(default, kind) else kind(**own)
    return grouped


def describe(value: object) -> str:
    """Return a word for a wrong argument: a function's or class's name, a text in quotes, else the type."""
    return repr(value) if isinstance(value, str) else getattr(value, "__name__", type(value).__name__)


def call(name: str, settings: Mapping[str, object]) -> str:
    """Return the call that gives these settings, such as "dirichlet(alpha=0.5)"."""
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in settings.items())})"


ELSEWHERE = {
    "clients": "devices", "num_clients": "devices", "n_clients": "devices", "clients_per_round": "fraction",
    "fraction_fit": "fraction", "join_ratio": "fraction", "learning_rate": "lr", "eta": "lr", "batch_size": "batch",
    "local_epochs": "epochs", "num_rounds": "rounds", "global_rounds": "rounds", "wd": "weight_decay",
}  # fmt: skip
"""Names that other libraries have for a setting -> ours."""


def suggestion(word: str, choices: Iterable[object], above: str = "") -> str:
    """Return a hint: the word's new name, or a name that goes on after it, or the closest one; else an empty text.

    Args:
        word: what was typed.
        choices: the names that are allowed.
        above: what stands before a name, such as `federation.`.
    """
    names = list(map(str, choices))
    if RENAMED.get(word) in names:
        return f"; it is now called {above}{RENAMED[word]}"
    if ELSEWHERE.get(word) in names:
        return f"; here it is {above}{ELSEWHERE[word]}"
    begun = [name for name in names if name.startswith(word if len(word) > 2 else f"{word}_")]
    close = difflib.get_close_matches(word, begun or names, 1, 0.0 if begun else 0.6)
    close = close or difflib.get_close_matches(word.lower(), names, 1)
    return f"; did you mean {above}{close[0]}?" if close else ""


def unknown_value(key: str, value: object, allowed: Iterable[object]) -> InputError:
    """Return the error for a value that is not in `allowed`; it suggests the closest one first."""
    names = list(map(str, allowed))
    hint = f"{suggestion(str(value), names)[2:]}; ".replace("?; ", "? ").removeprefix("; ")
    return InputError(f"{key} = {value!r}: {hint}allowed: {', '.join(names)}")
