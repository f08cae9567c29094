"""Prefect's and MLflow's pages."""

from __future__ import annotations

import click


@click.command()
def ui() -> None:
    """Serve Prefect's and MLflow's pages on this machine only, until Ctrl-C; docs/security.md says who may use them."""
    from fedcore.cli.project import enter_project

    enter_project()
    import os
    import subprocess
    import sys

    from fedcore.pipeline import environment
    from fedcore.pipeline.orchestration import server
    from fedcore.pipeline.record import mlflow_links, runs
    from fedcore.pipeline.record.writer import with_patience

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
        shown += [("MLflow", f"{page}{mlflow_links.runs_page(record.experiment)}?{mlflow_links.TRAINING}")]
        shown += [(words, page + place) for words, place in mlflow_links.links(record.client, record.experiment)]
        width = max(len(words) for words, _ in shown)
        print(*(f"{words:<{width}}  {place}" for words, place in shown), "Ctrl-C ends both", sep="\n", flush=True)
        try:
            mlflow.wait()
        except KeyboardInterrupt:
            pass
        finally:
            mlflow.terminate()
            mlflow.wait()
