"""Closed forms and exams on MNIST after one exchange: python -m benchmarks.one_exchange [data folder [seeds]]

Sixteen devices with Dirichlet shares of MNIST's training images, a tenth of each kept for validation and a tenth for
own test; the MLP of CODE's paper (784-400-200-100-10, Adam .001, batches of 64, 10 epochs). Accuracy on the 10,000 test
images; the best device by that is a ceiling. Seconds are those of a whole row in one process and one thread, training
included. Prints a line for each federation and row, then means over seeds.
"""

from __future__ import annotations

import os
import sys
import time

import pandas as pd

import fedcore as fc
from fedcore.methods.code.ranking import CLASS_HITS, class_scores, count_hits
from fedcore.types import StepId, Update

ALPHAS = (1e20, 1.0, 0.1)
TRAINING = {"optimiser": "adam", "lr": 0.001, "batch": 64, "epochs": 10}
ROWS = {
    "regmean": fc.regmean(training=TRAINING | {"shared_init": True}),
    "analytic": fc.analytic(),
    "analytic, rank 190": fc.analytic(rank=190, precision="float32", label="analytic, rank 190"),
}


def chosen_devices(result, fed) -> dict[str, float]:
    """Return how accurate the model is that each exam takes for the best, of local training's models."""
    last = result.table.query("metric == 'accuracy'").pivot_table("value", "device", "split")
    hits = {}
    for name, device in fed.devices.items():
        model = Update(result.models[name].model.members[0])
        hits[name] = count_hits(model, device, StepId(0, 0, 0, name)).extra[CLASS_HITS]
    scores = {"classes": pd.Series(class_scores(hits)), "validation": last["val"], "test": last["shared"]}
    return {f"best device by {rank_by}": last["shared"][of.idxmax()] for rank_by, of in scores.items()}


def main(root: str, seeds: int) -> None:
    mnist = fc.load("mnist", root=root, download=False)
    found = []
    for alpha in ALPHAS:
        fed = fc.federate(
            mnist, fc.dirichlet(alpha), devices=16, val=0.1, test=0.1, net=fc.mlp(400, 200, 100), name="mnist"
        )
        for seed in range(seeds):
            start = time.perf_counter()
            alone = fc.run(fc.local_only(training=TRAINING | {"shared_init": False}), fed, seed=seed)
            rows = [(name, value, 0.0, time.perf_counter() - start)
                    for name, value in chosen_devices(alone, fed.federation(seed)).items()]  # fmt: skip
            for name, recipe in ROWS.items():
                start = time.perf_counter()
                (row,) = fc.compare([recipe], fed, seeds=[seed]).summary.to_dict("records")
                rows.append((name, row["shared_mean"], row["bytes_up"] / 16, time.perf_counter() - start))
            for name, accuracy, sent, seconds in rows:
                found.append((alpha, seed, name, accuracy, sent, seconds))
                print(
                    f"alpha {alpha:g}, seed {seed}: {name:<28} {accuracy:.4f}  {sent / 1e6:6.2f} MB up  {seconds:.0f} s"
                )
                sys.stdout.flush()
    table = pd.DataFrame(found, columns=["alpha", "seed", "row", "accuracy", "bytes_up", "seconds"])
    print(table.pivot_table("accuracy", "row", "alpha", aggfunc=["mean", "std"], sort=False).round(3).to_string())


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("FEDCORE_DATA", "datasets")
    main(folder, int(sys.argv[2]) if len(sys.argv) > 2 else 2)
