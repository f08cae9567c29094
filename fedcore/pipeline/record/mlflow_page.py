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
from collections.abc import Mapping

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from fedcore.pipeline import environment

PASSWORD = "FEDCORE_PAGE_PASSWORD"
"""The variable that holds user name, colon, secret; only its owner can read a process's environment."""

DATABASE = re.compile(r"(sqlite|postgresql|mysql|mssql)(\+\w+)?:")
"""Beginnings of a record's address that MLflow's server can read by itself."""


class Guard:
    """An ASGI app that answers with status 401 without the password, and with 403 to a foreign Origin."""

    def __init__(self, app: ASGIApp, password: str) -> None:
        self.app = app
        self.expected = b"Basic " + base64.b64encode(password.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = None if scope["type"] == "lifespan" else self.refuse(dict(scope["headers"]))
        if refusal is not None and scope["type"] == "websocket":
            await WebSocketClose(1008)(scope, receive, send)
        else:
            await (refusal or self.app)(scope, receive, send)

    def refuse(self, headers: Mapping[bytes, bytes]) -> PlainTextResponse | None:
        """Return the answer to a request that the app does not see."""
        origin, host = headers.get(b"origin"), headers.get(b"host", b"")
        if not secrets.compare_digest(headers.get(b"authorization", b""), self.expected):
            basic = {"www-authenticate": 'Basic realm="MLflow of fedcore", charset="UTF-8"'}
            return PlainTextResponse("not allowed\n", 401, basic)
        return None if origin in (None, b"http://" + host) else PlainTextResponse("not allowed\n", 403)


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
