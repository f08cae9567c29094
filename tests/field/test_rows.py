"""A device's rows, checked against the study's schema before anything runs, and its file of examples."""

import pytest
import torch
from federations import bits, device_of

from fedcore import Data, InputError, Splits
from fedcore.data.schema import Column, Schema
from fedcore.field.examples import PARTS, read_examples, write_examples
from fedcore.field.recipe import Recipe
from fedcore.field.rows import DeviceRows
from fedcore.field.wire import pack, unpack

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
        (HEAD, GOOD, "column 'heat', row 3: the cell is missing; the study takes only complete rows (data.missing)"),
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


# a file of examples

MINE = device_of("a").data


def test_what_is_written_is_read_to_the_bit(tmp_path):
    images = Data(torch.arange(12, dtype=torch.uint8).reshape(3, 1, 2, 2), torch.tensor([0, 1, 1]))
    labels = Data(torch.zeros(2, 4), torch.tensor([[0.0, 1.0], [1.0, 1.0]]))
    steps = Data(torch.zeros(2, 3), torch.tensor([[0, 1, 2], [2, -1, -1]]))
    for data in (MINE, Splits(images, MINE.val, MINE.test, images), *(Splits(*[of] * 4) for of in (labels, steps))):
        write_examples(tmp_path / "mine", data)
        assert bits(read_examples(tmp_path / "mine")) == bits(data)


def test_a_file_is_for_its_owner_only_and_its_path_may_be_a_text(tmp_path):
    write_examples(str(tmp_path / "mine"), MINE)
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o600


def changed(part, **tensors):
    whole = {name: {"x": getattr(MINE, name).x, "y": getattr(MINE, name).y} for name in PARTS}
    return pack({}, {**whole, part: {**whole.get(part, {}), **tensors}})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"device,label\na,1\n", "damaged or no parcel of fedcore"),
        (pack({}, {"train": {}}), "holds no examples"),
        (changed("more", x=torch.zeros(1)), "holds no examples"),
        (changed("train", z=torch.zeros(1)), "holds no examples"),
        (changed("val", y=torch.zeros(3, dtype=torch.int64)), "val has inputs (7, 4) and labels (3,)"),
        (changed("val", y=torch.zeros(7)), "val has numbers as labels, which devices standardise by a study"),
        (changed("test", x=torch.full((5, 4), torch.nan)), "test has inputs that are not finite"),
        (changed("test", x=MINE.test.x.double()), "test has inputs of torch.float64; nets take torch.float32"),
        (changed("val", y=MINE.val.y - 5), "val has class -5; classes are numbered from 0"),
        (changed("val", y=torch.full((7, 2), 0.5)), "val has labels that are neither 0 nor 1"),
    ],
)
def test_another_file_is_refused_in_one_line(content, said, tmp_path):
    (tmp_path / "mine").write_bytes(content)
    with pytest.raises(InputError) as refused:
        read_examples(tmp_path / "mine")
    assert str(refused.value).startswith(f"{tmp_path / 'mine'}: {said}")
    assert unpack(changed("train"), "whole")[1].keys() == {*PARTS}


def test_a_file_that_is_not_there_is_refused_in_one_line(tmp_path):
    with pytest.raises(InputError, match=r"mine: cannot be read: No such file or directory$"):
        read_examples(tmp_path / "mine")
