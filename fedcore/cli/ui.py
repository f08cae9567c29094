"""Prefect's and MLflow's pages."""

from __future__ import annotations

import click


@click.command()
def ui() -> None:
    """Serve Prefect's and MLflow's pages on this machine only, until Ctrl-C; docs/security.md says who may use them."""
    from fedcore.cli.project import enter_project

    enter_project()
    import subprocess
    import sys

    from fedcore.pipeline import environment
    from fedcore.pipeline.orchestration import server
    from fedcore.pipeline.record import mlflow_links, mlflow_page, runs
    from fedcore.pipeline.record.writer import with_patience

    record = with_patience(runs.Record)
    with server.lease() as url:
        port = server.free_port()
        password = server.password()
        command = [
            sys.executable, "-m", "uvicorn", "--host", "127.0.0.1", "--port", str(port), "--factory",
            f"{mlflow_page.__name__}:create",
        ]  # fmt: skip
        with (environment.STATE / "mlflow.log").open("ab") as log:
            mlflow = subprocess.Popen(command, env=mlflow_page.settings(port, password), stdout=log, stderr=log)
        page = f"http://127.0.0.1:{port}/"
        secret = f"   password: {password}" if server.running() == url else ""
        links = [("Prefect", url.removesuffix("/api") + secret)]
        links += [("MLflow", f"{page}{mlflow_links.runs_page(record.experiment)}?{mlflow_links.TRAINING}")]
        links += [(title, page + path) for title, path in mlflow_links.links(record.client, record.experiment)]
        end = "MLflow asks for user {}, password {}; Ctrl-C ends both".format(*password.split(":"))
        width = max(len(title) for title, _ in links)
        print(*(f"{title:<{width}}  {link}" for title, link in links), end, sep="\n", flush=True)
        try:
            mlflow.wait()
        except KeyboardInterrupt:
            pass
        finally:
            mlflow.terminate()
            mlflow.wait()
