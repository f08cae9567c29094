"""MLflow's page behind a password: whoever may speak to its server can change what a model's name stands for.

    FEDCORE_PAGE_PASSWORD=fedcore:... python -m fedcore.pipeline.record.mlflow_page 127.0.0.1 5000

A browser asks for user and password once (HTTP's basic authentication). MLflow checks a foreign Origin at some of its
addresses only, and a browser adds the password to what other pages send: here all addresses want both.
"""

import base64
import os
import re
import secrets
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fedcore.pipeline import environment

PASSWORD = "FEDCORE_PAGE_PASSWORD"
"""The variable that holds user name, colon, secret; only its owner can read a process's environment."""

DATABASE = re.compile(r"(sqlite|postgresql|mysql|mssql)(\+\w+)?:")
"""Beginnings of a record's address that MLflow's server can read by itself."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Guard:
    """An ASGI app that answers with status 401 without the password, and with 403 to a foreign Origin."""

    def __init__(self, app: App, password: str) -> None:
        self.app = app
        self.expected = b"Basic " + base64.b64encode(password.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        origin, host = headers.get(b"origin"), headers.get(b"host", b"")
        if not secrets.compare_digest(headers.get(b"authorization", b""), self.expected):
            status, more = 401, [(b"www-authenticate", b'Basic realm="MLflow of fedcore", charset="UTF-8"')]
        elif origin is not None and origin != b"http://" + host:
            status, more = 403, []
        else:
            await self.app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        await send(
            {"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain"), *more]}
        )
        await send({"type": "http.response.body", "body": b"not allowed\n"})


def settings(port: int, password: str) -> dict[str, str]:
    """Return the environment for a server at this port, as `mlflow server` would make it: no artifacts are served.

    It shows the record that the environment names, if that is a database.
    """
    from mlflow.server import constants

    record = os.environ.get("MLFLOW_TRACKING_URI", "")
    return {
        **os.environ, PASSWORD: password,
        constants.BACKEND_STORE_URI_ENV_VAR: record if DATABASE.match(record) else environment.TRACKING,
        constants.ARTIFACT_ROOT_ENV_VAR: environment.ARTIFACTS.as_uri(),
        "MLFLOW_SERVER_ALLOWED_HOSTS": f"127.0.0.1:{port},localhost:{port}",
    }  # fmt: skip


def create() -> Guard:
    """Return MLflow's app, guarded. It reads places of artifacts from the current folder."""
    os.chdir(environment.HOME)
    password = os.environ.pop(PASSWORD)
    from mlflow.server.fastapi_app import app

    return Guard(app, password)


def main(host: str, port: int) -> None:
    """Serve the page on an address of a container; a browser reaches it at this port of its own machine."""
    import uvicorn

    os.environ |= settings(port, os.environ[PASSWORD])
    uvicorn.run(f"{__spec__.name}:create", factory=True, host=host, port=port, log_level="warning")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
