"""How a device makes examples of its own rows, exactly as the study did. A recipe travels; rows do not.

A recipe has the study's schema, which holds no number of any device, and how rows are held out. Numbers that devices
share (fills and a common scale) are exchanged before a run: what each device sends is of its training rows together.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import torch
from pydantic import ConfigDict, with_config
from torch import Tensor

from fedcore.config.signatures import Section, check
from fedcore.data import Dataset
from fedcore.data.prepare import (
    FILLED,
    NO_LABEL_SCALE,
    fill_and_scale,
    fill_of,
    fit_scale,
    medians,
    moments,
    pool_labels,
    pool_medians,
    pool_moments,
    prepare,
    standardise_labels,
)
from fedcore.data.schema import Fit, Schema
from fedcore.data.task import LABEL_KINDS, MULTILABEL, REGRESSION, SEQUENCES, LabelKind
from fedcore.errors import InputError
from fedcore.partition import split_device
from fedcore.partition.examples import take
from fedcore.partition.stable import HoldOut
from fedcore.types.federation import LabelScale, Params, Splits

MOST_INPUTS = 2**24
"""The most inputs of an example."""

NO_FIT = Fit()

NUMBERS = "numbers"
"""What a device's owner allows beside methods: that medians, means and variances of columns leave it."""

