"""How a row is prepared for a net: missing values are filled, then inputs are scaled, (x - mean) / std.

:func:`fit_schema` fits the numbers for that on each device's own training examples, with or without label, and
:func:`prepare` applies them. The inputs that stand for a text are neither filled nor scaled. An example of no device is
prepared with numbers of all devices, rows of a device that did not train as :func:`fit_new` says. With scale "common"
all devices scale by one mean and deviation, of all their examples. Nothing here needs pandas, which workers do not
load.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcore.builders import unknown_value
from fedcore.data.dataset import Dataset, schema_of
from fedcore.data.schema import Fit, Schema
from fedcore.data.task import LABEL_KINDS
from fedcore.errors import InputError
from fedcore.types.federation import Data, LabelScale

SCALES = ("none", "device", "common")
FILLED = ("median", "common_median")
"""The settings of `missing` that fill a missing number."""

NO_FIT = Fit()

NO_LABEL_SCALE: LabelScale = (0.0, 1.0)
"""Of labels that are not standardised."""

MOST_ROUNDED = 1e-3
"""The most by which labels may be rounded, relative to their span: that of the half in the middle, or a deviation."""

LEAST_OWN = 20
"""The fewest rows of a device that did not train which are scaled by their own mean and deviation."""

FINE = 64
"""Of numbers further from 0 than so many of their deviations, float32 rounds off more than 4e-6 of a deviation."""

Numbers: TypeAlias = tuple[float, ...]
"""A number for each input, flat; none if it is not used."""


def fit_schema(dataset: Dataset, trains: Mapping[str, NDArray[np.int64]], scale: str) -> Schema:
    """Return the dataset's schema with the numbers that each device fits, and those for an example of no device.

    No device learns another's numbers, with two exceptions. Where cells are missing, the mean of the devices' medians,
    weighted by their examples, fills an example of no device, and a column of which a device has no value; with
    "common_median" it fills every device's. The other is scale "common". :func:`preparation_bytes` counts what devices
    send for both, once. An example of no device is scaled by all training examples.

    Args:
        dataset: The examples, missing numbers as nan.
        trains: Each device's training examples, as indices into `dataset.train`.
        scale: "device" standardises every input by the mean and deviation of the device's examples, "common" by those
            of all devices' examples; "none" leaves it.

    A number as label is always standardised by the mean and deviation of all devices' training examples, whose labels
    must all be known; they are made of each device's own, as for scale "common".
    """
    if scale not in SCALES:
        raise unknown_value("federation.scale", scale, SCALES)
    for of in schema_of(dataset).several if scale != "none" else ():
        if of.whole:
            raise InputError(f"federation.scale = {scale!r}: input {of.name!r} has whole numbers; use none, or floats")
    schema = replace(schema_of(dataset), label_scale=fit_labels(dataset, trains))
    fills: dict[str, Numbers] = dict.fromkeys(trains, ())
    shared_fill: Numbers = ()
    if schema.missing in FILLED:
        raw = {device: dataset.train.x[torch.from_numpy(index)] for device, index in trains.items()}
        by_device = {device: medians(x) for device, x in raw.items()}
        shared_fill = pool_medians(schema, by_device, {device: len(x) for device, x in raw.items()})
        fills = {device: fill_of(schema, own, shared_fill) for device, own in by_device.items()}
    if schema.missing == "common_median":
        fills = dict.fromkeys(trains, shared_fill)
    if scale == "none":
        devices = {device: Fit(fill) for device, fill in fills.items()}
        return replace(schema, devices=devices, shared=Fit(shared_fill))
    inputs = {
        device: fill_and_scale(dataset.train.inputs(torch.from_numpy(index)), Fit(fills[device]))
        for device, index in trains.items()
    }
    if scale == "common":
        sizes = {device: len(x) for device, x in inputs.items()}
        mean_and_std = pool_moments(schema, {device: moments(x) for device, x in inputs.items()}, sizes)
        devices = {device: Fit(fill, *mean_and_std) for device, fill in fills.items()}
        return replace(schema, devices=devices, shared=Fit(shared_fill, *mean_and_std))
    devices = {device: Fit(fills[device], *fit_scale(schema, x)) for device, x in inputs.items()}
    shared = Fit(shared_fill, *fit_scale(schema, torch.cat([*inputs.values()])))
    return replace(schema, devices=devices, shared=shared, own_scale=True)


def fit_new(schema: Schema, x: Tensor) -> Fit:
    """Return the numbers that prepare the rows x (N, *shape) of a device that did not train.

    With scale "device" they are fitted on these rows, as on a device that trains, if there are :data:`LEAST_OWN`. Else
    they are those for an example of no device.
    """
    fill = schema.shared.fill
    if not schema.own_scale or len(x) < LEAST_OWN:
        return schema.shared
    if schema.missing == "median":
        fill = fill_of(schema, medians(x), fill)
    return Fit(fill, *fit_scale(schema, fill_and_scale(x, Fit(fill))))


def fit_for(schema: Schema, x: Tensor, device: str | None, new: bool) -> Fit:
    """Return the numbers that prepare the rows x of a device; None: those of a new one, or of none."""
    return schema.devices[device] if device is not None else fit_new(schema, x) if new else schema.shared


def fit_labels(dataset: Dataset, trains: Mapping[str, NDArray[np.int64]]) -> LabelScale:
    """Return the mean and deviation of all training numbers as labels; 1 in place of a deviation of 0. Else 0 and 1."""
    if not dataset.task.standardised:
        return NO_LABEL_SCALE
    labels = {device: dataset.train.y[torch.from_numpy(index)] for device, index in trains.items() if len(index)}
    scale = pool_labels({name: moments(y) for name, y in labels.items()}, {name: len(y) for name, y in labels.items()})
    if labels:
        _require_close(torch.cat([*labels.values()]).double().numpy(), scale[0])
    return scale


def _require_close(y: NDArray[np.float64], mean: float) -> None:
    """Refuse labels that a far one would round: standardised they are float32, whose steps grow with the mean."""
    low, middle, high = np.quantile(y, (0.25, 0.5, 0.75))
    if abs(middle - mean) * torch.finfo(torch.float32).eps > MOST_ROUNDED * (high - low) > 0:
        far = y[np.abs(y - middle).argmax()]
        raise InputError(
            f"data.label: {far:.9g} is so far from the others (half of them between {low:.4g} and {high:.4g}) "
            "that these would be rounded; leave its row out, or its cell empty"
        )


def pool_labels(by_device: Mapping[str, tuple[Tensor, Tensor]], sizes: Mapping[str, int]) -> LabelScale:
    """Return the mean and deviation of all devices' labels, from those of each device, see :func:`pool_moments`.

    Refuses levels of devices so far apart that the labels around them would be rounded.
    """
    mean, std = (number.item() for number in _pool(by_device, sizes))
    weights = {device: sizes[device] / sum(sizes[name] for name in by_device) for device in by_device}
    far = {device: abs(of.item() - mean) for device, (of, _) in by_device.items()}
    apart = sum(weights[device] * distance for device, distance in far.items())
    within = sum(weights[device] * variance.item() for device, (_, variance) in by_device.items()) ** 0.5
    if apart * torch.finfo(torch.float32).eps > MOST_ROUNDED * within > 0:
        device = max(far, key=lambda name: far[name])
        raise InputError(
            f"data.label: its mean on {device} is {by_device[device][0].item():.9g}, on all devices {mean:.9g}; beside "
            f"that its deviation within a device ({within:.4g}) would be rounded; subtract each device's mean"
        )
    return mean, std


def standardise_labels(data: Data, schema: Schema) -> Data:
    """Return examples whose label, if it is a number, is standardised."""
    if schema.label_scale == NO_LABEL_SCALE:
        return data
    mean, std = schema.label_scale
    return Data(data.x, ((data.y.double() - mean) / std).float())


def in_unit(answers: Tensor, scale: LabelScale) -> Tensor:
    """Return standardised numbers in the label's unit, float64 where float32 is too coarse; others as they are."""
    mean, std = scale
    if scale == NO_LABEL_SCALE:
        return answers
    return (answers if abs(mean) < FINE * std else answers.double()) * std + mean


