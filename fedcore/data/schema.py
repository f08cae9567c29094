"""A schema: how a row of a table, or an array, becomes the input of a net. Plain values, stored as JSON.

:mod:`fedcore.data.encoding` applies a schema to a data frame, :mod:`fedcore.data.prepare` fills and scales by its
numbers. Nothing here needs pandas, which workers do not load.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcore.data.inputs import Input
from fedcore.data.task import LabelKindName
from fedcore.types.federation import LabelScale

Kind: TypeAlias = Literal["number", "boolean", "text"]
Missing: TypeAlias = Literal["refuse", "median", "common_median", "drop"]
Spelling: TypeAlias = Literal["inferred", "written", "joined"]
DecimalMark: TypeAlias = Literal["auto", "comma", "point"]

MISSING_VALUES = (
    "", "?", "na", "n/a", "nan", "null", "none", "-", "--", "missing",
    "-nan", "<na>", "#na", "#n/a", "#n/a n/a", "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan",
)  # fmt: skip
"""Texts that stand for a missing value, in any case and with any blanks around them."""


@dataclass(frozen=True)
class Column:
    """A column to learn from. categories: of a text, in the order of its inputs; one input is 1, the others 0."""

    name: str
    kind: Kind
    categories: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the column's inputs."""
        return tuple(f"{self.name}={word}" for word in self.categories) if self.kind == "text" else (self.name,)

    @property
    def ticks(self) -> bool:
        """Whether it is one text or empty, so that an empty cell is a 0 and none is missing."""
        return len(self.categories) == 1


@dataclass(frozen=True)
class Fit:
    """Numbers fitted on training examples, flat in the order of the inputs. Each is empty if it is not used.

    fill: replaces a missing value. mean, std: an input becomes (x - mean) / std, after it was filled.
    """

    fill: tuple[float, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()


@dataclass(frozen=True)
class Schema:
    """What a dataset's examples look like, and how a device prepares them.

    shape, dtype: of an example as it is loaded: "float32", "uint8" for pixels, which are divided by 255, or "float64"
    for a table, which earlier versions rounded to float32 before they scaled it.
    classes: the names of the labels, classes[k] for y == k. columns: of a table, in the order of their inputs; none for
    arrays. label, device: a table's columns. missing: what is done about a missing cell. left_out: column -> why it is
    not learnt from. dropped: rows left out because a cell was missing. channels: mean and std of each channel of images
    that were standardised when they were loaded. missing_values: texts that stand for a missing cell. task: what labels
    are, see :mod:`fedcore.data.task`; without classes `classes` names the net's outputs. label_scale: the mean and the
    deviation by which a number as label is standardised; they are fitted, as what follows is. several: the inputs that
    stand side by side in an example's row; none: it is one input. spelling: how names are read, see
    :func:`fedcore.data.names.name_of`; "inferred" is that of earlier versions. id: the column whose texts are
    the keys of rows, "" for none; None in earlier versions, which did not keep it. standardised: whether an array's
    numbers are pixels standardised by numbers that are not kept. decimal: what a comma in a number is. own_scale:
    whether rows of a device that did not train are scaled by their own numbers, see
    :func:`fedcore.data.prepare.fit_new`; not so in earlier versions.

    devices: device -> the numbers fitted on its training examples; shared: those for an example of no device. They are
    fitted by :func:`fedcore.data.prepare.fit_schema`; a dataset's own schema has none.
    """

    shape: tuple[int, ...]
    dtype: str
    classes: tuple[str, ...]
    columns: tuple[Column, ...] = ()
    label: str | None = None
    device: str | None = None
    missing: Missing = "refuse"
    left_out: Mapping[str, str] = field(default_factory=dict)
    dropped: int = 0
    channels: Fit = Fit()
    devices: Mapping[str, Fit] = field(default_factory=dict)
    shared: Fit = Fit()
    missing_values: tuple[str, ...] = field(default=MISSING_VALUES, metadata={"optional": True})
    task: LabelKindName = field(default="classification", metadata={"optional": True})
    label_scale: LabelScale = field(default=(0.0, 1.0), metadata={"optional": True})
    several: tuple[Input, ...] = field(default=(), metadata={"optional": True})
    spelling: Spelling = field(default="inferred", metadata={"optional": True})
    id: str | None = field(default=None, metadata={"optional": True})
    standardised: bool = field(default=False, metadata={"optional": True})
    decimal: DecimalMark = field(default="auto", metadata={"optional": True})
    own_scale: bool = field(default=False, metadata={"optional": True})

    @property
    def absent(self) -> set[str]:
        """The settings that are left out where it is written, as in earlier versions, which lack them."""
        absent = (("standardised", False), ("decimal", "auto"), ("own_scale", False))
        return {name for name, off in absent if getattr(self, name) == off}

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of a table's inputs, (F,)."""
        return tuple(name for column in self.columns for name in column.inputs)

    def by_column(self, x: NDArray[Any]) -> Iterator[tuple[Column, NDArray[Any]]]:
        """Yield each column of a table with its inputs (N, n) of some rows x (N, F)."""
        first = 0
        for column in self.columns:
            yield column, x[:, first : first + len(column.inputs)]
            first += len(column.inputs)

    @property
    def known(self) -> set[str]:
        """The names of classes, devices and categories."""
        return {*self.classes, *self.devices, *(name for column in self.columns for name in column.categories)}

    @property
    def keyed(self) -> tuple[Column, ...]:
        """The columns that make a row's key: without ticks, which earlier versions left out, if there are others."""
        return tuple(column for column in self.columns if not column.ticks) or self.columns

    @property
    def names(self) -> tuple[str, ...]:
        """The columns whose cells are names, which files are asked for as texts; that of devices may be `device`."""
        texts = [column.name for column in self.columns if column.kind == "text"]
        device = self.device or "device"
        return (*texts, *({device} - {column.name for column in self.columns}))

    @property
    def numeric(self) -> Tensor:
        """Which of a table's inputs are numbers, (F,) bool: only these are filled and scaled."""
        return torch.tensor([column.kind != "text" for column in self.columns for _ in column.inputs])
