"""What every method of the registry keeps, with its own section of params.yaml: a new one is covered at once."""

import math
import pickle
from dataclasses import replace
from functools import cache

import pytest
import torch
from every_method import ROWS
from federations import AT_THE_END, NET, NETS, SGD, bits, data, federation, workers

from fedcore import InputError, Report, Stage, Training, nets, train
from fedcore.core.evaluation import evaluate, outputs, require_whole
from fedcore.core.rounds import begin, receive, run
from fedcore.execute.workers import Inline
from fedcore.methods import METHODS, builder, method
from fedcore.methods.st_lf.planning import SENDS
from fedcore.pipeline.cache.keys import key
from fedcore.report.figures import png
from fedcore.report.figures.drawing import drawings
from fedcore.types.federation import Threats

CONTROLS = {name for name in METHODS if hasattr(builder(name), "control")}
FED = federation("abcd")
DRAWN = {"fedgen": {"alpha": 0.0}, "fedala": {"weights_lr": 0.0}}
"""What turns off that devices draw more than their minibatches: FedGen's generated examples, FedALA's share."""
UNTRAINED = {"majority", "majority_per_device"}
"""Controls that train nothing and draw nothing."""


FIRST = {path: name for name in reversed(METHODS) for path in ROWS[name].build(NETS).figures}
"""Function that draws figures -> the first method that has it."""


@pytest.fixture(params=METHODS, scope="module")
def row(request):
    return ROWS[request.param]


@cache
def played(name):
    """Return a method and its turns, which several tests look at."""
    built = ROWS[name].build(NETS)
    return built, tuple(run(built, FED, 0, Inline()))


def test_every_method_has_a_section():
    assert set(ROWS) == set(METHODS)
    assert 0 < len(CONTROLS) < len(METHODS)


@pytest.mark.slow
def test_same_seed_same_bits_other_seed_other_bits(row):
    built, first = played(row.name)
    again, other = watched(row.name)[1], [*run(row.build(NETS), FED, 1, Inline(), every=AT_THE_END)]
    assert bits(again) == bits([*first])
    assert len(first) == len(other)
    deployed = [bits(models(built, turns[-1])) for turns in (first, other)]
    assert deployed[0].keys() == deployed[1].keys()
    assert row.name in UNTRAINED or all(
        deployed[0][place] != deployed[1][place] for place in deployed[0] if "weight" in place.split("/")[-1]
    )


def models(built, one):
    """What each device runs in the end."""
    return {
        name: built.deploy(one.state.memories.get(name) or {}, one.state.messages[name]).params for name in FED.devices
    }


def unchanged_by(name, part):
    """Tell whether a method deploys the same models after other examples have taken the place of `part`."""
    built, (*_, plain) = played(name)
    other = FED
    if part == "shared":
        other = replace(FED, test=data(20, "another shared set"))
    else:
        for device, there in FED.devices.items():
            moved = replace(there, data=replace(there.data, val=data(7, device, "another validation split")))
            other = replace(other, devices={**other.devices, device: moved})
    *_, changed = run(built, other, 0, Inline(), every=AT_THE_END)
    return bits(models(built, plain)) == bits(models(built, changed))


@pytest.mark.slow
@pytest.mark.parametrize("part", ["val", "shared"])
def test_a_method_says_which_examples_a_final_fit_must_hold_out(row, part):
    """Where it does not say so, those examples change no model that a device runs."""
    assert part in row.build(NETS).held_out or unchanged_by(row.name, part)


@pytest.mark.parametrize(
    ("name", "settings", "held_out"),
    [
        ("local_only", {}, ()), ("fedavg", {}, ()), ("analytic", {}, ()), ("ensemble", {}, ()), ("stack", {}, ()),
        ("code_ot", {"rank_by": "classes"}, ("val",)), ("lmf", {"rank_by": "validation"}, ("val",)),
        ("code_ot", {"rank_by": "test"}, ("shared",)), ("ensemble", {"personal": True}, ("val",)),
        ("gaussian_distillation", {"personal": True}, ("val",)), ("personal_distillation", {}, ("val",)),
        ("stack", {"examples": "validation"}, ("val",)), ("st_lf", {}, ("val",)),
    ],
)  # fmt: skip
def test_the_examples_that_are_held_out_follow_from_the_settings(name, settings, held_out):
    row = ROWS[name]
    assert replace(row, settings={**row.settings, **settings}).build(NETS).held_out == held_out


