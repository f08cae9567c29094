"""Sending values between processes: a pickle, with the tensors in a block of shared memory.

Blocks have no name: they are passed as open files and vanish with the last process that maps them, without a copy.
Large `Data` goes into shared memory once, for all workers, and each maps it once.
"""

from __future__ import annotations

import ctypes
import io
import itertools
import math
import mmap
import os
import pickle
import socket
import struct
import tempfile
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedcore.pickling import Pickler
from fedcore.types.federation import Data

Bytes: TypeAlias = npt.NDArray[np.uint8]

LARGE = 1 << 20
"""Minimum bytes of `Data` kept in shared memory, each an open file; smaller data is sent with each call."""

ALIGNMENT = 64
"""Alignment of tensors in a block, bytes."""

KEPT: dict[int, Data] = {}
"""Large data that this process, a worker, was sent, by token."""


class Block:
    """Shared memory without a name: an open file of `length` bytes."""

    def __init__(self, length: int) -> None:
        self.length = length
        if hasattr(os, "memfd_create"):
            self.descriptor = os.memfd_create("fedcore")
        else:
            with tempfile.TemporaryFile() as file:
                self.descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self.descriptor)
        os.truncate(self.descriptor, length)


def map_bytes(descriptor: int, length: int, access: int = mmap.ACCESS_WRITE) -> Bytes:
    """Map a block's bytes without a copy."""
    return np.frombuffer(mmap.mmap(descriptor, length, access=access), dtype=np.uint8)


class Packed:
    """payload: the pickle. length: bytes of its tensors. tokens: the stored data that the payload refers to.

    owned: whether the receiver's tensors are to be the bytes of the block; otherwise they are copies.
    """

    def __init__(self, value: object, keep: Callable[[Data], int] | None = None, owned: bool = False) -> None:
        stream = io.BytesIO()
        pickler = _Pickler(stream, keep, owned)
        pickler.dump(value)
        self.payload = stream.getbuffer()
        self.length, self.tokens, self._tensors = pickler.length, pickler.tokens, pickler.tensors

    def write(self, block: Bytes) -> None:
        """Copy the tensors into a block, in one thread: PyTorch's threads would compete with busy workers."""
        address = block.ctypes.data if self._tensors else 0
        for start, tensor in self._tensors:
            source = tensor.contiguous()
            ctypes.memmove(address + start, source.data_ptr(), source.nbytes)


