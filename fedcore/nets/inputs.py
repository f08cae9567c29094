"""Inputs of a module's linear and convolutional layers, as rows that each layer multiplies by its weights.

And how many multiplications that takes.
"""

import functools
from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedcore.data.inputs import Input
from fedcore.errors import InputError
from fedcore.nets.copies import template
from fedcore.nets.params import key, net_of
from fedcore.nets.randomness import construct_with
from fedcore.types.federation import Net


def takes_integers(module: nn.Module) -> bool:
    """Tell whether a module's inputs are whole numbers, such as the numbers of words: whether it has an embedding.

    An attribute `takes_integers` of the module comes first: False for one that embeds some or none of its inputs.
    """
    has_embedding = any(isinstance(part, nn.Embedding | nn.EmbeddingBag) for part in module.modules())
    return bool(getattr(module, "takes_integers", has_embedding))


def are_integers(module: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """Return which inputs of an example are whole numbers, (*shape) bool."""
    parts = [torch.full((one.size,), one.whole) for one in getattr(module, "several", ())]
    return torch.cat(parts) if parts else torch.full(shape, takes_integers(module))


def embedding_sizes(module: nn.Module) -> list[int]:
    """Return how many whole numbers, from 0, each of a module's embeddings can look up."""
    return [part.num_embeddings for part in module.modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag)]


def takes_channels_last(module: nn.Module) -> bool:
    """Tell whether one of fedcore's modules takes channels-last tensors: it says so; `x.view(B, -1)` would fail."""
    return type(module).__module__.startswith("fedcore.") and getattr(module, "channels_last", False)


def with_integers(build: Callable[[], nn.Module]) -> nn.Module:
    """Return a module that is given its inputs as int64, whatever numbers examples are stored as."""
    module = build()
    module.register_forward_pre_hook(_to_integers)
    return module


def _to_integers(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (inputs[0].long(), *inputs[1:])


def with_quantities(build: Callable[[], nn.Module]) -> nn.Module:
    """Return a module whose inputs are quantities though it has an embedding, such as one of places."""
    module = build()
    module.__dict__["takes_integers"] = False
    return module


def looks_up_places(module: nn.Module, shape: tuple[int, ...]) -> bool:
    """Tell whether what a module's embeddings look up is the same whatever the examples are, as in a ViT.

    One that makes whole numbers of its examples looks these up otherwise.
    """
    looked_up: list[list[Tensor]] = []
    embeddings = [part for part in module.modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag)]
    hooks = [of.register_forward_pre_hook(lambda _, x: looked_up[-1].append(x[0].clone())) for of in embeddings]
    was_training = module.training
    try:
        with construct_with(torch.Generator()), torch.no_grad():
            module.eval()
            answers = []
            for value in (0.0, 1.0, 255.0, 0.2, 0.7):
                looked_up.append([])
                answers.append(module(torch.full((2, *shape), value)))
        first, *others = looked_up
        return (
            bool(first)
            and not torch.equal(*answers[-2:])
            and all(len(of) == len(first) and all(map(torch.equal, of, first)) for of in others)
        )
    except Exception:  # an embedding of its examples, which looks up no fractions
        return False
    finally:
        module.train(was_training)
        for hook in hooks:
            hook.remove()


def with_several(build: Callable[[], nn.Module], several: tuple[Input, ...]) -> nn.Module:
    """Return a module whose forward is given several inputs by name, which stand side by side in each example."""
    module = build()
    module.__dict__ |= {"takes_integers": False, "several": several}  # each input has its own type
    module.register_forward_pre_hook(partial(_take_apart, several), with_kwargs=True)
    return module


def _take_apart(
    several: tuple[Input, ...], module: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor]
) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    parts = zip(several, torch.split(inputs[0], [entry.size for entry in several], 1), strict=True)
    separate = {of.name: torch.unflatten(part, 1, of.shape) if of.shape else part.squeeze(1) for of, part in parts}
    return (), {entry.name: separate[entry.name].long() if entry.whole else separate[entry.name] for entry in several}


def require_quantities(name: str, nets: Mapping[str, Net]) -> None:
    """Refuse nets with an embedding for a method that takes inputs as quantities. name: the method's."""
    modules = [template(net) for net in nets.values()]
    whole = [entry for module in modules for entry in getattr(module, "several", ()) if entry.whole]
    if whole or any(map(takes_integers, modules)):
        why = "takes inputs as quantities; these are numbers that stand for something (an embedding)"
        raise InputError(f"{name}: {why}")


def largest_integer(x: Tensor) -> int | None:
    """Return the largest of examples that are whole numbers from 0, which an embedding can look up; None for others."""
    whole = bool((x >= 0).all()) and (not x.is_floating_point() or bool((x == x.round()).all()))
    return int(x.max()) if whole and x.numel() else None


