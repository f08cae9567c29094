"""A run's models as MLflow logs and serves them: files that hold no code, and the code that reads them.

The folder is that of :mod:`fedcore.api.serving`. Nothing in it is pickled.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

import fedcore
from fedcore.api import serving
from fedcore.api.serving import LABEL, MODELS, PROBABILITY, SCHEMA, THRESHOLD, tensors_file
from fedcore.data import Dataset, drift
from fedcore.data.encoding import from_json, to_json
from fedcore.data.schema import Schema
from fedcore.data.task import LABEL_KINDS, MULTILABEL
from fedcore.errors import InputError, failing, is_installed
from fedcore.nets import key
from fedcore.nets.custom import MODEL_CODE, digest_of_rest
from fedcore.nets.trees import TREES
from fedcore.partition import Index, Partition, training
from fedcore.pipeline import environment
from fedcore.pipeline.cache.keys import imported_by, versions_of
from fedcore.pipeline.cache.store import to_content
from fedcore.pipeline.record import seals
from fedcore.types.federation import Costs
from fedcore.types.method import Model, Threshold

if TYPE_CHECKING:
    from mlflow.models import ModelSignature

CODE = (
    "__init__.py", "errors.py", "types", "builders.py", "pickling.py", "spreadsheet.py", "nets", "core/__init__.py",
    "core/prediction.py", "core/evaluation.py", "core/metrics.py", "data/__init__.py", "data/dataset.py",
    "data/inputs.py", "data/registry.py", "data/schema.py", "data/task.py", "data/names.py", "data/encoding.py",
    "data/prepare.py", "data/readers.py", "execute/__init__.py", "execute/accelerator.py", "api/__init__.py",
    "api/serving.py",
)  # fmt: skip
"""The files and folders of fedcore that `fedcore.api.serving` imports; a model carries a copy of them."""

REFERENCE = "reference.json"
"""A file beside them: what new rows are compared with (fedcore.data.drift); models of earlier versions have none."""

MOST_SHOWN = 10_000
"""The most numbers of an array that is an example of the input."""

MOST_PREDICTED = 2_000
"""About so many training rows are predicted for it, evenly from all devices."""

PACKAGES = ("torch", "safetensors", "numpy", "pandas", "pyarrow", "pydantic", "cloudpickle")
"""What they need; MLflow brings all but the first two."""


def write(
    folder: Path, schema: Schema, nets: Sequence[Mapping[str, Any]], models: Sequence[tuple[Model, int]],
    devices: Mapping[str, int], threshold: Threshold | None = None, costs: Costs | None = None,
) -> None:  # fmt: skip
    """Write models to a folder, for :func:`fedcore.api.serving.load`.

    nets: sections of settings. models: each distinct model, and the index of its net. devices: device -> index of its
    model. threshold, costs: by which they predict a label.
    """
    folder.mkdir(parents=True)
    (folder / SCHEMA).write_text(to_json(schema))
    packed = [{"net": net, "model": serving.pack(model, str(i), {})} for i, (model, net) in enumerate(models)]
    sections = [dict(net) for net in nets]
    for i, section in enumerate(sections):
        if "weights" in section:  # what is frozen there is a part of the model
            shutil.copyfile(section["weights"], folder / (name := f"weights-{i}.safetensors"))
            section["weights"] = name
    own = {i: serving.nets_of(schema, [net])[0] for i, net in enumerate(nets) if ":" in net["name"]}
    rest = [digest_of_rest(own[i]) if i in own else None for i in range(len(nets))]
    for entry, (model, i) in zip(packed, models, strict=True):
        entry |= {"answers": serving.made_answers(schema, model, own[i])} if i in own else {}
    card: dict[str, Any] = {"nets": sections, "models": packed, "devices": dict(devices), "rest": rest}
    card |= {} if threshold is None else {"threshold": asdict(threshold)}
    card |= {} if costs is None else {"costs": costs}
    (folder / MODELS).write_text(json.dumps(card) + "\n")
    for i, (model, _) in enumerate(models):
        (folder / tensors_file(i)).write_bytes(to_content(model)[0])


def write_reference(folder: Path, dataset: Dataset, partition: Partition) -> None:
    """Write the reference of the rows that models in a folder were trained on, beside them."""
    served, rows = serving.load(folder), training(partition)
    every = max(1, sum(map(len, rows.values())) // MOST_PREDICTED)
    predicted = {
        name: _to_compare(served.labels_of(dataset.train.inputs(torch.from_numpy(index[::every])), name))
        for name, index in rows.items()
    }
    labels = {
        name: _to_compare(dataset.train.y[torch.from_numpy(own["train"])]) for name, own in partition.devices.items()
    }
    x = {name: _cells(served.schema, dataset, index) for name, index in rows.items()}
    (folder / REFERENCE).write_text(drift.to_json(drift.summarise(served.schema, x, labels, predicted)) + "\n")


def compare_training(
    reference: drift.Reference, schema: Schema, dataset: Dataset, partition: Partition
) -> list[drift.Change]:
    """Return what has moved in the labelled training rows of a partition, and in their labels."""
    rows = {name: own["train"] for name, own in partition.devices.items()}
    index = np.concatenate([*rows.values()])
    devices = np.repeat([*rows], [*map(len, rows.values())]).tolist()
    labels = _to_compare(dataset.train.y[torch.from_numpy(index)])
    return drift.compare(reference, schema, _cells(schema, dataset, index), devices, labels, labels=True)


def _to_compare(labels: Tensor) -> NDArray[Any]:
    """Return labels as a reference has them, numbers as float32."""
    return (labels.float() if labels.is_floating_point() else labels).numpy()


def _cells(schema: Schema, dataset: Dataset, index: Index) -> NDArray[np.float64]:
    """Return the inputs of a table's rows as they are loaded, (N, F); of arrays none, (N, 0)."""
    if not schema.columns:
        return np.empty((len(index), 0))
    inputs: NDArray[np.float64] = dataset.train.x[torch.from_numpy(index)].double().numpy()
    return inputs


