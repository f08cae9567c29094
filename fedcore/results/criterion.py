"""What a comparison is decided by: a metric, the least difference that matters, and the devices that count."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pandas as pd

from fedcore.builders import unknown_value
from fedcore.core.metrics import ACCURACY, MACRO_F1, METRICS, RMSE, Metric, MetricName
from fedcore.errors import COSTS, InputError

if TYPE_CHECKING:
    from fedcore.types.federation import OwnMetric, Scoring

SettingKey: TypeAlias = tuple[str, str, str]
"""study, dataset, setting"""

Weighting: TypeAlias = Literal["devices", "examples"]

LEFT_OUT = "left_out"
"""The split of scores on all labelled rows of devices that took no part: left out one by one, or new sites."""

LARGEST = 0.8
"""Where the largest class has more than this share, a study whose metric is auto takes balanced accuracy."""

UNEQUAL = 10
"""The largest device has at least so many times the rows of the smallest that counts: devices differ in size."""

MIN_EFFECT = 0.01
"""The least difference that matters, unless a user sets another."""

LEAST_TEST = 20
"""The fewest test examples of a device that counts, unless a user or a study sets another number."""

RATIO = 1 / 3
"""Test examples for each training example, where a table does not say how many there are: the default .16 / .48."""

LEVEL = 0.95
"""The confidence of the answer's intervals."""

SHARED_DATA = 0.2
"""The part of Nadeau and Bengio's correction for data that seeds have in common: see :func:`half_width`."""


FEW_CLASSES = 4
"""The most classes of which all costs are written out."""

PLAIN = re.compile(r"(?!(true|false|null)$)[a-z]\w*", re.I)
"""A name that YAML needs no quotes around."""


@dataclass(frozen=True)
class Criterion:
    """What decides.

    metric: what is compared. min_effect: the least difference in it that matters, in its own unit (a fraction, nats, or
    cost per row; of an error in a label's unit a share of the label's deviation, until this is known). least_test: a
    device with fewer test examples, or with test examples of one class only, has no part in means over devices; 0: all
    count. weigh: "devices": each device counts alike; "examples": by expected test rows. positive: the label that f1,
    precision, recall and average precision are of. auto: the metric is balanced accuracy where one class has more than
    LARGEST of all examples. reason: why the metric was chosen, if it was. label_std: the deviation of a number as
    label, once it is known. guess: what the control guesses of a device, in a word.
    """

    metric: Metric = ACCURACY
    min_effect: float = MIN_EFFECT
    least_test: int = 0
    weigh: Weighting = "devices"
    positive: str | None = None
    auto: bool = False
    reason: str = ""
    label_std: float | None = None
    guess: str = "class"

    def __post_init__(self) -> None:
        if not self.min_effect > 0 or (self.metric.per == 100 and self.min_effect >= 1):
            raise InputError(f"run.min_effect = {self.min_effect!r}: must be a fraction, above 0 and below 1")

    def rule(self, costs: Mapping[str, Any]) -> str:
        """Return the settings beside the metric that decide, where they are not the usual ones."""
        said = {"weigh": self.weigh, "least_test": self.least_test, "costs": dict(costs)}
        usual = {"weigh": "devices", "least_test": LEAST_TEST, "costs": {}}
        return ", ".join(f"{key} = {value}" for key, value in said.items() if value != usual[key])

    @property
    def least(self) -> str:
        """The least difference that matters as it is in the settings, "" if it is the usual one."""
        unit = self.label_std if self.label_std and self.metric.in_label_unit else 1.0
        typed = f"{self.min_effect / unit:.6g}"
        return "" if typed == f"{MIN_EFFECT:g}" else typed

    def of_table(self, table: pd.DataFrame) -> Criterion:
        """Return the criterion of one setting's table: its metric, if that depends on the data.

        Of labels that are numbers it is the root mean squared error, of several labels macro F1, unless it was chosen.
        """
        std = label_std(table)
        if not math.isnan(std):
            return self.of_numbers(std)
        if has_several_labels(table):
            return self.of_labels()
        largest = largest_class(table) if self.auto else math.nan
        if not self.auto or math.isnan(largest) or largest <= LARGEST:
            return replace(self, auto=False)
        reason = f"one class has over {LARGEST:.0%} of the examples"
        return replace(self, auto=False, metric=METRICS["balanced_accuracy"], reason=reason)

    def of_numbers(self, std: float) -> Criterion:
        """Return the criterion of labels that are numbers. std: their deviation."""
        if self.label_std is not None:
            return self
        chosen = self
        if "regression" not in self.metric.labels:
            chosen = replace(self, metric=RMSE, reason="the label is a number")
        unit = std if chosen.metric.in_label_unit else 1.0
        return replace(chosen, auto=False, min_effect=unit * self.min_effect, label_std=std, guess="mean")

    def of_labels(self) -> Criterion:
        """Return the criterion of several labels."""
        how = replace(self, auto=False, guess="rates")
        if "multilabel" in self.metric.labels:
            return how
        return replace(how, metric=MACRO_F1, reason="each example has several labels")

    def require_task(self, name: str, where: str = "run") -> None:
        """Refuse a metric, or the label that it is of, which are not for the labels. name: of their task."""
        from fedcore.data.task import LABEL_KINDS, require_classes  # imports PyTorch: `fedcore show` needs none

        if name not in self.metric.labels and self.metric != ACCURACY:
            key = f"{where}.costs:" if self.metric.name == "cost" else f"{where}.metric = {self.metric.name!r}:"
            if "classification" in self.metric.labels:
                require_classes(name, key)
            what = "a number as label" if "regression" in self.metric.labels else "several labels"
            labels = "classes" if LABEL_KINDS[name].predicts_classes else LABEL_KINDS[name].words
            raise InputError(f"{key} is for {what}; these data have {labels}")
        if self.positive is not None and not LABEL_KINDS[name].predicts_classes:
            require_classes(name, f"{where}.positive = {self.positive!r}:")

    @property
    def guessing(self) -> str:
        """What the control does, in words."""
        return f"always guessing{' the cheapest class' * (self.metric.name == 'cost')}"

    @property
    def words(self) -> str:
        """The metric in words, with the label that it is of."""
        return f"{self.metric.words} of {self.positive!r}" if self.metric.of_positive else self.metric.words


