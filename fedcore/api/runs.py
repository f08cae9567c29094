"""Running and comparing methods from a script; the pipeline does the same with cached and recorded steps."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property, partial
from inspect import Parameter, Signature
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedcore.api.executor import Accelerator, executor
from fedcore.api.federation import DividedDataset, architecture, partitioner
from fedcore.builders import CONTEXT, describe, settings_of, unknown_value
from fedcore.config.help import method_help
from fedcore.config.methods import MethodConfig, configure
from fedcore.core.evaluation import outputs
from fedcore.core.new_device import NEVER, has_model_for_new, score_new
from fedcore.core.rounds import Execute, RoundResult, State, deployments, require_state
from fedcore.core.rounds import run as rounds
from fedcore.core.training import Training
from fedcore.data import schema_of
from fedcore.data.encoding import encode
from fedcore.data.prepare import preparation_bytes
from fedcore.execute.workers import one_thread
from fedcore.methods import METHODS, builder
from fedcore.nets import NETS
from fedcore.nets.builders_by_path import describe_net
from fedcore.nets.copies import template
from fedcore.nets.inputs import takes_integers
from fedcore.partition import PARTITIONS, final_splits
from fedcore.partition.tables import training_numbers
from fedcore.report import latex
from fedcore.report.latex import Spread
from fedcore.report.phrases import AnswerInWords
from fedcore.results import reports, summary, tidy
from fedcore.results.answer import GUESSES, answer, rows_to_leave_out
from fedcore.results.claims import Ceiling, Claim, Gate, Points, judge_all, verdict_table
from fedcore.results.criterion import (
    LEAST_TEST,
    METRICS,
    MIN_EFFECT,
    Criterion,
    Metric,
    MetricName,
    Weighting,
    criterion,
    require_metrics,
    scoring,
)
from fedcore.results.summary import NO_SECONDS, SPLITS, format_bytes, last_round, standings, summarise
from fedcore.types import Data, Diverged, Federation, InputError, Method, Model, Net, OwnMetric, Report, naming

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STUDY, SETTING = "script", "base"
"""The study and the setting in a script's tidy table."""


Extra: TypeAlias = Mapping[str, Any]
"""What models are measured by beside what they always are: metric, positive, costs, metrics and train."""

TRAINING_AND_LABEL = {
    "training": "how devices train, or a dict of what changes in it, see `fedcore.method`.",
    "label": "the method's name in tables; its own by default.",
}
"""Help of the two settings that all methods share."""


def method(
    which: str | Callable[..., Method],
    *,
    training: Training | Mapping[str, Any] | None = None,
    label: str | None = None,
    **settings: Any,
) -> MethodConfig:
    """Describe a method with its settings.

    Args:
        which: its name, "package.module:function", or your own builder (docs/adding-a-method.md).
        training: how devices train: a :class:`fedcore.core.training.Training`, or a dict of the settings that differ.
        label: its name in tables; the method's by default.
        settings: the method's own; the others have the defaults of its signature.

    Raises:
        InputError: naming the method and the setting, for a setting that is unknown or out of range.
    """
    build = builder(which) if isinstance(which, str) else which
    name = getattr(build, "__name__", "method")
    if training is not None and not isinstance(training, Training | Mapping):
        raise InputError(f"{name}.training = {training!r}: must be a Training, or a dict of its settings")
    defaults = getattr(build, "training_defaults", {})
    if isinstance(training, Training):  # all of it counts, but for a start that nobody asked for
        training = {key: value for key, value in asdict(training).items() if key != "shared_init" or value}
    return configure(
        which, settings, {**defaults, **(training or {})}, label=label or name, training_key=f"{name}.training"
    )


@cache
def config_of(name: str) -> Callable[..., MethodConfig]:
    """Return the function that takes the settings of the method of that name."""
    build = builder(name)

    def make(
        *, training: Training | Mapping[str, Any] | None = None, label: str | None = None, **settings: Any
    ) -> MethodConfig:
        return method(name, training=training, label=label, **settings)

    both = {
        **settings_of(build, CONTEXT),
        "training": (Training | Mapping[str, Any] | None, None),
        "label": (str | None, None),
    }
    make.__name__ = make.__qualname__ = name
    make.__doc__ = method_help(build, TRAINING_AND_LABEL)
    make.__signature__ = Signature(  # type: ignore[attr-defined]
        [Parameter(key, Parameter.KEYWORD_ONLY, default=default, annotation=of) for key, (of, default) in both.items()]
    )
    return make


