"""How soon a better candidate is promoted after a change of sensors, and how often a worse one without a change.

A made project has 3 to 8 sites, 600 to 1,500 rows on the first night, and 300 to 900 on each further one. Three to five
numbers tell a label of two or three classes, not always. On nights 1 to 3 a small net is trained on the training rows
of all nights, and challenges that of the first night by the project's own functions: rows held out by a hash, drift of
training rows, keys and rule. With a change one or two sensors read 2 to 4 deviations more or less from night 2 on. Once
promoted, a candidate is the champion.

    python -m benchmarks.challenge [projects with a change, 20] [without, 200]

A promotion is wrong if the true gain by the law of that night, on 4,000 fresh rows of each site, is not above 0.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from fedcore import nets
from fedcore.api.serving import ServedModels
from fedcore.data import Dataset
from fedcore.data.prepare import fit_schema, prepare
from fedcore.data.schema import Column, Schema
from fedcore.partition import Partition, partition, training
from fedcore.partition.stable import Keys
from fedcore.pipeline.record import models
from fedcore.pipeline.record.challenge import Before, judge, predict, split_keys
from fedcore.results.criterion import Criterion
from fedcore.types.federation import Data
from fedcore.types.method import Model

NIGHTS, SHIFT, FRESH = 4, 2, 4000
"""All nights; the first one with other sensors; fresh rows of a site for the truth."""
RULES = ("none", "auto", "50")
"""What `run.recent` is."""
NET: Mapping[str, object] = {"name": "mlp", "widths": [16]}


@dataclass(frozen=True)
class Law:
    """How a project's rows are drawn. weights: columns x classes. sites: classes' offsets of each. moved: by column."""

    weights: NDArray[np.float64]
    sites: NDArray[np.float64]
    moved: NDArray[np.float64]

    def draw(self, site: NDArray[np.int64], night: int, rng: np.random.Generator) -> Data:
        """Draw a night's rows of sites, as sensors read them."""
        x = rng.normal(size=(len(site), len(self.weights)))
        y = (x @ self.weights + self.sites[site] + rng.gumbel(size=(len(site), self.weights.shape[1]))).argmax(1)
        return Data(torch.from_numpy(x + self.moved * (night >= SHIFT)).float(), torch.from_numpy(y))


@dataclass(frozen=True)
class Night:
    """What a night's study leaves in the record."""

    data: Dataset
    made: Partition
    served: ServedModels
    trained: Keys
    held: Keys


def make(number: int, change: bool) -> tuple[Law, list[NDArray[np.int64]], list[Data]]:
    """Draw a project: its law, and the sites and rows of each night."""
    rng = np.random.default_rng([number, change])
    columns, classes, sites = (int(rng.integers(*of)) for of in ((3, 6), (2, 4), (3, 9)))
    moved = np.zeros(columns)
    if change:
        chosen = rng.choice(columns, int(rng.integers(1, 3)), replace=False)
        moved[chosen] = rng.choice([-1, 1], len(chosen)) * rng.uniform(2, 4, len(chosen))
    law = Law(rng.normal(0, 1.5, (columns, classes)), rng.normal(0, 0.3, (sites, classes)), moved)
    counts = [int(rng.integers(600, 1501)), *[int(rng.integers(300, 901))] * (NIGHTS - 1)]
    owners = [rng.integers(0, sites, count) for count in counts]
    return law, owners, [law.draw(site, night, rng) for night, site in enumerate(owners)]


def study(owners: list[NDArray[np.int64]], rows: list[Data], classes: int) -> Night:
    """Train a net for all sites on the training rows of some nights."""
    x, y = (torch.cat(parts) for parts in zip(*((data.x, data.y) for data in rows), strict=True))
    names = tuple(f"s{site}" for site in np.concatenate(owners))
    columns = tuple(Column(f"c{i}", "number") for i in range(x.shape[1]))
    schema = Schema((x.shape[1],), "float32", tuple("abc"[:classes]), columns, "label", "site")
    data = Dataset(Data(x, y), None, schema.classes, names, schema=schema)
    made = partition(data, name="by_device", min_size=1, seed=0, hold_out="stable")
    fitted = fit_schema(data, training(made), "common")
    net = nets.net("mlp", shape=schema.shape, classes=classes, widths=[16])
    index = torch.from_numpy(np.concatenate([own["train"] for own in made.devices.values()]))
    seen = prepare(Data(x[index], y[index]), fitted.shared).inputs()
    start = nets.init(net, torch.Generator().manual_seed(0))
    params = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
    module, descent = net.build(), torch.optim.Adam(params.values(), 0.03)
    for _ in range(150):
        loss = cross_entropy(torch.func.functional_call(module, params, (seen,)), y[index])
        for tensor, grad in zip(params.values(), torch.autograd.grad(loss, [*params.values()]), strict=True):
            tensor.grad = grad
        descent.step()
    model = Model(({name: tensor.detach() for name, tensor in params.items()},))
    served = ServedModels(fitted, ((model, net),), dict.fromkeys(made.names, 0))
    return Night(data, made, served, *split_keys(data, made))


