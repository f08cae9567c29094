"""What somebody who comes from another library types first is refused in one line that says what to write."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import fedcore as fc
from fedcore.config.methods import PARTS
from fedcore.config.sections import as_arguments
from fedcore.core.losses import find_loss
from fedcore.errors import InputError


class Mine(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int):
        super().__init__()
        self.layer = nn.Linear(shape[0], classes)


def many(*, wide: bool = False, **more: int) -> nn.Module:
    return Mine((3,), more.get("outputs", 2))


def of_logits(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits, y)


X, Y = np.random.default_rng(0).random((40, 3)), np.arange(40) % 2
IMAGES = np.zeros((40, 32, 32, 3), np.uint8)
ADVICE: dict[str, tuple[Callable[[], object], str]] = {
    "an instance": (lambda: fc.net(Mine((3,), 2)), r"give its class: net\(Mine, \.\.\.\)"),
    "a function's ** settings": (lambda: fc.net(many, outputs=2), r"many\.outputs: .*wide\).* def mine\(.*=classes\)"),
    "PyTorch's loss": (lambda: find_loss(nn.CrossEntropyLoss()), "CrossEntropyLoss: must take one argument, a mini"),
    "a loss of two": (lambda: find_loss(of_logits), r"of_logits: .* write: def mine\(batch\)"),
    "channels last": (lambda: fc.federate(fc.from_arrays(IMAGES, Y), net=fc.cnn()), r"give x\.transpose\(0, 3, 1, 2\)"),
    "PyTorch's dataset": (lambda: fc.from_arrays(TensorDataset(torch.rand(4, 3), torch.zeros(4)), None), "torch.stack"),
    "a dataset": (lambda: fc.federate(TensorDataset(torch.rand(4, 3))), r"load\('digits'\), or from_arrays\(x, y\)"),
    "texts": (lambda: fc.from_arrays(["a b", "c"] * 20, Y), "reads a file with columns of texts; vocabulary_of"),
    "clients": (lambda: fc.federate(fc.from_arrays(X, Y), clients=4), "here it is devices"),
    "clients in a round": (lambda: fc.fedavg(clients_per_round=3), "here it is fraction"),
    "a learning rate": (lambda: fc.fedavg(training={"learning_rate": 0.1}), "here it is lr"),
    "two quantities": (lambda: fc.from_arrays(X, X[:, :2]), r"one number can be learnt, not several: give y\[:, 0\]"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "advice"), ADVICE.values(), ids=ADVICE)
def test_what_other_libraries_take_is_refused_with_what_to_write(call: Callable[[], object], advice: str):
    with pytest.raises(InputError, match=advice):
        call()


def test_errors_in_a_script_name_arguments_as_the_script_writes_them(tmp_path: Path):
    rows = pd.DataFrame({"a": [1.0, None, 3.0, 4.0], "b": [1, 2, 3, 4], "y": list("uvuv"), "s": list("pqpq")})
    rows.to_csv(tmp_path / "data.csv", index=False)
    given = {"path": tmp_path / "data.csv", "label": "y", "device": "s"}
    with pytest.raises(InputError, match=r"data\.csv.*\(1 in 1 column\); set missing=common_median, median or drop"):
        fc.load("table", **given)
    with pytest.raises(InputError, match=r"^path = .*data\.csv: no such file"):
        fc.load("table", path=tmp_path / "no" / "data.csv", label="y")
    fed = fc.federate(fc.load("table", **given, ignore=["a"]), fc.by_device(), shared_test=0)
    with pytest.raises(InputError, match=r"^min_size = .*; keep them: min_size=2, or leave them out: drop_small=true$"):
        fed.counts()
    with pytest.raises(InputError, match=r"^min_effect = 2: must be"):
        fc.compare([fc.local_only()], fed, min_effect=2)
    assert as_arguments("run.least_test=0 counts all; run.workers") == "least_test=0 counts all; run.workers"


def of_no_parts() -> nn.Module:
    return nn.Linear(2, 2)


def test_what_makes_the_parts_of_a_loss_takes_the_net():
    with pytest.raises(InputError, match=r"^fedavg\.training\.loss: with_parts\(of_no_parts\): must take one argument"):
        fc.fedavg(training={"loss": fc.with_parts(of_no_parts)(lambda batch: batch.logits.sum())})


@pytest.mark.parametrize("part", PARTS)
def test_functions_of_a_method_that_take_other_arguments_are_refused(part: str):
    def mine(*, nets: Any, training: Any) -> fc.Method:
        built = fc.fedavg(rounds=1).build(nets)
        if part in ("begin", "deploy"):
            return replace(built, **{part: lambda one: one})
        return replace(built, stages=(replace(built.stages[0], **{part: lambda one: one}),))

    fed = fc.federate(fc.from_arrays(X, Y), fc.iid(), devices=2)
    with pytest.raises(InputError, match=rf"^{part} = .*<lambda>: must take \({PARTS[part]}\) \(method mine\)$"):
        fc.run(fc.method(mine), fed)


def test_other_defaults_of_pytorch_are_refused():
    fed = fc.federate(fc.from_arrays(X, Y), fc.iid(), devices=2)
    for call in (lambda: fc.federate(fc.from_arrays(X, Y)), lambda: fc.run(fc.fedavg(rounds=1), fed)):
        torch.set_default_dtype(torch.float64)
        try:
            with pytest.raises(InputError, match=r"defaults are torch\.float64 on cpu; fedcore needs"):
                call()
        finally:
            torch.set_default_dtype(torch.float32)
        with torch.device("meta"), pytest.raises(InputError, match=r"defaults are torch\.float32 on meta; fedcore"):
            call()


@pytest.mark.parametrize("y", [Y * 3, Y - 1, Y * 0.5, Y > 0, Y[:, None], np.stack([Y, 1 - Y], 1) * 0.5, Y[:9]])
def test_labels_that_no_net_can_learn_are_refused(y: np.ndarray):
    whole = fc.federate(fc.from_arrays(X, Y), fc.iid(), devices=2).federation(0)
    with pytest.raises(InputError, match=r"^Federation: y \[.* of test: must be"):
        fc.run(fc.fedavg(rounds=1), replace(whole, test=fc.Data(torch.from_numpy(X), torch.from_numpy(y))))


def test_complex_inputs_of_a_federation_of_ones_own_are_refused():
    whole = fc.federate(fc.from_arrays(X, Y), fc.iid(), devices=2).federation(0)
    wrong = replace(whole, test=fc.Data(torch.from_numpy(X) + 0j, torch.from_numpy(Y)))
    with pytest.raises(InputError, match=r"^Federation: x of test: is torch\.complex128; give torch\.view_as_real"):
        fc.run(fc.fedavg(rounds=1), wrong)


def test_a_federation_whose_parts_are_others_is_refused():
    whole = fc.federate(fc.from_arrays(X, Y), fc.iid(), devices=2).federation(0)
    one = whole.devices["device-00"]
    wrong = {"devices[1]": {1: one}, "devices": [one], "devices['a']": {"a": one.data}, "test": None, "classes": "2"}
    for key, value in wrong.items():
        for call in (partial(fc.run, fc.fedavg()), partial(fc.tune, fc.fedavg(), lr=[0.1])):
            with pytest.raises(InputError, match=rf"^Federation\.{re.escape(key)}: must be as in Federation\("):
                call(replace(whole, **{key.partition("[")[0]: value}))


def test_a_device_whose_name_is_not_its_key_is_refused():
    """Masks of secure aggregation go by name, partners by key: they would not cancel."""
    whole = fc.federate(fc.from_arrays(X, Y), fc.iid(), devices=2).federation(0)
    wrong = replace(whole, devices={"z": whole.devices["device-00"], "device-01": whole.devices["device-01"]})
    with pytest.raises(InputError, match=r"^Federation.devices\['z'\]: its device is called 'device-00'; give both"):
        fc.run(fc.fedavg(rounds=1, secure_aggregation=True), wrong)


@pytest.mark.parametrize("x", [(X * 9).astype(np.float32), (X * 9).astype(np.int64), (X * 9).astype(np.uint8)[:, :1]])
def test_parts_with_other_inputs_are_refused(x: np.ndarray):
    """Bytes are divided by 255, and the same numbers of another type are not."""
    whole = fc.federate(fc.from_arrays((X * 9).astype(np.uint8), Y), fc.iid(), devices=2).federation(0)
    with pytest.raises(InputError, match=r"^Federation: x of test: is .*, elsewhere \[.*\] uint8; give all alike$"):
        fc.run(fc.fedavg(rounds=1), replace(whole, test=fc.Data(torch.from_numpy(x), torch.from_numpy(Y))))


def test_numbers_in_an_array_of_objects_are_numbers():
    assert fc.from_arrays(X.astype(object), Y).train.x.dtype == torch.float64


class Words(nn.Module):
    def __init__(self, classes: int):
        super().__init__()
        self.words = nn.Embedding(9, 4)
        self.out = nn.Linear(4, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.words(x).mean(1))


@pytest.mark.slow
def test_bytes_of_own_devices_are_looked_up_as_numbers():
    drawn = fc.federate(fc.from_arrays((X * 9).astype(np.uint8), Y), fc.iid(), devices=2, net=fc.net(Words))

    def own(kind: torch.dtype, more: float = 0.0) -> fc.Federation:
        whole = drawn.federation(0)
        devices = {
            name: replace(of, data=fc.Splits(*(fc.Data((part.x + more).to(kind), part.y)
                                               for part in vars(of.data).values())))
            for name, of in whole.devices.items()
        }  # fmt: skip
        return fc.Federation(devices, fc.Data((whole.test.x + more).to(kind), whole.test.y), 2)

    feds = drawn, own(torch.uint8), own(torch.int64)
    models = [fc.run(fc.fedavg(rounds=1), fed, progress=False).models["device-00"].model.params[0] for fed in feds]
    for model in models[1:]:
        assert all(torch.equal(tensor, model[name]) for name, tensor in models[0].items())
    with pytest.raises(InputError, match="its embedding looks up whole numbers from 0"):
        fc.run(fc.fedavg(rounds=1), own(torch.float32, 0.5))


def test_a_model_of_arrays_predicts_arrays_of_any_memory_alone():
    fed = fc.federate(fc.from_arrays(X.astype(">f4"), Y), fc.iid(), devices=2)
    model = fc.run(fc.fedavg(rounds=1), fed, progress=False).models["device-00"]
    assert (model.probabilities(X.astype(">f4")) == model.probabilities(X.astype("<f4"))).all()
    assert (model.predict(X[::-1]) == model.predict(X)[::-1]).all()  # a view from the end
    rows = torch.tensor(X, requires_grad=True)
    for same in (rows, rows.to_sparse(), X.astype(np.longdouble)):
        assert (model.probabilities(same) == model.probabilities(X)).all()
    for no_array in (rows.bfloat16(), rows.to("meta"), [[1.0], [1.0, 2.0]]):
        with pytest.raises(InputError, match=r"^predict: x must be an array of numbers, got a (Tensor|list): "):
            model.predict(no_array)
    with pytest.raises(InputError, match="predict: it learnt from an array; give one"):
        model.predict(pd.DataFrame(X)[[*range(X.shape[1])][::-1]])
    for masked in (np.ma.masked_less(X, X.mean()), [*np.ma.masked_less(X, X.mean())]):
        with pytest.raises(InputError, match="predict: x has masked values; fill them"):
            model.predict(masked)
