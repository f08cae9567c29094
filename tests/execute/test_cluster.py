"""Steps on a Dask cluster: the calls and bits of `Workers`; refusals; what travels and what does not."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml

pytest.importorskip("distributed")

import dask
import distributed
import psutil
from distributed.comm.core import CommClosedError

from fedcore import Data, Device, InputError, Message, Splits, StepId, Training, errors, nets, train
from fedcore.execute import cluster as room
from fedcore.execute import remote
from fedcore.execute.cluster import Cluster, ClusterLost, differences
from fedcore.execute.workers import Inline, WorkerDied, WorkersClosed

SGD = Training(optimiser="sgd", lr=0.1, momentum=0.0, weight_decay=0.0, schedule="constant", batch=16, epochs=1)
NET = nets.net("mlp", shape=(6,), classes=3, widths=[8])
HERE = {"processes": False, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "silence_logs": "CRITICAL"}
NONE = Data(torch.empty(0, 6), torch.empty(0).long())


@pytest.fixture(scope="module")
def address():
    """A scheduler and two workers in this process: they start in milliseconds."""
    with distributed.LocalCluster(n_workers=2, **HERE, resources={"GPU": 1}) as served:
        yield served.scheduler_address


@pytest.fixture(scope="module")
def cluster(address):
    with Cluster(address) as engine:
        yield engine


def device(name, count, seed):
    g = torch.Generator().manual_seed(seed)
    data = Data(torch.randn(count, 6, generator=g), torch.randint(0, 3, (count,), generator=g))
    return Device(name, NET, Splits(data, replace(data, x=data.x + 1), NONE))


def refuse(value):
    raise InputError(f"{value}: no")


@pytest.mark.parametrize("training", [SGD, replace(SGD, optimiser="adam", lr=0.001)], ids=["sgd", "adam"])
@pytest.mark.slow
def test_the_same_bits_as_in_this_process(cluster, training):
    fed = {name: device(name, 20 + 16 * i, i) for i, name in enumerate("abc")}
    message = Message(nets.init(NET, torch.Generator().manual_seed(1)))
    calls = {name: ({}, message, fed[name], StepId(0, 0, 0, name)) for name in fed}
    step = partial(train, training=training)
    here, there = Inline().map(step, calls), cluster.map(step, calls)
    assert list(there) == list(fed)
    for name in fed:
        for update in (there[name][1], cluster.call(step, *calls[name])[1]):
            assert (update.size, update.score) == (here[name][1].size, here[name][1].score)
            torch.testing.assert_close(update.params, here[name][1].params, rtol=0, atol=0)


@pytest.mark.slow
def test_functions_of_this_program_travel_by_value(cluster):
    offset = 3
    assert cluster.map(lambda x: x + offset, {"a": (1,), "b": (2,)}) == {"a": 4, "b": 5}
    assert cluster(lambda x: x + offset, 1) == 4
    assert cluster.map(abs, {}) == {}


@pytest.mark.slow
def test_large_tensors_do_not_go_through_the_scheduler(cluster, monkeypatch):
    """Only the futures of the packets that this process has put at a worker."""
    sent, submit = [], distributed.Client.submit
    monkeypatch.setattr(
        distributed.Client, "submit", lambda *args, **options: sent.append(args) or submit(*args, **options)
    )
    x = torch.arange(20_000.0)
    assert torch.equal(cluster.call(torch.neg, x), -x)
    found = cluster.map(torch.neg, {i: (x + i,) for i in range(4)})
    assert all(torch.equal(found[i], -(x + i)) for i in range(4))
    assert [type(args[3]) for args in sent] == [distributed.Future] * 3  # a call, and a task for each worker
    assert isinstance(cluster.call(abs, -1), int)
    assert isinstance(sent[-1][3], tuple)


def test_a_step_that_is_asked_for_again_is_computed_again(cluster):
    """Its first result, which the scheduler may still hold, has turned out to be of no use."""
    seen = []
    for _ in range(2):
        cluster.call(lambda: seen.append(1), name="train-00ff")
    assert seen == []  # by value: another list
    assert [cluster._next("train-00ff") for _ in range(2)] == ["train-00ff-2", "train-00ff-3"]


@pytest.mark.parametrize("losses", [1, 2, 3])
@pytest.mark.slow
def test_a_task_whose_worker_died_with_its_packet_is_sent_again(cluster, monkeypatch, losses):
    """Dask cancels a task that depends on what only the dead worker had."""
    lost, wait = [], cluster._wait

    def waited(future):
        if len(lost) < losses:
            lost.append(future.key)
            future.cancel(force=True)
        wait(future)

    monkeypatch.setattr(cluster, "_wait", waited)
    x = torch.arange(20_000.0)
    if losses < room.DEATHS:
        assert torch.equal(cluster.map(torch.neg, {0: (x,)})[0], -x)
    else:
        with pytest.raises(WorkerDied, match=r"a worker of the cluster ended while it ran .*neg") as died:
            cluster.call(torch.neg, x)
        assert died.value.times == room.DEATHS
    assert len({*lost}) == losses


def test_a_scheduler_that_goes_before_a_result_is_fetched_is_named(cluster, monkeypatch):
    """Dask asks it which worker has the result."""

    def gone(future):
        raise CommClosedError("in <TLS (closed) ConnectionPool.who_has>: Stream is closed")

    monkeypatch.setattr(distributed.Future, "result", gone)
    with pytest.raises(ClusterLost, match=r"the scheduler at \S+ has gone"):
        cluster.call(abs, -1)


def test_an_error_of_a_step_is_raised_as_it_is(cluster):
    for ask in (partial(cluster.call, refuse, 3), partial(cluster.map, refuse, {"a": (3,), "b": (4,)})):
        with pytest.raises(InputError, match=r"^3: no$"):
            ask()


def test_a_step_on_an_accelerator_asks_for_a_worker_that_has_one(cluster, monkeypatch):
    asked, submit = [], distributed.Client.submit

    def submitted(*args, resources, **options):
        asked.append(resources)
        return submit(*args, resources=resources, **options)

    monkeypatch.setattr(distributed.Client, "submit", submitted)
    cluster.call(abs, 1, accelerator="cuda")
    cluster.map(abs, {0: (1,)}, accelerator="cuda")
    cluster.call(abs, 1)
    assert asked == [{"GPU": 1}, {"GPU": 1}, None]
    assert [cluster.find_accelerator(wanted) for wanted in ("auto", "none")] == ["cuda", None]


@pytest.mark.slow
def test_after_the_end_no_step_runs(address):
    with Cluster(address) as engine:
        assert engine.call(abs, -2) == 2
    with pytest.raises(WorkersClosed):
        engine.call(abs, -2)


@pytest.mark.slow
def test_a_cluster_says_where_it_is(address):
    lines = []
    with Cluster(address, say=lines.append):
        pass
    assert len(lines) == 1
    assert lines[0].startswith("dask: 2 workers")


def refused(*args, **options):
    with pytest.raises(InputError) as caught, Cluster(*args, **options):
        pass
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_worker_that_fails_the_check_is_refused_by_name(address):
    line = refused(address, check=partial(str, "cannot read the store /blobs"))
    assert line.startswith(f"cluster {address}: worker {address[:9]}")
    assert line.count("cannot read the store /blobs") == 2


def test_a_worker_of_another_source_or_version_is_refused_by_name(address, monkeypatch):
    found = remote.survey(["fedcore"], None)
    monkeypatch.setattr(room.remote, "survey", lambda *args: found | {"source of fedcore": "00ff", "torch": "1.0"})
    monkeypatch.setattr(room, "by_value", lambda name: lambda *args: found)
    line = refused(address)
    assert line.count("has another source of fedcore") == 2
    assert line.count(f"has torch {torch.__version__.partition('+')[0]}") == 2
    assert ", not 1.0" in line


def test_a_worker_that_joins_late_with_other_source_is_named(cluster, monkeypatch):
    monkeypatch.setitem(cluster._own, "fedcore", "00ff")
    with pytest.raises(remote.WrongWorker, match="has another fedcore than this run"):
        cluster.call(abs, 1)


@pytest.mark.slow
def test_workers_of_several_threads_are_refused():
    with distributed.LocalCluster(n_workers=1, **{**HERE, "threads_per_worker": 2}) as served:
        assert "has 2 threads; start it with --nthreads 1" in refused(served.scheduler_address)


@pytest.mark.slow
def test_a_scheduler_that_is_not_there_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(room, "PATIENCE", 0.2)
    assert refused("tcp://127.0.0.1:9").startswith("cluster tcp://127.0.0.1:9: no scheduler with workers answers (")


@pytest.mark.slow
def test_a_scheduler_without_workers_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(room, "PATIENCE", 0.2)
    with distributed.LocalCluster(n_workers=0, **HERE) as served:
        assert "worker" in refused(served.scheduler_address)


def test_without_certificates_tls_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(room, "PATIENCE", 0.2)
    assert "answers (TLS" in refused("tls://127.0.0.1:9")


def test_without_dask_a_cluster_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(errors, "find_spec", lambda name: None)
    assert refused() == (
        "run.engine = 'dask': distributed is not installed; "
        "in a clone of fedcore: pip install '.[cluster]' --constraint constraints.txt"
    )


def test_modules_reach_every_worker_in_place_of_older_ones(tmp_path, monkeypatch):
    """A file and a package; a worker that has loaded another version forgets it."""
    (tmp_path / "flat.py").write_text("WORD = 'new'\n")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "__init__.py").write_text("")
    (tmp_path / "deep" / "inner.py").write_text("from flat import WORD\n")
    monkeypatch.syspath_prepend(tmp_path)
    archived = remote.archive(["flat", "deep"])
    assert archived == remote.archive(["deep", "flat"])
    for path in (tmp_path / "flat.py", tmp_path / "deep" / "inner.py"):
        path.write_text("WORD = 'old'\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("flat", "deep", "deep.inner"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import deep.inner

    assert deep.inner.WORD == "old"
    remote.install(archived, ["flat", "deep"], tmp_path)
    from deep.inner import WORD

    assert WORD == "new"
    for name in ("flat", "deep", "deep.inner"):
        del sys.modules[name]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Dask's settings of a certificate for all, and of one by another authority."""
    made = []
    for name in ("ours", "theirs"):
        folder, given = tmp_path_factory.mktemp(name), distributed.Security.temporary()
        files = {"ca": given.tls_ca_file, "cert": given.tls_client_cert, "key": given.tls_client_key}
        for part, content in files.items():
            (folder / f"{part}.pem").write_text(content)
        found = {"distributed.comm.tls.ca-file": str(folder / "ca.pem"), "distributed.comm.require-encryption": True}
        for role in ("scheduler", "worker", "client"):
            for part in ("cert", "key"):
                found[f"distributed.comm.tls.{role}.{part}"] = str(folder / f"{part}.pem")
        made.append(found)
    return made


