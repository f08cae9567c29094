"""The answers of `dvc repro`, and of a run by hand, as text beside their summary, for `fedcore show`.

Those of `dvc repro` are kept with a digest of what they follow from, the table and the settings: `show` computes them
anew, which takes PyTorch and the whole pipeline, only where one of these has changed since. Imports nothing slow.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from fedcore.pipeline.files import ANSWERS, TABLE
from fedcore.report.answers import Box


def keep(boxes: Mapping[str, Sequence[Box]], compared: Path | None, folder: Path) -> None:
    """Write each study's boxes to a folder. compared: the folder of the table that they are about, if it may change."""
    studies = {study: [asdict(box) for box in of_study] for study, of_study in boxes.items()}
    content = {"of": _digest(compared), "studies": studies}
    (folder / ANSWERS).write_text(json.dumps(content, indent=1) + "\n")


def read(compared: Path | None, folder: Path) -> dict[str, list[Box]] | None:
    """Return each study's boxes; None if there are none, or the table or a setting is another by now."""
    try:
        content = json.loads((folder / ANSWERS).read_text())
        if content["of"] != _digest(compared):
            return None
        return {
            study: [Box(box["title"], box["headline"], tuple(box["sentences"])) for box in of_study]
            for study, of_study in content["studies"].items()
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # missing, or damaged
        return None


def _digest(compared: Path | None) -> str:
    """Return the digest of a table and of the current folder's settings; of a run by hand none."""
    if compared is None:
        return ""
    digest = hashlib.sha256()
    for path in (compared / TABLE, Path("params.yaml"), *sorted(Path("studies").glob("*.yaml"))):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)} ".encode() + content)
    return digest.hexdigest()
