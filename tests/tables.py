"""Tidy tables for tests, written out or drawn."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from fedcore.results.summary import NO_SECONDS as NO_SECONDS

COLUMNS = ["study", "dataset", "setting", "method", "seed", "stage", "round", "device", "split", "metric", "value"]


def rows(
    accuracy: Mapping[str, Sequence[Sequence[float]]],
    *,
    shared: float = 0.5,
    setting: str = "alpha=1",
    stage: int = 0,
    at: int = 1,
    up: float = 100.0,
) -> list[tuple[object, ...]]:
    """Return tidy rows of one round; accuracy: method -> seeds x devices, on the devices' own test data."""
    result: list[tuple[object, ...]] = []
    for method, seeds in accuracy.items():
        for seed, devices in enumerate(seeds):
            for i, own in enumerate(devices):
                here = ("study", "digits", setting, method, seed, stage, at, f"d{i:02d}")
                for split, value in (("val", own), ("test", own), ("shared", shared)):
                    result += [(*here, split, "accuracy", value), (*here, split, "macro_f1", value / 2)]
                    result += [(*here, split, "loss", 1 - value)]
                result += [(*here, "traffic", "bytes_up", up), (*here, "traffic", "bytes_down", 2 * up)]
    return result


def frame(*parts: list[tuple[object, ...]]) -> pd.DataFrame:
    return pd.DataFrame([row for part in parts for row in part], columns=COLUMNS)


def drawn(
    methods: Sequence[str], devices: int, seeds: int = 2, rounds: int = 1, setting: str = "alpha=1"
) -> pd.DataFrame:
    """Return a table with some values for every method; the first method sends nothing, the last plays many rounds."""
    parts = []
    for i, method in enumerate(methods):
        draw = np.random.default_rng(i)
        for at in range(1, (rounds if i == len(methods) - 1 else 1) + 1):
            own = np.clip(0.9 - 0.03 * i - 0.3 / at + draw.normal(0, 0.05, (seeds, devices)), 0, 1)
            parts.append(
                rows({method: own.tolist()}, shared=0.8 - 0.02 * i, setting=setting, at=at, up=1000.0 * (i > 0))
            )
    return frame(*parts)


def grouped(table: pd.DataFrame, groups: Mapping[str, str]) -> pd.DataFrame:
    """Add what each device holds: all of its examples are of one domain, device -> domain; of "" they are mixed."""
    places = table.groupby(
        ["study", "dataset", "setting", "method", "seed", "device"], as_index=False, sort=False
    ).last()
    parts = []
    for name in sorted({*groups.values()} - {""}):
        share = places["device"].map(
            lambda who, name=name: 1.0 if groups[who] == name else 0.5 if not groups[who] else 0.0
        )
        parts.append(places.assign(split="data", metric=f"in_{name}", value=share))
    return pd.concat([table, *parts], ignore_index=True)
