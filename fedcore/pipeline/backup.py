"""A project's copy in a folder, or at any URL that fsspec reads: results, history, record with models, cache.

`manifest.json` there names each file with its digest, and `objects/` holds their bytes, each once, by that digest. A
save writes what is not there yet, then the manifest, and then deletes what it no longer names. What git and DVC have
(settings, code, data), and what is of one machine (Prefect's database, passwords, locks), is not in it.

Rclone in its place would be 255 lines less; it copies a database while a page writes to it, and checks no digests.
"""

import json
import os
import secrets
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

from fedcore import __version__
from fedcore.config.studies import check_url
from fedcore.errors import InputError, message_of
from fedcore.pipeline import environment
from fedcore.pipeline.cache import journal
from fedcore.pipeline.cache.shared import file_system, put
from fedcore.pipeline.cache.store import digest_of
from fedcore.pipeline.command import Failed, cause
from fedcore.pipeline.state import PART, write_atomic

MANIFEST, OBJECTS, FORMAT = "manifest.json", "objects", 1
DATABASE = "mlflow.db"
IDENTITY = ".fedcore/project"
"""A word that a project draws at its first save; its clones have it by a restore, so that they may save in turn."""
RECORD = (DATABASE, "mlruns", "runs", "results", ".fedcore/registered", IDENTITY)
"""What a save holds, of the project's folder."""
CACHE = (".fedcore/blobs", ".fedcore/steps", ".fedcore/journal.jsonl")
"""What it holds beside them if it is asked for the cache."""


