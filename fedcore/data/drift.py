"""Drift: whether new rows look like those that a model was trained on, by column and device.

A :class:`Reference` is kept with the models: of each device and column the ten bins that hold equally many of its
training rows, how many each holds, how many cells are missing; and how many rows the models predict of each class, or
of each of several labels, or the bins of the numbers that they predict. New rows are put into the bins of their own
device. Devices with few new rows are compared together: bins of several devices are added, and their shares in training
weighted by the new rows of each.

A column has moved if its population stability index is at least :data:`MOVED`, and the change is too large for chance:
p < :data:`ALPHA` divided by the number of tests of the batch (Bonferroni), by Kolmogorov and Smirnov for numbers, by
chi squared for texts and classes, by Fisher's exact test for missing cells. The index alone would alarm for few rows:
its mean is then about (bins - 1) / rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BeforeValidator, TypeAdapter

from fedcore.data.schema import Column, Schema
from fedcore.data.task import LABEL_KINDS, MULTILABEL

Floats = NDArray[np.float64]

BINS = 10
MOVED = 0.1
"""The least population stability index of a column that moved; .1 is where a change is usually called moderate."""
ALPHA = 0.05
"""How often a batch without drift alarms, at most."""
FEW = 50
"""A device with fewer new rows is compared together with others."""
LEAST = 20
"""With fewer new rows nothing is compared."""
EXPECTED = 5
"""Neighbouring bins are joined until so many new rows are expected in each."""
MOST_LINES = 5
"""The most columns that are told in a line each."""
LABEL = "label"
"""The column that a class or a number is compared as."""
MOST_COLUMNS, MOST_PARTS = 500, 5_000
"""The most columns, and the most columns of devices, of which a reference is kept: about a megabyte."""


@dataclass(frozen=True)
class Bins:
    """The training rows of a device by their value in a column.

    counts: rows in each bin: of a number up to and with each of the `edges`, and above them; of a text in each of the
    column's categories. gaps: rows whose cell is missing, or an unknown text.
    """

    counts: tuple[int, ...]
    gaps: int
    edges: tuple[float, ...] = ()


@dataclass(frozen=True)
class BinnedRows:
    """The training rows of a device by their values in each column, by their labels, and as models predict them.

    labels, predicted: name -> bins, see :func:`_by_label`.
    """

    columns: Mapping[str, Bins]
    labels: Mapping[str, Bins] = field(default_factory=dict)
    predicted: Mapping[str, Bins] = field(default_factory=dict)


def _of_version_2(rows: Any) -> Any:
    """Return rows as they are today; version 0.2 had a field each for classes, a number and several labels."""
    if not isinstance(rows, dict) or "several" not in rows:
        return rows
    bins = {}
    for today, number, several in (("labels", "label", "several"), ("predicted", "prediction", "predictions")):
        classes = {"counts": rows[today], "gaps": 0} if rows[today] else None
        one = rows[number] or classes
        bins[today] = rows[several] or ({LABEL: one} if one else {})
    return {"columns": rows["columns"], **bins}


@dataclass(frozen=True)
class Reference:
    """The training rows that new ones are compared with. devices: those with most rows; everyone: all devices' rows."""

    everyone: Annotated[BinnedRows, BeforeValidator(_of_version_2)]
    devices: Mapping[str, Annotated[BinnedRows, BeforeValidator(_of_version_2)]] = field(default_factory=dict)


@dataclass(frozen=True)
class Change:
    """A column that moved, or classes.

    of: "column 'heat'", "the predicted classes", "the predictions" or "the labels", also of one of several. where: on
    which device, or in which rows. psi: the population stability index. p: of the test. what: new rows and those of
    training, in words.
    """

    of: str
    where: str
    psi: float
    p: float
    what: str


@dataclass(frozen=True)
class Counts:
    """Rows by bin. old: their shares in training (B,), of `size` rows; new: how many new ones (B,)."""

    old: Floats
    size: float
    new: Floats


# the reference


