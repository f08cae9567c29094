"""What a server keeps of a run after each turn, so that it can be killed and go on with the same bits."""

from __future__ import annotations

from typing import Any

from fedcore.core.rounds import State
from fedcore.errors import InputError
from fedcore.field.answers import RemoteHandle
from fedcore.field.wire import pack, unpack
from fedcore.types.method import Message


def state_bytes(state: State) -> bytes:
    """Return a state of a run in the field, of which the devices' memories are digests alone."""
    messages: Any = state.messages
    distinct = {id(message): message for message in messages.values()}
    number = {key: str(index) for index, key in enumerate(distinct)}
    memories: Any = state.memories
    header = {
        "stage": state.stage,
        "round": state.round,
        "delivered": sorted(state.delivered),
        "messages": {name: number[id(message)] for name, message in messages.items()},
        "memories": {name: [memory.digest, memory.nbytes] for name, memory in memories.items()},
    }
    server: Any = state.server
    parts = {f"{number[key]} params": message.params for key, message in distinct.items()}
    more = {f"{number[key]} extra": message.extra for key, message in distinct.items()}
    return pack(header, {"server": server, **parts, **more})


def state_of(content: bytes, who: str) -> State:
    """Undo `state_bytes`. Raises InputError for anything else."""
    header, tensors = unpack(content, who)
    try:
        sent = {
            index: Message(tensors[f"{index} params"], tensors[f"{index} extra"])
            for index in {*header["messages"].values()}
        }
        return State(
            tensors["server"],
            {name: sent[index] for name, index in header["messages"].items()},
            {name: RemoteHandle(*memory) for name, memory in header["memories"].items()},
            {}, header["stage"], header["round"], frozenset(header["delivered"]),
        )  # fmt: skip
    except (KeyError, TypeError, AttributeError):
        raise InputError(f"{who}: is no state of a run") from None
