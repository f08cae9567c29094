"""Nets for sequences against PyTorch's own layers and a loop by hand, and whole numbers for an embedding."""

import math
import sys
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from federations import NET as MLP
from federations import SGD
from signals import WHOLE
from torch import nn
from torch.nn.functional import conv1d, cross_entropy, linear, max_pool1d

import fedcore as fc
from fedcore import Data, Device, InputError, Net, Splits, nets
from fedcore.core.training import predict, train
from fedcore.execute.workers import Workers
from fedcore.nets.copies import load
from fedcore.nets.inputs import largest_integer
from fedcore.nets.parts import depth_of, features, layers, max_depth, names_up_to, parts
from fedcore.pipeline.run.step_functions import describe
from fedcore.types.method import Message, StepId, generator

LENGTH, WORDS, CLASSES = 6, 7, 3
LSTM = nets.net("lstm", shape=(LENGTH,), classes=CLASSES, vocabulary=WORDS, embedding=4, hidden=5, layers=2)
TRANSFORMER = nets.net(
    "transformer", shape=(LENGTH,), classes=CLASSES, vocabulary=WORDS, embedding=8, heads=2, layers=2
)


def sentences(count: int, seed: int = 0) -> Data:
    draws = torch.Generator().manual_seed(seed)
    x = torch.randint(WORDS, (count, LENGTH), generator=draws)
    return Data(x.float(), x[:, -1] % CLASSES)


