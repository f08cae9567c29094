"""A device's model as one ONNX file, with its fills, scales and threshold; a JSON file beside it names the inputs.

A row of a table is one number for each column, float64: a number as it is, nan where it is missing; of a text the
position of its category, and -1 for any other text. An array is what the model was trained on, before it is scaled.
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

from fedcore.api.serving import LABEL, ServedModels
from fedcore.data.prepare import fill_and_scale, in_unit, standardise_channels
from fedcore.data.schema import Fit
from fedcore.errors import InputError
from fedcore.nets.trees import TREES
from fedcore.types.method import Model

CHECKED = 1000
"""The rows on which an exported model is compared with the served one."""
INPUT, PROBABILITIES = "rows", "probabilities"
"""The names of the graph's input and, beside LABEL, of its output: a class's position or a number, and (N, K)."""


class Graph(torch.nn.Module):
    """From rows to labels and probabilities, of one device. Raises InputError for a model that is no single net."""

    def __init__(self, served: ServedModels, device: str) -> None:
        super().__init__()
        if device not in served.devices:
            raise InputError(f"--device = {device!r}: no such device; the model knows: {', '.join(served.devices)}")
        model, net = served.models[served.devices[device]]
        (first, *others) = model.members
        if others or isinstance(first, Model) or model.head is not None or model.power != 1.0:
            raise InputError(f"{device}: its model joins several nets, as stack and ensemble do; export one of one net")
        if TREES in first:
            raise InputError(f"{device}: its model is boosted trees, which are no ONNX net; export one of a net")
        if not (served.task.has_classes or served.task.standardised):
            raise InputError(f"its labels are {served.task.words}: a class or a number can be exported")
        self.served, self.fit = served, served.schema.devices[device]
        self.net = (model.net or net).build()
        self.net.load_state_dict({name: tensor.clone() for name, tensor in first.items()})
        self.eval()

    def forward(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return labels (N,), and of classes their probabilities (N, K)."""
        served, schema = self.served, self.served.schema
        answers = self.net(fill_and_scale(self._inputs(rows), self.fit).float())
        if served.task.standardised:
            return (in_unit(answers, schema.label_scale)[:, 0],)
        log_probabilities = answers.log_softmax(1)
        return served._decide(log_probabilities), log_probabilities.exp()

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
            parts.append((cells == codes).double() if column.kind == "text" else cells)
        return torch.cat(parts, 1).to(getattr(torch, schema.dtype))


def export(served: ServedModels, device: str, path: Path) -> None:
    """Write a device's model to `path` and its schema beside it, once labels are equal on made rows.

    Raises InputError for a model that cannot be exported.
    """
    graph, rows = Graph(served, device), made_rows(served, device)
    content = to_onnx(graph, encode_rows(served, rows)[:2])
    check(served, device, content, rows)
    path.write_bytes(content)
    path.with_suffix(".json").write_text(json.dumps(describe(served, device), indent=1) + "\n")


def to_onnx(graph: Graph, example: NDArray[Any]) -> bytes:
    """Return a graph as ONNX, for any number of rows."""
    outputs = [LABEL, PROBABILITIES][: 1 if graph.served.task.standardised else 2]
    file = io.BytesIO()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter's age, and shapes that it traces
            torch.onnx.export(
                graph, (torch.from_numpy(example),), file, dynamo=False, input_names=[INPUT], output_names=outputs,
                dynamic_axes={name: {0: "N"} for name in (INPUT, *outputs)},
            )  # fmt: skip
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        raise InputError(f"PyTorch cannot write this net as ONNX: {reason}") from None
    return file.getvalue()


def check(served: ServedModels, device: str, content: bytes, rows: pd.DataFrame | NDArray[Any]) -> None:
    """Raise InputError unless an exported model predicts what the served one does."""
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    labels = session.run([LABEL], {INPUT: encode_rows(served, rows)})[0]
    expected = served.predict(rows, device)[LABEL].to_numpy()
    if served.task.standardised:
        equal = np.isclose(labels, expected.astype(np.float64), rtol=1e-5, atol=1e-5 * served.schema.label_scale[1])
    else:
        equal = np.array(served.schema.classes, dtype=object)[labels] == expected
    if not equal.all():
        raise InputError(f"{device}: {int((~equal).sum())} of {len(equal)} labels of the exported model are others")


def made_rows(served: ServedModels, device: str) -> pd.DataFrame | NDArray[Any]:
    """Return rows as a user has them, drawn by what the device scales by; every tenth number is missing if filled."""
    schema, rng = served.schema, np.random.default_rng(0)
    fit = schema.devices[device]
    if not schema.columns:
        drawn = rng.normal(0, 1, (CHECKED, *schema.shape))
        if schema.dtype == "uint8":
            return rng.integers(0, 256, drawn.shape, dtype=np.uint8)
        scale = [np.reshape(part, schema.shape) if part else empty for part, empty in ((fit.std, 1.0), (fit.mean, 0.0))]
        return (drawn * scale[0] + scale[1]).astype(schema.dtype)
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
    return np.stack(
        [
            pd.Index(column.categories).get_indexer(pd.Index(rows[column.name])).astype(np.float64)
            if column.kind == "text"
            else rows[column.name].to_numpy(np.float64)
            for column in served.schema.columns
        ],
        axis=1,
    )


def describe(served: ServedModels, device: str) -> Mapping[str, Any]:
    """Return what a program must know to make the graph's input and to read its output."""
    schema = served.schema
    columns = [
        {"name": column.name, "kind": column.kind}
        | ({"categories": [*column.categories]} if column.kind == "text" else {})
        for column in schema.columns
    ]
    threshold = served.threshold and {"label": served.threshold.label, "value": served.threshold.value}
    table = {"columns": columns, "missing": "nan" if schema.devices[device].fill else "not allowed"}
    array = {"shape": [*schema.shape], "dtype": schema.dtype}
    classes = {} if served.task.standardised else {"classes": [*schema.classes], "threshold": threshold}
    return {"device": device, **(table if columns else array), **classes}
