"""A method in the field: the bits of a simulation, whoever is absent, whatever travels."""

import time
from dataclasses import replace
from itertools import chain, combinations, islice
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import torch
from every_method import ROWS
from federations import bits, federation
from in_process import InProcess, field_of, plan_for

from fedcore import Method, from_arrays, received_model
from fedcore.api.federation import architecture, federate, partitioner
from fedcore.config.methods import MethodConfig
from fedcore.core.rounds import RoundResult, run
from fedcore.errors import InputError, TooFew
from fedcore.execute.workers import Inline
from fedcore.field.device import check_labels
from fedcore.field.plan import plan_of
from fedcore.field.server import Field, ask, disjoint, federation_of, run_in_field
from fedcore.field.wire import digest, pack, unpack
from fedcore.methods import METHODS
from fedcore.types.federation import nbytes

REFUSED = {"best_source", "pooled", "xgb_bagging"}
"""Methods that a simulation alone can run."""


def simulated(name: str) -> list[RoundResult]:
    fed = federation("abcd")
    return list(run(ROWS[name].build(fed.public.nets), fed, 0, Inline()))


def comparable(turns: list[RoundResult], method: Method) -> list[dict[str, str]]:
    """The bits of turns; memories by their digest, without the shared scores of models that need one: see the docs."""
    found = []
    for turn in turns:
        known = {
            name: memory.digest if hasattr(memory, "digest") else digest(memory)
            for name, memory in turn.state.memories.items()
        }
        personal = {} if method.deploy is received_model else known
        scores = {
            name: {split: numbers for split, numbers in of.items() if split != "shared" or name not in personal}
            for name, of in (turn.scores or {}).items()
        }
        state = replace(turn.state, memories=known)  # type: ignore[arg-type]
        found.append(bits(replace(turn, state=state, scores=scores)))
    return found


@pytest.mark.parametrize("name", [name for name in METHODS if name not in REFUSED])
@pytest.mark.slow
def test_a_method_has_the_bits_of_its_simulation_in_the_field(name: str, tmp_path: Path):
    field, _ = field_of(ROWS[name], tmp_path)
    field.join()
    there, (method, _) = list(run_in_field(field, 0)), field.plan.build()
    assert comparable(there, method) == comparable(simulated(name), method)
    assert all(turn.absent == () for turn in there)


def test_a_label_for_each_step_has_the_bits_of_its_simulation(tmp_path: Path):
    y = [[k % 3, k % 2, -1, -1] for k in range(20)]
    data = from_arrays(torch.arange(80).reshape(20, 4) % 5, y, device=[*"ab"] * 10, task="sequence_labelling")
    fed = federate(data, partitioner("by_device")(), net=architecture("lstm")(vocabulary=5, hidden=3)).federation(0)
    row, shape = once("fedavg"), tuple(fed.test.x.shape[1:])
    plan = plan_of(row, fed.public.nets, 0, "trial", shape, fed.classes, task=fed.task)
    there = Field(InProcess(fed, tmp_path), plan, replace(federation_of(fed.public), task=fed.task), 20.0)
    there.join()
    method = row.build(fed.public.nets, task=fed.task)
    assert comparable([*run_in_field(there, 0)], method) == comparable([*run(method, fed, 0, Inline())], method)
    with pytest.raises(InputError, match=r"its label is a class for each step, .*, the run's is classes$"):
        check_labels(data.train.y, replace(plan, task="classification"), "a")


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_method_that_only_a_simulation_can_run_is_refused(name: str):
    with pytest.raises(InputError, match=f"^method {name}: runs in a simulation only: "):
        plan_for(ROWS[name], federation("abcd"))


@pytest.mark.parametrize(
    "name",
    [
        "fedavg", "ditto", "code_ot", "dfl", "fedasa", "scaffold", "analytic", "ensemble", "regmean", "st_lf",
        "gaussian_distillation", "local_only",
    ],
)  # fmt: skip
@pytest.mark.slow
def test_what_travels_has_no_example_no_memory_and_few_bytes_more(name: str, tmp_path: Path):
    """Recorded before it is encrypted, both ways; examples are searched for row by row, memories tensor by tensor."""
    field, link = field_of(ROWS[name], tmp_path)
    field.join()
    turns = list(run_in_field(field, 0))
    fed = federation("abcd")
    parts = [part for one in fed.devices.values() for part in (one.data.train, one.data.val, one.data.test)]
    secret = [row.numpy().tobytes() for part in parts for row in part.x]
    for path in tmp_path.glob("*/trial/turn-*"):
        memory = unpack(path.read_bytes(), "file")[1]["memory"]
        secret += [tensor.numpy().tobytes() for tensor in memory.values() if tensor.numel() > 2]
    public = b"".join(pack({}, {"": turn.state.messages[one].params}) for turn in turns for one in "abcd")
    sent = b"".join(
        pack({}, unpack(answer, "")[1])  # a model that is sent may be kept in memory, too
        for _, call, answer in link.sent
        if unpack(call, "")[0]["ask"] == "visit"
    )
    rows = sum(len(part) for part in parts)
    hidden = secret[:rows] + [part for part in secret[rows:] if part not in public and part not in sent]
    assert rows == 83
    for _, call, answer in link.sent:
        assert not [part for part in hidden if part in answer or part in call]
        if unpack(call, "")[0]["ask"] in ("visit", "pair"):
            counted = sum(nbytes(params) for params in unpack(answer, "")[1].values())
            assert len(answer) <= 1.05 * counted + 4000


