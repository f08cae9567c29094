"""How each device prepares its inputs: numbers fitted on its own training examples, with or without label.

First missing values are filled with the median, then inputs are standardised, (x - mean) / std. The inputs that stand
for a text are neither filled nor scaled. An example of no device is prepared with numbers of all devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcore.builders import unknown_value
from fedcore.data import Dataset, schema_of
from fedcore.data.schema import Fit, Schema, fit_inputs
from fedcore.types import Data

SCALES = ("none", "device")

Indices = Mapping[str, NDArray[np.int64]]


def fitted(dataset: Dataset, trains: Indices, scale: str) -> Schema:
    """Return the dataset's schema with the numbers that each device fits, and those for an example of no device.

    trains: device -> its training examples. scale: "device" standardises every feature by the mean and deviation of the
    device's examples; "none" leaves it.

    No device learns another's numbers, with one exception, where cells are missing: the mean of the devices' medians,
    weighted by their examples, fills an example of no device, and a column of which a device has no value. A device
    sends its medians and examples for that, once. An example of no device is scaled by all training examples.
    """
    if scale not in SCALES:
        raise unknown_value("federation.scale", scale, SCALES)
    schema = schema_of(dataset)
    fills: dict[str, tuple[float, ...]] = dict.fromkeys(trains, ())
    shared_fill: tuple[float, ...] = ()
    if schema.missing == "median":
        fills, shared_fill = _fills(
            schema, {who: dataset.train.x[torch.from_numpy(own)] for who, own in trains.items()}
        )
    if scale == "none":
        return replace(schema, devices={who: Fit(fill) for who, fill in fills.items()}, shared=Fit(shared_fill))
    held = {
        who: fit_inputs(dataset.train.inputs(torch.from_numpy(own)), Fit(fills[who])) for who, own in trains.items()
    }
    devices = {who: Fit(fills[who], *_moments(schema, x)) for who, x in held.items()}
    return replace(schema, devices=devices, shared=Fit(shared_fill, *_moments(schema, torch.cat([*held.values()]))))


def prepare(data: Data, fit: Fit | tuple[Tensor, Tensor, Tensor]) -> Data:
    """Return examples as a device prepares them; see :func:`fedcore.data.schema.fit_inputs`."""
    return data if fit == Fit() else Data(fit_inputs(data.inputs(), fit), data.y)


def _fills(schema: Schema, held: Mapping[str, Tensor]) -> tuple[dict[str, tuple[float, ...]], tuple[float, ...]]:
    """Return device -> the median of each input, and the weighted mean of these; 0 where no device has a value."""
    medians = np.stack([_medians(x) for x in held.values()])
    known, sizes = ~np.isnan(medians), np.array([[len(x)] for x in held.values()], dtype=np.float64)
    total = (sizes * known).sum(0)
    shared = (sizes * np.where(known, medians, 0)).sum(0) / np.maximum(total, 1)
    shared[~schema.numeric.numpy()] = 0
    medians[:, ~schema.numeric.numpy()] = 0
    own = np.where(np.isnan(medians), shared, medians)
    return dict(zip(held, map(tuple, own.tolist()), strict=True)), tuple(shared.tolist())


def _medians(x: Tensor) -> NDArray[np.float64]:
    """Return the median of each input (F,) without missing values; nan where all are missing."""
    values = x.double().numpy()
    empty = np.isnan(values).all(axis=0)
    return np.where(empty, np.nan, np.nanmedian(np.where(empty, 0.0, values), axis=0))


def _moments(schema: Schema, x: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return each input's mean and deviation; 1 in place of a deviation of 0, and 0 and 1 for that of a text."""
    x = x.double()
    mean, std = x.mean(0), x.std(0, correction=0).masked_fill_(x.amax(0) == x.amin(0), 1.0)
    if schema.columns:
        mean, std = mean.masked_fill_(~schema.numeric, 0.0), std.masked_fill_(~schema.numeric, 1.0)
    return tuple(mean.flatten().tolist()), tuple(std.flatten().tolist())
