"""CIFAR-10 and CIFAR-100 in each layout; a pickle that would run something is refused and does not run."""

import hashlib
import io
import os
import pickle
import struct
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from dataset_files import NOWHERE, refusal, same, serving

from fedcore.data import load
from fedcore.data.cifar import CIFAR10, CIFAR100, CLASSES, COARSE, FINE, Source, cifar

SETS = {"cifar10": (CIFAR10, {"labels": 10}), "cifar100": (CIFAR100, {"coarse_labels": 20, "fine_labels": 100})}


def content(name: str) -> dict[str, tuple[np.ndarray, dict[str, list[int]]]]:
    """What each file of a set holds, 4 images: pixels (4, 3072) and labels."""
    rng = np.random.default_rng(0)
    source, kinds = SETS[name]

    def labels() -> dict[str, list[int]]:
        return {kind: rng.integers(0, classes, 4).tolist() for kind, classes in kinds.items()}

    return {file: (rng.integers(0, 256, (4, 3072), dtype=np.uint8), labels()) for file in source.files}


def python2(x: np.ndarray, labels: dict[str, list[int]]) -> bytes:
    """A batch as Python 2 pickled the official ones (protocol 2, texts are bytes), opcode by opcode."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value

    def whole(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + whole(0) + b"\x85" + text(b"b") + b"\x87R"
        b"(" + whole(1) + whole(x.shape[0]) + whole(x.shape[1]) + b"\x86"
        b"cnumpy\ndtype\n" + text(b"u1") + whole(0) + whole(1) + b"\x87R"
        b"(" + whole(3) + text(b"|") + b"NNN" + whole(-1) + whole(-1) + whole(0) + b"tb\x89" + text(x.tobytes()) + b"tb"
    )
    items = text(b"batch_label") + text(b"batch 1 of 5") + text(b"data") + array
    for kind, values in labels.items():
        items += text(kind.encode()) + b"](" + b"".join(map(whole, values)) + b"e"
    return b"\x80\x02}(" + items + b"u."


def python3(x: np.ndarray, labels: dict[str, list[int]]) -> bytes:
    return pickle.dumps({"data": x, **labels}, protocol=4)


def pickled(root: Path, name: str, dump=python2) -> Path:
    source = SETS[name][0]
    return laid_out(root, {f"{source.python}/{file}": dump(*held) for file, held in content(name).items()})


def laid_out(root: Path, files: dict[str, bytes]) -> Path:
    for name, raw in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(raw)
    return root


def test_the_python2_pickle_of_these_tests_is_one():
    x, labels = content("cifar100")["train"]
    held = pickle.loads(python2(x, labels), encoding="latin1")
    np.testing.assert_array_equal(held["data"], x, strict=True)
    assert held["fine_labels"] == labels["fine_labels"]


@pytest.mark.slow
@pytest.mark.parametrize("write", [pickled, lambda root, name: pickled(root, name, python3)])
@pytest.mark.parametrize(
    ("name", "settings", "kind", "classes"),
    [
        ("cifar10", {}, "labels", CLASSES),
        ("cifar100", {}, "fine_labels", tuple(FINE.split())),
        ("cifar100", {"labels": "coarse"}, "coarse_labels", tuple(COARSE.split())),
    ],
)
def test_cifar(tmp_path, write, name, settings, kind, classes):
    data = load(name, root=str(write(tmp_path, name)), download=False, **settings)
    *train, test = content(name).values()
    assert data.test is not None
    for part, held in ((data.train, train), (data.test, [test])):
        assert part.x.dtype == torch.uint8
        assert part.x.flatten(1).tolist() == [row for x, _ in held for row in x.tolist()]
        assert part.x.shape[1:] == (3, 32, 32)
        assert part.y.tolist() == [y for _, labels in held for y in labels[kind]]
    assert data.classes == classes


def test_names_of_classes():
    assert len(set(FINE.split())) == 100
    assert sorted(FINE.split()) == FINE.split()
    assert len(set(COARSE.split())) == 20


@pytest.mark.slow
def test_cifar_sources_are_torchvisions():
    sets = pytest.importorskip("torchvision").datasets
    for source in (CIFAR10, CIFAR100):
        theirs = getattr(sets, source.name)
        assert (theirs.base_folder, theirs.filename, theirs.tgz_md5) == (source.python, source.archive, source.md5)
        assert tuple(file for file, _ in theirs.train_list + theirs.test_list) == source.files


# the archive


def archived(root: Path, files: dict[str, bytes]) -> Source:
    """Write the archive of CIFAR-10; gives the source with its MD5."""
    with tarfile.open(root / CIFAR10.archive, "w:gz") as tar:
        for name, raw in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(raw)
            tar.addfile(member, io.BytesIO(raw))
    return replace(CIFAR10, md5=hashlib.md5((root / CIFAR10.archive).read_bytes()).hexdigest())


def in_archive() -> dict[str, bytes]:
    """The archive's files, not in the order of the batches."""
    return {f"{CIFAR10.python}/{name}": python2(*held) for name, held in reversed(content("cifar10").items())}


