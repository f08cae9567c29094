"""The answer to a comparison in words, which terminal, page, record and scripts share.

:mod:`fedcore.results.answer` decides what is said; here it is put into words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from fedcore.core.metrics import Metric
from fedcore.errors import plural, printable
from fedcore.results.advice import Action, Advice, Answer, Devices, NewDevice
from fedcore.results.answer import POOLED, gains_of_settings
from fedcore.results.chance import COUNT_RARE, LINEAR, SCALE, UNWEIGHTED, AtChance, Cause
from fedcore.results.criterion import Criterion
from fedcore.results.gains import Gain
from fedcore.results.summary import format_bytes, join_words
from fedcore.results.threshold import LEAST_OF_KIND

MANY = 6
"""The most devices that a sentence names."""

MORE = "More seeds or more test data would tell (`fedcore docs undecided`)."
"""What would decide where nothing can be said."""

MORE_ROWS = "More test rows would tell: a larger share (federation.test=0.4) or more in all (`fedcore docs undecided`)."
"""The same, where seeds hardly tell more."""

MANY_SEEDS = 10
"""From so many seeds on more of them hardly tell more."""

CHANCE = " This may be chance."
"""What is said of single devices where nothing can be said, their test rows are few, or none is hurt for sure."""

LOCAL, ANOTHER = "local training", "one device's model"
"""What a method is compared with: on devices' own test data, and on data of all or of new devices."""


@dataclass(frozen=True)
class AnswerInWords(Answer):
    """An answer that a script prints: its numbers, and the words of this module."""

    @classmethod
    def of(cls, answer: Answer) -> AnswerInWords:
        """Return an answer with its words."""
        return cls(**vars(answer))

    @property
    def headline(self) -> str:
        """The answer in a few words."""
        return headline(self.advice)

    @property
    def sentences(self) -> list[str]:
        """The answer in sentences: what to do and why, for whom and at what cost, and for a new device."""
        from fedcore.config.sections import as_arguments  # imports PyTorch: `fedcore show` needs none

        return [*map(as_arguments, sentences(self))]

    def __str__(self) -> str:
        return "\n".join(self.sentences)


def headline(advice: Advice) -> str:
    """Return an advice in a few words."""
    match advice.action:
        case Action.USE:
            return printable(f"Use {advice.method}")
        case Action.ALONE:
            return f"Use {LOCAL}"
        case Action.SAME:
            return "No difference that matters"
        case _:
            return "Cannot say"


def headed(answer: Answer) -> tuple[str, list[str]]:
    """Return an answer's headline, and its sentences; none repeats "Cannot say" as a sentence of its own."""
    words = [re.sub(r"^Cannot say[.:] (.)", lambda first: first[1].upper(), of) for of in sentences(answer)]
    return headline(answer.advice), words


def sentences(answer: Answer) -> list[str]:
    """Return an answer in sentences: what to do and why, for whom and at what cost, and for a new device."""
    edited = [f"Edited tasks of this project took part: {join_words(answer.tasks)}."] if answer.tasks else []
    refused = [printable(f"{label} has no result: {why}.") for label, why in answer.refused.items()]
    free = [printable(answer.free)] if answer.free else []  # it ends with what to type, which a full stop would spoil
    return [*map(printable, _sentences(answer)), *edited, *refused, *free]


def scale_sentence(answers: Mapping[str, Answer]) -> tuple[str, str] | None:
    """Return, of one study's answers by federation.scale, which scale is best: in a few words, and in a sentence.

    None if a scale has no row that combines, or fewer than two seeds in common with the best.
    """
    best, gains = gains_of_settings(answers) or ("", {})
    if not gains or None in gains.values():
        return None
    criterion = answers[best].criterion
    gaps = [
        f" Against scale {name} ({answers[name].advice.best}): {_gain(criterion.metric, gain)}."
        for name, gain in gains.items()
        if gain is not None
    ]
    sure = all(gain is not None and gain.sure for gain in gains.values())
    advice = answers[best].advice
    value = _named(criterion, advice.best_value or 0.0)
    sentence = f"With scale {best} the best combining method is {advice.best}: {value}.{''.join(gaps)}"
    return (f"Scale {best}", sentence) if sure else ("No scale is better for sure", sentence)


