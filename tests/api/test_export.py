"""An exported model says what the served one does, in a process that cannot import PyTorch."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedcore import InputError, nets
from fedcore.api import export
from fedcore.api.serving import LABEL, ServedModels
from fedcore.data.inputs import Input
from fedcore.data.schema import Column, Fit, Schema
from fedcore.methods.one_shot.analytic import features_net
from fedcore.nets.trees import net as trees_net
from fedcore.nets.trees import save_trees
from fedcore.types.federation import Costs
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


def served(schema: Schema, net: Any, threshold: Threshold | None = None, costs: Costs | None = None) -> ServedModels:
    draws = torch.Generator().manual_seed(0)
    start = nets.init(net, draws)
    params = {name: x + 0.3 * torch.randn(x.shape, generator=draws) for name, x in start.items()}
    return ServedModels(schema, ((Model((params,)), net),), {"a": 0}, threshold, costs)


COSTS = ((0.0, 1.0, 2.0), (1.5, 0.0, 1.0), (3.0, 1.0, 0.0))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "cnn", "analytic"])
def test_onnxruntime_alone_gives_the_labels(name: str, tmp_path: Path):
    """Times in seconds since 1970, gaps, texts and a threshold; pictures whose mistakes have costs."""
    settings = {"mlp": {"shape": (5,), "classes": 2, "widths": [8]}, "cnn": {"shape": (1, 8, 8), "classes": 3}}
    net = features_net(5, 16, 2) if name == "analytic" else nets.net(name, **settings[name])
    decided = {"mlp": (Threshold("up", 0.5),), "cnn": (None, COSTS), "analytic": (None, ((0.0, 1.0), (5.0, 0.0)))}
    model = served(PICTURES if name == "cnn" else TABLE, net, *decided[name])
    if name == "analytic":  # its outputs sum to 1, as those of least squares
        model = replace(model, models=((replace(model.models[0][0], net=net), net),))
        (params,) = model.models[0][0].params
        params["output.weight"] -= params["output.weight"].mean(0)
        params["output.bias"][:] = torch.tensor([0.84, 0.16])
    export.export(model, "a", tmp_path / "m.onnx")
    rows = export.made_rows(model, "a")
    np.save(tmp_path / "rows.npy", export.encode_rows(model, rows))
    call = [sys.executable, "-c", ALONE, *(str(tmp_path / file) for file in ("m.onnx", "rows.npy", "labels.npy"))]
    subprocess.run(call, check=True)
    names = np.array(json.loads((tmp_path / "m.json").read_text())["classes"])
    labels = names[np.load(tmp_path / "labels.npy")]
    assert labels.tolist() == model.predict(rows, "a")[LABEL].tolist()
    assert len({*labels}) > 1


class Asking(torch.nn.Sequential):
    """Asks for a value in forward, which a traced file holds as it was for the two rows that it was made from."""

    def __init__(self, wide: bool, classes: int):
        super().__init__(torch.nn.Linear(5, classes))
        self.wide = wide

    def forward(self, x):
        far = x.abs() > 2
        if not self.wide:
            return super().forward(torch.where(far, x / 10, x))
        return super().forward(x.clamp(-6, 6) if x.abs().max() > 6 else x)


class Frozen(torch.nn.Sequential):
    """Its first layer is neither trained nor sent: a model has the others' tensors alone."""

    def __init__(self, classes: int):
        super().__init__(torch.nn.Linear(5, 4).requires_grad_(False), torch.nn.ReLU(), torch.nn.Linear(4, classes))


class Apart(torch.nn.Module):
    """Takes a number and a picture, which stand side by side in a row."""

    def __init__(self, classes: int):
        super().__init__()
        self.out = torch.nn.Linear(5, classes)

    def forward(self, age, picture):
        return self.out(torch.cat([age[:, None], picture.mean(1)], 1))


