"""Devices that lie, are late or drop out: what is sent, what is counted, and what stays as it was."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from federations import ADAM, NET, NETS, SGD, bits, constant, federation, last, model, sending, workers

from fedcore import nets
from fedcore.core.aggregation import add, by_size, mean, subtract
from fedcore.core.rounds import begin, receive, run
from fedcore.core.threats import admit, clip, corrupt, dropouts, find_late, hostile_devices, norm
from fedcore.errors import InputError
from fedcore.execute.workers import Inline
from fedcore.methods import method
from fedcore.pipeline.cache.store import Store
from fedcore.results import reports
from fedcore.types.federation import Threats
from fedcore.types.method import Message, Report, RoundInfo, StepId, Update, generator

NAMES = tuple("abcdefghij")
START = nets.init(NET, generator(0, "init"))


def fedavg(rounds=1, **settings):
    return method("fedavg", nets=NETS, training=SGD, shared_init=True, rounds=rounds, **settings)


def under(threats, names="abcde"):
    return replace(federation(names), threats=threats)


def conduct(turns):
    return reports.devices([one.report for one in turns])["conduct"]


def turn_of(number, names=NAMES):
    return RoundInfo(0, 0, number, names, names)


# Reductions


@pytest.mark.slow
@pytest.mark.parametrize("upload", ["model", "delta"])
def test_threats_that_never_strike_change_no_bit(upload):
    built = fedavg(3, upload=upload)
    plain = list(run(built, federation("abcde"), 0, Inline()))
    for idle in (Threats(), Threats(deadline=1e9), Threats(bound=1e9), Threats(bound=1e9, beyond="refuse")):
        turns = list(run(built, under(idle), 0, Inline()))
        assert [bits(one.state.messages) for one in turns] == [bits(one.state.messages) for one in plain]
        assert [one.scores for one in turns] == [one.scores for one in plain]


def test_an_update_scaled_by_one_is_honest_and_flipped_twice_too():
    honest, sent = Update(model(1), {"sum": torch.ones(3)}), Message(model(2))
    step = StepId(0, 0, 0, "a")
    same = corrupt(honest, sent, step, threats=Threats(attack="scale", strength=1.0), sends="model")
    torch.testing.assert_close(same.params, honest.params)
    flip = Threats(attack="sign_flip", strength=1.0)
    twice = corrupt(corrupt(honest, sent, step, threats=flip, sends="model"), sent, step, threats=flip, sends="model")
    torch.testing.assert_close(twice.params, honest.params)
    torch.testing.assert_close(twice.extra, honest.extra)


# Attacks


@pytest.mark.parametrize("upload", ["model", "delta"])
@pytest.mark.parametrize(("attack", "factor"), [("sign_flip", -4.0), ("scale", 4.0)])
@pytest.mark.slow
def test_the_server_averages_what_hostile_devices_send(upload, attack, factor):
    """Device a's change is multiplied, whether it sends its model or the change."""
    fed = under(Threats(hostile=0.2, attack=attack, strength=4.0))
    (liar,) = hostile_devices(fed.threats, fed.devices, 0)
    honest = {name: fedavg().stages[0].local({}, Message(START), fed.devices[name], StepId(0, 0, 0, name))[1]
              for name in fed.devices}  # fmt: skip
    changes = {name: subtract(update.params, START) for name, update in honest.items()}
    changes[liar] = {key: factor * x for key, x in changes[liar].items()}
    expected = add(START, mean([*changes.values()], by_size([update.size for update in honest.values()])))
    found = last(fedavg(upload=upload), fed).state.messages["a"].params
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_noise_is_as_large_as_the_change_times_the_strength():
    sent, honest = Message({"w": torch.zeros(20000)}), Update({"w": torch.full((20000,), 0.5)})
    threats = Threats(attack="noise", strength=3.0)
    false = corrupt(honest, sent, StepId(0, 0, 0, "a"), threats=threats, sends="model").params["w"]
    assert false.mean().item() == pytest.approx(0, abs=0.05)
    assert false.std().item() == pytest.approx(1.5, rel=0.02)
    again = corrupt(honest, sent, StepId(0, 0, 0, "a"), threats=threats, sends="model").params["w"]
    other = corrupt(honest, sent, StepId(0, 0, 1, "a"), threats=threats, sends="model").params["w"]
    assert torch.equal(false, again)
    assert not torch.equal(false, other)


