"""Your own table: machines with sensors that differ, each a device that trains on its own rows."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

import fedcore as fc


def measured(machine: int, rng: np.random.Generator) -> pd.DataFrame:
    """Return 120 rows of one machine, whose sensors have an offset and a gain of their own."""
    worn = rng.integers(0, 2, 120)
    sensors = rng.normal(size=(120, 4)) + 1.5 * worn[:, None] * [1, -1, 0, 0]
    columns = dict(zip(["heat", "speed", "noise", "load"], (sensors * (1 + machine) + 10 * machine).T, strict=True))
    return pd.DataFrame({"machine": f"press-{machine}", **columns, "state": np.where(worn, "worn", "good")})


rng = np.random.default_rng(0)
with TemporaryDirectory() as folder:
    path = Path(folder) / "machines.csv"
    pd.concat([measured(machine, rng) for machine in range(5)]).to_csv(path, index=False)
    data = fc.load("table", path=path, label="state", device="machine")

fed = fc.federate(data, fc.by_device(), scale="device", net=fc.mlp(16))
comparison = fc.compare(
    [fc.local_only(), fc.fedavg(), fc.fedper()], fed, seeds=range(3), claims=["fedper > local_only"]
)
print(comparison.summary[["method", "rank", "test_mean", "test_worst"]])
print(comparison.claims[["rule", "verdict", "numbers"]].to_string(index=False))

rows = measured(2, rng)[["heat", "speed", "noise", "load"]]
numbers = comparison.results[0].models["press-2"].predict(rows)
print("press-2 now:", [data.classes[number] for number in numbers[:5]])