def settings_functions() -> dict[str, Callable[[str], Callable[..., Any]]]:
    """Return, for each method, partition and net, a function that returns the function of its settings."""
    return {
        **dict.fromkeys(NETS, architecture),
        **dict.fromkeys(PARTITIONS, partitioner),
        **dict.fromkeys(METHODS, config_of),
    }


@dataclass(frozen=True)
class DeployedModel:
    """The model deployed on a device.

    shape: an example's. scale: prepares new examples as the device prepared its own. encode: the same for the rows of a
    data frame, by the names of its columns; None for data that are not a table.
    """

    model: Model
    net: Net
    shape: tuple[int, ...]
    scale: Callable[[Data], Data]
    encode: Callable[[pd.DataFrame], Tensor] | None = None

    def __repr__(self) -> str:
        """Name the net, and count the parameters of all nets that the model runs, buffers included."""
        nets = self.model.params
        count = sum(leaf.numel() for params in nets for leaf in params.values())
        several = f"{len(nets)} nets like " if len(nets) > 1 else ""
        return f"DeployedModel: {several}{describe_net(self.model.net or self.net)}, {count:,} parameters"

    def probabilities(self, x: ArrayLike | pd.DataFrame) -> NDArray[np.float32]:
        """Return the probabilities of the classes, (N, K), of examples x (N, *shape) as they were loaded.

        x may be a data frame with the columns of the table that was learnt from. Raises InputError for examples of
        another shape or that are not numbers, and for a frame that lacks a column or has a cell of another kind.
        """
        inputs = self.encode(x) if self.encode is not None and isinstance(x, pd.DataFrame) else self._prepared(x)
        with one_thread():
            probabilities: NDArray[np.float32] = outputs(self.model, self.net, inputs).exp().numpy()
        return probabilities

    def _prepared(self, x: Any) -> Tensor:
        """Return an array's examples as the device prepares them."""
        values = np.asarray(x)
        if values.shape[1:] != self.shape or values.dtype.kind not in "biuf":
            raise InputError(
                f"predict: x has the shape {values.shape} and type {values.dtype}, must be numbers of shape "
                f"{('N', *self.shape)}".replace("'", "")
            )
        examples = torch.tensor(values)
        if takes_integers(template(self.net)):
            return examples.float()
        data = Data(examples if examples.dtype == torch.uint8 else examples.float(), torch.zeros(0))
        return self.scale(data).inputs()

    def predict(self, x: ArrayLike | pd.DataFrame) -> NDArray[np.int64]:
        """Return the numbers of the most probable classes, (N,), of examples x, as for `probabilities`."""
        classes: NDArray[np.int64] = self.probabilities(x).argmax(1)
        return classes


@dataclass(frozen=True)
class Result:
    """The result of a method with one seed.

    Attributes:
        config: the method with its settings.
        rounds: the outcome of each round.
        models: the model deployed on each device, by its name.
        table: a row for each number, with the columns study, dataset, setting, method, seed, stage, round, device,
            split, metric and value (units: docs/concepts.md). Traffic in it is one device's, in bytes.
    """

    config: MethodConfig
    seed: int
    fed: DividedDataset | Federation
    method: Method
    rounds: tuple[RoundResult, ...]
    table: pd.DataFrame

    def __repr__(self) -> str:
        """Name the method, and give its accuracies after the last round."""
        last = last_round(self.table)
        scores = []
        for split, where in SPLITS.items():
            values = last["value"][(last["split"] == split) & (last["metric"] == "accuracy")].dropna()
            if len(values):
                scores.append(f"{where} {values.mean():.1%} right, worst device {values.min():.1%}")
        return "; ".join([f"Result of {self.config.label}, seed {self.seed}, rounds: {len(self.rounds)}", *scores])

    @property
    def state(self) -> State:
        """The state after the last round, from which `run(..., state=)` goes on."""
        return self.rounds[-1].state

    @cached_property
    def models(self) -> dict[str, DeployedModel]:
        fed = _federation(self.fed, self.seed)
        groups = deployments(self.method, fed, self.rounds[-1].state)
        with one_thread():
            models = {name: deploy(*inputs) for names, (deploy, *inputs) in groups for name in names}
        return {
            name: DeployedModel(
                models[name], device.net, tuple(device.data.train.x.shape[1:]), self._scale(name), self._encode(name)
            )
            for name, device in fed.devices.items()
        }

    def _scale(self, device: str) -> Callable[[Data], Data]:
        if isinstance(self.fed, DividedDataset):
            return partial(self.fed.scale_like, device=device, seed=self.seed)
        return _unscaled

    def _encode(self, device: str) -> Callable[[pd.DataFrame], Tensor] | None:
        if not isinstance(self.fed, DividedDataset) or not schema_of(self.fed.dataset).columns:
            return None
        return partial(encode, schema=self.fed.schema(self.seed), device=device)


