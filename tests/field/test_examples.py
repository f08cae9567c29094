"""A device's file of examples."""

import pytest
import torch
from federations import bits, device_of

from fedcore.errors import InputError
from fedcore.field.examples import PARTS, read_examples, write_examples
from fedcore.field.wire import pack, unpack
from fedcore.types.federation import Data, Splits

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
