"""ST-LF's two sizes of the paper: what decides between them is as docs/methods/st_lf.md says, and how good their
sources are."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from dataset_files import real
from project_params import PARAMS

from fedcore.config.settings import Setting
from fedcore.config.studies import grid_points
from fedcore.core.aggregation import by_size, mean
from fedcore.core.training import Training, accuracy, train
from fedcore.data import Dataset, load
from fedcore.execute.workers import one_thread
from fedcore.nets import init, net
from fedcore.partition import partition, splits
from fedcore.types.federation import Device, Params
from fedcore.types.method import Message, StepId, generator

TABLES = ("st_lf_table1", "st_lf_table2")
FOUR_CLASSES = {"sets=M", "sets=U", "sets=M+U"}
GUESSING = 0.3
"""Table I's claims are not tested where the sources' accuracy is below (claims/st_lf.yaml)."""


@cache
def settings(study: str, size: str) -> dict[str, Setting]:
    return {setting.name: setting for setting in grid_points(PARAMS, study, size, {}, [])}


def rows(setting: Setting) -> dict[str, Any]:
    return {one.label: one for one in setting.methods}


@pytest.mark.parametrize("study", TABLES)
def test_as_published_trains_and_divides_as_the_authors_code_does(study: str):
    for name, setting in settings(study, "as_published").items():
        link = rows(setting)["st_lf"]
        assert {key: getattr(link.training, key) for key in ("optimiser", "lr", "batch", "steps", "loss")} == {
            "optimiser": "sgd", "lr": 0.01, "batch": 10, "steps": 80 * 160, "loss": "softmax_twice",
        }  # fmt: skip
        assert setting.nets[0] == {"name": "stlf_cnn", "width": 1.0, "dropout": 0.5}
        assert (setting.data["usps_frame"], setting.data["gray"]) == ("padded", name != "sets=MM")
        constants = "decimal" if study == "st_lf_table2" else "assumed"
        expected = {"pretrain": 4, "pretrain_steps": 10 * 160, "constants": constants, "phi_t": 5.0, "phi_d": 100.0}
        assert {key: link.settings[key] for key in expected} == expected
        assert setting.federation["alpha"] == 5.0
        assert setting.federation["hidden"] == pytest.approx(200 / 1800, abs=1e-4)
        assert setting.federation["partition"] == "device_dirichlet"
        assert setting.federation["classes"] == (4 if name in FOUR_CLASSES else 10)
        assert setting.federation["examples"] * (1 - setting.federation["test"]) == 10 * 1800
        classes = setting.federation["unlabelled_classes"]
        assert classes == ("shared" if name in FOUR_CLASSES else "own")


@pytest.mark.parametrize("study", TABLES)
def test_as_printed_trains_for_a_hundred_iterations(study: str):
    for name, setting in settings(study, "as_printed").items():
        link = rows(setting)["st_lf"]
        assert {key: getattr(link.training, key) for key in ("optimiser", "lr", "batch", "steps", "loss")} == {
            "optimiser": "sgd", "lr": 0.01, "batch": 10, "steps": 100, "loss": "ce",
        }  # fmt: skip
        assert setting.nets[0] == {"name": "stlf_cnn", "width": 1.0, "dropout": 0.0}
        expected = {"pretrain": 0, "phi_s": 1.0, "phi_t": 5.0, "phi_e": 1.0, "phi_d": 1.0}
        assert {key: link.settings[key] for key in expected} == expected
        assert setting.federation["unlabelled_classes"] == "own"
        assert (setting.federation["partition"] == "few_classes") == (name in {"sets=M", "sets=U"})


def test_only_as_printed_lets_rivals_send_models_that_never_trained():
    rivals = ("rnd_psi", "psi_fedavg", "psi_fada", "single_match")
    for size, who in (("as_published", "labelled"), ("as_printed", "all")):
        for setting in settings("st_lf_table1", size).values():
            assert {rows(setting)[rival].settings["sources"] for rival in rivals} == {who}


def source_accuracy(size: str, name: str, *, pretrained: bool = False, **plain: Any) -> float:
    """The accuracy of the first device with labels on its own test data, trained alone as the study trains it.

    With a quarter of the steps, where they are many, which is enough to tell the levels apart. pretrained: after the
    study's rounds of federated averaging, here between two devices with labels and with a sixteenth of the steps.
    plain: a loss other than the study's, with a net without dropout.
    """
    setting = settings("st_lf_table1", size)[f"sets={name}"]
    dataset = examples(size, name)
    words = {"name" if key == "partition" else key: value for key, value in setting.federation.items()}
    scale = words.pop("scale")
    data = splits(dataset, partition(dataset, seed=0, **words), scale)[0]
    words = setting.nets[0] | ({"dropout": 0.0} if plain else {})
    cnn = net(shape=dataset.train.x.shape[1:], classes=len(dataset.classes), **words)
    labelled = [Device(name, cnn, own) for name, own in data.items() if len(own.train)]
    row = rows(setting)["st_lf"]
    training = replace(row.training, steps=quarter(row.training.steps), **plain)
    with one_thread():
        params = init(cnn, generator(0, "init"))
        for stage in range(row.settings["pretrain"] if pretrained else 0):
            short = replace(training, steps=row.settings["pretrain_steps"] // 16)
            models = [trained(params, device, stage, short) for device in labelled[:2]]
            params = mean(models, by_size([len(device.data.train) for device in labelled[:2]]))
        params = trained(params, labelled[0], 9, training)
    return accuracy(params, cnn, labelled[0].data.test)


@cache
def examples(size: str, name: str) -> Dataset:
    given = settings("st_lf_table1", size)[f"sets={name}"].data | {"download": False}
    return load(given.pop("name"), **given)


def quarter(steps: int) -> int:
    return steps // 4 if steps > 1000 else steps


def trained(params: Params, device: Device, stage: int, training: Training) -> Params:
    return train({}, Message(params), device, StepId(0, stage, 0, device.name), training=training)[1].params


@real
@pytest.mark.slow
def test_as_published_sources_know_mnist():
    """The authors' result files have .94 on average."""
    assert source_accuracy("as_published", "M", pretrained=True) > 0.75


@real
@pytest.mark.slow
def test_as_published_sources_know_little_of_mnist_m():
    """The authors' result files have .43 to .53; here a device trains alone, without pretraining."""
    assert 0.15 < source_accuracy("as_published", "MM") < 0.5


@real
@pytest.mark.slow
def test_with_a_plain_net_and_loss_sources_are_far_better():
    """It is the net that ends in a softmax, and is trained with another, that learns MNIST-M so slowly."""
    assert source_accuracy("as_published", "MM", loss="ce") > 0.75


@real
@pytest.mark.slow
def test_as_printed_mnist_m_is_below_the_gate_of_the_claims():
    assert source_accuracy("as_printed", "MM") < GUESSING
