r"""Linear models in closed form, from sums over examples that devices can add up: ridge regression and RegMean.

For inputs phi (N, F) and targets Y (N, K), the sums G = phi' phi and B = phi' Y of several devices add to those of
all their examples. Therefore the solution of (G + lambda I) M = B does not depend on how examples are divided.
All sums and solutions are float64.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from fedcore.core.prediction import IMAGE_BATCH, SCORING_BATCH
from fedcore.data.task import label_kind_of
from fedcore.errors import InputError
from fedcore.nets import init, shapes
from fedcore.nets.copies import load
from fedcore.nets.inputs import linear_layers
from fedcore.types.federation import Net, Params
from fedcore.types.method import Update, generator

SINGULAR = 1e-7
"""Ratio of the least to the largest pivot of a Cholesky factor below which its matrix counts as singular: its square is
about the precision of the sums, relative to the largest of them."""


RIDGES = tuple(10 ** (step / 4) for step in range(8, -25, -1))
"""Candidates for a ridge, relative to the mean of the diagonal: from 100 down to 1e-6."""

EVERYONE = "and each device builds the merged net layer by layer: without one of them its layers do not fit"
"""Why an exchange for each layer needs all devices."""

TURNS = 8
"""Steps by which the axes of a sketch turn; on MNIST's random features more than four change nothing."""


def random_weights(inputs: int, features: int, seed: int) -> Tensor:
    """Return W' (F, D) float32, each number from N(0, 2 / D) (He et al. 2015); drawn from the seed alone."""
    draws = generator(seed, "features")
    return torch.randn(features, inputs, generator=draws) * math.sqrt(2 / inputs)


def random_features(x: Tensor, weights: Tensor) -> Tensor:
    """Return phi = [relu(x W), 1], (N, F + 1) float64, of examples x (N, *shape)."""
    return append_one((x.flatten(1).double() @ weights.double().T).relu_())


def append_one(x: Tensor) -> Tensor:
    """Return (x, 1): (N, D) -> (N, D + 1)."""
    return torch.cat([x, x.new_ones(len(x), 1)], 1)


def clip_rows(phi: Tensor, bound: float) -> Tensor:
    """Shorten each row to a length of at most `bound`; a shorter one stays as it is."""
    lengths: Tensor = torch.linalg.vector_norm(phi, dim=1, keepdim=True)
    return phi * (bound / lengths).clamp_max(1)


def class_sums(phi: Tensor, y: Tensor, classes: int) -> Tensor:
    """Return B = phi' Y, (F, K), with Y the one-hot labels y (N,), or the numbers that they are."""
    return phi.T @ label_kind_of(y).targets(y, classes).to(phi.dtype)


def triangle(matrix: Tensor) -> Tensor:
    """Return the entries of a symmetric matrix (F, F) on and above its diagonal, (F (F + 1) / 2,)."""
    rows, columns = torch.triu_indices(*matrix.shape)
    return matrix[rows, columns]


def from_triangle(entries: Tensor, size: int) -> Tensor:
    """Undo `triangle`: return the symmetric matrix (F, F)."""
    rows, columns = torch.triu_indices(size, size)
    matrix = entries.new_zeros(size, size)
    matrix[rows, columns] = entries
    matrix[columns, rows] = entries
    return matrix


def is_gram(entries: Tensor, size: int) -> bool:
    """Tell whether entries as `triangle` returns them are those of a sum of phi phi', but for rounding."""
    matrix = from_triangle(entries.double(), size)
    diagonal = matrix.diagonal()
    shifted = matrix + (SINGULAR * diagonal.abs().max() + torch.finfo(torch.double).tiny) * torch.eye(size)
    return bool(matrix.isfinite().all() and diagonal.min() >= 0 and not torch.linalg.cholesky_ex(shifted).info)


