"""A chunk of rounds stores the server's report of each."""

from __future__ import annotations

from pathlib import Path

from federations import NETS, SGD, bits, federation

from fedcore.core.rounds import begin, run
from fedcore.execute.workers import Inline
from fedcore.methods import method
from fedcore.pipeline import environment
from fedcore.pipeline.cache.store import Ref, Store

environment.prepare()  # Prefect reads its settings when it is imported

from fedcore.pipeline.orchestration.in_memory import InMemory
from fedcore.pipeline.run.chunks import compute_chunk, stored_parts


def test_a_chunks_reports_are_those_of_the_loop_in_one_blob(tmp_path: Path):
    fed, store = federation(), Store(tmp_path)
    built = method(
        "dfl", nets=NETS, training=SGD, shared_init=True, rounds=3, fraction=1.0, ratio="dynamic", threshold=0.5,
        temperature=1.0, weighting="counts",
    )  # fmt: skip
    execute = InMemory(store, Inline(), lambda count: None, None)  # type: ignore[arg-type]
    start = begin(built, fed, 0, Inline())
    place = (*stored_parts(start), 0, 0)
    kept = store.put(compute_chunk(execute, built, fed, 0, place, 1, 3, [place]))
    assert isinstance(kept["reports"], Ref)
    expected = [one.report for one in run(built, fed, 0, Inline())]
    assert bits(store.get(kept["reports"])) == bits(expected)
    assert all(report.matrices["soft_targets"].shape == (3, 3) for report in expected)
