"""The result for people: a table in the terminal, a CSV text, and one web page that carries all it shows."""

from __future__ import annotations

import base64
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import NamedTuple, TypeAlias

import pandas as pd
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedcore.results import figures
from fedcore.results.summary import PLACE, SPLITS, curves, readable, standings, verdict

TITLE = "Which way of combining serves the devices best?"
SIGNS = {
    "=": "a tie: not told apart from the first of those who share the rank",
    "≈": "within the spread of the best method",
    "↑": "above the best method by more than the spread",
}
READING = """
<p>Every number is of the <b>last round</b>, never of the best one. Accuracy is the fraction of test examples that a
device's model gets right. <b>Own test</b>: the device's own test examples, distributed like its training data.
<b>Shared test</b>: one test set for all, which asks for what other devices have seen too. Where all devices run the
same model, they score the same there.</p>
<p><b>Mean and spread</b>: the mean over devices, then over seeds; <i>± seeds</i> is the standard deviation of that
mean over seeds (a seed draws who holds what, the initial models and the order of the examples), <i>devices ±</i> the
standard deviation over devices (the smaller, the fairer), <i>worst device</i> the least accuracy of a device, both
averaged over seeds.</p>
<p><b>Domains</b>: where each device's training examples come from one source or place, devices are also taken together
by it: mean over the domain's devices and over seeds, ± the standard deviation over its devices.</p>
<p><b>Ties</b>: methods are compared seed by seed, each with the best of its rank. If their mean difference is no larger
than the standard deviation of the differences over seeds, another seed could well turn the order round, and they share
the rank (1=). With a single seed the standard error over devices takes its place; that says less, and nothing on the
shared test set.</p>
<p><b>Controls</b> are not ways of combining that one would choose; they show how much of a score has a simpler
cause. They have no rank: ≈ marks one as good as the best method, ↑ a better one.</p>
<p><b>Claims</b> of a paper are rules. A rule holds if it holds in every setting that it speaks of: "A &gt; B" if A is
above B by more than the standard deviation over seeds of their difference, seed by seed; "A ~ B within x" if the mean
difference is no larger than x; "rises" and "falls" compare the two ends of a key. With one seed nothing is tested.</p>
<p><b>Traffic</b> is the size of the models and of all else that travels, all rounds together, mean over devices: up to
the server and down from it, the final models included. Two plain numbers that go with every update, how many examples
are behind it and its validation score, are not counted. <b>Seconds</b> are those of all steps of a method when they
were computed; training that several methods share is charged to each. All numbers, with macro F1 and loss, stand in the
CSV file beside this page.</p>
"""
STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #5c6670; --rule: #d5dae0; --page: #fff; --mark: #0a5fa5; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7eb; --soft: #9aa4af; --rule: #3a424b; --page: #15181c; --mark: #6cb6f5; } }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 66rem; background: var(--page); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.8rem; line-height: 1.2; margin: 0 0 1rem; }
h2 { font-size: 1.35rem; line-height: 1.3; margin: 3.5rem 0 0; padding-top: 1.2rem; border-top: 2px solid var(--ink); }
h3 { font-size: 1.1rem; margin: 2.2rem 0 .4rem; }
h4 { font-size: 1rem; margin: 1.6rem 0 0; }
p, ul { max-width: 44rem; }
a { color: var(--mark); }
nav li { margin: .3rem 0; }
small, figcaption { color: var(--soft); font-weight: 400; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; margin: 1rem 0 .4rem; }
th, td { padding: .28rem .6rem; text-align: right; white-space: nowrap; }
th { vertical-align: bottom; font-weight: 600; border-bottom: 1.5px solid var(--ink); }
td { border-bottom: 1px solid var(--rule); }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
.domains :is(th, td):nth-child(2) { text-align: right; }
.control { color: var(--soft); font-style: italic; }
.claims td { white-space: normal; max-width: 40rem; vertical-align: top; }
.holds { font-weight: 700; color: var(--mark); }
.does-not-hold { font-weight: 700; }
.not-tested { color: var(--soft); font-style: italic; }
.best { font-weight: 700; color: var(--mark); }
figure { margin: 1.8rem 0; }
figure img { display: block; max-width: 100%; height: auto; background: #fff; border-radius: 6px; padding: .6rem;
  box-sizing: border-box; border: 1px solid var(--rule); }
