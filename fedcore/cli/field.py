"""A method on real devices."""

from __future__ import annotations

import sys
from typing import Any

import click


@click.group()
def field() -> None:
    """Run a method on real devices, whose examples never leave them (docs/field.md)."""


@field.command("try")
@click.option(
    "--devices", type=click.IntRange(2, 50), default=4, show_default=True, help="Processes beside the server."
)
@click.option("--method", "name", default="fedavg", show_default=True, help="The method, with its own settings.")
@click.option("--rounds", type=click.IntRange(1), help="Its rounds, if it has any; its own by default.")
@click.option("--seed", type=int, default=0, show_default=True)
def try_(devices: int, name: str, rounds: int | None, seed: int) -> None:
    """Try the field on this machine: a process for each device, on loopback, with the digits in this package.

    Each process reads the file of its own examples alone. At the end the command says whether the bits are those of a
    simulation, and leaves with 1 if they are not.
    """
    import tempfile
    from pathlib import Path

    from fedcore.cli.device import require_flare

    require_flare()
    from fedcore.api.federation import federate
    from fedcore.api.runs import method
    from fedcore.data import load
    from fedcore.field.trial import try_method

    settings: dict[str, Any] = {} if rounds is None else {"rounds": rounds}
    fed = federate(load("digits"), devices=devices).federation(seed)
    with tempfile.TemporaryDirectory(prefix="fedcore-field-") as folder:
        found = try_method(method(name, **settings), fed, seed, Path(folder), lambda line: print(line, flush=True))
    for line in found:
        print(f"differs: {line}")
    if found:
        sys.exit(1)
    print(f"{name}: the bits are those of the simulation: server, messages, memories, bytes and scores of every round")