def test_cifar_archive(tmp_path):
    source = archived(tmp_path, {**in_archive(), f"{CIFAR10.python}/readme.html": b""})
    expected = load("cifar10", root=pickled(tmp_path / "unpacked", "cifar10"), download=False)
    same(expected, cifar(source, tmp_path, False, "labels", CLASSES))
    assert [file.name for file in tmp_path.iterdir() if file.name != "unpacked"] == [
        CIFAR10.archive
    ]  # nothing unpacked


def test_cifar_archive_refused(tmp_path):
    archived(tmp_path, in_archive())
    line = refusal("cifar10", root=tmp_path, download=False)
    assert line.startswith(f"data.root = {tmp_path}: {CIFAR10.archive} cannot be used (its MD5 is ")
    files = in_archive()
    files.popitem()
    source = archived(tmp_path, files)
    with pytest.raises(ValueError, match="has no file cifar-10-batches-py/data_batch_1"):
        cifar(source, tmp_path, False, "labels", CLASSES)
    (tmp_path / CIFAR10.archive).write_bytes(b"no archive")
    source = replace(CIFAR10, md5=hashlib.md5(b"no archive").hexdigest())
    with pytest.raises(ValueError, match=r"python\.tar\.gz cannot be used"):
        cifar(source, tmp_path, False, "labels", CLASSES)


@pytest.mark.slow  # imports torchvision
def test_cifar_download(tmp_path, monkeypatch):
    sets = pytest.importorskip("torchvision").datasets
    (tmp_path / "served").mkdir()
    source = archived(tmp_path / "served", in_archive())
    monkeypatch.setattr(sets.CIFAR10, "url", f"{NOWHERE}/{source.archive}")
    assert "CIFAR10 is not there and the download failed" in refusal("cifar10", root=tmp_path, download=True)
    with serving(tmp_path / "served") as address:
        monkeypatch.setattr(sets.CIFAR10, "url", f"{address}/{source.archive}")
        here = cifar(source, tmp_path / "here", True, "labels", CLASSES)
    same(here, cifar(source, tmp_path / "served", False, "labels", CLASSES))


# refusals


def test_cifar_missing(tmp_path):
    line = refusal("cifar10", root=tmp_path, download=False)
    assert f"{CIFAR10.archive} is missing; put torchvision's files for CIFAR10 there" in line
    (pickled(tmp_path, "cifar10") / CIFAR10.python / "data_batch_3").unlink()
    assert "cifar-10-batches-py/data_batch_3 is missing" in refusal("cifar10", root=tmp_path, download=False)
    said = refusal("cifar100", root=tmp_path, download=False, labels="course")
    assert said.startswith("data.labels = 'course': did you mean coarse? allowed: fine, coarse")


class Evil:
    """What it does when unpickled leaves a file behind."""

    def __init__(self, call, *words: object) -> None:
        self.call, self.words = call, words

    def __reduce__(self):
        return self.call, self.words


X = np.zeros((4, 3072), np.uint8)
Y = [0, 1, 2, 3]

