"""Files of rows as people have them: separators, encodings, decimal commas."""

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from dataset_files import refusal

from fedcore import spreadsheet
from fedcore.api.serving import read_table
from fedcore.data import load, readers
from fedcore.data.encoding import decimal_setting, encode, from_json, to_json, without_markers
from fedcore.data.readers import read
from fedcore.data.schema import Column, Fit, Schema
from fedcore.errors import InputError

NAMES = ("speed", "name of it", "y")
CELLS = [("1.5", "grün, hell", "p"), ("-2", "rot", "q"), ("3e2", "grün, hell", "q"), ("4", "blau; grau", "p")]


def lines(separator: str, after: str = "") -> str:
    """The same rows with a separator; a cell that holds it is in quotes."""
    rows = [NAMES, *CELLS]
    quoted = [[f'"{cell}"' if separator in cell else cell for cell in row] for row in rows]
    return "".join((separator + after).join(row) + "\n" for row in quoted)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "latin-1", "utf-16", "utf-32"])
@pytest.mark.parametrize(
    ("separator", "said"), [(",", ""), (";", "semicolons"), ("\t", "tabs"), ("|", "vertical bars")]
)
@pytest.mark.slow
def test_separators_and_encodings_are_found(tmp_path: Path, separator: str, said: str, encoding: str):
    text = lines(separator).replace("\n", "\r" if encoding == "latin-1" else "\n")
    (tmp_path / "t.csv").write_bytes(text.encode(encoding))
    rows = read(tmp_path / "t.csv")
    assert [*rows.frame] == [*NAMES]
    assert rows.frame["speed"].tolist() == [1.5, -2, 300, 4]
    assert rows.frame["name of it"].tolist() == [name for _, name, _ in CELLS]
    other = {"utf-8": "", "utf-8-sig": "", "latin-1": "cp1252"}.get(encoding, encoding)
    forms = [said and f"columns separated by {said}", other and f"encoding {other}"]
    assert rows.form == ", ".join(filter(None, forms))
    data = load("table", path=tmp_path / "t.csv", label="y")
    assert data.notes == ((f"read: {rows.form}",) if rows.form else ())


@pytest.mark.parametrize("separator", [",", ";", "|"])
@pytest.mark.slow
def test_a_space_after_the_separator_is_skipped(tmp_path: Path, separator: str):
    (tmp_path / "a.csv").write_text(lines(separator))
    (tmp_path / "b.csv").write_text(lines(separator, " "))
    pd.testing.assert_frame_equal(read(tmp_path / "a.csv").frame, read(tmp_path / "b.csv").frame)


def test_a_table_that_fedcore_wrote_reads_as_the_one_before(tmp_path: Path):
    """Its texts that a spreadsheet would compute have an apostrophe, which is no part of them."""
    cells = {
        "+u": ["1.5", "-", "-2"],
        "=id": ["1", "2", "3"],
        "note": ["-5 dB", "'quoted'", "'-1"],
        "y": ["+ve", "@", "-ve"],
    }
    frame = pd.DataFrame(cells)
    frame.to_csv(tmp_path / "a.csv", index=False)
    spreadsheet.write(frame, tmp_path / "b.csv", index=False)
    assert "'+ve" in (tmp_path / "b.csv").read_text()
    one, other = (read(tmp_path / name, ["-"], "y", ["=id"]) for name in ("a.csv", "b.csv"))
    pd.testing.assert_frame_equal(other.frame, one.frame)
    assert other.frame["+u"].dtype.kind == "f"
    assert (other.markers, other.padded) == (one.markers, one.padded)
    pd.testing.assert_frame_equal(readers.as_written(tmp_path / "b.csv", [*cells]), frame)


@pytest.mark.parametrize("stray", ["k.A.", "#DIV/0!", "5 EUR"])
@pytest.mark.parametrize(("values", "others"), [(30, ",5"), (4, ",5"), (30, "")])
def test_a_text_among_decimal_commas_is_refused_by_row(tmp_path: Path, stray: str, values: int, others: str):
    """As in the file with points, whether it is the only column with commas or not, and whatever another file has."""
    rows = [f"{stray if i == 7 else f'{i % values},5'};{i}{others};{'ab'[i % 2]}\n" for i in range(60)]
    path = tmp_path / "d" / "a.csv"
    path.parent.mkdir()
    errors = []
    for text in ("t;q;y\n" + "".join(rows), ("t;q;y\n" + "".join(rows)).replace(",", ".").replace(";", ",")):
        path.write_text(text)
        errors.append(refusal("table", path=path, label="y"))
    assert errors[0] == errors[1]
    assert f"column 't', row 8: {stray!r} is not a finite number" in errors[0]
    path.write_text("t;q;y\n" + "".join(rows))
    (tmp_path / "d" / "b.csv").write_text("t;q;y\n1;2;a\n2;3;b\n")
    assert refusal("table", path=path.parent, label="y") == errors[0]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "cp1252", "utf-16"])
