"""The methods, by name: each is a function in a file of a family's folder, imported on demand.

A file's function of its own name is a builder if all of its arguments are keyword-only; a file with several builders
lists them in `__all__`. The arguments of a builder are described in :mod:`fedcore.builders`; a user's method is named
by "package.module:function".
"""

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.nn.modules.batchnorm import _BatchNorm

from fedcore.builders import group_settings, import_builder, name_of, parameters, suggesting, unknown_value
from fedcore.core.training import Training
from fedcore.errors import InputError
from fedcore.nets.copies import template
from fedcore.types.federation import Net
from fedcore.types.method import Method, PairStage

_LISTED = re.compile(r"^__all__ = (\[.*?\])", re.MULTILINE | re.DOTALL)
_BUILDER = re.compile(r"^def ([a-z]\w*)\(\s*\*,", re.MULTILINE)


def find_modules() -> dict[str, str]:
    """Return the module of each method; files are read, not imported."""
    modules = {}
    for file in sorted(Path(__file__).parent.glob("*/[a-z]*.py")):
        source = file.read_text("utf-8")
        listed = _LISTED.search(source)
        for name in ast.literal_eval(listed[1]) if listed else {file.stem} & {*_BUILDER.findall(source)}:
            modules[name] = f"{__package__}.{file.parent.name}.{file.stem}"
    return dict(sorted(modules.items()))


METHODS = find_modules()


def builder(name: str) -> Callable[..., Method]:
    """Return the builder of that name, or at "package.module:function"; raises InputError where there is none."""
    if ":" not in name and name not in METHODS:
        if "." in name:
            raise InputError(f"method = {name!r}: did you mean {':'.join(name.rsplit('.', 1))}?")
        raise unknown_value("method", name, (*METHODS, "package.module:function"))
    with suggesting(name):
        return import_builder(name if ":" in name else f"{METHODS[name]}:{name}", "method")


def method(
    name: str | Callable[..., Method],
    /,
    *,
    nets: Mapping[str, Net],
    training: Training,
    shared_init: bool | None = None,
    sizes: Mapping[str, int] | None = None,
    **settings: Any,
) -> Method:
    """Build a method. Raises InputError for an unknown name or no method, TypeError for a wrong setting.

    A method whose training stops early by validation examples holds these out of its final fit.

    shared_init: in place of the training's. sizes: device -> labelled training examples; with them, raises InputError
    if the method cannot use these data.
    """
    build = builder(name) if isinstance(name, str) else name
    if shared_init is not None:
        training = replace(training, shared_init=shared_init)
    context = {"nets": nets, "training": training, "class_weights": training.class_weights}
    takes = parameters(build)
    built = build(**group_settings(build, settings | {key: value for key, value in context.items() if key in takes}))
    if not isinstance(built, Method):
        raise InputError(f"{name_of(build)}: must return a Method, returned {type(built).__name__}")
    if "training" in takes and training.patience is not None and "val" not in built.held_out:
        built = replace(built, held_out=(*built.held_out, "val"))
    if "training" in takes and training.batch == 1 and any(has_batch_norm(net) for net in nets.values()):
        raise InputError("training.batch = 1: a net with batch norm trains on at least 2 rows")
    if sizes is not None and built.check is not None:
        built.check(sizes)
    return built


def has_batch_norm(net: Net) -> bool:
    """Tell whether a net has a layer that needs batches of at least two examples."""
    return any(isinstance(layer, _BatchNorm) for layer in template(net).modules())


def needs_sums_alone(name: str, settings: Mapping[str, Any]) -> bool:
    """Tell whether devices send masked numbers, see :func:`fedcore.builders.sums_alone`."""
    marked: Mapping[str, object] = getattr(builder(name), "sums_alone", {})
    return bool(marked) and all(settings.get(key) == value for key, value in marked.items())


def require_real(name: str, built: Method) -> None:
    """Refuse a method that runs in a simulation alone: one that sees what no server or no single device gets."""
    if reason := getattr(builder(name), "simulation_only", ""):
        raise InputError(f"method {name}: runs in a simulation only: {reason}")
    if any(isinstance(stage, PairStage) and stage.sides is None for stage in built.stages):
        raise InputError(f"method {name}: runs in a simulation only: its steps of pairs see two devices' examples")
