"""Champions: proposals are compared on the same held-out data, and only a promotion moves the alias."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import pandas as pd
import pytest
import torch
from plant_rows import on_devices, plant
from tables import frame, rows

from fedcore import InputError, Model, method, nets
from fedcore.api.serving import ServedModels
from fedcore.cli import predict, promote, status
from fedcore.core.evaluation import outputs
from fedcore.data.encoding import encode
from fedcore.data.schema import Fit, Schema
from fedcore.field import deployed
from fedcore.field.runs import Study, read_run, run_with_devices
from fedcore.field.session import FieldRun
from fedcore.field.study import schema_of
from fedcore.pipeline import environment
from fedcore.pipeline.cache.store import Ref, Store
from fedcore.pipeline.record import challenge, models, promotion, registry, runs, seals
from fedcore.pipeline.record.contents import DEVICES, device_table
from fedcore.pipeline.record.field import find_answer, rates_of_rows, record
from fedcore.pipeline.record.result import CERTAIN, Evidence, Rule
from fedcore.pipeline.run.comparison import proposals
from fedcore.results.advice import Action, Advice, Answer, NewDevice
from fedcore.results.criterion import Criterion, Measured
from fedcore.types.federation import Scoring

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # MLflow's own

Make = Callable[..., Any]
ROOT = Path(__file__).parents[3]


@pytest.fixture
def make(client: Any, request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Return a function that registers a version with accuracies of devices, for a task named after the test."""
    name = registry.registered(re.sub(r"\W+", "-", request.node.name))
    client.create_registered_model(name)
    experiment = client.get_experiment_by_name("fedcore").experiment_id

    def version(accuracy: list[float], partition: str = "p", data: str = "d", of: Any = None) -> Any:
        run = client.create_run(experiment)
        (tmp_path / DEVICES).write_bytes(device_table(frame(rows({"a": [accuracy]}))))
        client.log_artifact(run.info.run_id, str(tmp_path / DEVICES))
        client.set_terminated(run.info.run_id)
        final = {registry.FINAL_FIT_OF: str(of.version), registry.STUDY_RUN: of.run_id} if of else {}
        tags = {
            "fedcore.data": data, "fedcore.partition": partition, "fedcore.method": "a", "fedcore.seed": "0",
            "fedcore.study": "code", "fedcore.size": "small", "fedcore.setting": "base", **final,
        }  # fmt: skip
        return client.create_model_version(name, "file:///nowhere", run.info.run_id, tags=tags)

    return version


def champion(client: Any, version: Any) -> str | None:
    found = promotion.alias(client, version.name, registry.CHAMPION)
    return found and str(found.version)


def propose(client: Any, version: Any, promote: bool, evidence: Evidence = CERTAIN) -> str:
    """Propose a version as the record does; returns the line about it."""
    record: Any = SimpleNamespace(client=client, lock=nullcontext(), _versions=lambda _: [(version, "")])
    record._for_new_devices = record._of_one_name = lambda _: []
    rule: Any = None
    ((notice,), _) = runs.Record.propose(record, {"": evidence}, rule, promote)
    assert (notice.event == "promoted") == ("promoted" in notice.line)
    return str(notice.line)


def test_a_run_proposes_and_does_not_crown_itself(client: Any, make: Make):
    first = make([0.5, 0.6])
    said = propose(client, first, False)
    assert "no champion yet" in said
    assert f"fedcore promote {first.name.removeprefix('fedcore-')}" in said
    assert champion(client, first) is None
    candidate: Any = promotion.alias(client, first.name, registry.CANDIDATE)
    assert candidate.tags[registry.PROPOSAL] == said.partition("; to promote")[0]


def test_a_promotion_keeps_the_champion_before_as_previous(client: Any, make: Make):
    first, second = make([0.5, 0.6]), make([0.7, 0.8])
    for version in (first, second, second):
        promotion.promote(client, version)
    assert champion(client, first) == str(second.version)
    previous: Any = promotion.alias(client, first.name, registry.PREVIOUS)
    assert previous.version == first.version


SLOPED = """
from pathlib import Path
from torch import nn

{}

class Mine(nn.Linear):
    def __init__(self, shape, classes):
        super().__init__(shape[0], classes)
        {}

    def forward(self, x):
        return super().forward(x) * {}
"""
BESIDE, ELSEWHERE = "float((Path(__file__).parent / 'slope.txt').read_text())", "float(Path({!r}).read_text())"
READS = {
    "beside it, at import": (f"SLOPE = {BESIDE}", "", "SLOPE"),
    "beside it, in its constructor": ("", f"self.slope = {BESIDE}", "self.slope"),
    "beside it, in forward": ("", "", BESIDE),
    "elsewhere, at import": (f"SLOPE = {ELSEWHERE}", "", "SLOPE"),
    "elsewhere, in its constructor": ("", f"self.slope = {ELSEWHERE}", "self.slope"),
    "elsewhere, in forward": ("", "", ELSEWHERE),
}


