"""Studies: what wins over what, grids, claims, and the studies that are there."""

import ast
import json
from collections.abc import Callable
from contextvars import copy_context
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dataset_files import REAL, read_once, real
from project_params import PARAMS, ROOT, ask, points, refusal
from pydantic import TypeAdapter

from fedcore import InputError, Net, load
from fedcore.config.methods import MethodConfig
from fedcore.config.request import Request, StudyName, parse, plan_jobs
from fedcore.config.settings import Setting, apart, model_name_of, slug
from fedcore.config.studies import Run, Size, Study, find_study, grid_points, run_section, value_word
from fedcore.nets import net

# what wins


def test_later_layers_win_params_set_grid_arguments(params: dict[str, Any]):
    params["federation"]["alpha"] = 1.0
    ask(params, {"lmf": {}})
    assert [point.federation["alpha"] for point in points(params)] == [1.0]
    ask(params, {"lmf": {}}, set={"federation.alpha": 2.0, "federation.devices": 5})
    assert [(p.federation["alpha"], p.federation["devices"]) for p in points(params)] == [(2.0, 5)]
    ask(params, {"lmf": {}}, set={"federation.alpha": 2.0}, grid={"federation.alpha": [3.0, 4.0]})
    assert [point.federation["alpha"] for point in points(params)] == [3.0, 4.0]
    assert [point.federation["alpha"] for point in points(params, federation__alpha=5.0)] == [5.0]
    assert params["federation"]["alpha"] == 1.0  # nothing is written back


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "needs run.positive"),
        ({"run.positive": "3", "run.metric": "roc_auc"}, "is for a metric that depends on it, .*; not roc_auc$"),
    ],
)
def test_a_threshold_needs_a_label_and_a_metric_that_it_changes(params: dict[str, Any], changes: Any, line: str):
    ask(params, {"lmf": {}}, set={})
    params["run"]["threshold"] = "validation"
    params["run"] |= {key.removeprefix("run."): value for key, value in changes.items()}
    with pytest.raises(InputError, match=f"^run.threshold = 'validation': {line}"):
        points(params)
    params["run"] |= {"positive": "3", "metric": "f1"}
    assert [point.threshold for point in points(params)] == ["3"]
    params["run"]["threshold"] = "half"
    assert [point.threshold for point in points(params)] == [None]


