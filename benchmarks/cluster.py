"""A Dask cluster of its own beside worker processes: start, single calls, rounds of W1, and how sleeping steps scale.

Each repetition runs all candidates in turn; printed are medians. Sleeping steps need no core, so that more workers than
cores show what the engine itself costs: ideal is steps x seconds / workers.

    python -m benchmarks.cluster [repetitions]
    python -m benchmarks.cluster scaling
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch

from benchmarks.w1 import DEVICES, fedcore_rounds, images, seconds
from fedcore.execute.cluster import Cluster
from fedcore.execute.workers import Engine, Workers
from fedcore.pipeline.cache.store import Store
from fedcore.pipeline.orchestration.steps import InMemory
from fedcore.types import Data

SLEEP = 0.5


def timed(fn: Callable[[], object]) -> float:
    start = time.perf_counter()
    fn()
    return time.perf_counter() - start


def compare(repetitions: int) -> None:
    """Print the medians of both engines with two workers, and their ratios."""
    whole = images()
    parts = [Data(x.clone(), y.clone()) for x, y in zip(whole.x.chunk(DEVICES), whole.y.chunk(DEVICES), strict=True)]
    with Workers(2) as workers, Cluster(count=2, own=["fedcore"]) as cluster, TemporaryDirectory() as folder:
        store = Store(Path(folder))
        engines: dict[str, Engine] = {"workers": workers, "cluster": cluster}
        starts = {name: timed(lambda engine=engine: engine.call(abs, 1)) for name, engine in engines.items()}
        segments = {name: InMemory(store, engine, lambda count: None, None) for name, engine in engines.items()}
        rounds = {name: fedcore_rounds(parts, repetitions + 1, engine, store.put) for name, engine in segments.items()}
        walls: dict[str, dict[str, list[float]]] = {}
        for repetition in range(repetitions + 1):
            for name, engine in engines.items():
                many = {i: (i,) for i in range(200)}
                cases = {
                    "a single call": timed(lambda engine=engine: [engine.call(abs, -1) for _ in range(20)]) / 20,
                    "200 empty calls of one map": timed(lambda engine=engine, many=many: engine.map(abs, many)),
                    "a round of W1": seconds(rounds[name], 2),
                }
                for case, wall in cases.items() if repetition else ():  # the first warms up
                    walls.setdefault(case, {}).setdefault(name, []).append(wall)
    print(f"{'start, with the first call':28} {starts['workers']:9.4f} s {starts['cluster']:9.4f} s")
    for case, found in walls.items():
        here, there = median(found["workers"]), median(found["cluster"])
        print(f"{case:28} {here:9.4f} s {there:9.4f} s   ratio {there / here:6.2f}")


def scale() -> None:
    """Print the efficiency of 1 to 16 workers on sleeping steps, asked for one by one as a flow does."""
    for count in (1, 2, 4, 8, 16):
        steps = 8 * count
        with Cluster(count=count) as cluster, ThreadPoolExecutor(steps) as threads:
            _, wall = [
                timed(partial(sleep, cluster, threads, steps, each)) for each in (0.01, SLEEP)
            ]  # the first warms up
        share = steps * SLEEP / count / wall
        print(f"{count:3} workers: {steps} steps of {SLEEP} s in {wall:6.2f} s, {share:.2f} of ideal")


def sleep(cluster: Cluster, threads: ThreadPoolExecutor, steps: int, each: float) -> None:
    list(threads.map(partial(cluster.call, time.sleep), [each] * steps))


if __name__ == "__main__":
    torch.set_num_threads(2)
    scale() if sys.argv[1:] == ["scaling"] else compare(*map(int, sys.argv[1:] or [7]))
