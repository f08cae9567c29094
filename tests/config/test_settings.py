"""Settings against the signatures that take them: types, ranges and defaults, and that none is unread."""

import ast
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cache, reduce
from importlib import import_module
from inspect import getsource, signature
from operator import getitem
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from project_params import PARAMS, ROOT, ask, copied, everything, points, refusal

from fedcore.builders import CONTEXT, PARTITION_CONTEXT
from fedcore.config.params import change, parse
from fedcore.config.settings import Setting
from fedcore.config.signatures import model
from fedcore.config.studies import run_section
from fedcore.core.training import Training
from fedcore.data import DATASETS
from fedcore.methods import METHODS, builder
from fedcore.nets import NETS
from fedcore.partition import partition
from fedcore.types.federation import Threats

WRONG: dict[str, list[Any]] = {
    "run.studies": [[], "code", [None]], "run.size": [True, None], "run.seeds": [[], [-1], ["a"], 3, [0.5]],
    "run.every": [0, "often", 1.5, None], "run.lr_factors": [0.1, [0], [-1], ["all"], None],
    "run.workers": [0, -1, "two"], "run.engine": ["ray", None, True], "run.costs": [3, "a"],
    "run.cluster": ["10.0.0.5:8786", "tcp://10.0.0.5", "http://10.0.0.5:8786", "tcp://10.0.0.5:99999", 8786],
    "run.store": ["", "s3://", "s3://a::b", True], "run.states": ["none", None, True],
    "run.accelerator": ["cuda", "nane", None, True], "run.together": [0, 1.5, 5000, "all"],
    "run.min_effect": [0, 1, -0.1, "little", None], "run.metric": ["acuracy", "f1", 1], "run.positive": [[1]],
    "run.least_test": [-1, 1.5, "few"], "run.weigh": ["rows", None], "run.new_device": ["leftout", 1],
    "run.stop_rows": ["early", 1], "run.recent": ["late", 0, 1.5, None],
    "run.threshold": [0.4, None, "test"], "data.name": ["minst", 3, None, {}],
    "data.download": ["perhaps"], "federation.partition": ["dirichle", None, {}],
    "federation.devices": [0, -1, 2.5, "many", None], "federation.alpha": [0, -1, "small", None, float("nan")],
    "federation.classes": [0, 1.5, "a"], "federation.share": [0, 1.5, "a"], "federation.min_size": [0, -3, 1.5],
    "federation.examples": [0, 1.5], "federation.shared_examples": [0, 1.5],
    "federation.unlabelled_classes": ["all", None], "federation.domains": ["splitt"],
    "federation.hold_out": ["hash", None], "federation.unlabelled": [-0.1, 1, "a"],
    "federation.hidden": [-0.1, 1, "some"], "federation.val": [-0.1, 1, 1.5, "a"], "federation.test": [-0.1, 1],
    "federation.shared_test": [-0.1, 1], "federation.scale": ["global", None],
    "federation.hostile": [-0.1, 1.1, "some", None], "federation.attack": ["hack", None],
    "federation.strength": [0, -1, "strong"], "federation.drop": [-0.1, 1, "often"],
    "federation.deadline": [0, -1, "soon"], "federation.bound": [0, -1, "long"], "federation.beyond": ["trim", None],
    "net.name": ["mpl", None, {}, [1]], "net.widths": ["wide", 3, [0.5], None], "net.variants": ["wide", [3]],
    "training.optimiser": ["adm", None], "training.lr": [0, -1, "fast", None, float("inf")],
    "training.momentum": [-0.1, 1], "training.weight_decay": [-0.1], "training.schedule": ["cosin"],
    "training.nesterov": ["yes", None], "training.clip": [0, -1, "a"], "training.round_decay": [0, 1.5, None],
    "training.batch": [0, 1.5, "a"], "training.epochs": [0, 1.5], "training.steps": [0, 1.5],
    "training.shared_init": ["common", None], "training.loss": ["mse", None],
    "training.optimiser_state": ["kept", None], "training.class_weights": ["even", None],
    "training.patience": [0, 1.5, "a"], "training.precision": ["float16", None], "dfl.training.shared_init": ["common"],
    "analytic.reg": [-1, "a"], "analytic_local.reg": [-1, "a"], "pooled.reg": [-1, "a"],
    "xgb_bagging.reg": [-1, "a"], "xgb_local.reg": [-1, "a"],
    "scaffold.training.momentum": [-0.1, 1], "fada.rounds": [-1, 1.5],
    "psi_fada.rounds": [-1, 1.5], "fedasa.alignment_rounds": [0, 1.5], "fedasa.auxiliary": [-1, 1.5],
    "fedasa.auxiliary_init": ["common", None], "fedasa.budget": [0, -1, "a", [1, -2]], "fedasa.cell": [-1, 0.5],
    "fedasa.target": [-0.1, 1.1, "a"], "fixed_depth.depth": [-1, 0.5, "all"],
}  # fmt: skip
WRONG_OF_METHODS: dict[str, list[Any]] = {
    "align": ["newton", None], "alpha": [-0.1, "a"], "batch": [0, 1.5], "beta1": [-0.1, 1, "a"],
    "beta2": [-0.1, 1, "a"], "bits": [0, -1], "clip": [0, -1, "a"], "combine": ["gradients", None],
    "constants": ["guessed", None], "costs": ["dear", [[-1.0]]], "damping": [-0.1, "a"], "decay": [0, 1.1],
    "child_weight": [-0.1, "a"], "depth": [0, 1.5], "eta": [0, 1.1, "a"], "subsample": [0, 1.1, "a"],
    "trees": [0, 1.5, "a"],
    "delta": [0, 1], "disagreement": ["guessed", None], "distance": ["cosine", None], "diversity": [-0.1, "a"],
    "draws": [0, 1.5], "epochs": [0, 1.5], "examples": ["test", None], "epsilon": [0, -1, "a"], "rank_by": ["validate"],
    "features": [0, 1.5], "fraction": [0, 1.1, "a"], "gamma": [-0.1, "a"], "generated": [0, 1.5],
    "hard": [-0.1, 1.1, "a"], "head_epochs": [0, 1.5], "held_out": [0, 1], "hidden": [0, 1.5], "identifier_lr": [0, -1],
    "inner_lr": [0, -1, "a"], "inner_steps": [0, 1.5], "identifier_steps": [0, 1.5], "lr": [0, -1],
    "max_iterations": [0, 1.5], "minimum": [0, 1, 2.5], "aggregation": ["average", None], "mu": [-0.1, "a"],
    "noise": [0, 1.5], "order": ["up"], "outer_lr": [0, -1, "a"], "alpha_lr": [-0.1, "fast", None],
    "weights_lr": [-0.1, "fast", None], "first_epochs": [0, 1.5, None], "top": [0, 1.5, None],
    "outliers": [-0.1, 0.5, "a"], "outputs": ["loud", None], "p": [0, 3, 1.5], "pair_batch": [0, 1.5],
    "pair_iterations": [0, 1.5], "pair_lr": [0, -1], "pair_rounds": [0, 1.5], "personal": ["maybe", 2],
    "reduction": ["sum", None], "repair": ["maybe", 2], "personal_lr": [0, -1, "a"], "phi_d": [-0.1, "a"],
    "phi_e": [-0.1, "a"], "phi_s": [-0.1, "a"], "phi_t": [-0.1, "a"], "powers": ["loud", 3],
    "precision": ["float16", None], "pretrain": [-1, 0.5], "pretrain_epochs": [0, 1.5], "pretrain_steps": [0, 1.5],
    "rank": [0, 1.5, "a"], "rates": ["fast", None], "ratio": ["rising", None], "reg": [0, -1, "a"],
    "rounds": [0, 1.5, "a"], "rule": ["sgd", None], "server_lr": [0, -1, "a"], "share": [-0.1, 1.1, "a"],
    "secure_aggregation": ["masked", 2], "sharpness": [-0.1, "a"], "shown": [0, 1.5], "solver": ["newtn"],
    "sources": ["most", None], "start": ["source", None], "steps": [0, 1.5], "strength": [-0.1, "a"],
    "tune_epochs": [-1, 1.5], "tau": [0, -1, "a"], "temperature": [0, -1, "a"], "threshold": [-0.1, 1.1, "a"],
    "tol": [0, -1], "unlabelled": [-0.1, "a"], "weight": [-0.1, "a"], "upload": ["change", None],
    "weight_decay": [-0.1], "weighting": ["sizes", None], "weights": ["sizes"],
}  # fmt: skip
"""Of every method that has a setting of the name, unless WRONG has the method's."""

