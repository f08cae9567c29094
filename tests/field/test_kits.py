"""Kits: who is who on the link."""

import json
import stat
import subprocess
from zipfile import ZipFile

import pytest

from fedcore.errors import InputError
from fedcore.field.kits import Kit, archive, link_name, make_kits, read_kit, revoke, revoked, unpack_kit

NAMES = ["a", "server", "site 2", "Zürich", "x.y", "x" * 60, ""]


def test_names_on_the_link_are_plain_differ_and_never_that_of_the_server():
    linked = [link_name(name) for name in NAMES]
    assert linked[0] == "a"
    assert len({*linked, "server"}) == len(NAMES) + 1
    assert all(len(name) <= 64 and name.replace("-", "").replace("_", "").isalnum() for name in linked)


def test_a_folder_that_is_no_whole_kit_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"is no kit; fedcore field init makes them$"):
        read_kit(tmp_path)
    (tmp_path / "kit.json").write_text(json.dumps({"name": "a", "address": "127.0.0.1:1"}))
    with pytest.raises(InputError, match=r"is no whole kit"):
        read_kit(tmp_path)


@pytest.mark.parametrize(
    ("devices", "address", "said"),
    [
        (["a", "a"], "h:1", "devices: two of them have one name"),
        (["a"], "http://h:1", "address = 'http://h:1'"),
        (["a"], "h:65536", "address = 'h:65536'"),
    ],
)
def test_kits_that_cannot_be_are_not_made(devices, address, said, tmp_path):
    pytest.importorskip("nvflare")
    with pytest.raises(InputError, match=f"^{said}"):
        make_kits(tmp_path / "kits", devices, address)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_each_side_has_its_own_key_and_nobody_the_authoritys(tmp_path):
    pytest.importorskip("nvflare")
    found = make_kits(tmp_path / "kits", ["a", "site 2"], "127.0.0.1:8002")
    assert list(found) == ["server", "a", "site 2"]
    assert read_kit(found["site 2"]) == Kit(found["site 2"], "site 2", "127.0.0.1:8002")
    keys = [path.read_text() for path in (tmp_path / "kits").rglob("*.key")]
    assert len({*keys}) == len(keys) == 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "kits").rglob("*.key")} == {0o600}
    with pytest.raises(InputError, match=r"is there already; a kit is made once$"):
        make_kits(tmp_path / "kits", ["a"], "127.0.0.1:8002")


def test_no_key_is_for_git_to_add(tmp_path):
    pytest.importorskip("nvflare")
    kits = make_kits(tmp_path / "field", ["a"], "127.0.0.1:8002")
    unpack_kit(archive(kits["a"]).rename(tmp_path / "a.zip"))
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    words = ["git", "status", "--porcelain", "--untracked-files=all"]
    assert subprocess.run(words, cwd=tmp_path, check=True, capture_output=True).stdout == b"?? a.zip\n"


def test_revoked_devices_are_listed_by_their_names_on_the_link(tmp_path):
    assert revoked(tmp_path) == frozenset()
    for name in ("a", "Zürich", "a"):
        revoke(tmp_path, name)
    assert revoked(tmp_path) == {"a", link_name("Zürich")}


def test_an_archive_is_a_kit_once_it_is_unpacked(tmp_path):
    kits = make_kits(tmp_path / "field", ["a"], "127.0.0.1:8002")
    content = {path.name: path.read_bytes() for path in kits["a"].iterdir()}
    packed = archive(kits["a"])
    assert (packed.name, packed.stat().st_mode & 0o777, kits["a"].exists()) == ("a.zip", 0o600, False)
    for _ in range(2):
        folder = unpack_kit(packed)
        assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".gitignore"} == content
    assert (folder / "own.key").stat().st_mode & 0o777 == 0o600
    assert unpack_kit(folder) == folder


@pytest.mark.parametrize("member", ["../../evil", "more", None])
def test_a_file_that_is_no_archive_of_a_kit_is_refused(member, tmp_path):
    path = tmp_path / "a.zip"
    if member is None:
        path.write_bytes(b"PK")
    else:
        with ZipFile(path, "w") as made:
            made.writestr(member, b"x")
    with pytest.raises(InputError, match=r"a.zip: (is no kit; fedcore field init makes them|cannot be read: )"):
        unpack_kit(path)
    assert [one.name for one in tmp_path.iterdir()] == ["a.zip"]
