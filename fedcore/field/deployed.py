"""The model that a device has at the end of a run, for new rows of its own. Nothing leaves the device."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd

from fedcore.api.serving import ServedModels
from fedcore.core.rounds import deploy_on
from fedcore.data.readers import read
from fedcore.data.schema import Fit
from fedcore.errors import InputError
from fedcore.execute.accelerator import one_thread
from fedcore.field.device import find_memory
from fedcore.field.plan import Plan
from fedcore.field.rows import DeviceRows, check_owner
from fedcore.field.wire import unseal
from fedcore.types.method import Message


def predict(
    memory: Path, run: str, name: str, file: Path, own: DeviceRows | None = None,
    notify: Callable[[str], None] = lambda line: None,
) -> pd.DataFrame:  # fmt: skip
    """Return a frame with the label of each row of a table, and probabilities, see `ServedModels.predict`.

    memory: the device's folder. run: whose model it is. name: the device's. own: its rows, which prepare new ones in a
    run of an earlier version; later ones keep the numbers that prepared its rows. notify: called with a line if the
    device has not had the model of the last round.

    Raises InputError for a run that this device has no model of, and for rows of another schema.
    """
    folder = memory / run
    try:
        plan = Plan.read(folder / "plan.json")
        header, tensors = unseal((folder / "deployed").read_bytes(), f"{name}: {folder / 'deployed'}")
    except OSError:
        raise InputError(f"--run {run}: {name} has no model of such a run") from None
    recipe = plan.read_recipe()
    if recipe is None or not recipe.schema.columns:
        raise InputError(f"--run {run}: its devices do not learn from tables")
    if (kept_fit := header.get("fit")) is not None:
        fit = Fit(**{part: tuple(numbers) for part, numbers in kept_fit.items()})
    elif own is None:
        raise InputError(f"--run {run}: an earlier version made it; give --data, the rows of {name} in that run")
    else:
        fit = recipe.fit(own.splits(recipe, plan.seed))
    schema = replace(recipe.fitted, devices={name: fit}, shared=fit)
    reading = schema.missing_values, schema.label, schema.names, schema.spelling, schema.known, schema.decimal
    frame = read(file, *reading).frame
    check_owner(frame, schema, name, "")
    method, nets = plan.build()
    rounds = [stage.rounds for stage in method.stages]
    if (turn := header.get("turn")) is not None and (at := sum(rounds[: turn[0]]) + turn[1] + 1) < sum(rounds):
        notify(f"--run {run}: model of round {at} of {sum(rounds)}; {name} was away later, or the run is not over")
    kept, _ = find_memory(folder, str(header["memory"]), name)
    message = Message(tensors.get("params", {}), tensors.get("extra", {}))
    with one_thread():
        model = deploy_on(method.deploy, name, nets[name])(kept, message)
    costs = header.get("costs") and tuple(map(tuple, header["costs"]))
    served = ServedModels(schema, ((model, nets[name]),), {name: 0}, costs=costs)
    return served.predict(frame, name, every_class=True)
