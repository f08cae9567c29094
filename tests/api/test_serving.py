"""A served model says of arrays what the model of its run does, and refuses what that refuses."""

from functools import partial

import numpy as np
import pytest

import fedcore as fc
from fedcore import InputError
from fedcore.api.federation import Architecture
from fedcore.api.results import Result
from fedcore.api.serving import ServedModels
from fedcore.data.encoding import encode

X, Y = np.random.default_rng(0).integers(0, 9, (40, 3)), np.tile([0, 1], 20)


def served(x: np.ndarray, net: Architecture | None = None) -> tuple[Result, ServedModels]:
    data = fc.from_arrays(x, Y, device=["a", "b"] * 20)
    fed = fc.federate(data, fc.by_device(), net=net or fc.mlp(2), min_size=2, shared_test=0.1)
    run = fc.run(fc.local_only(), fed, seed=0)
    schema, models = fed.schema(0), tuple((of.model, of.net) for of in run.models.values())
    return run, ServedModels(schema, models, {name: i for i, name in enumerate(run.models)})


@pytest.mark.parametrize("net", [fc.mlp(2), fc.lstm(vocabulary=9, hidden=2)], ids=["mlp", "lstm"])
def test_whole_numbers_are_served_as_they_were_learnt(net):
    run, models = served(X, net)
    probability = models.predict(X, "a", every_class=True)[models.class_columns].to_numpy()
    np.testing.assert_array_equal(probability, run.models["a"].probabilities(X))


@pytest.mark.parametrize("kind", [lambda of: of, list], ids=["array", "list"])
def test_a_served_model_refuses_masked_values(kind):
    _, models = served(X.astype(float))
    masked = np.ma.masked_equal(X.astype(float), X[3, 1])
    for predict in (models.predict, partial(encode, schema=models.schema)):
        with pytest.raises(InputError, match="array has masked values; fill them"):
            predict(kind(masked), device="a")
