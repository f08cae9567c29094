"""Alerts: a JSON object about a run that failed, a promotion, drift or a full disk, to whom nightly.yaml names.

An alert takes at most LIMIT seconds, and one that fails is a line on stderr: it never changes how a run ends. Addresses
and passwords stand in no message, no record and no history.

A mail by Apprise (1.13) is 6 lines less; the server's reason for a failure stands in its debug log alone, and its
import takes .1 s of a processor.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any

from fedcore import __version__
from fedcore.config import nightly
from fedcore.config.nightly import Alerts, Event, Mail
from fedcore.errors import OneLine, message_of
from fedcore.pipeline import environment
from fedcore.pipeline.command import cause

LIMIT = 20.0
"""Seconds that one way of telling an event may take."""
PASSWORD = "FEDCORE_MAIL_PASSWORD"


def notify(alerts: Alerts, event: Event, text: str) -> None:
    """Send an event to all whom the settings name, if it is one of theirs. Never raises."""
    if event not in alerts.events:
        return
    project = environment.HOME.name
    content = {
        "event": event, "project": project, "folder": str(environment.HOME), "host": platform.node(),
        "date": datetime.now().astimezone().isoformat(timespec="seconds"), "fedcore": __version__,
        "text": f"{project}: {event.replace('_', ' ')}: {text}",
    }  # fmt: skip
    channels: dict[str, Callable[[Any, dict[str, str]], None]] = {"webhook": post, "command": call, "mail": send}
    for name, channel in channels.items():
        if (to := getattr(alerts, name)) and (reason := _bounded(partial(channel, to, content))):
            sys.stderr.write(f"fedcore: alert {event!r} by {name}: not sent: {reason}\n")


def _bounded(channel: Callable[[], None]) -> str:
    """Return why a way fails, or "". It has LIMIT seconds, for whatever it waits: names, connections, programs."""
    reasons = [f"no end after {LIMIT:g} s"]

    def work() -> None:
        try:
            channel()
            reasons.append("")
        except Exception as error:
            late = isinstance(error, subprocess.TimeoutExpired | TimeoutError)
            if not late and not isinstance(getattr(error, "reason", None), TimeoutError):
                reasons.append(message_of(error))

    thread = threading.Thread(target=work, daemon=True, name="fedcore-alert")
    thread.start()
    thread.join(LIMIT)
    return reasons[-1]


def post(webhook: str, content: dict[str, str]) -> None:
    """Send JSON to an address of nightly.yaml. Raises OSError for any answer but a 2xx."""
    from urllib.request import Request, urlopen

    request = Request(nightly.webhook(webhook), json.dumps(content).encode(), {"Content-Type": "application/json"})
    urlopen(request, timeout=LIMIT).close()


def call(command: list[str], content: dict[str, str]) -> None:
    """Run a program in the project's folder, with JSON on its standard input."""
    ended = subprocess.run(
        command, input=json.dumps(content).encode(), cwd=environment.HOME, timeout=LIMIT,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    if ended.returncode:
        raise OSError(f"{command[0]} ended with code {ended.returncode}")


def send(mail: Mail, content: dict[str, str]) -> None:
    """Send a mail, over TLS if someone logs in."""
    import smtplib
    import ssl
    from email.message import EmailMessage

    message = EmailMessage()
    message["Subject"] = " ".join(f"fedcore: {content['event']} in {content['project']}".split())
    message["From"], message["To"] = mail.sender, mail.to
    message.set_content(f"{content['text']}\n\n{json.dumps(content, indent=1)}\n")
    host, _, port = mail.host.partition(":")
    secure = ssl.create_default_context()
    if port == "465":
        server: smtplib.SMTP = smtplib.SMTP_SSL(host, 465, timeout=LIMIT, context=secure)
    else:
        server = smtplib.SMTP(host, int(port or 25), timeout=LIMIT)
    with server:
        if mail.user:
            if port != "465":
                server.starttls(context=secure)
            server.login(mail.user, nightly.secret(f"${PASSWORD}"))
        server.send_message(message)


def notify_disk(alerts: Alerts) -> None:
    """Tell that the disk is low, if less is free than it should be."""
    free = shutil.disk_usage(environment.HOME).free / 1e9
    if free < alerts.least_free:
        notify(alerts, "disk_low", f"{free:.1f} GB are free, less than {alerts.least_free:g}")


@contextmanager
def watch() -> Iterator[None]:
    """Tell why the body failed. Wrong settings are refused before it; who stops it by a signal knows that already."""
    alerts = nightly.read().alerts
    try:
        yield
    except Exception as error:
        notify_failure(alerts, error)
        raise


def notify_failure(alerts: Alerts, error: BaseException | str) -> None:
    """Tell that a run failed, and whether the disk is low."""
    line = next(iter(str(error).splitlines()), "")
    if isinstance(error, BaseException) and not isinstance(error, OneLine):
        line = f"{type(error).__name__}: {line}"
    notify(alerts, "failed", error if isinstance(error, str) else cause(error) or line)
    notify_disk(alerts)


def scheduled() -> bool:
    """Tell whether a worker of Prefect runs this process, for a deployment."""
    return "PREFECT__FLOW_RUN_ID" in os.environ
