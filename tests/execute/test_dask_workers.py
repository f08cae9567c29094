"""Workers that do not fit are named in words; tests/execute/test_cluster.py has the rest."""

from fedcore.execute.dask_workers import differences


def test_differences_are_said_in_words():
    expected = {"Python": "3.11", "source of tasks": "00ff", "scipy": "1.14"}
    assert [*differences({**expected, "check": ""}, {**expected, "check": ""})] == []
    assert [*differences({"Python": "3.12", "source of tasks": ""}, expected)] == [
        "has Python 3.12, not 3.11", "has another source of tasks", "has scipy (none), not 1.14",
    ]  # fmt: skip
    assert [*differences(ModuleNotFoundError("No module named 'fedcore'"), expected)] == [
        "cannot run fedcore (No module named 'fedcore')"
    ]
