"""A page in headless Chromium, driven through its DevTools protocol. Chromium is not installed with the project."""

import contextlib
import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

SECONDS = 60.0
"""The longest wait for the browser."""
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--remote-debugging-port=0",
)  # fmt: skip


def find_chromium() -> str | None:
    """Return the browser that CHROMIUM names, else one on PATH, else None."""
    names = (os.environ.get("CHROMIUM"), "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for name in names if name and (path := shutil.which(name))), None)


class Tab:
    """One page of the browser. messages: what it wrote to the console and what it did not catch."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.count = self.width = 0
        self.messages: list[str] = []
        for domain in ("Page", "Runtime", "Log"):
            self.do(f"{domain}.enable")

    def do(self, command: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self.count += 1
        self.socket.send(json.dumps({"id": self.count, "method": command, "params": parameters}))
        while True:
            answer = self._receive()
            if answer.get("id") == self.count:
                assert "error" not in answer, (command, answer["error"])
                found: dict[str, Any] = answer["result"]
                return found

    def open(
        self, address: str, width: int = 1280, height: int = 900, dark: bool = False, scripts: bool = True
    ) -> None:
        """Load a page in a window of so many pixels, and wait for it."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.do("Emulation.setEmulatedMedia", features=[scheme])
        self.do("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.resize(width, height)
        self.messages.clear()
        self.do("Page.navigate", url=address)
        while self._receive().get("method") != "Page.loadEventFired":
            pass
        if scripts:
            self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def resize(self, width: int, height: int) -> None:
        """Set the size of the window in pixels."""
        self.width = width
        self.do("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, awaited."""
        found = self.do("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def _receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.socket.recv(timeout=SECONDS))
        match message.get("method"):
            case "Runtime.exceptionThrown" | "Runtime.consoleAPICalled":
                self.messages.append(json.dumps(message["params"]))
            case "Log.entryAdded":
                self.messages.append(message["params"]["entry"]["text"])
        return message


@contextlib.contextmanager
def open_browser(program: str, folder: Path) -> Iterator[Tab]:
    """Start the browser with an empty profile in a folder, and stop it in the end."""
    with subprocess.Popen(
        [program, *OPTIONS, f"--user-data-dir={folder}", "about:blank"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            port = _wait_for(folder / "DevToolsActivePort").split()[0]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=SECONDS) as reply:
                address = next(one["webSocketDebuggerUrl"] for one in json.load(reply) if one["type"] == "page")
            with connect(address, max_size=None) as socket:
                yield Tab(socket)
        finally:
            process.terminate()


def _wait_for(path: Path) -> str:
    limit = time.monotonic() + SECONDS
    while not path.is_file() or not path.read_text():
        assert time.monotonic() < limit, f"{path} was not written"
        time.sleep(0.02)
    return path.read_text()
