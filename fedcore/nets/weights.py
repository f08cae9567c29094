"""Weights from a file: a net that starts from them, or whose layers stay what they are there, with small adapters.

The file is in the safetensors format, which no program has to trust.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from fedcore.errors import InputError
from fedcore.nets.inputs import blank
from fedcore.nets.mlp import MLP, ByAutograd
from fedcore.nets.params import AGAIN, STAYS, is_frozen, renew
from fedcore.nets.randomness import use_generator
from fedcore.types.federation import Net, Params


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


def with_weights(net: Net, weights: str | Path, frozen: bool = False, rank: int = 0, *, shape: tuple[int, ...]) -> Net:
    """Return a net that starts from a file.

    All layers but the last must fit the file's tensors, by name and shape; the last one is taken if it fits, so that
    other classes may be learnt.

    Args:
        net: the net that is to start from the file.
        weights: the file, see `write_weights`.
        frozen: whether all layers but the last stay what they are; they are neither sent nor counted.
        rank: of the adapters that are trained beside each frozen linear layer but the last; 0: none.
        shape: of an example.

    Raises:
        InputError: for a file that cannot be read or does not fit, and adapters without frozen layers or never called.
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
    with use_generator(torch.Generator()), torch.enable_grad():
        module = build()
        if rank:
            module(blank(module, 2, shape)).sum().backward()
    for name, layer in module.named_modules():
        if isinstance(layer, Adapted) and layer.up.weight.grad is None:
            raise InputError(
                f"net.rank = {rank}: forward calls {name} by another way than its attribute, without adapter"
            )
    started = replace(net, build=build, axes=None if frozen else net.axes)
    if AGAIN in vars(net):
        again = partial(with_weights, weights=weights, frozen=frozen, rank=rank, shape=shape)
        vars(started)[AGAIN] = lambda: started if (now := renew(net)) is net else again(now)
    return started


def build_with_weights(build: Callable[[], nn.Module], path: str, digest: str, *, frozen: bool, rank: int) -> nn.Module:
    """Build the module and load the file. digest: of its bytes, so that a step's key says what they are."""
    module, weights = build(), read_weights(path, digest)
    own = module.state_dict()
    last = last_layer(module)
    fits = {name: x for name, x in weights.items() if name in own and own[name].shape == x.shape}
    for name, tensor in own.items():
        if name not in fits and not name.startswith(last):
            there = f"is {tuple(weights[name].shape)} there" if name in weights else "is not there"
            raise InputError(f"net.weights = {path}: tensor {name}, {tuple(tensor.shape)}, {there}")
    module.load_state_dict({name: tensor.to(own[name].dtype) for name, tensor in fits.items()}, strict=False)
    if not frozen:
        return module
    if type(module) is MLP:
        module.__class__ = ByAutograd
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name.startswith(last))
    for name, layer in module.named_modules():
        setattr(layer, STAYS, not f"{name}.".startswith(last))
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
        return load(content)
    except (SafetensorError, ValueError, LookupError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"net.weights = {path}: not a safetensors file ({reason}); torch.save's are programs and are not read"
        ) from None


def write_weights(params: Mapping[str, Tensor], path: str | Path) -> None:
    """Write tensors to a safetensors file, such as a module's `state_dict()`."""
    whole = {  # safetensors refuses tensors that share memory; one column counts as contiguous
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in params.items()
    }
    try:
        content = save(whole)
    except KeyError as error:
        name = next(name for name, tensor in whole.items() if tensor.dtype == error.args[0])
        raise InputError(f"write_weights: tensor {name} is {error}, which no safetensors file holds") from None
    Path(path).write_bytes(content)
