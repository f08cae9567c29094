"""What a run would cost, beside what it then computes."""

import os
import re
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import process_time
from types import SimpleNamespace
from typing import Any

import pytest
from at_once import run_at_once
from every_method import ROWS
from federations import SGD, federation
from signals import federation as signals

from fedcore.config.methods import MethodConfig
from fedcore.config.request import ask, plan_jobs
from fedcore.core import training
from fedcore.core.rounds import run
from fedcore.execute.workers import Inline
from fedcore.methods.fedasa import fedasa
from fedcore.methods.one_shot import gaussians
from fedcore.pipeline import environment
from fedcore.pipeline.cache.store import Store
from fedcore.types.federation import Federation, Threats

environment.prepare()  # Prefect reads its settings when it is imported

from fedcore.pipeline.cache import journal
from fedcore.pipeline.orchestration.graph import Graph
from fedcore.pipeline.run.chunks import rounds
from fedcore.pipeline.run.forecast import (
    READ,
    CachedRuns,
    DryRun,
    Plan,
    divide,
    forecast,
    message_bytes,
    typical_seconds,
)
from fedcore.pipeline.run.run_method import deploy_models, rates_of
from fedcore.report.terminal import CostEstimate

WORDS = ("study=code", "methods=[fedavg,majority]", "federation.devices=4", "federation.alpha=100")
SENDERS = replace(SGD, optimiser_state="fresh", shared_init=True)
THREATS = (Threats(hostile=0.4, attack="sign_flip", drop=0.3), Threats(hostile=0.4, attack="duplicate", deadline=0.8))
HOSTILE = [(name, one) for name in ("code_ot", "fedavg", "majority_per_device", "scaffold") for one in THREATS]

COUNTED = {
    "analytic", "analytic_local", "code_ot", "dfl", "ensemble", "fd", "fedavg", "fedbabu", "fedgen", "fedper",
    "fedproto", "lmf", "majority", "regmean", "scaffold", "xgb_local",
}  # fmt: skip
"""Methods whose planned bytes are those of the run: first messages are as large as they are."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place of no steps, in which a step's task runs at once."""
    run_at_once(tmp_path, monkeypatch)
    monkeypatch.setattr(journal, "JOURNAL", tmp_path / "journal.jsonl")
    return tmp_path


def stored(fed: Federation, store: Store) -> Federation:
    devices = {name: replace(device, data=store.put(device.data)) for name, device in fed.devices.items()}
    return replace(fed, devices=devices, test=store.put(fed.test), server_data=store.put(fed.server_data))


def sizes_of(fed: Federation) -> dict[str, int]:
    return {name: len(device.data.train) for name, device in fed.devices.items()}


def word(node: Any) -> str:
    return str(re.split("[ :]", node.name)[0])


ARROWS = {
    "code_ot": "partition > begin > train > rank > fuse > deploy, fuse > evaluate, fuse > train",  # of two rounds
    "dfl": "partition > begin > rounds > deploy",  # which score, too
    "fedasa": "partition > begin > train > align > train > mix > deploy, align > evaluate, mix > evaluate",
    "st_lf": "partition > begin > train > store > report > collect > link > upload > send > deploy, "
    "store > compare > link, store > evaluate, link > evaluate, send > evaluate",
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "threats"), [*((name, None) for name in ROWS), *HOSTILE])
def test_a_plan_has_the_steps_that_a_run_computes_and_then_finds(
    name: str, threats: Threats | None, project: Path, monkeypatch: pytest.MonkeyPatch
):
    """Before the run none is cached, and the kinds are known; after it all are, and so is each key.

    The run is drawn as the papers draw it: an arrow for each kind of step that reads what another has returned.
    """
    nodes = run_at_once(project, monkeypatch)
    store = Store(project / "blobs")
    whole = replace(federation("abcd"), threats=threats)
    fed = stored(whole, store)
    method = ROWS[name].build(fed.public.nets, sizes_of(whole))
    dry_run = DryRun(store, 1)
    before = dry_run.play(method, fed, 0, 1, dry_run.message_bytes(ROWS[name], fed, sizes_of(whole)))
    steps = Graph(store, Inline())
    with steps.drawing(fed):
        results = list(rounds(method, fed, 0, steps, 1))
        deploy_models(steps, method, fed, results[-1].state)
    arrows = {(word(parent), word(node)) for node in nodes for parent in node.parents}
    if threats is None and name in ARROWS:
        assert arrows == {pair for line in ARROWS[name].split(", ") for pair in pairwise(line.split(" > "))}
    after = DryRun(store, 1).play(method, fed, 0, 1)
    computed = {step.key: step.kind for step in steps.done}
    assert {key: step.kind for key, step in after.steps.items()} == computed
    assert all(step.cached for step in after.steps.values())
    assert not any(step.cached for step in before.steps.values())
    assert {key: step.wall for key, step in after.steps.items()} == {step.key: step.wall for step in steps.done}
    assert {step.kind for step in before.steps.values()} == {*computed.values()}
    if threats is None and name in COUNTED:
        assert before.traffic == after.traffic
    assert after.traffic == sum(sum(result.up.values()) + sum(result.down.values()) for result in results)