@pytest.mark.parametrize("what", READS)
def test_a_net_that_reads_a_file_its_version_lacks_stays_a_candidate(
    what: str, client: Any, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    module, file = f"sloped_{tmp_path.name}", tmp_path / "slope.txt"
    file.write_text("1")
    (tmp_path / f"{module}.py").write_text(SLOPED.format(*(text.format(str(file)) for text in READS[what])))
    monkeypatch.syspath_prepend(str(tmp_path))
    section, schema = {"name": f"{module}:Mine"}, Schema((2,), "float32", ("a", "b"), devices={"one": Fit()})
    model = Model((nets.init(nets.net(shape=(2,), classes=2, **section), torch.Generator()),))
    models.write(tmp_path / "files" / models.FOLDER, schema, [section], [(model, 0)], {"one": 0})
    with models.quiet():
        mlflow.pyfunc.save_model(path=str(tmp_path / "model"), **models.log_arguments(tmp_path / "files"))
    monkeypatch.setattr(challenge, "files_of", lambda version: tmp_path / "model")
    if "elsewhere" in what:
        promotion.require_own_net(make([0.5]))
        file.write_text("2")
    version = make([0.5, 0.6])
    with pytest.raises(InputError, match=r"FileNotFoundError: .*slope.txt|are others than they were"):
        promotion.promote(client, version)
    assert "; it stays a candidate: " in propose(client, version, True)
    assert champion(client, version) is None


@pytest.mark.parametrize(
    ("accuracy", "partition", "better"),
    [
        ([0.8, 0.7, 0.9], "p", "yes"),  # +.1 on each device
        ([0.6, 0.5, 0.7], "p", "no"),
        ([0.7, 0.6, 0.8], "p", "no"),  # the same
        ([1.0, 0.4, 0.76], "p", "no"),  # +.02 with a standard error of .15
        ([0.9, 0.9, 0.9], "other", "not comparable"),
    ],
)
def test_a_candidate_is_compared_on_the_same_data(
    client: Any, make: Make, accuracy: list[float], partition: str, better: str
):
    present, candidate = make([0.7, 0.6, 0.8]), make(accuracy, partition)
    promotion.promote(client, present)
    found = promotion.compare(client, candidate)
    assert (found.better, " --version " in found.advice) == (better, better != "yes")
    # The nightly rule promotes a better one only.
    assert propose(client, candidate, True).endswith("; promoted") == (better == "yes")
    assert champion(client, present) == str((candidate if better == "yes" else present).version)


def test_scores_of_another_label_are_not_comparable(client: Any, make: Make, monkeypatch: pytest.MonkeyPatch):
    present, candidate = make([0.7, 0.6, 0.8]), make([0.9, 0.9, 0.9])
    promotion.promote(client, present)
    for version in (present, candidate):
        client.set_tag(version.run_id, promotion.METRIC, "f1")
    scored = {present.run_id: {"positive": "ja"}, candidate.run_id: {"positive": "nein"}}
    monkeypatch.setattr(promotion, "setting_of", lambda _, of: SimpleNamespace(scoring=scored[of.run_id]))
    found = promotion.compare(client, candidate)
    assert (found.better, found.why) == ("not comparable", "it is judged by another metric, label or costs")


@pytest.mark.parametrize(
    ("today", "said"),
    [
        ({"name": "table", "label": "größe"}, "data.label is 'größe', the champion's 'grüße'"),
        ({"name": "mine:wear", "label": "grüße"}, "data.name is 'mine:wear', the champion's 'table'"),
        ({"name": "table", "label": "grüße"}, ""),
    ],
)
def test_a_challenge_of_another_question_is_not_comparable(
    client: Any, make: Make, monkeypatch: pytest.MonkeyPatch, today: dict[str, str], said: str
):
    """Names of models keep Latin letters and digits alone, so that two labels may have one."""
    present, candidate = make([0.7, 0.6, 0.8]), make([0.9, 0.9, 0.9])
    promotion.promote(client, present)
    client.set_model_version_tag(candidate.name, candidate.version, promotion.HOLD_OUT, "stable")
    then, now = SimpleNamespace(data={"name": "table", "label": "grüße"}), SimpleNamespace(data=today, scoring={})
    of_runs = {present.run_id: then}  # the candidate's are read once
    monkeypatch.setattr(promotion, "setting_of", lambda _, of: of_runs[of.run_id])
    monkeypatch.setattr(promotion, "read_origin", lambda *_: SimpleNamespace(setting=now))
    monkeypatch.setattr(challenge, "compare", lambda *_: ("yes", ""))
    candidate = client.get_model_version(candidate.name, candidate.version)
    rule = Rule(Store(Path("blobs")), Criterion())
    found = promotion.compare(client, candidate, rule)
    assert (found.better, found.why) == ("not comparable" if said else "yes", said)
    client.set_tag(present.run_id, promotion.METRIC, "balanced_accuracy")
    why = promotion.compare(client, candidate, rule).why
    assert why == (said or "; the champion's study was decided by balanced accuracy"), "auto took another metric"
    monkeypatch.undo()
    for broken in (b"{}", b'{"method": {"name": "tasks.gone:mine"}}', b"[1]", b"no json"):
        monkeypatch.setattr(promotion, "read_artifact", lambda *_, broken=broken: broken)
        assert promotion.setting_of(client, present) is None, "an earlier version's card keeps no run from its end"


@pytest.mark.parametrize(("studied", "better"), [([0.6, 0.5, 0.7], "yes"), ([0.8, 0.7, 0.9], "no")])
def test_a_final_fit_is_compared_by_the_score_of_its_study(client: Any, make: Make, studied: list[float], better: str):
    """Whatever its own run says: it has trained on the rows that would test it."""
    first = make(studied)
    final = make([1.0, 1.0, 1.0] if better == "yes" else [0.0, 0.0, 0.0], of=first)
    promotion.promote(client, final)
    candidate = make([0.7, 0.6, 0.8])
    found = promotion.compare(client, candidate)
    assert found.better == better
    verdict = {"yes": "is better than", "no": "is not shown to be better than"}[better]
    assert f") {verdict} version {first.version}, whose final fit, version {final.version}, is the champion. R" in str(
        found
    )
    promotion.promote(client, candidate)
    assert promotion.compare(client, final).better == {"yes": "no", "no": "yes"}[better]


def test_a_version_and_its_final_fit_are_one_champion(client: Any, make: Make):
    first = make([0.5, 0.6])
    assert promotion.final_fit_of(client, first) is None
    final = make([1.0, 1.0], of=first)
    client.update_run(final.run_id, "RUNNING")
    assert promotion.final_fit_of(client, first) is None  # its writing was cut short
    client.update_run(final.run_id, "FINISHED")
    found: Any = promotion.final_fit_of(client, first)
    assert found.version == final.version
    promotion.promote(client, final)
    said = propose(client, first, True)
    assert said.endswith(f": the champion is its final fit, version {final.version}")
    assert champion(client, first) == str(final.version)
    promotion.promote(client, first)
    said = str(promotion.compare(client, final))
    assert said.endswith(f": the champion is the model of its study, version {first.version}")
    assert registry.describe(final) == f"a, seed 0, final fit of version {first.version}"


def test_a_final_fit_is_named_when_it_is_promoted(client: Any, make: Make):
    first, second = make([0.5, 0.5]), make([0.7, 0.7])
    finals = [make([0.0, 0.0], of=one) for one in (first, second)]
    said = promotion.compare(client, first).promoted(finals[0])
    assert said.endswith(f"its final fit, version {finals[0].version}, promoted; it is the first champion")
    promotion.promote(client, finals[0])
    assert promotion.compare(client, first).promoted(finals[0]).endswith(", is the champion")
    said = promotion.compare(client, second).promoted(finals[1])
    assert "the champion. Reason: +20.0" in said
    assert said.endswith(f"; its final fit, version {finals[1].version}, promoted")


def test_a_version_whose_run_does_not_say_what_made_it_has_no_final_fit(client: Any, make: Make):
    with pytest.raises(InputError, match=r"its run has no setting\.json, .* promote it as it is with --no-final-fit$"):
        promotion.read_origin(client, make([0.5]))


def test_a_candidates_tags_keep_its_comparison(client: Any, make: Make):
    """It is made anew once the champion is another."""
    present, other, candidate = make([0.7, 0.6, 0.8]), make([0.9, 0.9, 0.9]), make([0.8, 0.7, 0.9])
    promotion.promote(client, present)
    found = promotion.mark_candidate(client, candidate)
    kept = client.get_model_version(candidate.name, candidate.version)
    tags = {tag: kept.tags[tag] for tag in (registry.BETTER, registry.WHY, registry.AGAINST)}
    assert tags == dict(zip(tags, ("yes", found.why, str(present.version)), strict=True))
    assert str(promotion.last_comparison(client, kept)) == str(found)
    promotion.promote(client, other)
    assert promotion.last_comparison(client, kept).better == "no"


def test_a_first_champion_of_an_answer_that_cannot_say_is_the_simplest(tmp_path: Path, client: Any, make: Make):
    """Local training, or the best with one model for all; once there is a champion the best on validation rows."""
    rows = [("fedper", 0.9, False), ("fedavg", 0.8, True), ("fedprox", 0.7, True), ("local_only", 0.6, False)]
    of = {"study": "s", "setting": "base", "control": False}
    told = [
        {**of, "method": name, "seed": seed, "config": f"{name} {seed}", "candidate": one, "validation": value}
        for name, value, one in rows for seed in (1, 0)
    ]  # fmt: skip
    (tmp_path / "runs.json").write_text(json.dumps(told))
    for simple, first in (("local_only", "local_only 0"), (None, "fedavg 0")):
        said = {("s", "m", "base"): Answer(Criterion(), None, None, simple=simple)}
        found = proposals([tmp_path], said, {"s"})
        assert found == {first: Evidence(2, False, True, False), "fedper 0": Evidence(2, False, whole=False)}
    version = make([0.5])
    run = SimpleNamespace(data=SimpleNamespace(tags={promotion.MODEL: version.name}))
    record: Any = SimpleNamespace(client=client, find=lambda _: run, version_of=lambda _: version)
    assert [config for _, config in runs.Record._versions(record, found)] == ["fedavg 0"]
    assert propose(client, version, True).endswith("(a, seed 0): promoted; it is the first champion")
    assert [config for _, config in runs.Record._versions(record, found)] == ["fedper 0"]
    assert propose(client, version, True).endswith("is the champion")


def test_proposals_compare_common_seeds_and_order_settings(tmp_path: Path):
    """Rows are compared on their common seeds; settings by whether the answer recommends, then on validation rows."""
    of_rows = {
        ("one", "fedavg"): [0.9, 0.9, 0.5, 0.5], ("one", "fedprox"): [0.8, 0.8], ("two", "fedavg"): [0.8, 0.8],
    }  # fmt: skip
    told = [
        {
            "study": "s", "setting": setting, "control": False, "method": name, "seed": seed, "candidate": True,
            "config": f"{setting} {name} {seed}", "validation": value,
        }
        for (setting, name), values in of_rows.items() for seed, value in enumerate(values)
    ]  # fmt: skip
    (tmp_path / "runs.json").write_text(json.dumps(told))
    assert [*proposals([tmp_path], {})] == ["two fedavg 0", "one fedavg 0"]
    use = Answer(Criterion(), Advice(Action.USE, "fedavg"), None)
    assert [*proposals([tmp_path], {("s", "m", "one"): use})] == ["one fedavg 0", "two fedavg 0"]
    for_new = replace(use, new_device=NewDevice(Advice(Action.USE, "fedprox"), Measured({}), in_turn=True))
    found = proposals([tmp_path], {("s", "m", "one"): for_new})
    assert {config: why.new for config, why in found.items()} == {
        "one fedavg 0": "", "two fedavg 0": "", "one fedprox 0": "only",
    }  # fmt: skip


def test_a_first_champion_that_no_answer_recommends_says_so(client: Any, make: Make):
    """Its final fit too; a later one is better than a champion."""
    words, first = "not shown to be better", make([0.5])
    final = make([0.5], of=first)
    assert words in promotion.mark_candidate(client, first, evidence=Evidence(1, False)).advice
    assert words not in promotion.mark_candidate(client, first, evidence=Evidence(3)).advice  # more seeds show it
    assert words in promotion.mark_candidate(client, first, evidence=Evidence(3, False)).advice
    promotion.promote(client, final)
    found: Any = promotion.alias(client, first.name, registry.CHAMPION)
    assert words in registry.describe(found)
    assert words not in promotion.mark_candidate(client, make([0.7]), evidence=Evidence(3, False)).advice


@pytest.mark.parametrize(
    ("shown", "first", "better"),
    [
        ("yes", "", ""), ("", "", ""),
        ("new", ", better for new devices alone", "; its own study recommends it for new devices alone"),
        ("guess", ", no better than guessing", "as well as this version"),
        ("no", ", not shown to be better", "; its own study, over all its seeds, does not recommend it"),
    ],
)  # fmt: skip
def test_a_run_is_promoted_with_what_its_study_says_of_it(client: Any, make: Make, shown: str, first: str, better: str):
    """By the last of the answers on it, as the first champion and beside one that it beats."""
    version = make([0.9])
    client.set_tag(version.run_id, promotion.MODEL, version.name)
    experiment = client.get_run(version.run_id).info.experiment_id
    for latest, word in (("false", "yes"), ("true", shown), ("false", "yes")):
        tags = {"kind": "method", "runs": f"0 {version.run_id}", runs.LATEST: latest}
        client.create_run(experiment, tags=tags | ({registry.SHOWN: word} if word else {}))
    record: Any = SimpleNamespace(client=client, experiment=experiment, version_of=lambda _: version)
    record.search = partial(runs.Record.search, record)
    name = version.name.removeprefix("fedcore-")
    found = runs.Record.register_run(record, name, version.run_id[:8])
    line = promotion.compare(client, found).promoted()
    assert line == f"{name} version {version.version} (a, seed 0{first}): promoted; it is the first champion"
    promotion.promote(client, make([0.5]))
    line = str(promotion.compare(client, found))
    assert f"version {version.version} (a, seed 0{first * (shown == 'guess')}) is better than the champion" in line
    assert line.endswith(better or "data (95 % interval +40.0 to +40.0)")


@pytest.mark.parametrize(("score", "tag"), [([0.5], "no"), ([0.9], "yes")])
def test_a_champion_has_the_same_words_wherever_it_is_named(client: Any, make: Make, score: list[float], tag: str):
    """As its promotion says it of the final fit, and of the fit's own version, though proposed as the first one."""
    words, later = "not shown to be better", make(score)
    promotion.mark_candidate(client, later, evidence=Evidence(1, False))
    promotion.promote(client, make([0.7]))
    verdict = promotion.compare(client, client.get_model_version(later.name, later.version))
    final = make(score, of=later)
    promotion.promote(client, final, verdict)
    found: Any = promotion.alias(client, later.name, registry.CHAMPION)
    shown = words in verdict.promoted(final)
    assert verdict.promoted(final).count(words) == (tag == "no")
    assert (found.version, shown, words in registry.title(found)) == (final.version, tag == "no", shown)
    assert found.tags[registry.SHOWN] == client.get_run(final.run_id).data.tags[registry.SHOWN] == tag
    promotion.promote(client, client.get_model_version(later.name, later.version))
    found = promotion.alias(client, later.name, registry.CHAMPION)
    assert (found.version, found.tags[registry.SHOWN]) == (later.version, tag)


def test_a_model_that_guesses_becomes_champion_by_its_number_alone(client: Any, make: Make):
    first, words = make([0.5]), "(a, seed 0, no better than guessing)"
    said = propose(client, first, True, Evidence(3, False, guesses=True))
    assert f"{words}: no champion yet; to promote it: fedcore promote " in said
    assert f" --version {first.version} " in said
    assert champion(client, first) is None
    assert not promotion.compare(client, client.get_model_version(first.name, first.version)).accepted
    promotion.promote(client, final := make([0.5], of=first))
    found: Any = promotion.alias(client, first.name, registry.CHAMPION)
    assert (found.version, "no better than guessing" in registry.describe(found)) == (final.version, True)


def test_a_guess_that_is_better_than_the_champion_says_both_at_once(client: Any, make: Make):
    promotion.promote(client, make([0.5, 0.5]))
    said = promotion.mark_candidate(client, make([0.9, 0.9]), evidence=Evidence(3, False, guesses=True))
    assert (said.better, said.accepted) == ("yes", False)
    assert str(said).endswith("; by the same metric always guessing does as well as this version")
    sure = promotion.mark_candidate(client, make([0.9, 0.9]), evidence=Evidence(3))
    assert "guessing" not in str(sure)


def test_what_is_for_new_devices_alone_is_named_and_not_proposed(client: Any, make: Make):
    of_all, of_new = client.get_run(make([0.5]).run_id), client.get_run(make([0.7]).run_id)
    tag = mlflow.entities.RunTag(promotion.MODEL, "fedcore-x-y")
    client.log_batch(of_new.info.run_id, tags=[tag, mlflow.entities.RunTag("fedcore.method", "fedprox")])
    configs = {"a": Evidence(3), "b": Evidence(3, new="only")}
    found = {"a": of_all, "b": client.get_run(of_new.info.run_id)}
    record: Any = SimpleNamespace(
        client=client, find=found.__getitem__, version_of=lambda run: SimpleNamespace(name=run)
    )
    record._versions = partial(runs.Record._versions, record)
    (notice,) = runs.Record._for_new_devices(record, configs)
    said = f"For new devices the answer is fedprox: fedcore promote x-y --run={of_new.info.run_id[:8]}"
    assert notice.line == said
    client.set_tag(of_new.info.run_id, promotion.SERVES_NEW, "no")  # as Ditto's, whose shared model is in no run
    found["b"] = client.get_run(of_new.info.run_id)
    (notice,) = runs.Record._for_new_devices(record, configs)
    end = "only devices' own models are recorded, so take a row with new devices: yes: fedcore promote x-y --list"
    assert notice.line == f"For new devices the answer is fedprox; {end}"
    assert runs.Record._for_new_devices(record, {"b": Evidence(3, new="also")}) == []


def test_where_two_tables_share_a_registered_model_a_line_says_whose_it_is():
    def of(config: str, model: str, path: str) -> Any:
        data = SimpleNamespace(tags={"fedcore.config": config, promotion.MODEL: model}, params={"data.path": path})
        return SimpleNamespace(data=data)

    given = ("a", "fedcore-m-y", "n/m.csv"), ("b", "fedcore-m-y", "s/m.csv"), ("c", "fedcore-o-y", "o.csv")
    found = {config: of(config, *more) for config, *more in (*given, ("d", "fedcore-o-y", "o.csv"))}
    record: Any = SimpleNamespace(find=found.__getitem__)
    record.version_of = lambda run: SimpleNamespace(name=run.data.tags[promotion.MODEL], version="1")
    record._versions = partial(runs.Record._versions, record)
    (notice,) = runs.Record._of_one_name(record, dict.fromkeys(found, Evidence(3)))
    assert notice.line.startswith("m-y version 1 is of n/m.csv alone: s/m.csv has the same name and label, and so the")
    assert not [*runs.Record._of_one_name(record, dict.fromkeys("bcd", Evidence(3)))]


def test_few_seeds_that_cannot_say_leave_a_candidate_of_more(client: Any, make: Make):
    first, quick = make([0.5]), make([0.7])
    propose(client, first, False, Evidence(3, False))
    line = propose(client, quick, True, Evidence(1, False))
    assert (
        f" version {quick.version} (a, seed 0) is not proposed: fewer seeds, or a part of a study, cannot say. The cand"
        in line
    )
    assert line.endswith(f"of 3 seeds, version {first.version} (a, seed 0, not shown to be better)")
    assert champion(client, first) is None
    part = Evidence(9, False, whole=False)
    assert "The candidate is still that of 3 seeds" in propose(client, make([0.7]), True, part)
    for other, evidence in (
        (make([0.7]), Evidence(3, False)), (make([0.6]), Evidence(1)), (make([0.7], data="new"), Evidence(0, False)),
    ):  # fmt: skip
        assert "no champion yet" in propose(client, other, False, evidence)


def test_a_candidate_of_an_earlier_version_stays_one_of_a_whole_study(client: Any, make: Make):
    first = make([0.5])
    client.set_model_version_tag(first.name, first.version, registry.SEEDS, "2")
    client.set_registered_model_alias(first.name, registry.CANDIDATE, first.version)
    part = Evidence(3, False, whole=False)
    assert "no champion yet" in propose(client, client.get_model_version(first.name, first.version), False, part)
    assert "is not proposed" in propose(client, make([0.7]), False, Evidence(9, False, whole=False))


def test_what_is_not_there_is_named(client: Any, make: Make):
    first = make([0.5])
    task = first.name.removeprefix("fedcore-")
    with pytest.raises(InputError, match="model = 'tsak': not registered; there is: .*" + task):
        promotion.find(client, "tsak", "1")
    with pytest.raises(InputError, match=r"version = .7.: .* has no such version; it has no alias"):
        promotion.find(client, task, "7")
    with pytest.raises(InputError, match=f"'champion'.*promote one: fedcore promote {task}"):
        promotion.find_files(client, task)
    assert promotion.find(client, task, "1").version == first.version


def test_every_version_is_listed_with_its_metric_and_alias(
    client: Any, make: Make, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    versions = [make([0.5]), make([0.6]), make([0.7])]
    versions.append(make([0.9], of=versions[1]))
    for version in versions[:2]:
        promotion.promote(client, version)
    for key, value in {"accuracy": 0.9, "macro_f1": 0.6, "validation_macro_f1": 0.125}.items():
        client.log_metric(versions[1].run_id, key, value)
    of_run = {
        promotion.METRIC: "macro_f1",
        promotion.RULE: "least_test = 0, weigh = examples",
        "fedcore.setting": "a=1",
    }
    for key, word in of_run.items():
        client.set_model_version_tag(versions[1].name, versions[1].version, key, word)
    client.set_model_version_tag(versions[3].name, versions[3].version, promotion.RULE, "least_test = 0")  # no score
    client.log_param(versions[1].run_id, "net.name", "mlp")
    client.set_registered_model_alias(versions[2].name, registry.CANDIDATE, versions[2].version)
    of, own = client.get_run(versions[2].run_id).info.experiment_id, {"requests": "3f 77", "fedcore.seed": "0"}
    client.log_batch(versions[2].run_id, tags=[mlflow.entities.RunTag(*tag) for tag in own.items()])
    local = {promotion.MODEL: versions[0].name, "fedcore.method": "local_only", "fedcore.study": "code", **own}
    for more in (
        {"requests": "9d", "latest": "true", "fedcore.method": "gaussian_distillation"},
        {"requests": "9d 3f"},
        {"requests": "9d"},
        {"fedcore.seed": "1"},
    ):
        client.create_run(of, tags={**local, **more})
    task = versions[0].name.removeprefix("fedcore-")
    monkeypatch.setattr(runs, "Record", lambda: SimpleNamespace(client=client))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow.get_tracking_uri())
    monkeypatch.setenv("COLUMNS", "160")
    promote.list_versions(client, task, seeds=True)
    alike, head, _, *rows, rule, advice = (" ".join(line.split()) for line in capsys.readouterr().out.splitlines())
    assert (alike, head) == ("study code", "promote method net seed setting metric own test shared test val role")
    assert rows[:4] == [
        "--version=1 a - 0 base accuracy - - - previous",
        "--version=2 a mlp 0 a=1 macro F1 * 60.0% - 12.5% champion",
        "--version=3 a - 0 base accuracy - - - candidate", "--version=4 a - 0 base accuracy - - - final fit of 2",
    ]  # fmt: skip
    others = [f"{method} - 0 - accuracy - - -" for method in ("gaussian_distillation", "local_only")]
    assert [re.sub("^--run=[0-9a-f]{8} ", "", row) for row in rows[4:]] == others
    assert rule == "* = macro F1; all devices count, weigh = examples"
    assert advice == f"to promote one, add its first cell: fedcore promote {task} --version=1"
    monkeypatch.setenv("COLUMNS", "80")
    promote.list_versions(client, task, seeds=True)
    narrow = capsys.readouterr().out.removesuffix(f"{advice}\n")
    monkeypatch.setattr(promote.registry, "read", lambda: {task: None})
    monkeypatch.setattr("fedcore.cli.project.enter_with_record", lambda: None)
    promote.promote.callback(None, None, None, True, True, False)  # type: ignore[misc]
    assert advice in capsys.readouterr().out
    assert max(map(len, narrow.splitlines())) <= 80
    promotion.promote(client, versions[0])
    promote.list_versions(client, task, seeds=True)
    assert capsys.readouterr().out.endswith("--version=2\n"), "the first one is the champion already"
    assert all(f" {word} " in narrow for word in ("gaussian_distillation", "local_only", "candidate", "macro"))


@pytest.mark.parametrize("metric", ["log_loss", "matthews"])
def test_a_list_has_a_line_for_each_method_with_means_over_its_seeds(
    client: Any, make: Make, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, metric: str
):
    """Also where a metric of one's own, of which runs tell, is gone."""
    first, old = make([0.5]), make([0.5])
    final = make([0.9], of=first)
    promotion.promote(client, final)
    experiment = client.get_run(first.run_id).info.experiment_id
    seen = {"latest": "true", promotion.MODEL: first.name, **first.tags}
    second = client.create_run(experiment, tags={**seen, "fedcore.seed": "1"}).info.run_id
    other = client.create_run(experiment, tags={**seen, promotion.METRIC: metric}).info.run_id
    client.set_tag(first.run_id, "latest", "true")
    for run, value in ((first.run_id, 0.5), (second, 0.9), (other, 0.25), (old.run_id, 0.1)):
        client.log_metric(run, f"test/{metric}" if run == other else "test/accuracy", value)
        client.log_param(run, "seed", run)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow.get_tracking_uri())
    promote.list_versions(client, first.name.removeprefix("fedcore-"))
    _, _, _, *rows, _ = (" ".join(line.split()) for line in capsys.readouterr().out.splitlines())
    of_first = "--version=1 a 2 accuracy 70.0% - --version=3: champion, final fit of 1"
    assert rows == [of_first, f"--run={other[:8]} a 1 {metric.replace('_', ' ')} 0.250 -"]


