"""A device's model as one ONNX file, with its fills, scales and threshold; a JSON file beside it names the inputs.

A row of a table is one number for each column, float64: a number as it is, nan where it is missing; of a text the
position of its category, and -1 for any other text. An array is what the model was trained on, before it is scaled.

Boosted trees become xgboost's own file (ubj), which takes a table's inputs as the JSON file prepares them.
"""

import io
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcore.api.serving import LABEL, PROBABILITY, ServedModels
from fedcore.core.evaluation import decided_by, predicted_classes
from fedcore.data.prepare import fill_and_scale, in_unit, standardise_channels
from fedcore.data.schema import Fit, Schema
from fedcore.errors import InputError, is_installed
from fedcore.nets.copies import load, template
from fedcore.nets.inputs import are_integers, embedding_sizes
from fedcore.nets.trees import TREES, xgboost
from fedcore.types.federation import Net, Params
from fedcore.types.method import Model

CHECKED, CLOSE = 1000, 1e-4
"""The rows on which an exported model is compared with the served one."""
INPUT, PROBABILITIES = "rows", "probabilities"
"""The names of the graph's input and, beside LABEL, of its output: a class's position or a number, and (N, K)."""
REFUSED = (
    "a number is missing and nothing fills it, is infinite or beyond float32, also once scaled and in the net; or a "
    "boolean is neither 0 nor 1"
)
"""Which rows `fedcore predict` refuses, and a graph gives the label K, which no class has, or nan for a number."""


