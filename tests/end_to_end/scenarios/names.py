"""Names that are hard for some place that they reach, in every command."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from project import Project, Said

from scenarios.place import Place

NAMES = (
    "s{0}", "a b", "'q\"", "%20", "Zürich", "Zu\u0308rich", "🙂", "x\ny", "../x", "n" * 200, "\u202eabc",
)  # fmt: skip
"""A template, blanks, quotes, an escape, umlauts in both forms, an emoji, a line's end, a path, a long one, a mark."""
COLUMNS = ("b%20 {0}", "ü 🙂")
DEVICE, LABEL, CLASSES = "si te\u202e", 'fa"ult', ("../no", "🙂 {1}")
TABLE, COPY, CLONE = "data/m s{0} ü.csv", "my back%20up ü {0}", "clo ne {0} 🙂"
SETTINGS = (
    "study=code", "data.name=table", f"data.path={TABLE}", f"data.label={LABEL}", f"data.device={DEVICE}",
    "federation.partition=by_device", "seed=0", "methods=[fedavg_3]", "run.every=3",
)  # fmt: skip


@dataclass(frozen=True)
class Named:
    """said: what each command said, in its order. predicted: the predictions, of a restored clone as well."""

    project: Project
    said: dict[str, Said]
    predicted: tuple[pd.DataFrame, pd.DataFrame]
    kits: list[Path]


def named(place: Place) -> Named:
    project, clone = place.copy("nam {0} ü"), place.copy(CLONE, record=False)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30 * len(NAMES), 2))
    rows = pd.DataFrame(x, columns=list(COLUMNS)).assign(**{DEVICE: np.resize(NAMES, len(x))})
    rows[LABEL] = np.where(x.sum(1) > 0, *CLASSES)
    for own in (project, clone):
        rows.to_csv(own.folder / TABLE, index=False)
    rows.drop(columns=[LABEL]).head(22).to_csv(project.folder / "new.csv", index=False)
    said = {"run": project.federate(*SETTINGS)}
    model = said["run"].out.rpartition("fedcore promote ")[2].split()[0]
    for words in (
        ["show"], ["show", "--history"], ["promote"], ["promote", model, "--no-final-fit"], ["status"],
        ["predict", "new.csv", "--out", "out {0}.csv"], ["predict", "new.csv", "--device", NAMES[8]],
        ["save", f"../{COPY}"], ["prune", "--days", "0", "--dry-run"],
        ["field", "init", f"../field {CLONE}", *SETTINGS[:-3], "--address", "127.0.0.1:9"],
    ):  # fmt: skip
        said[" ".join(words[:2])] = project.run("fedcore", *words)
    said["restore"] = clone.run("fedcore", "restore", f"../{COPY}")
    said["predict again"] = clone.run("fedcore", "predict", str(project.folder / "new.csv"), "--out", "out.csv")
    frames = [pd.read_csv(path) for path in (project.folder / "out {0}.csv", clone.folder / "out.csv")]
    kits = sorted((place.folder / f"field {CLONE}" / "devices").glob("*.zip"))
    return Named(project, said, (frames[0], frames[1]), kits)
