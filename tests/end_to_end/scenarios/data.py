"""A user's own tables: one per device, and one for all, as it is."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from project import Project, Said, Seen

from scenarios.kills import Kill, kill
from scenarios.place import Place

# a table per device


@dataclass(frozen=True)
class Tables:
    """first: a folder with a file per device. second: the same after the file of `changed` had changed."""

    project: Project
    changed: str
    first: Seen
    second: Seen


BY_DEVICE = (
    "study=code", "data.name=table", "data.path=devices", "data.label=y", "federation.partition=by_device", "seeds=[3]",
    "methods=[local_only,lmf,st_lf]",
)  # fmt: skip


def tables(place: Place) -> Tables:
    project = place.copy("tables")
    for seed, name in enumerate(("amsterdam", "berlin", "cairo", "são paulo #4")):
        table(project.folder / "devices" / f"{name}.csv", seed)
    first = project.look(project.federate(*BY_DEVICE))
    table(project.folder / "devices" / "cairo.csv", 7, rows=61)
    second = project.look(project.federate(*BY_DEVICE))
    return Tables(project, "cairo", first, second)


def table(path: Path, seed: int, rows: int = 60) -> None:
    """Write a table of three separable classes."""
    rng = np.random.default_rng(seed)
    y = np.arange(rows) % 3
    frame = pd.DataFrame(rng.normal(y[:, None], 1.0, (rows, 5)), columns=list("abcde")).assign(
        y=[f"class {k}" for k in y]
    )
    path.parent.mkdir(exist_ok=True)
    frame.to_csv(path, index=False)


# a table for all


@dataclass(frozen=True)
class Mine:
    """preview, plan: of a table that was not prepared for the project. run: the default study on it. csv: the table.

    promoted: after the proposed model was promoted as it is. new: the test rows of all sites, without a label; labels:
    what the champion predicts of them. shifted: what was said to the same rows with a column renamed. drifted: with a
    column that reads more.

    fitting: a kill between the training of the model's final fit and its registration. fitted: after the same command
    ran to its end; final_labels: what the champion predicts then; again: the same command once more; listed: all
    versions. changed: what is said to the promotion of another version after a cell of the table has changed; edited:
    after a line of the training's code has, and the cell has not.
    """

    project: Project
    csv: Path
    preview: Seen
    plan: Said
    run: Seen
    promoted: Said
    new: pd.DataFrame
    labels: pd.DataFrame
    shifted: Said
    drifted: Said
    fitting: Kill
    fitted: Seen
    final_labels: pd.DataFrame
    again: Seen
    listed: Said
    changed: Said
    edited: Said


MACHINES = (
    "data.name=table", "data.path=data/machines.csv", "data.label=fault", "data.device=site", "data.missing=median",
    "federation.scale=device",
)  # fmt: skip


def mine(place: Place) -> Mine:
    project = place.copy("mine")
    csv = project.folder / "data" / "machines.csv"
    machines().to_csv(csv, index=False)
    preview = project.look(project.run("fedcore", "preview", *MACHINES))
    study = *MACHINES, "methods=[local_only,fedavg,fedasa,majority]", "fedavg.rounds=30"
    plan = project.run("fedcore", "plan", *study)
    run = project.look(project.federate(*study))
    promoted = project.run("fedcore", "promote", "machines-fault", "--no-final-fit")
    project.run("fedcore", "promote")
    (index,) = project.folder.glob("runs/*/partition/my_data/base/seed-0/index.parquet")
    parts = pd.read_parquet(index)
    new = pd.read_csv(csv).iloc[parts[parts["split"] == "test"]["index"]]
    new.drop(columns="fault").to_csv(project.folder / "new.csv", index=False)
    new.rename(columns={"sensor 3": "sensor_3"}).to_csv(project.folder / "shifted.csv", index=False)
    new.assign(**{"sensor 3": new["sensor 3"] + 2}).to_csv(project.folder / "drifted.csv", index=False)
    predict = ("fedcore", "predict")
    project.run(*predict, "new.csv", "--out", "labels.csv", "--fail-on-drift")
    drifted = project.run(*predict, "drifted.csv", "--keep", "sensor 3", "--fail-on-drift", code=3)
    shifted = project.run(*predict, "shifted.csv", code=2, whole=True)
    project.look()
    promote = ("fedcore", "promote", "machines-fault")
    # after the division of all rows, the second one that is read: training itself may end before the kill arrives
    fitting = kill(project, promote[2:], lambda steps: steps["distribute"] >= 2, "promote")
    fitted = project.look(project.run(*promote))
    project.run(*predict, "new.csv", "--out", "final.csv")
    again = project.look(project.run(*promote))
    listed = project.run(*promote, "--seeds")
    whole = csv.read_text()
    csv.write_text(whole.replace("leak", "worn", 1))
    other = (*promote, "--run", listed.out.rpartition("--run=")[2].split()[0])
    changed = project.run(*other, code=2, whole=True)
    csv.write_text(whole)
    project.edit("fedcore/core/training.py", "train", "edited = True")
    edited = project.run(*other, code=2, whole=True)
    labels, final = (pd.read_csv(project.folder / name) for name in ("labels.csv", "final.csv"))
    return Mine(
        project, csv, preview, plan, run, promoted, new, labels, shifted, drifted, fitting, fitted, final, again,
        listed, changed, edited,
    )  # fmt: skip


def machines(rows: int = 50) -> pd.DataFrame:
    """Return rows of six sites: 12 numbers of unequal scale, a text, 5 % missing cells, a label of strings."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 6 * rows)
    x = rng.normal(0, 1, (len(y), 12)) + 2 * np.eye(3, 12)[y]
    frame = pd.DataFrame(x * 10.0 ** np.arange(-3, 9).clip(-3, 3), columns=[f"sensor {i}" for i in range(12)])
    frame["model"] = np.where(rng.random(len(y)) < 0.5, np.array(["A1", "B2", "C3"])[y], "A1")
    frame = frame.mask(rng.random(frame.shape) < 0.05)
    return frame.assign(
        unit="C",
        site=np.repeat([f"plant {name}" for name in "ABCDEF"], rows),
        fault=np.array(["leak", "none", "worn"])[y],
    )
