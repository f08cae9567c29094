"""Modules as people write them: fedcore trains each as plain PyTorch does (nets/test_trial.py)."""

import functools
import random
import types
import weakref

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

from fedcore.nets.mlp import MLP

FEATURES, CLASSES, ACT = 6, 3, torch.relu


class Two(nn.Module):
    """Two layers, a scale and a statistic, which the kinds below use in their ways."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return self.second(torch.relu(self.first(x)) * self.scale)


class Lambda(Two):
    def __init__(self):
        super().__init__()
        self.head = lambda h: self.second(h)

    def forward(self, x):
        return self.head(torch.relu(self.first(x)) * self.scale)


class LocalClosure(Two):
    def __init__(self):
        super().__init__()
        scale = self.scale

        def act(h):
            return torch.relu(h) * scale

        self.act = act

    def forward(self, x):
        return self.second(self.act(self.first(x)))


class Hook(Two):
    def __init__(self):
        super().__init__()
        self.second.register_forward_pre_hook(lambda _, inputs: (inputs[0] * self.scale,))

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


class KeepingHook(Two):
    """Keeps features in a dict, as many do."""

    def __init__(self):
        super().__init__()
        self.kept = {}
        self.first.register_forward_hook(lambda _, inputs, output: self.kept.update(h=output))

    def forward(self, x):
        self.first(x)
        return self.second(torch.relu(self.kept["h"]) * self.scale)


class BoundHook(Two):
    def __init__(self):
        super().__init__()
        self.second.register_forward_pre_hook(self.times)
        self.again = functools.partial(Two.forward, self)

    def times(self, _, inputs):
        return (inputs[0] * self.scale,)

    def forward(self, x):
        return self.again(x)


class TensorHook(Two):
    """Its first layer learns at a tenth of the rate."""

    def __init__(self):
        super().__init__()
        self.first.weight.register_hook(_tenth)


def _tenth(gradient):
    return gradient / 10


class Listed(Two):
    def __init__(self):
        super().__init__()
        self.listed, self.pair = [self.first, self.second], (self.scale, {"w": self.second.weight})

    def forward(self, x):
        h = torch.relu(self.listed[0](x)) * self.pair[0]
        return F.linear(h, self.pair[1]["w"], self.second.bias)


class BoundLambda(Two):
    """Can be pickled, and not be read again."""

    def __init__(self):
        super().__init__()
        self.last = types.MethodType(lambda self, h: self.second(h), self)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)) * self.scale)


class Weak(Two):
    def __init__(self):
        super().__init__()
        self.last = weakref.ref(self.second)

    def forward(self, x):
        return self.last()(torch.relu(self.first(x)) * self.scale)


class ViewOfBuffer(Two):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.half = self.mean[:4]

    def forward(self, x):
        h = self.first(x)
        if self.training:
            self.mean.lerp_(h.detach().mean(0), 0.1)
        return self.second(torch.relu(h) * self.scale) + self.half.mean()


class OwnTrain(Two):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x):
        return self.second(torch.relu(self.norm(self.first(x))) * self.scale)


class Norm(OwnTrain):
    def train(self, mode=True):
        return nn.Module.train(self, mode)


class ChangesInput(Two):
    def forward(self, x):
        x -= 0.4
        return super().forward(x)


class InPlace(Two):
    def __init__(self):
        super().__init__()
        self.act = nn.LeakyReLU(0.1, inplace=True)

    def forward(self, x):
        return super().forward(self.act(x))


class SomeRows(Two):
    """Changes its input only where a row is far out."""

    def forward(self, x):
        if (x < -1.5).any():
            x.clamp_(min=-1.5)
        return super().forward(x)


class Bfloat16(Two):
    def forward(self, x):
        return super().forward(x).bfloat16()


class FreezesInForward(Two):
    def forward(self, x):
        self.first.requires_grad_(False)
        return super().forward(x)


class Detached(Two):
    def forward(self, x):
        return self.second(torch.relu(self.first(x)).detach() * self.scale)


class Alternating(Two):
    """Its first layer has a gradient in each second step."""

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        self.steps += self.training
        h = torch.relu(self.first(x))
        return self.second((h.detach() if self.steps % 2 else h) * self.scale)


class Uncalled(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.unused = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES), nn.Linear(2, 2)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


class Unused(Two):
    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(2, 2)
        self.second = nn.Linear(8, CLASSES)


class Frozen(Two):
    def __init__(self):
        super().__init__()
        self.fixed = nn.Linear(FEATURES, FEATURES).requires_grad_(False)
        self.norm = nn.BatchNorm1d(FEATURES).requires_grad_(False)
        self.second = nn.Linear(8, CLASSES)

    def forward(self, x):
        return super().forward(self.norm(self.fixed(x)))


class FrozenOnTop(nn.Module):
    """A frozen number beside its layers: it is itself no frozen layer, which would not train its dropout and mean."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)
        self.fixed = nn.Parameter(torch.tensor(2.0), requires_grad=False)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        h = self.first(x) * self.fixed
        if self.training:
            self.mean.lerp_(h.detach().mean(0), 0.1)
        return self.second(torch.relu(h - self.mean) * (1.5 if self.training else 1))