def _unscaled(data: Data) -> Data:
    return data


def _federation(fed: DividedDataset | Federation, seed: int) -> Federation:
    return fed.federation(seed) if isinstance(fed, DividedDataset) else fed


@dataclass(frozen=True)
class Comparison:
    """The results of several methods.

    Attributes:
        results: method by method for each seed.
        claims: a row for each claim, with the columns rule, verdict and numbers among others.
        table: the results' tables, one below the other.
        summary: a row for each method, the best first: method, control, rank, test_mean, test_worst, shared_mean, ...
            (accuracies after the last round, fractions), bytes_up and bytes_down (of all devices together), rounds,
            n_devices, n_seeds and others, see docs/concepts.md.
        answer: what to do, and why; print it. It counts the bytes of one device.
        left_out: methods that diverged, each with the reason; they have no results.
    """

    results: tuple[Result, ...]
    claims: pd.DataFrame
    table: pd.DataFrame
    summary: pd.DataFrame
    answer: AnswerInWords
    left_out: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Show the answer, and the summary's main columns: accuracies in %, and the bytes of all devices together."""
        scores = self.summary[[f"{split}_{part}" for split in SPLITS for part in ("mean", "worst")]]
        shown = pd.DataFrame({"method": self.summary["method"], "rank": standings(self.summary)})
        shown = shown.join(scores.dropna(axis=1, how="all").map("{:.1%}".format))
        shown["all send"], shown["all receive"] = (
            self.summary[f"bytes_{way}"].map(format_bytes) for way in ("up", "down")
        )
        gone = "".join(f"\n{label} is left out: {reason}" for label, reason in self.left_out.items())
        return f"{self.answer}\n{shown.to_string(index=False)}{gone}"

    def to_latex(self, by: Literal["method", "device"] = "method", spread: Spread = "interval") -> str:
        """Return a table for a paper, for LaTeX with booktabs, in the metric that decides; the best is bold.

        by: "method": a row per method, with means over devices and seeds; "device": a row per device, a column per
        method. spread: what follows a mean: half of its 95 % "interval", or the standard deviation, "std", over seeds.
        """
        for key, word, known in (("by", by, ("method", "device")), ("spread", spread, get_args(Spread))):
            if word not in known:
                raise unknown_value(f"to_latex.{key}", word, known)
        if by == "method":
            return latex.method_table(self.summary, self.table, spread)
        return latex.device_table(self.table, METRICS[self.summary["metric"].iloc[0]], [*self.summary["method"]])

    def curves(self, metric: str | None = None) -> Figure:
        """Return a figure of a metric after every evaluated round, a band of one standard deviation over seeds.

        metric: its name in the table; None: the one that decides. `found.curves().savefig("curves.pdf")` writes it.
        """
        from fedcore.report.figures.results import curves  # matplotlib takes a while

        name = metric or METRICS[self.summary["metric"].iloc[0]].column
        known = {one.column: one for one in METRICS.values()}
        course = summary.curves(self.table)
        if name not in set(course["metric"]):
            raise unknown_value("curves.metric", name, sorted(set(course["metric"])))
        return curves(course, known.get(name, Metric(name, name, name, per=1)))


