"""The answer to a comparison in words, which terminal, page, record and scripts share.

:mod:`fedcore.results.answer` decides what is said; here it is put into words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fedcore.results.answer import Action, Advice, Answer, Devices
from fedcore.results.summary import format_bytes, join_words


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
        return sentences(self)

    def __str__(self) -> str:
        return "\n".join(self.sentences)


def headline(advice: Advice) -> str:
    """Return an advice in a few words."""
    match advice.action:
        case Action.USE:
            return f"Use {advice.method}"
        case Action.ALONE:
            return "Train alone"
        case Action.SAME:
            return "No difference that matters"
        case _:
            return "Cannot say"


def sentences(answer: Answer) -> list[str]:
    """Return an answer in sentences: what to do and why, for whom and at what cost, and for a new device."""
    return [*_sentences(answer)]


def facts(answer: Answer) -> list[tuple[str, str]]:
    """Return the few numbers that decide, each with what it means; none where nothing was compared."""
    advice, devices = answer.advice, answer.devices
    if advice.gain is None or advice.accuracy is None:
        return []
    gain = f"{points(advice.gain.mean)} ± {100 * advice.gain.spread:.1f}"
    best = f"with {advice.best}, the best way of combining"
    against = "points against training alone" if answer.own else "points against one device's model"
    if advice.action is Action.UNSURE:
        return [(f"{advice.accuracy:.1%}", f"right {best}"), (gain, against)]
    if advice.action is not Action.USE:
        return [(f"{advice.accuracy:.1%}", "right when trained alone"), (gain, f"points {best}")]
    found = [(f"{advice.accuracy:.1%}", "right"), (gain, against)]
    if devices is not None:
        found.append((f"{devices.helped} of {devices.count}", f"devices helped, {devices.hurt or 'none'} hurt"))
    return [*found, (format_bytes(answer.up + answer.down), "sent and received by a device")]


def tally(found: Iterable[Answer]) -> str:
    """Return how often each answer is given: "Use code_ot in 5 of 8 settings, train alone in 3."."""
    counts = Counter(headline(answer.advice) for answer in found)
    (first, number), *others = counts.most_common()
    rest = "".join(f", {words[0].lower()}{words[1:]} in {count}" for words, count in others)
    return f"{first} in {number} of {counts.total()} settings{rest}."


def points(difference: float) -> str:
    """Return a difference of accuracies in percentage points, with its sign: +4.3."""
    return f"{100 * difference + 0.0:+.1f}"


def _sentences(found: Answer) -> Iterator[str]:
    own, new = found.own, found.new
    first = found.advice
    yield _decision(first, found.min_effect, "training alone" if own else "one device's model")
    if found.devices is not None and first.gain is not None and first.action in (Action.USE, Action.UNSURE):
        yield _whom(first.method if first.action is Action.USE else first.best, found.devices, found.min_effect)
    if first.action is Action.USE:
        yield f"Each device sends {format_bytes(found.up)} and receives {format_bytes(found.down)} in total."
        yield from _rivals(first, found.min_effect)
    if own is not None and new is not None and not (own.reason and own.reason == new.reason):
        words = _decision(new, found.min_effect, "one device's model")
        yield f"For a new device (shared test data): {words[0].lower()}{words[1:]}"


def _decision(advice: Advice, min_effect: float, alone: str) -> str:
    """Return the advice with the numbers that decide. alone: what is compared with, in words."""
    guess = (
        f"{points(advice.over_guess.mean)} ± {100 * advice.over_guess.spread:.1f} against always guessing"
        if advice.over_guess
        else ""
    )
    right = f"{advice.accuracy:.1%} right" if advice.accuracy is not None else ""
    if advice.action is Action.ALONE and advice.best is None:
        return f"Train alone: {right}{f' ({guess})' if guess else ''}. No method fits the budget."
    if advice.reason or advice.gain is None:
        return f"Cannot say: {advice.reason}."
    gain, matter = advice.gain, _amount(min_effect)
    size = f"{points(gain.mean)} ± {100 * gain.spread:.1f} points"
    seeds = f"{gain.seeds} seeds"
    match advice.action:
        case Action.USE:
            also = f", {guess}" if guess else ""
            return (
                f"Use {advice.method}: {right}, {size} against {alone}{also} "
                f"({seeds}; in each at least {points(gain.least)} against {alone})."
            )
        case Action.ALONE:
            return (
                f"Train alone: {right}{f' ({guess})' if guess else ''}. No method gains {matter}: "
                f"the best, {advice.best}, has {size} against {alone} ({seeds})."
            )
        case Action.SAME:
            return (
                f"No difference that matters ({matter}): the best way of combining, {advice.best}, has {size} against "
                f"{alone}, which is {right}{f' ({guess})' if guess else ''} and needs no traffic ({seeds})."
            )
        case _:
            return (
                f"Cannot say: the best way of combining, {advice.best}, has {size} against {alone} ({seeds}), "
                f"and {matter} would matter. More seeds or more test data would tell."
            )


def _whom(method: str | None, devices: Devices, min_effect: float) -> str:
    """Say whom the row helps and whom it hurts."""
    words = f"{method} helps {devices.helped or 'none'} of {devices.count} devices by at least {_amount(min_effect)}"
    if not devices.hurt:
        return f"{words} and hurts none."
    falls = devices.worst < devices.worst_alone - min_effect
    tail = f"; the worst device falls from {devices.worst_alone:.1%} to {devices.worst:.1%}" if falls else ""
    return f"{words} and hurts {devices.hurt}, most {devices.lowest} ({points(devices.lowest_change)} points){tail}."


def _rivals(advice: Advice, min_effect: float) -> Iterator[str]:
    """Name the rows that are as good, those that cannot be told apart, and controls that are better."""
    if advice.equal:
        be = "is" if len(advice.equal) == 1 else "are"
        yield f"{join_words(advice.equal)} {be} as good within {_amount(min_effect)}."
    if advice.indistinguishable:
        yield f"Not told apart from {advice.method} by these seeds: {join_words(advice.indistinguishable)}."
    if advice.better_controls:
        noun, be = ("control", "is") if len(advice.better_controls) == 1 else ("controls", "are")
        yield f"Beware: the {noun} {join_words(advice.better_controls)} {be} better by more than the spread."


def _amount(min_effect: float) -> str:
    """Return the difference that matters in words."""
    return f"{100 * min_effect:g} {'point' if min_effect == 0.01 else 'points'}"