@pytest.mark.parametrize("row", ["1;x;b", '1;"two\nlines";b', "1;x;b\n", "1;x;b\n  "])
def test_an_error_about_a_row_names_its_line(tmp_path: Path, row: str, encoding: str, end: str):
    """With blank lines, of which pandas makes no row, and cells of two lines."""
    lines = "\n".join(["t;é;y", *[row] * 6, "k.A.;x;b", *["2;x;a"] * 25]).split("\n")
    (tmp_path / "a.csv").write_bytes(end.join(lines).encode(encoding))
    said = refusal("table", path=tmp_path / "a.csv", label="y", ignore=["é"])
    assert f"a.csv, line {lines.index('k.A.;x;b') + 1}: column 't', row 7: 'k.A.' is not" in said


def test_names_and_texts_with_commas_beside_others_stay(tmp_path: Path):
    """Columns of names, those with more texts than numbers, and those beside a column of numbers with a point."""
    lines = [f"{'1,0' if i % 3 else 'k.A.'};{'ab1'[i % 3]};{'0,5' if i % 3 else 'q'}" for i in range(12)]
    path = tmp_path / "t.csv"
    path.write_text("d;t;y;p\n" + "".join(f"{line};{i}.5\n" for i, line in enumerate(lines)))
    data = load("table", path=path, label="y", device="d", categorical=["t"])
    assert (data.classes, {*(data.device or ())}) == (("0,5", "q"), {"1,0", "k.A."})
    path.write_text("t;y;p\n" + "".join(f"{['3,5', 'abcdef'][i % 2]}{i % 2};{i % 2};{i}.5\n" for i in range(12)))
    assert load("table", path=path, label="y").schema.inputs == ("t=3,50", "t=abcdef1", "p")  # type: ignore[union-attr]


def test_a_comma_in_one_file_of_points_is_to_be_written_as_a_point(tmp_path: Path):
    """Its cells are none to count as empty."""
    (tmp_path / "a.csv").write_text('u,y\n1,0\n"0,25",1\n')
    assert refusal("table", path=tmp_path, label="y").endswith(
        "'0,25' is not a finite number; write it as 0.25, or name the column in data.ignore or data.categorical"
    )


def test_the_minus_of_typesetting_is_read_in_numbers_alone(tmp_path: Path):
    minus = "\u2212"
    rows = "".join(f"{minus}{i % 3};{minus}{i},5;{minus}9,0;{'ab'[i % 2]}\n" for i in range(1, 13))
    (tmp_path / "t.csv").write_text("d;u;v;y\n" + rows + f"n;7,5;{minus}1;a\n")
    data = load("table", path=tmp_path / "t.csv", label="y", device="d", missing="median", missing_values=["-9"])
    assert {*(data.device or ())} == {f"{minus}0", f"{minus}1", f"{minus}2", "n"}
    assert data.train.x[:, 0].tolist() == [*(-i - 0.5 for i in range(1, 13)), 7.5]
    assert data.schema is not None
    assert data.schema.inputs == ("u",)
    assert "v" in data.schema.left_out
    text = pd.DataFrame({"u": pd.Series([f"{minus}1", "2", f"{minus}3"]).astype("category"), "y": [0, 1, 0]})
    text.to_parquet(tmp_path / "t.parquet")
    assert load("table", path=tmp_path / "t.parquet", label="y").train.x.tolist() == [[-1], [2], [-3]]