def write_code(folder: Path, nets: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Link to the code that reads a folder of models, which MLflow copies; returns its places, and needed packages.

    A net of the user's own brings its module, or the package that holds it, and those of the user's that these import,
    unless an installed package has them.
    """
    home = Path(fedcore.__file__).parent
    for name in CODE:
        target = folder / "fedcore" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(home / name)
    paths, needed = [str(folder / "fedcore")], [f"torch=={torch.__version__.partition('+')[0]}", *PACKAGES[1:]]
    found = [str(net["name"]).partition(":")[0].split(".")[0] for net in nets if ":" in net["name"]]
    seen = {"fedcore", "torch", "__main__"}
    for top in filter(None, found):  # which grows
        spec = None if top in seen else find_spec(top)
        seen.add(top)
        if spec is None:
            continue
        file = Path(spec.origin or folder / top / "__init__.py")
        roots = [Path(of) for of in spec.submodule_search_locations or () if not spec.origin]
        # The modules alone: a folder without __init__.py may be one of data, too.
        kinds = ("*.py", f"*{EXTENSION_SUFFIXES[-1]}")
        parts = [(at, of) for at in roots for kind in kinds for of in at.rglob(kind) if not is_installed(of)]
        if installed := versions_of(top):
            needed += sorted(installed)
            continue
        for root, part in parts:
            (link := file.parent / part.relative_to(root)).parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(part.resolve())
            file.touch()
        if file.is_file() and not is_installed(file):  # compiled, too
            place = file.parent if file.name == "__init__.py" else file
            paths.append(str(place))
            modules = sorted(place.rglob("*.py")) or [file]
            found += [of.split(".")[0] for module in modules for of in imported_by(module, top)]
    return paths, list(dict.fromkeys(needed))


def signature(schema: Schema, threshold: bool = False, own_models: bool = False) -> ModelSignature:
    """Return what a model takes and returns: columns by name, or arrays; a label, its probability, and any threshold.

    A label that is a number comes alone; of several labels each has two columns, and so has each step. own_models:
    whether devices have models of their own, so that a row needs its device.

    The model itself checks columns, with the row in its message: MLflow, which refuses a whole number for a fraction,
    leaves that to models whose signature is said to be from type hints.
    """
    from mlflow.models import ModelSignature  # two seconds, which a prediction does not need
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, TensorSpec
    from mlflow.types import Schema as Columns

    if schema.columns:
        types = {"number": DataType.double, "boolean": DataType.boolean, "text": DataType.string}
        of_columns = {column.name: ColSpec(types[column.kind], column.name) for column in schema.columns}
        device = serving.DEVICE if schema.device is None else schema.device
        inputs = Columns([*({device: ColSpec(DataType.string, device, required=own_models)} | of_columns).values()])
    else:
        inputs = Columns([TensorSpec(np.dtype(schema.dtype), (-1, *schema.shape))])
    outputs = [ColSpec(DataType.string, LABEL), ColSpec(DataType.float, PROBABILITY)]
    if LABEL_KINDS[schema.task].standardised:
        outputs = [ColSpec(DataType.double, LABEL)]
    elif not LABEL_KINDS[schema.task].has_classes:
        label_type = DataType.long if LABEL_KINDS[schema.task] == MULTILABEL else DataType.string
        columns = ((LABEL, label_type), (PROBABILITY, DataType.float))
        outputs = [ColSpec(kind, name) for what, kind in columns for name in serving.several_columns(what, schema)]
    outputs += [ColSpec(DataType.float, THRESHOLD)] if threshold else []
    taken = ModelSignature(inputs, Columns(outputs), ParamSchema([ParamSpec("device", DataType.string, "")]))
    taken._is_signature_from_type_hint = bool(schema.columns)
    return taken


def made_example(schema: Schema, devices: Iterable[str]) -> pd.DataFrame | NDArray[Any] | None:
    """Return an example of the input that is nobody's row: zeros and first categories; None of a large array."""
    if not schema.columns:
        return np.zeros((1, *schema.shape), schema.dtype) if math.prod(schema.shape) <= MOST_SHOWN else None
    cells = {
        column.name: {"number": 0.0, "boolean": False}.get(column.kind, next(iter(column.categories), ""))
        for column in schema.columns
    }
    return pd.DataFrame([{schema.device or serving.DEVICE: next(iter(devices), ""), **cells}])


LOADER = serving.__name__
"""The module whose `_load_pyfunc` MLflow calls with the folder."""

FOLDER = "models"
"""The folder's name."""


def modules_of(folder: Path) -> set[str]:
    """Return the names of a user's modules that a version keeps, beside those of fedcore."""
    code = folder / "code"
    return {path.stem for path in code.iterdir()} - {"fedcore"} if code.is_dir() else set()


def load(folder: Path) -> serving.ServedModels:
    """Return the models that MLflow has logged at a place; a net of the user's own comes from the code there.

    Modules by the same names, of today's project or of another version, are put aside meanwhile: a model's tensors mean
    nothing in other code. No compiled file is read, as no seal covers it (fedcore/pipeline/record/seals.py).
    """
    sys.pycache_prefix, sys.dont_write_bytecode = str(environment.STATE / "no-bytecode"), True
    code, its = folder / "code", modules_of(folder)
    others = {name: sys.modules.pop(name) for name in [*sys.modules] if name.split(".")[0] in its}
    sys.path.insert(0, str(code))
    marked = MODEL_CODE.set(its)
    try:
        with failing("its net needs more than the version keeps, which is its modules") if its else nullcontext():
            served = serving.load(folder / "data" / FOLDER)
        for _, net in served.models:
            key(net)  # which names its class, as long as that is found by its name
        return served
    finally:
        MODEL_CODE.reset(marked)
        sys.path.remove(str(code))  # it holds a part of fedcore, which a worker could take for the whole
        for name in [name for name in sys.modules if name.split(".")[0] in its]:
            del sys.modules[name]
        sys.modules.update(others)


def folder_of(name: str, number: str, uri: str) -> Path:
    """Return the folder of a version's models. Raises InputError for those that stay on their devices, or are not ours.

    See :mod:`fedcore.pipeline.record.seals`.
    """
    version = f"version {number} of {name}"
    folder = seals.check(name, uri, version)
    if not (folder / "data" / FOLDER / SCHEMA).is_file():
        raise InputError(f"{version}: its models stay on their devices, where fedcore device predict uses them")
    return folder


def load_reference(folder: Path) -> drift.Reference | None:
    """Return what new rows are compared with; None for models of an earlier version, which have no reference."""
    file = folder / "data" / FOLDER / REFERENCE
    return drift.from_json(file.read_bytes()) if file.is_file() else None


def log_arguments(folder: Path) -> dict[str, Any]:
    """Return MLflow's arguments to log or save the models that `write` has written to FOLDER of a folder."""
    files = folder / FOLDER
    schema, text = from_json((files / SCHEMA).read_bytes()), (files / MODELS).read_text()
    card = json.loads(text)
    paths, needed = write_code(folder / "code", card["nets"])
    needed += ["xgboost-cpu"] if f'"{TREES}": {{"leaf"' in text else []
    return {
        "loader_module": LOADER, "data_path": str(files), "code_paths": paths,
        "signature": signature(schema, "threshold" in card, len(card["models"]) > 1), "pip_requirements": needed,
        "input_example": made_example(schema, card["devices"]),
        "metadata": {"classes": list(schema.classes)},
    }  # fmt: skip


@contextmanager
def quiet() -> Iterator[None]:
    """Hide MLflow's advice to give an example of the input, which a large array has not.

    MLflow also does not compare what a model needs with what is installed, from which it was taken: it would look for
    every file of every package, a second of a processor in each process.
    """
    from mlflow.utils import environment as requirements

    compare = requirements.warn_dependency_requirement_mismatches
    requirements.warn_dependency_requirement_mismatches = lambda needed: None
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*input example", category=UserWarning)
            yield
    finally:
        requirements.warn_dependency_requirement_mismatches = compare
