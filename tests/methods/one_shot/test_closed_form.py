"""Closed forms, against NumPy's least squares and scikit-learn's ridge."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from federations import NET, NETS, SGD, bits, data, federation, last
from scipy.optimize import minimize
from sklearn.linear_model import Ridge

from fedcore import Data, Device, Federation, InputError, Splits
from fedcore.core.evaluation import outputs
from fedcore.core.rounds import begin, check
from fedcore.execute.workers import Inline
from fedcore.methods import method
from fedcore.methods.one_shot import closed_form as closed
from fedcore.methods.one_shot.analytic import GRAM, PLAN, TARGETS, fit_output
from fedcore.types.federation import NO_DATA
from fedcore.types.method import Message, RoundInfo, Update, generator


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


def cross_validation(x: np.ndarray, y: np.ndarray, reg: float) -> float:
    """GCV by its definition, with the matrix that maps labels to predictions, on examples instead of sums."""
    gram, y = x.T @ x, y.reshape(len(x), -1)
    hat = x @ np.linalg.solve(gram + reg * np.trace(gram) / len(gram) * np.eye(len(gram)), x.T)
    return ((y - hat @ y) ** 2).sum() / len(x) / (1 - np.trace(hat) / len(x)) ** 2


@pytest.mark.parametrize("kind", ["classes", "labels", "number"])
def test_the_chosen_ridge_has_the_least_cross_validated_error(kind):
    x = np.hstack([numbers(30, 20).numpy(), np.ones((30, 1))])
    told = x[:, :2] + 0.5 * numbers(30, 2, word="noise").numpy()
    y = {"classes": np.eye(3)[(told[:, 0] > 0).astype(int)], "labels": np.sign(told - 0.4), "number": 9 + told[:, :1]}
    y = y[kind]
    gram = x.T @ x
    squares = None if kind == "classes" else torch.tensor([(y**2).sum()])
    found = closed.cross_validated(torch.from_numpy(gram), torch.from_numpy(x.T @ y), squares)
    assert found == min(closed.RIDGES, key=lambda reg: cross_validation(x, y, reg))
    assert 1e-5 < found < 10


@pytest.mark.parametrize("kind", ["several", "number"])
def test_the_ridge_of_other_labels_is_chosen_from_their_own_squares(kind):
    """From the devices' sums, plain and masked."""
    y = torch.sin(POOL.x[:, 0]) + 5 if kind == "number" else (POOL.x[:, :2] > 0.5).float()
    fed = divided([20, 40])
    parts = zip("ab", torch.split(y, [20, 40]), torch.split(POOL.x, [20, 40]), strict=True)
    given = {n: replace(fed.devices[n], data=Splits(Data(x, part), NO_DATA, NO_DATA)) for n, part, x in parts}
    made = replace(fed, devices=given, classes=1 if kind == "number" else 2, test=Data(POOL.x, y))
    phi = closed.random_features(POOL.x, closed.random_weights(4, FEATURES, 0)).numpy()
    told = y.numpy() if kind == "number" else 2 * y.numpy() - 1
    best = min(closed.RIDGES, key=lambda reg: cross_validation(phi, told, reg))
    for settings in ({}, {"secure_aggregation": True}):
        built = analytic(nets=dict.fromkeys("ab", NET), reg=None, **settings)
        assert last(built, made).report.series["analytic"]["reg"] == best


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


# Ridge regression on random features from sums of the devices, against the pooled problem solved by scikit-learn.
FEATURES = 12
analytic = partial(method, "analytic", nets=NETS, training=SGD, shared_init=False, features=FEATURES, reg=1e-4)
POOL = data(60, "pool")


def divided(cuts):
    """The same sixty examples on devices that hold as many as it says, in order."""
    parts = zip(torch.split(POOL.x, cuts), torch.split(POOL.y, cuts), strict=True)
    devices = {
        name: Device(name, NET, Splits(Data(x, y), data(7, name, "val"), data(5, name, "test")))
        for name, (x, y) in zip("abcdefghij", parts, strict=False)
    }
    return Federation(devices, data(20, "shared"), 3)


