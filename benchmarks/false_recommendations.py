"""How often the answer errs: false and missed recommendations, and the coverage of its intervals, on made tables.

Each made table has some sites with rows of two classes. Linear classifiers (ridge) are fitted in place of nets, since
1,000 tables with several seeds and rows each are drawn; partition and rule are those of the project. The truth of a
table is the mean gain, on many fresh rows of each site, of models that are trained with other seeds on the same table;
where no row is better it is 0.

    python -m benchmarks.false_recommendations [tables] [seeds of the truth] [stop]

tables: of each kind and number of sites, thrice as many where no row is better. Each is judged with few seeds and with
more, by the answer's interval and by that of seeds alone: with its devices averaged to one. With stop = 1 rows that
cannot win stop after three seeds (:mod:`fedcore.results.stopping`).

Kinds of tables:

    null        the rows that combine train alone as well, each on some of the inputs, drawn anew: no row is better
    shared_null the same, with inputs that all sites of a seed share
    small       sites that differ a little: pooling gains about as much as matters
    large       small sites with one law: pooling gains much
    apart       sites with laws of their own: pooling harms
    bad_site    one law, but for a site whose labels are turned round
    rare        one law, 6 % positives; the metric is balanced accuracy
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from fedcore.core.metrics import METRICS
from fedcore.data import Dataset
from fedcore.partition import Partition, partition
from fedcore.partition.tables import training_numbers
from fedcore.results.advice import Action
from fedcore.results.answer import STOPPED_AFTER, advise
from fedcore.results.criterion import Criterion, measured
from fedcore.results.scores import SetScores, read_scores
from fedcore.results.stopping import rows_that_cannot_win
from fedcore.results.summary import mean_over_devices
from fedcore.types.federation import Data

Array = NDArray[np.float64]
INPUTS, FRESH = 6, 1000
KINDS = ("null", "small", "large", "apart", "bad_site", "rare", "shared_null")
NULL = ("null", "shared_null")
BY = ["devices", "seeds", "kind", "rule"]
SITES, SEEDS = (2, 6, 20), (3, 5, 10)
COLUMNS = ["study", "dataset", "setting", "method", "seed", "stage", "round", "device", "split", "metric", "value"]


@dataclass(frozen=True)
class Sites:
    """A made table: rows and labels of each site, and a function that draws fresh ones."""

    x: list[Array]
    y: list[NDArray[np.int64]]
    fresh: Callable[[int, np.random.Generator], tuple[Array, NDArray[np.int64]]]


def make(kind: str, seed: int, sites: int) -> Sites:
    """Draw a table of so many sites."""
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    low, high = {"large": (40, 90), "rare": (200, 500)}.get(kind, (100, 300))
    sizes = rng.integers(low, high, sites)
    distance = {"small": 0.5, "apart": 3.0}.get(kind, 0.0)
    common = rng.normal(0, 1, INPUTS)
    laws = [common + distance * rng.normal(0, 1, INPUTS) for _ in range(sites)]
    if kind == "bad_site":
        laws[0] = -common
    offset = -4.2 if kind == "rare" else 0.0

    def draw(site: int, n: int, rng: np.random.Generator) -> tuple[Array, NDArray[np.int64]]:
        x = rng.normal(0, 1, (n, INPUTS))
        chance = 1 / (1 + np.exp(-(x @ laws[site] + offset)))
        return x, (rng.random(n) < chance).astype(np.int64)

    held = [draw(site, int(n), rng) for site, n in enumerate(sizes)]
    return Sites([x for x, _ in held], [y for _, y in held], lambda site, rng: draw(site, FRESH, rng))


def fit(parts: list[tuple[Array, NDArray[np.int64]]], mask: Array | float = 1.0, balanced: bool = False) -> Array:
    """Return the coefficients of a ridge classifier, the intercept last."""
    x, y = (np.concatenate(part) for part in zip(*parts, strict=True))
    x = np.column_stack([x * mask, np.ones(len(x))])
    rate = min(max(y.mean(), 1e-3), 1 - 1e-3)
    weight = np.where(y == 1, 0.5 / rate, 0.5 / (1 - rate)) if balanced else np.ones(len(y))
    target = 2.0 * y - 1
    gram = (x * weight[:, None]).T @ x + np.eye(x.shape[1])
    return np.linalg.solve(gram, (x * weight[:, None]).T @ target)


def train(kind: str, held: list[tuple[Array, NDArray[np.int64]]], seed: int) -> dict[str, list[Array]]:
    """Return each row's models, one for each site."""
    rng = np.random.default_rng([seed, 7])
    balanced = kind == "rare"
    if kind in NULL:
        rows = ("local_only", "a", "b", "c", "d", "e")
        masks = np.where(rng.random((len(rows), 1 if kind == "shared_null" else len(held), INPUTS)) < 0.7, 1.0, 0.0)
        masks = np.broadcast_to(masks, (len(rows), len(held), INPUTS))
        return {
            name: [fit([part], mask) * np.append(mask, 1.0) for part, mask in zip(held, of_row, strict=True)]
            for name, of_row in zip(rows, masks, strict=True)
        }
    alone = [fit([part], balanced=balanced) for part in held]
    pooled = fit(held, balanced=balanced)
    mean = np.average(alone, axis=0, weights=[len(y) for _, y in held])
    return {
        "local_only": alone,
        "pooled": [pooled] * len(held),
        "averaged": [mean] * len(held),
        "half": [(model + pooled) / 2 for model in alone],
        "near": [0.8 * model + 0.2 * pooled for model in alone],
        "even": [np.mean(alone, axis=0)] * len(held),
    }