def summarise(
    schema: Schema, x: Mapping[str, NDArray[np.float64]], labels: Mapping[str, NDArray[Any]],
    predicted: Mapping[str, NDArray[Any]],
) -> Reference:  # fmt: skip
    """Return the reference of training rows, at most :data:`MOST_PARTS` columns of devices.

    x: device -> its inputs as they are loaded, nan where one is missing, (N, F). labels: of the rows that have one,
    (N,), numbers of classes or float32, or (N, K) 0 or 1. predicted: those of rows as the models predict them.
    """

    def rows(names: Sequence[str]) -> BinnedRows:
        inputs, *answers = (np.concatenate([of[name] for name in names]) for of in (x, labels, predicted))
        parts = [islice(_by_column(schema, inputs), MOST_COLUMNS), *(_by_label(schema, values) for values in answers)]
        return BinnedRows(*({column.name: _summarise(column, cells) for column, cells in pairs} for pairs in parts))

    most = MOST_PARTS // max(min(len(schema.columns), MOST_COLUMNS), 1)
    largest = {*sorted(x, key=lambda name: len(x[name]), reverse=True)[:most]}
    return Reference(rows([*x]), {name: rows([name]) for name in x if name in largest})


@cache
def _reference_type() -> TypeAdapter[Reference]:
    return TypeAdapter(Reference)


def to_json(reference: Reference) -> str:
    """Return a reference as JSON."""
    return _reference_type().dump_json(reference).decode()


def from_json(text: str | bytes) -> Reference:
    """Undo :func:`to_json`."""
    return _reference_type().validate_json(text)


def _by_column(schema: Schema, x: Floats) -> Iterator[tuple[Column, Floats]]:
    """Return each column with its values (N,): a number, or the position of a text's category; nan for a gap."""
    for column, cells in schema.by_column(x):
        if column.kind == "text":
            yield column, np.where((cells == 0).all(axis=1), np.nan, cells.argmax(axis=1))
        else:
            yield column, cells[:, 0]


def _by_label(schema: Schema, values: NDArray[Any]) -> Iterator[tuple[Column, NDArray[Any]]]:
    """Return labels as a column, "label", with its values (N,); of several labels (N, K) a column for each, 0 or 1.

    None of steps: those of one example are no independent draws.
    """
    kind = LABEL_KINDS[schema.task]
    if kind == MULTILABEL:
        for k, name in enumerate(schema.classes):
            yield Column(name, "text", ("0", "1")), values[:, k]
    elif kind.standardised:
        yield Column(LABEL, "number"), values
    elif kind.has_classes:
        yield Column(LABEL, "text", schema.classes), values


def _summarise(column: Column, values: Floats) -> Bins:
    present = values[~np.isnan(values)]
    edges: tuple[float, ...] = ()
    if column.kind != "text" and len(present):
        cuts = np.quantile(present, np.arange(1, BINS) / BINS, method="inverted_cdf")
        edges = tuple(float(str(cut)) for cut in cuts)  # the shortest text of a number, of labels a float32
    counts = _count(column, edges, values)
    return Bins(tuple(counts.astype(int).tolist()), len(values) - len(present), edges)


def _count(column: Column, edges: Sequence[float], values: Floats) -> Floats:
    """Return how many values are in each bin."""
    present = values[~np.isnan(values)]
    if column.kind == "text":
        return np.bincount(present.astype(np.int64), minlength=len(column.categories)).astype(np.float64)
    cuts = np.array(edges, dtype=values.dtype)
    return np.bincount(np.searchsorted(cuts, present), minlength=len(cuts) + 1).astype(np.float64)


# the comparison


def compare(
    reference: Reference, schema: Schema, x: Floats, devices: Sequence[str], answers: NDArray[Any],
    labels: bool = False,
) -> list[Change]:  # fmt: skip
    """Return what has moved; anything in at most :data:`ALPHA` of the batches of rows like those of training.

    x: the new rows' inputs as they are loaded, nan where one is missing, (N, F). devices: of each row; the rows of an
    unknown one are compared with those of all. answers: the class or number of each row as predicted, or if `labels`
    its label, (N,); of several labels (N, K).
    """
    owners = np.array([name if name in reference.devices else "" for name in devices])
    groups = _groups(owners)
    has_classes = LABEL_KINDS[schema.task].has_classes
    by_column = [pair for pair in _by_column(schema, x) if pair[0].name in reference.everyone.columns]
    changes: list[Change] = []
    for where, index in groups.items():
        parts = [
            (reference.devices.get(name, reference.everyone), index[owners[index] == name])
            for name in dict.fromkeys(owners[index].tolist())
        ]
        for column, values in by_column:
            pairs = [(of.columns[column.name], values[rows]) for of, rows in parts]
            changes += _compare_column(column, pairs, where, f"column {column.name!r}")
        what = "the labels" if labels else "the predicted classes" if has_classes else "the predictions"
        for column, values in _by_label(schema, answers):
            both = [(of.labels if labels else of.predicted, values[rows]) for of, rows in parts]
            pairs = [(bins[column.name], values) for bins, values in both if column.name in bins]
            named = f"{what} of {column.name!r}" if schema.task == MULTILABEL.name else what
            changes += _compare_column(column, pairs, where, named)
    tests = len(groups) * (2 * len(by_column) + (1 if has_classes else 2 * len(schema.classes)))
    return [change for change in changes if change.psi >= MOVED and change.p < ALPHA / tests]


