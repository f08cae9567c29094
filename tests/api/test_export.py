"""An exported model says what the served one does, in a process that cannot import PyTorch."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedcore import InputError, nets
from fedcore.api import export
from fedcore.api.serving import LABEL, ServedModels
from fedcore.data.schema import Column, Fit, Schema
from fedcore.methods.one_shot.analytic import features_net
from fedcore.types.method import Model, Threshold

COLUMNS = Column("time", "number"), Column("on", "boolean"), Column("make", "text", ("x", "y", "z"))
FIT = Fit((1.7e9, 0.0, 0.0, 0.0, 0.0), (1.7e9, 0.0, 0.0, 0.0, 0.0), (300.0, 1.0, 1.0, 1.0, 1.0))
TABLE = Schema((5,), "float64", ("down", "up"), COLUMNS, "state", "site", devices={"a": FIT}, shared=FIT)
PICTURES = Schema((1, 8, 8), "uint8", tuple("abc"), devices={"a": Fit((), (0.5,) * 64, (0.01,) * 64)})
ALONE = """
import json, sys
sys.modules["torch"] = None
import numpy as np, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1])
np.save(sys.argv[3], session.run(["label"], {"rows": np.load(sys.argv[2])})[0])
"""


def served(schema: Schema, net: Any, threshold: Threshold | None = None) -> ServedModels:
    draws = torch.Generator().manual_seed(0)
    start = nets.init(net, draws)
    params = {name: x + 0.3 * torch.randn(x.shape, generator=draws) for name, x in start.items()}
    return ServedModels(schema, ((Model((params,)), net),), {"a": 0}, threshold)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "cnn", "analytic"])
def test_onnxruntime_alone_gives_the_labels(name: str, tmp_path: Path):
    """Times in seconds since 1970, gaps, texts and a threshold; pictures."""
    net = {
        "mlp": lambda: nets.net("mlp", shape=(5,), classes=2, widths=[8]),
        "cnn": lambda: nets.net("cnn", shape=(1, 8, 8), classes=3),
        "analytic": lambda: features_net(5, 16, 2),
    }[name]()
    model = served(PICTURES if name == "cnn" else TABLE, net, None if name == "cnn" else Threshold("up", 0.5))
    export.export(model, "a", tmp_path / "m.onnx")
    rows = export.made_rows(model, "a")
    np.save(tmp_path / "rows.npy", export.encode_rows(model, rows))
    call = [sys.executable, "-c", ALONE, *(str(tmp_path / file) for file in ("m.onnx", "rows.npy", "labels.npy"))]
    subprocess.run(call, check=True)
    names = np.array(json.loads((tmp_path / "m.json").read_text())["classes"])
    labels = names[np.load(tmp_path / "labels.npy")]
    assert labels.tolist() == model.predict(rows, "a")[LABEL].tolist()
    assert len({*labels}) > 1


def test_a_model_of_several_nets_and_one_of_trees_are_refused():
    net = nets.net("mlp", shape=(5,), classes=2, widths=[8])
    params = nets.init(net, torch.Generator().manual_seed(0))
    joined = ServedModels(TABLE, ((Model((params, params), (0.5, 0.5)), net),), {"a": 0})
    with pytest.raises(InputError, match=r"^a: its model joins several nets, as stack and ensemble do"):
        export.Graph(joined, "a")
    trees = ServedModels(TABLE, ((Model(({"trees": torch.zeros(4, dtype=torch.uint8)},)), net),), {"a": 0})
    with pytest.raises(
        InputError, match=r"^a: its model is boosted trees, which are no ONNX net; export one of a net$"
    ):
        export.Graph(trees, "a")
    with pytest.raises(InputError, match=r"^--device = 'b': no such device; the model knows: a$"):
        export.Graph(joined, "b")