def test_a_grid_is_every_combination_with_a_name_for_each(params: dict[str, Any]):
    ask(params, {"lmf": {}}, grid={"federation.alpha": [1.0e20, 0.1], "lmf.solver": ["newton", "exact"]})
    found = points(params)
    assert [(p.federation["alpha"], p.methods[0].settings["solver"]) for p in found] == [
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


def test_training_that_is_set_for_all_rows_wins_over_a_builders_defaults(params: dict[str, Any]):
    """From a study, a grid or the command line."""
    ask(params, {"scaffold": {}})
    (point,) = points(params)
    assert (point.methods[0].training.optimiser, point.methods[0].training.shared_init) == ("sgd", True)
    (point,) = points(params, training__optimiser="adam", training__shared_init=False)
    assert (point.methods[0].training.optimiser, point.methods[0].training.shared_init) == ("adam", False)
    ask(params, {"scaffold": {}}, set={"training.momentum": 0.5})
    assert points(params)[0].methods[0].training.momentum == 0.5
    ask(params, {"scaffold": {"training": {"momentum": 0.9}}}, grid={"training.momentum": [0.1, 0.2]})
    assert [point.methods[0].training.momentum for point in points(params)] == [0.9, 0.9]
    ask(params, {"scaffold": {}}, grid={"training.momentum": [0.1, 0.2]})
    assert [point.methods[0].training.momentum for point in points(params)] == [0.1, 0.2]


def test_training_of_a_study_wins_over_a_methods_section_in_params(params: dict[str, Any]):
    """Of a set or a grid; and the grid's over one method's in the set. The method's row wins over both."""
    params["fedavg"] = {"training": {"lr": 0.25, "epochs": 6}}
    rows: dict[str, Any] = {"fedavg": {}, "lmf": {}, "own": {"method": "fedavg", "training": {"lr": 0.75}}}

    def rates() -> list[tuple[float, ...]]:
        return [tuple(row.training.lr for row in point.methods) for point in points(params)]

    ask(params, rows, set={"training.lr": 0.5})
    assert rates() == [(0.5, 0.5, 0.75)]
    assert points(params)[0].methods[0].training.epochs == 6
    ask(params, rows, grid={"training.lr": [0.1, 0.2]})
    assert rates() == [(0.1, 0.1, 0.75), (0.2, 0.2, 0.75)]
    ask(params, rows, set={"fedavg.training.lr": 0.3, "training.lr": 0.4})
    assert rates() == [(0.3, 0.4, 0.75)]
    ask(params, rows, set={"fedavg.training.lr": 0.3}, grid={"training.lr": [0.1], "training.epochs": [2]})
    assert rates() == [(0.1, 0.1, 0.75)]
    ask(params, rows, set={"training": {**params["training"], "lr": 0.6}})
    assert rates() == [(0.6, 0.6, 0.75)]


def test_a_grid_wins_over_an_own_methods_setting_in_the_set(
    params: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "mine.py").write_text("from fedcore.methods.baselines.fedavg import fedavg as averaging\n")
    monkeypatch.syspath_prepend(tmp_path)
    ask(params, {"mine:averaging": {}}, set={"averaging.rounds": 3}, grid={"methods.rounds": [4, 5]})
    assert [point.methods[0].settings["rounds"] for point in points(params)] == [4, 5]


def test_what_is_typed_wins_but_for_a_variants_own(params: dict[str, Any]):
    """Whether it is typed for all methods or for one, by key or as a section."""
    own = {"epochs": 3, "lr": 0.5}
    params["fedavg"] = {"training": {"lr": 0.25}}
    rows = {
        "fedavg": {"rounds": 4, "training": own},
        "fedavg_3_epochs": {"method": "fedavg", "rounds": 6, "training": {"epochs": 3}},
    }
    ask(params, rows)

    def found(**typed: Any) -> list[tuple[Any, ...]]:
        (point,) = points(params, **typed)
        return [(row.settings["rounds"], row.training.epochs, row.training.lr) for row in point.methods]

    assert found() == [(4, 3, 0.5), (6, 3, 0.25)]
    assert found(training__epochs=9, methods__rounds=8) == [(8, 9, 0.5), (6, 3, 0.25)]
    assert found(training__lr=0.1) == [(4, 3, 0.1), (6, 3, 0.1)]
    assert found(training__lr=0.1, fedavg__training__lr=0.2) == [(4, 3, 0.2), (6, 3, 0.2)]
    assert found(fedavg={"rounds": 5, "training": {"epochs": 9}})[0] == (5, 9, 0.5)
    ask(params, rows, grid={"training.epochs": [5, 7]})
    assert [point.methods[0].training.epochs for point in points(params)] == [3, 3]
    assert found(training__epochs=7) == [(4, 7, 0.5), (6, 3, 0.25)]


def test_the_guesses_run_with_the_methods_asked_for(params: dict[str, Any]):
    ask(params, {"lmf": {}, "majority": {}, "majority_per_device": {}, "local_only": {}})
    (point,) = points(params, methods=["local_only"])
    assert [row.label for row in point.methods] == ["local_only", "majority", "majority_per_device"]


def test_a_row_wins_over_its_methods_section_and_training(params: dict[str, Any]):
    params["training"] |= {"epochs": 7, "lr": 0.5, "shared_init": False}
    params["lmf"] = {"reg": 0.25}
    rows = {
        "lmf": {},
        "sharp": {"method": "lmf", "reg": 0.125, "training": {"epochs": 2, "shared_init": True}},
        "fedavg_2": {"method": "fedavg", "rounds": 2},
    }
    plain, sharp, average = points(ask(params, rows))[0].methods
    assert (plain.label, plain.name, plain.settings["reg"], plain.training.epochs, plain.training.shared_init) == (
        "lmf", "lmf", 0.25, 7, False,
    )  # fmt: skip
    assert (sharp.label, sharp.name, sharp.settings["reg"]) == ("sharp", "lmf", 0.125)
    assert (sharp.training.epochs, sharp.training.lr, sharp.training.shared_init) == (2, 0.5, True)
    assert (average.name, average.settings["rounds"], average.settings["weights"]) == ("fedavg", 2, "size")
    # What is typed for the method reaches every row of it, unless the row says otherwise.
    plain, sharp, _ = points(params, lmf__reg=0.5)[0].methods
    assert (plain.settings["reg"], sharp.settings["reg"]) == (0.5, 0.125)


def test_a_study_may_say_how_often_it_is_evaluated(params: dict[str, Any]):
    params["run"]["every"] = 2
    assert points(ask(params, {"lmf": {}}))[0].every == 2
    ask(params, {"lmf": {}}, set={"run.every": 3})
    assert points(params)[0].every == 3
    assert points(params, run__every=5)[0].every == 5
    ask(params, {"lmf": {}}, grid={"run.every": [1, 4]})
    assert [point.every for point in points(params)] == [1, 4]


def test_a_study_sets_no_other_key_of_section_run(params: dict[str, Any]):
    says = "studies.asked: run.seeds applies to all studies; a study may set run.every and run.lr_factors only"
    assert refusal(points, ask(params, {"lmf": {}}, set={"run.seeds": [1]})) == says
    assert refusal(points, ask(params, {"lmf": {}}, grid={"run.seeds": [[1], [2]]})) == says
    assert "run.every = 0" in refusal(points, ask(params, {"lmf": {}}, set={"run.every": 0}))


def test_a_methods_own_section_may_change_its_training(params: dict[str, Any]):
    params["lmf"] = {"training": {"epochs": 3, "shared_init": True}}
    lmf, code = points(ask(params, {"lmf": {}, "code_ot": {}}))[0].methods
    assert (lmf.training.epochs, lmf.training.shared_init) == (3, True)
    assert (code.training.epochs, code.training.shared_init) == (params["training"]["epochs"], False)
    assert lmf.flat()["training.epochs"] == 3
    assert lmf.flat()["training.shared_init"] is True


def test_methods_are_chosen_by_label_or_by_name(params: dict[str, Any]):
    ask(params, {"ten": {"method": "fedavg", "rounds": 10}, "lmf": {}})
    assert [row.label for row in points(params)[0].methods] == ["ten", "lmf"]
    assert [(row.label, row.settings["rounds"]) for row in points(params, ("ten",))[0].methods] == [("ten", 10)]
    assert [(row.label, row.settings["rounds"]) for row in points(params, ("fedavg",))[0].methods] == [("fedavg", 1)]


@pytest.mark.slow
def test_arguments_change_the_run_and_the_studies(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    words = ["study=code", "run.seeds=[5,6]", "run.every=3", "studies.code.methods={lmf: {}}", "federation.devices=3"]
    params, jobs = plan_jobs(parse(words))
    assert [job.seed for job in jobs] == [5, 6]
    assert run_section(params).every == jobs[0].settings[0].every == 3
    assert [row.label for row in jobs[0].settings[0].methods] == ["lmf"]
    assert jobs[0].settings[0].federation["devices"] == 3
    assert [job.seed for job in plan_jobs(parse(["study=code", "seed=9", "run.seeds=[5,6]"]))[1]] == [9]
    assert plan_jobs(parse(["study=dfl", "run.every=3"]))[1][0].settings[0].every == 3
    assert "run.evry" in refusal(plan_jobs, parse(["run.evry=3"]))
    assert "run.every = 0" in refusal(plan_jobs, parse(["run.every=0"]))


def test_the_command_line_names_one_or_many():
    asked = parse(["study=code", "seeds=[1,2]", "method=lmf", "size=paper", "prepared=true", "lmf.reg=0.5"])
    assert asked == Request(
        studies=["code"], seeds=[1, 2], methods=["lmf"], size="paper", prepared=True, changes={"lmf.reg": 0.5}
    )
    back = copy_context().run(lambda: (parameters := asked.to_flow(), Request.of_flow(**parameters)))
    assert back[1] == asked
    assert "prepared" not in back[0]  # it is no field of a deployment's form
    assert "code" in TypeAdapter(StudyName).json_schema()["enum"]


# grids and claims


def test_names_that_lose_letters_differ():
    assert value_word([1_000_000, 1e6, 1_000_001, 0.1]) == "1e+06+1e+06+1000001+0.1"
    north, south = (slug(f"path=data/{name}.csv") for name in "北南")
    assert north != south
    assert {north.isascii(), north.startswith("path=data_")} == {True}
    assert slug("alpha=0.1, devices=16") == "alpha=0.1_devices=16"
    one, other = (model_name_of(name, ["y"]) for name in "北南")
    assert one != other
    assert one[0].isalnum()
    assert model_name_of("my_data", ["größe"]) != model_name_of("my_data", ["grüße"])
    assert model_name_of("my_data", ["temp (C)"]) == "my-data-temp-C-"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (["data/a_b.csv", "data/a/b.csv"], "'alpha=data/a_b.csv lr=1' and 'alpha=data/a/b.csv lr=1' would share a"),
        (["x<5", "x>5"], r"digits: federation.alpha: {NAME: {federation.alpha: x>5}, ...}"),
        (["a b", "a_b"], "would share a folder"),
        (["(A)", "[A]"], "would share a folder"),
        (["Temp", "temp"], "would share a folder"),
        ([None, "None"], "'alpha=None lr=1' and 'alpha=None lr=1' would share a folder"),
        ([0.1, 1.0, 0.10], "has the setting 'alpha=0.1 lr=1' twice; take one away"),
        ({"lr<1": {"training.lr": 0.5}, "lr>1": {"training.lr": 2.0}}, "'alpha=lr<1 lr=1' and 'alpha=lr>1 lr=1' would"),
    ],
)
def test_settings_whose_names_give_one_folder_are_refused(params: dict[str, Any], values: Any, says: str):
    """Each would divide the data into the other's files."""
    ask(params, {"lmf": {}}, grid={"federation.alpha": values, "training.lr": [1.0, 2.0]})
    line = refusal(points, params)
    assert line.startswith("studies.asked.sizes.small.grid: ")
    assert says in line


