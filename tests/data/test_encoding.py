"""A schema reproduces the inputs of training, exactly, from a frame alone."""

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from fedcore import Data, InputError
from fedcore.config.files import parse_value
from fedcore.data import Dataset, load, schema_of
from fedcore.data.encoding import encode, from_json, to_json, unknown_cells, unknown_texts
from fedcore.data.names import typed
from fedcore.data.pixels import scale
from fedcore.data.prepare import fit_schema
from fedcore.data.schema import Column, Fit, Schema
from fedcore.partition import Partition, partition, splits, training

SITES = ("north", "south", "west")


def plant(rows: int = 180) -> pd.DataFrame:
    """Rows of three sites; the west never measured the flow."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "heat": rng.normal(300, 20, rows), "flow": rng.lognormal(0, 2, rows), "speed": rng.integers(0, 5, rows),
            "open": rng.random(rows) < 0.3, "model": rng.choice(["A1", "B2", "C3"], rows), "site": np.arange(rows) % 3,
            "fault": rng.choice(["none", "leak"], rows),
        }
    )  # fmt: skip
    frame["site"] = frame["site"].map(dict(enumerate(SITES)))
    frame.loc[rng.random(rows) < 0.1, "heat"] = np.nan
    frame.loc[rng.random(rows) < 0.1, "model"] = None
    frame.loc[frame["site"] == "west", "flow"] = np.nan
    return frame


Made = tuple[pd.DataFrame, Dataset, Partition]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    path = tmp_path_factory.mktemp("plant") / "t.csv"
    plant().to_csv(path, index=False)
    data = load("table", path=path, label="fault", device="site", missing="median")
    return pd.read_csv(path), data, partition(data, name="by_device", seed=3)


def known(made: Made, scale: str) -> Schema:
    _, data, parts = made
    return from_json(to_json(fit_schema(data, training(parts), scale)))


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["none", "device", "common"])
def test_inputs_from_a_frame_are_those_of_training_bit_for_bit(made: Made, scale: str):
    frame, data, parts = made
    schema = known(made, scale)
    held, shared = splits(data, parts, scale)
    for who, own in held.items():
        for part in ("train", "val", "test"):
            rows = frame.iloc[parts.devices[who][part]]
            assert torch.equal(encode(rows, schema, who), getattr(own, part).x)
    assert data.device is not None
    alone = [encode(frame.iloc[[i]], schema, data.device[i]) for i in parts.shared]
    assert torch.equal(torch.cat(alone), shared.x)


@pytest.mark.slow
def test_scikit_learn_fills_scales_and_encodes_a_device_the_same(made: Made):
    """Median, then standardisation by the device's training rows; categories stay 0 and 1."""
    frame, _, parts = made
    schema = known(made, "device")
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    words = OneHotEncoder(categories=[["A1", "B2", "C3"]], handle_unknown="ignore", sparse_output=False)
    whole = make_column_transformer((numbers, ["heat", "flow", "speed", "open"]), (words, ["model"]))
    mine = frame.astype({"open": float})
    for who in ("north", "south"):
        own = parts.devices[who]
        whole.fit(mine.iloc[own["train"]])
        expected = whole.transform(mine.iloc[own["test"]])
        found = encode(frame.iloc[own["test"]], schema, who)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_device_fits_on_its_own_training_rows_alone(made: Made):
    """Its test rows, and all rows of the others, may change as they like."""
    _, data, parts = made
    x = data.train.x.clone()
    elsewhere = torch.ones(len(x), dtype=torch.bool)
    elsewhere[torch.from_numpy(parts.devices["north"]["train"])] = False
    x[elsewhere] *= 7
    other = Dataset(Data(x, data.train.y), None, data.classes, data.device, schema=data.schema)
    assert fit_schema(other, training(parts), "device").devices["north"] == known(made, "device").devices["north"]


def test_a_column_that_a_device_lacks_is_filled_with_the_mean_median(made: Made):
    frame, _, parts = made
    medians, sizes = [], []
    for who in ("north", "south"):
        rows = frame.iloc[parts.devices[who]["train"]]
        medians.append(float(rows["flow"].median()))
        sizes.append(len(rows))
    schema = known(made, "none")
    expected = float(np.average(medians, weights=sizes))
    assert schema.shared.fill[1] == pytest.approx(expected, rel=1e-6)
    assert schema.devices["west"].fill[1] == schema.shared.fill[1]
    assert encode(frame[frame["site"] == "west"], schema, "west")[:, 1].unique().tolist() == pytest.approx([expected])


def test_a_row_of_no_device_is_scaled_by_all_training_rows(made: Made):
    _, data, parts = made
    schema = known(made, "device")
    plain = known(made, "none")
    rows = {who: data.train.x[own] for who, own in training(parts).items()}
    whole = torch.cat(
        [torch.where(x.isnan(), torch.tensor(plain.devices[who].fill), x) for who, x in rows.items()]
    ).double()
    assert schema.shared.mean[:4] == pytest.approx(whole.mean(0)[:4].tolist())
    assert schema.shared.std[:4] == pytest.approx(whole.std(0, correction=0)[:4].tolist())
    assert schema.shared.mean[4:] == (0, 0, 0)
    assert schema.shared.std[4:] == (1, 1, 1)


