"""A model as a file for a machine without PyTorch and MLflow."""

import re
from pathlib import Path

import click

from fedcore.errors import InputError

NO_NAME = r"[^\w.-]+"
"""What a file's name does not have of a device's."""


@click.command()
@click.argument("model")
@click.option("--device", help="Whose model and scales.")
@click.option("--all-devices", is_flag=True, help="A file for each device: NAME-DEVICE.onnx.")
@click.option("--to", type=click.Path(path_type=Path), required=True, help="The file to write, NAME.onnx.")
def export(model: str, device: str | None, all_devices: bool, to: Path) -> None:
    """Write a device's model as ONNX, which onnxruntime alone runs, and a JSON file that names its inputs.

    \b
    fedcore export machines-fault --device plant_A --to fault.onnx     the champion
    fedcore export machines-fault/3 --all-devices --to fault.onnx      version 3: fault-plant_A.onnx, ...

    Its labels are first compared with those of `fedcore predict` on 1,000 made rows.
    """
    from fedcore.cli.predict import load, require_writable
    from fedcore.cli.project import enter_project

    if (device is None) != all_devices:
        raise InputError("--device: give the name of a device, or --all-devices")
    if to.suffix != ".onnx":
        raise InputError(f"--to = {to}: must end in .onnx")
    require_writable(to)
    enter_project()
    _, served, _ = load(model)
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError:
        raise InputError("fedcore export: needs onnx and onnxruntime, fedcore's extra `export`") from None
    from fedcore.api.export import CHECKED, export

    stems = {name: f"{to.stem}-{re.sub(NO_NAME, '-', name)}" for name in served.devices}
    files = {name: to.with_stem(stem) for name, stem in stems.items()} if device is None else {device: to}
    if len({*files.values()}) < len(files):
        raise InputError("--all-devices: names of devices give the same file; export them one by one with --device")
    for name, path in files.items():
        export(served, name, path)
        print(f"{path}: {path.stat().st_size / 1e6:.2f} MB; equal labels on {CHECKED:,} rows")
