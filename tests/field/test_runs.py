"""A run's folder on the server."""

import json
from dataclasses import replace
from itertools import islice

import pytest
import torch
from every_method import ROWS
from federations import bits, data, federation, model
from in_process import InProcess
from plant_rows import load_plant, on_devices

from fedcore import InputError, Message, method
from fedcore.api.runs import run as simulate
from fedcore.core.rounds import State
from fedcore.data.prepare import preparation_bytes
from fedcore.field import deployed
from fedcore.field.answers import RemoteHandle
from fedcore.field.consent import Limits, consent_of
from fedcore.field.device import FieldDevice
from fedcore.field.plan import plan_of
from fedcore.field.recipe import NUMBERS, Recipe
from fedcore.field.runs import (
    Setup,
    Study,
    _take_back,
    read_rest,
    read_run,
    read_setup,
    run_with_devices,
    state_bytes,
    state_of,
    write_setup,
)
from fedcore.field.study import left_devices, table_of
from fedcore.field.wire import pack, unpack
from fedcore.results.criterion import Criterion
from fedcore.results.scores import read_scores
from fedcore.types.federation import Splits, Threats

TWO = Limits(runs=2)
BOUND = 0.45
"""Between the lengths of the updates of three devices."""
SETUP = Setup(("a", "b", "c"), (4,), 3)


@pytest.fixture
def play(tmp_path):
    link = InProcess(federation("abc"), tmp_path)

    def start(name, row=ROWS["ditto"], said=None, least=3, seconds=20.0):
        lines, folder = (said if said is not None else []).append, tmp_path / "server" / name
        return run_with_devices(link, SETUP, row, 0, folder, seconds=seconds, least=least, notify=lines)

    start.link = link
    return start


def test_a_run_that_was_killed_goes_on_with_the_same_bits(play, tmp_path):
    whole = list(play("whole"))
    first = list(islice(play("halves"), 1))
    said = []
    assert bits([*first, *play("halves", said=said)]) == bits(whole)
    assert said == ["3 of 3 devices joined, with 27 training examples"]
    kept = [(tmp_path / "server" / name / "state").read_bytes() for name in ("whole", "halves")]
    assert kept[0] == kept[1]
    state = whole[-1].state
    assert bits(state_of(kept[0], "state")) == bits(replace(state, delivered=frozenset(state.delivered)))
    assert list(play("halves")) == []  # it is over


@pytest.mark.parametrize("beyond", ["clip", "refuse"])
def test_a_bound_on_updates_has_the_bits_of_the_simulation(beyond, tmp_path):
    """Some updates are longer than it, and some are not."""
    row, threats = method("fedavg", rounds=2, training={"epochs": 1}), Threats(bound=BOUND, beyond=beyond)
    fed = replace(federation("abc", SETUP.public().nets["a"]), threats=threats)
    setup, folder = replace(SETUP, threats=threats), tmp_path / "server" / "one"
    link = InProcess(federation("abc"), tmp_path)
    there = list(run_with_devices(link, setup, row, 0, folder, seconds=20.0, least=3))
    assert bits(there[-1].state.messages) == bits(simulate(row, fed, 0, progress=False).state.messages)
    counts = there[0].report.counts["conduct"]
    assert {one["clipped" if beyond == "clip" else "refused"] for one in counts.values()} == {0.0, 1.0}
    stored = read_run(folder)
    assert [turn.report.counts for turn in stored.turns] == [turn.report.counts for turn in there]
    assert "conduct" in {*table_of(stored, setup, "fedavg")["split"]}
    sums = method("fedavg", secure_aggregation=True)
    with pytest.raises(InputError, match=r"^federation\.hostile and bound: must not be set with secure_aggregation"):
        next(run_with_devices(link, setup, sums, 0, folder, seconds=20.0, least=3))


def test_each_turn_is_on_record(play, tmp_path):
    *_, last = play("whole")
    found = json.loads((tmp_path / "server" / "whole" / "turn-0-1.json").read_text())
    assert found["absent"] == []
    assert (found["up"], found["down"]) == (last.up, last.down)
    assert found["scores"]["a"]["test"] == last.scores["a"]["test"]


