"""Label-wise logits, tables of soft targets, the ratio and the losses, beside PyTorch's own and numbers by hand."""

from dataclasses import replace
from itertools import permutations

import pytest
import torch
from federations import SGD
from torch import nn
from torch.nn.functional import cross_entropy, kl_div

from fedcore import nets
from fedcore.core.training import (
    PerExample,
    Training,
    descend,
    flatten_net,
    gradient_step,
    minibatches,
    plain_step,
    predict,
    require_cross_entropy,
)
from fedcore.errors import InputError
from fedcore.methods.dfl.soft_targets import (
    COUNTS,
    SUMS,
    Ratio,
    distillation_grad,
    initial_targets,
    label_wise,
    level_targets,
    likelihoods,
    ratio,
    report_targets,
    smoothing_grad,
    summarise_logits,
    update_targets,
)
from fedcore.report.figures.reports import doubling
from fedcore.types.federation import Data, Device, Net, Splits, nbytes
from fedcore.types.method import Report, Update, generator


def rows(*values):
    return torch.tensor(values, dtype=torch.float64)


def update(logits, labels):
    """What a device sends whose examples have these logits and labels."""
    sums, counts = label_wise(torch.tensor(logits), torch.tensor(labels))
    return Update(extra={SUMS: sums, COUNTS: counts}, size=len(labels))


A = update([[1.0, 2.0, 3.0], [3.0, 0.0, 1.0], [0.0, 6.0, 0.0]], [0, 0, 1])
B = update([[5.0, 1.0, 2.0]], [0])


def drawn(count, classes, *words):
    g = generator("distillation", *words)
    return torch.randn(count, classes, generator=g) * 3, torch.randint(0, classes, (count,), generator=g)


def some(*words, count=20, classes=3):
    logits, y = drawn(count, classes, *words)
    return update(logits.tolist(), y.tolist())


# What devices send and what the server makes of it


def test_sums_and_counts_by_hand():
    assert torch.equal(A.extra[SUMS], rows([4, 2, 4], [0, 6, 0], [0, 0, 0]))
    assert A.extra[COUNTS].tolist() == [2, 1, 0]


@pytest.mark.slow
def test_soft_targets_of_three_classes_by_hand():
    """Label 0: three examples, two of them A's. Label 1: A's alone. Label 2: nobody's, the old row stays."""
    old = rows([9, 9, 9], [9, 9, 9], [7, 8, 9])
    counted = rows([9 / 3, 3 / 3, 6 / 3], [0, 6, 0], [7, 8, 9])
    torch.testing.assert_close(update_targets(old, [A, B], "counts"), counted)
    # As printed: |D_A| = 3, |D_B| = 1; A's means (2, 1, 2) and (0, 6, 0), B's (5, 1, 2) and nothing.
    printed = rows([(3 * 2 + 5) / 4, 1, 2], [0, 3 * 6 / 4, 0], [7, 8, 9])
    torch.testing.assert_close(update_targets(old, [A, B], "examples"), printed)


def test_where_labels_are_shared_equally_the_weightings_agree():
    y = torch.arange(3).repeat(5)
    sent = [update(drawn(15 * n, 3, n)[0].tolist(), y.repeat(n).tolist()) for n in (1, 2, 4)]
    torch.testing.assert_close(
        update_targets(initial_targets(3), sent, "counts"), update_targets(initial_targets(3), sent, "examples")
    )


def test_a_device_lacking_a_class_changes_no_soft_target_of_it():
    logits, _ = drawn(9, 3, "lacking")
    lacking, others = update(logits.tolist(), [0, 1, 0, 1, 1, 0, 0, 0, 0]), [some(1), some(2)]
    without, beside = (update_targets(initial_targets(3), sent, "counts") for sent in (others, [*others, lacking]))
    assert torch.equal(without[2], beside[2])
    assert not torch.allclose(without[:2], beside[:2])
    printed = update_targets(initial_targets(3), [*others, lacking], "examples")
    assert (likelihoods(printed, 1.0)[2] - 1 / 3).abs().sum() < (likelihoods(without, 1.0)[2] - 1 / 3).abs().sum()


