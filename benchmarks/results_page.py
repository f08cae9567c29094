"""Write the pages of results: docs/results.md, a page for each paper, and the forest plot with its numbers.

    python -m benchmarks.results_page

Judges the papers' claims anew (:mod:`benchmarks.judge_anew`), then writes docs/results.md, docs/results/code.md and so
on, docs/results/forest.csv and docs/pictures/results.svg from papers/results and the files of docs/results.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from benchmarks.forest import dots, draw
from benchmarks.judge_anew import claims_files, rejudge
from benchmarks.paper_pages import (
    NEAR,
    ORDER,
    ROOT,
    Baseline,
    Card,
    Line,
    PaperPage,
    PaperPages,
    claims_of,
    judged,
    read_pages,
    verdict_on,
)
from fedcore.config.params import read
from fedcore.errors import InputError
from fedcore.report.papers import cell, table
from fedcore.results.claims import Rule, number_of, read_rule

HEAD = """# What holds of the four papers

CODE and ST-LF could be tested: in most settings a simpler rule is as accurate or better.
DFL and FedASA are open. Most of DFL's cases were not run. FedASA's baseline, local training, is far better
here than in the paper.

![the lead of each method on its rivals, a dot for each setting](pictures/results.svg)

Right of 0 the paper's method is more accurate than the rival; in a line "A on B" A is. A dot is one setting, a bar its
90 % interval over seeds, if values by seed were kept ([numbers](results/forest.csv)).