@pytest.mark.slow
def test_a_device_that_never_answers_is_named_and_the_others_go_on(tmp_path: Path):
    said: list[str] = []
    field, link = field_of(once("fedavg"), tmp_path, seconds=1.0, said=said)
    field.join()
    link.change = lambda name, call, answer: None if name == "c" else answer
    (turn,) = run_in_field(field, 0, least=3)
    assert turn.absent == ("c",)
    assert list(turn.scores or ()) == ["a", "b", "d"]
    assert said == ["c: no answer in 1 s"]  # at scoring it is known to be away


@pytest.mark.slow
def test_too_few_devices_end_the_run_in_one_line(tmp_path: Path):
    field, link = field_of(once("fedavg"), tmp_path, seconds=1.0)
    field.join()
    link.change = lambda name, call, answer: None if name in "bcd" else answer
    with pytest.raises(TooFew, match=r"1 of 4 devices answered, at least 3 must; absent: b, c, d$"):
        list(run_in_field(field, 0, least=3))


@pytest.mark.slow
def test_a_device_that_comes_late_joins_and_takes_part(tmp_path: Path):
    field, link = field_of(once("ditto", 2), tmp_path / "late", seconds=1.0)
    link.away = {"b"}
    assert list(field.join()) == ["a", "c", "d"]
    turns = run_in_field(field, 0)
    first = next(turns)
    link.away = set()
    assert (first.absent, next(turns).absent) == (("b",), ())


def test_a_device_that_comes_late_and_refuses_is_named(tmp_path: Path):
    said: list[str] = []
    field, link = field_of(once("fedavg"), tmp_path, said=said)
    link.start("b", allowed=["analytic"])
    (turn,) = run_in_field(field, 0)  # nobody has joined yet
    assert turn.absent == ("b",)
    assert said == ["b refuses: method fedavg: not allowed on b; allowed: analytic"]


@pytest.mark.slow
def test_who_is_known_to_be_away_is_waited_for_once_until_it_is_back(tmp_path: Path):
    said: list[str] = []
    field, link = field_of(once("fedavg", 9), tmp_path, seconds=4.0, said=said)
    link.away, start = {"c"}, time.monotonic()
    assert list(field.join()) == ["a", "b", "d"]
    turns = run_in_field(field, 0)
    away = [*islice(turns, 8)]
    assert [turn.absent for turn in away] == [("c",)] * 8
    assert time.monotonic() - start < 30  # with a deadline for each of two exchanges a round: 68 s
    link.away = set()
    assert next(turns).absent == ()
    assert field.facts.keys() == {*"abcd"}
    assert said == []


def test_a_refusal_is_an_absence_where_enough_others_agree(tmp_path: Path):
    said: list[str] = []
    field, link = field_of(once("fedavg"), tmp_path, said=said)
    link.start("b", allowed=["analytic"])
    assert list(field.join(least=3)) == ["a", "c", "d"]
    (turn,) = run_in_field(field, 0, least=3)
    assert turn.absent == ("b",)
    assert said == ["b refuses: method fedavg: not allowed on b; allowed: analytic"]
    with pytest.raises(InputError, match=r"^b refuses: "):
        Field(link, field.plan, federation_of(link.fed.public), 20.0).join(least=4)


def once(name: str, rounds: int = 1) -> MethodConfig:
    return replace(ROWS[name], settings={**ROWS[name].settings, "rounds": rounds})


def broken(answer: bytes, how: str) -> bytes:
    words, tensors = unpack(answer, "answer")
    if words["reply"] != "visited":
        return answer
    name = next(iter(tensors["params"]), "")
    match how:
        case "cut":
            return answer[:-5]
        case "noise":
            return bytes(len(answer))
        case "shape":
            tensors["params"][name] = tensors["params"][name].repeat(2, *[1] * (tensors["params"][name].ndim - 1))
        case "type":
            tensors["params"][name] = tensors["params"][name].double()
        case "nan":
            tensors["params"][name] = torch.full_like(tensors["params"][name], torch.nan)
        case "square" | "sums":
            tensors = {part: {k: torch.full_like(x, 3e38) for k, x in of.items()} for part, of in tensors.items()}
        case "size":
            words["size"] = -1
    return pack(words, tensors)


