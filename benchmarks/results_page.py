"""The page of results, made from papers/ and claims: what holds of each paper, what does not, what was not tested."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from fedcore.config.papers import Line, Paper, Papers, Worth
from fedcore.errors import InputError
from fedcore.report.papers import cell, table
from fedcore.results.claims import Rule, number_of, read_rule

HEAD = """# What holds of the four papers
"""

ABOUT = """For somebody who has read none of them. In all four, devices such as phones or sensors learn together and
keep their data to themselves. Each has examples, most of them with labels; an accuracy is the share of unseen examples
that a model labels rightly, and a point is a hundredth of it. "Surely" means that a 90 % interval over repetitions
with other random draws lies on that side, which chance alone does in one of twenty cases. Numbers without an interval
are means of three repetitions at least, unless fewer are named. Below: what each paper proposes and what it is
worth by our runs, some words, then six statements of each with the numbers that speak for or against them. The page is
made by `python -m benchmarks.judge_anew` from `papers/` and the verdicts in `docs/results`; edit those files, not this
page.
"""

WORDS = (
    ("model, net", "a function with numbers (parameters) that training chooses; a net is one of layers of units"),
    ("exchange, round", "devices send something to a server, and it sends something back"),
    ("FedAvg, federated averaging", "in each round devices train the common model, and the server averages theirs"),
    (
        "FedProx, SCAFFOLD, FedGen",
        "federated averaging with a correction for unequal data: models may not move far; steps are "
        "corrected by the others' direction; a net makes examples of labels that a device lacks",
    ),
    (
        "Ditto, FedPer",
        "each device gets a model of its own: trained beside the common one; with a last layer that it does not share",
    ),
    ("FD, federated distillation", "devices send no models, but their models' mean outputs for each label"),
    ("label smoothing", "in training, each example counts a little for the other labels, too"),
    ("temperature", "by how much a model's outputs are flattened before others learn from them; 1: not at all"),
    (
        "equal and unequal labels",
        "whether all devices have the same shares of the labels; shares are drawn at random (Dirichlet), and "
        "differ the more the smaller alpha is: 1e20 is equal, 1 unequal, .1 very unequal",
    ),
    ("seed", "one repetition with other random draws of data, first models and order"),
    ("setting", "one number of devices, one dataset, ... in which a statement is tried"),
    ("validation data", "examples of the devices that are kept from training, to choose by"),
    ("Adam, SGD", "two rules for the steps of training; SGD is the plain one, Adam fits a step to each parameter"),
    ("open", "may be chance: the interval reaches to both sides"),
    ("epoch", "training once over all examples of a device"),
    ("MNIST, USPS, MNIST-M", "images of digits: written by hand, from letters, and the first over photographs"),
    ("M, U, MM; M+U; M//U", "these three; a mixture of two on each device; one of two on each device"),
    ("CIFAR-10, FEMNIST", "photographs of ten kinds of things; letters and digits by their writers (we took digits)"),
    ("MLP, CNN", "kinds of nets: of plain layers; of layers that look at pieces of an image, larger here"),
    ("softmax, dropout", "how outputs become probabilities; units that are left out at random in training"),
    ("momentum", "steps go on in the direction of the last ones"),
    (
        "AvgD",
        "a rival of ST-LF: from each source as many links as from ST-LF's on average, rounded, to receivers at random",
    ),
    ("window", "a short piece of a signal: 1,024 values, a twelfth of a second"),
    ("J", "joule: energy, a mean over the devices of sending each model once"),
)
"""The words that a reader needs, with their meaning."""

KEY = """## How to read the tables

Each row is a statement of a paper (with "(ours)" one that the paper does not make), answered by one or more claims,
[rules over the numbers](claims.md):

| verdict | claims |
| --- | --- |
| **holds** | all of them hold |
| **holds in most** | all hold, but some in most of the settings (data, devices, ...) alone |
| **holds in part** | some hold, some do not or could not be tested |
| **not shown** | none holds, and none is contradicted: the numbers allow either |
| **contradicted in part** | none holds, some are contradicted |
| **contradicted** | all are |
| **another regime** | the row that it is compared with is not the paper's here: see "How near to the paper" |
| **not run to its end** | a row still gained when the run ended |
| **could not be tested** | the experiment cannot tell |

