"""A user's own module by import path."""

import inspect
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Annotated, Any, NamedTuple, get_type_hints

import pytest
import torch
from annotated_types import Ge
from torch import nn

from fedcore import Data, Device, InputError, Message, Net, Splits, StepId, layers, nets
from fedcore.core.training import Training, predict, train
from fedcore.data.inputs import Input
from fedcore.methods import method
from fedcore.methods.code.fusion import align
from fedcore.methods.code.transport import Transport
from fedcore.nets import net
from fedcore.nets.copies import Copy, _copy_of, load
from fedcore.nets.custom import custom
from fedcore.nets.inputs import with_several
from fedcore.nets.tables import table

HERE = __name__
SGD = Training("sgd", lr=0.1, momentum=0.0, weight_decay=0.0, schedule="constant", batch=4, epochs=1)


class Small(nn.Module):
    """A module as people write them: `view`, a setting, no table."""

    def __init__(self, classes: int, units: Annotated[int, Ge(1)], slope: float = 0.1):
        super().__init__()
        self.conv, self.slope = nn.Conv2d(1, 2, 3), slope
        self.one, self.two = nn.Linear(32, units), nn.Linear(units, classes)

    def forward(self, x):
        x = torch.nn.functional.leaky_relu(self.conv(x), self.slope)
        return self.two(torch.relu(self.one(x.view(x.size(0), -1))))


class Tabled(Small):
    @staticmethod
    def axes(classes, units, slope=0.1):
        return {
            "conv.weight": ("c", None, None, None), "conv.bias": ("c",), "one.weight": ("u", "c"), "one.bias": ("u",),
            "two.weight": (None, "u"), "two.bias": (None,),
        }  # fmt: skip


def chain(shape, classes, *, width=8):
    size = torch.Size(shape).numel()
    return nn.Sequential(nn.Flatten(), nn.Linear(size, width), nn.ReLU(), nn.Linear(width, classes))


chain.axes = table(chain((1, 6, 6), 3))


class Span(NamedTuple):
    end: int = 2


@dataclass
class Sizes:
    width: int = 4
    act: str = "relu"


class Sized(nn.Sequential):
    def __init__(self, classes, sizes: Sizes = Sizes(5), span: Span = Span()):  # noqa: B008
        act = getattr(torch, sizes.act)
        super().__init__(nn.Flatten(), nn.Linear(36, sizes.width), nn.Linear(sizes.width, classes))
        self[1].register_forward_hook(lambda *called: act(called[2]) * span.end)


def positional(shape, /):
    return nn.Identity()


def odd(kind: str):
    shared = nn.Linear(36, 36)
    return {
        "list": [],
        "classes": nn.Sequential(nn.Flatten(), nn.Linear(36, 5)),
        "shape": nn.Linear(9, 3),
        "shared": nn.Sequential(nn.Flatten(), shared, shared, nn.Linear(36, 3)),
        "lazy": nn.Sequential(nn.Flatten(), nn.LazyLinear(3)),
        "frozen": nn.Sequential(nn.Flatten(), nn.Linear(36, 3)).requires_grad_(False),
        "double": nn.Sequential(nn.Flatten(), nn.Linear(36, 3), Half()),
    }[kind]


class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("factor", torch.ones((), dtype=torch.float64))

    def forward(self, x):
        return (x * self.factor).float()


NUMBER = 3


def own(name, **settings):
    return nets.net(f"{HERE}:{name}", shape=(1, 6, 6), classes=3, **settings)


def test_its_settings_are_its_signature():
    maker = nets.maker(f"{HERE}:Small")
    assert list(inspect.signature(maker).parameters) == ["shape", "classes", "per_step", "several", "units", "slope"]
    assert get_type_hints(maker, include_extras=True)["units"] == Annotated[int, Ge(1)]
    assert inspect.signature(maker).parameters["slope"].default == 0.1
    assert inspect.signature(maker).parameters["units"].default is inspect.Parameter.empty
    assert list(inspect.signature(nets.maker("lenet")).parameters) == ["shape", "classes", "width"]


class Given(nn.Module):
    def forward(self, **inputs):
        return inputs


