"""Bad input on the command line: one line that names it, exit code 2, and stored results stay."""

import pytest
from refusals import CASES, TYPED
from scenarios import Refused

NAMES = [*CASES, *(f"typed: {name}" for name in TYPED)]


@pytest.mark.parametrize("name", NAMES)
def test_bad_input_is_one_line_and_exit_code_2(refused: Refused, name: str):
    assert name in refused.answers, "the process that types the cases ended before it came to this one"
    said = refused.answers[name]
    assert said.code == 2, said.all
    assert "Traceback" not in said.all
    (line,) = said.err.splitlines()
    assert line.startswith("fedcore: ")
    assert said.out.strip() == ""
    for word in CASES[name.removeprefix("typed: ")].says:
        assert word in line


def test_nothing_stored_is_lost_or_changed(refused: Refused):
    before, after = refused.before[0], refused.after[0]
    assert {path: digest for path, digest in after.items() if path in before} == before
    kinds = {path.split("/")[0] for path in before}
    assert kinds == {"blobs", "steps", "runs"}  # there was something to lose


def test_refused_input_leaves_no_record(refused: Refused):
    assert refused.after[1] == refused.before[1]
    assert refused.before[1]["runs"] > 0
    written = {path for path in refused.after[0] if path.startswith("runs/")}
    assert written == {path for path in refused.before[0] if path.startswith("runs/")}
