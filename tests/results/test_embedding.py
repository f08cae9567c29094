"""Features of shared parts in the plane: which part's, whose, and the same every time."""

from dataclasses import replace

import pytest
import torch
from federations import bits, workers
from federations import federation as tables
from signals import NET, federation

from fedcore import InputError, Message, Model, nets
from fedcore.nets.copies import load
from fedcore.nets.parts import names_up_to
from fedcore.results import embedding
from fedcore.results.embedding import embed, shared, tsne
from fedcore.types.federation import Data, Net, Params

FED = federation("abc")
DEVICES = dict(FED.devices)
MODELS = {name: Model((nets.init(NET, torch.Generator().manual_seed(i)),)) for i, name in enumerate(DEVICES)}


def messages(**keys: tuple[str, ...]) -> dict[str, Message]:
    return {name: Message({key: MODELS[name].members[0][key] for key in keys.get(name, ())}) for name in DEVICES}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """What is embedded."""
    found: list[torch.Tensor] = []
    monkeypatch.setattr(embedding, "tsne", lambda x, seed: found.append(x) or x[:, :2].double())
    return found


def beyond(params: Params, depth: int, data: Data) -> torch.Tensor:
    """What leaves a cell: row, stem and cells one after the other."""
    module, x = load(NET, params).eval(), data.inputs()
    names = ["row", "stem", *(f"cell{m}" for m in range(1, depth + 1))]
    with torch.no_grad():
        for name in names:
            x = module.get_submodule(name)(x)
    return x.flatten(1)


def test_features_are_those_of_the_last_part_that_a_device_was_sent(seen: list[torch.Tensor]):
    """The stem alone, everything, and nothing: which stands for the deepest cell."""
    sent = messages(a=names_up_to(NET, 0), b=tuple(nets.shapes(NET)))
    found = embed(MODELS, sent, DEVICES, seed=0)
    deepest = len([name for name in dict(NET.build().named_children()) if name.startswith("cell")])
    wanted = [
        beyond(MODELS[name].members[0], depth, DEVICES[name].data.test)
        for name, depth in {"a": 0, "b": deepest, "c": deepest}.items()
    ]
    torch.testing.assert_close(seen[0], torch.cat(wanted))
    sizes = [len(device.data.test) for device in DEVICES.values()]
    assert found["device"].tolist() == [i for i, size in enumerate(sizes) for _ in range(size)]
    assert torch.equal(found["y"], torch.cat([device.data.test.y for device in DEVICES.values()]))


def test_of_many_examples_every_so_many_are_taken(seen: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch):
    total = sum(len(device.data.test) for device in DEVICES.values())
    monkeypatch.setattr(embedding, "POINTS", total // 2)
    found = embed(MODELS, messages(), DEVICES, seed=0)
    every = -(-total // (total // 2))
    wanted = torch.cat([device.data.test.y[::every] for device in DEVICES.values()])
    assert torch.equal(found["y"], wanted)
    assert len(seen[0]) == len(wanted) < total


def test_features_that_are_the_same_for_all_examples_are_refused():
    """Those of the control that always guesses: t-SNE has nothing to embed."""
    blank = {
        name: Model(({key: torch.zeros_like(x) for key, x in of.members[0].items()},)) for name, of in MODELS.items()
    }
    with pytest.raises(InputError, match="the same for all examples"):
        embed(blank, messages(), DEVICES, seed=0)


@pytest.mark.slow
def test_what_is_apart_stays_apart_with_the_same_bits_in_any_process():
    centres = torch.tensor([[0.0], [50.0], [-80.0]]).expand(3, 60)
    x = centres.repeat_interleave(20, 0) + torch.randn(60, 60, generator=torch.Generator().manual_seed(0))
    plane = tsne(x, 0)
    assert plane.shape == (60, 2)
    nearest = torch.cdist(plane, plane).fill_diagonal_(torch.inf).argmin(1)
    assert torch.equal(nearest // 20, torch.arange(60) // 20)
    assert torch.equal(plane, tsne(x, 0))
    assert torch.equal(plane, workers(2).call(tsne, x, 0))


def test_what_cannot_be_embedded_is_refused():
    two = {**MODELS, "a": Model(MODELS["a"].members * 2, (0.5, 0.5))}
    with pytest.raises(InputError, match="several models"):
        embed(two, messages(), DEVICES, seed=0)
    nobody = {
        name: replace(device, data=replace(device.data, test=Data(device.data.test.x[:1], device.data.test.y[:1])))
        for name, device in DEVICES.items()
    }
    with pytest.raises(InputError, match="there are 3 test examples, t-SNE needs four"):
        embed(MODELS, messages(), nobody, seed=0)
    branched = Net(lambda: torch.nn.ModuleDict({"a": torch.nn.Linear(4, 4), "b": torch.nn.Linear(4, 3)}))
    with pytest.raises(InputError, match=r"net.name: .*a sequence"):
        embed(MODELS, messages(), {name: replace(device, net=branched) for name, device in DEVICES.items()}, seed=0)


def test_parts_that_end_in_different_sizes_are_refused():
    fed = tables("ab")
    net = fed.devices["a"].net
    models = {name: Model((nets.init(net, torch.Generator().manual_seed(0)),)) for name in "ab"}
    sent = {"a": Message({key: models["a"].members[0][key] for key in names_up_to(net, 0)}), "b": Message()}
    with pytest.raises(InputError, match="features of different sizes"):
        embed(models, sent, dict(fed.devices), seed=0)


@pytest.mark.slow
def test_a_device_without_test_examples_has_no_points():
    device = DEVICES["a"]
    nothing = replace(device, data=replace(device.data, test=Data(device.data.test.x[:0], device.data.test.y[:0])))
    found = embed(MODELS, messages(), {**DEVICES, "a": nothing}, seed=0)
    assert set(found["device"].tolist()) == {1, 2}
    assert shared(nothing, MODELS["a"].members[0], 0, nothing.data.test).shape == (0, 0)
    assert bits(found) == bits(embed(MODELS, messages(), {**DEVICES, "a": nothing}, seed=0))