def facts(answer: Answer) -> list[tuple[str, str]]:
    """Return the few numbers that decide, each with what it means; none where nothing was compared."""
    advice, devices, metric = answer.advice, answer.devices, answer.criterion.metric
    if advice.gain is None or advice.value is None:
        return []
    value, gain = metric.value(advice.value), metric.difference(advice.gain.mean)
    interval = f"({_interval(metric, advice.gain)})"
    right = "right" if metric.name == "accuracy" else answer.criterion.words + ", less is better" * metric.less
    best = printable(f"with {advice.best}, the best {'on validation rows' if advice.validated else 'combining method'}")
    against = f"{metric.unit} against {LOCAL if answer.own else ANOTHER} {interval}"
    if advice.action is Action.UNSURE:
        return [(value, f"{right} {best}"), (gain, against.strip())]
    if advice.action is not Action.USE:
        return [(value, f"{right} with {LOCAL}"), (gain, f"{metric.unit} {best} {interval}".strip())]
    pairs = [(value, right), (gain, against.strip())]
    if devices is not None:
        doubt = "; may be chance" * (devices.count > 1 and answer.counts_may_be_chance)
        pairs.append((f"{devices.helped} of {devices.count}", f"devices helped, {devices.hurt or 'none'} hurt{doubt}"))
    return [*pairs, (format_bytes(answer.up + answer.down), "sent and received by a device")]


def tally(answers: Iterable[Answer]) -> str:
    """Return how often each answer is given: "Use code_ot in 5 of 8 settings, use local training in 3."."""
    counts = Counter(headline(answer.advice) for answer in answers)
    (first, number), *others = counts.most_common()
    rest = "".join(f", {text[0].lower()}{text[1:]} in {count}" for text, count in others)
    return f"{first} in {number} of {counts.total()} settings{rest}."


def _interval(metric: Metric, gain: Gain) -> str:
    return f"95 % interval {metric.interval(gain.low, gain.high)}"


def _gain(metric: Metric, gain: Gain, over: str = "seeds") -> str:
    """Return a gain with its interval: +4.3 points (95 % interval +3.1 to +5.5; 3 seeds). over: what it is over."""
    size = f"{metric.difference(gain.mean)} {metric.unit}".strip()
    return f"{size} ({_interval(metric, gain)}; {gain.seeds} {over})"


