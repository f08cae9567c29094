"""A method on real devices."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedcore.errors import InputError, TooFew

if TYPE_CHECKING:
    from fedcore.core.rounds import RoundResult


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

    from fedcore.cli.device import require_flare

    require_flare()
    from fedcore.api.federation import federate
    from fedcore.api.method_settings import method
    from fedcore.data import load
    from fedcore.field.trial import try_method

    settings: dict[str, Any] = {} if rounds is None else {"rounds": rounds}
    fed = federate(load("digits"), devices=devices).federation(seed)
    with tempfile.TemporaryDirectory(prefix="fedcore-field-") as folder:
        found = try_method(method(name, **settings), fed, seed, Path(folder), say)
    for line in found:
        print(f"differs: {line}")
    if found:
        sys.exit(1)
    print(f"{name}: the bits are those of the simulation: server, messages, memories, bytes and scores of every round")


@field.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--device", "devices", multiple=True, required=True, help="A device's name; once for each.")
@click.option("--address", required=True, help="Where devices reach the server, host:port.")
@click.option("--shape", required=True, help="Of an example, e.g. 12 (features) or 1x28x28 (pictures).")
@click.option("--classes", type=click.IntRange(2), required=True, help="How many.")
@click.option("--net", default="mlp", show_default=True, help="The net of all devices, with its own settings.")
def init(folder: Path, devices: tuple[str, ...], address: str, shape: str, classes: int, net: str) -> None:
    """Make the kits of a server and its devices: certificates and keys, a folder for each.

    Give each device its own folder, by a way that nobody else reads, and keep it from everybody else.

    \b
    fedcore field init my-field --device a --device b --address 127.0.0.1:8002 --shape 12 --classes 3
    """
    from fedcore.cli.device import require_flare

    require_flare()
    lengths = shape.split("x")
    if not all(length.isdecimal() and int(length) for length in lengths):
        raise InputError(f"--shape {shape}: must be whole numbers, such as 12 or 1x28x28")
    from fedcore.field.kits import SERVER, make_kits
    from fedcore.field.runs import Setup, write_setup

    setup = Setup(tuple(sorted(devices)), tuple(map(int, lengths)), classes, net)
    setup.public()  # an unknown net is refused before anything is written
    kits = make_kits(folder, devices, address)
    write_setup(kits[SERVER], setup)
    for name, kit in kits.items():
        print(f"{name}: {kit}")


@field.command()
@click.argument("kit", type=click.Path(path_type=Path))
@click.option("--method", "method_name", default="fedavg", show_default=True, help="The method.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the method, e.g. rounds=10.")
@click.option("--name", default="first", show_default=True, help="The run's name; the same name goes on with it.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--deadline", type=click.FloatRange(1.0), default=600.0, show_default=True, help="Seconds for a step.")
@click.option("--least", type=click.IntRange(1), help="How many devices must answer; all by default.")
def run(
    kit: Path, method_name: str, settings: tuple[str, ...], name: str, seed: int, deadline: float, least: int | None
) -> None:
    """Run a method with the devices of a server's kit, which have been started by their owners.

    A turn is kept once it is over. The same command goes on after Ctrl-C or a kill, with the same bits.

    \b
    fedcore field run my-field/server --method fedavg --set rounds=10 --deadline 60 --least 3
    """
    from fedcore.cli.device import require_flare

    require_flare()
    if not name.isalnum():
        raise InputError(f"--name {name}: must be letters and digits")
    from fedcore.api.method_settings import method
    from fedcore.config.files import parse_value
    from fedcore.field.kits import read_kit
    from fedcore.field.runs import read_setup, run_with_devices

    setup = read_setup(kit)
    parts = [setting.partition("=") for setting in settings]
    config = method(method_name, **{key: parse_value(key, value) for key, _, value in parts})
    from fedcore.field.cells import Cells
    from fedcore.pipeline.command import Failed

    link = Cells(read_kit(kit))
    try:
        link.wait_for(list(setup.devices), deadline)
        turns = run_with_devices(
            link,
            setup,
            config,
            seed,
            kit / "runs" / name,
            seconds=deadline,
            least=least or len(setup.devices),
            said=say,
        )
        for turn in turns:
            say(summary(turn))
    except TooFew as few:
        raise Failed(f"{few}; the same command goes on from the last turn") from None
    finally:
        link.close()
    say(f"{name}: over; {kit / 'runs' / name / 'state'} holds what each device was sent last")


def say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


def summary(turn: RoundResult) -> str:
    """Return a turn in one line: who is absent, and the mean accuracy on the devices' own test examples."""
    known = [splits["test"]["accuracy"] for splits in (turn.scores or {}).values() if "test" in splits]
    known = [value for value in known if value == value]
    absent = f"; absent: {', '.join(turn.absent)}" if turn.absent else ""
    mean = f"{sum(known) / len(known):.3f} of {len(known)} devices' test examples right" if known else "not scored"
    return f"stage {turn.state.stage + 1}, round {turn.state.round}: {mean}{absent}"
