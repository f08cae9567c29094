"""Parcels: what goes in comes out to the bit, and nothing else is taken for one."""

import json
import math
import struct

import hypothesis.strategies as st
import pytest
import torch
from federations import bits, model
from hypothesis import given

from fedcore.errors import InputError
from fedcore.field import wire
from fedcore.field.wire import digest, pack, unpack

TYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from(TYPES), st.lists(st.integers(0, 3), max_size=3)), max_size=5))
def test_what_is_packed_comes_back_to_the_bit(kinds):
    draws = torch.Generator().manual_seed(len(kinds))
    params = {
        f"tensor {i}": torch.randint(0, 2, shape, generator=draws).to(getattr(torch, kind))
        for i, (kind, shape) in enumerate(kinds)
    }
    words = {"ask": "visit", "round": 3, "score": 0.1 + 0.2, "name": "Zürich"}
    found, groups = unpack(pack(words, {"params": params, "extra": {}}), "call")
    assert found == words
    assert list(groups) == ["params", "extra"]
    assert list(groups["params"]) == list(params)
    for name, tensor in params.items():
        there = groups["params"][name]
        assert (there.dtype, there.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(there.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


def test_numbers_that_are_not_finite_travel_as_they_are():
    params = {"z": torch.tensor([math.inf, -math.inf, math.nan, -0.0])}
    words, groups = unpack(pack({"score": math.nan}, {"extra": params}), "call")
    assert math.isnan(words["score"])
    assert bits(groups["extra"]) == bits(params)


def test_a_view_travels_as_its_own_numbers():
    whole = torch.arange(12.0).reshape(3, 4)
    for view in (whole.T, whole[:1, 1]):
        assert torch.equal(unpack(pack({}, {"": {"t": view}}), "call")[1][""]["t"], view)


def test_equal_memories_have_one_digest_and_others_another():
    one = model("one")
    assert digest(one) == digest({name: tensor.clone() for name, tensor in one.items()})
    assert (
        len({digest(one), digest(model("two")), digest({"x": torch.zeros(2)}), digest({"x": torch.zeros(2, 1)})}) == 4
    )
    assert digest({}) == ""


WHOLE = {"words": {}, "groups": {"g": ["x"]}}
END = len(json.dumps(WHOLE))


def damaged(name="0/x", text=None, entry=(), first=(), **changes):
    """A parcel of one tensor whose header says something else. entry, first: of the tensor and of the words."""
    text = json.dumps(WHOLE | changes).encode() if text is None else text
    end = len(text)
    table = {
        "words": {"dtype": "U8", "shape": [end], "data_offsets": [0, end]} | dict(first),
        name: {"dtype": "F32", "shape": [2], "data_offsets": [end, end + 8]} | dict(entry),
    }
    raw = json.dumps(table).encode()
    return struct.pack("<Q", len(raw)) + raw + text + bytes(8)


@pytest.mark.parametrize(
    "parcel",
    [
        b"", b"\x02" + bytes(7), bytes(100), pack({}, {"g": {"x": torch.ones(2)}})[:-1], pack({})[:20], pack({}) + b"0",
        struct.pack("<Q", 1 << 63) + bytes(8), struct.pack("<Q", 9000) + b"[" * 9000, b"\x80\x04\x95" + bytes(60),
        struct.pack("<Q", (1 << 23) + 8) + b"{}".ljust((1 << 23) + 8),
        *(damaged(entry={"shape": shape}) for shape in (
            [3], [-2], [2.0], [True, 2], [1 << 62, 4], [10**4000] * 2000, [1] * 65 + [2], 2, None,
        )),
        *(damaged(entry={"shape": shape, "data_offsets": [END, END]})[:-8] for shape in (
            [1 << 30, 1 << 30, 1 << 30, 0], [1 << 31, 0], [1 << 63, 0],
        )),
        *(damaged(entry={"data_offsets": offsets}) for offsets in (
            [0, 8], [END + 1, END + 9], [END + 8, END], [END, 1 << 62], [-8, 0],
        )),
        *(damaged(entry={"dtype": kind, "shape": shape}) for kind, shape in (
            ("object", [2]), (1, [2]), ("U16", [4]), ("C64", [1]), ("F4", [16]),
        )),
        damaged(first={"dtype": "I8"}), damaged(first={"shape": [END, 0]}),
        damaged(text=b"{"), damaged(text=b"[" * 9000), damaged(text=b"7"), damaged(words=[]), damaged(words=None),
        damaged(groups={}), damaged(groups=["g"]), damaged(groups={"g": ["y"]}), damaged(groups={"g": ["x", "x"]}),
        damaged(groups={"g": 1}), damaged("0/1", groups={"g": [1]}), damaged("1/x"), damaged(long="x" * (1 << 23)),
    ],
)  # fmt: skip
def test_bytes_that_are_no_whole_parcel_are_refused_in_one_line(parcel):
    with pytest.raises(InputError, match=r"^call: damaged or no parcel of fedcore \([^\n]*\)$"):
        unpack(parcel, "call")


def test_a_parcel_that_its_header_describes_is_read():
    """The one that the damaged ones differ from."""
    assert unpack(damaged(), "call")[1]["g"]["x"].tolist() == [0, 0]


def test_a_parcel_of_an_earlier_version_is_named():
    with pytest.raises(InputError, match=r"^call: an earlier version of fedcore wrote it; write it again"):
        unpack(b"fedcore1" + bytes(40), "call")


def test_a_truth_value_is_0_or_1():
    parcel = bytearray(pack({}, {"g": {"x": torch.tensor([True, False])}}))
    parcel[-1] = 2
    with pytest.raises(InputError, match="a truth value that is none"):
        unpack(bytes(parcel), "call")


def test_a_parcel_above_the_limit_is_refused_unread(monkeypatch):
    monkeypatch.setattr(wire, "MOST_BYTES", 100)
    with pytest.raises(InputError, match=r"^call: \d+ bytes, must be at most 100$"):
        unpack(pack({}, {"g": {"x": torch.ones(99)}}), "call")


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn])
def test_other_numbers_cannot_travel(dtype):
    with pytest.raises(InputError, match=r"^tensor x is torch\."):
        pack({}, {"g": {"x": torch.zeros(2).to(dtype)}})


def test_a_file_is_whole_and_for_its_owner_only(tmp_path):
    (tmp_path / ".state.part").symlink_to(tmp_path / "other")  # of a kill, or of somebody else
    for content in (b"one", b"two"):
        wire.write_file(tmp_path / "state", content)
        assert (tmp_path / "state").read_bytes() == content
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