def _sentences(answer: Answer) -> Iterator[str]:
    own, new, criterion = answer.own, answer.new, answer.criterion
    first = answer.advice
    row = str(first.method if first.action is Action.USE else first.best)
    if criterion.reason:
        yield f"Decided by {criterion.words}, since {criterion.reason}."
    if own is not None or answer.new_device is None:
        weighted = answer.misses_rare and any(gained > 0 for gained in answer.remedies.values())
        more = "" if weighted or answer.probed is not None else MORE
        if more and first.gain is not None and first.gain.seeds >= MANY_SEEDS:
            more = MORE_ROWS
        named = "" if first.alone in (None, "local_only") else f" ({first.alone})"
        yield _decision(first, criterion, f"{LOCAL}{named}" if own else ANOTHER, more=more)
    if own is not None:
        yield from _left_out(answer)
        if (gain := answer.over_all) is not None:
            more = _count((*answer.measured.few, *answer.measured.one_class)) or "all devices"
            over = f"{row} against {LOCAL}: {_gain(criterion.metric, gain, 'devices')}"
            alike = ", all alike" * (criterion.weigh == "examples")
            yield f"If {more} counted too{alike}, {over}. The answer leaves that out, as their test rows are few."
        if answer.by_rows is not None:
            offer = f"If rows count, not devices, use {answer.by_rows}: run.weigh=examples."
            yield f"Devices differ much in size. {offer}"
    if answer.few is not None and first.gain is not None:
        name, count = answer.few
        what = f"{criterion.words[:1].upper()}{criterion.words[1:]} rests on {plural(count, 'test row')}"
        yield f"{what} of class {name} in a seed; {LEAST_OF_KIND} are needed."
    if answer.misses_rare:
        futile = answer.remedies.get(f"{row} with {WEIGHTS.split()[0]}", 1.0) <= 0
        weights = f"; {HELP[futile or (None if answer.weighted is None else row in answer.weighted)]}"
        weights = ", and takes no class weights" if row.startswith(UNWEIGHTED) else weights
        yield f"{row} misses many rows of a rare class{weights} (`fedcore docs metric`)."
    for what, gained in answer.remedies.items():
        more = f"{criterion.metric.difference(gained)} {criterion.metric.unit}".strip() if gained > 0 else "nothing"
        gains = f"changes the {criterion.metric.words} by" if criterion.metric.less and gained > 0 else "gains"
        short = ", less than would matter" * (0 < gained < answer.min_effect)
        doubt = (
            f" So {row} may be ahead of a badly trained net alone: before you combine, run again with net.widths=[]."
        )
        doubt *= doubted(answer, row, what) and first.action in (Action.USE, Action.UNSURE)
        yield f"Tried with one seed: {what} {gains} {more} on validation rows{short}.{doubt}"
    several = answer.devices if answer.devices is not None and answer.devices.count > 1 else None
    told = first.action is Action.USE or (first.action is Action.UNSURE and not answer.is_guess(row))
    if several is not None and first.gain is not None and told:
        whom = _whom(row, several, criterion, CHANCE * answer.counts_may_be_chance, answer.over_all)
        yield whom if first.action is Action.USE else f"In these runs {whom}"
    if first.action is Action.USE:
        yield f"Each device sends {format_bytes(answer.up)} and receives {format_bytes(answer.down)} in total."
    yield from _rivals(first, criterion, answer.stopped)
    if answer.pooled is not None:
        yield (
            f"Left on the table: {POOLED}, trees on the rows of all devices together, against {first.method}: "
            f"{_gain(criterion.metric, answer.pooled)}."
        )
    yield from _at_chance(answer)
    if answer.stopped:
        (few, most), they = answer.seeds, "It" if len(answer.stopped) == 1 else "They"
        yield (
            f"Stopped after {few} of {most} seeds: {join_words(answer.stopped)}. {they} cannot win by validation data; "
            f"run.stop_rows=none runs all seeds."
        )
    if answer.new_device is not None:
        yield from _new_device(answer.new_device, criterion, "More devices would tell." * (answer.probed is None))
        new = answer.new_device.advice
        if new.action is Action.USE and any(doubted(answer, str(new.method), what) for what in answer.remedies):
            yield "This gain, too, may be over a badly trained net (net.widths=[])."
        if answer.own_scale:
            yield f"Its rows are scaled by their own mean and spread: predict at least {answer.own_scale} together."
    elif own is not None and new is not None and not (own.reason and own.reason == new.reason):
        decision = _decision(new, criterion, ANOTHER, more=MORE * (answer.probed is None))
        yield f"For rows whose device is unknown (shared test data): {decision[0].lower()}{decision[1:]}"


def doubted(answer: Answer, row: str, what: str) -> bool:
    """Tell whether a remedy that was tried makes it doubtful that a row is ahead: a linear net trains alone better."""
    return LINEAR in what and not what.startswith(f"{row} ") and answer.remedies[what] >= answer.min_effect


def _new_device(new: NewDevice, criterion: Criterion, more: str) -> Iterator[str]:
    """Say what a device that took no part would get: the advice, the worst of these devices, and what is assumed.

    more: what would tell where nothing can be said.
    """
    metric, counted = criterion.metric, new.measured
    names = tuple(counted.weights)
    where = f"{_count(names)}, left out of training in turn" if new.in_turn else f"{_count(names)}, not in training"
    decision = _decision(new.advice, criterion, ANOTHER, "left-out devices", more)
    yield f"For a new device ({where}): {decision[0].lower()}{decision[1:]}"
    if new.worst_value is not None:
        alone = "" if new.worst_alone is None else f"; with {ANOTHER} {metric.value(new.worst_alone)}"
        worst = f"{new.worst}: {_named(criterion, new.worst_value)}{alone}"
        yield f"Among left-out devices {new.advice.judged} does worst on {worst}."
    if new.advice.action is not Action.UNSURE:
        yield "This holds for new devices like these. A device unlike them may do worse."
    uncounted = (*counted.few, *counted.one_class)
    if uncounted and not counted.everyone:
        have = "has" if len(uncounted) == 1 else "have"
        least = criterion.least_test
        yield f"Not counted: {_count(uncounted)}, which {have} fewer than {least} labelled rows or one class."
    if new.without:
        yield f"{join_words(new.without)} cannot serve a device that did not train."