def score(model: Array, x: Array, y: NDArray[np.int64], balanced: bool) -> float:
    """Return accuracy, or balanced accuracy; nan without rows."""
    if not len(y):
        return float("nan")
    right = (x @ model[:-1] + model[-1] > 0) == (y == 1)
    return float(np.mean([right[y == k].mean() for k in (0, 1) if (y == k).any()]) if balanced else right.mean())


def trainings(
    kind: str, sites: Sites, seeds: range
) -> Iterator[tuple[int, Dataset, Partition, dict[str, list[Array]]]]:
    """Yield each seed with the data, their partition and each row's models."""
    owners = np.repeat([f"s{site:02d}" for site in range(len(sites.y))], [len(y) for y in sites.y])
    x, y = np.concatenate(sites.x), np.concatenate(sites.y)
    data = Dataset(Data(torch.from_numpy(x).float(), torch.from_numpy(y)), None, ("no", "yes"), tuple(owners))
    for seed in seeds:
        divided = partition(data, name="by_device", min_size=1, seed=seed)
        held = [(x[parts["train"]], y[parts["train"]]) for parts in divided.devices.values()]
        yield seed, data, divided, train(kind, held, seed)


def study(kind: str, sites: Sites, seeds: range) -> pd.DataFrame:
    """Return the tidy table of some seeds."""
    metric = "balanced_accuracy" if kind == "rare" else "accuracy"
    x, y = np.concatenate(sites.x), np.concatenate(sites.y)
    rows: list[tuple[object, ...]] = []
    for seed, data, divided, trained in trainings(kind, sites, seeds):
        numbers = training_numbers(data, divided) if seed == seeds[0] else {}  # alike in all seeds and rows
        for method, models in trained.items():
            for (name, parts), model in zip(divided.devices.items(), models, strict=True):
                place = ("study", "made", kind, method, seed, 0, 1, name)
                if method == "local_only":
                    rows += [(*place, "data", key, value) for key, value in numbers.get(name, {}).items()]
                rows.append((*place, "traffic", "bytes_up", float(method != "local_only")))
                for part in ("val", "test"):
                    value = score(model, x[parts[part]], y[parts[part]], kind == "rare")
                    rows.append((*place, part, metric, value))
    return pd.DataFrame(rows, columns=COLUMNS)


def truth_of(kind: str, sites: Sites, seeds: range) -> pd.DataFrame:
    """Return the mean of each row on fresh rows: of each site in turn, a column per row."""
    rng = np.random.default_rng(sum(map(len, sites.y)))
    fresh = [sites.fresh(site, rng) for site in range(len(sites.y))]
    values = [
        {
            name: [score(model, *rest, kind == "rare") for model, rest in zip(models, fresh, strict=True)]
            for name, models in trained.items()
        }
        for *_, trained in trainings(kind, sites, seeds)
    ]
    return pd.concat(map(pd.DataFrame, values)).groupby(level=0).mean()


