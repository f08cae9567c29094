"""Small comparisons for tests of the report: tidy tables with their summaries, and verdicts on claims."""

import io
from typing import Any

import pandas as pd
from PIL import Image
from tables import NO_SECONDS, drawn

from fedcore.report.page import Comparison, draw, html
from fedcore.results.answer import answers
from fedcore.results.criterion import Criterion
from fedcore.results.summary import SETTING_KEY, summarise

METHODS = ["local_only", "code_ot", "half_best"]
WICKED = """<script>&"'</b>"""
"""A name that would be tags, and end an attribute, on a page that does not escape it. Short, as pictures show it."""


def dot(colour: str = "red") -> bytes:
    """Return a PNG file of one pixel."""
    made = io.BytesIO()
    Image.new("RGB", (1, 1), colour).save(made, "png")
    return made.getvalue()


def comparison() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return a tidy table of two settings and its summary with seconds; the last of METHODS is a control."""
    table = pd.concat([drawn(METHODS, 4, rounds=2), drawn(METHODS, 4, seeds=1, setting="alpha=1 more")])
    seconds = table[["study", "setting", "method", "seed"]].drop_duplicates().assign(kind="train", wall=1.5, cpu=2.5)
    return table, summarise(table, seconds, frozenset(METHODS[-1:]))


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Return the summary of a tidy table without controls or seconds."""
    return summarise(table, NO_SECONDS, frozenset())


def page_of(table: pd.DataFrame, summary: pd.DataFrame, **known: Any) -> str:
    """Return the page of a comparison of which the other parts are empty, or follow from the tables."""
    parts: dict[str, Any] = {
        "groups": pd.DataFrame(columns=SETTING_KEY), "claims": pd.DataFrame(columns=["study"]), "along": {},
        "papers": {}, "questions": {}, "pictures": {}, "outcomes": {}, **known,
    }  # fmt: skip
    if "plots" not in known:
        parts["plots"] = draw(table, summary, Criterion())
    if "answers" not in known:
        parts["answers"] = answers(table, frozenset(summary["method"][summary["control"]]))
    return html(Comparison(table, summary, **parts))


def sweep(settings: int, rounds: int = 1) -> pd.DataFrame:
    """Return a tidy table of METHODS in several settings, devices=0, devices=1 and so on, of one study."""
    return pd.concat([drawn(METHODS, 2, rounds=rounds, setting=f"devices={i}") for i in range(settings)])


def claims() -> pd.DataFrame:
    """Return four claims of the study, one for each verdict, and one of another study."""
    columns = ["study", "says", "rule", "of", "where", "verdict", "numbers"]
    found = [
        ("study", f"{WICKED} is best", "a > b", "shared.accuracy", "alpha = 1", "holds", "in 1 of 1"),
        ("study", "It is cheap", "a ~ b within 1", "shared.loss", "", "does not hold", "in 0 of 1 setting; least: +3"),
        ("study", "It is fast", "b > a", "shared.accuracy", "", "holds in most", "in 7 of 8 settings"),
        ("study", "It lasts", "a rises with round", "shared.accuracy", "", "not tested", "needs three seeds"),
        ("elsewhere", "Never mind", "a > b", "shared.accuracy", "", "holds", "in 1 of 1"),
    ]
    return pd.DataFrame(found, columns=columns)


def add_links(table: pd.DataFrame, told: dict[str, list[list[tuple[float, float, float]]]]) -> pd.DataFrame:
    """Add links to a tidy table: method -> seed -> device -> target, energy, accuracy (a target's)."""
    first = table.iloc[0]
    more = [
        {
            **first, "method": method, "seed": seed, "device": f"d{i:02d}", "split": "links", "metric": name,
            "value": value,
        }
        for method, seeds in told.items()
        for seed, devices in enumerate(seeds)
        for i, (target, energy, accuracy) in enumerate(devices)
        for name, value in {"target": target, "energy": energy, "accuracy": accuracy}.items()
        if name != "accuracy" or target
    ]  # fmt: skip
    return pd.concat([table, pd.DataFrame(more)], ignore_index=True)


LINKS: dict[str, list[list[tuple[float, float, float]]]] = {
    "a": [[(0, 4, 0), (1, 0, 0.5), (1, 0, 0.7)], [(0, 2, 0), (0, 0, 0), (1, 0, 0.8)]],
    "b": [[(0, 6, 0), (1, 0, 0.5), (1, 6, 0.5)], [(0, 12, 0), (1, 0, 0.1), (1, 0, 0.3)]],
}
"""The links of two methods, for `add_links`."""
