"""Kits: what each side needs to prove who it is. A folder for the server and one for each device, made by the study.

A kit holds a certificate that the project's authority signed, its private key, the authority's certificate and
`kit.json`. The authority's own key is thrown away once the kits are made: nobody can make another device afterwards.
"""

import hashlib
import json
import os
import re
import shutil
import socket
import ssl
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from zipfile import ZipFile

from fedcore.errors import InputError
from fedcore.field.wire import write_file

SERVER = "server"
"""The server's name on the link, which no device can have."""

_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,40}")
_ADDRESS = re.compile(r"([A-Za-z0-9-]{1,63}\.)*[A-Za-z0-9-]{1,63}\.?:[0-9]{1,5}")

PARTS = ("authority.crt", "own.crt", "own.key", "kit.json")
"""The files of a kit."""

REVOKED = "revoked"
"""The file of a server's kit that names the devices whose certificates are refused."""

REACHED = 5.0
"""Seconds in which a server must answer before a device says that it waits."""

LARGEST = 2**16
"""The most bytes of one of them."""

DAYS = 360
"""How long a certificate is valid."""


@dataclass(frozen=True)
class Kit:
    """What `kit.json` says. name: the device's, or that of the server. address: the server's, "host:port"."""

    folder: Path
    name: str
    address: str

    @property
    def link_name(self) -> str:
        """The name on the link, which is that of the certificate."""
        return self.name if self.name == SERVER else link_name(self.name)


def link_name(device: str) -> str:
    """Return a device's name on the link: its own if it is plain, otherwise one that follows from it."""
    if _PLAIN.fullmatch(device) and device != SERVER:
        return device
    return f"device-{hashlib.blake2b(device.encode(), digest_size=10).hexdigest()}"


def make_kits(folder: Path, devices: Collection[str], address: str) -> dict[str, Path]:
    """Make the kits of a server, under "server", and of devices, under their names; return their folders.

    Raises InputError for names that are one on the link, an address that is none, or a folder that is there.
    """
    from nvflare.lighter.utils import Identity, generate_cert, generate_keys, serialize_cert, serialize_pri_key

    names = {SERVER: SERVER, **{link_name(device): device for device in devices}}
    if SERVER in devices:
        raise InputError(f"devices: {SERVER!r} is the server's own name; give this device another one")
    if len(names) != len(devices) + 1:
        raise InputError("devices: two of them have one name")
    require_address("address", address)
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder}: is there already; a kit is made once")
    authority = Identity("fedcore field")
    key, public = generate_keys()
    root = generate_cert(authority, authority, key, public, valid_days=DAYS, ca=True)
    keep_out_of_git(folder)
    kits = {}
    for linked, name in names.items():
        kit = folder / (SERVER if linked == SERVER else f"devices/{linked}")
        kit.mkdir(parents=True)
        own, own_public = generate_keys()
        certificate = generate_cert(Identity(linked), authority, key, own_public, valid_days=DAYS)
        (kit / "authority.crt").write_bytes(serialize_cert(root))
        (kit / "own.crt").write_bytes(serialize_cert(certificate))
        secret = kit / "own.key"
        secret.touch(mode=0o600)
        secret.write_bytes(serialize_pri_key(own))
        (kit / "kit.json").write_text(json.dumps({"name": name, "address": address}), "utf-8")
        kits[name] = kit
    return kits


def set_address(kit: Kit, address: str) -> Kit:
    """Write another address into a kit, such as the one where a server listens; return the kit."""
    require_address("--listen", address)
    content = json.dumps({"name": kit.name, "address": address}).encode()
    write_file(kit.folder / "kit.json", content)
    return read_kit(kit.folder)


def require_address(key: str, address: str) -> None:
    """Refuse what is no host and port."""
    if not _ADDRESS.fullmatch(address) or not 0 < int(address.rpartition(":")[2]) < 2**16:
        raise InputError(f"{key} = {address!r}: must be host:port")