@pytest.mark.parametrize("line", ["sep=;", '"sep=;"', "# from a machine"])
def test_a_first_line_that_is_no_header_is_named(tmp_path: Path, line: str):
    (tmp_path / "t.csv").write_text(f"{line}\nu;v;y\n1,5;2;0\n2,5;3;1\n")
    assert f"line 1, {line!r}, is not the header; remove it" in refusal("table", path=tmp_path / "t.csv", label="y")
    (tmp_path / "t.csv").write_text(f"{line}\n# of; two; cells\nu;v;y\n1,5;2;0\n2,5;3;1\n")
    assert "is not the header; remove lines 1 to 2" in refusal("table", path=tmp_path / "t.csv", label="y")
    (tmp_path / "t.csv").write_text(f"{line}\n#u;v;y\n1,5;2;0\n2,5;3;1\n")
    assert "is not the header; remove it" in refusal("table", path=tmp_path / "t.csv", label="y")
    (tmp_path / "t.csv").write_text("#u;v;y\n1,5;2;0\n2,5;3;1\n")
    assert load("table", path=tmp_path / "t.csv", label="y").train.x.tolist() == [[1.5, 2], [2.5, 3]]


@pytest.mark.parametrize("line", ["# made by, shift b, line 3", "#a,b,c", "# of 4, cells, now, here"])
@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_a_comment_as_wide_as_the_header_is_not_the_header(tmp_path: Path, line: str, mark: str):
    """But it is where rows follow, as NumPy writes them: a row of texts alone is no header, nor one above texts."""
    path = tmp_path / "t.csv"
    path.write_text(f"{line}\nu,v,y\n1.5,2,a\n2.5,?,b\n".replace(",", mark))
    said = f"line 1, {line.replace(',', mark)!r}, is not the header; remove it"
    assert said in refusal("table", path=path, label="y")
    path.write_text(f"{line}\n# more\nu,v,y\n1.5,2,a\n2.5,?,b\n".replace(",", mark))
    assert "is not the header; remove lines 1 to 2" in refusal("table", path=path, label="y")
    for rows in ("1.5,2,a\n2.5,3,b\n", "p,2,a\nq,3,b\n", "p,n/a,a\nq,r,b\n"):
        path.write_text(f"# u,v,y\n{rows}".replace(",", mark))
        assert [*read(path).frame] == ["# u", "v", "y"]


@pytest.mark.parametrize("separator", [";", "\t"])
def test_decimal_commas_are_numbers(tmp_path: Path, separator: str):
    text = "u;v;n;y\n1,5;0,125;7;p\n-2,25;1,500;-;q\n3;?;9;p\n,5;1e-3;4;q\n".replace(";", separator)
    (tmp_path / "t.csv").write_text(text)
    rows = read(tmp_path / "t.csv")
    assert rows.frame["u"].tolist() == [1.5, -2.25, 3, 0.5]
    assert rows.frame["v"].dropna().tolist() == [0.125, 1.5, 0.001]
    assert rows.form.endswith(", decimal commas")


def test_commas_in_texts_are_no_decimal_commas(tmp_path: Path):
    (tmp_path / "t.csv").write_text("u;codes;y\n1.5;1,2;p\n2.5;7,x;q\n")
    rows = read(tmp_path / "t.csv")
    assert rows.frame["u"].tolist() == [1.5, 2.5]
    assert rows.frame["codes"].tolist() == ["1,2", "7,x"]


AMBIGUOUS = {
    # name: (content, what the line must say)
    "thousands or decimals": (
        "u;y\n1,234;p\n12,500;q\n",
        ["'1,234' in column 'u'", "or data.decimal=point (fedcore docs files)"],
    ),
    "commas and points": ("u;v;y\n1,5;2.5;p\n2,5;1.5;q\n", ["'1,5' in column 'u'", "with a point (column 'v')"]),
    "commas and points in a column": ("u;y\n1,5;p\n2.5;q\n", ["'1,5' in column 'u'", "with a point (column 'u')"]),
    "thousands and decimals": ("u;y\n1.234,5;p\n2,5;q\n", ["'1.234,5' in column 'u' has separated thousands"]),
    "many thousands": ("u;y\n1.234.567;p\n2;q\n", ["'1.234.567' in column 'u' has separated thousands"]),
    "two separators": ("a,b;y\n1,2;p\n3,4;q\n", ["in two ways (2 by commas and 2 by semicolons)", "in quotes"]),
}


