"""How a run is made again: in a clone at its commit, with the changes, the data and the settings that it had.

A run's file `setting.json` has the words of its command, another file what no commit had. The clone has a cache and a
record of its own, so that everything is computed.
"""

import json
import os
import re
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.utils.mlflow_tags import MLFLOW_GIT_COMMIT

from fedcore.errors import InputError
from fedcore.pipeline import environment
from fedcore.pipeline.command import Failed
from fedcore.pipeline.files import PATCH, SETTING
from fedcore.pipeline.record import seals
from fedcore.pipeline.record.database import EXPERIMENT

PROCESSOR = "processor"
"""The tag of a run that names what computed it."""


def find(client: MlflowClient, begin: str) -> Run:
    """Return the run whose id begins so. Raises InputError unless it is one."""
    experiment = client.get_experiment_by_name(EXPERIMENT)
    ids = [experiment.experiment_id] if experiment else []
    runs = client.search_runs(ids, f"attributes.run_id LIKE '{begin}%'", max_results=2) if begin.isalnum() else []
    if len(runs) != 1:
        raise InputError(f"RUN = {begin!r}: {'several' if runs else 'no'} runs begin so; fedcore ui shows their ids")
    return runs[0]


def commands(run: Run, folder: Path) -> list[list[str]]:
    """Return the commands that make a run again in a folder, the first of them outside of it.

    Raises InputError for a run that does not say how.
    """
    home, where, files, card = environment.HOME, run.info.run_id[:8], Path(), {}
    with suppress(FileNotFoundError):
        files = seals.own_folder(run.info.artifact_uri, f"run {where}")
        card = json.loads((files / SETTING).read_text())
    commit = run.data.tags.get(MLFLOW_GIT_COMMIT, "")
    if "command" not in card or not re.fullmatch("[0-9a-f]{40,64}", commit):
        seeds = ", ".join(seed[:8] for seed in run.data.tags.get("runs", "").split())
        advice = f"; take one of its seeds: {seeds}" if seeds else "; take a run of one method and seed"
        raise InputError(f"RUN = {where!r}: has no command or no commit, so that nothing can repeat it{advice}")
    lines = [["git", "clone", "--quiet", str(home), str(folder)], ["git", "checkout", "--quiet", commit]]
    if (files / PATCH).is_file():
        lines.append(["git", "apply", str(files / PATCH)])
    if "data_md5" in run.data.tags:
        lines.append(["dvc", "cache", "dir", "--quiet", "--local", str(home / ".dvc" / "cache")])
        lines.append(["dvc", "checkout", "--quiet", f"{card['data']['path']}.dvc"])
    elif path := card.get("data", {}).get("path"):
        sys.stderr.write(f"fedcore: {path}: DVC did not track these data, so no command brings them back\n")
    return [*lines, ["fedcore", "run", *card["command"]]]


def in_words(lines: list[list[str]], folder: Path) -> str:
    """Return commands as they are typed."""
    return "\n".join(map(shlex.join, [lines[0], ["cd", str(folder)], *lines[1:]]))


def make(run: Run, lines: list[list[str]], folder: Path) -> str:
    """Run the commands that make a run again; returns a line about its digests. Raises Failed if they are others."""
    if folder.exists():
        raise InputError(f"--folder = {str(folder)!r}: is there already; name another one")
    ours = {name: value for name, value in os.environ.items() if environment.DEFAULTS.get(name) != value}
    for number, line in enumerate(lines):
        cwd = folder if number else None
        if subprocess.run(line, cwd=cwd, env=ours | {"FEDCORE_HOME": str(folder)}).returncode:
            raise Failed(f"{shlex.join(line)}: failed, its message is above; the other runs stay as they are")
    tags, here = run.data.tags, environment.processor_name()
    then = tags.get(PROCESSOR, here)
    other = f"; it ran on {then}, and this is {here}" if then != here else ""
    query = (
        "select result.value from tags as config join tags as result using (run_uuid) where config.key = "
        "'fedcore.config' and config.value = ? and result.key = 'fedcore.result'"
    )
    with closing(sqlite3.connect(folder / "mlflow.db")) as opened:
        results = [result for (result,) in opened.execute(query, [tags["fedcore.config"]])]
    if not results:
        raise Failed(f"{folder}: the configuration has another digest, as code, packages or data are others now{other}")
    if results != [tags["fedcore.result"]]:
        raise Failed(f"{folder}: the result is {results[0]}, and was {tags['fedcore.result']}{other}")
    return f"the same result: {results[0]}"
