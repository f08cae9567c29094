"""Edited tasks: what a body does around a part of a method, and that its source is in the keys of the steps."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from at_once import run_at_once
from every_method import ROWS
from federations import federation
from project import ROOT

from fedcore import InputError, Message, Update, load
from fedcore.builders import takes
from fedcore.execute.workers import Inline
from fedcore.pipeline import environment, work
from fedcore.pipeline.cache.keys import Digest
from fedcore.pipeline.cache.store import Store

environment.prepare()  # Prefect reads its settings when it is imported

from fedcore.config.params import read
from fedcore.pipeline.orchestration.graph import Graph
from fedcore.pipeline.run import partitions
from fedcore.pipeline.run.chunks import rounds
from fedcore.types.method import Method

FED = federation("abcd")
PARTITIONED = read(ROOT)["federation"]


def halved(params: Any) -> Any:
    return {name: tensor / 2 if tensor.is_floating_point() else tensor for name, tensor in params.items()}


def plain(part: Any, server: Any, updates: Any, round_info: Any) -> Any:
    """A body that only calls its part."""
    return part(server, updates, round_info)


def halve_messages(part: Any, server: Any, updates: Any, round_info: Any) -> Any:
    server, messages, *rest = part(server, updates, round_info)
    sent = {name: replace(m, params=halved(m.params), extra=halved(m.extra)) for name, m in messages.items()}
    return server, sent, *rest


def link_others(part: Any, server: Any, updates: Any, round_info: Any) -> Any:
    server, *rest = part(server, updates, round_info)
    return server | {"alpha": server["alpha"][:, [1, 0, 2, 3]]}, *rest


def without_first(part: Any, server: Any, updates: Any, round_info: Any) -> Any:
    return part(server, dict([*updates.items()][1:]), round_info)


def halve_update(part: Any, memory: Any, message: Any, device: Any, step_id: Any) -> Any:
    memory, update = part(memory, message, device, step_id)
    return memory, replace(update, params=halved(update.params))


def count_no_classes(part: Any, update: Update, device: Any, step_id: Any) -> Any:
    update = part(update, device, step_id)
    return replace(update, extra={name: torch.zeros_like(tensor) for name, tensor in update.extra.items()}, score=0.0)


def halve_model(part: Any, memory: Any, message: Message) -> Any:
    model = part(memory, message)
    return replace(model, members=tuple(map(halved, model.members)))


def score_nothing(part: Any, deploy: Any, memory: Any, message: Any, devices: Any, test: Any, *scoring: Any) -> Any:
    scores = part(deploy, memory, message, devices, test, *scoring)
    return {name: {split: dict.fromkeys(of, 0.0) for split, of in each.items()} for name, each in scores.items()}


def put(monkeypatch: pytest.MonkeyPatch, place: str, word: str, body: Callable[..., Any]) -> None:
    """Let a body be the only task of the project."""
    monkeypatch.setattr(work, "TASKS", {})
    work._register(place, (word,), body)


def outcome(method: Method, folder: Path) -> tuple[Any, Any]:
    """Return the scores and the deployed models after a method's rounds, which are cached steps."""
    store = Store(folder)
    there = {name: replace(device, data=store.put(device.data)) for name, device in FED.devices.items()}
    fed = replace(FED, devices=there, test=store.put(FED.test))
    *_, last = rounds(method, fed, 0, Graph(store, Inline()), 1)
    memories, messages = store.get((last.state.memories, last.state.messages))
    return last.scores, {name: method.deploy(memories.get(name) or {}, messages[name]).params for name in FED.devices}


def equal(one: Any, other: Any) -> bool:
    return all(
        torch.equal(tensor, more[name])
        for device in one
        for params, more in zip(one[device], other[device], strict=True)
        for name, tensor in params.items()
    )


