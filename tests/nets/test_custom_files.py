"""A net's key covers the files that a user's constructor reads, and what its tensors are."""

import json
import os
import sys
from collections import deque
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import wraps
from pathlib import Path
from subprocess import run
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from fedcore import nets
from fedcore.core.prediction import predict
from fedcore.nets.copies import load_to_evaluate
from fedcore.nets.custom import digest_of, files_read
from fedcore.pipeline.cache.keys import Digest


class Reader(nn.Module):
    """Reads its width from one file and its frozen layer from another, and writes a third."""

    def __init__(self, shape, classes, folder: str):
        super().__init__()
        place = Path(folder)
        width = json.loads((place / "settings.json").read_text())["width"]
        self.base = nn.Linear(shape[0], 4)
        self.base.load_state_dict(torch.load(place / "base.pt"))
        self.base.requires_grad_(False)
        self.last = nn.Linear(4, classes)
        self.factor = 1.0 if width else 2.0
        (place / "log.txt").write_text(str(len(list(place.iterdir()))))

    def forward(self, x):
        return self.factor * self.last(self.base(x).relu())


FACTOR = 1.0


class Scaled(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.last, self.factor = nn.Linear(shape[0], classes), FACTOR
        self.act = nn.ReLU() if FACTOR < 3 else nn.Tanh()

    def forward(self, x):
        return self.act(self.last(x)) * self.factor


class Kept(Scaled):
    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.function = torch.relu if FACTOR < 3 else torch.tanh
        self.number = {"in": [np.float64(self.factor)]}
        del self.act, self.factor

    def forward(self, x):
        return self.function(self.last(x)) * float(self.number["in"][0])


@pytest.mark.parametrize("kind", ["Scaled", "Kept"])
@pytest.mark.slow
def test_a_global_that_a_constructor_reads_makes_another_net(monkeypatch, kind):
    x, seen = torch.ones(1, 3), []
    for factor in (1.0, 2.0, 3.0):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        net = nets.net(f"{__name__}:{kind}", shape=(3,), classes=2)
        seen.append(predict(nets.init(net, torch.Generator().manual_seed(0)), net, x, 1))
    torch.testing.assert_close(seen[1], 2 * seen[0])
    torch.testing.assert_close(seen[2], 3 * predict_by_hand(x).tanh())


class Factor:
    def __init__(self, of):
        self.of = of

    def __call__(self, x):
        return x * self.of

    def hook(self, module, inputs, output):
        return output * self.of


class Slots:
    __slots__ = ("of",)


class Settings(dict):
    pass


def of_class(kind, **values):
    made = kind()
    for name, value in values.items():
        setattr(made, name, value)
    return made


def times(factor):
    @wraps(predict)
    def inner(x):
        return x * factor

    return inner


def layer(factor):
    made = nn.Identity()
    made.of = factor
    return made


@dataclass
class Values:
    of: float = 1.0


VALUES = Values()
KEPT = {
    "a dataclass": lambda f, net: (replace(VALUES, of=f), lambda kept: kept.of),
    "a namespace": lambda f, net: (SimpleNamespace(of=f), lambda kept: kept.of),
    "an object with slots": lambda f, net: (of_class(Slots, of=f), lambda kept: kept.of),
    "a function with attributes": lambda f, net: (Factor(f), lambda kept: kept(1)),
    "a method of an object": lambda f, net: (Factor(f).__call__, lambda kept: kept(1)),
    "a wrapped function": lambda f, net: (times(f), lambda kept: kept(1)),
    "a set": lambda f, net: ({"sets": {str(f), "a", "b"}}, lambda kept: 1.0 if "1.0" in kept["sets"] else 2.0),
    "a dict with attributes": lambda f, net: (of_class(Settings, of=f), lambda kept: kept.of),
    "bytes": lambda f, net: (bytes([int(f)]), lambda kept: kept[0]),
    "a tensor in a list": lambda f, net: ([torch.tensor(f)], lambda kept: kept[0]),
    "a sparse tensor in a list": lambda f, net: ([torch.tensor([[f]]).to_sparse()], lambda kept: kept[0].to_dense()[0]),
    "an array of objects": lambda f, net: (np.array([f, "a"], dtype=object), lambda kept: kept[0]),
    "a module in a tuple": lambda f, net: ((layer(f),), lambda kept: kept[0].of),
    "the order of layers": lambda f, net: ([*net][:: int(3 - 2 * f)], lambda kept: 1 + (kept[0] is not net[0])),
    "a deque": lambda f, net: (deque([Fraction(f)]), lambda kept: float(kept[0])),
}


class Keeps(nn.Sequential):
    """Its factor is in what it keeps under a name."""

    def __init__(self, shape, classes, what: str, under: str):
        super().__init__(nn.Linear(shape[0], classes), nn.Identity())
        setattr(self, under, KEPT[what](FACTOR, self)[0])
        self.under, self.what = under, what

    def forward(self, x):
        return super().forward(x) * KEPT[self.what](1.0, self)[1](getattr(self, self.under))


class Hooked(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.Linear(shape[0], classes))
        self.handle = self[0].register_forward_hook(Factor(FACTOR).hook)


class Shared(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.last, self.one, self.two = nn.Linear(shape[0], classes), nn.Identity(), nn.ReLU()
        self.act = self.one if FACTOR == 1 else self.two

    def forward(self, x):
        return self.last(x) * (1 if self.act is self.one else 2)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [("Hooked", {}), ("Shared", {}), *(("Keeps", {"what": what, "under": "kept"}) for what in KEPT),
     *(("Keeps", {"what": what, "under": "_kept"}) for what in ("a set", "a tensor in a list"))],
)  # fmt: skip
def test_all_that_a_module_keeps_makes_another_net(monkeypatch, kind, settings):
    x, seen, found = torch.ones(1, 3), [], []
    for factor in (1.0, 2.0, 1.0):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        found.append(nets.net(f"{__name__}:{kind}", shape=(3,), classes=2, **settings))
        start = nets.init(found[-1], torch.Generator().manual_seed(0))
        seen.append(load_to_evaluate(found[-1], start)(x).detach())
    torch.testing.assert_close(seen[1], 2 * seen[0])
    torch.testing.assert_close(seen[2], seen[0])
    assert found[0].content == found[2].content != found[1].content


def test_what_a_module_keeps_has_one_content_in_all_processes():
    program = (
        "import test_custom_files as of\n"
        "for what in of.KEPT:\n"
        "    of.torch.manual_seed(0)\n"
        "    print(of.digest_of(of.Keeps((3,), 2, what, 'kept'), ()))\n"
        "of.torch.manual_seed(0)\n"
        "print(of.digest_of(of.Hooked((3,), 2), ()))\n"
    )
    folders = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    seen = {
        run([sys.executable, "-c", program], env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": folders},
            check=True, capture_output=True, text=True).stdout
        for seed in "12"
    }  # fmt: skip
    assert len(seen) == 1


def named(function):
    class Named(Scaled):
        def forward(self, x):
            return function(self.last(x))

    Named.__qualname__ = "Named"
    return Named


def test_a_class_defined_again_leaves_nets_of_the_one_before(monkeypatch):
    x, seen = torch.ones(1, 3), []
    for function in (torch.relu, torch.tanh):
        monkeypatch.setitem(globals(), "Named", named(function))
        net = nets.net(f"{__name__}:Named", shape=(3,), classes=2)
        start = nets.init(net, torch.Generator().manual_seed(0))
        seen.append((net, function(nn.functional.linear(x, start["last.weight"], start["last.bias"]))))
        for earlier, expected in seen:
            torch.testing.assert_close(predict(start, earlier, x, 1), expected)


def test_a_net_whose_layers_have_classes_of_their_own_is_one_net():
    def build():
        class Local(Scaled):
            pass

        return nn.Sequential(Local((3,), 2), torch.nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)))

    built = []
    for _ in range(2):
        torch.manual_seed(0)
        built.append(digest_of(build(), ()))
    assert built[0] == built[1]