@pytest.mark.parametrize("separator", [";", "\t", ","])
@pytest.mark.parametrize(("decimal", "numbers"), [("comma", [7.041, -12.5, 0.25]), ("point", [7041, -12500, 250])])
def test_the_user_says_whether_commas_are_decimal_or_separate_thousands(
    tmp_path: Path, separator: str, decimal: str, numbers: list[float]
):
    """In each kind of file, in a column with a missing cell, beside a stray text, and for a model's new rows."""
    cells = ["7,041", "-12,500", "250" if decimal == "point" else "0,250"]
    frame = pd.DataFrame({"d": ["1,500"] * 3, "u": cells, "v": [*cells[:2], "n/a"], "w": [*cells[:2], "x"]})
    frame["y"] = ["p", "q", "p"]
    frame.to_csv(tmp_path / "t.csv", sep=separator, index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    tables = [
        load("table", path=tmp_path / name, label="y", device="d", ignore=["w"], decimal=decimal, missing="median")
        for name in ("t.csv", "t.parquet")
    ]
    for data in tables:
        assert data.train.x[:, 0].tolist() == numbers
        assert data.train.x[:2, 1].tolist() == numbers[:2]
        assert {*(data.device or ())} == {"1,500"}
        assert data.schema is not None
        assert from_json(to_json(data.schema)) == data.schema
        own = read_table(tmp_path / "t.csv", data.schema).frame
        assert encode(own, replace(data.schema, shared=Fit(fill=(0.0, 0.0))))[:, 0].tolist() == pytest.approx(numbers)
        said = refusal("table", path=tmp_path / "t.csv", label="y", decimal=decimal, missing="median")
        assert "column 'w', row 3: 'x' is not a finite number" in said
    assert tables[0].schema == tables[1].schema
    frame[["d", "y"]].assign(u=[1, 2, 3]).to_parquet(tmp_path / "n.parquet")
    plain = load("table", path=tmp_path / "n.parquet", label="y").schema
    assert plain is not None
    assert '"decimal"' not in to_json(plain)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("decimal", "cell", "said"),
    [
        ("comma", "1.5", "column 'u' has numbers with a point, not with data.decimal = comma"),
        ("comma", "1.234,5", "'1.234,5' in column 'u' has separated thousands; write it without them"),
        ("point", "1,5", "'1,5' in column 'u' needs a decimal point, as data.decimal = point"),
        ("auto", "1,234.5", "has separated thousands; write it without them, or set data.decimal=point"),
        ("dot", "1", "data.decimal = 'dot': "),
    ],
)
def test_a_number_against_the_said_decimal_mark_is_refused(
    tmp_path: Path, decimal: str, cell: str, said: str, suffix: str
):
    frame = pd.DataFrame({"u": [cell, "2"], "y": ["p", "q"]})
    frame.to_csv(tmp_path / "t.csv", sep=";", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    path = tmp_path / f"t.{'csv' if decimal == 'auto' else suffix}"
    assert said in refusal("table", path=path, label="y", decimal=decimal)


def test_texts_with_commas_among_numbers_name_the_setting(tmp_path: Path):
    (tmp_path / "t.csv").write_text('u,v,y\n250,"1,234",p\n"7,041","2,345",q\n')
    said = refusal("table", path=tmp_path / "t.csv", label="y")
    assert "row 2: '7,041' is not a finite number; set data.decimal=comma or data.decimal=point (fedcore" in said
    (tmp_path / "t.csv").write_text('u,y\n250,p\n"0,041",q\n')
    said = refusal("table", path=tmp_path / "t.csv", label="y")
    assert "row 2: '0,041' is not a finite number; write it as 0.041" in said
    columns = [pd.Series([1.0, None, np.inf], dtype=dtype) for dtype in ("float64", "Float64", "double[pyarrow]")]
    assert decimal_setting("7,041", columns) == "data.decimal=comma or data.decimal=point"
    assert decimal_setting("7,041", [pd.Series([1.5], dtype="double[pyarrow]")]) == "data.decimal=point if it is 7041"


@pytest.mark.parametrize("case", AMBIGUOUS)
def test_what_can_be_read_in_two_ways_is_refused(tmp_path: Path, case: str):
    content, said = AMBIGUOUS[case]
    (tmp_path / "t.csv").write_text(content)
    line = refusal("table", path=tmp_path / "t.csv", label="y")
    assert line.startswith(f"data.path = {tmp_path / 't.csv'}: ")
    for words in said:
        assert words in line


@pytest.mark.parametrize(("cells", "said"), [("987 1.234 12.500", 1), ("987 1.234 12.50", 0), ("5 1234 ?", 0)])
@pytest.mark.parametrize("mark", [";", "\t", "|", ","])
@pytest.mark.slow
def test_points_that_may_separate_thousands_are_said(tmp_path: Path, cells: str, said: int, mark: str):
    (tmp_path / "t.csv").write_text("\n".join(f"{u}{mark}p" for u in ["u", *cells.split(), "-5"]))
    thousands = "points in 'u' as decimal points (if they separate thousands, write 1234 for 1.234)"
    assert read(tmp_path / "t.csv").form.count(thousands) == said * (mark != ",")


@pytest.mark.parametrize("mark", [";", "\t", "|"])
@pytest.mark.parametrize("cell", ["1.100", "2.000"])
def test_a_late_point_that_may_separate_thousands_is_said(tmp_path: Path, mark: str, cell: str):
    rows = [f"{i}{mark}{i}.5{mark}p" for i in range(1500)] + [f"{cell}{mark}7.5{mark}q"]
    (tmp_path / "t.csv").write_text("\n".join([f"u{mark}v{mark}y", *rows]))
    thousands = "points in 'u' as decimal points (if they separate thousands, write 1234 for 1.234)"
    form = read(tmp_path / "t.csv").form
    assert form.endswith(thousands)
    assert "'v'" not in form


@pytest.mark.parametrize(
    ("cell", "said"), [("007", "007"), ('"01067"', "01067"), ("07:30", None), ("0.07", None), ("0", None)]
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("mark", [",", ";"])
def test_late_zeros_in_front_are_found(tmp_path: Path, cell: str, said: str | None, encoding: str, mark: str):
    rows = [f"{i % 90}{mark}p{mark}7" for i in range(1500)] + [f"5{mark}q{mark}{cell}"]
    (tmp_path / "t.csv").write_text("\n".join([f"u{mark}y{mark}zip", *rows]), encoding=encoding)
    assert read(tmp_path / "t.csv").padded == ({} if said is None else {"zip": said})


def test_late_zeros_in_front_are_found_beside_early_ones(tmp_path: Path):
    rows = [f"0{i},{i},7\n" for i in range(1500)] + ["1,007,7\n"]
    (tmp_path / "t.csv").write_text("".join(["early,late,never\n", *rows]))
    assert read(tmp_path / "t.csv").padded == {"early": "00", "late": "007"}


def test_a_name_may_have_other_separators(tmp_path: Path):
    (tmp_path / "t.csv").write_text("a;b;c|d,y\n1,0\n2,1\n")
    assert load("table", path=tmp_path / "t.csv", label="y").train.x.tolist() == [[1], [2]]


def test_a_short_row_is_refused_beside_a_long_cell(tmp_path: Path):
    (tmp_path / "t.csv").write_text(f"y,n,x\np,{'z' * 200_000},1\nq,z,2\np,z\n")
    assert "line 4 has 2 of 3 cells; write empty ones, too" in refusal("table", path=tmp_path / "t.csv", label="y")


def test_a_long_file_is_told_by_its_beginning(tmp_path: Path):
    (tmp_path / "t.csv").write_text("a;b\n" + "1,5;2\n" * 30_000)
    assert read(tmp_path / "t.csv").frame.shape == (30_000, 2)


@pytest.mark.parametrize("content", [b"a,y\n1,\0\n", bytes(range(128, 256)) * 9])
def test_what_is_no_text_is_refused(tmp_path: Path, content: bytes):
    (tmp_path / "t.csv").write_bytes(content)
    assert "t.csv: cannot be read as .csv (" in refusal("table", path=tmp_path / "t.csv", label="y")


@pytest.mark.slow
def test_the_forms_of_a_folders_files_are_said(tmp_path: Path):
    for name, text in (("a", lines(",")), ("b", lines(";")), ("c", lines(";"))):
        (tmp_path / f"{name}.csv").write_text(text)
    (tmp_path / "d.tsv").write_text(lines("\t"))
    data = load("table", path=tmp_path, label="y")
    assert data.notes == (
        "read: columns separated by semicolons (2 of 4 files: b.csv, c.csv)",
        "read: columns separated by tabs (1 of 4 files: d.tsv)",
    )
    for first in range(4, 16, 4):
        torch.testing.assert_close(data.train.x[:4], data.train.x[first : first + 4], rtol=0, atol=0)


def test_a_parquet_file_that_unfolds_is_refused_by_what_it_declares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A column of equal values takes next to nothing in the file."""
    file = tmp_path / "bomb.parquet"
    pd.DataFrame({"load": np.zeros(300_000), "heat": np.zeros(300_000)}).to_parquet(file)
    assert file.stat().st_size < 10_000
    assert len(read(file).frame) == 300_000
    monkeypatch.setattr(readers, "CELLS", 500_000)
    with pytest.raises(InputError, match="declares 600,000 cells, at most 500,000 are read"):
        read(file)
    monkeypatch.undo()
    monkeypatch.setattr(readers, "UNFOLDED", 1)
    with pytest.raises(InputError, match=r"declares [\d,]+ bytes, at most 1 are read"):
        read(file)


@pytest.mark.parametrize("other", ["", "?", "NA", "5"])
@pytest.mark.parametrize("marker", ["-999", "-999.0", "-9.99e2"])
@pytest.mark.parametrize("names", [(), ("a",)])
@pytest.mark.slow
def test_a_number_that_is_a_marker_is_missing_in_any_column(tmp_path, other, marker, names):
    file = tmp_path / "d.csv"
    file.write_text("a,b\n" + "".join(f"{cell},0\n" for cell in (marker, marker, other, "1.5")))
    rows = readers.read(file, ["?", "NA", "-999"], "b", names)
    assert rows.frame["a"].isna().tolist() == [True, True, other != "5", False]
    assert rows.markers["a"].get(marker, rows.markers["a"].get("-999")) == 2


@pytest.mark.parametrize("kind", ["float16", "float32", "Float32", "decimal", "text", "words"])
@pytest.mark.slow
def test_a_number_that_is_a_marker_is_missing_in_parquet(tmp_path: Path, kind: str):
    cells = {"decimal": [Decimal("-99.9"), Decimal("1.5")], "text": ["-99.90", "1.5"], "words": ["-99.90", "x"]}
    column = pd.Series(cells.get(kind, [-99.9, 1.5]), dtype=None if kind in cells else kind)
    pd.DataFrame({"a": column}).to_parquet(tmp_path / "t.parquet")
    for names in ((), ("a",)):  # as in a CSV file
        assert read(tmp_path / "t.parquet", ["-99.9"], None, names).frame["a"].isna().tolist() == [True, False]


@pytest.mark.parametrize("kind", [object, "category", "Float32", str])
def test_a_number_that_is_a_marker_is_missing_in_a_frame(kind: Any):
    rows = pd.DataFrame({"a": pd.Series([-99.9, 1.5]).astype(kind)})
    schema = Schema((1,), "float64", ("u", "v"), (Column("a", "number"),), missing_values=("-99.9",))
    assert without_markers(rows, schema)["a"].isna().tolist() == [True, False]


def test_a_marker_beside_a_large_whole_number_is_missing(tmp_path: Path):
    (tmp_path / "t.csv").write_text("a,b\n18446744073709551615,0\n-999,0\n5,0\n")
    assert read(tmp_path / "t.csv", ["-999"]).frame["a"].isna().tolist() == [False, True, False]


@pytest.mark.parametrize("texts", [["9007199254740993", "-5"], [str(2**64 - 1), "7"], [str(2**70 + 1), "7"]])
def test_whole_numbers_beside_an_empty_cell_keep_their_digits(tmp_path: Path, texts: list[str]):
    file = tmp_path / "t.csv"
    file.write_text("".join(f"{of},1\n" for of in ("n", *texts, "", "-999")))
    column = read(file, missing_values=("-999",)).frame["n"]
    assert [str(of) for of in column.dropna()] == texts
    assert column.isna().tolist() == [False, False, True, True]


def test_other_numbers_beside_an_empty_cell_are_floats_as_before(tmp_path: Path):
    for texts in (["9007199254740992", "-5"], ["9007199254740993", "0.5"], ["1e300", "2"]):
        (tmp_path / "t.csv").write_text("".join(f"{of},1\n" for of in ("n", *texts, "")))
        column = read(tmp_path / "t.csv").frame["n"]
        assert (column.dtype, column.dropna().tolist()) == ("float64", [*map(float, texts)])