@pytest.mark.parametrize("count", [0, 1, 5])
def test_several_inputs_have_their_shapes_however_many_rows_there_are(count):
    module = with_several(Given, (Input("age", ()), Input("none", (0, 2)), Input("picture", (3, 4))))
    x = torch.arange(13.0 * count).reshape(count, 13)
    found = module(x)
    assert {name: [*of.shape] for name, of in found.items()} == {
        "age": [count], "none": [count, 0, 2], "picture": [count, 3, 4],
    }  # fmt: skip
    assert torch.equal(torch.cat([found["age"][:, None], found["picture"].flatten(1)], 1), x)


@pytest.mark.slow
def test_it_is_built_by_the_users_own_callable():
    net = own("Small", units=7)
    assert net.build.func is Small
    assert net.build.keywords == {"classes": 3, "units": 7}
    assert own("chain", width=4).build.keywords == {"shape": (1, 6, 6), "classes": 3, "width": 4}
    assert nets.key(net) == nets.key(own("Small", units=7)) != nets.key(own("Small", units=8))
    for settings, width in (({}, 5), ({"width": 7}, 7), ({"act": "tanh"}, 5)):  # a dataclass stands for its fields
        assert nets.shapes(own("Sized", **settings))["1.weight"] == (width, 36)
    given = custom(partial(Small, units=7))(shape=(1, 6, 6), classes=3)
    assert nets.shapes(given) == nets.shapes(net)