EVIL = {
    # name: (what makes the pickle of a folder in which it would leave "trace", what it asks for)
    "system": (lambda place: pickle.dumps(Evil(os.system, f"touch {place}/trace"), 2), "system"),
    "system, new protocol": (lambda place: pickle.dumps(Evil(os.system, f"touch {place}/trace"), 4), "system"),
    "eval inside a batch": (
        lambda place: pickle.dumps({"data": X, "labels": Evil(eval, f"open('{place}/trace', 'w')")}, 4),
        ".eval",
    ),
    "numpy.load": (lambda place: pickle.dumps(Evil(np.load, f"{place}/other.npy", None, True), 4), "numpy.load"),
    "open as an instance": (lambda place: f"(ibuiltins\nopen\n(V{place}/trace\nVw\nt.".encode(), "builtins.open"),
    "a module that runs when imported": (lambda place: b"cevil_module\nanything\n.", "evil_module.anything"),
    "through an attribute": (lambda place: b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.", "numpy.ndarray.tofile"),
    "a name of many lines": (lambda place: b"\x80\x04\x8c\x02os\x8c\x08sys\ntem\n\x93.", "os.sys tem"),
    "a registered extension": (lambda place: b"\x82\x01.", "unregistered extension"),
    "a persistent id": (lambda place: b"Pmodule\n.", "persistent"),
}


@pytest.mark.parametrize("name", EVIL)
def test_a_pickle_that_would_run_something_is_refused_and_does_not_run(tmp_path, name, monkeypatch):
    make, asks = EVIL[name]
    (tmp_path / "evil_module.py").write_text(f"open(r'{tmp_path}/trace', 'w').close()\nanything = print\n")
    monkeypatch.syspath_prepend(tmp_path)
    file = pickled(tmp_path / "d", "cifar10") / CIFAR10.python / "data_batch_1"
    file.write_bytes(make(tmp_path))
    line = refusal("cifar10", root=tmp_path / "d", download=False)
    assert line.startswith(f"data.root = {tmp_path / 'd'}: cifar-10-batches-py/data_batch_1 is no batch of CIFAR10 (")
    assert asks in line
    assert not (tmp_path / "trace").exists()


def test_the_evil_pickles_of_these_tests_work(tmp_path):
    make, _ = EVIL["system"]
    pickle.loads(make(tmp_path))
    assert (tmp_path / "trace").exists()


PICKLES = {
    "objects": (pickle.dumps({"data": X.astype(object), "labels": Y}, 4), "not rows of 3072 bytes"),
    "floats": (pickle.dumps({"data": X.astype(np.float32), "labels": Y}, 4), "not rows of 3072 bytes"),
    "other images": (pickle.dumps({"data": X[:, :-1], "labels": Y}, 4), "not rows of 3072 bytes"),
    "by column": (pickle.dumps({"data": np.asfortranarray(X), "labels": Y}, 4), "not rows of 3072 bytes"),
    "no array": (pickle.dumps({"data": [1, 2], "labels": Y}, 4), "no batch"),
    "no labels": (pickle.dumps({"data": X}, 4), "'labels'"),
    "labels that are no numbers": (pickle.dumps({"data": X, "labels": ["a"] * 4}, 4), "not whole numbers"),
    "fractions": (pickle.dumps({"data": X, "labels": [0.5] * 4}, 4), "not whole numbers"),
    "too few labels": (pickle.dumps({"data": X, "labels": Y[:3]}, 4), "3 labels for 4 images"),
    "a label too large": (pickle.dumps({"data": X, "labels": [0, 1, 2, 10]}, 4), "the label 10"),
    "a label too small": (pickle.dumps({"data": X, "labels": [0, 1, 2, -1]}, 4), "the label -1"),
    "a list": (pickle.dumps([1, 2]), "no batch"), "truncated": (python2(X, {"labels": Y})[:-100], "no batch"),
    "fewer bytes than it says": (python2(X, {"labels": Y}).replace(b"J\x00\x0c\x00\x00", b"J\x01\x0c\x00\x00"), "rows"),
    "html": (b"<html>404</html>", "no batch"), "empty": (b"", "no batch"),
}  # fmt: skip


@pytest.mark.parametrize("name", PICKLES)
@pytest.mark.slow
def test_a_pickle_that_is_no_batch_is_refused(tmp_path, name):
    raw, why = PICKLES[name]
    (pickled(tmp_path, "cifar10") / CIFAR10.python / "test_batch").write_bytes(raw)
    line = refusal("cifar10", root=tmp_path, download=False)
    assert line.startswith(f"data.root = {tmp_path}: cifar-10-batches-py/test_batch ")
    assert why in line
