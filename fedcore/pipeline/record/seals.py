"""Seals of registered models: what shows that this project made the files that a version names.

MLflow's database says where a version's files are, and whoever may write to it can name a folder of their own with code
in it. A registration therefore leaves a digest of the files in `.fedcore/registered`, which only its owner can write. A
version is loaded only from this project's artifacts, if all of its files are this user's and match a digest.
"""

import os
import stat
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from urllib.parse import unquote, urlsplit

from fedcore.errors import InputError
from fedcore.pipeline import environment
from fedcore.pipeline.state import PART, write_atomic

CACHES = "__pycache__"
"""Folders that Python makes when a model is loaded; `models.load` does not read them."""

META = "registered_model_meta"
"""The file that MLflow writes beside a version's model when that is loaded by its name: the name and the number."""


def seal(name: str, uri: str) -> None:
    """Remember the files of a model that is being registered under a name."""
    write_atomic(environment.REGISTERED / digest(name, own_folder(uri, name)), b"")


def forget(name: str, uri: str) -> None:
    """Forget the files of a model that is being deleted."""
    with suppress(InputError):
        (environment.REGISTERED / digest(name, own_folder(uri, name))).unlink(missing_ok=True)


def check(name: str, uri: str, what: str) -> Path:
    """Return the folder of a version's files. Raises InputError unless this project registered them under its name.

    what: the version, for messages.
    """
    folder = own_folder(uri, what)
    seal = environment.REGISTERED / digest(name, folder)
    if not seal.is_file() or seal.stat().st_uid != os.getuid():
        raise InputError(
            f"{what}: not loaded, since its files are not those that this project registered; predict with another "
            "version, or set mlflow.db aside: the next run registers its models again"
        )
    return folder


def own_folder(uri: str, what: str) -> Path:
    """Return the local folder of artifacts, which may be gone. Raises InputError for one outside of this project.

    So it does if not all in it is this user's; links are refused.
    """
    parts = urlsplit(uri)
    root = environment.ARTIFACTS.resolve()
    folder = environment.ARTIFACTS.parent / unquote(parts.path)
    resolved = folder.resolve()
    if parts.scheme not in ("", "file") or parts.netloc or root not in resolved.parents:
        raise InputError(f"{what}: not loaded, since its files are not in {environment.ARTIFACTS}: {uri}")
    above = [folder for folder in (resolved, *resolved.parents) if root in (folder, *folder.parents)]
    for path in (*filter(Path.exists, above), *sorted(resolved.rglob("*"))):
        status = path.lstat()
        if status.st_uid != os.getuid() or stat.S_ISLNK(status.st_mode):
            raise InputError(f"{what}: not loaded, since {path} is a link or another user's")
    return resolved


def digest(name: str, folder: Path) -> str:
    """Return a digest of a registered model's name and of all its files, by their paths in its folder."""
    hasher = blake2b(digest_size=20)
    files = (path for path in folder.rglob("*") if path.is_file() and CACHES not in path.parts)
    files = (path for path in files if path != folder / META and not PART.fullmatch(path.name))
    for text in (name, *sorted(str(path.relative_to(folder)) for path in files)):
        content = text.encode(errors="surrogateescape")
        hasher.update(len(content).to_bytes(8, "big") + content)
        if text is not name:
            hasher.update(blake2b((folder / text).read_bytes()).digest())
    return hasher.hexdigest()
