"""Judge the papers' claims by today's rules from the numbers in docs/results, for benchmarks.results_page.

The claims files of docs/results were written by runs, many under an earlier rule: more than one standard deviation over
seeds, from two seeds on, in every setting, with neither ceiling nor convergence. Each is written anew, with the earlier
verdict beside today's and the reason, from what was kept of its run:

* values by seed: judged by :func:`fedcore.results.judging.judge_all`, as a run is, but by the gates whose numbers were
  kept (:data:`BY_SEED`);
* means and standard deviations alone: the same, with rows that vary as if they were independent (:data:`BY_MEAN`),
  which is most often too wide, since rows share their partitions (of 12 comparisons with CODE in code-mnist-seeds.csv
  in 9): a claim that held before is not denied by it;
* the earlier evidence alone: not tested with two seeds; what failed the earlier rule in every setting fails the
  stricter one too, and is contradicted where the interval of its one setting is on the other side; a single setting has
  its interval from its mean and standard deviation. What is left keeps its verdict, marked as of the earlier rule.

A verdict stands only where the rows that the claim is compared with have the paper's own numbers (`calibration` in
papers/results). Elsewhere it is "another regime", where a row still gains "not run to its end"; never contradicted. A
claim of ours (statement "(ours)") is of our regime, so that its contradiction alone needs the baseline; what is counted
or solved (:data:`COUNTED`) needs none. Column `here` has the verdict of the numbers alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from benchmarks.paper_pages import Baseline, PaperPages
from fedcore.config.studies import Study, find_study
from fedcore.results.claims import Claim, read_rule
from fedcore.results.criterion import RATIO, half_width
from fedcore.results.judging import LEVEL, SEEDS, judge_all, verdict_table
from fedcore.results.places import Points

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
FAMILIES = ("code", "dfl", "fedasa", "st-lf")
COLUMNS = ["setting", "method", "seed", "stage", "round", "device", "split", "metric", "value"]
LATER = ["holds_in", "contradicted_in", "tested_in", "p", "a", "b", "earlier", "judged", "here"]
"""The columns that a claims file of an earlier version or of a run does not have."""
FAILED = ("contradicted", "not shown")
"""The verdicts of which the earlier rule said "does not hold"."""

COUNTED = ("data", "traffic", "transport", "program")
"""Splits of metrics that no training decides: claims about them stand without a baseline."""
REGIME, UNFINISHED = "another regime", "not run to its end"

METRIC = "shared.accuracy"
EARLIER = re.compile(
    r"in (?P<held>\d+) of (?P<tested>\d+); (?P<word>least|largest|most against): "
    r"(?P<mean>[+-][\d.e+-]+) ± (?P<spread>[\d.e+-]+)(?: at .*?)? \((?P<count>\d+) (?P<of>seeds|problems)\)"
)


class Numbers(NamedTuple):
    """A tidy table with its settings, for one study."""

    table: pd.DataFrame
    points: Points


def tidy(frame: pd.DataFrame, where: str, column: str, spread: str = "", least: str = "") -> pd.DataFrame:
    """Return the tidy rows of a column: setting, method, seed, perhaps round -> value.

    Two devices stand for all: their mean is the column, their standard deviation that of `spread`, their worst that of
    `least`. where: split.metric.
    """
    split, _, metric = where.partition(".")
    frame = frame.assign(stage=0, split=split, metric=metric)
    if "round" not in frame:
        frame["round"] = 1
    mean = frame[column] if column else 0.0
    spread_of_seeds = frame[spread] / np.sqrt(2) if spread else mean - frame[least] if least else 0.0
    both = [frame.assign(device=name, value=mean + way * spread_of_seeds) for name, way in (("a", -1), ("b", 1))]
    return pd.concat(both, ignore_index=True)[COLUMNS].dropna(subset="value")


def by_round(name: str, key: str = "") -> pd.DataFrame:
    """Return a file whose columns 1, 5, ... are rounds, with a line for each round."""
    wide = pd.read_csv(RESULTS / name)
    rounds = [column for column in wide if column.isdigit()]
    long = wide.melt(["method", "seed"], rounds, var_name="round", value_name="value")
    return long.assign(round=long["round"].astype(int), setting=key or "base")


def by_seed(name: str, *keys: str) -> pd.DataFrame:
    """Return a file whose columns 0, 1, ... or seed_0, seed_1, ... are seeds, with a line for each seed."""
    wide = pd.read_csv(RESULTS / name)
    seeds = [column for column in wide if re.fullmatch(r"(seed_)?\d", column)]
    long = wide.melt([*keys, "method"], seeds, var_name="seed", value_name="value")
    return long.assign(seed=long["seed"].str.removeprefix("seed_").astype(int))


# what was kept of each run: a function of the file's name and the study


def dfl_rounds(name: str, study: Study) -> Numbers:
    return Numbers(tidy(by_round(name), "shared.accuracy", "value"), {"base": {}})


def dfl_of_equal_rounds(name: str, study: Study) -> Numbers:
    """Return FedAvg's and DFL's numbers until the last round that each of their seeds has."""
    rows = by_round(name).query("method in ['fedavg', 'dfl', 'dfl_3']").dropna(subset="value")
    last = rows.groupby(["method", "seed"])["round"].max().min()
    return Numbers(tidy(rows[rows["round"] <= last], "shared.accuracy", "value"), {"base": {}})


def dfl_controls(net: str) -> Callable[[str, Study], Numbers]:
    def numbers(name: str, study: Study) -> Numbers:
        rows = by_seed(name, *(["net"] if net else [])).assign(setting="base")
        return Numbers(tidy(rows[rows["net"] == net] if net else rows, "shared.accuracy", "value"), {"base": {}})

    return numbers


def dfl_conditions(name: str, study: Study) -> Numbers:
    rows = by_seed(name, "setting")
    return Numbers(tidy(rows, "shared.accuracy", "value"), {key: {"readings": key} for key in rows["setting"].unique()})


def dfl_thresholds(name: str, study: Study) -> Numbers:
    both = "partition" in pd.read_csv(RESULTS / name)
    rows = by_seed(name, "threshold", *(["partition"] if both else []))
    parts = rows["partition"] if both else pd.Series("", index=rows.index)
    rows["setting"] = parts + " threshold=" + rows["threshold"].astype(str)
    points = {
        setting: {"dfl.threshold": threshold, **({"federation.partition": part} if both else {})}
        for setting, threshold, part in zip(rows["setting"], rows["threshold"], parts, strict=True)
    }
    fedavg = rows[(rows["method"] == "dfl") & (rows["threshold"] == 1.0)]  # the same, bit for bit
    copies = [fedavg.assign(method="fedavg", setting=setting) for setting in points]
    whole = pd.concat([rows, *(copies if "fedavg" not in set(rows["method"]) else [])], ignore_index=True)
    return Numbers(tidy(whole, "shared.accuracy", "value"), points)


def code_by_seed(name: str, study: Study) -> Numbers:
    """Return the numbers of a file with a column for each key of the grid, named as in :data:`KEYS`."""
    keys = [key for key in KEYS if key in pd.read_csv(RESULTS / name)]
    return by_setting(by_seed(name, *keys), keys)


def code_fig10(name: str, study: Study) -> Numbers:
    """Five shots: the first of CODE is its single shot, that of LMF is in a file of its own."""
    keys = ["net", "alpha"]
    rows = by_seed(name, *keys)
    rows["round"] = np.where(rows["method"].isin(["code_ot", "lmf"]), 5, 1)
    first = rows[rows["method"] == "code_1"].assign(method="code_ot")
    one_shot = pd.read_csv(RESULTS / "code-fig10-one-shot.csv").rename(columns={"accuracy": "value"}).assign(round=1)
    return by_setting(pd.concat([rows, first, one_shot[one_shot["method"] == "lmf"]], ignore_index=True), keys)


def by_setting(rows: pd.DataFrame, keys: list[str]) -> Numbers:
    """Return the numbers of rows whose settings are the values of some keys."""
    rows["setting"] = [
        " ".join(
            f"{key}={value:g}" if key == "alpha" else f"{key}={value}" for key, value in zip(keys, one, strict=True)
        )
        for one in rows[keys].itertuples(index=False)
    ]
    settings = rows[["setting", *keys]].drop_duplicates().to_dict("records")
    points = {one["setting"]: {KEYS[key]: one[key] for key in keys} for one in settings}
    return Numbers(tidy(rows, "shared.accuracy", "value"), points)


def code_fig6(name: str, study: Study) -> Numbers:
    rows = pd.read_csv(RESULTS / name)
    rows["setting"] = "reg=" + rows["reg"].map("{:g}".format) + " tol=" + rows["tol"].map("{:g}".format)
    pairs = rows[["setting", "reg", "tol"]].drop_duplicates().itertuples(index=False)
    points = {one.setting: {"code_ot.reg": one.reg, "code_ot.tol": one.tol} for one in pairs}
    keys = ["setting", "seed", "device"]
    long = rows.melt(keys, ["iterations", "excess"], "metric").assign(method="code_ot", stage=0, round=1)
    return Numbers(long.assign(split="transport")[COLUMNS], points)


def fedasa_80_rounds(name: str, study: Study) -> Numbers:
    return Numbers(tidy(by_round(name), "test.accuracy", "value"), {"base": {}})


def fedasa_one_window(name: str, study: Study) -> Numbers:
    """The curves of Fig. 10 are means over seeds at A & B & C: seeds have the same gain there, and none elsewhere."""
    rows = pd.read_csv(RESULTS / name)
    grid = study.sizes["paper"].grid.get("data.locations", [["A", "B", "C"]])
    points = {" & ".join(one): {"data.locations": one} for one in grid}
    rows = rows[rows["setting"].isin(points)]
    curves = pd.read_csv(RESULTS / name.replace(".csv", "-rounds.csv")).set_index("method")
    everywhere = rows[(rows["setting"] == "A & B & C") & rows["method"].isin(curves.index)].assign(round=40)
    before = everywhere.assign(
        round=36,
        accuracy=everywhere["accuracy"] - everywhere["method"].map(curves["40"] - curves["36"]),
    )
    elsewhere = rows.drop(everywhere.index).assign(round=1)
    scored = pd.concat([elsewhere, before, everywhere], ignore_index=True)
    parts = [
        tidy(scored, "test.accuracy", "accuracy", "std_devices"),
        tidy(rows, "test.loss", "", "loss_std"),
        tidy(rows, "auxiliary.accuracy", "auxiliary_accuracy"),
    ]
    return Numbers(pd.concat(parts, ignore_index=True), points)


def fedasa_clean(name: str, study: Study) -> Numbers:
    """Clean records, 20 rounds, two seeds at most: what these numbers can show is what is at the ceiling."""
    rows = pd.read_csv(RESULTS / name)
    grid = study.sizes["paper"].grid.get("data.locations", [["A", "B", "C"]])
    points = {"+".join(one): {"data.locations": one} for one in grid}
    rows = rows[rows["setting"].isin(points)]
    parts = [
        tidy(rows, "test.accuracy", "accuracy", "std_devices"),
        tidy(rows, "test.loss", "", "loss_std"),
        tidy(rows, "traffic.bytes_up", "mb_up_per_round"),
        tidy(rows, "auxiliary.accuracy", "auxiliary_accuracy"),
    ]
    return Numbers(pd.concat(parts, ignore_index=True), points)


def st_lf(name: str, study: Study) -> Numbers:
    rows = pd.read_csv(RESULTS / name, comment="#").rename(columns={"set": "setting"})
    if "method" not in rows:
        rows["method"] = "st_lf"
    points: dict[str, dict[str, Any]] = {setting: {"sets": setting} for setting in rows["setting"].unique()}
    if "phi_e" in rows:
        rows["setting"] = "sets=" + rows["setting"] + " phi_e=" + rows["phi_e"].astype(str)
    if rows["setting"].str.contains("phi_e=").any():
        words = {setting: dict(word.split("=") for word in setting.split()) for setting in rows["setting"].unique()}
        points = {key: {"sets": one["sets"], "st_lf.phi_e": float(one["phi_e"])} for key, one in words.items()}
    if rows["setting"].str.contains("hidden=").any():
        points = {"hidden=0": {"federation.hidden": 0.0}, "hidden=random": {"federation.hidden": "random"}}
    if "device" in rows:
        columns = ["target", "accuracy", "links_out", "energy", "fall", "rise"]
        long = rows.melt(["setting", "method", "seed", "device"], [c for c in columns if c in rows], "metric")
        split = long["metric"].map(lambda metric: "program" if metric in ("fall", "rise") else "links")
        table = long.assign(stage=0, round=1, split=split)[COLUMNS].dropna(subset="value")
        if "error" in rows:  # a device of error 1 has no label, and an error of 1 is otherwise rare
            first = rows[rows["setting"] == "hidden=0"].assign(value=lambda all_: (all_["error"] < 1).astype(float))
            labelled = first[["method", "seed", "device", "value"]]
            both = [labelled.assign(setting=setting) for setting in points]
            data = pd.concat(both).assign(stage=0, round=1, split="data", metric="examples")
            table = pd.concat([table, data[COLUMNS]], ignore_index=True)
        return Numbers(table, points)
    devices = 10
    names = {
        "links.accuracy": "accuracy", "links.source_accuracy": "source_accuracy", "links.energy": "energy_j",
        "links.source_macro_f1": "source_macro_f1",
        "links.links_out": "links", "links.target": "targets",
    }  # fmt: skip
    of_all = ("energy_j", "links", "targets")
    per_device = rows.assign(**{column: rows[column] / devices for column in of_all if column in rows})
    parts = [tidy(per_device, where, column) for where, column in names.items() if column in per_device]
    if "slack_theorem_2" in rows:
        # Corollary 1 lies above Theorem 2 by nearly the same for every target
        least = rows["least_slack_theorem_2"] + rows["corollary_1"] - rows["theorem_2"]
        rows = rows.assign(least_slack_corollary_1=least)
        parts += [
            tidy(rows, f"links.slack_{bound}", f"slack_{bound}", least=f"least_slack_{bound}")
            for bound in ("theorem_2", "corollary_1")
        ]
    return Numbers(pd.concat(parts, ignore_index=True), points)


def st_lf_ratios(name: str, study: Study) -> Numbers:
    numbers = st_lf(name, study)
    return Numbers(numbers.table, {key: {"ratios": key} for key in numbers.points})


BY_SEED: dict[str, Callable[[str, Study], Numbers]] = {
    "code-fig6-digits": code_fig6,
    "code-fig8-mnist-sgd": code_by_seed,
    "code-fig9-growth": code_by_seed,
    "code-fig10-part": code_fig10,
    "code-fig9-mnist-sgd": code_by_seed,
    "dfl-mnist": dfl_rounds,
    "dfl-mnist-300-rounds": dfl_of_equal_rounds,
    "dfl-cifar10-even": dfl_of_equal_rounds,
    "dfl-cifar10-skewed": dfl_of_equal_rounds,
    "dfl-table2-mnist-part": dfl_rounds,
    "dfl-fig4-digits": dfl_rounds,
    "dfl-controls": dfl_controls("mlp"),
    "dfl-controls-cnn": dfl_controls("cnn"),
    "dfl-controls-all": dfl_controls(""),
    "dfl-conditions": dfl_conditions,
    "dfl-thresholds": dfl_thresholds,
    "dfl-thresholds-mnist": dfl_thresholds,
    "fedasa-cwru-table6": fedasa_clean,
    "fedasa-80-rounds": fedasa_80_rounds,
    "fedasa-one-window": fedasa_one_window,
    "st-lf-fig4-as-published": st_lf,
    "st-lf-fig6-as-published": st_lf,
    "st-lf-fig7-as-published": st_lf,
    "st-lf-most-similar": st_lf,
    "st-lf-ratios": st_lf_ratios,
    "st-lf-table1-as-printed": st_lf,
    "st-lf-table1-as-published": st_lf,
    "st-lf-table1-bsds500": st_lf,
    "st-lf-table1-per-class": st_lf,
    "st-lf-table1-plain-net": st_lf,
    "st-lf-table2-as-published": st_lf,
}
FILES = {
    "code-fig8-mnist-sgd": "code-fig8-mnist-sgd-seeds",
    "code-fig9-mnist-sgd": "code-fig9-mnist-sgd-seeds",
    "code-fig10-part": "code-fig10-part-seeds",
    "dfl-mnist": "dfl-mnist-rounds",
    "dfl-controls-cnn": "dfl-controls",
}
"""Claims file -> its numbers, where the names differ."""

BY_MEAN = ("code-fig8-mnist", "code-fig9-mnist")
KEYS = {
    "net": "net",
    "devices": "federation.devices",
    "alpha": "federation.alpha",
    "epochs": "training.epochs",
    "optimiser": "optimiser",
}


def by_mean(name: str, claim: Claim) -> Numbers:
    """Return a table of three seeds with the means and standard deviations of a summary, for one claim.

    The two values that the claim compares (rows, or a key's first and last value) vary over seeds along directions at
    right angles, so that their difference has the standard deviation of independent ones.
    """
    summary = pd.read_csv(RESULTS / name)
    points = {
        setting: {KEYS[key]: float(value) if value[0].isdigit() else value for key, value in words.items()}
        for setting in summary["setting"].unique()
        for words in [dict(word.split("=") for word in setting.split())]
    }
    directions = np.array([[-1.0, 0.0, 1.0], [1.0, -2.0, 1.0] / np.sqrt(3)])
    labels, key = sorted(claim.labels), claim.parts.key
    values = sorted({point[key] for point in points.values() if key in point}) if key else []
    parts = []
    for line in summary[summary["method"].isin({*labels, "best_local", "majority"})].itertuples():
        which = values.index(points[line.setting][key]) > 0 if key else line.method != labels[0]
        for seed, step in enumerate(directions[int(which)]):
            value = line.shared_mean + step * line.shared_std_seeds
            parts.append({"setting": line.setting, "method": line.method, "seed": seed, "value": value})
    return Numbers(tidy(pd.DataFrame(parts), "shared.accuracy", "value"), points)


def judged(file: str, study_name: str, study: Study) -> pd.DataFrame | None:
    """Return the verdicts of a study from numbers that were kept, None if there are none."""
    source = f"{FILES.get(file, file)}.csv"
    if file in BY_SEED:
        numbers = BY_SEED[file](source, study)
        gates = [gate for gate in study.valid if _kept(gate.labels, gate.metric, numbers.table)]
        found = judge_all(study.claims, gates, *numbers, study.ceiling, study.converged)
    elif file in BY_MEAN:
        found = (
            verdict
            for claim in study.claims
            for numbers in [by_mean(source, claim)]
            for verdict in judge_all([claim], study.valid, *numbers)
        )
    else:
        return None
    return verdict_table((study_name, verdict) for verdict in found)


def _kept(labels: set[str], metric: str, table: pd.DataFrame) -> bool:
    there = table[table["split"] + "." + table["metric"] == metric.rpartition(" of ")[2]]
    return labels <= set(there["method"])


def from_words(rule: str, earlier: str, numbers: str) -> tuple[str, str, int, int]:
    """Return a verdict by today's rule, its numbers, and in how many settings it holds of how many, from evidence."""
    match = EARLIER.match(numbers)
    if match is None:
        return earlier, numbers.replace("needs two seeds", "needs three seeds"), 0, 0
    held, tested, count = (int(match[key]) for key in ("held", "tested", "count"))
    mean, spread = float(match["mean"]), float(match["spread"])
    if match["of"] == "problems":
        return earlier, numbers, held, tested
    if count < SEEDS:
        return "not tested", f"{count} seeds, a rule needs three (with them {match[0]})", 0, 0
    margin = half_width(spread, count, RATIO, LEVEL)
    interval = f"{mean:+.3g} [{mean - margin:+.3g}, {mean + margin:+.3g}]"
    word = match["word"].replace("most against", "strongest counter-example")
    tolerance = " within " in rule
    if tested == 1 and not tolerance:
        held = int(mean - margin > 0)
        word = "least" if held else "strongest counter-example"
    if tested == 1 or tolerance or held == 0 or spread == 0:
        verdict = "holds" if held == tested else which_failure(rule, interval, tested)
        settings = f"in {held} of {tested} setting{'s' * (tested > 1)}"
        return verdict, f"{settings}; {word}: {interval} ({count} seeds)", held, tested
    return earlier, f"{numbers}; by the earlier rule, values by seed were not kept", held, tested


def which_failure(rule: str, numbers: str, tested: int) -> str:
    """Return whether a rule that fails is contradicted or not shown, from the interval in its numbers.

    That of one setting of several cannot tell what the others are, so that such a rule is not shown.
    """
    found = re.search(r"([+-][\d.e+-]+) \[([+-][\d.e+-]+), ([+-][\d.e+-]+)\]", numbers)
    if found is None or tested != 1:
        return "not shown"
    mean, low, high = map(float, found.groups())
    return "contradicted" if read_rule("rule", rule, METRIC).contradicted(mean, (high - low) / 2) else "not shown"


def baseline_of(baseline: Baseline, file: str, study: Study) -> float:
    """Return a row's number in a file: after the last round, the mean over devices, seeds and settings."""
    table = BY_SEED[file](f"{FILES.get(file, file)}.csv", study).table
    rows = table[(table["method"] == baseline.row) & (table["split"] + "." + table["metric"] == baseline.of)]
    rows = rows[rows["setting"].str.contains(baseline.where)]
    last = rows[rows["round"] == rows.groupby(["setting", "seed"])["round"].transform("max")]
    return float(last.groupby(["setting", "seed"])["value"].mean().groupby("setting").mean().mean())


def stands(file: str, rule: str, of: str, pages: PaperPages) -> bool:
    """Tell whether a claim's baseline is calibrated: each that it names, or any of the file if it names none."""
    metric = of.partition(" after round ")[0].rpartition(" of ")[2]
    if metric.partition(".")[0] in COUNTED:
        return True
    baselines = [one for page in pages.values() for one in page.calibration if file in one.files]
    named = [one for one in baselines if one.row in read_rule("rule", rule, METRIC).labels]
    return all(one.calibrated for one in named) if named else any(one.calibrated for one in baselines)


def with_regime(rows: pd.DataFrame, file: str, pages: PaperPages) -> list[str]:
    """Return the verdicts of a claims file where a verdict needs a calibrated baseline and the end of its run."""

    def word(row: pd.Series) -> str:
        if row["here"] == "not tested":
            return UNFINISHED if "not converged" in row["numbers"] else "not tested"
        ours = row["says"].startswith("(ours)") and row["here"] != "contradicted"
        return str(row["here"]) if ours or stands(file, row["rule"], row["of"], pages) else REGIME

    return [word(row) for _, row in rows.iterrows()]


def rejudge(path: Path, params: dict[str, Any], pages: PaperPages) -> pd.DataFrame:
    """Return a claims file by today's rules; `earlier` is the verdict that it has now, or had before it was judged."""
    file = path.name.removesuffix("-claims.csv")
    old = pd.read_csv(path, keep_default_na=False)
    if "here" in old:
        old["verdict"] = old["here"]
    if "earlier" not in old:
        old["earlier"], old["judged"] = old["verdict"], ""
    lines = []
    for name, rows in old.groupby("study", sort=False):
        study = find_study(params, str(name))
        anew = judged(file, str(name), study)
        for _, row in rows.iterrows():
            line = {"contradicted_in": "", "a": "", "b": ""} | row.to_dict()
            same = _same(anew, row)
            loose = file in BY_MEAN and same is not None and row["earlier"] == "holds" and same["verdict"] in FAILED
            if (
                loose
            ):  # the spread of independent rows is often too wide to deny what rows with one partition have shown
                if row["judged"] == "":
                    numbers_as_stored = f"{row['numbers']}; by the earlier rule, values by seed were not kept"
                    line |= {
                        "numbers": f"{numbers_as_stored} (as if rows were independent, {same['numbers']})",
                        "judged": "earlier rule",
                    }
            elif same is not None:
                line |= same | {"judged": "values by seed" if file in BY_SEED else "means, rows as if independent"}
            elif row["judged"] == "":
                verdict, numbers, held, of = from_words(row["rule"], row["earlier"], row["numbers"])
                line |= {"verdict": verdict, "numbers": numbers, "holds_in": held, "tested_in": of}
                line["judged"] = "earlier rule" if "earlier rule" in numbers else "evidence"
            if row["rule"].find(" within ") < 0:  # a difference in the rule's direction speaks for it, if not surely
                line["numbers"] = line["numbers"].replace("strongest counter-example: +", "weakest setting: +")
            tested = int(float(line["tested_in"] or 0))
            if line["verdict"] == "does not hold":
                line["verdict"] = which_failure(row["rule"], row["numbers"], tested)
            if line["judged"] in ("evidence", "earlier rule"):  # of several settings the evidence names one
                count = int(line["verdict"] == "contradicted") if tested <= 1 else ""
                line["contradicted_in"] = count
            lines.append(line | {key: _digits(line[key]) for key in ("a", "b")})
    columns = ["study", "says", "rule", "of", "where", "verdict", "numbers", *LATER]
    if "net" in old:
        columns.insert(0, "net")
    rows = pd.DataFrame(lines).assign(here=[line["verdict"] for line in lines])[columns]
    return rows.assign(verdict=with_regime(rows, file, pages))


def _digits(value: float | str) -> str:
    """Return a mean with six digits; an empty text for none."""
    return "" if value == "" or np.isnan(float(value)) else f"{float(value):.6g}"


def _same(anew: pd.DataFrame | None, row: pd.Series) -> dict[str, Any] | None:
    """Return today's verdict on a claim; None if its numbers were not kept."""
    if anew is None:
        return None
    same = anew[(anew[["rule", "of", "where"]] == row[["rule", "of", "where"]]).all(axis=1)]
    if same.empty:
        return None
    lacking = same.iloc[0]["numbers"].startswith(("needs three seeds, and", "no values after"))
    return None if lacking else same.iloc[0].to_dict()


def claims_files() -> Iterator[Path]:
    """Yield the claims files of the four papers."""
    return (path for path in sorted(RESULTS.glob("*-claims.csv")) if path.name.startswith(FAMILIES))
