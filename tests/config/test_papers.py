"""Papers as data: what their files must have, and what the project's own files lack."""

import re
import shlex
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from papers_page import source
from project_params import PARAMS, ROOT, refusal
from pydantic import ValidationError

from fedcore.config.papers import Condition, Figure, Paper, Value, of_study, read_papers
from fedcore.config.request import parse, plan_jobs

STUDIES = PARAMS["studies"]
PAPERS = read_papers(STUDIES, ROOT)

TABLE = {"name": "Table II", "shows": "accuracy", "status": "run", "study": "code_fig8", "command": "make run"}
CONDITION = {"setting": "pixels", "paper": "not said", "place": "VII-A", "ours": "[0, 1]", "reason": "?", "effect": "?"}


def write(folder: Path, paper: Any, family: str = "code") -> Path:
    (folder / "papers").mkdir(exist_ok=True)
    (folder / "papers" / f"{family}.yaml").write_text(yaml.safe_dump(paper))
    return folder


def test_a_paper_is_read_with_numbers_and_words(tmp_path: Path):
    values = [{"what": "CODE", "paper": 0.9, "ours": 0.8}, {"what": "LMF", "paper": "above 87.5 %"}]
    write(tmp_path, {"conditions": [CONDITION], "figures": [{**TABLE, "values": values}]})
    (paper,) = read_papers(STUDIES, tmp_path).values()
    assert [(value.paper, value.ours) for _, value in paper.printed] == [(0.9, 0.8), ("above 87.5 %", None)]
    assert paper.conditions[0].paper == "not said"


def test_a_project_without_papers_has_none(tmp_path: Path):
    assert read_papers(STUDIES, tmp_path) == {}


@pytest.mark.parametrize(
    ("paper", "says"),
    [
        ([], "papers/code.yaml: must hold a paper's conditions and figures, has list"),
        ({"conditions": []}, "papers.code.figures: is missing"),
        ({"figures": []}, "papers.code.figures"),
        ({"figures": [{**TABLE, "status": "soon"}]}, "papers.code.figures.0.status = 'soon'"),
        ({"figures": [{**TABLE, "status": "part"}]}, "Table II: part needs a reason"),
        ({"figures": [{**TABLE, "status": "not run"}]}, "Table II: not run needs a reason"),
        ({"figures": [{**TABLE, "command": ""}]}, "Table II: run needs its command"),
        ({"figures": [{key: TABLE[key] for key in TABLE if key != "status"}]}, "papers.code.figures.0.status"),
        ({"figures": [TABLE, TABLE]}, "papers.code.figures: Table II stands there twice"),
        ({"figures": [{**TABLE, "study": "code_fig88"}]}, "Table II: no such study: 'code_fig88'"),
        ({"figures": [TABLE], "conditions": [{**CONDITION, "studies": ["no"]}]}, "pixels: no such study: 'no'"),
        ({"figures": [TABLE], "conditions": [{**CONDITION, "effect": ""}]}, "papers.code.conditions.0.effect"),
        ({"figures": [TABLE], "condition": []}, "papers.code.condition: no such key"),
        ({"figures": [{**TABLE, "values": [{"what": "a"}]}]}, "papers.code.figures.0.values.0.paper"),
        (
            {"figures": [TABLE], "theory": [{"name": "(1)", "says": "?"}]},
            "(1): needs a test that checks it, or the reason",
        ),
        ({"figures": [{**TABLE, "values": [{"what": "a", "paper": 1, "spread": -1}]}]}, "spread"),
    ],
)
@pytest.mark.slow
def test_a_paper_that_says_too_little_or_too_much_is_refused(tmp_path: Path, paper: Any, says: str):
    assert says.lower() in refusal(read_papers, STUDIES, write(tmp_path, paper)).lower()


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        ({"paper": 0.9}, "not measured"),
        ({"paper": "above .9", "ours": 0.8}, "no number to compare"),
        ({"paper": 0.9, "ours": 0.8}, "no spread"),
        ({"paper": 0.9, "ours": 0.8, "spread": 0.1, "seeds": 1}, "no spread"),
        ({"paper": 0.876, "ours": 0.733, "spread": 0.04, "seeds": 5}, "below"),
        ({"paper": 0.9, "ours": 0.87, "spread": 0.01, "seeds": 5}, "within 3 sd"),
        ({"paper": 0.5, "ours": 0.87, "spread": 0.01, "seeds": 5}, "above"),
    ],
)
def test_where_the_papers_number_lies(value: dict[str, Any], verdict: str):
    assert Value(what="a", **value).verdict == verdict


