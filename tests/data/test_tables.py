"""A user's own tables: CSV and Parquet."""

import json
from pathlib import Path

import pandas as pd
import pytest
import torch
from dataset_files import refusal

from fedcore.data import load, tables
from fedcore.data.encoding import encode
from fedcore.errors import InputError
from fedcore.partition.stable import row_keys
from fedcore.pipeline.record.challenge import require_same

ROWS = pd.DataFrame(
    {
        "a": [1.5, 2.5, -3.0, 4.0], "b": [1, 2, 3, 4], "kind": ["ok", "bad", "ok", "bad"],
        "who": ["north", "south", "north", "south"], "part": ["train", "train", "test", "val"],
    }
)  # fmt: skip


def written(rows: pd.DataFrame, file: Path) -> Path:
    file.parent.mkdir(exist_ok=True)
    if file.suffix == ".csv":
        rows.to_csv(file, index=False)
    else:
        rows.to_parquet(file)
    return file


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.slow
def test_table(tmp_path, suffix):
    file = written(ROWS, tmp_path / f"t{suffix}")
    data = load("table", path=file, label="kind", device="who", split="part")
    assert data.train.x.tolist() == [[1.5, 1], [2.5, 2], [-3, 3], [4, 4]]
    assert data.train.x.dtype == torch.float64
    assert data.train.y.tolist() == [1, 0, 1, 0]
    assert data.test is None
    assert data.classes == ("bad", "ok")
    assert data.device == ("north", "south", "north", "south")
    assert data.split == ("train", "train", "test", "val")
    plain = load("table", path=str(file), label="kind", features=["b"])
    assert plain.train.x.tolist() == [[1], [2], [3], [4]]
    assert (plain.device, plain.split) == (None, None)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([10, 9, 9, 100], ("9", "10", "100")), ([1.0, 0.5, -2.0, 1.0], ("-2", "0.5", "1")),
        ([True, False, True, True], ("False", "True")), (["b10", "b9", "b9", "a"], ("a", "b10", "b9")),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_table_classes_are_sorted(tmp_path, suffix, labels, classes):
    data = load("table", path=written(ROWS.assign(kind=labels), tmp_path / f"t{suffix}"), label="kind")
    assert data.classes == classes
    assert [data.classes[k] for k in data.train.y] == [str(label).removesuffix(".0") for label in labels]


def test_table_folder_is_a_device_a_file(tmp_path):
    written(ROWS[:3], tmp_path / "d" / "west.csv")
    written(ROWS[3:].assign(kind="new"), tmp_path / "d" / "east.parquet")
    (tmp_path / "d" / ".hidden").touch()
    data = load("table", path=tmp_path / "d", label="kind")
    assert data.device == ("east", "west", "west", "west")
    assert data.classes == ("bad", "new", "ok")
    assert data.train.y.tolist() == [1, 2, 0, 2]
    assert data.train.x[:, 1].tolist() == [4, 1, 2, 3]


@pytest.mark.slow
def test_table_one_changed_file_leaves_the_others_bit_for_bit(tmp_path):
    for name in ("a", "b"):
        written(ROWS, tmp_path / "d" / f"{name}.csv")
    before = load("table", path=tmp_path / "d", label="kind")
    written(ROWS.assign(a=ROWS.a * 1e6 + 0.1, b=[0.5, 7, 8, 9]), tmp_path / "d" / "a.csv")
    after = load("table", path=tmp_path / "d", label="kind")
    assert not torch.equal(before.train.x[:4], after.train.x[:4])
    torch.testing.assert_close(before.train.x[4:], after.train.x[4:], rtol=0, atol=0)


