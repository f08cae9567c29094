"""The answer to a comparison: what to do, by how much it pays, for whom, at what cost, and how sure that is.

docs/answer.md states the rule and its interval, :mod:`fedcore.report.phrases` puts answers into words, and
benchmarks/false_recommendations.py counts how often they err. A row that is no control and whose devices send nothing
trains alone; other rows that are no controls combine.

Values are those of the criterion's metric after the last round, the greater the better (of a loss or a cost: the
negative). A gain is paired within device and seed: mean over the devices that can be measured, seed by seed; for a new
device mean over seeds, device by device, so that devices stand in the place of seeds. There a row that trains alone
stands for one device's model, the mean over the models of the other devices.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pandas as pd

from fedcore.results.advice import Action, Advice, Answer, Devices, NewDevice
from fedcore.results.chance import COUNT_RARE, AtChance, Cause, likely_causes, remedies, seen_by_probes
from fedcore.results.criterion import UNEQUAL, Criterion, SettingKey, half_width, largest_class, measured
from fedcore.results.gains import Gain, gain_of, gain_over_devices
from fedcore.results.scores import Scores, SetScores, read_scores
from fedcore.results.summary import Criteria, last_round, mean_over_devices, with_criteria

GUESSES = ("majority", "majority_per_device")
"""The labels of the controls that always guess: one class for all devices, and one for each."""

POOLED = "pooled"
"""The label of the control that is trained on the rows of all devices together."""

FEW_SEEDS = "one seed has no interval; type the same with 'seeds=[0,1,2]', finished steps are used again"

FREE = "always guessing the cheapest class costs nothing on these test rows, so that no model can be better by cost"
"""Why nothing can be said where costs leave the models nothing to gain."""

MISSES = 0.05
"""A row whose accuracy is at most so much below the commonest class's share, and whose balanced accuracy is at least so
much below its accuracy, misses a rare class."""

UNEVEN = 1.5
"""How many times the share of a class of as many rows as any other the commonest one has, where some class is rare."""

STOPPED_AFTER = 3
"""The seeds that every row is run with, see :mod:`fedcore.results.stopping`."""


def answers(
    table: pd.DataFrame, controls: frozenset[str], criteria: Criteria = Criterion()
) -> dict[SettingKey, Answer]:
    """Return the answer for each setting of a tidy table.

    controls: labels that are never recommended. criteria: what decides.
    """
    return {key: answer(rows, controls, criterion) for key, rows, criterion in with_criteria(table, criteria)}


def answer(
    table: pd.DataFrame, controls: frozenset[str], criterion: Criterion = Criterion(), budget: float = math.inf
) -> Answer:
    """Return the answer for the one setting of a tidy table.

    criterion: what decides. budget: the most bytes that a device may send and receive in total, mean over devices and
    seeds.
    """
    found = _answer(scores := read_scores(table, controls, criterion), budget)
    return replace(found, by_rows=_best_by_rows(scores, found, budget))


def answers_by_budget(table: pd.DataFrame, controls: frozenset[str], whole: Answer) -> dict[float, Answer]:
    """Return the answer for the one setting of a tidy table for each budget where it may change, from 0 bytes up.

    Between two of these budgets the answer is that for the lower one, and from the last one on it is `whole`, the
    answer without a budget. What that one was told of the runs holds for all.
    """
    scores = read_scores(table, controls, whole.criterion)
    dear = {name: sent for name, sent in scores.traffic.items() if name not in controls | scores.alone}
    *lower, last = sorted({0.0, *dear.values()})
    return {budget: whole.told(_answer(scores, budget)) for budget in lower} | {last: whole}


def rows_to_leave_out(
    table: pd.DataFrame, controls: frozenset[str], candidates: frozenset[str], criterion: Criterion = Criterion()
) -> frozenset[str]:
    """Return the rows that the answer for a new device compares: these need training without each device.

    They are the best row that combines, by validation data, of those in `candidates`, the rows that have a model for a
    new device; the best that trains alone; and the controls that always guess. Without validation data the devices' own
    test data choose, or else the shared test set.
    """
    scores = read_scores(table, controls, criterion)
    sets = scores.own if scores.own.tested else scores.new
    combining = [name for name in sets.tested if name in candidates - controls - scores.alone]
    alone = scores.alone & {*sets.tested}
    best = [sets.best(names) for names in (combining, alone) if names]
    return frozenset([*best, *(name for name in GUESSES if name in sets.tested)])


def gains_of_settings(answers: Mapping[str, Answer]) -> tuple[str, dict[str, Gain | None]] | None:
    """Return the setting whose best row that combines is best, and its gain on that of each other setting.

    The settings must have the same devices and test examples, such as two ways to scale these. Gains are paired by
    seed, with the answer's interval; None without two common seeds. Returns None if a setting has no such row.
    """
    advices = {name: answer.advice for name, answer in answers.items()}
    if not all(advice.best_by_seed for advice in advices.values()):
        return None
    runs = {name: pd.DataFrame({"all": pd.Series(advice.best_by_seed)}) for name, advice in advices.items()}
    best = max(runs, key=lambda name: float(runs[name].mean().iloc[0]))
    weights, ratio = pd.Series({"all": 1.0}), advices[best].ratio
    others = [name for name in runs if name != best]
    return best, {name: gain_of(runs[best], runs[name], weights, ratio, len(others)) for name in others}


def device_changes(
    table: pd.DataFrame, controls: frozenset[str], criterion: Criterion = Criterion()
) -> tuple[pd.Series, dict[str, tuple[pd.Series, Devices]]]:
    """Return what each row of one setting does to single devices, against the best row that trains alone.

    Returns the value of training alone by device, named by its row, and row -> the changes by device and their count:
    means over seeds on the devices' own test data, of the devices that count. A change is positive where it is better.
    Both are empty without a row to compare with.
    """
    scores = read_scores(table, controls, criterion)
    tested = scores.own.tested
    if not scores.alone & {*tested}:
        return pd.Series(dtype=float), {}
    name = scores.own.best(scores.alone & {*tested})
    alone = tested[name]
    changes = {row: (run - alone).mean().dropna() for row, run in tested.items() if row != name}
    return criterion.metric.sign * alone.mean().dropna().rename(name), {
        row: (change, _changes(scores, row, name)) for row, change in changes.items() if len(change)
    }


def _answer(scores: Scores, budget: float) -> Answer:
    own, new = (_advise(sets, scores, budget) if sets.tested else None for sets in (scores.own, scores.new))
    left_out = _advise_new(scores, budget)
    chosen = own or (left_out and left_out.advice) or new
    row = chosen.judged if chosen else None
    changes, alone = None, scores.alone & {*scores.own.tested}
    if own is not None and row is not None and alone:
        changes = _changes(scores, row, scores.own.best(alone))
    return Answer(
        scores.criterion, own, new, changes, scores.measured, scores.up.get(row or "", 0.0),
        scores.down.get(row or "", 0.0), left_out, _causes(scores, own or new), *_stopped(scores.table),
        over_all=_over_all(scores, row) if own is not None and alone and row is not None else None,
        misses_rare=row is not None and _misses_rare(scores, row, "test" if own else "shared"),
        remedies=remedies(scores.table), simple=simplest(scores),
        learns=_learns(scores, own or new), probed=seen_by_probes(scores.table),
        pooled=_pooled(scores, own or (None if left_out else new)),
    )  # fmt: skip


def _pooled(scores: Scores, advice: Advice | None) -> Gain | None:
    """Return the gain of a model of all devices' rows on the advice's row, if it is better for sure."""
    sets = scores.own if scores.own.tested else scores.new
    if advice is None or advice.method is None or POOLED not in scores.controls & {*sets.tested}:
        return None
    gain = sets.gain(POOLED, advice.method)
    return gain if gain is not None and gain.sure else None


def _over_all(scores: Scores, row: str) -> Gain | None:
    """Return the gain over all devices, where some do not count and three or more are tested."""
    alone = scores.own.best(scores.alone & {*scores.own.tested})
    gains = (scores.all_tested[row] - scores.all_tested[alone]).mean().dropna()
    return gain_over_devices(gains) if len(gains) > max(2, len(scores.own.weights)) else None


def simplest(scores: Scores) -> str | None:
    """Return the best row that trains alone, if it serves every device: each has labelled rows, and no site is new."""
    alone = scores.alone & {*scores.own.tested}
    rows = scores.table[(scores.table["split"] == "data") & (scores.table["metric"] == "examples")]["value"]
    if not alone or not (rows > 0).all() or not (scores.left_out is None or scores.in_turn):
        return None
    return scores.own.best(alone)


def _misses_rare(scores: Scores, row: str, split: str) -> bool:
    """Return whether a metric decides that counts a rare class, there is one, and a row is right as if it knew none."""
    numbers = scores.table[(scores.table["split"] == "data") & (scores.table["metric"] == "classes")]["value"]
    even = 1 / max(2.0, numbers.max()) if len(numbers) else 0.5
    if scores.criterion.metric.name not in COUNT_RARE or not largest_class(scores.table) > UNEVEN * even:
        return False
    last = last_round(scores.table)
    of_row = last[(last["method"] == row) & (last["split"] == split)].groupby("metric")["value"].mean()
    right, balanced = of_row.get("accuracy", math.nan), of_row.get("balanced_accuracy", math.nan)
    return bool(right >= largest_class(scores.table) - MISSES and balanced < right - MISSES)


def _causes(scores: Scores, advice: Advice | None) -> dict[str, AtChance]:
    """Return the likely cause why each row at chance is no better than guessing. advice: own, else shared test data."""
    if advice is None or not advice.at_chance or advice.guess is None or advice.reason == FREE:
        return {}
    split = "test" if scores.own.tested else "shared"
    sets = scores.own if scores.own.tested else scores.new
    guesses = scores.controls & {*GUESSES}
    return likely_causes(scores.table, split, advice.at_chance, guesses, scores.alone, sets.weights)


def _learns(scores: Scores, advice: Advice | None) -> bool:
    """Return whether the best row of a kind is above guessing for sure, or a loss tells that some row has learnt."""
    if advice is None or advice.guess is None:
        return True
    sets = scores.own if scores.own.tested else scores.new
    rows = {advice.method, advice.best, sets.best(scores.alone & {*sets.tested}), POOLED} & {*sets.tested}
    gains = [sets.gain(str(name), advice.guess) for name in rows]
    causes = _causes(scores, advice).values()
    return any(gain is not None and gain.sure for gain in gains) or any(c.cause is Cause.COMMONEST for c in causes)


def _best_by_rows(scores: Scores, found: Answer, budget: float) -> str | None:
    """Return the row to use if devices weigh as much as their test rows, where these differ much and it is another.

    It must be better there, for sure, than the row to use here; where nothing can be said, than the best combining one.
    """
    by_rows = replace(scores.criterion, weigh="examples")
    weights = measured(scores.table, by_rows).weights.values()
    if found.own is None or scores.criterion == by_rows or max(weights) < UNEQUAL * min(weights):
        return None
    others = read_scores(scores.table, scores.controls, by_rows)
    by = replace(found, own=_advise(others.own, others, budget)).advised
    here = found.advised or found.own.judged
    if found.advised is None and by == here:  # it is the best here, too, and there it is better than training alone
        here = found.own.alone
    gain = others.own.gain(by, here) if by is not None and here is not None else None
    return by if gain is not None and gain.sure else None


def _stopped(table: pd.DataFrame) -> tuple[tuple[str, ...], tuple[int, int]]:
    """Return the rows that were stopped after STOPPED_AFTER seeds, and the seeds of these and of the others."""
    seeds = table.groupby("method")["seed"].nunique()
    most = int(seeds.max())
    return tuple(map(str, seeds.index[(seeds == STOPPED_AFTER) & (most > STOPPED_AFTER)])), (STOPPED_AFTER, most)


def _advise_new(scores: Scores, budget: float) -> NewDevice | None:
    """Apply the rule to devices that took no part."""
    sets = scores.left_out
    if sets is None:
        return None
    advice = _advise(sets, scores, budget)
    if advice.gain is None and advice.reason == FEW_SEEDS:
        advice = replace(advice, reason="at least two left-out devices that can be measured are needed")
    new_device = NewDevice(advice, scores.new_devices, scores.in_turn, without=scores.without)
    row = advice.judged
    if row is None:
        return new_device
    sign, values = scores.criterion.metric.sign, sets.tested[row]["all"]
    worst, alone = str(values.idxmin()), scores.alone & {*sets.tested}
    return replace(
        new_device, worst=worst, worst_value=0.0 + sign * float(values[worst]),  # no -0
        worst_alone=0.0 + sign * float(sets.tested[sets.best(alone)]["all"][worst]) if alone else None,
    )  # fmt: skip


def _advise(sets: SetScores, scores: Scores, budget: float) -> Advice:
    """Apply the rule on one test set."""
    alone, traffic, min_effect = scores.alone & {*sets.tested}, scores.traffic, scores.criterion.min_effect
    every = [name for name in sets.tested if name not in alone | scores.controls]
    combining = [name for name in every if traffic[name] <= budget]
    sign = scores.criterion.metric.sign
    if not combining and not (every and alone):
        reason = "no combining method fits the budget" if every else "no method combines models"
        return Advice(Action.UNSURE, reason=reason)
    if not combining:
        return _without_rival(sets, sets.best(alone), scores)
    best = sets.best(combining)
    validated = sets.validates(combining)
    best_value = sign * sets.mean(best)
    means = mean_over_devices(sets.tested[best], sets.weights).dropna()
    by_seed = dict(zip(means.index, map(float, means), strict=True))
    advice = Advice(
        Action.UNSURE, best, best_value, best, validated=validated, best_value=best_value, best_by_seed=by_seed,
        ratio=sets.ratio, ahead=_ahead(sets, (combining, alone), scores.criterion),
    )  # fmt: skip
    if not alone:
        return replace(advice, reason="no method is local training; add one, such as local_only")
    reference = sets.best(alone)
    advice = replace(
        advice, alone=reference, alone_value=sign * sets.mean(reference), best_gain=sets.lead(best, reference)
    )  # fmt: skip
    among = 1 if validated else len(combining)
    gain = sets.gain(best, reference, among)
    if gain is None:
        return replace(advice, reason=FEW_SEEDS)
    action, method = decide(gain, min_effect), reference
    if action is Action.USE:
        as_good = [name for name in combining if _is_as_good(sets.gain(name, best), min_effect)]
        worthy = [name for name in as_good if decide(sets.gain(name, reference, among), min_effect) is Action.USE]
        method = min([best, *worthy], key=lambda name: (traffic[name], name != best, name))
        gain = sets.gain(method, reference, among)
    elif action is Action.UNSURE:
        method = best
    rivals = {name: sets.gain(name, method) for name in combining if name != method}
    equal = tuple(name for name, difference in rivals.items() if _is_as_good(difference, min_effect))
    guess, over_guess = _over_guess(sets, method, scores.controls)
    reason = ""
    if _is_free(sets, guess, scores.criterion):
        action, reason = Action.UNSURE, FREE
    elif action is not Action.UNSURE and over_guess is not None and not over_guess.sure:
        action, reason = Action.UNSURE, _no_better_than_guessing(method, over_guess, scores.criterion)
    close = [name for name, of in rivals.items() if of is None or (of.low <= 1e-12 and of.high >= -1e-12)]
    others = {name: sets.gain(name, method) for name in sets.tested if name in scores.controls - {POOLED}}
    return replace(
        advice, action=action, method=method, value=sign * sets.mean(method), gain=gain, over_guess=over_guess,
        guess=guess, equal=equal, indistinguishable=tuple(name for name in close if name not in equal),
        at_chance=_at_chance(sets, [*alone, *every], guess), reason=reason,
        better_controls=tuple(name for name, of in others.items() if of is not None and of.sure),
    )  # fmt: skip


def _ahead(sets: SetScores, kinds: Iterable[Iterable[str]], criterion: Criterion) -> tuple[str, float, str] | None:
    """Return the first row on test data that is above that taken of its kind by more than what matters, and that."""
    for names in ([*kind] for kind in kinds if kind):
        best = sets.best(names)
        full = (name for name in names if len(sets.tested[name]) == len(sets.tested[best]))
        value, first = max((sets.mean(name), name) for name in full)
        if value > sets.mean(best) + criterion.min_effect:
            return first, criterion.metric.sign * value, best
    return None


def _without_rival(sets: SetScores, method: str, scores: Scores) -> Advice:
    """Return the advice to train alone where no row that combines fits the budget."""
    guess, over_guess = _over_guess(sets, method, scores.controls)
    value = scores.criterion.metric.sign * sets.mean(method)
    advice = Advice(Action.ALONE, method, value, over_guess=over_guess, guess=guess)
    if over_guess is not None and not over_guess.sure:
        free = _is_free(sets, guess, scores.criterion)
        reason = FREE if free else _no_better_than_guessing(method, over_guess, scores.criterion)
        return replace(advice, action=Action.UNSURE, over_guess=None, reason=reason)
    return advice


def _over_guess(sets: SetScores, method: str, controls: frozenset[str]) -> tuple[str | None, Gain | None]:
    """Return the stronger of the rows that guess, and a row's gain on it."""
    guesses = [name for name in GUESSES if name in sets.tested and name in controls]
    if not guesses:
        return None, None
    guess = max(guesses, key=lambda name: sets.mean(name))
    return guess, sets.gain(method, guess)