FREE = {"data.root", "data.path", "data.label"}
"""Names of places and columns: what is there decides, when it is read."""

SHOWN = {key: section for key, section in PARAMS.items() if key != "studies"}


def full_keys(section: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in section.items():
        yield from full_keys(value, f"{prefix}{key}.") if isinstance(value, dict) else [f"{prefix}{key}"]


def of_methods() -> list[str]:
    return [f"{name}.{key}" for name in METHODS for key in model(builder(name), CONTEXT).model_fields]


@cache
def wrong() -> dict[str, list[Any]]:
    """Return values that a setting must not have: of all that is in params.yaml, and of all that methods take."""
    return {key: WRONG_OF_METHODS.get(key.rpartition(".")[2], []) for key in of_methods()} | WRONG


def concerned(key: str) -> tuple[str, ...]:
    """Return the methods that read a setting: that of its section, or all."""
    section = key.partition(".")[0]
    return (section,) if section in METHODS else tuple(METHODS)


@cache
def unchanged(methods: tuple[str, ...]) -> list[Setting]:
    return everything(copied(), methods)[1]


def test_every_setting_refuses_some_value():
    assert {key for key, values in wrong().items() if not values} == set()
    assert set(full_keys(SHOWN)) <= set(wrong()) | FREE


@pytest.mark.parametrize("key", wrong())
@pytest.mark.slow
def test_values_beyond_a_range_are_refused_by_name(key: str):
    for value in wrong()[key]:
        line = refusal(everything, change(copied(), {key: value}), concerned(key))
        assert key.split(".")[-1] in line
        assert "nan" in line or str(value).strip("[]'") in line, value


HAVE_NO_DEFAULT = {"run.studies", "run.size", "run.seeds", "net.name", "data.name"}
"""A run must say them."""


UNUSED = {"data.subst": "letters", "net.wdth": 2, "data.size": "large", "net.maps": "many"}
"""Settings that no dataset or net takes, or takes so."""


@pytest.mark.parametrize(
    "key", [*sorted(HAVE_NO_DEFAULT), *UNUSED, *(f"{section}.surplus" for section in sorted(SHOWN))]
)
@pytest.mark.slow
def test_a_key_that_is_missing_or_that_nothing_takes_is_refused(params: dict[str, Any], key: str):
    section, name = key.split(".")
    if key in HAVE_NO_DEFAULT:
        del params[section][name]
    else:
        params[section][name] = UNUSED.get(key, 1)
    assert key in refusal(everything, params)


def test_params_yaml_has_the_defaults_of_the_signatures(params: dict[str, Any]):
    before = everything(copied())
    for key in set(full_keys(SHOWN)) - HAVE_NO_DEFAULT:
        *sections, name = key.split(".")
        del reduce(getitem, sections, params)[name]
    after = everything(params)
    assert {**after[0].model_dump(), "studies": []} == {**before[0].model_dump(), "studies": []}
    assert json.dumps([asdict(one) for one in after[1]]) == json.dumps([asdict(one) for one in before[1]])


OTHER: dict[str, Any] = {
    "federation.partition": "iid", "federation.scale": "device", "net.widths": [5], "training.optimiser": "sgd",
    "training.schedule": "linear", "training.shared_init": True, "federation.val": 0.125, "federation.test": 0.125,
    "federation.shared_test": 0.5, "training.momentum": 0.5, "federation.share": 0.5, "federation.examples": 99,
    "federation.domains": "split", "federation.shared_examples": 99, "federation.unlabelled": 0.5,
    "federation.hold_out": "stable",
    "federation.unlabelled_classes": "shared",
    "federation.hidden": "random", "net.variants": [{"widths": [3, 2]}], "training.loss": "fedasa_table3",
    "training.optimiser_state": "keep", "training.steps": 7, "training.clip": 2.0, "training.round_decay": 0.5,
    "training.class_weights": "balanced", "training.patience": 3, "training.precision": "bfloat16",
}  # fmt: skip
OTHER_OF_METHODS: dict[str, Any] = {
    "weights": "even", "order": "descending", "auxiliary": 1, "cell": 0, "distance": "unit_norm", "budget": 1.0e6,
    "upload": "delta", "weighting": "examples", "decay": 0.5, "fraction": 0.5, "ratio": "fixed", "threshold": 0.5,
    "rank_by": "test", "solver": "exact", "p": 2, "personal_lr": 0.5, "held_out": 0.5, "constants": "printed",
    "delta": 0.5, "powers": [20.0, 21.0], "rates": [1.0, 2.0], "costs": [[0.0]], "combine": "outputs",
    "outputs": "probabilities", "reduction": "mean",
    "start": "target", "auxiliary_init": "devices", "target": 0.5, "sources": "all", "disagreement": "measured",
    "hard": 0.25, "examples": "validation", "personal": True, "repair": True,
    "rank": 5, "precision": "float32", "secure_aggregation": True, "clip": 2.0, "epsilon": 1.0, "share": 0.5,
    "align": "exact", "aggregation": "median", "outliers": 0.4, "reg": 0.5, "pretrain_steps": 7, "rule": "yogi",
    "beta1": 0.5, "beta2": 0.5, "outer_lr": 0.05, "alpha": 0.25, "eta": 0.5, "subsample": 0.5,
}  # fmt: skip
REACHING = [
    key
    for key in full_keys(SHOWN)
    if key.split(".")[0] in ("federation", "net", "training")
    and key not in ("net.name", "training.nesterov")  # the latter needs a momentum of sgd
] + of_methods()


@pytest.mark.parametrize("section", sorted({key.partition(".")[0] for key in REACHING}))
@pytest.mark.slow
def test_every_key_reaches_a_run(section: str):
    """Two allowed values lead to two settings."""
    for key in (key for key in REACHING if key.startswith(f"{section}.")):
        name = key.partition(".")[2]
        now = PARAMS.get(section, {}).get(name, 1)
        value = OTHER.get(key, OTHER_OF_METHODS.get(name, now + 1 if isinstance(now, int | float) else None))
        if section in METHODS:
            now = model(builder(section), CONTEXT).model_fields[name].default
            value = OTHER_OF_METHODS.get(name, now + 1 if isinstance(now, int | float) else None)
        assert value not in (None, now), key
        assert everything(change(copied(), {key: value}), concerned(key))[1] != unchanged(concerned(key)), key


@pytest.mark.slow
def test_every_key_of_the_federation_can_be_typed(params: dict[str, Any]):
    for key, parameter in signature(partition).parameters.items():
        if key not in PARTITION_CONTEXT:
            assert everything(change(params, {f"federation.{key}": parameter.default}))
    for key, field in model(Threats).model_fields.items():
        assert everything(change(params, {f"federation.{key}": field.default}))


def test_threats_are_settings_only_where_devices_misbehave(params: dict[str, Any]):
    """A federation of honest devices is the same with an attack that nobody makes."""
    (plain,) = everything(params)[1]
    assert plain.threats is None
    assert everything(change(params, {"federation.attack": "noise"}))[1] == [plain]
    (drops,) = everything(change(params, {"federation.drop": 0.25}))[1]
    assert drops.threats == Threats(drop=0.25)
    assert drops.federation == plain.federation | asdict(Threats(drop=0.25))


def test_the_default_parameters_are_read(params: dict[str, Any]):
    run, (point,) = everything(params)
    assert run.studies[0] == "code"
    assert [row.name for row in point.methods] == list(METHODS)


def reads(function: Any) -> set[str]:
    """Return the names that a function's body uses."""
    (tree,) = ast.parse(dedent(getsource(function))).body
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def taking(place: str) -> Any:
    """Return the function that takes settings, by where it stands or the method's name."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name) if name else builder(place)


@pytest.mark.parametrize("place", [*DATASETS.values(), *NETS.values(), *METHODS])
@pytest.mark.slow
def test_every_parameter_of_a_sections_function_is_used(place: str):
    function = taking(place)
    assert set(signature(function).parameters) - set(CONTEXT) <= reads(function)


def test_a_setting_of_several_types_is_refused_in_one_line(params: dict[str, Any]):
    line = refusal(everything, change(params, {"federation.hidden": "some"}))
    assert line.startswith("federation.hidden = 'some': ")
    assert "'random'" in line
    assert "(and" not in line
    both = refusal(everything, change(params, {"federation.hidden": "some", "federation.alpha": "b"}))
    assert both.endswith((" (and hidden)", " (and alpha)"))


def test_a_column_or_a_device_whose_name_is_a_number_can_be_typed(params: dict[str, Any]):
    typed = parse(["data.name=table", "data.label=2020", "data.device=007", "data.ignore=[1, b]", "data.exclude=[01]"])
    (point,) = points(ask(params, {"lmf": {}}), (), **{key.replace(".", "__"): value for key, value in typed.items()})
    wanted = {"label": "2020", "device": "007", "ignore": ["1", "b"], "exclude": ["01"]}
    assert {key: point.data[key] for key in wanted} == wanted


def test_settings_of_other_datasets_and_nets_are_ignored(params: dict[str, Any]):
    changes = {"data.subset": "letters", "data.size": 20, "net.maps": [3], "net.widths": [5]}
    (point,) = points(ask(params, {"lmf": {}}), (), **{key.replace(".", "__"): value for key, value in changes.items()})
    assert point.data == {"name": "digits", "scaling": "none"}
    assert point.net == {"name": "mlp", "widths": [5]}
    (point,) = points(params, (), net__name="lenet", net__width=0.5)
    assert point.net == {"name": "lenet", "width": 0.5}


OWN = """
from torch import nn


class Small(nn.Sequential):
    def __init__(self, shape, classes, units: int = 3, frozen: bool = True):
        super().__init__(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], units), nn.Linear(units, classes))
