import math
import pickle
from dataclasses import replace
from functools import partial

import pytest
import torch
from federations import ADAM, NBYTES, NET, NETS, SGD, Recorder, bits, device_of, federation, last, model, workers

from fedcore import by_size, initial_messages, mean, nets, received_model, to_everyone
from fedcore.core.evaluation import evaluate, score
from fedcore.core.rounds import State, begin, check, deployments, finish, measure, receive, run, sample_round, visit
from fedcore.core.training import flatten_net, minibatches, train
from fedcore.errors import InputError, TooFew
from fedcore.execute.workers import Inline, one_thread
from fedcore.methods import method as build
from fedcore.methods.code.code_ot import begin_ranking as begin_ranked
from fedcore.types.federation import Data, Net, Threats
from fedcore.types.method import Message, Method, Model, PairStage, RoundInfo, Stage, StepId, Update, generator

WIDE = nets.net("mlp", shape=(4,), classes=3, widths=[7])
COMMON = partial(initial_messages, shared_init=True)
PLANS = {"solver": "newton", "reg": 0.01, "tol": 1e-7, "max_iterations": 100, "p": 1}


def fedavg(rounds=1, fraction=1.0, shared_init=True, training=SGD):
    memory = {"rounds": rounds, "fraction": fraction, "weights": "size"}
    return build("fedavg", nets=NETS, training=training, shared_init=shared_init, **memory)


def code_ot(rounds):
    return build(
        "code_ot", nets=NETS, training=SGD, shared_init=False, rounds=rounds, order="ascending", rank_by="validation",
        **PLANS,
    )  # fmt: skip


def plays(stages, begin=COMMON, deploy=received_model):
    return Method(begin, stages, deploy)


def tally(memory, message, device, step_id):
    """Count the rounds in which this device took part, and draw."""
    mine = {"seen": memory.get("seen", torch.zeros(1)) + 1, "drawn": torch.rand(2, generator=step_id.generator())}
    return mine, Update(message.params, mine)


def gather(server, updates, round_info):
    """Remember how often each device took part, and when the server heard of it; tell only those who did."""
    seen = {name: update.extra["seen"] for name, update in updates.items()}
    told = {name: Message(update.params, server | seen) for name, update in updates.items()}
    return server | seen | {"last": torch.tensor([round_info.stage, round_info.round])}, told


def quiet(server, updates, round_info):
    return server, {}


def fixed(memory, message):
    return Model((model(),))


COUNTING = plays((Stage(tally, gather, 3, 0.5), Stage(tally, gather, 2)))


# The loop and its turns


@pytest.mark.parametrize("shared_init", [True, False])
@pytest.mark.slow
def test_the_loop_is_two_nested_loops(shared_init):
    fed = federation()
    sent = nets.init(NET, generator(5, "init")) if shared_init else {}
    played = list(run(fedavg(rounds=3, shared_init=shared_init), fed, 5, Inline()))
    assert len(played) == 3
    for number, one in enumerate(played):
        models, sizes = [], []
        for name, device in fed.devices.items():
            with one_thread():
                _, update = train({}, Message(sent), device, StepId(5, 0, number, name), training=SGD)
            models.append(update.params)
            sizes.append(len(device.data.train))
        sent = mean(models, by_size(sizes))
        for name, device in fed.devices.items():
            assert bits(one.state.messages[name].params) == bits(sent)
            for split, examples in (("val", device.data.val), ("test", device.data.test), ("shared", fed.test)):
                assert one.scores[name][split] == evaluate(Model((sent,)), NET, examples)


@pytest.mark.slow
def test_turns_follow_each_other():
    local = partial(train, training=SGD)
    stages = (Stage(local, quiet, 2), Stage(local, quiet, 0), Stage(local, quiet), Stage(local, quiet, 2))
    played = list(run(plays(stages), federation(), 7, Inline()))
    assert [(one.round_info.stage, one.round_info.round) for one in played] == [(0, 0), (0, 1), (2, 0), (3, 0), (3, 1)]
    assert all(
        one.round_info.units == one.round_info.names == ("a", "b", "c") and one.round_info.seed == 7 for one in played
    )
    assert [(one.state.stage, one.state.round) for one in played] == [(0, 1), (0, 2), (2, 1), (3, 1), (3, 2)]


def test_the_last_turn_is_evaluated_even_if_stages_without_rounds_follow():
    local = partial(train, training=SGD)
    played = list(run(plays((Stage(local, quiet), Stage(local, quiet, 0))), federation(), 0, Inline(), every=5))
    assert [one.scores is None for one in played] == [False]