def test_a_study_has_the_conditions_and_figures_that_concern_it():
    conditions = [Condition(**CONDITION), Condition(**{**CONDITION, "setting": "b", "studies": ["code_fig9"]})]
    papers = {
        "st_lf": Paper(figures=[Figure(**{**TABLE, "study": "st_lf_table1"})]),
        "code": Paper(conditions=conditions, figures=[Figure(**TABLE)]),
    }
    for study, settings, count in (
        ("code_fig8", ["pixels"], 1), ("code_fig9", ["pixels", "b"], 0), ("code", ["pixels"], 0),
    ):  # fmt: skip
        mine = of_study(papers, study)
        assert mine is not None
        assert [one.setting for one in mine.conditions] == settings
        assert len(mine.figures) == count
    assert of_study(papers, "codex") is None
    assert of_study({}, "code") is None


# the project's own papers


CONTENTS = {"code": (10, 2), "dfl": (4, 5), "fedasa": (13, 6), "st_lf": (9, 2)}
"""family -> the numbers of figures and of tables that its paper has."""

ROMAN = ("I", "II", "III", "IV", "V", "VI")


def numbered(name: str) -> set[str]:
    """Return the figures or tables that a name stands for: "Figs. 4 to 6" and "Fig. 3d" are 4, 5, 6 and 3."""
    if name.lower().startswith("fig"):
        text = re.sub(r"(\d+)\w? *(?:to|-) *(\d+)", lambda m: " ".join(map(str, range(int(m[1]), int(m[2]) + 1))), name)
        return {f"Fig. {number}" for number in re.findall(r"\d+", text)}
    return {f"Table {number}" for number in re.findall(rf"\b(?:{'|'.join(ROMAN)})\b", name)}


def missing(family: str, paper: Paper) -> list[str]:
    """Return the figures and tables of a paper that have no entry."""
    figures, tables = CONTENTS[family]
    wanted = [f"Fig. {i + 1}" for i in range(figures)] + [f"Table {number}" for number in ROMAN[:tables]]
    present = set[str]().union(*(numbered(figure.name) for figure in paper.figures))
    return [name for name in wanted if name not in present]


def test_names_stand_for_figures_and_tables():
    assert numbered("Figs. 4 to 6, 8 and 9") == {"Fig. 4", "Fig. 5", "Fig. 6", "Fig. 8", "Fig. 9"}
    assert numbered("Fig. 3d") == {"Fig. 3"}
    assert numbered("Table III, last rows") == {"Table III"}
    few = Paper(figures=[Figure(**TABLE), Figure(**{**TABLE, "name": "Figs. 1 to 9"})])
    assert missing("st_lf", few) == ["Table I"]


@pytest.mark.parametrize("family", PAPERS)
def test_every_figure_and_table_of_a_paper_has_an_entry(family: str):
    assert (ROOT / "studies" / f"{family}.yaml").is_file()
    assert missing(family, PAPERS[family]) == []


EQUATIONS = {"code": 49, "dfl": 31, "fedasa": 34, "st_lf": 93}
"""family -> the number of the last equation of its paper."""

STATEMENTS = {
    "code": ("Theorem 1", "Theorem 2", "Lemma 1", "Lemma 2", "Definition 1", "Definition 2", "Remark 1", "Remark 2",
             "Remark 3", "Remark 4", "Remark 5", "FedAvg-1", "FedAvg-50", "LMF"),
    "dfl": ("O(1/t)", "Assumption 5", "FedAvg", "FD", "SCAFFOLD", "FedGen", "DFL-FR"),
    "fedasa": ("Theorem 1", "Theorem 2", "Lemmas 1 and 2", "Definition 1", "FedAvg", "FedProx", "Ditto", "FedPer",
               "Local-only", "DiagNet"),
    "st_lf": ("Theorem 1", "Theorem 2", "Lemma 1", "Lemma 2", "Corollary 1", "Algorithm 1", "Algorithm 2", "Rnd-alpha",
              "AvgD", "FADA", "Rnd-psi", "psi-FedAvg", "psi-FADA", "single matching"),
}  # fmt: skip