@pytest.mark.slow
def test_a_turn_that_no_device_can_take_is_taken_back(play, tmp_path):
    """One device sends numbers that are finite, and so are their squares and the mean, but no step from it is."""

    def change(name, call, answer):
        words, tensors = unpack(answer, "answer")
        if name != "c" or words["reply"] != "visited":
            return answer
        return pack(words, {**tensors, "params": {key: x * 1e18 for key, x in tensors["params"].items()}})

    link, row, said = play.link, ROWS["fedavg"], []
    link.change = change
    turns = list(play("lied", row, said, least=2))
    assert [turn.absent for turn in turns] == [(), ("c",), ("c",)]  # the first one is played twice
    assert "the last round is taken back: no device can go on from it, and the update of c was too long" in said
    sent = {name: sum(len(answer) for one, _, answer in link.sent if one == name) for name in "abc"}
    link.change, link.away = (lambda name, call, answer: answer), {"c"}
    honest = list(play("honest", row, least=2, seconds=1.0))
    assert bits(turns[-1].state.messages) == bits(honest[-1].state.messages)
    assert {name: turns[-1].scores[name]["test"] for name in "ab"} == {
        name: honest[-1].scores[name]["test"] for name in "ab"
    }
    files = [tmp_path / "server" / name for name in ("lied", "honest")]
    kept = [read_run(folder) for folder in files]
    assert [[turn.absent for turn in run.turns] for run in kept] == [[("c",), ("c",)]] * 2
    assert json.loads((files[0] / "about.json").read_text())["aside"] == ["c"]
    left = left_devices(kept[0], "fedavg").pivot_table(["values", "bytes"], "what", "device").loc
    assert left["all of it on the wire", "bytes"].to_dict() == sent
    updates = left["updates: models, or what the method sends in their place"]
    assert updates["values"].to_dict() == {"a": 3, "b": 3, "c": 1}  # with those of the round that was taken back
    assert updates["bytes"].to_dict() == {name: updates["values", name] * turns[0].up["c"] for name in "abc"}


@pytest.mark.parametrize("lengths", [{"a": 9.0, "b": 900.0, "c": 8e3}, {"a": 0.0}, {}, None])
def test_devices_that_are_only_unlike_are_not_blamed(tmp_path, lengths):
    (tmp_path / "state").write_bytes(b"kept")
    (tmp_path / "turn-0-0.json").write_text(json.dumps({} if lengths is None else {"lengths": lengths}))
    assert _take_back(tmp_path) is None
    assert (tmp_path / "state").read_bytes() == b"kept"


def exchange_rows(link, root):
    """Put a device with other rows, and a memory of its own, in the place of c, as with a copy of its kit."""
    other = Splits(data(50, "other"), data(7, "val"), data(31, "test"))
    link.devices["c"] = FieldDevice("c", other, root / "copy", link.allowed)


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_a_device_whose_rows_are_exchanged_in_a_run_is_put_aside(name, play, tmp_path):
    """A method without memory would train and test on the others; the server knows their digest."""
    link, row, said, folder = play.link, method(name, rounds=5, training={"optimiser": "sgd"}), [], tmp_path / "server"
    first = next(turns := play("one", row, said, least=2))
    joined = read_run(folder / "one").devices
    exchange_rows(link, tmp_path)
    later = [*islice(turns, 2)]
    turns.close()
    assert [turn.absent for turn in (first, *later)] == [(), ("c",), ("c",)]
    assert [{*turn.scores} for turn in (first, *later)] == [{*"abc"}, {*"ab"}, {*"ab"}]
    others = "run one: the rows of c are others than when it joined, or its memory is lost; "
    assert len([line for line in said if line.startswith(f"c refuses: {others}")]) == len(said) - 1 == 1
    kept = read_run(folder / "one").devices
    assert kept == {**joined, "c": {**joined["c"], "changed": True}}
    with pytest.raises(InputError, match=f"^{others}bring them back and type the command again, or give another name$"):
        next(play("one", row))
    link.away = {"c"}
    turns = play("one", row, least=2, seconds=0.5)
    link.change = lambda name, call, answer: (link.away.clear(), answer)[1] if asks(call, "visit") else answer
    assert next(turns).absent == ("c",)  # it is back after the others have joined, and knows the run
    link.change = lambda name, call, answer: answer
    assert not {"c"} & {*next(turns).scores}
    turns.close()


def asks(call, what):
    return unpack(call, "call")[0]["ask"] == what