def sent(fed, **settings):
    """The sums that the devices send, and the plan."""
    built = analytic(nets=dict.fromkeys(fed.devices, NET), **settings)
    start = begin(built, fed, 0, Inline())
    updates = {
        name: built.stages[0].local({}, start.messages[name], device, RoundInfo(0, 0, 0, (), ()).step_id(name))[1]
        for name, device in fed.devices.items()
    }
    return built, start.server, updates


def layer(fed, seed=0, **settings):
    return last(analytic(nets=dict.fromkeys(fed.devices, NET), **settings), fed, seed).state.messages["a"].params


def pooled(reg):
    """(F + 1, K), by scikit-learn in float64 on all examples."""
    phi = closed.random_features(POOL.x, closed.random_weights(4, FEATURES, 0)).numpy()
    y = np.eye(3)[POOL.y.numpy()]
    alpha = reg * (phi**2).sum() / phi.shape[1]
    return Ridge(alpha=alpha, fit_intercept=False, solver="svd").fit(phi, y).coef_.T


@pytest.mark.parametrize("cuts", [[60], [20, 20, 20], [1, 2, 57], [59, 1], [6] * 10])
@pytest.mark.slow
def test_the_solution_is_the_pooled_one_whatever_the_partition(cuts):
    _, _, updates = sent(divided(cuts))
    gram = closed.from_triangle(sum(update.extra[GRAM] for update in updates.values()), FEATURES + 1)
    found = closed.ridge(gram, sum(update.extra[TARGETS] for update in updates.values()), 1e-4)
    np.testing.assert_allclose(found.numpy(), pooled(1e-4), rtol=1e-8, atol=1e-8)
    model = layer(divided(cuts))
    whole = torch.cat([model["output.weight"].T, model["output.bias"][None]])
    np.testing.assert_allclose(whole.numpy(), pooled(1e-4), rtol=1e-5, atol=1e-6)


def test_the_server_chooses_a_ridge_and_says_which():
    """However the examples are divided, and as the same ridge given as a number."""
    done = last(analytic(nets=dict.fromkeys(divided([20, 40]).devices, NET), reg=None), divided([20, 40]))
    chosen = done.report.series["analytic"]["reg"]
    assert chosen in closed.RIDGES
    assert bits(done.state.messages["a"].params) == bits(layer(divided([20, 40]), reg=chosen))
    torch.testing.assert_close(layer(divided([60]), reg=None), layer(divided([60]), reg=chosen))


@pytest.mark.slow
def test_alone_each_device_has_the_solution_of_its_own_rows():
    """That of a federation of this device alone, bit for bit, with the same ridge and the chosen one; nothing is sent.

    A device without labels predicts all classes alike.
    """
    fed = divided([20, 39, 1])
    nothing = Splits(Data(POOL.x[:0], POOL.y[:0]), data(0), data(5))
    fed = replace(fed, devices={**fed.devices, "d": Device("d", NET, nothing)})
    for reg in (1e-4, None):
        built = method("analytic_local", nets=dict.fromkeys(fed.devices, NET), training=SGD, features=FEATURES, reg=reg)
        done = last(built, fed)
        state = done.state
        assert not any(done.up.values())
        for name in "abc":
            one = last(analytic(nets={name: NET}, reg=reg), replace(fed, devices={name: fed.devices[name]}))
            assert bits(state.memories[name]) == bits(one.state.messages[name].params)
        deployed = built.deploy(state.memories["d"], state.messages["d"])
        torch.testing.assert_close(outputs(deployed, NET, fed.test.x).exp(), torch.full((20, 3), 1 / 3))


def test_alone_too_few_rows_without_a_ridge_name_the_device():
    fed = divided([50, 10])
    built = method("analytic_local", nets=dict.fromkeys(fed.devices, NET), training=SGD, features=FEATURES, reg=0.0)
    with pytest.raises(InputError, match=r"^analytic_local.reg = 0.0: 10 examples of b do not determine 13 weights"):
        last(built, fed)