def run(
    method: MethodConfig,
    fed: DividedDataset | Federation,
    seed: int = 0,
    *,
    workers: int | None = None,
    every: int = 1,
    progress: bool | None = None,
    state: State | None = None,
    accelerator: Accelerator = "none",
    together: int = 1,
    metrics: Mapping[str, OwnMetric] | None = None,
    score_training: bool = False,
) -> Result:
    """Run a method on a federation, which is divided with the same seed.

    Args:
        method: a method with its settings, such as `fedavg(rounds=10)`.
        fed: from `federate`, or devices with their examples.
        seed: of the division, the initial models and every draw.
        workers: so many worker processes; None: this process. The results are the same bits.
        every: evaluate after each so many rounds; the last round always is.
        progress: show a bar; None: where there is a terminal.
        state: of an earlier run with the same seed, `result.state`, to go on from; None: from the start. The result has
            the rounds after it.
        accelerator: where devices' steps run: "none": on the CPU; "auto": on a GPU if there is one; "cuda": on a GPU.
        together: devices of one net that train in one step there, as the rows of one matrix (docs/pipeline.md).
        metrics: functions by name, each of probabilities (N, K) and labels (N,), tensors, that returns a number; the
            table has it for each device and split.
        score_training: whether the table has split `train`, the scores on what each device trains on.

    Raises:
        InputError: for a method that these nets or data do not allow, and a state after which no round is left.
    """
    _check([method], fed, {"every": every, "workers": workers}, "run")
    require_metrics(metrics, "run")
    extra = {"metric": None, "positive": None, "costs": None, "metrics": metrics, "train": score_training}
    more = extra if metrics or score_training else None
    return run_all([method], fed, [seed], workers, every, progress, more, None, accelerator, together, state)[0]


def final_fit(
    method: MethodConfig,
    fed: DividedDataset | Federation,
    seed: int = 0,
    *,
    workers: int | None = None,
    progress: bool | None = None,
) -> Result:
    """Run a method once more for models to deploy: each device trains on all its labelled examples.

    Those are its train, val and test examples, and those of the shared test set that come from it, see
    :func:`fedcore.partition.final_partition`. A method that chooses or weighs models by validation examples keeps them
    for that, and one that does so by the shared test set keeps that (`Method.held_out`). Nothing is left that could
    test the models, so that the result's table has no scores: the accuracy to expect is that of :func:`run` or
    :func:`compare`, on fewer examples.

    Args:
        method: a method with its settings, such as the row that an answer recommends.
        fed: from `federate`, or devices with their examples; whether a shared test example comes from one of the
            latter is not known, so that none is trained on.
        seed: of the division, the initial models and every draw.
        workers: so many worker processes; None: this process. The models are the same bits.
        progress: show a bar; None: where there is a terminal.

    Raises:
        InputError: for a method that these nets or data do not allow.
    """
    _check([method], fed, {"workers": workers}, "final_fit")
    held_out = method.build(_federation(fed, seed).public.nets).held_out
    whole = fed.for_final_fit(held_out) if isinstance(fed, DividedDataset) else _whole(fed, held_out)
    (result,) = run_all([method], whole, [seed], workers, sys.maxsize, progress)
    return replace(result, table=tidy.without_scores(result.table))


def _whole(fed: Federation, held_out: Collection[str]) -> Federation:
    """Return the federation of a final fit."""
    devices = {name: replace(device, data=final_splits(device.data, held_out)) for name, device in fed.devices.items()}
    test = fed.test if "shared" in held_out else Data(fed.test.x[:0], fed.test.y[:0])
    return replace(fed, devices=devices, test=test)


