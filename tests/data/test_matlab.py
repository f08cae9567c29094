"""MATLAB files against SciPy's writer and reader, and damaged ones."""

import random
import struct
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from damaged_files import damage
from dataset_files import REAL, real
from numpy.testing import assert_array_equal
from scipy.io import loadmat, savemat

from fedcore.data import matlab
from fedcore.data.matlab import HEADER, arrays

NUMBERS = {
    **{f"a_{kind}": np.arange(7).astype(kind)[:, None] for kind in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")},
    **{f"a_{kind}": np.linspace(-1, 1, 24).reshape(2, 3, 4).astype(kind) for kind in ("f4", "f8")},
    "X105RPM": np.array([[1797]], np.uint16), "empty": np.zeros((0, 3)), "n" * 31: np.eye(3),
}  # fmt: skip
OTHERS = {
    "text": "drive end", "record": {"x": np.ones(3), "y": "z"}, "cells": np.array([np.ones(2), "a"], object),
    "waves": np.exp(1j * np.arange(4.0)),
}  # fmt: skip


def whole(file: Path, compressed: bool) -> Path:
    savemat(file, OTHERS | NUMBERS, do_compression=compressed)
    return file


def unpacked(file: Path) -> list[bytes]:
    """Return the elements of a file with compressed ones, decompressed."""
    raw, at, found = file.read_bytes(), HEADER, []
    while at < len(raw):
        size = struct.unpack_from("<I", raw, at + 4)[0]
        found.append(zlib.decompress(raw[at + 8 : at + 8 + size]))
        at += 8 + size
    return found


def packed(content: bytes) -> bytes:
    deflated = zlib.compress(content, 1)
    return struct.pack("<2I", 15, len(deflated)) + deflated


@pytest.mark.parametrize("compressed", [False, True])
def test_arrays_are_those_that_scipy_wrote(tmp_path: Path, compressed: bool):
    found = arrays(whole(tmp_path / "a.mat", compressed))
    assert [*found] == [*OTHERS, *NUMBERS]
    assert {name for name, values in found.items() if values is None} == {*OTHERS}
    for name, values in NUMBERS.items():
        assert_array_equal(found[name], values, strict=True)


def test_a_file_of_the_other_byte_order_is_read(tmp_path: Path):
    """Written here, tag by tag; SciPy reads the same."""
    values = np.arange(6.0).reshape(3, 2)
    inner = struct.pack(">4I", 6, 8, 6, 0) + struct.pack(">2I2i", 5, 8, 3, 2) + struct.pack(">2H4s", 2, 1, b"ab")
    inner += struct.pack(">2I6d", 9, 48, *values.T.ravel())
    head = b"MATLAB 5.0 MAT-file".ljust(124) + b"\1\0MI"
    file = tmp_path / "big.mat"
    file.write_bytes(head + struct.pack(">2I", 14, len(inner)) + inner)
    assert_array_equal(arrays(file)["ab"], values)
    assert_array_equal(loadmat(file)["ab"], values)


@real
@pytest.mark.slow
@pytest.mark.parametrize("number", [97, 105])
def test_published_records_are_those_that_scipy_reads(number: int):
    file = REAL / "CWRU" / f"{number}.mat"
    if not file.is_file():
        pytest.skip("FEDCORE_DATA holds no CWRU folder: published records not read")
    found = arrays(file)
    expected = {name: values for name, values in loadmat(file).items() if not name.startswith("__")}
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert_array_equal(found[name], values, strict=True)


# damaged files


@pytest.mark.parametrize("kind", ["plain", "compressed", "damaged before it was compressed"])
@pytest.mark.slow
def test_any_damage_is_refused_or_read(tmp_path: Path, kind: str):
    file = whole(tmp_path / "a.mat", kind != "plain")
    raw, inner = file.read_bytes(), unpacked(file) if kind.startswith("damaged") else []
    refused: list[str] = []
    for seed in range(350):
        draw = random.Random(seed)
        if inner:
            file.write_bytes(raw[:HEADER] + packed(damage(draw.choice(inner), draw)))
        else:  # one in ten also in its header
            start = draw.choice([0] + [HEADER] * 9)
            file.write_bytes(raw[:start] + damage(raw[start:], draw))
        try:
            for values in arrays(file).values():
                assert values is None or len(values.tobytes()) < file.stat().st_size + (1 << 16)
        except ValueError as error:
            refused.append(str(error))
    assert 100 < len(refused) < 350
    assert all(map(str.isprintable, refused))


def test_an_unknown_type_of_data_element_is_refused(tmp_path: Path):
    file = whole(tmp_path / "a.mat", False)
    raw = bytearray(file.read_bytes())
    at = raw.index(struct.pack("<2I", 9, 24 * 8))  # of the values of a_f8
    for kind in (0, 8, 10, 11, 14, 16, 2**16 - 1):
        raw[at : at + 4] = struct.pack("<I", kind)
        file.write_bytes(raw)
        with pytest.raises(ValueError, match=f"a data element of type {kind} within an array, expected 1, 2, 3"):
            arrays(file)


@pytest.mark.parametrize("sizes", [(2**31 - 1, 2**31 - 1), (0, -1), (-2, -12), (24, 2), (23, 1), (24,)])
def test_dimensions_that_are_not_those_of_the_values_are_refused(tmp_path: Path, sizes: tuple[int, ...]):
    file = tmp_path / "a.mat"
    savemat(file, {"x": np.zeros((24, 1))})
    raw = file.read_bytes()
    place = raw.index(struct.pack("<2I2i", 5, 8, 24, 1))
    changed = struct.pack(f"<2I{len(sizes)}i", 5, 4 * len(sizes), *sizes).ljust(16, b"\0")
    file.write_bytes(raw[:place] + changed + raw[place + 16 :])
    with pytest.raises(ValueError, match=r"x has 24 values|dimensions"):
        arrays(file)


def test_a_declared_size_takes_no_memory(tmp_path: Path):
    file = whole(tmp_path / "a.mat", False)
    for size in (0x7FFFFFF8, 0xFFFFFFF8):
        file.write_bytes(file.read_bytes()[:HEADER] + struct.pack("<2I", 14, size) + bytes(48))
        tracemalloc.start()
        with pytest.raises(ValueError, match=f"a data element of {size:,} bytes where 48 are there"):
            arrays(file)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        tracemalloc.stop()


@pytest.mark.slow
def test_a_file_is_not_decompressed_beyond_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Neither in one array nor in many."""
    monkeypatch.setattr(matlab, "LARGEST", 1 << 21)
    file = tmp_path / "a.mat"
    for name, count, each in (("one", 1, 8 << 20), ("many", 40, 1 << 17)):
        savemat(file, {f"{name}{k}": np.zeros(each // 8) for k in range(count)}, do_compression=True)
        assert file.stat().st_size < 1 << 16
        tracemalloc.start()
        with pytest.raises(ValueError, match="more than 2,097,152 bytes when decompressed"):
            arrays(file)
        assert tracemalloc.get_traced_memory()[1] < 3 << 21
        tracemalloc.stop()


def test_two_arrays_of_one_name_are_refused(tmp_path: Path):
    file = tmp_path / "a.mat"
    savemat(file, {"x": np.ones(3)})
    raw = file.read_bytes()
    file.write_bytes(raw + raw[HEADER:])
    with pytest.raises(ValueError, match="two arrays named x"):
        arrays(file)


def test_a_file_that_is_too_large_is_not_opened(tmp_path: Path):
    file = tmp_path / "a.mat"
    with file.open("wb") as opened:
        opened.truncate(matlab.LARGEST + 1)  # takes no room
    with pytest.raises(ValueError, match="134,217,729 bytes, at most 134,217,728 are read"):
        arrays(file)


def test_no_other_version_is_read(tmp_path: Path):
    file = tmp_path / "a.mat"
    savemat(file, {"x": 1.0}, format="4")
    with pytest.raises(ValueError, match="no header of a MATLAB file of version 5 to 7"):
        arrays(file)
