"""Names of devices, classes and categories mean the same in every file, alone or not; numbers keep their digits."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pyarrow.csv import write_csv
from pyarrow.parquet import write_table

from fedcore.api.serving import ServedModels
from fedcore.cli.predict import read_tables
from fedcore.data import Dataset, load
from fedcore.data.encoding import column_texts, encode
from fedcore.data.prepare import fit_schema
from fedcore.data.readers import read
from fedcore.data.schema import Column, Fit, Schema
from fedcore.errors import InputError
from fedcore.partition.stable import row_keys


def table(path: Path, rows: str, **settings: object) -> Dataset:
    path.parent.mkdir(exist_ok=True)
    path.write_text(rows)
    return load("table", path=path if settings.get("device") else path.parent, **{"label": "y", **settings})


def lines(*columns: str) -> str:
    """Return CSV of some columns, each as its header and its cells."""
    return "\n".join(",".join(row) for row in zip(*(column.split() for column in columns), strict=True)) + "\n"


def test_devices_with_zeros_in_front_stay_apart(tmp_path: Path):
    data = table(tmp_path / "t.csv", lines("site 1 01 001 1", "u 1 2 3 4", "y 0 1 0 1"), device="site")
    assert data.device == ("1", "01", "001", "1")
    assert any(note.startswith("site: '001', '01', '1' look alike") for note in data.notes)


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ("0 1 1", "False True False", "'1', 'true' and '0', 'false' may mean the same"),
        ("yes no", "True no", "'true', 'yes' may mean the same"),
        ("0 1", "1 1", ""),
        ("yes no", "maybe 1", ""),
    ],
)
def test_two_ways_to_write_true_are_said(one: str, other: str, said: str, tmp_path: Path):
    for name, labels in (("a.csv", one), ("b.csv", other)):
        (tmp_path / name).write_text(lines("u " + " ".join("123"[: len(labels.split())]), "y " + labels))
    data = load("table", path=str(tmp_path), label="y")
    assert len(data.classes) == len({*one.split(), *other.split()})
    assert [note.split(", and are")[0] for note in data.notes if "may mean" in note] == [f"y: {said}"] * bool(said)


@pytest.mark.parametrize(
    ("cells", "names"),
    [
        (pd.to_datetime(["2024-01-01", "2024-01-02"]), {"2024-01-01", "2024-01-02"}),
        (pd.to_datetime(["2024-01-01 00:00", "2024-01-02 03:00"]), {"2024-01-01", "2024-01-02 03:00:00"}),
        ([Decimal("1.00"), Decimal("2.50")], {"1", "2.50"}), ([True, False], {"True", "False"}),
        (np.array([0.1, 0.2], "float16"), {"0.1", "0.2"}), (np.array([1e20, 0.5], "float32"), {"1e+20", "0.5"}),
        ([1e16, 2.0], {"1e+16", "2"}), ([-0.0, 1e-05], {"0", "1e-05"}), ([1.0, 2.5], {"1", "2.5"}),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_dates_and_decimals_are_one_name_in_every_file(tmp_path: Path, cells: Any, names: set[str]):
    frame = pd.DataFrame({"u": range(4), "y": [*cells] * 2})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    for joined in (False, True):
        settings = {"label": "y", "task": "classification", "join_names": joined}
        first, second = (
            {*load("table", path=tmp_path / f"t.{kind}", **settings).classes} for kind in ("csv", "parquet")
        )
        assert first == second == (first if joined else names)


@pytest.mark.parametrize(
    ("first", "second", "classes"),
    [
        ("01 02 01", "01 n1 02", ("01", "02", "n1")),
        ("true false true", "true unknown false", ("False", "True", "unknown")),
        ("1E2 10E1 1E2", "1E2 x x", ("10E1", "1E2", "x")),
        ("1.10 1.1 1.1", "1.1 2.0 2", ("1.1", "1.10", "2")),
        ("12345678901234567 12345678901234568 1.5", "1.5 1.5 1.5", ("1.5", "12345678901234567", "12345678901234568")),
    ],
)
@pytest.mark.slow
def test_classes_are_the_same_whatever_else_a_file_holds(tmp_path: Path, first: str, second: str, classes: tuple[str]):
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites/b.csv").write_text(lines("u 1 2 3", f"y {second}"))
    assert table(tmp_path / "sites/a.csv", lines("u 1 2 3", f"y {first}")).classes == classes


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("word", ["007", "true", "1.0", "NaN1"])
def test_a_row_means_the_same_alone(tmp_path: Path, word: str, suffix: str):
    frame = pd.DataFrame({"site": ["001", "A4"] * 6, "kind": [word, "x", "y"] * 4, "u": range(12), "y": [0, 1] * 6})
    write = {".csv": frame.to_csv, ".parquet": frame.to_parquet}[suffix]
    write(tmp_path / f"t{suffix}", index=False)
    schema = load("table", path=tmp_path / f"t{suffix}", label="y", device="site", categorical=["kind"]).schema
    assert schema is not None
    frame.iloc[:1].to_csv(tmp_path / "one.csv", index=False)
    alone = read(tmp_path / "one.csv", names=schema.names).frame
    assert alone["site"].tolist() == ["001"]
    assert encode(alone, schema).tolist() == encode(frame, schema)[:1].tolist()
    assert encode(alone, schema).sum() == 1


def test_objects_that_are_equal_have_each_its_own_name():
    cells = pd.Series([True, 1, 1.0, "1", Decimal("1.50"), 1.5, None], dtype=object)
    assert column_texts({"c": cells}, "c").tolist() == ["True", "1", "1", "1", "1.50", "1.5", ""]


@pytest.mark.slow
def test_true_in_one_file_is_1_in_another(tmp_path: Path):
    frame = pd.DataFrame({"on": [True, False] * 2, "u": range(4), "y": [0, 1] * 2})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.astype(int).to_parquet(tmp_path / "b.parquet")
    frame.assign(on=["1", "0", "True", "False"]).to_parquet(tmp_path / "c.parquet")
    data: Any = load("table", path=tmp_path, label="y")
    assert data.train.x[:, 0].tolist() == [1, 0] * 6
    assert encode(read_tables(tmp_path, data.schema)[0], data.schema)[:, 0].tolist() == [1, 0] * 6


@pytest.mark.parametrize("use", ["id", "device", "label"])
@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "T", None])
def test_a_date_and_midnight_in_a_zone_are_said_to_be_apart(zone: str | None, use: str, tmp_path: Path):
    days = pd.Series(["2024-01-01", "2024-01-02"] * 2)
    times = days + "T00:00:00" if zone == "T" else pd.to_datetime(days).dt.tz_localize(zone)
    (tmp_path / "sites").mkdir()
    frame = pd.DataFrame({"u": range(4), "y": [0, 1] * 2})
    whole = pd.concat([frame.assign(day=days), frame.assign(day=times)]).astype({"day": object})
    for name, part in (("a.csv", whole[:4]), ("b.parquet", whole[4:].infer_objects())):
        getattr(part, f"to_{name[2:]}")(tmp_path / "sites" / name, index=False)
    if use == "device":
        whole.to_csv(tmp_path / "sites.csv", index=False)
    named = {"label": "day" if use == "label" else "y", **({use: "day"} if use != "label" else {})}
    data = load("table", path=tmp_path / ("sites.csv" if use == "device" else "sites"), **named)
    end = {"UTC": " 00:00:00+00:00", "Asia/Kolkata": " 00:00:00+05:30", "T": "T00:00:00"}.get(zone or "")
    said = (
        f"day: '2024-01-01', '2024-01-01{end}' may mean the same, and are names apart; write one of them in all files"
    )
    assert [note for note in data.notes if "may mean" in note] == ([said] if end else [])


def test_texts_true_and_false_in_parquet_are_said(tmp_path: Path):
    frame = pd.DataFrame({"on": ["true", "False"] * 2, "u": range(4), "y": [0, 1] * 2})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "b.parquet")
    sets = [load("table", path=tmp_path / name, label="y") for name in ("a.csv", "b.parquet")]
    assert [len(data.schema.columns[0].inputs) for data in sets if data.schema] == [1, 2]
    assert [[note for note in data.notes if note.startswith("on: texts true and false")] for data in sets] == [
        [], ["on: texts true and false, an input for each; as truth values, which a CSV file's are, they are one"]
    ]  # fmt: skip
    assert not load("table", path=tmp_path / "b.parquet", label="y", categorical=["on"]).notes
    for data, other in zip(sets, ("b.parquet", "a.csv"), strict=True):  # a model takes both kinds of files
        assert data.schema is not None
        rows = read(tmp_path / other, names=data.schema.names).frame
        assert encode(rows, data.schema).tolist() == data.train.x.tolist()


def test_names_that_look_alike_are_one_if_asked(tmp_path: Path):
    rows = lines("site A a B.b B.b a", "u 1 2 3 4 5", "y Yes yes no 01 1").replace("B.b", "b ").replace("01", "no")
    apart = table(tmp_path / "t.csv", rows, device="site")
    assert apart.classes == ("1", "Yes", "no", "yes")
    joins = "look alike, and are names apart; data.join_names=true makes them one, in small letters"
    assert f"y: 'Yes', 'yes' {joins}" in apart.notes
    data = table(tmp_path / "t.csv", rows, device="site", join_names=True)
    assert (data.classes, data.device) == (("1", "no", "yes"), ("a", "a", "b", "b", "a"))
    assert "site: 'A', 'a' are one name" in data.notes
    assert data.schema is not None
    assert data.schema.spelling == "joined"


@pytest.mark.parametrize(
    "names", ["K\u00f6 Ko\u0308", "a\u200b \ufeffa", "a\u00a0b a\u2003b", "1 1.0", "1 01", "1e2 100", "TRUE true"]
)
@pytest.mark.slow
def test_each_form_of_a_name_gets_a_line(tmp_path: Path, names: str):
    first, second = names.split(" ")
    rows = f"site,u,y\n{first},1,0\n{second},2,1\nz,3,1\n"
    data = table(tmp_path / "t.csv", rows, device="site")
    assert sum(note.startswith("site: ") for note in data.notes) == 1
    joined = table(tmp_path / "t.csv", rows, device="site", join_names=True)
    assert len(set(joined.device or ())) == 2


LONG = ("9007199254740993", "9007199254740992", "100000000000000001", "100000000000000002", "0.12345678901234567891")


def test_long_numbers_stay_apart_and_forms_of_one_are_joined(tmp_path: Path):
    forms = [f"{name}{end}" for name in LONG for end in ("", "0" if "." in name else ".00", "e0")] + ["1e400", "1e401"]
    rows = "site,u,y\n" + "".join(f"{form},{i},{i % 2}\n" for i, form in enumerate(forms))
    data = table(tmp_path / "t.csv", rows, device="site", join_names=True)
    assert data.device == (*(name for name in LONG for _ in range(3)), "1E+400", "1E+401")


@pytest.mark.parametrize("use", ["device", "label", "categorical", "id"])
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("kind", ["int64", "uint64", "float32"])
@pytest.mark.slow
def test_an_empty_cell_joins_no_long_names(tmp_path: Path, kind: str, suffix: str, use: str):
    cells = [10**17 + 1, 10**17 + 2, 10**17 + 3, None] * 5 if kind != "float32" else [0.1, 0.2, 3.0, None] * 5
    labels = ["a", "b", "a", None if use == "id" else "b"] * 5  # of rows with a label none may lack its id
    rows = pa.table({"c": pa.array(cells, kind), "u": range(20), "y": pa.array(labels)})
    file = tmp_path / f"t{suffix}"
    write = write_csv if suffix == ".csv" else write_table
    write(rows, file)
    named: dict[str, Any] = {"label": "y", "missing": "median", use: ["c"] if use == "categorical" else "c"}
    data = load("table", path=file, drop_unlabelled=True, drop_without_device=use == "device", **named)
    expected = ("0.1", "0.2", "3") if kind == "float32" else tuple(f"1{i:017}" for i in (1, 2, 3))
    names = {"device": data.device, "label": data.classes, "id": data.ids}.get(use, data.schema.columns[0].categories)
    assert tuple(sorted({*names} - {""})) == expected


@pytest.mark.parametrize(("cell", "also"), [("", ""), (" ", ""), (" ?", r" \('\?'.*\)"), ("n/a", r" \('n/a'.*\)")])
@pytest.mark.parametrize("ids", ["P1 P2 P1", "7 8 9"])
@pytest.mark.slow
def test_a_row_without_its_id_is_refused(tmp_path: Path, ids: str, cell: str, also: str):
    """Rows without one would be on one side together, as those of one patient; the keys of others stay."""

    def made(*others: str) -> Dataset:
        rows = "".join(f"{name},{i},{i % 2}\n" for i, name in enumerate([*ids.split(), *others]))
        return table(tmp_path / "t" / "t.csv", f"pid,u,y\n{rows}", id="pid")

    mend = "fill it in or remove the row, or give each such row an id of its own"
    with pytest.raises(InputError, match=rf"column 'pid', row 4: the cell is missing{also}; {mend}$"):
        made(cell, cell)
    keys = row_keys(made("new1", "new2")).tolist()
    assert keys[:3] == row_keys(made()).tolist()
    assert len({*keys[2:]}) == 3


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        ("P1", "p1", True), ("P1", "P1 ", True), ("P 1", "P  1", True), ("P1", "P1\u200b", True),
        ("\u00d61", "O\u03081", True), ("\u22121", "-1", True),
        ("7", "007", False), ("7", "7.0", False),  # numbers count by their value
    ],
)  # fmt: skip
@pytest.mark.slow
def test_ids_that_look_alike_are_said_or_joined(tmp_path: Path, one: str, other: str, apart: bool):
    """Or rows of one patient would train and test."""
    rows = f"pid,u,y\n{one},1,0\n{other},2,1\n8,3,0\n"
    said, joined = (table(tmp_path / "t" / "t.csv", rows, id="pid", join_names=joined) for joined in (False, True))
    assert len({*row_keys(said).tolist()}) == 2 + apart
    assert sum(" look alike, and are names apart; " in note for note in said.notes) == apart
    assert sum(note.endswith(" are one name") for note in said.notes) == (not apart)
    assert len({*row_keys(joined)[:2].tolist()}) == 1
    assert len({*row_keys(joined).tolist()}) == 2
    assert [note.endswith(" are one name") for note in joined.notes] == [True]


def test_ids_of_other_forms_than_their_name_are_one(tmp_path: Path):
    said = table(tmp_path / "t" / "t.csv", "pid,u,y\n1.50,1,0\n1.500,2,1\n8,3,0\n", id="pid")
    assert [note for note in said.notes if note.startswith("pid")] == ["pid: '1.50', '1.500' are one name"]


@pytest.mark.parametrize("form", ["a day", "7.0 beside a text"])
def test_ids_of_a_folders_files_are_one_where_their_names_are(tmp_path: Path, form: str):
    """Or rows of one day, or of one patient, would train and test."""
    days = pd.Series(pd.date_range("2024-01-01", periods=9))
    one, other = (days.dt.strftime("%Y-%m-%d"), days) if form == "a day" else (range(9), [*"0123456", "7.0", "x"])
    made = [pd.DataFrame({"pid": ids, "u": range(9), "y": [0, 1, 0] * 3}) for ids in (one, other)]
    made[0].to_csv(tmp_path / "a.csv", index=False)
    made[1].to_parquet(tmp_path / "b.parquet") if form == "a day" else made[1].to_csv(tmp_path / "b.csv", index=False)
    data = load("table", path=tmp_path, label="y", id="pid")
    ids = data.ids or ()
    assert ids[:8] == ids[9:17]
    assert len({*row_keys(data).tolist()}) == 9 + (form != "a day")
    assert not [note for note in data.notes if "apart" in note]


@pytest.mark.slow
def test_files_whose_names_look_alike_are_said_or_joined(tmp_path: Path):
    for name in ("A", "a ", "b"):
        (tmp_path / f"{name}.csv").write_text("u,y\n1,0\n2,1\n")
    apart, joined = (load("table", path=tmp_path, label="y", join_names=joined) for joined in (False, True))
    assert apart.device == ("A", "A", "a ", "a ", "b", "b")
    joins = "look alike, and are names apart; data.join_names=true makes them one, in small letters"
    assert apart.notes == (f"files: 'A', 'a ' {joins}",)
    assert joined.device == ("a",) * 4 + ("b",) * 2
    assert joined.schema is not None
    _, _, owners = read_tables(tmp_path, joined.schema)
    assert tuple(owners) == joined.device


def test_a_name_that_stands_twice_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="4 columns, two of them named 'y'"):
        table(tmp_path / "t.csv", "site,u,y,y\na,1,0,0\nb,2,1,1\n", device="site")


def test_a_label_with_decimal_commas_is_a_number(tmp_path: Path):
    rows = "site;u;y\n" + "".join(f"a;{i};{i},25\n" for i in range(30))
    data = table(tmp_path / "t.csv", rows, device="site")
    assert data.train.y.tolist() == [i + 0.25 for i in range(30)]


@pytest.mark.parametrize("sign", [",", "."])
def test_a_whole_number_is_one_name_in_files_with_decimal_commas(tmp_path: Path, sign: str):
    """As 7.0 is 7 where numbers have points; 7,5 and what is no number stay as written."""
    names = ["7", "7X0", "12X0", "12", "-0X0", "0", "7X0", "7X5"]
    kinds = ["7X0", "7", "aX0", "b", "12X00", "12", "7X0", "7X5"]
    rows = ["site;pid;kind;u;y", *(f"{a};{a};{b};{i}X5;{a}" for i, (a, b) in enumerate(zip(names, kinds, strict=True)))]
    text = "\n".join(rows).replace("X", sign) + "\n"
    data = table(tmp_path / "t.csv", text, device="site", id="pid", categorical=["kind"])
    half = "7.5" if sign == "." else "7,5"
    assert data.device == ("7", "7", "12", "12", "0", "0", "7", half)
    assert data.ids == data.device
    assert {*data.classes} == {"7", "12", "0", half}
    assert data.schema is not None
    assert {*data.schema.columns[0].categories} == {"7", f"a{sign}0", "b", "12", half}
    new, schema = tmp_path / "new.csv", replace(data.schema, devices={"7": Fit(), "12": Fit()})
    new.write_text(text)
    frame = read_tables(new, schema)[0]
    assert tuple(frame["site"]) == data.device
    assert encode(frame, replace(schema, devices={})).numpy() == pytest.approx(data.train.x.numpy())
    earlier = replace(schema, devices={f"7{sign}0": Fit()})  # of a model that an earlier version made
    assert read_tables(new, earlier)[0]["site"][2] == ("7,0" if sign == "," else "7")


def test_commas_of_thousands_stay_in_names(tmp_path: Path):
    """Nor has a name another one that stands in no file: 007,0 is 007,0."""
    rows = "site;x;y\n10;1,5;0\n10,000;2,5;1\n007,0;2,5;1\n"
    assert table(tmp_path / "t.csv", rows, device="site").device == ("10", "10,000", "007,0")


def test_names_alone_may_have_the_commas_of_a_file(tmp_path: Path):
    """Numbers with a point, or commas that may separate thousands, keep them."""
    rows = "site;pid;kind;u;y\nn;7,0;1,0;1;0\nn;7;1;2;1\nm;8,0;2;3;0\nm;9;2,0;4;1\n"
    settings = {"device": "site", "id": "pid", "categorical": ["kind"]}
    data = table(tmp_path / "t.csv", rows, **settings)
    assert data.ids == ("7", "7", "8", "9")
    assert data.schema is not None
    assert data.schema.columns[0].categories == ("1", "2")
    for text in (rows.replace(";1;0", ";1.5;0"), rows.replace(",0", ",000")):
        assert len({*(table(tmp_path / "t.csv", text, **settings).ids or ())}) == 4


def test_whole_numbers_of_files_with_decimal_commas_are_held_out_as_before(tmp_path: Path):
    """Rows of one file and of one with texts beside numbers have the keys that earlier versions gave them."""
    rows = "k;u;y\n7;1,5;0\n7,0;2,5;1\n{};3,5;1\n"
    numbers, texts = (table(tmp_path / "t.csv", rows.format(last), device="k") for last in "8a")
    assert dict(numbers.earlier) == {}
    assert dict(texts.earlier) == {"k": ("7", "7,0", "a")}


# rows of projects that earlier versions made


def test_rows_are_held_out_as_by_earlier_versions(tmp_path: Path):
    rows = lines("site 01 01 02 02", "kind 1.50 2 1.50 3", "u .1 .2 .3 .4", "y 1E2 10 1E2 7")
    old = lines("site 1 1 2 2", "kind 1.5 2 1.5 3", "u .1 .2 .3 .4", "y 100 10 100 7")
    settings = {"device": "site", "categorical": ["kind"]}
    data, before = (table(tmp_path / "t.csv", text, **settings) for text in (rows, old))
    assert dict(data.earlier) == {
        "kind": ("1.5", "2", "1.5", "3"), "site": ("1", "1", "2", "2"), "y": ("100", "10", "100", "7")
    }  # fmt: skip
    assert before.earlier == ()
    assert row_keys(data).tolist() == row_keys(before).tolist()
    joined = table(tmp_path / "t.csv", rows, **settings, join_names=True)
    assert (joined.classes, joined.device, joined.earlier) == (before.classes, before.device, ())


def test_keys_have_numbers_as_float32(tmp_path: Path):
    text = lines("site a a b b", "u 1700000001.25 .1 .2 .3", "y 0 1 0 1")
    data = table(tmp_path / "t.csv", text, device="site")
    rounded = table(tmp_path / "t.csv", text.replace("1700000001.25", "1700000000"), device="site")
    assert row_keys(data).tolist() == row_keys(rounded).tolist()
    assert data.train.x[0].item() == 1700000001.25


# digits


@pytest.mark.slow
@pytest.mark.parametrize(("start", "span"), [(1.7e9, 8000), (5.4e6, 50), (2460000.5, 0.5), (101325.0, 0.02)])
@pytest.mark.parametrize("scale", ["common", "device"])
def test_numbers_keep_their_digits_until_they_are_scaled(tmp_path: Path, start: float, span: float, scale: str):
    shift = np.random.default_rng(0).uniform(0, span, 60)
    frame = pd.DataFrame({"site": ["a", "b", "c"] * 20, "u": start + shift, "y": (shift > span / 2).astype(int)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    data = load("table", path=tmp_path / "t.csv", label="y", device="site")
    trains = {who: np.flatnonzero(frame["site"] == who) for who in "abc"}
    schema = fit_schema(data, trains, scale)
    for who, index in trains.items():
        own = shift if scale == "common" else shift[index]
        expected = (shift[index] - own.mean()) / own.std()
        x = encode(read(tmp_path / "t.csv", names=schema.names).frame.iloc[index], schema, who)
        assert x.dtype == torch.float32
        assert x[:, 0].numpy() == pytest.approx(expected, abs=max(1e-6, math.ulp(start) / span * 100))


def test_a_model_of_an_earlier_version_rounds_as_it_was_trained():
    schema = Schema((1,), "float32", ("0", "1"), (Column("u", "number"),), shared=Fit((), (1.7e9,), (1.0,)))
    assert encode(pd.DataFrame({"u": [1.7e9 + 70]}), schema).item() == 128


# what is said


def test_columns_that_are_read_otherwise_than_meant_are_said(tmp_path: Path):
    rows = "site,zip,price,hour,u,y\n" + "".join(
        f'{"ab"[i % 2]},0{1200 + i},"1,{i % 7 + 200}.50",{i % 24},{i},{i % 2}\n' for i in range(48)
    )
    data = table(tmp_path / "t.csv", rows, device="site")
    assert "zip: numbers such as 01200 may be names; 'data.categorical=[zip]' keeps them so" in data.notes
    assert "price: '1,206.50' and others are texts, not numbers; write them as 1234.5" in data.notes
    assert not [note for note in data.notes if note.startswith(("hour", "u:"))]


@pytest.mark.parametrize("cells", ["{}\u00a0", "{}\u202f", "\uff11{}", "\u0661{}"])
def test_numbers_in_other_digits_or_with_other_blanks_are_said(tmp_path: Path, cells: str):
    rows = "site,u,v,y\n" + "".join(f"{'ab'[i % 2]},{cells.format(i % 7)},{i},{i % 2}\n" for i in range(40))
    text = cells.format(6)
    notes = table(tmp_path / "t.csv", rows, device="site").notes
    assert notes == (f"u: {text!r} and others are texts, not numbers; write them as 1234.5",)


@pytest.mark.parametrize("cells", ["{} EUR", "{},5 °C", "({}.5)", "{}-", "1_00{}", "EUR{}", "\u2212{} %"])
def test_columns_of_which_most_cells_are_numbers_with_marks_are_said(tmp_path: Path, cells: str):
    rows = [f'{"ab"[i % 2]},"{cells.format(i % 7) if i % 7 else "unknown"}",{i},{i % 2}\n' for i in range(40)]
    notes = table(tmp_path / "t.csv", "site,u,v,y\n" + "".join(rows), device="site").notes
    assert notes == (f"u: {cells.format(6)!r} and others are texts, not numbers; write them as 1234.5",)


def test_a_note_on_numbers_with_marks_shows_one_that_has_them(tmp_path: Path):
    rows = [f"{'ab'[i % 2]};{['37,5', '38', '39', 'S'][i % 4]};{i};{i // 3 % 2}\n" for i in range(40)]
    notes = table(tmp_path / "t.csv", "site;u;v;y\n" + "".join(rows), device="site", categorical=["u"]).notes
    assert "u: '37,5' and others are texts, not numbers; write them as 1234.5" in notes


@pytest.mark.parametrize("texts", ["4_m 4_kg", "A4 A5 A6", "1st 2nd 3rd", "abc_1 2_May 4_Jun"])
def test_names_with_digits_are_no_numbers_with_marks(tmp_path: Path, texts: str):
    names = [text.replace("_", " ") for text in texts.split()]
    rows = [f"{'ab'[i % 2]},{names[i % len(names)]},{i},{i % 2}\n" for i in range(12)]
    assert table(tmp_path / "t.csv", "site,u,v,y\n" + "".join(rows), device="site").notes == ()


def test_a_quote_that_joins_rows_and_a_number_for_a_gap_are_said(tmp_path: Path):
    cells = [f"{'ab'[i % 2]},{-999 if i in (3, 5) else i},{'q' if i % 3 else 'p'},{i % 2}" for i in range(40)]
    cells[7], cells[9] = 'b,7,"q,1', 'b,9,q",1'
    notes = table(tmp_path / "t.csv", "\n".join(["site,u,kind,y", *cells]) + "\n", device="site").notes
    assert "read: line breaks in cells of 'kind', where a stray quote may join rows" in notes
    assert "u: -999 in 2 rows may stand for a missing number: data.missing_values" in notes


def test_a_number_for_a_gap_is_said_of_a_label_that_is_a_number(tmp_path: Path):
    cells = [f"{'ab'[i % 2]},{i % 7},{-999 if i in (3, 5) else i + 0.5}" for i in range(40)]
    rows = "\n".join(["site,u,y", *cells]) + "\n"
    said = "y: -999 in 2 rows may stand for a missing number: data.missing_values and data.drop_unlabelled=true"
    assert said in table(tmp_path / "t.csv", rows, device="site").notes
    rest = table(tmp_path / "t.csv", rows, device="site", missing_values=["-999"], drop_unlabelled=True)
    assert (len(rest.train), said in rest.notes) == (38, False)


def test_lists_in_parquet_are_left_out_by_name(tmp_path: Path):
    frame = pd.DataFrame({"u": range(8), "vec": [[1.0, 2.0]] * 8, "y": [0, 1] * 4, "v": [0.5, 1.5] * 4})
    frame.set_index("v").to_parquet(tmp_path / "t.parquet")
    schema = load("table", path=tmp_path / "t.parquet", label="y").schema
    assert schema is not None
    assert schema.left_out == {
        "v": "the index of the file's frame; reset_index() makes it a column",
        "vec": "lists, structs or bytes; give a column for each number",
    }
    assert load("table", path=tmp_path / "t.parquet", label="y", ignore=["vec", "v"]).train.x.shape == (8, 1)
    with pytest.raises(InputError, match=r"data.categorical = 'vec': this column of .* is not read: lists, structs"):
        load("table", path=tmp_path / "t.parquet", label="y", categorical=["vec"])


@pytest.mark.parametrize("names", [[0, 1], pd.MultiIndex.from_tuples([("a", "x"), ("y", "")])])
def test_columns_whose_names_are_no_texts_are_read(tmp_path: Path, names: Any):
    pd.DataFrame([[1, "u"], [2, "v"]], columns=names).to_parquet(tmp_path / "t.parquet")
    assert load("table", path=tmp_path / "t.parquet", label=str(names[1])).train.x.tolist() == [[1], [2]]


@pytest.mark.parametrize("use", [{"ignore": ["device"]}, {"id": "device"}, {"device": "device"}])
def test_a_column_device_that_named_no_devices_names_none_later(tmp_path: Path, use: dict[str, Any]):
    rows = lines("device a b", "u 1 2", "y 0 1")
    schema: Any = table(tmp_path / "sites" / "t.csv", rows, **use).schema
    assert ServedModels(schema, (), {}).device_column(pd.read_csv(tmp_path / "sites/t.csv")) == use.get("device")


@pytest.mark.parametrize("cells", [f"{10**18} {10**18 + 1} {10**18 + 2}", f"{2**63} NA {2**63 + 1}"])
def test_numbers_that_are_one_as_float64_are_left_out(tmp_path: Path, cells: str):
    data = table(tmp_path / "t.csv", lines("site a a b", f"k {cells}", "u 1 2 3", "y 0 1 0"), missing="median")
    assert data.schema is not None
    assert [*data.schema.left_out] == ["k"]


@pytest.mark.parametrize(("values", "said"), [(12, True), (4, False)])
def test_a_quantity_of_few_values_is_asked_about(tmp_path: Path, values: int, said: bool):
    rows = "u,y\n" + "".join(f"{i},{i % values}\n" for i in range(240))
    notes = table(tmp_path / "t" / "t.csv", rows).notes
    assert any("data.task=regression learns the number" in note for note in notes) == said


def test_a_model_of_an_earlier_version_reads_names_as_it_was_trained(tmp_path: Path):
    """It took 01 and true for a number and a boolean where a file had no others."""
    columns = (Column("plant", "text", ("1", "2")), Column("on", "text", ("True", "x")))
    schema = Schema((4,), "float32", ("0", "1"), columns, device="site")
    (tmp_path / "t.csv").write_text("site,plant,on\n01,01,true\n01,02,true\n")
    frame = read(tmp_path / "t.csv", schema.missing_values, schema.label, schema.names, schema.spelling).frame
    assert encode(frame, schema).tolist() == [[1, 0, 1, 0], [0, 1, 1, 0]]
    assert frame["site"].tolist() == [1, 1]


@pytest.mark.slow
def test_rows_without_a_label_or_device_are_left_out_where_that_is_asked(tmp_path: Path):
    rows = "site,u,y\na,1,0\n,2,1\nb,3,\nb,4,1\n"
    with pytest.raises(InputError, match=r"column 'y', row 3: .* or set data.drop_unlabelled=true"):
        table(tmp_path / "t.csv", rows, device="site")
    with pytest.raises(InputError, match=r"column 'site', row 2: .* or set data.drop_without_device=true"):
        table(tmp_path / "t.csv", rows, device="site", drop_unlabelled=True)
    data = table(tmp_path / "t.csv", rows, device="site", drop_unlabelled=True, drop_without_device=True)
    assert (data.device, data.train.x.flatten().tolist(), data.train.y.tolist()) == (("a", "b"), [1, 4], [0, 1])
    assert {"1 row without a label left out", "1 row without a device left out"} <= {*data.notes}
    for missing, also in ((" NA", " ('NA' counts as missing: data.missing_values)"), ("", "")):
        gaps = rows.replace("b,3,", f"b,3,{missing}").replace("b,4,1", f"b,4,{missing}\nc,5,1")
        data = table(tmp_path / "t.csv", gaps, device="site", drop_unlabelled=True, drop_without_device=True)
        assert f"2 rows without a label left out{also}; no row is left of 1 device: b" in data.notes
    with pytest.raises(InputError, match=r"data.drop_without_device = True: the data have no column of devices"):
        table(tmp_path / "t.csv", "u,y\n1,0\n2,1\n", drop_without_device=True)
    (tmp_path / "sites").mkdir()
    for name, label in (("a", "1\n2,0"), ("b", "")):
        (tmp_path / f"sites/{name}.csv").write_text(f"u,y\n1,{label}\n")
    (note,) = load("table", path=tmp_path / "sites", label="y", drop_unlabelled=True).notes
    assert note == "1 row without a label left out; no row is left of 1 device: b"
