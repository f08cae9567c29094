"""A device killed before, in, after its step and at scoring, late, back again, or new: what each run does."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from every_method import ROWS
from federations import bits, federation
from in_process import InProcess, field_of, plan_for

from fedcore.core.rounds import RoundResult, run
from fedcore.execute.workers import Inline
from fedcore.field.server import Field, ask, federation_of, run_in_field
from fedcore.field.wire import pack, unpack

DITTO = replace(ROWS["ditto"], settings={**ROWS["ditto"].settings, "rounds": 3})


def whole(tmp_path: Path) -> list[RoundResult]:
    """The turns of a run in which nothing happens."""
    field, _ = field_of(DITTO, tmp_path / "whole")
    field.join()
    return list(run_in_field(field, 0))


@pytest.mark.parametrize("moment", ["before", "after", "at scoring"])
@pytest.mark.slow
def test_a_device_killed_and_started_again_in_time_changes_no_bit(moment: str, tmp_path: Path):
    """Killed in its step: tests/field/test_cells.py, by a real signal."""
    field, link = field_of(DITTO, tmp_path / "killed")
    field.join()
    killed: list[str] = []

    def change(name: str, call: bytes, answer: bytes) -> bytes | None:
        words = unpack(call, "call")[0]
        wanted = ("score", None) if moment == "at scoring" else ("visit", 1)
        if name != "b" or killed or (words["ask"], words.get("round")) != wanted:
            return answer
        killed.append(name)  # it had taken its step, or scored, and nobody got the answer
        link.start("b")
        return None

    link.change = change
    turns = run_in_field(field, 0)
    there = [next(turns)]
    if moment == "before":
        link.away, link.change = {"b"}, lambda name, call, answer: answer
        Thread(target=lambda: (time.sleep(0.3), link.start("b"), link.away.clear())).start()
    there += turns
    assert bits(there) == bits(whole(tmp_path))
    assert bool(killed) == (moment != "before")


@pytest.mark.slow
def test_a_device_that_is_gone_at_scoring_has_no_scores_this_once(tmp_path: Path):
    said: list[str] = []
    field, link = field_of(DITTO, tmp_path, seconds=0.5, said=said)
    field.join()

    def change(name: str, call: bytes, answer: bytes) -> bytes | None:
        return None if name == "b" and unpack(call, "call")[0]["ask"] == "score" and len(link.sent) < 16 else answer

    link.change = change
    first, second, third = run_in_field(field, 0)
    assert [turn.absent for turn in (first, second, third)] == [(), (), ()]
    assert list(first.scores or ()) == ["a", "c", "d"]
    assert list(third.scores or ()) == ["a", "b", "c", "d"]
    assert said[0] == "b: no answer in 0.5 s"


@pytest.mark.slow
def test_a_device_that_comes_between_two_runs_takes_part_in_the_next(tmp_path: Path):
    fed = federation("abcd")
    link = InProcess(fed, tmp_path)
    link.away = {"d"}
    runs = {}
    for name, seconds in (("first", 0.3), ("second", 20.0)):
        field = Field(link, replace(plan_for(DITTO, fed), run=name), federation_of(fed.public), seconds)
        field.join()
        runs[name] = list(run_in_field(field, 0))
        link.away = set()
    assert [turn.absent for turn in runs["first"]] == [("d",)] * 3
    here = list(run(DITTO.build(fed.public.nets), fed, 0, Inline()))
    assert [turn.absent for turn in runs["second"]] == [()] * 3
    assert bits(runs["second"][-1].state.messages) == bits(here[-1].state.messages)


class Stuck:
    """A link on which one device never answers, whatever it is asked."""

    def __init__(self) -> None:
        self.asked, self.go = Event(), Event()

    def send(self, name: str, call: bytes, seconds: float) -> bytes | None:
        if name == "stuck":
            self.asked.set()
            self.go.wait(seconds)
            return None
        raise ValueError("a fault of the link")


def test_ctrl_c_waits_for_no_device(monkeypatch: Any):
    link, start = Stuck(), time.monotonic()
    monkeypatch.setattr("fedcore.field.server.SAY", 0.05)

    def stop(line: str) -> None:
        assert line == "waiting for stuck: 0 s"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask(link, {"stuck": pack({})}, 600.0, notify=stop)
    assert time.monotonic() - start < 60
    link.go.set()


def test_a_fault_of_the_link_is_not_taken_for_a_silent_device():
    with pytest.raises(ValueError, match=r"^a fault of the link$"):
        ask(Stuck(), {"a": pack({})}, 600.0)