def criterion(
    metric: MetricName | Literal["auto"] | None = None, positive: str | None = None,
    costs: Mapping[str, Mapping[str, float]] | None = None, min_effect: float = MIN_EFFECT,
    least_test: int = LEAST_TEST, weigh: Weighting = "devices", where: str = "run",
) -> Criterion:  # fmt: skip
    """Return what decides. metric: None: cost if there are costs, else accuracy. where: where the settings stand.

    Raises InputError for a metric without the label or the costs that it needs, and for costs without their metric.
    """
    name = metric or ("cost" if costs else "accuracy")
    if name != "auto" and name not in METRICS:
        raise unknown_value(f"{where}.metric", name, [*METRICS, "auto"])
    chosen = METRICS["accuracy" if name == "auto" else name]
    if chosen.of_positive and positive is None:
        raise InputError(f"{where}.metric = {name!r}: needs {where}.positive, the label that it counts")
    of_label = costs.values() if isinstance(costs, Mapping) else ()
    if name == "cost" and not (of_label and all(isinstance(of, Mapping) for of in of_label)):
        typed = f"'run.costs={COSTS}'" if where == "run" else f"costs={COSTS}"
        example = f"true label -> predicted label -> cost, such as {typed}"
        raise InputError(f"{where}.metric = 'cost': needs {where}.costs, {example}")
    if name != "cost" and costs:
        raise InputError(f"{where}.costs: is for {where}.metric = 'cost', not {name!r}")
    if costs and not any(any(row.values()) for row in costs.values()):
        raise InputError(f"{where}.costs: every mistake costs nothing; give at least one a cost above 0")
    guess = "cheapest class" if name == "cost" else "class"
    return Criterion(chosen, min_effect, least_test, weigh, positive, name == "auto", guess=guess)


Extra: TypeAlias = Mapping[str, Any]
"""What models are measured by beside what they always are, by the names of the arguments of `scoring`."""


