"""Several inputs of an example, against a net that is given them side by side and takes them apart itself."""

import re
from collections import namedtuple
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import fedcore as fc
from fedcore.api import export
from fedcore.api.serving import load
from fedcore.data.dataset import schema_of
from fedcore.data.inputs import Input, describe, side_by_side
from fedcore.errors import InputError
from fedcore.pipeline.cache.store import Store
from fedcore.pipeline.record.models import write
from fedcore.pipeline.run.step_functions import describe as card_of

WORDS = 7


class Reader(nn.Module):
    """A text, a picture and an age."""

    def __init__(self, shape: dict[str, tuple[int, ...]], classes: int) -> None:
        super().__init__()
        assert shape == {"words": (4,), "picture": (1, 2, 2), "age": ()}
        self.table, self.conv, self.out = nn.Embedding(WORDS, 3), nn.Conv2d(1, 2, 2), nn.Linear(6, classes)

    def forward(self, words: Tensor, picture: Tensor, age: Tensor) -> Tensor:
        assert words.dtype == torch.int64
        return self.out(torch.cat([self.table(words).mean(1), self.conv(picture).flatten(1), age[:, None]], 1))


class Packed(Reader):
    """The same of one row of numbers."""

    takes_integers = False

    def __init__(self, classes: int) -> None:
        super().__init__({"words": (4,), "picture": (1, 2, 2), "age": ()}, classes)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[:, :4].long(), x[:, 4:8].view(-1, 1, 2, 2), x[:, 8])


