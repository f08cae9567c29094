"""Nets for sequences of whole numbers, such as the letters of a text: what follows, or what kind of text it is.

Both read the last place's output, so that a shorter text is padded in front. Where each step has a label they have an
output for each place, and a shorter text is padded at its end.
"""

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from fedcore.errors import InputError
from fedcore.nets.tables import require_size
from fedcore.types.federation import Net
from fedcore.types.ranges import Count

DEEPEST = 1000
"""The most layers of a net: more take minutes to make."""


class Recurrent(nn.Module):
    """An embedding, LSTM layers and a linear one: x (B, T) -> logits (B, K), or of each step (B, T, K)."""

    def __init__(
        self, vocabulary: int, embedding: int, hidden: int, layers: int, classes: int, per_step: bool = False
    ) -> None:
        super().__init__()
        self.per_step = per_step
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.fc = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(x.long()))
        logits: Tensor = self.fc(states if self.per_step else states[:, -1])
        return logits


class Block(nn.Module):
    """Attention of every place to every other, then two layers on each; both are added to their normalised inputs.

    causal: a place attends to itself and those before it alone.
    """

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.inputs, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.fc1, self.fc2 = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.inputs(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        y: Tensor = x + self.fc2(gelu(self.fc1(self.norm2(x))))
        return y


class Attentive(nn.Module):
    """An embedding, a learnt vector for each place, blocks, a norm and a linear layer: x (B, T) -> logits (B, K).

    per_step: the logits of each step, (B, T, K).
    """

    def __init__(
        self, length: int, vocabulary: int, width: int, heads: int, layers: int, classes: int, causal: bool = False,
        per_step: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.per_step = per_step
        self.embedding = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.randn(length, width) / math.sqrt(width))
        self.blocks = nn.Sequential(*(Block(width, heads, causal) for _ in range(layers)))
        self.norm, self.fc = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        states = self.blocks(self.embedding(x.long()) + self.places)
        logits: Tensor = self.fc(self.norm(states if self.per_step else states[:, -1]))
        return logits


def lstm(
    *, shape: Sequence[int], classes: int, per_step: bool = False, vocabulary: Count | None = None,
    embedding: Count = 8, hidden: Count = 64, layers: Count = 1,
) -> Net:  # fmt: skip
    """Return a character model; LEAF's for Shakespeare has 2 layers of 256 units.

    Args:
        vocabulary: how many whole numbers there are, from 0; None: as many as classes, as for the next letter.
        embedding: width of a number's vector.
        hidden: units of a layer.
        layers: LSTM layers.
    """
    vocabulary = _require_sequence("lstm", shape, classes, vocabulary, layers)
    each: dict[str, bool] = {"per_step": True} if per_step else {}
    build = partial(Recurrent, vocabulary, embedding, hidden, layers, classes, **each)
    require_size(build)
    return Net(build, copied=True)


def transformer(
    *, shape: Sequence[int], classes: int, per_step: bool = False, vocabulary: Count | None = None,
    embedding: Count = 32, heads: Count = 4, layers: Count = 2, causal: bool | None = None,
) -> Net:  # fmt: skip
    """Return a small transformer, without dropout.

    Args:
        vocabulary: how many whole numbers there are, from 0; None: as many as classes, as for the next letter.
        embedding: width of all vectors, a multiple of heads.
        heads: of attention.
        layers: blocks of attention and two linear layers.
        causal: whether a place sees none after it, as the next letter needs; None: where each step has a label.
    """
    vocabulary = _require_sequence("transformer", shape, classes, vocabulary, layers)
    if embedding % heads:
        raise InputError(f"net.embedding = {embedding}: must be a multiple of net.heads = {heads}")
    each: dict[str, bool] = {"per_step": True} if per_step else {}
    if per_step if causal is None else causal:
        each["causal"] = True
    build = partial(Attentive, shape[0], vocabulary, embedding, heads, layers, classes, **each)
    require_size(build)
    return Net(build, copied=True)


def _require_sequence(name: str, shape: Sequence[int], classes: int, vocabulary: int | None, layers: int) -> int:
    """Return the size of the vocabulary; refuses examples that are no sequences, and more layers than can be built."""
    if layers > DEEPEST:
        raise InputError(f"net.layers = {layers}: at most {DEEPEST}")
    if len(shape) != 1:
        raise InputError(f"net.name: {name} takes sequences of whole numbers (T,), examples are {tuple(shape)}")
    return classes if vocabulary is None else vocabulary
