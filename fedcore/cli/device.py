"""A device's side of the field."""

from __future__ import annotations

from pathlib import Path

import click

from fedcore.errors import InputError


@click.group()
def device() -> None:
    """Take part, as one device, in a method that runs in the field (docs/field.md)."""


@device.command()
@click.argument("kit", type=click.Path(path_type=Path))
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    required=True,
    help="The device's own rows: CSV, Parquet, a folder of pictures; or a file of examples.",
)
@click.option("--allow", multiple=True, help="A method that may run here, or numbers; may be given several times.")
@click.option("--memory", type=click.Path(path_type=Path), help="Where its memory is kept; in the kit by default.")
@click.option("--with-parent", is_flag=True, hidden=True)
def start(kit: Path, data: Path, allow: tuple[str, ...], memory: Path | None, with_parent: bool) -> None:
    """Connect to the server of a kit, and answer it until Ctrl-C.

    KIT is the archive or the folder that the study's owner has made for this device. Rows and memory stay on this
    machine. A method that --allow does not name is refused; --allow numbers lets medians, means and variances of
    columns leave it, which some studies need to prepare rows alike.

    \b
    fedcore device start a.zip --data a.csv --allow fedavg --allow analytic --allow numbers
    """
    from fedcore.methods import METHODS

    if not allow:
        raise InputError("--allow: name the methods that may run here, e.g. --allow fedavg (docs/privacy.md)")
    for name in allow:
        if name != "numbers" and name not in METHODS:
            raise InputError(f"--allow {name}: is no method of fedcore")
    from fedcore.field.kits import read_kit, unpack_kit

    kit = unpack_kit(kit)
    found = read_kit(kit)
    require_flare()
    from fedcore.field.rows import Rows

    rows = Rows(data, found.name)
    import logging
    import sys
    import threading

    from fedcore.field.cells import DeviceCell
    from fedcore.field.device import FieldDevice
    from fedcore.field.keys import Keys

    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    folder = memory or kit / "memory"
    folder.mkdir(parents=True, exist_ok=True)
    cell = DeviceCell(found, FieldDevice(found.name, rows, folder, allow, keys=Keys(found)))
    print(f"{found.name}: {rows}, allows {', '.join(allow)}; server {found.address}", flush=True)
    try:
        if with_parent:
            sys.stdin.buffer.read()  # until the other end closes, in whatever way
        else:
            threading.Event().wait()
    finally:
        cell.close()


def require_flare() -> None:
    """Refuse in one line where NVIDIA FLARE is not installed."""
    from importlib.util import find_spec

    if find_spec("nvflare") is None:
        raise InputError("nvflare is not installed; pip install 'fedcore[field]'")
