"""Several inputs of an example, side by side in one row of numbers: a net takes them apart again."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedcore.errors import InputError

LARGEST = 1 << 24
"""Whole numbers are exact in float32 up to here."""


@dataclass(frozen=True)
class Input:
    """One of several inputs. shape: an example's. whole: a net gets its numbers as int64, such as those of words.

    pixels: whether a net gets its bytes as v / 255; None in a model of before, which asks each array.
    """

    name: str
    shape: tuple[int, ...]
    whole: bool = False
    pixels: bool | None = None

    @property
    def size(self) -> int:
        """How many numbers of an example's row it takes."""
        return math.prod(self.shape)


def as_mapping(x: Any) -> Mapping[str, Any] | None:
    """Return several inputs by their names, from a mapping or a named tuple; None for anything else."""
    if hasattr(x, "_asdict"):
        x = x._asdict()
    named = {str(name): of for name, of in x.items()} if isinstance(x, Mapping) else None
    if named is not None and len(named) < len(x):
        twice = [name for name in x if str(name) in map(str, {*x} - {name})]
        raise InputError(f"x: {' and '.join(map(repr, twice))} would be one input; give them other names")
    return named


def require_unmasked(values: Any, where: str) -> None:
    """Refuse masked values, and rows in a list that have some. where: their key."""
    if any(map(np.ma.is_masked, (values, *(values if isinstance(values, list | tuple) else ())))):
        raise InputError(why := f"{where} has masked values; fill them, or leave their examples out", why)


def array_of(values: Any, where: str) -> NDArray[Any]:
    """Return values as an array, a tensor's too; refuses masked values and what has no first axis. where: its key."""
    require_unmasked(values, where)
    try:
        if isinstance(given := values, torch.Tensor):
            given = given.detach().cpu().to_dense()
            given = given.float() if given.dtype == torch.bfloat16 else given
        array = np.asarray(given)
    except (TypeError, ValueError, RuntimeError):
        array = np.array(None)
    if array.ndim:
        return array
    rows, kinds = values if isinstance(values, list | tuple) else (), list | tuple | np.ndarray | torch.Tensor
    lengths = [len(row) for row in rows if isinstance(row, kinds) and getattr(row, "ndim", 1) > 0]
    if len({*lengths}) > 1 and len(lengths) == len(rows):
        odd = next(i for i, length in enumerate(lengths) if length != lengths[0])
        raise InputError(
            f"{where}: [{odd}] has length {lengths[odd]}, but [0] has {lengths[0]}; give rows of one length"
        )
    advice = "of a dataset of PyTorch give torch.stack([x for x, _ in dataset]) and [y for _, y in dataset]"
    if hasattr(values, "toarray") or isinstance(values, Iterator):
        advice = "give a list of it" if isinstance(values, Iterator) else "give its .toarray()"
    raise InputError(f"{where} has the type {type(values).__name__}, must be an array (N, ...) of equal rows; {advice}")


def describe(x: Mapping[str, Any]) -> tuple[Input, ...]:
    """Return what some arrays (N, *shape) are as inputs; whole numbers but bytes stay whole."""
    arrays = {name: array_of(of, f"x[{name!r}]") for name, of in x.items()}
    return tuple(
        Input(name, of.shape[1:], of.dtype.kind in "iu" and of.dtype.itemsize > 1, of.dtype == np.uint8)
        for name, of in arrays.items()
    )


def apart(x: Any, inputs: tuple[Input, ...]) -> bool:
    """Tell whether several inputs are given one by one: a tuple, or a list of as many arrays, which may be rows."""
    return isinstance(x, tuple) or (isinstance(x, list) and len(x) == len(inputs) and hasattr(x[0], "shape"))


def side_by_side(x: Any, inputs: tuple[Input, ...] = ()) -> NDArray[np.float64]:
    """Return several inputs as one row of numbers for each example, (N, F) float64, as a served model takes them.

    The row keeps no names: nothing sees that inputs which are given as one array come in another order.

    Args:
        x: a mapping or a named tuple of arrays (N, *shape); bytes (uint8) become fractions, v / 255.
        inputs: what they must be, such as bytes; none: whatever they are.

    Raises:
        InputError: for other names, shapes or lengths, numbers that are not finite, and data frames, whose columns a
            model does not know by name.
    """
    named = as_mapping(x)
    if not named:
        given = f"side_by_side: {type(x).__name__} holds no inputs by name; give a mapping of names to arrays"
        raise InputError(given + in_order(inputs))
    entries = inputs or describe(named)
    if {*named} != {entry.name for entry in entries}:
        wanted = ", ".join(entry.name for entry in entries)
        raise InputError(f"x: has the inputs {', '.join(named)}, must have {wanted}")
    parts = []
    for entry in entries:
        if hasattr(named[entry.name], "columns"):
            raise InputError(f"x[{entry.name!r}]: is a data frame; give its .to_numpy(), with the columns as learnt")
        values = array_of(named[entry.name], f"x[{entry.name!r}]")
        if values.shape[1:] != entry.shape or values.dtype.kind not in "biuf":
            shape = ", ".join(map(str, ("N", *entry.shape)))
            raise InputError(f"x[{entry.name!r}]: is {values.dtype} {values.shape}, must be numbers of shape ({shape})")
        pixels = values.dtype == np.uint8 if entry.pixels is None else entry.pixels
        if pixels and (values.dtype.kind == "f" or not ((values >= 0) & (values <= 255)).all()):
            raise InputError(f"x[{entry.name!r}]: is {values.dtype}, but the model learnt bytes, 0 to 255; give uint8")
        exact = pixels or values.dtype in (np.float32, np.float16, np.bool_)
        wide: NDArray[Any] = values.astype(np.float32 if exact else np.float64)
        numbers = wide / 255 if pixels else wide
        if not np.isfinite(numbers.astype(np.float32)).all():
            raise InputError(f"x[{entry.name!r}]: has values that are not finite numbers")
        parts.append(numbers.reshape(len(values), entry.size))
    if len({len(part) for part in parts}) > 1:
        lengths = ", ".join(f"{entry.name} {len(part)}" for entry, part in zip(entries, parts, strict=True))
        raise InputError(f"x: inputs have different numbers of examples: {lengths}")
    row: NDArray[np.float64] = np.concatenate(parts, 1, dtype=np.float64)  # digits stay until they are scaled
    check_rows(row, entries)
    return row


def in_order(inputs: Iterable[Input]) -> str:
    """Return the end of an error about several inputs: their names and sizes, in the order of a row; empty for none."""
    sizes = ", ".join(f"{entry.name} ({entry.size})" for entry in inputs)
    return f": {sizes}, in this order" * bool(sizes)


def check_rows(x: NDArray[Any], inputs: Iterable[Input]) -> None:
    """Refuse rows (N, F) of inputs side by side that have no whole numbers, or no v / 255, where the inputs do."""
    first, why = 0, ""
    for entry in inputs:
        part = x[:, first : first + entry.size]
        first += entry.size
        if entry.whole and ((part != np.floor(part)) | (part > LARGEST) | (part < -LARGEST)).any():
            why = f"x[{entry.name!r}]: must be whole numbers up to {LARGEST:,}"
        elif entry.pixels and not ((part >= 0) & (part <= 1)).all():
            why = f"x[{entry.name!r}]: must be bytes as v / 255, from 0 to 1, as side_by_side makes them of uint8"
        if why:
            raise InputError(why, why)