def labels_in_unit(y: Tensor, scale: LabelScale) -> Tensor:
    """Return standardised labels (N,), at least one, as they were, float64: rounded to the decimals that they keep."""
    mean, std = scale
    error = torch.finfo(y.dtype).eps / 2 * std * y.abs().max().item()  # of what is furthest from 0
    labels = y.double() * std + mean
    return labels if error == 0 else torch.from_numpy(labels.numpy().round(math.floor(-math.log10(2 * error))))


def preparation_bytes(schema: Schema, scale: str) -> dict[str, float]:
    """Return the bytes that each device sends and receives, once, before a method's first round; none if it need not.

    Of F inputs that are numbers, up go the medians if missing ones are filled, 8 F bytes, the means and variances for
    scale "common", 16 F, and the number of examples, 8. Down comes what the server makes of them, 8 F and 16 F. The
    mean and variance of a number as label are 16 bytes each way.
    """
    inputs = int(schema.numeric.sum()) if schema.columns else math.prod(schema.shape)
    down = 8 * inputs * (schema.missing in FILLED) + 16 * inputs * (scale == "common")
    down += 16 if LABEL_KINDS[schema.task].standardised else 0
    return {"prepare_up": float(down + 8), "prepare_down": float(down)} if down else {}


def prepare(data: Data, fit: Fit = NO_FIT) -> Data:
    """Return examples as a device prepares them: by :func:`fill_and_scale`, then as float32; bytes stay if unscaled."""
    x, y = data.x, data.y
    if fit != NO_FIT or x.dtype not in (torch.uint8, torch.float32):
        x = fill_and_scale(data.inputs(), fit).float()
    return data if x is data.x and y.dtype != torch.float64 else Data(x, y.float() if y.is_floating_point() else y)