WRONG: dict[str, tuple[Callable[[pd.DataFrame], object], str | None, str]] = {
    "a column is there twice": (lambda f: pd.concat([f, f[["heat"]]], axis=1), "north", "column 'heat' is there twice"),
    "a column is not there": (lambda f: f.rename(columns={"heat": "heat_C"}), "north", "column 'heat' is not there"),
    "a word in a column of numbers": (lambda f: f.assign(heat="hot"), "north", "column 'heat', row 1: 'hot'"),
    "an infinite number": (lambda f: f.assign(flow=np.inf), None, "column 'flow', row 1: 'inf'"),
    "numbers for texts": (lambda f: f.assign(model=3.0), None, "column 'model' has numbers"),
    "two for a boolean": (lambda f: f.assign(open=2), None, "column 'open', row 1: '2' is not True or False"),
    "a word for a boolean": (lambda f: f.assign(open="maybe"), None, "column 'open', row 1: 'maybe'"),
    "an unknown device": (lambda f: f, "east", "device = 'east': no such device; the model knows: north, south, west"),
    "an imaginary part": (lambda f: f.assign(flow=2j), None, "column 'flow', row 1: '2j' is not a finite number"),
    "an index of texts": (lambda f: f.assign(flow="a").rename(str).rename_axis("row"), None, "'flow', row 1: 'a'"),
    "an array": (lambda f: f[["heat"]].to_numpy(), None, "ndarray has no column names"),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.slow
def test_a_wrong_frame_is_refused_by_column(made: Made, case: str):
    spoil, device, said = WRONG[case]
    with pytest.raises(InputError) as caught:
        encode(spoil(made[0]), known(made, "device"), device)  # type: ignore[arg-type]
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_gap_is_refused_where_training_had_none(made: Made):
    frame, _, _ = made
    whole = frame.dropna().reset_index(drop=True)
    schema = Schema((4,), "float32", ("leak", "none"), known(made, "none").columns, missing="drop")
    with pytest.raises(InputError, match="column 'heat', row 3: the cell is missing"):
        encode(whole.assign(heat=[1.0, 2.0, None, *whole["heat"][3:]]), schema)


def test_more_columns_in_another_order_and_other_types_change_nothing(made: Made):
    frame, _, _ = made
    schema = known(made, "device")
    other = frame[frame.columns[::-1]].assign(more="x", speed=frame["speed"].astype(float))
    other["open"] = other["open"].map({True: "True", False: "False"})
    assert torch.equal(encode(other, schema, "south"), encode(frame, schema, "south"))
    records = pd.DataFrame(frame.astype(object).where(frame.notna(), None).to_dict("records"))
    assert torch.equal(encode(records, schema), encode(frame, schema))


def test_an_unknown_text_is_none_of_the_categories_and_is_named(made: Made):
    frame, _, _ = made
    schema = known(made, "none")
    strange = frame.assign(model=["Z9", "A1", None, *["Z8"] * (len(frame) - 3)])
    assert encode(strange, schema)[:4, 4:].tolist() == [[0, 0, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0]]
    (line,) = unknown_texts(strange, schema)
    assert line == f"column 'model': {len(frame) - 2} rows have 'Z9', 'Z8', unknown in training"
    assert unknown_texts(frame, schema) == []
    assert unknown_texts(frame.drop(columns="model"), schema) == []
    for text in (" A1", "a1", "A1\u200b", "9", 9):  # served rows are taken as they come
        ((name, texts),) = unknown_cells(frame.assign(model=[text, *frame["model"][1:]]).head(1), schema)
        assert (name, texts.tolist()) == ("model", [str(text)])


def test_a_schema_is_json_and_nothing_else_is_a_schema(made: Made, tmp_path: Path):
    schema = known(made, "device")
    assert from_json(to_json(schema)) == schema
    for text in ("", "{}", "[1]", to_json(schema).replace('"number"', '"numbre"', 1)):
        with pytest.raises(InputError, match=r"^mine.json: not a schema"):
            from_json(text, "mine.json")


@pytest.mark.parametrize("scaling", ["none", "standard"])
@pytest.mark.parametrize("scaled", ["none", "device", "common"])
@pytest.mark.slow
def test_pictures_are_encoded_as_in_training(scaling: str, scaled: str):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 3, 4, 4), dtype=np.uint8)
    plain = Dataset(
        Data(torch.from_numpy(pixels), torch.arange(40) % 2),
        None,
        ("a", "b"),
        schema=Schema((3, 4, 4), "uint8", ("a", "b")),
    )
    data = scale(plain, scaling)
    parts = partition(data, name="iid", devices=2, seed=0)
    schema = from_json(to_json(fit_schema(data, training(parts), scaled)))
    held, shared = splits(data, parts, scaled)
    for who, own in held.items():
        assert torch.equal(encode(pixels[parts.devices[who]["test"]], schema, who), own.test.inputs())
    assert torch.equal(encode(pixels[parts.shared], schema), shared.inputs())
    with pytest.raises(InputError, match=r"array of \(40, 3, 4, 4\) float64: the model needs \(N, 3, 4, 4\) uint8"):
        encode(pixels / 255, schema)
    with pytest.raises(InputError, match=r"array of \(40, 3, 4\) uint8"):
        encode(pixels[..., 0], schema)


