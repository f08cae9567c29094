"""The keys of the library's own steps, before and after edits of its source; prints them as JSON.

python -m probe_keys [PATH:FUNCTION ...]   in a copy of the project: a line is put into each function, one after another
"""

import json
import sys
from collections.abc import Callable
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any

from project import Project

from fedcore.config.params import read
from fedcore.config.studies import grid_points
from fedcore.core.evaluation import score
from fedcore.core.rounds import receive
from fedcore.methods import METHODS
from fedcore.nets import net
from fedcore.pipeline.cache import keys
from fedcore.pipeline.cache.store import Ref
from fedcore.pipeline.run.chunks import compute_chunk
from fedcore.pipeline.run.step_functions import deploy, distribute, divide
from fedcore.pipeline.work import word_of

NET = net("mlp", shape=(5,), classes=3, widths=[6, 4])
NETS = dict.fromkeys("abcd", NET)


@cache
def read_text(module: str, text: bytes, definitions: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """Read a module's definitions, once for each of its texts: eleven of twelve readings would be the same."""
    return definitions(module)


@cache
def text_of(module: str) -> bytes:
    """Return a module's text, read once between two edits."""
    path = keys._find(module)
    return path.read_bytes() if path is not None else b""


def definitions_by_text(module: str, read: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    return read_text(module, text_of(module), read)


def found() -> dict[str, str]:
    """Return the keys for the current sources."""
    for part in (keys.source, keys._find, keys._definitions, text_of):
        part.cache_clear()
    made = {
        "divide": keys.key(partial(divide, federation={"name": "iid"}, seed=0), Ref("dataset", 1)),
        "distribute": keys.key(partial(distribute, scale="none"), Ref("dataset", 1), Ref("partition", 1)),
    }
    (point,) = grid_points(read(), "code", "small", {}, list(METHODS))
    for row in point.methods:
        name, built = row.name, row.build(NETS)
        for k, stage in enumerate(built.stages):
            local = f"{name} train" if k == 0 else f"{name} local {k}"
            made[local] = keys.key(stage.local, {}, Ref("message", 1), (Ref("device", 1), NET))
            if stage.combine is not None:
                made[f"{name} receive {k}"] = keys.key(receive, stage.combine, {}, {"a": Ref("update", 1)})
        made[f"{name} score"] = keys.key(score, built.deploy, {}, Ref("message", 1), {})
        made[f"{name} deploy"] = keys.key(deploy, built.deploy, {}, Ref("message", 1))
        made[f"{name} chunk"] = keys.key(compute_chunk, built)
    return made


def words() -> dict[str, dict[str, list[str]]]:
    """Return the words of each method's steps, in order and without repetition."""
    (point,) = grid_points(read(), "code", "small", {}, list(METHODS))
    found = {}
    for row in point.methods:
        name, method = row.name, row.build(NETS)
        server = [method.begin, *(partial(receive, stage.combine) for stage in method.stages if stage.combine)]
        devices = [stage.local for stage in method.stages]
        found[name] = {
            who: list(dict.fromkeys(map(word_of, steps))) for who, steps in (("devices", devices), ("server", server))
        }
    return found


def main(edits: list[str]) -> dict[str, Any]:
    project = Project(Path.cwd())
    keys._definitions = cache(partial(definitions_by_text, read=keys._definitions.__wrapped__))
    all_found: dict[str, Any] = {"": found(), "words": words()}
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
    keys.versions_of.cache_clear()
    all_found["torch==0.0"] = found()
    return all_found


def comment(path: Path) -> None:
    """Change only comments, blank lines and docstrings."""
    text = path.read_text().replace('"""', '"""Another word. ', 1).replace("\n\n\n", "\n\n\n# a remark\n\n\n")
    path.write_text(text + "\n# the end\n")


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1:])) + "\n")
