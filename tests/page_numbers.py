"""The numbers in the sentences by hand of the pages of results, computed anew from the files of docs/results.

Each family's function returns the numbers of a sentence, in its order and as they are written there: of the card, of
the baseline ("near"), of the notes of lines ("note 0" for the first) and of what was also measured ("also 0"). It
asserts what the sentences say without a number.
"""

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pandas as pd
import yaml
from project_params import ROOT

from fedcore.methods.st_lf.divergence import Divergence
from fedcore.results.criterion import RATIO, half_width
from fedcore.results.judging import LEVEL


@cache
def read(name: str) -> pd.DataFrame:
    """Return a file; of claims the verdicts that the numbers alone give."""
    rows = pd.read_csv(ROOT / "docs" / "results" / f"{name}.csv", comment="#")
    return rows.assign(verdict=rows["here"]) if "here" in rows else rows


def yaml_of(name: str) -> dict[str, Any]:
    paper: dict[str, Any] = yaml.safe_load((ROOT / "papers" / f"{name}.yaml").read_text())
    return paper


def near(family: str, row: str, file: str) -> list[str]:
    """Return a baseline's number here and in the paper."""
    rows = yaml_of(f"results/{family}")["calibration"]
    return next([dot(one["ours"]), dot(one["paper"])] for one in rows if one["row"] == row and file in one["files"])


def claim(name: str, rule: str, where: str = "", of: str = "") -> pd.Series:
    """Return the first claim with this rule, these words in its settings and this metric."""
    rows = read(f"{name}-claims").query("rule == @rule")
    here = rows["where"].map(lambda words: where in str(words))
    return rows[here & rows["of"].str.startswith(of)].iloc[0]


def counts(row: pd.Series) -> list[str]:
    return [f"{row['holds_in']:g}", f"{row['tested_in']:g}"]


def dot(value: float, digits: int = 2) -> str:
    """Return a number as the page writes it, ".53"."""
    return f"{value:.{digits}f}".removeprefix("0")


def votes(row: pd.Series) -> list[str]:
    """Return in how many settings a claim holds, in how many its opposite does, and how many are open."""
    held, opposite, tested = (int(row[name]) for name in ("holds_in", "contradicted_in", "tested_in"))
    return [str(count) for count in (held, opposite, tested - held - opposite) if count]


def ends(rows: pd.Series) -> list[str]:
    return [dot(rows.min()), dot(rows.max())]


def points(*values: float) -> list[str]:
    """Return differences of accuracies in points, without their signs."""
    return [dot(abs(100 * value), 1) for value in values]


def lead(values: pd.DataFrame, a: str, b: str) -> tuple[float, float, float]:
    """Return a minus b and the ends of its interval. values: by seed and row."""
    gap = (values[a] - values[b]).dropna()
    half = half_width(float(gap.std()), len(gap), RATIO, LEVEL)
    return float(gap.mean()), float(gap.mean()) - half, float(gap.mean()) + half


