"""Worker processes where the system has less than Linux: as on macOS, and a refusal on Windows."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fedcore.errors import InputError
from fedcore.execute.accelerator import cores
from fedcore.execute.workers import Workers

MISSING = """
import os, signal
for module, names in ((os, ("sched_getaffinity", "memfd_create", "pidfd_open")), (signal, ("pidfd_send_signal",))):
    for name in names:
        delattr(module, name)
"""
"""What only Linux has."""

PROGRAM = """
import os, sys, torch
from fedcore.execute.template import open_template
from fedcore.execute.workers import Workers, serve
assert not hasattr(os, "memfd_create")
sys.platform = "darwin"
open_template(serve)
with Workers() as pool:
    found = pool.map(torch.cumsum, {seed: (torch.full((50_000,), 0.1), 0) for seed in range(3)})
    missing = pool.call(eval, "hasattr(__import__('os'), 'memfd_create')")
here = torch.full((50_000,), 0.1).cumsum(0)
print(pool.count, all(torch.equal(one, here) for one in found.values()), missing)
"""


@pytest.mark.slow
def test_workers_need_nothing_that_only_linux_has(tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text(MISSING)
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == (f"{os.cpu_count()} True False\n", "")


SILENT = """
import socket, sys, threading, time
from fedcore.execute import workers

here, there = socket.socketpair()
threading.Thread(target=workers._leave_with, args=(here,), daemon=True).start()
there.send(b"order")
time.sleep(5 * workers.GLANCE)
print(here.recv(5), flush=True)
there.close()
time.sleep(60)
sys.exit("still there")
"""
"""A worker that looks again and again at what has come, as no system need tell it of a hang-up."""


@pytest.mark.slow
def test_a_worker_leaves_where_nobody_is_told_of_a_hang_up():
    """It outlives what comes, which it leaves to be read, and not the other end."""
    done = subprocess.run([sys.executable, "-c", SILENT], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout, done.stderr) == (0, "b'order'\n", "")


def test_where_the_system_does_not_tell_all_cores_count(monkeypatch: pytest.MonkeyPatch):
    assert 1 <= cores() <= (os.cpu_count() or 1)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert cores() == os.cpu_count()


def test_windows_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(socket, "send_fds")
    with pytest.raises(InputError, match="on Windows use WSL"):
        Workers(1)
