"""Say whether dvc.lock is of this tree: every dependency of a stage that Git keeps has the digest that is there.

python tests/dvc_lock.py

It computes no stage; outputs below pipeline/, which may be of another processor or not here, do not count.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def others(status: Mapping[str, Any]) -> list[str]:
    """Return what dvc.lock has otherwise, of what `dvc status` says: a line for each stage."""
    lines = []
    for stage, changes in status.items():
        named = [x for change in changes if isinstance(change, dict) for part in change.values() for x in part]
        wrong = sorted({name for name in named if not name.startswith("pipeline/")})
        wrong += [change for change in changes if isinstance(change, str)]  # "changed command"
        if wrong:
            lines.append(f"{stage}: {', '.join(wrong)}")
    return lines


def main() -> int:
    from dvc.repo import Repo

    with Repo(str(ROOT)) as repo:
        found = others(repo.status())
    if found:
        print("dvc.lock is of another tree; type: dvc repro, and commit dvc.lock and dvc.processor", *found, sep="\n  ")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
