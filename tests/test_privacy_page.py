"""docs/privacy.md says of every method what leaves a device."""

from __future__ import annotations

import re
from pathlib import Path

from fedcore.methods import METHODS

PAGE = Path(__file__).parents[1] / "docs" / "privacy.md"


def rows() -> dict[str, list[str]]:
    """Return method -> the other cells of its row in the page's table."""
    found: dict[str, list[str]] = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        names = re.findall(r"`(\w+)`", cells[0]) if line.startswith("| `") else []
        for name in names:
            assert name not in found, f"{name} has two rows"
            found[name] = cells[1:]
    return found


def test_every_method_has_a_row_and_every_row_a_method():
    assert set(rows()) == set(METHODS)


def test_every_row_says_what_leaves_and_what_can_be_read():
    for name, (sent, read, _) in rows().items():
        assert sent, name
        assert read, name
