"""The records of steps: the file that Prefect writes for each key, with the references of the step's result.

A run believes what a record says of a step, so a record carries a seal: a digest of what it says and of its key. What
is not whole is removed before Prefect reads it, and the step is computed again. Prefect would load a record through
whichever serializer the record itself names, pickle among them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from prefect.serializers import JSONSerializer

from fedcore.pipeline import environment
from fedcore.pipeline.command import CONTINUE, Failed
from fedcore.pipeline.state import write_atomic

SERIALIZER = JSONSerializer().model_dump(mode="json")
FIELDS = {"value", "wall", "cpu", "seal"}
PAGE = 4096
"""Bytes for which a disk needs room of its own."""


def with_checksum(key: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a step's record with its seal."""
    return {**record, "seal": _seal(key, record)}


def _seal(key: str, record: Mapping[str, Any]) -> str:
    fields = {name: record[name] for name in sorted(FIELDS - {"seal"})}
    return blake2b(json.dumps([key, fields], sort_keys=True).encode(), digest_size=20).hexdigest()


def discard_damaged(path: Path) -> None:
    """Remove what lies in the place of a step's record unless it is a whole record of the step; it is named by its key.

    A folder in its place goes with all that it holds.
    """
    try:
        if is_valid(path.name, path.read_bytes()):
            return
        path.unlink()
    except FileNotFoundError:
        return
    except IsADirectoryError:
        shutil.rmtree(path)


def look_up(key: str) -> dict[str, Any] | None:
    """Return the record of a step, None without a whole one."""
    try:
        content = (environment.STEPS / key).read_bytes()
    except OSError:
        return None
    record: dict[str, Any] = json.loads(json.loads(content)["result"]) if is_valid(key, content) else {}
    return record or None


def require_written(key: str) -> None:
    """Raise Failed, or OSError, unless the record of a computed step is there: Prefect goes on after a failed write."""
    if look_up(key) is None:
        path = environment.STEPS / key
        write_atomic(path, bytes(PAGE))  # it says why; and if there is room again, the next run sets it right
        raise Failed(f"{path}: the step's record was not kept; {CONTINUE}")


def is_valid(key: str, content: bytes) -> bool:
    """Tell whether a file holds a record of the step with this key, as it was written."""
    try:
        outer = json.loads(content)
        metadata = outer["metadata"]
        if set(outer) != {"metadata", "result"} or metadata["serializer"] != SERIALIZER or metadata["expiration"]:
            return False
        record = json.loads(outer["result"])
        return set(record) == FIELDS and bool(record["seal"] == _seal(key, record))
    except (ValueError, TypeError, LookupError, RecursionError):
        return False