def test_what_is_deployed_computes_the_regression():
    fed = divided([30, 30])
    built = analytic(nets=dict.fromkeys(fed.devices, NET))
    deployed = built.deploy({}, last(built, fed).state.messages["a"])
    phi = closed.random_features(fed.test.x, closed.random_weights(4, FEATURES, 0)).numpy()
    logits = torch.from_numpy(phi @ pooled(1e-4)).float()
    torch.testing.assert_close(outputs(deployed, NET, fed.test.x), logits.log_softmax(1), rtol=1e-4, atol=1e-4)


def test_the_devices_own_nets_do_not_matter():
    from fedcore import nets

    other = nets.net("mlp", shape=(4,), classes=3, widths=[7])
    fed = federation("ab")
    mixed = replace(fed, devices={**fed.devices, "b": replace(fed.devices["b"], net=other)})
    assert bits(layer(mixed)) == bits(layer(fed))


def test_masked_sums_give_the_plain_solution():
    fed = divided([10, 20, 30])
    torch.testing.assert_close(layer(fed, secure_aggregation=True), layer(fed), rtol=1e-4, atol=1e-6)


def test_traffic_is_that_of_the_sums_and_the_output_layer():
    fed, size = divided([30, 30]), FEATURES + 1
    triangle, targets, sketch = size * (size + 1) // 2, size * 3, size * 2 + size
    for settings, numbers, each in (
        ({}, triangle + targets, 8),
        ({"precision": "float32"}, triangle + targets, 4),
        ({"secure_aggregation": True}, triangle + targets, 8),
        ({"rank": 2}, sketch + targets, 8),
    ):
        one = last(analytic(nets=dict.fromkeys(fed.devices, NET), **settings), fed)
        assert set(one.up.values()) == {numbers * each}
        assert set(one.down.values()) == {3 * 8 + 4 * size * 3 + 3 * 8}


def test_a_sketch_of_full_rank_is_exact_and_a_lower_one_near():
    fed = divided([30, 30])
    exact = layer(fed)["output.weight"]
    torch.testing.assert_close(layer(fed, rank=FEATURES + 1)["output.weight"], exact, rtol=1e-4, atol=1e-5)
    near, far = ((layer(fed, rank=rank)["output.weight"] - exact).norm() for rank in (8, 2))
    assert 0 < near < far


def test_devices_without_labels_and_with_one_class_add_what_they_have():
    fed = divided([30, 30])
    nothing = Splits(Data(POOL.x[:0], POOL.y[:0]), data(0), data(5), Data(POOL.x, torch.full_like(POOL.y, -1)))
    more = {**fed.devices, "c": Device("c", NET, nothing)}
    assert bits(layer(replace(fed, devices=more))) == bits(layer(fed))
    order = POOL.y.argsort()
    apart = Data(POOL.x[order], POOL.y[order])
    counts = torch.bincount(POOL.y).tolist()
    devices = {
        name: Device(name, NET, Splits(Data(x, y), data(3), data(3)))
        for name, x, y in zip("abc", torch.split(apart.x, counts), torch.split(apart.y, counts), strict=True)
    }
    torch.testing.assert_close(layer(replace(fed, devices=devices)), layer(fed), rtol=1e-4, atol=1e-5)


def test_a_class_that_nobody_holds_is_never_the_answer():
    fed = divided([30, 30])
    two = {name: Device(name, NET, Splits(Data(d.data.train.x, d.data.train.y.clamp_max(1)), data(3), data(3)))
           for name, d in fed.devices.items()}  # fmt: skip
    weight = layer(replace(fed, devices=two))
    assert bool((weight["output.weight"][2] == 0).all())
    assert weight["output.bias"][2] == 0


def test_clipping_alone_changes_long_features_alone():
    fed = divided([30, 30])
    assert bits(layer(fed, clip=1e6)) == bits(layer(fed))
    assert bits(layer(fed, clip=0.5)) != bits(layer(fed))