@pytest.mark.parametrize(("every", "evaluated"), [(1, [0, 1, 2, 3, 4, 5]), (2, [1, 4, 5]), (3, [2, 5]), (9, [5])])
@pytest.mark.slow
def test_evaluation_every_so_many_rounds_of_a_stage_and_at_the_end(every, evaluated):
    stages = (Stage(tally, quiet, 3), Stage(tally, quiet, 3))
    played = list(run(plays(stages), federation("ab"), 0, Inline(), every=every))
    assert [i for i, one in enumerate(played) if one.scores is not None] == evaluated


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [fedavg(4, 0.5, shared_init=False), COUNTING, code_ot(3)], ids=["sampled", "own", "shots"]
)
def test_any_state_goes_on_to_the_same_bits(method):
    fed = federation("abcd")
    whole = list(run(method, fed, 1, Inline()))
    states = [begin(method, fed, 1, Inline()), *(one.state for one in whole)]
    for done, state in enumerate(states):
        rest = list(run(method, fed, 1, Inline(), state=pickle.loads(pickle.dumps(state))))
        assert [bits(one) for one in rest] == [bits(one) for one in whole[done:]]


@pytest.mark.slow
def test_the_same_bits_here_and_in_one_worker_and_in_two():
    fed = federation("abcde")
    for method in (fedavg(3, 0.5, training=ADAM), code_ot(2), COUNTING):
        ways = (Inline(), workers(1), workers(2))
        here, *there = ([bits(one) for one in run(method, fed, 2, execute)] for execute in ways)
        assert len(here) > 1
        assert there == [here, here]


# Sampling


@pytest.mark.parametrize(
    ("devices", "fraction", "expected"), [(10, 0.3, 3), (10, 0.01, 1), (3, 0.5, 2), (7, 0.99, 7), (10, 1.0, 10)]
)
def test_a_fraction_takes_part_and_at_least_one(devices, fraction, expected):
    fed = federation("abcdefghij"[:devices])
    for number in range(20):
        round_info = sample_round(Stage(tally, gather, 20, fraction), State({}, {}, round=number), fed, 0)
        assert len(round_info.units) == len(set(round_info.units)) == expected
        assert list(round_info.units) == [name for name in fed.devices if name in round_info.units]
        assert round_info.names == tuple(fed.devices)


def test_samples_depend_on_seed_stage_and_round_alone_and_favour_nobody():
    fed, stage = federation("abcdefghij"), Stage(tally, gather, 1, 0.3)

    def units(seed, number, round):
        return sample_round(stage, State({}, {}, stage=number, round=round), fed, seed).units

    assert units(1, 0, 0) == units(1, 0, 0)
    for vary in (lambda i: (i, 0, 0), lambda i: (0, i, 0), lambda i: (0, 0, i)):
        drawn = [units(*vary(i)) for i in range(300)]
        counts = [sum(name in names for names in drawn) for name in fed.devices]
        assert all(abs(count - 90) < 4 * 8 for count in counts), counts  # of 300 * .3, standard deviation 7.9


@pytest.mark.slow
def test_a_new_device_changes_nobody_elses_draws():
    for few, many in (("bc", "abc"), ("abc", "abcd")):
        alone = last(build("local_only", nets=NETS, training=SGD, shared_init=False), federation(few), 3)
        together = last(build("local_only", nets=NETS, training=SGD, shared_init=False), federation(many), 3)
        for name in few:
            assert bits(alone.state.memories[name]) == bits(together.state.memories[name])
            assert alone.scores[name] == together.scores[name]


# Memory and messages


@pytest.mark.slow
def test_device_memory_lasts_and_is_left_alone_between_participations():
    played = list(run(plays((Stage(tally, gather, 12, 0.3),)), federation("abcdefghij"), 0, Inline()))
    seen, before = dict.fromkeys("abcdefghij", 0), {}
    for one in played:
        for name in one.round_info.units:
            seen[name] += 1
        memory = one.state.memories
        assert set(memory) == {name for name, count in seen.items() if count}
        for name in memory:
            assert memory[name]["seen"].item() == seen[name] == one.state.server[name].item()
            assert name in one.round_info.units or memory[name] is before[name]
        before = memory
    assert max(seen.values()) > 1


def test_who_is_not_addressed_keeps_the_message_it_had():
    state = begin(COUNTING, federation("abcd"), 0, Inline())
    for one in run(COUNTING, federation("abcd"), 0, Inline(), state=state):
        for name in "abcd":
            assert (one.state.messages[name] is state.messages[name]) == (name not in one.round_info.units)
        state = one.state


