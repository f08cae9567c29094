"""Published methods by a loss of one's own equal loops written by hand."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from federations import SGD, federation, last
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

from fedcore.methods import method
from fedcore.nets import init
from fedcore.types.federation import Net, Params
from fedcore.types.method import StepId

EXAMPLES = Path(__file__).parents[2] / "examples"
ROUNDS, RATE = 3, 0.1


def chain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


FED = federation("abc", Net(chain))


def module_of(params: Params) -> nn.Module:
    module = chain()
    module.load_state_dict(params)
    return module


def step_through(name: str, number: int, start: Params, loss: Callable[..., Tensor]) -> Params:
    """Train one device in one round, by PyTorch's own SGD."""
    data, module = FED.devices[name].data.train, module_of(start)
    optimiser = torch.optim.SGD(module.parameters(), RATE)
    draws = StepId(0, 0, number, name).generator("batches")
    for _ in range(SGD.epochs):
        for batch in torch.randperm(len(data), generator=draws).split(SGD.batch):
            optimiser.zero_grad()
            loss(module, data.x[batch], data.y[batch]).backward()
            optimiser.step()
    return {key: x.clone() for key, x in module.state_dict().items()}


def mean(models: dict[str, Params]) -> Params:
    sizes = {name: len(FED.devices[name].data.train) for name in models}
    total = sum(sizes.values())
    return {key: sum(sizes[name] / total * model[key] for name, model in models.items()) for key in models["a"]}


