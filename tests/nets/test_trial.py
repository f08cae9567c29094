"""A user's modules of many kinds, against a loop of plain PyTorch: equal to it, or refused with the cause."""

import functools
import itertools
import random
from dataclasses import replace

import numpy as np
import own_modules
import pytest
import torch
from own_modules import (
    CLASSES,
    EQUAL,
    FAST,
    FEATURES,
    Attention,
    ChangesInput,
    Drawn,
    FrozenOnTop,
    Norm,
    Parametrized,
    TensorHook,
    Two,
    Uncalled,
)
from torch import nn
from torch.nn import functional as F

import fedcore as fc
from fedcore import InputError, Training, nets
from fedcore.api.effort import differing_value
from fedcore.api.runs import executor
from fedcore.core.evaluation import outputs
from fedcore.core.flat_nets import flatten_net
from fedcore.core.rounds import begin, run
from fedcore.core.together import run_on_together
from fedcore.core.training import least_batch
from fedcore.execute.workers import Inline
from fedcore.methods import method
from fedcore.nets.copies import _copy_of
from fedcore.nets.inputs import _multiplications, linear_layers
from fedcore.nets.randomness import construct_with
from fedcore.types.federation import Data, Device, Federation, Scoring, Splits
from fedcore.types.method import seed_all

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated.*")

ROUNDS, STEPS, RATE, DECAY = 2, 4, 0.3, 0.1


def federation(net):
    draws = torch.Generator().manual_seed(7)

    def rows(count):
        x = torch.randn(count, FEATURES, generator=draws)
        return Data(x, (x[:, 0] > x[:, 1]).long() + (x[:, 2] > 0).long())

    data = {name: Splits(rows(count), rows(9), rows(30)) for name, count in {"a": 20, "b": 33}.items()}
    return Federation({name: Device(name, net, splits) for name, splits in data.items()}, rows(40), CLASSES)


def plain_round(build, state, fed, optimiser):
    """Return the weighted mean of the devices' models after their steps: a loop as in a tutorial."""
    sizes, states = [], []
    for device in fed.devices.values():
        x, y = device.data.train.x, device.data.train.y
        module = build()
        module.load_state_dict(state, strict=False)
        module.train()
        for layer in module.modules():  # docs/own_net.md: a frozen norm stays in evaluation mode
            if [*layer.parameters(recurse=False)] and not any(p.requires_grad for p in layer.parameters()):
                layer.eval()
        steps = optimiser(module.parameters())
        for _ in range(STEPS):
            steps.zero_grad()
            F.cross_entropy(module(x.clone()).float(), y).backward()
            steps.step()
        sizes.append(len(y))
        states.append(module.state_dict())
    return {n: sum(size * s[n] for size, s in zip(sizes, states, strict=True)) / sum(sizes) for n in states[0]}


OPTIMISERS = {
    "sgd": functools.partial(torch.optim.SGD, lr=RATE, momentum=0.9, weight_decay=DECAY),
    "adam": functools.partial(torch.optim.AdamW, lr=0.01, weight_decay=DECAY),
}
TRAININGS = {
    "sgd": Training("sgd", RATE, 0.9, DECAY, "constant", 64, STEPS, shared_init=True),
    "adam": Training("adamw", 0.01, 0.0, DECAY, "constant", 64, STEPS, shared_init=True),
}


def own(kind):
    return nets.net(f"{kind.__module__}:{kind.__name__}", shape=(FEATURES,), classes=CLASSES)


@pytest.fixture(scope="module")
def workers():
    with executor(2) as execute:
        yield execute


@pytest.mark.slow
@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("kind", EQUAL, ids=lambda kind: kind.__name__)
def test_it_is_what_plain_pytorch_makes_of_it(kind, optimiser, workers):
    """To 1e-6, or to what a plain loop does when its start moves by 1e-7; the same bits in a worker's process."""
    net = own(kind)
    fed = federation(net)
    build = functools.partial(_built, net)
    chosen = method("fedavg", nets=fed.public.nets, training=TRAININGS[optimiser], rounds=ROUNDS)
    state = start = {n: x.clone() for n, x in begin(chosen, fed, 0, Inline()).messages["a"].params.items()}
    rows_before = {name: device.data.test.x.clone() for name, device in fed.devices.items()}
    in_two = zip(run(chosen, fed, 0, Inline()), run(chosen, fed, 0, workers), strict=True)
    for number, (result, elsewhere) in enumerate(in_two, 1):
        state = plain_round(build, state, fed, OPTIMISERS[optimiser])
        sent = result.state.messages["a"].params
        if (far := distance(sent, state)) > 1e-6:
            assert far <= moved_away(build, start, fed, OPTIMISERS[optimiser], number)
        assert distance(sent, elsewhere.state.messages["a"].params) == 0
        assert result.scores == elsewhere.scores
        module = build()
        module.load_state_dict(sent, strict=False)
        module.eval()
        for name, device in fed.devices.items():
            x, y = rows_before[name], device.data.test.y
            assert torch.equal(device.data.test.x, x), "rows are as they were"
            right = (module(x.clone()).argmax(1) == y).double().mean().item()
            assert result.scores[name]["test"]["accuracy"] == pytest.approx(right)
    answers = outputs(chosen.deploy({}, result.state.messages["a"]), net, x)
    assert torch.allclose(answers, module(x.clone()).float().log_softmax(1).detach(), atol=1e-6, rtol=0)