@pytest.mark.parametrize("name", ["Frozen", "Apart"])
def test_frozen_layers_and_several_inputs_are_exported(name: str, tmp_path: Path):
    parts = (Input("age", ()), Input("picture", (3, 4)))
    schema = TABLE if name == "Frozen" else Schema((13,), "float64", ("x", "y"), devices={"a": Fit()}, several=parts)
    net = nets.net(f"{__name__}:{name}", shape=schema.shape, classes=2, several=schema.several)
    export.export(model := served(schema, net), "a", tmp_path / "m.onnx")
    rows = export.made_rows(model, "a")
    labels = model.predict(rows, "a")[LABEL].tolist()
    for count in (1, len(labels)):
        found, _ = export.run_onnx((tmp_path / "m.onnx").read_bytes(), export.encode_rows(model, rows[:count]))
        assert np.array(schema.classes)[found].tolist() == labels[:count]


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("filled", [True, False])
def test_a_row_that_predict_refuses_gets_no_label_from_onnx(filled: bool, task: Any, tmp_path: Path):
    fit = replace(FIT, fill=FIT.fill if filled else (), std=(1e-3, *FIT.std[1:]))
    names = ("down", "up") if task == "classification" else ("wear",)
    schema = replace(TABLE, devices={"a": fit}, shared=fit, task=task, classes=names)
    model = served(schema, nets.net("mlp", shape=(5,), classes=len(names), widths=[4]))
    export.export(model, "a", tmp_path / "m.onnx")
    label = json.loads((tmp_path / "m.json").read_text())["refused"]["label"]
    rows = export.made_rows(model, "a").iloc[:8].assign(make="x", on=[0.0, 2.0, 0.5, np.nan, 1.0, 1.0, 0.0, 0.0])
    rows["time"] = [1.7e9, 1.7e9, 1.7e9, 1.7e9, np.nan, np.inf, -1e39, 3e38]  # the last is beyond float32 once scaled
    found = export.run_onnx((tmp_path / "m.onnx").read_bytes(), export.encode_rows(model, rows))
    for row, *answers in zip(range(8), *found, strict=True):
        try:
            expected = model.predict(rows.iloc[[row]], "a")[LABEL].item()
        except InputError:
            assert row in ((1, 2, 5, 6, 7) if filled else (1, 2, 3, 4, 5, 6, 7))
            assert all(np.isnan(part).all() for part in answers[1:])
            assert np.array_equal(answers[0], float(label), equal_nan=True)
        else:
            position = answers[0]
            assert np.isclose(position, expected) if task == "regression" else names[position] == expected
    assert label == ("nan" if task == "regression" else 2)


@pytest.mark.slow
def test_a_program_is_told_how_cells_were_read():
    schema = replace(TABLE, missing_values=("-999", ""), spelling="joined")
    said = export.describe(served(schema, nets.net("mlp", shape=(5,), classes=2, widths=[4])), "a")
    assert said["missing_values"] == ["-999", ""]
    assert said["names"].startswith("in small letters, without blanks at the ends")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_a_net_of_words_gets_numbers_that_it_can_look_up(name: str, tmp_path: Path):
    words = Schema((6,), "int64", tuple("abc"), devices={"a": Fit()})
    model = served(words, nets.net(name, shape=(6,), classes=3, vocabulary=9))
    export.export(model, "a", tmp_path / "m.onnx")
    rows = export.made_rows(model, "a")
    assert {*rows.ravel().tolist()} == {*range(9)}
    labels, _ = export.run_onnx((tmp_path / "m.onnx").read_bytes(), rows)
    assert np.array(words.classes)[labels].tolist() == model.predict(rows, "a")[LABEL].tolist()


def test_a_forward_that_asks_for_values_is_refused(tmp_path: Path):
    model = served(TABLE, nets.net(f"{__name__}:Asking", shape=(5,), classes=2, wide=False))
    export.export(model, "a", tmp_path / "m.onnx")
    rows = export.made_rows(model, "a")
    expected = model.predict(rows, "a")
    labels, probabilities = export.run_onnx((tmp_path / "m.onnx").read_bytes(), export.encode_rows(model, rows))
    with pytest.raises(InputError, match=r"a: a probability of the exported model is 0\.\d+ off"):
        export.check(model, "a", labels, rows, probabilities / 2)
    assert np.isclose(probabilities.max(1), expected["probability"], atol=1e-5).all()
    model = served(TABLE, nets.net(f"{__name__}:Asking", shape=(5,), classes=2, wide=True))
    with pytest.raises(InputError, match=r"forward asks for a value in test_export.py, line \d+: the file would hold"):
        export.export(model, "a", tmp_path / "n.onnx")