def _is_free(sets: SetScores, guess: str | None, criterion: Criterion) -> bool:
    """Return whether costs decide, and what always guesses has none."""
    return criterion.metric.name == "cost" and guess is not None and sets.mean(guess) == 0


def _at_chance(sets: SetScores, names: Iterable[str], guess: str | None) -> tuple[str, ...]:
    """Return the rows that are, on average over their seeds, no better than guessing."""
    if guess is None:
        return ()
    return tuple(sorted(name for name in names if sets.lead(name, guess) <= 1e-12))


def _no_better_than_guessing(method: str, over_guess: Gain, criterion: Criterion) -> str:
    by = " by cost" * (criterion.metric.name == "cost")
    if over_guess.high < criterion.min_effect or over_guess.mean <= 0:
        above = "better by cost than" if by else "above"
        return f"{method} is not {above} {criterion.guessing} on these test rows"
    few = "two seeds" if over_guess.seeds == 2 else "these seeds"
    return f"{few} do not tell {method} from {criterion.guessing}{by}"


def decide(gain: Gain | None, min_effect: float) -> Action:
    """Return what the gain of combining on training alone calls for (docs/answer.md)."""
    if gain is None:
        return Action.UNSURE
    if gain.sure and gain.mean >= min_effect - 1e-12:
        return Action.USE
    if gain.within(min_effect):
        return Action.SAME
    return Action.ALONE if gain.high < min_effect else Action.UNSURE