def _decision(advice: Advice, criterion: Criterion, alone: str, over: str = "seeds", more: str = MORE) -> str:
    """Return the advice with the numbers that decide.

    alone: what is compared with, in words. over: what the interval is over. more: what would tell where nothing can be
    said.
    """
    metric = criterion.metric
    guess = ""
    if advice.over_guess:
        own = f"always guessing each device's own {criterion.guess}"
        own = own if advice.guess == "majority_per_device" else criterion.guessing
        own += " on the same rows" * (metric.name in COUNT_RARE)  # where a device lacks a class, a guess is above 1 / K
        guess = f" Against {own}: {_gain(metric, advice.over_guess, over)}."
    right = _named(criterion, advice.value) if advice.value is not None else ""
    if advice.action is Action.ALONE and advice.best is None:
        return f"Use {alone}: {right}.{guess} No combining method fits the budget."
    if advice.reason or advice.gain is None:
        return f"Cannot say: {advice.reason}."
    matter = metric.amount(criterion.min_effect)
    against = f"Against {alone}: {_gain(metric, advice.gain, over)}."
    by = " by validation data" if advice.validated else ""
    match advice.action:
        case Action.USE:
            cheaper = ""
            if advice.method != advice.best:
                cheaper = f" It is as good as {advice.best} within {matter}, and sends less."
            return f"Use {advice.method}: {right}. {against}{guess}{cheaper}"
        case Action.ALONE:
            return f"Use {alone}: {right}.{guess} No method gains {matter}. The best{by} is {advice.best}. {against}"
        case Action.SAME:
            use = " Use it, as it sends nothing, unless devices without data need a model." * alone.startswith(LOCAL)
            return (
                f"No difference that matters ({matter}). The best combining method{by} is {advice.best}. {against} "
                f"{alone.capitalize()}: {right}.{guess}{use}"
            )
        case _:
            if advice.gain.seeds == 2 and more:
                more = f"Two {over} say nothing; {'run a third' if over == 'seeds' else 'more devices would tell'}."
            return (
                f"Cannot say. The best combining method{by} is {advice.best}: {right}. {against} A gain of {matter} "
                f"would matter. {more}"
            ).rstrip()


def _named(criterion: Criterion, value: float) -> str:
    """Return a value with the name of what it is."""
    metric = criterion.metric
    less = " (in the label's unit, less is better)" if metric.in_label_unit else " (less is better)" * metric.less
    return metric.named(value) if metric.name == "accuracy" else f"{criterion.words} {metric.value(value)}{less}"


def _left_out(answer: Answer) -> Iterator[str]:
    """Say which devices have no part in the mean, and how devices are weighed."""
    counted, least = answer.measured, answer.criterion.least_test
    by_rows = f", each by its {'expected ' * counted.expected}test rows" if answer.criterion.weigh == "examples" else ""
    rows = "expected test rows" if counted.expected else "test rows on average over seeds"
    out = {
        f"fewer than {least} {rows}": counted.few, "test rows of one class only": counted.one_class,
        f"no {answer.criterion.words}": counted.undefined,
    }  # fmt: skip
    why = [f"{_count(ones)} {'has' if len(ones) == 1 else 'have'} {what}" for what, ones in out.items() if ones]
    if counted.everyone and why:
        yield f"The mean is over all devices{by_rows}. None can be measured well: {'; '.join(why)}."
    elif why:
        every = len(counted.weights) + sum(map(len, out.values()))
        all_count = " run.least_test=0 counts all." * bool(counted.few or counted.one_class)
        one = " One device tells little of the others." * (len(counted.weights) == 1 and bool(counted.few))
        yield f"The mean is over {len(counted.weights)} of {every} devices{by_rows}: {'; '.join(why)}.{one}{all_count}"
    elif by_rows:
        yield f"The mean is over {plural(len(counted.weights), 'device')}{by_rows}."