def code() -> dict[str, list[str]]:
    rows = read("code-fig8-mnist").pivot_table("shared_mean", "setting", "method")
    assert (rows["code_ot"] >= rows["lmf"]).all()
    excess = read("code-fig6-mnist").query("`lambda` == 0.01").set_index("epsilon")["excess"]
    conditions = read("code-conditions").set_index(["setting", "method"])[["0", "1"]].mean(axis=1)
    tied = [dot(conditions["momentum", row]) for row in ("code_ot", "code_ot_square", "best_local")]
    once = read("one-shot-mnist-seeds").query("study == 'one_shot_all' and setting == 'alpha=0.1'")
    once = once.pivot_table("shared", "seed", "method")
    assert len(once[["ensemble", "gaussian_distillation"]].dropna()) == 5
    better = [(a, b) for a in ("ensemble", "gaussian_distillation") for b in ("best_on_test", "code_ot")]
    assert all(lead(once, a, b)[1] > 0 for a, b in better)
    named = [dot(once[row].mean()) for row in ("ensemble", "best_on_test", "code_ot")]
    fitted = read("better-code-mnist").pivot_table("shared_mean", "setting", "method")
    fitted = fitted.loc[["alpha=1e+20", "alpha=1", "alpha=0.1"]]
    adam, sgd = "code-fig8-mnist", "code-fig8-mnist-sgd"
    assert votes(claim(adam, "code_ot > fedavg_1", "adam")) == votes(claim(sgd, "code_ot > fedavg_1", "sgd"))
    ten_rounds = 100 * (rows["fedavg_10_epoch"] - rows["code_ot"])
    by_seed = read("code-fig8-mnist-sgd-seeds").drop(columns="optimiser").melt(["devices", "alpha", "method"])
    fused = by_seed.pivot_table("value", ["devices", "alpha"], "method")
    ahead, less = (fused["code_ot"] - fused[row] for row in ("fedavg_1", "fedavg_1_by_size"))
    best, sized = claim(adam, "code_ot > best_local"), claim(sgd, "code_ot > fedavg_1_by_size")
    span = [f"{end:.1f}" for end in (ten_rounds.min(), ten_rounds.max())]
    return {
        "headline": points(ahead.median()),
        "fails": [*counts(claim(sgd, "code_ot > best_local")), *counts(best)[:1], *span],
        "note 0": points(ahead.median(), ahead.max()),
        "near": near("code", "fedavg_1", sgd),
        "note 1": votes(claim(adam, "code_ot > lmf")),
        "note 4": [".01", dot(excess.min(), 4)],
        "note 5": votes(best),
        "also 0": [str((ten_rounds > 0).sum()), str(len(ten_rounds)), *span, f"{ten_rounds.median():.1f}"],
        "also 1": [*counts(sized), votes(sized)[1], *points(less.min()), str(less.groupby("devices").min().idxmin())],
        "also 2": [*named, "16", ".1"],
        "also 3": [*(dot(value, 3) for value in fitted["pleas_aligned"]), "1", "1", ".1"],
        "also 4": [dot(value, 3) for value in fitted["best_on_test"]],
        "also 5": tied,
    }


SMALL = ("dfl > fedavg", "dfl_examples > fedavg", "dfl_steps > fedavg_steps", "dfl_momentum > fedavg_momentum")