@pytest.mark.parametrize("how", ["cut", "noise", "shape", "type", "nan", "square", "sums", "size"])
@pytest.mark.slow
def test_an_answer_that_cannot_be_used_counts_as_none_and_is_named(how: str, tmp_path: Path):
    said: list[str] = []
    field, link = field_of(ROWS["analytic" if how == "sums" else "fedavg"], tmp_path, said=said)
    field.join()
    link.change = lambda name, call, answer: broken(answer, how) if name == "b" else answer
    (first, *_) = run_in_field(field, 0)
    assert first.absent == ("b",)
    assert said[0].startswith(("answer of b: ", "update of b: "))
    assert "\n" not in said[0]


@pytest.mark.parametrize(
    "scores",
    [
        None, {}, {"val": {}, "test": {}}, {"test": 1}, "all", {"more": {}},
        {"val": {}}, {"accuracy": 1e999}, {"accuracy": 5.0}, {"accuracy": 1}, {"loss": "low"},
    ],
)  # fmt: skip
@pytest.mark.slow
def test_scores_that_are_none_are_not_taken_for_any(scores: Any, tmp_path: Path):
    def change(name: str, call: bytes, answer: bytes) -> bytes:
        words, tensors = unpack(answer, "answer")
        if name != "b" or words["reply"] != "scored":
            return answer
        if isinstance(scores, dict) and scores.keys() <= {"accuracy", "loss"} and scores:
            return pack(
                {**words, "scores": {**words["scores"], "test": {**words["scores"]["test"], **scores}}}, tensors
            )
        return pack({**words, "scores": scores}, tensors)

    said: list[str] = []
    field, link = field_of(once("fedavg"), tmp_path, said=said)
    field.join()
    link.change = change
    (turn,) = run_in_field(field, 0)
    assert list(turn.scores or ()) == ["a", "c", "d"]
    assert said[0].startswith("answer of b: ")


@pytest.mark.parametrize(("name", "part"), [("fedavg", "params"), ("scaffold", "extra")])
def test_answers_that_cannot_be_combined_end_the_run_in_one_line(name: str, part: str, tmp_path: Path):
    def change(device: str, call: bytes, answer: bytes) -> bytes:
        words, tensors = unpack(answer, "answer")
        return pack(words, {**tensors, part: {}}) if device == "b" and words["reply"] == "visited" else answer

    field, link = field_of(once(name), tmp_path)
    field.join()
    link.change = change
    with pytest.raises(InputError, match=r"^round 1 of stage 1: the answers cannot be combined \(.*\); .*: b$"):
        list(run_in_field(field, 0))


def test_a_device_that_is_still_joining_is_asked_again(tmp_path: Path):
    field, link = field_of(once("fedavg"), tmp_path)
    busy = iter([pack({"reply": "working"})])  # a device of a thread each takes the one there is
    link.change = lambda name, call, answer: (unpack(call, "call")[0]["ask"] == "join" and next(busy, None)) or answer
    (turn,) = run_in_field(field, 0)  # nobody has joined yet
    assert turn.absent == ()


@pytest.mark.slow
def test_a_late_answer_is_no_loss_of_the_memory_before_it(tmp_path: Path):
    """A device that has taken its step, but too late, goes on from the memory that the server knows of."""
    field, link = field_of(once("ditto", 4), tmp_path, seconds=1.0)
    field.join()
    lost = {"ask": "visit", "round": 1}
    link.change = lambda name, call, answer: (
        None if name == "b" and lost.items() <= unpack(call, "call")[0].items() else answer
    )
    turns = list(run_in_field(field, 0))
    assert [turn.absent for turn in turns] == [(), ("b",), (), ()]


@pytest.mark.slow
def test_a_server_that_starts_again_from_a_state_asks_for_no_step_twice(tmp_path: Path):
    row = once("ditto", 4)
    field, link = field_of(row, tmp_path / "whole")
    field.join()
    whole = list(run_in_field(field, 0))
    field, link = field_of(row, tmp_path / "halves")
    field.join()
    first, second, third = islice(run_in_field(field, 0), 3)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "halves").glob("*/trial/turn-0-2")}
    again = Field(link, field.plan, federation_of(link.fed.public), 20.0)
    rest = list(run_in_field(again, 0, state=second.state))
    assert len(before) == 4
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert bits([first, second, *rest]) == bits(whole)
    assert bits(third) == bits(rest[0])