def keep_out_of_git(folder: Path) -> None:
    """Make a folder that git ignores, since keys and memories lie in it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n", "utf-8")


def archive(kit: Path) -> Path:
    """Put a kit into one file beside it, for its owner only, and remove its folder; return the file."""
    path = kit.with_name(f"{kit.name}.zip")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file, ZipFile(file, "w") as whole:
        for part in PARTS:
            whole.write(kit / part, part)
    shutil.rmtree(kit)
    return path


def unpack_kit(path: Path) -> Path:
    """Return a kit's folder: of an archive one beside it, which is made once. Raises InputError for another file."""
    if path.is_dir() or path.suffix != ".zip":
        return path
    folder = path.with_suffix("")
    try:
        with ZipFile(path) as whole:
            if sorted(whole.namelist()) != sorted(PARTS) or any(part.file_size > LARGEST for part in whole.infolist()):
                raise InputError(f"{path}: not a startup kit; fedcore field init makes them")
            content = {part: whole.read(part) for part in PARTS}
        keep_out_of_git(folder)
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    except Exception as error:  # of damaged bytes the readers raise anything
        raise InputError(f"{path}: is damaged: {error}; ask for the archive again") from None
    for part, written in content.items():
        if not (folder / part).is_file():
            write_file(folder / part, written)
        elif (folder / part).read_bytes() != written:
            raise InputError(f"{folder}: is there already, from another kit than {path}")
    return folder


def revoke(server: Path, name: str) -> None:
    """Refuse a device's certificate from now on, also while a server runs. It has one alone, and gets no other."""
    write_file(server / REVOKED, "".join(f"{link}\n" for link in sorted({*revoked(server), link_name(name)})).encode())


def revoked(server: Path) -> frozenset[str]:
    """Return the names, on the link, of devices whose certificates a server refuses."""
    try:
        return frozenset((server / REVOKED).read_text("utf-8").split())
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError) as error:  # nobody is let in by a list that cannot be read
        raise InputError(f"{server / REVOKED}: cannot be read: {error}") from None


def read_kit(folder: Path) -> Kit:
    """Read a kit. Raises InputError for a folder that is none."""
    try:
        entries = json.loads((folder / "kit.json").read_text("utf-8"))
        kit = Kit(folder, str(entries["name"]), str(entries["address"]))
        kit.name.encode()
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f"{folder}: not a startup kit; fedcore field init makes them") from None
    require_address(f"{folder / 'kit.json'}: address", kit.address)
    if not all((folder / part).is_file() for part in PARTS):
        raise InputError(f"{folder}: a part of the startup kit is missing; fedcore field init makes them")
    return kit


def check_kit(kit: Kit) -> datetime:
    """Return when a kit's certificate ends. Raises InputError if that is over, and for files that are no kit's."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    authority, own, secret = (kit.folder / part for part in PARTS[:3])
    try:
        certificate = x509.load_pem_x509_certificate(own.read_bytes())
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.read_bytes()))
        whole = load_pem_private_key(secret.read_bytes(), None).public_key() == certificate.public_key()
        (name,) = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    except Exception:  # of damaged bytes the readers raise anything
        whole = False
    if not whole or name.value != kit.link_name:
        raise InputError(f"{kit.folder}: is damaged, or of files of several kits; unpack its archive again")
    now, begin = datetime.now(UTC), certificate.not_valid_before_utc
    end: datetime = certificate.not_valid_after_utc
    if now < begin:
        raise InputError(
            f"{kit.folder}: was made on {begin:%Y-%m-%d %H:%M} UTC, by this clock it is {now:%Y-%m-%d %H:%M}; set it"
        )
    if now > end:
        raise InputError(f"{kit.folder}: its certificate ended on {end:%Y-%m-%d}; fedcore field init makes new kits")
    return end


@contextmanager
def only_one(kit: Path, part: str = "own.key") -> Iterator[None]:
    """Refuse a second process with a kit, such as one that takes a device's place. part: the file that is locked."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with (kit / part).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"{kit}: another process runs with this kit; end that one first") from None
        yield


def find_server(kit: Kit) -> str:
    """Return why a device cannot reach its server yet; nothing if it can. Raises InputError for another authority's."""
    context = ssl.create_default_context(cafile=str(kit.folder / "authority.crt"))
    context.check_hostname = False  # the certificate has the link's name
    context.load_cert_chain(kit.folder / "own.crt", kit.folder / "own.key")
    host, _, port = kit.address.partition(":")
    try:
        with socket.create_connection((host, int(port)), REACHED) as plain, context.wrap_socket(plain) as link:
            link.settimeout(0.5)
            with suppress(TimeoutError):
                if link.recv(1):  # a server that refuses a certificate says it after the handshake, or hangs up
                    return ""
                return "it refuses this kit: it is revoked, or another process with it is connected"
            return ""
    except ssl.SSLCertVerificationError:
        raise InputError(
            f"{kit.address}: its server has a kit of another field init than {kit.folder}; take the archives of one"
        ) from None
    except ssl.SSLError as error:
        return f"it refuses this kit: {error.reason.rpartition('ALERT_')[2].replace('_', ' ').lower()}"
    except OSError as error:
        return str(error)
