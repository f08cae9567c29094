"""Champions: proposals are compared on the same held-out data, and only a promotion moves the alias."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tables import frame, rows

from fedcore.types import InputError
from tasks.record import promotion
from tasks.record.metrics import DEVICES, device_table

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # MLflow's own

Make = Callable[..., Any]


@pytest.fixture
def make(client: Any, request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Return a function that registers a version with accuracies of devices, for a task named after the test."""
    name = promotion.registered(re.sub(r"\W+", "-", request.node.name))
    client.create_registered_model(name)
    experiment = client.get_experiment_by_name("fedcore").experiment_id

    def version(accuracy: list[float], partition: str = "p", data: str = "d") -> Any:
        run = client.create_run(experiment)
        (tmp_path / DEVICES).write_bytes(device_table(frame(rows({"a": [accuracy]}))))
        client.log_artifact(run.info.run_id, str(tmp_path / DEVICES))
        tags = {
            "fedcore.data": data, "fedcore.partition": partition, "fedcore.method": "a", "fedcore.seed": "0"
        }  # fmt: skip
        return client.create_model_version(name, "file:///nowhere", run.info.run_id, tags=tags)

    return version


def champion(client: Any, version: Any) -> str | None:
    found = promotion.alias(client, version.name, promotion.CHAMPION)
    return found and str(found.version)


def test_a_run_proposes_and_does_not_crown_itself(client: Any, make: Make):
    first = make([0.5, 0.6])
    said = promotion.propose(client, first, False)
    assert "there is no champion yet" in said
    assert f"python -m flows.promote {first.name.removeprefix('fedcore-')}" in said
    assert champion(client, first) is None
    candidate = promotion.alias(client, first.name, promotion.CANDIDATE)
    assert candidate is not None
    assert candidate.tags[promotion.PROPOSAL] == said.partition("; to promote")[0]


def test_a_promotion_keeps_the_champion_before_as_previous(client: Any, make: Make):
    first, second = make([0.5, 0.6]), make([0.7, 0.8])
    for version in (first, second, second):
        promotion.promote(client, version)
    assert champion(client, first) == str(second.version)
    previous = promotion.alias(client, first.name, promotion.PREVIOUS)
    assert previous is not None
    assert previous.version == first.version


@pytest.mark.parametrize(
    ("accuracy", "partition", "better"),
    [
        ([0.8, 0.7, 0.9], "p", "yes"),  # +.1 on each device
        ([0.6, 0.5, 0.7], "p", "no"),
        ([0.7, 0.6, 0.8], "p", "no"),  # the same
        ([1.0, 0.4, 0.76], "p", "no"),  # +.02 with a standard error of .15
        ([0.9, 0.9, 0.9], "other", "not comparable"),
    ],
)
def test_a_candidate_is_compared_on_the_same_data(
    client: Any, make: Make, accuracy: list[float], partition: str, better: str
):
    present, candidate = make([0.7, 0.6, 0.8]), make(accuracy, partition)
    promotion.promote(client, present)
    assert promotion.compare(client, candidate).better == better
    # The nightly rule promotes a better one only.
    promotion.propose(client, candidate, True)
    assert champion(client, present) == str((candidate if better == "yes" else present).version)


def test_the_nightly_rule_promotes_the_first_one(client: Any, make: Make):
    first = make([0.5])
    assert promotion.propose(client, first, True).endswith("; promoted")
    assert champion(client, first) == str(first.version)
    assert promotion.propose(client, first, True).endswith("is the champion")


def test_what_is_not_there_is_named(client: Any, make: Make):
    first = make([0.5])
    task = first.name.removeprefix("fedcore-")
    with pytest.raises(InputError, match="model = 'tsak': not registered; there is: .*" + task):
        promotion.find(client, "tsak", "1")
    with pytest.raises(InputError, match=r"version = .7.: .* has no such version; it has no alias"):
        promotion.find(client, task, "7")
    with pytest.raises(InputError, match=f"'champion'.*promote one: python -m flows.promote {task}"):
        promotion.load(client, task)
    assert promotion.find(client, task, "1").version == first.version