class Sent(Inline):
    """Runs steps in this process and remembers the updates that the server got."""

    def __init__(self):
        self.updates = []

    def __call__(self, fn, *args):
        if fn is receive:
            self.updates.append(args[2])
        return super().__call__(fn, *args)


@pytest.mark.slow
def test_a_stale_device_repeats_itself_and_a_copy_is_another_devices():
    for attack in ("stale", "duplicate"):
        fed, execute = under(Threats(hostile=0.4, attack=attack)), Sent()
        liars = hostile_devices(fed.threats, fed.devices, 0)
        list(run(fedavg(3), fed, 0, execute))
        first, *later = execute.updates
        honest = next(name for name in fed.devices if name not in liars)
        for round in (first, *later):
            for name in fed.devices:
                source = (first[name] if attack == "stale" else round[honest]) if name in liars else round[name]
                assert bits(round[name]) == bits(replace(source, size=round[name].size))
                assert round[name].size == len(fed.devices[name].data.train)
        assert bits(first[honest]) != bits(later[0][honest])


@pytest.mark.slow
def test_a_stale_device_repeats_an_update_of_the_same_stage():
    fed, execute = under(Threats(hostile=0.4, attack="stale")), Sent()
    once = fedavg(2)
    list(run(replace(once, stages=once.stages * 2), fed, 0, execute))
    (liar, *_) = hostile_devices(fed.threats, fed.devices, 0)
    first, second, third, fourth = (bits(updates[liar]) for updates in execute.updates)
    assert first == second != third == fourth


def test_a_copied_update_has_the_layers_that_its_device_shares():
    fed, execute = under(Threats(hostile=0.34, attack="duplicate"), "abc"), Sent()
    (liar,) = hostile_devices(fed.threats, fed.devices, 0)
    honest, *_ = (name for name in fed.devices if name != liar)
    first = next(iter(START))
    updates = {name: Update(model(name)) for name in fed.devices} | {liar: Update({first: model(liar)[first]})}
    built = method("fixed_depth", nets=NETS, training=SGD, shared_init=True, rounds=2)
    one = next(run(sending(built, updates), fed, 0, execute, every=9))
    assert bits(execute.updates[0][liar].params) == bits({first: model(honest)[first]})
    assert one.up[liar] == updates[liar].nbytes


def test_a_copy_of_no_honest_device_is_refused():
    """Also where a round may sample none, but not of what a control sends."""
    for hostile, built in ((1.0, fedavg()), (0.6, fedavg(fraction=0.6)), (0.2, fedavg(fraction=0.1))):
        why = f"^federation.attack = duplicate: a round may have no honest device to copy, as {5 * hostile:.0f} of 5"
        with pytest.raises(InputError, match=why):
            last(built, under(Threats(hostile=hostile, attack="duplicate")))
    last(fedavg(fraction=0.8), under(Threats(hostile=0.6, attack="duplicate")))
    last(method("majority", nets=NETS, training=SGD), under(Threats(hostile=1.0, attack="duplicate")))


def test_more_hostile_devices_include_the_fewer_and_seeds_draw_others():
    drawn = [hostile_devices(Threats(hostile=share), NAMES, 0) for share in (0.0, 0.1, 0.3, 0.6, 1.0)]
    assert [len(names) for names in drawn] == [0, 1, 3, 6, 10]
    assert all({*few} <= {*many} for few, many in pairwise(drawn))
    assert len({hostile_devices(Threats(hostile=0.3), NAMES, seed) for seed in range(20)}) > 5
    assert hostile_devices(Threats(hostile=0.3), reversed(NAMES), 0) == drawn[2]


# Late devices and dropouts


@pytest.mark.slow
def test_dropouts_are_as_frequent_as_set_and_never_everyone():
    gone = [dropouts(Threats(drop=0.3), turn_of(number)) for number in range(300)]
    assert sum(map(len, gone)) == pytest.approx(900, abs=4 * 25)  # of 3000 * .3, standard deviation 25
    assert all(len(dropouts(Threats(drop=0.99), turn_of(number))) < 10 for number in range(300))


