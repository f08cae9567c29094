"""The numbers of a table in docs/ are those of a CSV file where a comment above the table names the file:

    <!-- numbers: results/FILE.csv row=COLUMN column=COLUMN value=COLUMN [times=100] [spread=...] [where=...] -->

The first cell of a line is a value of the file's column `row`, the head of a column one of `column`; a+b are two
columns, their values joined by a space. names=a:b;c:d translates what the page calls otherwise, with _ for a space in
a and c, and _and_ for one in b and d. A cell begins with the mean of `value` over the other columns, and may go on
with ± the standard deviation, or the mean of `spread`, or half of the 95 % interval for that of `interval=COLUMN`, a
standard deviation over the file's seeds. Without `value` the columns 0, 1, ... or seed_0, seed_1, ... are seeds; with
column=columns each column of the file is one of the table. where=COLUMN:VALUE chooses lines of the file. A number is
right if the file's, rounded to as many digits, is the same. Cells in brackets and cells without a number are not
looked at.
"""

import re
from decimal import Decimal
from functools import cache
from pathlib import Path

import pandas as pd
import pytest

from fedcore.results.criterion import RATIO, half_width

ROOT = Path(__file__).parents[1]
MARK = re.compile(r"<!-- numbers: (?P<file>\S+) (?P<words>.*?) -->\n+(?P<table>(?:\|.*\n)+)")
NUMBER = re.compile(r"^\**(?P<mean>[+-]?\d*\.?\d+)\**(?: ± (?P<spread>\d*\.?\d+))?")
PAGES = sorted(page for page in (ROOT / "docs").rglob("*.md") if MARK.search(page.read_text()))


def joined(rows: pd.DataFrame, columns: str) -> pd.Series:
    """Return the values of columns a+b, joined by a space."""
    return rows[columns.split("+")].astype(str).agg(" ".join, axis=1)


def tidy(file: Path, row: str, column: str, value: str | None, where: str | None) -> pd.DataFrame:
    """Return a frame with columns row, column and value, one line for each seed."""
    rows = pd.read_csv(file)
    if where:
        key, _, wanted = where.partition(":")
        rows = rows[rows[key].astype(str) == wanted]
    seeds = [name for name in rows if re.fullmatch(r"(seed_)?\d+", str(name))]
    if column == "columns":  # each further column of the file is one of the table
        rows = rows.melt(
            [name for name in (*row.split("+"), "seed") if name in rows], var_name="columns", value_name="value"
        )
    elif value is None:
        rows = rows.melt([name for name in rows if name not in seeds], seeds, value_name="value")
    else:
        rows = rows.assign(value=rows[value])
    rows["value"] = pd.to_numeric(rows["value"], errors="coerce")
    return rows.assign(row=joined(rows, row), column=joined(rows, column))[["row", "column", "value"]]


def groups_of(file: Path, *words: str | None) -> pd.DataFrame:
    """Return mean and standard deviation of the value, by row and column."""
    return tidy(file, *words).groupby(["row", "column"])["value"].agg(["mean", "std"])


def seeds_of(file: Path) -> str:
    """Return the column with the number of seeds."""
    return next(name for name in ("n_seeds", "seeds") if name in pd.read_csv(file, nrows=1))


def same(written: str, number: float) -> bool:
    """Tell whether a number, rounded to as many digits, is the one that is written; a tie may go either way."""
    digits = -int(Decimal(written).as_tuple().exponent)
    return abs(float(written) - number) <= 0.5 * 10.0**-digits + 1e-9


@cache
def differences(page: Path) -> tuple[int, list[str]]:
    """Return how many numbers of a page were compared, and those that are not the file's."""
    count, wrong = 0, []
    for mark in MARK.finditer(page.read_text()):
        words = dict(word.split("=", 1) for word in mark["words"].split())
        names = dict(pair.rsplit(":", 1) for pair in words.pop("names", "").split(";") if pair)
        times = float(words.pop("times", 1))
        file = ROOT / "docs" / mark["file"]
        place = words["row"], words["column"]
        numbers = groups_of(file, *place, words.get("value"), words.get("where"))
        if "spread" in words:
            numbers["std"] = groups_of(file, *place, words["spread"], words.get("where"))["mean"]
        if "interval" in words:
            std = groups_of(file, *place, words["interval"], words.get("where"))["mean"]
            seeds = groups_of(file, *place, seeds_of(file), words.get("where"))["mean"]
            halves = [half_width(spread, int(count), RATIO) for spread, count in zip(std, seeds, strict=True)]
            numbers["std"] = pd.Series(halves, std.index)
        numbers *= times
        head, _, *lines = ([cell.strip() for cell in line.split("|")[1:-1]] for line in mark["table"].splitlines())
        for line in lines:
            for title, cell in zip(head[1:], line[1:], strict=True):
                known = (re.sub(r"[`*]| \(.*\)", "", line[0]), title)
                there = tuple(names.get(one.replace(" ", "_"), one).replace("_and_", " ") for one in known)
                found = NUMBER.match(cell)
                if found is None or there not in numbers.index:
                    continue
                count += 1
                mean, spread = numbers.loc[there]
                if not same(found["mean"], mean) or (found["spread"] and not same(found["spread"], spread)):
                    wrong.append(f"{file.name}: {there}: {cell}, is {mean:.5g} ± {spread:.5g}")
    return count, wrong


@pytest.mark.slow
def test_there_are_such_tables():
    assert sum(differences(page)[0] for page in PAGES) > 100


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
@pytest.mark.slow
def test_a_tables_numbers_are_those_of_its_file(page: Path):
    assert differences(page)[1] == []


def test_a_wrong_number_is_found_out(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- numbers: results/dfl-sizes.csv row=net column=set value=bytes -->\n"
        "| | mnist | cifar10 |\n| --- | --- | --- |\n| cnn | 264520 | 248025 |\n"
    )
    assert differences(page) == (2, ["dfl-sizes.csv: ('cnn', 'cifar10'): 248025, is 2.4802e+05 ± nan"])