def save(url: str, cache: bool = False, replace: bool = False) -> tuple[int, int, int]:
    """Save the project's record, and its cache if asked for. Raises InputError while a flow runs here.

    replace: also where another project has been saved. Returns the number of files, their bytes, and the number of
    those that were not there before.
    """
    with _opened(url) as (files, root), journal.starting(), ExitStack() as opened:
        if any(map(journal.alive, journal.marks())):
            raise InputError("a flow is running here: save when it has ended")
        if not environment.HOME.joinpath(DATABASE).is_file():
            raise InputError(f"{environment.HOME / DATABASE}: no such file; nothing to save")
        identity = environment.HOME / IDENTITY
        project = identity.read_text().strip() if identity.is_file() else secrets.token_hex(16)
        _require_room(files, root, None if replace else project)
        copies = opened.enter_context(_scratch())
        write_atomic(copies / identity.name, f"{project}\n".encode())
        os.replace(copies / identity.name, identity)
        sizes = _sizes(files, root)
        named: dict[str, list[Any]] = {}
        written = 0
        for name, path in _members(RECORD + CACHE * cache, copies).items():
            content = path.read_bytes()
            digest = digest_of(content)
            named[name] = [digest, len(content)]
            if sizes.get(digest) != len(content):
                put(files, _object(root, digest), content)
                sizes[digest] = len(content)
                written += 1
        manifest = {
            "format": FORMAT, "fedcore": __version__, "project": project, "name": environment.HOME.name, "files": named,
            "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        }  # fmt: skip
        put(files, f"{root}/{MANIFEST}", json.dumps(manifest, indent=0).encode())
        for digest in sizes.keys() - {digest for digest, _ in named.values()}:
            files.rm_file(_object(root, digest))
        for path in files.find(root):
            if PART.fullmatch(path.rpartition("/")[2]):
                files.rm_file(path)
    return len(named), sum(size for _, size in named.values()), written


def restore(url: str) -> tuple[int, int, int]:
    """Write the files of a save into the project's folder, each checked by its digest before any is written.

    A file of a model has its own name only once it is whole, so that a restore that was killed goes on. Returns what
    `save` does. Raises InputError if the save is damaged, or if the project has another file in the place of one.
    """
    with _opened(url) as (files, root), journal.starting():
        _, named = _manifest(files, f"{root}/{MANIFEST}")
        missing = {}
        for name, (digest, _) in named.items():
            there = environment.HOME / name
            above = next(path for path in there.parents if path.exists())
            if not above.is_dir() or (there.exists() and not there.is_file()):
                raise InputError(f"{there if above.is_dir() else above}: is in the place of {name}")
            if not there.is_file():
                missing[name] = digest
            elif digest_of(there.read_bytes()) != digest:
                raise InputError(f"{there}: is another file than that of {url}; restore into a fresh clone")
        with _scratch() as folder:
            for number, digest in enumerate(missing.values()):
                write_atomic(folder / str(number), _read(files, root, digest))
            last = [*sorted(enumerate(missing), key=lambda numbered: numbered[1] == DATABASE)]  # it names the others
            for number, name in last:
                there = environment.HOME / name
                there.parent.mkdir(parents=True, exist_ok=True)
                try:
                    os.replace(folder / str(number), there)
                except OSError:  # on another disk
                    write_atomic(there, (folder / str(number)).read_bytes())
        for part in RECORD:
            for path in (environment.HOME / part).rglob(".*.part"):
                if PART.fullmatch(path.name):
                    path.unlink(missing_ok=True)
    return len(named), sum(size for _, size in named.values()), len(missing)


def _require_room(files: Any, root: str, project: str | None) -> None:
    """Refuse a place whose files a save would write over, and one that would be part of the next save.

    project: the identity of the only project whose save may be replaced; None: any.
    """
    if "file" in files.protocol and any(
        Path(root).is_relative_to((environment.HOME / part).resolve()) for part in RECORD + CACHE
    ):
        raise InputError(f"{root}: is in what is saved; name a place outside of it")
    if files.exists(f"{root}/{MANIFEST}"):
        manifest, _ = _manifest(files, f"{root}/{MANIFEST}")
        if project and manifest.get("project", project) != project:
            raise InputError(
                f"{root}: has the save of another project, {manifest.get('name')!r} of {manifest.get('date')!r}; "
                "name another place, or replace it by --replace"
            )


def _members(parts: tuple[str, ...], copies: Path) -> Mapping[str, Path]:
    """Return the files of parts of a project: name from its folder -> path; the database as a copy at one moment.

    copies: the folder of that copy.
    """
    home, members = environment.HOME, {}
    for part in parts:
        below = [home / part] if (home / part).is_file() else sorted((home / part).rglob("*"))
        for path in below:
            left = PART.fullmatch(path.name) or "__pycache__" in path.parts
            if path.is_file() and not path.is_symlink() and not left:
                members[path.relative_to(home).as_posix()] = path
    copy = copies / DATABASE
    with closing(sqlite3.connect(home / DATABASE, timeout=60)) as live, closing(sqlite3.connect(copy)) as target:
        live.backup(target)
    return members | {DATABASE: copy}


def _manifest(files: Any, path: str) -> tuple[dict[str, Any], dict[str, tuple[str, int]]]:
    """Return what a manifest says, and its files.

    Raises InputError for a manifest that is none, and for places outside of a save.
    """
    try:
        manifest = json.loads(files.cat_file(path))
        if manifest["format"] != FORMAT:
            raise ValueError(f"format {manifest['format']!r} is not known to fedcore {__version__}")
        named = {str(name): (str(digest), int(size)) for name, (digest, size) in manifest["files"].items()}
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; fedcore save writes it") from None
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise InputError(f"{path}: not the manifest of a save: {error}") from None
    folders = {str(above) for name in named for above in PurePosixPath(name).parents}
    for name, (digest, _) in named.items():
        path_there = PurePosixPath(name)
        inside = any(path_there.is_relative_to(part) for part in RECORD + CACHE) and name not in folders
        plain = str(path_there) == name and ".." not in path_there.parts and "\0" not in name
        if not inside or not plain or not digest.isalnum():
            raise InputError(f"{path}: names {name!r}, which no save holds")
    return manifest, named


def _read(files: Any, root: str, digest: str) -> bytes:
    try:
        content: bytes = files.cat_file(_object(root, digest))
    except FileNotFoundError:
        content = b""
    if digest_of(content) != digest:
        raise InputError(
            f"{_object(root, digest)}: is missing or damaged; delete it, and save again where the project is whole"
        )
    return content


def _sizes(files: Any, root: str) -> dict[str, int]:
    """Return the objects of a save: digest -> bytes."""
    infos = files.find(f"{root}/{OBJECTS}", detail=True) if files.exists(f"{root}/{OBJECTS}") else {}
    sizes = {path: int(info["size"]) for path, info in infos.items()}
    return {digest: n for path, n in sizes.items() if path.endswith(_object("", digest := path.rpartition("/")[2]))}


def _object(root: str, digest: str) -> str:
    return f"{root}/{OBJECTS}/{digest[:2]}/{digest}"


@contextmanager
def _scratch() -> Iterator[Path]:
    """Yield an empty folder in .fedcore for copies. It goes afterwards, and so does one that a killed command left.

    The caller holds the lock of starting flows, so that nobody else has one.
    """
    folder = environment.STATE / "copies"
    for left in (folder, *environment.STATE.glob("tmp*")):  # as a temporary folder was named before
        shutil.rmtree(left, ignore_errors=True)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _opened(url: str) -> Iterator[tuple[Any, str]]:
    """Yield the file system of a folder or URL, and the path in it; its errors are Failed, in one line."""
    try:
        import fsspec

        if "://" in check_url(url):
            files, root = file_system(url)
        else:  # no URL: a blank, a percent sign and `::` are the name's own
            files, root = fsspec.filesystem("file"), str(Path(url).resolve())
    except (ImportError, ValueError) as error:
        raise InputError(f"{url!r}: {error}") from None
    try:
        yield files, root
    except (InputError, Failed):
        raise
    except Exception as error:
        raise Failed(cause(error) or f"{url}: {message_of(error)}") from None