def dfl() -> dict[str, list[str]]:
    even = read("dfl-table2-mnist-part").pivot_table("40", "seed", "method")
    rows = pd.concat([read(path.stem) for path in (ROOT / "docs" / "results").glob("dfl-*-claims.csv")])
    assert not rows.query("rule == 'dfl > fedavg'")["verdict"].str.startswith("holds").any()
    smoothed = rows.query("rule.str.endswith('> smoothing_tuned')")
    assert not smoothed["verdict"].str.startswith("holds").any()

    def over_seeds(name: str, where: str, seeds: list[str], a: str, b: str) -> tuple[float, float, float]:
        return lead(read(name).query(where).set_index("method")[seeds].T, a, b)

    hotter = claim("dfl-controls-cnn", "dfl_3 > fedavg"), claim("dfl-controls-all", "dfl_3 > fedavg")
    assert [row["verdict"] for row in hotter] == ["holds", "contradicted"]
    at_140 = read("dfl-cifar10-skewed").pivot_table("140", "seed", "method")
    for shares in ("skewed", "even"):
        row = claim(f"dfl-cifar10-{shares}", "dfl > fedavg")
        assert row["verdict"] == "not tested"
    smooth = over_seeds("dfl-controls", "net == 'cnn'", [f"seed_{n}" for n in range(5)], "smoothing_tuned", "fedavg")
    tried = rows.query("rule in @SMALL and of == 'shared.accuracy' and tested_in > 0")
    small = [str(int(tried[name].sum())) for name in ("tested_in", "holds_in", "contradicted_in")]
    scaled = [
        over_seeds("dfl-conditions", "setting == 'standardised'", list("01234"), f"dfl_{what}", f"fedavg{beside}")
        for what, beside in (("examples", ""), ("momentum", "_momentum"), ("steps", "_steps"))
    ]
    assert all(low < 0 < high for _, low, high in scaled)
    by_writer = lead(read("dfl-femnist-part").pivot_table("40", "seed", "method"), "dfl_3", "fedavg")
    assert by_writer[1] > 0
    sent = read("dfl-mnist").set_index("method")["bytes_up"]
    assert round(sent["dfl"] / sent["fedavg"], 2) == 1
    hours = [figure["reason"] for figure in yaml_of("dfl")["figures"] if "(ResNet-20)" in figure.get("reason", "")]
    assert all("2.4 (ResNet-20)" in reason and "over 11 hours" in reason for reason in hours)
    standard = read("dfl-cifar10-standard").set_index(["division", "method"])
    skewed, even_labels = (standard.loc[division, "fedavg"] for division in ("skewed", "even"))
    assert all(abs(row["200"] - row["80"]) < 0.005 for row in (skewed, even_labels))
    printed = [one["paper"] for one in yaml_of("results/dfl")["calibration"] if one["ours"] in (0.3566, 0.5061)]
    ends = (skewed["200"], standard.loc[("skewed", "dfl"), "200"], even_labels["200"], *printed)
    return {
        "headline": ["23", "28", "5"],
        "fails": ["20"],
        "cost": [f"{sent['dfl'] / sent['fd']:.0f}"],
        "near": ["10", *near("dfl", "fedavg", "dfl-cifar10-skewed")],
        "note 0": ["140", *points(*lead(at_140, "fedgen", "dfl"))],
        "note 4": ["3", *points(*lead(even, "dfl_3", "fedavg"))],
        "note 6": points(*smooth),
        "also 0": ["10", ".05", "20", "80", *(dot(end, 3) for end in ends)],
        "also 1": ["5", "28", "10"],
        "also 2": ["100", "20", "16", "100", "2.4", "20", "11", "16"],
        "also 3": [*small, str(len(scaled)), small[2]],
    }


def fedasa() -> dict[str, list[str]]:
    rows = read("fedasa-one-window").query("method != 'majority'")
    tables = {place: some.pivot_table("accuracy", "seed", "method") for place, some in rows.groupby("setting")}
    alone = {place: lead(table, "fedasa", "local_only") for place, table in tables.items()}
    between = [tables[place] for place in tables if "&" in place]
    rivals = ("ditto", "fedper", "fedavg", "fedprox", "fedasa")
    assert all(lead(table, rival, "local_only")[1] <= 0 for table in between for rival in rivals)
    per = {place: lead(tables[place], "fedper", "local_only") for place in "ABC"}
    assert [low > 0 for _, low, _ in per.values()] == [True, True, False]
    late, everywhere = read("fedasa-80-rounds").pivot_table("80", "seed", "method").mean(), tables["A & B & C"].mean()
    many = read("fedasa-cwru-table6")
    least = many.groupby("method")["mb_up_per_round"].max()
    one = read("fedasa-cwru-hard").query("setting == 'one_window'").pivot_table("mb_up_per_round", "seed", "method")
    clean = many.query("setting == 'A+B+C' and method == 'local_only'")["accuracy"].mean()
    ends = read("fedasa-divided-200").set_index("round")[["accuracy", "std_devices"]]
    depth = read("fedasa-one-window").query("method == 'fedasa'")
    at_random = [lead(table, "random_depth", "fedasa") for table in tables.values()]
    assert len(at_random) == 7
    assert all(low < 0 < high for _, low, high in at_random)
    printed = near("fedasa", "local_only", "fedasa-cwru-table6")
    assert printed[0] == dot(clean)
    return {
        "fails": [str(sum(low > 0 for _, low, _ in alone.values())), str(len(alone))],
        "cost": [f"{100 * mb / least['fedavg']:.0f}" for mb in (least["fedasa"], one["fedasa"].max())],
        "near": printed,
        "note 0": [*points(*(run["fedasa"] - run["fedavg"] for run in (everywhere, late))), "80"],
        "note 5": [
            dot(least["fedavg"]),
            dot(least["fedasa"], 3),
            "80",
            *(dot(one["fedasa"][seed], 3) for seed in (0, 1)),
        ],
        "also 0": [dot(ends["accuracy"][20], 3), "20", *(dot(end, 3) for end in ends.loc[200]), "200", printed[1]],
        "also 1": points(*per["A"], *per["B"], *per["C"]),
        "also 2": [*(f"{end:.0f}" for end in (depth["depth_least"].min(), depth["depth_most"].max())), "4", *2 * ["7"]],
    }


