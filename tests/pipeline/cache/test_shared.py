"""A store that machines share: here a URL in memory or a folder, and a folder of its own for each machine."""

import json
import pickle
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest
import torch
from project_params import refusal

from fedcore import InputError, Message
from fedcore.execute.workers import Workers
from fedcore.pipeline import environment
from fedcore.pipeline.cache import shared
from fedcore.pipeline.cache.calls import load_call_save
from fedcore.pipeline.cache.shared import DAY, SharedStore, StoreLost, open_store, with_blobs
from fedcore.pipeline.cache.store import DamagedBlob, Ref, Store
from fedcore.pipeline.command import CONTINUE

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "word", "AWS_DEFAULT_REGION": "us-east-1"}

X = Message({"w": torch.arange(8.0)})

Machine = Callable[[str], SharedStore]


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """A bucket of a server with S3's API; its address and credentials are in the environment, as a user gives them."""
    pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        fsspec.filesystem("s3", skip_instance_cache=True).mkdir("everyones")
        yield "s3://everyones"
    server.stop()


@pytest.fixture(scope="session")
def sftp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("paramiko")
    from sftp import serving_sftp

    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch, serving_sftp(tmp_path_factory.mktemp("served"), home) as address:
        patch.setenv("HOME", str(home))
        patch.delenv("SSH_AUTH_SOCK", raising=False)
        yield address


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("s3", "sftp")]


@pytest.fixture(params=["memory", "file", *SLOW])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "memory":
            return f"memory://{uuid4().hex}/blobs"
        case "file":
            return (tmp_path / "everyones").as_uri()
    return f"{request.getfixturevalue(request.param)}/{uuid4().hex}"


