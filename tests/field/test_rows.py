"""A device's rows are checked against the study's schema before anything runs."""

from __future__ import annotations

import pytest

from fedcore.data.schema import Column, Schema
from fedcore.errors import InputError
from fedcore.field.recipe import Recipe
from fedcore.field.rows import DeviceRows

SCHEMA = Schema(
    (4,), "float32", ("bad", "good"),
    (Column("heat", "number"), Column("kind", "text", ("fan", "pump")), Column("old", "boolean")), "state", "site",
)  # fmt: skip
RECIPE = Recipe(SCHEMA, min_size=3)
HEAD, GOOD = "heat,kind,old,state,site", ["1.5,fan,True,good,north", "2,pump,False,bad,north", "?,fan,True,good,north"]


def table(tmp_path, head=HEAD, rows=(*GOOD[:2], "3,fan,True,good,north")):
    file = tmp_path / "rows.csv"
    file.write_text("\n".join([head, *rows]))
    return DeviceRows(file, "north")


def test_rows_become_the_inputs_of_the_schema(tmp_path):
    found = table(tmp_path).read(RECIPE)
    assert found.train.x.tolist() == [[1.5, 1, 0, 1], [2, 0, 1, 0], [3, 1, 0, 1]]
    assert (found.train.y.tolist(), found.device) == ([1, 0, 1], ("north",) * 3)


@pytest.mark.parametrize(
    ("head", "rows", "said"),
    [
        ("heat,kind,state,site", ["1,fan,good,north"], "no column 'old', which the study learns from; it has: heat, k"),
        (HEAD, ["warm,fan,True,good,north"], "column 'heat', row 1: 'warm' is not a finite number"),
        (HEAD, ["1,7,True,good,north"], "column 'kind' has numbers; the model was trained on texts such as 'fan'"),
        (HEAD, ["1,fan,old,good,north"], "column 'old', row 1: 'old' is not True or False"),
        (HEAD, ["1,fan,True,odd,north"], "label 'odd' is unknown to the study; it has: bad, good"),
        (HEAD, GOOD, "column 'heat', row 3: the cell is missing; the study takes complete rows alone (data.missing)"),
        (HEAD, GOOD[:2], "2 rows, the study needs at least 3 (federation.min_size)"),
        (HEAD, [*GOOD[:2], "1,fan,True,good,south"], "column 'site' has rows of 'south'; this device is 'north'"),
        (HEAD, [], "no rows; a file needs a header and at least one example"),
    ],
)
def test_rows_that_do_not_fit_are_refused_in_one_line(head, rows, said, tmp_path):
    with pytest.raises(InputError) as refused:
        table(tmp_path, head, rows).splits(RECIPE, 0)
    assert str(refused.value).startswith(f"--data {tmp_path / 'rows.csv'}: {said}")
    assert "\n" not in str(refused.value)


def test_other_files_than_the_study_learns_from_are_refused(tmp_path):
    with pytest.raises(InputError, match=r": the study learns from a table$"):
        DeviceRows(tmp_path, "north").read(RECIPE)
    with pytest.raises(InputError, match=r"^north: the run has no schema, by which rows could be read"):
        table(tmp_path).splits(None, 0)
    with pytest.raises(InputError, match=r"^--data none.csv: no such file or folder$"):
        DeviceRows(tmp_path.joinpath("none.csv").relative_to(tmp_path), "north")