def test_bytes_are_refused_where_nothing_says_how_they_were_standardised():
    pixels = np.random.default_rng(0).integers(0, 256, (4, 1, 3, 3))
    schema = Schema((1, 3, 3), "float32", ("a", "b"), standardised=True)
    assert from_json(to_json(schema)) == schema
    assert "standardised" not in to_json(known := replace(schema, standardised=False))
    for wrong in (pixels, pixels.astype(np.int32), pixels.astype(np.float32), pixels.astype(float), pixels / 256):
        with pytest.raises(InputError, match="array: the model learnt standardised pixels, not bytes") as refused:
            encode(wrong, schema)
        assert "standardised" in refused.value.public
        assert encode(wrong, known).tolist() == wrong.tolist()
    for right in (pixels / 255 - 0.5, np.zeros((4, 1, 3, 3)), np.full((4, 1, 3, 3), 2.0, np.float32)):
        torch.testing.assert_close(encode(right, schema), torch.from_numpy(right).float())


def test_a_number_that_scaling_makes_too_large_for_float32_is_refused():
    schema = Schema((2,), "float64", ("a", "b"), (Column("kind", "text", ("x",)), Column("heat", "number")))
    schema = replace(schema, shared=Fit(mean=(0, 1.0), std=(1, 0.5)))
    rows = pd.DataFrame({"kind": ["x", "", "x"], "heat": [1.6e38, -3.4e38, 2e38]})
    with pytest.raises(InputError, match=r"column 'heat', row 2: '-3.4e\+38' is not a number that float32 holds"):
        encode(rows, schema)
    array = Schema((2,), "float64", ("a", "b"), shared=schema.shared)
    with pytest.raises(InputError, match="array: some values are too large"):
        encode(rows[["heat", "heat"]].to_numpy(), array)
    with pytest.raises(InputError, match="array: some values are too large"):
        encode(np.array([[1e300, 1.0]]), replace(array, shared=Fit()))


def test_arrays_without_a_loader_have_a_schema_too():
    data = Dataset(Data(torch.zeros(4, 2, 3), torch.tensor([0, 1, 0, 1])), None, ("a", "b"))
    schema = schema_of(data)
    assert (schema.shape, schema.dtype, schema.classes, schema.columns) == ((2, 3), "float32", ("a", "b"), ())
    with pytest.raises(InputError, match="not finite"):
        encode(np.full((1, 2, 3), np.nan, np.float32), schema)
    whole = replace(schema, dtype="int64", shared=Fit(mean=(1.7e9,) * 6, std=(0.5,) * 6))
    for kind in ("int32", "int64", "float64"):
        assert encode(np.full((1, 2, 3), 1.7e9 + 1).astype(kind), whole).tolist() == [[[2.0] * 3] * 2]
    assert encode(np.full((1, 2, 3), 1.7e9 + 0.75), whole).tolist() == [[[1.5] * 3] * 2]
    with pytest.raises(InputError, match="not finite"):
        encode(np.full((1, 2, 3), np.nan), whole)
    assert encode(np.full((1, 2, 3), 3.0), replace(whole, shared=Fit())).dtype == torch.int64


def test_markers_of_missing_values_are_missing_in_new_rows(made: Made):
    frame = made[0]
    schema = known(made, "device")
    marked = frame.astype({"heat": object, "model": object})
    marked.loc[frame["heat"].isna(), "heat"] = "?"
    marked.loc[frame["model"].isna(), "model"] = " NA"
    torch.testing.assert_close(encode(marked, schema), encode(frame, schema), rtol=0, atol=0)
    assert unknown_texts(marked, schema) == []
    other = dataclasses.replace(schema, missing_values=("gone",))
    with pytest.raises(InputError, match="'\\?' is not a finite number"):
        encode(marked, other)
    with pytest.raises(InputError, match=r"'230,1' is not a finite number; write it as 230\.1$"):
        encode(frame.assign(heat="230,1"), schema)
    assert from_json(to_json(other)).missing_values == ("gone",)


def test_names_of_columns_in_a_line_can_be_typed_as_they_stand():
    names = ["a b", "Temp, C", "Time [UTC]", "a: b", "#id", "% load", "x #1", "01", "2020", "1.5", "2024-01-02", "True"]
    names += ["null", "~", "a ", " a", "it's", "- a", "@x", "&x", "*x", "!x", "{x}", "?x", "`x", "kind (x)", "a=b", "é"]
    for some in ([name] for name in names):
        assert parse_value("data.ignore", typed(some)) == some
    assert parse_value("data.ignore", typed(names)) == names
    assert typed(["speed", "load 2"]) == "[speed, load 2]"