@pytest.fixture
def machine(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Return the store as a machine of that name opens it."""

    def opened(name: str) -> SharedStore:
        monkeypatch.setattr(environment, "BLOBS", tmp_path / name)
        shared._sizes.cache_clear()
        store = open_store(url)
        assert isinstance(store, SharedStore)
        return store

    return opened


def there(store: SharedStore, ref: Ref) -> tuple[Any, str]:
    """Return the file system and the place of a blob in it."""
    files, root = shared.file_system(store.url)
    return files, shared.path_of(root, ref)


@pytest.mark.slow
def test_what_one_machine_puts_another_gets(machine: Machine):
    here = machine("a")
    ref = here.put(X)
    other = machine("b")
    torch.testing.assert_close(other.get(ref).params, X.params, rtol=0, atol=0)
    assert Store(other.root).holds(ref)  # from now on it need not ask


def test_a_reference_is_that_of_a_folder(machine: Machine, tmp_path: Path):
    assert machine("a").put(X) == Store(tmp_path / "alone").put(X)


def test_a_blob_is_put_once(machine: Machine, monkeypatch: pytest.MonkeyPatch):
    puts, put = [], shared.put
    monkeypatch.setattr(shared, "put", lambda files, path, content: puts.append(path) or put(files, path, content))
    refs = [machine(name).put(X) for name in "abb"]
    assert [path.rpartition("/")[2] for path in puts if "running" not in path] == [f"{refs[0].digest}.safetensors"]


@pytest.mark.slow
def test_many_threads_put_and_get_at_a_time(machine: Machine):
    here = machine("a")
    values = [Message({"w": torch.full((3,), float(i))}) for i in range(40)]
    with ThreadPoolExecutor(4) as threads:
        refs = [*threads.map(here.put, values)]
        other = machine("b")
        found = [*threads.map(other.get, refs)]
    assert [float(one.params["w"][0]) for one in found] == [*range(40)]


def test_what_is_read_is_cached(machine: Machine):
    ref = machine("a").put(X)
    other = machine("b")
    assert other.holds(ref)
    files, place = there(other, ref)
    files.rm_file(place)
    assert other.holds(ref)


@pytest.mark.parametrize("harm", [b"", b"no blob", None], ids=["emptied", "other bytes", "flipped"])
def test_a_damaged_blob_is_missing_until_it_is_put_again(machine: Machine, harm: bytes | None):
    here = machine("a")
    ref = here.put(X)
    files, place = there(here, ref)
    content = files.cat_file(place)
    files.pipe_file(place, content[:-1] + bytes([content[-1] ^ 1]) if harm is None else harm)
    other = machine("b")
    with pytest.raises(DamagedBlob):
        other.get(ref)
    assert not files.exists(place)
    other.put(X)
    assert files.cat_file(place) == content


def test_what_the_store_has_lost_a_machine_that_has_it_gives_back(machine: Machine):
    """One blob is gone, one was cut short; one that no machine has stays missing."""
    here = machine("a")
    gone, cut = (here.put({"w": torch.full((9,), value)}) for value in (1.0, 2.0))
    for ref in (gone, cut):
        files, place = there(here, ref)
        files.pipe_file(place, files.cat_file(place)[:9]) if ref is cut else files.rm_file(place)
    here.offer([gone, cut, Ref("0" * 40, 4)], afresh=True)
    other = machine("b")
    assert [other.holds(ref) for ref in (gone, cut, Ref("0" * 40, 4))] == [True, True, False]


@pytest.fixture
def elsewhere(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a call of a step's function on another machine; it notes that it was called."""

    def call(*args: Any) -> Any:
        calls.append(args)
        here = environment.BLOBS
        other = machine("elsewhere")
        monkeypatch.setattr(environment, "BLOBS", here)
        return load_call_save(other, double, args)

    calls: list[Any] = []
    call.calls = calls  # type: ignore[attr-defined]
    return call


def double(message: Message) -> Message:
    return Message({name: 2 * tensor for name, tensor in message.params.items()})


@pytest.mark.slow
def test_a_step_elsewhere_is_repeated_with_the_blobs_that_it_missed(machine: Machine, elsewhere: Any):
    here = machine("a")
    ref = here.put(X)
    files, place = there(here, ref)
    files.rm_file(place)
    record = with_blobs(here, (ref,), partial(elsewhere, ref))
    assert len(elsewhere.calls) == 2
    found = here.get(Ref(*record["value"]["ref"]))  # which the other machine has put there
    torch.testing.assert_close(found.params["w"], 2 * X.params["w"], rtol=0, atol=0)


def test_a_blob_that_no_machine_has_is_an_error(machine: Machine, elsewhere: Any):
    missing = Ref("0" * 40, 32)
    with pytest.raises(DamagedBlob):
        with_blobs(machine("a"), (missing,), partial(elsewhere, missing))
    assert len(elsewhere.calls) == 2


def test_a_dropped_blob_is_gone_everywhere(machine: Machine):
    here = machine("a")
    ref = here.put(X)
    here.drop(ref)
    here.drop(ref)
    assert not here.holds(ref)
    assert not machine("b").holds(ref)


def test_a_store_travels_without_its_folder(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A worker elsewhere has a folder of its own."""
    here = machine("a")
    packed = pickle.dumps(here)
    assert str(tmp_path / "a").encode() not in packed
    monkeypatch.setattr(environment, "BLOBS", tmp_path / "b")
    there = pickle.loads(packed)
    assert (there.url, there.root) == (here.url, tmp_path / "b")


def test_pruning_keeps_what_is_young_or_needed(machine: Machine, monkeypatch: pytest.MonkeyPatch):
    here = machine("a")
    tick = 1.1 if here.url.startswith(("s3", "sftp")) else 0.02  # seconds; these tell whole ones
    old, needed = (here.put({"w": torch.full((9,), value)}) for value in (2.0, 3.0))
    time.sleep(tick)
    between = time.time()
    time.sleep(tick)
    young = here.put({"w": torch.full((9,), 1.0)})
    monkeypatch.setattr(shared.time, "time", lambda: between + 30 * DAY)
    pruned = here.prune({needed.digest}, 30)
    assert (pruned.steps, pruned.blobs) == (0, 1)
    assert pruned.nbytes * 2 == pruned.left
    other = machine("b")
    assert [other.holds(ref) for ref in (young, old, needed)] == [True, False, True]


def test_pruning_takes_what_a_killed_process_was_writing(machine: Machine, monkeypatch: pytest.MonkeyPatch):
    here = machine("a")
    files, place = there(here, here.put(X))
    left = f"{place}-0{shared.PART}"
    files.pipe_file(left, b"some")
    now = time.time()
    here.prune({here.put(X).digest}, 1)
    assert files.exists(left)  # it may still be written
    monkeypatch.setattr(shared.time, "time", lambda: now + 2 * DAY)
    here.prune({here.put(X).digest}, 1)
    assert not files.exists(left)
    assert files.exists(place)


def test_while_a_flow_runs_nothing_is_pruned(machine: Machine):
    here, other = machine("a"), machine("b")
    in_use = pytest.raises(InputError, match=r"is in use by a flow on .*: try again when that has ended")
    with here.lease("flow"), other.lease("flow"), in_use:
        other.prune(set(), 0)
    other.prune(set(), 0)


def test_while_it_is_pruned_no_flow_starts(machine: Machine):
    here, other = machine("a"), machine("b")
    with here.lease("prune"):
        for who in ("flow", "prune"):
            with pytest.raises(InputError, match=r"is being pruned on "), other.lease(who):
                pass
    with other.lease("flow"):
        pass


def test_the_mark_of_a_killed_flow_runs_out(machine: Machine, monkeypatch: pytest.MonkeyPatch):
    here = machine("a")
    with here.lease("flow"):
        monkeypatch.setattr(shared, "LEASE", 0.0)
        here.prune(set(), 30)


def test_a_running_flow_renews_its_mark(machine: Machine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shared, "RENEWED", 0.01)
    here = machine("a")
    with here.lease("flow"):
        ((name, first),) = here._marks().items()
        until = time.monotonic() + 60
        while here._marks()[name]["time"] == first["time"]:
            assert time.monotonic() < until
    assert here._marks() == {}


def test_a_damaged_mark_stops_nobody(machine: Machine):
    here = machine("a")
    files, root = shared.file_system(here.url)
    files.pipe_file(f"{root}/{shared.MARKS}/flow-0", b"{}")
    here.prune(set(), 30)


def test_a_mark_that_is_being_written_is_none(machine: Machine):
    here = machine("a")
    files, root = shared.file_system(here.url)
    mark = json.dumps({"host": "b", "time": time.time()}).encode()
    files.pipe_file(f"{root}/{shared.MARKS}/prune-1{shared.PART}", mark)
    with here.lease("flow"):
        pass


def test_without_a_place_the_store_is_the_projects_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(environment, "BLOBS", tmp_path.resolve() / "blobs")
    for place in (None, str(tmp_path / "blobs")):
        store = open_store(place)
        assert type(store) is Store
        assert store.root == environment.BLOBS
    elsewhere = open_store(str(tmp_path / "shared"))
    assert isinstance(elsewhere, SharedStore)
    assert elsewhere.url == (tmp_path / "shared").as_uri()


@pytest.mark.parametrize(
    ("place", "words"),
    [("nosuch://bucket/x", "Protocol not known: nosuch"), ("file:///proc/nothing/here", "No such file or directory")],
)
def test_a_store_that_cannot_be_used_is_refused_in_one_line(place: str, words: str):
    line = refusal(open_store, place)
    assert line.startswith(f"run.store = {place!r}: ")
    assert words in line


def test_a_store_that_answers_no_more_ends_the_run_in_one_line(machine: Machine, monkeypatch: pytest.MonkeyPatch):
    here = machine("a")
    files, _ = shared.file_system(here.url)

    def fail(*args: Any, **options: Any) -> None:
        raise PermissionError("Access\nDenied")

    monkeypatch.setattr(files, "exists", fail)
    with pytest.raises(StoreLost) as caught:
        here.put(X)
    assert str(caught.value) == f"the store {here.url} does not answer (Access Denied); {CONTINUE}"


@pytest.mark.slow
def test_the_folder_of_a_project_does_not_import_fsspec():
    """Every worker process would pay for it."""
    with Workers(1) as other:
        for module in ("fedcore.pipeline.cache.calls", "fedcore.pipeline.cache.shared"):
            found = other.call(eval, f"__import__({module!r}) and list(__import__('sys').modules)")
    assert module in found
    assert not {"fsspec", "s3fs"} & {*found}
