"""A link to devices in this process, which carries the same bytes as a network would, and can be disturbed."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from federations import federation

from fedcore.config.methods import MethodConfig
from fedcore.field.device import FieldDevice
from fedcore.field.plan import Plan, plan_of
from fedcore.field.recipe import NUMBERS
from fedcore.field.rows import DeviceRows
from fedcore.field.server import Field, federation_of
from fedcore.field.wire import unpack
from fedcore.methods import METHODS
from fedcore.types.federation import Federation


class InProcess:
    """Devices in folders under `root`. rows: those with rows in place of examples.

    change: what becomes of an answer on its way, None if it is lost.
    """

    def __init__(
        self,
        fed: Federation,
        root: Path,
        allowed: Collection[str] = (*METHODS, NUMBERS),
        rows: Mapping[str, DeviceRows] | None = None,
        keys: Mapping[str, Any] | None = None,
    ) -> None:
        self.fed, self.root, self.allowed, self.rows, self.keys = fed, root, allowed, rows or {}, keys or {}
        self.devices: dict[str, FieldDevice] = {}
        self.sent: list[tuple[str, bytes, bytes]] = []
        self.away: set[str] = set()
        self.change: Callable[[str, bytes, bytes], bytes | None] = lambda name, call, answer: answer
        for name in fed.devices:
            self.start(name)

    def start(self, name: str, allowed: Collection[str] | None = None) -> None:
        """Start a device, or start it again: all that it knows is in its folder."""
        data = self.rows.get(name, self.fed.devices[name].data)
        agreed = self.allowed if allowed is None else allowed
        self.devices[name] = FieldDevice(name, data, self.root / name, agreed, keys=self.keys.get(name))

    def asked(self, what: str) -> list[str]:
        """Return the devices of all calls of a kind, in order."""
        return [name for name, call, _ in self.sent if unpack(call, "call")[0]["ask"] == what]

    def send(self, name: str, call: bytes, seconds: float) -> bytes | None:
        if name in self.away:
            return None
        answer = self.devices[name].answer(call)
        self.sent.append((name, call, answer))
        return self.change(name, call, answer)


def plan_for(row: MethodConfig, fed: Federation, seed: int = 0) -> Plan:
    nets = {name: device.net for name, device in fed.devices.items()}
    return plan_of(row, nets, seed, "trial", tuple(fed.test.x.shape[1:]), fed.classes)


def field_of(
    row: MethodConfig,
    root: Path,
    names: str = "abcd",
    seconds: float = 20.0,
    said: list[str] | None = None,
    keys: Mapping[str, Any] | None = None,
) -> tuple[Field, InProcess]:
    fed = federation(names)
    link = InProcess(fed, root, keys=keys)
    lines: Callable[[str], None] = (said if said is not None else []).append
    return Field(link, plan_for(row, fed), federation_of(fed.public), seconds, lines), link


def words_of(parts: Mapping[str, torch.Tensor]) -> list[bytes]:
    """The bytes of tensors, to search for."""
    return [tensor.contiguous().numpy().tobytes() for tensor in parts.values()]