def test_mean_probabilities_are_the_softmax_of_their_logarithms():
    """Against a plain mean over all examples, and as printed, where a device without a label has a row of zeros."""
    net = nets.net("mlp", shape=(4,), classes=3, widths=[])
    x, y = drawn(40, 4, "probabilities")[0], drawn(40, 3, "probabilities")[1]
    params, none = nets.init(net, generator(0)), Data(x[:0], y[:0])
    sent = []
    for part in (slice(0, 10), slice(10, 40)):
        own = Data(x[part], y[part])
        outputs = summarise_logits(params, Device("a", net, Splits(own, none, none)), "probabilities")
        sent.append(Update(extra=outputs, size=len(own)))
    soft = predict(params, net, x, 64).softmax(1).double()
    plain = torch.stack([soft[y == label].mean(0) for label in range(3)])
    table = update_targets(initial_targets(3), sent, "counts", "probabilities")
    torch.testing.assert_close(likelihoods(table, 1.0), plain, atol=1e-6, rtol=1e-6)
    printed = update_targets(initial_targets(3), sent, "examples", "probabilities")
    each = [torch.stack([soft[p][y[p] == label].mean(0) for label in range(3)]) for p in (slice(0, 10), slice(10, 40))]
    torch.testing.assert_close(likelihoods(printed, 1.0), 0.25 * each[0] + 0.75 * each[1], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("weighting", ["counts", "examples"])
def test_the_order_of_devices_does_not_matter(weighting):
    sent = [some(k, count=5 + 4 * k) for k in range(4)]
    expected = update_targets(initial_targets(3), sent, weighting)
    for order in permutations(sent):
        torch.testing.assert_close(update_targets(initial_targets(3), order, weighting), expected)


@pytest.mark.parametrize("weighting", ["counts", "examples"])
def test_devices_without_examples_leave_the_table_as_it_is(weighting):
    sums, counts = label_wise(torch.empty(0, 3), torch.empty(0, dtype=torch.int64))
    empty = Update(extra={SUMS: sums, COUNTS: counts}, size=0)
    assert torch.equal(update_targets(initial_targets(3), [empty, empty], weighting), initial_targets(3))


@pytest.mark.parametrize("temperature", [0.1, 1.0, 3.0, 1000.0])
def test_a_label_nobody_has_shown_is_one_hot_at_every_temperature(temperature):
    assert torch.equal(likelihoods(initial_targets(4), temperature), torch.eye(4, dtype=torch.float64))


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_level_targets_keep_the_mean_diagonal_and_nothing_else(temperature):
    table = drawn(5, 5, "level")[0].double()
    level = level_targets(table, temperature)
    torch.testing.assert_close(level.sum(1), torch.ones(5).double())
    assert level.diagonal().mean().item() == pytest.approx(likelihoods(table, temperature).diagonal().mean().item())
    assert len({round(x, 12) for x in level[~torch.eye(5, dtype=torch.bool)].tolist()}) == 1
    assert len({round(x, 12) for x in level.diagonal().tolist()}) == 1
    torch.testing.assert_close(level_targets(level.log() * temperature, temperature), level)


def test_a_label_nobody_has_shown_is_not_levelled():
    table = initial_targets(4)
    assert torch.equal(level_targets(table, 1.0), torch.eye(4, dtype=torch.float64))
    table[:3] = drawn(3, 4, "some")[0].double()
    level = level_targets(table, 1.0)
    assert level[3].tolist() == [0, 0, 0, 1]
    assert level[0, 0].item() == pytest.approx(likelihoods(table, 1.0).diagonal()[:3].mean().item())


@pytest.mark.parametrize(("classes", "size"), [(10, 800), (20, 3200), (62, 30752)])
def test_bytes_of_a_table(classes, size):
    """The paper: .8 KB for ten classes, 3.2 KB for twenty (62 are 30.8 KB, where it says .8)."""
    net = nets.net("mlp", shape=(4,), classes=classes, widths=[])
    x, y = drawn(30, 4, classes)[0], drawn(30, classes, classes)[1]
    none = Data(x[:0], y[:0])
    sent = summarise_logits(nets.init(net, generator(0)), Device("a", net, Splits(Data(x, y), none, none)))
    assert nbytes({"": initial_targets(classes)}) == nbytes({"": sent[SUMS]}) == size
    assert nbytes(sent) == size + 8 * classes


# The ratio (6)


def test_rho_is_the_printed_maximum():
    def course(kind):
        return [ratio(kind, 0.6, 10).at(number) for number in range(10)]

    assert course("threshold") == pytest.approx([1, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6])
    assert course("dynamic") == pytest.approx([1, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0])
    assert course("fixed") == [1] + [0.6] * 9
    assert {Ratio(1.0, 10).at(number) for number in range(10)} == {1.0}


# The losses


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.9])
def test_at_temperature_1_the_gradient_is_cross_entropys_against_the_table(rho):
    """rho I + (1 - rho) softmax(Y), looked up by label."""
    (logits, y), table = drawn(12, 5, "one"), drawn(5, 5, "table")[0].double()
    targets = rho * torch.eye(5) + (1 - rho) * table.softmax(1).float()
    z = logits.clone().requires_grad_()
    cross_entropy(z, targets[y], reduction="sum").backward()
    torch.testing.assert_close(distillation_grad(likelihoods(table, 1.0), rho, 1 - rho)(logits, y), z.grad)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_slope_is_that_of_the_loss_by_autograd(temperature):
    """rho CE + (1 - rho) tau^2 KL (3), batchmean."""
    (logits, y), table, rho = drawn(12, 5, "two"), drawn(5, 5, "table")[0].double(), 0.3
    z, soft = logits.clone().requires_grad_(), likelihoods(table, temperature).float()
    kl = kl_div((z / temperature).log_softmax(1), soft[y], reduction="batchmean")
    (rho * cross_entropy(z, y) + (1 - rho) * temperature**2 * kl).backward()
    logit_grad = distillation_grad(likelihoods(table, temperature), rho, 1 - rho, temperature)(logits, y)
    torch.testing.assert_close(logit_grad / len(y), z.grad)


