"""Running, comparing and tuning methods from a script; the pipeline does the same with cached and recorded steps."""

import math
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from inspect import signature
from itertools import islice, product
from operator import index
from typing import Any, Literal, TypeAlias

import pandas as pd
import torch

from fedcore.api.effort import differing_value, effort, processes
from fedcore.api.federation import DividedDataset, federation_of, method, require_defaults, task_name
from fedcore.api.results import Comparison, Result
from fedcore.builders import can_take, describe, parameters
from fedcore.config.methods import MethodConfig, configure
from fedcore.config.signatures import check_arguments
from fedcore.core.metrics import CATALOGUE, MetricName
from fedcore.core.new_device import NEVER, score_new
from fedcore.core.rounds import Execute, State, require_state
from fedcore.core.rounds import run as rounds
from fedcore.core.together import Together
from fedcore.core.training import Training
from fedcore.data import schema_of
from fedcore.data.prepare import LEAST_OWN, preparation_bytes
from fedcore.data.task import LABEL_KINDS, MULTILABEL, NO_LABEL, SEQUENCES, count_different, label_kind_of
from fedcore.errors import Diverged, InputError, naming
from fedcore.execute.accelerator import find_accelerator
from fedcore.execute.workers import Inline, Workers
from fedcore.nets.params import renew
from fedcore.nets.randomness import keep_generators
from fedcore.partition import final_splits
from fedcore.partition.tables import shares_of, training_numbers
from fedcore.report.phrases import AnswerInWords
from fedcore.results import tidy
from fedcore.results.answer import GUESSES, answer, rows_to_leave_out
from fedcore.results.chance import PROBE, with_found
from fedcore.results.claims import Claim, Gate
from fedcore.results.criterion import (
    LEAST_TEST,
    MIN_EFFECT,
    Criterion,
    Extra,
    Weighting,
    criterion,
    free_mistakes,
    scoring,
)
from fedcore.results.judging import judge_all, verdict_table
from fedcore.results.left_out import Trained, leave_out, probe, rows_with_model
from fedcore.results.places import Points
from fedcore.results.stopping import best, validation_value
from fedcore.results.summary import COLUMNS, NO_SECONDS, SCORE, of_counted, summarise
from fedcore.results.validity import Ceiling
from fedcore.types.federation import Data, Federation, Net, OwnMetric, Splits
from fedcore.types.method import Method, Report
from fedcore.types.ranges import Count

PREDICTIONS = r"(\w*(pred|prob|score|guess|output|logit|hat|forecast)\w*|p)"
SWAPPED = rf"(?!{PREDICTIONS} )\w+ {PREDICTIONS}"
"""The first two arguments of a function that takes predictions second."""

STUDY, SETTING = "script", "base"
"""The study and the setting in a script's tidy table."""

Accelerator: TypeAlias = Literal["none", "auto", "cuda"]


def run(
    method: MethodConfig,
    fed: DividedDataset | Federation,
    seed: int = 0,
    *,
    workers: Count | None = None,
    every: Count | None = None,
    progress: bool | None = None,
    state: State | None = None,
    accelerator: Accelerator = "none",
    together: Count = 1,
    metrics: Mapping[str, OwnMetric] | None = None,
    score_training: bool = False,
) -> Result:
    """Run a method on a federation, which is divided with the same seed.

    Args:
        method: a method with its settings, such as `fedavg(rounds=10)`.
        fed: from `federate`, or devices with their examples.
        seed: of the partition, the initial models and every draw.
        workers: so many worker processes; None: as many as are faster, or this process. The results are the same bits.
        every: evaluate after each so many rounds; the last round always is. None: after each, but where evaluation
            would take more than a fifth of the time, by arithmetic of rows, epochs and parameters.
        progress: show a bar; None: where there is a terminal.
        state: of an earlier run with the same seed and training rows, `result.state`, to go on from; None: from the
            start. The result has the rounds after it, and counts no message that devices had by then.
        accelerator: where devices' steps run: "none": on the CPU; "auto": on a GPU if there is one, where
            a step has a billion multiplications; "cuda": on a GPU.
        together: devices of one net that train in one step there, as the rows of one matrix (fedcore docs gpu).
        metrics: functions by name, each of probabilities (N, K), or predicted numbers (N,), and labels (N,), tensors,
            that returns a number; the table has it for each device and split.
        score_training: whether the table has split `train`, the scores on what each device trains on.

    Raises:
        InputError: for a method that these nets or data do not allow, and a state after which no round is left.
    """
    check_arguments(run, workers=workers, every=every, accelerator=accelerator, together=together)
    _check([method], fed, "run")
    require_metrics(metrics, "run")
    extra = {"metric": None, "positive": None, "costs": None, "metrics": metrics, "train": score_training}
    more = extra if metrics or score_training else None
    return run_all([method], fed, [seed], workers, every, progress, more, None, accelerator, together, state)[0]


