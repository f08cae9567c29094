"""Nets that start from a file, frozen ones and their adapters: against a loop by hand, and the bytes that they cost."""

import hashlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from federations import SGD, device_of, federation
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fedcore as fc
from fedcore import nets
from fedcore.core import rows
from fedcore.core.flat_nets import FlatNet, flatten_net, views
from fedcore.core.rounds import run
from fedcore.core.training import predict, train
from fedcore.errors import InputError
from fedcore.execute.workers import Inline
from fedcore.methods import method
from fedcore.nets import mlp, weights
from fedcore.nets.mlp import StackedMLP, equal_bits, linear
from fedcore.nets.weights import read_weights, write_weights
from fedcore.types.federation import Net
from fedcore.types.method import Message, StepId, generator

with_weights = partial(weights.with_weights, shape=(4,))
MLP = nets.net("mlp", shape=(4,), classes=3, widths=[5, 6])


def chain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))


class Scaled(nn.Module):
    """A norm without parameters, and statistics of the net's own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(4, affine=False), nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += x.detach().mean(0)
        return self.last(self.norm(x) + self.seen)  # type: ignore[no-any-return]


def convolved() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_weights(nets.init(MLP, generator("file")), tmp_path / "mlp.safetensors")
    return tmp_path / "mlp.safetensors"


def test_frozen_statistics_without_parameters_are_neither_changed_nor_sent(tmp_path: Path):
    write_weights(Scaled().state_dict(), tmp_path / "file")
    net = with_weights(Net(Scaled), tmp_path / "file", frozen=True)
    update = train({}, Message(), device_of("a", net), StepId(0, 0, 0, "a"), training=SGD)[1]
    assert update.params.keys() == nets.shapes(net).keys() == {"last.weight", "last.bias"}
    built = nets.copies.load(net, update.params)
    assert not built.seen.any()
    assert not built.norm.running_mean.any()


def test_tensors_of_each_kind_are_read_as_they_were_written(tmp_path: Path):
    both = torch.arange(6.0).reshape(2, 3)
    tensors = {
        "a": torch.randn(3, 4, generator=generator(1)), "b": torch.arange(5), "c": torch.tensor(2.5).half(),
        "d": torch.zeros(0, 2), "e": torch.tensor([True, False]), "f": both[:1, 1], "g": both, "h": both.T,
    }  # fmt: skip
    write_weights(tensors, tmp_path / "file")
    digest = hashlib.blake2b((tmp_path / "file").read_bytes(), digest_size=16).hexdigest()
    torch.testing.assert_close(read_weights(str(tmp_path / "file"), digest), tensors, rtol=0, atol=0)
    with pytest.raises(InputError, match=r"^write_weights: tensor z is torch\.complex128, which no safetensors file"):
        write_weights({"a": both, "z": torch.zeros(2, dtype=torch.complex128)}, tmp_path / "file")


def test_a_net_starts_from_its_file(file: Path):
    found = with_weights(MLP, file)
    torch.testing.assert_close(nets.init(found, generator(0)), nets.init(MLP, generator("file")), rtol=0, atol=0)
    assert found.axes == MLP.axes


def test_other_classes_get_a_new_last_layer(file: Path):
    held, other = nets.init(MLP, generator("file")), nets.net("mlp", shape=(4,), classes=7, widths=[5, 6])
    found = nets.init(with_weights(other, file), generator(0))
    assert found["fc3.weight"].shape == (7, 6)
    torch.testing.assert_close({n: x for n, x in found.items() if "fc3" not in n},
                               {n: x for n, x in held.items() if "fc3" not in n}, rtol=0, atol=0)  # fmt: skip


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.slow
def test_only_what_is_not_frozen_is_trained_sent_and_counted(file: Path, rank: int):
    net = with_weights(MLP, file, frozen=True, rank=rank)
    head, adapters = 3 * 6 + 3, rank * (4 + 5) + rank * (5 + 6)
    fed = federation("ab", net)
    built = method("fedavg", nets=fed.public.nets, training=replace(SGD, weight_decay=0.1), shared_init=True, rounds=2)
    turns = list(run(built, fed, 0, Inline()))
    assert [turn.up for turn in turns] == [{"a": 4 * (head + adapters), "b": 4 * (head + adapters)}] * 2
    assert turns[0].down == turns[0].up
    names = {"fc3.weight", "fc3.bias"}
    if rank:
        names |= {f"{layer}.{part}.weight" for layer in ("fc1", "fc2") for part in ("down", "up")}
    assert set(turns[1].state.messages["a"].params) == names


@pytest.mark.parametrize("rank", [0, 2])
def test_training_with_adapters_is_that_of_a_plain_loop(file: Path, rank: int):
    net, step = with_weights(MLP, file, frozen=True, rank=rank), StepId(0, 0, 0, "a")
    device = device_of("a", net)
    start = nets.init(net, generator(4))
    _, update = train({}, Message(start), device, step, training=SGD)
    base, ours = nets.init(MLP, generator("file")), {name: x.clone().requires_grad_() for name, x in start.items()}

    def logits(x: Any) -> Any:
        for layer in ("fc1", "fc2", "fc3"):
            weights, bias = (base if layer != "fc3" else ours)[f"{layer}.weight"], f"{layer}.bias"
            y = x @ weights.T + (base if layer != "fc3" else ours)[bias]
            if rank and layer != "fc3":
                y = y + x @ (ours[f"{layer}.up.weight"] @ ours[f"{layer}.down.weight"]).T
            x = y if layer == "fc3" else y.relu()
        return x

    optimiser, draws = torch.optim.SGD([*ours.values()], SGD.lr), step.generator("batches")
    data = device.data.train
    orders = [torch.randperm(len(data), generator=draws) for _ in range(SGD.epochs)]
    for index in (part for order in orders for part in order.split(SGD.batch)):
        optimiser.zero_grad()
        cross_entropy(logits(data.x[index]), data.y[index]).backward()
        optimiser.step()
    torch.testing.assert_close(update.params, {n: x.detach() for n, x in ours.items()}, rtol=0, atol=1e-6)


def test_a_new_adapter_changes_nothing(file: Path):
    x = torch.randn(5, 4, generator=generator("x"))
    adapted = with_weights(MLP, file, frozen=True, rank=3)
    expected = predict(nets.init(MLP, generator("file")), MLP, x, 5)
    torch.testing.assert_close(predict(nets.init(adapted, generator(0)), adapted, x, 5), expected)


def test_a_modules_own_layers_are_adapted_at_any_depth(tmp_path: Path):
    write_weights(chain().state_dict(), tmp_path / "chain")
    assert set(nets.shapes(with_weights(Net(chain), tmp_path / "chain", frozen=True, rank=1))) == {
        "0.down.weight", "0.up.weight", "2.down.weight", "2.up.weight", "4.weight", "4.bias",
    }  # fmt: skip


@pytest.mark.slow
def test_a_script_names_the_file_beside_the_nets_settings(tmp_path: Path):
    """A net trained on one half of the digits starts the other half's federation."""
    digits = fc.load("digits")
    first = fc.run(fc.local_only(training={"epochs": 1}), fc.federate(digits, fc.iid(), devices=1, net=fc.mlp(6)))
    write_weights(first.models["device-00"].model.params[0], tmp_path / "digits")
    net = fc.mlp(6, weights=tmp_path / "digits", frozen=True, rank=1)
    fed = fc.federate(digits, fc.iid(), devices=2, net=net)
    assert "mlp(widths=(6,))" in repr(fed)
    found = fc.run(fc.fedavg(training={"epochs": 1}), fed, progress=False)
    assert set(found.table.query("metric == 'bytes_up'")["value"]) == {4 * (64 + 6 + 60 + 10)}