@pytest.mark.parametrize(("classes", "least"), [(("down", "up"), 0.5), (("down", "up"), 0.83), (tuple("abc"), None)])
@pytest.mark.slow
def test_xgboost_alone_gives_the_labels_of_trees(classes: tuple[str, ...], least: float | None, tmp_path: Path):
    """With a threshold that is the probability of a row, or costs."""
    xgboost = pytest.importorskip("xgboost", reason="xgboost is not installed: make test installs it")
    schema = replace(TABLE, classes=classes, devices={"a": replace(FIT, fill=FIT.mean)})
    drawn = np.random.default_rng(0).normal(size=(200, 5)).astype(np.float32)
    y = (drawn[:, 0] > 0) * (drawn[:, 1] > 0.5) if least else np.digitize(drawn[:, 0] + drawn[:, 2], [-0.5, 0.5])
    kind = {"objective": "binary:logistic"} if least else {"objective": "multi:softprob", "num_class": 3}
    trees = save_trees(xgboost.train({**kind, "nthread": 1}, xgboost.DMatrix(drawn, y), 5))
    model = ServedModels(schema, ((Model(({"trees": trees},)), trees_net(len(trees), len(classes))),), {"a": 0})
    rows = export.made_rows(model, "a")
    if least:
        chances = model.predict(rows, "a", every_class=True)["probability_up"]
        model = replace(model, threshold=Threshold("up", float(chances.quantile(least, interpolation="lower"))))
    else:
        model = replace(model, costs=COSTS)
    export.export(model, "a", tmp_path / "m.ubj")
    described = json.loads((tmp_path / "m.json").read_text())
    found = export.run_ubj((tmp_path / "m.ubj").read_bytes(), described, rows)
    assert np.array(classes)[found].tolist() == model.predict(rows, "a")[LABEL].tolist()
    assert len({*found}) == len(classes)
    assert [entry.get("category") for entry in described["inputs"]] == [None, None, "x", "y", "z"]
    with pytest.raises(InputError, match=r"^a: --to NAME.ubj is for boosted trees of a table's .*; take NAME.onnx$"):
        export.export(served(TABLE, nets.net("mlp", shape=(5,), classes=2, widths=[8])), "a", tmp_path / "n.ubj")


def test_numbers_of_exported_trees_are_in_the_unit_of_the_label(tmp_path: Path):
    xgboost = pytest.importorskip("xgboost", reason="xgboost is not installed: make test installs it")
    drawn = np.random.default_rng(0).normal(size=(100, 5)).astype(np.float32)
    trees = save_trees(xgboost.train({"nthread": 1}, xgboost.DMatrix(drawn, drawn[:, 0]), 3))
    schema = replace(TABLE, classes=("wear",), task="regression", label_scale=(70.0, 9.0))
    model = ServedModels(schema, ((Model(({"trees": trees},)), trees_net(len(trees), 1)),), {"a": 0})
    export.export(model, "a", tmp_path / "m.ubj")
    rows = export.made_rows(model, "a")
    found = export.run_ubj((tmp_path / "m.ubj").read_bytes(), json.loads((tmp_path / "m.json").read_text()), rows)
    np.testing.assert_allclose(found, model.predict(rows, "a")[LABEL], rtol=1e-6)
    assert 60 < found.mean() < 80


def test_a_model_of_several_nets_and_one_of_trees_are_refused():
    net = nets.net("mlp", shape=(5,), classes=2, widths=[8])
    params = nets.init(net, torch.Generator().manual_seed(0))
    joined = ServedModels(TABLE, ((Model((params, params), (0.5, 0.5)), net),), {"a": 0})
    with pytest.raises(InputError, match=r"^a: its model joins several nets, as stack and ensemble do"):
        export.Graph(joined, "a")
    trees = ServedModels(TABLE, ((Model(({"trees": torch.zeros(4, dtype=torch.uint8)},)), net),), {"a": 0})
    with pytest.raises(InputError, match=r"^a: its model is boosted trees, which are no ONNX net: --to NAME.ubj$"):
        export.Graph(trees, "a")
    with pytest.raises(InputError, match=r"^--device = 'b': no such device; the model knows: a$"):
        export.export(joined, "b", Path("m.onnx"))
    with pytest.raises(InputError, match=r"^--device = 'b': no such device; the model knows: a$"):
        export.Graph(joined, "b")
