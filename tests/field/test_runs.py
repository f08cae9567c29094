"""A run's folder on the server."""

import json
from dataclasses import replace
from itertools import islice

import pytest
from every_method import ROWS
from federations import bits, federation
from in_process import InProcess

from fedcore.field.runs import Setup, read_setup, run_with_devices, write_setup
from fedcore.field.state import state_of
from fedcore.types import InputError

SETUP = Setup(("a", "b"), (4,), 3)


@pytest.fixture
def play(tmp_path):
    link = InProcess(federation("ab"), tmp_path)

    def start(name, row=ROWS["ditto"], said=None):
        lines = (said if said is not None else []).append
        return run_with_devices(link, SETUP, row, 0, tmp_path / "server" / name, seconds=20.0, least=2, said=lines)

    return start


def test_a_run_that_was_killed_goes_on_with_the_same_bits(play, tmp_path):
    whole = list(play("whole"))
    first = list(islice(play("halves"), 1))
    said = []
    assert bits([*first, *play("halves", said=said)]) == bits(whole)
    assert said == ["2 of 2 devices joined, with 15 training examples"]
    kept = [(tmp_path / "server" / name / "state").read_bytes() for name in ("whole", "halves")]
    assert kept[0] == kept[1]
    state = whole[-1].state
    assert bits(state_of(kept[0], "state")) == bits(replace(state, delivered=frozenset(state.delivered)))
    assert list(play("halves")) == []  # it is over


def test_each_turn_is_on_record(play, tmp_path):
    *_, last = play("whole")
    found = json.loads((tmp_path / "server" / "whole" / "turn-0-1.json").read_text())
    assert found["absent"] == []
    assert (found["up"], found["down"]) == (last.up, last.down)
    assert found["scores"]["a"]["test"] == last.scores["a"]["test"]


def test_another_method_under_the_name_of_a_run_is_refused(play):
    list(play("whole"))
    with pytest.raises(InputError, match=r"^--name whole: is another run, with another method or settings"):
        list(play("whole", ROWS["fedavg"]))


def test_a_setup_is_read_as_it_was_written(tmp_path):
    write_setup(tmp_path, SETUP)
    assert read_setup(tmp_path) == SETUP
    with pytest.raises(InputError, match=r"^net.name: 'mpl'"):
        write_setup(tmp_path, Setup(("a",), (4,), 3, "mpl"))
    (tmp_path / "setup.json").write_text("[]")
    with pytest.raises(InputError, match=r"is no kit of a server; fedcore field init makes them$"):
        read_setup(tmp_path)


def test_the_server_knows_no_examples():
    public = SETUP.public()
    assert list(public.nets) == ["a", "b"]
    assert (len(public.test), tuple(public.test.x.shape)) == (0, (0, 4))
