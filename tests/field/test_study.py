"""A study's kit, and the same comparison on devices whose rows stay where they are."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from plant_rows import SITES, load_plant, on_devices, plant

from fedcore import InputError, compare, from_arrays, method
from fedcore.config.request import Job
from fedcore.config.sections import complete_federation
from fedcore.config.settings import Setting
from fedcore.data.task import label_kind_of
from fedcore.field import deployed
from fedcore.field.runs import Setup, Study, read_setup, write_setup
from fedcore.field.study import rows_of, run_study, setup_of
from fedcore.field.wire import unpack
from fedcore.results.criterion import Criterion
from fedcore.results.summary import SCORED

SHORT = {"epochs": 1}
ROWS = [
    method("local_only", training=SHORT),
    method("fedavg", rounds=2, training=SHORT),
    method("analytic", features=9),
]
KEY = ["method", "seed", "device", "split", "metric"]


def numbers(table: pd.DataFrame) -> pd.Series:
    """What devices score after the last round, its cost, and what they send, of the rows that both have."""
    wanted = table["split"].isin(["val", "test", "traffic", "inference"]) & table["method"].isin(
        [row.label for row in ROWS]
    )
    return table[wanted].groupby([*KEY, "stage", "round"])["value"].first().sort_index()


@pytest.mark.slow
def test_a_study_on_devices_has_the_numbers_of_the_study(tmp_path):
    fed, setup, link = on_devices(tmp_path)
    here = compare(ROWS, fed, [0, 1], progress=False, least_test=5)
    link.start("north", ["local_only", "fedavg", "analytic", "numbers"])
    setup = replace(setup, study=Study("script", "Which?", "small", "data", "plant", (), least_test=5))
    rows, said = [*ROWS, method("fedprox", rounds=1)], []
    there = run_study(link, setup, rows, [0, 1], tmp_path / "runs", seconds=20.0, least=3, notify=said.append)
    pd.testing.assert_series_equal(numbers(there.table), numbers(here.table), check_exact=True)
    assert there.answer.advice.action == here.answer.advice.action
    assert list(there.refused) == ["fedprox"]
    assert "fedprox is left out: north refuses: method fedprox: not allowed on north; allowed: " in "\n".join(said)
    exchanges = len(link.asked("numbers"))
    assert exchanges == 2 * 2 * 3  # medians, then means and variances: of each device, once a seed

    on_wire = there.left[there.left["what"] == "all of it on the wire"]
    assert {*on_wire["method"]} == {*(row.label for row in rows)}  # also of the row that north has refused
    sent = {name: sum(len(answer) for one, _, answer in link.sent if one == name) for name in SITES}
    assert on_wire.groupby("device")["bytes"].sum().to_dict() == sent
    of_refused = there.left[there.left["method"] == "fedprox"].groupby("device")["what"].agg(list)
    assert [len(of_refused[name]) for name in SITES] == [1, 5, 5]  # the others had joined; numbers left them before
    left = there.left[(there.left["device"] == "west") & (there.left["seed"] == 1)].set_index(["method", "what"])
    assert left.loc["local_only"].loc["updates: models, or what the method sends in their place", "bytes"] == 0
    sent = numbers(here.table).loc["fedavg", 1, "west", "traffic", "bytes_up"].sum()
    assert left.loc["fedavg"].loc["updates: models, or what the method sends in their place", "bytes"] == sent
    assert left.loc["fedavg"].loc["all of it on the wire", "bytes"] > sent


@pytest.mark.parametrize(("task", "metric"), [("regression", "rmse"), ("multilabel", "macro_f1")])
@pytest.mark.slow
def test_numbers_and_several_labels_are_those_of_the_study(task, metric, tmp_path):
    fed, setup, link = on_devices(tmp_path, task=task)
    rows = [method("fedavg", rounds=1, training=SHORT), method("majority"), method("analytic", features=9)]
    here = compare(rows, fed, [0], progress=False, least_test=5)
    setup = replace(setup, study=Study("script", "Which?", "small", "data", "plant", (), metric=metric, least_test=5))
    there = run_study(link, setup, [*rows, method("fedproto")], [0], tmp_path / "runs", seconds=20.0, least=3)
    pd.testing.assert_series_equal(numbers(there.table), numbers(here.table), check_exact=True)
    assert metric in {*numbers(there.table).reset_index()["metric"]}
    assert there.answer.advice.action == here.answer.advice.action
    assert len(link.asked("numbers")) == 3 * (3 if task == "regression" else 2)
    found = deployed.predict(tmp_path / "devices/west", "fedavg0seed0", "west", tmp_path / "west.csv")
    with pytest.raises(InputError, match=r"^column 'site' has rows of 'north'; this device is 'west'$"):
        deployed.predict(tmp_path / "devices/west", "fedavg0seed0", "west", tmp_path / "all.csv")
    if task == "regression":
        assert abs(found["label"].mean() - plant(task)["hours"].mean()) < 30
    else:
        assert [*found] == ["label_leak", "label_worn", "probability_leak", "probability_worn"]
    assert there.refused["fedproto"].startswith("fedproto: it averages features by label, which needs classes")


def test_where_every_method_is_refused_the_reasons_are_said(tmp_path):
    _, setup, link = on_devices(tmp_path)
    link.start("north", ["analytic"])
    with pytest.raises(InputError, match=r"^no method runs on these devices: north refuses: "):
        run_study(link, setup, ROWS[:1], [0], tmp_path / "runs", seconds=20.0, least=3)


@pytest.mark.parametrize("lost", [("west",), (*SITES,)])
@pytest.mark.slow
def test_rows_are_compared_on_devices_that_all_of_them_have_scored(lost, tmp_path):
    """A device is lost for good after the first of two rounds of one row, when models are scored."""
    _, setup, link = on_devices(tmp_path)
    setup = replace(setup, study=Study("script", "Which?", "small", "data", "plant", (), least_test=0))

    def change(name, call, answer):
        words, _ = unpack(call, "call")
        gone = words["ask"] == "score" and words["run"] == "fedavg1seed1" and name in lost
        return None if gone and len(link.asked("score")) > 9 + 3 + 3 else answer

    link.change = change
    said = []
    there = run_study(link, setup, ROWS[:2], [0, 1], tmp_path / "runs", seconds=0.5, least=2, notify=said.append)
    scores = there.table[there.table["split"].isin(SCORED)]
    for label in ("local_only", "fedavg"):
        of = scores[scores["method"] == label]
        assert {*of.loc[of["seed"] == 0, "device"]} == {*SITES}
        assert {*of.loc[of["seed"] == 1, "device"]} == {*SITES} - {*lost}
    lines = [f"{name}: no last scores of fedavg, seed 1; the comparison there is without {name}" for name in lost]
    assert [line for line in said if "last scores" in line] == lines
    assert {*there.table.loc[there.table["split"] == "traffic", "device"]} == {*SITES}
    assert there.answer.sentences


@pytest.mark.slow
def test_methods_of_a_seed_are_compared_on_the_same_rows_of_a_device(tmp_path):
    """An owner appends rows between two of them; each run reads the file again."""
    _, setup, link = on_devices(tmp_path)
    setup = replace(setup, study=Study("script", "Which?", "small", "data", "plant", (), least_test=0))
    said, file = [], tmp_path / "west.csv"

    def notify(line):
        said.append(line)
        if line == "fedavg, seed 0":
            header, *rows = file.read_text().splitlines()
            file.write_text("\n".join([header, *rows, *(f"1{row}" for row in rows)]) + "\n")

    there = run_study(link, setup, ROWS[:2], [0, 1], tmp_path / "runs", seconds=20.0, least=3, notify=notify)
    scores = there.table[there.table["split"].isin(SCORED)]
    compared = {seed: {*of["device"]} for seed, of in scores.groupby("seed")}
    assert compared == {0: {*SITES} - {"west"}, 1: {*SITES}}
    assert [line for line in said if line.startswith("west: ")] == [
        "west: its rows or its memory have changed since an earlier method of seed 0",
        "west: no last scores of fedavg, seed 0; the comparison there is without west",
    ]


def job_of(**federation):
    division = complete_federation({"partition": "by_device", "min_size": 5, "scale": "device", **federation})
    data = {"name": "table", "path": "x/plant.csv", "label": "fault", "device": "site", "split": None, "id": "site"}
    setting = Setting("my_data", "base", {}, data, division, {"name": "mlp", "widths": [5]}, tuple(ROWS), 1)
    job = Job(
        study="my_data", title="Which of {devices}?", size="small", seed=2, settings=[], extra_figures=(),
        optional=True,
        criterion=Criterion(auto=True),
    )  # fmt: skip
    return job, setting


def test_a_setup_has_the_studys_schema_and_methods_and_no_number_of_rows(tmp_path):
    dataset = load_plant(tmp_path)
    tuned = replace(ROWS[1], training=replace(ROWS[1].training, lr=0.5))
    made = setup_of(*job_of(), dataset, (), tuned)
    assert made.devices == ("north", "south", "west")
    assert (made.study.answer, made.study.title, made.study.task) == ("fedavg", "Which of 3?", "plant-fault")
    assert made.study.configs == {ROWS[0].label: ROWS[0], "fedavg": tuned, ROWS[2].label: ROWS[2]}
    recipe = made.recipe
    assert (recipe.scale, recipe.min_size, recipe.id, recipe.split) == ("device", 5, "site", None)
    assert recipe.schema == replace(dataset.schema, left_out={}, dropped=0)
    assert setup_of(*job_of(), dataset, ("b", "a"), None).devices == ("a", "b")


def test_all_rows_of_a_kit_have_the_learning_rates_that_the_study_chose(tmp_path):
    """Not the answer's alone: a tuned row among rivals that are not would win by that."""
    job, setting = job_of()
    setting = replace(setting, rates={row.label: (row.training.lr, 0.5) for row in ROWS[:2]})
    answer = replace(ROWS[2], training=replace(ROWS[2].training, lr=9.0))
    made = setup_of(job, setting, load_plant(tmp_path), (), answer, {"local_only": 0.5, "analytic": 7.0})
    rates = {label: config.training.lr for label, config in made.study.configs.items()}
    assert rates == {"local_only": 0.5, "fedavg": ROWS[1].training.lr, "analytic": 9.0}