"""


def test_settings_of_a_users_net_can_change(params: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "own_of_settings.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    ask(params, {"local_only": {}})
    (point,) = points(params, (), net__name="own_of_settings:Small", net__units=8)
    assert point.net == {"name": "own_of_settings:Small", "units": 8, "frozen": True}
    line = refusal(points, params, (), net__name="own_of_settings:Small", net__frozen=False)
    assert line.startswith("net.frozen = False: a parameter of the net's has the name of a setting of fedcore's")
    line = refusal(points, params, (), net__name="own_of_settings:Small", net__unit=8)
    assert line.startswith("net.unit: no such key; did you mean units? (allowed: units, frozen)")
    assert "did you mean units?" in line
    assert "net.units = 'a'" in refusal(points, params, (), net__name="own_of_settings:Small", net__units="a")


def test_any_net_may_start_from_a_file(params: dict[str, Any]):
    """What does not is as before, so that its digests are."""
    ask(params, {"local_only": {}})
    (point,) = points(params, (), net__name="mlp", net__weights="base.safetensors", net__frozen=True, net__rank=4)
    assert {**point.net, "widths": None} == {
        "name": "mlp", "widths": None, "weights": "base.safetensors", "frozen": True, "rank": 4,
    }  # fmt: skip
    (plain,) = points(params, (), net__name="mlp", net__weights=None)
    assert set(plain.net) == {"name", "widths"}
    assert "net.rank = 2: is for a net with net.weights" in refusal(points, params, (), net__name="mlp", net__rank=2)
    assert "net.rank = -1" in refusal(points, params, (), net__weights="a", net__frozen=True, net__rank=-1)
    assert "net.frozen = 3" in refusal(points, params, (), net__weights="a", net__frozen=3)


def test_settings_of_a_users_data_can_change(params: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "data_of_settings.py").write_text("def read(rows: int = 6): ...")
    monkeypatch.syspath_prepend(str(tmp_path))
    ask(params, {"local_only": {}})
    (point,) = points(params, (), data__name="data_of_settings:read", data__rows=8)
    assert point.data == {"name": "data_of_settings:read", "rows": 8}
    assert (point.data_name, point.dataset[:22]) == ("read", "data_of_settings_read-")
    assert "data.row: no such key" in refusal(points, params, (), data__name="data_of_settings:read", data__row=8)
    assert "data.rows = 'a'" in refusal(points, params, (), data__name="data_of_settings:read", data__rows="a")


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


@pytest.mark.slow
def test_every_key_of_training_is_used():
    fields = set(Training.__dataclass_fields__)
    used = {
        node.attr
        for path in (ROOT / "fedcore" / "core").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "training"
    }
    assert fields - used == {"shared_init"}  # which methods read as they are built
    assert set(PARAMS["training"]) == fields


METHOD = """
from fedcore.methods.baselines.fedavg import fedavg


