"""The methods, by name. A method's module is imported when it is asked for.

A builder takes its params.yaml section as keyword-only arguments, beside `nets` (every device's architecture),
`training` (local training) and `common` (whether all devices start from one initial model). An argument that is a
dataclass stands for its fields, so that what several methods ask for is declared once.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import is_dataclass
from importlib import import_module
from inspect import signature
from typing import Any, get_type_hints

from fedcore.types import InputError, Method

METHODS: dict[str, str] = {
    "local_only": "fedcore.methods.local_only",
    "fedavg": "fedcore.methods.fedavg",
    "lmf": "fedcore.methods.lmf",
    "code_ot": "fedcore.methods.code_ot",
    "best_local": "fedcore.methods.best_local",
    "half_best": "fedcore.methods.half_best",
    "no_alignment": "fedcore.methods.no_alignment",
    "fedprox": "fedcore.methods.fedprox",
    "fedper": "fedcore.methods.fedper",
    "ditto": "fedcore.methods.ditto",
    "fixed_depth": "fedcore.methods.fixed_depth",
    "fedasa": "fedcore.methods.fedasa",
    "dfl": "fedcore.methods.dfl",
    "fd": "fedcore.methods.fd",
    "scaffold": "fedcore.methods.scaffold",
    "fedgen": "fedcore.methods.fedgen",
    "label_smoothing": "fedcore.methods.label_smoothing",
    "st_lf": "fedcore.methods.st_lf",
    "least_error": "fedcore.methods.st_lf",
    "rnd_alpha": "fedcore.methods.st_lf",
    "fedavg_alpha": "fedcore.methods.st_lf",
    "fada": "fedcore.methods.st_lf",
    "avg_degree": "fedcore.methods.st_lf",
    "rnd_psi": "fedcore.methods.st_lf",
    "psi_fedavg": "fedcore.methods.st_lf",
    "psi_fada": "fedcore.methods.st_lf",
    "single_match": "fedcore.methods.st_lf",
}

CONTROLS = frozenset({"best_local", "half_best", "no_alignment", "label_smoothing", "least_error"})
"""What a method must beat to have earned its name; never a candidate for the best model."""


def method(name: str, **settings: Any) -> Method:
    """Build a method. Raises InputError for an unknown name, TypeError for a wrong setting."""
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InputError(f"method: {name!r} is not known (allowed: {', '.join(METHODS)}){hint}")
    build = getattr(import_module(METHODS[name]), name)
    built: Method = build(**grouped(build, settings))
    return built


def asked(fn: Callable[..., Any], given: Collection[str] = ()) -> dict[str, tuple[Any, Any]]:
    """Return what a callable asks for but the given: name -> (type, default; `inspect.Parameter.empty` is none)."""
    hints = get_type_hints(fn, include_extras=True)
    found: dict[str, tuple[Any, Any]] = {}
    for name, parameter in signature(fn).parameters.items():
        if name in given:
            continue
        if is_dataclass(hints[name]):
            found |= asked(hints[name])
        else:
            found[name] = hints[name], parameter.default
    return found


def grouped(fn: Callable[..., Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with those that are a dataclass's fields gathered in one, under the argument's name."""
    made, hints = dict(settings), get_type_hints(fn)
    for name in signature(fn).parameters:
        kind = hints[name]
        if name not in made and isinstance(kind, type) and is_dataclass(kind):
            made[name] = kind(**{field: made.pop(field) for field in asked(kind) if field in made})
    return made