@pytest.mark.slow
def test_methods_leave_a_parameter_without_a_gradient_and_pleas_refuses():
    net = own(Uncalled)
    fed = federation(net)
    for name in ("apfl", "fedprox", "ditto", "feddyn", "pfedme", "scaffold"):
        mixed = method(name, nets=fed.public.nets, training=replace(TRAININGS["sgd"], momentum=0.0), rounds=2)
        start = begin(mixed, fed, 0, Inline()).messages["a"].params["unused.weight"]
        *_, result = run(mixed, fed, 0, Inline())
        model = mixed.deploy(result.state.memories.get("a") or {}, result.state.messages["a"])
        assert all(torch.allclose(part["unused.weight"], start, atol=1e-7) for part in model.params), name
    merging = method("pleas", nets=fed.public.nets, training=TRAININGS["sgd"])
    with pytest.raises(InputError, match="the net's forward never calls 'unused'"):
        [*run(merging, fed, 0, Inline())]


class InRows(Inline):
    """Trains devices as rows by vmap."""

    def map(self, fn, calls, **kwargs):
        return dict(zip(calls, run_on_together(fn, None, *calls.values()), strict=True))


@pytest.mark.parametrize("kind", [TensorHook, Norm, FrozenOnTop, ChangesInput], ids=lambda kind: kind.__name__)
@pytest.mark.slow
def test_models_train_together_on_a_card_only_where_they_become_the_same(kind):
    net = own(kind)
    fed = federation(net)
    chosen = method("fedavg", nets=fed.public.nets, training=TRAININGS["sgd"], rounds=1)
    alone, together = ([*run(chosen, fed, 0, execute)][-1].state for execute in (Inline(), InRows()))
    assert distance(alone.messages["a"].params, together.messages["a"].params) < 1e-5


def moved_away(build, start, fed, optimiser, rounds):
    """Return how far a plain loop moves at most in eight trials where its start moves by 1e-7."""
    ends = []
    for seed in range(9):
        draws = torch.Generator().manual_seed(seed)
        step = 1e-7 if seed else 0
        state = {n: x + step * torch.randn(x.shape, generator=draws).to(x.dtype) for n, x in start.items()}
        for _ in range(rounds):
            state = plain_round(build, state, fed, optimiser)
        ends.append(state)
    return max(distance(ends[0], end) for end in ends[1:])


def distance(one, other):
    """Return how far the tensors of the first are at most from those of the second."""
    return max((float((tensor - other[name]).abs().max()) for name, tensor in one.items()), default=0.0)


def _built(net):
    """Return a module as it is built under the generator of templates, so that what is frozen is the same."""
    with construct_with(torch.Generator()):
        return net.build()


@pytest.mark.slow
@pytest.mark.parametrize("kind", EQUAL, ids=lambda kind: kind.__name__)
def test_fast_copies_are_made_where_they_can_be(kind):
    """Otherwise the fast way would never be taken, and nothing would tell."""
    net = own(kind)
    assert (net.copied and _copy_of(nets.key(net)) is not None) == (kind in FAST)


class View(Two):
    def __init__(self):
        super().__init__()
        self.half = self.first.weight[:4]

    def forward(self, x):
        return super().forward(x) + F.linear(x, self.half).mean(1, keepdim=True)


class TiedByData(Two):
    def __init__(self):
        super().__init__()
        self.third = nn.Linear(FEATURES, 8)
        self.third.weight.data = self.first.weight.data
        self.second = nn.Linear(8, CLASSES)

    def forward(self, x):
        return super().forward(x) + self.second(self.third(x))


class PlainState(Two):
    rate = 0.1

    def __init__(self):
        super().__init__()
        self.mean = torch.zeros(8)

    def forward(self, x):
        h = self.first(x)
        if self.training:
            self.mean = (1 - self.rate) * self.mean + self.rate * h.detach().mean(0)
        return self.second(torch.relu(h - self.mean) * self.scale)


