"""What DVC tracks of a project; scenarios/installed.py has the data and the champion of a project with DVC."""

from pathlib import Path

import pytest

from fedcore.errors import InputError
from fedcore.pipeline import environment
from fedcore.pipeline.record import seals, tracked


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(environment, "HOME", tmp_path)
    return tmp_path


def test_the_digest_of_data_is_that_of_their_dvc_file(home: Path):
    (home / "machines.csv.dvc").write_text("outs:\n- md5: '0123'\n  path: machines.csv\n")
    assert tracked.data_digest("machines.csv") == "0123"
    assert tracked.data_digest("other.csv") is tracked.data_digest(None) is None
    assert not tracked.has_changed("other.csv")


def test_a_champion_is_found_by_its_name_or_as_the_only_one(home: Path):
    folder = home / "champions"
    assert tracked.find_champion(None) is None
    for name in ("a", "b"):
        (home / "files" / seals.CACHES).mkdir(parents=True, exist_ok=True)
        (home / "files" / "model").write_text(name)
        assert tracked.keep_champion(name, home / "files") is None  # no project of DVC
        (folder / f"{name}.dvc").touch()
        assert tracked.find_champion("a@champion") == ("a", folder / "a")
        assert [path.name for path in (folder / name).iterdir()] == ["model"]
    assert (folder / "b" / "model").read_text() == "b"
    assert tracked.find_champion(None) is None
    assert tracked.find_champion("a@previous") is None
    assert tracked.find_champion("c") is None


def test_a_champion_that_is_not_pulled_is_said(home: Path):
    (home / "champions").mkdir()
    (home / "champions" / "a.dvc").touch()
    with pytest.raises(InputError, match=r"^champions/a: only its name is here; bring its files by: dvc pull$"):
        tracked.find_champion(None)