def by_file(monkeypatch: pytest.MonkeyPatch, name: str, **settings: Any):
    """The last state of the method in an example, and the first model."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    build = getattr(importlib.import_module(name), name)
    training = replace(SGD, lr=RATE, shared_init=True)
    nets = {one: device.net for one, device in FED.devices.items()}
    built = method(build, nets=nets, training=training, rounds=ROUNDS, **settings)
    return last(built, FED).state, built.begin(FED.public, 0)[1]["a"].params


def close(found: Params, expected: Params) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_fedprox(monkeypatch: pytest.MonkeyPatch):
    state, model = by_file(monkeypatch, "prox", mu=0.3)
    for number in range(ROUNDS):
        sent = module_of(model)

        def loss(module: nn.Module, x: Tensor, y: Tensor, sent: nn.Module = sent) -> Tensor:
            apart = [
                (w - v.detach()).square().sum() for w, v in zip(module.parameters(), sent.parameters(), strict=True)
            ]
            return cross_entropy(module(x), y) + 0.15 * sum(apart)

        model = mean({name: step_through(name, number, model, loss) for name in FED.devices})
    close(state.messages["a"].params, model)


def test_fedprox_is_the_librarys_too(monkeypatch: pytest.MonkeyPatch):
    state, _ = by_file(monkeypatch, "prox", mu=0.3)
    training = replace(SGD, lr=RATE, shared_init=True)
    nets = {name: device.net for name, device in FED.devices.items()}
    ours = last(method("fedprox", nets=nets, training=training, rounds=ROUNDS, mu=0.3), FED).state
    close(state.messages["a"].params, ours.messages["a"].params)


def test_moon(monkeypatch: pytest.MonkeyPatch):
    state, model = by_file(monkeypatch, "moon", mu=2.0, tau=0.4)
    before = dict.fromkeys(FED.devices, model)
    for number in range(ROUNDS):
        trained = {}
        for name in FED.devices:
            near, far = module_of(model)[:-1], module_of(before[name])[:-1]

            def loss(module: nn.Module, x: Tensor, y: Tensor, near: nn.Module = near, far: nn.Module = far) -> Tensor:
                z = module[:-1](x)
                with torch.no_grad():
                    good, bad = near(x), far(x)
                same, other = (cosine_similarity(z, of).div(0.4).exp() for of in (good, bad))
                return cross_entropy(module[-1](z), y) - 2 * (same / (same + other)).log().mean()

            trained[name] = step_through(name, number, model, loss)
        before, model = trained, mean(trained)
    close(state.messages["a"].params, model)


def test_moon_with_its_projection(monkeypatch: pytest.MonkeyPatch):
    """The head is trained beside the net by the same optimiser, stays on its device and is not counted."""
    fed = federation("abc", Net(chain))
    state, model = by_file(monkeypatch, "moon_projection", mu=2.0, tau=0.4)
    make = importlib.import_module("moon_projection").projection
    heads = {name: make(Net(chain)) for name in FED.devices}
    for name, head in heads.items():
        head.load_state_dict(init(Net(partial(make, Net(chain))), StepId(0, 0, 0, name).generator("parts")))
    before = dict.fromkeys(FED.devices, model)
    for number in range(ROUNDS):
        trained = {}
        for name in FED.devices:
            near, far, head = module_of(model)[:-1], module_of(before[name])[:-1], heads[name]
            data, module = fed.devices[name].data.train, module_of(model)
            optimiser = torch.optim.SGD([*module.parameters(), *head.parameters()], RATE)
            draws = StepId(0, 0, number, name).generator("batches")
            for _ in range(SGD.epochs):
                for batch in torch.randperm(len(data), generator=draws).split(SGD.batch):
                    optimiser.zero_grad()
                    x, y = data.x[batch], data.y[batch]
                    z = module[:-1](x)
                    with torch.no_grad():
                        good, bad = head(near(x)), head(far(x))
                    same, other = (cosine_similarity(head(z), of).div(0.4).exp() for of in (good, bad))
                    (cross_entropy(module[-1](z), y) - 2 * (same / (same + other)).log().mean()).backward()
                    optimiser.step()
            trained[name] = {key: x.clone() for key, x in module.state_dict().items()}
        before, model = trained, mean(trained)
    close(state.messages["a"].params, model)
    for name, head in heads.items():
        found = {key.removeprefix("parts/"): x for key, x in state.memories[name].items() if key.startswith("parts/")}
        close(found, {key: x.detach() for key, x in head.state_dict().items()})


def test_feddyn(monkeypatch: pytest.MonkeyPatch):
    state, model = by_file(monkeypatch, "dyn", alpha=0.3)
    zero = {key: torch.zeros_like(x) for key, x in model.items()}
    h, gradients = zero, dict.fromkeys(FED.devices, zero)
    for number in range(ROUNDS):
        models = {}
        for name, g in gradients.items():

            def loss(module: nn.Module, x: Tensor, y: Tensor, g: Params = g, sent: Params = model) -> Tensor:
                found = cross_entropy(module(x), y)
                for key, w in module.named_parameters():
                    found = found - g[key].flatten() @ w.flatten() + 0.15 * ((w - sent[key]) ** 2).sum()
                return found

            models[name] = step_through(name, number, model, loss)
        gradients = {n: {key: g[key] - 0.3 * (models[n][key] - model[key]) for key in g} for n, g in gradients.items()}
        h = {key: h[key] - 0.3 / 3 * sum(one[key] - model[key] for one in models.values()) for key in h}
        model = {key: sum(one[key] for one in models.values()) / 3 - h[key] / 0.3 for key in h}
    close(state.messages["a"].params, model)
    for name, g in gradients.items():
        close({key: state.memories[name][f"g/{key}"] for key in g}, g)


def test_feddyn_is_the_librarys_too(monkeypatch: pytest.MonkeyPatch):
    state, _ = by_file(monkeypatch, "dyn", alpha=0.3, fraction=0.67)
    given = {"nets": FED.public.nets, "training": replace(SGD, lr=RATE), "shared_init": True, "rounds": ROUNDS}
    close(
        state.messages["a"].params,
        last(method("feddyn", **given, alpha=0.3, fraction=0.67), FED).state.messages["a"].params,
    )


def test_fedproto(monkeypatch: pytest.MonkeyPatch):
    state, first = by_file(monkeypatch, "proto", weight=0.7)
    models, prototypes = dict.fromkeys(FED.devices, first), None
    for number in range(ROUNDS):
        for name in FED.devices:

            def loss(module: nn.Module, x: Tensor, y: Tensor, prototypes: Any = prototypes) -> Tensor:
                z = module[:-1](x)
                if prototypes is None:
                    return cross_entropy(module[-1](z), y)
                apart = [
                    ((z[i] - prototypes[k]) ** 2).sum() if k in prototypes else 0 * z.sum()
                    for i, k in enumerate(y.tolist())
                ]
                return cross_entropy(module[-1](z), y) + 0.7 * sum(apart) / z.numel()

            models[name] = step_through(name, number, models[name], loss)
        seen: dict[int, list[Tensor]] = {}
        for name, model in models.items():
            data = FED.devices[name].data.train
            for x, k in zip(data.x, data.y.tolist(), strict=True):
                seen.setdefault(k, []).append(module_of(model)[:-1](x[None])[0].detach())
        prototypes = {k: torch.stack(rows).mean(0) for k, rows in seen.items()}
    for name, model in models.items():
        close(state.memories[name], model)
    close(dict(enumerate(state.messages["a"].extra["prototypes"])), prototypes)


@pytest.mark.parametrize("name", ["prox", "moon", "moon_projection", "proto", "dyn"])
def test_a_method_of_the_field_fits_into_forty_lines(name: str):
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 40