def test_the_character_model_is_the_equations_of_an_lstm():
    params = nets.init(LSTM, generator(1))
    x = sentences(4).x
    inputs = params["embedding.weight"][x.long()]
    for layer in range(2):
        w, u, b, c = (params[f"lstm.{name}_l{layer}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
        h, cell, states = torch.zeros(4, 5), torch.zeros(4, 5), []
        for t in range(LENGTH):
            i, f, g, o = (inputs[:, t] @ w.T + b + h @ u.T + c).chunk(4, 1)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            h = o.sigmoid() * cell.tanh()
            states.append(h)
        inputs = torch.stack(states, 1)
    expected = inputs[:, -1] @ params["fc.weight"].T + params["fc.bias"]
    torch.testing.assert_close(predict(params, LSTM, x, 3), expected)


def test_the_transformer_is_pytorchs_encoder():
    module = TRANSFORMER.build().eval()
    layers = [nn.TransformerEncoderLayer(8, 2, 32, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(2)]
    names = {
        "self_attn.in_proj_": "inputs.", "self_attn.out_proj.": "out.", "linear1.": "fc1.", "linear2.": "fc2.",
        "norm1.": "norm1.", "norm2.": "norm2.",
    }  # fmt: skip
    for layer, block in zip(layers, module.blocks, strict=True):
        ours = dict(block.named_parameters())
        found = {f"{a}{part}": ours[f"{b}{part}"] for a, b in names.items() for part in ("weight", "bias")}
        layer.load_state_dict(found)
    x = sentences(5).x.long()
    y = module.embedding(x) + module.places
    for layer in layers:
        y = layer.train()(y)  # in evaluation it takes another path
    torch.testing.assert_close(module(x), module.fc(module.norm(y[:, -1])))


@pytest.mark.parametrize(("name", "settings"), [("lstm", {}), ("transformer", {"causal": True})])
def test_an_output_for_each_step_is_that_of_the_text_so_far(name: str, settings: dict[str, Any]):
    """The last place of the same weights on a shorter text says the same."""
    sizes: dict[str, Any] = {"vocabulary": WORDS, "embedding": 8, "layers": 2}
    net = nets.net(name, shape=(LENGTH,), classes=CLASSES, per_step=True, **sizes)
    params, x = nets.init(net, generator(3)), sentences(4).x
    steps = predict(params, net, x, 4)
    assert steps.shape == (4, LENGTH, CLASSES)
    for length in (1, LENGTH):
        short = nets.net(name, shape=(length,), classes=CLASSES, **sizes, **settings)
        mine = {key: tensor[:length] if key == "places" else tensor for key, tensor in params.items()}
        torch.testing.assert_close(predict(mine, short, x[:, :length], 4), steps[:, length - 1])
    other = x.clone()
    other[:, 3:] = 0
    assert torch.equal(predict(params, net, other, 4)[:, :3], steps[:, :3])


def test_a_transformer_may_see_all_places_for_each_step():
    net = nets.net("transformer", shape=(LENGTH,), classes=3, per_step=True, vocabulary=WORDS, causal=False)
    params, x = nets.init(net, generator(3)), sentences(4).x
    other = torch.cat([x[:, :-1], (x[:, -1:] + 1) % WORDS], 1)
    assert not torch.allclose(predict(params, net, other, 4)[:, 0], predict(params, net, x, 4)[:, 0])


class Stepwise(nn.Module):
    """A user's net with an output for each step of a signal (T, 2)."""

    def __init__(self, shape: tuple[int, ...], classes: int, per_step: bool) -> None:
        super().__init__()
        self.out, self.per_step = nn.Linear(shape[1], classes), per_step

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.out(x)
        return y if self.per_step else y.mean(1)


def test_own_nets_have_an_output_for_each_step():
    make = fc.net(Stepwise).make
    for per_step in (False, True):
        net = make(shape=(5, 2), classes=3, per_step=per_step)
        assert net.build()(torch.zeros(1, 5, 2)).shape == ((1, 5, 3) if per_step else (1, 3))
    with pytest.raises(fc.InputError, match=r"returns \(12, 3\) in evaluation, but logits must be real, \(12, 6, 3\)"):
        fc.net(Tagger).make(shape=(LENGTH,), classes=CLASSES, per_step=True)
    with pytest.raises(InputError, match=r"^net.name: mlp has one output for an example, and these data have a label"):
        nets.net("mlp", shape=(5, 2), classes=3, per_step=True)


class Tagger(nn.Module):
    """A user's net: it is given whole numbers."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(WORDS, 4), nn.Linear(4 * shape[0], classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.dtype == torch.int64
        return self.out(self.words(x).flatten(1))


class Mixed(Tagger):
    """A user's net that embeds the first input and takes the others as quantities."""

    takes_integers = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.cat([self.words(x[:, 0].long()), x.repeat(1, 4)[:, :20]], 1))


@pytest.mark.parametrize("net", [LSTM, TRANSFORMER, fc.net(Tagger).make(shape=(LENGTH,), classes=CLASSES)])
@pytest.mark.slow
def test_training_is_that_of_a_plain_loop(net: Net):
    data = sentences(10)
    device = Device("a", net, Splits(data, data, data))
    start = nets.init(net, generator(2))
    _, update = train({}, Message(start), device, StepId(0, 0, 0, "a"), training=replace(SGD, epochs=3))
    module = net.build()
    module.load_state_dict(start)
    optimiser, draws = torch.optim.SGD(module.parameters(), SGD.lr), StepId(0, 0, 0, "a").generator("batches")
    orders = [torch.randperm(10, generator=draws) for _ in range(3)]
    for index in (part for order in orders for part in order.split(SGD.batch)):
        optimiser.zero_grad()
        cross_entropy(module(data.x[index]), data.y[index]).backward()
        optimiser.step()
    torch.testing.assert_close(update.params, dict(module.state_dict()), rtol=0, atol=1e-6)


def federated(net: Any, x: Any = None, **settings: Any) -> Any:
    x = np.tile(np.arange(60)[:, None] % WORDS, (1, LENGTH)) if x is None else x
    return fc.federate(fc.from_arrays(x, np.arange(60) % 3), fc.iid(), devices=2, net=net, **settings)


@pytest.mark.slow
def test_a_net_that_embeds_some_inputs_alone_says_so():
    fed = federated(fc.net(Mixed), np.random.default_rng(0).uniform(0, 6, (60, LENGTH)))
    assert fc.run(fc.fedavg(training={"epochs": 1}), fed, progress=False).models


class Patches(nn.Module):
    """A ViT, whose embeddings look up places alone."""

    seen: ClassVar[list[torch.Tensor]] = []

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.rows, self.places, self.whole = nn.Linear(shape[-1], 8), nn.Embedding(shape[-2], 8), nn.Embedding(1, 8)
        self.out = nn.Linear(8, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(x)
        hidden = self.rows(x.float().flatten(1, 2)) + self.places(torch.arange(x.shape[-2]))
        return self.out((hidden + self.whole(torch.zeros(1, dtype=torch.int64))).tanh().mean(1))


class Bright(Patches):
    """A net that looks up which inputs are large."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.out(self.places((x > 128).long()).flatten(1, 3).mean(1))


class Whole(Patches):
    """A net that makes whole numbers of its inputs itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.long())


class Says(Patches):
    """A net that says what it takes."""

    takes_integers = True


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "largest"), [(Patches, 1.0), (Bright, 255.0), (Whole, 255.0), (Says, 255.0)])
def test_pictures_are_scaled_for_a_net_whose_embeddings_look_up_places(kind: type[Patches], largest: float):
    pixels = np.random.default_rng(0).integers(0, 256, (60, 1, 4, 4), dtype=np.uint8)
    pixels[:] = np.where(np.arange(16).reshape(4, 4) % 5 == 0, 255, pixels)
    fed = federated(fc.net(kind), pixels)
    kind.seen.clear()
    result = fc.run(fc.fedavg(rounds=1, training={"epochs": 1}), fed, progress=False)
    result.models["device-00"].predict(pixels[:5])
    found = {(float(x.max()), x.dtype) for x in kind.seen if len(x) > 2}  # fewer rows try the net
    assert found == {(largest, torch.float32 if largest == 1 else torch.int64)}