def require_integers(module: nn.Module, largest: int | None, scale: str) -> None:
    """Refuse examples that a net with an embedding cannot look up. largest: see `largest_integer`."""
    if scale != "none":
        raise InputError(f"federation.scale = {scale!r}: this net's embedding looks up whole numbers; use none")
    if largest is None:
        raise InputError(
            "net: its embedding looks up whole numbers from 0, and the examples have others (bytes are pixels in the "
            "pipeline: give a wider type); a module that embeds some inputs alone says takes_integers = False"
        )
    tables = embedding_sizes(module)
    if len(tables) == 1 and largest >= tables[0]:
        raise InputError(
            f"net: its embedding has {tables[0]} entries, from 0, and the examples have {largest}; fedcore's nets have "
            "net.vocabulary for that"
        )


def blank(module: nn.Module, count: int, shape: tuple[int, ...]) -> Tensor:
    """Return inputs of zeros, (count, *shape), of the type that a module takes."""
    return torch.zeros(count, *shape, dtype=torch.int64 if takes_integers(module) else torch.float32)


def linear_layers(module: nn.Module) -> dict[str, nn.Linear | nn.Conv1d | nn.Conv2d]:
    """Return name -> layer, of all that multiply rows of inputs by one matrix, if it is not frozen.

    Convolutions in groups are left out, as they use a matrix per group; so are those that pad with other than zeros.
    """
    layers: dict[str, nn.Linear | nn.Conv1d | nn.Conv2d] = {}
    for name, layer in module.named_modules():
        plain = isinstance(layer, nn.Conv1d | nn.Conv2d) and layer.groups == 1 and layer.padding_mode == "zeros"
        weight = layer._parameters.get("weight")  # which a parametrization computes from others
        if (isinstance(layer, nn.Linear) or plain) and weight is not None and weight.requires_grad:
            layers[name] = layer
    return layers


def layer_inputs(module: nn.Module, x: Tensor, use: Callable[[str, Tensor], None]) -> None:
    """Pass examples x (B, *shape) through the module and call `use(name, rows)` with each layer's inputs, (R, D).

    A layer's output is rows @ weight.reshape(m, D)' + bias; a convolution has a row for each place of its kernel.
    """
    layers = linear_layers(module)
    with torch.no_grad():
        use_of = partial(_hand_over, use=use)
        hooks = [of.register_forward_pre_hook(partial(use_of, name=name)) for name, of in layers.items()]
        try:
            module(x)
        finally:
            for hook in hooks:
                hook.remove()


def forward_features(module: nn.Module, x: Tensor) -> tuple[Tensor | None, Tensor]:
    """Return the input of the last layer, (B, d), and the logits (B, K).

    The last layer is that of the last tensor that is a matrix. None if it is not called as a module.
    """
    matrices = [name for name, tensor in module.state_dict(keep_vars=True).items() if tensor.dim() > 1]
    recorded: list[Tensor] = []
    last = module.get_submodule(matrices[-1].rpartition(".")[0])
    hook = last.register_forward_pre_hook(lambda _, inputs: recorded.extend(inputs[:1]))
    try:
        logits: Tensor = module(x)
    finally:
        hook.remove()
    return recorded[-1] if recorded else None, logits


def require_features(last_input: Tensor | None, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `forward_features` returned; raises InputError for a net without features."""
    if last_input is None:
        raise InputError("net: its last layer is not called as a module, its features cannot be read")
    return last_input, logits


def _hand_over(layer: nn.Module, inputs: tuple[Tensor, ...], *, name: str, use: Callable[[str, Tensor], None]) -> None:
    x = inputs[0].detach()
    use(name, x.flatten(0, -2) if isinstance(layer, nn.Linear) else patches(layer, x))  # type: ignore[arg-type]


def patches(layer: nn.Conv1d | nn.Conv2d, x: Tensor) -> Tensor:
    """Return the inputs of a convolution at each place of its kernel: (B, C, *sides) -> (R, C * kernel)."""
    kernel, stride, dilation = layer.kernel_size, layer.stride, layer.dilation
    edges: list[int] = []
    for axis in reversed(range(len(kernel))):
        if isinstance(layer.padding, str):
            total = dilation[axis] * (kernel[axis] - 1) * (layer.padding == "same")
            edges += [total // 2, total - total // 2]
        else:
            edges += [int(layer.padding[axis])] * 2
    x = F.pad(x, edges)
    if len(kernel) == 1:
        x, kernel, stride, dilation = x.unsqueeze(2), (1, *kernel), (1, *stride), (1, *dilation)
    return F.unfold(x, kernel, dilation, 0, stride).transpose(1, 2).flatten(0, 1)


def multiplications(net: Net, shape: tuple[int, ...]) -> int:
    """Return the multiplications of the linear and convolutional layers for one example of `shape`."""
    return _multiplications(key(net), shape)


@functools.lru_cache(maxsize=256)
def _multiplications(net: bytes, shape: tuple[int, ...]) -> int:
    with construct_with(torch.Generator()):
        module = net_of(net).build().eval()
        counts: list[int] = []

        def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            each = inputs[0] if isinstance(layer, nn.modules.conv._ConvTransposeNd) else output
            counts.append(each.numel() * layer.weight[0].numel())  # type: ignore[index]

        for layer in module.modules():
            if isinstance(layer, nn.Linear | nn.modules.conv._ConvNd):
                layer.register_forward_hook(count)
        with torch.no_grad():
            module(blank(module, 1, shape))  # which may draw random numbers: the step's must not move on
    return sum(counts)