def alternate(memory, message, device, step_id):
    return ({} if memory else {"on": torch.ones(1)}), Update()


def test_memory_can_be_given_up():
    played = list(run(plays((Stage(alternate, quiet, 3),)), federation("ab"), 0, Inline()))
    assert [sorted(one.state.memories) for one in played] == [["a", "b"], [], ["a", "b"]]


def test_a_step_draws_from_where_it_stands():
    fed = federation()
    for one in run(COUNTING, fed, 4, Inline()):
        for name in one.round_info.units:
            expected = torch.rand(2, generator=generator(4, one.round_info.stage, one.round_info.round, name, ""))
            assert torch.equal(one.state.memories[name]["drawn"], expected)


def test_without_combine_nothing_is_sent_and_the_model_becomes_memory():
    fed, alone = federation(), plays((Stage(partial(train, training=SGD), None),))
    start = begin(alone, fed, 0, Inline())
    (one,) = run(alone, fed, 0, Inline(), state=start)
    assert one.up == each(0)
    assert one.state.messages is start.messages
    assert one.state.server is start.server
    for name, device in fed.devices.items():
        with one_thread():
            _, update = train({}, start.messages[name], device, StepId(0, 0, 0, name), training=SGD)
        assert bits(one.state.memories[name]) == bits(update.params)


# Bytes, counted by hand: the model weighs 256 bytes


def traffic(method, names="abc", seed=0):
    return [(dict(one.up), dict(one.down)) for one in run(method, federation(names), seed, Inline())]


def each(a, b=None, c=None):
    return {"a": a, "b": a if b is None else b, "c": a if c is None else c}


def test_the_first_model_the_updates_and_the_final_delivery_are_counted():
    assert NBYTES == 256
    assert traffic(fedavg(1)) == [(each(256), each(512))]
    assert traffic(fedavg(3)) == [(each(256), each(256)), (each(256), each(256)), (each(256), each(512))]


@pytest.mark.slow
def test_devices_that_initialise_themselves_are_sent_nothing_at_first():
    assert traffic(fedavg(1, shared_init=False)) == [(each(256), each(256))]
    assert traffic(fedavg(2, shared_init=False)) == [(each(256), each(0)), (each(256), each(512))]
    assert traffic(code_ot(2)) == [(each(256), each(0)), (each(256), each(512))]


@pytest.mark.parametrize(("shared_init", "first"), [(True, 256), (False, 0)])
@pytest.mark.slow
def test_who_stays_alone_sends_nothing_and_is_delivered_nothing(shared_init, first):
    assert traffic(build("local_only", nets=NETS, training=SGD, shared_init=shared_init)) == [(each(0), each(first))]


def test_updates_keep_the_order_of_the_round_whoever_answers_first():
    seen, at = [], RoundInfo(0, 0, 0, ("a", "b"), ("a", "b"))

    def combine(server, updates, round_info):
        seen.extend(updates)
        return server, {}

    receive(combine, {}, {name: Update(model(name)) for name in ("b", "a")}, at, {"a": NET, "b": NET})
    assert seen == ["a", "b"]


@pytest.mark.slow
def test_in_sampled_rounds_only_those_who_take_part_send_and_receive():
    sampled = fedavg(4, 0.34)
    units = [one.round_info.units for one in run(sampled, federation(), 0, Inline())]
    assert all(len(names) == 1 for names in units)
    expected = []
    for number, names in enumerate(units):
        took_part = {name: 256 * (name in names) for name in "abc"}
        final = 256 * (number == 3)
        expected.append((took_part, {name: count + final for name, count in took_part.items()}))
    assert traffic(sampled) == expected


def chatty(memory, message, device, step_id):
    return memory, Update(
        {"fc3.bias": message.params["fc3.bias"]}, {"note": torch.zeros(2, dtype=torch.float64)}, size=9
    )


def answer(server, updates, round_info):
    return {"kept": torch.zeros(1000)}, {"b": Message({}, {"note": torch.zeros(5, dtype=torch.int16)})}


def test_parts_and_extras_count_and_memory_does_not():
    rounds = traffic(plays((Stage(chatty, answer), Stage(tally, quiet)), deploy=fixed))
    assert rounds[0] == (each(3 * 4 + 2 * 8), each(256))
    # The second stage sends back the model, where there is one, and three numbers; b alone has a new message.
    assert rounds[1] == (each(256 + 12, 12, 256 + 12), each(0, 10, 0))


