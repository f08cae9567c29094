"""A trial on one machine: a process for each device, on loopback, and the bits of a simulation to compare with."""

import os
import runpy
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

from fedcore.config.methods import MethodConfig
from fedcore.core.messages import received_model
from fedcore.core.rounds import RoundResult, run
from fedcore.errors import InputError
from fedcore.execute.template import fork_worker
from fedcore.execute.workers import Inline
from fedcore.field.cells import Cells
from fedcore.field.examples import write_examples
from fedcore.field.kits import SERVER, make_kits, read_kit
from fedcore.field.plan import plan_of
from fedcore.field.server import Field, federation_of, run_in_field
from fedcore.field.wire import digest
from fedcore.types.federation import Federation, is_handle
from fedcore.types.method import Method

STARTING = 300.0
"""Seconds in which all devices' processes must have connected: on a busy machine twenty take minutes to start."""


class Process:
    """A device's process, which ends when this one does: a fork of this process's template, if it has one.

    log: where it writes what it says.
    """

    def __init__(self, kit: Path, data: Path, memory: Path, allowed: Sequence[str], log: Path) -> None:
        command = ["device", "start", str(kit), "--data", str(data), "--memory", str(memory), "--with-parent"]
        command += [word for name in allowed for word in ("--allow", name)]
        self._connection, theirs = socket.socketpair()
        with theirs:
            forked = fork_worker(theirs, 0, (__name__, "run_command", [str(log), *command]))
        self._running = forked or _start_python(command, log)

    def ended(self) -> bool:
        return self._running.poll() is not None

    def stop(self) -> None:
        """Kill it, whatever it does."""
        self._running.kill()
        self._running.wait()
        self._connection.close()
        if isinstance(self._running, subprocess.Popen) and self._running.stdin is not None:
            self._running.stdin.close()


def run_command(descriptor: int, log: str, *command: str) -> None:
    """Run `fedcore command` in this process, a fork, with a descriptor as its input and a file for its output."""
    with Path(log).open("ab") as out:
        for number, source in enumerate((descriptor, out.fileno(), out.fileno())):
            os.dup2(source, number)
    os.close(descriptor)
    sys.stdin, sys.argv = os.fdopen(0), ["fedcore", *command]
    with suppress(SystemExit):  # it has said why
        runpy.run_module("fedcore", run_name="__main__")


def _start_python(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "fedcore", *command], stdin=subprocess.PIPE, stdout=out, stderr=out, process_group=0
        )


class Site:
    """A server in this process and a process for each device. folder: of their kits, memories and logs."""

    def __init__(self, folder: Path, kits: Mapping[str, Path], allowed: Sequence[str]) -> None:
        self.folder, self.kits, self.allowed = folder, kits, allowed
        self.link = Cells(read_kit(kits[SERVER]))
        self._running: dict[str, Process] = {}

    def start(self, name: str, kit: Path | None = None) -> None:
        """Start a device's process, from its own kit unless another is given."""
        own = self.kits[name]
        self._running[name] = Process(
            kit or own, own / "examples", self.folder / "memory" / own.name, self.allowed, self.log(name)
        )

    def wait_for_all(self, seconds: float) -> list[str]:
        """Wait until all are connected; return those that are not after these seconds, or once one has ended."""
        end = time.monotonic() + seconds
        while (missing := self.link.wait_for(list(self._running), 0.0)) and time.monotonic() < end:
            if ended := [name for name, process in self._running.items() if process.ended()]:
                return ended
            time.sleep(0.2)
        return missing

    def stop(self, name: str) -> None:
        """Kill a device's process, whatever it does."""
        self._running.pop(name).stop()

    def log(self, name: str) -> Path:
        """Return the file of what a device says."""
        return self.folder / f"{self.kits[name].name}.log"

    def close(self) -> None:
        """Kill all processes and close the link."""
        for name in list(self._running):
            self.stop(name)
        self.link.close()


@contextmanager
def processes(folder: Path, fed: Federation, allowed: Sequence[str]) -> Iterator[Site]:
    """Start a server here and a process for each device, which gets a kit and the path of its own examples.

    Raises InputError if one does not connect.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    site = Site(folder, make_kits(folder / "kits", list(fed.devices), address), allowed)
    try:
        for name, device in fed.devices.items():
            write_examples(site.kits[name] / "examples", device.data)
            site.start(name)
        if missing := site.wait_for_all(STARTING):
            last = " ".join(site.log(missing[0]).read_text("utf-8")[-300:].split())
            raise InputError(f"{', '.join(missing)}: did not connect; {missing[0]} says: {last}")
        yield site
    finally:
        site.close()


def simulate(config: MethodConfig, fed: Federation, seed: int) -> tuple[Method, list[RoundResult]]:
    """Return the method and its turns in a simulation."""
    sizes = {name: len(device.data.train) for name, device in fed.devices.items()}
    method = config.build(fed.public.nets, sizes, fed.task)
    return method, list(run(method, fed, seed, Inline()))


def try_method(
    config: MethodConfig, fed: Federation, seed: int, folder: Path, notify: Callable[[str], None], seconds: float = 60.0
) -> list[str]:
    """Run a method on real processes and in a simulation; return what differs between them.

    folder: for kits, examples and memories; it must be empty. seconds: that devices have for a step.
    """
    shape = tuple(fed.test.x.shape[1:])
    plan = plan_of(config, fed.public.nets, seed, token_hex(8), shape, fed.classes, task=fed.task)
    method, here = simulate(config, fed, seed)
    start = time.monotonic()
    with processes(folder, fed, [plan.method]) as site:
        notify(f"{len(fed.devices) + 1} processes, connected in {time.monotonic() - start:.1f} s")
        field = Field(site.link, plan, federation_of(fed.public), seconds, notify)
        field.join()
        start = time.monotonic()
        there = []
        for turn in run_in_field(field, seed):
            there.append(turn)
            notify(f"stage {turn.state.stage + 1}, round {turn.state.round}: {time.monotonic() - start:.1f} s")
    return differences(there, here, method)


def differences(there: Sequence[RoundResult], here: Sequence[RoundResult], method: Method) -> list[str]:
    """Return what differs, to the bit, between turns in the field and in a simulation, one line each.

    Scores on the shared test set are compared where the model needs no memory: the field has no others.
    """
    if len(there) != len(here):
        return [f"{len(there)} turns in the field, {len(here)} in the simulation"]
    differing = []
    for field_turn, simulated in zip(there, here, strict=True):
        where = f"stage {simulated.state.stage + 1}, round {simulated.state.round}"
        personal = set() if method.deploy is received_model else {*simulated.state.memories}
        ours, theirs = (_bits(turn, personal) for turn in (field_turn, simulated))
        differing += [f"{where}: {part}" for part in ours if ours[part] != theirs[part]]
    return differing


def _bits(turn: RoundResult, personal: Collection[str]) -> dict[str, Any]:
    """Return what tells the bits of a turn, part by part; scores as text, in which nan equals nan."""
    state: Any = turn.state
    return {
        "the server's memory": digest(state.server),
        "messages": {name: (digest(sent.params), digest(sent.extra)) for name, sent in state.messages.items()},
        "memories": {name: of.digest if is_handle(of) else digest(of) for name, of in state.memories.items()},
        "bytes up": turn.up,
        "bytes down": turn.down,
        "scores": {
            name: {part: repr(of) for part, of in parts.items() if part != "shared" or name not in personal}
            for name, parts in (turn.scores or {}).items()
        },
    }