def compare(
    methods: Iterable[MethodConfig],
    fed: DividedDataset | Federation,
    seeds: Iterable[int] = (0,),
    *,
    claims: Iterable[Claim | str] = (),
    valid: Iterable[Gate] = (),
    ceiling: Ceiling = "auto",
    converged: bool = False,
    metric: MetricName | Literal["auto"] | None = None,
    positive: str | None = None,
    costs: Mapping[str, Mapping[str, float]] | None = None,
    min_effect: float = MIN_EFFECT,
    least_test: int = LEAST_TEST,
    weigh: Weighting = "devices",
    new_device: Literal["left_out", "shared"] = "shared",
    left_out_rows: Literal["best", "all"] = "best",
    workers: int | None = None,
    every: int = 1,
    progress: bool | None = None,
    accelerator: Accelerator = "none",
    together: int = 1,
    metrics: Mapping[str, OwnMetric] | None = None,
    score_training: bool = False,
) -> Comparison:
    """Run several methods with each seed; see :func:`run`.

    Args:
        methods: methods with their settings, each with a label of its own; the controls that always guess are added.
        fed: what :func:`federate` describes, or a federation of your own.
        seeds: e.g. range(3); what the answer and the claims say of spread is over these.
        claims: rules to be judged, e.g. "code_ot > fedavg" (:mod:`fedcore.results.claims`); each needs three seeds.
        valid: what must hold for the claims to be tested.
        ceiling: from which mean on rows are too good for a claim that one is better; "auto": by a rule; None: never.
        converged: whether claims about the end are tested only where no row that they compare still gains.
        metric: what decides answer and ranks (docs/concepts.md); "auto": balanced accuracy where one class has more
            than .8 of the examples, else accuracy; None: cost if there are costs, else accuracy.
        positive: the label that f1, precision, recall and average_precision are of.
        costs: of metric "cost": true label -> predicted label -> cost; what is not listed costs nothing.
        min_effect: the least difference in the metric that matters: a fraction, nats, or cost per row.
        least_test: a device with fewer test examples, or with test examples of one class, has no part in means over
            devices; 0: all have.
        weigh: "devices": each device counts alike in means; "examples": by its test examples.
        new_device: where the answer for a new device is from: "left_out": each device in turn is left out of training,
            and the models are scored on all its labelled rows; "shared": the shared test set, new rows of all devices.
        left_out_rows: what is trained without each device: "best": the best row that combines, the best that trains
            alone and the controls that guess; "all": all rows that have a model for a new device.
        workers: processes that train; None: this one.
        every: scores are taken after every so many rounds, and after the last.
        progress: whether to show a bar; None: in a terminal.
        accelerator: where devices' steps run, as in :func:`run`.
        together: devices that train in one step there, as in :func:`run`.
        metrics: functions by name, as in :func:`run`; they decide nothing.
        score_training: whether the table has split `train`, as in :func:`run`.

    Raises:
        InputError: as :func:`run` does, and where two methods have one label. A method that diverges is left out.
    """
    asked = list(methods)
    if not asked:
        raise InputError("compare: there is no method to run")
    _check(asked, fed, {"every": every, "workers": workers}, "compare")
    require_metrics(metrics, "compare")
    if not isinstance(seeds, Iterable):
        raise InputError(f"compare.seeds = {seeds!r}: must be several, e.g. range(3)")
    chosen = [*asked, *_guesses(asked, fed)]
    labels = Counter(config.label for config in chosen)
    if (twice := labels.most_common(1)[0])[1] > 1:
        raise InputError(f"compare: two methods are called {twice[0]!r}; give one of them another label")
    if not (ceiling in (None, "auto") or (isinstance(ceiling, int | float) and 0 <= ceiling <= 1)):
        raise InputError(f"compare.ceiling = {ceiling!r}: must be auto, None, or a number from 0 to 1")
    rules = [claim if isinstance(claim, Claim) else Claim(claim, claim) for claim in claims]
    gates = list(valid)
    for key, text, named in [
        *(("claims", rule.rule, rule.labels) for rule in rules),
        *(("valid", gate.require, gate.labels) for gate in gates),
    ]:
        if missing := named - labels.keys():
            raise InputError(f"compare.{key}: {text!r} names {sorted(missing)[0]!r}, which is not compared")
    for key, word, known in (
        ("new_device", new_device, ("left_out", "shared")),
        ("left_out_rows", left_out_rows, ("best", "all")),
    ):
        if word not in known:
            raise unknown_value(f"compare.{key}", word, known)
    decides = criterion(metric, positive, costs, min_effect, least_test, weigh, "compare")
    extra: Extra = {"metric": decides.metric.name, "positive": positive, "costs": costs}
    extra = {**extra, "metrics": metrics, "train": score_training}
    left_out: dict[str, str] = {}
    results = run_all(
        chosen, fed, seeds, workers, every, progress, extra, left_out, accelerator, together, where="compare"
    )
    controls = frozenset(config.label for config in chosen if getattr(config.builder, "control", False))
    if new_device == "left_out":
        results = _leave_out(results, controls, decides, left_out_rows, extra, executor(workers, accelerator, together))
    table = pd.concat([result.table for result in results], ignore_index=True)
    points: Points = {SETTING: {}}
    verdicts = verdict_table((STUDY, verdict) for verdict in judge_all(rules, gates, table, points, ceiling, converged))
    found = AnswerInWords.of(answer(table, controls, decides))
    return Comparison(results, verdicts, table, summarise(table, NO_SECONDS, controls, decides), found, left_out)