def versions(numbers: str, **aliases: str) -> registry.Versions:
    return registry.Versions({number: registry.Version("fedcore-a", number) for number in numbers}, aliases)


VERSIONS = versions("12", champion="1"), versions("1", candidate="1")


@pytest.mark.parametrize(
    ("led", "answer"),
    [
        ("", r"^--model: no model has been promoted; promote one: fedcore promote NAME, NAME is a or b$"),
        ("b", "b"),
        ("ab", "^--model: must be one of a, b$"),
    ],
)
def test_the_only_champion_is_chosen(led: str, answer: str):
    known = {task: VERSIONS[task not in led] for task in "ab"}
    if answer == "b":
        assert registry.choose(known, None) == ("b", "champion")
    else:
        with pytest.raises(InputError, match=answer):
            registry.choose(known, None)


def test_the_only_model_without_a_champion_is_told_how_to_get_one():
    with pytest.raises(InputError, match=r"^--model: no model has been promoted; promote one: fedcore promote b$"):
        registry.choose({"b": VERSIONS[1]}, None)


def test_the_names_are_read_from_the_database_as_mlflow_has_them(client: Any, make: Make, monkeypatch):
    made = [make([0.5]), make([0.6]), make([0.7])]
    client.delete_model_version(made[0].name, made[0].version)
    promotion.promote(client, made[1])
    promotion.promote(client, made[2])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow.get_tracking_uri())
    said = str(promotion.mark_candidate(client, made[1]))
    task = made[1].name.removeprefix("fedcore-")
    of_task = (registry.read() or {})[task]
    assert of_task.challenge == said
    assert [*status.standing({task: of_task})] == [said]
    promotion.promote(client, made[1])  # what was said of it is no longer how it stands
    assert [*status.standing({task: (registry.read() or {})[task]})] == []
    promotion.promote(client, made[2])
    client.set_model_version_tag(made[1].name, made[1].version, registry.AGAINST, "0")
    (unknown,) = status.standing({task: (registry.read() or {})[task]})
    assert unknown.endswith("is not yet compared with this champion; fedcore promote does")
    found = promotion.keep(client, promotion.compare(client, promotion.find(client, task, str(made[1].version))))
    assert [*status.standing({task: (registry.read() or {})[task]})] == [str(found)]
    client.delete_registered_model_alias(made[1].name, registry.CANDIDATE)
    known: Any = registry.read()
    assert known == promotion.all_versions(client)
    assert ({*known[task].numbers}, known[task].aliases) == ({"2", "3"}, {"champion": "3", "previous": "2"})


