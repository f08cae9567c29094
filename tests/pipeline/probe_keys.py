"""The keys of the library's own steps, before and after edits of its source; prints them as JSON.

python -m probe_keys [PATH:FUNCTION ...]   in a copy of the project: a line is put into each function, one after another
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from project import Project

from fedcore.evaluate import score
from fedcore.local import Training
from fedcore.methods import METHODS, method
from fedcore.nets import net
from fedcore.rounds import receive
from tasks import keys
from tasks.local import stretch
from tasks.store import Ref
from tasks.work import deploy, divide, hand_out

SGD = Training(optimiser="sgd", lr=0.1, momentum=0.5, weight_decay=0.0, schedule="constant", batch=8, epochs=1)
NET = net("mlp", shape=(5,), classes=3, widths=[6, 4])
NETS = dict.fromkeys("abcd", NET)
OPTIONS = {"exam": "validation", "solver": "newton", "reg": 0.05, "tol": 1e-7, "max_iterations": 1000, "p": 1}
OWN: dict[str, dict[str, Any]] = {
    "local_only": {},
    "fedavg": {"rounds": 2, "fraction": 1.0, "weights": "size"},
    "lmf": {**OPTIONS, "shots": 1},
    "code_ot": {**OPTIONS, "shots": 1, "order": "ascending"},
    "best_local": {"exam": "validation"},
    "half_best": {"exam": "validation"},
    "no_alignment": {"exam": "validation"},
    "fedprox": {"rounds": 2, "fraction": 1.0, "mu": 0.1},
    "fedper": {"rounds": 2, "personal_lr": None},
    "ditto": {"rounds": 2, "fraction": 1.0, "strength": 0.1},
    "fixed_depth": {"rounds": 2, "depth": 1, "personal_lr": None},
    "fedasa": {
        "rounds": 2,
        "alignment_rounds": 2,
        "auxiliary": None,
        "steps": 3,
        "cell": None,
        "distance": "printed",
        "budget": None,
        "personal_lr": None,
    },
    "dfl": {
        "rounds": 2, "fraction": 1.0, "ratio": "threshold", "threshold": 0.6, "temperature": 1.0, "weighting": "counts"
    },
    "fd": {"rounds": 2, "fraction": 1.0, "gamma": 1.0},
    "scaffold": {"rounds": 2, "fraction": 1.0},
    "fedgen": {
        "rounds": 2, "fraction": 1.0, "alpha": 10.0, "decay": 0.98, "generated": 8, "noise": 8, "hidden": 16,
        "steps": 2, "batch": 8, "lr": 0.01, "weight_decay": 0.01, "diversity": 1.0,
    },
    "label_smoothing": {"rounds": 2, "fraction": 1.0, "ratio": "threshold", "threshold": 0.6},
}  # fmt: skip
TRAINING = {"scaffold": replace(SGD, momentum=0.0)}
COMMON = {"dfl"}
"""Methods that need plain SGD, or one start for all."""


def found() -> dict[str, str]:
    """Return the keys as the sources are now."""
    for part in (keys.source, keys._definitions, keys._find, keys._version):
        part.cache_clear()
    made = {
        "divide": keys.key(partial(divide, federation={"name": "iid"}, seed=0), Ref("dataset", 1)),
        "hand_out": keys.key(partial(hand_out, scale="none"), Ref("dataset", 1), Ref("partition", 1)),
    }
    for name in METHODS:
        built = method(name, nets=NETS, training=TRAINING.get(name, SGD), common=name in COMMON, **OWN[name])
        (stage,) = built.stages
        made[f"{name} train"] = keys.key(stage.local, {}, Ref("message", 1), (Ref("device", 1), NET))
        made[f"{name} receive"] = keys.key(receive, stage.combine, {}, {"a": Ref("update", 1)})
        made[f"{name} score"] = keys.key(score, built.deploy, {}, Ref("message", 1), {})
        made[f"{name} deploy"] = keys.key(deploy, built.deploy, {}, Ref("message", 1))
        made[f"{name} stretch"] = keys.key(stretch, built)
    return made


def main(edits: list[str]) -> dict[str, dict[str, str]]:
    project = Project(Path.cwd())
    all_found = {"": found()}
    for edit in edits:
        path, function = edit.split(":")
        before = (project.folder / path).read_bytes()
        if function == "#":
            comment(project.folder / path)
        else:
            project.edit(path, function, "len('a line that was not there')")
        all_found[edit] = found()
        (project.folder / path).write_bytes(before)
    installed = metadata.version
    keys.metadata.version = lambda name: "0.0" if name == "torch" else installed(name)
    all_found["torch==0.0"] = found()
    return all_found


def comment(path: Path) -> None:
    """Change what has no meaning: comments, blank lines and docstrings."""
    text = path.read_text().replace('"""', '"""Another word. ', 1).replace("\n\n\n", "\n\n\n# a remark\n\n\n")
    path.write_text(text + "\n# the end\n")


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1:])) + "\n")