def averaged(sets: SetScores) -> SetScores:
    """Return the values with the mean over devices in place of them: then seeds alone tell the interval."""
    tested, validated = (
        {name: mean_over_devices(run, sets.weights).to_frame("all") for name, run in runs.items()}
        for runs in (sets.tested, sets.validated)
    )
    return replace(sets, tested=tested, validated=validated, weights=pd.Series({"all": 1.0}))


def judge(kind: str, number: int, sites: int, others: int, stop: bool) -> list[dict[str, object]]:
    """Return what the answer says of one made table, with more and more seeds and by both rules, and what is true."""
    made = make(kind, number, sites)
    whole = study(kind, made, range(max(SEEDS)))
    truth = truth_of(kind, made, range(1000, 1000 + others)) if kind not in NULL else None
    criterion = Criterion(METRICS["balanced_accuracy" if kind == "rare" else "accuracy"], least_test=5)
    stopped = rows_that_cannot_win(whole[whole["seed"] < STOPPED_AFTER], (), criterion) if stop else frozenset()
    run = whole[~(whole["method"].isin(stopped) & (whole["seed"] >= STOPPED_AFTER))]
    counted = [int(name[1:]) for name in measured(run, criterion).weights]

    def gain(name: str) -> float:
        return 0.0 if truth is None else float((truth[name] - truth["local_only"])[counted].mean())

    methods = whole["method"].unique()
    best = max((name for name in methods if name != "local_only"), key=gain)
    matters = gain(best) >= criterion.min_effect
    judged: list[dict[str, object]] = []
    reads = ((seeds, read_scores(run[run["seed"] < seeds], frozenset(), criterion)) for seeds in SEEDS)
    for (seeds, scores), rule in product(reads, ("devices", "seeds")):
        own = advise(averaged(scores.own) if rule == "seeds" else scores.own, scores, math.inf)
        row = own.method if own.action is Action.USE else own.best
        assert own.gain is not None
        assert row is not None
        judged.append({
            "devices": sites, "seeds": seeds, "kind": kind, "rule": rule, "action": str(own.action),
            "margin": own.gain.margin, "covered": own.gain.low <= gain(row) <= own.gain.high,
            "false": own.action is Action.USE and gain(row) <= 0.0, "missed": own.action is not Action.USE and matters,
            "wrong": (own.action is Action.ALONE and matters)
            or (own.action is Action.SAME and abs(gain(row)) > criterion.min_effect),
            "matters": matters, "stopped best": best in stopped,
            "runs": 1 - len(stopped) * max(0, seeds - STOPPED_AFTER) / (len(methods) * seeds),
        })  # fmt: skip
    return judged


def main(tables: int = 30, others: int = 10, stop: int = 0) -> None:
    """Print a row for each number of devices and seeds, kind and rule. `others`: where a row may be better."""
    start = time.perf_counter()
    lines: list[dict[str, object]] = []
    for sites in SITES:
        shares = pd.DataFrame([
            of_rule for kind in KINDS for number in range(tables * (3 if kind in NULL else 1))
            for of_rule in judge(kind, number, sites, others, bool(stop))
        ])  # fmt: skip
        pooled = shares[~shares["kind"].isin(NULL)].assign(kind="others")
        for place, rows in pd.concat([shares, pooled]).groupby(BY, sort=False):
            said = {action: (rows["action"] == action).mean() for action in map(str, Action)}
            means = rows[["false", "wrong", "matters", "missed", "covered", "margin", "runs", "stopped best"]].mean()
            lines.append({**dict(zip(BY, place, strict=True)), "tables": len(rows), **said, **means})
        print(f"{sites} devices: {time.perf_counter() - start:.0f} s", file=sys.stderr)
    found = pd.DataFrame(lines).drop(columns=[] if stop else ["runs", "stopped best"])
    print(found.to_csv(index=False, float_format="%.3f"), end="")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