class Sum(nn.Module):
    """Two numbers."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.out = nn.Linear(2, classes)

    def forward(self, at: Tensor, load: Tensor) -> Tensor:
        return self.out(torch.stack([at, load], 1))


def inputs(count: int = 60) -> dict[str, Any]:
    draws = np.random.default_rng(0)
    return {
        "words": draws.integers(WORDS, size=(count, 4)),
        "picture": draws.integers(256, size=(count, 1, 2, 2), dtype=np.uint8),
        "age": draws.normal(size=count),
    }


def data(x: Any = None) -> fc.Dataset:
    return fc.from_arrays(inputs() if x is None else x, np.arange(60) % 3, device=[f"d{i % 2}" for i in range(60)])


def federated(dataset: fc.Dataset, net: Any, **settings: Any) -> Any:
    return fc.federate(dataset, fc.by_device(), net=fc.net(net), **settings)


@pytest.mark.parametrize("method", [fc.fedavg(rounds=2), fc.ditto(rounds=2), fc.local_only()])
@pytest.mark.slow
def test_a_net_is_given_its_inputs_by_name(method):
    """With the bits of a net that takes them apart itself."""
    found = fc.run(method, federated(data(), Reader), progress=False)
    packed = fc.run(method, federated(data(side_by_side(inputs())), Packed), progress=False)
    assert found.table["value"].equals(packed.table["value"])
    x = inputs()
    expected = packed.models["d1"].probabilities(side_by_side(x))
    np.testing.assert_array_equal(found.models["d1"].probabilities(x), expected)
    np.testing.assert_array_equal(found.models["d1"].probabilities(side_by_side(x)), expected)


@pytest.mark.slow
def test_devices_together_take_them_apart_too():
    fed, method = federated(data(), Reader), fc.fedavg(rounds=1, training={"epochs": 1})
    one, both = (fc.run(method, fed, together=count, progress=False).table for count in (1, 2))
    np.testing.assert_allclose(one["value"], both["value"], rtol=1e-4)


def test_they_stand_side_by_side():
    x = inputs(3)
    row = side_by_side(namedtuple("Example", x)(**x))
    assert row.dtype == np.float64
    np.testing.assert_array_equal(row[:, :4], x["words"])
    np.testing.assert_allclose(row[:, 4:8], x["picture"].reshape(3, 4) / 255)
    assert describe(x) == (
        Input("words", (4,), True, False), Input("picture", (1, 2, 2), False, True), Input("age", (), False, False)
    )  # fmt: skip
    assert repr(data()).startswith("Dataset: 60 examples of words (4,), picture (1, 2, 2), age (); 3 classes")


@pytest.mark.slow
def test_wide_numbers_keep_their_digits_until_they_are_scaled(tmp_path):
    """Of epoch seconds float32 would leave one number in 128."""
    x = {"at": 1.7e9 + np.arange(60.0), "load": inputs()["age"]}
    fed = federated(data(x), Sum, scale="common")
    kept = torch.cat([device.data.train.x for device in fed.federation(0).devices.values()])[:, 0]
    assert len(kept.unique()) == len(kept)
    model = fc.run(fc.local_only(training={"epochs": 1}), fed, progress=False).models["d0"]
    near, late = (model.probabilities({"at": x["at"][i : i + 1], "load": x["load"][:1]}) for i in (0, 1))
    assert (near != late).any()


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.int64, np.uint64])
def test_numbers_mean_the_same_in_any_type_of_integers(kind):
    x = inputs() | {"age": np.arange(60.0)}
    given = {name: of.astype(kind) for name, of in x.items()}
    np.testing.assert_array_equal(side_by_side(given, describe(x)), side_by_side(x))
    earlier = tuple(Input(of.name, of.shape, of.whole) for of in describe(x))
    np.testing.assert_array_equal(side_by_side(x, earlier), side_by_side(x), "a model of before asks the array")


@pytest.mark.slow
def test_a_served_model_takes_them_side_by_side(tmp_path):
    result = fc.run(fc.fedavg(rounds=1, training={"epochs": 1}), federated(data(), Reader), progress=False)
    model, x = result.models["d0"], inputs()
    net = {"name": f"{__name__}:Reader"}
    write(tmp_path / "models", result.fed.schema(), [net], [(model.model, 0)], {"d0": 0, "d1": 0})
    served, row = load(tmp_path / "models"), side_by_side(x)
    for given in (row, x, {name: x[name] for name in ("age", "picture", "words")}):
        np.testing.assert_array_equal(served.predict(given, "d0")["label"].astype(int), model.predict(x))
    export.export(served, "d0", tmp_path / "model.onnx")
    halves, raw = side_by_side(x | {"words": x["words"] + 0.5}), side_by_side(x | {"picture": x["picture"].astype(int)})
    for rows, says in (
        (halves, r"x\['words'\]: must be whole numbers"), (raw, r"x\['picture'\]: must be bytes as v / 255"),
        (pd.DataFrame(row), "(rows: the model|predict: it) learnt from an array; give "),
        (x | {"words": pd.DataFrame(x["words"])}, r"x\['words'\]: is a data frame; give its \.to_numpy\(\), with "),
        ([x["age"], x["words"], x["picture"]], "side_by_side: list holds no inputs by name"),
        ((x["age"], x["words"], x["picture"]), r"side_by_side: tuple .*: words \(4\), picture \(4\), age \(1\), in th"),
    ):  # fmt: skip
        for predict in (model.predict, lambda of: served.predict(of, "d0")):
            with pytest.raises(InputError, match=f"^{says}"):
                predict(rows)


def test_a_pipeline_keeps_what_they_are(tmp_path):
    store, dataset = Store(tmp_path), data()
    assert store.get(store.put(dataset)).schema == dataset.schema
    card = store.get(store.put(card_of(dataset)))
    assert tuple(Input(name, tuple(shape), *kind) for name, shape, *kind in card["several"]) == describe(inputs())


MASKED = np.ma.masked_equal([[1.0], [2.0], [3.0]], 2)
FRAME = pd.DataFrame({"u": [1.0, 2.0, 3.0], "v": 0.0})
REFUSED = {
    "a net with one input": (lambda: fc.federate(data(), net=fc.mlp(4)), "net.name: mlp takes one input, and these"),
    "scales of words": (
        lambda: federated(data(), Reader, scale="common").federation(),
        "scale = 'common': input 'words' has whole numbers",
    ),
    "quantities of words": (lambda: fc.run(fc.analytic(), federated(data(), Reader)), "analytic: takes inputs as quan"),
    "lengths": (lambda: data({**inputs(), "age": np.zeros(59)}), "x: inputs have different numbers of examples: words"),
    "not finite": (lambda: data({"a": np.full((60, 2), np.nan)}), "x['a']: has values that are not finite numbers"),
    "texts": (lambda: data({"a": np.full((60, 2), "a")}), "x['a']: is <U1 (60, 2), must be numbers of shape (N, 2)"),
    "large": (lambda: data({"a": np.full((60, 2), 2**25)}), "x['a']: must be whole numbers up to 16,777,216"),
    "bytes": (
        lambda: side_by_side({"a": np.ones((1, 2))}, describe({"a": np.ones((1, 2), np.uint8)})),
        "x['a']: is float64, but the model learnt bytes, 0 to 255; give uint8",
    ),
    "no byte": (
        lambda: side_by_side({"a": np.full((1, 2), 256)}, describe({"a": np.ones((1, 2), np.uint8)})),
        "x['a']: is int64, but the model learnt bytes, 0 to 255; give uint8",
    ),
    "fractions": (
        lambda: side_by_side({"a": [[1.5]]}, describe({"a": [[1]]})),
        "x['a']: must be whole numbers up to 16",
    ),
    "no rows": (
        lambda: side_by_side({"a": [[1, 2], [3]]}),
        "x['a']: [1] has length 1, but [0] has 2; give rows of one length",
    ),
    "masked": (lambda: side_by_side({"a": MASKED}), "x['a'] has masked values; fill them"),
    "a frame": (lambda: side_by_side({"a": FRAME}), "x['a']: is a data frame; give its .to_numpy(), with the columns"),
    "a frame in another order": (
        lambda: fc.from_arrays({"a": FRAME}, [0, 1, 0], test=({"a": FRAME[["v", "u"]]}, [0])),
        "from_arrays.test: its inputs must be those of x, in names, shapes and types",
    ),
    "rows of arrays": (
        lambda: fc.from_arrays([np.ones(2), np.ones(2), np.ones(3)], [0, 1, 0]),
        "from_arrays: x: [2] has length 3, but [0] has 2; give rows of one length",
    ),
    "one name twice": (lambda: side_by_side({1: [1], "1": [2]}), "x: 1 and '1' would be one input; give them other n"),
    "nothing": (lambda: data({}), "side_by_side: dict holds no inputs by name"),
    "other names": (lambda: side_by_side({"b": [1]}, describe({"a": [1]})), "x: has the inputs b, must have a"),
    "steps": (
        lambda: fc.from_arrays(inputs(), np.zeros((60, 4)), task="sequence_labelling"),
        "from_arrays.task = 'sequence_labelling': each step's label needs one input",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_inputs_are_refused(case):
    call, says = REFUSED[case]
    with pytest.raises(InputError) as refused:
        call()
    assert str(refused.value).startswith(says)
    assert schema_of(data()).several


@pytest.mark.parametrize("rows", [lambda of: of, list, tuple], ids=["array", "list", "tuple"])
@pytest.mark.parametrize("where", ["x", "y", "x['a']"])
def test_masked_values_are_refused(where: str, rows: Any):
    kind = (lambda of: {"a": of}) if "a" in where else (lambda of: of)
    x, y = kind(MASKED.data), np.array([0, 1, 0])
    masked = (x, rows(np.ma.masked_equal(y, 1))) if where == "y" else (kind(rows(MASKED)), y)
    for key, given in (("", {"x": masked[0], "y": masked[1]}), (".test", {"x": x, "y": y, "test": masked})):
        with pytest.raises(InputError, match=f"^{re.escape(f'from_arrays{key}: {where}')} has masked values; "):
            fc.from_arrays(**given)
    assert len(fc.from_arrays(np.ma.masked_equal(MASKED.data, 9), y).train) == 3