@pytest.mark.parametrize("per_step", [False, True])
@pytest.mark.slow
def test_a_character_model_learns_on_twenty_devices(per_step: bool):
    """The letter that follows is certain but for the first: far above the commonest letter's 1/7."""
    text = np.array([*"fedcore"] * 40)
    numbers = np.unique(text, return_inverse=True)[1]
    starts = np.arange(120)
    x = np.stack([numbers[start : start + 5] for start in starts])
    y = np.stack([text[start + 1 : start + 6] for start in starts])
    device = [f"d{start % 20:02}" for start in starts]
    task: Any = "sequence_labelling" if per_step else "auto"
    data = fc.from_arrays(x, y if per_step else y[:, -1], device=device, task=task)
    fed = fc.federate(data, fc.by_device(), net=fc.lstm(vocabulary=7, hidden=16), min_size=1)
    result = fc.run(fc.fedavg(rounds=3, training={"epochs": 4, "lr": 0.05}), fed, every=3, progress=False)
    scores = result.table[(result.table["metric"] == "accuracy") & (result.table["split"] == "shared")]["value"]
    assert len(result.models) == 20
    assert scores.min() > 0.75


@pytest.mark.parametrize(
    ("net", "x", "settings", "says"),
    [
        (fc.lstm(vocabulary=7), np.full((60, 4), 0.5), {}, "net: its embedding looks up whole numbers from 0"),
        (fc.lstm(vocabulary=7), np.full((60, 4), -1), {}, "net: its embedding looks up whole numbers from 0"),
        (fc.net(Tagger), np.full((60, 4), 9), {}, "net: its embedding has 7 entries, from 0, and the examples have 9"),
        (fc.lstm(), None, {}, "net: its embedding has 3 entries"),
        (fc.transformer(vocabulary=7), None, {"scale": "common"}, "^scale = 'common': this net's embedding"),
    ],
)
@pytest.mark.slow
def test_what_an_embedding_cannot_look_up_is_refused(net: Any, x: Any, settings: dict[str, Any], says: str):
    with pytest.raises(fc.InputError, match=says):
        federated(net, x, **settings).federation()


