"""A store that several machines share, at any URL that fsspec reads, and pruning: of it, and of a project's own cache.

The local folder is the shared store's read-through cache. A blob is put where none of its digest is, and its digest is
checked whenever it is read from there: one that is damaged is removed and counts as missing. Credentials are those of
each process's environment. Running flows have a mark in the store, so that nothing is pruned meanwhile.
"""

import json
import platform
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from fedcore.errors import InputError, message_of
from fedcore.pipeline import environment, state
from fedcore.pipeline.cache import journal
from fedcore.pipeline.cache.store import DamagedBlob, Ref, Store, digest_of, path_of, refs
from fedcore.pipeline.command import CONTINUE, Failed
from fedcore.pipeline.state import write_atomic

DAY = 86400.0

MARKS = "running"
"""The folder of the marks in a store."""

RENEWED = 60.0
"""Seconds after which the mark of a running flow is written again."""

LEASE = 15 * 60.0
"""Seconds for which a mark counts: a flow that was killed leaves its own behind."""

PART = ".part"
"""The end of the name of a file that is being written, or that a killed process has left."""

OVER_SSH = ("sftp://", "ssh://")

Result = TypeVar("Result")


class StoreLost(Failed):
    """The store does not answer."""


def open_store(url: str | None) -> Store:
    """Return the store at a path or URL; None: the folder in the project's state. Raises InputError."""
    if url is None or ("://" not in url and Path(url).resolve() == environment.BLOBS):
        return Store(environment.BLOBS)
    store = SharedStore(url if "://" in url else Path(url).resolve().as_uri())
    try:
        store.open()
    except (ImportError, ValueError, OSError, StoreLost) as error:
        lost = isinstance(error, StoreLost)
        why = f"it does not answer ({message_of(error.__cause__)})" if lost else message_of(error)
        raise InputError(f"run.store = {url!r}: {why}") from None
    return store


def with_blobs(store: Store, args: tuple[Any, ...], call: Callable[[], Result]) -> Result:
    """Call, and once more if a blob was damaged in a store that others share: what is whole here goes there again."""
    try:
        return call()
    except DamagedBlob:
        store.offer(refs(args), afresh=True)
        return call()


@dataclass(frozen=True)
class Pruned:
    """The numbers of deleted steps and blobs, and the bytes that both free. left: the bytes of the remaining blobs."""

    steps: int
    blobs: int
    nbytes: int
    left: int


