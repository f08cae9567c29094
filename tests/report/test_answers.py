"""The answer's box in the terminal, on the page, and as Markdown."""

import io
import re
from dataclasses import replace

import pandas as pd
import pytest
from comparisons import METHODS, WICKED, comparison, dot, page_of, sweep
from rich.console import Console
from tables import frame, rows

from fedcore.core.metrics import METRICS
from fedcore.report.answers import answer_numbers, brief, markdown, study_answers
from fedcore.report.page import Plots
from fedcore.report.phrases import facts, headed, headline, sentences
from fedcore.report.tables import score_table
from fedcore.report.terminal import print_answers
from fedcore.results.advice import Answer
from fedcore.results.answer import FEW_SEEDS, answers
from fedcore.results.criterion import Criterion, SettingKey
from fedcore.results.summary import NO_SECONDS, summarise

CONTROLS = frozenset(METHODS[-1:])


def found(table: pd.DataFrame) -> dict[SettingKey, Answer]:
    return answers(table, CONTROLS)


def printed(table: pd.DataFrame) -> str:
    out = io.StringIO()
    print_answers(study_answers(found(table)), Console(file=out, width=80))
    return out.getvalue()


@pytest.mark.slow
def test_the_terminal_shows_each_settings_answer_in_80_columns():
    table = comparison()[0]
    text = printed(table)
    assert max(map(len, text.splitlines())) <= 80
    for (study, dataset, setting), answer in found(table).items():
        assert f"{study}: {setting} ({dataset}): {headline(answer.advice)}" in text
        for sentence in headed(answer)[1]:
            assert sentence in " ".join(text.split())
        edited = replace(answer, tasks=("tasks.fuse:fuse",))
        assert sentences(edited) == [*sentences(answer), "Edited tasks of this project took part: tasks.fuse:fuse."]


@pytest.mark.slow
def test_many_settings_are_counted_in_a_line():
    text = printed(sweep(5))
    assert len(text.splitlines()) == 2
    assert re.match(r"study: .+ in \d of 5 settings", text)


@pytest.mark.slow
def test_the_box_stands_on_top_of_the_page():
    table, summary = comparison()
    given = found(table)
    plots = Plots(dict.fromkeys(zip(summary["study"], summary["setting"], strict=True), dot()), {})
    page = page_of(table, summary, plots=plots)
    for answer in given.values():
        box = page[page.index('<div class="answer"') :].replace("&#39;", "'")
        assert f"<strong>{headline(answer.advice)}</strong>" in page[: page.index("</nav>")]
        assert f"<strong>{headline(answer.advice)}</strong>" in box
        for sentence in headed(answer)[1]:
            assert not sentence.startswith("Cannot say")
            assert f"<p>{sentence}</p>" in box


@pytest.mark.slow
def test_markdown_and_page_show_names_as_they_are():
    table = frame(
        rows({WICKED: [[0.5], [0.5]], "a|b_c*": [[0.4], [0.4]]}, up=5.0), rows({"alone": [[0.1]] * 2}, up=0.0)
    )
    summary = summarise(table, pd.DataFrame(columns=["study", "setting", "method", "seed", "wall", "cpu"]), frozenset())
    given = answers(table, frozenset())
    text = markdown(study_answers(given)["study"], {"alpha=1": score_table(summary)})
    assert WICKED not in text
    assert "\\<script\\>" in text
    line = next(line for line in text.splitlines() if "b\\_c" in line)
    assert "a\\|b\\_c\\*" in line
    cells = re.split(r"(?<!\\)\|", line)
    assert len(cells) == len(re.split(r"(?<!\\)\|", next(x for x in text.splitlines() if x.startswith("| rank"))))
    plots = Plots({("study", "alpha=1"): dot()}, {})
    assert WICKED not in page_of(table, summary, plots=plots, answers=given)


@pytest.mark.slow
def test_numbers_and_facts_are_those_of_the_answer():
    better = [[0.8, 0.7], [0.9, 0.7]]
    table = pd.concat([
        frame(
            rows({"local_only": [[0.6, 0.6], [0.7, 0.6]]}, up=0.0, setting=setting), rows({"a": runs}, setting=setting)
        )
        for setting, runs in {"one": better, "two": [[0.7, 0.7], [0.8, 0.6]]}.items()
    ])  # fmt: skip
    given = answers(table, frozenset())
    first, second = given.values()
    assert facts(first) == [
        ("77.5%", "right"), ("+15.0", "points against local training (95 % interval +15.0 to +15.0)"),
        ("2 of 2", "devices helped, none hurt"),
        ("300 B", "sent and received by a device"),
    ]  # fmt: skip
    assert second.advice.value == pytest.approx(0.7)
    assert brief(given).splitlines()[0] == (
        "study: one: Use a: 77.5% right, +15.0 points against local training (95 % interval +15.0 to +15.0), "
        "2 of 2 devices helped, none hurt, 300 B sent and received by a device"
    )
    assert brief(dict.fromkeys([*given][:1], first)).startswith("study: Use a: 77.5% right")
    many = {("study", "digits", str(i)): first for i in range(4)}
    assert brief(many) == "study: Use a in 4 of 4 settings.\n"
    summary = summarise(table, NO_SECONDS, frozenset())
    numbers = answer_numbers(summary, given)["study"]
    assert [*numbers] == ["one", "two"]
    margin = summary.set_index(["setting", "method"])["test_margin"]["one", "a"]
    best = {"method": "a", "value": 0.775, "interval": pytest.approx(margin, abs=1e-6)}
    assert numbers["one"] == {
        "metric": "accuracy", "best": best, "gain": 0.15, "methods": {"a": 0.775, "local_only": 0.625},
    }  # fmt: skip
    alone = answers(table[table["seed"] == 0], frozenset())
    assert [facts(one) for one in alone.values()] == [[], []]
    assert brief(alone).splitlines()[1] == f"study: two: Cannot say: {FEW_SEEDS}"
    one_seed = answer_numbers(summarise(table[table["seed"] == 0], NO_SECONDS, frozenset()), alone)["study"]["one"]
    assert [*one_seed["best"]] == ["method", "value"]