figcaption { margin-top: .4rem; font-size: .9rem; }
@media print { figure, table { break-inside: avoid; } }
"""
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
<nav><ul>
{contents}
<li><a href="#reading">How to read this</a></li>
</ul></nav>
{body}
<h2 id="reading">How to read this</h2>
{reading}
</body>
</html>
"""
VERDICTS = {"holds": "bold", "does not hold": "bold", "not tested": ""}
Pictures: TypeAlias = Mapping[tuple[str, str], Mapping[str, Figure | bytes]]
"""(study, setting) -> caption -> a figure, or the bytes of a PNG file"""


def csv(summary: pd.DataFrame) -> str:
    """Return the summary as CSV text; the same text for the same numbers."""
    return summary.to_csv(index=False, float_format="%.6g", lineterminator="\n")


def print_summary(summary: pd.DataFrame, console: Console | None = None) -> None:
    """Print a table for each study and setting, and below it what it says. Needs 80 columns, uses 100.

    A study with more than FEW settings is printed as one table, a line for each setting; the page has all of it.
    """
    console = console or Console(width=None if sys.stdout.isatty() else 100)
    for _, rows in summary.groupby("study", sort=False):
        (_print_settings if rows["setting"].nunique() <= FEW else _print_grid)(rows, console)


FEW = 3
PANELS = 12
ROUNDS = "Accuracy over rounds, mean over devices and seeds ± seeds; dotted: methods that are evaluated once."


def _print_grid(summary: pd.DataFrame, console: Console) -> None:
    """Print the mean accuracies of a study, in %: a line for each setting, a column for each method."""
    split = "test" if (summary["primary"] == "test").all() else "shared"
    title = Text(f"{summary['study'].iloc[0]}: accuracy on {SPLITS[split]} data, %", style="bold")
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    methods = list(dict.fromkeys(summary.sort_values("control", kind="stable")["method"]))
    table.add_column(Text("setting"), overflow="fold")
    for method in methods:
        table.add_column(Text(method.replace("_", "_\u200b")), justify="right", overflow="fold")
    for (_, _, setting), rows in places(summary):
        found = {
            method: Text(_number(100 * mean), "bold" if rank == 1 else "")
            for method, mean, rank in zip(
                rows["method"], rows[f"{split}_mean"], rows[f"{split}_rank"].fillna(0), strict=True
            )
        }
        table.add_row(Text(setting), *(found.get(method, Text("-")) for method in methods))
    console.print(table)
    console.print()


def _print_settings(summary: pd.DataFrame, console: Console) -> None:
    for (study, dataset, setting), rows in places(summary):
        heads, lines = cells(rows)
        hidden = {"shared_std_devices", "shared_worst", "cpu", "bytes_round"}
        hidden |= {"test_std_devices", "wall"} if console.width < 100 else set()
        title = Text(f"{study}: {setting} ({dataset})", style="bold")
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
        for name in [name for name in heads if name not in hidden]:
            left = name in ("rank", "method")
            table.add_column(
                Text(heads[name]), justify="left" if left else "right", no_wrap=name != "method", overflow="fold"
            )
        for i, line in enumerate(lines):
            control = bool(rows["control"].iloc[i])
            if control and i and not rows["control"].iloc[i - 1]:
                table.add_section()
            shown = [Text(cell.text, "bold" if cell.best else "") for name, cell in line.items() if name not in hidden]
            table.add_row(*shown, style="dim" if control else "")
        console.print(table)
        console.print()
        for sentence in [*verdict(rows), *_notes(rows)]:
            console.print(Text(sentence))
        console.print()


class Cell(NamedTuple):
    """What stands in a table; best: of its column."""

    text: str
    best: bool = False