def scoring(
    metric: str | None, positive: str | None, costs: Mapping[str, Mapping[str, float]] | None, classes: Sequence[str],
    metrics: Mapping[str, OwnMetric] | None = None, train: bool = False,
) -> Scoring:  # fmt: skip
    """Return what models are measured by, beside what they always are.

    metric: its name. costs: true label -> predicted label -> cost. metrics, train: see
    :class:`fedcore.types.federation.Scoring`.
    Raises InputError for a label that is no class.
    """
    from fedcore.types.federation import Scoring

    chosen, more = METRICS.get(metric or "", ACCURACY), Scoring(own=tuple((metrics or {}).items()), train=train)
    if chosen.always:
        return more
    if chosen.of_positive:
        return replace(more, metric=metric, positive=_class("run.positive", positive, classes))
    if metric != "cost":
        return replace(more, metric=metric)
    matrix = [[0.0] * len(classes) for _ in classes]
    for truth, row in (costs or {}).items():
        for guess, value in row.items():
            if not 0 <= value < math.inf:
                raise InputError(f"run.costs.{truth}.{guess} = {value}: must be a finite number from 0 on")
            matrix[_class("run.costs", truth, classes)][_class(f"run.costs.{truth}", guess, classes)] = float(value)
    return replace(more, metric=metric, costs=tuple(map(tuple, matrix)))


def free_mistakes(
    costs: Mapping[str, Mapping[str, float]] | None, classes: Sequence[str], shown: int = 3, where: str = "run"
) -> str:
    """Return a line on the wrong predictions that costs leave out, and what to type; "" if there are none.

    shown: the most that it names. where: where the costs stand.
    """
    if not costs:
        return ""
    others = {truth: [guess for guess in classes if guess != truth] for truth in classes}
    free = [(truth, guess) for truth in classes for guess in others[truth] if guess not in costs.get(truth, {})]
    if not free:
        return ""
    whole = {truth: {guess: costs.get(truth, {}).get(guess, 1) for guess in others[truth]} for truth in classes}
    if len(classes) > FEW_CLASSES:
        whole = {free[0][0]: {free[0][1]: 1}}
    names = {name: json.dumps(name, ensure_ascii=False) for name in classes}
    names |= {name: name for name in classes if where == "run" and PLAIN.fullmatch(name)}
    cells = {of: ", ".join(f"{names[guess]}: {cost:.10g}" for guess, cost in row.items()) for of, row in whole.items()}
    rows = [f"{names[truth]}: {{{of}}}" for truth, of in cells.items()]
    typed = f"costs={{{', '.join(rows)}{', ...' * (len(classes) > FEW_CLASSES)}}}"
    typed = quote(f"run.{typed}") if where == "run" else typed
    few = ", ".join(f"{truth} taken for {guess}" for truth, guess in free[:shown])
    more = f" and {len(free) - shown} more" * (len(free) > shown)
    return f"{where}.costs: not listed, so it costs nothing: {few}{more}; to let it cost 1: {typed}"


def _class(key: str, label: str | None, classes: Sequence[str]) -> int:
    """Return the number of a class."""
    if label not in classes:
        raise unknown_value(key, label, classes)
    return [*classes].index(str(label))


@dataclass(frozen=True)
class Measured:
    """Which devices have a part in means over devices' own test data.

    devices: their weights, by name; all of them if `everyone`. few: devices with fewer than the least test examples.
    one_class: those whose test examples are of one class. undefined: those on which the metric has no value.
    everyone: no device was measurable, so that all count.
    expected: the numbers are to be expected whatever the seeds, rows times share; otherwise they are means over seeds.
    """

    weights: Mapping[str, float]
    few: tuple[str, ...] = ()
    one_class: tuple[str, ...] = ()
    undefined: tuple[str, ...] = ()
    everyone: bool = False
    expected: bool = False


def measured(table: pd.DataFrame, criterion: Criterion) -> Measured:
    """Return the devices of one setting of a tidy table that count, by their numbers of test examples and classes.

    Of devices that are given they are what is to be expected, so that every number of seeds counts the same devices; of
    drawn ones means over seeds. A table that does not hold them counts everyone alike.
    """
    numbers = _data_numbers(table)
    names = [str(name) for name in table["device"][table["split"] != LEFT_OUT].unique() if name]
    if "test_examples" not in numbers:
        return Measured(dict.fromkeys(names, 1.0))
    given = "expected_test" in numbers
    sizes, classes = ("expected_test", "expected_classes") if given else ("test_examples", "test_classes")
    counted = measured_by(numbers[sizes], numbers[classes], criterion)
    values = table[(table["split"] == "test") & (table["metric"] == criterion.metric.column)].groupby("device")["value"]
    undefined = {*values.max().index[values.count() == 0]} & {*counted.weights}
    weights = {name: weight for name, weight in counted.weights.items() if name not in undefined}
    return replace(counted, weights=weights, undefined=tuple(sorted(undefined)), expected=given)


