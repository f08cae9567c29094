"""Weights from a file: a net that starts from them, or whose layers stay what they are there, with small adapters.

The file is in the safetensors format, which no program has to trust: a header's length (8 bytes, little-endian), the
header in JSON, name -> dtype, shape and the place of its bytes, then the bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn

from fedcore.errors import InputError
from fedcore.nets.mlp import MLP
from fedcore.nets.params import is_frozen
from fedcore.nets.randomness import use_generator
from fedcore.types.federation import Net, Params

DTYPES = {"F64": torch.float64, "F32": torch.float32, "I64": torch.int64, "I32": torch.int32, "U8": torch.uint8,
          "BOOL": torch.bool, "F16": torch.float16, "BF16": torch.bfloat16}  # fmt: skip

HEADER = 100 << 20
"""The most bytes of a header, as in the format's own library."""


class Adapted(nn.Module):
    """A linear layer that stays what it is, and a product of two small matrices beside it (LoRA, Hu et al. 2022).

    y = W x + b + B A x,    A (r, n), B (m, r), B zero at first

    Departure: the paper's factor alpha / r is 1.
    """

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x) + self.up(self.down(x))
        return y


class Called(nn.Module):
    """The layers of an `mlp`, by autograd: its own chain rule is for a net all of whose layers are trained."""

    def __init__(self, module: MLP) -> None:
        super().__init__()
        self.layers = module.layers
        for name, layer in module.named_children():
            self.add_module(name, layer)

    forward = MLP.forward


def with_weights(net: Net, weights: str | Path, frozen: bool = False, rank: int = 0) -> Net:
    """Return a net that starts from a file.

    All layers but the last must fit the file's tensors, by name and shape; the last one is taken if it fits, so that
    other classes may be learnt.

    Args:
        weights: the file, see `write_weights`.
        frozen: whether all layers but the last stay what they are; they are neither sent nor counted.
        rank: of the adapters that are trained beside each frozen linear layer but the last; 0: none.

    Raises:
        InputError: for a file that cannot be read or does not fit, and adapters without frozen layers.
    """
    if rank and not frozen:
        raise InputError(f"net.rank = {rank}: adapters are for frozen layers; set net.frozen = true")
    if net.misplaced:
        raise InputError(net.misplaced)
    path = Path(weights)
    try:
        digest = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    except OSError as error:
        raise InputError(f"net.weights = {path}: cannot be read ({error.strerror})") from None
    build = partial(build_with_weights, net.build, str(path), digest, frozen=frozen, rank=rank)
    with use_generator(torch.Generator()):
        build()
    return Net(build, None if frozen else net.axes)


def build_with_weights(build: Callable[[], nn.Module], path: str, digest: str, *, frozen: bool, rank: int) -> nn.Module:
    """Build the module and load the file. digest: of its bytes, so that a step's key says what they are."""
    module, weights = build(), read_weights(path, digest)
    own = module.state_dict()
    last = last_layer(module)
    fits = {
        name: weights[name] for name, tensor in own.items() if name in weights and weights[name].shape == tensor.shape
    }
    for name, tensor in own.items():
        if name not in fits and not name.startswith(last):
            there = f"is {tuple(weights[name].shape)} there" if name in weights else "is not there"
            raise InputError(f"net.weights = {path}: tensor {name}, {tuple(tensor.shape)}, {there}")
    module.load_state_dict({name: tensor.to(own[name].dtype) for name, tensor in fits.items()}, strict=False)
    if not frozen:
        return module
    module = Called(module) if isinstance(module, MLP) else module
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name.startswith(last))
    return adapt(module, rank) if rank else module


def adapt(module: nn.Module, rank: int) -> nn.Module:
    """Put an adapter beside each frozen linear layer."""
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear)}
    frozen = {name: layer for name, layer in layers.items() if is_frozen(layer)}
    if not frozen:
        raise InputError(f"net.rank = {rank}: this net has no linear layer but the last, which is trained itself")
    for name, layer in frozen.items():
        above, _, child = name.rpartition(".")
        setattr(module.get_submodule(above), child, Adapted(layer, rank))
    return module


def last_layer(module: nn.Module) -> str:
    """Return the prefix of the last layer's tensors: that of the last matrix."""
    matrices = [name for name, tensor in module.state_dict().items() if tensor.dim() > 1]
    return f"{matrices[-1].rpartition('.')[0]}."


@lru_cache(maxsize=4)
def read_weights(path: str, digest: str) -> Params:
    """Return the tensors of a file, of whose bytes the digest is. Raises InputError for a file that has changed."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"net.weights = {path}: cannot be read ({error.strerror})") from None
    if hashlib.blake2b(content, digest_size=16).hexdigest() != digest:
        raise InputError(f"net.weights = {path}: the file has changed since the run began")
    try:
        return parse_safetensors(content)
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"net.weights = {path}: is no safetensors file ({reason}); torch.save's are programs and are not read"
        ) from None


def parse_safetensors(content: bytes) -> Params:
    """Return the tensors of a file's bytes; raises an error of Python's for others."""
    start = 8 + int.from_bytes(content[:8], "little")
    if len(content) < start or start > HEADER:
        raise ValueError("its header is longer than the file")
    tensors = {}
    for name, entry in json.loads(content[8:start]).items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            if not 0 <= first <= last <= len(content) - start:
                raise ValueError(f"{name} is beyond the file's end")
            raw = torch.frombuffer(bytearray(content[start + first : start + last]) or bytearray(8), dtype=torch.uint8)
            count = math.prod(entry["shape"])
            tensors[name] = raw.view(DTYPES[entry["dtype"]])[:count].reshape(entry["shape"])
    return tensors


def write_weights(params: Mapping[str, Tensor], path: str | Path) -> None:
    """Write tensors to a safetensors file, such as a module's `state_dict()`."""
    codes, header, parts, offset = {kind: word for word, kind in DTYPES.items()}, {}, [], 0
    for name, tensor in params.items():
        if tensor.dtype not in codes:
            raise InputError(
                f"write_weights: tensor {name} is {tensor.dtype}, must be one of {', '.join(map(str, codes))}"
            )
        whole = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)  # one column counts as contiguous
        raw = whole.flatten().view(torch.uint8).numpy().tobytes()
        header[name] = {
            "dtype": codes[tensor.dtype], "shape": [*tensor.shape], "data_offsets": [offset, offset + len(raw)],
        }  # fmt: skip
        parts.append(raw)
        offset += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    Path(path).write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))
