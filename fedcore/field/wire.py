"""What travels between server and devices, and what a device keeps, as plain bytes.

A parcel is a header of JSON, numbers and words alone, and the bytes of its tensors one after the other. Reading one
runs no code and builds nothing but tensors, whose types, shapes and sizes are checked before any is made.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedcore.errors import InputError
from fedcore.types.federation import Params

MOST_BYTES = 2**30
"""The largest parcel that is read."""

MOST_TENSORS = 100_000
"""The most tensors of a parcel."""

MOST_HEADER = 2**23
"""The longest header, which takes up to fifty times as much memory once it is read."""

MOST_AXES = 64
"""The most axes of a tensor."""

_START = struct.Struct("<8sQ")
_MAGIC = b"fedcore1"

_TYPES = {
    name: getattr(torch, name)
    for name in (
        "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
    )
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _TYPES.items()}


def pack(header: Mapping[str, Any], tensors: Mapping[str, Params] | None = None) -> bytes:
    """Return a parcel. header: what JSON can hold. tensors: group -> name -> tensor."""
    parts = [(group, name, tensor) for group, params in (tensors or {}).items() for name, tensor in params.items()]
    table = [[group, name, _type_of(name, tensor), list(tensor.shape)] for group, name, tensor in parts]
    envelope = json.dumps({"words": header, "groups": [*(tensors or {})], "tensors": table}).encode()
    return b"".join([_START.pack(_MAGIC, len(envelope)), envelope, *(_bytes_of(tensor) for _, _, tensor in parts)])


def unpack(parcel: bytes, who: str) -> tuple[dict[str, Any], dict[str, Params]]:
    """Undo `pack`. Raises InputError, naming whom it is from, for bytes that are no whole parcel or a too large one."""
    if len(parcel) > MOST_BYTES:
        raise InputError(f"{who}: {len(parcel)} bytes, must be at most {MOST_BYTES}")
    try:
        return _unpack(memoryview(parcel))
    except (ValueError, TypeError, KeyError, AttributeError, struct.error, RuntimeError) as error:
        why = " ".join(str(error)[:200].split())
        raise InputError(f"{who}: damaged or no parcel of fedcore ({why})") from None


def digest(params: Params) -> str:
    """Return a digest of tensors with their names, types and shapes; an empty text if there are none."""
    return hashlib.blake2b(pack({}, {"": params}), digest_size=16).hexdigest() if params else ""


def write_file(path: Path, content: bytes) -> None:
    """Write a file in one move, for its owner only: it is there whole, or not at all."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _type_of(name: str, tensor: Tensor) -> str:
    if tensor.dtype not in _NAMES:
        raise InputError(f"tensor {name} is {tensor.dtype}, only {', '.join(_TYPES)} can travel")
    return _NAMES[tensor.dtype]


def _bytes_of(tensor: Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.stride(-1) != 1:  # of one number, which counts as contiguous
        flat = flat.clone(memory_format=torch.contiguous_format)
    raw: bytes = flat.view(torch.uint8).numpy().tobytes()
    return raw


def _unpack(parcel: memoryview) -> tuple[dict[str, Any], dict[str, Params]]:
    magic, length = _START.unpack_from(parcel)
    if magic != _MAGIC or length > MOST_HEADER:
        raise ValueError("another format")
    start = _START.size + length
    envelope = json.loads(bytes(parcel[_START.size : start]))
    header, table = envelope["words"], envelope["tensors"]
    if not isinstance(header, dict) or not isinstance(table, list) or len(table) > MOST_TENSORS:
        raise ValueError("another header")
    tensors: dict[str, Params] = {str(group): {} for group in envelope["groups"]}
    sizes = [_size(*entry) for entry in table]
    if start + sum(sizes) != len(parcel):
        raise ValueError(f"{len(parcel)} bytes in place of {start + sum(sizes)}")
    for (group, name, kind, shape), size in zip(table, sizes, strict=True):
        if not isinstance(name, str) or name in tensors[group]:
            raise ValueError("a name is missing, or there twice")
        tensors[group][name] = _tensor(parcel[start : start + size], _TYPES[kind], shape)
        start += size
    return header, tensors


def _size(group: str, name: str, kind: str, shape: list[int]) -> int:
    if len(shape) > MOST_AXES or any(type(length) is not int or not 0 <= length <= MOST_BYTES for length in shape):
        raise ValueError("a shape")
    return math.prod(shape) * int(_TYPES[kind].itemsize)


def _tensor(raw: memoryview, dtype: torch.dtype, shape: list[int]) -> Tensor:
    if not len(raw):
        return torch.empty(shape, dtype=dtype)
    if dtype == torch.bool and max(raw) > 1:
        raise ValueError("a truth value that is none")
    return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)
