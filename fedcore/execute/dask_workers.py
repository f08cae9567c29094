"""Dask's side of a cluster: its client, the workers of an address and whether they fit, and workers of our own.

The scheduler needs neither fedcore nor PyTorch. Dask is imported when it is used.
"""

import asyncio
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedcore.errors import InputError
from fedcore.execute import remote
from fedcore.execute.accelerator import find_accelerator
from fedcore.execute.template import MEMORY

DEATHS = 3
"""Workers that may die with a step, on workers of our own; other clusters have Dask's scheduler.allowed-failures."""

GPU = {"GPU": 1}
"""The Dask resource that a step on an accelerator takes."""


def differences(survey: Mapping[str, str] | BaseException, expected: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with a worker, in words."""
    if isinstance(survey, BaseException):
        yield f"cannot run fedcore ({reason(survey)})"
        return
    for name, value in expected.items():
        here = survey.get(name, "")
        if name == "check":
            yield from [here] if here else []
        elif here != value:
            yield f"has another {name}" if name.startswith("source") else f"has {name} {here or '(none)'}, not {value}"


def reason(error: BaseException) -> str:
    """Return the first cause of an error in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error).split()) or type(error).__name__


def by_value(name: str) -> Callable[..., Any]:
    """Return a call of a function of `fedcore.execute.remote` that a scheduler without fedcore can read."""

    def call(*args: Any) -> Any:
        from importlib import import_module

        return getattr(import_module("fedcore.execute.remote"), name)(*args)

    return call


def shipment(distributed: Any, modules: Sequence[str]) -> Any:
    """Return a plugin that brings modules to every worker, also to those that join later."""
    archived = remote.archive(modules)

    class Modules(distributed.WorkerPlugin):  # type: ignore[misc]
        def setup(self, worker: Any) -> None:
            from pathlib import Path

            from fedcore.execute.remote import install

            install(archived, modules, Path(worker.local_directory))

    return Modules()


def import_distributed() -> Any:
    """Return Dask's package, with its lines on stderr off: errors say in one line what a user must know."""
    import distributed

    for name in ("distributed", "distributed.client", "tornado.application"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return distributed


def connect(distributed: Any, address: str, count: int, wait: float, security: Any = None) -> Any:
    """Return a client of a scheduler that has at least `count` workers; raises InputError in one line otherwise.

    wait: seconds for them. security: certificates; None: those of Dask's configuration.
    """
    client = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about other versions: the survey refuses those that matter
            client = distributed.Client(
                address, timeout=wait, direct_to_workers=True, set_as_default=False, security=security
            )
        client.wait_for_workers(count, timeout=wait)
    except Exception as error:
        if client is not None:
            client.close()
        raise InputError(f"cluster {address}: no scheduler with workers answers ({reason(error)})") from error
    return client


class OwnWorkers:
    """A scheduler in this process and `count` workers as processes on this machine, on loopback.

    They and this process know one another by certificates made for them: other users of the machine could speak to a
    scheduler without, and have it run what they like with the rights of this one.
    """

    def __init__(self, distributed: Any, count: int) -> None:
        from distributed.deploy.subprocess import SubprocessWorker

        class Worker(SubprocessWorker):
            async def _start(self) -> None:
                spec = json.dumps({"cls": self.worker_class, "opts": self.worker_kwargs})
                self.process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "dask", "spec", self.scheduler, "--spec", spec,
                    env={**memory, **os.environ, **settings, "PYTHONPATH": os.pathsep.join(sys.path)},
                    stdin=asyncio.subprocess.DEVNULL,
                    process_group=0,  # only this process handles Ctrl-C
                )  # fmt: skip

        self.security = distributed.Security.temporary()
        self._folder = TemporaryDirectory(prefix="fedcore-")  # of mode 700
        files = {name: Path(self._folder.name) / f"{name}.pem" for name in ("ca", "cert", "key")}
        files["ca"].write_text(self.security.tls_ca_file)
        files["cert"].write_text(self.security.tls_worker_cert)
        files["key"].write_text(self.security.tls_worker_key)
        memory = {variable: str(value) for variable, (_, value) in MEMORY.items()}
        tls = "DASK_DISTRIBUTED__COMM__TLS__"
        settings = {
            "DASK_LOGGING__DISTRIBUTED": "critical",
            f"{tls}CA_FILE": str(files["ca"]),
            f"{tls}WORKER__CERT": str(files["cert"]),
            f"{tls}WORKER__KEY": str(files["key"]),
        }
        scheduler = {
            "cls": distributed.Scheduler,
            "options": {
                "host": "tls://127.0.0.1", "dashboard_address": "127.0.0.1:0", "allowed_failures": DEATHS - 1,
                "security": self.security,
            },
        }  # fmt: skip
        gpu = {"resources": GPU} if find_accelerator("auto") else {}
        own = {"host": "127.0.0.1", "protocol": "tls", "nthreads": 1, "memory_limit": 0, "dashboard": False, **gpu}
        worker = {"cls": Worker, "options": {"worker_kwargs": own}}
        workers = dict.fromkeys(range(count), worker)
        self._cluster = distributed.SpecCluster(
            workers, scheduler, worker, security=self.security, silence_logs=logging.CRITICAL
        )
        self.address = self._cluster.scheduler_address

    def close(self, timeout: float) -> None:
        self._cluster.close(timeout=timeout)
        self._folder.cleanup()
