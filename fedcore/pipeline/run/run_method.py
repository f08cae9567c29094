"""Run one method on one federation, and write its results."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from fedcore import spreadsheet
from fedcore.config.methods import MethodConfig
from fedcore.config.settings import Setting
from fedcore.core.evaluation import score
from fedcore.core.rounds import TOGETHER, State, deployments
from fedcore.core.training import Training
from fedcore.data import schema_of
from fedcore.data.encoding import to_json
from fedcore.data.overview import SPREAD, spans
from fedcore.data.prepare import preparation_bytes
from fedcore.data.task import LABEL_KINDS
from fedcore.errors import InputError, naming, plural
from fedcore.partition.tables import shares_of
from fedcore.pipeline.cache.journal import Step
from fedcore.pipeline.cache.keys import Digest
from fedcore.pipeline.cache.store import Ref, Store
from fedcore.pipeline.files import INDEX, MODELS, OUTCOMES, PICTURES, RUNS, SCHEMA, SECONDS, TABLE
from fedcore.pipeline.orchestration.graph import Graph, evaluated
from fedcore.pipeline.record import pictures
from fedcore.pipeline.record.result import PreparedData, Result
from fedcore.pipeline.run.chunks import count_local_steps, rounds
from fedcore.pipeline.run.left_out import score_sites
from fedcore.pipeline.run.partitions import build_federation, read_prepared
from fedcore.pipeline.run.step_functions import deploy, score_validation
from fedcore.pipeline.work import build, edited
from fedcore.results import reports, tidy
from fedcore.results.advice import Action, Answer
from fedcore.results.chance import LINEAR, SCALE, UNTRAINED, Cause
from fedcore.results.criterion import Criterion, measured
from fedcore.results.embedding import embed
from fedcore.results.outcomes import total
from fedcore.results.stopping import Leader, validation_value
from fedcore.results.summary import mean_over_devices
from fedcore.results.threshold import LEAST_OF_KIND, best_threshold
from fedcore.types.federation import Federation, Params
from fedcore.types.method import Method, Threshold

if TYPE_CHECKING:
    from fedcore.pipeline.orchestration.session import Session  # which imports Prefect


def run_method(
    session: Session, setting: Setting, prepared: PreparedData, fed: Federation, row: MethodConfig, seed: int,
    size: str, every: int, extra_figures: Collection[str] = (),
) -> Result:  # fmt: skip
    """Run a method to its end; every step is cached."""
    steps_before = len(session.steps.done)
    method = build(row, fed.public.nets)
    description = f"{setting.study} {setting.name} seed {', '.join([str(seed), *_number(setting, row)])}: {row.label}"
    counting = session.counting(description, method, count_local_steps(method, len(fed.devices)))
    with naming(f"in method {row.label}, seed {seed}"), counting:
        played = list(rounds(method, fed, seed, session.steps, every))
    classes = read_prepared(session.store, prepared)[0].classes
    turn_reports = reports.name_classes(session.store.get([result.report for result in played]), classes)
    models, counted = deploy_models(session.steps, method, fed, played[-1].state)
    validated = None
    if setting.threshold is not None:
        positive = classes.index(setting.threshold)
        validated = session.steps(partial(score_validation, positive=positive), models, dict(fed.devices))
    plane = embed_features(session, row, fed, models, played[-1].state, seed) if "features" in extra_figures else None
    done = tuple(session.steps.done[steps_before:])
    for warning in reports.words(turn_reports, reports.WARNING):
        session.print_line(f"  {row.label}: {warning}")
    config = config_digest(setting, prepared, fed, row, method, seed, size, every, session.steps.hardware)
    scale = setting.federation["scale"]
    table = tidy.of_run(
        tidy.Row(setting.study, setting.data_name, setting.name, row.label, seed), method, played, turn_reports,
        pictures.data_numbers(session.store, prepared, shares_of(setting.federation)),
        dict.fromkeys(fed.devices, prepared_bytes(session.store, prepared, scale)),
        score_sites(session.steps, prepared, scale, method, fed, played[-1].state),
    )  # fmt: skip
    result = Result(
        setting, row, seed, size, config, prepared, fed, table,
        seconds_by_kind(setting, row.label, seed, done), done,
        models, played[-1].state, tuple(turn_reports), method.figures, tuple(extra_figures), plane,
        outcomes=total(session.store.get(counted), classes) if LABEL_KINDS[fed.task].predicts_classes else None,
        tasks=tuple(edited(method)),
    )  # fmt: skip
    if validated is None:
        return result
    return replace(result, threshold=choose_threshold(result, session.store.get(validated)))


def _number(setting: Setting, row: MethodConfig) -> list[str]:
    """Return the number of a row among a setting's; none of one, or of a final fit's, which is not among them."""
    labels = [one.label for one in setting.methods]
    if len(labels) == 1 or row.label not in labels:
        return []
    return [f"method {labels.index(row.label) + 1} of {len(labels)}"]


def choose_threshold(result: Result, scores: Params) -> Threshold | None:
    """Return from which probability on a label is predicted; None of fewer than LEAST_OF_KIND rows of either kind.

    scores: see :func:`fedcore.pipeline.run.step_functions.score_validation`.
    """
    label = str(result.setting.threshold)
    positive = scores["positive"].numpy()
    if min(positive.sum(), (~positive).sum()) < LEAST_OF_KIND:
        return None
    best = best_threshold(scores["scores"].numpy(), positive, result.metric.name)
    return None if best is None else Threshold(label, best)


def config_digest(
    setting: Setting, prepared: PreparedData, fed: Federation, row: MethodConfig, method: Method, seed: int,
    size: str, every: int, hardware: tuple[str, ...],
) -> str:  # fmt: skip
    """Return the digest of all that a method's result depends on: settings, data, code and hardware."""
    parts = (
        "config", setting.study, size, setting.name, row.label, row.flat(), seed, every, prepared.dataset.digest,
        prepared.partition.digest, setting.federation["scale"], fed.public.nets, method,
        *hardware, *([fed.threats] if fed.threats else []),
        *([fed.scoring] if fed.scoring else []), *([setting.metric] if setting.metric != "accuracy" else []),
        *([setting.threshold] if setting.threshold else []),
        *([evaluated(score)] if evaluated(score) is not score else []),
    )  # fmt: skip
    return Digest().of(parts)