* Filled: a baseline has about [the paper's accuracy](#how-near-to-the-papers): it counts for or against the paper.
* Hollow: only under our conditions. It says nothing against the paper.
* Grey band: less than a point. Outside of it the axis is logarithmic.

[Intervals](answer.md#the-interval) have a part for data that seeds share: they are 10 % wider than Student's with three
seeds, 15 % with five.

## How near to the papers
"""

SIGNS = """● as in the paper, ◐ in part, ○ other, ? not printed (not the dots of the plot).

A claim is tested where its baseline is within .03 of the paper's accuracy. If the paper prints none, another baseline
of that study must be near. Bytes, energy and bounds need no baseline.

## In short

*Pays* and *Does not pay* name settings: "0 of 15 ahead" means that the method leads that rival in none of 15.
*Instead* also names controls, such as `most_similar` and `least_bound`: a run scores them, and its answer does not
recommend them. They cannot be promoted. A script has their models: `fc.run(fc.most_similar(), fed).models`; label
smoothing is also [a loss](losses.md).
"""

FOOT = """## More

[Runs](results/runs.csv): command, machine and time of every file. [One exchange](results/one_shot.md),
[theorems](results/theory.md), [false recommendations](results/false_recommendations.md). `make docs` shows every figure
of the papers; [make one again](paper_files.md#the-figures-of-code).
"""

WORDS = (
    ("holds, holds in most, contradicted, not shown", "by the [rules of claims](claims.md#verdicts)"),
    ("holds in part", "some of its claims hold, none is contradicted"),
    ("contradicted in part", "one of its claims is contradicted, or a bound by one setting"),
    ("another regime", "not tested: its baseline has not the paper's accuracy"),
    ("not run to its end", "not tested: a method still gained"),
    ("could not be tested", "fewer than three seeds, or all nearly perfect"),
    ("3 yes, 2 opposite, 1 open", "settings with a 90 % interval above, below, around 0"),
    ("surely", "the whole 90 % interval is on that side of 0"),
    ("needed, allowed", "the limit that the statement names"),
    ("alpha", "spread of labels: 1e20 equal, 1 unequal, .1 very unequal"),
    ("(ours)", "the paper does not say it"),
)
"""Words of the pages of papers."""


def first_page(pages: PaperPages) -> str:
    """Return docs/results.md: the plot, how near each run is to its paper, and a card for each paper."""
    names = list(dict.fromkeys(name for page in pages.values() for name in page.near))
    near = [(name, *(signs(page.near.get(name, "")) for page in pages.values())) for name in names]
    heads = (f"[{page.name}](results/{family}.md)" for family, page in pages.items())
    cards = [card(family, page.name, page.card) for family, page in pages.items()]
    return "\n".join(
        [HEAD, table(("", *heads), near), SIGNS, *cards, FOOT, "## Words\n", table(("word", "meaning"), WORDS)]
    )


def signs(value: str) -> str:
    """Return a condition's sign, or the words that it has instead."""
    return NEAR.get(value, value)


def card(family: str, name: str, one: Card) -> str:
    """Return a paper's card."""
    parts = (("Pays", one.pays), ("Does not pay", one.fails), ("Instead", one.instead), ("Cost", one.cost))
    lines = [
        f"**[{name}](results/{family}.md): {one.headline}** {one.idea}",
        *(f"*{what}:* {says}" for what, says in parts),
    ]
    return " ".join(lines) + "\n"


def paper_page(family: str, page: PaperPage, root: Path = ROOT) -> str:
    """Return a paper's page: how near its baselines are, its statements, and what else was measured."""
    answers = [(verdict_on(rows), line, rows) for line in page.lines for rows in [claims_of(line, root)]]
    check_card(family, page.card, [verdict for verdict, *_ in answers])
    answers.sort(key=lambda answer: ORDER.index(answer[0]))
    parts = [
        f"# Results: {page.name}\n",
        f"{cell(page.about)} ([method](../methods/{family}.md), [words: open, needed](../results.md#words), "
        "[runs](runs.csv))\n",
        "## Baselines, here and in the paper\n",
        table(("near (within .03)", "row: here / printed", "what differs"), calibration(page)),
        "## Statements\n",
        table(
            ("verdict", "statement", "its weakest setting by the mean, in points", "remark"),
            (
                (
                    f"[{verdict}]({line.file}-claims.csv){settings(rows)}",
                    line.says,
                    f"{evidence(rows, line, page.names)} ([numbers]({line.table}))",
                    line.note,
                )
                for verdict, line, rows in answers
            ),
        ),
    ]
    parts += [EXTRA[family]()] if family in EXTRA else []
    if page.also:
        parts += ["## Also measured\n", "\n".join(f"* {cell(one)}" for one in page.also) + "\n"]
    return "\n".join(parts)


def calibration(page: PaperPage) -> Iterator[tuple[str, str, str]]:
    """Yield the baselines of the page's files by what differs: whether they are near, their numbers, the condition."""
    files = {line.file for line in page.lines} | {file for line in page.forest for file in line.files}
    shown = [one for one in page.calibration if files & set(one.files)]
    for differs, near in dict.fromkeys((one.differs, one.calibrated) for one in shown):
        rows = [one for one in shown if (one.differs, one.calibrated) == (differs, near)]
        numbers = (f"{page.names.get(one.row, one.row)} {' / '.join(_printed(one))}" for one in rows)
        yield "yes" if near else "no", "; ".join(numbers), differs


def _printed(one: Baseline) -> list[str]:
    """Return our number and the paper's, with as many digits as show whether they are near."""
    ours, paper = (round(value, 3) for value in (one.ours, one.paper))
    digits = 3 if one.model_copy(update={"ours": ours, "paper": paper}).calibrated == one.calibrated else 4
    return [f"{value:.{digits}f}".removeprefix("0") for value in (one.ours, one.paper)]


def check_card(family: str, card: Card, verdicts: list[str]) -> None:
    """Raise InputError if the verdicts are not those that the card was written for."""
    for number, (then, now) in enumerate(zip_longest(card.verdicts, verdicts, fillvalue="none"), 1):
        if then != now:
            raise InputError(
                f"papers.results.{family}.card was written when the verdict on line {number} was {then!r}; it is "
                f"{now!r} now: read the card again, and set its verdicts"
            )


def settings(rows: pd.DataFrame) -> str:
    """Return what the settings of all claims say, if there are several."""
    rows = judged(rows)
    return f", {tally(rows)}" if pd.to_numeric(rows["tested_in"]).sum() > 1 else ""


def evidence(rows: pd.DataFrame, line: Line, names: Names) -> str:
    """Return the numbers of the claim that speaks most against a statement, the first one that does not hold."""
    found = judged(rows)
    against = found[~found["verdict"].isin(["holds", "holds in most"])]
    row = (against if len(against) else found).iloc[0]
    text = measured(row, names, line.unit, tallied=len(rows) > 1)
    return text if len(rows) > 1 or line.unit else text.partition(": ")[2]


def readings() -> str:
    """Return FedASA's table: readings of (7) by losses, local training and sharing the stem, the paper's beside."""
    rows = pd.read_csv(ROOT / "docs" / "results" / "fedasa-readings.csv", comment="#").query("round == 4")
    groups = rows.groupby(["spectrum", "loss"], sort=False)
    lines = [("in the paper, 200 rounds", "(12)", ".52 ± .33", ".96")]
    for (spectrum, loss), some in groups:
        mean = some.groupby("method")[["accuracy", "std_devices"]].mean()
        cells = [" ± ".join(f"{value:.2f}".removeprefix("0") for value in mean.loc[row]) for row in METHODS_READ]
        lines.append((f"{READ[spectrum]}, four rounds", f"{READ[loss]}, {some['seed'].nunique()} seed(s)", *cells))
    head = ("spectrum", "loss", "local training", "sharing the stem")
    return f"## Readings of (7): accuracy ± spread over devices\n\n{table(head, lines)}"


METHODS_READ = ("local_only", "alpha_0")
READ = {
    "divided": "divided by the window",
    "magnitude": "as printed",
    "normalised": "brought to [-1, 1]",
    "ce": "cross-entropy",
    "softmax_twice": "softmax taken twice",
}
"""Values of fedasa-readings.csv -> the words of docs/methods/fedasa.md."""


def ratios() -> str:
    """Return ST-LF's table: leads in points where sources of one kind differ in labels, the prediction beside."""
    forest = pd.read_csv(ROOT / "docs" / "results" / "forest.csv")
    forest = forest[forest["file"] == "st-lf-ratios"].drop_duplicates(["setting", "rows"])
    texts = {(one.setting, one.rows): f"{one.lead:+.1f} [{one.low:.1f}, {one.high:.1f}]" for one in forest.itertuples()}
    lines = (
        (name, *(texts[setting, rows] for rows in LEADS.values()), seen) for setting, (name, seen) in SHARES.items()
    )
    head = ("the poorer source's labels", *LEADS, "predicted for `least_bound` on `most_similar`")
    return f"## Leads by the share of labels, in points (five seeds)\n\n{RATIOS}\n{table(head, lines)}"


LEADS = {
    "`st_lf` on `most_similar`": "st_lf - most_similar",
    "`least_bound` on `most_similar`": "least_bound - most_similar",
    "`least_bound` on `least_error`": "least_bound - least_error",
    "`st_lf_100` on `most_similar`": "st_lf_100 - most_similar",
}
SHARES = {
    "both_90": ("90 %, as the richer", "0"),
    "one_20": ("20 %", ""),
    "one_05": ("5 %", "5.2 [-1.9, 12.3]"),
    "one_02": ("2 %", "9.0 [6.4, 11.6]"),
    "random": ("at random", ""),
}
"""Setting of study st_lf_ratios -> its name, and the lead that a separate program had before the study was run."""

RATIOS = """A receiver has two sources of its kind (digits 0 to 3, 3 to 6 or 6 to 9); the richer has 90 % of its labels.
A cell is the lead of the first [row](../methods/st_lf.md#rows) on the second; `st_lf_100` multiplies divergences by
100. Another program computed the last column before the runs. At random: both shares are drawn.
"""

EXTRA = {"fedasa": readings, "st_lf": ratios}
"""Tables of single papers."""


DIFFERENCE = re.compile(
    r"([+-][\d.e+-]+) \[([+-][\d.e+-]+), ([+-][\d.e+-]+)\](?: at (.*?))? \((\d+) seeds\)"  # no named groups: not HTML
)
"""The difference in a claim's numbers, see :class:`fedcore.results.judging.Verdict`: the fields of Difference."""


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
    "worst of links.slack_theorem_2": Unit("Theorem 2's bound less the error, least", ""),
    "worst of links.slack_corollary_1": Unit("Corollary 1's bound less the error, least", ""),
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
        return what or unit.what or _named(str(other), names)
    if limit is not None:
        return what or unit.what or a
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
        place = f"{where}: " if where else ""
    limit = number_of(str(rule.below))
    if found and limit is not None and " - " in rule.a:
        mean, low = (unit.times * (value + limit) for value in (found.mean, found.low))
        lead = f"{'leads by' if mean > 0 else 'lead'} {mean:.1f} points, the interval begins at {low:.1f}"
        lead += f" (needed: {unit.times * limit:g})"
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
    counts = ((held, "yes"), (opposite, "opposite"), (tested - held - opposite, "open"))
    return ", ".join(f"{count} {word}" for count, word in counts if count)


def _of_limit(found: Difference, unit: Unit, limit: float, sign: int) -> str:
    """Return a value that a rule compares with a number, with its interval. sign: -1 where it must be the smaller."""
    ends = (found.mean, found.low, found.high) if sign > 0 else (found.mean, found.high, found.low)
    mean, low, high = (unit.times * (limit + sign * value) + 0.0 for value in ends)
    return f"{mean:.3g}{f' {unit.unit}' if unit.unit else ''} [{low:.3g}, {high:.3g}]"


REASONS = {
    "not converged": "a method still gained",
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
    points = unit.unit == "points"
    text = [f"{value:+.{digits}f}" if points else f"{value:+.3g}" for value in (mean, low, high)]
    seeds = "" if found.seeds == 3 else f" ({found.seeds} seeds)"
    return f"{text[0]}{f' {unit.unit}' if unit.unit and not points else ''} [{text[1]}, {text[2]}]{seeds}"


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


def main() -> None:
    params, pages = read(ROOT), read_pages()
    results = ROOT / "docs" / "results"
    for path in claims_files():
        rejudge(path, params, pages).to_csv(path, index=False)
    forest = dots(pages, params)
    forest.to_csv(results / "forest.csv", index=False)
    draw(forest, ROOT / "docs" / "pictures" / "results.svg")
    for family, page in pages.items():
        (results / f"{family}.md").write_text(paper_page(family, page))
    (ROOT / "docs" / "results.md").write_text(first_page(pages))


if __name__ == "__main__":
    sys.exit(main())
