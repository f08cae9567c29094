"""Say whether two checkouts have equal results: models.json and table.parquet of their studies, byte for byte.

python tests/digests.py BEFORE AFTER

In each of them `make clean run` has ended, one after the other on the same machine.
"""

import sys
from pathlib import Path

NAMES = "models.json", "table.parquet"


def results(checkout: Path) -> dict[str, bytes]:
    """Return what is compared, by its path below the checkout."""
    files = [path for name in NAMES for path in (checkout / "pipeline").rglob(name)]
    return {path.relative_to(checkout).as_posix(): path.read_bytes() for path in files}


def differences(before: dict[str, bytes], after: dict[str, bytes]) -> list[str]:
    """Return a line for each file that is not equal in both."""
    missing = [f"{path}: only {where}" for one, other, where in ((before, after, "before"), (after, before, "after"))
               for path in one.keys() - other.keys()]  # fmt: skip
    return sorted(
        [*missing, *(f"{path}: differs" for path in before.keys() & after.keys() if before[path] != after[path])]
    )


def main(words: list[str]) -> int:
    if len(words) != 2:
        print("python tests/digests.py BEFORE AFTER: two checkouts, in each of which make clean run has ended")
        return 2
    before, after = (results(Path(word)) for word in words)
    for word, found in zip(words, (before, after), strict=True):
        if not found:
            print(f"{word}: no {' or '.join(NAMES)} below pipeline/; make them there with: make clean run")
            return 2
    found = differences(before, after)
    print(*found or [f"equal, byte for byte: {len(before)} files, {sum(map(len, before.values())):,} bytes"], sep="\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
