"""Boosted trees beside nets: accuracy and seconds on a made table of six unlike sites and six graded classes.

    python -m benchmarks.trees [OUT]      some minutes on two cores

It writes a row for each method with its settings: the mean accuracy on the sites' test rows and what it is against
`pooled`, boosting on all rows, over seeds; seconds; bytes that a device sends and receives.
"""

import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

import fedcore as fc
from fedcore.api.federation import DividedDataset

SITES, ROWS, COLUMNS, SEEDS = 6, 2400, 12, range(3)
CUTS = -1.5, -0.8, 0.0, 0.8, 1.5
"""Between the classes, from rare to common and back."""


def made(seed: int = 0) -> DividedDataset:
    """Return sites whose columns differ in level, and whose label is a grade of five of them, with noise."""
    rng = np.random.default_rng(seed)
    site = np.arange(ROWS) % SITES
    x = rng.normal(size=(ROWS, COLUMNS)) + rng.normal(0, 0.7, (SITES, COLUMNS))[site]
    score = x[:, 0] + 0.8 * x[:, 1] * (x[:, 2] > 0) - 0.6 * abs(x[:, 3]) + 0.5 * np.sin(2 * x[:, 4])
    grade = np.digitize((score - score.mean()) / score.std() + rng.normal(0, 0.25, ROWS), CUTS)
    return fc.federate(fc.from_arrays(x, grade, device=[f"site-{k}" for k in site]), fc.by_device())


def main(out: Path | None) -> None:
    federation = made()
    methods = {
        "pooled": fc.pooled,
        "pooled, each of 300 trees on a fresh sixth": partial(
            fc.pooled, trees=300, eta=0.3 / SITES, subsample=1 / SITES
        ),
        "xgb_local": fc.xgb_local,
        "local_only": fc.local_only,
        "fedavg, 10 rounds of 2 epochs": partial(fc.fedavg, rounds=10, training=fc.Training(epochs=2)),
        "xgb_bagging, 10 rounds": partial(fc.xgb_bagging, rounds=10),
        "xgb_bagging, 25 rounds": partial(fc.xgb_bagging, rounds=25),
        "xgb_bagging, 50 rounds (default)": fc.xgb_bagging,
        "xgb_bagging, 50 rounds, eta 0.1": partial(fc.xgb_bagging, eta=0.1),
    }
    scores, rows = {}, []
    for name, method in methods.items():
        start, values, sent, received = time.perf_counter(), [], 0.0, 0.0
        for seed in SEEDS:
            table = fc.run(method(), federation, seed=seed, every=1000, workers=1).table
            last = table[table["round"] == table["round"].max()]
            values.append(last[(last["split"] == "test") & (last["metric"] == "accuracy")]["value"].mean())
            traffic = table[table["split"] == "traffic"].groupby("metric")["value"].sum() / SITES
            sent, received = traffic["bytes_up"], traffic["bytes_down"]
        scores[name] = np.array(values)
        behind = 100 * (scores[name] - scores["pooled"])
        rows.append(
            {
                "method": name, "accuracy": f"{scores[name].mean():.4f}", "points_to_pooled": f"{behind.mean():+.1f}",
                "least": f"{behind.min():+.1f}", "most": f"{behind.max():+.1f}", "seeds": len(SEEDS),
                "seconds": f"{(time.perf_counter() - start) / len(SEEDS):.2f}",
                "MB_up": f"{sent / 1e6:.3f}", "MB_down": f"{received / 1e6:.3f}",
            }
        )  # fmt: skip
        print(*rows[-1].values(), sep="  ", flush=True)
    if out is not None:
        pd.DataFrame(rows).to_csv(out, index=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else None)