@pytest.mark.slow
def test_of_many_rounds_the_first_stand_for_all(project: Path, monkeypatch: pytest.MonkeyPatch):
    fed = stored(federation("abcd"), store := Store(project / "blobs"))
    method = ROWS["fedavg"].build(fed.public.nets)
    of = [replace(method, stages=(replace(method.stages[0], rounds=rounds),)) for rounds in (400, 1_000_000)]
    assert [step.kind for step in DryRun(store, 1).play(of[0], fed, 0, 10**9).steps.values()].count("evaluate") == 1
    whole = DryRun(store, 1).play(of[0], fed, 0, 1)
    monkeypatch.setattr("fedcore.pipeline.run.forecast.TURNS", 800)
    bound = DryRun(store, 1).play(of[0], fed, 0, 1)
    assert (whole.bound, bound.bound) == (False, True)
    assert whole.traffic <= bound.traffic <= 1.05 * whole.traffic
    start = process_time()
    assert DryRun(store, 1).play(of[1], fed, 0, 1).traffic == pytest.approx(2_500 * bound.traffic, rel=0.05)
    assert process_time() - start < 1


@pytest.mark.parametrize(("more", "cached", "computed"), [(0, 0, 5), (1, 0, 5), (1, 8, 2), (1, 9, 1), (1, 10, 0)])
def test_of_many_seeds_the_first_to_be_computed_stands_for_all_later(
    more: int, cached: int, computed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The first seed, which alone tries rates, stands for none. Of the last seed nothing is a bound."""
    _, jobs = plan_jobs(ask(["study=code", "methods=[fedavg]", "seeds=[5,6,7,8,9]"]))
    runs = sum(len(setting.methods) for job in jobs for setting in job.settings)

    def plan(_: Any, job: Any, setting: Any, apart: Any, rates: list[MethodConfig], *__: Any) -> Any:
        key = f"{job.seed} {setting.name} {rates[0].label} {rates[0].training.lr}"
        return rates[0], Plan({key: journal.Step("train", "", key, job.seed < cached, 2.0, 2.0, ())}, 1.0)

    for name, value in {
        "divide": lambda *_: SimpleNamespace(rest=None, before=0), "best_rate": plan, "RUNS": runs - more,
        "CachedRuns.add": lambda *_: None,
    }.items():  # fmt: skip
        monkeypatch.setattr(f"fedcore.pipeline.run.forecast.{name}", value)
    rows = [*forecast(jobs, Store(tmp_path), 1, None)]
    assert sum(row.seconds for row in rows) == 2.0 * computed * runs / 5
    assert any(row.bound for row in rows) == (more > 0 and computed > 1)


def test_a_row_that_is_not_chosen_takes_no_step_from_the_one_that_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Both train alike without a device, and the dearest stands for both: it needs this training, too."""
    _, jobs = plan_jobs(ask(["study=code", "methods=[lmf,fedavg_1]", "seed=0"]))
    of_step = partial(journal.Step, unit="", cached=False, cpu=0.0, blobs=())

    def without(_: Any, seed: int, apart: Any, row: MethodConfig) -> tuple[str, Plan]:
        own = of_step("fuse", key=row.label, wall=float(row.label == "fedavg_1"))
        return "combines", Plan({"train": of_step("train", key="train", wall=2.0), row.label: own}, 1.0)

    apart = SimpleNamespace(rest=(), before=0, fed=SimpleNamespace(devices="abcd"))
    for name, value in {
        "divide": lambda *_: apart, "best_rate": lambda *given: (given[4][0], Plan({}, 1.0)),
        "leave_first_out": without, "CachedRuns.add": lambda *_: None, "GUESSES": (),
    }.items():  # fmt: skip
        monkeypatch.setattr(f"fedcore.pipeline.run.forecast.{name}", value)
    rows = [row for row in forecast(jobs, Store(tmp_path), 1, None) if row.steps]
    assert [(row.method, row.steps, row.seconds) for row in rows] == [("fedavg_1 without each device", 8, 12.0)]


def test_the_seconds_of_reading_are_those_between_steps_that_were_read(project: Path):
    """In a container each night's process may have the same number."""
    night = [(1.0, True, 1), (9.0, False, 1), (20.0, True, 1), (24.0, True, 1), (25.0, True, 2)]
    for at, cached, process in (*night, *((at + 86400, *line) for at, *line in night)):
        line = {"time": at, "key": "", "step": "train", "cached": cached, "wall": 7.0, "process": process}
        journal.append(line)
    assert typical_seconds() == {"train": 7.0, READ: 4.0}


def test_a_row_is_looked_up_first_whose_beginning_alone_is_cached(project: Path):
    """It also stops training early, which a plan's single minibatch does not."""
    store, whole = Store(project / "blobs"), federation("ab")
    fed, steps = stored(whole, store), DryRun(store, 1)
    row = MethodConfig("fedavg", "fedavg", replace(SENDERS, patience=2), {"rounds": 3})
    method = row.build(fed.public.nets, sizes_of(whole))
    Graph(store, Inline()).run_inline(method.begin, fed.public, 0, start=True)
    assert steps.look(lambda: list(rounds(method, fed, 0, steps, 1))) is None
    assert steps.message_bytes(row, fed, sizes_of(whole)).stages[0].up > 0


def test_a_plan_knows_what_the_last_run_took_beside_its_steps(project: Path, monkeypatch: pytest.MonkeyPatch):
    assert journal.LAST.name in environment.FILES
    monkeypatch.setattr(journal, "LAST", project / "last_run.json")
    assert journal.beside_steps(2) is None
    line = {"key": "", "step": "train", "process": os.getpid(), "cached": False, "wall": 0.2}
    journal.append(line | {"time": 1.0, "wall": 60.0})  # of an earlier process with the same number
    journal.append(line)
    journal.note_run(3)
    journal.append(line | {"time": 2e10, "wall": 60.0})  # of a later one
    (one, runs), (two, _) = (journal.beside_steps(workers) or (0.0, 0) for workers in (1, 2))
    assert (runs, two - one) == (3, pytest.approx(0.1))


def test_a_new_kind_of_step_is_refused(project: Path):
    """A plan cannot say what it returns."""
    dry_run = DryRun(Store(project / "blobs"), 1)
    dry_run.play(ROWS["local_only"].build(federation("ab").public.nets), stored(federation("ab"), dry_run.store), 0, 1)
    with pytest.raises(TypeError, match="a plan has no stand-in for step 'len'"):
        dry_run(len, "abc")


@pytest.mark.slow
def test_all_rows_at_once_send_what_each_sends_alone(project: Path):
    """Data are divided once, and messages measured once, for all rows and rates that share them."""
    words = (*WORDS, f"data.root={project}")
    jobs = [job for width in (4, 6) for job in plan_jobs(ask([*words, f"net.widths=[{width}]"]))[1][:2]]
    jobs = [job.model_copy(update={"settings": job.settings[:1]}) for job in jobs]
    apart = [
        job.model_copy(update={"settings": [replace(setting, methods=(row,))]})
        for job in jobs
        for setting in job.settings
        for row in setting.methods
    ]
    alone = [one for job in apart for one in forecast([job], Store(project / "a"), 1, None)]
    together = [*forecast(jobs, Store(project / "b"), 1, None)]
    assert [(one.method, one.traffic) for one in together] == [(one.method, one.traffic) for one in alone]
    assert len({one.traffic for one in together if one.method == "fedavg"}) == 2  # one for each net


@pytest.mark.slow
def test_one_row_of_a_kind_is_trained_without_each_device(project: Path):
    """The most expensive one that combines stands for all of them: where a mean has taken 7 seconds, FedAvg."""
    journal.append({"key": "", "step": "average", "cached": False, "wall": 7.0})
    words = ["study=code", "methods=[local_only,lmf,fedavg_1]", "seed=0", "run.new_device=left_out"]
    _, jobs = plan_jobs(ask([*words, "federation.devices=4", "federation.alpha=100", f"data.root={project}"]))
    rows = {one.method: one for one in forecast(jobs, Store(project / "blobs"), 1, None)}
    without = {label.partition(" without ")[0]: one for label, one in rows.items() if " without each device" in label}
    assert [*without] == ["local_only", "fedavg_1", "majority", "majority_per_device"]
    assert [rows["fedavg_1"].seconds, without["fedavg_1"].seconds] == [7.0, 4 * 7.0]
    assert [one.without for one in without.values()] == [4, 4, 4, 4]
    assert without["majority_per_device"].steps == 4 * 3  # labels are counted for majority; kept, scored twice


@pytest.mark.slow
def test_a_plan_has_the_rate_that_is_best_by_what_decides_now(project: Path, monkeypatch: pytest.MonkeyPatch):
    """With the second seed the rate ran that was best before run.weigh changed."""
    words = ["study=code", "methods=[local_only]", "seeds=[0,1]", "run.lr_factors=[1,0.1]"]
    words += ["training.epochs=1", "federation.devices=2", "federation.alpha=100", f"data.root={project}"]
    jobs = [
        job.model_copy(update={"settings": [replace(setting, methods=setting.methods[:1])]})
        for job in plan_jobs(ask(words))[1]
        for setting in job.settings[:1]
    ]
    steps: Any = Graph(Store(project / "blobs"), Inline())
    monkeypatch.setattr(steps, "look", lambda run: run(), raising=False)
    for job, count in zip(jobs, (2, 1), strict=True):
        partitioned = divide(steps, {}, job, setting := job.settings[0])
        (row,) = setting.methods
        rows = [replace(row, training=replace(row.training, lr=lr)) for lr in rates_of(setting, row)[:count]]
        CachedRuns(steps, job.criterion, False).add(job, setting, partitioned, rows)

    def due(chosen: int) -> dict[str, int]:
        monkeypatch.setattr("fedcore.pipeline.run.forecast.best", lambda tables, _: [*tables][chosen])
        plan = [*forecast(jobs, steps.store, 1, None)]
        return {one.method: one.steps - one.cached for one in plan if one.steps > one.cached}

    assert due(0) == {}
    assert {*due(-1)} == {"local_only"}


@pytest.mark.slow
def test_a_plan_before_during_and_after_a_run_that_stops_a_row(project: Path, monkeypatch: pytest.MonkeyPatch):
    """The first row cannot win. It stops after two of four seeds, and it is the other one that runs without devices."""
    words = ["study=code", "methods=[fedavg_1]", "seeds=[0,1,2,3]", "run.new_device=left_out", "run.stop_rows=auto"]
    words += ["training.epochs=8", "federation.devices=3", f"data.root={project}"]
    jobs = []
    for job in plan_jobs(ask(words))[1]:
        (setting,) = job.settings
        training = replace(setting.methods[0].training, shared_init=True)
        row = replace(setting.methods[0], training=training)
        rows = replace(row, label="bad", training=replace(training, lr=1e-9)), row
        settings = [
            replace(setting, name=f"{alpha}", methods=rows, federation=setting.federation | {"alpha": alpha})
            for alpha in (100, 1000)
        ]
        jobs.append(job.model_copy(update={"settings": settings}))
    steps: Any = Graph(Store(project / "blobs"), Inline())
    monkeypatch.setattr(steps, "look", lambda run: run(), raising=False)
    monkeypatch.setattr("fedcore.pipeline.run.forecast.STOPPED_AFTER", 2)
    ready = [(job, setting) for job in jobs for setting in job.settings]
    runs = {setting.name: CachedRuns(steps, jobs[0].criterion, True) for setting in jobs[0].settings}

    def run(several: list[Any]) -> None:
        for job, setting in several:
            partitioned, stopped = divide(steps, {}, job, setting), runs[setting.name].stopped(job)
            for row in setting.methods:
                if row.label not in stopped:
                    runs[setting.name].add(job, setting, partitioned, [row])

    def plan(most: int) -> tuple[dict[str, int], list[CostEstimate]]:
        monkeypatch.setattr("fedcore.pipeline.run.forecast.RUNS", most)
        rows = [*forecast(jobs, steps.store, 1, None)]
        return Counter(one.method for one in rows), rows

    (each, full), (_, bound) = plan(100), plan(1)
    assert each == {"bad": 8, "fedavg_1": 8, "bad without each device": 8}
    assert sum(one.steps for one in bound) == sum(one.steps for one in full)
    assert [one.bound for one in bound if "without" in one.method] == [False, False, True, True]
    run(ready[:5])  # both settings with two seeds, one of them with the third
    during, rows = plan(1)
    assert during == {"bad": 4, "fedavg_1": 6, "bad without each device": 4, "fedavg_1 without each device": 2}
    assert any(one.bound for one in rows)  # so that it is not known which row is best
    run(ready[5:])
    after, rows = plan(1)
    assert after == {"bad": 4, "fedavg_1": 8, "fedavg_1 without each device": 8}
    assert {one.method for one in rows if one.steps > one.cached} == {"fedavg_1 without each device"}
    assert not any(one.bound for one in rows)
    assert [replace(runs["100"], whole=whole).stopped(jobs[3]) for whole in (True, False)] == [{"bad"}, set()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "stage"), [("fedavg", 0), ("majority", 0), ("scaffold", 0), ("ensemble", 1), ("st_lf", 1)]
)
def test_messages_are_as_large_as_they_are_sent(name: str, stage: int, tmp_path: Path):
    fed = federation("abc")
    row = MethodConfig(name, name, SENDERS, {})
    turns = list(run(row.build(fed.public.nets, sizes_of(fed)), fed, 0, Inline()))
    sent = next(turn for turn in turns if any(turn.up.values()))
    assert sent.round_info.stage == stage
    found = message_bytes(row, fed, sizes_of(fed), Store(tmp_path)).stages
    assert {number: sizes.up for number, sizes in found.items()} == {stage: sent.up["c"]}
    if name in ("fedavg", "majority"):  # whose answer is as large, however many sent
        assert found[0] == (sent.up["c"], sent.state.messages["c"].nbytes, 0, 0)