@pytest.mark.slow
def test_numbers_for_dvc_do_not_depend_on_what_is_recommended():
    """With another least effect another row is as good and cheaper: only the advice changes."""
    table = frame(
        rows({"a": [[0.80, 0.80], [0.81, 0.81]]}, up=300.0), rows({"b": [[0.79, 0.79], [0.80, 0.80]]}, up=10.0),
        rows({"local_only": [[0.5, 0.5], [0.51, 0.51]]}, up=0.0),
    )  # fmt: skip
    found = [answers(table, frozenset(), Criterion(min_effect=effect)) for effect in (0.001, 0.05)]
    assert [one.advised for each in found for one in each.values()] == ["a", "b"]
    first, second = (answer_numbers(summarise(table, NO_SECONDS, frozenset()), each) for each in found)
    assert first == second
    assert (first["study"]["best"]["method"], first["study"]["best"]["value"]) == ("a", 0.805)


@pytest.mark.slow
def test_numbers_for_dvc_are_named_by_the_metric():
    table = frame(rows({"a": [[0.8], [0.7]]}, up=1.0), rows({"local_only": [[0.5], [0.6]]}, up=0.0))
    criterion = Criterion(METRICS["log_loss"])
    summary = summarise(table, NO_SECONDS, frozenset(), criterion)
    found = answer_numbers(summary, answers(table, frozenset(), criterion))["study"]
    # a loss in these tables is 1 less the accuracy
    assert (found["metric"], found["gain"], found["methods"]) == ("log_loss", 0.2, {"a": 0.25, "local_only": 0.45})
    # of a row that was stopped the gain is that of its seeds
    stopped = table[(table["method"] == "a") | (table["seed"] == 0)]
    summary = summarise(stopped, NO_SECONDS, frozenset(), criterion)
    assert answer_numbers(summary, answers(stopped, frozenset(), criterion))["study"]["gain"] == 0.3


@pytest.mark.slow
def test_facts_of_an_answer_that_recommends_no_method_name_the_best_one():
    runs = {"a": [[0.5], [0.5], [0.5]], "b": [[0.2], [0.2], [0.2]]}
    table = frame(rows(runs), rows({"local_only": [[0.64], [0.66], [0.65]]}, up=0.0))
    (alone,) = answers(table, frozenset()).values()
    assert headline(alone.advice) == "Use local training"
    assert facts(alone) == [
        ("65.0%", "right with local training"),
        ("-15.0", "points with a, the best on validation rows (95 % interval -17.7 to -12.3)"),
    ]  # fmt: skip


def scaled(change: float, *, seeds: int = 3) -> pd.DataFrame:
    """Two settings of one study: with scale common, fedavg is better by about `change` than with scale device."""
    level = [0.70, 0.72, 0.68][:seeds]
    parts = []
    for setting, plus in (("scale=common", change), ("scale=device", 0.0)):
        alone = [[value - 0.1] * 4 for value in level]
        shared = [[value + plus * (1 + 0.1 * seed)] * 4 for seed, value in enumerate(level)]
        parts += [rows({"local_only": alone}, setting=setting, up=0.0), rows({"fedavg": shared}, setting=setting)]
    return frame(*parts)


@pytest.mark.slow
def test_the_answer_says_which_scale_is_best():
    """The interval by hand: t of 2 degrees of freedom is 4.303; q is 1/3, of which a fifth counts."""
    first, *others = study_answers(answers(scaled(0.1), frozenset()))["study"]
    assert (first.title, first.headline) == ("study: scale", "Scale common")
    gains = [0.10, 0.11, 0.12]
    margin = 4.303 * 0.01 * (1 / 3 + 1 / 15) ** 0.5
    mean = 100 * sum(gains) / 3
    interval = f"95 % interval {mean - 100 * margin:+.1f} to {mean + 100 * margin:+.1f}; 3 seeds"
    said = f"Against scale device (fedavg): {mean:+.1f} points ({interval})."
    assert said in first.sentences[0]
    assert "With scale common the best combining method is fedavg: 81.0% right." in first.sentences[0]
    assert len(others) == 2


@pytest.mark.slow
def test_a_scale_that_is_not_better_for_sure_is_not_chosen():
    assert study_answers(answers(scaled(0.0), frozenset()))["study"][0].headline == "No scale is better for sure"
    assert len(study_answers(answers(scaled(0.1, seeds=1), frozenset()))["study"]) == 2
