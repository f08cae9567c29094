"""The methods, by name. A method's module is imported when it is asked for.

A builder takes its params.yaml section as keyword-only arguments, beside `nets` (every device's architecture),
`training` (local training) and `common` (whether all devices start from one initial model).
"""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import Any

from fedcore.types import Method, Refused

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
    "rnd_alpha": "fedcore.methods.rnd_alpha",
    "fedavg_alpha": "fedcore.methods.fedavg_alpha",
    "avg_degree": "fedcore.methods.avg_degree",
    "rnd_psi": "fedcore.methods.rnd_psi",
    "psi_fedavg": "fedcore.methods.psi_fedavg",
    "single_match": "fedcore.methods.single_match",
}

CONTROLS = frozenset({"best_local", "half_best", "no_alignment", "label_smoothing"})
"""What a method must beat to have earned its name; never a candidate for the best model."""


def method(name: str, **settings: Any) -> Method:
    """Build a method. Raises Refused for an unknown name, TypeError for a wrong setting."""
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise Refused(f"method: {name!r} is not known (allowed: {', '.join(METHODS)}){hint}")
    built: Method = getattr(import_module(METHODS[name]), name)(**settings)
    return built
