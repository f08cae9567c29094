"""What travels between server and devices, and what a device keeps, in the safetensors format.

A parcel's tensors have the names "<number of their group>/<name>"; a tensor of bytes, "words", holds JSON: words, and
each group's names. Reading a parcel runs no code and builds nothing but tensors. The package safetensors checks their
types, shapes and places by the bytes that are there before it makes any.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedcore.errors import InputError
from fedcore.types.federation import Params

MOST_BYTES = 2**30
"""The largest parcel that is read, and the longest side of a tensor."""

MOST_HEADER = 2**23
"""The longest header, and the longest words, which take up to fifty times as much memory once they are read."""

MOST_AXES = 64
"""The most axes of a tensor."""

TYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)  # fmt: skip
WORDS = "words"
EARLIER = b"fedcore1"
"""How parcels of fedcore 0.1 and 0.2 begin."""

SEAL = "digest"
"""Of a parcel on disk: the digest of all else in it."""


def pack(header: Mapping[str, Any], tensors: Mapping[str, Params] | None = None) -> bytes:
    """Return a parcel. header: what JSON can hold. tensors: group -> name -> tensor."""
    groups = tensors or {}
    parts = {
        f"{i}/{name}": _whole(name, tensor)
        for i, params in enumerate(groups.values())
        for name, tensor in params.items()
    }
    text = json.dumps({"words": header, "groups": {group: [*params] for group, params in groups.items()}}).encode()
    return save({WORDS: torch.frombuffer(bytearray(text), dtype=torch.uint8), **parts})


def unpack(parcel: bytes, who: str) -> tuple[dict[str, Any], dict[str, Params]]:
    """Undo `pack`. Raises InputError, naming whom it is from, for bytes that are no whole parcel or a too large one."""
    if len(parcel) > MOST_BYTES:
        raise InputError(f"{who}: {len(parcel)} bytes, must be at most {MOST_BYTES}")
    if parcel.startswith(EARLIER):
        raise InputError(f"{who}: an earlier version of fedcore wrote it; write it again, or begin another run")
    try:
        return _unpack(parcel)
    except (SafetensorError, ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
        why = " ".join(str(error)[:200].split())
        raise InputError(f"{who}: damaged or no parcel of fedcore ({why})") from None


def read_number(header: Mapping[str, Any], key: str, who: str) -> int:
    """Return a whole number of a header. who: whom it is from, for the message."""
    if type(value := header.get(key)) is not int or not 0 <= value < 2**53:
        raise InputError(f"{who}: {key} = {value!r}: must be a whole number")
    return value


def digest(params: Params) -> str:
    """Return a digest of tensors with their names, types and shapes; an empty text if there are none."""
    return hashlib.blake2b(pack({}, {"": params}), digest_size=16).hexdigest() if params else ""


def seal(header: Mapping[str, Any], tensors: Mapping[str, Params]) -> bytes:
    """Return a parcel that `unseal` checks."""
    return pack({**header, SEAL: _seal(header, tensors)}, tensors)


def unseal(parcel: bytes, who: str) -> tuple[dict[str, Any], dict[str, Params]]:
    """Undo `seal`, or `pack`, by which earlier versions wrote; raises InputError also for bytes that have changed."""
    header, tensors = unpack(parcel, who)
    if (sealed := header.pop(SEAL, None)) is not None and sealed != _seal(header, tensors):
        raise InputError(f"{who}: damaged, its bytes have changed since they were written; begin another run")
    return header, tensors


def _seal(header: Mapping[str, Any], tensors: Mapping[str, Params]) -> str:
    return hashlib.blake2b(pack(header, tensors), digest_size=16).hexdigest()


def write_file(path: Path, content: bytes) -> None:
    """Write a file in one move, for its owner only: it is there whole, or not at all."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _whole(name: str, tensor: Tensor) -> Tensor:
    """Return a copy that shares no memory; of one column, too, which counts as contiguous as it is."""
    if tensor.dtype not in TYPES:
        raise InputError(f"tensor {name} is {tensor.dtype}, only {', '.join(map(str, TYPES))} can travel")
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _unpack(parcel: bytes) -> tuple[dict[str, Any], dict[str, Params]]:
    if int.from_bytes(parcel[:8], "little") > MOST_HEADER:
        raise ValueError("its header is too long")
    tensors = load(parcel)
    text = tensors.pop(WORDS)
    if text.dtype != torch.uint8 or text.numel() > MOST_HEADER:
        raise ValueError("its words are too long, or no bytes")
    header = json.loads(text.numpy().tobytes())
    fields, groups = header["words"], header["groups"]
    if not isinstance(fields, dict) or not all(isinstance(name, str) for names in groups.values() for name in names):
        raise ValueError("another header")
    for tensor in tensors.values():
        _check(tensor)
    params = {
        group: {name: tensors.pop(f"{i}/{name}") for name in names} for i, (group, names) in enumerate(groups.items())
    }
    if tensors:
        raise ValueError("a tensor of no group")
    return fields, params


def _check(tensor: Tensor) -> None:
    if tensor.dtype not in TYPES or tensor.dim() > MOST_AXES or max(tensor.shape, default=0) > MOST_BYTES:
        raise ValueError("a type or a shape")
    if tensor.dtype == torch.bool and tensor.numel() and tensor.view(torch.uint8).max() > 1:
        raise ValueError("a truth value that is none")
