"""Real processes on loopback, each with a certificate and its own examples, as `fedcore field try` starts them."""

import contextlib
import json
import os
import shutil
import socket
import ssl
import time
import warnings
from dataclasses import replace
from threading import Thread, Timer
from types import SimpleNamespace

import pytest
import torch
from every_method import ROWS
from federations import federation

from fedcore import methods
from fedcore.errors import InputError
from fedcore.field.plan import plan_of
from fedcore.field.server import Field, federation_of, run_in_field
from fedcore.field.wire import pack, unpack

pytest.importorskip("nvflare", reason="nvflare is not installed: make test installs it")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from nvflare.fuel.f3.message import Message

    from fedcore.field import cells
    from fedcore.field.kits import make_kits, read_kit, revoke
    from fedcore.field.trial import differences, processes, simulate

pytestmark = pytest.mark.slow

WHOLE = "WHOLE_FIELD" in os.environ
CUT = 60.0 if WHOLE else 1.0
"""Seconds for which the network is cut."""
"""By `make field-test`: all that the field allows, with four devices."""

FED = federation("abcd" if WHOLE else "abc")
NOT_HERE = {
    "avg_degree", "best_source", "fada", "fedavg_alpha", "least_bound", "least_error", "most_similar", "psi_fada",
    "pooled", "rnd_alpha", "xgb_bagging", "xgb_local",
}  # fmt: skip
METHODS = [
    name for name in methods.METHODS if name not in ({"best_source", "pooled", "xgb_bagging"} if WHOLE else NOT_HERE)
]
"""Else without some that take long or are like `st_lf`; tests/field/test_server.py has all, in one process."""
SECONDS = 120.0


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with processes(tmp_path_factory.mktemp("field"), FED, METHODS) as site:
        yield site


def field_of(site, row, run):
    plan = plan_of(row, FED.public.nets, 0, run, (4,), 3)
    field = Field(site.link, plan, federation_of(FED.public), SECONDS)
    field.join()
    return field


@pytest.mark.parametrize("name", METHODS)
def test_real_processes_give_the_bits_of_the_simulation(name, site):
    there = list(run_in_field(field_of(site, ROWS[name], f"bits{name.replace('_', '')}"), 0))
    method, here = simulate(ROWS[name], FED, 0)
    assert differences(there, here, method) == []


@pytest.mark.skipif(not WHOLE, reason="make field-test")
@pytest.mark.parametrize("rounds", [3, 30])
def test_real_processes_give_the_bits_of_many_rounds(rounds, site):
    row = replace(ROWS["fedavg"], settings={**ROWS["fedavg"].settings, "rounds": rounds})
    there = list(run_in_field(field_of(site, row, f"rounds{rounds}"), 0))
    method, here = simulate(row, FED, 0)
    assert len(there) == rounds
    assert differences(there, here, method) == []


def test_real_processes_sum_masked_models_to_the_simulations_bits(site):
    row = replace(ROWS["fedavg"], settings={**ROWS["fedavg"].settings, "secure_aggregation": True})
    there = list(run_in_field(field_of(site, row, "masked"), 0))
    method, here = simulate(row, FED, 0)
    assert differences(there, here, method) == []


def test_a_device_killed_in_its_step_and_started_again_changes_no_bit(site):
    row = ROWS["ditto"]
    row = replace(row, training=replace(row.training, epochs=1200), settings={**row.settings, "rounds": 2})
    turns = run_in_field(field_of(site, row, "killed"), 0, least=3)
    there, answer = [next(turns)], site.folder / "memory" / "b" / "killed" / "turn-0-1"
    rest = Thread(target=lambda: there.extend(turns))
    rest.start()
    time.sleep(0.1)
    assert not answer.exists()  # it has not answered, and is in its step
    site.stop("b")
    assert not answer.exists()
    site.start("b")
    rest.join()
    method, here = simulate(row, FED, 0)
    assert differences(there, here, method) == []


