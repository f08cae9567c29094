"""Deployed models with all that a prediction needs: from a user's rows or arrays to labels and probabilities.

A folder holds them in files that no program has to trust:

schema.json            columns, categories, fills and scales of each device, names of classes (fedcore.data.encoding)
models.json            the nets' settings; each distinct model, packed, its net, and of a user's net some answers, by
                       which it is known again; each device's model; a threshold
model-<i>.safetensors  the tensors of a distinct model, "/members/<member>/<tensor>"; they are "<i>/members/..." in
                       models.json

MLflow loads the folder by `_load_pyfunc`, also where this package is not installed: a logged model has a copy of this
module and of those that it imports (fedcore.pipeline.record.models).
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from safetensors.torch import load as load_tensors
from torch import Tensor

from fedcore.core.evaluation import decided_by, outputs, outputs_of_new, predicted_classes
from fedcore.data.encoding import column_texts, encode, from_json, unknown_cells
from fedcore.data.inputs import apart, as_mapping, require_unmasked, side_by_side
from fedcore.data.prepare import LEAST_OWN, fill_and_scale, in_unit
from fedcore.data.readers import RawTable, read
from fedcore.data.schema import Schema
from fedcore.data.task import LABEL_KINDS, MULTILABEL, SEQUENCES, LabelKind
from fedcore.errors import InputError
from fedcore.execute.accelerator import one_thread
from fedcore.nets import net as build_net
from fedcore.nets.builders_by_path import build_arguments, net_at, place_of
from fedcore.nets.copies import template
from fedcore.nets.custom import digest_of_rest
from fedcore.nets.randomness import keep_generators
from fedcore.nets.trial import examples
from fedcore.types.federation import Costs, Net
from fedcore.types.method import Model, Threshold, seed_all

SCHEMA, MODELS = "schema.json", "models.json"
MOST_ANSWERS = 200
"""The most numbers by which a stored model of a user's net is known again."""
LABEL, PROBABILITY, THRESHOLD = "label", "probability", "threshold"
PREDICTED_AS, UNKNOWN = "predicted_as", "unknown"
DEVICE, NEW_DEVICE, OWN_SCALE = "device", "a new device", "a new device, scaled by its own rows"
"""The column of each row's device where the training data's is not there; in PREDICTED_AS: of no known device."""


