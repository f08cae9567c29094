"""How often the answer errs: false and missed recommendations, and the coverage of its intervals, on made tables.

Each made table has some sites with rows of two classes. Linear classifiers (ridge) are fitted in place of nets, since
1,000 tables with several seeds and rows each are drawn; partition and rule are those of the project. The truth of a
table is the mean gain, on many fresh rows of each site, of models that are trained with other seeds on the same table.

    python -m benchmarks.false_recommendations [tables] [seeds] [seeds of the truth] [1]

With a 1 at the end rows that cannot win stop after three seeds (:mod:`fedcore.results.stopping`).

    python -m benchmarks.false_recommendations intervals [tables]

compares the interval, whose deviation is over seeds, with one by devices (:func:`by_devices`), where no row is better:
tables of 2, 6 and 20 sites, 3, 5 and 10 seeds. `false` is the share recommended, `found` that if all sites gained so
many points more.

Kinds of tables:

    null        the rows that combine train alone as well, each on some of the inputs, drawn anew: no row is better
    shared null the same (`intervals` alone), with inputs that all sites of a seed share
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
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.special import stdtrit

from fedcore.core.metrics import METRICS
from fedcore.data import Dataset
from fedcore.partition import partition
from fedcore.partition.tables import training_numbers
from fedcore.results.advice import Action
from fedcore.results.answer import STOPPED_AFTER, answer, decide
from fedcore.results.criterion import LEVEL, RATIO, SHARED_DATA, Criterion
from fedcore.results.gains import Gain, gain_of
from fedcore.results.stopping import rows_that_cannot_win
from fedcore.types.federation import Data

Array = NDArray[np.float64]
INPUTS, FRESH = 6, 1000
KINDS = ("null", "small", "large", "apart", "bad_site", "rare")
NULL, SITES, SEEDS = ("null", "shared null"), (2, 6, 20), (3, 5, 10)
COLUMNS = ["study", "dataset", "setting", "method", "seed", "stage", "round", "device", "split", "metric", "value"]


@dataclass(frozen=True)
class Sites:
    """A made table: rows and labels of each site, and a function that draws fresh ones."""

    x: list[Array]
    y: list[NDArray[np.int64]]
    fresh: Callable[[int, np.random.Generator], tuple[Array, NDArray[np.int64]]]


def make(kind: str, seed: int, sites: int = 0) -> Sites:
    """Draw a table. sites: their number; 0: 4 to 12."""
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    sites = sites or int(rng.integers(4, 13))
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
        drawn = rng.random((len(rows), 1 if kind == "shared null" else len(held), INPUTS)) < 0.7
        masks = np.broadcast_to(np.where(drawn, 1.0, 0.0), (len(rows), len(held), INPUTS))
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


def study(kind: str, sites: Sites, seeds: range) -> tuple[pd.DataFrame, dict[str, Array]]:
    """Return the tidy table of some seeds, and each row's values on fresh rows, seeds x sites."""
    names = [f"s{site:02d}" for site in range(len(sites.y))]
    owners = np.repeat(names, [len(y) for y in sites.y])
    x, y = np.concatenate(sites.x), np.concatenate(sites.y)
    data = Dataset(Data(torch.from_numpy(x).float(), torch.from_numpy(y)), None, ("no", "yes"), tuple(owners))
    rng = np.random.default_rng(len(y))
    fresh = [sites.fresh(site, rng) for site in range(len(names))]
    metric = "balanced_accuracy" if kind == "rare" else "accuracy"
    rows: list[tuple[object, ...]] = []
    truth: dict[str, list[list[float]]] = {}
    for seed in seeds:
        divided = partition(data, name="by_device", min_size=1, seed=seed)
        numbers = training_numbers(data, divided)
        held = [(x[divided.devices[name]["train"]], y[divided.devices[name]["train"]]) for name in names]
        for method, models in train(kind, held, seed).items():
            true = [score(model, *rest, kind == "rare") for model, rest in zip(models, fresh, strict=True)]
            truth.setdefault(method, []).append(true)
            for name, model in zip(names, models, strict=True):
                place = ("study", "made", kind, method, seed, 0, 1, name)
                rows += [(*place, "data", key, value) for key, value in numbers[name].items()]
                rows.append((*place, "traffic", "bytes_up", float(method != "local_only")))
                for part in ("val", "test"):
                    index = divided.devices[name][part]
                    rows.append((*place, part, metric, score(model, x[index], y[index], kind == "rare")))
    return pd.DataFrame(rows, columns=COLUMNS), {name: np.array(values) for name, values in truth.items()}