def cells(rows: pd.DataFrame) -> tuple[dict[str, str], list[dict[str, Cell]]]:
    """Return the heads of one setting's table, by column, and its lines. Columns without any value are left out."""
    heads = {"rank": "rank", "method": "method"}
    lines = [
        {"rank": Cell(standing), "method": Cell(str(method))}
        for standing, method in zip(standings(rows), rows["method"], strict=True)
    ]
    for split in [split for split in SPLITS if rows[f"{split}_mean"].notna().any()]:
        spread = rows[f"{split}_std_seeds"].notna().any()
        heads[split] = f"{SPLITS[split]}\n%{' ± seeds' * bool(spread)}"
        heads[f"{split}_std_devices"] = "devices\n±"
        heads[f"{split}_worst"] = "worst\ndevice"
        for line, (_, row) in zip(lines, rows.iterrows(), strict=True):
            mean, seeds, devices, worst = (
                _number(100 * row[f"{split}_{part}"]) for part in ("mean", "std_seeds", "std_devices", "worst")
            )
            best = pd.notna(row[f"{split}_rank"]) and row[f"{split}_rank"] == 1
            line[split] = Cell(f"{mean} ± {seeds:>4}" if seeds != "-" else mean, bool(best))
            line[f"{split}_std_devices"] = Cell(devices)
            line[f"{split}_worst"] = Cell(worst)
    for way, word in {"bytes_up": "up", "bytes_down": "down"}.items():
        heads[way] = f"{word} per\ndevice"
        for line, sent in zip(lines, rows[way] / rows["n_devices"], strict=True):
            line[way] = Cell(readable(sent))
    if rows["rounds"].max() > 1:
        heads["bytes_round"] = "up per device\nand round"
        for line, sent in zip(lines, rows["bytes_up"] / rows["n_devices"] / rows["rounds"], strict=True):
            line["bytes_round"] = Cell(readable(sent))
    for clock, word in {"wall": "seconds", "cpu": "seconds\nof CPU"}.items():
        if rows[clock].notna().any():
            heads[clock] = word
            for line, value in zip(lines, rows[clock], strict=True):
                line[clock] = Cell(_number(value))
    return heads, lines


def print_claims(claims: pd.DataFrame, console: Console | None = None) -> None:
    """Print what became of each claim."""
    console = console or Console(width=None if sys.stdout.isatty() else 100)
    for study, rows in claims.fillna("").groupby("study", sort=False):
        console.print(Text(f"{study}: what the paper claims", style="bold"))
        for _, row in rows.iterrows():
            where = f" where {row['where']}" if row["where"] else ""
            console.print(Text(f"  {row['verdict']}: {row['says']}", style=VERDICTS[row["verdict"]]))
            console.print(Text(f"    {row['rule']}{where} ({row['of']}): {row['numbers']}", style="dim"))
        console.print()


def html(
    table: pd.DataFrame,
    summary: pd.DataFrame,
    questions: Mapping[str, str],
    pictures: Pictures,
    claims: pd.DataFrame | None = None,
    along: Mapping[str, bytes] | None = None,
    groups: pd.DataFrame | None = None,
    drawn: Drawn | None = None,
) -> str:
    """Return one page that needs nothing else: for each study its question, for each setting table and pictures.

    table: the tidy table. summary: as `fedcore.results.summary.summarise` returns it for that table. questions: study ->
    what it asks. pictures: what else is to be seen, e.g. who holds what. claims: columns study, says, rule, of, where,
    verdict, numbers. along: study -> a picture of all its settings. groups: as `fedcore.results.summary.by_group` returns
    them. drawn: what :func:`draw` made of the same tables, where it is at hand. A study with more than FEW settings has
    tables for each, but only the given pictures. The same page for the same input.
    """
    contents, body, before = [], [], None
    many = summary.groupby("study")["setting"].nunique() > FEW
    tidy = dict(places(table))
    drawn = drawn or draw(table, summary)
    course = drawn.courses
    parts = {} if groups is None else dict(places(groups))
    for i, (place, rows) in enumerate(places(summary)):
        study, dataset, setting = place
        question = questions.get(study, study)
        if study != before:
            body.append(f"<h2>{escape(question)}</h2>")
            before = study
            if claims is not None and (claims["study"] == study).any():
                body.append(_html_claims(claims[claims["study"] == study]))
            if along is not None and study in along:
                body.append(_html_picture("Accuracy over the study's settings; hollow: controls.", along[study]))
            if (study, "") in course:
                body.append(_html_picture(ROUNDS, course[study, ""]))
        answer = escape(" ".join(verdict(rows)))  # the picture says it too, in its title
        name = f"{escape(setting)} <small>{escape(study)}, {escape(dataset)}</small>"
        contents.append(f'<li><a href="#s{i}">{name}</a><br>{answer}</li>')
        body.append(f'<section id="s{i}"><h3>{name}</h3>')
        given = dict(pictures.get((study, setting), {}))
        by_domain = _html_groups(parts[place], rows) if place in parts else ""
        by_domain += _html_links(tidy[place], rows)
        if many[study]:
            body += [f"<p>{answer}</p>", _html_table(rows), by_domain, *(_html_picture(*p) for p in given.items())]
        else:
            caption = "Accuracy on own test data and on the shared test set."
            body += [_html_picture(caption, drawn.comparisons[study, setting], answer), _html_table(rows), by_domain]
            given |= {ROUNDS: course[study, setting]} if (study, setting) in course else {}
            body += [_html_picture(*pair) for pair in _pictures(tidy[place], rows, given)]
        body.append("</section>")
    page = {"contents": "\n".join(contents), "body": "\n".join(body)}
    return PAGE.format(title=escape(TITLE), style=STYLE, reading=READING, **page)


