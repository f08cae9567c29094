"""Why a row is no better than always guessing: the likely cause, by the rule of docs/answer.md.

Losses are those after the last round, in nats, means over the devices that count and over seeds. With K classes that of
an untrained net is about ln K, with several labels ln 2; of a number, whose loss is the squared error, only those of
the guesses tell. A row that trains no net (UNTRAINED) has no such cause.

Where no row is above the guess, :func:`fedcore.results.left_out.probe` decides whether the columns tell nothing of the
label or training fails.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import pandas as pd

from fedcore.results.criterion import RATIO, has_several_labels, label_std
from fedcore.results.gains import gain_of
from fedcore.results.summary import last_round, mean_over_devices, runs_of

FAR, CLOSE = 1.5, 0.9

PROBE, TRIED = "probe", "tried"
"""The splits of the rows that a probe adds, the share of permutations that are as good as the labels, and a run with a
remedy: its gain on validation data."""

SEEN = 0.01
"""The share of permutations below which a probe's model sees the label."""

COUNT_RARE = "balanced_accuracy", "macro_f1", "recall", "f1"
"""The metrics of predicted classes that are low where rows of a rare class are missed."""

SCALE = "federation.scale"
"""The setting that is to blame where columns of unlike spans are not scaled."""

LINEAR = "a linear net (net.widths=[])"
"""What a row on a table is tried with whose net has hidden layers: these may learn few rows by heart."""

UNTRAINED = "analytic", "xgb"
"""What the labels of rows begin with that train no net, so that no learning rate is to blame."""

UNWEIGHTED = UNTRAINED[0]
"""What the labels of those begin with that take no class weights."""


class Cause(StrEnum):
    """The likely cause."""

    NO_TRAINING = "no training"
    DIFFERENT_STARTS = "different starts"
    TOO_FAR = "too far"
    COMMONEST = "commonest class"
    UNLIKE = "unlike devices"
    UNEVEN = "uneven devices"
    TOO_LITTLE = "too little"


@dataclass(frozen=True)
class AtChance:
    """The likely cause, and the losses that tell it: of the row, and of the guess whose loss is lowest, nats."""

    cause: Cause
    loss: float
    guess: float


def likely_causes(
    table: pd.DataFrame, split: str, names: Collection[str], guesses: Iterable[str], alone: frozenset[str],
    weights: pd.Series,
) -> dict[str, AtChance]:  # fmt: skip
    """Return the likely cause of each of some rows of one setting's tidy table; none without losses.

    split: that on which they are at chance. guesses: the rows that guess; that with the lowest loss is compared, since
    a row that has learnt no more than the devices' shares of the classes has learnt nothing from the columns.
    alone: the rows that train alone. One that combines and is well below the guess of one answer for all has learnt
    something. weights: of the devices that count.
    """
    last = last_round(table)
    runs = runs_of(last[(last["split"] == split) & (last["metric"] == "loss")])
    losses = {name: float(mean_over_devices(run, weights).mean()) for name, run in runs.items()}
    known = {name: losses[name] for name in guesses if not math.isnan(losses.get(name, math.nan))}
    if not known:
        return {}
    guess, highest = min(known, key=known.__getitem__), max(known.values())
    numbers = table[(table["split"] == "data") & table["metric"].isin(["classes", "test_classes"])]["value"]
    if has_several_labels(table):
        numbers = pd.Series([2.0])
    numbers = numbers if math.isnan(label_std(table)) else numbers[:0]
    start = max(highest, math.log(max(1.0, numbers.max()))) if len(numbers) else highest
    causes = {}
    for name in names:
        loss = float(losses.get(name, math.nan))
        below = gain_of(runs[guess], runs[name], weights, RATIO) if name in runs else None
        same = runs[guess].reindex(runs[name].index if name in runs else runs[guess].index)  # the row's own seeds
        of_guess = float(mean_over_devices(same, weights).mean())
        tells = loss < CLOSE * of_guess or (below is not None and below.sure)
        trained = not name.startswith(UNTRAINED)
        if trained and alone - {*names} and starts_apart(table, name):
            cause = Cause.DIFFERENT_STARTS
        elif trained and not loss <= FAR * start:
            cause = Cause.TOO_FAR
        elif tells:
            cause = Cause.COMMONEST
        elif name in runs and name not in alone and is_uneven(runs[name], runs[guess], weights):
            cause = Cause.UNEVEN
        elif not trained:
            cause = Cause.NO_TRAINING
        else:
            one_for_all = loss < CLOSE * losses.get("majority", math.nan) and name not in alone
            cause = Cause.UNLIKE if one_for_all else Cause.TOO_LITTLE
        causes[name] = AtChance(cause, loss, of_guess)
    return causes


def is_uneven(run: pd.DataFrame, guess: pd.DataFrame, weights: pd.Series) -> bool:
    """Tell whether losses are well below a guess's on some devices that count, and above on others, each seed."""
    share = (run / guess.where(guess > 0)).loc[:, weights.reindex(run.columns) > 0]
    return bool((share.max() < CLOSE).any() and (share.min() > 1 / CLOSE).any())


def starts_apart(table: pd.DataFrame, name: str) -> bool:
    """Tell whether devices that send whole models to be averaged get none before their first round.

    A whole model is what `majority` gives to each device. In a method of one round the last message, the final model,
    counts in the first round as well.
    """
    traffic = table[table["split"] == "traffic"]
    whole = traffic[(traffic["method"] == "majority") & (traffic["metric"] == "bytes_down")]["value"].mean()
    of_row = traffic[traffic["method"] == name]
    turns = of_row[["stage", "round"]].drop_duplicates().sort_values(["stage", "round"])
    if turns.empty or math.isnan(whole):
        return False
    stage, number = turns.iloc[0]
    first = of_row[(of_row["stage"] == stage) & (of_row["round"] == number)].groupby("metric")["value"].mean()
    before = first.get("bytes_down", 0.0) - (whole if len(turns) == 1 else 0.0)
    return bool(first.get("bytes_up", 0.0) >= whole and before == 0)


def with_found(table: pd.DataFrame, split: str, found: Mapping[str, float]) -> pd.DataFrame:
    """Return a table with what a probe, or a run with a remedy, has found as rows of its split."""
    row = table.iloc[[-1]]
    more = [row.assign(split=split, metric=k, value=v) for k, v in found.items()]
    return pd.concat([table, *more], ignore_index=True)


def remedies(table: pd.DataFrame) -> dict[str, float]:
    """Return what was tried in a run of one seed, a row with a setting, and what it gained on validation data."""
    rows = table[(table["split"] == TRIED) & table["value"].notna()]
    return dict(zip(rows["metric"], rows["value"], strict=True))


def seen_by_probes(table: pd.DataFrame) -> tuple[str, ...] | None:
    """Return the simple models that see the label; None without a probe."""
    rows = table[table["split"] == PROBE]
    return tuple(map(str, rows["metric"][rows["value"] < SEEN])) if len(rows) else None
