"""The numbers in the sentences by hand of the page of results, computed anew from the files of docs/results.

Each family's function returns the numbers of a sentence, in its order and as they are written there: of the keys of
`worth`, and of the notes of lines, "note 0" for the first line. It asserts what the sentences say without a number.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import pandas as pd
from asked import ROOT

from fedcore.results.criterion import RATIO
from fedcore.results.intervals import half_width
from fedcore.results.judging import LEVEL


@cache
def read(name: str) -> pd.DataFrame:
    return pd.read_csv(ROOT / "docs" / "results" / f"{name}.csv")


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
    fused, settings = rows["code_ot"], str(len(rows))

    def very(devices: int, method: str) -> str:
        return dot(rows.loc[f"devices={devices} alpha=0.1 optimiser=adam", method])

    def ahead(method: str) -> str:
        return str(int((rows[method] > fused).sum()))

    def with_many(method: str, least: int) -> pd.Series:
        many = [int(re.findall(r"devices=(\d+)", setting)[0]) >= least for setting in rows.index]
        return rows[method][many]

    guess, matched = dot(rows["majority"].mean()), claim("code-fig8-mnist", "code_ot > no_alignment")
    unmatched = rows["no_alignment"] > fused
    these = [str(n) for n in (2, 4, 8, 16, 32) if unmatched[f"devices={n} alpha=0.1 optimiser=adam"]]
    assert (fused >= rows["lmf"]).all()
    assert matched["contradicted_in"] == 0
    by_length = str(claim("code-fig9-mnist", "code_ot > lmf")["numbers"])
    even = [setting for setting in rows.index if "alpha=1e+20" in setting]
    assert (fused - rows["lmf"])[even].min() > -0.03
    excess = read("code-fig6-mnist").query("`lambda` == 0.01").set_index("epsilon")["excess"]
    best = claim("code-fig8-mnist", "code_ot > best_local")
    sgd, worst = "code-fig8-mnist-sgd", claim("code-fig8-mnist-sgd", "code_ot > best_local")
    return {
        "holds": [*counts(claim("code-fig8-mnist", "code_ot > fedavg_1", "adam")), very(16, "code_ot"),
                  very(16, "fedavg_1"), "16", guess, ahead("best_local"), settings, str(best["contradicted_in"])],
        "instead": [ahead("fedavg_10_epoch"), very(16, "fedavg_10_epoch"), very(16, "code_ot"), "16"],
        "says": [dot(with_many("fedavg_1", 8).max()), guess, *ends(with_many("no_alignment", 4)),
                 *ends(with_many("fedavg_1", 4)), *these, very(4, "no_alignment"), very(4, "code_ot"),
                 *counts(claim("code-fig8-mnist", "code_ot > lmf")),
                 *counts(claim(sgd, "code_ot > lmf")), ahead("best_local"), settings,
                 ahead("fedavg_10_epoch")],
        "note 0": counts(claim(sgd, "code_ot > fedavg_1")),
        "note 5": [*counts(claim(sgd, "code_ot > best_local")), dot(worst["contradicted_in"], 0)],
        "note 1": [*counts(claim(sgd, "code_ot > lmf")), "9",
                   *re.findall(r"in \d+ of (\d+)", by_length)[:1], *re.findall(r"in (\d+) of", by_length)[1:]],
        "note 4": [".01", dot(excess.min(), 4)],
    }  # fmt: skip


def dfl() -> dict[str, list[str]]:
    end = read("dfl-mnist-rounds").pivot_table("100", "seed", "method")
    even = read("dfl-table2-mnist-part").pivot_table("40", "seed", "method")
    files = [path.stem for path in (ROOT / "docs" / "results").glob("dfl-*-claims.csv")]
    rows = pd.concat([read(name) for name in files])
    assert not rows.query("rule == 'dfl > fedavg'")["verdict"].str.startswith("holds").any()
    controls = [read(f"dfl-controls{net}-claims") for net in ("", "-cnn", "-all")]
    smoothed = pd.concat(controls).query("rule.str.endswith('> smoothing_tuned')")
    assert not smoothed["verdict"].str.startswith("holds").any()
    assert len(controls) == 3
    gains = [
        claim(name, "dfl_3 > fedavg") for name in ("dfl-controls-cnn", "dfl-table2-mnist-part", "dfl-controls-all")
    ]
    assert [gain["verdict"] for gain in gains] == ["holds", "holds", "contradicted"]
    unequal, equal, larger = (points(gain["a"] - gain["b"])[0] for gain in gains)
    small = read("dfl-conditions").query("setting == 'dirichlet'").set_index("method")[list("01234")].T
    printed = lead(small, "dfl_examples", "fedavg")
    large = read("dfl-conditions-all").query("setting == 'dirichlet'").set_index("method")[list("01234")].T
    assert printed[1] > 0 > lead(large, "dfl_examples", "fedavg")[1]
    whole = [read(f"dfl-cifar10-{shares}").pivot_table("200", "seed", "method") for shares in ("even", "skewed")]
    assert all(run["dfl"].count() == 1 and (run["fedavg"] > run["dfl"]).sum() == 1 for run in whole)
    return {
        "holds": [dot(end["dfl"].mean()), dot(end["fd"].mean()), "1", *points(printed[0]), "3", unequal, equal, larger],
        "says": ["1", *points(printed[0]), dot(abs(100 * lead(end, "dfl", "fedavg")[0])), "10", "200", "3", equal,
                 unequal, larger, "3", *points(lead(end, "dfl", "label_smoothing")[0])],
        "note 3": ["3", *points(*lead(even, "dfl_3", "fedavg"))],
        "note 5": [],
    }  # fmt: skip


def fedasa() -> dict[str, list[str]]:
    rows = read("fedasa-one-window").query("method != 'majority'")
    tables = {place: some.pivot_table("accuracy", "seed", "method") for place, some in rows.groupby("setting")}
    alone = {place: lead(table, "fedasa", "local_only") for place, table in tables.items()}
    surely = [sum(low > 0 for _, low, _ in alone.values()), sum(high < 0 for *_, high in alone.values())]
    assert (len(alone), surely[0]) == (7, 0)
    between = [tables[place] for place in tables if "&" in place]
    rivals = ("ditto", "fedper", "fedavg", "fedprox", "fedasa")
    assert all(lead(table, rival, "local_only")[1] <= 0 for table in between for rival in rivals)
    per = {place: lead(tables[place], "fedper", "local_only") for place in "ABC"}
    assert [low > 0 for _, low, _ in per.values()] == [True, True, False]
    average = {place: lead(tables[place], "fedavg", "local_only")[0] for place in "ABC"}
    late = read("fedasa-80-rounds").pivot_table("80", "seed", "method")
    sent = read("fedasa-cwru-table6").groupby("method")["mb_up_per_round"].max()
    saved = re.findall(r"least: \+([\d.e+]+)", claim("fedasa-one-window", "fedavg > fedasa", of="traffic")["numbers"])
    most = sent["fedavg"] - float(saved[0]) / 1e6
    everywhere = tables["A & B & C"].mean()
    return {
        "holds": [dot(everywhere["fedasa"]), dot(everywhere["fedavg"]), "40",
                  f"{100 * sent['fedasa'] / sent['fedavg']:.0f}", f"{100 * most / sent['fedavg']:.0f}", str(surely[1])],
        "instead": points(*(per[place][0] for place in "ABC")),
        "says": [*points(*per["A"], *per["B"], *per["C"]), *points(average["A"], average["B"], average["C"]),
                 *points(*(alone[place][0] for place in "ABC")), "40", "200",
                 dot(everywhere["fedasa"] - everywhere["fedavg"], 3), "40",
                 dot((late["fedasa"] - late["fedavg"]).mean(), 3), "80"],
        "note 2": [],
        "note 5": [dot(sent["fedavg"]), dot(sent["fedasa"]), dot(most)],
    }  # fmt: skip


def st_lf() -> dict[str, list[str]]:
    rows = read("st-lf-table1-as-published")
    right = rows.pivot_table("accuracy", "setting", "method")
    spent = rows.pivot_table("energy_j", "setting", "method")
    differ, same = ["M", "U", "M+U"], [name for name in right.index if name not in ("M", "U", "M+U")]
    drawn = ["rnd_psi", "psi_fedavg", "psi_fada", "single_match"]
    best = right[["rnd_alpha", "fedavg_alpha", "fada", "avg_degree", *drawn]].loc[differ].max(axis=1)
    saved = 100 * (1 - spent["st_lf"] / spent["rnd_alpha"])
    assert (spent["rnd_alpha"] == spent["fada"]).all()
    assert (spent["rnd_alpha"] == spent["fedavg_alpha"]).all()
    by_one = 100 * (1 - spent["single_match"] / spent["st_lf"])
    assert claim("st-lf-table1-as-published", "avg_degree > st_lf", of="links.energy")["verdict"] == "not shown"
    seeds = {name: some.pivot_table("accuracy", "seed", "method") for name, some in rows.groupby("setting")}
    assert all(lead(seeds[name], "least_error", "st_lf")[1] <= 0 for name in same)
    ahead = [str((right["least_error"] > right["st_lf"])[same].sum()), str(len(same))]
    dial = read("st-lf-fig6-as-published").pivot_table("energy_j", "phi_e", "set")
    below = dial[dial.index <= 10]
    assert dial["M"].to_list()[-1] == 0
    assert len(set(below["M"])) == 1
    fixed, energy = ends(right["st_lf"][differ]), [f"{saved.min():.0f}", f"{saved.max():.0f}"]
    less = [f"{by_one.min():.0f}", f"{by_one.max():.0f}"]
    level = f"{below['M'].iloc[0]:.1f}"
    falls = [f"{below[name].iloc[end]:.1f}" for name in ("U", "MM") for end in (0, -1)]
    printed = read("st-lf-fig6-times-1").pivot_table("energy_j", "phi_e", "set").loc[[0, 10]]
    dialled = [f"{energy:.1f}" for name in ("M", "U", "MM") for energy in printed[name]]
    bound = str(claim("st-lf-table2-as-published", "st_lf > 0", of="worst of links.slack_corollary_1")["numbers"])
    return {
        "holds": [*fixed, dot(best.max()), *energy],
        "instead": [*ahead, *less],
        "says": [*fixed, *ends(best), *ahead, *energy, *less, level, "0", "10", "1,000", *dialled[:2]],
        "note 3": ["1,000", "0", "10", level, *falls, "100", *dialled],
        "note 4": ["1", *re.findall(r"least: \+(\d)", bound)],
    }


FAMILIES: dict[str, Callable[[], dict[str, list[str]]]] = {"code": code, "dfl": dfl, "fedasa": fedasa, "st_lf": st_lf}
