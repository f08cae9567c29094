"""No text of a CSV file is a formula, and every text reads back."""

import csv
import io
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore import spreadsheet
from fedcore.config.settings import slug

FORMULAS = ["=1+1", "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", '=HYPERLINK("http://x")', "＝1", "-", "'=1"]  # noqa: RUF001
PLAIN = ["plant A", "-1", "+0.5", "-1e-07", "-3,466", "'quoted'", "a=b", "", "1=", "nan"]
STRANGE = ["<b>x</b>", "../../etc/passwd", "a/b", "a\nb", "\u202edevice", "a\u200fb", "=1+1", "ü x", "." * 300]


def written(cell: str) -> str:
    """Return a name as a CSV file has it, read by another reader."""
    text = spreadsheet.write(pd.DataFrame({"name": [cell]}), index=False)
    _, (found,) = csv.reader(io.StringIO(text))
    return found


@pytest.mark.parametrize("cell", FORMULAS)
def test_a_formula_is_written_as_a_text(cell: str):
    assert written(cell) == f"'{cell}"
    assert spreadsheet.unquote(written(cell)) == cell


@pytest.mark.parametrize("cell", [cell for cell in PLAIN if cell])
def test_numbers_and_other_names_stay_as_they_are(cell: str):
    assert written(cell) == cell
    assert spreadsheet.unquote(cell) == cell


@settings(max_examples=200)
@given(st.text(alphabet="'=+-@\t 1aé", max_size=6))
@pytest.mark.slow
def test_every_text_reads_back_and_none_begins_a_formula(text: str):
    quoted = spreadsheet.quote(text)
    assert spreadsheet.unquote(quoted) == text
    if quoted[:1] in {*"=+-@\t"} and quoted:
        float(quoted)  # a number


def test_columns_and_index_are_names_too_and_numbers_keep_their_digits(tmp_path: Path):
    frame = pd.DataFrame(
        {"=cmd": [-1.5, 2.0], "label": ["@x", None], "count": [-3, 4], "mixed": [-1, "=2"]},
        index=pd.Index(["-a", "b"], name="+device"),
    )
    spreadsheet.write(frame, tmp_path / "x.csv")
    lines = (tmp_path / "x.csv").read_text().splitlines()
    assert lines == ["'+device,'=cmd,label,count,mixed", "'-a,-1.5,'@x,-3,-1", "b,2.0,,4,'=2"]
    back = spreadsheet.read(tmp_path / "x.csv", index_col=0)
    assert [*back.columns] == [*frame.columns]
    assert [*back.index] == [*frame.index]
    assert back.index.name == "+device"
    assert back["label"][0:1].tolist() == ["@x"]
    assert back["=cmd"].tolist() == [-1.5, 2.0]


def test_a_table_without_such_texts_has_the_bytes_of_pandas():
    frame = pd.DataFrame({"a": ["x", "y"], "b": [1.25, float("nan")], "c": [True, False], "d": [1, None]}, dtype=object)
    for one in (frame, frame.convert_dtypes(), frame.astype({"a": "category"})):
        assert spreadsheet.write(one, index=False) == one.to_csv(index=False)


@pytest.mark.parametrize("name", ["NA", "null", "nan", "01", "1.50", "True", "=1"])
def test_a_name_is_read_as_it_was_written(tmp_path: Path, name: str):
    spreadsheet.write(pd.DataFrame({"dataset": [name], "wall": [None], "says": ["NA"]}), tmp_path / "x", index=False)
    back = spreadsheet.read(tmp_path / "x")
    assert (back["dataset"].tolist(), back["says"].tolist(), back["wall"].isna().all()) == ([name], ["NA"], True)


@pytest.mark.parametrize("name", STRANGE)
def test_a_strange_name_is_one_plain_file_name(name: str):
    found = slug(name)
    assert found == Path(found).name or found in ("", ".", "..")
    assert found.isascii()
    assert found.isprintable()


@pytest.mark.parametrize("name", STRANGE)
@pytest.mark.slow
def test_a_strange_name_is_a_plain_metric_and_itself_in_mlflows_table(name: str):
    from fedcore.pipeline.record.contents import device_table, read_device_table, safe_name  # it imports MLflow

    assert safe_name(name).isascii()
    assert safe_name(name).isprintable()
    assert not {*safe_name(name)} & {*"/\\<>\n"}
    columns = ["study", "dataset", "setting", "method", "seed", "stage", "round", "device", "split", "metric", "value"]
    rows = [["s", "d", "base", "m", 0, 0, 1, name, "test", "accuracy", 0.5]]
    table = read_device_table(device_table(pd.DataFrame(rows, columns=columns)))
    assert table.loc[name, "test/accuracy"] == 0.5


@pytest.mark.slow
def test_different_strange_names_have_different_metrics():
    from fedcore.pipeline.record.contents import safe_name

    assert len({safe_name(name) for name in STRANGE}) == len(STRANGE)
