"""Pixels standardised by one mean and deviation per channel."""

from dataclasses import replace
from importlib import import_module
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
import torch
from dataset_files import REAL, drawn, leaf_file, real, refusal, written
from torch import Tensor

import fedcore as fc
from fedcore.api.results import DeployedModel
from fedcore.data import DATASETS, Dataset, load
from fedcore.data.cifar import CIFAR10, CIFAR100
from fedcore.data.images import FASHION
from fedcore.data.pixels import scale
from fedcore.pipeline.cache.store import to_content
from fedcore.types.federation import Data

NOT_IMAGES = {"bearings", "cwru", "table"}


def both(name: str, **settings: object) -> tuple[Dataset, Dataset]:
    return load(name, **settings), load(name, scaling="standard", **settings)


def of_channels(x: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """NumPy's mean and deviation of each channel."""
    values = x.numpy().astype(np.float64)
    return values.mean((0, 2, 3)), values.std((0, 2, 3))


@pytest.mark.parametrize("name", sorted(set(DATASETS) - NOT_IMAGES))
def test_every_set_of_images_can_be_standardised_and_is_not_unasked(name):
    module, _, function = DATASETS[name].partition(":")
    assert signature(getattr(import_module(module), function)).parameters["scaling"].default == "none"


def test_mnist_is_shifted_and_divided_by_the_published_constants(tmp_path):
    plain, standard = both("mnist", root=written(tmp_path), download=False)
    for one, other in ((plain.train, standard.train), (plain.test, standard.test)):
        assert one is not None
        assert other is not None
        assert other.x.dtype == torch.float32
        np.testing.assert_allclose(other.x.numpy(), (one.x.numpy() / 255 - 0.1307) / 0.3081, atol=1e-6)
        assert other.y.tolist() == one.y.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("digits", {}),
        ("mnist_m", {"base": "digits"}),
        ("domains", {"domains": ["digits", "digits_inverted", "digits_photo"]}),
    ],
)
def test_without_published_constants_training_examples_give_them(name, settings):
    _, standard = both(name, **settings)
    mean, std = of_channels(standard.train.x)
    np.testing.assert_allclose(mean, 0, atol=1e-5)
    np.testing.assert_allclose(std, 1, atol=1e-5)


@pytest.mark.slow
def test_scaling_moves_and_stretches_all_domains_alike():
    plain, standard = both("domains", domains=["digits", "digits_inverted"])
    before, after = plain.train.inputs(), standard.train.x
    for channel in range(3):
        logit_grad, start = np.polyfit(before[:, channel].flatten().numpy(), after[:, channel].flatten().numpy(), 1)
        torch.testing.assert_close(after[:, channel], before[:, channel] * logit_grad + start, atol=1e-4, rtol=0)
    assert standard.domain == plain.domain


def test_examples_that_a_source_marks_as_test_give_no_moments(tmp_path: Path):
    leaf_file(tmp_path / "train" / "a.json", {"f1": (drawn(0.0, 0.5), [0, 1])})
    leaf_file(tmp_path / "test" / "a.json", {"f1": (drawn(*[0.0] * 50), [2] * 50)})
    standard = load("leaf", path=tmp_path, scaling="standard")
    mean, std = of_channels(standard.train.x[:2])
    np.testing.assert_allclose([*mean, *std], [0, 1], atol=1e-4)


def test_a_blank_channel_is_only_centred():
    x = torch.zeros(4, 2, 3, 3, dtype=torch.uint8)
    x[:, 1] = torch.arange(4, dtype=torch.uint8).reshape(4, 1, 1)
    scaled = scale(Dataset(Data(x, torch.zeros(4, dtype=torch.int64)), None, ("a",)), "standard").train.x
    assert scaled.isfinite().all()
    assert (scaled[:, 0] == 0).all()


def test_an_unknown_scaling_is_refused():
    said = refusal("digits", scaling="standart")
    assert said.startswith("data.scaling = 'standart': did you mean standard? allowed: none, standard")


@pytest.mark.slow
@real
def test_published_constants_are_those_of_mnist_itself():
    mean, std = of_channels(load("mnist", root=REAL, download=False).train.x / 255)
    np.testing.assert_allclose([*mean, *std], [0.1307, 0.3081], atol=5e-5)


def test_published_constants_have_one_number_per_channel():
    assert [len(of) for known in (FASHION, CIFAR10.moments, CIFAR100.moments) for of in known] == [1, 1, 3, 3, 3, 3]


@pytest.fixture(scope="module")
def of_mnist(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, Dataset, DeployedModel]:
    """The images as bytes, standardised, and a model that learnt the latter."""
    plain, standard = both("mnist", root=written(tmp_path_factory.mktemp("mnist")), download=False)
    fed = fc.federate(standard, fc.iid(), devices=1, val=0, test=0, net=fc.mlp(4))
    run = fc.run(fc.local_only(training={"epochs": 1}), fed, progress=False)
    return plain, standard, run.models["device-00"]


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.int32, np.int64, list])
def test_bytes_of_any_type_are_standardised_for_a_prediction(of_mnist, kind):
    plain, standard, model = of_mnist
    x = plain.train.x.numpy()
    given = x.tolist() if kind is list else x.astype(kind)
    by_hand = ((x / 255 - 0.1307) / 0.3081).astype(np.float32)
    np.testing.assert_allclose(model.probabilities(given), model.probabilities(by_hand), atol=1e-5)
    np.testing.assert_array_equal(model.probabilities(given), model.probabilities(standard.train.x.numpy()))


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.astype(int) + 1, lambda x: x.astype(int) - 1, lambda x: x.astype(float),
        lambda x: (x // 10).astype(float), lambda x: x / 255, lambda x: x > 127,
    ],
)  # fmt: skip
def test_what_is_neither_bytes_nor_standardised_is_refused(of_mnist, change):
    with pytest.raises(fc.InputError, match=r"predict: x is \w+, but the model learnt bytes, 0 to 255; give uint8"):
        of_mnist[2].predict(change(of_mnist[0].train.x.numpy()))


def test_stored_images_do_not_depend_on_their_channels(of_mnist):
    """Their digest stays that of earlier versions."""
    standard = of_mnist[1]
    assert standard.channels is not None
    assert to_content(standard) == to_content(replace(standard, channels=None))
    assert b"channels" not in to_content(standard)[0]