def _count(names: tuple[str, ...]) -> str:
    """Return names, or their number and the first ones."""
    return join_words(names) if len(names) <= MANY else f"{len(names)} devices ({', '.join(names[:MANY])}, ...)"


def _whom(method: str, devices: Devices, criterion: Criterion, doubt: str, over_all: Gain | None) -> str:
    """Say whom the row helps and hurts. doubt: what is said of these counts. over_all: where some do not count."""
    metric, matter = criterion.metric, criterion.metric.amount(criterion.min_effect)
    count = plural(devices.count, "device") if over_all is None else f"the {devices.count} devices that count"
    sentence = f"{method} helps {devices.helped or 'none'} of {count} by at least {matter}"
    names, row = devices.lacking
    if names:
        doubt += f" Not counted: {_count(names)}, where {row} has no {criterion.words} in any seed."
    if not devices.hurt:
        return f"{sentence} and hurts none.{doubt}"
    falls = metric.sign * (devices.worst - devices.worst_alone) < -criterion.min_effect
    verb = "rises" if metric.less else "falls"
    tail = ""
    if falls:
        who = "any device" if over_all is None else count
        which = f"{'highest' if metric.less else 'lowest'} {criterion.words} of {who}, mean over seeds,"
        tail = f" The {which} {verb} from {metric.value(devices.worst_alone)} to {metric.value(devices.worst)}."
    change = f"{metric.difference(devices.lowest_change)} {metric.unit}".strip()
    most = f"{devices.hurt}, most " * (devices.hurt > 1)
    return f"{sentence} and hurts {most}{devices.lowest} ({change}).{doubt}{tail}"


def _rivals(advice: Advice, criterion: Criterion, stopped: Collection[str]) -> Iterator[str]:
    """Name the rows that are as good or not significantly different, and controls that are better. stopped: rows."""
    use = advice.action is Action.USE
    if advice.ahead is not None:
        name, value, taken = advice.ahead
        yield (
            f"{taken} is chosen, as it is best on validation rows. On the test rows {name} is ahead "
            f"({_named(criterion, value)}), but the first of many there is partly luck."
        )
    rest = [name for name in advice.equal if name != advice.best]
    if use and rest:
        be = "is" if len(rest) == 1 else "are"
        yield f"{join_words(rest)} {be} as good within {criterion.metric.amount(criterion.min_effect)}."
    if use and (close := [name for name in advice.indistinguishable if name not in stopped]):
        yield f"Not significantly different from {advice.method} with these seeds: {join_words(close)}."
    if use and advice.better_controls:
        noun, be = ("control", "is") if len(advice.better_controls) == 1 else ("controls", "are")
        yield f"Warning: the {noun} {join_words(advice.better_controls)} {be} significantly better."


CAUSES = {
    Cause.NO_TRAINING: "No net is trained, so no learning rate is to blame, but {its} may not fit{or_else}.",
    Cause.DIFFERENT_STARTS: "Likely cause: devices start from different models, which an average spoils. Not tried: "
    "training.shared_init=true.",
    Cause.TOO_FAR: "Likely causes: the learning rate is too high, or few rows are learnt by heart{or_else}.",
    Cause.COMMONEST: "The probabilities tell something, but the commonest class is mostly the most probable. Another "
    "run.metric may show it.",
    Cause.UNLIKE: "Better than one answer for all devices, not than each device's own. Likely cause: devices are too "
    "unlike for one model.",
    Cause.UNEVEN: "Better on some devices, worse on others. Likely cause: devices are too unlike for one model.",
    Cause.TOO_LITTLE: "The predictions hardly depend on the features: the learning rate may be too low, or far too "
    "high, steps too few, or the net does not fit{or_else}.",
}
"""The likely cause why a row is no better than guessing."""

