"""The arrays of numbers in a MATLAB file (MathWorks, "MAT-File Format", R2019a, chapter 1: Level 5 MAT-files).

A header of 128 bytes ends with the version and the byte order. Data elements follow. Each has a tag (type and number of
bytes, 4 bytes each), its content, and bytes that fill it up to a multiple of 8; at most 4 bytes of content may share 8
bytes with a tag of half the size. An array is an element that consists of elements: flags with its class, dimensions,
name and, of real numbers, the values, column after column. It may be compressed by zlib, which alone is not filled up.

SciPy's reader ends the whole process (a segmentation fault) where bytes are damaged: with SciPy 1.17.1 on 39 of 6,000
files of tests/damaged_files.py's kinds, on 11 where it is asked for the named arrays alone.
"""

import math
import re
import struct
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcore.data.files import one_line

HEADER = 128
ORDERS = {b"\0\1IM": "<", b"\1\0MI": ">"}
"""End of the header -> byte order."""

INT8, INT32, UINT32, MATRIX, COMPRESSED = 1, 5, 6, 14, 15
TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
"""Types of elements that hold numbers."""

CLASSES = range(1, 16)
NUMBERS = range(6, 16)
"""Classes of arrays of numbers; before them: cells, structures, objects, text and sparse matrices."""
COMPLEX = 0x0800

NAME = re.compile(r"[A-Za-z]\w{0,62}", re.ASCII)
DIMENSIONS = 32
"""The most dimensions of an array."""
LARGEST = 1 << 27
"""The most bytes of a file, and of all its compressed arrays when decompressed."""


def arrays(file: Path) -> dict[str, NDArray[Any] | None]:
    """Return the name of each array -> its values, read-only, in the type they are stored in; None: no real numbers.

    Raises ValueError if a byte differs from the format.
    """
    if (size := file.stat().st_size) > LARGEST:
        raise ValueError(f"{size:,} bytes, at most {LARGEST:,} are read")
    raw = file.read_bytes()
    order = ORDERS.get(raw[HEADER - 4 : HEADER])
    if order is None:
        raise ValueError("it has no header of a MATLAB file of version 5 to 7")
    by_name: dict[str, NDArray[Any] | None] = {}
    at, left = HEADER, LARGEST
    while at < len(raw):
        kind, content, at = element(memoryview(raw), at, order)
        if kind == COMPRESSED:
            unpacked = decompress(content, left)
            left -= len(unpacked)
            kind, content, end = element(unpacked, 0, order)
            if end != len(unpacked):
                raise ValueError("bytes follow a compressed array")
        if kind != MATRIX:
            raise ValueError(f"a data element of type {kind} in place of an array")
        name, values = array(content, order)
        if name in by_name:
            raise ValueError(f"two arrays named {name}")
        by_name[name] = values
    return by_name


def element(raw: memoryview, at: int, order: str) -> tuple[int, memoryview, int]:
    """Return the type and the content of the data element at a position, and the position after it."""
    if len(raw) - at < 8:
        raise ValueError("it ends in the tag of a data element")
    kind, size = struct.unpack_from(f"{order}2I", raw, at)
    start, end = at + 8, at + 8
    if kind >> 16:
        kind, size, start = kind & 0xFFFF, kind >> 16, at + 4
    elif kind == COMPRESSED:
        end += size
    else:
        end += size + -size % 8
    if size > len(raw) - start or start + size > end:
        raise ValueError(f"a data element of {size:,} bytes where {min(end, len(raw)) - start:,} are there")
    return kind, raw[start : start + size], min(end, len(raw))


def decompress(content: memoryview, left: int) -> memoryview:
    unpacker = zlib.decompressobj()
    try:
        raw = unpacker.decompress(content, left + 1)
    except zlib.error as error:
        raise ValueError(one_line(error)) from error
    if len(raw) > left:
        raise ValueError(f"more than {LARGEST:,} bytes when decompressed")
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("a compressed array does not end with its data element")
    return memoryview(raw)


def array(raw: memoryview, order: str) -> tuple[str, NDArray[Any] | None]:
    """Return an array's name and values."""
    flags, at = numbers(raw, 0, order, [UINT32])
    sizes, at = numbers(raw, at, order, [INT32])
    letters, at = numbers(raw, at, order, [INT8])
    name, shape = letters.tobytes().decode("latin-1"), sizes.tolist()
    if not NAME.fullmatch(name) or len(flags) != 2 or not 2 <= len(shape) <= DIMENSIONS or min(shape) < 0:
        raise ValueError("the flags, the dimensions or the name of an array are damaged")
    if (kind := flags[0] & 0xFF) not in CLASSES:
        raise ValueError(f"{name} is of the unknown class {kind}")
    if kind not in NUMBERS or flags[0] & COMPLEX:
        return name, None
    values, at = numbers(raw, at, order, TYPES)
    if at != len(raw) or len(values) != math.prod(shape):
        raise ValueError(f"{name} has {len(values):,} values and then {len(raw) - at:,} bytes, its dimensions: {shape}")
    return name, values.reshape(shape, order="F")


def numbers(raw: memoryview, at: int, order: str, allowed: Collection[int]) -> tuple[NDArray[Any], int]:
    """Return the numbers in the element at a position, of an allowed type, and the position after it."""
    kind, content, at = element(raw, at, order)
    if kind not in allowed:
        raise ValueError(f"a data element of type {kind} within an array, expected {', '.join(map(str, allowed))}")
    return np.frombuffer(content, f"{order}{TYPES[kind]}"), at