def measured_new(table: pd.DataFrame, criterion: Criterion) -> Measured:
    """Return the devices that took no part of one setting of a tidy table, and which of them count, each alike.

    A device counts as :func:`measured` has it, by all of its labelled examples.
    """
    rows = table[(table["split"] == LEFT_OUT) & table["metric"].isin(["examples", "classes"])]
    if rows.empty:
        return Measured({})
    sizes = rows.pivot_table("value", "device", "metric", aggfunc="mean")
    return measured_by(sizes["examples"], sizes["classes"], replace(criterion, weigh="devices"))


def measured_by(sizes: pd.Series, classes: pd.Series, criterion: Criterion) -> Measured:
    """Return which devices count by the numbers of their test examples and of the classes of these."""
    few = sizes < criterion.least_test
    single = (classes.reindex(sizes.index) <= 1) & ~few & bool(criterion.least_test)
    measurable = sizes[~few & ~single]
    counted = sizes[sizes > 0] if measurable.empty else measurable
    weights = {str(name): float(size) if criterion.weigh == "examples" else 1.0 for name, size in counted.items()}
    return Measured(weights, tuple(sizes.index[few]), tuple(sizes.index[single]), everyone=measurable.empty)


def ratio_of_test(table: pd.DataFrame, split: str, devices: Mapping[str, float]) -> float:
    """Return the number of test examples for each training example, of some devices or of the shared test set.

    At most RATIO, the splits on which the interval was measured: a test set that is larger, such as an official one,
    makes seeds no more alike.
    """
    numbers = _data_numbers(table)
    if not {"examples", "test_examples", "shared_examples"} <= {*numbers}:
        return RATIO
    of = numbers.reindex([name for name in devices if name in numbers.index]) if split == "test" else numbers
    tests = of["test_examples"].sum() if split == "test" else numbers["shared_examples"].mean()
    trained = of["examples"].sum()
    return min(float(tests / trained), RATIO) if trained and not math.isnan(tests) else RATIO


def half_width(spread: float, seeds: int, ratio: float, level: float = LEVEL, among: int = 1) -> float:
    """Return half of the two-sided interval of a mean over seeds; nan for one seed, whose spread is.

    t s sqrt(1 / S + q / 5), with Student's distribution with S - 1 degrees of freedom, and s and q as below; S seeds.

    spread: s, the standard deviation over seeds. ratio: q, test examples for each training example (after Nadeau and
    Bengio 2003, whose correction, all of q, covers 98 % of made tables; a fifth covers 95 to 96 %). level: its
    confidence. among: the comparisons of which it is one (Bonferroni).
    """
    if math.isnan(spread):
        return math.nan
    return _quantile(seeds - 1, level, among) * spread * math.sqrt(1 / seeds + SHARED_DATA * ratio)


@cache
def _quantile(freedom: int, level: float, among: int) -> float:
    from scipy.special import stdtrit  # a quarter of a second, which `fedcore show` does not need

    return float(stdtrit(freedom, 1 - (1 - level) / 2 / among))


def is_same_test(table: pd.DataFrame) -> bool:
    """Return whether every seed tests the same examples of a device, since the data mark them."""
    numbers = _data_numbers(table)
    return "same_test" in numbers and bool(numbers["same_test"].any())


def largest_class(table: pd.DataFrame) -> float:
    """Return the largest class's share of all labelled examples, nan if a table does not hold it."""
    numbers = _data_numbers(table)
    return float(numbers["largest_class"].mean()) if "largest_class" in numbers else math.nan


def label_std(table: pd.DataFrame) -> float:
    """Return the deviation of labels that are numbers, mean over seeds; nan for classes."""
    values = table[(table["split"] == "data") & (table["metric"] == "label_std")]["value"]
    return float(values.mean()) if len(values) else math.nan


def has_several_labels(table: pd.DataFrame) -> bool:
    """Return whether each example has several labels."""
    return bool(((table["split"] == "data") & (table["metric"] == "labels")).any())


def _data_numbers(table: pd.DataFrame) -> pd.DataFrame:
    """Return numbers of the devices' data, means over seeds: a row per device, a column per number."""
    rows = table[table["split"] == "data"]
    if rows.empty:
        return pd.DataFrame()
    return rows.pivot_table("value", "device", "metric", aggfunc="mean")
