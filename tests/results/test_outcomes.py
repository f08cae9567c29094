"""Confusion and calibration, added up."""

import json

import numpy as np
import pytest
import torch

from fedcore.core.evaluation import calibration, confusion
from fedcore.results.outcomes import from_json, total

CLASSES = ("dog", "cat", "cow")


def counted(count: int, seed: int, scale: float = 3.0):
    g = torch.Generator().manual_seed(seed)
    logits = (scale * torch.randn(count, 3, generator=g)).log_softmax(1)
    return logits, torch.randint(0, 3, (count,), generator=g)


def counts(logits, y):
    return {"confusion": confusion(logits, y), "calibration": calibration(logits, y)}


def test_parts_add_up_to_the_whole():
    parts = [counted(n, n) for n in (0, 1, 40)]
    whole = total([counts(*map(torch.cat, zip(*parts, strict=True)))], CLASSES)
    summed = total([counts(*part) for part in parts], CLASSES)
    assert whole is not None
    assert summed is not None
    assert summed.examples == 41
    np.testing.assert_array_equal(whole.confusion, summed.confusion)
    np.testing.assert_allclose(whole.calibration, summed.calibration)
    again = from_json(json.loads(json.dumps(summed.to_json())))
    np.testing.assert_array_equal(again.confusion, summed.confusion)
    np.testing.assert_array_equal(again.calibration, summed.calibration)
    assert again.classes == CLASSES
    assert total([counts(*counted(0, 0))], CLASSES) is None


def test_uncounted_confusion_survives_a_file():
    none = {"confusion": torch.zeros(0, 0, dtype=torch.int64), "calibration": calibration(*counted(5, 0))}
    found = total([none, none], CLASSES)
    assert found is not None
    assert from_json(found.to_json()).confusion.shape == (0, 0)


def test_calibration_error_by_hand():
    # Four rows with confidence .9, three of them right; two with .6, both right: 4/6 * .15 + 2/6 * .4.
    p = torch.tensor([[0.9, 0.1]] * 4 + [[0.6, 0.4]] * 2, dtype=torch.float64)
    found = total([counts(p.log(), torch.tensor([0, 0, 0, 1, 0, 0]))], ("a", "b"))
    assert found is not None
    assert found.calibration_error == pytest.approx(4 / 6 * 0.15 + 2 / 6 * 0.4)
    np.testing.assert_allclose(found.curve, [[0.6, 1, 2 / 6], [0.9, 0.75, 4 / 6]])