def equations(name: str) -> list[int]:
    """Return the numbers of the equations that a name stands for: "(1), (3) to (5)" are 1, 3, 4 and 5."""
    spread = re.sub(
        r"\((\d+)\) to \((\d+)\)", lambda m: " ".join(f"({i})" for i in range(int(m[1]), int(m[2]) + 1)), name
    )
    return [int(number) for number in re.findall(r"\((\d+)\)", spread)]


@pytest.mark.parametrize("family", PAPERS)
def test_every_equation_and_theorem_of_a_paper_has_a_row(family: str):
    names = [one.name for one in PAPERS[family].theory]
    found = sorted(number for name in names for number in equations(name))
    assert found == list(range(1, EQUATIONS[family] + 1))
    assert [wanted for wanted in STATEMENTS[family] if not any(wanted in name for name in names)] == []


@pytest.mark.parametrize("family", PAPERS)
def test_the_tests_that_check_an_equation_exist(family: str):
    for one in PAPERS[family].theory:
        for test in one.tests:
            file, _, function = test.partition("::")
            assert f"\ndef {function}(" in (ROOT / file).read_text(), f"{one.name}: {test}"


FIGURES = [(family, figure) for family, paper in PAPERS.items() for figure in paper.figures]


@pytest.mark.parametrize(("family", "figure"), FIGURES, ids=lambda one: one if isinstance(one, str) else one.name)
@pytest.mark.slow
def test_a_figure_has_its_reason_its_study_and_its_sources(family: str, figure: Figure):
    """What the reader refuses cannot be here; this is what it does not know: files, and modules of commands."""
    printed = [value for _, value in Paper(figures=[figure]).printed]
    assert all(source(value, ROOT) for value in printed if value.source)
    assert all(value.source for value in printed if isinstance(value.ours, float)), "a number without its source"
    words = shlex.split(figure.command.partition("#")[0])
    if "-m" in words:
        assert find_spec(words[words.index("-m") + 1])
    if figure.study and words[:2] == ["fedcore", "run"]:
        named = [word.partition("=")[2] for word in words if re.match(r"(run\.)?stud(y|ies)=", word)]
        assert [figure.study] == named, "the command runs other studies"


@pytest.mark.slow
def test_the_flow_accepts_every_command_of_the_papers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    commands = [shlex.split(figure.command.partition("#")[0]) for _, figure in FIGURES]
    asked = [words[2:] for words in commands if words[:2] == ["fedcore", "run"]]
    assert asked
    for words in asked:
        assert plan_jobs(parse(words))


def test_values_are_frozen():
    with pytest.raises(ValidationError):
        Figure(**TABLE).status = "part"  # type: ignore[misc]


# The numbers in papers/*.yaml are those of the files that they name as their source, computed anew.
PAPERS_PAPERS_VALUES = read_papers(PARAMS["studies"], ROOT)
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
    what, dataset, method = re.sub("^as_published[^:]*: ", "", value.what).rsplit(", ", 2)
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


def dfl_cifar10(value: Value) -> pd.Series:
    row = re.fullmatch(r"CIFAR-10, CNN, (\w+) \(ours: (\d+) rounds\)", value.what)
    assert row
    return by_seed(str(value.source), row[2], method=METHODS[row[1]]).dropna()


def dfl_sizes(value: Value) -> pd.Series:
    net, dataset = value.what.removesuffix(" KB as printed").rstrip(", ").split(", ", 1)
    which = "generator" if dataset.startswith("generator") else DATA[dataset]
    rows = read(str(value.source))
    printed_in_mb = net in ("VGG-16", "MobileNetV2")  # of which 1,024 KB are one
    return rows[(rows["net"] == NETS[net]) & (rows["set"] == which)]["bytes"] / 1000 * (1.024 if printed_in_mb else 1)


def dfl_seconds(value: Value) -> pd.Series:
    rows = read(str(value.source))
    return rows[rows["method"] == value.what.split(", ")[-1].split(" ")[0].lower()]["seconds_at_5.4e6"]


def fedasa_80(value: Value) -> pd.Series:
    rows = read(str(value.source))
    return rows[rows["method"] == METHODS[value.what.split(", ")[1]]].set_index("seed")["80"]


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


FIG11 = [value for figure, value in PAPERS_PAPERS_VALUES["fedasa"].printed if figure.name == "Fig. 11"]