@pytest.mark.slow
def test_a_device_is_late_as_often_as_its_examples_say():
    """Its time is n_k / mean(n) times an exponential draw: P(late) = exp(-deadline mean(n) / n_k)."""
    updates = {name: Update(size=30 if name < "f" else 10) for name in NAMES}
    late_devices = [find_late(Threats(deadline=2.0), updates, turn_of(number)) for number in range(400)]
    for group, share in (("abcde", math.exp(-2 * 20 / 30)), ("fghij", math.exp(-2 * 20 / 10))):
        expected, count = share * 2000, sum(name in names for names in late_devices for name in group)
        assert count == pytest.approx(expected, abs=4 * math.sqrt(expected))
    assert all(len(find_late(Threats(deadline=1e-9), updates, turn_of(number))) == 9 for number in range(50))


@pytest.mark.parametrize(("name", "own"), [("analytic", {"features": 8}), ("regmean", {"repair": True})])
def test_an_update_tells_how_many_examples_its_device_has(name, own):
    """How long a device takes follows from them, so that the same devices are late with all methods."""
    fed, execute = federation(), Sent()
    list(run(method(name, nets=NETS, training=SGD, shared_init=True, **own), fed, 0, execute))
    for updates in execute.updates:
        assert {name: update.size for name, update in updates.items()} == {
            name: len(there.data.train) for name, there in fed.devices.items()
        }


def test_a_device_that_sends_a_copy_is_late_as_often():
    fed = under(Threats(deadline=0.5, hostile=0.4, attack="duplicate"), "abcdefgh")
    copied, honest = (
        {device: told["late"] for device, told in conduct([next(run(fedavg(), of, 0, Inline()))]).items()}
        for of in (fed, replace(fed, threats=Threats(deadline=0.5)))
    )
    assert copied == honest


@pytest.mark.slow
def test_a_dropout_sends_nothing_and_a_late_device_sends_in_vain():
    fed = under(Threats(drop=0.5))
    turns = list(run(fedavg(4), fed, 0, Inline()))
    for one in turns:
        gone = {*dropouts(fed.threats, one.round_info)}
        assert {name for name, count in one.up.items() if not count} == gone
        assert all(one.down[name] for name in fed.devices)
    assert sum(told["dropped"] for told in conduct(turns).values()) == sum(
        len(dropouts(fed.threats, one.round_info)) for one in turns
    )
    slow = list(run(fedavg(4), under(Threats(deadline=0.5)), 0, Inline()))
    assert all(all(one.up.values()) for one in slow)
    assert sum(told["late"] for told in conduct(slow).values()) > 4


@pytest.mark.parametrize(("name", "settings"), [
    ("fedper", {}), ("fedrep", {}), ("fixed_depth", {"depth": 0}), ("fixed_depth", {"depth": "random"}),
    ("fixed_depth", {"depth": "random", "shared_init": False}), ("fd", {"fraction": 0.99}),
    ("fedproto", {"fraction": 0.99}), ("fedbabu", {"fraction": 0.99}),
])  # fmt: skip
def test_a_lost_device_keeps_what_it_trained_and_gets_what_is_shared(name, settings):
    built = method(name, nets=NETS, training=SGD, rounds=1, **{"shared_init": True, **settings})
    fed = under(Threats(drop=0.5))
    whole, one = (next(run(built, of, 0, Inline())) for of in (under(None), fed))
    shared = {key: x for message in one.state.messages.values() for key, x in message.params.items()}
    gone = dropouts(fed.threats, one.round_info)
    assert gone
    for device in gone:
        plain, lossy = (built.deploy(of.state.memories[device], of.state.messages[device]).params[0]
                        for of in (whole, one))  # fmt: skip
        theirs = whole.state.messages[device].params  # what it shares
        expected = {key: shared.get(key, lossy[key]) if key in theirs else x for key, x in plain.items()}
        assert lossy.keys() == START.keys()
        torch.testing.assert_close(lossy, expected, rtol=0, atol=0)


# The bound


