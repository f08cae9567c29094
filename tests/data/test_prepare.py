"""The numbers that fill and scale a device's rows, on columns small enough to compute them by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler

from fedcore import Data, InputError
from fedcore.data import Dataset, schema_of
from fedcore.data.prepare import (
    fill_and_scale,
    fit_new,
    fit_schema,
    labels_in_unit,
    preparation_bytes,
    prepare,
    standardise_channels,
)
from fedcore.data.schema import Column, Fit, Schema
from fedcore.partition.examples import prepare_as_owners

NAN = math.nan
COLUMNS = (Column("heat", "number"), Column("flow", "number"), Column("model", "text", ("A",)))
HEAT_FLOW_MODEL = torch.tensor([[1, 5, 1], [3, 5, 0], [NAN, 5, 1], [10, NAN, 0]])
TRAINS = {"north": np.array([0, 1, 2]), "south": np.array([3])}
SITES = {"a": np.arange(40), "b": np.arange(40, 47), "c": np.arange(50, 120)}


@pytest.mark.parametrize("mean", [0.0, 10.0, 1004.3, -2e6])
@pytest.mark.parametrize("decimals", [0, 2])
def test_labels_in_their_unit_are_those_that_were_standardised(mean: float, decimals: int):
    """Float32 keeps seven digits of their distance from the mean; all that they have are there again."""
    labels = np.round(mean + 7 * np.random.default_rng(0).normal(size=500), decimals)
    scale = float(labels.mean()), float(labels.std())
    standardised = torch.from_numpy((labels - scale[0]) / scale[1]).float()
    assert labels_in_unit(standardised, scale).tolist() == labels.tolist()
    assert labels_in_unit(torch.zeros(2), scale).tolist() == [scale[0]] * 2


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


def test_rows_of_a_device_that_did_not_train_are_scaled_as_its_own(plant: Dataset):
    """With scale "device", from 20 rows on; fewer, and with any other scale, by the numbers of all devices."""
    rows = HEAT_FLOW_MODEL[torch.arange(20) % 3]
    alone = Dataset(Data(rows, torch.zeros(20, dtype=torch.int64)), None, plant.classes, schema=plant.schema)
    for missing in ("median", "common_median"):
        dataset = replace(plant, schema=replace(plant.schema, missing=missing))
        schema = fit_schema(dataset, TRAINS, "device")
        fills = {"median": (2.0, 5.0, 0.0), "common_median": schema.shared.fill}
        own = fit_schema(alone, {"new": np.arange(20)}, "device").devices["new"]
        filled = rows.where(~rows.isnan(), torch.tensor(fills[missing])).numpy()
        found = fit_new(schema, rows)
        assert found == own or missing == "common_median"
        assert found.fill == fills[missing]
        assert found.mean[:2] == pytest.approx(filled.mean(0)[:2])
        assert found.std[0] == pytest.approx(filled.std(0)[0], rel=1e-6)
        assert fit_new(schema, rows[:19]) == schema.shared != found
        for scale in ("common", "none"):
            assert fit_new(fit_schema(dataset, TRAINS, scale), rows) == fit_schema(dataset, TRAINS, scale).shared


def test_examples_of_several_devices_are_each_prepared_as_on_their_own(plant: Dataset):
    schema = fit_schema(plant, TRAINS, "device")
    owners = ["south", "north", "north", "south"]
    data = Data(HEAT_FLOW_MODEL, torch.arange(4))
    together = prepare_as_owners(data, schema, owners)
    each = [fill_and_scale(row[None], schema.devices[who]) for row, who in zip(HEAT_FLOW_MODEL, owners, strict=True)]
    assert torch.equal(together.x, torch.cat(each))
    assert torch.equal(together.y, data.y)


def test_nothing_is_done_where_nothing_was_fitted():
    data = Data(torch.tensor([[1.0, NAN]]), torch.tensor([0]))
    assert prepare(data, Fit()) is data
    arrays = Dataset(data, None, ("a", "b"))
    assert fit_schema(arrays, {"d": np.array([0])}, "none").devices == {"d": Fit()}


def test_channels_are_standardised_each_by_its_own_numbers():
    x = torch.tensor([1.0, 6.0]).reshape(1, 2, 1, 1).expand(3, 2, 2, 2)
    found = standardise_channels(x, Fit((), (0.5, 2.0), (0.25, 4.0)))
    torch.testing.assert_close(found, torch.tensor([2.0, 1.0]).reshape(1, 2, 1, 1).expand(3, 2, 2, 2))


# a scale that all devices share


def levels(classes: int = 2) -> Dataset:
    """120 rows of six columns: two small, two at 1e4 with a span of 1, one that differs by site, one constant."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 6)) * [1, 0.001, 1, 1, 0, 0] + [0, 0, 1e4, -1e4, 0, 0.1]
    for site, (who, index) in enumerate(SITES.items()):
        x[index, 4] = 0.1 + site
        x[index, :4] += len(who) * site
    return Dataset(Data(torch.from_numpy(x), torch.arange(120) % classes), None, ("a", "b"))