@pytest.mark.parametrize("names", [["a b", "a_b", "c"], ["A", "a", "c"], ["x<5", "x>5", "c"], ["北", "南", "c"]])
def test_names_that_would_be_one_get_a_digest_and_others_stay(names: list[str]):
    made = apart(names)
    assert len({word.casefold() for word in made.values()}) == 3
    assert made["c"] == "c"
    assert apart(names[:1]) == {names[0]: slug(names[0])}


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
    assert [(p.methods[0].training.optimiser, p.methods[0].training.lr) for p in found[1:3]] == [
        ("sgd", 0.1), ("adam", 0.001),
    ]  # fmt: skip
    assert [p.name for p in points(params, optimiser="adam", federation__alpha=0.5)] == ["optimiser=adam alpha=0.5"]
    assert "did you mean adam?" in refusal(points, params, optimiser="adma")


A, R = {"statement": "a"}, {"reason": "a"}


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("claims", [A | {"rule": "lmf beats code_ot"}], "must be one of A > B"),
        ("claims", [A | {"rule": "lmf > fedavg_99"}], "'fedavg_99'"),
        ("claims", [A | {"rule": "lmf rises with federation.alpha", "metric": "accuracy"}], "a split and a metric"),
        ("claims", [A | {"rule": "lmf > code_ot", "metric": "best of test.accuracy"}], "std of test.accuracy"),
        ("claims", [A | {"rule": "0.9 > 0.8"}], "must be one of A > B"),
        ("claims", [{"rule": "lmf > code_ot"}], "statement: is missing"),
        ("claims", [A | {"rule": "lmf > code_ot", "round": 0}], "round = 0"),
        ("claims", [A | {"rule": "lmf stays within 1 with round pairwise"}], "must be one of A > B"),
        ("valid", [R | {"require": "lmf beats 0.1"}], "require = 'lmf beats 0.1': must be one of A > B"),
        ("valid", [R | {"require": "lmf falls with round pairwise"}], "one setting at a time"),
        ("valid", [R | {"require": "lmf falls with federation.alpha"}], "one setting at a time"),
        ("valid", [R | {"require": "lmf > fedavg_99"}], "studies.asked.valid: 'lmf > fedavg_99' names 'fedavg_99'"),
        ("valid", [R | {"require": "lmf > 0.1", "metric": "accuracy"}], "a split and a metric"),
        ("valid", [R | {"require": "lmf > 0.1", "where": {"alpha": 1.0}}], "where names 'alpha', which no grid has"),
        ("valid", [{"require": "lmf > 0.1"}], "reason: is missing"),
        ("ceiling", 99.5, "ceiling = 99.5"),
        ("figures", ["linked"], "figures.0 = 'linked'"),
        ("tuned", {"best": ["lmf", "fedprox"]}, "tuned.best: 'fedprox' is not a row in methods"),
        ("tuned", {"lmf": ["fedavg", "code_ot"]}, "tuned.lmf: is a row of methods as well; use another label"),
        ("tuned", {"best": ["lmf"]}, "tuned.best"),
        ("sizes", {"small": {"grid": {"domain": {"a": {}}}}}, "sizes.small.grid.domain: not allowed"),
        ("sizes", {"small": {"grid": {"labelled": {"a": {}}}}}, "sizes.small.grid.labelled: not allowed"),
    ],
)
@pytest.mark.slow
def test_a_study_that_cannot_be_read_is_refused(params: dict[str, Any], key: str, value: Any, says: str):
    ask(params, {"lmf": {}, "code_ot": {}, "fedavg": {}})
    params["studies"]["asked"][key] = value
    line = refusal(find_study, params, "asked")
    assert f"studies.asked.{key}" in line
    assert says in line