@pytest.mark.slow
def test_a_device_that_restarts_in_a_pair_begins_it_again(tmp_path: Path):
    """Its side of the pair is lost; the other device's begins again, too."""
    field, link = field_of(ROWS["st_lf"], tmp_path)
    field.join()
    restarts = ["a", "c"]

    def change(name: str, call: bytes, answer: bytes) -> bytes:
        words = unpack(call, "call")[0]
        if words["ask"] == "pair" and words["part"] == 1 and name in restarts:
            restarts.remove(name)
            link.start(name)
        return answer

    link.change = change
    there, (method, _) = list(run_in_field(field, 0)), field.plan.build()
    assert restarts == []
    assert comparable(there, method) == comparable(simulated("st_lf"), method)


@pytest.mark.parametrize("ask", ["visit", "pair"])
def test_a_method_that_needs_everybody_ends_in_one_line_without(ask: str, tmp_path: Path):
    field, link = field_of(ROWS["st_lf"], tmp_path, seconds=1.0)
    field.join()
    away = pack({"reply": "refused", "why": "away"})
    link.change = lambda name, call, answer: (
        away
        if name == "d" and unpack(call, "call")[0] | {"stage": 1} == unpack(call, "call")[0] | {"ask": ask, "stage": 1}
        else answer
    )
    said = "d refuses: away" if ask == "pair" else "links: d sent nothing, and the program plans those of all devices.*"
    with pytest.raises(InputError, match=f"^{said}$"):
        list(run_in_field(field, 0))


def test_a_device_of_exchanged_rows_takes_no_part_in_a_pair(tmp_path: Path):
    """The server was restarted since, so that the device has joined with them, and knows the run."""
    field, link = field_of(ROWS["st_lf"], tmp_path)
    field.join()
    turns = run_in_field(field, 0)
    before_pairs = next(turn for turn in turns if turn.round_info.stage == 1).state
    field.facts["d"]["data"] = "of other rows"
    again = Field(link, field.plan, federation_of(link.fed.public), 20.0, facts=field.facts)
    again.join(3)
    with pytest.raises(InputError, match=r"^d refuses: run trial: the rows of d are others than when it joined, or"):
        next(run_in_field(again, 0, state=before_pairs))


@pytest.mark.parametrize("name", ["fd", "fedproto"])
def test_a_device_that_has_no_model_yet_has_no_scores(name: str, tmp_path: Path):
    said: list[str] = []
    field, link = field_of(once(name, 2), tmp_path, said=said)
    field.join()
    away = [pack({"reply": "refused", "why": "away"})]
    link.change = lambda device, call, answer: (
        away.pop() if away and device == "b" and unpack(call, "call")[0]["ask"] == "visit" else answer
    )
    first, last = run_in_field(field, 0)
    assert (first.absent, list(first.scores or ())) == (("b",), ["a", "c", "d"])
    assert (last.absent, list(last.scores or ())) == ((), ["a", "b", "c", "d"])
    assert said[1].startswith("the model of b has no tensor ")


def test_pairs_are_grouped_so_that_a_device_is_in_one_at_a_time():
    pairs = [(a, b) for a, b in combinations("abcdef", 2)]
    groups = disjoint(pairs)
    assert sorted(pair for group in groups for pair in group) == pairs
    assert all(len({*chain(*group)}) == 2 * len(group) for group in groups)
    assert len(groups) <= 7


def test_devices_that_refuse_are_named_with_their_reasons(tmp_path: Path):
    field, link = field_of(ROWS["fedavg"], tmp_path)
    link.start("b", allowed=["analytic", "local_only"])
    with pytest.raises(InputError, match=r"^b refuses: method fedavg: not allowed on b; allowed: analytic, lo"):
        field.join()


@pytest.mark.slow
def test_a_device_that_restarts_in_a_run_goes_on_from_its_memory(tmp_path: Path):
    row = once("ditto", 3)
    field, _ = field_of(row, tmp_path / "one")
    field.join()
    whole = list(run_in_field(field, 0))
    field, link = field_of(row, tmp_path / "two")
    field.join()
    turns = run_in_field(field, 0)
    parts = [next(turns)]
    for name in "ad":
        link.start(name)
    assert bits([*parts, *turns]) == bits(whole)


def test_each_device_has_its_own_examples_alone(tmp_path: Path):
    link = InProcess(federation("ab"), tmp_path)
    assert link.devices["a"].data is link.fed.devices["a"].data
    there = federation_of(link.fed.public).devices["a"].data
    assert (there.digest, hasattr(there, "train")) == ("a", False)  # type: ignore[attr-defined]


# a device killed before, in, after its step and at scoring, late, back again, or new

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
        wanted = ("score", 0) if moment == "at scoring" else ("visit", 1)
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