def _is_as_good(gain: Gain | None, min_effect: float) -> bool:
    return gain is not None and gain.within(min_effect)


def _changes(scores: Scores, row: str, other: str) -> Devices:
    """Return what a row does to single devices, against another one."""
    own, min_effect, sign = scores.own, scores.criterion.min_effect, scores.criterion.metric.sign
    run, alone = own.tested[row], own.tested[other]
    gains = run - alone
    change = gains.mean().dropna()
    lowest = str(change.idxmin())
    sides = zip(change.items(), gains.std()[change.index], gains.count()[change.index], strict=True)
    shown = (
        str(name) for (name, mean), spread, seeds in sides
        if abs(mean) > half_width(spread, int(seeds), own.ratio, among=len(change)) + 1e-12
    )  # fmt: skip
    lacking = gains.columns[gains.isna().all()]
    sides_of = {other: alone, row: run, f"one of {row} and {other}": gains}
    why = next(name for name, of in sides_of.items() if of[lacking].isna().to_numpy().all())
    return Devices(
        len(change), int((change >= min_effect - 1e-12).sum()), int((change <= -min_effect + 1e-12).sum()), lowest,
        float(change[lowest]), sign * float(run.min(axis=1).mean()), sign * float(alone.min(axis=1).mean()),
        frozenset() if own.same_test else frozenset(shown),  # the same rows may be unlucky ones
        (tuple(map(str, lacking)), why),
    )  # fmt: skip
