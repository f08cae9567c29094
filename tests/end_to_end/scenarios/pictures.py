"""A user's pictures, with a net and methods of the user's own."""

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import own_modules
import pandas as pd
import refusals
import yaml
from PIL import Image
from project import ROOT, Project, Said, Seen

from scenarios.place import Place, cached


@dataclass(frozen=True)
class Own:
    """first: pictures in folders and the module of docs/own_net.md. commented, edited: the same after a comment in the
    module's file, and after a changed line. refused: what was said to what cannot be used. pruned: what
    `fedcore prune` said when all but the steps of edited were 40 days old. cache: files of steps and of blobs before it
    and after. again: edited once more. methods: a method of one's own, and one whose file was put beside the project's.
    kinds: modules of many kinds, as settings of one study.
    """

    project: Project
    first: Seen
    commented: Seen
    edited: Seen
    refused: dict[str, Said]
    pruned: Said
    cache: tuple[dict[str, str], dict[str, str]]
    again: Seen
    methods: Seen
    kinds: Seen


PICTURES = (
    "study=code", "data.name=image_folder", "data.path=data/shapes", "data.size=16", "federation.min_size=4",
)  # fmt: skip
MODULE = "net.name=mynets:Small"
TYPED = (
    "methods=[own_method:median,fedavg,throwaway]", "median.rounds=2", "fedavg.rounds=2", "throwaway.rounds=3",
    "training.shared_init=true",
)  # fmt: skip
THROWAWAY = """
from fedcore.methods.baselines.fedavg import fedavg


def throwaway(*, nets, training, rounds: int = 1):
    return fedavg(nets=nets, training=training, rounds=rounds, weights="even")
"""


def own(place: Place) -> Own:
    project = place.copy("own")
    shapes(project.folder / "data" / "shapes")
    file = project.folder / "mynets.py"
    file.write_text(documented())
    seen = [project.look(project.federate(*PICTURES, MODULE))]
    line = "        x = F.relu(F.max_pool2d"
    for other in (f"        # the largest of 4 x 4\n{line}", "        x = F.relu(F.avg_pool2d"):
        assert file.read_text().count(line) == 1
        file.write_text(file.read_text().replace(line, other))
        age(project, 40)
        seen.append(project.look(project.federate(*PICTURES, MODULE)))
    before = cached(project)
    pruned = project.run("fedcore", "prune")
    project.read = len(project.journal())
    after = cached(project)
    again = project.look(project.federate(*PICTURES, MODULE))
    shutil.copyfile(ROOT / "examples" / "own_method.py", project.folder / "own_method.py")
    (project.folder / "fedcore" / "methods" / "baselines" / "throwaway.py").write_text(THROWAWAY)
    methods = project.look(project.federate(*TYPED))
    kinds = project.look(project.federate(*write_kinds(project.folder)))
    file.write_text(file.read_text() + "\n\nclass Plain:\n    pass\n")
    picture = project.folder / "data" / "shapes" / "stripe" / "07.png"
    picture.write_bytes(picture.read_bytes()[:200])
    names = {"no such file": "mynet:Small", "no such class": "mynets:Smal", "no module": "mynets:Plain"}
    words = {what: f"{' '.join(PICTURES)} net.name={name}" for what, name in names.items()}
    words["damaged picture"] = " ".join([*PICTURES, MODULE])
    cases = {what: {"module": "run", "words": typed, "folder": "."} for what, typed in words.items()}
    refused = refusals.type_all(project, cases)
    return Own(project, *seen, refused, pruned, (before, after), again, methods, kinds)


def write_kinds(folder: Path) -> list[str]:
    """Write a study of two rounds with each kind of module as a setting, and its rows; returns what is typed."""
    shutil.copyfile(Path(own_modules.__file__), folder / "own_modules.py")
    x = np.random.default_rng(7).normal(size=(300, own_modules.FEATURES)).round(3)
    rows = pd.DataFrame(x, columns=[*"abcdef"]).assign(state=(x[:, 0] > x[:, 1]) * 1 + (x[:, 2] > 0) * 1)
    rows.to_csv(folder / "data" / "rows.csv", index=False)
    grid = {"net.name": [f"own_modules:{kind.__name__}" for kind in own_modules.EQUAL]}
    study = {"title": "?", "methods": {"fedavg": {"rounds": 2}}, "sizes": {"small": {"grid": grid}}}
    (folder / "studies" / "kinds.yaml").write_text(yaml.safe_dump({"kinds": study}))
    return [
        "study=kinds", "data.name=table", "data.path=data/rows.csv", "data.label=state", "federation.devices=2",
        "training.shared_init=true", "training.epochs=2",
    ]  # fmt: skip


def age(project: Project, days: float) -> None:
    """Make the cache and its journal older by this number of days."""
    for name in cached(project):
        path = project.folder / ".fedcore" / name
        os.utime(path, (path.stat().st_mtime - days * 86400,) * 2)
    lines = [line | {"time": line["time"] - days * 86400} for line in project.journal()]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (project.folder / ".fedcore" / "journal.jsonl").write_text(text)


def documented() -> str:
    """Return the user's module that docs/own_net.md shows."""
    modules = (ROOT / "docs" / "own_net.md").read_text()
    return "\n\n".join(re.findall(r"```python\n(.*?)```", modules, re.DOTALL))


def shapes(folder: Path) -> None:
    """Write 40 pictures of each of three shapes."""
    rng = np.random.default_rng(0)
    row, column = np.mgrid[:24, :30]
    for i in range(40):
        y, x = row - rng.integers(8, 16), column - rng.integers(10, 20)
        found = {"circle": y**2 + x**2 < 40, "square": (abs(y) < 5) & (abs(x) < 5), "stripe": x % 6 < 3}
        for name, shape in found.items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            pixels = 180 * shape[..., None] + rng.integers(0, 60, (24, 30, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{i:02d}.png")
