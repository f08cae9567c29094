"""A module of one's own runs in the field if its owner has allowed its very bytes."""

import hashlib
import json
import sys
from dataclasses import replace

import pytest
from every_method import ROWS
from federations import bits, federation
from in_process import InProcess, plan_for
from plant_rows import on_devices

from fedcore import nets
from fedcore.config.methods import configure
from fedcore.core.losses import find_loss
from fedcore.core.rounds import run
from fedcore.errors import InputError
from fedcore.execute.workers import Inline
from fedcore.field import deployed
from fedcore.field.consent import consent_of
from fedcore.field.modules import load_module, source_digest
from fedcore.field.plan import Plan, plan_of
from fedcore.field.runs import run_with_devices
from fedcore.field.server import Field, federation_of, run_in_field

SOURCE = """
import torch
from dataclasses import replace
from functools import partial
import fedcore as fc
from fedcore.core.messages import initial_messages, received_model
from fedcore.core.training import train
from fedcore.methods.baselines.fedavg import fedavg
from torch import nn

imported = True


def halves(*, nets, training, rounds: int = 2):
    return fedavg(nets=nets, training=training, rounds=rounds)


def weigh_steps(server, updates, round_info):
    weights = fc.by_size([update.steps for update in updates.values()])
    return server, fc.to_everyone(round_info.names, fc.Message(fc.mean([u.params for u in updates.values()], weights)))


def by_steps(*, nets, training):
    stage = fc.Stage(partial(train, training=training), weigh_steps, 2)
    return fc.Method(partial(initial_messages, shared_init=True), (stage,), received_model)


def deploy_by_name(memory, message, *, device):
    return fc.Model(({name: (device.name not in ("b", "west")) * x for name, x in message.params.items()},))


def by_name(*, nets, training, rounds: int = 2):
    return replace(fedavg(nets=nets, training=training, rounds=rounds), deploy=deploy_by_name)


def squared(batch):
    return (batch.logits.softmax(1)[:, 0] - 0.5).square().mean()


class Small(nn.Sequential):
    def __init__(self, classes, width=3):
        super().__init__(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, classes))
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return the name and the digest of a module in the current folder."""
    (tmp_path / "my_halves.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "my_halves", hashlib.sha256(SOURCE.encode()).hexdigest()
    sys.modules.pop("my_halves", None)
    load_module.__globals__["_LOADED"].clear()


def own_run(module):
    """Return a row and a federation whose method, loss and net are the module's."""
    training = {**ROWS["fedavg"].training.settings(), "loss": f"{module}:squared"}
    net = nets.net(f"{module}:Small", shape=(4,), classes=3, width=4)
    return configure(f"{module}:halves", {}, training), federation("ab", net)


def test_a_method_a_loss_and_a_net_of_ones_own_have_the_simulations_bits(module, tmp_path):
    name, digest = module
    assert source_digest(name) == digest
    load_module(name, digest)  # once for both sides, which are one process here
    row, fed = own_run(name)
    plan = plan_for(row, fed)
    assert plan.modules == {name: digest}
    link = InProcess(fed, tmp_path / "devices", consent_of([f"{name}={digest}"], ["model"]))
    field = Field(link, plan, federation_of(fed.public), 20.0)
    field.join()
    there, here = list(run_in_field(field, 0)), list(run(row.build(fed.public.nets), fed, 0, Inline()))
    assert [bits(turn.state.messages) for turn in there] == [bits(turn.state.messages) for turn in here]


@pytest.mark.parametrize("function", ["by_steps", "by_name"])
def test_steps_travel_and_a_model_may_depend_on_the_device(function, module, tmp_path):
    name, digest = module
    load_module(name, digest)
    row, fed = configure(f"{name}:{function}", {}, {"epochs": 2, "batch": 4}), federation("abc")
    link = InProcess(fed, tmp_path / "devices", consent_of([f"{name}={digest}"], ["model"]))
    field = Field(link, plan_for(row, fed), federation_of(fed.public), 20.0)
    field.join()
    there, here = list(run_in_field(field, 0)), list(run(row.build(fed.public.nets), fed, 0, Inline()))
    assert [bits(turn.state.messages) for turn in there] == [bits(turn.state.messages) for turn in here]
    assert [bits(turn.scores) for turn in there] == [bits(turn.scores) for turn in here]


@pytest.mark.slow
def test_a_device_predicts_with_a_model_that_depends_on_it(module, tmp_path):
    name, digest = module
    load_module(name, digest)
    _, setup, link = on_devices(tmp_path, missing="common_median")
    for site in setup.devices:
        link.start(site, replace(consent_of([f"{name}={digest}"], ["model"]), numbers=True))
    row = configure(f"{name}:by_name", {}, {})
    list(run_with_devices(link, setup, row, 0, tmp_path / "server" / "one", seconds=20.0, least=3))
    found = {
        site: deployed.predict(tmp_path / "devices" / site, "one", site, tmp_path / f"{site}.csv")["probability"]
        for site in ("north", "west")
    }
    assert found["west"].tolist() == pytest.approx([1 / 3] * len(found["west"]))
    assert found["north"].max() > 0.4


def join(plan, tmp_path, *allowed):
    link = InProcess(federation("ab"), tmp_path / "devices", consent_of(allowed, ["model"]))
    Field(link, plan, federation_of(link.fed.public), 20.0).join()


def test_a_module_that_was_not_allowed_is_not_even_imported(module, tmp_path):
    name, digest = module
    plan = plan_for(*own_run(name))
    del sys.modules[name]
    for allowed, said in (
        (["fedavg"], "method my_halves:halves: not allowed on a; allowed: fedavg"),
        ([f"{name}={'0' * 64}"], f"module {name}: not allowed on a with the SHA-256 {digest}"),
        ([f"other={digest}"], "method my_halves:halves: not allowed on a; allowed: other"),
    ):
        consent = consent_of(allowed)
        with pytest.raises(InputError, match=f"^{said}$"):
            consent.check(plan, "a")
        assert name not in sys.modules


@pytest.mark.parametrize("part", ["loss", "net"])
def test_a_loss_or_a_net_needs_the_owners_word_too(module, part, tmp_path):
    name, digest = module
    _, fed = own_run(name)
    if part == "loss":
        plan = plan_for(
            replace(ROWS["fedavg"], training=replace(ROWS["fedavg"].training, loss=find_loss(f"{name}:squared"))),
            federation("ab"),
        )
    else:
        plan = plan_for(ROWS["fedavg"], fed)
    assert plan.modules == {name: digest}
    with pytest.raises(InputError, match=f"^module {name}: not allowed on a with the SHA-256 {digest}$"):
        consent_of(["fedavg"]).check(plan, "a")
    consent_of(["fedavg", f"{name}={digest}"]).check(plan, "a")
    lying = Plan.from_json(json.dumps({**json.loads(plan.to_json()), "modules": {}}))  # a server that names none
    with pytest.raises(InputError, match=r"^(training.loss = |net: not a net of the library: )"):
        lying.build()


def test_a_file_that_has_changed_is_refused_and_not_run(module, tmp_path):
    name, digest = module
    plan = plan_for(*own_run(name))
    del sys.modules[name]
    (tmp_path / f"{name}.py").write_text(SOURCE + "\nraise SystemExit('ran')\n")
    with pytest.raises(InputError, match=f"^module {name}: .* has the SHA-256 .*, not {digest}$"):
        consent_of([f"{name}={digest}"]).check(plan, "a")
    assert name not in sys.modules


@pytest.mark.parametrize("name", ["sys", "no_such_module", "os.path", "../my_halves", ""])
def test_what_is_no_single_file_is_no_module_of_the_field(name):
    with pytest.raises(InputError, match=f"^module {name}: Python finds no file "):
        source_digest(name)


def test_an_own_module_with_an_error_leaves_nothing_behind(module, tmp_path):
    (tmp_path / "my_broken.py").write_text("x = 1\nraise ValueError('broken')\n")
    digest = source_digest("my_broken")
    with pytest.raises(ValueError, match="broken"):
        load_module("my_broken", digest)
    assert "my_broken" not in sys.modules


def test_a_plan_of_a_builder_without_a_file_is_refused():
    fed = federation("ab")
    with pytest.raises(InputError, match=r"^method <lambda>: must be one of fedcore's own in the field, or a module's"):
        plan_of(replace(ROWS["fedavg"], name=lambda: None, label="<lambda>"), fed.public.nets, 0, "trial", (4,), 3)
