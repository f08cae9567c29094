"""A device's side of the field."""

import logging
import os
import sys
import threading
from functools import partial
from pathlib import Path

import click

from fedcore.cli.project import PATH
from fedcore.errors import InputError, printable, require_extra


@click.group()
def device() -> None:
    """Take part in the field as one device (`fedcore docs field`)."""


@device.command()
@click.argument("kit", type=PATH)
@click.option("--data", type=PATH, required=True, help="Its rows: CSV, Parquet, pictures; or a file of examples.")
@click.option("--allow", multiple=True, help="A method, numbers, or module=SHA-256; may be given several times.")
@click.option("--sends", multiple=True, help="What it may send, such as model; by default what the methods send.")
@click.option("--max-steps", type=click.IntRange(1), default=100_000, show_default=True, help="Minibatches of a round.")
@click.option("--max-parameters", type=click.IntRange(1), default=50_000_000, show_default=True, help="Of a net.")
@click.option("--max-number", type=click.IntRange(1), default=20_000, show_default=True, help="In a run's settings.")
@click.option("--max-runs", type=click.IntRange(1), default=100, show_default=True, help="Whose memories are kept.")
@click.option("--max-minutes", type=click.FloatRange(0.01), default=60.0, show_default=True, help="Of a step.")
@click.option("--max-gigabytes", type=click.FloatRange(2.0), default=8.0, show_default=True, help="Of main memory.")
@click.option("--in-sum", type=click.IntRange(2), default=3, show_default=True, help="Devices that a masked sum needs.")
@click.option("--memory", type=PATH, help="Where its memory is kept; in the kit by default.")
@click.option("--with-parent", is_flag=True, hidden=True)
def start(
    kit: Path, data: Path, allow: tuple[str, ...], sends: tuple[str, ...], max_steps: int, max_parameters: int,
    max_number: int, max_runs: int, max_minutes: float, max_gigabytes: float, in_sum: int, memory: Path | None,
    with_parent: bool,
) -> None:  # fmt: skip
    """Connect to the server of a kit, and answer it until Ctrl-C.

    KIT is the archive or the folder that the study's owner has made for this device. Rows and memory stay on this
    machine. A method that --allow does not name is refused; --allow numbers lets medians, means and variances of
    columns leave it, which some studies need to prepare rows alike.

    \b
    fedcore device start a.zip --data a.csv --allow fedavg --allow analytic --allow numbers
    """
    if not allow:
        raise InputError("--allow: name the methods that may run here, e.g. --allow fedavg (`fedcore docs privacy`)")
    from fedcore.field.consent import Limits, consent_of, describe

    limits = Limits(max_steps, max_parameters, max_number, max_runs, max_minutes, in_sum)
    consent = consent_of(allow, sends or None, limits)
    from fedcore.field.kits import SERVER, check_kit, find_server, only_one, read_kit, unpack_kit

    kit = unpack_kit(kit)
    opened = read_kit(kit)
    if opened.name == SERVER:
        raise InputError(f"{kit}: the server's kit, which fedcore field start takes; a device takes its own archive")
    require_extra("field")
    check_kit(opened)
    from fedcore.field.rows import DeviceRows

    rows = DeviceRows(data, opened.name)
    from fedcore.field.cells import DeviceCell
    from fedcore.field.device import FieldDevice
    from fedcore.field.keys import Keys

    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    limit_memory(max_gigabytes)
    folder = memory or kit / "memory"
    folder.mkdir(parents=True, exist_ok=True)
    with only_one(kit):
        waits = find_server(opened)
        cell = DeviceCell(opened, FieldDevice(opened.name, rows, folder, consent, keys=Keys(opened), overrun=give_up))
        for line in describe(consent):
            print(line)
        print(printable(f"{opened.name}: {rows}, allows {', '.join(allow)}; server {opened.address}"), flush=True)
        if waits:
            print(f"waits for the server at {opened.address} ({waits})", flush=True)
        try:
            if with_parent:
                sys.stdin.buffer.read()  # until the other end closes, in whatever way
            else:
                threading.Event().wait()
        finally:
            cell.close()


@device.command()
@click.argument("kit", type=PATH)
@click.argument("rows", type=PATH)
@click.option("--data", type=PATH, help="The rows that it learnt from, for a run of an earlier version.")
@click.option("--run", default="first", show_default=True, help="The run whose model predicts.")
@click.option("--memory", type=PATH, help="Where its memory is kept; in the kit by default.")
@click.option("--out", type=PATH, help="A CSV file to write; the terminal by default.")
def predict(kit: Path, rows: Path, data: Path | None, run: str, memory: Path | None, out: Path | None) -> None:
    """Label new rows with the model that this device has at the end of a run, a personal one among others.

    \b
    fedcore device predict a.zip new.csv --run first
    """
    from fedcore.field.kits import read_kit, unpack_kit
    from fedcore.field.rows import DeviceRows

    kit = unpack_kit(kit)
    name = read_kit(kit).name
    own = None if data is None else DeviceRows(data, name)
    from fedcore import spreadsheet
    from fedcore.field import deployed

    if not run.isalnum():
        raise InputError(f"--run {run}: must be letters and digits")
    found = deployed.predict(memory or kit / "memory", run, name, rows, own, partial(click.echo, err=True))
    spreadsheet.write(found, out or sys.stdout)


def limit_memory(gigabytes: float) -> None:
    """Let this process take no more memory: a step that wants more fails, and the device refuses it."""
    try:
        import resource
    except ImportError:  # Windows
        return
    most = int(gigabytes * 2**30)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (most if hard < 0 else min(most, hard), hard))


def give_up() -> None:
    """End this process, whose step takes too long; no thread can be stopped. All that it knows is on disk."""
    print("a step takes longer than --max-minutes: this device ends", flush=True)
    os._exit(1)
