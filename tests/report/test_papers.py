"""The index of the papers' figures: what it shows, and that the committed one is that of the files."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from answer_tables import ALONE, CONTROLS, GUESS, Accuracy, plus, table
from papers_page import index, on_page_content
from project_params import PARAMS, ROOT, refusal

from fedcore.config.papers import Condition, Figure, Paper, Statement, Value, read_papers
from fedcore.core.metrics import METRICS
from fedcore.report.phrases import AnswerInWords, headline, sentences, tally
from fedcore.results.answer import answer
from fedcore.results.criterion import Criterion

CLAIMS = """study,says,rule,of,where,verdict,numbers
code_fig8,a,b,c,,holds,1
code_fig8,a,b,c,,not tested,1
code_fig8,a,b,c,,holds,1
code_fig8,(ours) a,b,c,,holds,1
code_fig8,(ours) a,b,c,,does not hold,1
code_fig9,a,b,c,,does not hold,1
code_fig9,a,b,c,,holds in most,1
"""

PAPER = Paper(
    conditions=[
        Condition(
            setting="pixels | bits", paper="not said", place="VII-A", ours=0.1307, reason="as\nusual",
            effect=".87 not .73",
        )
    ],
    figures=[
        Figure(name="Fig. 1", shows="a drawing", status="nothing to run"),
        Figure(
            name="Fig. 8",
            shows="accuracy",
            status="part",
            study="code_fig8",
            command="fedcore run study=code_fig8",
            reason="SGD: 40 min",
            values=[
                Value(what="LMF", paper=0.876, ours=0.861, spread=0.02, seeds=5, source="results/mine.csv"),
                Value(what="CODE", paper=0.9),
            ],
        ),
        Figure(name="Fig. 9", shows="epochs", status="not run", study="code_fig9", reason="3 h"),
    ],
    theory=[
        Statement(name="(1)", says="a sum", tests=["tests/a.py::test_a", "tests/b.py::test_b"]),
        Statement(name="(2)", says="a step", reason="a step of a proof"),
    ],
)  # fmt: skip


def project(folder: Path) -> Path:
    (folder / "docs" / "results").mkdir(parents=True)
    (folder / "docs" / "results" / "mine.csv").write_text("a\n1\n")
    (folder / "docs" / "results" / "some-claims.csv").write_text(CLAIMS)
    (folder / "docs" / "methods").mkdir()
    (folder / "docs" / "methods" / "code.md").write_text("# CODE\n")
    return folder


def test_every_figure_has_a_line_with_status_command_reason_and_verdicts(tmp_path: Path):
    text = index({"code": PAPER}, project(tmp_path))
    lines = text.splitlines()
    assert "| [code](#code) | 0 | 1 | 1 | 1 |" in lines
    assert "[The method and its studies](methods/code.md)" in lines
    assert "| Fig. 1 | a drawing | nothing to run |  |  |  |" in lines
    command = "`fedcore run study=code_fig8`"
    counts = "2 hold, 1 not tested; ours: 1 hold, 1 do not ([some-claims](results/some-claims.csv))"
    assert f"| Fig. 8 | accuracy | part | {command} | SGD: 40 min | {counts} |" in lines
    counts = "1 hold in most settings, 1 do not ([some-claims](results/some-claims.csv))"
    assert f"| Fig. 9 | epochs | not run | `code_fig9` | 3 h | {counts} |" in lines


def test_values_and_conditions_stand_beside_the_papers(tmp_path: Path):
    lines = index({"code": PAPER}, project(tmp_path)).splitlines()
    ours = "0.861, std 0.02 (5 seeds) | -0.015 | within 3 sd | [mine.csv](results/mine.csv)"
    assert f"| Fig. 8 | LMF | 0.876 | {ours} |" in lines
    assert "| Fig. 8 | CODE | 0.9 |  |  | not measured |  |" in lines
    assert "| pixels \\| bits | not said | VII-A | 0.1307 | as usual | .87 not .73 |" in lines
    assert "| (1) | a sum | `a.py::test_a`, `b.py::test_b` |  |" in lines
    assert "| (2) | a step |  | a step of a proof |" in lines


def test_a_source_may_be_named_from_the_projects_root(tmp_path: Path):
    whole = project(tmp_path)
    value = Value(what="LMF", paper=1.0, ours=1.0, source="docs/results/mine.csv")
    paper = Paper(figures=[Figure(name="F", shows="?", status="run", command="x", values=[value])])
    assert "[mine.csv](results/mine.csv)" in index({"code": paper}, whole)
    (whole / "docs/results/mine.csv").unlink()
    assert refusal(index, {"code": paper}, whole) == "papers: LMF: source 'docs/results/mine.csv' does not exist"


def test_without_papers_the_page_says_so(tmp_path: Path):
    assert index({}, tmp_path).endswith("No paper has an entry yet.\n")


@pytest.mark.slow
def test_the_index_of_the_papers_is_made():
    """The site builds it, see docs/assets/papers_page.py."""
    text = index(read_papers(PARAMS["studies"], ROOT), ROOT)
    assert text.startswith("# Figures and tables of the papers")
    assert all(f"## {family}" in text for family in ("code", "dfl", "fedasa", "st_lf"))


def test_the_site_shows_a_docstring_without_sphinx_roles():
    html = "<p>See (:func:<code>fedcore.federate</code>), :mod: <code>x</code>; :data:.</p>"
    assert on_page_content(html, page=None) == "<p>See (<code>fedcore.federate</code>), <code>x</code>; :data:.</p>"


# The words of an answer. The sentences are what a user reads, so they are compared whole.


def in_words(methods: Mapping[str, Accuracy], **settings: float) -> str:
    return " ".join(sentences(answer(table(methods), CONTROLS, **settings)))


@pytest.mark.slow
def test_an_answer_speaks_in_its_metric():
    """Of a loss and a cost less is better: a gain is a fall. In these tables loss is 1 - accuracy."""
    made = table({"local_only": ALONE, "code": plus(0.1), "majority": GUESS})
    words = " ".join(sentences(answer(made, CONTROLS, Criterion(METRICS["log_loss"]))))
    assert words.startswith(
        "Use code: log loss 0.250 (less is better). Against local training: "
        "-0.1 (95 % interval -0.1 to -0.1; 3 seeds). Against always guessing: "
    )
    cost = made.assign(metric=made["metric"].replace("loss", "cost"))
    words = " ".join(sentences(answer(cost, CONTROLS, Criterion(METRICS["cost"]))))
    begin = "Use code: cost 250 per 1,000 rows (less is better). Against local training: -100 per 1,000 rows (95 % "
    assert words.startswith(begin)
    f1 = made.assign(metric=made["metric"].replace("macro_f1", "f1"))
    words = " ".join(sentences(answer(f1, CONTROLS, Criterion(METRICS["f1"], positive="fault"))))
    begin = "Use code: F1 of 'fault' 37.5%. Against local training: +5.0 points (95 % interval +5.0 to +5.0;"
    assert words.startswith(begin)
    assert headline(answer(f1, CONTROLS, Criterion(METRICS["f1"], positive="fault")).advice) == "Use code"


@pytest.mark.slow
def test_a_clear_winner_has_its_gains_whom_it_helps_and_its_cost():
    found = answer(table({"local_only": ALONE, "code": plus(0.1), "worse": plus(-0.1), "majority": GUESS}), CONTROLS)
    assert headline(found.advice) == "Use code"
    assert sentences(found) == [
        "Use code: 75.0% right. Against local training: +10.0 points (95 % interval +10.0 to +10.0; 3 seeds). "
        "Against always guessing: +45.0 points (95 % interval +42.3 to +47.7; 3 seeds).",
        "code helps 2 of 2 devices by at least 1 point and hurts none.",
        "Each device sends 1 kB and receives 2 kB in total.",
    ]


@pytest.mark.slow
def test_a_difference_that_does_not_matter():
    found = answer(table({"local_only": ALONE, "code": plus(0.002)}), CONTROLS)
    begins = "No difference that matters (1 point). The best combining method"
    assert found.own is not None
    assert sentences(found)[0].startswith(
        f"{begins} by validation data is code. Against local training: +0.2 points (95 % "
    )
    unvalidated = replace(found, own=replace(found.own, validated=False))
    assert sentences(unvalidated)[0].startswith(f"{begins} is code. Against ")


@pytest.mark.slow
def test_an_open_question_says_what_would_answer_it():
    wide = in_words({"local_only": ALONE, "code": [[0.78, 0.68], [0.66, 0.54], [0.69, 0.61]]})
    assert wide.startswith("Cannot say. The best combining method by validation data is code: ")
    assert "More seeds or more test data would tell (`fedcore docs undecided`)." in wide
    assert "as good" not in wide
    assert in_words({"code": plus(0.1)}, budget=0) == "Cannot say: no combining method fits the budget."


@pytest.mark.slow
def test_a_winner_names_the_device_that_it_hurts_most():
    words = in_words({"local_only": ALONE, "code": [[0.95, 0.50], [0.97, 0.50], [0.93, 0.50]]})
    assert (
        "hurts d01 (-10.0 points). The lowest accuracy of any device, mean over seeds, falls from 60.0% to 50.0%."
        in words
    )
    words = in_words(
        {"local_only": [[0.6, 0.5, 0.5]] * 3, "code": [[0.95, 0.4, 0.45], [0.97, 0.4, 0.45], [0.93, 0.4, 0.45]]}
    )
    assert "hurts 2, most d01 (-10.0 points)." in words


@pytest.mark.slow
def test_what_may_be_chance_are_the_counts():
    words = in_words({"local_only": ALONE, "code": [[0.95, 0.50], [0.72, 0.50], [0.68, 0.50]]})
    assert (
        "In these runs code helps 1 of 2 devices by at least 1 point and hurts d01 (-10.0 points). This may be "
        "chance. The lowest accuracy of any device, mean over seeds, falls from 60.0% to 50.0%."
    ) in words


@pytest.mark.slow
def test_who_a_guess_helps_is_not_said():
    """A row that is as good as always guessing, where local training is worse."""
    made = {"local_only": GUESS, "code": [[0.9, 0.5], [0.6, 0.5], [0.5, 0.5]], "majority": [[0.6, 0.5]] * 3}
    words = in_words(made)
    assert "Cannot say" in words
    assert "In these runs code helps" in words
    guess = in_words({**made, "majority": [[0.8, 0.5]] * 3})
    assert "In these runs" not in guess


@pytest.mark.slow
def test_rivals_and_better_controls_are_named():
    assert "even is as good within 1 point." in in_words({"local_only": ALONE, "big": plus(0.1), "even": plus(0.1)})
    cheap = answer(table({"local_only": ALONE, "big": plus(0.101), "thin": plus(0.1)}, {"big": 9000.0}), CONTROLS)
    assert "It is as good as big within 1 point, and sends less." in sentences(cheap)[0]
    shaky = in_words({"local_only": ALONE, "code": plus(0.1), "shaky": [[0.9, 0.8], [0.70, 0.60], [0.78, 0.70]]})
    assert "Not significantly different from code with these seeds: shaky." in shaky
    assert "as good" not in shaky
    beaten = in_words({"local_only": ALONE, "code": plus(0.1), "best_local": plus(0.2)})
    assert "Warning: the control best_local is significantly better." in beaten
    assert "Left on the table" not in beaten


@pytest.mark.slow
def test_what_is_left_on_the_table_is_said_if_it_is_sure():
    made = {"local_only": ALONE, "code": plus(0.1), "pooled": plus(0.2)}
    left = sentences(answer(table(made), CONTROLS))
    assert left[-1] == (
        "Left on the table: pooled, trees on the rows of all devices together, against code: +10.0 points (95 % "
        "interval +10.0 to +10.0; 3 seeds)."
    )
    assert not any(text.startswith("Warning: the control") for text in left)
    alone = in_words({**made, "code": plus(-0.1)})
    assert "against local_only: +20.0 points" in alone
    unsure = {**made, "pooled": [[0.9, 0.8], [0.70, 0.60], [0.78, 0.70]]}
    assert "Left on the table" not in in_words(unsure)


@pytest.mark.slow
def test_a_new_device_has_a_sentence_of_its_own():
    made = {"local_only": ALONE, "personal": plus(0.1), "common": plus(-0.1)}
    found = answer(table(made, shared={"local_only": 0.5, "personal": 0.6, "common": 0.8}), CONTROLS)
    last = sentences(found)[-1]
    assert last.startswith(
        "For rows whose device is unknown (shared test data): use common: 80.0% right. Against one device's model: +"
    )


@pytest.mark.slow
def test_training_alone_where_no_row_fits_the_budget():
    assert in_words({"local_only": ALONE, "code": plus(0.1), "majority": GUESS}, budget=0) == (
        "Use local training: 65.0% right. Against always guessing: +35.0 points "
        "(95 % interval +32.3 to +37.7; 3 seeds). No combining method fits the budget."
    )


@pytest.mark.slow
def test_answers_of_many_settings_are_counted():
    better, worse = (answer(table({"local_only": ALONE, "code": plus(by)}), CONTROLS) for by in (0.1, -0.1))
    assert tally([better, worse, better]) == "Use code in 2 of 3 settings, use local training in 1."


@pytest.mark.slow
def test_an_answer_in_words_has_the_same_numbers_and_prints_its_sentences():
    found = answer(table({"local_only": ALONE, "code": plus(0.1)}), CONTROLS)
    worded = AnswerInWords.of(found)
    assert vars(worded) == vars(found)
    assert (worded.headline, str(worded).splitlines()) == (headline(found.advice), sentences(found))


@pytest.mark.parametrize(("difference", "text"), [(0.043, "+4.3"), (-0.0, "+0.0"), (-0.0004, "+0.0"), (-0.5, "-50.0")])
def test_a_difference_is_in_points_with_its_sign(difference: float, text: str):
    assert METRICS["accuracy"].difference(difference) == text