class SlowState(PlainState):
    rate = 1e-5  # so little that no two steps show it


class Sparse(nn.Module):
    sparse = True

    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(50, 8, sparse=self.sparse), nn.Linear(8 * FEATURES, CLASSES)

    def forward(self, x):
        return self.out(self.words(x).flatten(1))


class NotStored(PlainState):
    def __init__(self):
        super().__init__()
        del self.mean
        self.register_buffer("mean", torch.zeros(8), persistent=False)


class Teacher(Two):
    """A frozen mean of its first layer, changed in training: frozen layers are not sent."""

    def __init__(self):
        super().__init__()
        self.mean = nn.Linear(FEATURES, 8).requires_grad_(False)
        self.second = nn.Linear(8, CLASSES)

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.mean.weight.lerp_(self.first.weight, 0.1)
        return super().forward(x) + self.second(self.mean(x))


class Keeps(Two):
    def __init__(self):
        super().__init__()
        self.inner, self.top, self.steps, self.counts = nn.Module(), 1.5, [], {"steps": 0}
        self.inner.seen = 0


class CountsSteps(Keeps):
    """Anneals: its predictions are the same, its second step is not."""

    def forward(self, x):
        self.inner.seen += self.training
        return super().forward(x) / (1 + self.inner.seen if self.training else 1)


class OwnDraws(Two):
    def __init__(self):
        super().__init__()
        self.draws = np.random.default_rng(0)

    def forward(self, x):
        return super().forward(x + torch.tensor(self.draws.normal(size=x.shape)).float() * self.training)


BUILT = itertools.count()


class Entropy(Two):
    """Another one each time that it is built, by what no seed holds."""

    def __init__(self):
        super().__init__()
        self.factor = 1.5 ** next(BUILT)

    def forward(self, x):
        return super().forward(x) * self.factor


ONE = Two()


def one_for_all():
    return ONE


class ExtraState(Two):
    get_extra_state, set_extra_state = (lambda self: {"version": 3}), (lambda self, state: None)


class Slash(Two):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict({"x/y": nn.Linear(8, 8)})

    def forward(self, x):
        return self.second(torch.relu(self.layers["x/y"](self.first(x))) * self.scale)


class BatchAlone(Two):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8, track_running_stats=False)

    def forward(self, x):
        return self.second(torch.relu(self.norm(self.first(x))) * self.scale)


class BatchOfWords(Sparse):
    sparse = False  # and among equal rows one cannot see that the others count

    def forward(self, x):
        h = self.words(x).flatten(1)
        return self.out(h - h.mean(0))


class Tuple(Two):
    def forward(self, x):
        return super().forward(x), x


class TupleInTraining(Two):
    def forward(self, x):
        return (super().forward(x), x) if self.training else super().forward(x)


class Fails(Two):
    def forward(self, x):
        assert not self.training, "give me labels"
        return super().forward(x)


def scripted():
    return torch.jit.script(nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES)))


FIRST_ROWS: dict[str, torch.Tensor] = {}


class FirstRows(Two):
    """Centres by the first rows it sees, whosever they are."""

    def forward(self, x):
        return super().forward(x - FIRST_ROWS.setdefault("mean", x.detach().mean(0)))


class ClassRange(Two):
    """Its range, a class's attribute, grows by rows beyond 0 to 1 alone."""

    top = 1.0

    def forward(self, x):
        type(self).top = max(self.top, float(x.abs().max()))
        return super().forward(x / self.top)


class Range(Keeps):
    def forward(self, x):
        if self.training:
            self.top = max(self.top, float(x.abs().max()))
        return super().forward(x / self.top)


class Late(Keeps):
    def forward(self, x):
        if self.training:
            self.steps.append(1)
        return super().forward(x) * (1 + (len(self.steps) > 50))


class Counts(Keeps):
    def forward(self, x):
        self.counts["steps"] += self.training
        return super().forward(x) / (1 + self.counts["steps"] / 1e5)


class FarRows(Two):
    def forward(self, x):
        return super().forward(x - x.mean(0) * (x.abs().max() > 2))


class OfManyRows(Two):
    """Standardises by the batch, where it has eight rows or more."""

    def forward(self, x):
        return super().forward((x - x.mean(0)) / x.std(0) if len(x) >= 8 else x)


class OfTheLongest(nn.Module):
    """Cuts texts at the longest of the batch."""

    def __init__(self):
        super().__init__()
        self.words, self.second = nn.Embedding(9, 8, padding_idx=0), nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.second(self.words(x[:, : int((x != 0).any(0).nonzero().max()) + 1]).mean(1))


