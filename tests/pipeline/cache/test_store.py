"""The folder of blobs: what goes in comes out, equal values are one file, a spoilt file is never taken for whole."""

import ast
import json
import math
import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from project import ROOT
from safetensors.torch import load_file, save, save_file

from fedcore import Data, Dataset, Message, Model, Net, Report, Splits, Update, nets
from fedcore.data.schema import Column, Fit, Schema
from fedcore.execute.workers import Workers
from fedcore.nets.builders_by_path import net_at
from fedcore.nets.features import net as features_net
from fedcore.partition import Partition
from fedcore.pipeline.cache import journal
from fedcore.pipeline.cache.store import (
    CLASSES,
    DamagedBlob,
    Ref,
    Store,
    _to_bytes,
    digest_of,
    flatten,
    refs,
    to_json,
    unflatten,
)
from fedcore.pipeline.state import write_atomic

# values of every kind

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool,
]  # fmt: skip


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """A tensor of any kind: no dimension, no element, a view that is not contiguous, nan and inf."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    bits = draw(st.lists(st.integers(0, 255), min_size=1, max_size=27))
    size = math.prod(shape)
    values = torch.tensor([bits[i % len(bits)] for i in range(size)], dtype=torch.float64).reshape(shape)
    if dtype.is_floating_point:
        values = torch.where(values > 250, math.nan, torch.where(values > 245, -math.inf, values / 7))
    made = values.to(dtype)
    return made.transpose(0, -1) if draw(st.booleans()) and made.ndim > 1 else made


names = st.text(max_size=8)
params = st.dictionaries(names, tensors(), max_size=3)
counts = st.integers(0, 2**40)
numbers = st.floats(allow_nan=True, allow_infinity=True)
data = st.builds(Data, tensors(), tensors())
splits = st.builds(Splits, data, data, data)
optional_names = st.none() | st.lists(names, max_size=3).map(tuple)
indices = st.lists(st.integers(-5, 2**50), max_size=4).map(lambda xs: np.array(xs, dtype=np.int64))
told = st.dictionaries(names, st.dictionaries(names, numbers, max_size=2), max_size=2)
reports = st.builds(
    Report, told, st.dictionaries(names, told, max_size=2), params, st.dictionaries(names, names, max_size=2)
)
finite = st.floats(allow_nan=False)
shares, positive = st.floats(0, 1).map(lambda one: (one, 1 - one)), st.tuples(st.floats(1e-9, 1e9))
models = st.recursive(
    st.builds(Model, st.tuples(params), st.tuples(st.floats(0.9995, 1.0005))),
    lambda inner: st.builds(
        Model, st.tuples(params, inner), shares | st.tuples(positive, positive),
        finite, st.none() | params,
    ),
    max_leaves=3,
)  # fmt: skip
rates = st.lists(numbers, max_size=2).map(tuple)
fits = st.builds(Fit, rates, rates, rates)
columns = st.builds(Column, names, st.sampled_from(["number", "text"]), st.lists(names, max_size=2).map(tuple))
schemas = st.builds(
    Schema, st.tuples(counts), names, st.tuples(names), st.lists(columns, max_size=2).map(tuple), st.none() | names,
    devices=st.dictionaries(names, fits, max_size=2), shared=fits,
)  # fmt: skip
blobs = st.one_of(
    schemas, st.builds(Dataset, data, st.none(), st.tuples(names), schema=st.none() | schemas), data, reports,
    st.lists(reports, min_size=1, max_size=3), splits, st.builds(Message, params, params),
    st.builds(Update, params, params, counts, numbers), models,
    st.builds(Dataset, data, st.none() | data, st.lists(names, max_size=3).map(tuple), optional_names, optional_names),
    st.builds(Partition, st.lists(names, max_size=3).map(tuple), indices, indices, indices),
    st.dictionaries(names, tensors(), min_size=1, max_size=3), tensors(), indices,
)  # fmt: skip
plain = st.none() | st.booleans() | st.integers() | numbers | names
values = st.recursive(
    plain | blobs,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(plain.filter(lambda key: key == key) | st.tuples(names, names), inner, max_size=3),
    ),
    max_leaves=6,
)


def same(one: Any, other: Any) -> bool:
    """Equal in kind, type, shape and to the last bit; nan is nan."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return (
            one.dtype == other.dtype
            and one.shape == other.shape
            and bool(
                torch.equal(one.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8))
            )
        )
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if is_dataclass(one):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    return one == other or (one != one and other != other)