def sketch(gram: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    r"""Return axes V S of a Gram matrix (F, F), (F, r), and the rest of its diagonal, (F,).

    G ~ (V S) (V S)' + diag(residual)

    The axes begin as G's r largest and then turn towards those of G - diag(residual), which describe what lies off the
    diagonal (principal factors: Harman and Jones 1966, "Factor analysis by minimizing residuals"), by TURNS steps of
    subspace iteration. The diagonal comes back exactly, unless the axes exceed it; with rank F all of G does.
    """
    from scipy.linalg import eigh

    size, diagonal = len(gram), gram.diagonal()
    values, vectors = map(torch.from_numpy, eigh(gram.cpu().numpy(), subset_by_index=[size - rank, size - 1]))
    axes, residual = _axes(vectors.to(gram), values.to(gram), diagonal)
    for _ in range(TURNS):
        vectors = torch.linalg.qr(gram @ axes - residual[:, None] * axes).Q
        values, eigenvectors = torch.linalg.eigh(vectors.T @ (gram @ vectors - residual[:, None] * vectors))
        axes, residual = _axes(vectors @ eigenvectors, values, diagonal)
    return axes, residual


def _axes(vectors: Tensor, values: Tensor, diagonal: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvectors times the roots of their eigenvalues, and what is left of the diagonal, at least 0."""
    axes = vectors * values.clamp_min(0).sqrt()
    return axes, (diagonal - axes.square().sum(1)).clamp_min(0)


def from_sketch(axes: Tensor, residual: Tensor) -> Tensor:
    """Undo `sketch`, as far as it can be."""
    return axes.double() @ axes.double().T + residual.double().diag()


def solve_ridge(gram: Tensor, targets: Tensor) -> Tensor | None:
    """Return M with gram M = targets, (F, K); None if gram (F, F) is not positive definite."""
    factor, failed = torch.linalg.cholesky_ex(gram)
    pivots = factor.diagonal()
    if failed or pivots.min() < SINGULAR * pivots.max():
        return None
    return torch.cholesky_solve(targets, factor)


def ridge(gram: Tensor, targets: Tensor, reg: float, extra: float = 0.0) -> Tensor | None:
    r"""Return M = (G + lambda I)^-1 B, (F, K); None if that does not determine it.

    lambda = reg * (mean of G's diagonal) + extra
    """
    shift = reg * gram.diagonal().mean() + extra
    return solve_ridge(gram + shift * torch.eye(len(gram), dtype=gram.dtype), targets)


def cross_validated(gram: Tensor, targets: Tensor, squares: Tensor | None = None) -> float:
    r"""Return the ridge, relative to the mean of G's diagonal, with the least generalised cross-validation (GCV) score.

    GCV(lambda) = (||Y - phi M||^2 / N) / (1 - tr(H) / N)^2,   H = phi (G + lambda I)^-1 phi'

    (Golub, Heath and Wahba 1979, "Generalized cross-validation as a method for choosing a good ridge parameter"). Both
    parts follow from sums: the last feature is 1, so that G ends with N, ||Y||^2 of one-hot Y. squares: that of other
    labels, (1,). Of RIDGES the largest with the least score.
    """
    values, vectors = torch.linalg.eigh(gram)
    values, energy = values.clamp_min(0), (vectors.T @ targets).square().sum(1)
    number = gram[-1, -1]
    square = number if squares is None else squares[0]
    scores = {}
    for reg in RIDGES:
        shifted = values + reg * gram.diagonal().mean()
        misfit = square - (energy * (values + 2 * (shifted - values)) / shifted.square()).sum()
        freedom = 1 - (values / shifted).sum() / number
        if freedom > SINGULAR:
            scores[reg] = float(misfit / freedom.square())
    return min(scores, key=scores.__getitem__) if scores else RIDGES[0]


def damped(gram: Tensor, share: float, damping: float) -> Tensor:
    r"""Return a G + (1 - a) diag(G) + d mean(diag(G)) I.

    share: a, of the entries beside the diagonal, which Jin et al. (2023) scale down. damping: d.
    """
    diagonal = gram.diagonal()
    return share * gram + ((1 - share) * diagonal + damping * diagonal.mean()).diag()


def regression_mean(weights: Sequence[Tensor], grams: Sequence[Tensor]) -> Tensor | None:
    r"""Return the linear layer nearest to all devices' layers on their own inputs (Jin et al. 2023).

    W = (sum_i W_i G_i) (sum_i G_i)^-1

    weights: of each device (m, F). grams: sums over its inputs, (F, F). It minimises
    sum_i ||(W - W_i) X_i'||^2 for G_i = X_i' X_i. None if the inputs do not determine it.
    """
    total = torch.stack(list(grams)).sum(0)
    targets = torch.stack([gram @ weight.double().T for weight, gram in zip(weights, grams, strict=True)]).sum(0)
    solution = solve_ridge(total, targets)
    return None if solution is None else solution.T


def output_sums(weights: Tensor, gram: Tensor) -> Tensor:
    r"""Return the sums over rows a of z = W a and of its squares, and the number of rows: (3, m) float64.

    weights: W (m, F). gram: sum of a a' (F, F), of which the last entry of each a is 1.
    """
    w = weights.double()
    return torch.stack([w @ gram[:, -1], ((w @ gram) * w).sum(1), gram[-1, -1].expand(len(w))])


def rescale(weights: Tensor, sums: Tensor, goal: Tensor) -> Tensor:
    r"""Return a layer's weights (m, F), bias last, whose outputs have the goal's means and deviations.

    w_k <- r_k w_k, bias_k <- r_k (bias_k - mu_k) + mu*_k,   r_k = sigma*_k / sigma_k

    (Jordan et al. 2023, "REPAIR: REnormalizing Permuted Activations for Interpolation Repair"). sums: of the
    layer's outputs as it is, goal: of those to be reached, (3, m), see `output_sums`. A unit whose output is constant
    keeps its scale.
    """
    (mean, deviation), (wanted, spread) = _moments(sums), _moments(goal)
    moves = deviation > SINGULAR * (mean.abs() + deviation)
    ratio = torch.where(moves, spread / torch.where(moves, deviation, 1.0), 1.0)
    scaled = weights.double() * ratio[:, None]
    scaled[:, -1] += wanted - ratio * mean
    return scaled


def _moments(sums: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation, (m,), from sums, sums of squares and numbers, (3, m); 0 of none."""
    total, squares, count = sums[0], sums[1], sums[2].clamp_min(1)
    return total / count, (squares / count - (total / count).square()).clamp_min(0).sqrt()


def matrix(params: Params, layer: str) -> Tensor:
    """Return a layer's weights with its bias as the last column, (m, D + 1)."""
    weight = params[f"{layer}.weight"].flatten(1)
    bias = params.get(f"{layer}.bias")
    return weight if bias is None else torch.cat([weight, bias[:, None]], 1)


def to_layer(solution: Tensor, params: Params, layer: str) -> Params:
    """Undo `matrix`: return the layer's parameters in the shapes and the precision of those in `params`."""
    weight, bias = f"{layer}.weight", f"{layer}.bias"
    params_of_layer = {weight: solution[:, : params[weight][0].numel()].reshape(params[weight].shape)}
    if bias in params:
        params_of_layer[bias] = solution[:, -1]
    return {name: tensor.to(params[name].dtype).contiguous() for name, tensor in params_of_layer.items()}


def batches(params: Params, count: int) -> Iterator[slice]:
    """Yield slices of so many examples, small ones for nets with convolutions."""
    size = IMAGE_BATCH if any(tensor.dim() > 2 for tensor in params.values()) else SCORING_BATCH
    return (slice(start, start + size) for start in range(0, count, size))


def plain_layers(net: Net, key: str) -> tuple[str, ...]:
    """Return the names of a net's layers in forward order; refuses one with other parts than layers with biases.

    key: the setting that needs them, for the message.
    """
    names = [*shapes(net)]
    layers = [name.removesuffix(".bias") for name in names if name.endswith(".bias")]
    linear = linear_layers(load(net, init(net, generator("layers"))))
    if {*names} != {f"{layer}.{part}" for layer in linear for part in ("weight", "bias")}:
        raise InputError(f"{key}: the net must consist of linear and convolutional layers with biases")
    return tuple(layers)


def require_sums(name: str, sums: Tensor, shape: tuple[int, ...], entry: str) -> None:
    """Raise InputError, naming the device, for sums of another shape."""
    if tuple(sums.shape) != shape:
        raise InputError(f"update of {name}: {entry} has shape {tuple(sums.shape)}, must be {shape}")


def sum_over(updates: Mapping[str, Update], entry: str, shape: tuple[int, ...]) -> Tensor:
    """Return the sum of the devices' entries of that name, float64, in their order; refuses one of another shape."""
    for name, update in updates.items():
        require_sums(name, update.extra.get(entry, torch.empty(0)), shape, entry)
    return torch.stack([update.extra[entry].double() for update in updates.values()]).sum(0)