@pytest.mark.slow
def test_an_answer_that_grows_counts_with_its_growth(project: Path):
    """Trees of later rounds are smaller than those of the first two."""
    one = federation("a").devices["a"]
    fed = replace(federation("abc"), devices={name: replace(one, name=name) for name in "abc"})
    there = stored(fed, store := Store(project / "blobs"))
    row = MethodConfig("xgb_bagging", "xgb_bagging", SGD, {"rounds": 4})
    results = list(run(method := row.build(fed.public.nets), fed, 0, Inline()))
    sent = sum(sum(result.up.values()) + sum(result.down.values()) for result in results)
    for every in (1, 4):  # in single steps, and in one of several rounds
        dry_run = DryRun(store, 1)
        bytes_of = dry_run.message_bytes(row, there, sizes_of(fed))
        assert dry_run.play(method, there, 0, every, bytes_of).traffic == pytest.approx(sent, rel=0.01)


def test_devices_that_send_nothing_have_no_message(tmp_path: Path):
    row = MethodConfig("local_only", "local_only", SGD, {})
    assert message_bytes(row, federation("ab"), {"a": 6, "b": 9}, Store(tmp_path)).stages == {}


DRAWS = {"draws": 60, "epochs": 9, "batch": 20, "minimum": 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings", "trains", "fed", "times"),
    [
        ("st_lf", {"pretrain": 1, "pretrain_steps": 50}, training, federation("ab"), 1),
        ("fedasa", {"steps": 40, "target": None}, fedasa, signals("abc"), 1),  # as large whatever the server has learnt
        ("gaussian_distillation", DRAWS, gaussians, federation("abc"), 2),  # it answers one device, then two
    ],
)
def test_pretraining_and_a_server_take_a_single_minibatch_too(
    name: str, settings: Any, trains: Any, fed: Federation, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    seen: list[int] = []
    real = trains.descend
    monkeypatch.setattr(
        trains, "descend", lambda data, batches, step: seen.append(len(batches)) or real(data, batches, step)
    )
    row = MethodConfig(name, name, SENDERS, settings)
    ((stage, sent),) = message_bytes(row, fed, sizes_of(fed), Store(tmp_path)).stages.items()
    assert seen == [1] * times
    turn = next(
        turn for turn in run(row.build(fed.public.nets, sizes_of(fed)), fed, 0, Inline()) if any(turn.up.values())
    )
    assert (stage, sent.up) == (turn.round_info.stage, turn.up[max(sizes_of(fed), key=sizes_of(fed).__getitem__)])