def predict_by_hand(x):
    net = nets.net(f"{__name__}:Scaled", shape=(3,), classes=2)
    start = nets.init(net, torch.Generator().manual_seed(0))
    return nn.functional.linear(x, start["last.weight"], start["last.bias"])


def key_of(folder: Path) -> tuple[str, bytes]:
    net = nets.net(f"{__name__}:Reader", shape=(3,), classes=2, folder=str(folder))
    return Digest().of(net), nets.key(net)


def write(folder: Path, width: int, seed: int) -> None:
    (folder / "settings.json").write_text(json.dumps({"width": width}))
    torch.save(nn.Linear(3, 4).requires_grad_(False).state_dict() | _drawn(seed), folder / "base.pt")


def _drawn(seed: int):
    draws = torch.Generator().manual_seed(seed)
    return {"weight": torch.randn(4, 3, generator=draws), "bias": torch.randn(4, generator=draws)}


@pytest.mark.slow
def test_a_file_that_a_constructor_reads_is_part_of_the_key(tmp_path: Path):
    write(tmp_path, 1, 0)
    first = key_of(tmp_path)
    assert key_of(tmp_path) == first
    write(tmp_path, 1, 1)
    second = key_of(tmp_path)
    write(tmp_path, 2, 1)
    third = key_of(tmp_path)
    write(tmp_path, 1, 0)
    assert key_of(tmp_path) == first
    assert len({first, second, third}) == len({key for _, key in (first, second, third)}) == 3


@pytest.mark.slow
def test_a_changed_file_makes_a_new_module_in_one_process(tmp_path: Path):
    """Its copies are kept for each key."""
    write(tmp_path, 1, 0)
    old = nets.net(f"{__name__}:Reader", shape=(3,), classes=2, folder=str(tmp_path))
    before = nets.copies.load(old, nets.init(old, torch.Generator())).base.weight.clone()
    write(tmp_path, 1, 1)
    new = nets.net(f"{__name__}:Reader", shape=(3,), classes=2, folder=str(tmp_path))
    after = nets.copies.load(new, nets.init(new, torch.Generator())).base.weight
    assert torch.equal(before, _drawn(0)["weight"])
    assert torch.equal(after, _drawn(1)["weight"])


def test_programs_count_as_source_and_what_is_written_does_not_count(tmp_path: Path):
    module = nn.Linear(2, 2)
    (tmp_path / "program.py").write_text("x = 1")
    with files_read() as files:
        (tmp_path / "program.py").read_text()
        (tmp_path / "new.txt").write_text("new")
        (tmp_path / "folder").mkdir()
        Path(torch.__file__).with_name("version.py").read_bytes()
        Path(nn.__file__).read_bytes()
    (tmp_path / "after.txt").write_text("")
    assert str(tmp_path / "program.py") in files
    assert str(tmp_path / "new.txt") not in files
    assert digest_of(module, files) == digest_of(module, ())


def test_tensors_count_wherever_a_module_keeps_them():
    """PyTorch's readers of safetensors and Parquet open files unseen."""
    module = nn.Linear(2, 2)
    digests = [digest_of(module, ())]
    module.kept = torch.zeros(2)
    digests.append(digest_of(module, ()))
    module.kept[0] = 1
    digests.append(digest_of(module, ()))
    module.register_buffer("fixed", torch.ones(1), persistent=False)
    digests.append(digest_of(module, ()))
    assert len({*digests}) == 4
