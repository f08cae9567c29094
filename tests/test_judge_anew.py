"""The committed verdicts on the papers' claims are today's: judged again from the numbers that were kept."""

import re

import pandas as pd
import pytest
from project_params import PARAMS

from benchmarks.judge_anew import (
    BY_SEED,
    COUNTED,
    baseline_of,
    claims_files,
    from_words,
    rejudge,
    stands,
    with_regime,
)
from benchmarks.paper_pages import Baseline, read_pages
from fedcore.config.studies import find_study

PAGES = read_pages()
FILES = {path.name.removesuffix("-claims.csv"): path for path in claims_files()}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FILES if name in BY_SEED])
def test_a_verdict_is_that_of_the_numbers_beside_it(name: str):
    committed = pd.read_csv(FILES[name], keep_default_na=False)
    anew = rejudge(FILES[name], PARAMS, PAGES)
    columns = ["study", "rule", "of", "where", "verdict", "numbers", "earlier", "here"]
    pd.testing.assert_frame_equal(anew[columns], committed[columns])
    of_its_rows = committed[~committed["numbers"].str.startswith("needs three seeds, and")]
    assert (of_its_rows["judged"] == "values by seed").mean() > 0.5


@pytest.mark.slow
def test_every_file_of_claims_has_todays_columns():
    for path in FILES.values():
        rows = pd.read_csv(path, keep_default_na=False)
        assert {"holds_in", "contradicted_in", "tested_in", "p", "a", "b", "earlier", "judged", "here"} <= set(rows)
        words = {"holds", "holds in most", "contradicted", "not shown", "not tested"}
        assert set(rows["here"]) <= words
        assert set(rows["verdict"]) <= words | {"another regime", "not run to its end"}
        assert not (rows["numbers"].str.contains(r"\(2 seeds\)$") & (rows["verdict"] != "not tested")).any()


@pytest.mark.slow
def test_no_verdict_stands_without_its_baseline():
    """None is contradicted, nor is a paper's claim answered, where the rows that it names are not as printed."""
    for name, path in FILES.items():
        rows = pd.read_csv(path, keep_default_na=False)
        assert with_regime(rows, name, PAGES) == rows["verdict"].tolist()
        for _, row in rows[~rows["verdict"].isin(["another regime", "not run to its end", "not tested"])].iterrows():
            ours = row["says"].startswith("(ours)") and row["verdict"] != "contradicted"
            near = [
                one for paper in PAGES.values() for one in paper.calibration if name in one.files and one.calibrated
            ]
            counted = row["of"].rpartition(" of ")[2].startswith(COUNTED)
            assert ours or counted or near, (name, row["rule"])
    for family, paper in PAGES.items():
        standing = [FILES[name] for name in FILES if name.startswith(family.replace("_", "-"))]
        rows = pd.concat([pd.read_csv(path, keep_default_na=False) for path in standing])
        assert (~rows["says"].str.startswith("(ours)") & rows["verdict"].str.startswith("holds")).any(), family
        words = " ".join([*paper.card.model_dump(exclude={"verdicts"}).values(), *paper.also]).lower()
        assert not re.search("no reason found|contradict", words), family


def test_a_claim_stands_on_the_rows_that_it_names():
    def row(name: str, paper: float) -> Baseline:
        return Baseline(row=name, files=["f"], paper=paper, ours=0.5, differs="x")

    papers = {"p": PAGES["dfl"].model_copy(update={"calibration": [row("b", 0.53), row("c", 0.54)]})}
    assert stands("f", "a > b", "shared.accuracy", papers)
    assert not stands("f", "a > c", "shared.accuracy", papers)
    assert stands("f", "a > d", "shared.accuracy", papers)  # it names none: any of the file
    assert not stands("g", "a > b", "shared.accuracy", papers)
    assert stands("g", "a > b", "traffic.bytes_up", papers)
    rows = pd.DataFrame(
        {
            "says": ["a", "a", "(ours) a", "(ours) a", "a", "a"],
            "rule": ["a > b", "a > c", "a > c", "a > c", "a > b", "a > b"],
            "of": "shared.accuracy",
            "here": ["contradicted", "contradicted", "contradicted", "holds", "not tested", "not tested"],
            "numbers": ["", "", "", "", "not converged: b gains 1", "at chance"],
        }
    )
    wanted = ["contradicted", "another regime", "another regime", "holds", "not run to its end", "not tested"]
    assert with_regime(rows, "f", papers) == wanted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "place"),
    [(family, place) for family, paper in PAGES.items() for place in range(len(paper.calibration))],
)
def test_a_baseline_here_is_that_of_its_file(family: str, place: int):
    baseline = PAGES[family].calibration[place]
    file = next((name for name in baseline.files if name in BY_SEED), baseline.files[0])
    study = str(pd.read_csv(FILES[file])["study"].iloc[0])
    assert baseline_of(baseline, file, find_study(PARAMS, study)) == pytest.approx(baseline.ours, abs=6e-5)


@pytest.mark.parametrize(
    ("rule", "numbers", "verdict", "held"),
    [
        ("a > b", "in 3 of 3; least: +0.5 ± 0.1 at x (2 seeds)", "not tested", 0),
        (
            "a > b", "in 1 of 1; least: +0.5 ± 0.1 (3 seeds)", "holds", 1,
        ),  # half of the interval: 1.85 standard deviations
        ("a > b", "in 1 of 1; least: +0.5 ± 0.4 (3 seeds)", "not shown", 0),
        ("a > b", "in 0 of 1; most against: -0.5 ± 0.1 (3 seeds)", "contradicted", 0),
        ("a > b", "in 0 of 4; most against: -0.5 ± 0.1 at x (3 seeds)", "not shown", 0),
        ("a > b", "in 2 of 4; most against: -0.5 ± 0.4 at x (3 seeds)", "earlier", 2),
        ("a > b", "in 4 of 4; least: +5 ± 0 at x (3 seeds)", "holds", 4),
        ("a ~ b within 1", "in 3 of 4; most against: -1.5 ± 0.1 at x (3 seeds)", "not shown", 3),
        ("a rises with k pairwise", "in 9 of 9; least: +1.5 ± 0.4 (9 problems)", "earlier", 9),
    ],
)  # fmt: skip
def test_what_follows_from_the_evidence_of_an_earlier_verdict(rule: str, numbers: str, verdict: str, held: int):
    assert from_words(rule, "earlier", numbers)[::2] == (verdict, held)
