"""Studies asked of the project's own parameters, and the line by which something is refused."""

import pickle
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fedcore.config.params import read
from fedcore.config.settings import Setting
from fedcore.config.studies import Run, grid_points, run_section
from fedcore.errors import InputError
from fedcore.methods import METHODS

ROOT = Path(__file__).parents[1]
PARAMS = read(ROOT)
_PACKED = pickle.dumps(PARAMS)


def copied() -> dict[str, Any]:
    """Return the project's own parameters, to change at will."""
    parameters: dict[str, Any] = pickle.loads(_PACKED)  # a sixth of the time of copy.deepcopy
    return parameters


def points(params: Mapping[str, Any], methods: tuple[str, ...] = (), **changes: Any) -> list[Setting]:
    """Return the points of study `asked`; a dot in a key is written __."""
    return grid_points(params, "asked", "small", {key.replace("__", "."): v for key, v in changes.items()}, methods)


def ask(params: dict[str, Any], methods: Mapping[str, Any], **size: Any) -> dict[str, Any]:
    """Give the parameters one more study."""
    params["studies"]["asked"] = {"title": "?", "methods": methods, "sizes": {"small": size}}
    return params


def everything(params: dict[str, Any], methods: Iterable[str] = METHODS) -> tuple[Run, list[Setting]]:
    """Read all of it, as a run with every method does, or with these."""
    return run_section(params), points(ask(params, {name: {} for name in methods}))


def refusal(asked: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Return the one line of a refusal."""
    with pytest.raises(InputError) as caught:
        asked(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)