def final_fit(
    method: MethodConfig,
    fed: DividedDataset | Federation,
    seed: int = 0,
    *,
    costs: Mapping[str, Mapping[str, float]] | None = None,
    workers: Count | None = None,
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
        seed: of the partition, the initial models and every draw.
        costs: of mistakes, as in :func:`compare`: models predict the class of least expected cost.
        workers: so many worker processes; None: as in :func:`run`. The models are the same bits.
        progress: show a bar; None: where there is a terminal.

    Raises:
        InputError: for a method that these nets or data do not allow.
    """
    check_arguments(final_fit, costs=costs, workers=workers)
    _check([method], fed, "final_fit")
    criterion(costs=costs, where="final_fit").require_task(task_name(fed), "final_fit")
    held_out = method.build(federation_of(fed, seed).public.nets).held_out
    whole = fed.for_final_fit(held_out) if isinstance(fed, DividedDataset) else _whole(fed, held_out)
    by = {"metric": "cost", "positive": None, "costs": costs} if costs else None
    (result,) = run_all([method], whole, [seed], workers, sys.maxsize, progress, by)
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
    workers: Count | None = None,
    every: Count | None = None,
    progress: bool | None = None,
    accelerator: Accelerator = "none",
    together: Count = 1,
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
        metric: what decides answer and ranks (fedcore docs metric); "auto": balanced accuracy where one class has more
            than .8 of the examples, else accuracy; None: cost if there are costs, else accuracy. Of a number as label
            mae, rmse or r2; rmse if none is named.
        positive: the label that f1, precision, recall and average_precision are of.
        costs: of metric "cost": true label -> predicted label -> cost; what is not listed costs nothing. Models predict
            the class of least expected cost.
        min_effect: the least difference in the metric that matters: a fraction, nats, or cost per row; of mae and rmse
            a share of the label's deviation.
        least_test: a device with fewer test examples, or with test examples of one class, has no part in means over
            devices; 0: all have.
        weigh: "devices": each device counts alike in means; "examples": by its test examples.
        new_device: where the answer for a new device is from: "left_out": each device in turn is left out of training,
            and the models are scored on all its labelled rows; "shared": the shared test set, new rows of all devices.
        left_out_rows: what is trained without each device: "best": the best row that combines, the best that trains
            alone and the controls that guess; "all": all rows that have a model for a new device.
        workers: processes that train; None: as in :func:`run`.
        every: scores are taken after every so many rounds, and after the last. None: as in :func:`run`, for all methods
            alike; after each round if there are claims.
        progress: whether to show a bar; None: in a terminal.
        accelerator: where devices' steps run, as in :func:`run`.
        together: devices that train in one step there, as in :func:`run`.
        metrics: functions by name, as in :func:`run`; they decide nothing.
        score_training: whether the table has split `train`, as in :func:`run`.

    Raises:
        InputError: as :func:`run` does, and where two methods have one label. A method that diverges is left out.
    """
    rows = list(methods) if isinstance(methods, Iterable) else []
    if not rows:
        raise InputError("compare: needs a list of at least one method, e.g. [fc.fedavg()]")
    check_arguments(
        compare, ceiling=ceiling, weigh=weigh, new_device=new_device, left_out_rows=left_out_rows, workers=workers,
        every=every, accelerator=accelerator, together=together, costs=costs,
    )  # fmt: skip
    _check(rows, fed, "compare")
    require_metrics(metrics, "compare")
    if not isinstance(seeds, Iterable):
        raise InputError(f"compare.seeds = {seeds!r}: must be several, e.g. range(3)")
    guesses = _guesses(rows, fed)
    chosen = [*rows, *guesses]
    labels = Counter(config.label for config in chosen)
    if (twice := labels.most_common(1)[0])[1] > 1:
        raise InputError(f"compare: two methods are called {twice[0]!r}; give one of them another label")
    rules = [claim if isinstance(claim, Claim) else Claim(claim, claim) for claim in claims]
    gates = list(valid)
    for key, text, named in [
        *(("claims", rule.rule, rule.labels) for rule in rules),
        *(("valid", gate.require, gate.labels) for gate in gates),
    ]:
        if missing := named - labels.keys():
            raise InputError(f"compare.{key}: {text!r} names {sorted(missing)[0]!r}, which is not compared")
    decides = criterion(metric, positive, costs, min_effect, least_test, weigh, "compare")
    decides.require_task(task_name(fed), "compare")
    of_metric = {"metric": decides.metric.name, "positive": positive, "costs": costs}
    extra: Extra = {**of_metric, "metrics": metrics, "train": score_training}
    left_out: dict[str, str] = {}
    every = 1 if rules and every is None else every
    results = run_all(
        chosen, fed, seeds, workers, every, progress, extra, left_out, accelerator, together, where="compare",
        optional={config.label for config in guesses},
    )  # fmt: skip
    controls = frozenset(config.label for config in chosen if config.control)
    if new_device == "left_out":
        with executor(workers, accelerator, together) as execute:
            results = _leave_out(results, controls, decides, left_out_rows, extra, execute)
    table = pd.concat([result.table for result in results], ignore_index=True)
    if answer(table, controls, decides).nothing_learns:
        first, *others = results
        whole = federation_of(first.fed, first.seed)
        with executor(workers, accelerator, together) as execute:
            found = probe(whole.devices, whole.classes, execute)
        results = replace(first, table=with_found(first.table, PROBE, found)), *others
        table = pd.concat([result.table for result in results], ignore_index=True)
    points: Points = {SETTING: {}}
    judged = judge_all(rules, gates, of_counted(table, decides), points, ceiling, converged)
    verdicts = verdict_table((STUDY, verdict) for verdict in judged)
    weighted = frozenset(config.label for config in chosen if config.training.class_weights != "none")
    free = free_mistakes(costs, class_names(fed), where="compare")
    known: dict[str, Any] = {
        "weighted": weighted,
        "free": free,
        "own_scale": LEAST_OWN * (getattr(fed, "scale", "") == "device"),
    }
    in_words = AnswerInWords.of(replace(answer(table, controls, decides), **known))
    summary = summarise(table, NO_SECONDS, controls, decides)
    return Comparison(results, verdicts, table, summary, in_words, left_out, decides)


def _check(methods: Sequence[MethodConfig], fed: object, where: str) -> None:
    """Raise InputError for what is not a method or a federation, and for methods that the labels do not allow.

    where: the function that the user called.
    """
    for config in methods:
        if not isinstance(config, MethodConfig):
            raise InputError(
                f"{where}: {describe(config)} is not a method with settings, such as fedavg(rounds=10) "
                "or method(my_builder, ...)"
            )
    if not isinstance(fed, DividedDataset | Federation):
        raise InputError(f"{where}.fed: {describe(fed)} is not a federation; make one with federate(data, ...)")
    if isinstance(fed, Federation):
        require_labels(fed)
    for config in methods:
        config.require_task(task_name(fed))


def require_metrics(metrics: Mapping[str, OwnMetric] | None, where: str) -> None:
    """Refuse metrics of one's own that are not functions by name, or whose names are taken."""
    if not isinstance(metrics or {}, Mapping):
        raise InputError(f"{where}.metrics = {describe(metrics)}: must be functions by name, {{'mine': f}}")
    for name, function in (metrics or {}).items():
        if not isinstance(name, str) or not callable(function):
            raise InputError(f"{where}.metrics: {name!r} must be a name with a function of probabilities and labels")
        fixed = {SCORE, *COLUMNS, "examples", "classes"}
        if name in fixed.union(*((metric.name, metric.column) for metric in CATALOGUE)):
            raise InputError(f"{where}.metrics: {name!r} is the name of a metric of fedcore; take another")
        if not can_take(function, "p, y"):
            why = "must take predictions, then labels"
            raise InputError(f"{where}.metrics: {name!r} {why}; write {{{name!r}: lambda p, y: ...}}")
        takes = ""
        with suppress(TypeError, ValueError):  # one in C does not say what it takes
            takes = " ".join(islice(signature(function).parameters, 2))
        if re.fullmatch(SWAPPED, takes, re.IGNORECASE):
            how = f"write lambda p, y: {getattr(function, '__name__', 'f').replace('<lambda>', 'f')}(y, p)"
            raise InputError(f"{where}.metrics: {name!r} takes {takes}, must take predictions, then labels; {how}")


def require_labels(fed: Federation) -> None:
    """Refuse labels of a federation of one's own that its nets cannot learn, or that one part has otherwise."""
    types = {"devices": Mapping, "test": Data, "classes": int}
    wrong = [key for key, of in types.items() if not isinstance(getattr(fed, key), of)] or [
        f"devices[{name!r}]" for name, of in fed.devices.items()
        if (type(name), type(getattr(of, 'data', 0)), type(getattr(of, 'net', 0))) != (str, Splits, Net)
    ]  # fmt: skip
    if wrong or not fed.devices:
        like = "Federation({'a': Device('a', net, Splits(train, val, test))}, Data(x, y), 10)"
        raise InputError(f"Federation.{[*wrong, 'devices'][0]}: must be as in {like}")
    if other := next((name for name, of in fed.devices.items() if of.name != name), None):
        called = fed.devices[other].name
        raise InputError(f"Federation.devices[{other!r}]: its device is called {called!r}; give both one name")
    parts = {f"device {name}, {part}": getattr(of.data, part)
             for name, of in fed.devices.items() for part in ("train", "val", "test")}  # fmt: skip
    seen = ""
    for where, data in (parts | {"test": fed.test}).items():
        if not isinstance(y := data.y, torch.Tensor) or not isinstance(data.x, torch.Tensor):
            raise InputError(f"Federation: x and y of {where}: must be tensors, torch.as_tensor(...)")
        if data.x.is_complex():
            raise InputError(f"Federation: x of {where}: is {data.x.dtype}; give torch.view_as_real(x)")
        if len(y) and (alike := f"{[*data.x.shape[1:]]}{' uint8' if data.x.dtype == torch.uint8 else ''}") != seen:
            if seen:
                raise InputError(
                    f"Federation: x of {where}: is {alike} {data.x.dtype}, elsewhere {seen}; give all alike"
                )
            seen = alike
        kind, count = LABEL_KINDS[task_name(fed)], fed.classes
        wanted, low = f"whole numbers from 0 to {count - 1}", 0.0
        shape: tuple[int, ...] = ()
        if kind is SEQUENCES:
            shape, low = data.x.shape[1:2], NO_LABEL
            wanted = f"{wanted}, or {NO_LABEL}, for each step"
        elif kind.standardised:
            wanted, low = "finite numbers if classes = 1; for classes y.long()", -math.inf
        elif kind is MULTILABEL:
            shape, wanted = (count,), f"0 or 1 for each of {count} labels"
        kinds = (torch.float32, torch.float64) if y.is_floating_point() else (torch.int64,)
        good = y.dtype in kinds and label_kind_of(y) is kind and y.shape == (len(data.x), *shape)
        good = good and (count == 1 or not kind.standardised) and bool(((y >= low) & y.isfinite()).all())
        top = math.inf if kind.standardised else 1 if kind is MULTILABEL else count - 1
        if len(y) and not (good and bool((y <= top).all()) and (kind is not MULTILABEL or not (y % 1).any())):
            raise InputError(f"Federation: y {[*y.shape]} {y.dtype} of {where}: must be {wanted}, one for each x")


def run_all(
    methods: Sequence[MethodConfig], fed: DividedDataset | Federation, seeds: Iterable[int], workers: int | None,
    every: int | None, progress: bool | None, extra: Extra | None = None, left_out: dict[str, str] | None = None,
    accelerator: Accelerator = "none", together: int = 1, state: State | None = None, where: str = "run",
    optional: Collection[str] = (),
) -> tuple[Result, ...]:  # fmt: skip
    """Run all methods with each seed.

    extra: what models are measured by beside what they always are. left_out: gets the labels of the methods that
    diverge, and of those in `optional` that refuse the data or the net, with the reason; None: the first one ends the
    run. accelerator, together, state: see `run`. where: the function that the user called.
    """
    require_defaults(where)
    shows_progress = sys.stdout.isatty() if progress is None else progress
    results = []
    try:
        seeds = [index(seed) for seed in seeds]
    except TypeError:
        raise InputError(f"{where}: a seed must be a whole number; got {seeds!r}") from None
    if len({*seeds}) < len(seeds):
        raise InputError(f"{where}.seeds = {seeds}: one stands there twice; each counts once")
    given = workers
    nets = fed.nets if isinstance(fed, DividedDataset) else [device.net for device in fed.devices.values()]
    renewed = {id(net): renew(net) for net in nets}
    if any(net is not renewed[id(net)] for net in nets):
        nets = [renewed[id(net)] for net in nets]
        if isinstance(fed, DividedDataset):
            fed = replace(fed, nets=tuple(nets), _last={})
        else:
            of = zip(fed.devices.items(), nets, strict=True)
            fed = replace(fed, devices={name: replace(device, net=net) for (name, device), net in of})
    workers, every = planned(methods, fed, seeds, workers, every, extra, accelerator)
    with ExitStack() as opened:
        execute = opened.enter_context(executor(workers, accelerator, together, where))
        values = [(config.builder, config.training, config.settings) for config in methods], extra or {}
        if workers and (name := differing_value(execute.engine, nets, values)):
            why = f"a worker process, which imports files anew, lacks {name} as it is here"
            if given:
                raise InputError(f"{where}.workers = {workers}: {why}; set it in its file, or leave workers out")
            sys.stderr.write(f"trains in one process, since {why}\n")
            execute = opened.enter_context(executor(None, accelerator, together, where))
        for seed, config in product(seeds, methods):
            if left_out and config.label in left_out:
                continue
            try:
                results.append(_run_one(config, fed, seed, execute, every, shows_progress, extra, state))
            except InputError as error:
                leaves = isinstance(error, Diverged) or config.label in optional
                if not leaves or left_out is None or len({*left_out, config.label}) == len(methods):
                    raise
                left_out[config.label] = str(error)
    return tuple(result for result in results if result.config.label not in (left_out or ()))


def planned(
    methods: Sequence[MethodConfig], fed: DividedDataset | Federation, seeds: Sequence[int], workers: int | None,
    every: int | None, extra: Extra | None, accelerator: Accelerator,
) -> tuple[int | None, int]:  # fmt: skip
    """Return in how many processes to run, and after how many rounds to evaluate: what is given, or by arithmetic."""
    if (workers and every) or not seeds:
        return workers, every or 1
    federation = federation_of(fed, seeds[0])
    built: list[Method] = []
    efforts = []
    for config in methods:
        with suppress(InputError):  # the run says so
            built.append(config.build(federation.public.nets, None, federation.task))
            efforts.append(effort(built[-1], config.training, federation))
    often = every or max((each.every for each in efforts), default=1)
    if workers is None and accelerator == "none":
        nets = [device.net for device in federation.devices.values()]
        workers = processes(efforts, often, len(seeds), [built, nets, (extra or {}).get("metrics")])
    return workers, often


def _run_one(
    config: MethodConfig, fed: DividedDataset | Federation, seed: int, execute: Execute, every: int, progress: bool,
    extra: Extra | None = None, state: State | None = None,
) -> Result:  # fmt: skip
    federation = _measured_by(federation_of(fed, seed), fed, extra)
    sizes = {name: len(device.data.train) for name, device in federation.devices.items()}
    method = config.build(federation.public.nets, sizes, federation.task)
    if state is not None:
        require_state(method, federation, state, seed)
    steps = rounds(method, federation, seed, execute, state, every)
    what = f"{config.label}, seed {seed}"
    if progress:
        from rich.progress import track

        steps = iter(track(steps, description=what, total=sum(stage.rounds for stage in method.stages)))
    with naming(f"in method {what}"):
        results = tuple(steps)
    turn_reports = [result.report for result in results if isinstance(result.report, Report)]
    if isinstance(fed, DividedDataset):
        name, data = fed.name, training_numbers(fed.dataset, fed.partition(seed), shares_of(fed.settings))
        before = dict.fromkeys(federation.devices, preparation_bytes(schema_of(fed.dataset), fed.scale))
        sites = score_new(method, federation, results[-1].state, execute, fed.nets[0], fed.new_sites(seed))
    else:
        name, data, before, sites = "data", _sizes(fed), {}, {}
    row = tidy.Row(STUDY, name, SETTING, config.label, seed)
    table = tidy.of_run(row, method, results, turn_reports, data, before if state is None else {}, sites)
    return Result(config, seed, fed, method, results, table, federation.scoring.costs)


def _measured_by(federation: Federation, fed: DividedDataset | Federation, extra: Extra | None) -> Federation:
    """Return the federation, whose models are measured by more than they always are."""
    if extra is None:
        return federation
    scored = scoring(**extra, classes=class_names(fed))
    return replace(federation, scoring=replace(scored, label_scale=federation.scoring.label_scale))


def class_names(fed: DividedDataset | Federation) -> Sequence[str]:
    """Return the names of the classes; of a federation that a script has made, their numbers."""
    return fed.dataset.classes if isinstance(fed, DividedDataset) else [*map(str, range(fed.classes))]


def _leave_out(
    results: Sequence[Result], controls: frozenset[str], decides: Criterion, which: Literal["best", "all"],
    extra: Extra | None, execute: Execute,
) -> tuple[Result, ...]:  # fmt: skip
    """Return the results with the scores on each device that some rows reach without it."""

    def without(result: Result, device: str) -> tuple[Federation, Data]:
        whole = federation_of(result.fed, result.seed)
        if len(whole.devices) < 2:
            raise InputError("compare.new_device = 'left_out': needs at least two devices")
        if isinstance(result.fed, DividedDataset):
            fed, examples = result.fed.left_out(device, result.seed)
        else:
            own = whole.devices[device].data
            parts = [part for part in (own.train, own.val, own.test) if len(part)]
            examples = Data(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))
            fed = replace(whole, devices={name: rest for name, rest in whole.devices.items() if name != device})
        return _measured_by(fed, result.fed, extra), examples

    def train(result: Result, device: str, method: Method, fed: Federation) -> State:
        *_, last = rounds(method, fed, result.seed, execute, every=NEVER)
        return last.state

    runs = [
        Trained(r, r.config.label, r.config.build, partial(federation_of, r.fed, r.seed), r.rounds[-1].state, r.table)
        for r in results
    ]
    able = rows_with_model(runs, execute)
    table = pd.concat([result.table for result in results], ignore_index=True)
    rows = able if which == "all" else rows_to_leave_out(table, controls, able, decides)
    tables = leave_out(runs, rows, able, execute, without, train)
    return tuple(replace(result, table=table) for result, table in zip(results, tables, strict=True))


