"""tests/<room>/test_<module>.py has the tests of a module, an aspect or some small ones; test_<room>.py of many."""

from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_a_test_file_in_a_room_has_the_name_of_a_module_or_of_the_room():
    wrong = []
    for room in sorted(path for path in (ROOT / "fedcore").rglob("*") if path.is_dir() and path.name != "__pycache__"):
        names = {room.name, *(path.stem for path in room.glob("*.py"))}
        for path in (ROOT / "tests" / room.relative_to(ROOT / "fedcore")).glob("test_*.py"):
            name = path.stem.removeprefix("test_")
            if not any(name == one or name.startswith(f"{one}_") for one in names):
                wrong.append(str(path.relative_to(ROOT)))
    assert wrong == ["tests/methods/test_contract.py"]