Below a verdict stand the settings (data, devices, ...) of all its claims: `3 yes, 2 opposite, 0 open`. A claim holds if
all settings say yes, and in most if it is more than half of them beyond chance (7 of 8, 9 of 11, 14 of 15); else it is
contradicted if so many say the opposite as chance alone would not (1 of 1, 2 of 2 to 7, 3 of 8 to 16), whatever the
others say; else it is not shown. A bound, which must hold always, is contradicted by a single opposite.

`.53 against .10: +43 points [+30, +56]` are the two accuracies, and the lead of the first with its 90 % interval: by it
the true lead is anything from 30 to 56 points. A setting says yes if the whole interval is above 0, over at least three
seeds, and the opposite if it is below; an interval from -1 to +5 leaves it open. Where there are several settings, the
numbers are of the one that speaks most against the claim: the weakest setting, even of a claim that holds. Three seeds,
unless another number is given.

A claim could not be tested where it was run with fewer seeds, where models only guess, where [all rows are nearly
perfect](claims.md#the-ceiling). Of DFL and FedASA it was not run to its end where a row surely [still
gains](claims.md#convergence). What is known until then stands after "so far".

A verdict on a paper stands only where the rows that it is compared with have the paper's own accuracy, within a
tolerance. Elsewhere the numbers are of another regime: they say what happens here, and nothing against the paper.

The statements were chosen by hand: of each paper first what it says of accuracy, against each rival, and of cost, then
of its own settings and theory, and one of ours where a simpler way is as good; each from the largest of our runs that
has three seeds, where there is one. All claims are in the files beside [verdicts before and
after](results/verdicts.md), and "of all its claims" counts each once for every run that answers it, small ones with few
seeds, too.
"""

FOOT = """## More

The theorems where both sides can be computed: [theory](results/theory.md). Every verdict that stricter rules changed:
[verdicts before and after](results/verdicts.md). Every figure and table of the papers, with all conditions that differ:
the page "Every figure and table" of the site that `make docs` builds; `fedcore show --papers` writes it beside this
one.
"""

ORDER = (
    "holds",
    "holds in most",
    "holds in part",
    "not shown",
    "contradicted in part",
    "contradicted",
    "another regime",
    "not run to its end",
    "could not be tested",
)
SHOWN = 3
"""The most claims of a line whose numbers are all written."""


def results_page(papers: Papers, root: Path = Path()) -> str:
    """Return the page as Markdown. root: the project's folder, where claims are read.

    Raises InputError for a line that matches no claim.
    """
    parts = [HEAD, at_a_glance(papers), ABOUT]
    for family, paper in papers.items():
        parts += summary(family, paper, root)
    parts += ["## Words\n", table(("word", "meaning"), WORDS), KEY]
    for family, paper in papers.items():
        parts += section(family, paper, root)
    return "\n".join([*parts, FOOT])


NAMES = {"code": "CODE", "dfl": "DFL", "fedasa": "FedASA", "st_lf": "ST-LF"}


def at_a_glance(papers: Papers) -> str:
    """Return a table with a row for each paper: what it is, what holds, whether to use it, and what instead."""
    worths = [(NAMES[family], paper.worth) for family, paper in papers.items() if paper.worth]
    return table(
        ("", "what it is", "what holds", "use it?", "instead of it"),
        (
            (f"**[{name}](#{name.lower()})**", worth.what, worth.holds, worth.use, worth.instead)
            for name, worth in worths
        ),
    )


def summary(family: str, paper: Paper, root: Path) -> Iterator[str]:
    """Yield what one paper proposes, and what it is worth."""
    yield f"## {NAMES[family]}\n"
    yield f"{cell(paper.idea)} ([method](methods/{family}.md), [results](results/{family}.md))\n"
    if paper.worth:
        check_worth(family, paper.worth, [word(claims_of(line, root)) for line in paper.lines])
        yield "What it is worth:\n"
        yield "\n".join(f"* {cell(point)}" for point in paper.worth.says) + "\n"


def section(family: str, paper: Paper, root: Path) -> Iterator[str]:
    """Yield one paper's statements, each with its verdict and numbers."""
    with_claims = [(line, claims_of(line, root)) for line in paper.lines]
    answers = sorted(
        ((word(rows), line, rows) for line, rows in with_claims), key=lambda answer: ORDER.index(answer[0])
    )
    commands = list(dict.fromkeys(line.command for _, line, _ in answers))
    yield f"## {NAMES[family]}, statement by statement\n"
    if paper.about:
        yield f"{cell(paper.about)}\n"
    yield calibration(paper)
    yield table(
        ("verdict", "statement", "numbers", "see"),
        (
            (f"**{verdict}**{settings(rows)}", line.says, evidence(rows, line, paper.names), links(line, commands))
            for verdict, line, rows in answers
        ),
    )
    yield "Runs:\n"
    yield "\n".join(f"{number}. `{command}`" for number, command in enumerate(commands, 1)) + "\n"
    claims = all_claims(family, root)
    untested = claims.loc[claims["verdict"] == "not tested", "numbers"].map(why)
    reasons = "; ".join(f"{reason}: {count}" for reason, count in untested.value_counts().items())
    of_all = counted(claims["verdict"].value_counts()) + (f" ({reasons})" if reasons else "")
    yield f"Of all its claims, {of_all}.\n"


def calibration(paper: Paper) -> str:
    """Return a table of the rows on which verdicts stand: here, printed, their ratio, and what differs."""
    rows = (
        (
            "yes" if one.calibrated else "no", paper.names.get(one.row, one.row), f"{one.ours:.4g}", f"{one.paper:.4g}",
            f"{one.ours / one.paper:.2f}", f"{one.tolerance:g}", one.differs, ", ".join(one.files),
        )
        for one in paper.calibration
    )  # fmt: skip
    head = ("near", "row", "here", "printed", "ratio", "tolerance", "what differs", "runs")
    return f"How near to the paper:\n\n{table(head, rows)}" if paper.calibration else ""


def check_worth(family: str, worth: Worth, verdicts: list[str]) -> None:
    """Raise InputError if the verdicts are not those that the sentence was written for."""
    for number, (then, now) in enumerate(zip_longest(worth.verdicts, verdicts, fillvalue="none"), 1):
        if then != now:
            raise InputError(
                f"papers.{family}.worth was written when the verdict on line {number} was {then!r}; it is {now!r} now: "
                "read the sentences again, and set its verdicts"
            )


COUNTED = {
    "holds": ("holds", "hold"),
    "holds in most": ("holds in most settings", "hold in most settings"),
    "not shown": ("is not shown", "are not shown"),
    "contradicted": ("is contradicted", "are contradicted"),
    "another regime": ("is of another regime", "are of another regime"),
    "not run to its end": ("was not run to its end", "were not run to their end"),
    "not tested": ("could not be tested", "could not be tested"),
}
"""verdict -> what one claim does, and what several do"""


WHY = {
    "not converged": "still gained when the run ended",
    "ceiling": "nearly perfect",
    "at chance": "models only guess",
}
"""Words of a claim that was not tested -> why, in plain ones."""


def why(numbers: str) -> str:
    """Return why a claim was not tested."""
    return next((words for part, words in WHY.items() if part in numbers), "too few seeds, or values not kept")


def counted(counts: pd.Series) -> str:
    """Return in words how many claims have which verdict."""
    there = [(int(counts[verdict]), words) for verdict, words in COUNTED.items() if verdict in counts]
    return ", ".join(f"{count} {one if count == 1 else several}" for count, (one, several) in there)


def all_claims(family: str, root: Path) -> pd.DataFrame:
    """Return the paper's own claims of all files."""
    files = sorted((root / "docs" / "results").glob(f"{family.replace('_', '-')}-*-claims.csv"))
    rows = pd.concat([pd.read_csv(path, keep_default_na=False) for path in files], ignore_index=True)
    return rows[~rows["says"].str.startswith("(ours)")]


def claims_of(line: Line, root: Path) -> pd.DataFrame:
    """Return the verdicts on a line's claims, in the order of its rules."""
    rows = pd.read_csv(root / "docs" / "results" / f"{line.file}-claims.csv", keep_default_na=False)
    for column, wanted in (("study", line.study), ("of", line.of)):
        rows = rows[rows[column] == wanted] if wanted else rows
    rows = rows[rows["where"].str.contains(line.where, regex=False)]
    for rule in line.rules:
        if rule not in set(rows["rule"]):
            raise InputError(f"papers: {line.says!r}: {line.file}-claims.csv has no claim {rule!r}")
    rows = rows[rows["rule"].isin(line.rules)].drop_duplicates(["rule", "of", "where"])
    if line.always:
        opposite = (pd.to_numeric(rows["contradicted_in"]) > 0) & (rows["verdict"] != "another regime")
        rows.loc[opposite, "verdict"] = "contradicted"
    return rows


def word(rows: pd.DataFrame) -> str:
    """Return the verdict on a statement from those on its claims."""
    verdicts = set(rows["verdict"])
    if verdicts <= {"not tested", "not run to its end", "another regime"}:
        return next((word for word in ("another regime", "not run to its end") if word in verdicts), ORDER[-1])
    if len(verdicts) == 1:
        return str(verdicts.pop())
    if not verdicts & {"holds", "holds in most"}:
        return "contradicted in part" if "contradicted" in verdicts else "not shown"
    return "holds in most" if verdicts == {"holds", "holds in most"} else "holds in part"


def settings(rows: pd.DataFrame) -> str:
    """Return what the settings of all claims say, if there are several."""
    return BREAK + tally(rows) if pd.to_numeric(rows["tested_in"]).sum() > 1 else ""


def evidence(rows: pd.DataFrame, line: Line, names: dict[str, str]) -> str:
    """Return the numbers of a few claims; of many which have which verdict, and the numbers of one that fails."""
    note = BREAK + cell(line.note) if line.note else ""
    if "judged" in rows and rows["judged"].str.startswith("means").any():
        note += f"{BREAK}({AS_INDEPENDENT})"
    mixed = len(set(rows["verdict"])) > 1
    if len(rows) <= SHOWN:
        each = (
            (f"{PLAIN[str(row['verdict'])]}: " if mixed else "")
            + measured(row, names, line.unit, tallied=len(rows) > 1)
            for _, row in rows.iterrows()
        )
        return BREAK.join(each) + note
    groups = [(verdict, rows[rows["verdict"] == verdict]) for verdict in COUNTED if verdict in set(rows["verdict"])]
    parts = [
        f"{PLAIN[verdict]}: {join([said(row, names, line.unit) for _, row in some.iterrows()])}"
        if some["rule"].is_unique
        else f"{PLAIN[verdict]}: {len(some)} of {len(rows)} comparisons"
        for verdict, some in groups
    ]
    against = rows[~rows["verdict"].isin(["holds", "holds in most"])]
    first = (against if len(against) else rows).iloc[0]
    return BREAK.join([*parts, f"For example {measured(first, names, line.unit)}"]) + note


BREAK = "<br>"
"""A new line in a cell of a Markdown table, which has no other."""

AS_INDEPENDENT = "Values by seed were not kept: the interval takes both sides as independent, most often too wide."
PLAIN = {verdict: "could not be tested" if verdict == "not tested" else verdict for verdict in COUNTED}


def links(line: Line, commands: Sequence[str]) -> str:
    """Return links to a line's table, log, picture and claims, and the number of its run."""
    parts = [f"[table]({line.table})", f"[log]({line.log})", f"[picture]({line.picture})" if line.picture else ""]
    parts += [f"[claims](results/{line.file}-claims.csv)", f"run {commands.index(line.command) + 1}"]
    return ", ".join(filter(None, parts))


DIFFERENCE = re.compile(
    r"([+-][\d.e+-]+) \[([+-][\d.e+-]+), ([+-][\d.e+-]+)\](?: at (.*?))? \((\d+) seeds\)"  # no named groups: not HTML
)
"""The difference in a claim's numbers, see :class:`fedcore.results.verdicts.Verdict`: the fields of Difference."""


class Difference(NamedTuple):
    """A difference with the ends of its interval, the setting that it is of, and the number of seeds."""

    mean: float
    low: float
    high: float
    place: str
    seeds: int

    @classmethod
    def find(cls, numbers: str) -> Difference | None:
        """Return the first difference in a claim's numbers, None without one."""
        match = DIFFERENCE.search(numbers)
        if match is None:
            return None
        mean, low, high, place, seeds = match.groups()
        return cls(float(mean), float(low), float(high), place or "", int(seeds))


Names = Mapping[str, str]
"""Rows, keys and settings -> words; "KEY=" stands for all values of a key, with {} for the value."""


class Unit(NamedTuple):
    """What a claim compares: its name, a unit after differences, and how often it is in the claim's number."""

    what: str
    unit: str
    times: float = 1.0


ACCURACY = Unit("", "points", 100.0)
UNITS = {
    "links.energy": Unit("energy per device", "J"),
    "links.links_out": Unit("links that leave a device", ""),
    "links.target": Unit("share of devices that are targets", "points", 100.0),
    "std of test.loss": Unit("spread of the loss over devices", ""),
    "traffic.bytes_up": Unit("bytes that a device sends in a round", "MB", 1e-6),
    "transport.excess": Unit("cost above the cheapest", ""),
    "worst of links.slack_theorem_2": Unit("Theorem 2's bound minus the error, least over receivers", ""),
    "worst of links.slack_corollary_1": Unit("Corollary 1's bound minus the error, least over receivers", ""),
}
"""What a claim compares, where it is no accuracy."""


def said(row: pd.Series, names: Names, what: str = "") -> str:
    """Return a claim's rule in words. what: in place of the name of what it compares."""
    rule, unit = _rule(row), _unit(row)
    a, other = _named(rule.a, names), rule.below or rule.near
    of = f" ({what or unit.what})" if what or unit.what else ""
    if rule.key:
        way = rule.direction or f"stays within {rule.room}"
        return f"{what or unit.what or 'accuracy'} of {a} {way} with {names.get(rule.key, rule.key)}"
    limit = number_of(str(other))
    if limit is not None and " - " in rule.a:
        lead, behind = (_named(label, names) for label in rule.a.split(" - "))
        return f"{lead} ahead of {behind} by {_plain(limit, unit)}{of}"
    if rule.near:
        return f"{a} and {_named(rule.near, names)} within {_plain(float(str(rule.margin)), unit)}{of}"
    if number_of(rule.a) is not None:
        return f"{what or unit.what or _named(str(other), names)} below {rule.a}"
    if limit is not None:
        return f"{what or unit.what or a} above {_plain(limit, unit)}"
    return f"{a} above {_named(str(other), names)}{of}"


def measured(row: pd.Series, names: Names, what: str = "", *, tallied: bool = True) -> str:
    """Return a claim's rule and its numbers in words. tallied: with the counts of its settings."""
    rule, unit, numbers = _rule(row), _unit(row), str(row["numbers"])
    found = Difference.find(numbers)
    if row["verdict"] in ("not tested", "not run to its end"):
        reason = next((words for start, words in REASONS.items() if start in numbers), numbers.partition(";")[0])
        near = re.search(r"at the ceiling: ([\d.]+) of 1", numbers)
        reason += f" ({near[1].removeprefix('0')} and more)" if near else ""
        so_far = f"; so far {_sides(row, rule, unit)}{_difference(found, unit)}" if found else ""
        return f"{said(row, names, what)}: {reason}{so_far}"
    settings, place = "", ""
    if int(float(row.get("tested_in") or 0)) > 1:
        settings = f"{tally(row.to_frame().T)}; " if tallied else ""
        where = _place(found.place, names) if found and found.place else ""
        place = f"{'widest' if rule.tolerance is not None else 'weakest'} {f'({where})' if where else 'setting'}: "
    limit = number_of(str(rule.below))
    if found and limit is not None and " - " in rule.a:
        mean, low = (unit.times * (value + limit) for value in (found.mean, found.low))
        surely = f"surely {f'by {low:.1f}' if low > 0 else 'by none'}"
        lead = f"{'leads by' if mean > 0 else 'lead'} {mean:.1f} points, {surely} (needed: {unit.times * limit:g})"
        return f"{said(row, names, what)}: {settings}{place}{lead}"
    for side, sign in ((rule.a, -1), (str(rule.below), 1)):
        if found and (limit := number_of(side)) is not None:
            allowed = f"{'needed: more' if sign > 0 else 'allowed: less'} than {_plain(limit, unit)}"
            return f"{said(row, names, what)}: {settings}{place}{_of_limit(found, unit, limit, sign)} ({allowed})"
    return f"{said(row, names, what)}: {settings}{place}{_sides(row, rule, unit)}{_difference(found, unit)}"


def tally(rows: pd.DataFrame) -> str:
    """Return in how many of all settings claims hold, in how many their opposite does, and how many are open."""
    held, opposite, tested = (
        sum(int(float(value or 0)) for value in rows[name]) for name in ("holds_in", "contradicted_in", "tested_in")
    )
    return f"{held} yes, {opposite} opposite, {tested - held - opposite} open"


def _of_limit(found: Difference, unit: Unit, limit: float, sign: int) -> str:
    """Return a value that a rule compares with a number, with its interval. sign: -1 where it must be the smaller."""
    ends = (found.mean, found.low, found.high) if sign > 0 else (found.mean, found.high, found.low)
    mean, low, high = (unit.times * (limit + sign * value) + 0.0 for value in ends)
    return f"{mean:.3g}{f' {unit.unit}' if unit.unit else ''} [{low:.3g}, {high:.3g}]"


REASONS = {
    "not converged": "too early to say, since a row still gained when the runs ended",
    "at the ceiling": "both are nearly perfect",
    "a rule needs three": "fewer than three seeds",
}
"""Words of a claim that was not tested -> why, in plain ones."""


def _rule(row: pd.Series) -> Rule:
    return read_rule("rule", str(row["rule"]), "shared.accuracy")


def _unit(row: pd.Series) -> Unit:
    return UNITS.get(str(row["of"]).partition(" after round ")[0], ACCURACY)


def _named(side: str, names: Names) -> str:
    if " - " in side:
        return " minus ".join(_named(label, names) for label in side.split(" - "))
    return names.get(side, side)


def _sides(row: pd.Series, rule: Rule, unit: Unit) -> str:
    """Return both means, "0.53 against 0.10: "; of a key its first and last; an empty text if they were not kept."""
    a, b = (float(row[name]) if str(row.get(name, "")) else math.nan for name in ("a", "b"))
    if math.isnan(a) or math.isnan(b):
        return ""
    if rule.key:
        return f"from {_level(a, unit)} to {_level(b, unit)}: "
    digits = 4 if unit is ACCURACY and round(a, 3) == round(b, 3) and a != b else 3
    return f"{_level(a, unit, digits)} against {_level(b, unit, digits)}: "


def _level(value: float, unit: Unit, digits: int = 3) -> str:
    if unit.unit == "points":
        return f"{value:.{digits}f}".removeprefix("0")
    return f"{value * unit.times:.3g}{f' {unit.unit}' if unit.unit else ''}"


def _difference(found: Difference | None, unit: Unit) -> str:
    """Return a difference with its interval in its unit, "+43 points [+30, +56]"."""
    if found is None:
        return ""
    mean, low, high = (unit.times * value for value in found[:3])
    digits = 1 if max(abs(mean), abs(low), abs(high)) >= 1 else 2
    text = [f"{value:+.{digits}f}" if unit.unit == "points" else f"{value:+.3g}" for value in (mean, low, high)]
    seeds = "" if found.seeds == 3 else f" ({found.seeds} seeds)"
    return f"{text[0]}{f' {unit.unit}' if unit.unit else ''} [{text[1]}, {text[2]}]{seeds}"


def _plain(value: float, unit: Unit) -> str:
    return f"{value * unit.times:g} {unit.unit}".strip()


def _place(place: str, names: Names) -> str:
    """Return a setting in words: "devices=4 alpha=1" as "4 devices, unequal labels"."""
    if place in names or "=" not in place:
        return names.get(place, place)
    words = []
    for part in place.split():
        key, _, value = part.partition("=")
        words.append(names.get(part, names.get(f"{key}=", f"{key} {value}").format(value)))
    return ", ".join(filter(None, words))


def join(statements: Sequence[str]) -> str:
    """Return statements one after another; what all begin or end with is said once."""
    if len(statements) < 2:
        return "".join(statements)
    parts = [statement.split(" above ") for statement in statements]
    if all(len(part) == 2 for part in parts):
        first, second = ({part[side] for part in parts} for side in (0, 1))
        if len(first) == 1:
            *most, last = (part[1] for part in parts)
            return f"{first.pop()} above {', '.join(most)} and {last}"
        if len(second) == 1:
            *most, last = (part[0] for part in parts)
            return f"{', '.join(most)} and {last} above {second.pop()}"
    return "; ".join(statements)
