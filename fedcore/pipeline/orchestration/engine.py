"""What computes the steps of a run: worker processes of this machine, or a Dask cluster."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch

from fedcore.config.settings import Setting
from fedcore.config.studies import Run
from fedcore.execute.cluster import Cluster
from fedcore.execute.workers import Engine, Workers
from fedcore.pipeline.cache.calls import store_error
from fedcore.pipeline.cache.keys import OWN_PACKAGES
from fedcore.pipeline.cache.store import Store


def choose_engine(run: Run, settings: Iterable[Setting], store: Store, say: Callable[[str], None]) -> Engine:
    """Return what computes the steps of a run.

    settings: those of its jobs; a cluster is sent the user's modules that they name. store: all workers must read it.
    say: called with a line about the cluster.
    """
    if run.engine == "local":
        return Workers(run.workers)
    # What no worker has in its own folder yet, so that it must ask the store.
    check = partial(store_error, store, store.put(torch.tensor([*os.urandom(16)]))) if run.cluster else None
    return Cluster(
        run.cluster, run.workers, own=sorted(OWN_PACKAGES), modules=own_modules(settings), check=check, say=say,
    )  # fmt: skip


def own_modules(settings: Iterable[Setting]) -> list[str]:
    """Return the user's modules and packages that the settings name, those aside that are installed."""
    named = {
        name.partition(":")[0].partition(".")[0]
        for setting in settings
        for name in (*(str(net["name"]) for net in setting.nets), *(str(row.name) for row in setting.methods))
        if ":" in name
    }
    installed = {Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")}
    return sorted(name for name in named if not installed & {*_place(name).parents})


def _place(module: str) -> Path:
    spec = find_spec(module)
    return Path((spec and spec.origin) or ".").resolve()