@pytest.mark.slow
def test_what_is_deployed_fits_its_net_is_finite_and_is_what_was_scored(row):
    built, (*_, one) = played(row.name)
    assert list(one.scores) == list(FED.devices)
    for name, there in FED.devices.items():
        deployed = built.deploy(one.state.memories.get(name) or {}, one.state.messages[name])
        for params in deployed.params:
            assert {key: tuple(x.shape) for key, x in params.items()} == nets.shapes(deployed.net or NET)
            assert all(x.dtype in (torch.float32, torch.uint8) and bool(x.isfinite().all()) for x in params.values())
        torch.testing.assert_close(outputs(deployed, NET, FED.test.x).exp().sum(1), torch.ones(len(FED.test)))
        for split, examples in (("val", there.data.val), ("test", there.data.test), ("shared", FED.test)):
            assert one.scores[name][split] == evaluate(deployed, NET, examples)
            assert all(math.isfinite(value) for value in one.scores[name][split].values())


class Watched(Inline):
    """Runs steps in this process and sees to it that none changes what it was given."""

    def call(self, fn, *args):
        before = bits(args)
        result = super().call(fn, *args)
        assert bits(args) == before, fn
        return result


@cache
def watched(name):
    """Play a method again and watch it; return its start, its turns and their bits when they were new."""
    built = ROWS[name].build(NETS)
    start = begin(built, FED, 0, Watched())
    turns, before = [], [bits(start)]
    for one in run(built, FED, 0, Watched(), state=start):
        turns.append(one)
        before.append(bits(one))
    return start, turns, before


@pytest.mark.slow
def test_nothing_that_goes_in_is_changed(row):
    start, turns, before = watched(row.name)
    assert turns
    assert [bits(value) for value in (start, *turns)] == before


@pytest.mark.slow
def test_who_takes_part_sends_and_nobody_else(row):
    built, turns = played(row.name)
    messages = begin(built, FED, 0, Inline()).messages
    for one in turns:
        assert list(one.up) == list(one.down) == list(FED.devices)
        sends = built.stages[one.round_info.stage].combine is not None
        first = {unit if isinstance(unit, str) else unit[0] for unit in one.round_info.units if sends}
        told = {name for name in first if messages[name].extra.get(SENDS, True)}  # a server may ask only some
        assert {name for name, count in one.up.items() if count} == told
        messages = one.state.messages


@pytest.mark.slow
def test_memories_hold_plain_tensors_and_what_was_found_is_in_the_reports(row):
    """No tensor is there for the record alone; every number found is finite or nan, of this federation's devices."""
    for one in played(row.name)[1]:
        for memory in (one.state.server, *one.state.memories.values()):
            assert not [name for name in memory if name.startswith("record")]
            assert all(isinstance(tensor, torch.Tensor) for tensor in memory.values())
        assert isinstance(one.report, Report)
        numbers = [number for told in one.report.series.values() for number in told.values()]
        for devices in one.report.devices.values():
            assert {*devices} <= {*FED.devices}
            numbers += [number for told in devices.values() for number in told.values()]
        assert all(type(number) is float and not math.isinf(number) for number in numbers)
        assert all(isinstance(matrix, torch.Tensor) for matrix in one.report.matrices.values())


@pytest.mark.slow
def test_a_methods_figures_draw_its_reports(row):
    """Each of its functions draws something, under names that no other one takes; the first method's is rendered."""
    built, turns = played(row.name)
    told = {"label": [one.report for one in turns]}
    names = [name for path in built.figures for name, _, _ in drawings(path, told)]
    assert len({*names}) == len(names) >= len(built.figures)
    for path in built.figures:
        for _, caption, draw in drawings(path, told):
            assert caption.endswith(".")
            figure = draw()
            assert figure.axes
            assert FIRST[path] != row.name or png(figure).startswith(b"\x89PNG")
        assert not list(drawings(path, {"silent": [Report()]}))