@dataclass(frozen=True)
class ServedModels:
    """The models that devices run. models: each distinct one with its net. devices: device -> index in `models`.

    threshold: by which of two classes one is predicted. costs: without a threshold, of mistakes: the class of least
    expected cost is predicted, and without costs the most probable one.
    """

    schema: Schema
    models: tuple[tuple[Model, Net], ...]
    devices: Mapping[str, int]
    threshold: Threshold | None = None
    costs: Costs | None = None

    def predict(
        self, rows: pd.DataFrame | NDArray[Any], device: str | Sequence[str] | None = None, every_class: bool = False
    ) -> pd.DataFrame:
        """Return a frame of the rows' index, with the most probable class as `label` and its `probability`.

        Where costs decided, `label` is the class of least expected cost. Where labels are numbers `label` is the
        predicted number, in the unit of those learnt from, and there is no other column. Where there are several, the
        columns are `label_NAME`, 0 or 1, and `probability_NAME` of each; where each step has one, `label_STEP`, its
        most probable class, and `probability_STEP`, steps counted from 0.
        With a threshold, `label` is decided by it, and there are also the `probability` of that label and `threshold`.
        If a row is of no known device, `predicted_as` says for whom each one is, unless that changes nothing. If a text
        was unknown in training, which counts as a missing one, `unknown` names each row's columns that have one.

        rows: a frame with the columns of the training data (others are ignored), an array (N, *shape), or several
        inputs by name. device: whose model predicts and prepares the rows, or a name for each row; None: of each row
        the device in the column of :meth:`device_column`, if the rows have it. Rows without a known device are prepared
        as those of a new device, each name by itself, for the model that all devices share. every_class: also columns
        `probability_CLASS`.

        Raises InputError for a column that is not there or of another kind, an unknown device, and if devices have
        models of their own and a row does not say whose.
        """
        if not isinstance(rows, pd.DataFrame):
            require_unmasked(rows, "array")
        if self.schema.several and (as_mapping(rows) or apart(rows, self.schema.several)):
            rows = side_by_side(rows, self.schema.several)
        owners = self._owners(rows, device)
        if len(set(owners)) > 1:
            encode(rows, self.schema)  # an error names the row by its number among all rows
        answers = torch.zeros(len(rows), *self.schema.shape[: self.task == SEQUENCES], len(self.schema.classes))
        for owner in dict.fromkeys(owners):
            own_rows = np.flatnonzero([other == owner for other in owners])
            part = rows.iloc[own_rows] if isinstance(rows, pd.DataFrame) else np.asarray(rows)[own_rows]
            known = owner if owner in self.devices else None
            of_part = self.answers(self.devices.get(owner, 0), encode(part, self.schema, known, bool(owner)))
            answers = answers.to(of_part.dtype)
            answers[torch.from_numpy(own_rows)] = of_part
        predictions = self._frame(answers, getattr(rows, "index", None), every_class)
        if isinstance(rows, pd.DataFrame) and (unknown := dict(unknown_cells(rows, self.schema))):
            of_rows = zip(*unknown.values(), strict=True)
            named = [", ".join(name for name, text in zip(unknown, texts, strict=True) if text) for texts in of_rows]
            predictions[UNKNOWN] = named
        if self.devices.keys() >= {*owners} or not names_devices(self.schema):
            return predictions
        known_as = dict(zip(self.devices, self.devices, strict=True)) | dict.fromkeys(
            self.scaled_alone(owners), OWN_SCALE
        )
        return predictions.assign(**{PREDICTED_AS: [known_as.get(owner, NEW_DEVICE) for owner in owners]})

    def scaled_alone(self, owners: Iterable[str]) -> list[str]:
        """Return the names among those of rows whose device did not train, and has enough rows for its own scale."""
        counts = Counter(of for of in owners if of and of not in self.devices and self.schema.own_scale)
        return [name for name, count in counts.items() if count >= LEAST_OWN]

    def _frame(self, answers: Tensor, index: Any, every_class: bool) -> pd.DataFrame:
        if self.task.standardised:
            return pd.DataFrame({LABEL: answers[:, 0].numpy()}, index=index)
        if not self.task.has_classes:
            probability, label = self.task.probabilities(answers), (answers > 0).long()
            if self.task == SEQUENCES:
                label = self._decide(answers)
                probability = probability.gather(-1, label[..., None])[..., 0]
            labels = np.array(self.schema.classes, dtype=object)[label] if self.task == SEQUENCES else label.numpy()
            columns = {LABEL: labels, PROBABILITY: probability.numpy()}
            parts = [
                pd.DataFrame(values, index, several_columns(what, self.schema)) for what, values in columns.items()
            ]
            return pd.concat(parts, axis=1)
        label = self._decide(answers)
        classes, chosen = np.array(self.schema.classes, dtype=object), answers.gather(1, label[:, None])[:, 0].exp()
        predictions = pd.DataFrame({LABEL: classes[label.numpy()], PROBABILITY: chosen.numpy()}, index=index)
        if every_class:
            predictions[self.class_columns] = answers.exp().numpy()
        value = None if self.threshold is None else chosen.new_tensor(self.threshold.value).numpy()[()]
        return predictions if value is None else predictions.assign(**{THRESHOLD: value})  # digits of a probability

    def labels_of(self, inputs: Tensor, device: str) -> Tensor:
        """Return the class, or the number, that a device predicts for each example, (N,).

        Of several labels it is 0 or 1 for each, (N, K), of labels for each step its class, (N, T). inputs: as they are
        loaded, (N, *shape).
        """
        answers = self.answers(self.devices[device], fill_and_scale(inputs, self.schema.devices[device]).float())
        if self.task == MULTILABEL:
            return (answers > 0).float()
        return self._decide(answers) if self.task.predicts_classes else answers[:, 0]

    @property
    def task(self) -> LabelKind:
        """What labels are."""
        return LABEL_KINDS[self.schema.task]

    @property
    def output_columns(self) -> list[str]:
        """The columns of a prediction with every class; UNKNOWN and PREDICTED_AS may follow."""
        if self.task.standardised:
            return [LABEL]
        if not self.task.has_classes:
            return [*self.label_columns, *several_columns(PROBABILITY, self.schema)]
        return [LABEL, PROBABILITY, *self.class_columns, *([THRESHOLD] if self.threshold else [])]

    @property
    def class_columns(self) -> list[str]:
        """The columns with the probability of each class, or of each of several labels."""
        return [f"{PROBABILITY}_{name}" for name in self.schema.classes]

    @property
    def label_columns(self) -> list[str]:
        """The columns that say what is predicted: one, or one for each of several labels, or for each step."""
        return several_columns(LABEL, self.schema) or [LABEL]

    def devices_of(self, rows: pd.DataFrame | NDArray[Any]) -> NDArray[np.str_] | None:
        """Return the name of each row's device, "" where the cell is missing; None if the rows have no such column."""
        column = self.device_column(rows)
        if column is not None and [*rows].count(column) > 1:
            raise InputError(f"column {column!r} is there twice; it names each row's device")
        return None if column is None else column_texts(rows, column, self.schema.spelling)  # type: ignore[arg-type]

    def device_column(self, rows: Any) -> str | None:
        """Return the column that says each row's device: the training data's, or `device`, if it is nothing else."""
        if not isinstance(rows, pd.DataFrame):
            return None
        columns = {*(column.name for column in self.schema.columns), *self.schema.left_out, self.schema.label}
        return next((of for of in (self.schema.device, *({DEVICE} - columns)) if of is not None and of in rows), None)

    def require(self, device: str) -> None:
        """Refuse a device that the models do not know, as a command names it."""
        if device not in self.devices:
            raise InputError(f"--device = {device!r}: no such device; the model knows: {', '.join(self.devices)}")

    def _decide(self, log_probabilities: Tensor) -> Tensor:
        """Return the predicted class of each row, (N,), or of each of its steps."""
        if self.threshold is None:
            return predicted_classes(log_probabilities, self.costs)
        positive = self.schema.classes.index(self.threshold.label)
        return torch.where(log_probabilities[:, positive].exp() >= self.threshold.value, positive, 1 - positive)

    def answers(self, which: int, x: Tensor) -> Tensor:
        """Return what one of the models says of prepared examples: see `outputs`; numbers are in the label's unit."""
        model, net = self.models[which]
        with one_thread():
            answers = decided_by(model, outputs_of_new(model, net, x.float(), self.task), self.costs)
            return in_unit(answers, self.schema.label_scale)

    def _owners(self, rows: pd.DataFrame | NDArray[Any], device: str | Sequence[str] | None) -> list[str]:
        """Return whose each row is, "" where nothing says it. Unknown devices need a model that all share."""
        devices = ", ".join(self.devices)
        if isinstance(device, str) and device not in self.devices:
            why = f"no such device; the model knows: {devices}"
            raise InputError(f"device = {device!r}: {why}", f"device: {why}")
        named = self.devices_of(rows) if device is None else device
        owners = (
            [named or ""] * len(rows)
            if named is None or isinstance(named, str)
            else ["" if pd.isna(name) else str(name) for name in named]
        )
        if len(owners) != len(rows):
            raise InputError(f"device: {len(owners)} names for {len(rows)} rows; give one for all, or one for each")
        for number, owner in enumerate(owners, 1):
            if owner not in self.devices and len(self.models) > 1:
                where, one = f"row {number}", "promote a method with one model for all (fedcore promote MODEL --list)"
                why = f"each device has a model of its own; {one}, or name one of: {devices}"
                raise InputError(f"{where}: {owner!r}: {why}" if owner else f"device: {why}", f"{where}: {why}")
        return owners


