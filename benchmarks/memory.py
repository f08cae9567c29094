"""Memory and time as devices grow: 100, 1,000, 10,000 devices of 60 examples (28 x 28), 10 of them per round.

McMahan's CNN (1,663,370 parameters, 6.65 MB), DFL and SCAFFOLD, five rounds, one epoch, batches of 10, scored on 1,000
examples at the end; two workers, one process for each line. Beside the memory that all processes had at most, what data
and method need: the examples (one byte a pixel), and SCAFFOLD's variates of the devices that took part, counted by the
loop's own state. Seconds are medians over the rounds but the first, which starts the workers, and the last, which is
scored. The first line of each method, 100 devices, is what the others are compared with.

    python -m benchmarks.memory [devices ...]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from statistics import median
from typing import Any

import psutil
import torch

from fedcore import nets
from fedcore.core.rounds import run
from fedcore.core.training import Training
from fedcore.execute.workers import Workers
from fedcore.methods import method
from fedcore.types import Data, Device, Federation, Splits, generator, nbytes

DEVICES = (100, 1_000, 10_000)
EXAMPLES, TEST, PER_ROUND, ROUNDS, WORKERS, CLASSES = 60, 1_000, 10, 5, 2, 10
OWN: dict[str, dict[str, Any]] = {
    "dfl": {"ratio": "threshold", "threshold": 0.6, "temperature": 1.0, "weighting": "counts"},
    "scaffold": {},
}
TRAINING = Training(
    "sgd", 0.01, momentum=0.0, weight_decay=0.0, schedule="constant", batch=10, epochs=1, optimiser_state="fresh"
)


def main(counts: tuple[int, ...] = DEVICES) -> None:
    print("method     devices   data MB  state MB  peak MB: this process / workers' own / all   s a round   loop's s")
    for name in OWN:
        for count in counts:
            command = [sys.executable, "-m", "benchmarks.memory", "one", name, str(count)]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            data, state, mine, workers, together = (
                found[key] / 1e6 for key in ("data", "state", "main", "workers", "all")
            )
            print(
                f"{name:9} {count:8,} {data:9.1f} {state:9.1f} {mine:22,.0f} / {workers:6,.0f} / {together:6,.0f} "
                f"{found['seconds']:16.2f} {found['loop']:10.3f}"
            )
    print(f"a model has {nbytes(nets.init(NET, torch.Generator())) / 1e6:.2f} MB; load {os.getloadavg()[0]:.1f}")


NET = nets.net("mcmahan_cnn", shape=(1, 28, 28), classes=CLASSES)


def one(name: str, count: int) -> dict[str, float]:
    """Play a few rounds; return bytes at most, and the median seconds of a round and of this process in it."""
    torch.set_num_threads(1)
    none = examples(0)
    width = len(str(count))
    devices = {
        f"device-{i:0{width}}": Device(f"device-{i:0{width}}", NET, Splits(examples(EXAMPLES, i), none, none))
        for i in range(count)
    }
    fed = Federation(devices, examples(TEST, "test"), CLASSES, none)
    memory = {"rounds": ROUNDS, "fraction": PER_ROUND / count, **OWN[name]}
    made = method(name, nets=dict.fromkeys(devices, NET), training=TRAINING, shared_init=True, **memory)
    done, times, loops = threading.Event(), [], []
    peak: dict[str, int] = {}
    watcher = threading.Thread(target=watch, args=(done, peak))
    watcher.start()
    with Workers(WORKERS) as workers:
        rounds, ended = run(made, fed, 0, workers, every=ROUNDS), False
        while not ended:
            wall, cpu = time.perf_counter(), time.process_time()
            played = next(rounds, None)
            ended = played is None
            if played is not None:
                times.append(time.perf_counter() - wall)
                loops.append(time.process_time() - cpu)
                state = sum(nbytes(mine) for mine in played.state.memories.values())
    done.set()
    watcher.join()
    parts = [device.data.train for device in devices.values() if isinstance(device.data, Splits)]
    data = sum(part.x.nbytes + part.y.nbytes for part in parts)
    between = slice(1, ROUNDS - 1)
    return {"data": data, "state": state, "seconds": median(times[between]), "loop": median(loops[between]), **peak}


def examples(count: int, *words: object) -> Data:
    """Return noise: what is learned does not matter here."""
    draws = generator("memory", *words)
    pixels = torch.randint(256, (count, 1, 28, 28), generator=draws, dtype=torch.uint8)
    return Data(pixels, torch.randint(CLASSES, (count,), generator=draws))


def watch(done: threading.Event, peak: dict[str, int]) -> None:
    """Note the most memory: of this process, of the workers without what they share, of all (proportional shares)."""
    me = psutil.Process()
    while not done.wait(0.05):
        workers = []
        for child in me.children():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                workers.append(child.memory_full_info())
        mine = me.memory_full_info()
        now = {"main": mine.rss, "workers": sum(w.uss for w in workers), "all": mine.pss + sum(w.pss for w in workers)}
        for name, value in now.items():
            peak[name] = max(peak.get(name, 0), value)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["one", name, count]:
            print(json.dumps(one(name, int(count))))
        case words:
            main(tuple(map(int, words)) or DEVICES)
