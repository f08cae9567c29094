"""The numbers that fill and scale a device's rows, on columns small enough to compute them by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedcore.data import Dataset
from fedcore.data.prepare import fill_and_scale, fit_schema, fits_by_example, prepare, standardise_channels
from fedcore.data.schema import Column, Fit, Schema
from fedcore.types import Data, InputError

NAN = math.nan
COLUMNS = (Column("heat", "number"), Column("flow", "number"), Column("model", "text", ("A",)))
HEAT_FLOW_MODEL = torch.tensor([[1, 5, 1], [3, 5, 0], [NAN, 5, 1], [10, NAN, 0]])
TRAINS = {"north": np.array([0, 1, 2]), "south": np.array([3])}


@pytest.fixture
def plant() -> Dataset:
    """Three rows of north and one of south, which has no value of flow."""
    labels = torch.tensor([0, 1, 0, 1])
    schema = Schema((3,), "float32", ("ok", "broken"), COLUMNS, missing="median")
    return Dataset(Data(HEAT_FLOW_MODEL, labels), None, ("ok", "broken"), schema=schema)


def test_medians_fill_and_their_weighted_mean_where_a_device_has_none(plant: Dataset):
    schema = fit_schema(plant, TRAINS, "none")
    # heat: medians 2 of three rows and 10 of one: (3 * 2 + 10) / 4 = 4. flow: south has none. model: never filled.
    assert schema.devices == {"north": Fit((2.0, 5.0, 0.0)), "south": Fit((10.0, 5.0, 0.0))}
    assert schema.shared == Fit((4.0, 5.0, 0.0))


def test_inputs_are_scaled_after_they_are_filled(plant: Dataset):
    schema = fit_schema(plant, TRAINS, "device")
    # north's heat is 1, 3 and the median 2: mean 2, variance 2 / 3. Its flow is constant, and model is a text.
    assert schema.devices["north"].mean == (2.0, 5.0, 0.0)
    assert schema.devices["north"].std == pytest.approx((math.sqrt(2 / 3), 1.0, 1.0))
    north = prepare(Data(HEAT_FLOW_MODEL[:3], plant.train.y[:3]), schema.devices["north"])
    torch.testing.assert_close(north.x, torch.tensor([[-math.sqrt(1.5), 0, 1], [math.sqrt(1.5), 0, 0], [0, 0, 1]]))
    # All rows as their devices fill them, 1, 3, 2 and 10: mean 4.
    assert schema.shared.mean == (4.0, 5.0, 0.0)


def test_examples_of_several_devices_are_each_prepared_as_on_their_own(plant: Dataset):
    schema = fit_schema(plant, TRAINS, "device")
    owners = ["south", "north", "north", "south"]
    together = fill_and_scale(HEAT_FLOW_MODEL, fits_by_example(schema, owners))
    each = [fill_and_scale(row[None], schema.devices[who]) for row, who in zip(HEAT_FLOW_MODEL, owners, strict=True)]
    assert torch.equal(together, torch.cat(each))


def test_nothing_is_done_where_nothing_was_fitted():
    data = Data(torch.tensor([[1.0, NAN]]), torch.tensor([0]))
    assert prepare(data, Fit()) is data
    arrays = Dataset(data, None, ("a", "b"))
    assert fit_schema(arrays, {"d": np.array([0])}, "none").devices == {"d": Fit()}


def test_channels_are_standardised_each_by_its_own_numbers():
    x = torch.tensor([1.0, 6.0]).reshape(1, 2, 1, 1).expand(3, 2, 2, 2)
    found = standardise_channels(x, Fit((), (0.5, 2.0), (0.25, 4.0)))
    torch.testing.assert_close(found, torch.tensor([2.0, 1.0]).reshape(1, 2, 1, 1).expand(3, 2, 2, 2))


def test_an_unknown_scale_is_refused(plant: Dataset):
    with pytest.raises(InputError, match=r"federation\.scale"):
        fit_schema(plant, TRAINS, "devices")
