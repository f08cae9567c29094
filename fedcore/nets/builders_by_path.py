"""The library's nets by the functions that build them, for files: none can name any other function."""

from functools import partial
from importlib import import_module
from inspect import signature
from typing import Any

from fedcore.builders import NET_CONTEXT, call
from fedcore.nets.inputs import with_integers, with_quantities, with_several
from fedcore.nets.weights import build_with_weights
from fedcore.types.federation import Net

_MODULES = ("cells", "cnn", "features", "mlp", "residual", "sequences", "trees", "vgg")
NETS = tuple(f"fedcore.nets.{module}" for module in _MODULES)
"""The modules whose functions build nets that a stored model may run on."""
WRAPPERS = with_integers, with_quantities, with_several, build_with_weights
"""The functions that add to what their first argument builds."""


def place_of(net: Net) -> str:
    """Return the place of the function that builds a net, "module:function"; raises TypeError outside of `NETS`."""
    build = net.build.func if isinstance(net.build, partial) else net.build
    if build.__module__ not in NETS:
        raise TypeError(f"a stored model cannot run on a net of {build.__module__}, only of {', '.join(NETS)}")
    return f"{build.__module__}:{build.__qualname__}"


def build_arguments(net: Net) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments that are bound to the function that builds a net."""
    return (net.build.args, net.build.keywords) if isinstance(net.build, partial) else ((), {})


def describe_net(net: Net) -> str:
    """Return the function or class that builds a net with its settings, such as "mlp(widths=(64, 32))".

    The shape and the classes of the data are left out.
    """
    if isinstance(net.build, partial) and net.build.func in WRAPPERS:
        return describe_net(Net(net.build.args[0]))
    build = net.build.func if isinstance(net.build, partial) else net.build
    positional, named = build_arguments(net)
    bound = signature(build).bind_partial(*positional, **named).arguments
    settings = {key: value for key, value in bound.items() if key not in NET_CONTEXT}
    return call(getattr(build, "__name__", type(build).__name__), settings)


def net_at(path: str, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> Net:
    """Undo `place_of` and `build_arguments`; a file cannot name any other function than one that builds a net."""
    module, _, name = path.partition(":")
    build: Any = getattr(import_module(module), name, None) if module in NETS else None
    if getattr(build, "__module__", None) != module:
        raise ValueError(f"not a net of the library: {path}")
    return Net(partial(build, *arguments[0], **arguments[1]), copied=True)