WHERE: dict[str, Callable[[Value], pd.Series]] = {
    "st-lf-table1": st_lf_table1, "st-lf-table2": st_lf_table2, "st-lf-fig6": st_lf_fig6, "st-lf-fig7": st_lf_fig7,
    "dfl-sizes": dfl_sizes, "dfl-seconds": dfl_seconds, "dfl-cifar10-": dfl_cifar10, "dfl-": dfl_rounds,
    "fedasa-80": fedasa_80, "fedasa-": fedasa,
}  # fmt: skip
NUMBERS = [
    (family, figure.name, value) for family, paper in PAPERS_PAPERS_VALUES.items() for figure, value in paper.printed
    if isinstance(value.ours, float) and str(value.source).endswith(".csv")
]  # fmt: skip


def test_most_printed_numbers_are_computed_anew():
    assert len(NUMBERS) > 450


@pytest.mark.parametrize("source", sorted({str(value.source) for *_, value in NUMBERS}))
@pytest.mark.slow
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


# numbers that stand in words are found in them in the order given here

ALPHAS = ("1e+20", "1", "0.1")


def mean(file: str, setting: str, method: str) -> float:
    """Return the mean accuracy of a summary in docs/results."""
    rows = read(f"results/code-{file}.csv").query("setting == @setting and method == @method")
    return float(rows["shared_mean"].item())


def sgd(file: str, *keys: float | str) -> float:
    """Return the mean over three seeds of a row in a setting of Fig. 8 or 9 under SGD."""
    rows = read(f"results/code-{file}-mnist-sgd-seeds.csv").set_index(
        ["devices" if file == "fig8" else "epochs", "alpha", "method"]
    )
    return float(rows.loc[keys, ["seed_0", "seed_1", "seed_2"]].mean())


def fig8(file: str, devices: int, alpha: str, method: str, optimiser: str = "adam") -> float:
    if optimiser == "sgd":
        return sgd("fig8", devices, float(alpha), method)
    return mean(file, f"devices={devices} alpha={alpha} optimiser={optimiser}", method)


def fig9(epochs: int, alpha: str, method: str, optimiser: str = "adam") -> float:
    if optimiser == "sgd":
        return sgd("fig9", epochs, float(alpha), method)
    return mean("fig9-mnist", f"epochs={epochs} alpha={alpha} optimiser=adam", method)


def gains(method: str, optimiser: str) -> list[float]:
    return [fig9(20, alpha, method, optimiser) - fig9(1, alpha, method, optimiser) for alpha in ALPHAS]


def digits_gains() -> list[float]:
    means = read("results/code-fig9-growth.csv").set_index(["method", "epochs", "alpha"]).mean(axis=1)
    rows = (f"{rule}_{optimiser}" for rule in ("code", "lmf") for optimiser in ("sgd", "adam"))
    return [means[row, 50, alpha] - means[row, 5, alpha] for row in rows for alpha in (1e20, 1.0)]


def ten_epochs(method: str) -> list[float]:
    rows = read("results/code-fig8-mnist-ten-epochs.csv").query("method == @method").set_index("alpha")["mean"]
    return [rows[float(alpha)] for alpha in ALPHAS]


def fig10(method: str, *settings: tuple[str, str]) -> list[float]:
    """Return means over the seeds that all of alpha's nets have."""
    rows = read("results/code-fig10-part-seeds.csv").set_index(["alpha", "method", "net"]).sort_index()
    seeds = ["seed_0", "seed_1", "seed_2"]
    return [rows.loc[(float(alpha), method), seeds].dropna(axis=1).mean(axis=1)[net] for net, alpha in settings]


def one_shot(method: str) -> list[float]:
    rows = read("results/code-fig10-one-shot.csv").query("method == @method").groupby(["net", "alpha"])["accuracy"]
    return [rows.mean()[net, float(alpha)] for alpha in ALPHAS for net in ("mlp", "cnn")]


def shares() -> list[float]:
    rows = read("results/code-fig7-mnist.csv").sort_values("lambda")
    return [*rows["zeros"].iloc[:2], *rows["partners"].iloc[:2]]


def lead(rounds: int) -> list[float]:
    return [a - b for a, b in zip(ten_epochs(f"fedavg_{rounds}"), ten_epochs("code_ot"), strict=True)]


