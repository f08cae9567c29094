"""One Prefect server for a whole run: started by the first command that needs it, shared, on loopback only."""

from __future__ import annotations

import json
from importlib import metadata

from project import Project
from scenarios import Repro


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
    assert here.run("python", "-m", "tasks.prefect.server", "start").out.strip() == host.api
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