class Counted(Two):
    kind, momentum = torch.int64, 0.0

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=self.kind))
        self.register_buffer("order", torch.arange(FEATURES))
        self.norm = nn.BatchNorm1d(FEATURES, momentum=self.momentum)

    def forward(self, x):
        self.seen += self.training
        return super().forward(self.norm(x[:, self.order])) / (1 + self.seen.sum())


class Flagged(Counted):
    kind = torch.bool


class AllBatches(Counted):
    kind, momentum = torch.float32, None


class ReadsCount(Counted):
    def forward(self, x):
        return Two.forward(self, self.norm(x)) / (1 + self.norm.num_batches_tracked)


REFUSED = {
    Counted: "changes seen, torch.int64, and of whole numbers devices have no mean: make it float32$",
    ReadsCount: "reads norm.num_batches_tracked .* of which devices have no mean: count in float32$",
    Flagged: "changes seen, torch.bool", AllBatches: "norm.num_batches_tracked.*float32, or give its norm a momentum",
    FirstRows: "keeps its FIRST_ROWS.mean from a call", ClassRange: "keeps its ClassRange.top from a call",
    Range: "changes top in training", Late: "changes steps in training",
    Counts: "changes counts in training",
    FarRows: "predicts an example otherwise alone than beside others",
    OfManyRows: "predicts an example otherwise alone than beside others",
    OfTheLongest: "predicts an example otherwise alone than beside others",
    View: "a second time, as a view",
    TiedByData: "a second time, as a view that its constructor made or tied by `.data`",
    PlainState: "changes mean in training, which its state_dict does not hold",
    SlowState: "changes mean in training, which its state_dict does not hold",
    Sparse: "has a sparse gradient of words.weight; leave out sparse=True",
    NotStored: "changes mean in training, which its state_dict does not hold",
    Teacher: "changes mean.weight in training, which its state_dict does not hold or which is frozen",
    CountsSteps: "changes inner.seen in training", OwnDraws: "changes draws in training",
    Entropy: "is another one each time that it is built", one_for_all: "gives the same parameters at each call",
    Slash: "has a tensor 'layers.x/y.weight'; name its layer without a slash",
    ExtraState: "has get_extra_state", BatchAlone: "a batch norm with track_running_stats=False",
    BatchOfWords: "predicts an example otherwise alone than beside others",
    Tuple: "returns a tuple in evaluation, but logits must be real",
    TupleInTraining: "returns a tuple in training, but",
    Fails: r"fails for rows of shape .6,.: AssertionError: give me labels .*\(.*test_trial.py:\d+\)$",
    scripted: "is a script of torch.jit",
}  # fmt: skip


class Shares(Two):
    def forward(self, x):
        return super().forward(x).softmax(-1)


def test_a_softmax_at_the_end_is_warned_of():
    with pytest.warns(UserWarning, match="ends in a softmax, .* return logits"):
        own(Shares)


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
@pytest.mark.slow
def test_what_cannot_be_right_is_refused_in_one_line(kind):
    with pytest.raises(InputError, match=REFUSED[kind]) as refusal:
        own(kind)
    assert "\n" not in str(refusal.value)
    assert kind.__name__ in str(refusal.value)
    if kind in (FirstRows, ClassRange):
        with pytest.raises(InputError, match=REFUSED[kind]):  # what the first trial left does not hide it
            own(kind)


@pytest.mark.slow
def test_parametrized_layers_are_read_by_no_method():
    """Their weight is computed: it is no tensor that could be merged, and the last layer is not one module."""
    net = own(Parametrized)
    fed = federation(net)
    assert linear_layers(net.build()) == {}
    with pytest.raises(InputError, match="classifies by a parametrized layer, second; use a plain one"):
        method("fedper", nets=fed.public.nets, training=TRAININGS["sgd"])
    for name, loss in (("regmean", "ce"), ("fedavg", lambda batch: F.cross_entropy(batch.logits, batch.y))):
        chosen = method(name, nets=fed.public.nets, training=replace(TRAININGS["sgd"], loss=loss))
        assert len(list(run(chosen, fed, 0, Inline()))) == sum(stage.rounds for stage in chosen.stages)


class Noisy(Drawn):
    """Draws from all three generators in each forward."""

    def forward(self, x):
        return super().forward(x + 0.1 * torch.randn_like(x)) * (np.random.rand() + random.random())


def noisy_loss(batch):
    return F.cross_entropy(batch.logits * np.random.rand(), batch.y) + random.random() * batch.logits.square().mean()