@dataclass(frozen=True)
class Drawn:
    """The pictures that the page and DVC's outputs both show, by (study, setting)."""

    comparisons: dict[tuple[str, str], bytes]
    courses: dict[tuple[str, str], bytes]


def draw(table: pd.DataFrame, summary: pd.DataFrame) -> Drawn:
    """Draw each setting's comparison, where a study has at most FEW of them, and accuracy over rounds."""
    count = summary.groupby("study")["setting"].nunique()
    return Drawn(
        {
            (study, setting): figures.png(figures.comparison(rows))
            for (study, _, setting), rows in places(summary)
            if count[study] <= FEW
        },
        courses(table, summary),
    )


def courses(table: pd.DataFrame, summary: pd.DataFrame) -> dict[tuple[str, str], bytes]:
    """Draw accuracy over rounds: (study, setting) -> a picture, for each setting in which a method has several rounds.

    A study with more than FEW settings, at most PANELS, has one picture of them all: (study, "").
    """
    course = curves(table)
    made = {}
    for study, rows in summary[summary["rounds"] > 1].groupby("study", sort=False):
        mine = course[(course["study"] == study) & course["setting"].isin(rows["setting"])]
        count = summary[summary["study"] == study]["setting"].nunique()
        if count <= FEW:
            for setting in dict.fromkeys(rows["setting"]):
                made[str(study), str(setting)] = figures.png(figures.curves(mine[mine["setting"] == setting]))
        elif count <= PANELS:
            order = {name: place for place, name in enumerate(dict.fromkeys(summary["setting"]))}
            made[str(study), ""] = figures.png(
                figures.curves(mine.sort_values("setting", key=lambda names: names.map(order), kind="stable"))
            )
    return made


def _pictures(
    table: pd.DataFrame, rows: pd.DataFrame, given: Mapping[str, Figure | bytes]
) -> Iterator[tuple[str, Figure | bytes]]:
    """Yield the pictures below one setting's table, with their captions."""
    yield from given.items()
    yield "Accuracy against what a device sends and receives; hollow: controls.", figures.accuracy_by_traffic(rows)
    split = "test" if rows["test_mean"].notna().any() else "shared"
    yield "Accuracy of every device, one seed.", figures.per_device(table, split=split)


def _html_table(rows: pd.DataFrame) -> str:
    heads, lines = cells(rows)
    head = "".join(f"<th>{escape(text).replace(chr(10), '<br>')}</th>" for text in heads.values())
    body = "\n".join(
        f"<tr{' class=control' * bool(control)}>"
        + "".join(f"<td{' class=best' * cell.best}>{escape(cell.text)}</td>" for cell in line.values())
        + "</tr>"
        for line, control in zip(lines, rows["control"], strict=True)
    )
    notes = "".join(f"<p><small>{note}</small></p>" for note in _notes(rows))
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>{notes}'


