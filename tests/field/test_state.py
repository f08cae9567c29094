"""A state on disk."""

import pytest
from federations import bits, federation, model

from fedcore.core.rounds import State
from fedcore.errors import InputError
from fedcore.field.answers import RemoteHandle
from fedcore.field.state import state_bytes, state_of
from fedcore.field.wire import pack
from fedcore.types.method import Message

SHARED = Message(model("all"), {"counts": model("more")["fc1.bias"]})
STATE = State(
    model("server"),
    {"a": SHARED, "b": Message(), "c": SHARED},
    {"a": RemoteHandle("f00", 12)},
    {},
    1,
    3,
    frozenset("ab"),
)


def test_what_is_kept_is_read_to_the_bit_and_equal_messages_once():
    content = state_bytes(STATE)
    there = state_of(content, "state")
    assert bits(there) == bits(STATE)
    assert there.messages["a"] is there.messages["c"]
    assert len(content) < len(pack({}, {"": model("one")})) * 2 + 1500
    assert list(there.messages) == [*federation("abc").devices]


@pytest.mark.parametrize("content", [b"", pack({}), pack({"messages": {"a": "0"}}), state_bytes(STATE)[:-1]])
def test_what_is_no_state_is_refused_in_one_line(content):
    with pytest.raises(InputError, match=r"^state: (is no state of a run|damaged or no parcel of fedcore \([^\n]*\))$"):
        state_of(content, "state")
