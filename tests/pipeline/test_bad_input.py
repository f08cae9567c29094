"""Bad input by the command line: one line that names it, exit code 2, and nothing that was stored is lost."""

from __future__ import annotations

import pytest
from refusals import CASES, TYPED
from scenarios import Tables

NAMES = [*CASES, *(f"typed: {name}" for name in TYPED)]


@pytest.mark.parametrize("name", NAMES)
def test_bad_input_is_one_line_and_exit_code_2(tables: Tables, name: str):
    said = tables.refused[name]
    assert said.code == 2, said.all
    assert "Traceback" not in said.all
    (line,) = said.err.splitlines()
    assert line.startswith("fedcore: ")
    assert said.out.strip() == ""
    for word in CASES[name.removeprefix("typed: ")].says:
        assert word in line


def test_nothing_stored_is_lost_or_changed(tables: Tables):
    before, after = tables.before[0], tables.after[0]
    assert {path: digest for path, digest in after.items() if path in before} == before
    kinds = {path.split("/")[0] for path in before}
    assert kinds == {"blobs", "steps", "runs"}  # there was something to lose


def test_nothing_is_recorded_of_what_was_refused(tables: Tables):
    assert tables.after[1] == tables.before[1]
    assert tables.before[1]["runs"] > 0
    written = {path for path in tables.after[0] if path.startswith("runs/")}
    assert written == {path for path in tables.before[0] if path.startswith("runs/")}