def halved(*, nets, training, rounds: int = 5, trim: float = 0.25):
    return fedavg(nets=nets, training=training, rounds=rounds)
"""


@pytest.fixture
def halved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_method_of_settings.py").write_text(METHOD)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "own_method_of_settings:halved"


def test_a_users_method_is_a_row_or_an_argument(params: dict[str, Any], halved: str):
    ask(params, {"fedavg": {}, "mine": {"method": halved, "trim": 0.5}})
    assert [(row.label, row.settings) for row in points(params)[0].methods[1:]] == [
        ("mine", {"rounds": 5, "trim": 0.5})
    ]
    (row,) = points(params, (halved,))[0].methods
    assert (row.label, row.name, row.settings) == ("halved", halved, {"rounds": 5, "trim": 0.25})
    assert points(params, (halved,), methods__rounds=2)[0].methods[0].settings["rounds"] == 2


def test_settings_of_a_users_method_can_be_changed(params: dict[str, Any], halved: str):
    ask(params, {"mine": {"method": halved}})
    for methods in ((), (halved,)):
        (row,) = points(params, methods, halved__trim=0.5, halved__training__epochs=3)[0].methods
        assert (row.settings, row.training.epochs) == ({"rounds": 5, "trim": 0.5}, 3)
    assert refusal(points, params, (), halved__trom=1) == "halved.trom: no such key; did you mean halved.trim?"
    assert "halved.trim = 'a'" in refusal(points, params, (), halved__trim="a")
    assert "halved.trim = 'a'" in refusal(points, ask(params, {"mine": {"method": halved, "trim": "a"}}))


def test_training_of_a_method_that_takes_none_is_refused(params: dict[str, Any]):
    ask(params, {"local_only": {}, "majority": {}})
    assert points(params, (), training__epochs=7)
    line = refusal(points, params, (), majority__training__epochs=7)
    assert "majority.training.epochs = 7: majority takes no training" in line


def test_a_missing_method_of_a_user_is_refused(params: dict[str, Any], halved: str):
    ask(params, {"lmf": {}})
    assert "did you mean lmf?" in refusal(points, params, ("lmv",))
    assert "has no 'halve'" in refusal(points, params, (halved[:-1],))
    assert "has no 'halve'" in refusal(points, params, (halved[:-1],), halved__trim=0.5)
    assert "method = 'halved': allowed: " in refusal(points, params, ("halved",), halved__trim=0.5)
    assert "cannot be imported" in refusal(points, params, ("nowhere_of_settings:halved",))
    assert "two rows 'halved'" in refusal(points, ask(params, {"halved": {"method": halved}, halved: {}}))


@pytest.mark.parametrize(
    "place", ["sftp://me:word@10.0.0.5/blobs", "simplecache::sftp://me:word@10.0.0.5/blobs", "s3://bucket/x?key=word"]
)
def test_a_line_about_an_address_does_not_repeat_its_password(place: str):
    line = refusal(run_section, {**PARAMS, "run": {**PARAMS["run"], "store": place}})
    assert line.startswith("run.store = '")
    assert line.endswith("must be a folder or one URL such as s3://bucket/prefix, without a password or options")
    assert line.count("word") == 1
