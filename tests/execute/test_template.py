"""Workers forked from a template, in programs of their own: this one has threads."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from fedcore.execute import template
from fedcore.execute.workers import serve

pytestmark = pytest.mark.slow

PROGRAM = """
import json, os, signal, sys

import torch

from fedcore.execute import template
from fedcore.execute.workers import Workers, WorkerDied, serve

signal.signal(signal.SIGTERM, lambda number, frame: print("handled") or sys.exit(3))
template.open_template(serve)


def train(seed):
    torch.manual_seed(seed)
    layer = torch.nn.Linear(64, 64)
    layer(torch.randn(256, 64)).square().mean().backward()
    return layer.weight.grad


def name(_):
    return sys.argv[-1], os.getppid(), os.getpid(), os.getpriority(os.PRIO_PROCESS, 0), torch.get_num_threads()


def die(code):
    os.kill(os.getpid(), -code) if code < 0 else os._exit(code)


def death(pool, code):
    try:
        pool.call(die, code)
    except WorkerDied as error:
        return str(error)


seen = {}
with Workers(2) as pool, Workers(1, nice=3) as nice:
    seen["forked"] = pool.call(name, 0)
    seen["nice"] = nice.call(name, 0)
    ours = pool.call(train, 1)
    seen["deaths"] = [death(pool, code) for code in (7, -9, -15)]
    seen["replaced"] = pool.call(name, 0)
    os.kill(seen["forked"][1], signal.SIGKILL)  # the template
    seen["orphan"] = pool.call(name, 0)[2] > 0
    seen["deaths"].append(death(pool, 3))
    seen["started"] = pool.call(name, 0)
    seen["equal"] = torch.equal(ours, pool.call(train, 1))
print(json.dumps(seen | {"pid": os.getpid()}), flush=True)
"""


@pytest.fixture(scope="module")
def seen():
    done = subprocess.run([sys.executable, "-c", PROGRAM, "the program"], capture_output=True, text=True, timeout=1200)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_a_worker_is_a_fork_of_the_template_with_one_thread(seen):
    command, parent, pid, _, threads = seen["forked"]
    assert command == "the program"  # a new process would have other arguments
    assert len({parent, pid, seen["pid"]}) == 3
    assert threads == 1


def test_all_pools_of_a_program_share_its_template(seen):
    _, parent, pid, nice, _ = seen["nice"]
    assert parent == seen["forked"][1]
    assert pid != seen["forked"][2]
    assert nice == min(19, seen["forked"][3] + 3)


def test_a_forked_worker_that_ends_is_named_and_replaced(seen):
    assert "left with exit code 7" in seen["deaths"][0]
    assert "was ended by SIGKILL" in seen["deaths"][1]
    assert "was ended by SIGTERM" in seen["deaths"][2]  # without the handler of the program
    assert seen["replaced"][1] == seen["forked"][1]


def test_without_the_template_workers_are_new_processes(seen):
    assert seen["orphan"]  # a worker outlives the template
    assert "left with exit code" in seen["deaths"][3]
    command, parent, *_ = seen["started"]
    assert command != "the program"
    assert parent == seen["pid"]


def test_a_forked_worker_computes_the_bits_of_a_new_process(seen):
    assert seen["equal"]


def test_a_process_with_threads_opens_no_template(monkeypatch):
    monkeypatch.setattr(template, "_open", None)
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        template.open_template(serve)
    finally:
        end.set()
        thread.join()
    assert template._open is None


def test_without_descriptors_of_processes_no_template_is_opened(monkeypatch):
    """As in a container that refuses them: a fork that nobody can hold would run beside the process in its place."""

    def refuse(pid):
        raise PermissionError

    monkeypatch.setattr(template, "_open", None)
    monkeypatch.setattr(template, "_one_thread", lambda: True)
    monkeypatch.setattr(template, "Template", lambda serve: serve)
    template.open_template(serve)
    assert template._open is serve
    monkeypatch.setattr(template, "_open", None)
    monkeypatch.setattr(template.os, "pidfd_open", refuse)
    template.open_template(serve)
    assert template._open is None


def test_a_process_gives_its_descriptor_back_where_python_ends(monkeypatch):
    forked = object.__new__(template.Forked)
    descriptor, other = os.pipe()
    forked._descriptor = descriptor
    monkeypatch.setattr(template, "os", None)  # as Python does with the names of modules
    del forked
    os.close(other)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


SLEEPER = """
import os, threading, time
from fedcore.execute import template
from fedcore.execute.workers import Workers, serve
template.open_template(serve)
pool = Workers(1)
pid = pool.call(os.getpid)
print(pid, pool.call(os.getppid), flush=True)
pool.call(time.sleep, 600)
"""


def test_killing_a_program_ends_its_template_and_its_workers():
    with subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE, text=True) as program:
        left = [int(word) for word in program.stdout.readline().split()]
        assert len(left) == 2
        program.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 1200
    while any(alive(pid) for pid in left):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(pid):
    """Whether a process runs; one that has ended and is not collected yet does not."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