def test_noise_has_the_stated_deviation_and_masked_sums_share_it():
    """G and B of clipped features of one example move by at most sqrt(c^4 + c^2), of which sigma is a multiple."""
    fed, settings = divided([15] * 4), {"clip": 2.0, "features": 40}
    _, _, clean = sent(fed, **settings)
    noise = {}
    for masks in (False, True):
        _, _, noised = sent(fed, **settings, epsilon=1.0, delta=1e-5, secure_aggregation=masks)
        parts = [noised[name].extra[GRAM] for name in "abcd"]
        total = sum(parts).double() / (2.0**32 if masks else 1.0)
        noise[masks] = (total - sum(clean[name].extra[GRAM] for name in "abcd")).std().item()
    sigma = 3.7306 * (2.0**4 + 2.0**2) ** 0.5
    assert noise == pytest.approx({False: 2 * sigma, True: sigma}, rel=0.1)


@pytest.mark.parametrize("labels", [1, 10])
def test_no_row_moves_the_sums_further_than_the_noise_hides(labels):
    """Measured in deviations of each number's noise, of which 1 / 3.7306 is right; labels: of a row."""
    y = POOL.y[:20] if labels == 1 else (numbers(20, labels) > 0).float()
    one, settings = Device("a", NET, Splits(Data(POOL.x[:20], y), data(3), data(3))), {"clip": 1.0, "features": 40}
    fed = Federation({"a": one}, data(20, "shared"), max(3, labels))

    def sums(row=None, **noise):
        keep = torch.arange(20) != (-1 if row is None else row)
        few = replace(one, data=replace(one.data, train=Data(POOL.x[:20][keep], y[keep])))
        return sent(replace(fed, devices={"a": few}), **settings, **noise)[2]["a"].extra

    whole, noised = sums(), sums(epsilon=1.0)
    deviation = {name: (noised[name] - x).std() for name, x in whole.items()}
    moved = [sum(((x - whole[name]) / deviation[name]).square().sum() for name, x in sums(row).items()).sqrt()
             for row in range(20)]  # fmt: skip
    assert max(moved) * 3.7306 < 1.1


def test_the_sums_of_an_example_move_by_no_more_than_is_assumed():
    for example in range(10):
        fed = divided([60])
        one = Data(100 * POOL.x[example : example + 1], POOL.y[example : example + 1])
        alone = replace(fed, devices={"a": Device("a", NET, Splits(one, data(3), data(3)))})
        extra = sent(alone, clip=2.0)[2]["a"].extra
        moved = sum(tensor.square().sum() for tensor in extra.values()).sqrt()
        assert moved <= (2.0**4 + 2.0**2) ** 0.5 + 1e-9


def test_with_noise_there_is_a_solution_and_less_noise_is_nearer():
    fed = divided([20, 20, 20])
    exact = layer(fed, clip=2.0)["output.weight"]
    far = [(layer(fed, clip=2.0, epsilon=epsilon)["output.weight"] - exact).norm() for epsilon in (0.1, 1e4)]
    assert far[1] < far[0]
    assert all(bool(one.isfinite()) for one in far)


@pytest.mark.slow
def test_many_features_and_much_noise_leave_a_solution_for_every_seed():
    """Of few examples G has most of its eigenvalues at zero, from where noise makes them negative."""
    fed = divided([10] * 6)
    for seed in range(8):
        for masks in (False, True):
            found = layer(fed, seed, clip=1.0, features=120, epsilon=0.5, secure_aggregation=masks)
            assert bool(found["output.weight"].isfinite().all())


def test_zero_reg_with_fewer_examples_than_features_is_refused():
    with pytest.raises(InputError, match=r"^analytic.reg = 0.0: the devices' examples do not determine 101 weights"):
        layer(divided([30, 30]), features=100, reg=0.0)
    layer(divided([30, 30]), reg=0.0)