def test_a_study_may_set_the_ceiling_of_its_claims(params: dict[str, Any]):
    ask(params, {"lmf": {}})
    asked = params["studies"]["asked"]
    assert find_study(params, "asked").ceiling == "auto"
    for ceiling in (None, 0.999):
        assert find_study({**params, "studies": {"asked": asked | {"ceiling": ceiling}}}, "asked").ceiling == ceiling


def test_a_tuned_row_is_chosen_among_rows_and_may_be_claimed(params: dict[str, Any]):
    ask(params, {"lmf": {}, "fedavg": {}, "code_ot": {}})
    asked = params["studies"]["asked"]
    asked["claims"] = [{"statement": "?", "rule": "code_ot > best"}]
    assert "names 'best', but the study has no such row" in refusal(find_study, params, "asked")
    asked["tuned"] = {"best": ["lmf", "fedavg"]}
    assert [row.label for row in points(params)[0].methods] == ["lmf", "fedavg", "code_ot"]


@pytest.mark.parametrize("name", PARAMS["studies"])
@pytest.mark.slow
def test_a_study_has_the_control_that_guesses_and_a_gate_for_its_claims(name: str):
    study = find_study(PARAMS, name)
    assert study.valid or not study.claims
    assert "majority" in study.methods


def test_known_pictures_are_shown(params: dict[str, Any]):
    ask(params, {"lmf": {}})
    known = ["similarity", "alignment", "features", "transport", "soft_targets", "links"]
    params["studies"]["asked"]["figures"] = known
    assert find_study(params, "asked").figures == params["studies"]["asked"]["figures"]