def test_it_trains_and_predicts():
    net = own("Small", units=7)
    examples = Data(torch.rand(9, 1, 6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(9) % 3)
    device = Device("a", net, Splits(examples, examples, examples))
    update = train({}, Message(), device, StepId(0, 0, 0, "a"), training=SGD)[1]
    module = net.build().eval()
    module.load_state_dict(update.params)
    torch.testing.assert_close(predict(update.params, net, examples.x, 4), module(examples.x).detach())


SHARED = replace(SGD, shared_init=True)


class HeadFirst(nn.Module):
    def __init__(self, classes: int):
        super().__init__()
        self.head, self.body = nn.Linear(5, classes), nn.Linear(36, 5)

    def forward(self, x):
        return self.head(self.body(x.flatten(1)))


class OwnMatrix(nn.Module):
    def __init__(self, classes: int):
        super().__init__()
        self.body, self.weight = nn.Linear(36, 5), nn.Parameter(torch.ones(classes, 5))

    def forward(self, x):
        return self.body(x.flatten(1)) @ self.weight.T


class NormFirst(nn.Module):
    def __init__(self, classes: int):
        super().__init__()
        self.body, self.head, self.norm = nn.Linear(36, 5), nn.Linear(5, classes), nn.BatchNorm1d(5)

    def forward(self, x):
        return self.head(self.norm(self.body(x.flatten(1))))


class NormLast(NormFirst):
    def __init__(self, classes: int):
        super().__init__(classes)
        self.norm = nn.BatchNorm1d(classes)

    def forward(self, x):
        return self.norm(self.head(self.body(x.flatten(1))))


class Placed(nn.Module):
    """A parameter of its own in the middle, and an activation behind the last layer."""

    def __init__(self, classes: int):
        super().__init__()
        self.place, self.head = nn.Parameter(torch.ones(1, 36)), nn.Linear(36, classes)

    def forward(self, x):
        return self.head(x.flatten(1) + self.place).tanh()


@pytest.mark.slow
def test_methods_that_need_the_last_layer_refuse_another_order():
    said = {
        "HeadFirst": "HeadFirst declares body after head, which classifies; declare its layers in the order of",
        "NormFirst": "NormFirst declares norm after head, which classifies; declare its layers in the order of",
        "OwnMatrix": "OwnMatrix classifies by a parameter of its own; make it a layer",
    }
    for name, words in said.items():
        for which in ("fedper", "fedrep"):
            with pytest.raises(InputError, match=words):
                method(which, nets={"a": own(name)}, training=SHARED)
        assert method("fedavg", nets={"a": own(name)}, training=SGD)
    assert [*layers(own("Placed"))][-1] == "head"
    assert method("fedper", nets={"a": own("Placed")}, training=SHARED)
    assert method("fedper", nets={"a": own("NormLast")}, training=SHARED)


@pytest.mark.slow
def test_its_table_is_an_attribute():
    with pytest.raises(InputError, match="no table of axes"):
        _ = own("Small", units=7).table
    assert own("chain", width=8).table == {
        "1.weight": ("1", None), "1.bias": ("1",), "3.weight": (None, "1"), "3.bias": (None,)
    }  # fmt: skip
    net = own("Tabled", units=5)
    params = nets.init(net, torch.Generator().manual_seed(0))
    order = torch.tensor([3, 1, 4, 0, 2])
    shuffled = params | {name: params[name][order] for name in ("one.weight", "one.bias")}
    shuffled["two.weight"] = params["two.weight"][:, order]
    found, _ = align(shuffled, params, net.table, Transport("exact"))
    torch.testing.assert_close(found, params, rtol=0, atol=1e-6)


class Shuffled(nn.Module):
    def forward(self, x):
        return x.permute(0, 2, 3, 1)


IMAGE = nn.Conv2d(1, 8, 3, padding=1), nn.ReLU()
AFTER = nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(64, 3)


@pytest.mark.parametrize(
    "layers",
    [
        (nn.Flatten(), nn.Linear(36, 16), nn.GLU(1), nn.Linear(8, 3)),
        (*IMAGE, nn.ChannelShuffle(2), *AFTER),
        (*IMAGE, nn.GroupNorm(2, 8, affine=False), *AFTER),
        (*IMAGE, nn.LocalResponseNorm(3, alpha=1.0), *AFTER),
        (*IMAGE, Shuffled(), nn.Flatten(), nn.Linear(288, 3)),
        (nn.Linear(6, 4), nn.Flatten(), nn.Linear(24, 3)),
    ],
    ids=lambda layers: next(iter(type(of).__name__ for of in layers[2:])),
)
@pytest.mark.slow
def test_axes_whose_units_may_not_change_places_are_refused(layers):
    def build():
        return deepcopy(nn.Sequential(*layers))

    build.axes = table(build())
    with pytest.raises(InputError, match="may not change places, its outputs change"):
        custom(build)(shape=(1, 6, 6), classes=3)


def test_axes_that_do_not_fit_are_refused():
    def build():
        return chain((1, 6, 6), 3)

    uneven = {**chain.axes, "3.weight": ("u", "u")}
    for build.axes, words in ((uneven, "8 entries for the 3 units of 'u'"), ({"4.bias": ("u",)}, "is missing")):
        with pytest.raises(InputError, match=words):
            custom(build)(shape=(1, 6, 6), classes=3)


def test_axes_that_raise_are_refused_with_the_line():
    def build():
        return chain((1, 6, 6), 3)

    build.axes = lambda: {}["units"]
    with pytest.raises(
        InputError, match=r"axes of .*build fail for rows of .*: KeyError: 'units' \(.*custom.py:\d+\)$"
    ):
        custom(build)(shape=(1, 6, 6), classes=3)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("no_such_module:Net", {}, "'no_such_module:Net' cannot be imported: No module named 'no_such_module'"),
        (":Net", {}, "cannot be imported"), (f"{HERE}:Smal", {}, rf"{HERE} has no 'Smal'; did you mean Small\?$"),
        (f"{HERE}:NUMBER", {}, "neither a class nor a function"), (f"{HERE}:Data", {}, "is not an nn.Module"),
        (f"{HERE}:positional", {}, "takes 'shape' by position"),
        (f"{HERE}:Small", {}, "missing a required argument: 'units'"),
        (f"{HERE}:Small", {"units": 3, "depth": 2}, "unexpected keyword argument 'depth'"),
        (f"{HERE}:Small", {"units": "3"}, r"constructor for rows of shape \(1, 6, 6\): TypeError: .* \(.*py:\d+\)$"),
        (f"{HERE}:odd", {"kind": "list"}, "makes a list, not an nn.Module"),
        (f"{HERE}:odd", {"kind": "classes"}, r"returns \(12, 5\) in evaluation, but logits must be real, \(12, 3\)"),
        (f"{HERE}:odd", {"kind": "shape"}, r"odd fails for rows of shape \(1, 6, 6\): RuntimeError"),
        (f"{HERE}:odd", {"kind": "shared"}, "under two names"), (f"{HERE}:odd", {"kind": "lazy"}, "has a lazy layer"),
        (f"{HERE}:odd", {"kind": "frozen"}, "has no parameter to train"),
        (f"{HERE}:odd", {"kind": "double"}, "not float32"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_in_one_line(name, settings, words):
    with pytest.raises(InputError, match=words) as refusal:
        nets.net(name, shape=(1, 6, 6), classes=3, **settings)
    assert "\n" not in str(refusal.value)


def test_the_random_numbers_of_others_are_left_alone():
    before = torch.get_rng_state()
    own("Small", units=7)
    assert torch.equal(torch.get_rng_state(), before)


# Copies of a module: the same function, nothing shared but parameters, which are to be replaced.
PLAIN = {"mlp": {"widths": [6, 4]}, "lenet": {}, "resnet20": {"width": 0.25}, "mobilenet_v2": {"width": 0.1}}


class Odd(nn.Module):
    """State of every kind: buffers stored and not, one of them twice, lists, and perhaps what cannot be pickled."""

    def __init__(self, function=None):
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("hidden", torch.ones(3), persistent=False)
        self.again, self.weights = self.hidden, [self.one.weight]
        self.calls: list[int] = []
        self.function = function

    def forward(self, x):
        self.calls.append(len(x))
        self.hidden += 1
        x = self.two(self.one(x)) * self.hidden
        return self.function(x) if self.function is not None else x


def double(x):
    return 2 * x


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.slow
def test_a_copy_is_the_module(name: str):
    module = net(name, shape=(3, 32, 32), classes=4, **PLAIN[name]).build().eval()
    made = Copy(module).load(module.state_dict(), torch.device("cpu"))
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(made(x), module(x))
    assert repr(made) == repr(module)
    assert {id(m) for m in made.modules()}.isdisjoint(id(m) for m in module.modules())


@pytest.mark.parametrize("function", [None, double, partial(torch.mul, 2), lambda x: 2 * x])
def test_a_module_has_its_own_state(function):
    odd = Net(partial(Odd, function), copied=True)
    params = nets.init(odd, torch.Generator())
    first, second, expected = load(odd, params), load(odd, params), Odd(function)
    expected.load_state_dict(params)
    x = torch.ones(2, 3)
    assert torch.equal(first(x), expected(x))
    assert torch.equal(first(x), expected(x))
    assert (first.calls, second.calls) == ([2, 2], [])
    assert second.hidden.tolist() == [1, 1, 1]
    assert first.again is first.hidden
    assert first.one.weight is first.weights[0]
    assert first.one.weight.data_ptr() == params["one.weight"].data_ptr()


@pytest.mark.slow
def test_what_can_be_pickled_is():
    """Otherwise the fast way would never be taken, and nothing would tell."""
    assert _copy_of(nets.key(Net(partial(Odd, double)))) is not None
    assert _copy_of(nets.key(Net(partial(Odd, lambda x: x)))) is None
    for name, settings in {**PLAIN, "lstm": {"vocabulary": 5}}.items():
        known = net(name, shape=(3, 32, 32) if name != "lstm" else (4,), classes=4, **settings)
        assert known.copied
        assert _copy_of(nets.key(known)) is not None
    lock = Lock()
    with pytest.raises(
        InputError, match=r"<lambda> uses what cannot go to another process \(cannot pickle '_thread.lock'"
    ):
        nets.key(Net(lambda: lock))


class Counting(nn.Linear):
    """Loads its tensors in a way of its own."""

    loaded = 0

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self.loaded += 1


def test_a_module_with_its_own_way_of_loading_keeps_it():
    net = Net(partial(Counting, 2, 3))
    assert load(net, nets.init(net, torch.Generator())).loaded == 1


@pytest.mark.parametrize("change", [{"weight": torch.zeros(3, 5)}, {"more": torch.zeros(1)}, {"bias": None}])
def test_tensors_that_do_not_fit_are_refused(change: dict[str, Any]):
    net = Net(partial(nn.Linear, 2, 3))
    given = {
        name: tensor for name, tensor in (nets.init(net, torch.Generator()) | change).items() if tensor is not None
    }
    with pytest.raises(RuntimeError, match="Error"):
        load(net, given)


@pytest.mark.slow
def test_a_loaded_module_is_as_pytorch_loads_it():
    net = nets.net("resnet20", shape=(3, 32, 32), classes=3)
    params = nets.init(net, torch.Generator())
    ours, theirs = load(net, params), net.build()
    theirs.load_state_dict(params, assign=True)
    for kind in ("named_parameters", "named_buffers"):
        mine, plain = dict(getattr(ours, kind)()), dict(getattr(theirs, kind)())
        assert mine.keys() == plain.keys()
        for name in mine:
            assert mine[name].data_ptr() == plain[name].data_ptr() == params[name].data_ptr()
            assert mine[name].requires_grad == plain[name].requires_grad