def _html_groups(groups: pd.DataFrame, rows: pd.DataFrame) -> str:
    """Return one setting's accuracies by domain, on the split that decides: a line for each row of its table."""
    split = rows["primary"].iloc[0]
    found = {
        (row["method"], row["group"]): f"{_number(100 * row['mean'])} ± {_number(100 * row['std_devices'])}"
        for _, row in groups[groups["split"] == split].iterrows()
    }
    names = sorted({group for _, group in found})
    head = "<th>method</th>" + "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "\n".join(
        f"<tr{' class=control' * bool(control)}><td>{escape(str(method))}</td>"
        + "".join(f"<td>{found.get((method, name), '-')}</td>" for name in names)
        + "</tr>"
        for method, control in zip(rows["method"], rows["control"], strict=True)
    )
    return (
        f"<h4>Accuracy by domain <small>{SPLITS[split]}, % ± devices</small></h4>\n"
        f'<div class="wide"><table class="domains">\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


LINKS = {
    "accuracy": "targets' accuracy, %",
    "target": "targets",
    "links_out": "links",
    "energy": "energy of all links",
    "share": "energy, % of the most",
    "theorem_2": "Theorem 2",
    "corollary_1": "Corollary 1",
}
"""What the page says of links, as ST-LF's Tables I and II do: column -> its head."""
SUMMED = ("target", "links_out", "energy")


def links(table: pd.DataFrame) -> dict[str, dict[str, tuple[float, float]]]:
    """Return method -> column of LINKS -> its mean and standard deviation over seeds, from one setting's tidy table.

    Of accuracies and bounds the mean over targets, of links, targets and energy the sum over devices. share: the energy
    as a part of that of the row that spends most.
    """
    found: dict[str, dict[str, tuple[float, float]]] = {}
    rows = table[(table["split"] == "links") & table["metric"].isin(LINKS)]
    for (method, metric), part in rows.groupby(["method", "metric"], sort=False):
        seeds = part.groupby("seed")["value"]
        values = seeds.sum() if metric in SUMMED else seeds.mean()
        times = 100 if metric == "accuracy" else 1
        found.setdefault(str(method), {})[str(metric)] = times * float(values.mean()), times * float(values.std())
    most = max((row["energy"][0] for row in found.values() if "energy" in row), default=0.0)
    for row in found.values():
        if most and "energy" in row:
            row["share"] = 100 * row["energy"][0] / most, math.nan
    return found


def _html_links(table: pd.DataFrame, rows: pd.DataFrame) -> str:
    """Return who was served, how well and at what energy: a line for each row of the table that forms links."""
    found = links(table)
    if not found:
        return ""
    names = [name for name in LINKS if any(name in row for row in found.values())]
    head = "<th>method</th>" + "".join(f"<th>{escape(LINKS[name])}</th>" for name in names)

    def text(value: float, spread: float) -> str:
        return "-" if math.isnan(value) else f"{value:.3g}" + ("" if math.isnan(spread) else f" ± {spread:.2g}")

    body = "\n".join(
        f"<tr{' class=control' * bool(control)}><td>{escape(str(method))}</td>"
        + "".join(f"<td>{text(*found[method].get(name, (math.nan, math.nan)))}</td>" for name in names)
        + "</tr>"
        for method, control in zip(rows["method"], rows["control"], strict=True)
        if method in found
    )
    return (
        "<h4>Who teaches whom <small>± seeds</small></h4>\n"
        f'<div class="wide"><table class="links">\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _html_claims(claims: pd.DataFrame) -> str:
    body = "\n".join(
        f'<tr><td class="{row["verdict"].replace(" ", "-")}">{escape(row["verdict"])}</td><td>{escape(row["says"])}<br>'
        f"<small>{escape(row['rule'])}{' where ' * bool(row['where'])}{escape(row['where'])} ({escape(row['of'])}): "
        f"{escape(row['numbers'])}</small></td></tr>"
        for _, row in claims.fillna("").iterrows()
    )
    head = "<tr><th>verdict</th><th>what the paper claims, the rule, the numbers</th></tr>"
    return f'<div class="wide"><table class="claims">\n<thead>{head}</thead>\n<tbody>\n{body}\n</tbody></table></div>'


def _html_picture(caption: str, picture: Figure | bytes, alt: str = "") -> str:
    data = base64.b64encode(picture if isinstance(picture, bytes) else figures.png(picture)).decode()
    text = escape(caption)
    return (
        f'<figure><img alt="{alt or text}" src="data:image/png;base64,{data}"><figcaption>{text}</figcaption></figure>'
    )


def places(table: pd.DataFrame) -> Iterator[tuple[tuple[str, str, str], pd.DataFrame]]:
    """Yield the rows of each study, dataset and setting, in the order of the table."""
    for place, rows in table.groupby(PLACE, sort=False):
        study, dataset, setting = map(str, place)
        yield (study, dataset, setting), rows


def _number(value: float) -> str:
    return "-" if pd.isna(value) else f"{value:.1f}"


def _notes(rows: pd.DataFrame) -> list[str]:
    """Return what the signs in a table mean, those that occur."""
    words = "".join(standings(rows))
    return [f"{sign} {meaning}." for sign, meaning in SIGNS.items() if sign in words]