@pytest.mark.parametrize("model", [Run, Size, Study])
@pytest.mark.slow
def test_every_key_of_a_study_and_of_the_run_is_read_by_some_code(model: Any):
    sources = [
        path.read_text()
        for part in ("fedcore/pipeline", "fedcore/config", "fedcore/report", "tasks", "flows")
        for path in (ROOT / part).rglob("*.py")
    ]
    read = {node.attr for text in sources for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)}
    assert set(model.model_fields) <= read


@pytest.mark.slow
@pytest.mark.parametrize(("name", "size"), [(n, s) for n, study in PARAMS["studies"].items() for s in study["sizes"]])
def test_every_study_is_valid_in_every_size(name: str, size: str):
    found = points_of(name, size)
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
        one = built((1, 512) if point.data["name"] in ("bearings", "cwru") else (1, 28, 28), json.dumps(point.net))
        assert all(row.build({"a": one}).stages for row in point.methods)


@pytest.mark.slow
def test_every_study_of_the_digits_can_divide_them():
    whole = sections(lambda data: data if data["name"] == "digits" else None)
    assert [len(federations) > 20 for federations in whole.values()] == [True]
    assert refusals(whole) == []


@real
@pytest.mark.slow
def test_every_study_of_the_data_at_hand_can_divide_them(monkeypatch: pytest.MonkeyPatch):
    """A set of which no file is there is left out; of CWRU, each set of locations is a dataset of its own."""
    read_once(monkeypatch)
    whole = sections(lambda data: {**data, "root": str(REAL), "download": False} if "download" in data else None)
    assert sum("cwru" in words for words in whole) >= 10
    assert refusals(whole, left_out="root") == []