def test_a_device_that_lies_is_named_in_place_of_the_ridge():
    """A Gram matrix has no negative eigenvalue, whatever the examples; of masked sums nobody sees whose are wrong."""
    _, server, updates = sent(divided([30, 30]))
    at, right, rng = RoundInfo(0, 0, 0, (), tuple(updates)), updates["b"].extra[GRAM], torch.Generator().manual_seed(0)
    check("b", replace(updates["b"], extra={GRAM: 1e24 * right}), None)  # inputs of about 1e12, which nobody scaled
    for wrong in (-3 * right, 1e6 * torch.randn(91, generator=rng, dtype=torch.float64)):
        lied = {**updates, "b": replace(updates["b"], extra={**updates["b"].extra, GRAM: wrong})}
        with pytest.raises(InputError, match=r"^analytic: b sent sums that no examples have"):
            fit_output(server, lied, at, features=FEATURES, reg=1e-4, spread=0.0)


def test_a_rank_above_the_number_of_examples_is_refused():
    message = r"^analytic.rank = 11: b has 10 examples, must be at most 10$"
    with pytest.raises(InputError, match=message):
        layer(divided([50, 10]), rank=11)


def test_too_few_examples_are_refused_before_anything_runs():
    few = partial(analytic, nets=dict.fromkeys("ab", NET))
    with pytest.raises(InputError, match=r"^analytic.rank = 11: b has 10 examples, must be at most 10$"):
        few(rank=11, sizes={"a": 50, "b": 10})
    with pytest.raises(
        InputError, match=r"^analytic.reg = 0: 12 examples do not determine 13 weights of a class; set a"
    ):
        few(reg=0.0, sizes={"a": 2, "b": 10})
    few(reg=0.0, sizes={"a": 3, "b": 10})
    few(reg=0.0, clip=1.0, epsilon=1.0, sizes={"a": 3, "b": 3})  # noise brings a ridge of its own
    few(rank=10, sizes={"a": 0, "b": 10})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": 1.0}, "analytic.epsilon = 1.0: needs analytic.clip"),
        ({"rank": 14}, r"analytic.rank = 14: must be at most features \+ 1 = 13"),
        ({"rank": 2, "secure_aggregation": True}, "analytic.rank = 2: sketches cannot be masked or noised"),
        ({"rank": 2, "clip": 1.0, "epsilon": 1.0}, "analytic.rank = 2: sketches cannot be masked or noised"),
        (
            {"precision": "float32", "secure_aggregation": True},
            "analytic.precision = float32: masked sums are",
        ),
        ({"features": 20_001}, "analytic.features = 20001: must be at most 20000"),
    ],
)
def test_settings_that_exclude_one_another_are_refused(settings, message):
    with pytest.raises(InputError, match=f"^{message}"):
        analytic(**settings)


def test_sums_or_examples_of_another_size_name_the_device():
    _, server, updates = sent(divided([30, 30]))
    wrong = replace(updates["b"], extra={**updates["b"].extra, TARGETS: torch.zeros(2, 3)})
    with pytest.raises(InputError, match=r"^update of b: targets has shape \(2, 3\), must be \(13, 3\)$"):
        fit_output(server, {**updates, "b": wrong}, RoundInfo(0, 0, 0, (), ()), features=FEATURES, reg=1e-4, spread=0.0)
    with pytest.raises(InputError, match=r"^update of b: gram has shape \(0,\), must be \(91,\)$"):
        fit_output(
            server, {**updates, "b": Update()}, RoundInfo(0, 0, 0, (), ()), features=FEATURES, reg=1e-4, spread=0.0
        )
    fed = divided([30, 30])
    longer = Splits(Data(torch.zeros(3, 5), torch.zeros(3).long()), data(3), data(3))
    with pytest.raises(InputError, match=r"^analytic: b has examples of 5 numbers, the shared test set of 4$"):
        layer(replace(fed, devices={**fed.devices, "b": Device("b", NET, longer)}))


def test_the_plan_is_all_that_the_server_remembers():
    one = last(analytic(), federation("ab"), 5)
    assert one.state.server[PLAN].tolist() == [5, 4, 3]
    assert set(one.state.server) == {PLAN}
    assert isinstance(one.state.messages["a"], Message)
