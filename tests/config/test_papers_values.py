"""The numbers in papers/*.yaml are those of the files that they name as their source, computed anew."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import pandas as pd
import pytest
from asked import PARAMS, ROOT

from fedcore.config.papers import Value, read_papers

PAPERS = read_papers(PARAMS["studies"], ROOT)
METHODS = {"Local-only": "local_only", "FedAvg": "fedavg", "FedProx": "fedprox", "Ditto": "ditto", "FedPer": "fedper",
           "FedASA": "fedasa", "FD": "fd", "SCAFFOLD": "scaffold", "FedGen": "fedgen", "DFL": "dfl"}  # fmt: skip
SETS = {"MNIST": "M", "USPS": "U", "MNIST-M": "MM"}
NETS = {"CNN": "cnn", "ResNet-20": "resnet20", "VGG-16": "vgg16", "MobileNetV2": "mobilenet_v2"}
DATA = {"MNIST": "mnist", "CIFAR-10": "cifar10", "CIFAR-100, 20 labels": "cifar100_coarse", "FEMNIST": "femnist"}


@cache
def read(source: str) -> pd.DataFrame:
    return pd.read_csv(ROOT / "docs" / source.removeprefix("docs/"))


def by_seed(source: str, column: str, **where: object) -> pd.Series:
    """Return a column by seed, of the rows where each other column has the value given."""
    rows = read(source)
    for key, value in where.items():
        rows = rows[rows[key] == value]
    return rows.set_index("seed")[column]


# where each number stands in its source: one function for each file


def st_lf_table1(value: Value) -> pd.Series:
    source = str(value.source)
    if lead := re.search(r"lead over single matching, (\S+)", value.what):
        a, b = (by_seed(source, "accuracy", setting=lead[1], method=m) for m in ("st_lf", "single_match"))
        return a - b
    what, dataset, method = value.what.removeprefix("as_published: ").rsplit(", ", 2)
    if what == "accuracy of targets":
        return by_seed(source, "accuracy", setting=dataset, method=method)
    most = read(source).query("setting == @dataset").groupby("seed")["energy_j"].max()
    return by_seed(source, "energy_j", setting=dataset, method=method) / most


def st_lf_table2(value: Value) -> pd.Series:
    what, dataset = value.what.split(", ")
    column = {"error of targets": "error_of_targets", "Theorem 2": "theorem_2", "Corollary 1": "corollary_1"}[what]
    return by_seed(str(value.source), column, setting=dataset, method="st_lf")


def st_lf_fig6(value: Value) -> pd.Series:
    name = re.search(r", ([\w-]+)(?: \(text\)|, divergences)", value.what)
    assert name
    rows = read(str(value.source)).query(f"set == '{SETS[name[1]]}'").groupby("seed")["links"]
    return rows.max() - rows.min()


def st_lf_fig7(value: Value) -> pd.Series:
    rows = read(str(value.source))
    last = rows[rows["setting"].str.endswith("phi_e=100")]
    return (last["links_out"] > 0).groupby([last["setting"], last["seed"]]).sum().groupby("seed").mean()


def dfl_rounds(value: Value) -> pd.Series:
    row = value.what.split(", ")[2].split(" (")[0]
    method = "threshold" if row == "DFL" and "fig4" in str(value.source) else METHODS[row]
    rows = read(str(value.source))
    return rows[rows["method"] == method].set_index("seed").iloc[:, -1]


def dfl_sizes(value: Value) -> pd.Series:
    net, dataset = value.what.removesuffix(" KB as printed").rstrip(", ").split(", ", 1)
    which = "generator" if dataset.startswith("generator") else DATA[dataset]
    rows = read(str(value.source))
    printed_in_mb = net in ("VGG-16", "MobileNetV2")  # of which 1,024 KB are one
    return rows[(rows["net"] == NETS[net]) & (rows["set"] == which)]["bytes"] / 1000 * (1.024 if printed_in_mb else 1)


def dfl_seconds(value: Value) -> pd.Series:
    rows = read(str(value.source))
    return rows[rows["method"] == value.what.split(", ")[-1].split(" ")[0].lower()]["seconds_at_5.4e6"]


def fedasa(value: Value) -> pd.Series:
    source, one_window = str(value.source), "one-window" in str(value.source)

    def accuracy(method: str, locations: str) -> pd.Series:
        setting, column = locations.removesuffix(", std"), "std_devices" if locations.endswith(", std") else "accuracy"
        if not one_window:
            setting, method = setting.replace(" & ", "+"), "fedasa" if method == "l_2" else method
        return by_seed(source, column, setting=setting, method=METHODS.get(method, method))

    what = value.what.partition(" (ours")[0]
    everywhere = "A & B & C"
    if what.startswith("bandwidth"):
        up = [by_seed(source, "mb_up_per_round", setting="A+B+C", method=m) for m in ("fedasa", "fedavg")]
        return 1 - up[0] / up[1]
    if what.startswith("gain on Ditto"):
        return accuracy("FedASA", everywhere) - accuracy("Ditto", everywhere)
    if ", loss of" in what or ", the same" in what:
        method = what.split(", ")[0]
        return accuracy(method, "B") - accuracy(method, everywhere)
    if found := re.match(r"best minus worst, ([ABC &]+[ABC])", what):
        prefix = "alpha" if value in FIG11 else "l"
        rows = [accuracy(f"{prefix}_{depth}", found[1]).mean() for depth in range(5)]
        return pd.Series([max(rows) - min(rows)])
    row, _, place = what.partition(", ")
    if re.fullmatch(r"[ABC &]+", row):
        row, place = place, row
    places = {"": everywhere, "three locations": everywhere, "two locations (A & B)": "A & B", "two locations": "A & B"}
    return accuracy(row, places.get(place, place))


FIG11 = [value for figure, value in PAPERS["fedasa"].printed if figure.name == "Fig. 11"]

WHERE: dict[str, Callable[[Value], pd.Series]] = {
    "st-lf-table1": st_lf_table1,
    "st-lf-table2": st_lf_table2,
    "st-lf-fig6": st_lf_fig6,
    "st-lf-fig7": st_lf_fig7,
    "dfl-sizes": dfl_sizes,
    "dfl-seconds": dfl_seconds,
    "dfl-": dfl_rounds,
    "fedasa-": fedasa,
}
NUMBERS = [
    (family, figure.name, value)
    for family, paper in PAPERS.items()
    for figure, value in paper.printed
    if isinstance(value.ours, float) and str(value.source).endswith(".csv")
]


def test_most_printed_numbers_are_computed_anew():
    assert len(NUMBERS) > 450


@pytest.mark.parametrize("source", sorted({str(value.source) for *_, value in NUMBERS}))
def test_a_number_is_that_of_its_source(source: str):
    wrong = []
    for family, figure, value in NUMBERS:
        if value.source != source:
            continue
        find = next(find for name, find in WHERE.items() if source.rpartition("/")[2].startswith(name))
        seeds = find(value)
        mean, spread = float(seeds.mean()), float(seeds.std())
        room = 0.051 if "KB" in value.what else 5.1e-5  # half of the last digit
        ok = abs(mean - float(str(value.ours))) <= room
        if value.spread is not None:
            ok &= abs(spread - value.spread) <= room and len(seeds) == value.seeds
        if not ok:
            written, found = f"{value.ours} ± {value.spread}", f"{mean:.5g} ± {spread:.5g}"
            wrong.append(f"{family}, {figure}, {value.what}: {written}, is {found}")
    assert wrong == []
