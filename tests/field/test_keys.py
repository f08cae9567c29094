"""Masked sums in the field: the sums of the simulation, and no single term for anybody but its device."""

import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from every_method import ROWS
from federations import bits, federation
from in_process import InProcess, field_of, plan_for

from fedcore import StepId, Update, initial_messages, train
from fedcore.core.rounds import run
from fedcore.core.secure_sum import from_integers, mask, own_noise
from fedcore.errors import InputError, TooFew
from fedcore.execute.workers import Inline, one_thread
from fedcore.field.device import FieldDevice
from fedcore.field.server import Field, federation_of, run_in_field
from fedcore.field.wire import pack, unpack

pytest.importorskip("nvflare", reason="nvflare is not installed: make test installs it")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from cryptography.hazmat.primitives.serialization import Encoding

    from fedcore.field.keys import Keys, Masks, names_in, numbers, public_key, unmask
    from fedcore.field.kits import make_kits, read_kit

NAMES = "abcd"
AWAY = pack({"reply": "refused", "why": "away"})
"""As good as no answer, and sooner."""


@cache
def keys() -> dict[str, Keys]:
    with TemporaryDirectory() as folder:
        kits = make_kits(Path(folder) / "kits", [*NAMES], "127.0.0.1:1")
        return {name: Keys(read_kit(kits[name])) for name in NAMES}


def masked(name="fedavg", rounds=2, **settings):
    row = ROWS[name]
    given = {"rounds": rounds} if name == "fedavg" else {}
    return replace(row, settings={**row.settings, **given, "secure_aggregation": True, **settings})


def masked_field(tmp_path, row=None, said=None, **more):
    return field_of(row or masked(), tmp_path, said=said, keys=keys(), **more)


def asked(call):
    return unpack(call, "call")[0]


@pytest.mark.parametrize(
    "row", [masked(), masked(weights="even"), masked("analytic")], ids=["size", "even", "analytic"]
)
@pytest.mark.slow
def test_masked_sums_in_the_field_are_those_of_the_simulation(row, tmp_path):
    field, link = masked_field(tmp_path, row)
    field.join()
    there = list(run_in_field(field, 0))
    here = list(run(row.build(link.fed.public.nets), link.fed, 0, Inline()))
    assert [bits(one.state.server) for one in there] == [bits(one.state.server) for one in here]
    assert [bits(one.state.messages) for one in there] == [bits(one.state.messages) for one in here]
    assert [one.up for one in there] == [one.up for one in here]


# What a server can do: it knows the seed, the devices, all messages and all answers.


def rebuild(update: Update, name: str, seed: int, roster: str) -> dict[str, torch.Tensor]:
    """Take the masks of the simulation away: the update itself, where they are these."""
    return {
        key: from_integers(-mask(-x, f"0/0/{key}", name, roster, seed)) / update.size for key, x in update.extra.items()
    }


@pytest.mark.slow
def test_a_server_rebuilds_updates_of_the_simulation_alone(tmp_path):
    row = masked(rounds=1)
    fed = federation(NAMES)
    method = row.build(fed.public.nets)
    (_, messages), seen = initial_messages(fed.public, 0, shared_init=True), {}
    with one_thread():
        for name, device in fed.devices.items():
            at = StepId(0, 0, 0, name)
            _, update = train({}, messages[name], device, at, training=row.training)
            seen[name] = update.params, method.stages[0].attach(update, device, at)
    for name, (true, simulated) in seen.items():
        rebuilt = rebuild(simulated, name, 0, NAMES)
        assert all(torch.allclose(rebuilt[key].float(), true[key], atol=1e-6) for key in true)
    field, link = masked_field(tmp_path, row)
    field.join()
    list(run_in_field(field, 0))
    own = {
        name: bytes.fromhex(unpack(answer, "")[0]["own"])
        for name, call, answer in link.sent
        if asked(call)["ask"] == "reveal"
    }
    for name, call, answer in link.sent:
        if asked(call)["ask"] == "visit":
            words, tensors = unpack(answer, "answer")
            assert tensors["params"] == {}
            sent = Update({}, tensors["extra"], words["size"])
            for update in (sent, unmask(sent, own[name])):
                for roster in ("abcd", "abc", "ab"):
                    rebuilt = rebuild(update, name, 0, roster)
                    assert min(float(x.abs().median()) for x in rebuilt.values()) > 2.0**20
    assert len(own) == 4


@pytest.mark.slow
def test_no_secret_key_and_no_mask_of_a_pair_travels(tmp_path):
    field, link = masked_field(tmp_path, masked(rounds=1))
    field.join()
    list(run_in_field(field, 0))
    secrets = [path.read_bytes() for path in tmp_path.glob("*/trial/secret")]
    assert len({*secrets}) == 4
    for _, call, answer in link.sent:
        assert not [one for one in secrets if one in answer or one.hex().encode() in answer or one in call]


