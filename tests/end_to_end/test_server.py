"""One Prefect server for a whole run: started by the first command that needs it, shared, on loopback only, locked.

A hostile web page can send any request to loopback, under a name of its own that leads there (DNS rebinding).
"""

import json
import re
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import pytest
from project import Project
from scenarios import Repro
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

FOREIGN = {"Origin": "https://evil.example", "Host": "evil.example"}


def test_two_commands_at_once_start_one_server(served: tuple[Project, list[str]]):
    host, answers = served
    assert len(set(answers)) == 1
    assert answers[0].startswith("http://127.0.0.1:")
    servers = [command for command in host.processes().values() if "prefect server start" in command]
    assert len(servers) == 1
    assert "--host 127.0.0.1" in servers[0]


def test_a_running_server_is_reused(host: Project):
    here = Project(host.folder)
    before = host.processes()
    assert here.run("python", "-m", "fedcore.pipeline.orchestration.server", "start").out.strip() == host.api
    assert set(host.processes()) == set(before)


def test_a_server_that_the_user_names_is_used_as_it_is(repro: Repro, host: Project):
    state = repro.project.folder / ".fedcore"
    assert repro.project.api == host.api
    assert not (state / "server.json").exists()
    assert not (state / "prefect" / "prefect.db").exists()


def test_the_prefect_command_finds_the_server(host: Project):
    """prefect.toml names the profile that the server wrote."""
    profile = (host.folder / ".fedcore" / "prefect" / "profiles.toml").read_text()
    assert f'PREFECT_API_URL = "{host.api}"' in profile
    assert json.loads((host.folder / ".fedcore" / "server.json").read_text())["url"] == host.api


def test_the_server_runs_with_the_installed_versions(host: Project):
    """With too new a FastAPI it dies when it is imported. With too new an SQLAlchemy it runs and never schedules
    anything; that it does is tested with the deployment."""
    assert host.ask("health") is True
    assert host.ask("admin/version") == metadata.version("prefect")


def status(url: str, headers: Mapping[str, str], body: Any = None) -> int:
    """Send a request as a web page would; returns the answer's status. A body is sent as text: no preflight."""
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"Content-Type": "text/plain", **headers})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        refused.close()
        return refused.code


@pytest.mark.parametrize("headers", [{}, FOREIGN, {"Origin": "null"}, {"Authorization": "Basic ZmVkY29yZTo="}])
def test_without_the_password_prefect_answers_nothing(host: Project, headers: dict[str, str]):
    """A page that may create a flow and a deployment with a shell step has a worker run commands."""
    step = {"prefect.deployments.steps.run_shell_script": {"script": "touch caught"}}
    deployment = {"name": "caught", "flow_id": "0" * 32, "pull_steps": [step]}
    for path, body in (("flows/", {"name": "caught"}), ("deployments/", deployment), ("flow_runs/filter", {})):
        assert status(f"{host.api}/{path}", headers, body) == 401
    assert status(f"{host.api}/admin/version", headers) == 401
    assert host.ask("flows/filter", {"flows": {"name": {"any_": ["caught"]}}}) == []


def test_prefects_sockets_want_the_password_too(host: Project):
    place = f"ws{str(host.api).removeprefix('http')}/events/in"
    with pytest.raises(InvalidStatus):
        connect(place, origin="https://evil.example").close()
    for said in ({"type": "auth", "token": "fedcore:"}, {"type": "filter"}):
        with connect(place, subprotocols=["prefect"]) as socket:
            socket.send(json.dumps(said))
            with pytest.raises(ConnectionClosed):
                socket.recv(60)


def test_no_other_page_may_read_what_prefect_answers(host: Project):
    request = urllib.request.Request(f"{host.api}/health", headers={"Origin": "https://evil.example"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.headers["Access-Control-Allow-Origin"] is None


def test_only_the_owner_may_read_the_password(host: Project):
    state = host.folder / ".fedcore"
    for path in ("password", "server.json", "prefect/profiles.toml"):
        assert (state / path).stat().st_mode & 0o777 == 0o600
    assert state.stat().st_mode & 0o777 == 0o700
    assert re.fullmatch(r"fedcore:[\w-]{32}", str(host.password))


def test_the_pages_open_for_their_user_alone(host: Project):
    here = Project(host.folder)
    ui = here.start("fedcore", "ui")
    assert ui.stdout is not None
    try:
        start, prefect, mlflow = (ui.stdout.readline().split() for _ in range(3))
        assert start[0] == "starting"
        assert prefect[1:] == [str(host.api).removesuffix("/api"), "its", "one", "field", "takes:", host.password]
        page = mlflow[1].partition("/#/")[0]
        found = f"{page}/api/2.0/mlflow/experiments/search"
        assert answering(f"{page}/health"), "its address is printed once it listens"
        body, known = {"max_results": 1}, {"Authorization": f"Basic {b64encode(str(host.password).encode()).decode()}"}
        for place in (
            page,
            found,
            f"{page}/graphql",
            f"{page}/health",
            f"{page}/api/2.0/mlflow/registered-models/alias",
        ):
            assert status(place, {"Content-Type": "application/json"}, body) == 401
        known["Content-Type"] = "application/json"
        assert status(found, known, body) == 200
        for headers in (FOREIGN, {"Host": "10.evil.example"}, {"Origin": "https://evil.example"}, {"Origin": "null"}):
            assert status(found, {**known, **headers}, body) == 403
            assert status(f"{page}/graphql", {**known, **headers}, {"query": "{__typename}"}) == 403
        assert status(page, {**known, "Host": "evil.example"}) == 403
    finally:
        here.stop()


def answering(url: str) -> bool:
    try:
        return status(url, {}) == 401
    except OSError:
        return False