REFUSED = {
    # name: (content of t.csv, settings, what the line must say)
    "missing label column": ("a,y\n1,0\n2,1\n", {"label": "z"}, ["data.label = 'z': no column of", "a, y"]),
    "a misspelt label": ("a,state\n1,0\n2,1\n", {"label": "stat"}, ["data.label = 'stat'", "did you mean", "state"]),
    "a row that is cut off": ("y,a\n0,1\n1,\n1\n", {"missing": "median"}, ["line 4 has 1 of 2 cells"]),
    "a blank line of one column": ("a\n0\n\n1\n\n", {"label": "a"}, ["line 3 is blank; in a table of one column"]),
    "missing feature column": ("a,y\n1,0\n2,1\n", {"features": ["a", "c"]}, ["data.features = 'c': no column of"]),
    "missing device column": ("a,y\n1,0\n2,1\n", {"device": "d"}, ["data.device = 'd': no column of"]),
    "nan in a feature": (
        "a,b,y\n1,1,0\n2,,1\n3,,1\n4,2,1\n",
        {},
        ["column 'b', row 2", "missing (2 in 1 column)", "data.missing=common_median, median or drop"],
    ),
    "inf in a feature": ("a,y\n1,0\n-inf,1\n", {}, ["column 'a', row 2", "-inf"]),
    "too large for float32": ("a,y\n1,0\n1e300,1\n", {}, ["column 'a', row 2"]),
    "a word among numbers": (
        "a,b,y\n1,1,0\n2,oops,1\n",
        {},
        [
            "'oops'",
            'count it as an empty cell: \'data.missing_values=["", "oops"]\', or name the column in data.ignore',
        ],
    ),
    "a feature of one value": ("a,b,y\n1,x,0\n2,x,1\n", {"features": ["a", "b"]}, ["'b'", "the same value"]),
    "a feature of too many texts": (
        "a,b,y\n1,x,0\n2,z,1\n3,w,1\n",
        {"features": ["b"], "categories": 2},
        ["'b'", "3 different texts, more than data.categories = 2"],
    ),
    "dates": ("a,t,y\n1,2024-01-31,0\n2,2024-02-01,1\n", {}, ["column 't' holds times", "data.ignore=[t]"]),
    "dates and times": ("a,t,y\n1,31.1.2024 10:00,0\n2,,1\n", {"features": ["t"]}, ["column 't' holds times"]),
    "several": ("a,t,u,y\n1,10:00,2024-01-31,0\n2,,2024-01-31,1\n", {}, ["column 't' holds", "data.ignore=[t, u]"]),
    "times of day": ("a,t,y\n1,10:00,0\n2,09:30:01,1\n", {}, ["column 't' holds times"]),
    "an amount as classes": (
        "a,y\n" + "".join(f"{i},{i / 7}\n" for i in range(60)),
        {"task": "classification"},
        ["data.label = 'y'", "60 different values in 60 rows", "data.task=regression learns the number"],
    ),
    "a word as a number": ("a,y\n1,0\n2,b\n", {"task": "regression"}, ["column 'y', row 2: 'b'", "a finite number"]),
    "a missing number": ("a,y\n1,0\n2,\n", {"task": "regression"}, ["column 'y', row 2: the cell is missing"]),
    "one number": ("a,y\n1,3\n2,3\n", {"task": "regression"}, ["one value in column 'y'"]),
    "an unknown task": ("a,y\n1,0\n2,1\n", {"task": "counts"}, ["data.task = 'counts'", "regression"]),
    "a name as label": (
        "a,y\n" + "".join(f"{i},n{i % 30}\n" for i in range(60)),
        {},
        ["data.label = 'y'", "30 different values in 60 rows", "choose a column of classes"],
    ),
    "a boolean with a word": ("a,b,y\n1,True,0\n2,maybe,1\n3,1,1\n", {}, ["column 'b', row 1", "'True'"]),
    "an ignored column that is not there": ("a,y\n1,0\n2,1\n", {"ignore": ["t"]}, ["data.ignore = 't': no column of"]),
    "an ignored label": ("a,y\n1,0\n2,1\n", {"ignore": ["y"]}, ["data.ignore", "'y' is also in use"]),
    "label and split the same": ("a,y\n1,train\n2,test\n", {"split": "y"}, ["must be different columns"]),
    "an unknown way with gaps": ("a,y\n1,0\n2,1\n", {"missing": "mean"}, ["data.missing = 'mean'", "median, drop"]),
    "nan in the label": ("a,y\n1,0\n2,1\n3,\n", {}, ["column 'y', row 3: the cell is missing; fill it in or remove"]),
    "inf in the label": ("a,y\n1,0\n2,inf\n", {}, ["column 'y', row 2"]),
    "nan in the device": ("a,d,y\n1,,0\n2,q,1\n", {"device": "d"}, ["column 'd', row 1: the cell is missing"]),
    "a text for a list": ("a,y\n1,0\n", {"ignore": "s99"}, ["data.ignore = 's99': must be a list, for example [s99]"]),
    "unknown split": (
        "a,s,y\n1,train,0\n2,dev,1\n",
        {"split": "s"},
        ["column 's', row 2", "'dev'", "train, val, test"],
    ),
    "empty file": ("", {}, ["cannot be read"]),
    "header only": ("a,y\n", {}, ["no rows"]),
    "one row": ("a,y\n1,0\n", {}, ["1 row "]),
    "one class": ("a,y\n1,0\n2,0\n", {}, ["1 different label", "'y'"]),
    "no feature": ("y,z\n0,p\n1,p\n", {}, ["no column to learn from except y", "'z': the same value"]),
    "commas alone": (
        'v,y\n"7,689",p\n"5,342",q\n"1,250",p\n',
        {"categories": 2},
        ["'7,689' and others are texts, not numbers; write them as 1234.5, or set data.decimal=comma or data.d"],
    ),
    "commas beside a point": (
        'v,y\n"7,689",0.5\n"5,342",1.5\n"1,250",2.5\n',
        {"categories": 2},
        ["write them as 1234.5, or set data.decimal=point if it is 7689"],
    ),
    "commas of which no setting reads one": (
        'v,y\n"998,705",0.5\n"1383,620",1.5\n"1,250",2.5\n',
        {"categories": 2},
        ["'1383,620' and others are texts, not numbers; write them as 1234.5"],
    ),
    "units alone": ("v,y\n7 kW,p\n5 kW,q\n6 kW,p\n", {"categories": 2}, ["'7 kW' and others are texts, not numbers"]),
    "label as feature": ("a,y\n1,0\n2,1\n", {"features": ["a", "y"]}, ["'y' is there twice"]),
    "row too long": ("a,y\n1,0\n2,1,7\n", {}, ["cannot be read"]),
    "all rows too long": ("a,y\n1,0,5\n2,1,7\n", {}, ["cannot be read"]),
    "line break in a cell": ('a,b,y\n1,1,0\n2,"oo\nps",1\n', {}, ["row 2"]),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.slow
def test_table_refused(tmp_path, case):
    content, settings, said = REFUSED[case]
    (tmp_path / "t.csv").write_text(content)
    line = refusal("table", path=tmp_path / "t.csv", **{"label": "y", **settings})
    assert line.startswith((f"data.path = {tmp_path / 't.csv'}: ", "data."))
    for words in said:
        assert words in line


def test_table_files_refused(tmp_path):
    assert "no such file" in refusal("table", path=tmp_path / "none.csv", label="y")
    (tmp_path / "of" / "pictures").mkdir(parents=True)
    assert "pictures: a folder without a table; give a" in refusal("table", path=tmp_path / "of", label="y")
    (tmp_path / "t.xlsx").touch()
    line = refusal("table", path=tmp_path / "t.xlsx", label="y")
    assert line.endswith("t.xlsx: '.xlsx' cannot be read, only .csv, .tsv or .parquet")
    whole = written(ROWS, tmp_path / "t.parquet").read_bytes()
    for keep in range(0, len(whole), 97):
        (tmp_path / "t.parquet").write_bytes(whole[:keep])
        assert "t.parquet: cannot be read" in refusal("table", path=tmp_path / "t.parquet", label="kind")


@pytest.mark.slow
def test_table_folder_refused(tmp_path):
    folder = tmp_path / "d"
    folder.mkdir()
    assert "empty" in refusal("table", path=folder, label="kind")
    written(ROWS, folder / "a.csv")
    assert "leave data.device out" in refusal("table", path=folder, label="kind", device="who")
    written(ROWS.rename(columns={"b": "c"}), folder / "b.csv")
    line = refusal("table", path=folder, label="kind")
    assert "b.csv" in line
    assert "no column 'b'" in line
    written(ROWS.assign(c=1), folder / "b.csv")
    assert "b.csv: column 'c' is not in" in refusal("table", path=folder, label="kind")
    written(ROWS[:0], folder / "b.csv")
    assert "b.csv: no rows" in refusal("table", path=folder, label="kind")
    (folder / "b.csv").unlink()
    written(ROWS, folder / "a.parquet")
    assert "are one device's; join them" in refusal("table", path=folder, label="kind")
    (folder / "a.parquet").rename(folder / "notes.txt")
    assert "notes.txt" in refusal("table", path=folder, label="kind")


MIXED = pd.DataFrame(
    {
        "heat": [20.0, None, 22.5, 30.0, 21.0, 19.0], "model": ["B", "A", "A", None, "C", "B"],
        "on": [True, False, None, True, True, False], "plant": [3, 10, 3, 10, 3, 3],
        "batch": ["p1", "p2", "p3", "p4", "p5", "p6"], "unit": ["C"] * 6, "spare": [None] * 6, "y": ["ok", "bad"] * 3,
    }
)  # fmt: skip


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.slow
def test_texts_and_booleans_become_inputs_and_useless_columns_stay_out(tmp_path, suffix):
    file = written(MIXED, tmp_path / f"t{suffix}")
    data = load("table", path=file, label="y", categorical=["plant"], categories=5, missing="median")
    assert data.schema is not None
    assert data.schema.inputs == ("heat", "model=A", "model=B", "model=C", "on", "plant=3", "plant=10")
    gap = float("nan")
    expected = [
        [20, 0, 1, 0, 1, 1, 0], [gap, 1, 0, 0, 0, 0, 1], [22.5, 1, 0, 0, gap, 1, 0], [30, 0, 0, 0, 1, 0, 1],
        [21, 0, 0, 1, 1, 1, 0], [19, 0, 1, 0, 0, 1, 0],
    ]  # fmt: skip
    torch.testing.assert_close(
        data.train.x, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=0, equal_nan=True
    )
    assert {name: why.partition(",")[0] for name, why in data.schema.left_out.items()} == {
        "batch": "6 different texts",
        "unit": "the same value in every row: 'C'",
        "spare": "no value in any row",
    }


def test_whole_numbers_that_are_equal_as_floats_are_left_out(tmp_path: Path):
    pd.DataFrame({"a": [1, 2], "big": [2**62, 2**62 + 1], "y": ["p", "q"]}).to_csv(tmp_path / "t.csv", index=False)
    schema = load("table", path=tmp_path / "t.csv", label="y").schema
    why = f"'{2**62}' and '{2**62 + 1}' are equal as 64-bit numbers; data.categorical=[big] makes names"
    assert schema is not None
    assert schema.left_out == {"big": why}


@pytest.mark.parametrize(("low", "said"), [(2**53, True), (2**53 - 3, False), (2**70, True)])
def test_some_whole_numbers_that_are_equal_as_floats_are_said(tmp_path: Path, low, said):
    """Also where an empty cell, or a marker of one, makes floats of them."""
    for gap in ([], [None], ["?"]):
        big = [low, low + 1, low + 2**20, *gap]
        rows = pd.DataFrame({"a": range(len(big)), "big": big, "y": [*"pqpq"][: len(big)]}, dtype=object)
        rows.to_csv(tmp_path / "t.csv", index=False)
        why = "equal as 64-bit numbers; subtract a constant, or 'data.categorical=[big]' makes names"
        notes = load("table", path=tmp_path / "t.csv", label="y", missing="median").notes
        found = [note for note in notes if note.startswith("big: ") and "64-bit" in note]
        assert found == [f"big: {low} and {low + 1} are {why}"] * said, gap


def test_numbers_apart_as_floats_are_not_read_exactly(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tables, "Decimal", None)  # seconds for each column of a million rows
    parts = [pd.Series([2**53, 2**53 + 2]), pd.Series([2.0**60, None])]
    assert tables.equal_notes("big", parts) == []


@pytest.mark.parametrize("missing", ["refuse", "drop"])
@pytest.mark.slow
def test_a_text_in_some_rows_is_an_input_and_in_no_rows_key(tmp_path, missing):
    rows = "1,x,none,1,0\n2,,penicillin,,1\n3,,none,1,0\n4,x,penicillin,,1\n"
    (file := tmp_path / "t.csv").write_text(f"a,tick,drug,one,y\n{rows}")
    data = load("table", path=file, label="y", missing=missing)
    assert data.train.x.tolist() == [[1, 1, 0], [2, 0, 1], [3, 0, 0], [4, 1, 1]]
    assert encode(pd.read_csv(file), data.schema).tolist() == data.train.x.tolist()
    assert data.schema is not None
    why = "one value, '1', besides 2 empty cells; data.categorical=[one] makes it an input"
    assert data.schema.left_out == {"one": why}
    without, ticks = (load("table", path=file, label="y", features=of) for of in (["a"], ["tick", "drug"]))
    assert row_keys(data).tolist() == row_keys(without).tolist()  # as earlier versions left them out
    assert len({*row_keys(ticks).tolist()}) == 4
    require_same(data, without.schema)
    file.write_text(f"a,tick,drug,one,y\n{rows}4,y,penicillin,,1\n")
    now = load("table", path=file, label="y", missing="drop")
    with pytest.raises(InputError, match="'tick' has one text no longer, or again, which divides all rows anew"):
        require_same(now, data.schema)


def test_rows_with_gaps_are_dropped_if_asked(tmp_path):
    file = written(MIXED, tmp_path / "t.csv")
    data = load("table", path=file, label="y", ignore=["batch"], missing="drop")
    assert data.schema is not None
    assert data.schema.dropped == 3
    assert data.train.x[:, 0].tolist() == [20, 21, 19]
    assert data.train.y.tolist() == [1, 1, 0]


def test_a_device_without_a_whole_row_is_not_dropped_silently(tmp_path):
    line = refusal("table", path=written(MIXED, tmp_path / "t.csv"), label="y", device="plant", missing="drop")
    assert "every row of device '10' has a missing cell" in line


def test_rows_marked_test_decide_nothing_about_the_columns(tmp_path):
    """A category, and a column's only other value, that stand in test rows alone."""
    rows = ROWS.assign(
        a=[1.0, 1.0, 2.0, 1.0], size=["s", "l", "xl", "s"], part=["train", "train", "test", "train"], b=[1, 2, 3, 4]
    )
    data = load("table", path=written(rows, tmp_path / "t.csv"), label="kind", split="part", ignore=["who"])
    assert data.schema is not None
    assert data.schema.inputs == ("b", "size=l", "size=s")
    assert data.train.x.tolist() == [[1, 0, 1], [2, 1, 0], [3, 0, 0], [4, 0, 1]]


def test_a_file_without_a_single_value_of_a_column_is_no_other_kind(tmp_path):
    written(ROWS.assign(b=None), tmp_path / "d" / "a.csv")
    written(ROWS, tmp_path / "d" / "b.csv")
    data = load("table", path=tmp_path / "d", label="kind", features=["a", "b"], missing="median")
    assert data.train.x[:4, 1].isnan().all()
    assert data.train.x[4:, 1].tolist() == [1, 2, 3, 4]


def test_many_classes_with_enough_rows_are_classes(tmp_path):
    rows = pd.DataFrame({"a": range(620), "y": [i % 62 for i in range(620)]})
    assert len(load("table", path=written(rows, tmp_path / "t.csv"), label="y").classes) == 62


# missing cells


MARKED = ["1.5", "?", "na", "NAN", " N/A ", "null", "None", "--", "-", "missing", "2.5", ""]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.slow
def test_markers_of_missing_values_are_missing_and_are_counted(tmp_path, suffix):
    rows = pd.DataFrame({"u": MARKED, "grade": ["a", "-", "b"] * 4, "y": ["p", "q"] * 6})
    data = load("table", path=written(rows, tmp_path / f"t{suffix}"), label="y", missing="median")
    assert data.schema is not None
    assert data.schema.inputs == ("u", "grade=a", "grade=b")
    assert data.train.x[:, 0].isnan().tolist() == [text not in ("1.5", "2.5") for text in MARKED]
    assert data.train.x[1, 1:].tolist() == [0, 0]
    counted, among = data.notes
    assert counted.startswith("cells that count as missing: '-' 5 in u, grade; ")
    assert "'NAN' 1 in u" in counted
    assert among == "'-': empty cells of a column of texts too (data.missing_values)"
    path = written(rows.replace({"grade": {"-": "<NA>"}}), tmp_path / f"other{suffix}")
    data = load("table", path=path, label="y", missing="median")
    start, _, others = data.notes[1].rstrip("'").partition("'data.missing_values=")
    assert start == "'<NA>': empty cells of a column of texts; to keep '<NA>' as a category: "
    data = load("table", path=path, label="y", missing="median", missing_values=json.loads(others))
    assert data.schema is not None
    assert data.schema.inputs == ("u", "grade=<NA>", "grade=a", "grade=b")
    said = refusal("table", path=tmp_path / f"t{suffix}", label="y")
    assert "column 'u', row 2: the cell is missing (14 in 2 columns)" in said


def test_a_users_own_markers_replace_the_usual_ones(tmp_path):
    rows = pd.DataFrame(
        {"u": [1, -999, 3, 4], "v": [0.5, 1.0, -999.0, 2.0], "grade": ["-", "x", "", "-"], "y": [0, 1, 0, 1]}
    )
    file = written(rows, tmp_path / "t.csv")
    data = load("table", path=file, label="y", missing="median", missing_values=[-999])
    assert data.schema is not None
    assert data.schema.inputs == ("u", "v", "grade=-", "grade=x")
    assert data.train.x.isnan().tolist() == [
        [False] * 4, [True] + [False] * 3, [False, True, False, False], [False] * 4,
    ]  # fmt: skip
    assert data.train.x[:, 2:].tolist() == [[1, 0], [0, 1], [0, 0], [1, 0]]
    assert data.notes == ("cells that count as missing: '-999' 2 in u, v",)
    assert "data.missing_values = 'x': must be a list" in refusal("table", path=file, label="y", missing_values="x")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("marker", ["?", "NA", "-", "None", " missing"])
@pytest.mark.slow
def test_a_missing_label_is_no_class(tmp_path, suffix, marker):
    rows = pd.DataFrame({"u": range(6), "who": ["a", "b"] * 3, "y": ["p", "q", "p", marker, "p", "q"]})
    file = written(rows, tmp_path / f"t{suffix}")
    line = refusal("table", path=file, label="y").replace("' m", "'m")
    assert f"column 'y', row 4: the cell is missing ({marker.strip()!r}: data.missing_values)" in line
    assert "column 'y', row 4" in refusal("table", path=file, label="who", device="y")
    data = load("table", path=file, label="y", missing_values=["x"])
    assert data.classes == tuple(sorted({"p", "q", marker if suffix == ".parquet" else marker.strip()}))


def test_none_is_a_class_unless_the_user_says_it_is_missing(tmp_path):
    rows = pd.DataFrame({"u": range(4), "v": ["x", "none", "z", "x"], "y": ["none", "leak"] * 2})
    file = written(rows, tmp_path / "t.csv")
    data = load("table", path=file, label="y", missing="median")
    assert data.classes == ("leak", "none")
    assert data.schema is not None
    assert data.schema.inputs == ("u", "v=x", "v=z")
    said = refusal("table", path=file, label="y", missing_values=["none"])
    assert "column 'y', row 1: the cell is missing ('none'" in said


# devices that are left out


@pytest.mark.slow
def test_devices_are_left_out_by_name_with_all_they_have(tmp_path):
    rows = pd.DataFrame(
        {"u": ["1", "oops", "3", "4", "5", "x"], "who": [1, 2, 1, 3, 3, 3], "y": ["p", None, "q", "p", "q", "q"]}
    )
    file = written(rows, tmp_path / "t.csv")
    settings = {"path": file, "label": "y", "device": "who"}
    assert "'u', row 6: 'x' is not a finite number" in refusal("table", **settings, exclude=[2])
    written(rows.assign(u=["1", "oops", "3", "4", "5", "6"]), file)
    assert load("table", **settings, exclude=[2]).notes == ("left out by data.exclude: 2",)
    written(rows.assign(u=["1", "?", "3", "4", "5", "6"], y=["p", "P", "q", "p", "q", "q"]), file)
    data = load("table", **settings, exclude=[2])
    assert data.device == ("1", "1", "3", "3", "3")
    assert data.train.x[:, 0].tolist() == [1, 3, 4, 5, 6]
    assert data.notes[1:] == ("cells that count as missing, with those of rows left out: '?' 1 in u",)
    assert refusal("table", **settings, exclude=["4"]) == "data.exclude = '4': allowed: 1, 2, 3"
    assert "leaves no device" in refusal("table", **settings, exclude=[1, 2, 3])
    assert "name no devices; set data.device" in refusal("table", path=file, label="y", exclude=["1"])
    assert "data.exclude = '2': must be a list" in refusal("table", **settings, exclude="2")


def test_an_excluded_devices_file_is_not_read(tmp_path):
    for name in "abc":
        written(ROWS, tmp_path / "d" / f"{name}.csv")
    (tmp_path / "d" / "b.csv").write_bytes(b"\0")
    data = load("table", path=tmp_path / "d", label="kind", exclude=["b"])
    assert set(data.device or ()) == {"a", "c"}
    assert refusal("table", path=tmp_path / "d", label="kind", exclude=["x"]) == "data.exclude = 'x': allowed: a, b, c"
