r"""Gaussians of a device's examples, draws from them, and a net that learns from the draws.

    x = mu + sum_k sqrt(lambda_k) e_k v_k + sqrt(rho) h        e_k, h: standard normal, h as large as x

mu is the mean of n examples and v_k, lambda_k are the q leading principal directions and variances (with 1/n): the SVD
U S V' of x - mu, lambda = S^2 / n. rho spreads the variance that is left over all inputs, so that draws have the
examples' mean and total variance, and the covariance V diag(lambda) V' + rho I. q = min(rank, n - 1).

A device makes a Gaussian of each class of which it has `minimum` examples; with less of every class, one of all its
examples if they are as many. Labels of the draws of the latter are not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import one_hot

from fedcore import nets
from fedcore.core.training import LogitGrad, Training, descend, flatten_net, minibatches, plain_step
from fedcore.types.federation import Data, Net, Params
from fedcore.types.method import RoundInfo
from fedcore.types.ranges import Count, Positive, Share

GAUSSIAN = "gaussian/"
"""Prefix of the entries of an update that hold Gaussians: "gaussian/<label>/<part>"."""

ALL = -1
"""The label of a Gaussian of all classes together."""


@dataclass(frozen=True)
class Sketches:
    """Settings of the Gaussians and of the net that learns from them.

    Args:
        rank: most principal directions of a class, from 1.
        minimum: fewest examples of a class for which a device sends a Gaussian, from 2.
        draws: drawn examples, shared among classes by counts of labels, from 1.
        hard: share of the label in a draw's target, from 0 to 1; the ensemble's answer has the rest.
        epochs: of the net's training, by Adam with a cosine schedule, from 1.
        batch: draws in a minibatch of it, from 1.
        lr: its learning rate, above 0.
    """

    rank: Count = 15
    minimum: Annotated[int, Ge(2)] = 20
    draws: Count = 60_000
    hard: Share = 0.5
    epochs: Count = 10
    batch: Count = 128
    lr: Positive = 0.001

    @property
    def training(self) -> Training:
        return Training("adam", self.lr, schedule="cosine", batch=self.batch, epochs=self.epochs)


@dataclass(frozen=True)
class Gaussian:
    """A Gaussian of examples x (*shape): mean (*shape), axes v (q, *shape), variances lambda (q,), residual rho ()."""

    mean: Tensor
    axes: Tensor
    variances: Tensor
    residual: Tensor

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Return draws (N, *shape) float32."""
        e = torch.randn(count, len(self.axes), generator=generator)
        h = torch.randn(count, *self.mean.shape, generator=generator)
        return (
            h.mul_(self.residual.sqrt()).add_(self.mean).add_(torch.tensordot(e * self.variances.sqrt(), self.axes, 1))
        )


def gaussian(x: Tensor, rank: int) -> Gaussian:
    """Return the Gaussian of at least two examples x (N, *shape), all numbers float32.

    The decomposition is that of the smaller of the two products of x - mu with itself, in float64.
    """
    flat = x.flatten(1).double()
    mean = flat.mean(0)
    centred, n, size, q = flat - mean, len(flat), flat.shape[1], min(rank, len(flat) - 1, flat.shape[1])
    wide = n <= size
    values, vectors = torch.linalg.eigh(centred @ centred.T if wide else centred.T @ centred)
    variances, vectors = values[-q:].flip(0).clamp(min=0) / n, vectors[:, -q:].flip(1)
    axes = torch.nn.functional.normalize(centred.T @ vectors if wide else vectors, dim=0).T
    residual = ((centred.square().sum() / n - variances.sum()) / size).clamp(min=0)
    shape = x.shape[1:]
    return Gaussian(mean.reshape(shape).float(), axes.reshape(q, *shape).float(), variances.float(), residual.float())


