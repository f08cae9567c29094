"""The compose file of a project: no builder is here, so each word of it is checked against what will read it."""

import re
import shlex
import shutil
import stat
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from project_params import ROOT
from ruamel.yaml import YAML

from fedcore.cli.main import main

SERVICES = ("database", "prefect", "mlflow", "worker")
KEYS = {
    "image", "build", "user", "restart", "environment", "env_file", "volumes", "healthcheck", "working_dir", "command",
    "ports", "depends_on",
}  # fmt: skip
"""Of a service, as the specification of compose names them."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nightly") / "own"
    main(["init", str(folder), "--nightly"])
    return folder


@pytest.fixture(scope="module")
def services(project: Path) -> dict[str, Any]:
    said = YAML(typ="safe").load(project / "ops" / "compose.yaml")
    assert set(said) == {"name", "x-project", "services", "volumes"}
    return dict(said["services"])


@pytest.fixture(scope="module")
def known(project: Path) -> dict[str, str]:
    lines = (project / ".fedcore" / "nightly.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def commands(service: dict[str, Any]) -> list[list[str]]:
    """Return the commands of a service, those of its shell one by one."""
    command = service["command"]
    if command[:2] != ["sh", "-c"]:
        return [command]
    return [shlex.split(one.strip().removeprefix("exec ")) for one in command[2].split("&&")]


@pytest.mark.slow
def test_services_and_what_they_need_are_there(project: Path, services: dict[str, Any]):
    assert tuple(services) == SERVICES
    volumes = YAML(typ="safe").load(project / "ops" / "compose.yaml")["volumes"]
    for service in services.values():
        assert set(service) <= KEYS
        for name, condition in service.get("depends_on", {}).items():
            assert condition == {"condition": "service_healthy"}
            assert "healthcheck" in services[name]
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in volumes or (project / "ops" / source).exists()
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:")  # no other machine
    build = services["worker"]["build"]
    context = (project / "ops" / build["context"]).resolve()
    assert (context / build["dockerfile"]).is_file()
    copied = re.findall(r"^COPY (\S+)", (context / build["dockerfile"]).read_text(), re.MULTILINE)
    lines = (context / "requirements.txt").read_text().splitlines()
    assert all((context / name).is_file() or f"--find-links {name}" in lines for name in copied)
    assert (context / ".dockerignore").read_text().split() == ["*", *(f"!{name}" for name in copied)]


@pytest.mark.slow
def test_passwords_are_drawn_and_for_the_owner_only(project: Path, known: dict[str, str], tmp_path: Path):
    text = (project / "ops" / "compose.yaml").read_text()
    asked = {*re.findall(r"\$\{(\w+)", text)}
    assert asked == set(known)
    assert asked == {*re.findall(r"\$\{(\w+):\?", text)}  # each says what it is where it is missing
    assert not any(value in text for name, value in known.items() if name.endswith("PASSWORD"))
    secret = project / ".fedcore" / "nightly.env"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (secret, secret.parent)] == [0o600, 0o700]
    assert re.fullmatch(r"\w+", known["FEDCORE_DATABASE_PASSWORD"])  # stands in addresses
    assert ".fedcore/" in (project / ".gitignore").read_text().split()
    main(["init", str(tmp_path / "other"), "--nightly"])
    assert (tmp_path / "other" / ".fedcore" / "nightly.env").read_text() != secret.read_text()


@pytest.mark.slow
def test_prefect_takes_the_commands(services: dict[str, Any]):
    """Its own parser reads each, to the last word."""
    from prefect.cli import _app

    for name in ("server", "worker", "work_pool", "deploy"):
        import_module(f"prefect.cli.{name}")
    found = [words for name in ("prefect", "worker") for words in commands(services[name])]
    assert [words[0] for words in found] == ["prefect"] * 4
    for words in found:
        said = [word for word in words[1:] if word != "--no-prompt"]
        function, bound, _ = _app._app.parse_args(said, exit_on_error=False, print_error=False)
        assert function.__module__.startswith("prefect.cli.")
        assert bound.arguments or said == ["deploy", "--all"]


@pytest.mark.slow
def test_settings_are_those_of_prefect_and_mlflow(services: dict[str, Any]):
    import mlflow.environment_variables as mlflow_settings
    from prefect.settings.legacy import _get_settings_fields
    from prefect.settings.models.root import Settings

    from fedcore.pipeline.record import mlflow_page

    fields = set(_get_settings_fields(Settings))
    for name in SERVICES[1:]:
        for variable in services[name]["environment"]:
            assert variable in fields or variable == mlflow_page.PASSWORD or hasattr(mlflow_settings, variable)


@pytest.mark.slow
def test_the_page_of_mlflow_shows_the_database(services: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    from mlflow.server import constants
    from sqlalchemy.engine import make_url

    from fedcore.pipeline.record import mlflow_page

    python, _, module, host, port = services["mlflow"]["command"]
    assert (python, module, host) == ("python", mlflow_page.__name__, "0.0.0.0")
    assert services["mlflow"]["ports"] == [f"127.0.0.1:{port}:{port}"]
    address = services["mlflow"]["environment"]["MLFLOW_TRACKING_URI"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    made = mlflow_page.settings(int(port), "fedcore:secret")
    assert made[constants.BACKEND_STORE_URI_ENV_VAR] == address
    assert made["MLFLOW_SERVER_ALLOWED_HOSTS"] == f"127.0.0.1:{port},localhost:{port}"
    assert services["worker"]["environment"]["MLFLOW_TRACKING_URI"] == address
    names = re.findall(r"create database (\w+);", (ROOT / "ops" / "databases.sql").read_text())
    prefect = services["prefect"]["environment"]["PREFECT_API_DATABASE_CONNECTION_URL"]
    for url, name in zip((prefect, address), names, strict=True):
        assert (make_url(url).host, make_url(url).database) == ("database", name)


@pytest.mark.slow
def test_a_builder_takes_the_file(project: Path):
    """docker compose or podman-compose, where one is here; an image needs the network, and is not built."""
    for words in (["docker", "compose"], ["podman-compose"]):
        if shutil.which(words[0]) and not subprocess.run([*words, "version"], capture_output=True).returncode:
            break
    else:
        pytest.skip("neither docker compose nor podman-compose is here: the file is not read by its builder")
    more = ["-f", str(project / "ops" / "compose.yaml"), "--env-file", str(project / ".fedcore" / "nightly.env")]
    done = subprocess.run([*words, *more, "config"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