def embed_features(
    session: Session, row: MethodConfig, fed: Federation, models: dict[str, Ref], state: State, seed: int
) -> Ref | None:
    """Embed devices' examples as their shared parts represent them; prints the reason if that is impossible."""
    try:
        embedded: Ref = session.steps(partial(embed, seed=seed), models, dict(state.messages), dict(fed.devices))
    except InputError as error:
        session.print_line(f"  {row.label}: no picture of its features; {error}")
        return None
    return embedded


def prepared_bytes(store: Store, prepared: PreparedData, scale: str) -> dict[str, float]:
    """Return the bytes of each device before a method's first round, see `preparation_bytes`."""
    return preparation_bytes(schema_of(read_prepared(store, prepared)[0]), scale)


def count_examples(store: Store, prepared: PreparedData) -> dict[str, int]:
    """Return device -> its labelled training examples."""
    parts = read_prepared(store, prepared)[1]
    return dict(zip(parts.names, parts.sizes[:, 0].tolist(), strict=True))


def rates_of(setting: Setting, row: MethodConfig) -> list[float]:
    """Return the learning rates that a method is run with, with the first seed."""
    return setting.rates.get(row.label, [row.training.lr])


RATES = {Cause.TOO_FAR: 0.1, Cause.TOO_LITTLE: 10.0}
"""What a row's learning rate is multiplied by where it is a likely cause that the row is no better than guessing."""

HIGH = 10 * Training().lr
"""Above this rate a row that hardly learns tries a tenth; so it does where another's is too high and none is tuned."""


def is_unscaled(store: Store, of: Result) -> bool:
    """Tell whether a result's columns are not scaled and differ much in what they span."""
    if of.setting.federation["scale"] != "none":
        return False
    wide = spans(read_prepared(store, of.prepared)[0])
    return wide is not None and wide[1] > SPREAD * wide[0]


def is_mlp_of_table(store: Store, of: Result) -> bool:
    """Tell whether a result's nets are all one MLP with hidden layers, on rows of numbers."""
    net = of.setting.net
    hidden = net["name"] in ("auto", "mlp") and net.get("widths") and not net.get("variants")
    trained = hidden and not of.row.label.startswith(UNTRAINED)
    return bool(trained) and read_prepared(store, of.prepared)[0].train.x.dim() == 2