def test_a_method_outside_of_the_owners_list_is_refused_on_each_device(site):
    with pytest.raises(InputError, match=r"^a refuses: method psi_fada: not allowed on a; allowed: analytic, "):
        field_of(site, ROWS["psi_fada"], "other")


def test_bytes_that_are_no_call_are_refused(site):
    for call in (b"", b"\x80\x04\x95" + bytes(60), pack({"ask": "run"})):
        words, _ = unpack(site.link.send("a", call, 20.0), "answer")
        assert words["reply"] == "refused"


def test_another_devices_certificate_and_another_authority_are_refused(site, tmp_path):
    borrowed = tmp_path / "borrowed"
    shutil.copytree(site.kits["c"], borrowed)
    for part in ("own.crt", "own.key"):
        shutil.copy(site.kits["a"] / part, borrowed / part)
    foreign = make_kits(tmp_path / "foreign", ["c"], read_kit(site.kits["c"]).address)["c"]
    site.stop("c")
    for kit, why in (
        (borrowed, "is damaged, or of files of several kits"),
        (foreign, "its server has a kit of another"),
    ):
        site.start("c", kit)
        while not site._running["c"].ended():
            time.sleep(0.05)
        assert why in site.log("c").read_text().splitlines()[-1]
        assert site.link.wait_for(["c"], 0.0) == ["c"]
        site.stop("c")
    host, port = read_kit(site.kits["c"]).address.split(":")
    with socket.create_connection((host, int(port)), timeout=20):  # says nothing, and keeps nobody else from connecting
        site.start("c")
        assert site.link.wait_for(["c"], 60.0) == []


class Proxy:
    """Stands between a device and the server, forwards bytes, and counts those of the device; or holds them back."""

    def __init__(self, port):
        self.port_of_server, self.open, self.up = port, True, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            device, _ = self._listener.accept()
            server = socket.create_connection(("127.0.0.1", self.port_of_server))
            Thread(target=self._forward, args=(device, server, True), daemon=True).start()
            Thread(target=self._forward, args=(server, device, False), daemon=True).start()

    def _forward(self, source, target, up):
        with contextlib.suppress(OSError):
            while content := source.recv(2**16):
                self.up += len(content) if up else 0
                while not self.open:
                    time.sleep(0.02)
                target.sendall(content)
        source.close()
        target.close()


@pytest.fixture
def proxy(site, tmp_path):
    """What stands between the server and the process of b."""
    proxy = Proxy(int(read_kit(site.kits["server"]).address.rpartition(":")[2]))
    kit = tmp_path / "kit"
    shutil.copytree(site.kits["b"], kit)
    (kit / "kit.json").write_text(json.dumps({"name": "b", "address": f"127.0.0.1:{proxy.port}"}))
    site.stop("b")
    site.start("b", kit)
    assert site.link.wait_for(["b"], 60.0) == []
    return proxy


def test_a_second_process_with_a_kit_is_refused_while_the_first_answers(site, proxy, monkeypatch):
    def wait_until(happens):
        end = time.monotonic() + 60
        while not happens():
            assert time.monotonic() < end
            time.sleep(0.05)

    def connection():
        return [link.get_name() for link in site.link._cell.communicator.conn_manager.get_connections("b")]

    lines, before, first = [], connection(), site._running["b"]
    monkeypatch.setattr(cells.log, "warning", lambda text, *words: lines.append(text % words))
    site.log("b").write_text("")
    site.start("b")
    wait_until(lambda: "it refuses this kit: it is revoked, or another" in site.log("b").read_text())
    line = "b was refused at 127.0.0.1: another process with its kit is connected"
    wait_until(lambda: lines.count(line) > 2)  # it tries again
    assert connection() == before
    proxy.open = False  # as of a device that has lost its power, and starts again
    wait_until(lambda: connection() not in ([], before))
    first.stop()