def accuracy(night: Night, fresh: Data) -> float:
    """Return a model's accuracy on fresh rows."""
    return float((predict(night.served, "", fresh).argmax(1) == fresh.y).float().mean())


def drifted(champion: Night, now: Night, folder: Path) -> bool:
    """Return whether the training rows of a night have moved from the champion's."""
    reference = models.load_reference(folder)
    assert reference is not None
    return bool(models.compare_training(reference, champion.served.schema, now.data, now.made))


def keep(night: Night, folder: Path) -> Path:
    """Write a champion's models and what its training rows are compared by."""
    served = night.served
    models.write(folder / "data" / models.FOLDER, served.schema, [NET], [(served.models[0][0], 0)], served.devices)
    models.write_reference(folder / "data" / models.FOLDER, night.data, night.made)
    return folder


def judge_project(number: int, change: bool) -> list[dict[str, object]]:
    """Return what happens to one project by each rule."""
    law, owners, rows = make(number, change)
    nights = [study(owners[: night + 1], rows[: night + 1], law.weights.shape[1]) for night in range(NIGHTS)]
    every = np.repeat(np.arange(len(law.sites)), FRESH)
    fresh = [law.draw(every, night, np.random.default_rng([number, 1])) for night in (0, SHIFT)]
    true = [[accuracy(night, data) for data in fresh] for night in nights]
    lines = []
    for rule in RULES:
        with tempfile.TemporaryDirectory() as place:
            champion, before, promoted, wrong, alarms = 0, None, [], 0, 0
            folder = keep(nights[0], Path(place) / "0")
            for night in range(1, NIGHTS):
                held, now = nights[champion], nights[night]
                if not drifted(held, now, folder):
                    before = None
                else:
                    alarms += 1
                    last = nights[night - 1]
                    before = before or Before(np.concatenate([last.trained, last.held]), "since drift was seen")
                late = before if rule == "auto" else None
                if rule.isdigit():
                    late = Before(np.concatenate([held.trained, held.held]), "since the champion's", int(rule))
                criterion = Criterion(least_test=20)
                better, _ = judge(now.data, now.made, held.trained, now.served, held.served, criterion, before=late)
                if better == "yes":
                    law_of_night = int(night >= SHIFT)
                    wrong += true[night][law_of_night] <= true[champion][law_of_night]
                    promoted.append(night)
                    champion, before, folder = night, None, keep(now, Path(place) / str(night))
        after = [night for night in promoted if night >= SHIFT]
        lines.append({
            "change": change, "recent": rule, "gain": true[SHIFT][1] - true[0][1], "drift": alarms > 0,
            "first night": SHIFT in after, "second night": bool(after), "promoted": bool(promoted), "wrong": wrong > 0,
        })  # fmt: skip
    return lines


def main(changed: int = 20, unchanged: int = 200) -> None:
    """Print a row for projects with and without a change, and each rule."""
    start = time.perf_counter()
    torch.set_num_threads(1)
    asked = [(number, change) for change, count in ((True, changed), (False, unchanged)) for number in range(count)]
    judged = pd.DataFrame([line for number, change in asked for line in judge_project(number, change)])
    groups = judged.groupby(["change", "recent"], sort=False)
    sums = groups[["drift", "first night", "second night", "promoted", "wrong"]].sum()
    table = groups.size().rename("projects").to_frame().join(groups["gain"].mean().rename("true gain")).join(sums)
    print(table.reset_index().to_csv(index=False, float_format="%.3f"), end="")
    print(f"{time.perf_counter() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
