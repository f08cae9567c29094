"""What made a run, as JSON: it comes back as it was, with every digest, for every method and kind of setting."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedcore.config.params import read
from fedcore.config.studies import grid_points
from fedcore.errors import InputError
from fedcore.methods import METHODS
from fedcore.pipeline.cache.keys import Digest
from fedcore.pipeline.record.origin import Origin, from_json, to_json
from fedcore.types.method import Threshold

ROOT = Path(__file__).parents[3]
CHANGES: list[dict[str, Any]] = [
    {},
    {"data.name": "domains", "data.domains": ["digits", "digits_inverted"], "federation.partition": "by_domain"},
    {"data.name": "bearings", "data.locations": ["A"], "net.name": "cells", "federation.partition": "by_device"},
    {"data.name": "digits", "run.metric": "f1", "run.positive": "3", "federation.scale": "common"},
    {
        "run.threshold": "validation",
        "run.positive": "3",
        "net.variants": [{"widths": [48, 24]}],
        "federation.hidden": "random",
        "federation.hostile": 0.25,
    },
]


@pytest.mark.slow
@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: str(changes.get("data.name", len(changes))))
def test_an_origin_comes_back_as_it_was(changes: dict[str, Any]):
    (setting,) = grid_points(read(ROOT), "code", "small", changes, list(METHODS))
    for row in setting.methods:
        chosen = Threshold("3", 0.1) if setting.threshold else None
        made = Origin(setting, row, 3, "small", "c" * 40, "d" * 40, chosen)
        found = from_json(to_json(made))
        assert found.threshold == chosen
        assert (found.seed, found.size, found.config, found.data) == (3, "small", "c" * 40, "d" * 40)
        assert replace(found.setting, methods=setting.methods) == setting
        assert found.row == row
        assert Digest().of(found.row.flat()) == Digest().of(row.flat())


def test_settings_of_earlier_versions_are_read_by_todays_names():
    (setting,) = grid_points(read(ROOT), "code", "small", {}, ["fedavg"])
    card = json.loads(to_json(Origin(setting, setting.methods[0], 0, "small", "c", "d")))
    settings = card["method"]["settings"]
    del settings["secure_aggregation"], settings["upload"]
    for sums, sends, today in (("plain", "change", (False, "delta")), ("masked", "model", (True, "model"))):
        card["method"]["settings"] = settings | {"sums": sums, "sends": sends}
        found = from_json(json.dumps(card).encode()).row.settings
        assert (found["secure_aggregation"], found["upload"]) == today


def test_a_setting_that_is_no_longer_known_is_refused_by_name():
    (setting,) = grid_points(read(ROOT), "code", "small", {}, ["fedavg"])
    card = json.loads(to_json(Origin(setting, setting.methods[0], 0, "small", "c", "d")))
    card["method"]["settings"]["shots"] = 3
    with pytest.raises(InputError, match="shots"):
        from_json(json.dumps(card).encode())
