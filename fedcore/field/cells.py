"""The link through NVIDIA FLARE 2.9: a cell for the server and one for each device, which connects to it.

Of NVIDIA FLARE it uses the messages between cells (CellNet), with TLS and a certificate on both sides, and its check
that a cell has the name of its certificate. No job is ever submitted, so that there is nothing by which code could come
to a device: a cell answers calls of one channel, as bytes. Besides, a cell here drops every message that is encoded by
FLARE's own serialisation, that is for another cell, or that bears the name of another sender than its connection.
"""

import logging
import socket
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, ClassVar

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import Encoding, MessageHeaderKey, MessagePropKey, ReturnCode
from nvflare.fuel.f3.drivers import tcp_driver
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.drivers.socket_conn import ConnectionHandler
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.sfm.constants import Types

from fedcore.errors import InputError
from fedcore.field.device import FieldDevice
from fedcore.field.kits import SERVER, Kit, check_kit, link_name, revoked

CHANNEL, TOPIC = "fedcore", "call"

GLANCE = 0.1
"""Seconds between two looks at whether a device that is asked is still connected."""

HANDSHAKE = 20.0
"""Seconds in which a caller must have shown its certificate."""

ALIVE = 5.0
"""Seconds in which a device's connection must answer, or another one takes its place: it has started again."""

log = logging.getLogger(__name__)
logging.getLogger("nvflare").setLevel(logging.CRITICAL)  # a device that is away is said by its name, by ours


class _Handler(ConnectionHandler):  # type: ignore[misc]
    """Shakes hands in the connection's own thread: a caller who stays silent keeps nobody else from connecting."""

    def handle(self) -> None:
        try:
            self.request.settimeout(HANDSHAKE)
            self.request.do_handshake()
            self.request.settimeout(None)
        except OSError as error:  # no certificate, another authority, or silence
            log.info("a caller was refused: %s", error)
            return
        name = dict(part for parts in self.request.getpeercert()["subject"] for part in parts).get("commonName")
        if name in self.server.refused():
            log.warning("%s was refused: its certificate is revoked", name)
            return
        if any(map(_is_alive, [*(self.server.driver.conn_monitor.get_connections(name) or ())])):
            at = self.client_address[0]
            log.warning("%s was refused at %s: another process with its kit is connected", name, at)
            return
        super().handle()


def _is_alive(connection: Any) -> bool:
    """Tell whether the other end of a connection answers."""
    before, end = connection.last_activity, time.monotonic() + ALIVE
    with suppress(Exception):  # FLARE's own, of one that is closed
        connection.send_heartbeat(Types.PING)
    while connection.last_activity == before and time.monotonic() < end:
        time.sleep(GLANCE)
    return bool(connection.last_activity != before)


class _Listener(tcp_driver.TcpStreamServer):  # type: ignore[misc]
    """FLARE's listener, which would shake hands with one caller after the other.

    refused: returns the names of devices that get no connection.
    """

    refused: ClassVar[Callable[[], Collection[str]]] = staticmethod(frozenset)

    def __init__(self, driver: Any, connector: Any) -> None:
        super().__init__(driver, connector)
        self.RequestHandlerClass = _Handler
        self.socket.do_handshake_on_connect = False


tcp_driver.TcpStreamServer = _Listener


class Cells:
    """The server's end: it listens at its kit's address for devices, which are asked by name. One in a process."""

    def __init__(self, kit: Kit) -> None:
        _require_free(kit.address)
        self._refused = partial(revoked, kit.folder)
        _Listener.refused = staticmethod(self._refused)
        self._cell = _cell(kit, self._refused)
        self._cell.start()

    def send(self, name: str, call: bytes, seconds: float) -> bytes | None:
        """Return a device's answer to a call, or None if none comes in these seconds or the connection is lost."""
        if not self._is_here(name):
            return None
        answers: SimpleQueue[bytes | None] = SimpleQueue()
        Thread(target=self._ask, args=(link_name(name), call, seconds, answers.put), daemon=True).start()
        while True:
            try:
                return answers.get(timeout=GLANCE)
            except Empty:
                if not self._is_here(name):
                    return None

    def _is_here(self, name: str) -> bool:
        return link_name(name) not in self._refused() and bool(self._cell.is_cell_connected(link_name(name)))

    def _ask(self, target: str, call: bytes, seconds: float, done: Callable[[bytes | None], None]) -> None:
        request = Message({}, call)
        reply = self._cell.send_request(CHANNEL, TOPIC, target, request, timeout=seconds, optional=True)
        good = reply.get_header(MessageHeaderKey.RETURN_CODE, ReturnCode.OK) == ReturnCode.OK
        done(bytes(reply.payload) if good and reply.payload is not None else None)

    def wait_for(self, names: list[str], seconds: float) -> list[str]:
        """Wait until these devices are connected; return those that are not after these seconds."""
        end = time.monotonic() + seconds
        while missing := [name for name in names if not self._is_here(name)]:
            if time.monotonic() > end:
                return missing
            time.sleep(0.05)
        return []

    def close(self) -> None:
        """Close all connections."""
        _stop(self._cell)


class DeviceCell:
    """A device's end: it connects to the server, again if the connection is lost, and answers its calls."""

    def __init__(self, kit: Kit, device: FieldDevice) -> None:
        self._device = device
        self._cell = _cell(kit)
        self._cell.register_request_cb(CHANNEL, TOPIC, self._answer)
        self._cell.start()

    def _answer(self, request: Any) -> Any:
        if request.get_header(MessageHeaderKey.ORIGIN) != SERVER:
            return None
        return Message({}, self._device.answer(bytes(request.payload or b"")))

    def close(self) -> None:
        """Close the connection."""
        _stop(self._cell)


def _require_free(address: str) -> None:
    """Refuse an address at which this machine cannot listen, about which FLARE is silent."""
    host, _, port = address.partition(":")
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            free.bind((host, int(port)))
        except (OSError, OverflowError) as error:
            raise InputError(
                f"address = {address}: this machine cannot listen there ({error}); field start --listen names another"
            ) from None


def _cell(kit: Kit, refused: Callable[[], Collection[str]] = frozenset) -> Any:
    check_kit(kit)
    side = "SERVER" if kit.name == SERVER else "CLIENT"
    files = {"CA_CERT": "authority.crt", f"{side}_CERT": "own.crt", f"{side}_KEY": "own.key"}
    credentials = {DriverParams[part].value: str(kit.folder / file) for part, file in files.items()}
    cell = CoreCell(kit.link_name, f"tcp://{kit.address}", secure=True, credentials=credentials)
    cell.add_incoming_filter("*", "*", _drop, kit.link_name, refused)
    return cell


def _stop(cell: Any) -> None:
    """Stop a cell, and close its listener, which FLARE leaves open."""
    listeners = [getattr(link.driver, "server", None) for link in cell.communicator.conn_manager.connectors.values()]
    cell.stop()
    for listener in listeners:
        if listener is not None:
            listener.server_close()


def _drop(message: Any, own: str, refused: Callable[[], Collection[str]] = frozenset) -> Any:
    """Return a message, which ends the handling of this one, unless it is one that the link sends."""
    sender = message.get_prop(MessagePropKey.ENDPOINT)
    wanted = (
        message.get_header(MessageHeaderKey.DESTINATION) == own
        and sender is not None
        and message.get_header(MessageHeaderKey.ORIGIN) == sender.name
        and sender.name not in refused()
        and message.get_header(MessageHeaderKey.PAYLOAD_ENCODING) in (None, Encoding.NONE, Encoding.BYTES)
    )
    return None if wanted else Message()