class Graph(torch.nn.Module):
    """From rows to labels and probabilities, of one device. Raises InputError for a model that is no single net."""

    def __init__(self, served: ServedModels, device: str) -> None:
        super().__init__()
        first, net = only_member(served, device)
        if TREES in first:
            raise InputError(f"{device}: its model is boosted trees, which are no ONNX net: --to NAME.ubj")
        self.served, self.fit = served, served.schema.devices[device]
        self.model = served.models[served.devices[device]][0]
        self.net = load(net, {name: tensor.clone() for name, tensor in first.items()})
        self.eval()

    def forward(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return labels (N,), and of classes their probabilities (N, K), see REFUSED."""
        served, schema, inputs = self.served, self.served.schema, self._inputs(rows)
        prepared = fill_and_scale(inputs, self.fit).float()
        refused = ((inputs.abs() > torch.finfo(torch.float32).max) | prepared.isnan()).flatten(1).any(1)
        answers = self.net(prepared)
        refused = refused | answers.isnan().any(1)
        if served.task.standardised:
            return (in_unit(answers, schema.label_scale)[:, 0].masked_fill(refused, torch.nan),)
        log_probabilities = decided_by(self.model, answers.log_softmax(1), served.costs)
        refused = refused | log_probabilities.isnan().any(1)  # infinite answers
        labels = served._decide(log_probabilities).masked_fill(refused, len(schema.classes))
        return labels, log_probabilities.exp().masked_fill(refused[:, None], torch.nan)

    def _inputs(self, rows: Tensor) -> Tensor:
        """Return the inputs of rows as they are loaded."""
        schema = self.served.schema
        if not schema.columns:
            x = rows.float() / 255 if schema.dtype == "uint8" else rows
            return x if schema.channels == Fit() else standardise_channels(x, schema.channels)
        parts = []
        for i, column in enumerate(schema.columns):
            cells = rows[:, i : i + 1]
            codes = torch.arange(len(column.categories), dtype=torch.float64)
            if column.kind == "boolean":
                cells = torch.where((cells == 0) | (cells == 1) | cells.isnan(), cells, torch.inf)
            parts.append((cells == codes).double() if column.kind == "text" else cells)
        return torch.cat(parts, 1).to(getattr(torch, schema.dtype))


def only_member(served: ServedModels, device: str) -> tuple[Params, Net]:
    """Return the parameters of a device's model and its net; raises InputError for a model that is no single net."""
    served.require(device)
    model, net = served.models[served.devices[device]]
    (first, *others) = model.members
    if others or isinstance(first, Model) or model.head is not None or model.power != 1.0:
        raise InputError(f"{device}: its model joins several nets, as stack and ensemble do; export one of one net")
    if not (served.task.has_classes or served.task.standardised):
        raise InputError(f"its labels are {served.task.words}: a class or a number can be exported")
    return first, model.net or net


def export(served: ServedModels, device: str, path: Path) -> None:
    """Write a device's model to `path` and its schema beside it, once labels and probabilities are equal on made rows.

    path: of an ONNX file, or of trees .ubj. Raises InputError for a model that cannot be exported.
    """
    served.require(device)
    described, rows = dict(describe(served, device)), made_rows(served, device)
    if path.suffix == ".ubj":
        content, trees = to_ubj(served, device)
        described |= {**trees, "refused": {"rows": f"{REFUSED}: leave them out, since xgboost gives them a label"}}
        labels, probabilities = run_ubj(content, described, rows), None
    else:
        content = to_onnx(Graph(served, device), encode_rows(served, rows)[:2])
        labels, *others = run_onnx(content, encode_rows(served, rows))
        probabilities = others[0] if others else None
        label = "nan" if served.task.standardised else len(served.schema.classes)
        described["refused"] = {"rows": REFUSED, "label": label, "probabilities": "nan"}
    check(served, device, labels, rows, probabilities)
    path.write_bytes(content)
    path.with_suffix(".json").write_text(json.dumps(described, indent=1) + "\n")


def to_ubj(served: ServedModels, device: str) -> tuple[bytes, dict[str, Any]]:
    """Return the bytes of a device's trees, and how a table's columns become their inputs and their sums a label."""
    params, _ = only_member(served, device)
    schema, fit = served.schema, served.schema.devices[device]
    if not len(params.get(TREES, ())) or not schema.columns:
        raise InputError(f"{device}: --to NAME.ubj is for boosted trees of a table's columns; take NAME.onnx")
    scaling = [(name, values) for name, values in (("fill", fit.fill), ("mean", fit.mean), ("std", fit.std)) if values]
    inputs: list[dict[str, Any]] = []
    for column in schema.columns:
        for category in column.categories if column.kind == "text" else (None,):
            at = {name: values[len(inputs)] for name, values in scaling}
            inputs.append({"column": column.name, **({} if category is None else {"category": category}), **at})
    label = {"label_scale": [*schema.label_scale]} if served.task.standardised else {}
    two = {"margin": least_margin(served)} if len(schema.classes) == 2 and served.task.has_classes else {}
    return params[TREES].numpy().tobytes(), {"inputs": inputs, **_cells(schema), **label, **two}


def least_margin(served: ServedModels) -> float:
    """Return the least sum of trees, float32, with which the second of two classes is predicted."""
    low, high = np.float32(-200), np.float32(200)
    while low < (middle := (low + high) / np.float32(2)) < high:
        second = served._decide(torch.tensor([[0.0, float(middle)]]).log_softmax(1)).item()
        low, high = (low, middle) if second else (middle, high)
    return float(high)


def run_ubj(content: bytes, described: Mapping[str, Any], rows: Any) -> NDArray[Any]:
    """Return the position of each row's class, or its number, by xgboost and what is described alone."""
    columns = []
    for entry in described["inputs"]:
        cells = rows[entry["column"]]
        values = (cells == entry["category"] if "category" in entry else cells).to_numpy(np.float64)
        values = np.where(np.isnan(values), entry.get("fill", np.nan), values)
        columns.append((values - entry["mean"]) / entry["std"] if "mean" in entry else values)
    booster = xgboost().Booster()
    booster.load_model(bytearray(content))
    sums = booster.predict(xgboost().DMatrix(np.stack(columns, 1).astype(np.float32)), output_margin=True)
    if "label_scale" in described:
        mean, std = described["label_scale"]
        return np.asarray(sums.astype(np.float64) * std + mean)
    if "margin" in described:
        return np.asarray(sums >= described["margin"]).astype(np.int64)
    return predicted_classes(torch.from_numpy(sums).log_softmax(1), described["costs"]).numpy()


def run_onnx(content: bytes, rows: NDArray[Any]) -> list[NDArray[Any]]:
    """Return the position of each row's class, and the classes' probabilities, or its number alone, by ONNX Runtime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return [np.asarray(values) for values in session.run(None, {INPUT: rows})]


def to_onnx(graph: Graph, example: NDArray[Any]) -> bytes:
    """Return a graph as ONNX, for any number of rows."""
    outputs = [LABEL, PROBABILITIES][: 1 if graph.served.task.standardised else 2]
    file = io.BytesIO()
    try:
        with torch.no_grad(), warnings.catch_warnings(record=True) as said:  # else of the exporter's age
            warnings.simplefilter("always")
            torch.onnx.export(
                graph, (torch.from_numpy(example),), file, dynamo=False, input_names=[INPUT], output_names=outputs,
                dynamic_axes={name: {0: "N"} for name in (INPUT, *outputs)},
            )  # fmt: skip
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        raise InputError(f"PyTorch cannot write this net as ONNX: {reason}") from None
    home = Path(__file__).parents[1]
    for one in said:
        place = Path(one.filename)
        fixed = issubclass(one.category, torch.jit.TracerWarning) and "might cause the trace" in str(one.message)
        if fixed and not (is_installed(place) or place.is_relative_to(home)):
            why = "the file would hold what two rows gave there; write it with tensors, such as torch.where"
            raise InputError(f"the net's forward asks for a value in {place.name}, line {one.lineno}: {why}")
    return file.getvalue()


def check(
    served: ServedModels, device: str, labels: NDArray[Any], rows: pd.DataFrame | NDArray[Any],
    probabilities: NDArray[Any] | None = None,
) -> None:  # fmt: skip
    """Raise InputError unless an exported model's labels, and their probabilities, are those of the served one."""
    answers = served.predict(rows, device)
    expected = answers[LABEL].to_numpy()
    if served.task.standardised:
        equal = np.isclose(labels, expected.astype(np.float64), rtol=1e-5, atol=1e-5 * served.schema.label_scale[1])
    else:
        equal = np.array(served.schema.classes, dtype=object)[labels] == expected
    if not equal.all():
        raise InputError(f"{device}: {int((~equal).sum())} of {len(equal)} labels of the exported model are others")
    if probabilities is not None:
        far = np.abs(np.take_along_axis(probabilities, labels[:, None], 1)[:, 0] - answers[PROBABILITY]).max()
        if not far <= CLOSE:
            raise InputError(f"{device}: a probability of the exported model is {far:.2g} off")


def made_rows(served: ServedModels, device: str) -> pd.DataFrame | NDArray[Any]:
    """Return rows as a user has them, drawn by what the device scales by; every tenth number is missing if filled."""
    schema, rng = served.schema, np.random.default_rng(0)
    fit = schema.devices[device]
    if not schema.columns:
        drawn = rng.normal(0, 1, (CHECKED, *schema.shape))
        if schema.dtype == "uint8":
            return rng.integers(0, 256, drawn.shape, dtype=np.uint8)
        scale = [np.reshape(part, schema.shape) if part else empty for part, empty in ((fit.std, 1.0), (fit.mean, 0.0))]
        module = template(only_member(served, device)[1])
        whole = rng.integers(0, min(embedding_sizes(module), default=1), drawn.shape)
        rows = np.where(are_integers(module, schema.shape), whole, drawn * scale[0] + scale[1]).astype(schema.dtype)
        of_bytes = [np.full(of.size, bool(of.pixels)) for of in schema.several]
        return np.where(np.concatenate(of_bytes), rows.clip(0, 1), rows) if of_bytes else rows
    columns: dict[str, Any] = {}
    for column in schema.columns:
        at = schema.inputs.index(column.inputs[0]) if column.inputs else 0
        if column.kind == "text":
            columns[column.name] = rng.choice([*column.categories], CHECKED)
        elif column.kind == "boolean":
            columns[column.name] = rng.random(CHECKED) < 0.5
        else:
            mean, std = (part[at] if part else empty for part, empty in ((fit.mean, 0.0), (fit.std, 1.0)))
            columns[column.name] = rng.normal(mean, std, CHECKED)
            if fit.fill:
                columns[column.name][rng.random(CHECKED) < 0.1] = np.nan
    return pd.DataFrame(columns)


def encode_rows(served: ServedModels, rows: pd.DataFrame | NDArray[Any]) -> NDArray[Any]:
    """Return rows as the graph reads them."""
    if not isinstance(rows, pd.DataFrame):
        return rows
    texts = {of.name: pd.Index(of.categories) for of in served.schema.columns if of.kind == "text"}
    columns = [rows[of.name] for of in served.schema.columns]
    codes = (texts[of.name].get_indexer(pd.Index(of)) if of.name in texts else of.to_numpy() for of in columns)
    return np.stack([part.astype(np.float64) for part in codes], axis=1)


def _cells(schema: Schema) -> Mapping[str, Any]:
    """Return what a program must know to read a table's cells as training has."""
    mark = {} if schema.decimal == "auto" else {"decimal": schema.decimal}
    return {"missing_values": [*schema.missing_values], "names": SPELLINGS[schema.spelling], **mark}


SPELLINGS = {
    "written": "as the cells are written, 3 for 3.0, True for true",
    "inferred": "as pandas reads them",
    "joined": "in small letters, without blanks at the ends, in Unicode's form NFC, numbers in their shortest form",
}
"""Of a schema's `spelling`: how a program must write the names of categories."""


def describe(served: ServedModels, device: str) -> Mapping[str, Any]:
    """Return what a program must know to make the graph's input and to read its output."""
    schema = served.schema
    texts = {of.name: {"categories": [*of.categories]} for of in schema.columns if of.kind == "text"}
    columns = [{"name": of.name, "kind": of.kind} | texts.get(of.name, {}) for of in schema.columns]
    threshold = served.threshold and {"label": served.threshold.label, "value": served.threshold.value}
    table = {"columns": columns, "missing": "nan" if schema.devices[device].fill else "not allowed", **_cells(schema)}
    array = {"shape": [*schema.shape], "dtype": schema.dtype}
    classes = {"classes": [*schema.classes], "threshold": threshold, "costs": served.costs}
    return {"device": device, **(table if columns else array), **({} if served.task.standardised else classes)}