@pytest.mark.slow
def test_masks_differ_by_run_turn_device_tensor_and_by_who_is_in_the_sum():
    secret = {name: Keys.new_secret() for name in NAMES}
    cards = {run: {name: keys()[name].card(run, secret[name]) for name in NAMES} for run in ("one", "two")}
    zero, found = torch.zeros(3, dtype=torch.int64), []
    for where, turn, roster, key in (
        ("one", (0, 0), "abcd", "x"), ("two", (0, 0), "abcd", "x"), ("one", (0, 1), "abcd", "x"),
        ("one", (1, 0), "abcd", "x"), ("one", (0, 0), "abc", "x"), ("one", (0, 0), "abcd", "y"),
    ):  # fmt: skip
        masks = keys()["a"].masks(where, turn, secret["a"], {name: cards[where][name] for name in roster})
        found.append(masks.mask(zero, key, "a", NAMES, 0))
        found.append(unmask(Update(extra={key: zero}), masks.own()).extra[key])
    assert len({tuple(one.tolist()) for one in found}) == len(found)


def test_two_devices_derive_one_mask():
    secret = {name: Keys.new_secret() for name in "ab"}
    cards = {name: keys()[name].card("one", secret[name]) for name in "ab"}
    one, other = (
        keys()[name]
        .masks("one", (0, 0), secret[name], cards)
        .mask(torch.zeros(5, dtype=torch.int64), "x", name, "ab", 0)
        for name in "ab"
    )
    assert torch.equal(one, -other)
    assert bool(one.any())


def test_a_key_of_known_result_is_refused():
    with pytest.raises(InputError, match=r"^run one: the key of b is none$"):
        Masks("a", Keys.new_secret(), {"a": bytes(32), "b": bytes(32)}, "one", (0, 0))


def test_random_integers_are_spread_over_all():
    drawn = numbers(bytes(range(32)), torch.Size([1000]))
    assert 400 < int((drawn < 0).sum()) < 600
    assert len(drawn.unique()) == 1000
    assert numbers(bytes(32), torch.Size([0, 3])).shape == (0, 3)


def test_noise_of_ones_own_is_standard_normal():
    drawn, again = (own_noise(torch.zeros(20_000, dtype=torch.float64), torch.Generator().manual_seed(0)) for _ in "12")
    assert not torch.equal(drawn, again)
    assert drawn.mean().abs() < 0.05
    assert drawn.std() == pytest.approx(1, abs=0.05)
    assert (drawn < -1).double().mean() == pytest.approx(0.1587, abs=0.02)


# A server that swaps keys.


@pytest.mark.parametrize("how", ["another key", "another device's card", "another run's card", "no card", "foreign"])
def test_a_key_that_is_not_signed_by_its_device_is_refused(how, tmp_path):
    secret = Keys.new_secret()
    card = keys()["b"].card("trial", secret)
    if how == "another key":
        card = {**card, "key": keys()["b"].card("trial", Keys.new_secret())["key"]}
    elif how == "another device's card":
        card = keys()["c"].card("trial", secret)
    elif how == "another run's card":
        card = keys()["b"].card("before", secret)
    elif how == "no card":
        card = {"key": 3}
    else:
        kits = make_kits(tmp_path / "kits", ["b"], "127.0.0.1:1")
        card = Keys(read_kit(kits["b"])).card("trial", secret)
    with pytest.raises(InputError, match=r"^run trial: the key that is said to be b's is not signed by it$"):
        public_key("trial", "b", card, keys()["a"].authority)


def test_a_device_with_a_false_key_is_left_out_and_spoils_nobodys_round(tmp_path):
    said = []
    field, link = masked_field(tmp_path, masked(rounds=1), said)
    foreign = make_kits(tmp_path / "foreign", ["d"], "127.0.0.1:1")
    link.keys = {**keys(), "d": Keys(read_kit(foreign["d"]))}
    link.start("d")
    field.kit = tmp_path / "server"
    field.kit.mkdir()
    (field.kit / "authority.crt").write_bytes(keys()["a"].authority.public_bytes(Encoding.PEM))
    field.join()
    (turn,) = run_in_field(field, 0)
    assert turn.absent == ("d",)
    assert said == ["run trial: the key that is said to be d's is not signed by it"]


# One sum of a turn.


@pytest.fixture
def device(tmp_path):
    link = InProcess(federation(NAMES), tmp_path, keys=keys())
    for one in link.devices.values():
        answer = one.answer(pack({"ask": "join", "plan": plan_for(masked(), federation(NAMES)).to_json()}))
        assert unpack(answer, "")[0]["reply"] == "joined"
    return link


