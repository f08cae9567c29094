"""The losses that have a name, by hand and against the examples that FedASA prints."""

from __future__ import annotations

from math import e, exp, log

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedcore.core.losses import LOSSES, entropies
from fedcore.data.task import TASKS


def test_the_losses_computed_by_hand():
    # One example: softmax(log 3, log 1) = (3/4, 1/4), class 0. Another: even, class 1.
    logits, y = torch.tensor([[log(3.0), 0.0], [0.0, 0.0]]), torch.tensor([0, 1])
    entropy = [-0.75 * log(0.75) - 0.25 * log(0.25), log(2)]
    plain = [-log(0.75), log(2)]
    twice = [-log(exp(0.75) / (exp(0.75) + exp(0.25))), log(2)]
    torch.testing.assert_close(entropies(logits), torch.tensor(entropy))
    expected = {
        "ce": sum(plain) / 2,
        "fedasa_table3": (sum(twice) + sum(entropy) / log(2)) / 2,
        "fedasa_eq12": (sum(twice) + sum(map(exp, entropy))) / 2,
        "softmax_twice": sum(twice) / 2,
    }
    of_numbers = {*TASKS["regression"].losses} - {"ce"}
    found = {name: loss(logits, y).item() for name, loss in LOSSES.items() if name not in of_numbers}
    assert found == pytest.approx(expected, rel=1e-6)


EXAMPLES = {
    "hard label 0, truth 1": ([0.54, 0.43, 0.02, 0.01], 1, 1.23, 2.42),
    "hard label 3, truth 3": ([0.0, 0.0, 0.138, 0.862], 3, 0.85, 1.42),
}
"""FedASA's Table III: soft labels that meet it (the paper shows them as pictures), truth, cross-entropy, loss."""


@pytest.mark.parametrize("example", EXAMPLES)
def test_table_iii_is_met_to_its_two_digits(example):
    soft, truth, cross, total = EXAMPLES[example]
    logits, y = torch.tensor([soft]).clamp(min=1e-30).log(), torch.tensor([truth])
    assert round(cross_entropy(logits.softmax(1), y).item(), 2) == cross
    assert round(LOSSES["fedasa_table3"](logits, y).item(), 2) == total


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES)
def test_one_reading_of_table_iii_meets_both_examples(example):
    """Soft labels of four classes in steps of .25 %: the cross-entropy as printed, then the nearest loss."""
    _, truth, cross, total = EXAMPLES[example]
    first, second = np.divmod(np.arange(401 * 401), 401)
    ordered = (first >= second) & (first + second <= 400) & (3 * second >= 400 - first)
    pairs = np.stack([first, second], 1)[ordered]
    rest = [(np.arange((400 - a - b + 1) // 2, min(b, 400 - a - b) + 1), a, b) for a, b in pairs.tolist()]
    s = np.concatenate([np.stack([a + 0 * c, b + 0 * c, c, 400 - a - b - c], 1) for c, a, b in rest]) / 400
    right = s[:, 0] if truth == 3 else s[:, 1]  # example 2's hard label is right, example 1's is not
    nats = -(s * np.log(np.where(s > 0, s, 1))).sum(1)
    crosses = {"once": -np.log(np.where(right > 0, right, 1e-9)), "twice": np.log(np.exp(s).sum(1)) - right}
    entropy = {"nats": nats, "bits": nats / log(2), "exp": np.exp(nats)}
    near = {
        (softmax, unit): abs(ce + of - total)[abs(ce - cross) <= 0.005].min()
        for softmax, ce in crosses.items()
        for unit, of in entropy.items()
    }
    assert near["twice", "bits"] < 0.005
    missed = {reading for reading, distance in near.items() if distance > 0.03}
    assert missed >= ({("once", "nats"), ("once", "bits")} if truth == 3 else {("twice", "nats")})
    assert missed >= {("once", "exp"), ("twice", "exp")}


def test_the_printed_loss_cannot_be_sure():
    """After softmax twice the right one of ten classes has e / (e + 9) at most."""
    sure = torch.tensor([[100.0] + 9 * [0.0]])
    assert LOSSES["fedasa_eq12"](sure, torch.tensor([0])).item() == pytest.approx(1 - log(e / (e + 9)))
    assert LOSSES["ce"](sure, torch.tensor([0])).item() == pytest.approx(0, abs=1e-6)