def judge(kind: str, number: int, seeds: int, others: int, stop: bool) -> dict[str, object]:
    """Return what the answer says of one made table, and what is true."""
    sites = make(kind, number)
    table, _ = study(kind, sites, range(seeds))
    _, truth = study(kind, sites, range(1000, 1000 + others))
    criterion = Criterion(METRICS["balanced_accuracy" if kind == "rare" else "accuracy"], least_test=5)
    stopped = rows_that_cannot_win(table[table["seed"] < STOPPED_AFTER], (), criterion) if stop else frozenset()
    advice = answer(table[~(table["method"].isin(stopped) & (table["seed"] >= STOPPED_AFTER))], frozenset(), criterion)
    own = advice.own
    assert own is not None
    assert own.gain is not None
    counted = [int(name[1:]) for name in advice.measured.weights]

    def gain(name: str) -> float:
        return float((truth[name] - truth["local_only"])[:, counted].mean())

    row = own.method if own.action is Action.USE else own.best
    assert row is not None
    best = max((name for name in truth if name != "local_only"), key=gain)
    return {
        "kind": kind, "action": str(own.action), "gain": own.gain.mean, "margin": own.gain.margin, "truth": gain(row),
        "covered": own.gain.low <= gain(row) <= own.gain.high,
        "false": own.action is Action.USE and gain(row) <= 0.0,
        "missed": own.action is not Action.USE and gain(best) >= criterion.min_effect,
        "wrong": (own.action is Action.ALONE and gain(best) >= criterion.min_effect)
        or (own.action is Action.SAME and abs(gain(row)) > criterion.min_effect),
        "matters": gain(best) >= criterion.min_effect,
        "runs": 1 - len(stopped) * max(0, seeds - STOPPED_AFTER) / (table["method"].nunique() * seeds),
        "stopped best": best in stopped,
    }  # fmt: skip


def null_runs(kind: str, number: int, count: int) -> tuple[dict[str, pd.DataFrame], dict[str, pd.DataFrame]]:
    """Return each row's values on validation and on test rows of a table, seeds x sites; no two tables share a seed."""
    sites = make("null", number, count)
    values: dict[str, dict[str, list[list[float]]]] = {"val": {}, "test": {}}
    for seed in range(number * max(SEEDS), (number + 1) * max(SEEDS)):
        rng = np.random.default_rng([seed, 3])
        ends = ((len(y), np.array([0.48, 0.64, 0.8]) * len(y)) for y in sites.y)
        parts = [np.split(rng.permutation(count), end.astype(int)) for count, end in ends]
        held = [(x[part[0]], y[part[0]]) for x, y, part in zip(sites.x, sites.y, parts, strict=True)]
        for name, models in train(kind, held, seed).items():
            places = [*zip(models, sites.x, sites.y, parts, strict=True)]
            for i, split in ((1, "val"), (2, "test")):
                found = [score(model, x[part[i]], y[part[i]], False) for model, x, y, part in places]
                values[split].setdefault(name, []).append(found)
    val, test = ({name: pd.DataFrame(rows) for name, rows in of_split.items()} for of_split in values.values())
    return val, test