def test_a_device_whose_rows_are_back_takes_part_again(play, tmp_path):
    link, row = play.link, method("fedavg", rounds=3)
    next(turns := play("one", row, least=2))
    mine = link.devices["c"]
    exchange_rows(link, tmp_path)
    assert next(turns).absent == ("c",)
    turns.close()
    link.devices["c"] = mine
    assert [turn.absent for turn in play("one", row)] == [()]
    assert "changed" not in read_run(tmp_path / "server" / "one").devices["c"]


def test_a_servers_warnings_are_said_with_names_of_classes_and_kept(tmp_path):
    link, said, folder = InProcess(federation("abc", SETUP.public().nets["a"]), tmp_path), [], tmp_path / "server/one"
    many = data(60, "many")
    many = replace(many, y=torch.arange(60) % 2 + (torch.arange(60) < 3))  # two examples of class 2
    link.devices["a"] = FieldDevice("a", Splits(many, data(5, "val"), data(5, "test")), tmp_path / "a", link.allowed)
    row = method("gaussian_distillation", draws=50)
    list(run_with_devices(link, SETUP, row, 0, folder, seconds=20.0, least=3, notify=said.append))
    assert "no device has 20 examples of class '2': not drawn" in said
    warnings = [turn.report.words.get("warning") for turn in read_run(folder).turns]
    assert warnings == [None, "no device has 20 examples of class {2}: not drawn"]


@pytest.mark.slow
def test_a_device_that_was_away_predicts_and_says_from_which_round(tmp_path):
    _, setup, link = on_devices(tmp_path, missing="common_median")
    row, run = method("fedavg", rounds=4, training={"epochs": 1}), tmp_path / "server" / "one"
    turns = run_with_devices(link, setup, row, 4, run, seconds=1.0, least=2)
    next(turns)
    link.away = {"west"}
    list(turns)
    for site, lines in (
        ("north", []),
        ("west", ["--run one: model of round 1 of 4; west was away later, or the run is not over"]),
    ):
        said = []
        deployed.predict(tmp_path / "devices" / site, "one", site, tmp_path / f"{site}.csv", notify=said.append)
        assert said == lines


@pytest.mark.slow
def test_a_device_that_joins_in_a_later_round_is_on_record(play, tmp_path):
    play.link.away = {"c"}
    turns = play("late", ROWS["fedavg"], least=2, seconds=1.0)
    next(turns)
    assert [*read_run(tmp_path / "server" / "late").devices] == ["a", "b"]
    play.link.away = set()
    list(turns)
    late = read_run(tmp_path / "server" / "late")
    assert late.devices["c"]["examples"] == 12
    assert late.devices["c"].keys() == late.devices["a"].keys()
    assert {*left_devices(late, "fedavg")["device"]} == {*"abc"}


@pytest.mark.slow
def test_a_device_that_never_came_has_no_bytes(play, tmp_path):
    play.link.away = {"c"}
    row = method("fedavg", rounds=1, training={"epochs": 1})
    (turn,) = play("one", row, least=2, seconds=0.5)
    assert (turn.up["c"], turn.down["c"]) == (0, 0)
    stored = read_run(tmp_path / "server" / "one")
    for name in "abc":
        sent = [(len(answer), len(call)) for one, call, answer in play.link.sent if one == name]
        assert stored.wire[name] == tuple(map(sum, zip(*sent, strict=True))) if sent else (0, 0)
    table = table_of(stored, SETUP, "fedavg")
    assert {*table["device"]} == {"a", "b"}
    assert read_scores(table, frozenset(), Criterion()).up["fedavg"] == turn.up["a"]


def test_what_a_method_lacks_is_refused_before_a_device_is_asked(play):
    with pytest.raises(InputError, match="the server has 0 examples"):
        next(play("one", ROWS["fedasa"]))
    assert play.link.sent == []


def test_another_method_under_the_name_of_a_run_is_refused(play):
    list(play("whole"))
    with pytest.raises(InputError, match=r"^--name whole: is another run, with another method or settings"):
        list(play("whole", ROWS["fedavg"]))


@pytest.mark.slow
def test_of_a_run_that_devices_refuse_only_the_bytes_stay(tables, tmp_path):
    _, setup, link = tables
    link.start("west", ["numbers", "fedavg"])
    folder = tmp_path / "server" / "one"
    with pytest.raises(InputError, match=r"^west refuses: method local_only: not allowed on west"):
        list(run_with_devices(link, setup, method("local_only"), 4, folder, seconds=20.0, least=3))
    assert [path.name for path in folder.iterdir()] == ["about.json"]
    sent = {name: sum(len(answer) for one, _, answer in link.sent if one == name) for name in setup.devices}
    assert {name: up for name, (up, _) in read_rest(folder).items()} == sent
    row = method("fedavg", rounds=1, training={"epochs": 1})
    assert len(list(run_with_devices(link, setup, row, 4, folder, seconds=20.0, least=3))) == 1