def test_same_tells_apart():
    assert same({"a": torch.ones(2)}, {"a": torch.ones(2)})
    assert not same(torch.ones(2), torch.ones(2, dtype=torch.float64))
    assert not same(torch.ones(2), torch.ones(1, 2))
    assert not same({"a": (1, 2)}, {"a": [1, 2]})
    assert not same(Message({"w": torch.ones(2)}), Message({"w": torch.zeros(2)}))
    assert not same({"a": 1, "b": 2}, {"b": 2, "a": 1})


@pytest.mark.slow
@settings(max_examples=150)
@given(value=values)
def test_a_stored_value_is_returned_unchanged(tmp_path_factory: pytest.TempPathFactory, value: Any):
    store = Store(tmp_path_factory.getbasetemp() / "any")
    kept = store.put(value)
    assert same(store.get(kept), value)
    # The rest goes through JSON, as Prefect keeps it, and names the blobs alone.
    words: dict[str, torch.Tensor] = {}
    shape = json.loads(json.dumps(flatten(kept, "", words)))
    assert words == {}
    assert same(unflatten(shape, {}), kept)
    assert same(unflatten(json.loads(json.dumps(to_json(kept))), {}), kept)
    # Stored anew, by another store, it has the same names.
    again = Store(tmp_path_factory.getbasetemp() / "other").put(store.get(kept))
    assert [ref.digest for ref in refs(again)] == [ref.digest for ref in refs(kept)]


@pytest.mark.slow
@settings(max_examples=60)
@given(one=blobs, other=blobs)
def test_different_values_have_different_names(tmp_path_factory: pytest.TempPathFactory, one: Any, other: Any):
    store = Store(tmp_path_factory.getbasetemp() / "any")
    assert (store.put(one).digest == store.put(other).digest) == same(one, other)


def test_a_store_that_was_sent_to_another_process_is_the_same(tmp_path: Path):
    """By which what was read from it once is found again."""
    store = Store(tmp_path / "blobs")
    sent = pickle.loads(pickle.dumps(store))
    assert (sent, hash(sent)) == (store, hash(store))
    assert store != Store(tmp_path)


def test_every_class_of_the_library_that_travels_is_known():
    known = {"Data", "Dataset", "Message", "Model", "Partition", "Report", "Splits", "Update"}
    assert set(CLASSES) == known | {"Column", "Fit", "Input", "Schema"}


def test_a_dataset_without_a_schema_has_the_bytes_of_one_that_knows_none(tmp_path: Path):
    """The name of a blob, and with it the key of each later step, stays when data get an optional field."""
    plain = Dataset(Data(torch.ones(2, 1), torch.tensor([0, 1])), None, ("a", "b"))
    parts = flatten(plain, "", {})["fields"]
    assert list(parts) == ["train", "test", "classes", "device", "split", "domain", "server"]
    store, schema = Store(tmp_path), Schema((1,), "float32", ("a", "b"), (Column("x", "number"),), "y")
    told = replace(plain, schema=schema)
    assert store.get(store.put(told)).schema == schema
    assert store.put(told) != store.put(plain)


