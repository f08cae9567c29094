"""params.yaml: what wins over what, what is refused and how, and that nothing in it is unread."""

from __future__ import annotations

import ast
import copy
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import reduce
from importlib import import_module
from inspect import Parameter, getsource, signature
from math import prod
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import yaml
from project import ROOT

from fedcore.builders import GIVEN
from fedcore.data import DATASETS
from fedcore.local import Training
from fedcore.methods import METHODS
from fedcore.nets import NETS, net
from fedcore.nets import shapes as leaf_shapes
from fedcore.partition import partition
from fedcore.types import InputError
from tasks.config import settings
from tasks.config.settings import changed, parse, read, run_section, study

PARAMS = read(ROOT / "params.yaml")


@pytest.fixture
def params() -> dict[str, Any]:
    return copy.deepcopy(PARAMS)


def points(params: Mapping[str, Any], methods: tuple[str, ...] = (), **changes: Any) -> list[settings.Setting]:
    return settings.settings(
        params, "asked", "small", {key.replace("__", "."): v for key, v in changes.items()}, methods
    )


def ask(params: dict[str, Any], methods: Mapping[str, Any], **size: Any) -> dict[str, Any]:
    """Give the parameters one more study."""
    params["studies"]["asked"] = {"title": "?", "methods": methods, "sizes": {"small": size}}
    return params


