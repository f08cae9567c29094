"""Tests have names that can be read in one line."""

from __future__ import annotations

import re
from pathlib import Path

LONGEST = 70


def test_names_of_tests_are_short():
    files = sorted(Path(__file__).parent.rglob("test_*.py"))
    names = {name: file.name for file in files for name in re.findall(r"def (test_\w+)", file.read_text())}
    assert len(names) > 500
    assert {name: file for name, file in names.items() if len(name) > LONGEST} == {}