class _Pickler(Pickler):
    """Pickles all values but tensors, which get places in a block, and large data, replaced by tokens."""

    def __init__(self, stream: io.BytesIO, keep: Callable[[Data], int] | None, owned: bool) -> None:
        self.block = block = pickle.PickleBuffer(bytearray())  # stands for the receiver's; no callback may hold `self`
        super().__init__(stream, protocol=5, buffer_callback=lambda buffer: buffer is not block)
        self.keep, self.make = keep, tensor_at if owned else copy_at
        self.tensors: list[tuple[int, Tensor]] = []
        self.length = 0
        self.tokens: set[int] = set()

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind is Tensor and _plain(value):
            start = -(-self.length // ALIGNMENT) * ALIGNMENT
            self.tensors.append((start, value))
            self.length = start + value.nbytes
            return self.make, (self.block, start, value.dtype, tuple(value.shape))
        if kind is Data and self.keep is not None and value.x.nbytes >= LARGE:
            token = self.keep(value)
            self.tokens.add(token)
            return kept, (token,)
        return super().reducer_override(value)


def _plain(value: Tensor) -> bool:
    """Return whether a tensor is one of the CPU that its elements' bytes define."""
    return value.is_cpu and value.layout is torch.strided and not (value.is_conj() or value.is_neg())


def kept(token: int) -> Data:
    """Return data that this process was sent before."""
    return KEPT[token]


def tensor_at(block: Bytes, start: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Return the tensor that lies in a block at an offset."""
    count = math.prod(shape)
    if not count:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(block, dtype=dtype, count=count, offset=start).view(shape)


def copy_at(block: Bytes, start: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Return a copy of the tensor that lies there."""
    return tensor_at(block, start, dtype, shape).clone()


@dataclass(frozen=True)
class Parcel:
    """A received value: its pickle, and the block with its tensors."""

    payload: bytes
    block: Bytes

    def open(self) -> Any:
        return pickle.loads(self.payload, buffers=itertools.repeat(self.block))


class Channel:
    """One end of the socket between two processes, with one block to send from and one to receive into.

    Every value reuses the block (fresh memory costs ten times the copy), so the ends take turns: a process opens a
    value before it sends the answer.
    """

    HEADER = struct.Struct("=QQ?")  # bytes of the pickle; bytes of a new block, or 0; owned

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self._outgoing: Bytes = np.empty(0, dtype=np.uint8)
        self._incoming: Bytes = np.empty(0, dtype=np.uint8)

    def send(self, packed: Packed) -> None:
        """Send a value in the channel's block."""
        grown = None
        if packed.length > len(self._outgoing):
            grown = Block(2 * packed.length)
            self._outgoing = map_bytes(grown.descriptor, grown.length)
        packed.write(self._outgoing)
        self._send(packed, grown, owned=False)

    def give(self, packed: Packed, block: Block) -> None:
        """Send a value whose tensors are in a separate block, which both ends share from now on."""
        self._send(packed, block, owned=True)

    def _send(self, packed: Packed, block: Block | None, owned: bool) -> None:
        header = self.HEADER.pack(len(packed.payload), 0 if block is None else block.length, owned)
        socket.send_fds(self.channel, [header], [] if block is None else [block.descriptor])
        self.channel.sendall(packed.payload)

    def receive(self) -> Parcel:
        """Wait for the next value. Raises EOFError if the other end has closed."""
        header, descriptors, _, _ = socket.recv_fds(self.channel, self.HEADER.size, 1)
        if len(header) < self.HEADER.size:
            raise EOFError
        size, length, owned = self.HEADER.unpack(header)
        block = self._incoming
        for descriptor in descriptors:
            access = mmap.ACCESS_COPY if owned else mmap.ACCESS_WRITE  # writes stay private: other processes map it too
            block = map_bytes(descriptor, length, access)
            os.close(descriptor)
        if not owned:
            self._incoming = block
        payload = bytearray(size)
        rest = memoryview(payload)
        while rest:
            got = self.channel.recv_into(rest)
            if got == 0:
                raise EOFError
            rest = rest[got:]
        return Parcel(bytes(payload), block)


class PackedData:
    """Large data packed by this process, by identity; freed with the last other reference to them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._tokens = itertools.count()
        self._token_of: dict[int, int] = {}
        self._entries: dict[int, tuple[Packed, Block, weakref.ref[Data]]] = {}

    def pack(self, value: object) -> Packed:
        return Packed(value, self._keep)

    def __getitem__(self, token: int) -> tuple[Packed, Block]:
        packed, block, _ = self._entries[token]
        return packed, block

    def tokens(self) -> set[int]:
        return set(self._entries)

    def clear(self) -> None:
        self._token_of.clear()
        self._entries.clear()

    def _keep(self, data: Data) -> int:
        with self._lock:
            if id(data) not in self._token_of:
                token = next(self._tokens)
                packed = Packed(("keep", token, data), owned=True)
                block = Block(packed.length)
                packed.write(map_bytes(block.descriptor, block.length))
                reference = weakref.ref(data, partial(self._evict, id(data), token))
                self._entries[token] = packed, block, reference
                self._token_of[id(data)] = token
            return self._token_of[id(data)]

    def _evict(self, identity: int, token: int, _: weakref.ref[Data]) -> None:
        self._token_of.pop(identity, None)
        self._entries.pop(token, None)