def try_remedy(
    session: Session, of: Result, found: Answer, criterion: Criterion, unscaled: bool = False,
    guesses: Iterable[Result] = (), alone: Iterable[Result] = (),
) -> dict[str, float]:  # fmt: skip
    """Run a result's row once more with what may mend it, if it has not got that; return its gain on validation data.

    Where columns are not scaled it is their scale, where it misses a rare class these are class weights, where it has
    learnt nothing another learning rate. Until one gains what matters, the next is a linear net, then local
    training with one. guesses, alone: of the same seed, of local training; a gain is at most that on the guesses, since
    a constant answer is no remedy.
    """
    label, training, setting = of.row.label, of.row.training, of.setting
    case, changes = found.causes.get(label), dict[str, Any]()
    why = "has learnt little" if found.causes else "may be badly trained"
    if unscaled:
        why = "has columns of unlike spans"
    elif found.misses_rare:
        changes, why = {"class_weights": "balanced"}, "misses a rare class"
    elif case is not None and case.cause in RATES:
        others = () if setting.rates else found.causes.values()
        far = training.lr > HIGH or any(other.cause is Cause.TOO_FAR for other in others)
        factor = RATES[Cause.TOO_FAR if far else case.cause]
        changes, why = {"lr": float(f"{training.lr * factor:.3g}")}, "has learnt nothing"
    tries = [(of, f"training.{k}={v}", setting, {k: v}) for k, v in changes.items() if getattr(training, k) != v]
    if unscaled:
        tries = [(of, f"{SCALE}=common", replace(setting, federation=setting.federation | {"scale": "common"}), {})]
    linear = replace(setting, net=setting.net | {"widths": []})
    tries += [(one, LINEAR, linear, {}) for one in (of, *alone) if is_mlp_of_table(session.store, one)]
    gained: dict[str, float] = {}
    for one, words, changed, changes in tries if of.validation is not None else ():
        if max(gained.values(), default=0.0) >= found.min_effect:
            break
        label = one.row.label
        with suppress(InputError):  # the row has a loss of its own, needs hidden units, or diverges
            row = replace(one.row, training=replace(one.row.training, **changes))
            fed = of.fed if changed is setting else build_federation(session.steps, changed, of.prepared)
            session.expect_steps(count_local_steps(build(row, fed.public.nets), len(fed.devices)))
            said = f"{label} {why}" if one is of else label
            session.print_line(f"  {said}: seed {of.seed} once more with {words}")
            tried = run_method(session, changed, of.prepared, fed, row, of.seed, of.size, setting.every)
            after, *reached = (validation_value(result.table, criterion) or 0.0 for result in (tried, one, *guesses))
            gained[f"{label} with {words}"] = after - max(reached)
    return gained


def doubt_gain(session: Session, runs: Sequence[Result], found: Answer, criterion: Criterion) -> dict[str, float]:
    """Return what local training gains with a linear net on validation data, where combining models seems to gain.

    If hidden layers learn a device's few rows by heart, that is a gain on a badly trained net. It is the first seed's,
    on all rows that train alone.
    """
    advice, seed = found.advice, runs[0].seed
    if advice.gain is None or advice.gain.mean <= 0 or advice.action not in (Action.USE, Action.UNSURE):
        return {}
    alone = [run for run in runs if run.seed == seed and not run.row.control and not combines(run)]
    able = [run for run in alone if is_mlp_of_table(session.store, run)]
    best = max(able, key=lambda run: validation_value(run.table, criterion) or 0.0, default=None)
    plain = replace(found, causes={}, misses_rare=False)
    return try_remedy(session, best, plain, criterion, guesses=alone) if best else {}


def deploy_models(
    steps: Graph, method: Method, fed: Federation, state: State
) -> tuple[dict[str, Ref], tuple[Ref, ...]]:
    """Return each device's deployed model, and the counts of their outcomes; equal models are computed once."""
    every = deployments(method, fed, state)
    groups = [(of[i : i + TOGETHER], what) for of, what in every for i in range(0, len(of), TOGETHER)]
    of_all = fed.classes, *filter(None, [fed.scoring.costs])
    calls = {names[0]: (*what, {name: fed.devices[name] for name in names}, *of_all) for names, what in groups}
    models = steps.map(deploy, calls)
    return {name: models[names[0]][0] for names, _ in groups for name in names}, tuple(of[1] for of in models.values())


def save(store: Store, results: Sequence[Result], folder: Path, seconds: Path) -> None:
    """Write a seed's results to a folder that DVC versions, or to that of a run; no dates, and seconds to another."""
    folder.mkdir(parents=True, exist_ok=True)
    seconds.mkdir(parents=True, exist_ok=True)
    pd.concat([result.table for result in results], ignore_index=True).to_parquet(folder / TABLE, index=False)
    models = {f"{r.setting.name}: {r.row.label}": {name: ref.digest for name, ref in r.models.items()} for r in results}
    runs = [result.entry for result in results]
    schemas = {}  # how the devices prepared a user's own data
    for name, result in {result.setting.name: result for result in results}.items():
        dataset, partition = read_prepared(store, result.prepared)
        if dataset.schema is not None:
            schemas[name] = json.loads(to_json(result.schema(dataset, partition)))
    for file, content in {MODELS: models, RUNS: runs, **({SCHEMA: schemas} if schemas else {})}.items():
        (folder / file).write_text(json.dumps(content, indent=1) + "\n")
    save_pictures(store, results, folder)
    there = [(r, r.outcomes.to_json()) for r in results if r.outcomes is not None]
    outcomes = [{"setting": r.setting.name, "method": r.row.label, "seed": r.seed, **of} for r, of in there]
    (folder / OUTCOMES).write_text(json.dumps(outcomes) + "\n")
    spent = pd.concat([result.seconds for result in results], ignore_index=True)
    spreadsheet.write(spent, seconds / SECONDS, index=False)