def test_a_stored_model_may_have_a_net_of_the_library(tmp_path: Path):
    store, params = Store(tmp_path), {"w": torch.ones(2)}
    for net in (features_net(4, 5, 3), nets.net("cnn", shape=(1, 8, 8), classes=3)):
        found = store.get(store.put(Model((params,), net=net)))
        assert nets.key(found.net) == nets.key(net)
        assert nets.shapes(found.net) == nets.shapes(net)
    tensors: dict[str, torch.Tensor] = {}
    assert "net" not in json.dumps(flatten(Model((params,)), "", tensors))
    with pytest.raises(TypeError, match=r"^a stored model cannot run on a net of torch.nn.modules.linear, only of "):
        store.put(Model((params,), net=Net(partial(torch.nn.Linear, 2, 2))))
    for place in ("os:system", "fedcore.nets.mlp:math", "fedcore.nets.custom:custom", "fedcore.nets.mlp:nothing"):
        with pytest.raises(ValueError, match=f"^not a net of the library: {place}$"):
            net_at(place, ((), {}))


def test_values_that_share_memory(tmp_path: Path):
    """A tensor under two names, views of one tensor, and a tensor that repeats itself are kept as what they read as."""
    x = torch.arange(12.0).reshape(3, 4)
    store = Store(tmp_path)
    for value in (
        Message({"a": x, "b": x}, {"c": x}),
        {"rows": x[:2], "columns": x[:, 1:3], "all": x},
        Data(x[:1].expand(3, 4), torch.zeros(3, dtype=torch.int64)),
        Splits(*(Data(x[i : i + 1], torch.tensor([i])) for i in range(3))),
        {"a": np.arange(3), "b": np.arange(6)[::2]},
    ):
        assert same(store.get(store.put(value)), value)


# one file, its name and its size


def test_equal_values_are_one_file(tmp_path: Path):
    store = Store(tmp_path)
    first, second = store.put(message()), store.put(message())
    assert first == second
    assert files(tmp_path) == [store.path(first)]
    assert first.digest == digest_of(store.path(first).read_bytes())
    assert first.nbytes == message().nbytes == 4 * (3 + 4)


def test_the_same_message_to_many_devices_is_written_and_read_once(tmp_path: Path):
    store, sent = Store(tmp_path), message()
    kept = store.put((dict.fromkeys("abc", sent), message()))
    assert len({id(ref) for ref in kept[0].values()}) == 1
    loaded = store.get(kept)
    assert len({id(part) for part in (*loaded[0].values(), loaded[1])}) == 1


@settings(max_examples=40)
@given(params=st.dictionaries(names, tensors(), min_size=1, max_size=3))
@pytest.mark.slow
def test_a_file_has_the_bytes_that_safetensors_writes_for_pytorch(params: dict[str, torch.Tensor]):
    whole = {name: tensor.contiguous() for name, tensor in params.items()}
    assert _to_bytes(whole, {"fedcore": "{}"}) == save(whole, {"fedcore": "{}"})


@pytest.mark.parametrize("texts", [("b", "a") * 200, tuple(map(str, range(300))), ("",) * 257, ("a",) * 256])
def test_many_texts_come_back_in_their_order(tmp_path: Path, texts: tuple[str, ...]):
    data = Data(torch.zeros(len(texts), 1), torch.zeros(len(texts), dtype=torch.int64))
    whole = Dataset(data, None, ("a", "b"), texts)
    kept = Store(tmp_path)
    ref = kept.put(whole)
    assert kept.get(ref).device == texts
    assert kept.path(ref).read_bytes().count(b'"plain":"b"') < 3