def _check(methods: Sequence[object], fed: object, counts: Mapping[str, int | None], where: str) -> None:
    """Raise InputError for what is not a method, a federation or a count. where: the function that the user called."""
    for config in methods:
        if not isinstance(config, MethodConfig):
            raise InputError(
                f"{where}: {describe(config)} is not a method with settings, such as fedavg(rounds=10) "
                "or method(my_builder, ...)"
            )
    if not isinstance(fed, DividedDataset | Federation):
        raise InputError(f"{where}.fed: {describe(fed)} is not a federation; make one with federate(data, ...)")
    for key, count in counts.items():
        if count is not None and count < 1:
            raise InputError(f"{where}.{key} = {count!r}: must be at least 1")


def run_all(
    methods: Sequence[MethodConfig],
    fed: DividedDataset | Federation,
    seeds: Iterable[int],
    workers: int | None,
    every: int,
    progress: bool | None,
    extra: Extra | None = None,
    left_out: dict[str, str] | None = None,
    accelerator: Accelerator = "none",
    together: int = 1,
    state: State | None = None,
    where: str = "run",
) -> tuple[Result, ...]:
    """Run all methods with each seed.

    extra: what models are measured by beside what they always are. left_out: gets the labels of the methods that
    diverge, with the reason; None: the first one ends the run. accelerator, together, state: see `run`. where: the
    function that the user called.
    """
    shown = sys.stdout.isatty() if progress is None else progress
    results = []
    with executor(workers, accelerator, together, where) as execute:
        for seed, config in product(seeds, methods):
            if left_out and config.label in left_out:
                continue
            try:
                results.append(_run_one(config, fed, seed, execute, every, shown, extra, state))
            except Diverged as diverged:
                if left_out is None or len({*left_out, config.label}) == len(methods):
                    raise
                left_out[config.label] = str(diverged)
    return tuple(result for result in results if result.config.label not in (left_out or ()))


def _run_one(
    config: MethodConfig,
    fed: DividedDataset | Federation,
    seed: int,
    execute: Execute,
    every: int,
    progress: bool,
    extra: Extra | None = None,
    state: State | None = None,
) -> Result:
    federation = _federation(fed, seed)
    if extra is not None:
        federation = replace(federation, scoring=scoring(**extra, classes=_classes(fed)))
    sizes = {name: len(device.data.train) for name, device in federation.devices.items()}
    method = config.build(federation.public.nets, sizes, federation.task)
    if state is not None:
        require_state(method, federation, state)
    steps = rounds(method, federation, seed, execute, state, every)
    said = f"{config.label}, seed {seed}"
    with naming(f"in method {said}"):
        results = tuple(_show_progress(steps, said, method) if progress else steps)
    of_rounds = [result.report for result in results if isinstance(result.report, Report)]
    numbers = dict(reports.final_numbers(method, of_rounds, results[-1].scores))
    data = training_numbers(fed.dataset, fed.partition(seed)) if isinstance(fed, DividedDataset) else _sizes(fed)
    numbers = {"data": data, **numbers}
    before: dict[str, dict[str, float]] = {}
    if isinstance(fed, DividedDataset) and state is None:
        before = dict.fromkeys(federation.devices, preparation_bytes(schema_of(fed.dataset), fed.scale))
    place = tidy.Row(STUDY, fed.name if isinstance(fed, DividedDataset) else "data", SETTING, config.label, seed)
    table = tidy.rows(place, results, of_rounds, numbers, before)
    if isinstance(fed, DividedDataset) and (sites := fed.new_sites(seed)):
        scores = score_new(method, federation, results[-1].state, execute, fed.nets[0], sites)
        table = pd.concat([table, tidy.left_out_rows(table, scores)], ignore_index=True)
    return Result(config, seed, fed, method, results, table)