def test_champions_are_listed_without_mlflow_as_with_it(client: Any, make: Make, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow.get_tracking_uri())
    first, second, third = make([0.5]), make([0.6]), make([0.7])
    task = first.name.removeprefix("fedcore-")

    def lines() -> list[str] | None:
        found = promote.champions({task: (registry.read() or {})[task]})
        if found is not None:
            assert found == promote.champions({task: promotion.all_versions(client)[task]})
        return found

    assert lines() == [f"{task}: nothing was proposed; {registry.AT_THE_END}"]
    promotion.mark_candidate(client, second)  # there is no champion
    (line,) = lines() or ()
    version = f"{task} version {second.version}"
    assert line.startswith(f"{version} (a, seed 0): no champion yet; to promote it: fedcore promote {task} (")
    promotion.promote(client, first)
    promotion.mark_candidate(client, second)  # compared with the first
    (line,) = lines() or ()
    assert line.startswith(f"{task}: champion version {first.version} (a, seed 0)\n  {version}")
    promotion.promote(client, third)  # which nobody has compared the second with
    assert lines() is None
    assert promote.champions(
        {task: promotion.all_versions(client)[task]}, lambda _: registry.Proposal(second, third, "no", "why")
    )


def test_registered_files_are_found_without_mlflow(client: Any, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow.get_tracking_uri())
    name, place = registry.registered("sealed"), environment.ARTIFACTS / "sealed"
    schema = place / "data" / models.FOLDER / models.SCHEMA
    schema.parent.mkdir(parents=True)
    schema.write_text("{}")
    (place / "MLmodel").write_text("flavors:\n")
    client.create_registered_model(name)
    version = client.create_model_version(name, place.as_uri())
    known = (registry.read() or {})["sealed"]
    found: Any = known.find("1")
    assert found.location == client.get_model_version_download_uri(name, version.version)
    assert predict.own_files(found) is None
    seals.seal(name, place.as_uri())
    assert predict.own_files(found) == place.resolve()
    assert predict.own_files(known.find("2")) is None
    (place / "MLmodel").write_text("other\n")
    assert predict.own_files(found) is None