REFUSED = {
    "no file": (lambda f: with_weights(MLP, f / "absent"), "net.weights = .*absent: cannot be read"),
    "other layers": (
        lambda f: with_weights(nets.net("mlp", shape=(4,), classes=3, widths=[4, 6]), f / "mlp"),
        r"tensor fc1.weight, \(4, 4\), is \(5, 4\) there",
    ),
    "another net": (lambda f: with_weights(Net(convolved), f / "mlp"), "tensor 0.weight, .*, is not there"),
    "adapters alone": (lambda f: with_weights(MLP, f / "mlp", rank=2), "net.rank = 2: adapters are for frozen layers"),
    "no linear layer": (
        lambda f: with_weights(Net(convolved), f / "conv", True, 2),
        "has no linear layer but the last",
    ),
    "a pickle": (lambda f: with_weights(MLP, f / "pickle"), "not a safetensors file"),
    "cut off": (lambda f: with_weights(MLP, f / "cut"), "not a safetensors file .*incomplete metadata"),
    "a setting alone": (lambda f: fc.mlp(6, frozen=True), "net.frozen = True: is for a net with net.weights"),
    "a wrong rank": (lambda f: fc.mlp(6, weights=f / "mlp", rank=-1), "mlp.rank = -1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_in_a_line(tmp_path: Path, case: str):
    write_weights(nets.init(MLP, generator("file")), tmp_path / "mlp")
    write_weights(convolved().state_dict(), tmp_path / "conv")
    torch.save({"a": torch.zeros(2)}, tmp_path / "pickle")
    (tmp_path / "cut").write_bytes((tmp_path / "mlp").read_bytes()[:-8])
    ask, says = REFUSED[case]
    with pytest.raises(InputError, match=says) as caught:
        ask(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_file_that_changes_during_a_run_is_noticed(file: Path):
    net = with_weights(MLP, file)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    read_weights.cache_clear()
    with pytest.raises(InputError, match="has changed since the run began"):
        net.build()


# Perceptrons of several devices at once have the bits of one after another, and what has not is found out.
DEVICES, BATCH = 3, 16
LAYERS = ("fc1", "fc2", "fc3")

with_mkl = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this PyTorch has no MKL")


def flat_net(classes: int = 2) -> FlatNet:
    net = nets.net("mlp", shape=(5,), classes=classes, widths=[64, 32])
    return flatten_net(net, nets.init(net, torch.Generator().manual_seed(1)))


def tried(flat: FlatNet, keep: float = 0.0, batch: int = BATCH) -> StackedMLP | None:
    with torch.no_grad():
        found = rows.same_bits(flat, DEVICES, batch, keep, torch.tensor([0, 1]))
    return None if found is None else found[0]


@pytest.mark.parametrize("one_by_one", [(), ("fc1", "fc3")])
@pytest.mark.parametrize("keep", [0.0, 1.0, 0.99])
@pytest.mark.slow
def test_the_gradient_is_that_of_autograd(keep: float, one_by_one: tuple[str, ...]):
    flat, draws = flat_net(), torch.Generator().manual_seed(2)
    models, into = (torch.randn(DEVICES, len(flat.vector), generator=draws) for _ in range(2))
    before, x = into.clone(), torch.randn(DEVICES, BATCH, 5, generator=draws)
    logit_grad = torch.randn(DEVICES, BATCH, 2, generator=draws)
    stacked = StackedMLP(LAYERS, one_by_one)
    with torch.no_grad():
        activations = stacked.activations(views(flat, models), x)
        stacked.backward(views(flat, models), activations, logit_grad, views(flat, into), keep=keep, scale=0.3)
    for row in range(DEVICES):
        params = {name: tensor[row].clone().requires_grad_() for name, tensor in views(flat, models).items()}
        logits = torch.func.functional_call(flat.module, params, (x[row],))
        torch.testing.assert_close(activations[-1][row], logits.detach())
        gradients = torch.autograd.grad(logits, [*params.values()], logit_grad[row])
        for name, gradient in zip(params, gradients, strict=True):
            expected = keep * views(flat, before)[name][row] + 0.3 * gradient
            torch.testing.assert_close(views(flat, into)[name][row], expected, rtol=1e-4, atol=1e-5)


@with_mkl
@pytest.mark.parametrize("keep", [0.0, 1.0, 0.5])
@pytest.mark.slow
def test_products_of_mkl_have_the_same_bits(keep: float):
    assert tried(flat_net(), keep) is not None


def other_sums(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Sum from the last factor to the first."""
    return torch.bmm(x.flip(2), weight.flip(2).transpose(1, 2)).add_(bias[:, None])


def rarely_other(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute one in 500 outputs of the net otherwise."""
    whole = torch.stack([linear(each, w, b) for each, w, b in zip(x, weight, bias, strict=True)])
    changed = torch.rand(whole.shape, generator=RARE) < 0.002 * (weight.shape[1] == 2)
    return torch.where(changed, whole.nextafter(torch.tensor(torch.inf)), whole)


RARE = torch.Generator().manual_seed(3)


def small_beside(into: Tensor, logit_grad: Tensor, inputs: Tensor, keep: float, scale: float) -> None:
    """Round what comes to the weight, before it is added."""
    into.mul_(keep).add_((scale * torch.bmm(logit_grad.transpose(1, 2), inputs)).bfloat16())


@pytest.mark.parametrize(
    ("name", "other"), [("forward_all", other_sums), ("forward_all", rarely_other), ("add_weight", small_beside)]
)
@pytest.mark.parametrize("keep", [0.0, 1.0])
def test_products_that_sum_otherwise_are_found(name: str, other: Any, keep: float, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mlp, name, other)
    assert tried(flat_net(), keep) is None


@pytest.mark.slow
def test_a_bias_that_sums_otherwise_goes_one_by_one(monkeypatch: pytest.MonkeyPatch):
    real = mlp.set_bias
    if (usual := tried(flat_net())) is None:
        pytest.skip("products have other bits in a stack here")
    assert "fc2" not in usual.one_by_one

    def set_bias(into: Tensor, logit_grad: Tensor, scale: float) -> None:
        real(into, logit_grad, scale)
        if into.shape[1] == 32:
            into[0, 0] = into[0, 0].nextafter(torch.tensor(torch.inf))

    monkeypatch.setattr(mlp, "set_bias", set_bias)
    found = tried(flat_net())
    assert found is not None
    assert "fc2" in found.one_by_one


@pytest.mark.slow
def test_stacks_whose_parts_lie_otherwise_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rows, "equal_bits", lambda *args: True)
    assert tried(flat_net(), batch=10) is None
    assert tried(flat_net()) is not None


def test_a_zero_has_a_sign():
    assert equal_bits(torch.tensor([0.0, torch.nan]), torch.tensor([0.0, torch.nan]))
    assert not equal_bits(torch.tensor([0.0]), torch.tensor([-0.0]))


class Listed(nn.Module):
    """Holds its layers in a list as well, by which it calls them: what is put in their places is never called."""

    def __init__(self, classes: int):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 5), nn.Linear(5, classes)
        self.calls = [self.fc1, self.fc2]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.calls[1](torch.relu(self.calls[0](x)))


def test_an_adapter_that_is_never_called_is_refused(tmp_path: Path):
    write_weights(Listed(3).state_dict(), tmp_path / "listed")
    own = {"name": f"{__name__}:Listed", "shape": (4,), "classes": 3, "weights": str(tmp_path / "listed")}
    assert nets.net(**own, frozen=True)
    with pytest.raises(InputError, match=r"net.rank = 2: forward calls fc1 by another way than its attribute"):
        nets.net(**own, frozen=True, rank=2)