RARELY = "The probabilities tell something, but a rare class is hardly ever the most probable."
WEIGHTS = "training.class_weights=balanced may change it"
HELP = {
    True: "more rows of it would help", False: WEIGHTS,
    None: "where training.class_weights=balanced is set, more rows of it would help",
}  # fmt: skip
"""What helps a rare class: of a row with class weights, one without, and where that is unknown."""
UNSCALED = " Likely cause: the columns span unlike ranges and are not scaled."

SETTINGS = {"analytic": "features and reg", "xgb": "trees and boosting"}
"""The main settings of rows that train no net, by what their labels begin with."""

OR_COLUMNS, OR_UNLIKE = ", or the columns tell nothing of the label", ", or devices are too unlike for one model"
"""The cause beside these: unless a row or a simple model is better than guessing; and where training alone is."""

COMMONEST = {
    "rates": "The probabilities tell something, but those of rare labels stay below 1/2. "
    "run.metric=mean_average_precision may show it.",
    "cheapest class": "The probabilities tell something, but too little to make another class the cheapest for enough "
    "rows.",
    "mean": "The loss, a squared error, is lower. Another run.metric may show it.",
}
"""The same as COMMONEST where there are several labels, costs or numbers, by what is guessed."""


def _at_chance(answer: Answer) -> Iterator[str]:
    """Name the rows that are no better than always guessing, by their likely cause if that is said."""
    criterion = answer.criterion
    costs, rare = criterion.metric.name == "cost", criterion.metric.name in COUNT_RARE
    by = f" by {criterion.words}" * (costs or (rare and criterion.guess not in COMMONEST))
    rarely = RARELY if answer.weighted else f"{RARELY} For nets {WEIGHTS}."
    commonest = COMMONEST.get(criterion.guess, rarely if answer.misses_rare else CAUSES[Cause.COMMONEST])
    said: dict[str, dict[str, AtChance]] = {}
    for cause, sentence in (CAUSES | {Cause.COMMONEST: commonest}).items():
        of_cause = {name: case for name, case in answer.causes.items() if case.cause is cause}
        if of_cause:
            doubt = "" if answer.learns or answer.probed else OR_COLUMNS
            doubt = OR_UNLIKE if answer.learns and answer.advice.alone not in answer.causes else doubt
            its = ", ".join(main for kind, main in SETTINGS.items() if any(row.startswith(kind) for row in of_cause))
            why = "" if answer.probed == () else f" {sentence.format(or_else=doubt, its=its)}"
            scaled = any(SCALE in what and gained >= answer.min_effect for what, gained in answer.remedies.items())
            if scaled and cause not in (Cause.DIFFERENT_STARTS, Cause.COMMONEST):
                why = UNSCALED
            said.setdefault(why, {}).update(of_cause)
    yield from _seen(answer)
    for why, rows in said.items():
        be, guess = "is" if len(rows) == 1 else "are", next(iter(rows.values())).guess
        named = join_words(f"{name} (loss {case.loss:.3g})" for name, case in sorted(rows.items()))
        lower = any(case.loss < case.guess and case.cause is not Cause.COMMONEST for case in rows.values())
        little = "hardly" if lower else "no"
        yield f"{named} {be} {little} better{by} than {criterion.guessing} (loss {guess:.3g}).{why}"
    if answer.nothing_learns and answer.probed == ():
        own = "model on each device's own rows"
        little = "the columns tell little, or the rows are too few to show it"
        yield f"A linear and a nearest-neighbour {own} see nothing of the label either: {little}."


def _seen(answer: Answer) -> Iterator[str]:
    """Say, where no row learns but simple models see the label, what would show it: measured, so ahead of guesses."""
    if not answer.nothing_learns or not answer.probed:
        return
    metric, find = answer.criterion.metric.name, "finds" if len(answer.probed) == 1 else "find"
    fails = answer.advice.alone in answer.causes and metric != "cost"
    weak = fails and metric in ("accuracy", *COUNT_RARE)
    so = f": try run.metric=roc_auc, as {answer.criterion.words} may hide what is told weakly" if weak else ""
    so = so or ": training fails" * fails
    yield f"On each device's own rows a {' and a '.join(answer.probed)} model {find} the label in the columns{so}."