def read_table(file: Path, schema: Schema) -> RawTable:
    """Return the rows of a file as the training data were read: names as texts, markers as missing cells."""
    names = {*schema.names, DEVICE} - {of.name for of in schema.columns if of.kind != "text"}
    raw = read(file, schema.missing_values, schema.label, names, schema.spelling, schema.known, schema.decimal)
    return replace(raw, frame=without_indent(raw.frame, schema))


def without_indent(rows: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """Return rows whose names have no blanks before them, which a CSV file's lack without quotes, unless one is known.

    So a cell is the same name in JSON, in Parquet, and in CSV with quotes or without.
    """
    for name in (of for of in schema.names if [*rows].count(of) == 1):
        texts = {of for of in rows[name] if isinstance(of, str) and of[:1] == " "} - schema.known
        if plain := {of: of.lstrip(" ") for of in texts}:
            cells = [plain.get(of, of) if isinstance(of, str) else of for of in rows[name]]
            rows = rows.assign(**{name: pd.Series(cells, rows.index, object)})
    return rows


def names_devices(schema: Schema) -> bool:
    """Tell whether a prediction says for whom it is: not where all devices prepare the same arrays alike."""
    return bool(schema.columns) or any(fit != schema.shared for fit in schema.devices.values())


def several_columns(what: str, schema: Schema) -> list[str]:
    """Return a column for each of several labels, or for each step with a label; none where an example has one."""
    kind = LABEL_KINDS[schema.task]
    if kind == SEQUENCES:
        return [f"{what}_{step}" for step in range(schema.shape[0])]
    return [f"{what}_{name}" for name in schema.classes] if kind == MULTILABEL else []


def load(folder: Path) -> ServedModels:
    """Return the models in a folder."""
    schema = from_json((folder / SCHEMA).read_bytes(), str(folder / SCHEMA))
    card = json.loads((folder / MODELS).read_bytes())
    files = [load_tensors((folder / tensors_file(i)).read_bytes()) for i in range(len(card["models"]))]
    tensors = {f"{i}{name}": tensor for i, of_model in enumerate(files) for name, tensor in of_model.items()}
    sections = [{**net, "weights": str(folder / net["weights"])} if "weights" in net else net for net in card["nets"]]
    nets = nets_of(schema, sections)
    models = tuple((unpack(entry["model"], tensors), nets[entry["net"]]) for entry in card["models"])
    rest = zip(sections, nets, card.get("rest", ()), strict=False)
    moved = [section["name"] for section, net, known in rest if known is not None and known != digest_of_rest(net)]
    for entry, (model, net) in zip(card["models"], models, strict=True):
        if (known := entry.get("answers")) and not _are_close(known, made_answers(schema, model, net)):
            moved.append(sections[entry["net"]]["name"])
    for name in moved:
        what = "files or variables that its code reads, its modules or frozen tensors are others than they were"
        raise InputError(f"net {name}: {what} in training; put these back, or run again and promote")
    threshold = Threshold(**card["threshold"]) if "threshold" in card else None
    costs = tuple(map(tuple, card["costs"])) if "costs" in card else None
    return ServedModels(schema, models, card["devices"], threshold, costs)


def nets_of(schema: Schema, sections: Iterable[Mapping[str, Any]]) -> list[Net]:
    """Return the nets of sections of settings, for examples and labels as these."""
    shape, classes, steps = tuple(schema.shape), len(schema.classes), LABEL_KINDS[schema.task] == SEQUENCES
    return [build_net(shape=shape, classes=classes, per_step=steps, several=schema.several, **of) for of in sections]


def made_answers(schema: Schema, model: Model, net: Net) -> list[float]:
    """Return some of a model's answers to made rows, by which it is known again; none if its net can take no such row.

    They show what no digest does: what the net's code reads as it is imported and as it predicts.
    """
    module = template(model.net or net)
    for spread in (4.0, 0.0):  # as its trial has them
        with suppress(Exception), one_thread(), keep_generators():
            seed_all(0)
            x = examples(module, tuple(schema.shape), spread)
            found = outputs(model, net, x, LABEL_KINDS[schema.task]).flatten()
            return [float(f"{number:.6g}") for number in found[:: -(-len(found) // MOST_ANSWERS)].tolist()]
    return []


def _are_close(known: Sequence[float], found: Sequence[float]) -> bool:
    """Tell whether answers are equal to 1e-4 of the largest one, as on another machine."""
    if len(known) != len(found):
        return False
    return bool(np.allclose(found, known, rtol=0, atol=1e-4 * max(1.0, *np.abs(known)), equal_nan=True))


def pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return a model as JSON, and add its tensors to `tensors` under names that begin with `name`."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"leaf": name}  # the word of all versions, so that any reads any
    if isinstance(value, Model):
        return {"model": {of.name: pack(getattr(value, of.name), f"{name}/{of.name}", tensors) for of in fields(value)}}
    if isinstance(value, Net):
        return {"net": place_of(value), "arguments": pack(build_arguments(value), name, tensors)}
    if isinstance(value, dict):
        return {"dict": {key: pack(part, f"{name}/{key}", tensors) for key, part in value.items()}}
    if isinstance(value, tuple):
        return {"tuple": [pack(part, f"{name}/{i}", tensors) for i, part in enumerate(value)]}
    if isinstance(value, list):
        return [pack(part, f"{name}/{i}", tensors) for i, part in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a served model cannot hold {type(value).__name__}")


def unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Undo :func:`pack`. A net is built by a function of this package's nets, and by no other."""
    match value:
        case {"leaf": str(name)}:
            return tensors[name]
        case {"model": parts}:
            return Model(**{name: unpack(part, tensors) for name, part in parts.items()})
        case {"net": str(path), "arguments": arguments}:
            return net_at(path, unpack(arguments, tensors))
        case {"dict": parts}:
            return {name: unpack(part, tensors) for name, part in parts.items()}
        case {"tuple": parts}:
            return tuple(unpack(part, tensors) for part in parts)
        case list(parts):
            return [unpack(part, tensors) for part in parts]
        case _:
            return value


def tensors_file(number: int) -> str:
    """Return the name of the file with a model's tensors."""
    return f"model-{number}.safetensors"


class _Pyfunc:
    """What MLflow calls. params: {"device": name}, see `ServedModels.predict`."""

    def __init__(self, served: ServedModels) -> None:
        self.served = served

    def predict(self, rows: Any, params: Mapping[str, Any] | None = None) -> pd.DataFrame:
        if self.served.schema.columns and isinstance(rows, dict | list):  # MLflow leaves columns to the model
            rows = pd.DataFrame(rows)
        rows = without_indent(rows, self.served.schema) if isinstance(rows, pd.DataFrame) else rows
        return self.served.predict(rows, (params or {}).get("device") or None)


def _load_pyfunc(folder: str) -> _Pyfunc:
    served = load(Path(folder))
    server: Any = sys.modules.get("mlflow.pyfunc.scoring_server")
    if server is not None:
        server.invocations = _without_rows(server, server.invocations)
        server._parse_json_data = _with_all_formats(server._parse_json_data)
        server.parse_csv_input = _as_in_training(server.parse_csv_input, served.schema)
    return _Pyfunc(served)


def _with_all_formats(parse: Callable[..., Any]) -> Callable[..., Any]:
    """Return MLflow's reader of JSON, which would ask for `inputs` where a signature is said to be from type hints.

    It would also cut fractions of an array off where whole numbers are needed.
    """

    def parse_one(data: Any, metadata: Any, input_schema: Any) -> Any:
        flavor = getattr(metadata, "flavors", {}).get("python_function", {})
        if flavor.get("loader_module") != __name__:
            return parse(data, metadata, input_schema)
        if metadata._is_signature_from_type_hint():
            return parse(data, None, None)
        read = parse(data, metadata, input_schema)
        if read.data.dtype.kind in "iu" and not np.array_equal(read.data, parse(data, None, None).data):
            raise InputError(f"the request has numbers that are not {read.data.dtype}")
        return read

    return parse_one


def _as_in_training(parse: Callable[..., Any], own: Schema) -> Callable[..., Any]:
    """Return MLflow's reader of CSV, by whose rules 01 would be 1, and each NA missing; not so of a model's own rows.

    parse: reads rows for other models. own: the model's, for rows of a signature with its columns, or of none.
    """
    columns = {column.name for column in own.columns}

    def parse_one(csv_input: Any, schema: Any = None) -> Any:
        if not columns or (schema is not None and not columns.issubset(schema.input_names())):
            return parse(csv_input, schema)
        with TemporaryDirectory() as folder:
            file = Path(folder, "rows.csv")
            is_path = isinstance(csv_input, str)
            file.write_bytes(Path(csv_input).read_bytes() if is_path else csv_input.read().encode())
            return read_table(file, own).frame.reset_index(drop=True)

    return parse_one


def _without_rows(server: Any, answer: Callable[..., Any]) -> Callable[..., Any]:
    """Return MLflow's answer to a request over HTTP, whose errors would quote the rows that it was sent."""

    def answer_one(data: Any, content_type: Any, model: Any, input_schema: Any) -> Any:
        try:
            return answer(data, content_type, model, input_schema)
        except Exception as error:
            if not isinstance(implementation := getattr(model, "_model_impl", None), _Pyfunc):
                raise
            schema = implementation.served.schema
            columns = ", ".join(f"{column.name!r} ({column.kind})" for column in schema.columns)
            array = f"an array (N, {', '.join(map(str, schema.shape))}) {schema.dtype}"
            wanted = f"the request must have {f'columns {columns}' if columns else array}, as JSON"
            why = getattr(error.__context__, "public", "") or wanted
        raise server.MlflowException(why, server.BAD_REQUEST)

    return answer_one