def noisy_metric(answers, y):
    y += 1
    return np.random.rand() + random.random() + torch.rand(()).item()


@pytest.mark.slow
def test_random_numbers_of_a_users_own_are_the_same_in_every_process():
    """And its labels are its own to change, and the program's generators go on as if nothing had been drawn."""
    fed = federation(own(Noisy))
    fed = replace(fed, scoring=Scoring(own=(("noisy", noisy_metric),)))
    training = replace(TRAININGS["sgd"], loss=noisy_loss, batch=8, lr=0.01)
    chosen = method("fedavg", nets=fed.public.nets, training=training, rounds=2)
    labels = fed.test.y.clone()

    def numbers(workers):
        before = torch.rand(3), np.random.rand(), random.random()  # moves them on
        seed_all(5)
        _multiplications.cache_clear()  # the net's forward, counted once in a process, draws too
        with executor(workers) as execute:
            results = list(run(chosen, fed, 0, execute))
        assert (torch.rand(()), np.random.rand(), random.random()) == after, before
        return [result.scores for result in results], results[-1].state.messages["a"].params

    seed_all(5)
    after = torch.rand(()), np.random.rand(), random.random()
    first = numbers(None)
    again = [result.scores for result in run(chosen, fed, 0, Inline())]
    assert first[0] == again, "whether it has been counted before or not"
    others = numbers(None), numbers(1), numbers(2)
    for scores, params in others:
        assert scores == first[0]
        assert all(torch.equal(params[name], tensor) for name, tensor in first[1].items())
    assert torch.equal(fed.test.y, labels)


@pytest.mark.slow
def test_what_a_worker_process_has_otherwise_is_found(workers, monkeypatch):
    given = workers.engine, [own(Attention), own(Noisy)], [noisy_loss, {"one": noisy_metric}]
    assert differing_value(*given) is None
    for of, name, value, path in (
        (own_modules, "FEATURES", 8, "FEATURES"), (Two, "forward", lambda self, x: x, "Drawn.Two.forward"),
        (Drawn, "power", 3.0, "Drawn.power"), (F, "relu", torch.tanh, "torch.nn.functional.relu"),
        (own_modules, "EQUAL", [], None), (own_modules, "ACT", torch.tanh, "ACT"), (own_modules, "ACT", {1, 2}, "ACT"),
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(of, name, value, raising=False)
            assert differing_value(*given) == path


FACTOR = 1.0


@pytest.mark.slow
def test_a_class_of_a_script_reads_its_globals_as_they_are_now(monkeypatch):
    """Whoever reads it from its own pickle replaces its methods by ones that see globals as they were."""

    class Scripted(Two):
        def forward(self, x):
            return super().forward(x) * FACTOR

    def trained():
        fed = federation(fc.net(Scripted).make(shape=(FEATURES,), classes=CLASSES))
        chosen = method("fedavg", nets=fed.public.nets, training=TRAININGS["sgd"], rounds=1)
        return [result.state.messages["a"].params for result in run(chosen, fed, 0, Inline())][-1]

    first, plain = trained(), Scripted()
    before = plain(torch.ones(1, FEATURES))
    assert distance(trained(), first) == 0
    assert Scripted.forward.__globals__ is globals()
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert torch.equal(plain(torch.ones(1, FEATURES)), 3 * before)
    assert distance(trained(), first) > 1e-3


class Ordered(Two):
    """A buffer that is no batch statistic."""

    def __init__(self):
        super().__init__()
        self.register_buffer("order", torch.arange(FEATURES - 1, -1, -1))

    def forward(self, x):
        return super().forward(x[:, self.order])


class Reversed(Two):
    def forward(self, x):
        return super().forward(x.flip(1))


@pytest.mark.slow
def test_a_batch_of_one_example_is_left_out_for_a_batch_norm_alone():
    found = []
    for kind in (Ordered, Reversed):
        fed = federation(own(kind))
        training = replace(TRAININGS["sgd"], batch=1, steps=None, epochs=1, lr=0.01)
        chosen = method("fedavg", nets=fed.public.nets, training=training, rounds=1)
        start = begin(chosen, fed, 0, Inline()).messages["a"].params["first.weight"]
        found.append(next(iter(run(chosen, fed, 0, Inline()))).state.messages["a"].params)
        assert not torch.equal(found[-1]["first.weight"], start)
    assert distance(found[1], found[0]) == 0
    assert [least_batch(flatten_net(own(kind), own_start(kind))) for kind in (Ordered, Norm)] == [1, 2]


def own_start(kind):
    return nets.init(own(kind), torch.Generator())
