"""Fusion against networks whose right answer is known: permuted, split, merged and identical ones."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from narrow_nets import NARROW, images, narrow, seeded
from torch import Tensor

from fedcore import InputError, evenly, mean, nets
from fedcore.methods.code.fusion import align, average_pair, carry, code, fold_without_alignment, lmf, units
from fedcore.methods.code.transport import Transport
from fedcore.types.federation import Axes, Net, Params

MLP: Axes = {
    "fc1.weight": ("h1", None), "fc1.bias": ("h1",), "fc2.weight": ("h2", "h1"), "fc2.bias": ("h2",),
    "fc3.weight": ("h3", "h2"), "fc3.bias": ("h3",), "fc4.weight": (None, "h3"), "fc4.bias": (None,),
}  # fmt: skip
CNN: Axes = {
    "conv1.weight": ("c1", None, None, None),
    "conv1.bias": ("c1",),
    "norm.weight": ("c1",),
    "norm.bias": ("c1",),
    "norm.running_mean": ("c1",),
    "norm.running_var": ("c1",),
    "conv2.weight": ("c2", "c1", None, None),
    "conv2.bias": ("c2",),
    "fc1.weight": ("h", "c2"),  # 3 x 3 pixels of every channel, flattened
    "fc1.bias": ("h",),
    "fc2.weight": (None, "h"),
    "fc2.bias": (None,),
}
RESIDUAL: Axes = {
    "stem.weight": ("c", None), "cell.weight": ("c", "c"), "cell.bias": ("c",), "head.weight": (None, "c"),
}  # fmt: skip
WIDTHS = {"h1": 12, "h2": 10, "h3": 8, "c1": 4, "c2": 6, "h": 9, "c": 7}
NEWTON, EXACT, IDENTITY = Transport(max_iterations=200), Transport("exact"), Transport("identity")


def mlp(params: Params, x: Tensor) -> Tensor:
    for layer in ("fc1", "fc2", "fc3"):
        x = F.linear(x, params[f"{layer}.weight"], params[f"{layer}.bias"]).relu()
    return F.linear(x, params["fc4.weight"], params["fc4.bias"])


def cnn(params: Params, x: Tensor) -> Tensor:
    x = F.conv2d(x, params["conv1.weight"], params["conv1.bias"])
    x = F.batch_norm(x, *(params[f"norm.{name}"] for name in ("running_mean", "running_var", "weight", "bias")))
    x = F.conv2d(x.relu(), params["conv2.weight"], params["conv2.bias"]).relu().flatten(1)
    x = F.linear(x, params["fc1.weight"], params["fc1.bias"]).relu()
    return F.linear(x, params["fc2.weight"], params["fc2.bias"])


def residual(params: Params, x: Tensor) -> Tensor:
    x = F.linear(x, params["stem.weight"])
    return F.linear(x + F.linear(x, params["cell.weight"], params["cell.bias"]).relu(), params["head.weight"])


FIXED = {
    "conv1.weight": (2, 3, 3), "conv2.weight": (3, 3), "fc1.weight": (5,), "fc4.weight": (3,), "fc2.weight": (3,),
    "stem.weight": (5,), "head.weight": (3,),
}  # fmt: skip
NETS = {"mlp": (MLP, mlp, (5,)), "cnn": (CNN, cnn, (2, 7, 7)), "residual": (RESIDUAL, residual, (5,))}


def network(axes: Axes, seed: int) -> Params:
    """Random tensors of the table's shapes; None axes have the sizes in FIXED (3 classes, 5 features, ...)."""
    generator = torch.Generator().manual_seed(seed)
    params = {}
    for key, names in axes.items():
        fixed = iter(FIXED.get(key, (3,)))
        pixels = 9 if names == ("h", "c2") else 1
        shape = [next(fixed) if name is None else WIDTHS[name] * (pixels if k else 1) for k, name in enumerate(names)]
        params[key] = torch.randn(shape, generator=generator)
    if "norm.running_var" in params:
        params["norm.running_var"] = params["norm.running_var"].abs() + 0.5
        params["norm.num_batches_tracked"] = torch.tensor(seed)
    return params