def test_real_processes_go_on_after_their_network_was_cut(site, proxy):
    row = replace(ROWS["ditto"], settings={**ROWS["ditto"].settings, "rounds": 3})
    turns, field = [], field_of(site, row, "cut")
    before = proxy.up
    for turn in run_in_field(field, 0):
        turns.append(turn)
        if len(turns) == 1:
            proxy.open, start = False, time.monotonic()
            Timer(CUT, setattr, (proxy, "open", True)).start()
    method, here = simulate(row, FED, 0)
    assert time.monotonic() - start > CUT
    assert differences(turns, here, method) == []
    counted, calls = sum(turn.up["b"] for turn in turns), 2 * len(turns)  # a visit and its scores
    assert counted < proxy.up - before <= 1.05 * counted + 4000 * calls


def test_a_caller_without_a_certificate_or_with_a_revoked_one_is_refused(site, monkeypatch):
    monkeypatch.setattr(cells, "_is_alive", lambda _: False)  # else a is refused since it is connected
    host, port = read_kit(site.kits["server"]).address.split(":")
    context = ssl.create_default_context(cafile=str(site.kits["server"] / "authority.crt"))
    context.check_hostname = False

    def listen():
        with socket.create_connection((host, int(port)), timeout=20) as plain, context.wrap_socket(plain) as secure:
            secure.settimeout(1.0)
            return secure.recv(1)

    with pytest.raises((ssl.SSLError, ConnectionError)):
        listen()
    context.load_cert_chain(site.kits["a"] / "own.crt", site.kits["a"] / "own.key")
    with pytest.raises(TimeoutError):  # with one the server waits for the first word
        listen()
    revoke(site.kits["server"], "a")  # at once, also while it is connected
    try:
        assert listen() == b""
        assert site.link.send("a", pack({"ask": "run"}), 20.0) is None
        assert site.link.wait_for(["a", "b"], 0.0) == ["a"]
        assert cells._drop(message(), "server", site.link._refused) is not None
    finally:
        (site.kits["server"] / "revoked").unlink()
    assert unpack(site.link.send("a", pack({"ask": "run"}), 20.0), "answer")[0]["reply"] == "refused"


def message(origin="a", destination="server", sender="a", encoding=None):
    made = Message({}, b"")
    if encoding is not None:
        made.set_header(cells.MessageHeaderKey.PAYLOAD_ENCODING, encoding)
    made.set_header(cells.MessageHeaderKey.ORIGIN, origin)
    made.set_header(cells.MessageHeaderKey.DESTINATION, destination)
    made.set_prop(cells.MessagePropKey.ENDPOINT, sender and SimpleNamespace(name=sender))
    return made


@pytest.mark.parametrize(
    ("parts", "dropped"),
    [
        ({}, False), ({"encoding": "bytes"}, False), ({"encoding": "none"}, False),
        ({"origin": "b"}, True), ({"origin": "server"}, True), ({"destination": "b"}, True), ({"sender": None}, True),
        ({"encoding": "fobs"}, True), ({"encoding": "pickle"}, True),
    ],
)  # fmt: skip
def test_a_cell_drops_forged_forwarded_and_encoded_messages(parts, dropped):
    assert (cells._drop(message(**parts), "server") is not None) == dropped


def test_what_differs_is_said_by_round_and_part():
    method, (*_, last) = simulate(ROWS["ditto"], FED, 0)
    model = last.state.messages["a"]
    other = replace(model, params={name: torch.nextafter(x, x + 1) for name, x in model.params.items()})
    moved = replace(last, state=replace(last.state, messages={**last.state.messages, "a": other}))
    assert differences([last], [last], method) == []
    assert differences([moved], [last], method) == ["stage 1, round 2: messages"]
    assert differences([replace(last, up={})], [last], method) == ["stage 1, round 2: bytes up"]
    assert differences([], [last], method) == ["0 turns in the field, 1 in the simulation"]