def by_devices(gain: Gain, changes: pd.DataFrame) -> Gain:
    """Return a gain with an interval by devices. changes: seeds x devices.

    Each device varies over seeds on its own, with Welch's and Satterthwaite's degrees of freedom; what devices share
    within a seed has those of seeds.
    """
    seeds, parts = len(changes), changes.var() / changes.shape[1] ** 2
    alone = float(parts.sum())
    freedom = (seeds - 1) * alone**2 / float((parts**2).sum())
    shared, own = (float(stdtrit(of, 0.5 + LEVEL / 2)) for of in (seeds - 1, freedom))
    squared = own**2 * alone + shared**2 * max(0.0, gain.spread**2 - alone)
    half = math.sqrt((1 / seeds + SHARED_DATA * RATIO) * squared)
    return replace(gain, low=gain.mean - half, high=gain.mean + half)


def intervals(tables: int = 200) -> None:
    """Print coverage, false recommendations and found gains of both intervals, where no row is better."""
    start, judged = time.perf_counter(), []
    for kind, sites, number in product(NULL, SITES, range(tables)):
        val, test = null_runs(kind, number, sites)
        for seeds in SEEDS:
            best = max((name for name in val if name != "local_only"), key=lambda name: val[name][:seeds].mean().mean())
            run, alone = test[best][:seeds], test["local_only"][:seeds]
            by_seeds = gain_of(run, alone, pd.Series(1.0, run.columns), RATIO)
            assert by_seeds is not None
            for rule, gain in {"devices": by_devices(by_seeds, run - alone), "seeds": by_seeds}.items():
                found = {
                    name: decide(replace(gain, mean=gain.mean + more, low=gain.low + more, high=gain.high + more), 0.01)
                    is Action.USE
                    for name, more in (("false", 0.0), ("found 5", 0.05), ("found 10", 0.1))
                }
                covered = gain.low <= 0.0 <= gain.high
                place = {"kind": kind, "devices": sites, "seeds": seeds, "rule": rule}
                judged.append({**place, "tables": 1, "covered": covered, **found, "half": gain.margin})
    groups = pd.DataFrame(judged).groupby(["kind", "devices", "seeds", "rule"], sort=False)
    print(groups.mean().assign(tables=groups.size()).to_csv(float_format="%.3f"), end="")
    print(f"{time.perf_counter() - start:.0f} s, {time.process_time():.0f} s of processor time", file=sys.stderr)


def main(tables: int = 1000, seeds: int = 5, others: int = 10, stop: int = 0) -> None:
    """Print a row for each kind, and one for all."""
    start = time.perf_counter()
    shares = pd.DataFrame(
        [judge(KINDS[i % len(KINDS)], i // len(KINDS), seeds, others, bool(stop)) for i in range(tables)]
    )
    spent = time.perf_counter() - start
    groups = [*shares.groupby("kind", sort=False), ("all", shares)]
    lines = [
        {
            "kind": kind, "tables": len(rows), "seeds": seeds, "use": (rows["action"] == "use").mean(),
            "alone": (rows["action"] == "train alone").mean(), "same": (rows["action"] == "no difference").mean(),
            "cannot say": (rows["action"] == "cannot say").mean(), "false": rows["false"].mean(),
            "wrong else": rows["wrong"].mean(), "gain matters": rows["matters"].mean(),
            "missed": rows["missed"].mean(), "covered": rows["covered"].mean(), "margin": rows["margin"].mean(),
            **({"runs": rows["runs"].mean(), "stopped best": rows["stopped best"].mean()} if stop else {}),
        }
        for kind, rows in groups
    ]  # fmt: skip
    print(pd.DataFrame(lines).to_csv(index=False, float_format="%.3f"), end="")
    print(f"{spent:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    if sys.argv[1:2] == ["intervals"]:
        intervals(*map(int, sys.argv[2:]))
    else:
        main(*map(int, sys.argv[1:]))