def refusal(ask: Any, *args: Any, **kwargs: Any) -> str:
    """Return the one line of a refusal."""
    with pytest.raises(InputError) as caught:
        ask(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# what wins


def test_params_then_set_then_grid_then_what_is_typed(params: dict[str, Any]):
    params["federation"]["alpha"] = 1.0
    ask(params, {"lmf": {}})
    assert [point.federation["alpha"] for point in points(params)] == [1.0]
    ask(params, {"lmf": {}}, set={"federation.alpha": 2.0, "federation.devices": 5})
    assert [(p.federation["alpha"], p.federation["devices"]) for p in points(params)] == [(2.0, 5)]
    ask(params, {"lmf": {}}, set={"federation.alpha": 2.0}, grid={"federation.alpha": [3.0, 4.0]})
    assert [point.federation["alpha"] for point in points(params)] == [3.0, 4.0]
    assert [point.federation["alpha"] for point in points(params, federation__alpha=5.0)] == [5.0]
    assert params["federation"]["alpha"] == 1.0  # nothing is written back


def test_a_grid_is_every_combination_with_a_name_for_each(params: dict[str, Any]):
    ask(params, {"lmf": {}}, grid={"federation.alpha": [1.0e20, 0.1], "lmf.solver": ["newton", "exact"]})
    found = points(params)
    assert [(p.federation["alpha"], p.methods[0].own["solver"]) for p in found] == [
        (1e20, "newton"), (1e20, "exact"), (0.1, "newton"), (0.1, "exact"),
    ]  # fmt: skip
    assert [p.name for p in found] == [
        f"alpha={alpha} solver={solver}" for alpha in ("1e+20", "0.1") for solver in ("newton", "exact")
    ]
    assert [p.point for p in found][:2] == [
        {"federation.alpha": 1e20, "lmf.solver": "newton"}, {"federation.alpha": 1e20, "lmf.solver": "exact"},
    ]  # fmt: skip
    assert len({p.slug for p in found}) == 4
    assert all(set(p.slug) <= set("abcdefghijklmnopqrstuvwxyzA_BCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.=+-") for p in found)
    assert [p.name for p in points(params, federation__alpha=1.0)] == ["alpha=1 solver=newton", "alpha=1 solver=exact"]
    ask(params, {"lmf": {}})
    assert [p.name for p in points(params)] == ["base"]


def test_a_row_wins_over_its_methods_section_and_training(params: dict[str, Any]):
    params["training"] |= {"epochs": 7, "lr": 0.5, "init": "per_device"}
    params["lmf"]["reg"] = 0.25
    rows = {
        "lmf": {},
        "sharp": {"method": "lmf", "reg": 0.125, "training": {"epochs": 2, "init": "common"}},
        "fedavg_2": {"method": "fedavg", "rounds": 2},
    }
    plain, sharp, average = points(ask(params, rows))[0].methods
    assert (plain.label, plain.name, plain.own["reg"], plain.training["epochs"], plain.common) == (
        "lmf",
        "lmf",
        0.25,
        7,
        False,
    )
    assert (sharp.label, sharp.name, sharp.own["reg"]) == ("sharp", "lmf", 0.125)
    assert (sharp.training["epochs"], sharp.training["lr"], sharp.common) == (2, 0.5, True)
    assert (average.name, average.own["rounds"], average.own["weights"]) == ("fedavg", 2, params["fedavg"]["weights"])
    # What is typed for the method reaches every row of it, unless the row says otherwise.
    plain, sharp, _ = points(params, lmf__reg=0.5)[0].methods
    assert (plain.own["reg"], sharp.own["reg"]) == (0.5, 0.125)


def test_a_study_may_say_how_often_it_is_evaluated(params: dict[str, Any]):
    params["run"]["every"] = 2
    assert points(ask(params, {"lmf": {}}))[0].every == 2
    ask(params, {"lmf": {}}, set={"run.every": 3})
    assert points(params)[0].every == 3
    assert points(params, run__every=5)[0].every == 5
    ask(params, {"lmf": {}}, grid={"run.every": [1, 4]})
    assert [point.every for point in points(params)] == [1, 4]


def test_a_study_sets_nothing_else_that_is_of_all_studies(params: dict[str, Any]):
    says = "studies.asked: run.seeds is of all studies; of section run a study sets every alone"
    assert refusal(points, ask(params, {"lmf": {}}, set={"run.seeds": [1]})) == says
    assert refusal(points, ask(params, {"lmf": {}}, grid={"run.seeds": [[1], [2]]})) == says
    assert "run.every = 0" in refusal(points, ask(params, {"lmf": {}}, set={"run.every": 0}))


def test_a_methods_own_section_may_change_its_training(params: dict[str, Any]):
    params["lmf"]["training"] = {"epochs": 3, "init": "common"}
    lmf, code = points(ask(params, {"lmf": {}, "code_ot": {}}))[0].methods
    assert (lmf.training["epochs"], lmf.common) == (3, True)
    assert (code.training["epochs"], code.common) == (params["training"]["epochs"], False)
    assert lmf.flat()["training.epochs"] == 3
    assert lmf.flat()["init"] == "common"


def test_methods_are_chosen_by_label_or_by_name(params: dict[str, Any]):
    ask(params, {"ten": {"method": "fedavg", "rounds": 10}, "lmf": {}})
    assert [row.label for row in points(params)[0].methods] == ["ten", "lmf"]
    assert [(row.label, row.own["rounds"]) for row in points(params, ("ten",))[0].methods] == [("ten", 10)]
    assert [(row.label, row.own["rounds"]) for row in points(params, ("fedavg",))[0].methods] == [("fedavg", 1)]


@pytest.fixture(scope="module")
def federate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The flow's module, imported with a home and an environment of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.environ", {**os.environ, "FEDCORE_HOME": str(tmp_path_factory.mktemp("home"))})
        yield import_module("flows.federate")


def test_what_is_typed_reaches_the_run_and_the_studies(federate: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    words = ["study=code", "run.seeds=[5,6]", "run.every=3", "studies.code.methods={lmf: {}}", "federation.devices=3"]
    params, jobs = federate.planned(federate.parse(words))
    assert [job.seed for job in jobs] == [5, 6]
    assert run_section(params).every == jobs[0].settings[0].every == 3
    assert [row.label for row in jobs[0].settings[0].methods] == ["lmf"]
    assert jobs[0].settings[0].federation["devices"] == 3
    assert [job.seed for job in federate.planned(federate.parse(["study=code", "seed=9", "run.seeds=[5,6]"]))[1]] == [9]
    assert federate.planned(federate.parse(["study=dfl", "run.every=3"]))[1][0].settings[0].every == 3
    assert "run.evry" in refusal(federate.planned, federate.parse(["run.evry=3"]))
    assert "run.every = 0" in refusal(federate.planned, federate.parse(["run.every=0"]))


def test_the_command_line_names_one_or_many(federate: Any):
    asked = federate.parse(["study=code", "seeds=[1,2]", "method=lmf", "size=paper", "prepared=true", "lmf.reg=0.5"])
    assert asked == federate.Request(
        studies=["code"], seeds=[1, 2], methods=["lmf"], size="paper", prepared=True, changes={"lmf.reg": 0.5}
    )


# words


@pytest.mark.parametrize(
    ("word", "value"),
    [("3", 3), ("0.5", 0.5), ("1.0e-3", 0.001), ("true", True), ("null", None), ("", None), ("a b", "a b"),
     ("[16, 8]", [16, 8]), ("{a: 1}", {"a": 1}), ("a=b", "a=b")],
)  # fmt: skip
def test_words_are_yaml(word: str, value: Any):
    assert parse([f"some.key={word}"]) == {"some.key": value}


@pytest.mark.parametrize("word", ["federation.devices", "", "=3", "a=[1", "a={"])
def test_a_word_that_is_none_is_refused(word: str):
    refusal(parse, [word])


# keys


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("federation.devises", "federation.devises: no such key; did you mean devices?"),
        ("fedration.devices", "fedration.devices: no such key; did you mean federation?"),
        ("federation.zzz", "federation.zzz: no such key"),
        ("data.rot", "data.rot: no such key; did you mean root?"),
        ("federation.alpha.beta", "federation.alpha.beta: alpha has no keys below it"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_one(key: str, says: str):
    assert refusal(changed, PARAMS, {key: 1}) == says


def test_a_change_leaves_the_rest(params: dict[str, Any]):
    after = changed(params, {"federation.devices": 3, "data.root": "here", "net.widths": [4]})
    assert params == PARAMS
    assert after["federation"] == {**params["federation"], "devices": 3}
    assert after["data"]["root"] == "here"
    assert {key for key in after if after[key] != params[key]} == {"federation", "data", "net"}


def test_a_key_that_may_be_left_out_can_be_typed(params: dict[str, Any]):
    del params["data"]["label"]
    assert changed(params, {"data.label": "y"})["data"]["label"] == "y"


def test_a_section_cannot_become_a_value():
    assert "set a key below it" in refusal(changed, PARAMS, {"federation": 3})


# types and ranges: every number that a user may turn, a step beyond what is allowed


BEYOND: dict[str, list[Any]] = {
    "run.studies": [[], "code", [1]],
    "run.size": [3, None],
    "run.seeds": [[], [-1], ["a"], 3, [0.5]],
    "run.every": [0, "often", 1.5, None],
    "run.workers": [0, -1, "two"],
    "run.accelerator": ["cuda", "nane", None, True],
    "data.name": ["minst", 3, None],
    "data.download": ["perhaps"],
    "federation.partition": ["dirichle", None],
    "federation.devices": [0, -1, 2.5, "many", None],
    "federation.alpha": [0, -1, "small", None, float("nan")],
    "federation.classes": [0, 1.5, "a"],
    "federation.share": [0, 1.5, "a"],
    "federation.min_size": [0, -3, 1.5],
    "federation.examples": [0, 1.5],
    "federation.shared_examples": [0, 1.5],
    "federation.domains": ["splitt"],
    "federation.unlabelled": [-0.1, 1, "a"],
    "federation.hidden": [-0.1, 1, "some"],
    "federation.val": [-0.1, 1, 1.5, "a"],
    "federation.test": [-0.1, 1],
    "federation.shared_test": [-0.1, 1],
    "federation.scale": ["global", None],
    "net.name": ["mpl", None],
    "net.widths": ["wide", 3, [0.5], None],
    "net.variants": ["wide", [3]],
    "training.optimiser": ["adm", None],
    "training.lr": [0, -1, "fast", None, float("inf")],
    "training.momentum": [-0.1, 1],
    "training.weight_decay": [-0.1],
    "training.schedule": ["cosin"],
    "training.batch": [0, 1.5, "a"],
    "training.epochs": [0, 1.5],
    "training.init": ["same", None],
    "training.loss": ["mse", None],
    "training.moments": ["keep", None],
    "fedavg.rounds": [0, 1.5, "a"],
    "fedavg.fraction": [0, 1.1, "a"],
    "fedavg.weights": ["sizes"],
    "lmf.shots": [0, 1.5],
    "lmf.exam": ["validate"],
    "lmf.solver": ["newtn"],
    "lmf.reg": [0, -1, "a"],
    "lmf.tol": [0, -1],
    "lmf.max_iterations": [0, 1.5],
    "lmf.p": [0, 3, 1.5],
    "code_ot.exam": ["validate"],
    "code_ot.solver": ["newtn"],
    "code_ot.reg": [0, -1],
    "code_ot.tol": [0],
    "code_ot.max_iterations": [0],
    "code_ot.p": [3],
    "code_ot.shots": [0, 1.5],
    "code_ot.order": ["up"],
    "best_local.exam": ["validate"],
    "half_best.exam": ["validate"],
    "no_alignment.exam": ["validate"],
    "fedprox.rounds": [0, 1.5],
    "fedprox.fraction": [0, 1.1],
    "fedprox.mu": [-0.1, "a"],
    "fedper.rounds": [0, 1.5],
    "fedper.personal_lr": [0, -1, "a"],
    "ditto.rounds": [0, 1.5],
    "ditto.fraction": [0, 1.1],
    "ditto.strength": [-0.1, "a"],
    "fixed_depth.rounds": [0, 1.5],
    "fixed_depth.depth": [-1, 0.5, "all"],
    "fixed_depth.personal_lr": [0, -1],
    "fedasa.rounds": [0, 1.5],
    "fedasa.alignment_rounds": [0, 1.5],
    "fedasa.auxiliary": [-1, 1.5],
    "fedasa.steps": [0, 1.5],
    "fedasa.cell": [-1, 0.5],
    "fedasa.distance": ["cosine", None],
    "fedasa.budget": [0, -1, "a", [1, -2]],
    "fedasa.personal_lr": [0, -1],
    "fedavg.sends": ["models"],
    "dfl.rounds": [0, 1.5],
    "dfl.fraction": [0, 1.1],
    "dfl.ratio": ["rising", None],
    "dfl.threshold": [-0.1, 1.1, "a"],
    "dfl.temperature": [0, -1, "a"],
    "dfl.weighting": ["sizes", None],
    "dfl.training.init": ["same"],
    "fd.rounds": [0, 1.5],
    "fd.fraction": [0, 1.1],
    "fd.gamma": [-0.1, "a"],
    "scaffold.rounds": [0, 1.5],
    "scaffold.fraction": [0, 1.1],
    "scaffold.training.optimiser": ["adm"],
    "scaffold.training.momentum": [-0.1, 1],
    "fedgen.rounds": [0, 1.5],
    "fedgen.fraction": [0, 1.1],
    "fedgen.alpha": [-0.1, "a"],
    "fedgen.decay": [0, 1.1],
    "fedgen.generated": [0, 1.5],
    "fedgen.noise": [0, 1.5],
    "fedgen.hidden": [0, 1.5],
    "fedgen.steps": [0, 1.5],
    "fedgen.batch": [0, 1.5],
    "fedgen.lr": [0, -1],
    "fedgen.weight_decay": [-0.1],
    "fedgen.diversity": [-0.1, "a"],
    "label_smoothing.rounds": [0, 1.5],
    "label_smoothing.fraction": [0, 1.1],
    "label_smoothing.ratio": ["rising"],
    "label_smoothing.threshold": [-0.1, 1.1],
}
DRAWN = {
    "powers": ["loud", 3],
    "rates": ["fast", None],
    "bits": [0, -1],
    "costs": ["dear", [[-1.0]]],
    "transfer": ["gradients", None],
    "training.init": ["same"],
}
LINKED = DRAWN | {
    "pair_rounds": [0, 1.5],
    "pair_iterations": [0, 1.5],
    "pair_batch": [0, 1.5],
    "pair_lr": [0, -1],
    "held_out": [0, 1],
    "constants": ["guessed", None],
    "delta": [0, 1],
    "unlabelled": [-0.1, "a"],
    "phi_s": [-0.1, "a"],
    "phi_t": [-0.1, "a"],
    "phi_e": [-0.1, "a"],
    "solver": ["newton"],
    "tol": [0, -1],
    "max_iterations": [0, 1.5],
}
ST_LF = ("st_lf", "least_error", "rnd_alpha", "fedavg_alpha", "avg_degree")
DRAWS_PSI = ("rnd_psi", "psi_fedavg", "single_match")
BEYOND |= {f"{name}.{key}": values for name in ST_LF for key, values in LINKED.items()}
BEYOND |= {f"{name}.{key}": values for name in DRAWS_PSI for key, values in DRAWN.items()}
ALIGNED = {
    "rounds": [-1, 1.5],
    "start": ["source", None],
    "steps": [0, 1.5],
    "batch": [0, 1.5],
    "lr": [0, -1],
    "weight": [-0.1, "a"],
    "shown": [0, 1.5],
    "sharpness": [-0.1, "a"],
    "hidden": [0, 1.5],
    "identifier_steps": [0, 1.5],
    "identifier_lr": [0, -1],
}
FADA = {"fada": LINKED, "psi_fada": DRAWN}
BEYOND |= {
    f"{name}.{key}": values
    for name, its in FADA.items()
    for key, values in (its | ALIGNED).items()
    if key != "transfer"
}
FREE = {"data.root", "data.path", "data.label", "data.device", "data.split", "data.features"}
"""Names of places and columns: what is there decides, when it is read."""


def leaves(section: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in section.items():
        yield from leaves(value, f"{prefix}{key}.") if isinstance(value, dict) and value else [f"{prefix}{key}"]


def numbers() -> list[str]:
    return [key for key in leaves({k: v for k, v in PARAMS.items() if k != "studies"}) if key != "local_only"]


def test_every_key_of_params_has_a_value_that_is_refused():
    assert set(numbers()) == set(BEYOND) | FREE


def everything(params: dict[str, Any]) -> tuple[Any, ...]:
    """Read all of it, as a run with every method does."""
    run = run_section(params)
    return run, settings.settings(ask(params, {name: {} for name in METHODS}), "asked", "small", {})


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in BEYOND.items() for value in values])
def test_a_value_beyond_its_range_is_refused_by_name(params: dict[str, Any], key: str, value: Any):
    line = refusal(everything, changed(params, {key: value}))
    assert key.split(".")[-1] in line
    assert "nan" in line or str(value).strip("[]'") in line


@pytest.mark.parametrize("section", sorted(PARAMS))
def test_a_key_that_nothing_reads_is_refused(params: dict[str, Any], section: str):
    params[section]["surplus"] = 1
    if section == "studies":
        assert "studies.surplus" in refusal(study, params, "surplus")
    else:
        assert "surplus" in refusal(everything, params)


NO_DEFAULT = {
    "federation.partition",
    "federation.scale",
    "net.name",
    "training.init",
    *(k for k in numbers() if k.startswith("run.")),
}


@pytest.mark.parametrize("key", sorted(NO_DEFAULT))
def test_a_key_that_is_missing_is_refused(params: dict[str, Any], key: str):
    section, name = key.split(".")
    del params[section][name]
    assert name in refusal(everything, params)


@pytest.mark.parametrize("key", [key for key in numbers() if key.split(".")[0] != "data" and key not in NO_DEFAULT])
def test_a_key_that_is_left_out_has_the_same_default(params: dict[str, Any], key: str):
    *sections, name = key.split(".")
    del reduce(getitem, sections, params)[name]
    here, before = everything(params)[1], everything(copy.deepcopy(PARAMS))[1]
    assert json.dumps([asdict(one) for one in here]) == json.dumps([asdict(one) for one in before])


def test_the_default_parameters_are_read(params: dict[str, Any]):
    run, (point,) = everything(params)
    assert run.studies[0] == "code"
    assert [row.name for row in point.methods] == list(METHODS)


# nothing is unread: each key reaches what it is passed to, and that reads it


def test_every_section_has_a_reader():
    assert set(PARAMS) == {"run", "data", "federation", "net", "training", "studies"} | set(METHODS)


ONE_VALUE = {"net.name", *(f"{name}.training.init" for name in FADA)}
REACHING = [key for key in numbers() if key.split(".")[0] not in ("run", "data") and key not in ONE_VALUE]
"""There is one net, and FADA has one start; what is read of the data depends on the dataset."""


@pytest.mark.parametrize("key", REACHING)
def test_every_key_reaches_a_run(params: dict[str, Any], key: str):
    """Two allowed values lead to two settings."""
    other = {
        "federation.partition": "iid", "federation.scale": "device", "net.widths": [5], "training.optimiser": "sgd",
        "training.schedule": "linear", "training.init": "common", "fedavg.weights": "even",
        "code_ot.order": "descending", "federation.val": 0.125, "federation.test": 0.125, "federation.shared_test": 0.5,
        "training.momentum": 0.5, "federation.share": 0.5, "federation.examples": 99, "federation.domains": "split",
        "federation.shared_examples": 99,
        "federation.unlabelled": 0.5, "federation.hidden": "random", "net.variants": [{"widths": [3, 2]}],
        "training.loss": "table3", "training.moments": "kept",
        "fedasa.auxiliary": 1, "fedasa.cell": 0, "fedasa.distance": "unit_norm", "fedasa.budget": 1.0e+6,
        "fedavg.sends": "change", "dfl.weighting": "examples", "dfl.training.init": "per_device",
        "scaffold.training.optimiser": "adam", "scaffold.training.momentum": 0.5, "fedgen.decay": 0.5,
    }  # fmt: skip
    by_name = {
        "fraction": 0.5,
        "ratio": "fixed",
        "threshold": 0.5,
        "exam": "test",
        "solver": "exact",
        "p": 2,
        "personal_lr": 0.5,
        "held_out": 0.5,
        "constants": "printed",
        "delta": 0.5,
        "powers": [20.0, 21.0],
        "rates": [1.0, 2.0],
        "costs": [[0.0]],
        "transfer": "outputs",
        "start": "target",
    }
    by_name |= {"init": "per_device"} if key.split(".")[0] in (*ST_LF, *DRAWS_PSI) else {}
    *sections, name = key.split(".")
    now = reduce(getitem, sections, params)[name]
    value = other.get(key, by_name.get(name, now + 1 if isinstance(now, int | float) else None))
    assert value not in (None, now)
    assert everything(changed(params, {key: value}))[1] != everything(copy.deepcopy(PARAMS))[1]


def reads(function: Any) -> set[str]:
    """Return the names that a function's body uses."""
    (tree,) = ast.parse(getsource(function)).body
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def resolve(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name or module.rpartition(".")[2])


@pytest.mark.parametrize("place", [*DATASETS.values(), *NETS.values(), *METHODS.values()])
def test_every_parameter_of_what_a_section_is_passed_to_is_used(place: str):
    builder = resolve(place)
    assert set(signature(builder).parameters) - set(GIVEN) <= reads(builder)


def test_every_key_of_the_federation_can_be_typed_and_is_a_partitions(params: dict[str, Any]):
    for key, parameter in signature(partition).parameters.items():
        if parameter.default is not Parameter.empty and key not in settings.PARTITION:
            assert everything(changed(params, {f"federation.{key}": parameter.default}))


def test_a_setting_of_several_types_is_refused_in_one_line(params: dict[str, Any]):
    line = refusal(everything, changed(params, {"federation.hidden": "some"}))
    assert line.startswith("federation.hidden = 'some': ")
    assert "'random'" in line
    assert "more)" not in line


# a dataset and a net take what they know


def test_settings_of_other_datasets_and_nets_may_stand_there_unread(params: dict[str, Any]):
    changes = {"data.subset": "letters", "data.size": 20, "net.maps": [3], "net.widths": [5]}
    (point,) = points(ask(params, {"lmf": {}}), (), **{key.replace(".", "__"): value for key, value in changes.items()})
    assert point.data == {"name": "digits"}
    assert point.net == {"name": "mlp", "widths": [5]}
    (point,) = points(params, (), net__name="lenet", net__width=0.5)
    assert point.net == {"name": "lenet", "width": 0.5}


@pytest.mark.parametrize(
    ("key", "value"), [("data.subst", "letters"), ("net.wdth", 2), ("data.size", "large"), ("net.maps", "many")]
)
def test_what_no_dataset_or_net_takes_is_refused(params: dict[str, Any], key: str, value: Any):
    section, name = key.split(".")
    params[section][name] = value
    assert key in refusal(everything, params)


OWN = """
from torch import nn


class Small(nn.Sequential):
    def __init__(self, shape, classes, units: int = 3):
        super().__init__(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], units), nn.Linear(units, classes))
"""


def test_settings_of_an_own_net_can_be_typed(params: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "own_of_settings.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    ask(params, {"local_only": {}})
    (point,) = points(params, (), net__name="own_of_settings:Small", net__units=8)
    assert point.net == {"name": "own_of_settings:Small", "units": 8}
    line = refusal(points, params, (), net__name="own_of_settings:Small", net__unit=8)
    assert line.startswith("net.unit: no such key (allowed: units)")
    assert "did you mean units?" in line
    assert "net.units = 'a'" in refusal(points, params, (), net__name="own_of_settings:Small", net__units="a")


def test_nets_may_vary_from_device_to_device(params: dict[str, Any]):
    params["net"]["variants"] = [{"widths": [5, 4]}, {"widths": [3, 2]}]
    (point,) = points(ask(params, {"lmf": {}}))
    widths = params["net"]["widths"]
    assert point.net == {
        "name": "mlp", "widths": widths,
        "variants": [{"name": "mlp", "widths": [5, 4]}, {"name": "mlp", "widths": [3, 2]}],
    }  # fmt: skip
    params["net"]["variants"] = {"widths": [5]}
    assert "net.variants" in refusal(everything, params)
    params["net"]["variants"] = [{"widths": 5}]
    assert "net.widths = 5" in refusal(everything, params)


# grids and claims


def test_settings_that_go_together_have_a_name(params: dict[str, Any]):
    grid = {
        "optimiser": {
            "sgd": {"training.optimiser": "sgd", "training.lr": 0.1},
            "adam": {"training.optimiser": "adam", "training.lr": 0.001},
        },
        "federation.alpha": [1.0, 0.1],
    }
    ask(params, {"lmf": {}}, grid=grid)
    found = points(params)
    assert [p.name for p in found] == [
        "optimiser=sgd alpha=1", "optimiser=sgd alpha=0.1", "optimiser=adam alpha=1", "optimiser=adam alpha=0.1",
    ]  # fmt: skip
    assert [(p.methods[0].training["optimiser"], p.methods[0].training["lr"]) for p in found[1:3]] == [
        ("sgd", 0.1), ("adam", 0.001),
    ]  # fmt: skip
    assert [p.name for p in points(params, optimiser="adam", federation__alpha=0.5)] == ["optimiser=adam alpha=0.5"]
    assert "did you mean adam?" in refusal(points, params, optimiser="adma")


@pytest.mark.parametrize(
    ("claim", "says"),
    [
        ({"says": "a", "rule": "lmf beats code_ot"}, "must be one of A > B"),
        ({"says": "a", "rule": "lmf > fedavg_99"}, "'fedavg_99'"),
        ({"says": "a", "rule": "lmf rises with federation.alpha", "of": "accuracy"}, "a split and a metric"),
        ({"says": "a", "rule": "lmf > code_ot", "of": "best of test.accuracy"}, "std of test.accuracy"),
        ({"says": "a", "rule": "0.9 > 0.8"}, "must be one of A > B"),
        ({"rule": "lmf > code_ot"}, "says: is missing"),
    ],
)
def test_a_claim_that_cannot_be_read_is_refused(params: dict[str, Any], claim: dict[str, Any], says: str):
    ask(params, {"lmf": {}, "code_ot": {}})
    params["studies"]["asked"]["claims"] = [claim]
    line = refusal(study, params, "asked")
    assert "studies.asked.claims" in line
    assert says in line


def test_a_grid_has_no_key_that_claims_take_for_the_devices_domain(params: dict[str, Any]):
    ask(params, {"lmf": {}})
    params["studies"]["asked"]["sizes"]["small"]["grid"] = {"domain": {"a": {"training.lr": 0.1}}}
    line = refusal(study, params, "asked")
    assert "studies.asked.sizes.small.grid.domain: no key of a grid" in line


def test_only_known_pictures_are_shown(params: dict[str, Any]):
    ask(params, {"lmf": {}})
    known = ["similarity", "alignment", "features", "transport", "soft_targets", "links"]
    params["studies"]["asked"]["show"] = known
    assert study(params, "asked").show == params["studies"]["asked"]["show"]
    params["studies"]["asked"]["show"] = ["linked"]
    assert "studies.asked.show.0 = 'linked'" in refusal(study, params, "asked")


@pytest.mark.parametrize("model", [settings.Run, settings.Study, settings.Size])
def test_every_key_of_a_study_and_of_the_run_is_read_by_some_code(model: Any):
    sources = [path.read_text() for part in ("tasks", "flows") for path in (ROOT / part).rglob("*.py")]
    read = {node.attr for text in sources for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)}
    assert set(model.model_fields) <= read


def test_every_key_of_training_is_used():
    fields = set(Training.__dataclass_fields__)
    text = (ROOT / "fedcore" / "local.py").read_text()
    used = {
        node.attr
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "training"
    }
    assert fields == used
    assert set(PARAMS["training"]) == fields | {"init"}


# the studies that are there


@pytest.mark.parametrize(("name", "size"), [(n, s) for n, study in PARAMS["studies"].items() for s in study["sizes"]])
def test_every_study_is_valid_in_every_size(name: str, size: str):
    found = settings.settings(PARAMS, name, size, {})
    grid = PARAMS["studies"][name]["sizes"][size].get("grid", {})
    count = 1
    for tried in grid.values():
        count *= len(tried)
    assert len(found) == count
    assert len({point.slug for point in found}) == count
    labels = list(PARAMS["studies"][name]["methods"])
    assert [[row.label for row in point.methods] for point in found] == [labels] * count
    if name == "code":
        assert {"local_only", "fedavg"} <= {row.name for point in found for row in point.methods}  # the baselines
    for point in found:
        own = {key: value for key, value in point.net.items() if key != "name"}
        for row in point.methods:
            shape = (1, 512) if point.data["name"] in ("bearings", "cwru") else (1, 28, 28)
            assert row.build({"a": net(point.net["name"], shape=shape, classes=10, **own)}).stages


KILOBYTES = {
    ("mnist", "cnn"): 265.9, ("cifar10", "cnn"): 249.7, ("cifar100", "cnn"): 253.1, ("mnist", "resnet20"): 908.7,
    ("cifar10", "resnet20"): 909.9, ("mnist", "mobilenet_v2"): 9420.8, ("cifar10", "mobilenet_v2"): 9420.8,
}  # fmt: skip
"""DFL, Table IV: files of its nets, those that are the nets its text describes (docs/dfl.md)."""


@pytest.mark.parametrize("name", ["dfl", "dfl_table2", "dfl_table3", "dfl_table4", "dfl_table5", "dfl_fig4"])
def test_the_dfl_papers_nets_are_of_its_sizes(name: str):
    """A stored file is larger than its numbers, by no more than four per cent."""
    shapes = {"mnist": ((1, 28, 28), 10), "cifar10": ((3, 32, 32), 10), "cifar100": ((3, 32, 32), 20)}
    seen = set()
    for point in settings.settings(PARAMS, name, "paper", {}):
        place = (point.data["name"], point.point.get("net", "cnn"))
        if place in KILOBYTES:
            (shape, classes), own = shapes[place[0]], {key: x for key, x in point.net.items() if key != "name"}
            leaves = leaf_shapes(net(point.net["name"], shape=shape, classes=classes, **own)).values()
            assert 1 < KILOBYTES[place] * 1000 / sum(4 * prod(leaf) for leaf in leaves) < 1.04
            seen.add(place)
        generators = {(row.own["noise"], row.own["hidden"]) for row in point.methods if row.name == "fedgen"}
        assert generators <= {(32, 256) if place[0] == "mnist" else (64, 512)}  # its authors'
    assert seen


def test_settings_that_go_together_may_be_named_by_numbers():
    """Typed, such a number chooses its point, and one that is not there is refused."""
    (point,) = settings.settings(PARAMS, "dfl_table5", "small", {"dfl.threshold": 0.6})
    assert point.point == {"dfl.threshold": 0.6}
    assert [row.own["threshold"] for row in point.methods] == [0.6] * 3
    line = refusal(settings.settings, PARAMS, "dfl_table5", "small", {"dfl.threshold": 0.55})
    assert "dfl.threshold = 0.55: allowed: 0.0, 0.1," in line


def test_an_unknown_study_or_size_is_refused():
    assert "did you mean code?" in refusal(study, PARAMS, "cod")
    assert "small, paper" in refusal(settings.settings, PARAMS, "code", "tiny", {})


def test_dvc_gives_each_stage_the_sections_that_it_reads():
    """A change of a section must make the stages that read it run, and no others."""
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    sections = {name: {key.split(".")[0] for key in stage["params"]} for name, stage in stages.items()}
    assert sections["data"] == {"data", "run", "studies"}
    assert sections["partition"] == {"federation", "run", "studies"}
    assert sections["federate"] == {"net", "training", "run", "studies"} | set(METHODS)
    assert {stage for stage, read in sections.items() if "training" in read} == {"federate"}


# the file itself


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"run: [\n", "not YAML"),
        (b"\xff\xfe\x00", "not YAML"),
        (b"- run\n", "sections"),
        (b"", "sections"),
        (b"run: {}\n", "missing"),
        (b"runn: {}\n", "did you mean run?"),
        (b"run: 3\n", "section"),
    ],
)
def test_a_file_that_is_no_parameter_file_is_refused(tmp_path: Path, content: bytes, says: str):
    (tmp_path / "params.yaml").write_bytes(content)
    assert says in refusal(read, tmp_path / "params.yaml")


def test_a_missing_file_is_refused(tmp_path: Path):
    assert "no such file" in refusal(read, tmp_path / "params.yaml")