def test_a_longer_update_is_clipped_to_the_bound_or_left_out():
    values = {"a": 1.0, "b": 1.0, "c": 100.0}
    built = sending(fedavg(upload="delta"), {name: Update(constant(x), size=1) for name, x in values.items()})
    for beyond, mean_change in (("clip", (1 + 1 + 2) / 3), ("refuse", 1.0)):
        threats = Threats(bound=2.0 * math.sqrt(64), beyond=beyond)
        one = last(built, under(threats, "abc"))
        torch.testing.assert_close(
            one.state.messages["a"].params, {key: x + mean_change for key, x in START.items()}, atol=1e-5, rtol=1e-5
        )
        word = "clipped" if beyond == "clip" else "refused"
        assert {name: told[word] for name, told in conduct([one]).items()} == {"a": 0.0, "b": 0.0, "c": 1.0}


@pytest.mark.parametrize("sends", ["model", "change"])
def test_a_clipped_update_has_the_length_of_the_bound_and_its_direction(sends):
    update, sent = Update(model(1)), Message(model(2))
    shorter = clip(update, sent, sends, 0.25)
    assert norm(shorter, sent, sends) == pytest.approx(0.25, rel=1e-5)
    about = sent.params if sends == "model" else {name: torch.zeros_like(x) for name, x in model().items()}
    before, after = (
        torch.cat([(one.params[name] - about[name]).flatten() for name in about]) for one in (update, shorter)
    )
    assert torch.cosine_similarity(before, after, dim=0).item() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("beyond", "admitted"), [("clip", {"a": [1.0, 0], "b": [11.5, 12.0], "c": [20.0, 21]}), ("refuse", "ac")]
)
def test_a_change_is_measured_from_what_its_own_device_was_sent(beyond, admitted):
    """Devices were sent (0, 0), (10, 10) and (20, 20); b's change of length 5 is half of that within the bound."""
    sent = {name: Message({"w": torch.full((2,), start)}) for name, start in zip("abc", (0.0, 10.0, 20.0), strict=True)}
    trained = {"a": [1.0, 0], "b": [13.0, 14], "c": [20.0, 21]}
    updates = {name: Update(params={"w": torch.tensor(values)}) for name, values in trained.items()}
    combined, _, report = admit(
        lambda server, updates, round_info: (updates, {}), Threats(bound=2.5, beyond=beyond), "model", {}, updates,
        turn_of(0, tuple("abc")), sent=sent,
    )  # fmt: skip
    found = {name: update.params["w"].tolist() for name, update in combined.items()}
    assert found == (admitted if beyond == "clip" else {name: trained[name] for name in admitted})
    assert [name for name, counts in report.counts["conduct"].items() if any(counts.values())] == ["b"]


def test_a_bound_that_refuses_everyone_ends_the_run_with_one_line():
    with pytest.raises(InputError, match=r"^federation\.bound = 1e-09: every update of round 1 is beyond it; raise it"):
        last(fedavg(), under(Threats(bound=1e-9, beyond="refuse")))


class Stored(Inline):
    """Keeps what steps return in a store and hands out references, as the pipeline does."""

    def __init__(self, folder):
        self.store = Store(folder)

    def __call__(self, fn, *args):
        return self.store.put(super().__call__(fn, *self.store.get(args)))


@pytest.mark.slow
@pytest.mark.parametrize("beyond", ["clip", "refuse"])
@pytest.mark.parametrize("upload", ["model", "delta"])
def test_a_bound_has_the_same_bits_where_messages_are_references(tmp_path, beyond, upload):
    fed, stored = under(Threats(bound=5.0, beyond=beyond, deadline=2.0, hostile=0.2)), Stored(tmp_path)
    turns = run(fedavg(2, upload=upload), fed, 0, stored)
    by_reference = [stored.store.get(one.state.messages) for one in turns]
    assert [bits(of) for of in by_reference] == [
        bits(one.state.messages) for one in run(fedavg(2, upload=upload), fed, 0, Inline())
    ]


# Bits, and methods


