"""MLflow's page answers nothing without the password, and no other page with it."""

import asyncio
from base64 import b64encode
from typing import Any

import pytest

from fedcore.pipeline.record.mlflow_page import Guard

KNOWN = (b"authorization", b"Basic " + b64encode(b"fedcore:secret"))
HOST = (b"host", b"127.0.0.1:5000")


def status(*headers: tuple[bytes, bytes], kind: str = "http") -> Any:
    """Return the status of an answer to these headers; "app" from the app, or the code of a closed socket."""
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"status": "app"})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> None:
        raise AssertionError("the body of a refused request was read")

    scope = {"type": kind, "path": "/graphql", "headers": [HOST, *headers]}
    asyncio.run(Guard(app, "fedcore:secret")(scope, receive, send))
    return sent[0].get("status") or sent[0]["code"]


def test_the_password_opens_the_page():
    assert status(KNOWN) == status(KNOWN, (b"origin", b"http://127.0.0.1:5000")) == "app"


@pytest.mark.parametrize("said", [b"", b"Basic", b"Basic " + b64encode(b"fedcore:"), b"Bearer secret"])
def test_another_word_does_not(said: bytes):
    assert status((b"authorization", said)) == status() == 401
    assert status((b"authorization", said), kind="websocket") == 1008


@pytest.mark.parametrize(
    "origin", [b"null", b"https://evil.example", b"http://127.0.0.1:5001", b"https://127.0.0.1:5000"]
)
def test_another_page_is_refused_with_the_password(origin: bytes):
    assert status(KNOWN, (b"origin", origin)) == 403
    assert status(KNOWN, (b"origin", origin), kind="websocket") == 1008