def test_a_record_that_is_no_readable_file_is_left_to_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    place = tmp_path / "mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{place}")
    assert registry.read() == {}
    place.write_bytes(b"not a database" * 99)
    assert registry.read() is None
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert registry.read() is None


@pytest.mark.parametrize(("shape", "what"), [((1, 8, 8), "pictures"), ((1, 512), r"arrays \(\.npy\)")])
@pytest.mark.parametrize("name", ["new.csv", "new.TSV", "new.parquet"])
def test_a_model_of_pictures_or_signals_says_so_of_a_table(shape: tuple[int, ...], what: str, name: str):
    with pytest.raises(InputError, match=rf"^digits predicts {what}; {name} is a table$"):
        predict.read_rows(Path(name), ServedModels(Schema(shape, "float32", ("a", "b")), (), {}), "digits")


# on real devices

MODEL_NAME = "plant-field"


def run_in_process(tmp_path, row, name, scoring=Scoring()):
    """A method on devices with tables, run to its end."""
    _, setup, link = on_devices(tmp_path, "common_median")
    setup = replace(setup, study=Study("my_data", "Which?", "small", "plant", MODEL_NAME, (), 4), scoring=scoring)
    folder = tmp_path / "runs" / name
    list(run_with_devices(link, setup, row, 4, folder, seconds=20.0, least=3))
    return FieldRun(folder, setup, row.label, read_run(folder))