def test_a_setup_is_read_as_it_was_written(tmp_path):
    write_setup(tmp_path, SETUP)
    assert read_setup(tmp_path) == SETUP
    with pytest.raises(InputError, match=r"^net.name: 'mpl'"):
        write_setup(tmp_path, Setup(("a",), (4,), 3, ({"name": "mpl"},)))
    whole = json.loads((tmp_path / "setup.json").read_text())
    harms = ("nets", []), ("nets", [{}]), ("devices", []), ("devices", ["a", "a"]), ("task", "x"), ("shape", [-1])
    for content in ([], *({**whole, key: value} for key, value in (*harms, ("classes", 0)))):
        (tmp_path / "setup.json").write_text(json.dumps(content))
        with pytest.raises(InputError, match=r"not a server's startup kit; fedcore field init makes them$"):
            read_setup(tmp_path)


STUDY = Study(
    "my_data", "Which?", "small", "plant", "plant-fault", ({"label": "fedavg", "name": "fedavg"},), 3, "fedavg"
)


def test_a_setup_of_a_study_is_read_as_it_was_written(tmp_path):
    recipe = Recipe(load_plant(tmp_path).schema, "common")
    made = Setup(("a", "b"), (4,), 3, ({"name": "mlp", "widths": [4]}, {"name": "mlp", "widths": [5]}), recipe, STUDY)
    write_setup(tmp_path, made)
    assert read_setup(tmp_path) == made


@pytest.fixture
def tables(tmp_path):
    return on_devices(tmp_path)


@pytest.mark.slow
def test_devices_with_tables_have_the_bits_of_the_study(tables, tmp_path):
    fed, setup, link = tables
    row = method("fedavg", rounds=2, training={"epochs": 1})
    here = simulate(row, fed, 4, progress=False)
    there = list(run_with_devices(link, setup, row, 4, tmp_path / "server" / "one", seconds=20.0, least=3))
    assert bits(there[-1].state.messages) == bits(here.state.messages)
    for one, two in zip(there, here.rounds, strict=True):
        assert (one.up, one.down) == (two.up, two.down)
        assert [one.scores[name]["test"] for name in fed.partition(4).names] == [
            two.scores[name]["test"] for name in fed.partition(4).names
        ]
    kept = read_run(tmp_path / "server" / "one")
    assert kept.prepare["west"] == preparation_bytes(fed.dataset.schema, "common")
    assert repr([turn.scores for turn in kept.turns]) == repr([turn.scores for turn in there])  # nan is nan
    for name in setup.devices:
        counted = sum(turn.up[name] for turn in there)
        assert counted < kept.wire[name][0] <= 1.05 * counted + 4 * 4000  # two turns, each with its scores


@pytest.mark.slow
def test_a_run_with_shared_numbers_goes_on_without_another_exchange(tables, tmp_path):
    _, setup, link = tables
    row = method("fedavg", rounds=2, training={"epochs": 1})
    keep = {"seconds": 20.0, "least": 3}
    whole = list(run_with_devices(link, setup, row, 4, tmp_path / "server" / "whole", **keep))
    first = list(islice(run_with_devices(link, setup, row, 4, tmp_path / "server" / "halves", **keep), 1))
    before = len(link.asked("numbers"))
    rest = list(run_with_devices(link, setup, row, 4, tmp_path / "server" / "halves", **keep))
    assert bits([*first, *rest]) == bits(whole)
    assert len(link.asked("numbers")) == before