def save_pictures(store: Store, results: Iterable[Result], folder: Path) -> None:
    """Draw the pictures of each setting, and list them with their captions."""
    (folder / PICTURES).mkdir(parents=True, exist_ok=True)
    drawn = []
    settings: dict[str, list[Result]] = {}
    for result in results:
        settings.setdefault(result.setting.name, []).append(result)
    for name, of_setting in settings.items():
        for file, caption, picture in pictures.of_setting(store, of_setting):
            path = Path(of_setting[0].setting.slug) / f"{file}.png"
            (folder / PICTURES / path).parent.mkdir(exist_ok=True)
            (folder / PICTURES / path).write_bytes(picture)
            drawn.append((name, path.as_posix(), caption))
    index = pd.DataFrame(drawn, columns=["setting", "file", "caption"])
    spreadsheet.write(index, folder / PICTURES / INDEX, index=False)


def summary_line(result: Result, criterion: Criterion, seeds: Sequence[int] = ()) -> str:
    """Return a method's result in one line: means over the devices that count in the table, too.

    seeds: those of the run; of several it says which one this is.
    """
    metric = result.metric
    scores = ", ".join(
        f"{title} {metric.value(mean)} (worst {metric.value(values.max() if metric.less else values.min())})"
        for split, title in (("test", "own test"), ("shared", "shared test"))
        for values, mean in [_final_scores(result, split, criterion)]
        if len(values)
    )
    scores = scores if metric.name == "accuracy" else f"{metric.words}: {scores}"
    place = [f"seed {seeds.index(result.seed) + 1} of {len(seeds)}"] if len(seeds) > 1 else []
    place += _number(result.setting, result.row)
    return f"  {result.name:<36} {scores}  [{', '.join(place)}{'; ' * bool(place)}{tally(result.steps)}]"


def leader_of(result: Result, criterion: Criterion) -> Leader | None:
    """Return a row with its means on validation data and on own test data; None without either."""
    values, test = _final_scores(result, "test", criterion)
    if result.validation is None or values.empty:
        return None
    return Leader(result.row.label, result.validation, result.metric.value(test), result.metric.words)


def _final_scores(result: Result, split: str, criterion: Criterion) -> tuple[pd.Series, float]:
    """Return the values of the last round on a split, and their mean; on own test data of the devices that count."""
    last = tidy.final(result.table)
    rows = last[(last["split"] == split) & (last["metric"] == result.metric.column) & last["value"].notna()]
    values = rows.set_index("device")["value"]
    if split != "test":
        return values, float(values.mean())
    weights = pd.Series(measured(result.table, criterion).weights)
    values = values[values.index.isin(weights.index)]
    return values, float(mean_over_devices(values.to_frame().T, weights).iloc[0])


def combines(result: Result) -> bool:
    """Tell whether a row's devices send anything."""
    sent = result.table[(result.table["split"] == "traffic") & (result.table["metric"] == "bytes_up")]
    return bool(sent["value"].sum() > 0)


def tally(steps: Sequence[Step], kinds: bool = False) -> str:
    """Return how many steps were computed and how many came from the cache; kinds: also how many of each kind."""
    every, computed = (Counter(step.kind for step in steps if not (new and step.cached)) for new in (False, True))
    text = f"{plural(computed.total(), 'step')} computed, {every.total() - computed.total():,} from the cache"
    of_kinds = ", ".join(f"{kind} {computed[kind]} of {count}" for kind, count in every.items())
    return f"{text}; computed by kind: {of_kinds}" if kinds else text


def seconds_by_kind(setting: Setting, label: str, seed: int, steps: Iterable[Step]) -> pd.DataFrame:
    """Return the seconds of a method's steps by kind, as measured when they were computed."""
    of_steps = [(setting.study, setting.name, label, seed, step.kind, step.wall, step.cpu) for step in steps]
    keys = ["study", "setting", "method", "seed", "kind"]
    return pd.DataFrame(of_steps, columns=[*keys, "wall", "cpu"]).groupby(keys, sort=False, as_index=False).sum()