def version_of(client: Any, name: str):
    (run,) = client.search_runs(
        [client.get_experiment_by_name("fedcore").experiment_id], f"tags.mlflow.runName = '{name}'"
    )
    (version,) = client.search_model_versions(f"run_id = '{run.info.run_id}'")
    return run, version


def test_the_rates_of_a_studys_rows_are_those_with_which_they_ran_last(client: Any):
    keeper = runs.Record()
    of = {"fedcore.study": "s", "fedcore.setting": "base", "fedcore.size": "small", "fedcore.data": "digest"}
    for number, (label, rate, more) in enumerate(
        [("fedavg", 0.1, {}), ("fedavg", 0.3, {}), ("fedper", 0.5, {}), ("fedavg", 9.0, {"fedcore.setting": "other"})]
    ):
        tags = {**of, "fedcore.method": label, **more}
        run = client.create_run(keeper.experiment, start_time=number + 1, tags=tags)
        client.log_param(run.info.run_id, "training.lr", rate)
    assert rates_of_rows("s", "base", "small") == {"fedavg": 0.3, "fedper": 0.5}


def test_a_run_is_recorded_once_and_its_model_can_be_promoted(client: Any, tmp_path):
    field_run = run_in_process(tmp_path, method("fedavg", rounds=2, training={"epochs": 1}), "one")
    (said,) = record(field_run)
    assert "no champion yet; to promote it: fedcore promote plant-field (its devices have trained it)" in said
    assert record(field_run) == [said]
    assert find_answer(MODEL_NAME) == (method("fedavg", rounds=2, training={"epochs": 1}), 4)
    run, version = version_of(client, "fedavg field one")
    assert (run.data.tags[registry.SIMULATED], run.data.tags["fedcore.kind"]) == ("false", "field")
    sent = sum(sum(turn.up.values()) for turn in field_run.stored.turns)
    assert run.data.metrics["traffic/up_MB"] == pytest.approx(sent / 1e6)
    about = json.loads(promotion.read_artifact(client, run.info.run_id, "field.json"))
    assert about["west"]["bytes_up"] < about["west"]["wire_up"]
    assert about["west"]["versions"].keys() == {"fedcore", "torch"}
    promotion.promote(client, version)
    name, _, folder = promotion.find_files(client, f"{MODEL_NAME}@{registry.CHAMPION}")
    served = models.load(folder)
    assert (name, models.load_reference(folder)) == (MODEL_NAME, None)
    new = plant().head(20)
    params = field_run.stored.state.messages["west"].params
    net = field_run.setup.public().nets["west"]
    mine = outputs(Model((params,)), net, encode(new, schema_of(field_run.setup, field_run.stored))).exp()
    assert served.predict(new)["probability"].tolist() == pytest.approx(mine.amax(1).tolist(), rel=1e-6)


