"""Two machines, with a project each, whose store is one bucket of a server with S3's API."""

import shutil
from dataclasses import dataclass
from typing import Any

from project import LIMIT, Said, Seen, digests, wait

from scenarios.place import Place

WORDS = ("methods=[local_only,code_ot]", "training.batch=16", "training.epochs=20", "run.workers=1")
EXACT = ("table.parquet", "models.json")
PREFIX = "everyones/fedcore"
HARMED = 4
"""Blobs whose last byte is changed."""


@dataclass(frozen=True)
class Bucket:
    """results: the digests of a flow without the bucket, of two flows at once with it, and of one again after some
    of the bucket's blobs were harmed and all blobs of its machine were lost. pruned: what pruning said while they ran.
    again: the last flow. harmed: the names of the harmed blobs; whole: those that the bucket has whole in the end.
    """

    results: dict[str, dict[str, str]]
    pruned: Said
    again: Seen
    harmed: set[str]
    whole: set[str]


def bucket(place: Place) -> Bucket | None:
    """Return what happened; None where the packages of the bucket are not installed."""
    try:
        import s3fs
        from moto.server import ThreadedMotoServer
    except ImportError:
        return None
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        url = "http://{}:{}".format(*server.get_host_and_port())
        files = s3fs.S3FileSystem(key="me", secret="word", endpoint_url=url, use_listings_cache=False)
        files.mkdir(PREFIX.partition("/")[0])
        return _use(place, files, url)
    finally:
        server.stop()


def _use(place: Place, files: Any, url: str) -> Bucket:
    access = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "word", "AWS_ENDPOINT_URL": url}
    store = f"run.store=s3://{PREFIX}"
    alone, here, there = (place.copy(name) for name in ("alone", "here", "there"))
    flow = ("fedcore", "run", *WORDS, store)
    flows = [one.start(*flow, log=place.folder / f"{one.folder.name}.log", **access) for one in (here, there)]
    wait(
        "a flow's mark",
        lambda: files.find(f"{PREFIX}/running") or all(one.poll() is not None for one in flows),
        every=0.3,
    )
    pruned = alone.run("fedcore", "prune", "--days", "0", "--store", store.partition("=")[2], code=None, **access)
    assert [one.wait(LIMIT) for one in flows] == [0, 0]
    alone.federate(*WORDS)
    results = {one.folder.name: _results(one.folder / "runs") for one in (alone, here, there)}
    blobs = {path.rpartition("/")[2]: path for path in files.find(PREFIX) if path.endswith(".safetensors")}
    before = {name: files.cat_file(path) for name, path in sorted(blobs.items())[:: len(blobs) // HARMED][:HARMED]}
    for name, content in before.items():
        files.pipe_file(blobs[name], content[:-1] + bytes([content[-1] ^ 1]))
    here.look()
    shutil.rmtree(here.folder / ".fedcore" / "blobs")
    again = here.look(here.federate(*WORDS, store, **access))
    results["again"] = _results(here.folder / "runs")
    whole = {name for name, content in before.items() if files.exists(blobs[name])
             and files.cat_file(blobs[name]) == content}  # fmt: skip
    return Bucket(results, pruned, again, {*before}, whole)


def _results(runs: Any) -> dict[str, str]:
    return {path: digest for path, digest in digests(runs).items() if path.endswith(EXACT)}
