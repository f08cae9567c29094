"""A content-addressed folder of tensors, and references into it.

Steps exchange references, never tensors. A blob is a safetensors file named by the digest of its bytes, so equal
results are one file, damage is detected, and nothing is ever unpickled.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as save_arrays
from safetensors.torch import load, save

from fedcore.data import Dataset
from fedcore.data.inputs import Input
from fedcore.data.schema import Column, Fit, Schema
from fedcore.execute.accelerator import part_names, rebuild
from fedcore.nets.builders_by_path import build_arguments, net_at, place_of
from fedcore.partition import Partition
from fedcore.pipeline.state import write_atomic
from fedcore.types.federation import Data, Net, Splits
from fedcore.types.method import Message, Model, Report, Update

CLASSES: dict[str, type] = {
    c.__name__: c
    for c in (Column, Data, Dataset, Fit, Input, Message, Model, Partition, Report, Schema, Splits, Update)
}  # fmt: skip
HEADER = "fedcore"

PLAIN = {str, int, float, bool, type(None)}
"""Types of most values that references are looked for in; they hold none."""

SMALL = 1 << 22
"""Most bytes of a value that is read at once: mapping a file takes longer, and much longer for thousands of tensors."""

LONG = 256
"""Most texts of a tuple that is stored as it is; a longer one, such as the device of each row of a table, is stored as
its different texts and the places of each."""


class DamagedBlob(Exception):
    """A blob is missing, or its bytes do not match its digest."""


@dataclass(frozen=True)
class Ref:
    """A stored value: the digest of its file, and its size in bytes when it is sent."""

    digest: str
    nbytes: int


class Store:
    """Writes values to the folder and reads them.

    A value is one blob if it is a tensor, a dataclass of tensors, a dict of tensors or a list of reports; tuples,
    other lists and other dicts keep their structure, with references in place of the blobs inside them.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.location = str(root)  # for messages

    def __eq__(self, other: object) -> bool:  # the record's process gets another one with each result
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(self.location)

    def path(self, ref: Ref) -> Path:
        return Path(path_of(self.root, ref))

    def put(self, value: Any) -> Any:
        """Store a value; returns it with references in place of tensors."""
        return self._put(value, {})

    def _put(self, value: Any, done: dict[int, Ref]) -> Any:
        if is_blob(value):
            # A message to a thousand devices is written once.
            if id(value) not in done:
                content, nbytes = to_content(value)
                done[id(value)] = Ref(digest_of(content), nbytes)
                self._keep(done[id(value)], content)
            return done[id(value)]
        return rebuild(value, lambda part: self._put(part, done))

    def get(self, value: Any) -> Any:
        """Return a value with every reference in it loaded, equal ones once. Raises DamagedBlob."""
        return put_in({ref: self._read(ref) for ref in dict.fromkeys(refs(value))}, value)

    def import_blob(self, path: Path) -> Ref:
        """Copy a blob from another folder into the store. Raises OSError, or DamagedBlob if the file is not a blob."""
        content = path.read_bytes()
        try:
            with safe_open(path, framework="pt") as file:
                whole = HEADER in (file.metadata() or {})
        except SafetensorError:
            whole = False
        if not whole:
            raise DamagedBlob(f"{path} is not a stored value")
        ref = Ref(digest_of(content), len(content))
        self._keep(ref, content)
        return ref

    def _keep(self, ref: Ref, content: bytes) -> None:
        """Write a blob's bytes, unless it is there."""
        if not self.holds(ref):
            # A power cut may leave it empty; whoever reads it sees its digest, so that its step is computed again.
            write_atomic(self.path(ref), content, durable=False)

    def drop(self, ref: Ref) -> None:
        """Delete a blob."""
        self.path(ref).unlink(missing_ok=True)

    def offer(self, blobs: Iterable[Ref], afresh: bool = False) -> None:
        """Make sure that other machines find blobs (fedcore.pipeline.cache.shared); a folder has them already."""

    def lease(self, who: str) -> AbstractContextManager[None]:
        """Keep the store from being pruned meanwhile; a folder's flows are marked beside it
        (fedcore.pipeline.cache.journal)."""
        return nullcontext()

    def _read(self, ref: Ref) -> Any:
        if ref.nbytes <= SMALL:
            content = self._content(ref)
            tensors = {name: tensor.clone() for name, tensor in load(content).items()}
            metadata = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
        else:
            self.verify(ref)
            with safe_open(self.path(ref), framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                metadata = file.metadata()
        return unflatten(json.loads(metadata[HEADER]), tensors)

    def _content(self, ref: Ref) -> bytes:
        """Return a blob's bytes, read once if they are here and intact. Raises DamagedBlob."""
        with suppress(OSError), open(path_of(self.root, ref), "rb") as file:
            content = file.read()
            if digest_of(content) == ref.digest:
                return content
        self.verify(ref)
        return self.path(ref).read_bytes()

    def share(self, ref: Ref, file: Path) -> None:
        """Let a blob and its copy elsewhere be one file on the disk; two file systems keep both."""
        blob = self.path(ref)
        part = blob.with_name(f".{os.urandom(8).hex()}.part")
        with suppress(OSError):
            if self.holds(ref) and not file.samefile(blob):
                os.link(blob, part)
                try:
                    part.replace(file)
                except OSError:
                    part.unlink()
                    raise

    def holds(self, ref: Ref) -> bool:
        """Tell whether a blob exists and is intact; each version of a file is read once per process."""
        name = path_of(self.root, ref)
        try:
            status = os.stat(name)
            return _digest_at(name, status.st_mtime_ns, status.st_size) == ref.digest
        except OSError:
            return False

    def verify(self, ref: Ref) -> None:
        """Raise DamagedBlob unless the blob exists and is intact."""
        if not self.holds(ref):
            raise DamagedBlob(f"blob {ref.digest} is missing or damaged")


def path_of(root: Path | str, ref: Ref) -> str:
    """Return a blob's path as a text, since there may be many and each `Path` takes microseconds."""
    return f"{root}/{ref.digest[:2]}/{ref.digest}.safetensors"


def to_content(value: Any) -> tuple[bytes, int]:
    """Return a blob's bytes, and the size of its value when it is sent."""
    tensors: dict[str, torch.Tensor] = {}
    shape = flatten(value, "", tensors)
    seen: set[int] = set()
    for name, tensor in tensors.items():  # the format allows no shared memory
        address = tensor.untyped_storage().data_ptr()
        tensors[name] = tensor.clone() if address in seen else tensor
        seen.add(address)
    content = _to_bytes(tensors, {HEADER: json.dumps(shape, sort_keys=True, separators=(",", ":"))})
    return content, getattr(value, "nbytes", sum(t.nbytes for t in tensors.values()))


def _to_bytes(tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> bytes:
    """Return a file's bytes; through NumPy, which takes half as long for small tensors, unless it lacks their type."""
    if any(tensor.dtype == torch.bfloat16 for tensor in tensors.values()):
        return bytes(save(tensors, metadata))
    return save_arrays({name: tensor.numpy(force=True) for name, tensor in tensors.items()}, metadata)


def digest_of(content: bytes | str) -> str:
    return hashlib.blake2b(content.encode() if isinstance(content, str) else content, digest_size=20).hexdigest()


@cache
def _digest_at(name: str, mtime_ns: int, size: int) -> str:
    with open(name, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=20)).hexdigest()


def is_blob(value: Any) -> bool:
    """Tell whether a value is stored as one file."""
    if isinstance(value, dict):
        return bool(value) and all(isinstance(tensor, torch.Tensor) for tensor in value.values())
    if isinstance(value, list):  # of a chunk, which may have hundreds
        return bool(value) and all(isinstance(part, Report) for part in value)
    return isinstance(value, torch.Tensor | np.ndarray) or type(value) in CLASSES.values()


def refs(value: Any) -> list[Ref]:
    """Return every reference in a value."""
    references: list[Ref] = []

    def collect(parts: Iterable[Any]) -> None:
        for part in parts:
            kind = type(part)
            if kind is Ref:
                references.append(part)
            elif kind in PLAIN:
                continue
            elif isinstance(part, dict):
                collect(part.values())
            elif isinstance(part, tuple | list):
                collect(part)
            else:
                collect([getattr(part, name) for name in part_names(kind)])  # type: ignore[arg-type]

    collect([value])
    return references


def put_in(values: Mapping[Ref, Any], value: Any) -> Any:
    """Return a value with what was found in place of its references."""

    def fill(part: Any) -> Any:
        kind = type(part)
        return values[part] if kind is Ref else part if kind in PLAIN else rebuild(part, fill)

    return fill(value)


def to_json(value: Any) -> Any:
    """Return a value without tensors, such as a step's result with references in place of them, as JSON.

    `unflatten` reads it. A dict of numbers and texts, such as the scores of thousands of devices, stays as it is.
    """
    if _is_json(value):
        return {"json": value}
    if isinstance(value, dict):
        return {"dict": [[flatten(k, "", {}), to_json(v)] for k, v in value.items()]}
    if isinstance(value, tuple | list):
        return {"tuple" if isinstance(value, tuple) else "list": [to_json(part) for part in value]}
    return flatten(value, "", {})


def _is_json(value: Any) -> bool:
    """Tell whether a value is a dict that JSON gives back as it is, numbers included."""
    parts = value.items() if type(value) is dict else [(None, None)]
    return all(type(key) is str and (type(part) in PLAIN or _is_json(part)) for key, part in parts)


def flatten(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Move a value's tensors into a flat dict; returns its shape as JSON."""
    if isinstance(value, torch.Tensor):
        tensors[name] = value.contiguous()
        return {"tensor": name}
    if isinstance(value, np.ndarray):
        tensors[name] = torch.from_numpy(np.ascontiguousarray(value))
        return {"array": name}
    if isinstance(value, Ref):
        return {"ref": [value.digest, value.nbytes]}
    if type(value) in CLASSES.values():
        values = {of.name: getattr(value, of.name) for of in fields(value)}
        for of in fields(value):
            known = of.metadata.get("optional", False) and values[of.name] == of.default
            if known or of.metadata.get("unstored", False):
                del values[of.name]  # the digests of most values do not depend on it
        parts = {key: flatten(part, f"{name}/{key}", tensors) for key, part in values.items()}
        return {"class": type(value).__name__, "fields": parts}
    if isinstance(value, Net):
        return {"net": [place_of(value), flatten(build_arguments(value), name, tensors)]}
    if isinstance(value, dict):
        return {"dict": [[flatten(k, "", tensors), flatten(v, f"{name}/{k}", tensors)] for k, v in value.items()]}
    if isinstance(value, tuple) and len(value) > LONG and all(isinstance(word, str) for word in value):
        index_of = {word: index for index, word in enumerate(dict.fromkeys(value))}
        tensors[name] = torch.tensor([index_of[word] for word in value], dtype=torch.int32)
        return {"words": [[*index_of], name]}
    if isinstance(value, tuple | list):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [flatten(v, f"{name}/{i}", tensors) for i, v in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return {"plain": value}
    raise TypeError(f"a step cannot return {type(value).__name__}")


def unflatten(shape: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Undo `flatten`."""
    ((kind, body), *rest) = shape.items()
    match kind:
        case "tensor":
            return tensors[body]
        case "array":
            return tensors[body].numpy()
        case "ref":
            return Ref(*body)
        case "class":
            return CLASSES[body](**{name: unflatten(part, tensors) for name, part in rest[0][1].items()})
        case "net":
            return net_at(body[0], unflatten(body[1], tensors))
        case "dict":
            return {unflatten(k, tensors): unflatten(v, tensors) for k, v in body}
        case "words":
            texts, name = body
            return tuple(texts[index] for index in tensors[name].tolist())
        case "tuple":
            return tuple(unflatten(part, tensors) for part in body)
        case "list":
            return [unflatten(part, tensors) for part in body]
        case "plain" | "json":
            return body
    raise ValueError(f"not a stored value: {kind}")