def gather(params: Params, axes: Axes, picks: dict[str, Tensor], share: bool = False) -> Params:
    """Take units by number on every axis that carries them; share: divide outgoing weights by a unit's copies."""
    out = dict(params)
    for key, names in axes.items():
        for axis, name in enumerate(names):
            if name is not None:
                pick = picks[name]
                copies = torch.bincount(pick, minlength=WIDTHS[name])[pick].float()
                x = out[key].movedim(axis, 0).unflatten(0, (WIDTHS[name], -1))[pick]
                if share and axis:
                    x = x / copies.reshape(-1, *[1] * (x.dim() - 1))
                out[key] = x.flatten(0, 1).movedim(0, axis)
    return out


def shuffles(axes: Axes, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = {name for names in axes.values() for name in names if name}
    return {label: torch.randperm(WIDTHS[label], generator=generator) for label in sorted(labels)}


def inputs(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(20, *shape, generator=torch.Generator().manual_seed(9))


@pytest.mark.slow
@pytest.mark.parametrize("transport", [NEWTON, EXACT, replace(NEWTON, p=2)], ids=["newton", "exact", "squared"])
@pytest.mark.parametrize("name", NETS)
def test_shuffled_network_fuses_back_to_itself(name: str, transport: Transport) -> None:
    axes, forward, shape = NETS[name]
    target = network(axes, 0)
    model = gather(target, axes, shuffles(axes, 1))
    x = inputs(shape)
    torch.testing.assert_close(forward(model, x), forward(target, x), rtol=1e-4, atol=1e-4)
    assert not all(torch.equal(model[key], target[key]) for key in axes)
    for fused in (code([model, target], axes, transport)[0], lmf([model, target], axes, transport, reference=1)[0]):
        torch.testing.assert_close(fused, target, rtol=0, atol=1e-6)
        torch.testing.assert_close(forward(fused, x), forward(target, x), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_reading_the_masses_literally_does_not_bring_it_back() -> None:
    """The decisive test decides: with 1/N in place of N the same plans leave half of the target and nothing else."""
    target = network(MLP, 0)
    model = gather(target, MLP, shuffles(MLP, 1))
    aligned, plans = align(model, target, MLP, EXACT)
    literal = {key: x.double() for key, x in model.items()}
    for key, names in MLP.items():
        for axis, name in enumerate(names):
            if name is not None:
                literal[key] = carry(literal[key], axis, plans[name].plan / WIDTHS[name])
    torch.testing.assert_close(aligned, target, rtol=0, atol=1e-6)
    assert literal["fc2.weight"].norm() < 1e-3 * target["fc2.weight"].norm()
    torch.testing.assert_close(
        average_pair({key: x.float() for key, x in literal.items()}, target)["fc2.weight"],
        target["fc2.weight"] / 2,
        rtol=0,
        atol=1e-3,
    )


@pytest.mark.parametrize(
    "transport", [pytest.param(NEWTON, marks=pytest.mark.slow), EXACT, IDENTITY], ids=["newton", "exact", "identity"]
)
@pytest.mark.parametrize("name", NETS)
def test_identical_networks_are_a_fixed_point(name: str, transport: Transport) -> None:
    axes, _, _ = NETS[name]
    models = [network(axes, 0) for _ in range(4)]
    torch.testing.assert_close(code(models, axes, transport)[0], models[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(lmf(models, axes, transport, reference=0)[0], models[0], rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("copies", [2, 3])
def test_split_and_merged_units_leave_the_function(name: str, copies: int) -> None:
    axes, forward, shape = NETS[name]
    narrow = network(axes, 0)
    picks = {label: order.repeat(copies) for label, order in shuffles(axes, 1).items()}
    if name == "residual":
        narrow["cell.weight"] = narrow["cell.weight"] / 5
    wide = gather(narrow, axes, picks, share=True)
    x = inputs(shape)
    want = forward(narrow, x)
    torch.testing.assert_close(forward(wide, x), want, rtol=1e-4, atol=1e-4)
    split, _ = align(narrow, wide, axes, EXACT)
    merged, _ = align(wide, narrow, axes, EXACT)
    torch.testing.assert_close(split, wide, rtol=0, atol=1e-5)
    torch.testing.assert_close(merged, narrow, rtol=0, atol=1e-5)
    torch.testing.assert_close(forward(code([wide, narrow], axes, EXACT)[0], x), want, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_unequal_widths_take_the_targets_shapes() -> None:
    wide = gather(network(MLP, 0), MLP, {label: torch.arange(n).repeat(2) for label, n in WIDTHS.items()})
    other = network(MLP, 1)
    for model, target in ((wide, other), (other, wide)):
        aligned, plans = align(model, target, MLP, NEWTON)
        assert {name: x.shape for name, x in aligned.items()} == {name: x.shape for name, x in target.items()}
        assert plans["h1"].plan.shape == (len(model["fc1.bias"]), len(target["fc1.bias"]))
        assert list(plans) == ["h1", "h2", "h3"]


@settings(max_examples=25)
@given(seed=st.integers(0, 1000), count=st.integers(1, 5), width=st.integers(1, 60))
@pytest.mark.slow
def test_identity_alignment_is_the_geometric_fold_bit_for_bit(seed: int, count: int, width: int) -> None:
    axes: Axes = {"in": ("h", None), "out": (None, "h")}
    generator = torch.Generator().manual_seed(seed)
    draw = [{"in": (width, 4), "out": (3, width)} for _ in range(count)]
    models = [{name: torch.randn(shape, generator=generator) for name, shape in one.items()} for one in draw]
    fused, plans = code(models, axes, IDENTITY)
    plain = fold_without_alignment(models)
    assert all(torch.equal(fused[name], plain[name]) for name in axes)
    assert len(plans) == count - 1
    weights = [2.0 ** -max(count - 1, 0)] + [2.0 ** -(count - k) for k in range(1, count)]
    want = sum(w * model["in"] for w, model in zip(weights, models, strict=True))
    torch.testing.assert_close(plain["in"], want)


def test_lmf_layer_by_layer_is_the_mean_of_aligned_models() -> None:
    """Written as the paper tells it: average a layer over all, then go on to the next."""
    models = [network(MLP, seed) for seed in range(3)]
    fused, plans = lmf(models, MLP, NEWTON, reference=2)
    assert [list(found) for found in plans] == [["h1", "h2", "h3"], ["h1", "h2", "h3"], []]
    incoming = [torch.eye(5, dtype=torch.float64) for _ in models]
    for layer, label in (("fc1", "h1"), ("fc2", "h2"), ("fc3", "h3"), ("fc4", None)):
        total, biases = [], []
        for k, model in enumerate(models):
            W, bias = model[f"{layer}.weight"].double() @ incoming[k], model[f"{layer}.bias"].double()
            n = len(W)
            T = plans[k][label].plan if label and k != 2 else torch.eye(n, dtype=torch.float64) / n
            total.append(n * T.T @ W)
            biases.append(n * T.T @ bias)
            incoming[k] = n * T
        torch.testing.assert_close(fused[f"{layer}.weight"], torch.stack(total).mean(0).float())
        torch.testing.assert_close(fused[f"{layer}.bias"], torch.stack(biases).mean(0).float())


def test_counters_are_the_targets_and_nothing_is_mutated() -> None:
    models = [network(CNN, seed) for seed in range(3)]
    before = [{name: x.clone() for name, x in model.items()} for model in models]
    fused, _ = code(models, CNN, NEWTON)
    assert fused["norm.num_batches_tracked"].item() == 2
    assert lmf(models, CNN, NEWTON, reference=1)[0]["norm.num_batches_tracked"].item() == 1
    assert {name: (x.shape, x.dtype) for name, x in fused.items()} == {
        name: (x.shape, x.dtype) for name, x in models[0].items()
    }
    torch.testing.assert_close(models, before, rtol=0, atol=0)


def test_units_that_differ_in_their_bias_alone_are_told_apart() -> None:
    target = network(MLP, 0)
    target["fc1.weight"] = target["fc1.weight"][:1].expand(12, 5).clone()
    model = gather(target, MLP, shuffles(MLP, 1))
    torch.testing.assert_close(align(model, target, MLP, EXACT)[0], target, rtol=0, atol=1e-6)


def test_running_statistics_travel_and_do_not_count() -> None:
    target = network(CNN, 0)
    orders = shuffles(CNN, 1)
    model = gather(target, CNN, orders)
    for k, name in enumerate(("norm.running_mean", "norm.running_var")):
        model[name] = 100.0 * torch.arange(4) + k
    found, plans = align(model, target, CNN, EXACT)
    torch.testing.assert_close(plans["c1"].plan.argmax(1), orders["c1"])
    for name in ("norm.running_mean", "norm.running_var"):
        torch.testing.assert_close(found[name][orders["c1"]], model[name])
    torch.testing.assert_close(found["conv2.weight"], target["conv2.weight"], rtol=0, atol=1e-6)


def test_average_weighs_the_second() -> None:
    a, b = {"w": torch.tensor([0.0]), "n": torch.tensor(1)}, {"w": torch.tensor([4.0]), "n": torch.tensor(2)}
    torch.testing.assert_close(average_pair(a, b, 0.25), {"w": torch.tensor([1.0]), "n": torch.tensor(2)})


BAD: dict[str, tuple[Axes, Params]] = {
    "not in the table": ({"a": ("h",)}, {"a": torch.ones(2), "b": torch.ones(2)}),
    "is missing": ({"a": ("h",), "b": ("h",)}, {"a": torch.ones(2)}),
    "names 2 axes": ({"a": ("h", None)}, {"a": torch.ones(2)}),
    "must be some parameter's first axis": ({"a": (None, "h")}, {"a": torch.ones(2, 2)}),
    "forward order": ({"a": ("h2", "h1"), "b": ("h1", None)}, {"a": torch.ones(2, 2), "b": torch.ones(2, 2)}),
    "5 entries for the 2 units": ({"a": ("h",), "b": (None, "h")}, {"a": torch.ones(2), "b": torch.ones(3, 5)}),
    "not finite": ({"a": ("h",)}, {"a": torch.tensor([1.0, float("inf")])}),
}


@pytest.mark.parametrize("words", BAD)
def test_tables_that_do_not_fit_are_refused_in_one_line(words: str) -> None:
    axes, params = BAD[words]
    with pytest.raises(InputError, match=words) as refusal:
        align(params, params, axes, NEWTON)
    assert "\n" not in str(refusal.value)


def test_fixed_axes_must_agree() -> None:
    other = network(MLP, 0)
    other["fc4.bias"] = torch.ones(4)
    with pytest.raises(InputError, match="is 3 long for the model and 4 for the target"):
        align(network(MLP, 1), other, MLP, NEWTON)


# Fusion of the registered nets by their tables, against right answers: permuted, split and merged ones.
EXACT_FUSION_NETS, NEWTON_FUSION_NETS = Transport("exact"), Transport(reg=1e-4, max_iterations=200)


def network_fusion_nets(net: Net, seed: int) -> Params:
    """Initial tensors, with norms and biases that tell units apart as those of a trained net do."""
    generator = seeded(seed)
    params = nets.init(net, generator)
    for name, tensor in params.items():
        if tensor.dim() == 1:
            tensor.add_(0.1 * torch.randn(tensor.shape, generator=generator))
            if name.endswith("running_var"):
                tensor.abs_().add_(0.1)
    return params


def gather_fusion_nets(params: Params, axes: Axes, picks: dict[str, Tensor]) -> Params:
    """Take units by number on every axis that carries them; outgoing weights are divided by a unit's copies."""
    widths, out = units(params, axes), dict(params)
    for name, labels in axes.items():
        for axis, label in enumerate(labels):
            if label is not None:
                pick = picks[label]
                x = out[name].movedim(axis, 0).unflatten(0, (widths[label], -1))[pick]
                if axis:
                    copies = torch.bincount(pick, minlength=widths[label])[pick]
                    x = x / copies.reshape(-1, *[1] * (x.dim() - 1))
                out[name] = x.flatten(0, 1).movedim(0, axis)
    return out


def shuffles_fusion_nets(params: Params, axes: Axes, seed: int) -> dict[str, Tensor]:
    """An order of every label's units, in which the first is not the first."""
    generator = seeded(seed)
    orders = {label: torch.randperm(n, generator=generator) for label, n in units(params, axes).items()}
    return {label: order if order[0] else order.roll(1) for label, order in orders.items()}


def outputs(net: Net, params: Params, x: Tensor, training: bool = False) -> Tensor:
    """The logits, so scaled that the largest is about one."""
    module = net.build().train(training)
    module.load_state_dict(params)
    with torch.no_grad():
        return module(x)


def same(found: Tensor, wanted: Tensor) -> None:
    scale = wanted.abs().max()
    torch.testing.assert_close(found / scale, wanted / scale, rtol=0, atol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True], ids=["running", "batch"])
@pytest.mark.parametrize("case", NARROW)
def test_shuffling_along_the_table_leaves_the_function(case: str, training: bool) -> None:
    net, shape = narrow(case)
    params = network_fusion_nets(net, 0)
    shuffled = gather_fusion_nets(params, net.table, shuffles_fusion_nets(params, net.table, 1))
    moved = [name for name in net.table if not torch.equal(shuffled[name], params[name])]
    assert len(moved) == len(net.table) - 1  # all but the last layer's bias
    x = images(shape)
    found, wanted = (outputs(net, tensors, x, training) for tensors in (shuffled, params))
    torch.testing.assert_close(found / wanted.abs().max(), wanted / wanted.abs().max(), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("transport", [EXACT_FUSION_NETS, NEWTON_FUSION_NETS], ids=["exact", "newton"])
@pytest.mark.parametrize("case", NARROW)
def test_shuffled_net_fuses_back_to_itself(case: str, transport: Transport) -> None:
    net, _ = narrow(case)
    target = network_fusion_nets(net, 0)
    model = gather_fusion_nets(target, net.table, shuffles_fusion_nets(target, net.table, 1))
    torch.testing.assert_close(align(model, target, net.table, transport)[0], target, rtol=0, atol=1e-5)
    torch.testing.assert_close(code([model, target], net.table, transport)[0], target, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("copies", [2, 3])
@pytest.mark.parametrize("case", NARROW)
def test_split_and_merged_units_leave_the_function_fusion_nets(case: str, copies: int) -> None:
    (net, shape), (wider, _) = narrow(case), narrow(case, copies)
    small = network_fusion_nets(net, 0)
    picks = {label: order.repeat(copies) for label, order in shuffles_fusion_nets(small, net.table, 1).items()}
    wide = gather_fusion_nets(small, net.table, picks)
    x = images(shape)
    wanted = outputs(net, small, x)
    same(outputs(wider, wide, x), wanted)
    split, merged = (
        align(small, wide, net.table, EXACT_FUSION_NETS)[0],
        align(wide, small, net.table, EXACT_FUSION_NETS)[0],
    )
    torch.testing.assert_close(split, wide, rtol=0, atol=1e-5)
    torch.testing.assert_close(merged, small, rtol=0, atol=1e-5)
    same(outputs(wider, split, x), wanted)
    same(outputs(net, merged, x), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("case", NARROW)
def test_unequal_widths_take_the_targets_shapes_fusion_nets(case: str) -> None:
    """CODE, Remark 3."""
    (net, shape), (wider, _) = narrow(case), narrow(case, 2)
    for own, other in ((net, wider), (wider, net)):
        fused, plans = code([network_fusion_nets(own, 0), network_fusion_nets(other, 1)], own.table, EXACT_FUSION_NETS)
        assert {name: tuple(x.shape) for name, x in fused.items()} == nets.shapes(other)
        assert bool(outputs(other, fused, images(shape)).isfinite().all())
        assert [*plans[0]] == [*units(fused, own.table)]


@pytest.mark.slow
def test_a_mean_of_nets_with_norms_has_the_mean_statistics() -> None:
    net, shape = narrow("resnet20")
    models = [network_fusion_nets(net, seed) for seed in range(3)]
    for k, model in enumerate(models):
        model["stem.norm1.num_batches_tracked"] = torch.tensor(5 + k)
    found = mean(models, evenly(3))
    for name in ("stem.norm1.running_mean", "stem.norm1.running_var", "stem.norm1.weight", "stem.conv1.weight"):
        torch.testing.assert_close(found[name], sum(model[name] for model in models) / 3)
    assert found["stem.norm1.num_batches_tracked"].item() == 5
    assert bool(outputs(net, found, images(shape)).isfinite().all())
    torch.testing.assert_close(mean([models[0]] * 3, torch.tensor([1.0, 0.0, 0.0])), models[0], rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["lenet", "mcmahan_cnn"])
def test_whole_nets_come_back_as_well(case: str) -> None:
    net = nets.net(case, shape=(1, 28, 28), classes=10)
    target = network_fusion_nets(net, 0)
    model = gather_fusion_nets(target, net.table, shuffles_fusion_nets(target, net.table, 1))
    torch.testing.assert_close(align(model, target, net.table, EXACT_FUSION_NETS)[0], target, rtol=0, atol=1e-6)
