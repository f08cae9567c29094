"""A net's key covers the files that a user's constructor reads, and what its tensors are."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedcore import nets
from fedcore.core.prediction import predict
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