def fill_and_scale(x: Tensor, fit: Fit) -> Tensor:
    """Return inputs (N, *shape) with missing values filled; if they are scaled, (x - mean) / std as float32."""

    def numbers(flat: Numbers) -> Tensor:
        return torch.tensor(flat, dtype=torch.float64).reshape(1, *x.shape[1:])

    if fit.fill:
        x = torch.where(x.isnan(), numbers(fit.fill).to(x.dtype), x)
    return ((x.double() - numbers(fit.mean)) / numbers(fit.std)).float() if fit.mean else x


def undo_channels(x: Tensor, channels: Fit) -> Tensor:
    """Return standardised images (N, channels, H, W) as they were, fractions of 0 to 1."""
    mean, std = (torch.tensor(numbers).reshape(-1, 1, 1) for numbers in (channels.mean, channels.std))
    return x * std + mean


def standardise_channels(x: Tensor, channels: Fit) -> Tensor:
    """Return images (N, channels, H, W) float32 with each channel's pixels as (x - mean) / std."""
    mean, std = (torch.tensor(numbers).reshape(-1, 1, 1) for numbers in (channels.mean, channels.std))
    return (x - mean) / std


def pool_medians(schema: Schema, by_device: Mapping[str, NDArray[np.float64]], sizes: Mapping[str, int]) -> Numbers:
    """Return the mean of the devices' medians, weighted by their examples; 0 where no device has a value.

    by_device: device -> :func:`medians`. sizes: device -> its training examples.
    """
    medians = np.stack([*by_device.values()])
    present, weights = ~np.isnan(medians), np.array([[sizes[device]] for device in by_device], dtype=np.float64)
    total = (weights * present).sum(0)
    shared = (weights * np.where(present, medians, 0)).sum(0) / np.maximum(total, 1)
    shared[~schema.numeric.numpy()] = 0
    return tuple(shared.tolist())


def fill_of(schema: Schema, own: NDArray[np.float64], shared: Numbers) -> Numbers:
    """Return what fills a device's missing numbers: its own medians, and the shared number where it has no value."""
    fill = np.where(schema.numeric.numpy(), own, 0.0)
    return tuple(np.where(np.isnan(fill), shared, fill).tolist())


def medians(x: Tensor) -> NDArray[np.float64]:
    """Return the median of each input (F,) without missing values; nan where all are missing."""
    values = x.double().numpy()
    empty = np.isnan(values).all(axis=0)
    return np.where(empty, np.nan, np.nanmedian(np.where(empty, 0.0, values), axis=0))


def fit_scale(schema: Schema, x: Tensor) -> tuple[Numbers, Numbers]:
    """Return each input's mean and deviation; 1 in place of a deviation of 0, and 0 and 1 for that of a text."""
    return pool_moments(schema, {"": moments(x)}, {"": len(x)})


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and variance of each input, (*shape) float64; of equal values their value, to the bit, and 0."""
    x = x.double()
    least, most = x.aminmax(dim=0)
    same = least == most
    return torch.where(same, least, x.mean(0)), x.var(0, correction=0).masked_fill_(same, 0.0)


def pool_moments(
    schema: Schema, by_device: Mapping[str, tuple[Tensor, Tensor]], sizes: Mapping[str, int]
) -> tuple[Numbers, Numbers]:
    r"""Return each input's mean and deviation over all devices' examples, from those of each device.

        mean = m + sum_i w_i (mean_i - m),    std^2 = sum_i w_i (var_i + (mean_i - mean)^2),    w_i = n_i / sum_j n_j

    n_i, mean_i, var_i are what device i sends; m is the least mean_i, so that equal means stay what they are. This is
    the parallel formula of Chan et al. (1983), which, unlike sums of squares, loses no digits where |mean| >> std.
    Special cases are those of :func:`fit_scale`.

    by_device: device -> :func:`moments`. sizes: device -> its training examples.
    """
    mean, std = _pool(by_device, sizes)
    if schema.columns:  # 0 and 1 for the inputs of texts
        mean, std = mean.masked_fill_(~schema.numeric, 0.0), std.masked_fill_(~schema.numeric, 1.0)
    return tuple(mean.flatten().tolist()), tuple(std.flatten().tolist())


def _pool(by_device: Mapping[str, tuple[Tensor, Tensor]], sizes: Mapping[str, int]) -> tuple[Tensor, Tensor]:
    """Return the mean and deviation of :func:`pool_moments`, of numbers of any shape."""
    weights = torch.tensor([sizes[device] for device in by_device], dtype=torch.float64)
    weights = (weights / weights.sum()).reshape(-1, *[1] * next(iter(by_device.values()))[0].ndim)
    means, variances = (torch.stack([*parts]) for parts in zip(*by_device.values(), strict=True))
    least = means.amin(0)
    mean = least + (weights * (means - least)).sum(0)
    std = (weights * (variances + (means - mean) ** 2)).sum(0).sqrt()
    return mean, std.masked_fill_(std == 0, 1.0)
