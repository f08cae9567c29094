"""A device runs what its owner has agreed to, and nothing else leaves it."""

import json
import threading
from dataclasses import replace

import pytest
from every_method import ROWS
from federations import NETS, federation
from in_process import field_of, plan_for

from fedcore import nets
from fedcore.errors import InputError
from fedcore.field.consent import KINDS, KINDS_OF, Limits, consent_of, count_parameters, describe
from fedcore.field.device import FieldDevice
from fedcore.field.plan import Plan, plan_of
from fedcore.field.server import run_in_field
from fedcore.field.wire import pack, unpack
from fedcore.methods import METHODS

PLAN = plan_for(ROWS["fedavg"], federation("ab"))


def changed(plan=PLAN, **parts):
    return Plan.from_json(json.dumps({**json.loads(plan.to_json()), **parts}))


def test_every_method_and_every_kind_of_tensor_has_its_words():
    assert KINDS_OF.keys() == METHODS.keys()
    assert {kind for kinds in KINDS_OF.values() for kind in kinds} == KINDS.keys()


def test_what_the_owner_agrees_to_is_shown():
    lines = describe(consent_of(["code_ot", "local_only", "fedavg(secure_aggregation=true)", "numbers"], ["model"]))
    assert lines == [
        "numbers: the medians, means and variances of its columns",
        "code_ot: a model, a part of one, or how training changed it",
        "fedavg, only with secure_aggregation = true: a model, a part of one, or how training changed it",
        "local_only: nothing leaves the device",
    ]


@pytest.mark.parametrize("one", ["fedavgg", "os:system", "fedavg(sums)", "mine=abc", "fedavg(sums=masked", ""])
def test_what_is_no_consent_is_refused(one):
    with pytest.raises(InputError, match=r"^--allow .*: not a method of fedcore, nor module=SHA-256, nor numbers$"):
        consent_of([one])
    with pytest.raises(InputError, match=r"^--sends pictures: must be one of model, "):
        consent_of(["fedavg"], ["pictures"])


@pytest.mark.parametrize("name", ["ditto", "os:system", "fedcore.methods.baselines.fedavg:fedavg", "fedavgg"])
def test_a_method_that_is_not_allowed_is_refused_by_name(name):
    for plan in (changed(method=name), changed(method=name, modules={name.partition(":")[0]: "0" * 64})):
        with pytest.raises(InputError, match=rf"^method {name}: not allowed on a; allowed: analytic, fedavg$"):
            consent_of(["fedavg", "analytic"]).check(plan, "a")


def test_other_versions_and_other_devices_are_refused():
    consent = consent_of(["fedavg"])
    with pytest.raises(InputError, match=r"^versions: the server has fedcore 0.0 and torch 1.0, a has fedcore "):
        consent.check(replace(PLAN, versions={"fedcore": "0.0", "torch": "1.0"}), "a")
    with pytest.raises(InputError, match=r"^run trial: z is not one of its devices$"):
        consent.check(PLAN, "z")
    consent.check(PLAN, "a")


def test_a_method_may_be_allowed_with_a_setting_alone():
    consent = consent_of(["fedavg(secure_aggregation=true)"])
    with pytest.raises(InputError, match=r"^method fedavg: secure_aggregation = false is not allowed on a, true is$"):
        consent.check(PLAN, "a")
    with pytest.raises(InputError, match=r"^method fedavg: secure_aggregation = None is not allowed on a, true is$"):
        consent.check(changed(settings={}), "a")
    consent.check(changed(settings={**PLAN.settings, "secure_aggregation": True}), "a")
    with pytest.raises(InputError, match=r"sums: no such setting; it is now called secure_aggregation$"):
        consent_of(["fedavg(sums=masked)"])
    both = consent_of(["fedavg(rounds=2)", "fedavg(training.batch=16)"])
    both.check(PLAN, "a")
    with pytest.raises(InputError, match=r"^method fedavg: training.batch = 1 is not allowed on a, 16 is$"):
        both.check(changed(training={**PLAN.training, "batch": 1}), "a")


# Work.


@pytest.mark.parametrize("many", [1e9, "1000000000"])
def test_a_number_is_bounded_as_the_method_would_read_it(many):
    """A method takes 1e9 for whole epochs, whatever its type in a plan is."""
    fedrep = replace(PLAN, method="fedrep", settings={"head_epochs": many})
    with pytest.raises(InputError, match=r"^(settings: 1000000000 is more than --max-number 20000 of a|fedrep\.head_)"):
        consent_of(["fedrep"]).check(fedrep, "a")
    with pytest.raises(InputError, match=r"^(training: 1000000000 is more than --max-number|training\.batch)"):
        consent_of(["fedavg"]).check(changed(training={**PLAN.training, "batch": many}), "a")