def test_an_embedding_looks_up_the_shared_test_set_and_new_rows_too():
    x, y = np.arange(240).reshape(60, 4) % 7, np.arange(60) % 2
    split = {"devices": 2, "net": fc.lstm(vocabulary=7)}
    with pytest.raises(fc.InputError, match="net: its embedding looks up whole numbers from 0"):
        fc.federate(fc.from_arrays(x, y, test=(x - 1, y)), fc.iid(), **split).federation()
    model = fc.run(fc.fedavg(training={"epochs": 1}), fc.federate(fc.from_arrays(x, y), fc.iid(), **split)).models
    with pytest.raises(fc.InputError, match="predict: x has other numbers than whole ones from 0"):
        model["device-00"].predict(x + 0.5)
    for more in (x + 1, x.astype(float) + 1, x + 10**6):
        with pytest.raises(fc.InputError, match="predict: x has a number for which an embedding has no entry"):
            model["device-00"].probabilities(more)


@pytest.mark.parametrize("name", ["analytic", "gaussian_distillation"])
def test_methods_that_take_quantities_refuse_them(name: str):
    with pytest.raises(fc.InputError, match=f"{name}: takes inputs as quantities"):
        fc.run(getattr(fc, name)(), federated(fc.lstm(vocabulary=7)))


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        # 4 gates of two matrices and two biases; an embedding of 2 numbers and 2 classes
        ("lstm", {"embedding": 8, "hidden": 10**6}, "net: these settings give 4,000,042,000,018 parameters, at most"),
        ("transformer", {"embedding": 4 * 10**6}, "net: these settings give "),
        ("lstm", {"hidden": 10**12}, "net: more parameters than can be counted, at most "),
        ("transformer", {"layers": 10**9}, r"net.layers = 1000000000: at most 1000$"),
    ],
)
def test_nets_that_no_memory_holds_are_refused(name: str, settings: dict[str, int], says: str):
    with pytest.raises(InputError, match=f"^{says}"):
        nets.net(name, shape=(LENGTH,), classes=2, **settings)


def test_nets_of_sequences_refuse_other_examples():
    for name in ("lstm", "transformer"):
        with pytest.raises(fc.InputError, match=r"takes sequences of whole numbers \(T,\), examples are \(1, 8, 8\)"):
            nets.net(name, shape=(1, 8, 8), classes=3)
    with pytest.raises(fc.InputError, match=r"net.embedding = 9: must be a multiple of net.heads = 4"):
        nets.net("transformer", shape=(4,), classes=3, embedding=9)


@pytest.mark.parametrize(
    ("x", "largest"),
    [([[0.0, 3.0]], 3), ([[0, 4]], 4), ([[0.5]], None), ([[-1.0]], None), ([[float("nan")]], None), ([], None)],
)
def test_the_largest_whole_number(x: list[list[float]], largest: int | None):
    assert largest_integer(torch.tensor(x)) == largest


def test_the_pipeline_knows_whether_examples_are_whole_numbers():
    """Bytes are pixels there."""
    y = torch.zeros(1, dtype=torch.int64)
    for kind, largest in ((torch.float32, 5), (torch.uint8, None)):
        assert describe(fc.Dataset(Data(torch.tensor([[5]], dtype=kind), y), None, ("0",)))["largest"] == largest


def imports_compiler(name: str) -> bool:
    nets.net(name, shape=(LENGTH,), classes=CLASSES)
    return "torch._dynamo" in sys.modules


@pytest.mark.slow
def test_a_size_is_found_without_pytorchs_compiler():
    """Importing it takes a second of a core."""
    with Workers(1) as worker:
        assert not any(worker.call(imports_compiler, name) for name in ("lstm", "transformer"))


# FedASA's network: its numbers of parameters are those of Table VI, and its function the one that Fig. 7 draws.


def count(names):
    return sum(math.prod(nets.shapes(WHOLE)[name]) for name in names)


def test_parameters_are_those_of_table_vi():
    shared = [count(names_up_to(WHOLE, m)) for m in range(max_depth(WHOLE) + 1)]
    assert shared == [10_464, 22_816, 35_168, 47_520, 59_872]
    assert {part: count(names) for part, names in parts(WHOLE).items()} == {
        "stem": 10_464, **{f"cell{m}": 12_352 for m in (1, 2, 3, 4)}, "head": 263_562
    }  # fmt: skip
    whole = count(nets.shapes(WHOLE))
    assert whole == 323_434
    assert whole - count([*layers(WHOLE).values()][-1]) == 322_144  # FedPer
    assert round(100 * (1 - shared[-1] / whole), 2) == 81.49


