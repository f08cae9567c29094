"""Tiny federations of signals: a few devices with a few examples of 32 numbers, of three classes, and the cells net."""

from collections.abc import Iterable

import torch
from federations import SIZES

from fedcore import Data, Device, Federation, Net, Splits, Training, nets
from fedcore.types.method import generator

SHAPE = (1, 32)
NET = nets.net("cells", shape=SHAPE, classes=3, cells=3, width=0.125)
NETS = dict.fromkeys("abcd", NET)
WHOLE = nets.net("cells", shape=(1, 512), classes=10)
"""The paper's."""

ADAM = Training(
    optimiser="adam", lr=0.01, momentum=0.0, weight_decay=0.0, schedule="constant", batch=4, epochs=2,
    optimiser_state="keep",
)  # fmt: skip


def data(count: int, *words: object, shape: tuple[int, ...] = SHAPE) -> Data:
    """Signals that depend on the words alone; the class is where the largest of the first three numbers stands."""
    x = torch.rand(count, *shape, generator=generator("signals", *words))
    return Data(x, x[:, 0, :3].argmax(1))


def federation(names: Iterable[str] = "abc", net: Net = NET, shape: tuple[int, ...] = SHAPE) -> Federation:
    def device(name: str) -> Device:
        counts = {"train": SIZES.get(name, 8), "val": 3, "test": 5}
        return Device(name, net, Splits(**{split: data(n, name, split, shape=shape) for split, n in counts.items()}))

    return Federation({name: device(name) for name in names}, data(6, "shared", shape=shape), 3,
                      data(20, "server", shape=shape))  # fmt: skip
