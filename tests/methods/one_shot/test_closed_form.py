"""Closed forms, against NumPy's least squares and scikit-learn's ridge."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.linear_model import Ridge

from fedcore.errors import InputError
from fedcore.methods.one_shot import closed_form as closed
from fedcore.types.method import generator


def numbers(*shape, word="x"):
    return torch.randn(*shape, dtype=torch.float64, generator=generator("closed", word, shape))


def test_ridge_is_scikit_learns():
    x, y = numbers(30, 6), numbers(30, 2, word="y")
    gram = x.T @ x
    found = closed.ridge(gram, x.T @ y, reg=0.3, extra=0.2)
    model = Ridge(alpha=float(0.3 * gram.diagonal().mean() + 0.2), fit_intercept=False).fit(x.numpy(), y.numpy())
    torch.testing.assert_close(found.T, torch.from_numpy(model.coef_), rtol=1e-10, atol=1e-12)


def test_an_undetermined_system_has_no_solution():
    x = numbers(5, 6)
    assert closed.ridge(x.T @ x, x.T @ numbers(5, 2), reg=0.0) is None
    assert closed.ridge(-(x.T @ x), x.T @ numbers(5, 2), reg=0.0) is None


def test_the_chosen_ridge_has_the_least_cross_validated_error():
    """GCV by its definition, with the matrix that maps labels to predictions, on examples instead of sums."""
    x = np.hstack([numbers(30, 20).numpy(), np.ones((30, 1))])
    y = np.eye(3)[(x[:, 0] + 2 * numbers(30, word="noise").numpy() > 0).astype(int)]
    gram = x.T @ x

    def score(reg: float) -> float:
        shift = reg * np.trace(gram) / len(gram)
        hat = x @ np.linalg.solve(gram + shift * np.eye(len(gram)), x.T)
        return ((y - hat @ y) ** 2).sum() / 30 / (1 - np.trace(hat) / 30) ** 2

    found = closed.cross_validated(torch.from_numpy(gram), torch.from_numpy(x.T @ y))
    assert found == min(closed.RIDGES, key=score)
    assert 1e-5 < found < 10


def test_a_ridge_is_chosen_where_examples_are_fewer_than_features():
    x = torch.cat([numbers(5, 9), torch.ones(5, 1, dtype=torch.float64)], 1)
    y = torch.eye(2, dtype=torch.float64)[torch.tensor([0, 1, 0, 1, 1])]
    assert closed.cross_validated(x.T @ x, x.T @ y) in closed.RIDGES
    assert closed.cross_validated(x.T @ x * 0, x.T @ y * 0) == closed.RIDGES[0]


def test_the_triangle_of_a_symmetric_matrix_holds_it():
    x = numbers(7, 5)
    gram = x.T @ x
    assert closed.triangle(gram).shape == (15,)
    assert torch.equal(closed.from_triangle(closed.triangle(gram), 5), gram)


def off_diagonal(difference: torch.Tensor) -> torch.Tensor:
    return difference - difference.diagonal().diag()


def test_a_sketch_keeps_the_diagonal_and_almost_the_most_beside_it():
    """The least error off the diagonal is SciPy's, over all axes; the largest axes of G alone miss it by far."""
    x = numbers(40, 9)
    gram = x.T @ x

    def error(axes: torch.Tensor) -> torch.Tensor:
        return off_diagonal(gram - axes @ axes.T).norm()

    def cost(flat: np.ndarray) -> tuple[float, np.ndarray]:
        axes = torch.from_numpy(flat).reshape(9, 3).requires_grad_()
        found = error(axes).square()
        (logit_grad,) = torch.autograd.grad(found, axes)
        return found.item(), logit_grad.numpy().ravel()

    axes, residual = closed.sketch(gram, 3)
    assert axes.shape == (9, 3)
    assert bool((residual >= 0).all())
    torch.testing.assert_close(closed.from_sketch(axes, residual).diagonal(), gram.diagonal())
    _, s, v = np.linalg.svd(x.numpy(), full_matrices=False)
    largest = torch.from_numpy(v[:3].T * s[:3])
    least = minimize(cost, largest.numpy().ravel(), jac=True).fun ** 0.5
    assert least <= error(axes) * (1 + 1e-9) <= 1.05 * least < 0.5 * error(largest)


def test_a_sketch_of_the_rank_of_the_examples_is_lossless():
    x = numbers(4, 9)
    torch.testing.assert_close(closed.from_sketch(*closed.sketch(x.T @ x, 4)), x.T @ x)


def test_clipping_shortens_long_rows_alone():
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    torch.testing.assert_close(closed.clip_rows(rows, 2.0), torch.tensor([[1.2, 1.6], [0.3, 0.4], [0.0, 0.0]]))


def test_random_weights_have_the_stated_variance_and_depend_on_the_seed():
    weights = closed.random_weights(200, 500, 3)
    assert weights.shape == (500, 200)
    assert weights.var().item() == pytest.approx(2 / 200, rel=0.02)
    assert torch.equal(weights, closed.random_weights(200, 500, 3))
    assert not torch.equal(weights, closed.random_weights(200, 500, 4))


def test_regression_mean_of_least_squares_is_the_pooled_solution():
    parts = [(numbers(count, 4, word=str(count)), numbers(count, 3, word=f"y{count}")) for count in (5, 9, 20)]
    weights = [torch.linalg.lstsq(x, y).solution.T for x, y in parts]
    found = closed.regression_mean(weights, [x.T @ x for x, _ in parts])
    x, y = (torch.cat(both).numpy() for both in zip(*parts, strict=True))
    np.testing.assert_allclose(found.T.numpy(), np.linalg.lstsq(x, y, rcond=None)[0], rtol=1e-9)


def test_regression_mean_of_one_weight_is_that_weight():
    weight = numbers(3, 4)
    grams = [closed.damped(x.T @ x, 0.9, 1e-3) for x in (numbers(2, 4), numbers(7, 4))]
    torch.testing.assert_close(closed.regression_mean([weight, weight], grams), weight)


def test_damping_by_hand():
    gram = torch.tensor([[2.0, 1.0], [1.0, 4.0]])
    torch.testing.assert_close(closed.damped(gram, 0.5, 0.1), torch.tensor([[2.3, 0.5], [0.5, 4.3]]))


def test_sums_of_another_shape_name_the_device():
    with pytest.raises(InputError, match=r"^update of b: gram has shape \(2,\), must be \(3,\)$"):
        closed.require_sums("b", torch.zeros(2), (3,), "gram")