@pytest.mark.slow
def test_a_message_travels_once_however_many_stages_read_it():
    silent = Stage(partial(train, training=SGD), None)
    assert traffic(plays((silent, Stage(tally, quiet, 2), silent))) == [
        (each(0), each(256)), (each(268), each(0)), (each(268), each(0)), (each(0), each(0))
    ]  # fmt: skip


def test_who_never_takes_part_gets_the_last_message_in_the_end():
    played = list(run(plays((Stage(tally, quiet, 2, 0.34),)), federation(), 3, Inline()))
    assert [sum(one.down.values()) for one in played] == [256, 3 * 256 - 256]
    assert {name for one in played for name, count in one.down.items() if count} == {"a", "b", "c"}


# Updates that are refused


def spoil(memory, message, device, step_id, *, who, part, name, value):
    update = Update(model(device.name), {"c": torch.zeros(2), "fc1.bias": torch.zeros(9)})
    return memory, replace(update, **{part: getattr(update, part) | {name: value}}) if device.name == who else update


NAN, INF = torch.tensor([0.0, 0.0, math.nan, 0.0, 0.0]), torch.tensor([0.0, 0.0, 0.0, 0.0, math.inf])
BAD = {
    "nan": ("params", "fc1.bias", NAN, r"tensor fc1\.bias has values that are not finite; lower the learning rate"),
    "square": ("params", "fc1.bias", NAN.nan_to_num(3e38), r"tensor fc1\.bias has values whose squares are not finite"),
    "inf": ("params", "fc1.bias", INF, r"tensor fc1\.bias has values that are not finite"),
    "-inf": ("params", "fc1.bias", -INF, r"tensor fc1\.bias has values that are not finite"),
    "extra": ("extra", "c", NAN, r"tensor c has values that are not finite"),
    "namesake": ("extra", "fc1.bias", NAN, r"tensor fc1\.bias has values that are not finite"),
    "sum": ("extra", "d", torch.full((2,), 3e38).double(), r"tensor d has sums above 1e30; scale the inputs"),
    "double": ("extra", "d", NAN.double(), r"tensor d has values that are not finite"),
    "shape": ("params", "fc1.bias", torch.zeros(4), r"tensor fc1\.bias has shape \(4,\), its net has \(5,\)"),
    "turned": ("params", "fc1.weight", torch.zeros(4, 5), r"tensor fc1\.weight has shape \(4, 5\), its net .*\(5, 4\)"),
    "gradient": ("extra", "c", torch.zeros(1, requires_grad=True), r"tensor c records its gradient; send tensor\.d"),
    "unknown": ("params", "fc9.bias", torch.zeros(5), r"tensor fc9\.bias is not one of its net's \(fc1\.weight, .*\)"),
}  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("who", ["b", "c"])
@pytest.mark.slow
def test_a_bad_update_is_refused_with_its_device_and_tensor(bad, who):
    part, name, value, words = BAD[bad]
    spoilt = plays((Stage(partial(spoil, who=who, part=part, name=name, value=value), quiet),))
    with pytest.raises(InputError, match=f"^update of {who}: {words}") as refused:
        last(spoilt, federation())
    assert "\n" not in str(refused.value)
    last(spoilt, federation("ad"))  # whoever is not spoilt is not refused


# Results of the server that are refused

WRONG = {
    "no server": (lambda server, to_all: to_all, r"must return \(server, messages\) or .*, returned dict"),
    "four parts": (lambda server, to_all: (server, to_all, {}, {}), r".*returned \(dict, dict, dict, dict\)"),
    "no memory": (lambda server, to_all: (None, to_all), r".*returned \(NoneType, dict\)"),
    "one message": (lambda server, to_all: (server, to_all["a"]), r".*returned \(dict, Message\); .* fc.to_everyone"),
    "a model": (lambda server, to_all: (server, {"a": {}}), r"the server's message to a in round 1: must be a Message"),
    "a stranger": (lambda server, to_all: (server, {"z": Message()}), r"the server's message to z in round 1: must be"),
    "nan": (
        lambda server, to_all: (server, {"b": Message({"fc1.bias": NAN})}),
        r"the server's message to b in round 1: tensor fc1\.bias has values that are not finite; lower the",
    ),
    "a gradient": (
        lambda server, to_all: (server, {"b": Message(extra={"c": torch.zeros(1, requires_grad=True)})}),
        r"the server's message to b in round 1: tensor c records its gradient; send tensor\.detach",
    ),
    "a number": (lambda server, to_all: ({"t": 1.0}, to_all), "the server's memory: t is float, must be a tensor"),
}  # fmt: skip


