"""A run with devices that are somewhere else: its folder on the server, from which it goes on after a kill."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedcore.config.methods import MethodConfig
from fedcore.core.rounds import RoundResult
from fedcore.field.plan import Plan, plan_of
from fedcore.field.server import Field, Link, federation_of, run_in_field
from fedcore.field.state import state_bytes, state_of
from fedcore.field.wire import write_file
from fedcore.nets import net
from fedcore.types import Data, InputError, Public


@dataclass(frozen=True)
class Setup:
    """What a server knows of its devices before a run. net: the name of their net, which has its default settings."""

    devices: tuple[str, ...]
    shape: tuple[int, ...]
    classes: int
    net: str = "mlp"

    def public(self) -> Public:
        """Return what a method may know before it begins: no test set, since there is none."""
        one = net(self.net, shape=self.shape, classes=self.classes)
        none = Data(torch.zeros(0, *self.shape), torch.zeros(0, dtype=torch.int64))
        return Public(dict.fromkeys(sorted(self.devices), one), none, self.classes, none)


def write_setup(server: Path, setup: Setup) -> None:
    """Write a setup into a server's kit."""
    setup.public()  # refuses an unknown net
    write_file(server / "setup.json", json.dumps(vars(setup)).encode())


def read_setup(server: Path) -> Setup:
    """Read what `write_setup` wrote. Raises InputError for a folder without it."""
    try:
        words = json.loads((server / "setup.json").read_text("utf-8"))
        return Setup(tuple(words["devices"]), tuple(words["shape"]), words["classes"], words["net"])
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{server}: is no kit of a server; fedcore field init makes them") from None


def run_with_devices(
    link: Link,
    setup: Setup,
    config: MethodConfig,
    seed: int,
    folder: Path,
    *,
    seconds: float,
    least: int,
    said: Callable[[str], None] = lambda line: None,
) -> Iterator[RoundResult]:
    """Run a method turn by turn; each turn's state is in `folder`, from whose last one a run goes on.

    folder: its name is the run's. seconds: that devices have for a step. least: how many must answer.

    Raises InputError if another run has that name, and for devices that refuse.
    """
    public = setup.public()
    plan = plan_of(config, public.nets, seed, folder.name, setup.shape, setup.classes)
    _claim(folder, plan)
    field = Field(link, plan, federation_of(public), seconds, said)
    joined = field.join()
    method, _ = plan.build()
    if method.check is not None:
        method.check(joined)
    said(f"{len(joined)} of {len(public.nets)} devices joined, with {sum(joined.values())} training examples")
    kept = folder / "state"
    state = state_of(kept.read_bytes(), str(kept)) if kept.is_file() else None
    for turn in run_in_field(field, seed, state=state, least=least):
        write_file(kept, state_bytes(turn.state))
        write_file(
            folder / f"turn-{turn.round_info.stage}-{turn.round_info.round}.json", json.dumps(_record(turn)).encode()
        )
        yield turn


def _claim(folder: Path, plan: Plan) -> None:
    path = folder / "plan.json"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_file(path, plan.to_json().encode())
    elif path.read_text("utf-8") != plan.to_json():
        raise InputError(f"--name {folder.name}: is another run, with another method or settings; give another name")


def _record(turn: RoundResult) -> dict[str, Any]:
    return {"absent": turn.absent, "up": dict(turn.up), "down": dict(turn.down), "scores": turn.scores}