@pytest.mark.parametrize(("task", "metric"), [("regression", "rmse"), ("multilabel", "macro_f1")])
def test_a_setup_knows_what_labels_are(task, metric, tmp_path):
    made = setup_of(*job_of(), load_plant(tmp_path, task=task), (), None)
    assert (made.task, made.study.metric) == (task, metric)
    write_setup(tmp_path, made)
    assert read_setup(tmp_path) == made
    assert label_kind_of(made.public().test.y).name == task


@pytest.mark.parametrize(
    ("federation", "said"),
    [
        ({"hidden": 0.5}, "federation.hidden = 0.5: only a simulation can have it; set it to 0.0"),
        ({"examples": 50}, "federation.examples = 50: only a simulation can have it; set it to None"),
        ({"hostile": 0.5}, "federation.hostile: only a simulation can have it"),
    ],
)
def test_what_no_device_can_be_made_to_do_is_refused(federation, said, tmp_path):
    with pytest.raises(InputError, match=f"^{said}$"):
        setup_of(*job_of(**federation), load_plant(tmp_path), (), None)


def test_several_inputs_and_numbers_of_no_table_are_refused():
    inputs = from_arrays({"a": np.zeros((4, 2)), "b": np.zeros(4)}, [0, 1, 0, 1], device=[*"xxyy"])
    numbers = from_arrays(np.zeros((4, 2)), [0.5, 1.0, 2.0, 3.0], device=[*"xxyy"])
    for dataset, said in ((inputs, "an example of these data has several"), (numbers, "a number .* needs a table")):
        with pytest.raises(InputError, match=f"^fedcore field: {said}"):
            setup_of(*job_of(), dataset, (), None)


def test_rows_are_chosen_by_their_labels(tmp_path):
    setup = setup_of(*job_of(), load_plant(tmp_path), (), None)
    assert rows_of(setup) == ROWS
    assert rows_of(setup, ["fedavg"]) == ROWS[1:2]
    with pytest.raises(
        InputError, match=r"^--method moon: not a row of the study; it has: local_only, fedavg, analytic$"
    ):
        rows_of(setup, ["moon"])
    with pytest.raises(InputError, match=r"^--method moon: not a row of the study; it has: none$"):
        rows_of(Setup(("a",), (4,), 3), ["moon"])
