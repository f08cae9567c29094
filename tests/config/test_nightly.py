"""The settings of a schedule: nightly.yaml."""

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from fedcore.config import nightly
from fedcore.errors import InputError

WRONG: dict[str, list[Any]] = {
    "retries": [-1, 1.5, "two"],
    "retry_delay": [-1, "long"],
    "time_limit": [0, -1, "long"],
    "keep.cache": [-1, "long"],
    "keep.record": [-1, True],
    "alerts.events": [["promotd"], "failed"],
    "alerts.least_free": [-1, "much"],
    "alerts.webhook": ["ops.example.org", "ftp://ops.example.org/a", "http:///a", 3, "http://me:secret@host/a",
                       "http://host:secret/a", "http://host/é", "http://host/\x7f"],
    "alerts.command": ["logger -t fedcore", []],
    "alerts.mail": ["ops@example.org", {"to": "ops", "sender": "a@b"}, {"to": "a@b"},
                    {"to": "a@b", "sender": "a@b", "host": "smtp://host"}],
    "alerts.sms": [1],
}  # fmt: skip


def write(folder: Path, key: str, value: Any) -> None:
    *above, name = key.split(".")
    section = {name: value}
    for part in above:
        section = {part: section}
    YAML().dump(section, folder / nightly.NIGHTLY)


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in WRONG.items() for value in values])
def test_a_wrong_value_is_refused_by_its_key(tmp_path: Path, key: str, value: Any):
    write(tmp_path, key, value)
    with pytest.raises(InputError, match=f"^{nightly.NIGHTLY}.{key}") as refused:
        nightly.read(tmp_path)
    assert "\n" not in str(refused.value)


def test_a_project_without_the_file_deletes_and_tells_nothing(tmp_path: Path):
    found = nightly.read(tmp_path)
    assert (found.retries, found.time_limit, found.keep.cache, found.keep.record) == (0, None, None, None)
    assert (found.alerts.webhook, found.alerts.command, found.alerts.mail) == (None, None, None)


def test_the_file_that_a_project_gets_is_read_and_explains_every_setting():
    path = Path(__file__).parents[2] / "ops" / nightly.NIGHTLY
    found, text = nightly.read(path.parent), path.read_text()
    assert found.keep.cache is not None
    for kind in (nightly.Nightly, nightly.Keep, nightly.Alerts, nightly.Mail):
        for name in kind.model_fields:
            assert f"{name}:" in text


def test_a_secret_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPS", "https://ops.example.org/secret")
    assert nightly.secret("$OPS") == "https://ops.example.org/secret"
    assert nightly.secret("http://a/b") == "http://a/b"
    with pytest.raises(InputError, match=r"^the environment has no NOBODY$"):
        nightly.secret("$NOBODY")


def test_a_password_is_no_address(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FEDCORE_MAIL_PASSWORD", "pa55 word")
    assert nightly.secret("$FEDCORE_MAIL_PASSWORD") == "pa55 word"
    with pytest.raises(ValueError, match=r"^must be http://"):
        nightly.webhook("$FEDCORE_MAIL_PASSWORD")