def tell(link, name, what, round=0, tensors=None, **words):
    call = {"ask": what, "run": "trial", "stage": 0, "round": round, "memory": "", **words}
    return unpack(link.devices[name].answer(pack(call, tensors or {})), "answer")[0]


def cards_of(link, roster):
    return {name: tell(link, name, "card")["card"] for name in roster}


def context(link, name):
    (path,) = (link.root / name / "trial").glob("turn-*")
    return unpack(path.read_bytes(), "")[0]["context"]


def test_a_second_sum_of_a_turn_is_refused_once_the_first_is_complete(device):
    four, three = cards_of(device, "abcd"), cards_of(device, "abc")
    model = {
        "params": device.fed.devices["a"] and initial_messages(device.fed.public, 0, shared_init=True)[1]["a"].params
    }
    assert tell(device, "a", "visit", tensors=model, cards=four)["reply"] == "visited"
    assert tell(device, "a", "visit", tensors=model, cards=three)["reply"] == "visited"  # d dropped out
    assert names_in(context(device, "a")) == ["a", "b", "c"]
    told = tell(device, "a", "reveal", context=context(device, "a"))
    assert told["reply"] == "revealed"
    assert tell(device, "a", "reveal", context=context(device, "a")) == told
    device.start("a")
    said = "round 1 of stage 1: a has answered another call for it"
    assert tell(device, "a", "visit", tensors=model, cards=four)["why"] == said
    assert tell(device, "a", "visit", tensors=model, cards=three)["reply"] == "visited"
    assert tell(device, "a", "card")["revealed"] == context(device, "a")
    assert tell(device, "a", "visit", 1, tensors=model, cards=four)["reply"] == "visited"
    assert tell(device, "a", "visit", tensors=model, cards=three)["why"] == "round 1 of stage 1: is over for a"


def test_another_message_under_the_same_masks_is_refused(device):
    cards = cards_of(device, "abc")
    one, other = (
        {"params": initial_messages(device.fed.public, seed, shared_init=True)[1]["a"].params} for seed in (0, 1)
    )
    assert tell(device, "a", "visit", tensors=one, cards=cards)["reply"] == "visited"
    assert tell(device, "a", "visit", tensors=other, cards=cards)["reply"] == "refused"
    assert tell(device, "a", "visit", tensors=other, cards=cards_of(device, "abcd"))["reply"] == "visited"
    assert tell(device, "a", "visit", tensors=other, cards=cards)["reply"] == "refused"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({}, "round 1 of stage 1: a masked sum of 0 devices, a wants 3"),
        ({"cards": []}, "round 1 of stage 1: a masked sum of 0 devices, a wants 3"),
        ({"roster": "a"}, "round 1 of stage 1: a masked sum of 1 devices, a wants 3"),
        ({"roster": "ab"}, "round 1 of stage 1: a masked sum of 2 devices, a wants 3"),
        ({"roster": "bcd"}, "run trial: a is not in the sum, or with another key than its own"),
    ],
)
def test_a_sum_that_hides_nothing_is_refused_on_the_device(words, said, device):
    cards = {"cards": cards_of(device, words["roster"])} if "roster" in words else words
    assert tell(device, "a", "visit", **cards)["why"] == said


def test_a_mask_is_told_for_the_last_sum_alone(device):
    assert (
        tell(device, "a", "reveal", context="")["why"]
        == "round 1 of stage 1: a has not answered for these devices last"
    )
    tell(device, "a", "visit", cards=cards_of(device, "abcd"))
    first = context(device, "a")
    tell(device, "a", "visit", cards=cards_of(device, "abc"))
    assert tell(device, "a", "reveal", context=first)["reply"] == "refused"


def test_a_method_without_masks_has_no_key_to_tell(tmp_path):
    link = InProcess(federation("a"), tmp_path, keys=keys())
    link.devices["a"].answer(pack({"ask": "join", "plan": plan_for(ROWS["fedavg"], federation(NAMES)).to_json()}))
    assert tell(link, "a", "card")["why"] == "run trial: has no masked sums"


def test_a_device_without_keys_refuses_to_join(tmp_path):
    made = FieldDevice("a", federation("a").devices["a"].data, tmp_path, ["fedavg"])
    words, _ = unpack(made.answer(pack({"ask": "join", "plan": plan_for(masked(), federation(NAMES)).to_json()})), "")
    assert words["why"] == "method fedavg: masked sums need the keys of a kit, a has none"


# Who drops out.


