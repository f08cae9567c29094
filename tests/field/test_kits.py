"""Kits: who is who on the link."""

import json
import shutil
import socket
import ssl
import stat
import subprocess
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from threading import Thread
from zipfile import ZIP_DEFLATED, ZIP_LZMA, ZIP_STORED, ZipFile

import pytest

from fedcore.errors import InputError
from fedcore.field import kits
from fedcore.field.kits import (
    Kit,
    archive,
    check_kit,
    find_server,
    link_name,
    make_kits,
    only_one,
    read_kit,
    revoke,
    revoked,
    set_address,
    unpack_kit,
)

NAMES = ["a", "server", "site 2", "Zürich", "x.y", "x" * 60, ""]


def test_names_on_the_link_are_plain_differ_and_never_that_of_the_server():
    linked = [link_name(name) for name in NAMES]
    assert linked[0] == "a"
    assert len({*linked, "server"}) == len(NAMES) + 1
    assert all(len(name) <= 64 and name.replace("-", "").replace("_", "").isalnum() for name in linked)


def test_a_folder_that_is_no_whole_kit_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"not a startup kit; fedcore field init makes them$"):
        read_kit(tmp_path)
    (tmp_path / "kit.json").write_text(json.dumps({"name": "a", "address": "127.0.0.1:1"}))
    with pytest.raises(InputError, match=r"a part of the startup kit is missing"):
        read_kit(tmp_path)


