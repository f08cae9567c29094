"""Damaged files of data: each is refused in one line that names it, or read; nothing else comes of it."""

import bz2
import gzip
import random
import struct
import tracemalloc
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from damaged_files import LABELS, PIXELS, SETS, damage, leaf
from dataset_files import refusal, written

from fedcore import InputError, load
from fedcore.data.files import idx, one_line
from fedcore.data.pictures import picture


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
@pytest.mark.parametrize("sizes", [(2**32 - 1, 0, 2**32 - 1), (2**32 - 1,) * 3, (0, 28, 28)])
def test_an_idx_file_of_odd_sizes_is_refused(tmp_path: Path, name: str, sizes: tuple[int, ...]):
    file = written(tmp_path) / "MNIST" / "raw" / name
    raw = file.read_bytes()
    header = raw[:4] + struct.pack(f">{raw[3]}I", *sizes[: raw[3]])
    file.write_bytes(header)
    assert name in refusal("mnist", root=tmp_path, download=False)


@pytest.mark.parametrize(
    "line",
    [
        f"1 99999999999999999999:1 {PIXELS}", f"1 2147483648:1 {PIXELS}", f"nan {PIXELS}", f"1e300 {PIXELS}",
        f"-inf {PIXELS}",
    ],
)  # fmt: skip
def test_a_line_of_usps_with_numbers_out_of_range_is_refused(tmp_path: Path, line: str):
    (tmp_path / "USPS").mkdir()
    for name in ("usps.bz2", "usps.t.bz2"):
        (tmp_path / "USPS" / name).write_bytes(bz2.compress(f"{line}\n".encode()))
    assert "USPS/usps.bz2" in refusal("usps", root=tmp_path, download=False)


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000, leaf(x=[[10**400] * 784]), leaf(x=[[None] * 784]), leaf(x=[["a"] * 784]), leaf(x={}),
        b'{"users": [[]]}',
    ],
)  # fmt: skip
def test_json_that_is_no_leaf_is_refused(tmp_path: Path, content: bytes):
    (tmp_path / "all_data").mkdir()
    (tmp_path / "all_data" / "1.json").write_bytes(content)
    assert "all_data/1.json: cannot be read (" in refusal("leaf", path=tmp_path)


ODD = {"list": [[1, 2]] * 30, "struct": [{"a": 1}] * 30, "bytes": [b"\xff"] * 30}


@pytest.mark.parametrize("kind", ODD)
def test_a_parquet_column_of_neither_numbers_nor_names_is_not_read(tmp_path: Path, kind: str):
    file = tmp_path / "t.parquet"
    pq.write_table(pa.table({"u": [i / 2 for i in range(30)], "odd": ODD[kind], "y": LABELS}), file)
    assert load("table", path=file, label="y").train.x.shape == (30, 1)
    said = refusal("table", path=file, label="odd")
    why = "is not read: lists, structs or bytes; give a column for each number"
    assert said == f"data.label = 'odd': this column of {file} {why}"


def test_parquet_columns_of_one_name_are_refused(tmp_path: Path):
    file = tmp_path / "t.parquet"
    numbers = pa.array([0.5] * 30)
    pq.write_table(pa.Table.from_arrays([numbers, numbers, pa.array(LABELS)], names=["u", "u", "y"]), file)
    assert "two of them named 'u'" in refusal("table", path=file, label="y")


# any bytes


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the readers, about what they are given
@pytest.mark.parametrize("name", SETS)
def test_damaged_bytes_are_refused_in_one_line_or_read(tmp_path: Path, name: str):
    files, read = SETS[name](tmp_path)
    draw = random.Random(name)
    for number in range(40):
        file = files[number % len(files)]
        whole = file.read_bytes()
        file.write_bytes(damage(whole, draw))
        try:
            read()
        except InputError as refused:
            line = str(refused)
            assert "\n" not in line
            assert str(tmp_path) in line
        file.write_bytes(whole)
    read()  # the whole files are still read


def zeros(head: bytes, count: int, kind: str) -> bytes:
    """Return a small file that holds a head and then so many MB of zeros."""
    pack = bz2.BZ2Compressor() if kind == "bz2" else zlib.compressobj(1, zlib.DEFLATED, 31)
    return b"".join([pack.compress(head), *(pack.compress(bytes(1 << 20)) for _ in range(count)), pack.flush()])


@pytest.mark.parametrize("sizes", [(1, 28, 28), (2**20, 2**6, 2**6)])
@pytest.mark.slow
def test_a_gz_file_is_not_decompressed_beyond_its_header(tmp_path: Path, sizes: tuple[int, ...]):
    file = tmp_path / "images.gz"
    file.write_bytes(zeros(bytes((0, 0, 8, 3)) + struct.pack(">3I", *sizes), 200, "gz"))
    tracemalloc.start()
    with pytest.raises(InputError, match=r"images\.gz has (more than 784 bytes|the header .* at most 1,073,741,824)"):
        idx(tmp_path, file, 3)
    assert tracemalloc.get_traced_memory()[1] < 1 << 22
    tracemalloc.stop()
    file.write_bytes(gzip.compress(bytes((0, 0, 8, 3)) + struct.pack(">3I", 1, 2, 2) + b"abcd"))
    assert idx(tmp_path, file, 3).tobytes() == b"abcd"


@pytest.mark.slow
def test_a_bz2_file_is_not_decompressed_beyond_its_limit(tmp_path: Path):
    (tmp_path / "USPS").mkdir()
    for name in ("usps.bz2", "usps.t.bz2"):
        (tmp_path / "USPS" / name).write_bytes(zeros(b"", 80, "bz2"))
    assert "more than 67,108,864 bytes when decompressed" in refusal("usps", root=tmp_path, download=False)


def test_a_picture_of_too_many_pixels_is_refused_by_its_header(tmp_path: Path):
    """A PNG file of a header alone: 13,000 x 13,000 pixels."""
    head = b"IHDR" + struct.pack(">2I5B", 13_000, 13_000, 8, 2, 0, 0, 0)
    end = b"IDAT" + zlib.compress(b"")
    chunks = [struct.pack(">I", len(one) - 4) + one + struct.pack(">I", zlib.crc32(one)) for one in (head, end)]
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    with pytest.raises(InputError, match="it has 13,000 x 13,000 pixels, at most 100,000,000 are read"):
        picture("data.path", tmp_path / "a.png")


def test_an_error_without_words_has_its_name():
    assert one_line(MemoryError()) == "MemoryError"
