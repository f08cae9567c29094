"""The record's background: what cannot be written is not passed over."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import torch

from fedcore.data import Dataset
from fedcore.types import Data
from tasks import environment, track
from tasks.store import Ref, Store


class Full(track.Record):
    """A record on a disk that is full."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[str] = []

    def _fill(self, *_: Any) -> None:
        self.threads.append(threading.current_thread().name)
        raise OSError("no space left on device")


def find() -> dict[str, Any]:
    store = Store(environment.BLOBS)
    data = Data(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))
    result: Any = SimpleNamespace(
        config="probe", digest="probe", name="probe", size="small", seed=0, control=False, shared=None, models={},
        setting=SimpleNamespace(study="probe", name="base", data={"name": "probe"}), row=SimpleNamespace(label="probe"),
        prepared=SimpleNamespace(dataset=store.put(Dataset(data, None, ("a", "b"))), partition=Ref("probe", 0)),
    )  # fmt: skip
    said = {}
    for name, ending in {"at the end": None, "by the next": "keep", "body": "fail"}.items():
        try:
            with Full() as record:
                record.keep(store, result, "probe")
                if ending == "fail":
                    raise ValueError("the body's own")
                if ending == "keep":
                    record._written[0].exception()  # waits
                    record.keep(store, result, "probe")
                    raise AssertionError("it was passed over")
        except (OSError, ValueError, AssertionError) as error:
            said[name] = str(error)
    return {"said": said, "apart": record.threads != [threading.current_thread().name]}