def lines(changes: Sequence[Change], most: int | None = MOST_LINES) -> list[str]:
    """Return a line for each of the columns that moved most, the same for labels, and the count of the rest.

    A line says where, and how a column moved most. most: the columns, and the labels, that have one; None: all.
    """
    by_column: dict[str, list[Change]] = {}
    for change in changes:
        by_column.setdefault(change.of, []).append(change)
    strongest = [max(ones, key=lambda change: change.psi) for ones in by_column.values()]
    strongest.sort(key=lambda change: -change.psi)
    kinds = ([one for one in strongest if one.of.startswith("column ") is is_column] for is_column in (True, False))
    texts = []
    for one in [one for kind in kinds for one in kind[:most]]:
        groups = {change.where for change in by_column[one.of]}
        where = one.where if len(groups) == 1 else f"in {len(groups)} groups of rows, most {one.where}"
        texts.append(f"{one.of} moved {where}: {one.what}; PSI {one.psi:.2f}, p {one.p:.1g}")
    if rest := len(strongest) - len(texts):
        texts.append(f"{rest} more moved, but less; fedcore predict ROWS --all-drift has a line for each")
    return texts


def stability_index(old: Floats, new: Floats) -> float:
    """Return the population stability index of two counts by bin (B,); an empty bin counts as half a row.

    PSI = sum_b (q_b - p_b) log(q_b / p_b),    p, q: the shares of the old and the new rows
    """
    p, q = (np.maximum(counts, 0.5) / counts.sum() for counts in (old, new))
    return float(((q - p) * np.log(q / p)).sum())


def kolmogorov_smirnov(counts: Counts) -> tuple[float, float]:
    """Return the distance of two distributions at the bins' edges, and its p, which is too large for ties.

    p above ALPHA, which no test can take for a move, is a lower bound.
    """
    from scipy import special

    rows = counts.new.sum()
    distance = float(np.abs(np.cumsum(counts.old) - np.cumsum(counts.new) / rows).max())
    size = max(round(rows * counts.size / (rows + counts.size)), 1)
    if (least := float(special.smirnov(size, distance))) > ALPHA:
        return distance, least
    from scipy import stats  # takes as long as all else that a prediction does with rows in which nothing has moved

    return distance, float(stats.kstwo.sf(distance, size))


def _ways(of: int, chosen: NDArray[Any]) -> Floats:
    """Return the logarithms of binomial coefficients."""
    x = torch.from_numpy(np.stack([np.full_like(chosen, of), chosen, of - chosen]) + 1.0)
    whole, first, second = torch.lgamma(x).numpy()
    return np.asarray(whole - first - second)


def _groups(owners: NDArray[np.str_]) -> dict[str, NDArray[np.int64]]:
    """Return the rows to compare: those of each device with enough of them, and all others together."""
    names, counts = np.unique(owners, return_counts=True)
    single = [str(name) for name, count in zip(names, counts, strict=True) if name and count >= FEW]
    groups = {f"on {name!r}": np.flatnonzero(owners == name) for name in single}
    others = np.flatnonzero(~np.isin(owners, single))
    return groups | ({"in the other rows" if single else "in all rows": others} if len(others) >= LEAST else {})