class SharedStore(Store):
    """The store at a URL. Each process has its own local folder, below its own FEDCORE_HOME or current folder."""

    def __init__(self, url: str) -> None:
        super().__init__(environment.BLOBS)
        self.url = self.location = url.rstrip("/")

    def __reduce__(self) -> Any:
        return SharedStore, (self.url,)

    def open(self) -> None:
        """Raise ImportError, ValueError, OSError or StoreLost if the store cannot be written."""
        with self._asked() as (files, root):
            name = f"{root}/{MARKS}/opened-{uuid4().hex}"
            put(files, name, b"")
            files.rm_file(name)

    def holds(self, ref: Ref) -> bool:
        """Tell whether a blob exists and is intact, here or after it has been fetched."""
        return super().holds(ref) or self._fetch(ref)

    def offer(self, blobs: Iterable[Ref], afresh: bool = False) -> None:
        """Put the blobs that are here and not in the store, or not whole, there. afresh: look at the store again."""
        if afresh:
            _sizes.cache_clear()
        with self._asked():
            sizes = _sizes(self.url)
        for ref in {*blobs}:
            if super().holds(ref) and sizes.get(ref.digest) != self.path(ref).stat().st_size:
                if ref.digest in sizes:
                    self._remove(ref)
                self._offer(ref, self.path(ref).read_bytes())

    def drop(self, ref: Ref) -> None:
        super().drop(ref)
        self._remove(ref)

    def _keep(self, ref: Ref, content: bytes) -> None:
        if not super().holds(ref):
            write_atomic(self.path(ref), content, durable=False)
        self._offer(ref, content)

    def _offer(self, ref: Ref, content: bytes) -> None:
        with self._asked() as (files, root):
            if not files.exists(path_of(root, ref)):
                put(files, path_of(root, ref), content)

    def _remove(self, ref: Ref) -> None:
        with self._asked() as (files, root), suppress(FileNotFoundError):
            files.rm_file(path_of(root, ref))

    def _fetch(self, ref: Ref) -> bool:
        try:
            with self._asked() as (files, root):
                content = files.cat_file(path_of(root, ref))
        except FileNotFoundError:
            return False
        if digest_of(content) != ref.digest:
            self._remove(ref)
            return False
        write_atomic(self.path(ref), content, durable=False)
        return True

    @contextmanager
    def _asked(self) -> Iterator[tuple[Any, str]]:
        """Yield the file system and the store's path in it; its errors become StoreLost, a missing file aside."""
        files, root = file_system(self.url)
        try:
            yield files, root
        except FileNotFoundError:
            raise
        except Exception as error:
            raise StoreLost(f"the store {self.url} does not answer ({message_of(error)}); {CONTINUE}") from error

    # Marks and pruning.

    @contextmanager
    def lease(self, who: str) -> Iterator[None]:
        """Mark something as running while the body runs, `who` being flow or prune. Raises InputError, naming the
        machine, if the store is being pruned, or for `who` = prune if a flow is running.
        """
        name, ended = f"{who}-{uuid4().hex}", threading.Event()
        self._mark(name)
        try:
            for other, mark in self._marks().items():
                kind = other.partition("-")[0]
                if other != name and "prune" in (kind, who) and time.time() - mark["time"] < LEASE:
                    doing = "being pruned" if kind == "prune" else "in use by a flow"
                    where = f"{doing} on {mark['host']}"
                    raise InputError(f"the store {self.url} is {where}: try again when that has ended")
            renewing = threading.Thread(target=self._renew, args=(name, ended), daemon=True, name="fedcore-lease")
            renewing.start()
            try:
                yield
            finally:
                ended.set()
                renewing.join()
        finally:
            with suppress(StoreLost, FileNotFoundError), self._asked() as (files, root):
                files.rm_file(f"{root}/{MARKS}/{name}")

    def _renew(self, name: str, ended: threading.Event) -> None:
        while not ended.wait(RENEWED):
            with suppress(StoreLost):
                self._mark(name)

    def _mark(self, name: str) -> None:
        with self._asked() as (files, root):
            put(files, f"{root}/{MARKS}/{name}", json.dumps({"host": platform.node(), "time": time.time()}).encode())

    def _marks(self) -> dict[str, dict[str, Any]]:
        """Return the marks of running flows and prunings, without those that are damaged or just removed."""
        marks = {}
        with self._asked() as (files, root):
            for path in files.find(f"{root}/{MARKS}"):
                if path.endswith(PART):  # being written
                    continue
                with suppress(FileNotFoundError, ValueError, TypeError, LookupError):
                    mark = json.loads(files.cat_file(path))
                    marks[path.rpartition("/")[2]] = {"host": str(mark["host"]), "time": float(mark["time"])}
        return marks

    def prune(self, needed: set[str], days: float, dry_run: bool = False) -> Pruned:
        """Delete the blobs that are older than that, but those needed here. Raises InputError while a flow runs.

        dry_run: delete nothing, and return what would be deleted.
        """
        since, blobs, nbytes, left = time.time() - days * DAY, 0, 0, 0
        with self.lease("prune"), self._asked() as (files, root):
            for path, info in files.find(root, detail=True).items():
                digest = _digest(path)
                if digest is None and not path.endswith(PART):
                    continue
                if digest in needed or _modified(files, path, info) >= since:
                    left += info["size"]
                    continue
                if not dry_run:
                    with suppress(FileNotFoundError):
                        files.rm_file(path)
                blobs, nbytes = blobs + 1, nbytes + info["size"]
        return Pruned(0, blobs, nbytes, left)


def file_system(url: str) -> tuple[Any, str]:
    """Return a store's file system, and the store's path in it."""
    return _opened(url, threading.get_ident() if url.startswith(OVER_SSH) else 0)


