"""A sample of the soak's fuzz; `make soak` tries thousands."""

import pytest
from fuzz import KINDS, cases, run


@pytest.mark.slow
def test_random_input_is_read_or_refused_in_one_line_and_changes_no_file():
    found = run(0, 80)
    assert found.broken == []
    assert {*found.read} | {*found.refused} == {*KINDS} == {kind for kind, _ in cases(0, 80)}