def err(server, updates, round_info, *, wrong):
    return WRONG[wrong][0](server, to_everyone(round_info.names, Message(model())))


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.slow
def test_a_wrong_result_of_the_server_is_refused_in_one_line(wrong):
    spoilt = plays((Stage(partial(train, training=SGD), partial(err, wrong=wrong), 2),))
    words = WRONG[wrong][1]
    with pytest.raises(InputError, match=f"^{words}" if words.startswith("the") else f"^{__name__}:err: {words}"):
        last(spoilt, federation())


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Update(), r".*:give: must return \(memory, update\), returned Update"),
        (({}, {}), r".*:give: must return \(memory, update\), returned \(dict, dict\)"),
        (({}, Update(), 1), r".*returned \(dict, Update, int\)"),
        (({"n": 3}, Update()), "memory of a: n is int, must be a tensor"),
    ],
)
def test_a_wrong_result_of_a_device_is_refused_in_one_line(found, words):
    with pytest.raises(InputError, match=f"^{words}$"):
        last(plays((Stage(partial(give, found=found), quiet),), deploy=fixed), federation())


def give(memory, message, device, step_id, *, found):
    return found


def test_what_is_no_model_is_refused_with_its_function():
    with pytest.raises(
        InputError, match=rf"^{__name__}:bare_params: must return a Model, fc.Model\(\(params,\)\), returned dict$"
    ):
        last(plays((Stage(tally, quiet),), deploy=bare_params), federation())


def bare_params(memory, message):
    return message.params


@pytest.mark.slow
def test_many_devices_are_scored_in_pieces_with_the_same_scores(monkeypatch):
    fed, method, execute = federation("abcde"), fedavg(), Recorder()
    state = last(method, fed).state
    whole = measure(method, fed, state, Inline())
    monkeypatch.setattr("fedcore.core.rounds.TOGETHER", 2)
    assert repr(measure(method, fed, state, execute)) == repr(whole)  # nan is not equal to itself
    assert [(unit, list(scores)) for _, unit, scores in execute.steps] == [
        ("a", ["a", "b"]), ("c", ["c", "d"]), ("e", ["e"])
    ]  # fmt: skip


@pytest.mark.slow
def test_processes_share_the_scoring_of_one_model(monkeypatch):
    fed, method, execute = federation("abcdefghi"), fedavg(), Recorder()
    state = last(method, fed).state
    whole = measure(method, fed, state, Inline())
    execute.capacity = lambda: 2
    tests = []
    monkeypatch.setattr("fedcore.core.rounds.score", lambda *args: tests.append(len(args[4])) or score(*args))
    assert repr(measure(method, fed, state, execute)) == repr(whole)
    assert [list(scores) for *_, scores in execute.steps] == [[*"abcd"], [*"efgh"], ["i"]]
    assert tests == [len(fed.test), 0, 0]


def test_training_that_diverges_is_refused():
    with pytest.raises(InputError, match=r"^update of a: tensor fc\d\.\w+ has values that are not finite; lower"):
        last(fedavg(training=replace(SGD, lr=1e30)), federation())


def test_parts_of_a_model_counters_and_any_extra_are_fine():
    check("a", Update(), NET)
    check("a", Update({"fc1.bias": torch.zeros(5)}, {"fc1.bias": torch.zeros(2, 2), "n": torch.tensor(3)}), NET)
    check(("a", "b"), Update({"anything": torch.zeros(2)}), None)


def test_each_update_is_held_against_its_own_devices_net():
    fed = federation("ab")
    fed = replace(fed, devices={**fed.devices, "b": device_of("b", WIDE)})
    last(plays((Stage(partial(train, training=SGD), quiet),)), fed)
    with pytest.raises(InputError, match=r"^update of b: tensor fc1\.weight has shape \(5, 4\), its net has \(7, 4\)"):
        last(plays((Stage(partial(spoil, who="", part="extra", name="", value=NAN), quiet),)), fed)


# Scores


def evaluations(method, fed):
    execute = Recorder()
    one = list(run(method, fed, 0, execute, every=9))[-1]
    return one, [unit for fn, unit, _ in execute.steps if fn is score]


def test_devices_with_the_same_model_share_one_evaluation():
    fed = federation()
    one, evaluated = evaluations(fedavg(2), fed)
    assert evaluated == ["a"]
    deployed = Model((one.state.messages["a"].params,))
    for name, device in fed.devices.items():
        assert one.scores[name]["val"] == evaluate(deployed, NET, device.data.val)
        assert one.scores[name]["test"] == evaluate(deployed, NET, device.data.test)
    assert one.scores["a"]["val"] != one.scores["b"]["val"]