class Merging(Two):
    """As in loralib: `eval()` adds a product of two matrices to the first layer, `train()` takes it out."""

    def __init__(self):
        super().__init__()
        self.first.requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, FEATURES)), nn.Parameter(torch.randn(8, 2))
        self.second, self.merged = nn.Linear(8, CLASSES), False

    def train(self, mode=True):
        super().train(mode)
        if mode == self.merged:
            self.first.weight.data += (-1 if mode else 1) * self.up.data @ self.down.data
            self.merged = not mode
        return self

    def forward(self, x):
        h = self.first(x) if self.merged else self.first(x) + x @ self.down.T @ self.up.T
        return self.second(torch.relu(h) * self.scale)


class Counting(Two):
    """Changes a buffer in evaluation as in training, and its first layer, which keeps a norm."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x):
        with torch.no_grad():
            self.seen += 0.01
            self.first.weight.clamp_(-1, 1)
        return self.second(torch.relu(self.first(x) + self.seen * self.training) * self.scale)


class Drawn(Two):
    """A frozen layer and an order drawn by NumPy and by Python, as random features are."""

    def __init__(self):
        super().__init__()
        self.fixed = nn.Parameter(torch.tensor(np.random.randn(FEATURES, FEATURES)).float(), requires_grad=False)
        self.order = random.sample(range(FEATURES), FEATURES)
        self.second = nn.Linear(8, CLASSES)

    def forward(self, x):
        return super().forward((x @ self.fixed)[:, self.order])


class Attention(Two):
    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(FEATURES, 2, batch_first=True)
        self.second = nn.Linear(8, CLASSES)

    def forward(self, x):
        x = torch.stack([x, x.flip(1)], 1)
        return super().forward(ACT(self.attend(x, x, x)[0].mean(1)))


class Recurrent(Two):
    def __init__(self):
        super().__init__()
        self.lstm, self.second = nn.LSTM(1, FEATURES, 2, batch_first=True), nn.Linear(8, CLASSES)

    def forward(self, x):
        return super().forward(self.lstm(x[:, :, None])[0][:, -1])


class OwnLoading(Two):
    """Reads files of before, in which its scale had another name."""

    def __init__(self):
        super().__init__()
        self.register_load_state_dict_pre_hook(_rename)


def _rename(module, state, prefix, *_):
    if f"{prefix}factor" in state:
        state[f"{prefix}scale"] = state.pop(f"{prefix}factor")


class OwnPickling(Two):
    def __init__(self):
        super().__init__()
        self.twice = [2.0]

    def __getstate__(self):
        return {**self.__dict__, "twice": [1.0]}

    def forward(self, x):
        return super().forward(x) * self.twice[0]


class Parametrized(Two):
    def __init__(self):
        super().__init__()
        parametrizations.orthogonal(self.first)
        parametrizations.weight_norm(self.second)


class Normed(Two):
    """The older spectral norm keeps a vector in a buffer and loads in a way of its own."""

    def __init__(self):
        super().__init__()
        spectral_norm(self.first)


class WeightNormed(Two):
    def __init__(self):
        super().__init__()
        weight_norm(self.second)


class Squeezed(MLP):
    """fedcore's own perceptron with another forward than its chain rule is of."""

    def __init__(self):
        super().__init__((FEATURES, 6, 3))

    def forward(self, x):
        return super().forward(2 * x) / 2


class NamedAlike(Two):
    """Has methods by the names of fedcore's chain rule, and says what fedcore's nets of images say."""

    channels_last = True

    def activations(self, params, x):
        return [x, 0 * self.first(x), self.second(ACT(self.first(x)))]

    def backward(self, *values, **settings):
        pass

    def forward(self, x):
        return self.second(ACT(self.first(x)))


def hooked_perceptron():
    module = MLP((FEATURES, 6, 3))
    module.fc1.register_forward_hook(_squash)
    return module


def _squash(module, inputs, output):
    return 2 * output.tanh()


def traced():
    return torch.fx.symbolic_trace(Two())


def local_class():
    class Local(Two):
        def forward(self, x):
            return super().forward(x)

    return Local()


EQUAL = [
    Lambda, LocalClosure, Hook, KeepingHook, BoundHook, TensorHook, Listed, BoundLambda, Weak, ViewOfBuffer, OwnTrain,
    Norm, ChangesInput, InPlace, SomeRows, Bfloat16, FreezesInForward, Detached, Alternating, Unused, Frozen,
    FrozenOnTop, Merging, Counting, Drawn, Attention, Recurrent, OwnLoading, OwnPickling, Parametrized, Normed,
    WeightNormed, Squeezed, NamedAlike, hooked_perceptron, traced, local_class,
]  # fmt: skip
FAST = [
    BoundHook, Listed, OwnTrain, Norm, ChangesInput, InPlace, SomeRows, Bfloat16, FreezesInForward, Detached,
    Alternating, Unused, Frozen, FrozenOnTop, Merging, Counting, Drawn, Attention, Recurrent, OwnLoading, Normed,
    WeightNormed, Squeezed, NamedAlike, hooked_perceptron, traced,
]  # fmt: skip