@cache
def points_of(name: str, size: str) -> list[Setting]:
    """Return the settings of a study, which three tests look at."""
    return grid_points(PARAMS, name, size, {})


def sections(change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> dict[str, set[str]]:
    """Return data -> federations, those of all studies in all sizes. change: to the data; None leaves them out."""
    found: dict[str, set[str]] = {}
    for name, study in PARAMS["studies"].items():
        for size in study["sizes"]:
            for point in points_of(name, size):
                if (data := change(point.data)) is not None:
                    found.setdefault(json.dumps(data), set()).add(json.dumps(point.federation))
    return found


def refusals(sections: dict[str, set[str]], left_out: str | None = None) -> list[str]:
    """Divide data; returns what is refused. left_out: what is said of data that may be left out."""
    from fedcore.pipeline.run.partitions import divide_dataset  # it imports what draws

    steps: Any = SimpleNamespace(run_inline=lambda step, data: step(data))
    refused = []
    for words, federations in sections.items():
        data = json.loads(words)
        try:
            dataset: Any = load(data.pop("name"), **data)
        except InputError as error:
            if left_out is None or left_out not in str(error):
                refused.append(f"{words}: {error}")
            continue
        for section in sorted(federations):
            try:
                divide_dataset(steps, dataset, json.loads(section), 0)
            except InputError as error:
                refused.append(f"{words} {section}: {error}")
    return refused


@cache
def built(shape: tuple[int, ...], section: str) -> Net:
    return net(shape=shape, classes=10, **json.loads(section))


def test_settings_that_go_together_may_be_named_by_numbers():
    """Typed, such a number chooses its point, and one that is not there is refused."""
    (point,) = grid_points(PARAMS, "dfl_table5", "small", {"dfl.threshold": 0.6})
    assert point.point == {"dfl.threshold": 0.6}
    assert [row.settings["threshold"] for row in point.methods if "threshold" in row.settings] == [0.6] * 3
    line = refusal(grid_points, PARAMS, "dfl_table5", "small", {"dfl.threshold": 0.55})
    assert "dfl.threshold = 0.55: did you mean 0.5? allowed: 0.0, 0.1," in line


def test_an_unknown_study_or_size_is_refused():
    assert "did you mean code?" in refusal(find_study, PARAMS, "cod")
    assert "small, paper" in refusal(grid_points, PARAMS, "code", "tiny", {})


def test_learning_rates_are_tried_around_each_methods_own(params: dict[str, Any]):
    rows: dict[str, Any] = {"lmf": {}, "scaffold": {"training": {"lr": 0.5}}, "majority": {}}
    ask(params, rows, set={"run.lr_factors": [1, 0.1]})
    own = params["training"]["lr"]
    assert points(params)[0].rates == {"lmf": [own, 0.1 * own], "scaffold": [0.5, 0.05]}
    assert points(params, training__lr=0.2)[0].rates == {}
    assert points(params, lmf__training__lr=0.2)[0].rates == {"scaffold": [0.5, 0.05]}
    assert points(params, run__lr_factors=[])[0].rates == {}


@pytest.mark.parametrize(
    ("grid", "rates"),
    [
        ({"training.lr": [0.001, 0.1]}, {}),
        ({"training.lr": {"low": {"training.lr": 0.001}}}, {}),
        ({"lmf.training.lr": [0.001]}, {"scaffold": [0.5, 0.25]}),
        ({"lmf.training.epochs": [2]}, {"lmf": [0.2, 0.1], "scaffold": [0.5, 0.25]}),
    ],
)
def test_a_learning_rate_of_the_grid_is_not_tuned(params: dict[str, Any], grid: Any, rates: Any):
    """One that a study sets for all of its points is."""
    rows: dict[str, Any] = {"lmf": {}, "scaffold": {"training": {"lr": 0.5}}}
    ask(params, rows, set={"run.lr_factors": [1, 0.5], "training.lr": 0.2}, grid=grid)
    assert all(point.rates == rates for point in points(params))


def test_more_workers_than_the_machine_bears_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.cpu_count", lambda: 10)
    run = {**PARAMS["run"], "workers": 41}
    with pytest.raises(InputError, match=r"^run.workers = 41: at most 40 processes on this machine, four per core$"):
        run_section({"run": run})
    assert run_section({"run": run | {"engine": "dask"}}).workers == 41
    assert run_section({"run": run | {"workers": 40}}).workers == 40


def test_widths_that_no_memory_holds_are_refused():
    """5e6 + 1e6 (1e6 + 1) + 2 (1e6 + 1) parameters."""
    with pytest.raises(
        InputError, match=r"^net.widths: \[1000000, 1000000\] gives 1,000,008,000,002 parameters, at most"
    ):
        net("mlp", shape=(4,), classes=2, widths=[1_000_000, 1_000_000])


# CODE's studies at the paper's size: Table II and Section VI

OPTIMISERS = {"sgd": 0.1, "adam": 0.001}
"""Table II: optimiser -> learning rate."""


def settings(study: str, **changes: Any) -> list[Setting]:
    return grid_points(PARAMS, study, "paper", changes, [])


def row(setting: Setting, label: str) -> MethodConfig:
    return next(one for one in setting.methods if one.label == label)


@pytest.mark.parametrize("study", ["code", "code_fig5", "code_fig8", "code_fig9"])
@pytest.mark.slow
def test_devices_and_net_are_those_of_table_ii(study: str):
    for setting in settings(study):
        assert setting.data["name"] == "mnist"
        assert setting.net == {"name": "mlp", "widths": [400, 200, 100]}
        assert setting.federation["partition"] == "dirichlet"
        assert setting.federation["devices"] == setting.point.get("federation.devices", 16)
    alphas = {setting.federation["alpha"] for setting in settings(study)}
    assert alphas == {1e20, 1.0, 0.1}


@pytest.mark.parametrize("study", ["code", "code_fig8"])
@pytest.mark.slow
def test_training_and_transport_are_those_of_table_ii(study: str):
    for setting in settings(study):
        code = row(setting, "code_ot")
        assert (code.training.batch, code.training.epochs) == (64, 10)
        assert code.training.lr == OPTIMISERS[code.training.optimiser]
        assert (code.settings["reg"], code.settings["tol"], code.settings["order"]) == (0.01, 1e-7, "ascending")


@pytest.mark.parametrize("study", ["code_fig8", "code_fig9"])
@pytest.mark.slow
def test_fedavg_trains_as_long_in_each_round_as_code_does(study: str):
    """Table II has one number of epochs, and Fig. 9 varies it for all; FedAvg-1 is a vanilla mean (Section VI)."""
    for setting in settings(study):
        epochs = row(setting, "code_ot").training.epochs
        assert epochs == setting.point.get("training.epochs", 10)
        for rounds in (1, 10, 30, 50):
            fedavg = row(setting, f"fedavg_{rounds}")
            assert (fedavg.settings["rounds"], fedavg.training.epochs) == (rounds, epochs)
        assert row(setting, "fedavg_1").settings["weights"] == "even"


def test_lambda_of_table_ii_is_among_those_of_figures_6_and_7():
    for study, label in (("code_fig6", "code_ot"), ("code_fig7", "code_ot")):
        assert 0.01 in [row(setting, label).settings["reg"] for setting in settings(study)]


def test_a_project_says_where_the_papers_studies_are():
    for studies, ends in (({"mine": {}}, "are in a clone of fedcore"), ({"code": {}}, "allowed: code")):
        with pytest.raises(InputError, match=f"{ends}$"):
            find_study({"studies": studies}, "code_fig8")