def test_a_turn_that_is_scored_is_not_scored_again():
    fed = federation()
    method = build("local_only", nets=NETS, training=SGD, shared_init=True)
    played, execute = last(method, fed), Recorder()
    assert finish(method, fed, execute, played).scores is played.scores
    assert not execute.steps
    assert finish(method, fed, Inline(), replace(played, scores=None)).scores == played.scores


def test_devices_with_models_of_their_own_are_each_evaluated():
    fed = federation()
    one, evaluated = evaluations(build("local_only", nets=NETS, training=SGD, shared_init=True), fed)
    assert evaluated == ["a", "b", "c"]
    for name, device in fed.devices.items():
        deployed = Model((one.state.memories[name],))
        for split, examples in (("val", device.data.val), ("test", device.data.test), ("shared", fed.test)):
            assert one.scores[name][split] == evaluate(deployed, NET, examples)


def test_devices_with_different_nets_are_never_taken_together():
    fed, method = federation("abcd"), plays(())
    fed = replace(fed, devices={name: device_of(name, WIDE if name in "bd" else NET) for name in "abcd"})
    start, execute = begin(method, fed, 0, Inline()), Recorder()
    scores = measure(method, fed, start, execute)
    assert [list(result) for _, _, result in execute.steps] == [["a", "c"], ["b", "d"]]
    assert list(scores) == list("abcd")
    told_the_same = replace(start, messages=to_everyone("abcd", Message()))
    assert [names for names, _ in deployments(method, fed, told_the_same)] == [["a", "c"], ["b", "d"]]


# Pairs


def gap(memory, message, device, step_id):
    """How far apart the two devices' examples lie."""
    one, other = device
    drawn = torch.rand(1, generator=step_id.generator())
    counts = torch.tensor([mine["seen"].item() if mine else 0.0 for mine in memory])
    distance = (one.data.train.x.mean(0) - other.data.train.x.mean(0)).norm()[None]
    return {}, Update({}, {"gap": distance, "drawn": drawn, "seen": counts, "bias": message[1].params["fc3.bias"]})


def note(server, updates, round_info):
    kept = {f"{a}{b}/{name}": x for (a, b), update in updates.items() for name, x in update.extra.items()}
    return server | kept, {}


def test_a_pair_stage_runs_on_every_unordered_pair():
    fed = federation()
    paired = plays((Stage(tally, quiet), PairStage(gap, note)))
    one = last(paired, fed, 6)
    assert one.round_info.units == (("a", "b"), ("a", "c"), ("b", "c"))
    assert one.round_info.names == ("a", "b", "c")
    means = {name: device.data.train.x.mean(0) for name, device in fed.devices.items()}
    for a, b in one.round_info.units:
        kept = {key: one.state.server[f"{a}{b}/{key}"] for key in ("gap", "drawn", "seen", "bias")}
        assert kept["gap"].item() == pytest.approx(math.dist(means[a].tolist(), means[b].tolist()), rel=1e-5)
        assert torch.equal(kept["drawn"], torch.rand(1, generator=generator(6, 1, 0, (a, b), "")))
        assert kept["seen"].tolist() == [1.0, 1.0]
        assert torch.equal(kept["bias"], one.state.messages[b].params["fc3.bias"])
    assert set(one.state.memories) == {"a", "b", "c"}


def test_a_device_in_many_pairs_receives_a_message_once_per_turn():
    sent = 4 + 4 + 8 + 12  # gap, draw, two counts, three biases
    paired = plays((PairStage(gap, note), Stage(tally, quiet)))
    up, down = traffic(paired)[0]
    assert up == each(2 * sent, sent, 0)  # the first of a pair sends
    assert down == each(256)


@pytest.mark.slow
def test_a_fraction_of_the_pairs_takes_part():
    fed, seen, have = federation("abcd"), set(), set()
    for one in run(plays((PairStage(gap, note, 8, 0.5),)), fed, 0, Inline()):
        assert len(one.round_info.units) == 3
        assert all(a < b for a, b in one.round_info.units)
        present = {name for pair in one.round_info.units for name in pair}
        assert one.down == {name: 256 * (name in present - have) for name in "abcd"}
        have |= present
        seen |= set(one.round_info.units)
    assert len(seen) == 6