@pytest.mark.slow
def test_the_same_bits_from_any_state_and_conduct_is_told_by_name():
    for attack in ("noise", "stale"):
        fed = under(Threats(hostile=0.4, attack=attack, drop=0.3, deadline=2.0, bound=3.0))
        whole = list(run(fedavg(4), fed, 1, Inline()))
        for done, one in enumerate(whole[:-1], 1):
            rest = list(run(fedavg(4), fed, 1, Inline(), state=one.state))
            assert [bits(round_info) for round_info in rest] == [bits(round_info) for round_info in whole[done:]]
        liars = hostile_devices(fed.threats, fed.devices, 1)
        assert {one.report.words["hostile"] for one in whole} == {", ".join(liars)}
        told = conduct(whole)
        assert set(told) == set(fed.devices)
        assert all({*numbers} == {"attacked", "dropped", "late", "clipped"} for numbers in told.values())
        assert {name for name, numbers in told.items() if numbers["attacked"]} <= {*liars}


@pytest.mark.slow
def test_a_methods_own_counts_stay_beside_those_of_conduct():
    built = fedavg()
    (stage,) = built.stages

    def combine(server, updates, round_info):
        messages, state, *_ = stage.combine(server, updates, round_info)
        return messages, state, Report(counts={"mine": {name: {"seen": 1.0} for name in updates}})

    turn = next(run(replace(built, stages=(replace(stage, combine=combine),)), under(Threats(drop=0.5)), 0, Inline()))
    told = turn.report.counts
    assert {*told} == {"mine", "conduct"}
    assert {*told["mine"]} == {name for name, counts in told["conduct"].items() if not counts["dropped"]}


def test_the_same_bits_in_worker_processes():
    fed = under(Threats(hostile=0.4, attack="noise", drop=0.3, deadline=2.0, bound=3.0))
    built = method("fedavg", nets=NETS, training=ADAM, shared_init=True, rounds=3)
    here, there = ([bits(one) for one in run(built, fed, 1, execute)] for execute in (Inline(), workers(2)))
    assert here == there


@pytest.mark.slow
@pytest.mark.parametrize("name", ["code_ot", "dfl", "fd", "scaffold", "fedgen", "ditto", "fedper"])
def test_other_methods_bear_flips_dropouts_and_late_devices(name):
    built = method(name, nets=NETS, training=SGD, shared_init=name not in ("code_ot", "fd"))
    fed = under(Threats(hostile=0.2, strength=1.0, drop=0.2, deadline=2.0))
    turns = list(run(built, fed, 0, Inline()))
    assert conduct(turns).keys() == fed.devices.keys()
    assert all(math.isfinite(splits["test"]["accuracy"]) for splits in turns[-1].scores.values())


def test_a_method_with_steps_of_pairs_is_refused_before_it_begins():
    built = method("st_lf", nets=NETS, training=SGD, shared_init=True)
    with pytest.raises(InputError, match=r"^federation\.hostile, drop, deadline and bound: must not be set"):
        last(built, under(Threats(hostile=0.2)))


@pytest.mark.parametrize("name", ["fedavg", "analytic"])
@pytest.mark.parametrize("threats", [Threats(hostile=0.4), Threats(hostile=0.4, attack="stale"), Threats(bound=1.0)])
def test_masked_sums_are_neither_attacked_nor_bounded(name, threats):
    built = method(name, nets=NETS, training=SGD, shared_init=True, secure_aggregation=True)
    for state in (None, begin(built, under(None, "abc"), 0, Inline())):
        with pytest.raises(
            InputError, match=r"^federation\.hostile and bound: must not be set with secure_aggregation"
        ):
            list(run(built, under(threats, "abc"), 0, Inline(), state))


def test_a_threat_that_changes_nothing_of_an_update_is_refused():
    trees = Update(extra={"trees": torch.ones(3, dtype=torch.uint8)}, size=1)
    for threats, key in ((Threats(hostile=0.4), r"attack = sign_flip"), (Threats(bound=1.0), "bound")):
        with pytest.raises(InputError, match=rf"^federation\.{key}: changes no whole numbers, and this method sends"):
            last(sending(fedavg(), dict.fromkeys("abc", trees)), under(threats, "abc"))


def test_a_controls_devices_are_honest_and_are_not_counted_as_hostile():
    built = method("majority", nets=NETS, training=SGD)
    honest, told = (last(built, under(threats)) for threats in (None, Threats(hostile=0.4, bound=1.0, deadline=1e9)))
    assert bits(honest.state.messages) == bits(told.state.messages)
    assert all({*counts} == {"late"} for counts in conduct([told]).values())
