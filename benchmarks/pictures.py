"""Take the pictures of docs/: the page of `make run`, MLflow's of study code, and the drawn steps of flow runs.

python -m benchmarks.pictures PROJECT; it needs Chromium (on PATH, or named by CHROMIUM) and a project after `make run`.
"""

import base64
import io
import json
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from browser import Tab, find_chromium, open_browser  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
PAGES = {
    "page": (1280, 1230, False), "page-dark": (1280, 1230, True),
    "page-narrow": (390, 1700, False), "page-narrow-dark": (390, 1700, True),
}  # fmt: skip
"""Picture of the page -> width, height and whether it is dark."""
RECORD = {"mlflow-study": (760, "answer"), "mlflow-methods": (520, "methods"), "mlflow-best-and-alone": (820, " and ")}
"""Picture of MLflow -> height, and what the title of its link has, as `fedcore ui` prints it."""
METHODS = ("code_ot", "fedasa", "dfl", "st_lf")
"""Methods of which the flow run is drawn that computed most steps."""


def largest(ask: Callable[..., Any], method: str) -> dict[str, str]:
    """Return the flow run of a method that computed most steps, the newest of such."""
    named = {"name": {"like_": f"{method}, base, seed"}, "state": {"type": {"any_": ["COMPLETED"]}}}
    found: list[dict[str, str]] = ask("flow_runs/filter", flow_runs=named, sort="START_TIME_DESC")
    if not found:
        raise SystemExit(f"{method}: no flow run of this method was computed here")
    return max(found, key=lambda run: ask("task_runs/count", flow_runs={"id": {"any_": [run["id"]]}}))


def take(tab: Tab, page: str, run: dict[str, str], seconds: float = 5.0) -> bytes:
    """Return the picture of a flow run's drawing, which stands still after so long."""
    tab.open(f"{page}/runs/flow-run/{run['id']}", width=1600, height=1100)
    time.sleep(seconds)
    script = "const r = document.querySelector('canvas').getBoundingClientRect(); [r.x, r.y, r.width, r.height]"
    x, y, width, height = tab.run(script)
    clip = {"x": x, "y": y, "width": width, "height": height, "scale": 1}
    return capture(tab, clip=clip)


def capture(tab: Tab, **of: Any) -> bytes:
    """Return a PNG of 256 colours of what the browser shows."""
    shown = base64.b64decode(tab.do("Page.captureScreenshot", format="png", **of)["data"])
    small = io.BytesIO()
    Image.open(io.BytesIO(shown)).convert("RGB").quantize(256).save(small, "PNG", optimize=True)
    return small.getvalue()


def main(project: Path) -> None:
    """Write the pictures of the page, of MLflow, and of a flow run of each method."""
    program = find_chromium()
    if program is None:
        raise SystemExit("no Chromium: name one by CHROMIUM")
    command = [sys.executable, "-u", "-m", "fedcore", "ui"]
    with (
        subprocess.Popen(command, cwd=project, text=True, stdout=subprocess.PIPE) as pages,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        open_browser(program, Path(folder)) as tab,
    ):
        assert pages.stdout
        links = dict[str, str]()
        for line in pages.stdout:
            if "password" in line and "Ctrl-C" in line:
                break
            title, _, link = line.strip().partition("  ")
            links[title] = link.strip()
        prefect, _, secret = links["Prefect"].partition("   its one field takes: ")
        token = base64.b64encode(secret.encode()).decode()
        basic = {"Authorization": f"Basic {token}"}

        def ask(path: str, **wanted: Any) -> Any:
            headers = {**basic, "Content-Type": "application/json"}
            request = urllib.request.Request(f"{prefect}/api/{path}", json.dumps(wanted).encode(), headers)
            with urllib.request.urlopen(request) as reply:
                return json.load(reply)

        for name, (width, height, dark) in PAGES.items():
            tab.open((project / "results" / "report.html").as_uri(), width, height, dark)
            (PICTURES / f"{name}.png").write_bytes(capture(tab))
        tab.do("Network.enable")
        tab.do("Network.setExtraHTTPHeaders", headers=basic)
        for name, (height, words) in RECORD.items():
            link = next(link for title, link in links.items() if title.startswith("code:") and words in title)
            tab.open("about:blank")  # else only the part behind the hash changes, which loads nothing
            tab.open(link, 1500, height)
            time.sleep(8.0)
            tab.run("""document.querySelector('[data-component-id="mlflow.assistant.chat_panel.close"]')?.click()""")
            time.sleep(4.0)
            (PICTURES / f"{name}.png").write_bytes(capture(tab))
        tab.open(prefect)
        tab.run(f"localStorage.setItem('prefect-password', '{token}')")
        for method in METHODS:
            run = largest(ask, method)
            picture = PICTURES / f"prefect-{method}.png"
            picture.write_bytes(take(tab, prefect, run))
            print(f"{run['name']} -> {picture.name}, {picture.stat().st_size:,} bytes")
        pages.send_signal(signal.SIGINT)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