def broken(memory, message, device, step_id):
    return {}, Update({}, {"gap": torch.tensor([math.nan if step_id.unit == ("b", "c") else 1.0])})


def test_a_pairs_update_that_cannot_be_used_is_refused_with_both_names():
    with pytest.raises(InputError, match=r"^update of b and c: tensor gap has values that are not finite"):
        last(plays((PairStage(broken, note),)), federation())


def test_an_exam_set_stays_with_the_server_and_is_no_traffic():
    begin = partial(begin_ranked, shared_init=False, rank_by="test")
    one = last(plays((Stage(tally, quiet),), begin, fixed), federation())
    assert one.state.server["test/x"].nbytes > 0
    assert one.down == each(0)


def doubled(update, device, step_id):
    """Adds the sum of the device's labels and of the update's first bias, drawn at its own step."""
    labels = device.data.train.y.sum().float()
    draw = torch.rand(1, generator=step_id.generator("attach"))
    return replace(update, extra={"added": torch.stack([labels, update.params["fc1.bias"].sum()]), "draw": draw})


def test_what_is_attached_travels_with_the_update_of_the_same_turn():
    fed = federation()
    seen = {}

    def keep(server, updates, round_info):
        seen.update(updates)
        return server, {}

    attached = plays((Stage(partial(train, training=SGD), keep, attach=doubled),))
    one = last(attached, fed)
    assert set(one.up.values()) == {NBYTES + 8 + 4}
    assert set(one.down.values()) == {NBYTES}  # the initial model
    for name, device in fed.devices.items():
        assert seen[name].extra["added"][0] == device.data.train.y.sum()
        assert seen[name].extra["added"][1] == seen[name].params["fc1.bias"].sum()
    assert len({float(update.extra["draw"]) for update in seen.values()}) == 3
    assert bits(last(attached, fed)) == bits(one)


def add_mean_change(server, updates, round_info, *, sent):
    """FedAvg by the changes of the models that were sent, without a memory."""
    shares = by_size([update.size for update in updates.values()])
    change = mean(
        [{key: x - sent[name].params[key] for key, x in u.params.items()} for name, u in updates.items()], shares
    )
    start = next(iter(sent.values())).params
    return server, to_everyone(round_info.names, Message({key: start[key] + x for key, x in change.items()}))


@pytest.mark.parametrize("threats", [None, Threats(bound=1e9)])
@pytest.mark.slow
def test_combine_is_given_the_messages_of_those_that_took_part(threats):
    fed = replace(federation("abcd"), threats=threats)
    stage = Stage(partial(train, training=SGD), add_mean_change, 3, 0.5)
    one, two = (last(built, fed, 1).state.messages["a"].params for built in (plays((stage,)), fedavg(3, 0.5)))
    torch.testing.assert_close(one, two, rtol=0, atol=1e-6)


def own_head(memory, message, *, device):
    """A device that never took part has a head of its own, by its name."""
    head = {name: x for name, x in model(device.name, net=device.net).items() if name.startswith("fc3")}
    return Model(({**head, **memory, **message.params},))


def body_of(server, updates, round_info):
    shared = {name: x for name, x in next(iter(updates.values())).params.items() if not name.startswith("fc3")}
    return server, to_everyone(round_info.names, Message(shared))


@pytest.mark.slow
def test_a_model_may_depend_on_its_device():
    fed = federation()
    turn = last(plays((Stage(partial(train, training=SGD), body_of, 1),), deploy=own_head), fed)
    body = turn.state.messages["a"].params
    for name, device in fed.devices.items():
        by_hand = Model(({**model(name), **body},))
        assert turn.scores[name]["test"] == evaluate(by_hand, device.net, device.data.test)


@pytest.mark.parametrize("changes", [{}, {"batch": 5, "epochs": 3}, {"steps": 7}, {"steps": 1, "batch": 64}])
@pytest.mark.parametrize("size", [0, 1, 6, 9])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.slow
def test_an_update_says_how_many_steps_were_taken(changes, size, norm):
    net = Net(normed) if norm else NET
    device = device_of("a", net)
    part = Data(device.data.train.x[:size], device.data.train.y[:size])
    device = replace(device, data=replace(device.data, train=part))
    training = replace(SGD, **changes)
    flat = flatten_net(net, nets.init(net, generator(0)))
    with one_thread():
        _, update = train({}, Message(), device, StepId(0, 0, 0, "a"), training=training)
    assert update.steps == len(minibatches(flat, len(part), training, generator(1)))


def normed():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))


class InParts(Inline):
    """Runs the parts of a device's step apart, as a pipeline does that keeps them."""

    in_parts = True