EDITED = {
    "train": ("local", "train", halve_update, "fedavg"), "rank": ("attach", "rank", count_no_classes, "half_best"),
    "fuse": ("combine", "fuse", without_first, "code_ot"),
    "share_cells": ("combine", "mix", halve_messages, "fedasa"),
    "distil": ("combine", "distil", halve_messages, "fedgen"),
    "form_links": ("combine", "link", link_others, "single_match"),
    "average": ("combine", "average", without_first, "fedavg"), "deploy": ("deploy", "", halve_model, "code_ot"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("task", EDITED)
def test_an_edited_task_changes_the_models_and_their_scores(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In stages of one round, and in chunks of several; undone, everything is in the cache again."""
    place, word, body, name = EDITED[task]
    nodes = run_at_once(tmp_path, monkeypatch)
    row = ROWS[name]
    _, before = outcome(work.build(row, FED.public.nets), tmp_path / "blobs")
    count = len(nodes)
    put(monkeypatch, place, word, body)
    _, after = outcome(work.build(row, FED.public.nets), tmp_path / "blobs")
    assert not equal(before, after)
    assert len(nodes) > count
    count = len(nodes)
    monkeypatch.setattr(work, "TASKS", {})
    _, again = outcome(work.build(row, FED.public.nets), tmp_path / "blobs")
    assert equal(before, again)
    assert len(nodes) == count


@pytest.mark.slow
@pytest.mark.parametrize("name", ["code_ot", "fedavg"])
def test_an_edited_evaluation_changes_the_scores_alone(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of the last round, and of rounds inside a chunk; undone, everything is in the cache again."""
    nodes = run_at_once(tmp_path, monkeypatch)
    method = ROWS[name].build(FED.public.nets)
    before, models = outcome(method, tmp_path / "blobs")
    put(monkeypatch, "evaluate", "", score_nothing)
    after, same = outcome(work.with_tasks(method), tmp_path / "blobs")
    assert equal(models, same)
    assert after != before
    assert {score for each in after.values() for split in each.values() for score in split.values()} == {0.0}
    count = len(nodes)
    monkeypatch.setattr(work, "TASKS", {})
    assert outcome(method, tmp_path / "blobs")[0] == before
    assert len(nodes) == count


def reversed_names(part: Any, dataset: Any) -> Any:
    parts = part(dataset)
    return replace(parts, names=tuple(reversed(parts.names)))


@pytest.mark.slow
def test_an_edited_partition_divides_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    nodes = run_at_once(tmp_path, monkeypatch)
    store = Store(tmp_path / "blobs")
    dataset = store.put(load("digits"))
    before, divided = (partitions.divide_dataset(Graph(store, Inline()), dataset, PARTITIONED, 0) for _ in range(2))
    put(monkeypatch, "partition", "", reversed_names)
    after = partitions.divide_dataset(Graph(store, Inline()), dataset, PARTITIONED, 0)
    assert before == divided
    assert store.get(after).names == tuple(reversed(store.get(before).names))
    assert len(nodes) == 2


def test_a_body_that_only_calls_its_part_is_no_edit():
    assert not work.is_edited(plain)
    assert all(work.is_edited(body) for body in (halve_messages, without_first, halve_model))


@pytest.mark.slow
def test_the_source_of_an_edited_body_is_in_the_key(monkeypatch: pytest.MonkeyPatch):
    method = ROWS["code_ot"].build(FED.public.nets)
    digests = [Digest().of(method)]
    for body in (plain, without_first, halve_messages):
        put(monkeypatch, "combine", "fuse", body)
        digests.append(Digest().of(work.with_tasks(method)))
    assert digests[0] == digests[1]
    assert len({*digests}) == 3


def with_what_was_sent(server: Any, updates: Any, round_info: Any, *, sent: Any) -> Any:
    return sent, {}


def of_the_device(memory: Any, message: Any, *, device: Any) -> Any:
    return device


def test_a_part_keeps_the_arguments_that_it_asks_for(monkeypatch: pytest.MonkeyPatch):
    put(monkeypatch, "combine", "with", without_first)
    combine = work.around("combine", with_what_was_sent)
    assert takes(combine, "sent")
    assert combine({}, {"a": 1, "b": 2}, None, sent="sent") == ("sent", {})
    assert work.word_of(combine) == "with"
    put(monkeypatch, "deploy", "", halve_model)
    assert takes(work.around("deploy", of_the_device), "device")


def test_a_task_that_takes_something_else_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(work, "TASKS", {})
    with pytest.raises(InputError, match=r"halve_model: a task around local must take \(part, memory, message, device"):
        work.local("train")(halve_model)
    work.combine("fuse")(without_first)
    with pytest.raises(InputError, match=r"plain: .*without_first is the task of combine 'fuse' already"):
        work.combine("fuse")(plain)


def test_a_word_has_one_task_in_each_place(monkeypatch: pytest.MonkeyPatch):
    """`align` is a device's step of FADA and the server's of FedASA."""
    put(monkeypatch, "combine", "align", without_first)
    fedasa, fada = (work.with_tasks(ROWS[name].build(FED.public.nets)) for name in ("fedasa", "fada"))
    assert any(getattr(stage.combine, "func", None) is without_first for stage in fedasa.stages)
    assert all(without_first not in (getattr(s.local, "func", 0), getattr(s.combine, "func", 0)) for s in fada.stages)


def test_only_tasks_of_a_methods_own_parts_are_named(monkeypatch: pytest.MonkeyPatch):
    """The evaluation and the partition are part of every method's run."""
    put(monkeypatch, "combine", "fuse", without_first)
    work._register("evaluate", ("",), score_nothing)
    work._register("attach", ("rank",), plain)
    code, fedavg = (work.edited(work.build(ROWS[name], FED.public.nets)) for name in ("code_ot", "fedavg"))
    assert [name.rpartition(":")[2] for name in code] == ["score_nothing", "without_first"]
    assert [*fedavg.values()] == [score_nothing]
    assert work.edited() == code