@pytest.mark.parametrize(
    ("devices", "address", "said"),
    [
        (["a", "a"], "h:1", "devices: two of them have one name"),
        (["a"], "http://h:1", "address = 'http://h:1'"),
        (["a"], "h:65536", "address = 'h:65536'"),
        (["a"], "h..x:1", "address = 'h..x:1'"),
        (["a", "server"], "h:1", "devices: 'server' is the server's own name"),
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
    (tmp_path / "revoked").write_bytes(b"\xff")
    with pytest.raises(InputError, match=r"/revoked: cannot be read: "):
        revoked(tmp_path)


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
    with pytest.raises(InputError, match=r"a.zip: (not a startup kit; fedcore field init makes them|is damaged: )"):
        unpack_kit(path)
    assert [one.name for one in tmp_path.iterdir()] == ["a.zip"]


@pytest.mark.parametrize("harm", ["cut", "encrypted", "method", "deflated", "lzma", "crc", "file"])
def test_a_damaged_archive_is_one_line(harm, tmp_path):
    path, methods = tmp_path / "a.zip", {"deflated": ZIP_DEFLATED, "lzma": ZIP_LZMA}
    with ZipFile(path, "w", methods.get(harm, ZIP_STORED)) as made:
        for part in kits.PARTS:
            made.writestr(part, b"0123456789" * 20)
    content = bytearray(path.read_bytes())
    entry = content.index(b"PK\x01\x02")
    if harm == "file":
        (tmp_path / "a").touch()
    elif harm == "cut":
        del content[-5:]
    elif harm in ("encrypted", "method"):  # what reads the archive raises NotImplementedError or RuntimeError
        content[entry + (8 if harm == "encrypted" else 10)] ^= 0x41
        content[6] ^= harm == "encrypted"
    else:
        content[45:60] = b"\xff" * 15
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"^\S*a.zip: (cannot be read: |is damaged: .*; ask for the archive again$)"):
        unpack_kit(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"name": "a", "address": "a..b:80"}', r"/kit.json: address = 'a..b:80': must be host:port$"),
        ('{"name": "a", "address": "127.0.0.1:99999"}', r"/kit.json: address = '127.0.0.1:99999': must be host:port$"),
        ('{"name": "\\ud800", "address": "127.0.0.1:1"}', "not a startup kit"),
        ("[" * 60_000, "not a startup kit"), ('{"name": "a"}', "not a startup kit"), ("[]", "not a startup kit"),
    ],
)  # fmt: skip
def test_a_kit_whose_words_are_damaged_is_one_line(content, said, tmp_path):
    for part in kits.PARTS:
        (tmp_path / part).write_text(content)
    with pytest.raises(InputError, match=said):
        read_kit(tmp_path)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The kits of a server and two devices, and the server's of another authority."""
    pytest.importorskip("nvflare")
    folder = tmp_path_factory.mktemp("kits")
    made = make_kits(folder / "one", ["a", "b"], "127.0.0.1:8002")
    return {**made, "foreign": make_kits(folder / "other", [], "127.0.0.1:8002")["server"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("days", "why"),
    [
        (-2, r"was made on 20\d\d-\d\d-\d\d \d\d:\d\d UTC, by this clock it is 20.*; set it$"),
        (0, None), (359, None),
        (361, r"its certificate ended on 20\d\d-\d\d-\d\d; fedcore field init makes new kits$"),
    ],
)  # fmt: skip
def test_a_kit_out_of_date_or_a_clock_behind_is_one_line(days, why, two, monkeypatch):
    class Clock(datetime):
        @classmethod
        def now(cls, zone):
            return datetime.now(zone) + timedelta(days=days)

    monkeypatch.setattr(kits, "datetime", Clock)
    if why is None:
        assert abs(check_kit(read_kit(two["a"])) - datetime.now(UTC) - timedelta(days=360)) < timedelta(hours=1)
        return
    with pytest.raises(InputError, match=why):
        check_kit(read_kit(two["a"]))


@pytest.mark.parametrize("part", ["own.crt", "own.key", "authority.crt", "kit.json"])
@pytest.mark.parametrize("harm", ["empty", "cut", "flipped", "bytes", "of b"])
def test_a_spoiled_kit_is_one_line(part, harm, two, tmp_path):
    folder = tmp_path / "kit"
    shutil.copytree(two["a"], folder)
    content = (folder / part).read_bytes()
    middle = len(content) // 2
    spoiled = {
        "empty": b"", "cut": content[:middle], "bytes": bytes(range(256)),
        "flipped": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
        "of b": (two["foreign"] if part == "authority.crt" else two["b"]).joinpath(part).read_bytes(),
    }  # fmt: skip
    (folder / part).write_bytes(spoiled[harm])
    with pytest.raises(InputError, match=rf"^{folder}: (not a startup kit|a part of the .* missing|is damaged)[^\n]*$"):
        check_kit(read_kit(folder))


def test_a_second_process_with_one_kit_is_refused(two):
    kit = two["a"]
    with only_one(kit), pytest.raises(InputError, match=r"a: another process runs with this kit; end that one first$"):
        only_one(kit).__enter__()
    with only_one(kit):  # once the first one has ended
        pass


def test_a_kit_that_is_unpacked_again_is_the_same_for_a_second_process(two, tmp_path):
    shutil.copytree(two["a"], tmp_path / "a")
    whole = archive(tmp_path / "a")
    with only_one(unpack_kit(whole)), pytest.raises(InputError, match="another process runs with this kit"):
        only_one(unpack_kit(whole)).__enter__()


@pytest.mark.slow
@pytest.mark.parametrize("server", ["server", "speaks", "foreign", "none", "refuses", "closes"])
def test_a_device_names_a_server_that_is_away_foreign_or_refuses_it(server, two, tmp_path):
    folder = tmp_path / "kit"
    shutil.copytree(two["a"], folder)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        kit = set_address(read_kit(folder), f"127.0.0.1:{listener.getsockname()[1]}")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

        def accept():
            with listener.accept()[0] as plain, suppress(OSError), context.wrap_socket(plain, server_side=True) as link:
                link.send(b"x" * (server == "speaks"))
                link.recv(server != "closes")

        if server == "none":
            listener.close()
            assert "refused" in find_server(kit)
            return
        own = two["foreign" if server == "foreign" else "server"]
        context.load_cert_chain(own / "own.crt", own / "own.key")
        if server == "refuses":  # as a server does whose clock says that the device's certificate has ended
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(two["foreign"] / "authority.crt")
        thread = Thread(target=accept)
        thread.start()
        if server in ("server", "speaks"):
            assert find_server(kit) == ""
        elif server == "refuses":
            assert find_server(kit) == "it refuses this kit: unknown ca"
        elif server == "closes":  # as where this device is connected
            assert find_server(kit) == "it refuses this kit: it is revoked, or another process with it is connected"
        else:
            with pytest.raises(InputError, match=r"^127.0.0.1:\d+: its server has a kit of another field init"):
                find_server(kit)
        thread.join()


def test_where_a_server_listens_is_kept_in_its_kit(two, tmp_path):
    shutil.copytree(two["server"], tmp_path / "kit")
    assert set_address(read_kit(tmp_path / "kit"), "0.0.0.0:9").address == "0.0.0.0:9"
    assert read_kit(tmp_path / "kit").address == "0.0.0.0:9"
    with pytest.raises(InputError, match=r"^--listen = 'nowhere': must be host:port$"):
        set_address(read_kit(tmp_path / "kit"), "nowhere")