def sketch(data: Data, classes: int, rank: int, minimum: int) -> Params:
    """Return the entries of the Gaussians that a device sends of its labelled examples; see the module."""
    x, counts = data.inputs(), torch.bincount(data.y, minlength=classes)
    parts = {k: x[data.y == k] for k in range(classes) if counts[k] >= minimum}
    if not parts and len(data) >= minimum:
        parts = {ALL: x}
    return {
        f"{GAUSSIAN}{label}/{name}": tensor
        for label, examples in parts.items()
        for name, tensor in vars(gaussian(examples, rank)).items()
    }


def read_sketch(extra: Params) -> dict[int, Gaussian]:
    """Undo `sketch`: label -> Gaussian."""
    parts_of: dict[int, dict[str, Tensor]] = {}
    for name, tensor in extra.items():
        if name.startswith(GAUSSIAN):
            _, label, part = name.split("/")
            parts_of.setdefault(int(label), {})[part] = tensor
    return {label: Gaussian(**parts) for label, parts in parts_of.items()}


def draw(
    sketches: Mapping[str, Mapping[int, Gaussian]], counts: Tensor, number: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return draws x (N, *shape) float32, not clipped, and their labels y (N,), ALL where not known.

    sketches: device -> label -> Gaussian, at least one. counts: (C, K), examples in the order of the devices.
    """
    gaussians = [(label, gaussian) for parts in sketches.values() for label, gaussian in parts.items()]
    x = torch.empty(number, *gaussians[0][1].mean.shape)
    weights = draw_weights([*map(list, sketches.values())], counts)
    which = torch.multinomial(weights, number, replacement=True, generator=generator)
    for i, (_, gaussian) in enumerate(gaussians):
        drawn = (which == i).nonzero()[:, 0]
        x[drawn] = gaussian.draw(len(drawn), generator)
    return x, torch.tensor([label for label, _ in gaussians])[which]


def draw_weights(labels: Sequence[Sequence[int]], counts: Tensor) -> Tensor:
    r"""Return how often each Gaussian is drawn, up to a factor, (G,) float64.

    Class c has N_c draws, the examples that devices have of it, of which device i has n_ic / sum_j n_jc, over the
    devices j that tell of c. A device that tells of all its examples together has as many draws, of unknown labels.

    labels: of each device's Gaussians. counts: (C, K), n.
    """
    n, whole = counts.double(), torch.tensor([ALL in own for own in labels])
    tells = torch.zeros_like(n)
    for row, own in zip(tells, labels, strict=True):
        row[[label for label in own if label != ALL]] = 1
    of_class = n[~whole].sum(0) * n * tells / (n * tells).sum(0)
    return torch.stack([
        of_class[i, label] if label != ALL else n[i].sum() for i, own in enumerate(labels) for label in own
    ])  # fmt: skip


def targets_of(y: Tensor, ensemble: Tensor, hard: float) -> Tensor:
    """Return targets (N, K): hard onehot(y) + (1 - hard) ensemble, the ensemble alone where y is ALL.

    ensemble: probabilities (N, K).
    """
    mixed = ensemble.lerp(one_hot(y.clamp(min=0), ensemble.shape[1]).to(ensemble.dtype), hard)
    return torch.where((y == ALL)[:, None], ensemble, mixed)


def soft_target_grad(targets: Tensor) -> LogitGrad:
    """Return the gradient of cross-entropy against soft targets (N, K); the "labels" of minibatches are their rows."""

    def logit_grad(logits: Tensor, rows: Tensor) -> Tensor:
        return logits.softmax(1).sub_(targets.index_select(0, rows))

    return logit_grad


def learn(net: Net, x: Tensor, targets: Tensor, training: Training, round_info: RoundInfo) -> Params:
    """Train a fresh net on examples x (N, *shape) float32 with soft targets (N, K)."""
    flat = flatten_net(net, nets.init(net, round_info.generator("init")))
    with nets.use_generator(round_info.generator("noise")):
        batches = minibatches(flat, len(x), training, round_info.generator("batches"))
        step = plain_step(flat, training, len(batches), logit_grad=soft_target_grad(targets))
        descend(Data(x, torch.arange(len(x))), batches, step)
    return flat.params()
