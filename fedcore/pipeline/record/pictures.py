"""The pictures of a run and of a study: scores, similarity of data, a method's figures, features of shared parts.

Imports no MLflow: another process draws those of a run while the record's process writes.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import pandas as pd

from fedcore.partition.tables import Shares, groups, similarity, training_numbers
from fedcore.pipeline.cache.store import Ref, Store
from fedcore.pipeline.record.result import PreparedData, Result
from fedcore.report import figures
from fedcore.results import reports, tidy
from fedcore.results.summary import curves
from fedcore.types.method import Report

CAPTIONS = {
    "similarity": "How alike the devices' data are: cosine between their mean features.",
    "features": "Test examples of all devices as they leave the parts that each one shares, embedded by t-SNE.",
}


def draw(store: Store, result: Result) -> dict[str, bytes]:
    """Return a run's pictures: its metric by device and over rounds, the method's figures, and the study's pictures."""
    split = "test" if tidy.has(result.table, "test") else "shared"
    drawn = {"devices": figures.png(figures.per_device(result.table, result.metric, split=split))}
    if result.table["round"].max() > 1:
        drawn["rounds"] = figures.png(figures.curves(curves(result.table, result.criterion), result.metric))
    if folds := reports.folds(result.reports):
        from fedcore.report.figures.reports import heat_image, shares_of_mass  # takes matplotlib

        drawn |= {f"plans/{fold.file}": heat_image(fold.matrix.numpy(), *fold.sides(folds)) for fold in folds}
        named = {fold.name.replace(", ", "\n"): fold.matrix.numpy() for fold in folds}
        drawn["plans/all"] = figures.png(shares_of_mass(named))
    else:
        drawn |= of_method(result.figures, result.row.label, result.reports)
    if "similarity" in result.extra_figures:
        drawn["similarity"] = similarity_map(store, result.prepared)
    if result.embedding is not None:
        drawn["features"] = feature_map(store, result.prepared, {result.row.label: result.embedding})
    return drawn


@cache
def data_numbers(store: Store, prepared: PreparedData, shares: Shares | None) -> dict[str, dict[str, float]]:
    """Return numbers about the devices' data, computed once for all methods."""
    return training_numbers(*prepared.load(store), shares)


@cache
def similarity_map(store: Store, prepared: PreparedData) -> bytes:
    """Draw the devices' similarity, once for all methods."""
    data, parts = prepared.load(store)
    return figures.png(figures.similarity(similarity(data, parts), groups(data, parts)))


def of_method(paths: Sequence[str], label: str, turn_reports: Sequence[Report]) -> dict[str, bytes]:
    """Draw one method's reports by its figures (`Method.figures`); if it has none, its matrices as heat maps."""
    if paths:
        drawings = (drawing for path in paths for drawing in figures.drawings(path, {label: turn_reports}))
        return {name.removesuffix(f"-{label}"): figures.png(draw()) for name, _, draw in drawings}
    flat = {name: matrix.numpy() for name, matrix in reports.matrices(turn_reports).items() if matrix.ndim == 2}
    return {name.replace("/", "-"): figures.png(figures.heat_map(x, name)) for name, x in flat.items()}


def of_setting(store: Store, results: Sequence[Result]) -> Iterator[tuple[str, str, bytes]]:
    """Yield the pictures of one setting's methods: name, caption, picture."""
    names, every = results[0].extra_figures, {result.row.label: result for result in results}
    prepared = results[0].prepared
    if "similarity" in names:
        yield "similarity", CAPTIONS["similarity"], similarity_map(store, prepared)
    for path in dict.fromkeys(path for of in every.values() for path in of.figures if path.rpartition(":")[2] in names):
        drawn = {label: of.reports for label, of in every.items() if path in of.figures}
        for name, caption, draw in figures.drawings(path, drawn):
            yield name, caption, figures.png(draw())
    if "features" in names and (planes := {k: of.embedding for k, of in every.items() if of.embedding is not None}):
        yield "features", CAPTIONS["features"], feature_map(store, prepared, planes)


def feature_map(store: Store, prepared: PreparedData, planes: Mapping[str, Ref]) -> bytes:
    """Draw the embedded examples of some methods, label -> the result of :func:`fedcore.results.embedding.embed`."""
    data, parts = prepared.load(store)
    of = groups(data, parts)
    names = [of.get(name, "") for name in parts.devices]
    drawn = {}
    for label, ref in planes.items():
        embedding = store.get(ref)
        x, y = embedding["xy"].T.tolist()
        columns = {"x": x, "y": y, "label": embedding["y"].tolist()}
        drawn[label] = pd.DataFrame({**columns, "group": [names[i] for i in embedding["device"].tolist()]})
    return figures.png(figures.features(drawn, data.classes))
