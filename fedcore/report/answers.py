"""The answers of a comparison as boxes of text, for the terminal, the page, MLflow and Prefect."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fedcore.errors import printable
from fedcore.report.names import in_words
from fedcore.report.phrases import facts, headed, headline, scale_sentence, tally
from fedcore.report.tables import FEW, Table
from fedcore.results.advice import Answer
from fedcore.results.criterion import SettingKey
from fedcore.results.summary import split_by_setting

SCALE = "scale="
SCALES = {f"{SCALE}{word}" for word in ("none", "common", "device")}
"""The names of settings that differ in federation.scale alone."""

SPECIAL = re.compile(r"[\\`*_{}\[\]<>#|]")
"""Characters that mean something in Markdown."""


@dataclass(frozen=True)
class Box:
    """One setting's answer, or the count of the answers of a study with more than FEW settings."""

    title: str
    headline: str
    sentences: tuple[str, ...] = ()


def study_answers(answers: Mapping[SettingKey, Answer]) -> dict[str, list[Box]]:
    """Return the boxes of each study."""
    boxes: dict[str, list[Box]] = {}
    for study, of_study in by_study(answers).items():
        if len(of_study) > FEW:
            boxes[study] = [Box(study, tally(of_study.values()))]
            continue
        boxes[study] = _scale_box(study, of_study)
        for (_, dataset, setting), answer in of_study.items():
            title = in_words(study, setting, dataset)
            said, words = headed(answer)
            boxes[study].append(Box(title, said, tuple(words)))
    return boxes


def _scale_box(study: str, answers: Mapping[SettingKey, Answer]) -> list[Box]:
    """Return the box that says which scale is best, if the settings of a study differ in that alone."""
    scales = {setting.removeprefix(SCALE): answer for (_, _, setting), answer in answers.items() if setting in SCALES}
    sentence = scale_sentence(scales) if 1 < len(scales) == len(answers) else None
    return [] if sentence is None else [Box(f"{study}: scale", sentence[0], (sentence[1],))]


def by_study(answers: Mapping[SettingKey, Answer]) -> dict[str, dict[SettingKey, Answer]]:
    """Return the answers of each study."""
    studies: dict[str, dict[SettingKey, Answer]] = {}
    for setting_key, answer in answers.items():
        studies.setdefault(setting_key[0], {})[setting_key] = answer
    return studies


def brief(answers: Mapping[SettingKey, Answer]) -> str:
    """Return a line for each setting: the answer and its facts; for a study with more than FEW settings the count."""
    lines = []
    for study, in_study in by_study(answers).items():
        if len(in_study) > FEW:
            lines.append(f"{study}: {tally(in_study.values())}")
            continue
        for (_, _, setting), answer in in_study.items():
            numbers = ", ".join(f"{value} {meaning}" for value, meaning in facts(answer)) or answer.advice.reason
            lines.append(
                f"{study if len(in_study) == 1 else f'{study}: {setting}'}: {headline(answer.advice)}: {numbers}"
            )
    return "".join(f"{printable(line)}\n" for line in lines)


def answer_numbers(summary: pd.DataFrame, answers: Mapping[SettingKey, Answer]) -> dict[str, dict[str, Any]]:
    """Return each study's numbers for `dvc metrics`; those that are unknown are left out.

    metric: its name. best: the best row that combines, its `value`, and half of the 95 % `interval` over seeds. gain:
    on training alone, above 0 where better, also of an error. methods: the mean of each row. A study of several
    settings has these for each. None depends on what is recommended, so that a change of run.min_effect changes none.
    """
    numbers: dict[str, dict[str, Any]] = {}
    for setting_key, rows in split_by_setting(summary):
        advice = answers[setting_key].advice
        split = rows["primary"].iloc[0]
        means, margins = (rows.set_index("method")[f"{split}_{of}"].dropna().round(6) for of in ("mean", "margin"))
        values = {"value": advice.best_value, "interval": margins.get(advice.best), "gain": advice.best_gain}
        known = {key: round(float(value), 6) for key, value in values.items() if value is not None and pd.notna(value)}
        gain = {"gain": known.pop("gain")} if "gain" in known else {}
        best = {"best": {"method": advice.best, **known}} if advice.best else {}
        metric = answers[setting_key].criterion.metric.name
        of_setting = {"metric": metric, **best, **gain, "methods": means.to_dict()}
        numbers.setdefault(setting_key[0], {})[setting_key[2]] = of_setting
    return {study: next(iter(of.values())) if len(of) == 1 else of for study, of in numbers.items()}


def markdown(boxes: Iterable[Box], tables: Mapping[str, Table] | None = None) -> str:
    """Return boxes, and tables by their titles below them, as Markdown."""
    return "\n\n".join([*map(_box, boxes), *(_table(title, table) for title, table in (tables or {}).items())]) + "\n"


def _box(box: Box) -> str:
    lines = [f"**{_escape(box.title)}: {_escape(box.headline)}**", ""]
    return "\n".join([*lines, *(f"- {_escape(sentence)}" for sentence in box.sentences)])


def _table(title: str, table: Table) -> str:
    heads = [_escape(head.replace("\n", " ")) for head in table.heads]
    lines = [heads, ["---"] * len(heads), *([_escape(cell.text) for cell in line.cells] for line in table.lines)]
    return "\n".join([f"### {_escape(title)}", "", *(f"| {' | '.join(line)} |" for line in lines)])


def _escape(text: str) -> str:
    """Return a text that Markdown shows as it is."""
    return SPECIAL.sub(r"\\\g<0>", text)
