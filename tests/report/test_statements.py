"""Claims in words: their rules, both sides and differences in their unit."""

from __future__ import annotations

import pandas as pd
import pytest

from fedcore.report.statements import join, measured, said

NAMES = {"a": "A", "b": "B", "k": "the key", "x=": "{} devices", "y=1": "even", "z=2": ""}


def claim(
    rule: str, numbers: str = "", of: str = "shared.accuracy", verdict: str = "holds", **more: object
) -> pd.Series:
    kept = {"holds_in": 1, "contradicted_in": 0, "tested_in": 1, "a": "", "b": ""}
    return pd.Series({"rule": rule, "numbers": numbers, "of": of, "verdict": verdict, **kept, **more})


@pytest.mark.parametrize(
    ("rule", "of", "words"),
    [
        ("a > b", "shared.accuracy", "A above B"),
        ("a > b", "traffic.bytes_up", "A above B (bytes that a device sends in a round)"),
        ("a ~ b within 0.03", "shared.accuracy", "A and B within 3 points"),
        ("a - b > 0.09", "shared.accuracy", "A ahead of B by 9 points"),
        ("a rises with k", "shared.accuracy", "accuracy of A rises with the key"),
        ("a stays within 0.5 with k", "links.energy", "energy per device of A stays within 0.5 with the key"),
        ("a > 0.05", "links.target", "share of devices that are targets above 5 points"),
        ("1e-7 > a", "transport.excess", "cost above the cheapest below 1e-7"),
    ],
)
def test_a_rule_is_said_in_plain_names(rule: str, of: str, words: str):
    assert said(claim(rule, of=of), NAMES) == words


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (
            claim("a > b", "least: +0.43 [+0.3, +0.56] (5 seeds)", a=".53", b=".1"),
            ".530 against .100: +43.0 points [+30.0, +56.0] (5 seeds)",
        ),
        (  # 1.29 MB and .09 MB: values in bytes
            claim("a > b", "least: +1.2e+06 [+1.1e+06, +1.3e+06] (3 seeds)", "traffic.bytes_up", a="1.29e6", b="9e4"),
            "1.29 MB against 0.09 MB: +1.2 MB [+1.1, +1.3]",
        ),
        (
            claim("a > b", "so far -0.0007 [-0.002, +0.0006] (3 seeds)", verdict="not tested"),
            "-0.07 points [-0.20, +0.06]",
        ),
        (
            claim("a > b", "in 1 of 3 settings; x: -0.02 [-0.1, +0.06] at x=4 y=1 z=2 (3 seeds)", tested_in=3),
            "1 yes, 0 opposite, 2 open; weakest (4 devices, even): -2.0 points [-10.0, +6.0]",
        ),
        (  # .123 and -.0195 above the 9 points
            claim("a - b > 0.09", "x: +0.123 [-0.0195, +0.266] (3 seeds)"),
            "leads by 21.3 points, surely by 7.0 (needed: 9)",
        ),
        (claim("a - b > 0.08", "x: +0.1 [-0.1, +0.3] (3 seeds)"), "leads by 18.0 points, surely by none (needed: 8)"),
        (
            claim("a > 0.05", "x: -0.05 [-0.05, -0.05] (3 seeds)", "links.target"),
            "0 points [0, 0] (needed: more than 5 points)",
        ),
        (  # of 1e-7 less a cost of .2
            claim("1e-7 > a", "x: -0.2 [-0.3, -0.1] (3 seeds)", "transport.excess"),
            "0.2 [0.1, 0.3] (allowed: less than 1e-07)",
        ),
        (
            claim("a falls with k", "x: +0.1 [+0, +0.2] (3 seeds)", a=".9", b=".8"),
            "from .900 to .800: +10.0 points [+0.0, +20.0]",
        ),
    ],
)  # fmt: skip
def test_numbers_are_in_the_unit_of_what_is_compared(one: pd.Series, words: str):
    assert measured(one, NAMES).endswith(words)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ("not converged: a gains 0.004; so far +0.1 [+0, +0.2] (3 seeds)", "too early to say, since the row behind"),
        ("a and b are at the ceiling: 0.9997 of 1", "both are nearly perfect (.9997 and more)"),
        ("local models are at chance (x)", "local models are at chance (x)"),
    ],
)  # fmt: skip
def test_what_could_not_be_tested_says_why(numbers: str, words: str):
    assert measured(claim("a > b", numbers, verdict="not tested"), NAMES).startswith(f"A above B: {words}")


def test_what_several_statements_share_is_said_once():
    assert join(["A above B", "A above C", "A above D"]) == "A above B, C and D"
    assert join(["B above A", "C above A"]) == "B and C above A"
    assert join(["A above B", "C and D within 3 points"]) == "A above B; C and D within 3 points"