def fedasa_clean(method: str, column: str, *settings: str) -> list[float]:
    """Return the least and the greatest mean over seeds in these sets of locations."""
    rows = read("results/fedasa-cwru-table6.csv").query("method == @method and setting in @settings")
    means = rows.groupby("setting")[column].mean()
    return [means.min(), means.max()]


def one_window(method: str) -> list[float]:
    rows = read("results/fedasa-one-window.csv").query("method == @method")
    return list(rows.groupby("setting")["accuracy"].mean()[["A", "B", "C"]])


def similarities() -> pd.DataFrame:
    rows = read("results/fedasa-fig1.csv")
    return rows.assign(place=rows["device"].str[0])


def dfl_means(file: str, method: str, *rounds: int) -> list[float]:
    rows = read(f"results/dfl-{file}.csv").query("method == @method")
    return [rows[str(one)].mean() for one in rounds]


def dfl_lead(file: str, a: str, b: str, number: int) -> list[float]:
    """Return mean and standard deviation over seeds of a minus b after a round, without the sign."""
    rows = read(f"results/dfl-{file}.csv").set_index(["method", "seed"])[str(number)]
    lead = rows[a] - rows[b]
    return [abs(lead.mean()), lead.std()]


def table2_ratios() -> list[float]:
    rows = read("results/st-lf-table2-as-published.csv").query("method == 'st_lf'").groupby("setting")
    rows = rows.mean(numeric_only=True)
    errors = rows["error_of_targets"]
    return list(((rows["theorem_2"] - errors) / errors)[["MM", "M"]])