def renamed(name):
    return f"device {name}"


@pytest.mark.slow
def test_other_names_in_the_same_order_change_nothing_else(row):
    """With one start for all and all examples in one batch nothing else is drawn by name, once `DRAWN` is off."""
    row = replace(row, settings=row.settings | DRAWN.get(row.name, {}))
    whole = {"batch": 1000, "epochs": 5, "optimiser": "sgd", "lr": 0.3}
    built = replace(row, training=replace(row.training, shared_init=True, **whole)).build(NETS)
    other = replace(FED, devices={renamed(k): replace(v, name=renamed(k)) for k, v in FED.devices.items()})
    plain, its_own = (run(built, fed, 3, Inline(), every=AT_THE_END) for fed in (FED, other))
    for one, two in zip(plain, its_own, strict=True):
        assert {renamed(name): count for name, count in one.down.items()} == two.down
        for name in FED.devices:
            mine, its = one.state.messages[name], two.state.messages[renamed(name)]
            torch.testing.assert_close(mine.params, its.params, rtol=1e-4, atol=1e-5)
    for name in FED.devices:
        for split, found in one.scores[name].items():
            assert found == pytest.approx(two.scores[renamed(name)][split], rel=1e-4)


class Backwards(Inline):
    """Brings updates to the server in the opposite order."""

    def __call__(self, fn, *args):
        if fn is receive:
            combine, server, updates, *rest = args
            args = (combine, server, dict(reversed(updates.items())), *rest)
        return super().__call__(fn, *args)