@cache
def _opened(url: str, thread: int) -> tuple[Any, str]:
    """Paramiko's client loses an answer if two threads ask at a time, so that each has a file system of its own."""
    import fsspec

    files, root = fsspec.core.url_to_fs(url, **({} if thread else {"use_listings_cache": False}))
    return files, str(root).rstrip("/")


@cache
def _sizes(url: str) -> dict[str, int]:
    """Return the sizes of a store's blobs by digest."""
    files, root = file_system(url)
    infos = files.find(root, detail=True)
    return {digest: int(info["size"]) for path, info in infos.items() if (digest := _digest(path))}


def _digest(path: str) -> str | None:
    """Return the digest that names a blob's file, None for any other file."""
    name, _, kind = path.rpartition("/")[2].rpartition(".")
    return name if kind == "safetensors" else None


def put(files: Any, path: str, content: bytes) -> None:
    if "file" in files.protocol:  # fsspec would write it in place
        write_atomic(Path(path), content)
        return
    in_place = "sftp" in files.protocol  # a mark that is read meanwhile would count as none
    name = f"{path}-{uuid4().hex}{PART}" if in_place else path
    try:
        files.pipe_file(name, content)
    except FileNotFoundError:  # no folder yet, where there are folders
        files.makedirs(path.rpartition("/")[0], exist_ok=True)
        files.pipe_file(name, content)
    if in_place:
        files.mv(name, path)


def _modified(files: Any, path: str, info: dict[str, Any]) -> float:
    """Return when a file was written, in seconds since 1970."""
    when = next((info[key] for key in ("LastModified", "mtime", "created") if key in info), None)
    when = files.modified(path) if when is None else when
    return when.timestamp() if isinstance(when, datetime) else float(when)


def prune(steps: Path, store: Store, days: float, dry_run: bool = False) -> Pruned:
    """Delete the steps that no run has used for this many days, and blobs of that age to which no other step refers.

    A run uses a step when it computes it or finds it in the cache; the journal has a line with the time and the blobs
    that the step refers to. Older lines are deleted too. A step has no line if its flow was killed at that moment; its
    blobs stay until they reach that age, and so do the half-written files of killed processes. A run that needs a
    deleted step computes it again. Registered models and the outputs of DVC's stages are copies and need no blob.
    Raises InputError while a flow runs, since it may need a blob that it has not yet read; a flow that starts meanwhile
    waits.

    dry_run: delete nothing, and return what would be deleted.
    """
    with journal.starting():
        if any(map(journal.alive, journal.marks())):
            raise InputError("a flow is running here: try again when it has ended")
        since = time.time() - days * DAY
        lines = journal.read()
        recent = [line for line in lines if line["time"] >= since]
        used = {line["key"] for line in recent}
        needed = {digest for line in recent for digest in line.get("blobs", ())}
        records, blobs = paths(steps, "*"), paths(store.root, "*/*")
        unused = [record for record in records if record.name not in used and is_older(record, since)]
        orphans = [blob for blob in blobs if blob.stem not in needed and is_older(blob, since)]
        parts = [of for of in paths(steps.parent, ".*") if state.PART.fullmatch(of.name) and is_older(of, since)]
        freed = sum(map(room, (*unused, *orphans, *parts)))
        left = sum(blob.stat().st_size for blob in {*blobs} - {*orphans})
        pruned = Pruned(len(unused), len(orphans), freed, left)
        if dry_run:
            return pruned
        # steps first, so that no step refers to a deleted blob if this process is killed
        for path in (*unused, *orphans, *parts):
            path.unlink(missing_ok=True)
        if len(recent) < len(lines):
            write_atomic(journal.JOURNAL, state.to_lines(recent))
        return pruned


def room(path: Path) -> int:
    """Return the bytes that deleting a file frees; none if it has another name, as models of MLflow's record have."""
    status = path.stat()
    return status.st_size if status.st_nlink == 1 else 0


def is_older(path: Path, since: float) -> bool:
    return path.stat().st_mtime < since


def paths(folder: Path, pattern: str) -> list[Path]:
    return [path for path in folder.glob(pattern) if path.is_file()]