def test_one_hot_soft_targets_at_temperature_1_are_hard_labels():
    logits, y = drawn(12, 3, "hard")
    hard = distillation_grad(torch.eye(3), 1.0, 0.0)(logits, y)
    torch.testing.assert_close(distillation_grad(likelihoods(initial_targets(3), 1.0), 0.4, 0.6)(logits, y), hard)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.4])
def test_smoothing_is_pytorchs(share):
    logits, y = drawn(12, 5, "smooth")
    z = logits.clone().requires_grad_()
    cross_entropy(z, y, label_smoothing=share, reduction="sum").backward()
    torch.testing.assert_close(smoothing_grad(share)(logits, y), z.grad)


# Training on a slope


@pytest.mark.parametrize("grad", [distillation_grad(torch.eye(3), 0.6, 0.4, 3.0), smoothing_grad(0.2)])
def test_the_slope_of_an_example_depends_on_it_alone(grad):
    logits, y = drawn(6, 3, "alone")
    assert isinstance(grad, PerExample)
    assert torch.equal(grad(logits, y), torch.cat([grad(logits[[i]], y[[i]]) for i in range(6)]))


def same() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


BY_HAND, AUTOGRAD = nets.net("mlp", shape=(4,), classes=3, widths=[6]), Net(same)


def flat(net):
    start = nets.init(BY_HAND, generator("slope"))
    return flatten_net(net, dict(zip(nets.shapes(net), start.values(), strict=True)))


@pytest.mark.parametrize("net", [BY_HAND, AUTOGRAD], ids=["by hand", "autograd"])
def test_the_gradient_is_that_of_the_mean_loss(net):
    (x, _), (_, y), table = drawn(10, 4, "x"), drawn(10, 3, "y"), drawn(3, 3, "table")[0].double()
    here = flat(net)
    gradient_step(here, logit_grad=distillation_grad(likelihoods(table, 3.0), 0.3, 0.7, 3.0))(x, y)
    module = same()
    module.load_state_dict(dict(zip(module.state_dict(), here.params().values(), strict=True)))
    logits = module(x)
    kl = kl_div((logits / 3).log_softmax(1), (table / 3).softmax(1).float()[y], reduction="batchmean")
    (0.3 * cross_entropy(logits, y) + 0.7 * 9 * kl).backward()
    expected = [parameter.grad for parameter in module.parameters()]
    torch.testing.assert_close(list(here.gradients.values()), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "training",
    [SGD, replace(SGD, weight_decay=0.1), replace(SGD, momentum=0.5), replace(SGD, optimiser="adam", lr=0.01)],
    ids=["sgd", "decay", "momentum", "adam"],
)
def test_by_hand_and_autograd_follow_a_slope_alike(training: Training):
    (x, _), (_, y) = drawn(10, 4, "x"), drawn(10, 3, "y")
    ends = []
    for net in (BY_HAND, AUTOGRAD):
        here = flat(net)
        batches = minibatches(here, len(y), training, generator("batches"))
        logit_grad = distillation_grad(likelihoods(drawn(3, 3, "table")[0].double(), 2.0), 0.3, 0.7, 2.0)
        descend(Data(x, y), batches, plain_step(here, training, len(batches), logit_grad=logit_grad))
        ends.append(list(here.params().values()))
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-4, atol=2e-6)


def test_a_loss_of_another_kind_is_refused():
    require_cross_entropy("dfl", SGD)
    with pytest.raises(InputError, match=r"^training.loss = fedasa_table3: dfl has its own loss, .* use ce$"):
        require_cross_entropy("dfl", replace(SGD, loss="fedasa_table3"))
    with pytest.raises(InputError, match=r"^training.class_weights = 'balanced': dfl has its own loss, .*=none$"):
        require_cross_entropy("dfl", replace(SGD, class_weights="balanced"))


# The report


def test_a_table_is_reported_as_probabilities_and_three_numbers():
    first = report_targets(initial_targets(3), 1.0, rho=1.0)
    assert first.series == {"distillation": {"rho": 1.0, "diagonal": 1.0, "right": 3.0}}
    wrong = rows([0.0, 5.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 2.0])
    second = report_targets(wrong, 2.0, rho=0.5)
    soft = (wrong / 2).softmax(1).float()
    torch.testing.assert_close(second.matrices, {"soft_targets": soft})
    diagonal = pytest.approx(soft.diagonal().mean().item())
    assert second.series == {"distillation": {"rho": 0.5, "diagonal": diagonal, "right": 2.0}}


@pytest.mark.parametrize(("rounds", "drawn"), [(1, [1]), (5, [1, 2, 4, 5]), (8, [1, 2, 4, 8])])
def test_tables_are_drawn_after_rounds_1_2_4_and_the_last(rounds: int, drawn: list[int]):
    reports = [Report(matrices={"soft_targets": torch.full((2, 2), float(n))}) for n in range(1, rounds + 1)]
    found = doubling(reports)
    assert {number: table[0, 0] for number, table in found.items()} == {number: number for number in drawn}
    assert doubling([Report()]) == {}