def test_a_device_whose_owner_has_not_allowed_numbers_sends_none(tables, tmp_path):
    _, setup, link = tables
    link.start("west", ["fedavg"])
    with pytest.raises(
        InputError, match=r"^west refuses: west: medians of its columns may not leave it; its owner has "
    ):
        list(run_with_devices(link, setup, method("fedavg"), 4, tmp_path / "x" / "one", seconds=20.0, least=3))
    assert [path.name for path in (tmp_path / "x" / "one").iterdir()] == ["about.json"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "seed", "said"),
    [
        ({"test": 0.79}, 4, "numbers of 1 training rows would tell single ones, 5 are needed"),
        ({"val": 0.3}, 4, "has told numbers of its rows by another schema or other shares; it needs a new kit"),
        ({"shared_test": 0.2}, 4, "has told numbers of its rows by another schema"),
        ({}, 6, "has told numbers for 2 seeds (--max-runs)"),
        ({}, 5, None),
    ],
)
def test_no_single_row_is_told_by_numbers_of_many_parts(change, seed, said, tables, tmp_path):
    """A server that may cut out parts as it likes would take differences of their means."""
    _, setup, link = tables
    device = FieldDevice("north", link.rows["north"], tmp_path / "own", consent_of(["fedavg", NUMBERS], limits=TWO))

    def told(change, seed):
        recipe = replace(setup.recipe, **change)
        plan = plan_of(method("fedavg"), setup.public().nets, seed, f"of{seed}", setup.shape, 3, recipe)
        return unpack(device.answer(pack({"ask": "numbers", "plan": plan.to_json()})), "")[0]

    assert [told({}, 4)["reply"], told({}, 5)["reply"]] == ["numbers"] * 2
    assert told(change, seed).get("why", "").startswith(f"north: {said}" if said else "")


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "told"), [(0, True), (1, False), (4, False), (5, True)])
def test_no_row_is_told_by_the_numbers_of_two_nights(rows, told, tables, tmp_path):
    """n2 mean2 - n1 mean1 would be the row itself, to all its digits."""
    _, setup, link = tables
    setup = replace(setup, recipe=replace(setup.recipe, hold_out="stable", val=0.0, test=0.0, shared_test=0.0))
    device = FieldDevice("north", link.rows["north"], tmp_path / "own", ["fedavg", NUMBERS])

    def night(name):
        plan = plan_of(method("fedavg"), setup.public().nets, 4, name, setup.shape, 3, setup.recipe)
        return unpack(device.answer(pack({"ask": "numbers", "plan": plan.to_json()})), "")[0]

    assert night("one")["reply"] == "numbers"
    file = link.rows["north"].path
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines, *lines[1 : 1 + rows]]))  # a row that is there already counts, too
    why = f"north: {rows} training rows are others than when it told numbers last; the difference would tell them"
    assert night("two").get("why", "").startswith("" if told else why)
    assert night("three")["reply"] == ("numbers" if told else "refused")


@pytest.mark.slow
def test_rows_that_change_within_a_run_are_noticed(tables, tmp_path):
    _, setup, link = tables
    row = method("fedavg", rounds=2)
    next(run_with_devices(link, setup, row, 4, tmp_path / "server" / "one", seconds=20.0, least=3))
    file = link.rows["west"].path
    file.write_text("\n".join(file.read_text().splitlines()[:-1]))
    link.start("west")
    with pytest.raises(InputError, match=r"^west refuses: run one: the rows of west are others than when it joined"):
        list(run_with_devices(link, setup, row, 4, tmp_path / "server" / "one", seconds=20.0, least=3))


def test_the_server_knows_no_examples():
    public = SETUP.public()
    assert list(public.nets) == ["a", "b", "c"]
    assert (len(public.test), tuple(public.test.x.shape)) == (0, (0, 4))


# A state on disk.
SHARED = Message(model("all"), {"counts": model("more")["fc1.bias"]})


STATE = State(
    model("server"), {"a": SHARED, "b": Message(), "c": SHARED}, {"a": RemoteHandle("f00", 12)}, {}, 1, 3,
    frozenset("ab"),
)  # fmt: skip


def test_what_is_kept_is_read_to_the_bit_and_equal_messages_once():
    content = state_bytes(STATE)
    there = state_of(content, "state")
    assert bits(there) == bits(STATE)
    assert there.messages["a"] is there.messages["c"]
    assert len(content) < len(pack({}, {"": model("one")})) * 2 + 1500
    assert list(there.messages) == [*federation("abc").devices]


@pytest.mark.parametrize("content", [b"", pack({}), pack({"messages": {"a": "0"}}), state_bytes(STATE)[:-1]])
def test_what_is_no_state_is_refused_in_one_line(content):
    with pytest.raises(InputError, match=r"^state: (not the state of a run|damaged or no parcel [^\n]*\))$"):
        state_of(content, "state")