def _guesses(methods: Sequence[MethodConfig], fed: DividedDataset | Federation) -> list[MethodConfig]:
    """Return the controls that always guess, those that are not asked for, if the nets allow them."""
    labels = {config.label for config in methods}
    nets = fed.nets if isinstance(fed, DividedDataset) else [device.net for device in fed.devices.values()]
    guesses = []
    for config in [method(name) for name in GUESSES if name not in labels]:
        with suppress(InputError):
            config.build({str(number): net for number, net in enumerate(nets)})
            guesses.append(config)
    return guesses


def _sizes(fed: Federation) -> dict[str, dict[str, float]]:
    """Return the numbers of training_numbers that say which devices count."""
    kind, parts = LABEL_KINDS[task_name(fed)], {name: device.data for name, device in fed.devices.items()}
    counts = {name: (len(of.train), len(of.test), count_different(of.test.y)) for name, of in parts.items()}
    labels = torch.cat([of.train.y for of in parts.values()])
    std = labels.std(correction=0).item() if kind.standardised else None
    return tidy.numbers_of(counts, len(fed.test), True, fed.classes if kind == MULTILABEL else None, std)


@dataclass(frozen=True)
class TunedMethod:
    """The best settings of a method, by validation data.

    config: the method with the best settings, to run or compare. table: a row for each combination of settings that was
    tried, in their order, with its value on validation data; nan where the method diverged or there are no such data.
    """

    config: MethodConfig
    table: pd.DataFrame


