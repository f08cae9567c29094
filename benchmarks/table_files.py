"""Whether a table means the same as CSV and as Parquet, and a row the same alone: made tables with names of all forms.

python -m benchmarks.table_files --tables 600
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pyarrow import Table
from pyarrow.parquet import write_table

from fedcore.data import Dataset, load
from fedcore.data.encoding import encode, from_json, to_json
from fedcore.data.prepare import fit_schema
from fedcore.data.readers import read
from fedcore.partition import partition, training
from fedcore.partition.examples import splits

NAMES: tuple[tuple[Any, ...], ...] = (
    ("1", "01", "001"), ("01", "02", "n1"), ("true", "True", "no"), ("1E2", "10E1", "100"), ("a", "A", "a "),
    (1, 2, 30), (1.0, 2.0, 2.5), (True, False), ("1.0", "1", "x"), ("12345678901234567", "12345678901234568", "7"),
    ("K\u00f6", "Ko\u0308"), ("00501", "90210", "10115"), ("1.10", "1.1", "2.0"), ("none at all", "n/a.", "-1"),
    ("3,5", "4", "b"), (2**53, 2**53 + 1, 10**17 + 1, 10**17 + 2), (0.1, 0.2, 3.0),
)  # fmt: skip
"""Names that pandas, or a person, may take for one another; numbers are written as whole ones, or as float32."""
STARTS = (0.0, 1.7e9, 5.4e6, 2460000.5, 101325.0, -1e5)
"""Levels of columns of numbers, such as seconds since 1970, metres, days, pascals."""


def draw(number: int) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return a table, and the settings of section data that read it."""
    rng = np.random.default_rng(number)
    count = int(rng.integers(45, 90))

    def names() -> Any:
        values = NAMES[rng.integers(len(NAMES))]
        cells = [values[i] for i in rng.permutation(np.arange(count) % len(values))]
        kind = {int: "Int64", float: "float32"}.get(type(values[0]))
        return pd.array(cells, kind) if kind else cells

    rows = pd.DataFrame({"site": names(), "y": names(), "kind": names(), "note": names()})
    rows["part"] = pd.array(10**17 + rng.integers(0, 9, count), "Int64")
    for i in range(int(rng.integers(1, 4))):
        rows[f"u{i}"] = rng.choice(STARTS) + rng.normal(size=count) * 10.0 ** rng.integers(-1, 4)
    rows["n"] = rng.integers(0, 50, count)
    missing = bool(rng.integers(2))
    if missing:
        rows["u0"] = rows["u0"].mask(rng.random(count) < 0.1)
        rows["kind"] = rows["kind"].mask(rng.random(count) < 0.1)
        rows["note"] = rows["note"].mask(rng.random(count) < 0.1)
    settings = {"label": "y", "device": "site", "id": "part", "categorical": ["kind", "note"], "task": "classification"}
    settings |= {"missing": "median" if missing else "refuse", "join_names": bool(rng.integers(2))}
    return rows, settings


def write(rows: pd.DataFrame, folder: Path, name: str) -> tuple[Path, Path]:
    """Write a table as CSV and as Parquet, half of them without what pandas adds about types."""
    paths = folder / f"{name}.csv", folder / f"{name}.parquet"
    rows.to_csv(paths[0], index=False)
    table = Table.from_pandas(rows, preserve_index=False)
    write_table(table.replace_schema_metadata() if len(rows) % 2 else table, paths[1])
    return paths


def differences(number: int, folder: Path, strict: bool = False) -> list[str]:
    """Return what differs between the files of a table, or between its rows alone and among others.

    strict: a table that both files refuse alike is one too.
    """
    rows, settings = draw(number)
    scale = ("none", "common", "device")[number % 3]
    tables: list[Dataset | str] = []
    for path in write(rows, folder, "t"):
        try:
            tables.append(load("table", path=path, **settings))
        except Exception as error:  # of both files alike
            tables.append(str(error).replace(str(path), "t"))
    first, second = tables
    if isinstance(first, str) or isinstance(second, str):
        if first == second:
            return [f"{number}: refused: {first}"] if strict else []
        return [f"{number}: {first!r} and {second!r}"]
    found = _federations(first, second, scale)
    fitted = fit_schema(first, _trains(first), scale)
    schema = from_json(to_json(fitted))
    frames = [read(path, names=schema.names, spelling=schema.spelling).frame for path in write(rows, folder, "t")]
    whole = [encode(frame, schema) for frame in frames]
    found += [] if whole[0].equal(whole[1]) else ["new rows"]
    for i in np.random.default_rng(number).choice(len(rows), 4, replace=False).tolist():
        for path in write(rows.iloc[[i]], folder, "one"):
            alone = read(path, names=schema.names, spelling=schema.spelling).frame
            if not encode(alone, schema).equal(whole[0][i : i + 1]):
                found.append(f"row {i} alone in {path.name}")
            if alone["site"].tolist() != [(first.device or ())[i]]:
                found.append(f"device of row {i} alone in {path.name}")
    return [f"{number}: {what}" for what in found]


def _trains(dataset: Dataset) -> Mapping[str, Any]:
    return training(partition(dataset, name="by_device", seed=0, hold_out="stable"))


def _federations(first: Dataset, second: Dataset, scale: str) -> list[str]:
    if any(getattr(first, what) != getattr(second, what) for what in ("classes", "device", "ids", "schema")):
        return ["classes, devices, ids or schema"]
    if not first.train.x.nan_to_num(-1).equal(second.train.x.nan_to_num(-1)) or not first.train.y.equal(second.train.y):
        return ["inputs or labels"]
    (one, shared), (other, also) = (
        splits(of, partition(of, name="by_device", seed=0, hold_out="stable"), scale) for of in (first, second)
    )
    same = shared.x.equal(also.x) and all(one[who].train.x.equal(other[who].train.x) for who in one)
    return [] if same and one.keys() == other.keys() else ["the devices' examples"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=600)
    parser.add_argument("--out", type=Path, help="a CSV file of the counts")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = [differences(number, Path(folder), strict=True) for number in range(arguments.tables)]
    refused = [": refused: " in "".join(lines) for lines in found]
    differ = [bool(lines) and not alike for lines, alike in zip(found, refused, strict=True)]
    print(*(line for lines in found for line in lines), sep="\n")
    counts = pd.DataFrame({"tables": [len(found)], "refused by both": [sum(refused)], "differ": [sum(differ)]})
    print(counts.to_string(index=False))
    if arguments.out:
        counts.to_csv(arguments.out, index=False)


if __name__ == "__main__":
    main()
