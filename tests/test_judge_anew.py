"""The committed verdicts on the papers' claims are today's: judged again from the numbers that were kept."""

import pandas as pd
import pytest
from project_params import PARAMS

from benchmarks.judge_anew import BY_SEED, RESULTS, claims_files, from_words, page, rejudge

FILES = {path.name.removesuffix("-claims.csv"): path for path in claims_files()}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FILES if name in BY_SEED])
def test_a_verdict_is_that_of_the_numbers_beside_it(name: str):
    committed = pd.read_csv(FILES[name], keep_default_na=False)
    anew = rejudge(FILES[name], PARAMS)
    columns = ["study", "rule", "of", "where", "verdict", "numbers", "earlier"]
    pd.testing.assert_frame_equal(anew[columns], committed[columns])
    of_its_rows = committed[~committed["numbers"].str.startswith("needs three seeds, and")]
    assert (of_its_rows["judged"] == "values by seed").mean() > 0.5


def test_every_file_of_claims_has_todays_columns():
    for path in FILES.values():
        rows = pd.read_csv(path, keep_default_na=False)
        assert {"holds_in", "contradicted_in", "tested_in", "p", "a", "b", "earlier", "judged"} <= set(rows)
        assert set(rows["verdict"]) <= {"holds", "holds in most", "contradicted", "not shown", "not tested"}
        assert not (rows["numbers"].str.contains(r"\(2 seeds\)$") & (rows["verdict"] != "not tested")).any()


def test_the_page_of_verdicts_is_that_of_the_files():
    frames = {name: pd.read_csv(path, keep_default_na=False) for name, path in FILES.items()}
    assert (RESULTS / "verdicts.md").read_text() == page(frames)


@pytest.mark.parametrize(
    ("rule", "numbers", "verdict", "held"),
    [
        ("a > b", "in 3 of 3; least: +0.5 ± 0.1 at x (2 seeds)", "not tested", 0),
        (
            "a > b",
            "in 1 of 1; least: +0.5 ± 0.1 (3 seeds)",
            "holds",
            1,
        ),  # half of the interval: 1.85 standard deviations
        ("a > b", "in 1 of 1; least: +0.5 ± 0.4 (3 seeds)", "not shown", 0),
        ("a > b", "in 0 of 1; most against: -0.5 ± 0.1 (3 seeds)", "contradicted", 0),
        ("a > b", "in 0 of 4; most against: -0.5 ± 0.1 at x (3 seeds)", "not shown", 0),
        ("a > b", "in 2 of 4; most against: -0.5 ± 0.4 at x (3 seeds)", "earlier", 2),
        ("a > b", "in 4 of 4; least: +5 ± 0 at x (3 seeds)", "holds", 4),
        ("a ~ b within 1", "in 3 of 4; most against: -1.5 ± 0.1 at x (3 seeds)", "not shown", 3),
        ("a rises with k pairwise", "in 9 of 9; least: +1.5 ± 0.4 (9 problems)", "earlier", 9),
    ],
)
def test_what_follows_from_the_evidence_of_an_earlier_verdict(rule: str, numbers: str, verdict: str, held: int):
    assert from_words(rule, "earlier", numbers)[::2] == (verdict, held)
