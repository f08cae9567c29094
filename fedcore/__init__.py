"""fedcore: compare ways to combine models trained on many devices with unequal, private data.

    import fedcore as fc

    fed = fc.federate(fc.load("digits"), fc.dirichlet(0.5), devices=8, net=fc.mlp(64, 32))
    result = fc.run(fc.code_ot(reg=0.01), fed, seed=0)

Beside the names below, every method (`fedcore.methods`), every way to divide examples (`fedcore.partition.schemes`) and
every net (`fedcore.nets`) is a function of this package that takes its settings: `fedavg`, `dirichlet`, `mlp`. What is
asked for is imported then, so that a worker process imports little.
"""

from __future__ import annotations

from functools import cache, wraps
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fedcore.errors import require_extra

__version__ = "0.2.0"

if TYPE_CHECKING:
    from fedcore.api.federation import federate as federate
    from fedcore.api.federation import method as method
    from fedcore.api.federation import net as net
    from fedcore.api.runs import compare as compare
    from fedcore.api.runs import final_fit as final_fit
    from fedcore.api.runs import run as run
    from fedcore.api.runs import tune as tune
    from fedcore.builders import control as control
    from fedcore.builders import training_defaults as training_defaults
    from fedcore.core.aggregation import apply_changes as apply_changes
    from fedcore.core.aggregation import average_models as average_models
    from fedcore.core.aggregation import by_size as by_size
    from fedcore.core.aggregation import evenly as evenly
    from fedcore.core.aggregation import mean as mean
    from fedcore.core.losses import Batch as Batch
    from fedcore.core.losses import with_parts as with_parts
    from fedcore.core.messages import begin_with_memory as begin_with_memory
    from fedcore.core.messages import from_memory as from_memory
    from fedcore.core.messages import initial_messages as initial_messages
    from fedcore.core.messages import merge_models as merge_models
    from fedcore.core.messages import received_model as received_model
    from fedcore.core.messages import to_everyone as to_everyone
    from fedcore.core.messages import to_sampled as to_sampled
    from fedcore.core.training import Training as Training
    from fedcore.core.training import features as features
    from fedcore.core.training import train as train
    from fedcore.data import Dataset as Dataset
    from fedcore.data import load as load
    from fedcore.data.arrays import from_arrays as from_arrays
    from fedcore.data.arrays import with_devices as with_devices
    from fedcore.data.inputs import side_by_side as side_by_side
    from fedcore.errors import InputError as InputError
    from fedcore.nets.parts import layers as layers
    from fedcore.nets.weights import write_weights as write_weights
    from fedcore.results.claims import Claim as Claim
    from fedcore.results.claims import Gate as Gate
    from fedcore.results.reports import load_plans as load_plans
    from fedcore.types.federation import Data as Data
    from fedcore.types.federation import Device as Device
    from fedcore.types.federation import Federation as Federation
    from fedcore.types.federation import Net as Net
    from fedcore.types.federation import Splits as Splits
    from fedcore.types.method import Message as Message
    from fedcore.types.method import Method as Method
    from fedcore.types.method import Model as Model
    from fedcore.types.method import Report as Report
    from fedcore.types.method import RoundInfo as RoundInfo
    from fedcore.types.method import Stage as Stage
    from fedcore.types.method import StepId as StepId
    from fedcore.types.method import Update as Update
    from fedcore.types.ranges import Amount as Amount
    from fedcore.types.ranges import Count as Count
    from fedcore.types.ranges import Fraction as Fraction
    from fedcore.types.ranges import Positive as Positive
    from fedcore.types.ranges import Share as Share

_PLACES = {
    "api.federation": ["federate", "method", "net"],
    "api.runs": ["compare", "final_fit", "run", "tune"],
    "builders": ["control", "training_defaults"],
    "core.aggregation": ["apply_changes", "average_models", "by_size", "evenly", "mean"],
    "core.losses": ["Batch", "with_parts"],
    "core.messages": ["begin_with_memory", "from_memory", "initial_messages", "merge_models", "received_model",
                      "to_everyone", "to_sampled"],
    "core.training": ["Training", "features", "train"],
    "data": ["Dataset", "load"],
    "data.arrays": ["from_arrays", "with_devices"],
    "data.inputs": ["side_by_side"],
    "errors": ["InputError"],
    "nets.parts": ["layers"],
    "nets.weights": ["write_weights"],
    "results.claims": ["Claim", "Gate"],
    "results.reports": ["load_plans"],
    "types.federation": ["Data", "Device", "Federation", "Net", "Splits"],
    "types.method": ["Message", "Method", "Model", "Report", "RoundInfo", "Stage", "StepId", "Update"],
    "types.ranges": ["Amount", "Count", "Fraction", "Positive", "Share"],
}  # fmt: skip
_PLACE = {name: f"{__name__}.{module}" for module, names in _PLACES.items() for name in names}
_CALLED = ("compare", "federate", "final_fit", "load", "net", "run", "tune")

__all__ = sorted(_PLACE)


def __getattr__(name: str) -> Any:
    if name in _PLACE:
        if _PLACE[name].startswith(f"{__name__}.api."):
            require_extra("study")
        found = getattr(import_module(_PLACE[name]), name)
        return _in_script(found) if name in _CALLED else found
    if not name.startswith("_") and find_spec(f"{__name__}.{name}") is None:  # else a module of the package, or nothing
        require_extra("study")
        from fedcore.api.federation import settings_functions

        if function := settings_functions().get(name):
            return function(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def _in_script(function: Any) -> Any:
    """Return a function whose errors name settings as a script names them."""

    @wraps(function)
    def call(*args: Any, **settings: Any) -> Any:
        from fedcore.config.sections import in_script

        with in_script():
            return function(*args, **settings)

    call.__module__ = __name__  # by which pickle finds it
    return call


def __dir__() -> list[str]:
    """Return the public names: those of __all__, and every method, way and net that no module of the package hides."""
    from fedcore.api.federation import settings_functions

    return sorted({*_PLACE, *(name for name in settings_functions() if find_spec(f"{__name__}.{name}") is None)})
