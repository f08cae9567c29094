"""A server that stays: it holds the devices' connections, and lends them to one command after another on its machine.

It runs no method. `fedcore field run` and `study` send their calls through it, so that they may end, be stopped and
start again while devices stay connected. The way to it is a socket in a folder of its owner; what goes over it are
plain bytes.
"""

import json
import os
import shutil
import tempfile
import time
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from secrets import token_bytes
from threading import Event, Thread
from typing import Protocol

from fedcore.errors import InputError
from fedcore.field.server import Link
from fedcore.field.wire import pack, unpack, write_file

PLACE = "station.json"
"""The file in the server's kit that says where the socket is."""


class Station(Link, Protocol):
    """A link that knows who is connected."""

    def wait_for(self, names: list[str], seconds: float) -> list[str]:
        """Wait until these devices are connected; return those that are not after these seconds."""

    def close(self) -> None:
        """Close all connections."""


def serve(kit: Path, link: Station) -> None:
    """Lend a link until somebody asks to stop, or this process is interrupted."""
    folder, key, stop = Path(tempfile.mkdtemp(prefix="fedcore-")), token_bytes(32), Event()
    try:
        with Listener(str(folder / "s"), "AF_UNIX", authkey=key) as listener:
            address = {"at": str(folder / "s"), "key": key.hex(), "pid": os.getpid()}
            write_file(kit / PLACE, json.dumps(address).encode())
            while not stop.is_set():
                with suppress(AuthenticationError, OSError, EOFError):
                    Thread(target=_lend, args=(listener.accept(), link, stop), daemon=True).start()
    finally:
        (kit / PLACE).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)


def _lend(connection: Connection, link: Station, stop: Event) -> None:
    """Answer one request."""
    with connection, suppress(OSError, EOFError, InputError):
        request, _ = unpack(connection.recv_bytes(), "request")
        match request.get("ask"):
            case "send":
                answer = link.send(str(request["name"]), connection.recv_bytes(), float(request["seconds"]))
                connection.send_bytes(b"\0" if answer is None else b"\1" + answer)
            case "wait":
                missing = link.wait_for([str(name) for name in request["names"]], float(request["seconds"]))
                connection.send_bytes(pack({"missing": missing}))
            case "stop":
                stop.set()
                connection.send_bytes(b"\1")


class Lent:
    """The link of a server that stays, used from another process. place, key: what the server wrote into its kit."""

    def __init__(self, path: str, key: bytes, pid: int) -> None:
        self.path, self.key, self.pid = path, key, pid

    def send(self, name: str, call: bytes, seconds: float) -> bytes | None:
        """Return a device's answer to a call, or None if none comes in these seconds, or the server is gone."""
        with suppress(OSError, EOFError), self._open() as connection:
            connection.send_bytes(pack({"ask": "send", "name": name, "seconds": seconds}))
            connection.send_bytes(call)
            if connection.poll(seconds + 5.0):
                answer = connection.recv_bytes()
                return answer[1:] if answer[:1] == b"\1" else None
        return None

    def wait_for(self, names: list[str], seconds: float) -> list[str]:
        """Wait until these devices are connected; return those that are not after these seconds."""
        with self._open() as connection:
            connection.send_bytes(pack({"ask": "wait", "names": names, "seconds": seconds}))
            return [str(name) for name in unpack(connection.recv_bytes(), "server")[0]["missing"]]

    def stop(self) -> None:
        """End the server, which lets its devices go."""
        with suppress(OSError, EOFError), self._open() as connection:
            connection.send_bytes(pack({"ask": "stop"}))
            connection.recv_bytes()
        with suppress(OSError, EOFError):  # wakes it up
            self._open().close()

    def close(self) -> None:
        """Do nothing: the server keeps the connections."""

    def _open(self) -> Connection:
        return Client(self.path, "AF_UNIX", authkey=self.key)


def find(kit: Path) -> Lent | None:
    """Return the link of the server that stays for a kit; None if there is none."""
    try:
        address = json.loads((kit / PLACE).read_text("utf-8"))
        lent = Lent(str(address["at"]), bytes.fromhex(address["key"]), int(address["pid"]))
        lent.wait_for([], 0.0)
    except (OSError, EOFError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return lent


def wait_until_gone(kit: Path, seconds: float) -> bool:
    """Tell whether a kit's server has ended within these seconds."""
    end = time.monotonic() + seconds
    while find(kit) is not None or (kit / PLACE).exists():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