@pytest.fixture(scope="module")
def served(tmp_path_factory, certificates):
    """A scheduler and a worker with its nanny, as a user starts them, with TLS."""
    folder = tmp_path_factory.mktemp("dask")
    (folder / "dask.yaml").write_text(
        yaml.safe_dump(nested(certificates[0] | {"distributed.scheduler.allowed-failures": 1}))
    )
    dask_settings = {**os.environ, "DASK_CONFIG": str(folder), "PYTHONPATH": str(Path(__file__).parents[2])}
    file = ["--scheduler-file", str(folder / "scheduler.json")]
    commands = [
        ["scheduler", "--protocol", "tls", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", *file],
        ["worker", "--nthreads", "1", "--no-dashboard", *file],
    ]
    with open(folder / "log", "w") as log:
        started = [
            subprocess.Popen([sys.executable, "-m", "dask", *words], env=dask_settings, stdout=log, stderr=log)
            for words in commands
        ]
        try:
            until = time.monotonic() + 120
            while not (said := written(folder / "scheduler.json")):
                assert time.monotonic() < until, (folder / "log").read_text()
                time.sleep(0.05)
            yield said["address"]
        finally:
            for process in reversed(started):
                process.terminate()
            for process in started:
                process.wait(60)


def written(path):
    """Return what a JSON file holds; nothing while it is missing or being written."""
    with suppress(FileNotFoundError, json.JSONDecodeError):
        return json.loads(path.read_text())
    return {}


def nested(settings):
    """Return Dask's settings as its files have them."""
    found = {}
    for key, value in settings.items():
        *path, last = key.split(".")
        place = found
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return found


def die(path, times):
    """End the worker as often as that; return how often it was called."""
    with open(path, "a") as file:
        file.write("x")
    if os.path.getsize(path) <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return os.path.getsize(path)


@pytest.mark.slow
def test_processes_with_tls(served, certificates, tmp_path):
    """Separate processes, as on other machines: the scheduler loads neither fedcore nor PyTorch; a step that ends two
    workers is named; another authority's certificate is refused.
    """
    with dask.config.set(certificates[1]):
        assert "certificate verify failed" in refused(served).lower()
    with dask.config.set(certificates[0]), Cluster(served, own=["fedcore"], modules=[__name__]) as engine:
        assert torch.equal(engine.call(torch.neg, torch.ones(3)), -torch.ones(3))
        assert engine._client.run_on_scheduler(lambda: sorted({"torch", "fedcore"} & {*sys.modules})) == []
        with pytest.raises(WorkerDied, match=r"a worker of the cluster ended while it ran .*die") as died:
            engine.call(die, str(tmp_path / "always"), 99)
        assert died.value.times == os.path.getsize(tmp_path / "always") == 2  # one failure is allowed
        assert engine.call(abs, -1) == 1


@pytest.mark.slow
def test_workers_of_its_own():
    """Another user of the machine cannot speak to them; so many deaths cost a step; they end with the engine."""
    lines = []
    with Cluster(count=1, modules=[__name__], say=lines.append) as engine:
        assert lines == []  # they start with the first step
        assert engine.call(abs, -1) == 1
        assert lines[0].startswith("dask: 1 worker, http://127.0.0.1:")
        assert "answers (TLS" in refused(engine._ours.address)
        assert engine._ours._cluster.scheduler.allowed_failures == room.DEATHS - 1
        left = psutil.Process(engine.call(os.getpid))
    left.wait(60)


# Workers that do not fit are named in words; tests/execute/test_cluster.py has the rest.


def test_differences_are_said_in_words():
    expected = {"Python": "3.11", "source of tasks": "00ff", "scipy": "1.14"}
    assert [*differences({**expected, "check": ""}, {**expected, "check": ""})] == []
    assert [*differences({"Python": "3.12", "source of tasks": ""}, expected)] == [
        "has Python 3.12, not 3.11", "has another source of tasks", "has scipy (none), not 1.14",
    ]  # fmt: skip
    assert [*differences(ModuleNotFoundError("No module named 'fedcore'"), expected)] == [
        "cannot run fedcore (No module named 'fedcore')"
    ]