FOUR = ("A+B", "A+C", "B+C", "A+B+C")
BOTH = [(net, alpha) for alpha in ALPHAS for net in ("mlp", "cnn")]
CNN = [("cnn", "1"), ("cnn", "0.1")]
TOLD: dict[tuple[str, str, str], Callable[[], list[float]]] = {
    ("code", "Fig. 7", "entries as lambda grows"): shares,
    ("code", "Fig. 8", "CODE and LMF, alpha 1e20, SGD"): lambda: [
        fig8("fig8-mnist-sgd", 32, "1e+20", "code_ot", "sgd") - fig8("fig8-mnist-sgd", 32, "1e+20", "lmf", "sgd")
    ],
    ("code", "Fig. 8", "CODE and LMF, alpha 1e20 ("): lambda: [
        fig8("fig8-mnist", devices, "1e+20", "code_ot") - fig8("fig8-mnist", devices, "1e+20", "lmf")
        for devices in (16, 32)
    ],
    ("code", "Fig. 8", "FedAvg-10, -30 and -50 and CODE"): lambda: [
        *(ten_epochs(f"fedavg_{rounds}")[place] for place in range(3) for rounds in (10, 50)),
        *ten_epochs("code_ot"),
    ],
    ("code", "Fig. 8", "the same, FedAvg-10 of one epoch"): lambda: [
        fig8("fig8-mnist", devices, "1e+20", "fedavg_10_epoch") - fig8("fig8-mnist", devices, "1e+20", "code_ot")
        for devices in (2, 32)
    ],
    ("code", "Fig. 8", "FedAvg-1 with more skew"): lambda: [
        fig8("fig8-mnist-sgd", 4, alpha, "fedavg_1", "sgd") for alpha in ALPHAS
    ],
    ("code", "Fig. 9", "CODE with the epochs, Adam"): lambda: [
        min(gains("code_ot", "adam")),
        fig9(10, "0.1", "code_ot"),
        fig9(20, "0.1", "code_ot"),
    ],
    ("code", "Fig. 9", "CODE with the epochs, SGD"): lambda: [min(gains("code_ot", "sgd"))],
    ("code", "Fig. 9", "CODE with better local models"): lambda: [
        *gains("best_local", "adam"),
        *gains("code_ot", "adam"),
    ],
    ("code", "Fig. 9", "growth with the epochs"): lambda: [
        *(gain for method in ("code_ot", "lmf") for optimiser in ("sgd", "adam") for gain in gains(method, optimiser))
    ],
    ("code", "Fig. 9", "the same as a rule"): digits_gains,
    ("code", "Fig. 9", "FedAvg-10, -30 and -50 with few epochs"): lambda: [
        *(fig8("fig8-mnist-fedavg", 16, alpha, f"fedavg_{rounds}_epoch") for alpha in ALPHAS for rounds in (10, 30))
    ],
    ("code", "Fig. 9", "CODE and FedAvg-10, -30 and -50, alpha 1e20"): lambda: [
        ten_epochs("code_ot")[0],
        *(ten_epochs(f"fedavg_{rounds}")[0] for rounds in (10, 30, 50)),
    ],
    ("code", "Fig. 9", "their distance from CODE"): lambda: lead(50),
    ("code", "Fig. 10", "the same, size part, LMF after one shot"): lambda: one_shot("lmf"),
    ("code", "Fig. 10", "the same, size part, CODE ("): lambda: fig10("code_1", *BOTH),
    ("code", "Fig. 10", "CNN with skew and a few shots"): lambda: [
        value for setting in CNN for method in ("code_1", "code_ot") for value in fig10(method, setting)
    ],
    ("code", "Fig. 10", "CNN's lead with more skew"): lambda: [
        cnn - mlp for mlp, cnn in zip(fig10("code_ot", *BOTH)[::2], fig10("code_ot", *BOTH)[1::2], strict=True)
    ],
    ("code", "Fig. 10", "MLP and CNN, a few shots"): lambda: fig10("code_ot", *BOTH),
    ("fedasa", "Fig. 1", "within a location, least"): lambda: [
        similarities()["similarity_same"].min(),
        *similarities().groupby("place")["similarity_same"].min(),
    ],
    ("fedasa", "Fig. 1", "across locations, greatest"): lambda: [similarities()["similarity_other"].max()],
    ("fedasa", "Fig. 9", "Local-only"): lambda: fedasa_clean("local_only", "accuracy", *FOUR),
    ("fedasa", "Fig. 9", "FedASA, average"): lambda: fedasa_clean("fedasa", "accuracy", *FOUR),
    ("fedasa", "Fig. 9", "FedASA, standard deviation"): lambda: fedasa_clean("fedasa", "std_devices", *FOUR)[1:],
    ("fedasa", "Fig. 13", "FedASA at A against"): lambda: one_window("fedasa"),
    ("st_lf", "Table II", "Theorem 2 minus"): table2_ratios,
    ("dfl", "Figure 2", "highest on all three"): lambda: [
        *dfl_lead("table2-mnist-part", "dfl", "fedavg", 40),
        *dfl_lead("table2-mnist-part", "dfl", "fedgen", 40),
    ],
    ("dfl", "Figure 2", "SCAFFOLD's convergence"): lambda: dfl_lead("table2-mnist-part", "scaffold", "fedavg", 20),
    ("dfl", "Figure 2", "FedGen's training"): lambda: dfl_lead("table2-mnist-part", "fedgen", "fedavg", 20),
    ("dfl", "Figure 2", "FedGen's accuracy"): lambda: dfl_means("table2-mnist-part", "fedgen", 20, 30, 40),
    ("dfl", "Figure 3", "FedGen's accuracy"): lambda: dfl_means("mnist-rounds", "fedgen", 50, 80, 100),
    ("dfl", "Figure 3", "highest and fastest"): lambda: [
        *dfl_lead("mnist-rounds", "dfl", "fedavg", 10),
        *dfl_lead("mnist-rounds", "dfl", "fedavg", 20),
    ],
    ("dfl", "Figure 3", "DFL converges as fast"): lambda: [
        number for rounds in (60, 80, 100) for number in dfl_lead("mnist-rounds", "dfl", "fedavg", rounds)
    ],
}


def told(words: str, number: float) -> str | None:
    """Return what follows a number in words, rounded to as many digits as it has there; None if it is not told."""
    for found in re.finditer(r"[+-]?(\d*\.(\d+))", words):
        if abs(float(found[0]) - number) <= 0.5 * 10.0 ** -len(found[2]) + 1e-6:
            return words[found.end() :]
    return None


@pytest.mark.parametrize(("family", "figure", "what"), TOLD)
@pytest.mark.slow
def test_a_number_in_words_is_that_of_its_source(family: str, figure: str, what: str):
    (value,) = (
        one for at, one in PAPERS_PAPERS_VALUES[family].printed if at.name == figure and one.what.startswith(what)
    )
    rest: str | None = str(value.ours)
    for number in TOLD[family, figure, what]():
        rest = told(rest, number)
        assert rest is not None, f"{number:.5g} is not in {value.ours!r}, or not in this order"