def tune(
    method: MethodConfig,
    fed: DividedDataset | Federation,
    *,
    seed: int = 0,
    metric: MetricName | Literal["auto"] | None = None,
    positive: str | None = None,
    costs: Mapping[str, Mapping[str, float]] | None = None,
    workers: int | None = None,
    progress: bool | None = None,
    **grid: Iterable[Any],
) -> TunedMethod:
    """Run a method with every combination of some settings, and choose the best on the devices' validation data.

        fc.tune(fc.fedavg(rounds=10), fed, lr=[0.003, 0.01, 0.03]).config

    Test data have no part in it. The best is that of one partition of the data: with another seed, rows that chose it
    may be test rows, all methods alike.

    Args:
        method: a method with its settings.
        fed: from `federate`, or a federation of your own.
        seed: of the partition, the initial models and every draw.
        metric: what is compared, as in `compare`; the mean over devices after the last round. As there, a device with
            fewer than 20 test examples, or with test examples of one class, has no part in it.
        positive: of metrics that are of one label, that label.
        costs: of metric "cost", as in `compare`.
        workers: so many worker processes; None: as in `run`.
        progress: whether to show a bar; None: in a terminal.
        grid: values to try, by the name of a setting of the method, or else of its training, such as lr or epochs.

    Raises:
        InputError: for a name or a value that the method does not take, and if all combinations diverge.
    """
    if not grid:
        raise InputError("tune: needs values to try, such as lr=[0.003, 0.01, 0.03]")
    check_arguments(tune, costs=costs)
    _check([method], fed, "tune")
    decides = criterion(metric, positive, costs, where="tune")
    decides.require_task(task_name(fed), "tune")
    values = {name: [*candidates] for name, candidates in grid.items()}
    for name in (name for name, candidates in values.items() if not candidates):
        raise InputError(f"tune.{name} = []: must have values to try")
    points = [dict(zip(values, point, strict=True)) for point in product(*values.values())]
    configs = [changed(method, point) for point in points]
    tables, diverged = {}, None
    extra = {"metric": decides.metric.name, "positive": positive, "costs": costs}
    for number, config in enumerate(configs):
        try:
            (result,) = run_all([config], fed, [seed], workers, NEVER, progress, extra)
            tables[number] = result.table
        except Diverged as error:
            diverged = error
    if diverged is not None and not tables:
        raise diverged
    sign = decides.of_table(next(iter(tables.values()))).metric.sign
    validated = {number: validation_value(table, decides) for number, table in tables.items()}
    column = [math.nan if (value := validated.get(number)) is None else sign * value for number in range(len(points))]
    return TunedMethod(configs[best(tables, decides)], pd.DataFrame(points).assign(value=column))