def with_net(**settings):
    net = nets.net("mlp", shape=(4,), classes=3, **settings)
    return plan_of(ROWS["fedavg"], {"a": net, "b": net}, 0, "trial", (4,), 3)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (changed(settings={**PLAN.settings, "rounds": 20_001}), "settings: 20001 is more than --max-number 20000 of a"),
        (changed(training={**PLAN.training, "batch": 10**9}), "training: 1000000000 is more than --max-number"),
        (changed(classes=10**6), "classes: 1000000 is more than"),
        (changed(shape=[4, 10**6]), "shape: 1000000 is more than"),
        (changed(nets={str(i): 0 for i in range(20_001)} | {"a": 0}), "nets: 20002 is more than"),
        (changed(kinds=[["fedcore.nets.mlp:MLP", [], {"widths": [20_001]}, None]]), "net: 20001 is more than"),
        (changed(kinds=[["fedcore.nets.mlp:MLP", [], {"widths": [1] * 20_001}, None]]), "net: 20001 is more than"),
    ],
)  # fmt: skip
def test_a_run_of_too_large_numbers_is_refused_before_it_is_built(plan, said):
    with pytest.raises(InputError, match=f"^{said}"):
        consent_of(["fedavg"]).check(plan, "a")


def test_a_wide_net_is_refused_without_memory_for_it():
    plan = json.loads(with_net(widths=[5, 4]).to_json())
    plan["kinds"][0] = json.loads(json.dumps(plan["kinds"][0]).replace("[5, 4]", "[20000, 20000, 20000]"))
    with pytest.raises(InputError, match=r"^net: 800\d{6} parameters, more than --max-parameters 50000000 of a$"):
        consent_of(["fedavg"]).check(Plan.from_json(json.dumps(plan)), "a")


@pytest.mark.parametrize(
    "net", [NETS["a"], nets.net("lstm", shape=(6,), classes=3), nets.net("resnet20", shape=(3, 8, 8), classes=3)]
)
def test_parameters_are_counted_as_they_are(net):
    assert count_parameters(net) == sum(tensor.numel() for tensor in net.build().parameters())


@pytest.mark.parametrize(
    ("training", "examples", "count"), [({"epochs": 10, "batch": 4}, 101, 260), ({"epochs": 10, "steps": 300}, 5, 300)]
)
def test_a_round_of_too_many_minibatches_is_refused(training, examples, count):
    plan = changed(training={**PLAN.training, **training})
    consent_of(["fedavg"], limits=Limits(steps=count)).check_steps(plan, "a", examples)
    said = f"^training: {count} minibatches in a round, more than --max-steps {count - 1} of a$"
    with pytest.raises(InputError, match=said):
        consent_of(["fedavg"], limits=Limits(steps=count - 1)).check_steps(plan, "a", examples)


def joined(device, run, row="fedavg"):
    plan = replace(plan_for(ROWS[row], federation("ab")), run=run)
    return unpack(device.answer(pack({"ask": "join", "plan": plan.to_json()})), "")[0]


def test_a_server_cannot_fill_a_disk_with_runs(tmp_path):
    device = FieldDevice(
        "a", federation("a").devices["a"].data, tmp_path, consent_of(["fedavg"], limits=Limits(runs=2))
    )
    assert [joined(device, run)["reply"] for run in ("one", "two", "one")] == ["joined"] * 3
    assert joined(device, "three")["why"] == "run three: a keeps 2 runs (--max-runs)"
    assert len([*tmp_path.glob("*/")]) == 2


def test_a_step_that_takes_too_long_is_given_up(tmp_path, monkeypatch):
    over = threading.Event()
    consent = consent_of(["fedavg"], limits=Limits(minutes=1e-4))
    device = FieldDevice("a", federation("a").devices["a"].data, tmp_path, consent, overrun=over.set)
    joined(device, "trial")
    over.clear()
    monkeypatch.setattr("fedcore.field.device.visit", lambda *args: over.wait(20) and args[1])
    call = {"ask": "visit", "run": "trial", "stage": 0, "round": 0, "memory": ""}
    device.answer(pack(call, {"params": {}, "extra": {}}))
    assert over.is_set()


# What leaves.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "kind", "agreed"),
    [("code_ot", "class_hits", ["model"]), ("dfl", "soft", ["model"]), ("st_lf", "classifier", ["report", "model"])],
)
def test_what_the_owner_has_not_agreed_to_does_not_leave(row, kind, agreed, tmp_path):
    said = []
    field, link = field_of(ROWS[row], tmp_path, said=said)
    link.start("b", consent_of([row], agreed))
    field.join()
    reason = f"b refuses: method {row}: {kind} may not leave b; its owner agrees to {', '.join(sorted(agreed))}"
    try:
        list(run_in_field(field, 0))
    except InputError as refused:  # one that needs everybody
        said.append(str(refused))
    assert reason in said
    assert not [1 for name, _, answer in link.sent if name == "b" and f'"{kind}' in answer[:3000].decode("latin1")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "settings"),
    [
        ("analytic", {"rank": 3}), ("regmean", {"repair": True}),
        ("st_lf", {"combine": "outputs", "disagreement": "measured"}),
    ],
)  # fmt: skip
def test_a_method_sends_what_its_row_says_whatever_its_settings(row, settings, tmp_path):
    """The bits of all methods with their default consent are in tests/field/test_server.py."""
    field, _ = field_of(replace(ROWS[row], settings={**ROWS[row].settings, **settings}), tmp_path, "abc")
    field.join()
    assert all(turn.absent == () for turn in run_in_field(field, 0))