def _compare_column(
    column: Column, pairs: Sequence[tuple[Bins, Floats]], where: str, of_column: str
) -> Iterator[Change]:
    """Compare the cells that are there, and how many are missing. of_column: what it is, in words."""
    gaps = [(np.array([of.gaps, sum(of.counts)]), np.isnan(values)) for of, values in pairs]
    counts = _add([(old, np.array([missing.sum(), (~missing).sum()])) for old, missing in gaps])
    if counts is not None:
        now, before = counts.new[0] / counts.new.sum(), counts.old[0]
        what = f"{now:.1%} of the cells are missing or unknown, {before:.1%} in training"
        yield Change(of_column, where, *_exact(counts), what)
    counts = _add([(np.array(of.counts), _count(column, of.edges, values)) for of, values in pairs])
    if counts is None:
        return
    if column.kind == "text":
        now = counts.new / counts.new.sum()
        k = int(np.abs(now - counts.old).argmax())  # whose share changed most
        words = f"{now[k]:.1%} {column.categories[k]!r}, {counts.old[k]:.1%} in training"
        yield Change(of_column, where, *_unordered(counts), words)
        return
    joined = _join(counts)
    distance, p = kolmogorov_smirnov(counts)
    psi = stability_index(joined.old * joined.size, joined.new)
    if len(pairs) == 1:
        (of, values), half = pairs[0], len(pairs[0][0].edges) // 2
        what = f"median {float(np.nanmedian(values)):.4g}, {of.edges[half]:.4g} in training"
    else:
        above, before = counts.new[BINS // 2 :].sum() / counts.new.sum(), counts.old[BINS // 2 :].sum()
        what = f"{above:.1%} above the device's median of training, {before:.1%} then"
    yield Change(of_column, where, psi, p, f"{what}; KS {distance:.2f}")


def _add(pairs: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> Counts | None:
    r"""Return counts of several devices, (B,) each, as one; None without rows.

    old = sum_i w_i p_i,    size = 1 / sum_i (w_i^2 / m_i),    w_i = n_i / sum_j n_j

    n_i, m_i: a device's new rows and those of training, whose shares are p_i. The variance of `old` is that of the
    shares of `size` rows.
    """
    pairs = [(old, new) for old, new in pairs if old.sum() and new.sum()]
    if not pairs:
        return None
    new = np.sum([new for _, new in pairs], axis=0).astype(np.float64)
    weights = np.array([part.sum() / new.sum() for _, part in pairs])
    sizes = np.array([old.sum() for old, _ in pairs])
    old = (weights[:, None] * np.array([old / old.sum() for old, _ in pairs])).sum(0)
    return Counts(old, float(1 / (weights**2 / sizes).sum()), new)


def _join(counts: Counts) -> Counts:
    """Join neighbouring bins until at least EXPECTED new rows are expected in each."""
    rows, starts, expected = counts.new.sum(), [0], 0.0
    for i, share in enumerate(counts.old[:-1]):
        expected += share * rows
        left = counts.old[i + 1 :].sum() * rows
        if expected >= EXPECTED and left >= EXPECTED:
            starts.append(i + 1)
            expected = 0.0
    return _at(counts, starts)


def chi_squared(old: NDArray[Any], new: NDArray[Any]) -> float:
    """Return p of Pearson's test that two rows of counts have one distribution."""
    counts = np.stack([old, new])
    expected = counts.sum(1, keepdims=True) * counts.sum(0) / counts.sum()
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = torch.tensor((counts.shape[1] - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, torch.tensor(statistic / 2, dtype=torch.float64)))


def fisher(old: NDArray[Any], new: NDArray[Any]) -> float:
    """Return p of Fisher's exact test of two rows of two counts: the tables that are no likelier than this one."""
    ((a, b), (c, d)) = ((int(x) for x in row) for row in (old, new))
    first = np.arange(max(0, a - d), min(a + c, a + b) + 1)
    chances = _ways(a + b, first) + _ways(c + d, a + c - first) - _ways(a + b + c + d, np.array([a + c]))
    as_rare = chances <= chances[a - first[0]] + 1e-7  # equal ones differ by rounding
    return min(1.0, float(np.exp(chances[as_rare]).sum()))


def _unordered(counts: Counts) -> tuple[float, float]:
    """Return the stability index of classes without order and p: by chi squared; of two, or with rare ones, exactly."""
    order = np.argsort(-counts.old, kind="stable")
    counts = Counts(counts.old[order], counts.size, counts.new[order])
    joined = _join(counts)
    if len(joined.new) > 2:
        old = joined.old * joined.size
        return stability_index(old, joined.new), chi_squared(old, joined.new)
    return _exact(joined if len(joined.new) == 2 else _at(counts, [0, 1])) if len(counts.new) > 1 else (0.0, 1.0)


def _exact(counts: Counts) -> tuple[float, float]:
    """Return the stability index of two bins, and p of Fisher's exact test."""
    old = counts.old * counts.size
    return stability_index(old, counts.new), fisher(np.round(old), np.round(counts.new))


def _at(counts: Counts, starts: Sequence[int]) -> Counts:
    """Join the bins from each start to the next one."""
    return Counts(np.add.reduceat(counts.old, starts), counts.size, np.add.reduceat(counts.new, starts))