def test_costs_decide_on_devices_and_in_the_record(client: Any, tmp_path):
    """To miss one class costs so much that every row is taken for it, in either place."""
    costs = ((0.0, 1e6, 1e6), (1.0, 0.0, 1.0), (1.0, 1.0, 0.0))
    row = method("fedavg", rounds=1, training={"epochs": 1})
    field_run = run_in_process(tmp_path, row, "three", Scoring("cost", costs=costs))
    record(field_run)
    _, version = version_of(client, "fedavg field three")
    served, memory = models.load(challenge.files_of(version)), tmp_path / "devices" / "west"
    assert served.costs == costs
    here = deployed.predict(memory, "three", "west", tmp_path / "west.csv")
    there = served.predict(pd.read_csv(tmp_path / "west.csv", dtype={"kind": str}))
    assert {*here["label"]} == {*there["label"]} == {served.schema.classes[0]}
    assert here["probability"].min() < 1 / 3


def test_personal_models_stay_on_their_devices(client: Any, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow.get_tracking_uri())
    field_run = run_in_process(tmp_path, method("ditto", rounds=1, training={"epochs": 1}), "two")
    record(field_run)
    run, version = version_of(client, "ditto field two")
    assert version.tags[registry.PERSONAL] == "true"
    plan = promotion.read_artifact(client, run.info.run_id, "recipe/plan.json")
    assert plan.decode() == field_run.stored.plan.to_json()
    with pytest.raises(InputError, match=r"its models stay on their devices, where fedcore device predict uses them$"):
        promotion.find_files(client, f"{MODEL_NAME}/{version.version}")
    found: Any = (registry.read() or {})[MODEL_NAME].find(str(version.version))
    assert found.location
    assert predict.own_files(found) is None  # fedcore predict asks MLflow, and says that line
    promotion.promote(client, version)
    prepared = SimpleNamespace(dataset=Ref("0" * 64, 1))
    today = SimpleNamespace(setting=SimpleNamespace(model_name=MODEL_NAME), prepared=prepared)
    (notice,) = runs.Record().check_drift(Store(tmp_path), today)  # of every later run
    assert "its models stay on their devices" in notice.line
    table = pd.read_parquet(seals.own_folder(run.info.artifact_uri, "run") / "table.parquet")
    assert set(table["device"]) >= {"north", "south", "west"}