def test_a_common_scale_is_that_of_all_training_rows_together():
    data = levels()
    schema = fit_schema(data, SITES, "common")
    pooled = np.concatenate([*SITES.values()])  # rows 47 to 49 train nobody
    scaler = StandardScaler().fit(data.train.x.double().numpy()[pooled])
    assert set(schema.devices.values()) == {schema.shared}
    np.testing.assert_allclose(schema.shared.mean, scaler.mean_, rtol=1e-9)
    np.testing.assert_allclose(schema.shared.std[:5], scaler.scale_[:5], rtol=1e-9)
    for index in (*SITES.values(), np.arange(47, 50)):
        ours = prepare(Data(data.train.x[index], data.train.y[index]), schema.shared).x
        theirs = scaler.transform(data.train.x.double().numpy()[index])
        np.testing.assert_allclose(ours.numpy()[:, :5], theirs[:, :5], rtol=1e-6, atol=1e-6)


def test_a_column_that_is_the_same_on_all_devices_becomes_zero_in_common():
    data = levels()
    schema = fit_schema(data, SITES, "common")
    assert schema.shared.std[5] == 1.0
    assert not prepare(data.train, schema.shared).x[:, 5].any()
    assert schema.shared.std[4] > 0.1  # the same on each device, though not on all of them


def test_one_device_alone_has_its_own_scale_in_common_to_the_last_bit():
    alone = {"a": np.arange(120)}
    assert fit_schema(levels(), alone, "common").devices == fit_schema(levels(), alone, "device").devices


def test_a_common_scale_does_not_depend_on_the_devices_names_or_order():
    new = {f"new {who}": SITES[who] for who in reversed(SITES)}
    one, other = (fit_schema(levels(), trains, "common") for trains in (SITES, new))
    assert [*other.devices] == [*new]
    np.testing.assert_allclose(other.shared.mean, one.shared.mean, rtol=1e-13)
    np.testing.assert_allclose(other.shared.std, one.shared.std, rtol=1e-13)


def test_a_common_scale_of_pixels_is_per_pixel():
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (120, 1, 2, 3), dtype=np.uint8))
    data = Dataset(Data(pixels, torch.arange(120) % 2), None, ("a", "b"))
    trains = {**SITES, "c": np.arange(47, 120)}
    scaled = prepare(data.train, fit_schema(data, trains, "common").devices["b"]).x
    expected = StandardScaler().fit_transform(pixels.numpy().reshape(120, 6) / 255).reshape(pixels.shape)
    torch.testing.assert_close(scaled.double(), torch.from_numpy(expected), rtol=1e-6, atol=1e-6)


def test_common_medians_fill_every_device_before_a_common_scale(plant: Dataset):
    common = replace(plant, schema=replace(schema_of(plant), missing="common_median"))
    schema = fit_schema(common, TRAINS, "common")
    # heat: (3 * 2 + 10) / 4 = 4 on both devices; scaled as 1, 3, 4, 10. Deviations: 12.25, 2.25, .25, 30.25 over 4.
    assert set(schema.devices.values()) == {schema.shared}
    assert schema.shared.fill == (4.0, 5.0, 0.0)
    assert schema.shared.mean == pytest.approx((4.5, 5.0, 0.0))
    assert schema.shared.std == pytest.approx((math.sqrt(45 / 4), 1.0, 1.0))
    # With medians of its own, north's heat is 1, 3, 2 and south's 10: mean 4, deviations 9, 1, 4, 36.
    schema = fit_schema(plant, TRAINS, "common")
    assert schema.devices["north"].fill == (2.0, 5.0, 0.0)
    assert schema.devices["south"].fill == (10.0, 5.0, 0.0)
    for fit in schema.devices.values():
        assert fit.std == schema.shared.std == pytest.approx((math.sqrt(50 / 4), 1.0, 1.0))


def test_bytes_of_preparation_are_those_of_the_numbers_that_travel(plant: Dataset):
    medians = schema_of(plant)  # two of its three inputs are numbers
    whole = replace(medians, missing="refuse")
    assert preparation_bytes(whole, "none") == preparation_bytes(whole, "device") == {}
    assert preparation_bytes(whole, "common") == {"prepare_up": 8 + 16 * 2, "prepare_down": 16 * 2}
    assert preparation_bytes(medians, "device") == {"prepare_up": 8 + 8 * 2, "prepare_down": 8 * 2}
    assert preparation_bytes(medians, "common") == {"prepare_up": 8 + 24 * 2, "prepare_down": 24 * 2}
    assert preparation_bytes(Schema((1, 4, 4), "uint8", ("a", "b")), "common")["prepare_down"] == 16 * 16


def test_an_unknown_scale_is_refused(plant: Dataset):
    with pytest.raises(InputError, match=r"federation\.scale"):
        fit_schema(plant, TRAINS, "devices")