def seeded():
    return torch.Generator().manual_seed(0)


def test_the_function_written_out():
    params, x = nets.init(WHOLE, seeded()), torch.rand(2, 1, 512, generator=seeded())
    flat = {name: number.squeeze(2) if number.dim() == 4 else number for name, number in params.items()}

    def conv(at, signal, **how):
        return conv1d(signal, flat[f"{at}.weight"], flat[f"{at}.bias"], **how)

    stem = conv("stem.conv2", conv("stem.conv1", x, stride=4).relu(), stride=4, padding=2).relu()
    assert stem.shape == (2, 64, 32)
    found = [stem]
    for m in (1, 2, 3, 4):
        found.append(found[-1] + max_pool1d(conv(f"cell{m}.branch.conv", found[-1], padding=1).relu(), 3, 1, 1))
    hidden = linear(found[-1].flatten(1), params["head.fc1.weight"], params["head.fc1.bias"]).relu()
    module = load(WHOLE, params)
    torch.testing.assert_close(module(x), linear(hidden, params["head.fc2.weight"], params["head.fc2.bias"]))
    torch.testing.assert_close([feature.squeeze(2) for feature in features(WHOLE, module, x)], found)


def test_settings():
    small = nets.net("cells", shape=(2, 40), classes=3, cells=1, width=0.25)
    assert [*parts(small)] == ["stem", "cell1", "head"]
    assert nets.shapes(small)["head.fc1.weight"] == (32, 16 * 3)
    assert small.build()(torch.zeros(2, 2, 40)).shape == (2, 3)
    with pytest.raises(InputError, match=r"signals \(channels, length from 4\), examples are \(1, 28, 28\)"):
        nets.net("cells", shape=(1, 28, 28), classes=3)
    several = ("cells", "cells", 0), ("cnn", "padding", "full"), ("cnn", "maps", [2.5]), ("vgg16", "hidden", [0])
    for name, key, wrong in several:
        with pytest.raises(InputError, match=f"{name}.{key}"):
            fc.net(name, **{key: wrong})


def nested() -> torch.nn.Module:
    inner = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
    return torch.nn.ModuleDict({"body": inner})


@pytest.mark.parametrize(
    ("net", "names"),
    [
        (MLP, ["fc1", "fc2", "fc3"]),
        (nets.net("mlp", shape=(4,), classes=3, widths=[]), ["fc1"]),
        (nets.net("lenet", shape=(1, 28, 28), classes=3), ["conv1", "conv2", "fc1", "fc2", "fc3"]),
        (nets.net("vgg11", shape=(3, 32, 32), classes=3, width=1 / 32, norm=True),
         [*(f"conv{i}" for i in range(1, 9)), "fc"]),
        (nets.net("resnet20", shape=(3, 16, 16), classes=3, width=0.25),
         ["stem", *(f"block{i}" for i in range(1, 10)), "fc"]),
        (Net(nested), ["body.0", "body.2"]),
    ],
    ids=["mlp", "linear", "lenet", "norms", "resnet", "a user's own"],
)  # fmt: skip
@pytest.mark.slow
def test_parts_of_other_nets(net, names):
    assert [*parts(net)] == names
    assert [name for names in parts(net).values() for name in names] == [*nets.shapes(net)]
    assert [name for names in layers(net).values() for name in names] == [*nets.shapes(net)]
    for depth in range(max_depth(net) + 1):
        assert depth_of(net, names_up_to(net, depth)) == depth
        assert depth_of(net, names_up_to(net, depth)[1:]) == -1
    assert depth_of(net, nets.shapes(net)) == max_depth(net)
    module = net.build().eval()
    if not isinstance(module, torch.nn.ModuleDict):
        shape = next(iter(nets.shapes(net).values()))[1:]
        x = torch.rand(2, *(shape if len(shape) == 1 else {1: (1, 28, 28), 3: (3, 32, 32)}[shape[0]]))
        assert len(features(net, module, x)) == len(names) - 1