LACKED = {
    "fill": "medians of its columns",
    "scale": "means and variances of its columns",
    "label": "mean and variance of its label",
}
"""What devices send of each kind of numbers that a recipe may lack."""


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class Recipe:
    """How a device prepares its rows.

    schema: of the study's data. scale: "none", "device" or "common", see :func:`fedcore.data.prepare.fit_schema`. val,
    test, shared_test, hold_out: the parts that rows are divided into, see :func:`fedcore.partition.partition`; what
    would be in the shared test set takes no part. min_size: the least rows of a device. split, id: columns of a table.
    earlier: columns by whose earlier names the study's rows are divided (fedcore.data.Dataset), for the devices' column
    name -> earlier name; None: as the device's own file would say. texts: the columns of names whose cells look like
    texts in the study's file, and may look like numbers in a device's.
    shared, label_scale: the numbers that devices share; None: not known yet, where the label is a number.
    """

    schema: Schema
    scale: Literal["none", "device", "common"] = "none"
    val: float = 0.2
    test: float = 0.2
    shared_test: float = 0.2
    hold_out: HoldOut = "random"
    min_size: int = 1
    split: str | None = None
    id: str | None = None
    earlier: Mapping[str, Mapping[str, str]] | None = None
    texts: tuple[str, ...] = ()
    shared: Fit = NO_FIT
    label_scale: LabelScale | None = None

    @property
    def task(self) -> LabelKind:
        """What labels are."""
        return LABEL_KINDS[self.schema.task]

    @property
    def lacks(self) -> Literal["fill", "scale", "label"] | None:
        """The numbers that devices have to exchange next, if any."""
        if self.task.standardised and self.label_scale is None:
            return "label"
        if self.schema.missing in FILLED and not self.shared.fill:
            return "fill"
        return "scale" if self.scale == "common" and not self.shared.mean else None

    def split_rows(self, rows: Dataset, name: str, seed: int) -> Splits:
        """Return a device's rows as examples that are not prepared."""
        parts = split_device(
            rows, name, seed=seed, val=self.val, test=self.test, shared_test=self.shared_test, hold_out=self.hold_out
        )
        return Splits(**{part: take(rows.train, index, part != "unlabelled") for part, index in parts.items()})

    def prepare(self, raw: Splits) -> tuple[Splits, Fit]:
        """Return examples as a net takes them, and the numbers that prepared them."""
        fit, schema = self.fit(raw), self.fitted
        return Splits(**{part: prepare(standardise_labels(of, schema), fit) for part, of in vars(raw).items()}), fit

    @property
    def fitted(self) -> Schema:
        """The schema with the scale of a number as label, once it is known."""
        return self.schema if self.label_scale is None else replace(self.schema, label_scale=self.label_scale)

    def fit(self, raw: Splits) -> Fit:
        """Return the numbers that prepare a device's rows: of its training examples, and those that devices share."""
        x = raw.train.inputs()
        fill = self._fill(x)
        if self.scale == "common":
            return Fit(fill, self.shared.mean, self.shared.std)
        return Fit(fill, *(fit_scale(self.schema, fill_and_scale(x, Fit(fill))) if self.scale == "device" else ()))

    def numbers(self, raw: Splits) -> Params:
        """Return what a device sends for the numbers that the recipe lacks: float64, of each input that is one."""
        if self.lacks == "label":
            return dict(zip(("mean", "variance"), moments(raw.train.y[:, None]), strict=True))
        x, numeric = raw.train.inputs(), self._numeric
        if self.lacks == "fill":
            return {"median": torch.from_numpy(medians(x))[numeric]}
        mean, variance = moments(fill_and_scale(x, Fit(self._fill(x))))
        return {"mean": mean[numeric], "variance": variance[numeric]}

    def with_numbers(self, sent: Mapping[str, Params], sizes: Mapping[str, int]) -> Recipe:
        """Return the recipe with the numbers that it lacks. sent: of each device. sizes: its training examples.

        Raises InputError, naming the device, for numbers that are none.
        """
        names = ("median",) if self.lacks == "fill" else ("mean", "variance")
        count, of = (1, "its label") if self.lacks == "label" else (int(self._numeric.sum()), "each input")
        for device, tensors in sent.items():
            for name in names:
                if not _are_numbers(tensors.get(name), count, nan=name == "median"):
                    raise InputError(f"answer of {device}: its numbers are no {name} of {of}")
        if self.lacks == "label":
            scales = {device: (tensors["mean"], tensors["variance"].clamp(min=0.0)) for device, tensors in sent.items()}
            return replace(self, label_scale=pool_labels(scales, sizes))
        parts = {device: [self._of_all(tensors[name]) for name in names] for device, tensors in sent.items()}
        if self.lacks == "fill":
            fills = {device: median.numpy() for device, (median,) in parts.items()}
            return replace(self, shared=replace(self.shared, fill=pool_medians(self.schema, fills, sizes)))
        pairs = {device: (mean, variance.clamp(min=0.0)) for device, (mean, variance) in parts.items()}
        mean, std = pool_moments(self.schema, pairs, sizes)
        return replace(self, shared=replace(self.shared, mean=mean, std=std))

    @property
    def _numeric(self) -> Tensor:
        """Which inputs are numbers, (*shape) bool."""
        return self.schema.numeric if self.schema.columns else torch.ones(self.schema.shape, dtype=torch.bool)

    def _of_all(self, numbers: Tensor) -> Tensor:
        """Return numbers of the inputs that are some, with 0 in the place of the others."""
        whole = torch.zeros(self.schema.shape, dtype=torch.float64)
        whole[self._numeric] = numbers
        return whole

    def _fill(self, x: Tensor) -> tuple[float, ...]:
        if self.schema.missing == "median":
            return fill_of(self.schema, medians(x), self.shared.fill)
        return self.shared.fill

    def to_mapping(self) -> dict[str, Any]:
        """Return the recipe as JSON can hold it."""
        absent = {"recipe": {"schema": {"standardised", *self.schema.absent}}}  # false for what devices prepare
        mapping: dict[str, Any] = _Travelling(recipe=self).model_dump(mode="json", exclude=absent)["recipe"]
        return mapping

    def form(self) -> str:
        """Return a digest of all but the numbers that devices share."""
        text = json.dumps(replace(self, shared=NO_FIT, label_scale=None).to_mapping(), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @classmethod
    def from_mapping(cls, mapping: Any) -> Recipe:
        """Undo `to_mapping`. Raises InputError for anything else."""
        recipe = check(_Travelling, "", {"recipe": mapping}).recipe
        recipe.check()
        return recipe

    def check(self) -> None:
        """Refuse a recipe that contradicts itself, whoever made it."""
        schema, scale = self.schema, self.label_scale
        shares = (self.val, self.test, self.shared_test)
        length = len(schema.inputs) if schema.columns else 0
        for good, what in (
            (all(0 <= share < 1 for share in shares) and self.val + self.test < 1, "shares"),
            (all(1 <= side <= MOST_INPUTS for side in schema.shape), "shape"),
            (1 <= math.prod(schema.shape) <= MOST_INPUTS, "shape"),
            (schema.shape == (length,) if schema.columns else len(schema.shape) == 3, "shape"),
            (schema.columns or (schema.shape[0] in (1, 3) and schema.shape[1] == schema.shape[2] <= 1024), "shape"),
            (self.task is not SEQUENCES and (bool(schema.columns) or self.task.has_classes), "task"),
            (schema.label is not None if schema.columns and self.task is not MULTILABEL else True, "label"),
            (len({*schema.classes}) == len(schema.classes) >= (2 if self.task.has_classes else 1), "classes"),
            (len(schema.classes) == 1 if self.task is REGRESSION else True, "classes"),
            (
                scale is None or (self.task.standardised and math.isfinite(sum(scale)) and scale[1] > 0),
                "scale of labels",
            ),
            (not schema.devices and schema.shared == NO_FIT, "numbers of devices"),
            (schema.label_scale == NO_LABEL_SCALE, "numbers of devices"),
            (not self.shared.fill or len(self.shared.fill) == math.prod(schema.shape), "fill"),
            (len(self.shared.mean) == len(self.shared.std), "scale"),
            (not self.shared.mean or len(self.shared.mean) == math.prod(schema.shape), "scale"),
            (all(map(math.isfinite, (*self.shared.fill, *self.shared.mean, *self.shared.std))), "numbers"),
            (all(number > 0 for number in self.shared.std), "scale"),
        ):
            if not good:
                raise InputError(f"recipe: its {what} cannot be")


class Source(Protocol):
    """A device's own rows, such as :class:`fedcore.field.rows.DeviceRows`."""

    def splits(self, recipe: Recipe | None, seed: int) -> Splits:
        """Return the device's examples, not prepared, as a run's recipe asks for."""

    def prepared(self, recipe: Recipe | None, seed: int) -> tuple[Splits, Fit]:
        """Return the device's examples as its net takes them, and the numbers that prepared them."""


class _Travelling(Section):
    recipe: Recipe


def _are_numbers(tensor: Tensor | None, count: int, nan: bool) -> bool:
    if tensor is None or tuple(tensor.shape) != (count,) or tensor.dtype != torch.float64:
        return False
    return bool((tensor.isfinite() | tensor.isnan() if nan else tensor.isfinite()).all())
