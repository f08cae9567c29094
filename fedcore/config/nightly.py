"""The settings of a schedule: nightly.yaml, beside params.yaml, which says what a run computes.

A project without the file alerts nobody, tries once, without a limit of time, and deletes nothing by itself.
"""

import os
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from annotated_types import Ge, Gt
from pydantic import AfterValidator, BeforeValidator, Field

from fedcore.config.files import read_mapping
from fedcore.config.signatures import Section, check, matching
from fedcore.errors import InputError

NIGHTLY = "nightly.yaml"
Event = Literal["failed", "promoted", "drifted", "disk_low"]
EVENTS: tuple[Event, ...] = get_args(Event)


def _check_list(values: Any) -> Any:
    if isinstance(values, str):
        raise ValueError("must be a list of words, such as [logger, -t, fedcore]")
    return values


Address = Annotated[str, AfterValidator(matching(r"[^\s@<>,]+@[^\s@<>,]+", "an address, such as ops@example.org"))]
Host = Annotated[str, AfterValidator(matching(r"[\w.-]+(:\d{1,5})?", "a host, or host:port"))]
Days = Annotated[float, Ge(0)]
require_webhook = matching(
    r"(?a)https?://([\w.-]+|\[[\da-fA-F:]+\])(:\d{1,5})?([/?][!-~]*)?|\$\w+",
    "http://... or https://..., or $NAME for a variable of the environment that holds it",
)


class Mail(Section):
    """to, sender: addresses. host: of an SMTP server, with its port if it is not 25; 465 speaks TLS from the start.

    user: who logs in, over TLS, with the password in FEDCORE_MAIL_PASSWORD; None: nobody.
    """

    to: Address
    sender: Address
    host: Host = "localhost"
    user: str | None = None


class Alerts(Section):
    """What is told, and to whom.

    Args:
        events: failed: a run ended early; promoted: there is a new champion; drifted: training rows moved from those of
            the champion; disk_low: less is free than `least_free`.
        least_free: GB of the disk that holds the project.
        webhook: an address that gets a POST of JSON, or $NAME: the variable of the environment that holds it.
        command: a program and its words; it gets the JSON on its standard input.
        mail: to whom, from whom, by which server.
    """

    events: list[Event] = Field(default_factory=lambda: [*EVENTS])
    least_free: Annotated[float, Ge(0)] = 5.0
    webhook: Annotated[str, AfterValidator(require_webhook)] | None = None
    command: Annotated[list[str], Field(min_length=1), BeforeValidator(_check_list)] | None = None
    mail: Mail | None = None


class Keep(Section):
    """Days for which is kept what no run has used, once a run has ended; None: for ever.

    Args:
        cache: steps and their blobs.
        record: MLflow's runs of methods, and the pages of studies, that no champion, candidate or previous is of.
    """

    cache: Days | None = None
    record: Days | None = None


class Nightly(Section):
    """How a project runs on a schedule.

    Args:
        retries: further tries of a run of a deployment that failed.
        retry_delay: seconds before each of them.
        time_limit: seconds after which a try of a deployment has failed; None: no limit.
        keep: what is deleted after a run.
        alerts: what is told, and to whom.
    """

    retries: Annotated[int, Ge(0)] = 0
    retry_delay: Annotated[float, Ge(0)] = 300.0
    time_limit: Annotated[float, Gt(0)] | None = None
    keep: Keep = Keep()
    alerts: Alerts = Alerts()


def read(folder: Path | None = None) -> Nightly:
    """Return the settings of a project's schedule. Raises InputError, which names key and value, for a wrong one."""
    path = (folder or Path()) / NIGHTLY
    if not path.is_file():
        return Nightly()
    values = {key: value for key, value in read_mapping(path, "settings").items() if value is not None}
    return check(Nightly, NIGHTLY, values)


def secret(value: str) -> str:
    """Return a setting, or what the variable of the environment holds that it names: $NAME."""
    if not value.startswith("$"):
        return value
    if not os.environ.get(value[1:]):
        raise InputError(f"the environment has no {value[1:]}")
    return os.environ[value[1:]]


def webhook(value: str) -> str:
    """Return a webhook's address, or that in the variable of the environment that it names."""
    return require_webhook(secret(value))