def _leave_out(
    results: Sequence[Result],
    controls: frozenset[str],
    decides: Criterion,
    which: Literal["best", "all"],
    extra: Extra | None,
    opening: AbstractContextManager[Execute],
) -> tuple[Result, ...]:
    """Return the results with the scores on each device that some rows reach without it. which: rows."""
    table = pd.concat([result.table for result in results], ignore_index=True)
    with opening as execute:
        able = {
            result.config.label
            for result in results
            if has_model_for_new(result.method, _federation(result.fed, result.seed), result.rounds[-1].state, execute)
        }
        rows = able if which == "all" else rows_to_leave_out(table, controls, frozenset(able), decides)
        found = []
        for result in results:
            label, names = result.config.label, [*_federation(result.fed, result.seed).devices]
            if len(names) < 2:
                raise InputError("compare.new_device = 'left_out': needs at least two devices")
            if label in rows:
                scores = {name: _score_left_out(result, name, execute, extra) for name in names}
            else:
                scores = {} if label in able else {name: {"accuracy": math.nan} for name in names}
            more = tidy.left_out_rows(result.table, scores)
            whole = pd.concat([result.table, more], ignore_index=True) if len(more) else result.table
            found.append(replace(result, table=whole))
    return tuple(found)


def _score_left_out(result: Result, device: str, execute: Execute, extra: Extra | None) -> dict[str, float]:
    """Run a result's method without a device, with the same seed, and score it on that device's labelled examples."""
    whole = _federation(result.fed, result.seed)
    net = whole.devices[device].net
    if isinstance(result.fed, DividedDataset):
        fed, examples = result.fed.left_out(device, result.seed)
    else:
        own = whole.devices[device].data
        parts = [part for part in (own.train, own.val, own.test) if len(part)]
        examples = Data(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))
        fed = replace(whole, devices={name: one for name, one in whole.devices.items() if name != device})
    if extra is not None:
        fed = replace(fed, scoring=scoring(**extra, classes=_classes(result.fed)))
    method = result.config.build(fed.public.nets, {name: len(one.data.train) for name, one in fed.devices.items()})
    *_, last = rounds(method, fed, result.seed, execute, every=NEVER)
    return score_new(method, fed, last.state, execute, net, {device: examples})[device]


def _guesses(methods: Sequence[MethodConfig], fed: DividedDataset | Federation) -> list[MethodConfig]:
    """Return the controls that always guess, those that are not asked for, if the nets allow them."""
    asked = {config.label for config in methods}
    nets = fed.nets if isinstance(fed, DividedDataset) else [device.net for device in fed.devices.values()]
    found = []
    for name in GUESSES:
        config = method(name)
        try:
            config.build({str(number): net for number, net in enumerate(nets)})
        except InputError:
            continue
        if name not in asked:
            found.append(config)
    return found


def _classes(fed: DividedDataset | Federation) -> list[str]:
    """Return the names of the classes; their numbers for a federation without names."""
    return [*fed.dataset.classes] if isinstance(fed, DividedDataset) else [str(k) for k in range(fed.classes)]


def _sizes(fed: Federation) -> dict[str, dict[str, float]]:
    """Return the numbers of training_numbers that say which devices count."""
    return {
        name: {
            "examples": float(len(device.data.train)),
            "test_examples": float(len(device.data.test)),
            "test_classes": float(len(torch.unique(device.data.test.y))),
            "shared_examples": float(len(fed.test)),
            "same_test": 1.0,
        }
        for name, device in fed.devices.items()
    }


def _show_progress(results: Iterator[RoundResult], what: str, method: Method) -> Iterator[RoundResult]:
    """Show the progress of a method's rounds."""
    from rich.progress import track

    return iter(track(results, description=what, total=sum(stage.rounds for stage in method.stages)))
