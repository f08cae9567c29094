"""The worker's side of a Dask cluster (:mod:`fedcore.execute.cluster`). What it needs is imported when a step runs."""

import hashlib
import platform
import sys
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib import invalidate_caches, metadata
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

Packet: TypeAlias = tuple[bytes, Any]
"""A pickled value, and its tensors as one vector of bytes (numpy.ndarray, uint8)."""

PACKAGES = (
    "annotated-types", "clarabel", "cloudpickle", "cvxpy", "numpy", "pandas", "pillow", "POT", "pyarrow", "pydantic",
    "safetensors", "scikit-learn", "scipy", "torch",
)  # fmt: skip
"""The packages whose versions all processes of a run have in common: those that steps use."""


class WrongWorker(RuntimeError):
    """A worker that joined during the run has other source than the run."""


def pack(value: object) -> Packet:
    """Return a value as a packet."""
    import numpy as np

    from fedcore.execute.packing import Packed

    packed = Packed(value)
    block = np.empty(packed.length, dtype=np.uint8)
    packed.write(block)
    return bytes(packed.payload), block


def unpack(packet: Packet) -> Any:
    """Undo `pack`."""
    from fedcore.execute.packing import Parcel

    return Parcel(*packet).open()


def answer(own: Mapping[str, str], packet: Packet) -> Packet:
    """Return the results of a packet's function for each of its tuples of arguments, with the settings of a worker.

    own: the digests of packages that the run has. Raises WrongWorker if they are others here.
    """
    from fedcore.execute.accelerator import compute_alone
    from fedcore.types.imports import draw_alike

    if other := [name for name, digest in own.items() if source(name) != digest]:
        raise WrongWorker(f"{platform.node()} has another {' and '.join(other)} than this run")
    compute_alone()
    draw_alike()
    fn, calls = unpack(packet)
    return pack([fn(*args) for args in calls])


def survey(own: Iterable[str], check: Packet | None) -> dict[str, str]:
    """Return what must be the same on every worker: the digests of packages, versions, and the outcome of a check.

    check: a packet with a function without arguments, which returns what is wrong, or an empty text.
    """
    facts = {"Python": ".".join(platform.python_version_tuple()[:2])}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            facts[name] = metadata.version(name)
    facts |= {f"source of {name}": source(name) for name in own}
    return facts | ({"check": str(unpack(check)())} if check is not None else {})


@cache
def source(package: str) -> str:
    """Return the digest of a package's source; an empty text where it cannot be imported."""
    spec = find_spec(package)
    roots = [Path(root) for root in (spec.submodule_search_locations or ())] if spec is not None else []
    digest = hashlib.blake2b(digest_size=8)
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest() if roots else ""


def archive(modules: Iterable[str]) -> bytes:
    """Return a zip file of modules, each a file or a package with all of its files. Each can be imported here."""
    stream = BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        for name in sorted({*modules}):
            spec = find_spec(name)
            if spec is None or spec.origin is None:
                raise ModuleNotFoundError(name)
            origin = Path(spec.origin)
            parts = sorted(origin.parent.rglob("*.py")) if spec.submodule_search_locations else [origin]
            for path in parts:
                inside = path.relative_to(origin.parents[bool(spec.submodule_search_locations)]).as_posix()
                file.writestr(zipfile.ZipInfo(inside), path.read_bytes())
    return stream.getvalue()


def install(archived: bytes, modules: Iterable[str], folder: Path) -> None:
    """Make the modules of an archive those that this process imports, in place of others of the same names."""
    archive = folder / f"fedcore-{hashlib.blake2b(archived, digest_size=8).hexdigest()}.zip"
    archive.write_bytes(archived)
    sys.path[:] = [str(archive), *(path for path in sys.path if path != str(archive))]
    names = {*modules}
    for loaded in [name for name in sys.modules if name.partition(".")[0] in names]:
        del sys.modules[loaded]
    invalidate_caches()