def test_the_name_of_a_value_never_changes(tmp_path: Path):
    """Golden: another name would orphan every cache and change every configuration's digest."""
    update = Update({"w": torch.tensor([1.0, 2.0])}, {}, 3, 0.5)
    content = Store(tmp_path).path(Store(tmp_path).put(update)).read_bytes()
    # safetensors: 8 bytes of header length, the header padded to a multiple of 8, the tensors.
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert header["/params/w"] == {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    assert json.loads(header["__metadata__"]["fedcore"]) == {
        "class": "Update",
        "fields": {
            "params": {"dict": [[{"plain": "w"}, {"tensor": "/params/w"}]]},
            "extra": {"dict": []},
            "size": {"plain": 3},
            "score": {"plain": 0.5},
        },
    }
    assert content[8 + length :] == np.array([1.0, 2.0], dtype="<f4").tobytes()


def test_a_copy_of_a_blob_may_share_its_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Not if the blob is damaged, nor from one file system to another; nothing else is left."""
    store = Store(tmp_path / "blobs")
    ref, other = store.put(torch.ones(3)), store.put(torch.zeros(3))
    copy = tmp_path / "copy"
    copy.write_bytes(store.path(ref).read_bytes())

    def refuse(*_: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", refuse)
        store.share(ref, copy)
    store.share(ref, tmp_path / "missing")
    assert not copy.samefile(store.path(ref))
    for _ in range(2):
        store.share(ref, copy)
        assert copy.samefile(store.path(ref))
    store.path(other).write_bytes(b"")
    store.share(other, copy)
    assert copy.samefile(store.path(ref))
    assert store.holds(ref)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == sorted(
        ["copy", *(store.path(one).name for one in (ref, other))]
    )


@pytest.mark.slow
def test_the_name_is_the_same_in_another_process(tmp_path: Path):
    with Workers(1) as other:
        out = other.call(Store(tmp_path).put, message()).digest
    assert out == Store(tmp_path).put(message()).digest
    assert len(files(tmp_path)) == 1


def message() -> Message:
    return Message({"b": torch.arange(3.0), "a": torch.ones(2, 2)})


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_the_scores_of_many_devices_stay_as_they_are_in_a_record():
    scores = {"d0": {"test": {"accuracy": 0.1 + 0.2, "loss": math.nan}, "n": 3, "name": "x", "none": None, "yes": True}}
    assert to_json(scores) == {"json": scores}
    kept = {"scores": scores, ("d0", "d1"): [Ref("a", 1), scores], 2: (scores,)}
    back = unflatten(json.loads(json.dumps(to_json(kept))), {})
    assert same(back, kept)
    assert refs(back) == [Ref("a", 1)]


# damage


@pytest.mark.parametrize("harm", ["gone", "empty", "cut off", "longer", "a flipped bit", "another blob", "a folder"])
def test_damage_to_a_blob_is_reported(tmp_path: Path, harm: str):
    store = Store(tmp_path)
    ref = store.put(message())
    path, whole = store.path(ref), store.path(ref).read_bytes()
    store.verify(ref)
    match harm:
        case "gone":
            path.unlink()
        case "empty":
            path.write_bytes(b"")
        case "cut off":
            path.write_bytes(whole[:-1])
        case "longer":
            path.write_bytes(whole + b"\0")
        case "a flipped bit":
            path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        case "another blob":
            path.write_bytes(store.path(store.put(Message({"w": torch.zeros(9)}))).read_bytes())
        case "a folder":
            path.unlink()
            path.mkdir()
            with pytest.raises(DamagedBlob, match=ref.digest):
                store.verify(ref)
            return
    for ask in (store.verify, store.get, Store(tmp_path).get):
        with pytest.raises(DamagedBlob, match=ref.digest):
            ask(ref)
    assert not store.holds(ref)
    assert store.put(message()) == ref  # written again, not skipped because a file is there
    assert path.read_bytes() == whole
    assert same(store.get(ref), message())


def test_damage_is_reported_in_a_value_of_many_blobs(tmp_path: Path):
    store = Store(tmp_path)
    kept = store.put({"a": [message()], "b": (Message({"w": torch.zeros(9)}), 3)})
    store.path(kept["b"][0]).unlink()
    assert len(list(refs(kept))) == 2
    with pytest.raises(DamagedBlob, match=kept["b"][0].digest):
        store.get(kept)


def test_an_imported_blob_is_named_by_its_digest(tmp_path: Path):
    store, there = Store(tmp_path / "here"), Store(tmp_path / "there")
    path = there.path(there.put(message()))
    moved = path.rename(tmp_path / "dataset.safetensors")
    ref = store.import_blob(moved)
    assert ref.digest == path.stem
    assert same(store.get(ref), message())
    store.path(ref).write_bytes(b"spoilt")
    assert store.import_blob(moved) == ref
    assert same(store.get(ref), message())


@pytest.mark.parametrize("content", ["nothing", "text", "cut off", "a pickle", "tensors of someone else"])
def test_a_file_that_is_no_blob_is_not_imported(tmp_path: Path, content: str):
    store, path = Store(tmp_path / "here"), tmp_path / "dataset.safetensors"
    match content:
        case "nothing":
            path.write_bytes(b"")
        case "text":
            path.write_text("x,y\n1,2\n" * 100)
        case "cut off":
            other = Store(tmp_path / "other")
            path.write_bytes(other.path(other.put(message())).read_bytes()[:-3])
        case "a pickle":
            torch.save({"w": torch.ones(2)}, path)
        case "tensors of someone else":
            save_file({"w": torch.ones(2)}, path)
            assert load_file(path)  # it is a whole file, only not one of ours
    before = store.put(message())
    with pytest.raises(DamagedBlob, match=r"dataset\.safetensors is not a stored value"):
        store.import_blob(path)
    assert files(store.root) == [store.path(before)]
    assert path.exists()


def test_a_missing_file_is_not_imported(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        Store(tmp_path).import_blob(tmp_path / "none.safetensors")


@pytest.mark.parametrize("value", [{1, 2}, b"bytes", 1j, object(), [message, 3], {"a": Path("x")}])
def test_a_value_that_cannot_be_read_back_is_refused(tmp_path: Path, value: Any):
    with pytest.raises(TypeError, match="a step cannot return"):
        flatten(Store(tmp_path).put(value), "", {})


# whole or not at all


def test_a_file_is_replaced_whole(tmp_path: Path):
    path = tmp_path / "deep" / "file"
    write_atomic(path, b"first")
    write_atomic(path, b"second")
    assert path.read_bytes() == b"second"
    assert files(tmp_path) == [path]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path):
    path = tmp_path / "file"
    write_atomic(path, b"first")
    with pytest.raises(TypeError):
        write_atomic(path, "not bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"first"
    assert files(tmp_path) == [path]


def over_and_over(path: str) -> None:
    while True:
        for letter in b"ab":
            write_atomic(Path(path), bytes([letter]) * 3_000_000)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked process")
def test_a_killed_writer_leaves_the_old_file_or_the_new_one(tmp_path: Path):
    path = tmp_path / "file"
    script = "import sys; sys.path[:0] = [sys.argv[1]]; import test_store; test_store.over_and_over(sys.argv[2])"
    command = [sys.executable, "-c", script, str(Path(__file__).parent), str(path)]
    writer = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    try:
        until = time.monotonic() + 1200
        while not path.exists():
            assert writer.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)
        for _ in range(30):
            content = path.read_bytes()
            assert len(content) == 3_000_000
            assert content in (b"a" * 3_000_000, b"b" * 3_000_000)
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    assert set(path.read_bytes()) in ({ord("a")}, {ord("b")})
    assert path.stat().st_size == 3_000_000


# nothing is unpickled


READERS = {"load", "loads", "Unpickler", "read_pickle", "unsafe_load", "full_load"}
FROM = {
    "pickle", "cPickle", "dill", "cloudpickle", "joblib", "torch", "shelve", "marshal", "np", "numpy", "pd", "pandas",
    "yaml",
}  # fmt: skip


def unpickled(source: str) -> set[str]:
    """Return what a source calls that can run code when it reads a file, or imports from where such things are."""
    found, tree = set(), ast.parse(source)
    safe = {
        node.func for node in ast.walk(tree)
        if isinstance(node, ast.Call) and "allow_pickle=False" in map(ast.unparse, node.keywords)
    }  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node not in safe:
            if node.value.id in FROM and node.attr in READERS:
                found.add(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.ImportFrom) and node.module in FROM | {"torch.serialization"}:
            found |= {f"{node.module}.{alias.name}" for alias in node.names if alias.name in READERS}
    return found


def test_the_search_for_unpickling_finds_it():
    assert unpickled("import torch\nx = torch.load('a')") == {"torch.load"}
    assert unpickled("from pickle import Unpickler") == {"pickle.Unpickler"}
    assert unpickled("import numpy as np\nnp.load(f, allow_pickle=True)") == {"np.load"}
    assert unpickled("import numpy as np\nnp.load(f, allow_pickle=False)") == set()
    assert unpickled("import yaml\nyaml.safe_load(f)\nimport json\njson.load(f)") == set()


@pytest.mark.parametrize("part", ["tasks", "flows", "fedcore"])
@pytest.mark.slow
def test_no_file_is_unpickled(part: str):
    """What is pickled travels between processes of one run and never lies in a file.

    But for the batches that others publish: their reader can call nothing (tests/data/test_cifar.py tries to make it).
    """
    for path in sorted((ROOT / part).rglob("*.py")):
        source = path.read_text()
        found = unpickled(source)
        if path == ROOT / "fedcore" / "data" / "cifar.py":
            assert found == {"pickle.Unpickler"}
            assert "def find_class(" in source
        elif part == "fedcore" and found:
            assert "read_bytes" not in source, path
            names = [node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)]
            assert "open" not in names, path
            assert found <= {"pickle.loads", "pickle.Unpickler"}, path
        else:
            assert not found, path


# The journal of steps and the marks of running flows: what is damaged does not count, and stops nobody.
WHOLE = {"time": 1.0, "key": "k", "blobs": ["b"]}


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(journal, "FLOWS", tmp_path / "flows")
    monkeypatch.setattr(journal, "JOURNAL", tmp_path / "journal.jsonl")
    return tmp_path


@pytest.mark.parametrize(
    "line",
    [
        b"3", b"null", b"[]", b'"text"', b"{}", b'{"key": "k"}', b'{"time": 1.0}', b'{"time": null, "key": "k"}',
        b'{"time": "soon", "key": "k"}', b'{"time": 1.0, "key": "k", "blobs": [3]}',
        b'{"time": 1.0, "key": "k", "blobs": null}', b'{"time": 1.0, "key": "k"', b"\xff\xfe\x00", b"[" * 100_000, b"",
    ],
)  # fmt: skip
def test_a_damaged_line_is_left_out(state: Path, line: bytes):
    whole = json.dumps(WHOLE).encode()
    (state / "journal.jsonl").write_bytes(b"\n".join([whole, line, whole, b""]))
    assert journal.read() == [WHOLE, WHOLE]


def test_there_is_nothing_to_read_before_the_first_line(state: Path):
    assert journal.read() == []
    journal.append({"key": "k"})
    (line,) = journal.read()
    assert line["key"] == "k"


@pytest.mark.parametrize("content", [b"", b"text", b"\xff", b"1.5", b"-3", b"9" * 30, b"9" * 5000])
def test_a_damaged_mark_is_of_no_running_flow(state: Path, content: bytes):
    (state / "flows").mkdir()
    mark = state / "flows" / "not-a-uuid"
    mark.write_bytes(content)
    assert journal.marks() == [mark]
    assert not journal.alive(mark)
    journal.remove_mark(mark)
    assert journal.marks() == []


def test_a_folder_in_the_place_of_a_mark_is_of_no_running_flow(state: Path):
    (state / "flows" / "a" / "b").mkdir(parents=True)
    (mark,) = journal.marks()
    assert not journal.alive(mark)
    journal.remove_mark(mark)
    assert journal.marks() == []


def test_a_mark_is_of_this_process_and_lies_there_whole(state: Path):
    with journal.running("run") as mark:
        assert journal.alive(mark)
        assert mark.read_text() == str(os.getpid())
        assert [path.name for path in (state / "flows").iterdir()] == ["run"]
        with journal.running("run"):  # a session in a flow's body
            assert journal.marks() == [mark]
        assert journal.alive(mark)
    assert journal.marks() == []