@pytest.mark.parametrize("moment", ["card", "visit"])
def test_a_round_is_repeated_among_those_who_are_left(moment, tmp_path):
    said = []
    field, link = masked_field(tmp_path, masked(rounds=1), said)
    field.join()
    link.change = lambda name, call, answer: AWAY if name == "d" and asked(call)["ask"] == moment else answer
    (turn,) = run_in_field(field, 0)
    assert turn.absent == ("d",)
    assert said == ["d refuses: away"]
    three = federation("abc")
    (here,) = run(masked(rounds=1).build(three.public.nets), three, 0, Inline())
    assert bits(turn.state.messages["a"]) == bits(here.state.messages["a"])
    assert {
        len(asked(call)["cards"]) for name, call, _ in link.sent if name == "a" and asked(call)["ask"] == "visit"
    } == ({4, 3} if moment == "visit" else {3})


def test_too_few_for_a_sum_that_hides_anything_end_the_run(tmp_path):
    said = []
    field, link = masked_field(tmp_path, masked(rounds=1), said)
    field.join()
    link.change = lambda name, call, answer: AWAY if name in "cd" and asked(call)["ask"] == "visit" else answer
    with pytest.raises(TooFew, match=r"0 of 4 devices answered, at least 1 must; absent: a, b, c, d$"):
        list(run_in_field(field, 0))
    assert "a refuses: round 1 of stage 1: a masked sum of 2 devices, a wants 3" in said


@pytest.mark.slow
def test_a_server_that_was_killed_before_the_last_mask_goes_on(tmp_path):
    said = []
    field, link = masked_field(tmp_path / "one", masked(rounds=1), said)
    field.join()
    link.change = lambda name, call, answer: AWAY if name == "d" and asked(call)["ask"] == "reveal" else answer
    with pytest.raises(TooFew):
        list(run_in_field(field, 0))
    assert said[-1] == "the sum is not complete without d, who must come back"
    link.change = lambda name, call, answer: AWAY if name == "d" else answer
    with pytest.raises(TooFew):  # a sum of three beside the one of four would give d's update away
        list(run_in_field(field, 0))
    link.change = lambda name, call, answer: answer
    for name in NAMES:
        link.start(name)
    again = Field(link, field.plan, federation_of(link.fed.public), 20.0)
    whole, _ = masked_field(tmp_path / "two", masked(rounds=1))
    whole.join()
    assert bits([*run_in_field(again, 0)]) == bits([*run_in_field(whole, 0)])


# Noise.


def private(**settings):
    return masked("analytic", clip=1.0, epsilon=8.0, **settings)


@pytest.mark.parametrize("masks", [True, False], ids=["masked", "plain"])
def test_noise_is_not_the_seeds(masks, tmp_path):
    found = []
    for name in ("one", "two"):
        field, _ = masked_field(tmp_path / name, private(secure_aggregation=masks))
        field.join()
        (turn,) = run_in_field(field, 0)
        found.append(turn.state.messages["a"].params["output.weight"])
    fed = federation(NAMES)
    (here,) = run(private(secure_aggregation=masks).build(fed.public.nets), fed, 0, Inline())
    found.append(here.state.messages["a"].params["output.weight"])
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_the_noise_has_the_deviation_that_was_promised(tmp_path, monkeypatch):
    """The sum of masked updates with noise, less the sum without, over sigma: standard normal."""
    from fedcore.methods.one_shot.analytic import noise_of

    totals = []
    for name, epsilon in (("with", 8.0), ("without", None)):
        field, link = masked_field(
            tmp_path / name, replace(private(), settings={**private().settings, "epsilon": epsilon, "features": 40})
        )
        field.join()
        list(run_in_field(field, 0))
        own = {n: bytes.fromhex(unpack(a, "")[0]["own"]) for n, c, a in link.sent if asked(c)["ask"] == "reveal"}
        sent = [
            unmask(Update(extra=unpack(a, "")[1]["extra"]), own[n])
            for n, c, a in link.sent
            if asked(c)["ask"] == "visit"
        ]
        totals.append(from_integers(torch.stack([update.extra["gram"] for update in sent]).sum(0)))
    drawn = (totals[0] - totals[1]) / noise_of(8.0, 1e-5, 1.0, 1)
    assert drawn.std() == pytest.approx(1, abs=0.1)
    assert drawn.mean().abs() < 0.2  # of 820 numbers, which are drawn anew in each run: six of its deviations


def test_a_private_sum_is_not_repeated_with_less_noise(tmp_path):
    said = []
    field, link = masked_field(tmp_path, private(), said)
    field.join()
    link.change = lambda name, call, answer: AWAY if name == "d" else answer
    with pytest.raises(TooFew):
        list(run_in_field(field, 0))
    assert "a refuses: epsilon: the noise of all devices makes their sum private; d is not in it" in said