def changed(method: MethodConfig, point: Mapping[str, Any]) -> MethodConfig:
    """Return a method with some of its settings, or else of its training's, changed; raises InputError for others."""
    takes = parameters(method.builder)
    trains = {field.name for field in fields(Training)} if "training" in takes else {"class_weights"} & {*takes}
    if unknown := [name for name in point if name not in method.settings and name not in trains]:
        why = "training has none" if "training" in takes else "takes no training"
        raise InputError(f"tune.{unknown[0]}: {method.label} has no such setting, and {why}")
    settings = {**method.settings, **{name: value for name, value in point.items() if name in method.settings}}
    training = {**vars(method.training), **{name: value for name, value in point.items() if name not in settings}}
    return configure(method.name, settings, training, label=method.label, training_key=f"{method.label}.training")


@contextmanager
def executor(
    workers: int | None, accelerator: Accelerator = "none", together: int = 1, where: str = "run"
) -> Iterator[Together]:
    """Open what runs the steps. workers: processes; None: this one.

    accelerator: "none", "auto" (one if there is one) or its name. together: devices that train together on it. where:
    the function that the user called. Raises InputError for an accelerator that is not there.
    """
    kind = None if accelerator == "none" else find_accelerator("auto")
    if accelerator not in ("none", "auto") and kind is None:
        raise InputError(f"{where}.accelerator = {accelerator!r}: there is none here; use auto or none")
    if together > 1 and workers is not None:
        raise InputError(f"{where}.together = {together}: devices train together in this process; leave workers out")
    with ExitStack() as stack:
        # none of the caller's, as in worker processes; PyTorch never clears cast weights inside another autocast
        bare = torch.autocast("cpu", enabled=False, cache_enabled=False)
        for mode in (torch.inference_mode(False), torch.enable_grad(), bare):
            stack.enter_context(mode)
        stack.enter_context(keep_generators())
        execute = stack.enter_context(Workers(workers) if workers is not None else Inline())
        yield Together(execute, kind, together, always=accelerator != "auto")