@pytest.mark.slow
def test_the_order_in_which_updates_arrive_does_not_matter(row):
    """But for rounding: sums are taken in another order."""
    built = replace(row, training=replace(row.training, optimiser="sgd", lr=0.1)).build(NETS)
    forwards, backwards = (run(built, FED, 3, execute, every=AT_THE_END) for execute in (Inline(), Backwards()))
    for one, two in zip(forwards, backwards, strict=True):
        assert (one.up, one.down) == (two.up, two.down)
        for name in FED.devices:
            mine, its = one.state.messages[name], two.state.messages[name]
            torch.testing.assert_close(dict(mine.params), dict(its.params), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(dict(mine.extra), dict(its.extra), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_every_step_gives_the_same_bits_in_another_process(row):
    built, here = played(row.name)
    again = pickle.loads(pickle.dumps(built))
    assert bits([*run(again, FED, 0, workers(2))]) == bits([*here])


@pytest.mark.slow
def test_a_steps_key_is_the_same_in_another_process(row):
    built = row.build(NETS)
    start = begin(built, FED, 0, Inline())
    there = FED.devices["a"]
    steps = [stage.local for stage in built.stages] + [stage.combine for stage in built.stages if stage.combine]
    steps += [stage.attach for stage in built.stages if isinstance(stage, Stage) and stage.attach]
    calls = [(built.begin, NET), *((step,) for step in steps), (built.deploy, start.messages["a"])]
    calls.append((built.stages[0].local, {}, start.messages["a"], there))
    keys = [key(*call) for call in calls]
    assert keys == [workers(2).call(key, *call) for call in calls]
    assert all(len(found) == 40 and int(found, 16) >= 0 for found in keys)
    assert len({keys[0], keys[1], keys[-2], keys[-1]}) == 4


def test_one_training_serves_every_one_shot_method():
    keys = {
        name: key(stage.local, {}, FED.devices["a"])
        for name, row in ROWS.items()
        for stage in row.build(NETS).stages[:1]
        if getattr(stage.local, "func", None) is train
    }
    rounds = {"label_smoothing", "dfl_diagonal"}
    voting = {"ensemble", "stack", "gaussian_distillation", "personal_distillation"}
    assert set(keys) >= {"lmf", "code_ot", "local_only", "fedavg", *voting, *CONTROLS - UNTRAINED - rounds - {"pooled"}}
    assert len(set(keys.values())) == 1
    longer = method("local_only", nets=NETS, training=Training(**{**vars(SGD), "epochs": 9}), shared_init=False).stages[
        0
    ]
    assert key(longer.local, {}, FED.devices["a"]) not in keys.values()


def test_names_and_settings_that_are_not_known_are_refused():
    with pytest.raises(InputError, match=r"^method = 'fedavgg': did you mean fedavg\? allowed: .*$"):
        method("fedavgg", nets=NETS, training=SGD, shared_init=True)
    for name in METHODS:
        with pytest.raises(TypeError, match="wrong"):
            method(name, nets=NETS, training=SGD, shared_init=True, **ROWS[name].settings, wrong=1)


WITHOUT_SAMPLING = {"fada", "psi_fada"}
"""Their rounds are of one stage in which each source is aligned with each target."""


@pytest.mark.parametrize("name", [name for name in METHODS if "rounds" in ROWS[name].settings])
@pytest.mark.slow
def test_a_method_with_rounds_takes_a_fraction_of_the_devices(name: str):
    """Half of them take part in a round; those that never did have a whole model, too."""
    if name in WITHOUT_SAMPLING:
        return
    row = ROWS[name]
    row = replace(row, settings={**row.settings, "fraction": 0.5, "rounds": 3})
    built = replace(row, training=replace(row.training, shared_init=True, epochs=1)).build(NETS)
    turns = list(run(built, FED, 0, Inline(), every=AT_THE_END))
    assert min(len(turn.round_info.units) for turn in turns) == 2
    for name_, device in FED.devices.items():
        state = turns[-1].state
        model = built.deploy(state.memories.get(name_) or {}, state.messages[name_])
        require_whole(model, device.net, [name_])


NEED_ALL = {
    "pleas": "pleas", **dict.fromkeys(("rnd_psi", "psi_fedavg", "psi_fada", "single_match"), "links"),
}  # fmt: skip
"""Methods whose devices each need what all others sent, and the word before their refusal."""


@pytest.mark.slow
@pytest.mark.parametrize("strikes", [Threats(drop=0.5), Threats(deadline=0.3)], ids=["dropped", "late"])
def test_a_method_combines_whoever_is_there_or_says_whom_it_lacks(row, strikes):
    built, fed = row.build(NETS), replace(FED, threats=strikes)
    if any(not isinstance(stage, Stage) for stage in built.stages):
        return  # steps of pairs take no such settings
    if row.name in NEED_ALL:
        with pytest.raises(InputError, match=rf"^{NEED_ALL[row.name]}: [a-d, ]+ sent nothing, and "):
            list(run(built, fed, 0, Inline(), every=AT_THE_END))
        return
    *_, one = run(built, fed, 0, Inline(), every=AT_THE_END)
    for name, device in FED.devices.items():
        model = built.deploy(one.state.memories.get(name) or {}, one.state.messages[name])
        require_whole(model, device.net, [name])


def test_a_rescaled_layer_needs_everybody():
    row = ROWS["regmean"]
    built = replace(row, settings={**row.settings, "repair": True}).build(NETS)
    with pytest.raises(InputError, match=r"^regmean\.repair = true: [a-d, ]+ sent nothing, and each device builds"):
        list(run(built, replace(FED, threats=Threats(drop=0.9)), 0, Inline()))


@pytest.mark.parametrize("name", ["fedavg", "analytic"])
def test_masked_sums_of_devices_of_which_one_drops_out_are_refused(name):
    row = ROWS[name]
    built = replace(row, settings={**row.settings, "secure_aggregation": True}).build(NETS)
    with pytest.raises(
        InputError, match=r"^secure_aggregation = true: [a-d, ]+ sent nothing, and masks cancel in the sum over all"
    ):
        list(run(built, replace(FED, threats=Threats(drop=0.9)), 0, Inline()))
