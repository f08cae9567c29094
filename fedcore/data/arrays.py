"""Datasets from a user's arrays."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import replace
from numbers import Integral, Number
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fedcore.builders import unknown_value
from fedcore.data import Dataset, schema_of
from fedcore.data.dataset import SPLITS
from fedcore.data.inputs import array_of, as_mapping, describe, side_by_side
from fedcore.data.task import NO_LABEL, LabelKindName
from fedcore.errors import InputError
from fedcore.types.federation import Data

IGNORED = -100
"""The label of a step that PyTorch's losses leave out by default."""

EXACT = 1 << 53
"""Whole numbers are exact in float64 below."""

NO_TEXT = ("", "nan", "None", "<NA>")
"""What is missing, as a text."""


def from_arrays(
    x: ArrayLike | Mapping[str, ArrayLike], y: ArrayLike, *, device: Sequence[object] | None = None,
    split: Sequence[str] | None = None, test: tuple[ArrayLike | Mapping[str, ArrayLike], ArrayLike] | None = None,
    task: LabelKindName | Literal["auto"] = "auto",
) -> Dataset:  # fmt: skip
    """Return a dataset of the given examples.

    Args:
        x: (N, *shape), uint8 (scaled to [0, 1] when used) or other numbers, which are float32 once they are scaled; or
            several inputs, a mapping or named tuple of such arrays, for a net whose forward has their names.
        y: (N,), labels; or (N, K), whether an example has each of K labels, 0 or 1, which the columns of a data frame
            name.
        device: the device that recorded each example, for `by_device`.
        split: "train", "val" or "test" for each example, if you have divided them yourself.
        test: inputs and labels of the shared test set; None: it is drawn from the examples.
        task: "classification": labels are strings or whole numbers, and the classes are the sorted distinct values;
            "regression": they are quantities; "multilabel": y is (N, K); "sequence_labelling": y is (N, T), a class for
            each step of x (N, T, ...), where -1, or an empty string, is a step without a label, such as padding;
            "auto": multilabel if y is (N, K), regression if some label is not a whole number, else classification.

    Raises:
        InputError: if lengths differ, a number is not finite, or a label is missing (nan, None, of classes -1).
    """
    if task not in ("auto", *get_args(LabelKindName)):
        raise unknown_value("from_arrays.task", task, ("auto", *get_args(LabelKindName)))
    labels, marks = array_of(y, "from_arrays: y"), [*split] if isinstance(split, Sized) else []
    if split is not None and (len(marks) != len(labels) or not all(isinstance(m, str) and m in SPLITS for m in marks)):
        raise InputError(f"from_arrays.split: must name one of {', '.join(SPLITS)} for each of the examples, in a list")
    if test is not None:
        if not isinstance(test, tuple | list) or len(test) != 2:
            raise InputError("from_arrays.test: must be inputs and labels; give (x, y)")
        return _with_test(x, y, *test, device, split, task)
    if split is not None:
        return replace(from_arrays(x, y, device=device, task=task), split=tuple(map(str, split)))
    if (named := as_mapping(x)) is not None:
        if task == "sequence_labelling":
            raise InputError(
                "from_arrays.task = 'sequence_labelling': each step's label needs one input, x (N, T, ...)"
            )
        named = {name: array_of(of, f"from_arrays: x[{name!r}]") for name, of in named.items()}
        dataset = from_arrays(side_by_side(named), y, device=device, task=task)
        return replace(dataset, schema=replace(schema_of(dataset), several=describe(named)))
    inputs, labels = map(_without_na, (array_of(x, "from_arrays: x"), labels))
    if wrong := next((part.dtype for part in (inputs, labels) if part.dtype.kind in "cmMV"), None):
        raise InputError(f"from_arrays: x and y must be numbers, y may be strings; {wrong} is neither")
    if inputs.dtype.kind in "US" or (inputs.dtype == object and any(isinstance(cell, str) for cell in inputs.flat)):
        raise InputError(
            "from_arrays: x has texts; fc.load('table', path=...) reads a file with columns of texts; vocabulary_of "
            "and to_numbers of fedcore.data.words number words"
        )
    labels = _as_numbers(labels, task)
    if task == "auto" and labels.ndim == 2 and labels.shape[1] == 1:
        raise InputError(
            f"from_arrays: y {labels.shape} is a column: give y[:, 0]; task='multilabel' takes it as a label"
        )
    several, steps = task == "multilabel" or (task == "auto" and labels.ndim == 2), task == "sequence_labelling"
    if inputs.ndim < 2 or labels.ndim != 1 + (several or steps) or len(labels) != len(inputs):
        wanted = "(N, K)" if several else "(N, T)" if steps else "(N,)"
        raise InputError(f"from_arrays: x {inputs.shape} and y {labels.shape} must be (N, *shape) and {wanted}")
    if steps and labels.shape != inputs.shape[:2]:
        raise InputError(f"from_arrays: x {inputs.shape} and y {labels.shape} must have as many steps, (N, T, ...)")
    owners = None if device is None else _owners(device, len(labels))
    try:
        inputs = inputs.astype(_type_of(inputs))  # a copy, which nobody else changes
    except (TypeError, ValueError) as error:
        raise InputError(f"from_arrays: x has cells that are no numbers: {error}") from None
    if not np.isfinite(inputs.astype(np.float32)).all():
        raise InputError("from_arrays: x has values that are not finite numbers")
    examples = torch.from_numpy(np.ascontiguousarray(inputs))
    if several:
        labelled = _zeros_and_ones(labels)
        if task == "auto" and (labelled.sum(1) == 1).all():  # more likely one label than several
            raise InputError(
                "from_arrays: each row of y has exactly one 1, as classes are written for one output each: give "
                "y.argmax(1); task='multilabel' takes them as labels apart"
            )
        names = tuple(map(str, getattr(y, "columns", range(labels.shape[1]))))
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise InputError(f"from_arrays: y has two columns {twice[0]!r}; give them other names")
        return Dataset(Data(examples, torch.from_numpy(labelled)), None, names, owners)
    if steps:
        names, of_steps = _step_classes(labels)
        return Dataset(Data(examples, torch.from_numpy(of_steps)), None, names, owners)
    fractions = labels.dtype.kind == "f" and bool((labels[np.isfinite(labels)] % 1 != 0).any())
    if task == "regression" or (task == "auto" and fractions):
        _require_labels(labels, classes=False)
        return Dataset(Data(examples, torch.from_numpy(labels.astype(np.float64))), None, ("y",), owners)
    _require_labels(labels, classes=True)
    names, numbers = _classes(labels)
    return Dataset(Data(examples, torch.from_numpy(numbers)), None, names, owners)