def st_lf() -> dict[str, list[str]]:
    rows = read("st-lf-table1-as-published")
    right, spent = (rows.pivot_table(column, "setting", "method") for column in ("accuracy", "energy_j"))
    differ = ["M", "U", "M+U"]
    same = [name for name in right.index if name not in differ]
    links = rows.pivot_table("links", ["setting", "seed"], "method")
    assert 19 < (links["rnd_alpha"] - links["st_lf"]).mean() < 20
    saved = 100 * (1 - spent["st_lf"] / spent["rnd_alpha"])
    seeds = {name: some.pivot_table("accuracy", "seed", "method") for name, some in rows.groupby("setting")}
    assert all(lead(seeds[name], "least_error", "st_lf")[1] <= 0 for name in same)
    published = read("st-lf-table1-bsds500")
    by_set = {name: some.pivot_table("accuracy", "seed", "method") for name, some in published.groupby("setting")}
    of_least = [lead(table, "least_error", "st_lf") for table in by_set.values()]
    over_photos = [sum(mean > 0 for mean, _, _ in of_least), len(of_least), sum(low > 0 for _, low, _ in of_least)]
    dial = read("st-lf-fig6-as-published").pivot_table("energy_j", "phi_e", "set")
    assert dial["M"].to_list()[-1] == 0
    assert len(set(dial.loc[dial.index <= 10, "M"])) == 1
    alike = read("st-lf-most-similar").pivot_table(index=["setting", "seed"], columns="method")
    equal = [alike[column]["most_similar"].eq(alike[column]["st_lf"]) for column in ("accuracy", "energy_j", "links")]
    classifiers = f"{2 * (10 * 9 // 2) * Divergence().pair_rounds:,}"
    ratios = {
        name: some.pivot_table("accuracy", "seed", "method") for name, some in read("st-lf-ratios").groupby("setting")
    }
    of = {(name, row): lead(ratios[name], row, "most_similar") for name in ratios for row in ("st_lf", "least_bound")}
    assert of["one_05", "st_lf"][1] < 0 < min(of["one_05", "least_bound"][1], of["one_02", "st_lf"][1])
    assert of["random", "st_lf"][2] < 0 == of["both_90", "least_bound"][0]
    bound = str(claim("st-lf-table2-as-published", "st_lf > 0", of="worst of links.slack_corollary_1")["numbers"])
    return {
        "cost": [classifiers],
        "near": near("st_lf", "rnd_alpha", "st-lf-table1-as-published"),
        "note 3": [f"{dial['M'].iloc[0] / 10:.2f}", "0", "10", "1,000"],  # of ten devices
        "note 4": ["1", *re.findall(r"least: \+(\d)", bound)],
        "also 0": [str(sum(map(all, zip(*equal, strict=True)))), str(len(alike))],
        "also 1": [str((right["least_error"] > right["st_lf"])[same].sum()), str(len(same))],
        "also 2": [str(count) for count in over_photos],
        "also 3": [f"{saved.min():.0f}", f"{saved.max():.0f}", classifiers],
    }


FAMILIES: dict[str, Callable[[], dict[str, list[str]]]] = {"code": code, "dfl": dfl, "fedasa": fedasa, "st_lf": st_lf}
