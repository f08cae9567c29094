"""Serve Prefect's and MLflow's pages on this machine only, until Ctrl-C; docs/security.md says who may use them.

python -m flows.ui
"""

from __future__ import annotations

import os
import subprocess
import sys

from fedcore.pipeline import environment
from fedcore.pipeline.command import no_words, report_bad_input, show_help

if __name__ == "__main__":  # before the imports below, which take seconds
    show_help(__doc__)
    with report_bad_input():
        no_words("ui")

from fedcore.pipeline.orchestration import server
from fedcore.pipeline.record import mlflow_links as views
from fedcore.pipeline.record import runs
from fedcore.pipeline.record.writer import with_patience


def main() -> None:
    environment.prepare()
    record = with_patience(runs.Record)
    with server.lease() as url:
        port = server.free_port()
        command = [
            sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
            "--backend-store-uri", environment.TRACKING, "--default-artifact-root", environment.ARTIFACTS.as_uri(),
            "--no-serve-artifacts", "--allowed-hosts", f"127.0.0.1:{port},localhost:{port}",
        ]  # fmt: skip
        with (environment.STATE / "mlflow.log").open("ab") as log:
            mlflow = subprocess.Popen(command, env=os.environ, stdout=log, stderr=log)
        page = f"http://127.0.0.1:{port}/"
        secret = f"   password: {server.password()}" if server.running() == url else ""
        shown = [("Prefect", url.removesuffix("/api") + secret)]
        shown += [("MLflow", f"{page}{views.runs_page(record.experiment)}?{views.TRAINING}")]
        shown += [(words, page + place) for words, place in views.links(record.client, record.experiment)]
        width = max(len(words) for words, _ in shown)
        print(*(f"{words:<{width}}  {place}" for words, place in shown), "Ctrl-C ends both", sep="\n", flush=True)
        try:
            mlflow.wait()
        except KeyboardInterrupt:
            pass
        finally:
            mlflow.terminate()
            mlflow.wait()


if __name__ == "__main__":
    with report_bad_input():
        main()