def _type_of(inputs: NDArray[Any]) -> type[np.generic]:
    """Return the type that keeps an array's numbers: bytes, whole numbers, or numbers."""
    if inputs.dtype in (np.uint8, np.float32, np.float16, np.bool_):
        return np.uint8 if inputs.dtype == np.uint8 else np.float32
    return np.int64 if inputs.dtype.kind in "iu" and inputs.max(initial=0) < 2**63 else np.float64


def _without_na(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array in which the missing value of pandas is None."""
    return np.frompyfunc(_or_none, 1, 1)(array) if array.dtype == object else array


def _as_numbers(labels: NDArray[Any], task: str) -> NDArray[Any]:
    """Return objects that are integers, or numbers of which some have a fraction, as such; whole ones if need be."""
    if labels.dtype != object or not all(isinstance(of, Number) and not isinstance(of, bool) for of in labels.flat):
        return labels
    try:
        if task != "regression" and all(isinstance(of, Integral) for of in labels.flat):
            return labels.astype(np.int64)
        numbers = labels.astype(np.float64)
    except (TypeError, ValueError, OverflowError):  # complex, of no value, too large
        return labels
    whole = task in ("regression", "sequence_labelling")
    return numbers if whole or (numbers[np.isfinite(numbers)] % 1 != 0).any() else labels


def _or_none(cell: Any) -> Any:
    return None if type(cell).__name__ == "NAType" else cell


def _with_test(x: Any, y: ArrayLike, test_x: Any, test_y: ArrayLike, device: Any, split: Any, task: Any) -> Dataset:
    """Return a dataset whose shared test set are examples of their own."""
    named, test_named = as_mapping(x), as_mapping(test_x)
    ours, theirs = named or {"x": x}, test_named or {"x": test_x}
    alike = (named is None) == (test_named is None) and {*ours} == {*theirs}
    for frames in ((y, test_y), *((ours[name], theirs.get(name)) for name in ours)):
        columns = [[*getattr(frame, "columns", ())] for frame in frames]
        alike &= not all(columns) or columns[0] == columns[1]
    keys = {name: "x" if named is None else f"x[{name!r}]" for name in ours if alike}
    parts = {
        name: (array_of(ours[name], f"from_arrays: {key}"), array_of(theirs[name], f"from_arrays.test: {key}"))
        for name, key in keys.items()
    }
    if not alike or any((a.shape[1:], a.dtype) != (b.shape[1:], b.dtype) for a, b in parts.values()):
        raise InputError("from_arrays.test: its inputs must be those of x, in names, shapes and types")
    labels = array_of(y, "from_arrays: y"), array_of(test_y, "from_arrays.test: y")
    count = len(labels[0])
    if labels[0].shape[1:] != labels[1].shape[1:] or (labels[0].dtype.kind in "fiub") != (
        labels[1].dtype.kind in "fiub"
    ):
        raise InputError("from_arrays.test: its labels must be those of y, in shape and type")
    joined: Any = {name: np.concatenate(both) for name, both in parts.items()}
    joined_y: Any = np.concatenate(labels)
    if hasattr(y, "columns"):
        import pandas as pd

        joined_y = pd.DataFrame(joined_y, columns=y.columns)
    whole = from_arrays(joined if named is not None else joined["x"], joined_y, task=task)
    if whole.task.has_classes and (new := {*whole.train.y[count:].tolist()} - {*whole.train.y[:count].tolist()}):
        raise InputError(f"from_arrays.test: label {whole.classes[min(new)]!r} is in no other example")
    train, shared = (Data(whole.train.x[part], whole.train.y[part]) for part in (slice(count), slice(count, None)))
    owners = None if device is None else _owners(device, count)
    return replace(
        whole, train=train, test=shared, device=owners, split=None if split is None else tuple(map(str, split))
    )


def with_devices(dataset: Dataset, indices: Mapping[str, Sequence[int] | Mapping[str, Sequence[int]]]) -> Dataset:
    """Return the examples of a dataset that are named, each on its device, for `by_device`.

    Args:
        dataset: the examples; its own devices and splits do not count.
        indices: device -> the row numbers of its examples in `dataset.train`; or device -> part -> row numbers, where
            the parts are "train", "val" and "test".

    Raises:
        InputError: for a row number beyond the examples, an example that is named twice, and a device without any.
    """
    divided = [isinstance(own, Mapping) for own in indices.values()]
    if not indices or any(divided) != all(divided):
        raise InputError("with_devices: must name the examples of each device, or of each device's parts")
    _owners([*indices], len(indices))
    numbers: list[int] = []
    owners: list[str] = []
    marks: list[str] = []
    for name, own in indices.items():
        parts = own if isinstance(own, Mapping) else {"train": own}
        if not {*parts} <= {*SPLITS}:
            raise InputError(f"with_devices: the parts of {name} must be among {', '.join(SPLITS)}")
        for part, of_part in parts.items():
            given = array_of([*of_part], f"with_devices: {name}")
            if len(odd := given[given % 1 != 0] if given.dtype.kind in "iuf" and given.ndim == 1 else given):
                raise InputError(f"with_devices: {odd[0]}: not a row number; of a mask, give np.flatnonzero(mask)")
            numbers += (positions := given.astype(np.int64).tolist())
            owners += [str(name)] * len(positions)
            marks += [part] * len(positions)
        if owners[-1:] != [str(name)]:
            raise InputError(f"with_devices: {name} has no row number; leave it out")
    if wrong := [index for index in numbers if not 0 <= index < len(dataset.train)]:
        raise InputError(f"with_devices: {wrong[0]}: not a row number of {len(dataset.train)} examples")
    if len({*numbers}) < len(numbers):
        (twice, _), *_ = Counter(numbers).most_common(1)
        raise InputError(f"with_devices: example {twice} is named more than once")
    chosen = torch.tensor(numbers, dtype=torch.int64)

    def of(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if names is None else tuple(names[index] for index in numbers)

    return replace(
        dataset, train=Data(dataset.train.x[chosen], dataset.train.y[chosen]), device=tuple(owners),
        split=tuple(marks) if any(divided) else None, domain=of(dataset.domain), ids=of(dataset.ids),
        earlier=tuple((name, tuple(texts[i] for i in numbers)) for name, texts in dataset.earlier),
        unknown=tuple((name, tuple(texts[i] for i in numbers)) for name, texts in dataset.unknown),
    )  # fmt: skip


def _owners(device: Iterable[object], count: int) -> tuple[str, ...]:
    """Return the names of devices, so many; refuses a missing one."""
    if isinstance(device, Mapping):
        raise InputError("from_arrays: device is a dict; give the name of each example's device, in a list")
    given = [_or_none(name.tolist() if isinstance(name, torch.Tensor) else name) for name in device]
    if any(isinstance(name, list | dict | set) or getattr(name, "ndim", 0) for name in given):
        raise InputError(
            "from_arrays: device has rows of names; give the name of each example's device, as device[:, 0]"
        )
    if len(given) != count:
        raise InputError(f"from_arrays: device names {len(given)} of {count} examples")
    for number, name in enumerate(given):
        if name is None or name is np.ma.masked or name != name or name in NO_TEXT:
            raise InputError(f"from_arrays: device[{number}] = {name!r}: a device is missing; name it")
    first: dict[object, object] = {}  # 1 and 1.0 are one device, 1 and True are two
    given = [first.setdefault((isinstance(of, bool), of), of) if isinstance(of, Number) else of for of in given]
    names: dict[str, object] = {}
    for name in given:
        if type(other := names.setdefault(str(name), name)) is not type(name) and other != name:
            raise InputError(f"from_arrays: device: {other!r} and {name!r} would be one device; give them other names")
    return tuple(map(str, given))


def _zeros_and_ones(labels: NDArray[Any]) -> NDArray[np.float32]:
    """Return several labels of each example as numbers, (N, K); refuses what is missing, or neither 0 nor 1."""
    for number, label in enumerate(cells := labels.ravel().tolist()):
        if label not in (0, 1):
            row, column = divmod(number, labels.shape[1])
            missing = label is None or label != label
            why = "a label is missing; leave the example out" if missing else "each of several labels must be 0 or 1"
            if not missing:
                takes = "task='sequence_labelling' takes a class for each step"
                one = f"one number can be learnt, not several: give y[:, {column}]"
                why += f"; {one if isinstance(label, float) else takes}"
            raise InputError(f"from_arrays: y[{row}, {column}] = {label!r}: {why}")
    if not cells:
        raise InputError(f"from_arrays: y {labels.shape} has no label")
    return labels.astype(np.float32)


def _step_classes(labels: NDArray[Any]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the names of the classes of steps, and each step's class, (N, T), or NO_LABEL."""
    numeric = labels.dtype.kind in "fiu"
    wrong = labels % 1 != 0 if numeric else np.frompyfunc(_is_missing, 1, 1)(labels).astype(bool) & (labels != "")
    for row, step in np.argwhere(wrong).tolist():
        raise InputError(
            f"from_arrays: y[{row}, {step}] = {labels[row, step]}: the class of a step must be a whole number or a "
            "string; -1, or an empty string, is a step without a label"
        )
    if numeric and (labels == IGNORED).any():
        raise InputError(f"from_arrays: y has {IGNORED}, as PyTorch marks a step without a label; write {NO_LABEL}")
    labelled = labels != (NO_LABEL if numeric else "")
    if not labelled.any():
        raise InputError("from_arrays: y has no step with a label")
    class_ids = np.full(labels.shape, NO_LABEL, dtype=np.int64)
    names, class_ids[labelled] = _classes(labels[labelled])
    return names, class_ids


def _classes(labels: NDArray[Any]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the names of the classes of labels (N,), and each one's class; refuses several types."""
    try:
        if labels.dtype == object and len({isinstance(label, bool | np.bool_) for label in labels.tolist()}) > 1:
            raise TypeError  # 1 would be True
        classes, numbers = np.unique(labels, return_inverse=True)
    except TypeError:
        kinds = sorted({type(label).__name__ for label in labels.tolist()})
        raise InputError(f"from_arrays: y has labels of several types, {' and '.join(kinds)}; give one") from None
    return tuple(map(str, classes.tolist())), numbers.astype(np.int64)


def _is_missing(label: Any) -> bool:
    return label is None or label != label or label in NO_TEXT


def _require_labels(labels: NDArray[Any], classes: bool) -> None:
    """Refuse labels that are missing; quantities as classes; and quantities that are no finite numbers."""
    numeric = labels.dtype.kind in "fiu"
    for number, label in enumerate(labels.tolist()):
        if label is None or label != label or (classes and (label == NO_LABEL or label in NO_TEXT)):
            why = f"{label!r}: a label is missing; leave the example out{', or name it' if classes else ''}"
        elif not classes and (not numeric or not abs(label) <= np.finfo(np.float32).max):
            why = f"{label!r}: is not a finite number, which regression needs"
        elif classes and isinstance(label, float) and not label.is_integer():
            why = f"{label}: classes must be whole numbers or strings; task='regression' learns a quantity"
        elif classes and isinstance(label, float) and abs(label) >= EXACT:
            why = f"{label}: so large labels would be rounded to one class; give texts, or whole numbers of one type"
        else:
            continue
        raise InputError(f"from_arrays: y[{number}] = {why}")