def test_a_device_takes_its_step_adds_to_it_and_sends_that_alone():
    there, at = device_of("a"), StepId(0, 0, 0, "a")
    with one_thread():
        _, update = train({}, Message(), there, at, training=SGD)
        memory, sent = visit(Stage(partial(train, training=SGD), quiet, attach=doubled), {}, Message(), there, at)
        kept, nothing = visit(Stage(partial(train, training=SGD), None), {}, Message(), there, at)
    assert (bits(memory), bits(sent)) == (bits({}), bits(doubled(update, there, at)))
    assert (bits(kept), bits(nothing)) == (bits(update.params), bits(Update()))


@pytest.mark.parametrize("combine", [quiet, None])
@pytest.mark.parametrize("attach", [doubled, None])
@pytest.mark.slow
def test_one_step_of_a_device_or_its_parts_give_the_same_bits(attach, combine):
    stages = (Stage(partial(train, training=SGD), combine, 2, attach=attach), Stage(tally, quiet))
    whole, parts = (list(run(plays(stages), federation(), 3, how)) for how in (Inline(), InParts()))
    assert bits(whole) == bits(parts)


# Devices that do not answer


class Without(Inline):
    """Runs steps on all devices but those that are silent in a turn: (stage, round) -> names; scoring is turn None."""

    def __init__(self, silent):
        self.silent = silent

    def map(self, fn, calls):
        there = {}
        for name, args in calls.items():
            turn = (args[-1].stage, args[-1].round) if isinstance(args[-1], StepId) else None
            if name not in self.silent.get(turn, ""):
                there[name] = args
        return super().map(fn, there)


def test_an_absent_device_is_named_keeps_its_memory_and_has_no_traffic():
    stages = (Stage(tally, gather, 4),)
    first, second, third, _ = run(plays(stages), federation(), 0, Without({(0, 1): "b"}))
    assert [one.absent for one in (first, second, third)] == [(), ("b",), ()]
    assert (second.up["b"], second.down["b"]) == (0, 0)
    assert bits(second.state.memories["b"]) == bits(first.state.memories["b"])
    assert second.state.messages["b"] is first.state.messages["b"]
    assert third.state.memories["b"]["seen"] == 2
    assert third.down["b"] == first.state.messages["b"].nbytes  # the message of the first round, which it lacked
    assert third.down["a"] == second.state.messages["a"].nbytes


@pytest.mark.parametrize("fraction", [1.0, 0.34])
def test_the_last_message_is_not_sent_to_a_device_that_is_away(fraction):
    away, method = Without({(0, 0): "b", (0, 1): "b", None: "b"}), plays((Stage(tally, gather, 2, fraction),))
    method = replace(method, deploy=lambda memory, message, *, device: Model((message.params,)))
    played = list(run(method, federation(), 3, away, least=0))
    assert {*played[-1].scores} == {"a", "c"}
    assert [one.down["b"] for one in played] == [0, 0]
    assert played[-1].state.delivered == {"a", "c"}


def test_what_absent_devices_would_have_sent_is_in_no_mean():
    fed = federation()
    (one,) = run(fedavg(), fed, 0, Without({(0, 0): "c"}))
    (two,) = run(fedavg(), federation("ab"), 0, Inline())
    assert bits(one.state.messages["a"]) == bits(one.state.messages["c"]) == bits(two.state.messages["a"])


@pytest.mark.parametrize(("silent", "least"), [("", 3), ("c", 2), ("", 9)])
@pytest.mark.slow
def test_so_many_devices_must_answer(silent, least):
    assert list(run(fedavg(), federation(), 0, Without({(0, 0): silent}), least=least))


def test_fewer_answers_than_must_end_the_run_with_the_names_of_the_absent():
    with pytest.raises(TooFew, match=r"^round 1 of stage 1: 1 of 3 devices answered, at least 2 must; absent: a, c$"):
        list(run(fedavg(), federation(), 0, Without({(0, 0): "ac"}), least=2))


def test_a_device_that_is_silent_when_models_are_scored_has_no_scores():
    (one,) = run(plays((Stage(partial(train, training=SGD), None),)), federation(), 0, Without({None: "b"}))
    assert list(one.scores) == ["a", "b", "c"]  # one model, scored in one step, which "a" stands for
    (two,) = run(plays((Stage(tally, gather),), deploy=own), federation(), 0, Without({None: "b"}))
    assert list(two.scores) == ["a", "c"]


def own(memory, message):
    return Model((message.params,))
