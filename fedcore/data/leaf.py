"""Sets as LEAF (Caldas et al. 2018) writes them: FEMNIST's characters, vectors of numbers, Shakespeare, Sent140.

The format: `<path>/train/*.json` and `<path>/test/*.json`, or `<path>/all_data/*.json`, each
{"users": [name, ...], "user_data": {name: {"x": [[number, ...], ...], "y": [label, ...]}}}. An image of FEMNIST is 784
numbers, written row by row, 0 is ink and 1 paper; labels 0-9 are digits, 10-35 capitals, 36-61 lower-case letters. A
vector of any other length, as in LEAF's synthetic set, has whole numbers as labels. An example of Shakespeare's
plays is a text of 80 letters, its label the letter that follows, a user a role: {"x": [text, ...], "y": [letter, ...]}.
An example of Sent140 is a post, [number, date, query, user, text], its label 0, negative, or 1, positive.
"""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from fedcore.data import Dataset
from fedcore.data.files import one_line
from fedcore.data.pixels import Scaling, scale
from fedcore.data.words import to_numbers, vocabulary_of
from fedcore.errors import InputError
from fedcore.types.federation import Data

CLASSES = (*digits, *ascii_uppercase, *ascii_lowercase)
SIDE = 28
POST, TEXT = 5, 4
"""Fields of a post, and the place of its text."""

LETTERS = "\n !\"&'(),-.0123456789:;>?" + ascii_uppercase + "[]" + ascii_lowercase + "}"
"""LEAF's letters of Shakespeare, by their numbers."""

READS = "data.name = 'leaf' reads images of FEMNIST, vectors of numbers, texts of Shakespeare and posts of Sent140"

UserData: TypeAlias = dict[str, tuple[NDArray[Any], NDArray[np.int64]]]
"""user -> examples, (n, F), of posts (n,) texts; labels (n,)"""


def leaf(path: str | Path, scaling: Scaling = "none", per_step: bool = False) -> Dataset:
    """Read a LEAF folder, x (N, 1, 28, 28) float32 as written, or (N, F) of vectors (float64 where
    float32 would make two numbers one), letters or words.

    `device` is the user, `split` the folder, train or test; None for all_data. The classes of vectors are the labels
    that are there. Letters are whole numbers, as float32; classes[k] is letter k, first LEAF's 80, then others that
    occur. So are words, 25 of each post, see :mod:`fedcore.data.words`; the vocabulary is that of the folder train, by
    rank: of other posts, or with one more user, all words have other numbers, and all rows are other rows.

    Args:
        path: the folder that LEAF's scripts write.
        scaling: of images, see :func:`fedcore.data.pixels.scale`.
        per_step: of letters, whether each has a label, the letter that follows it, and not the last one alone.
    """
    path = Path(path)
    folders = ("train", "test") if (path / "train").is_dir() else ("all_data",)
    x, y, users, split, seen = [], [], [], [], dict[tuple[str, str], str]()
    form: Form | None = None
    for folder in folders:
        files = sorted((path / folder).glob("*.json"))
        if not files:
            raise InputError(f"data.path = {path}: no {folder}/*.json; LEAF writes train and test, or all_data")
        for file in files:
            of_file, form = read_users(file, form)
            for user, (examples, labels) in of_file.items():
                if (user, folder) in seen:
                    raise InputError(f"data.path = {file}: user {user!r} stands in {seen[user, folder]}, too")
                seen[user, folder] = file.name
                x.append(examples)
                y.append(labels)
                users += [user] * len(labels)
                split += [folder] * len(labels)
    if not users or form is None:
        raise InputError(f"data.path = {path}: no examples; the users of its files have none")
    inputs, labels = (np.concatenate([part for part in parts if len(part)]) for parts in (x, y))
    device, marks = tuple(users), tuple(split) if len(folders) == 2 else None
    if form.holds != "numbers" and scaling != "none":
        raise InputError(f"data.scaling = {scaling!r}: must be none, texts have no pixels")
    if per_step and form.holds != "letters":
        raise InputError("data.per_step = True: is for texts of letters, whose labels are letters too")
    if form.holds == "letters":
        letters = _letters(inputs, labels, device, marks)
        if not per_step:
            return letters
        text, last = letters.train.x, letters.train.y  # each letter's label is the one that follows it
        return replace(letters, train=Data(text, torch.cat([text[:, 1:].long(), last[:, None]], 1)))
    if form.holds == "posts":
        training = inputs if marks is None else inputs[np.array(marks) == "train"]  # words of test posts are unknown
        words = to_numbers(list(inputs), vocabulary_of(training))
        return Dataset(Data(words, torch.from_numpy(labels)), None, ("negative", "positive"), device, marks)
    if form.size == SIDE * SIDE:
        images = torch.from_numpy(inputs).reshape(-1, 1, SIDE, SIDE)
        return scale(Dataset(Data(images, torch.from_numpy(labels)), None, CLASSES, device, marks), scaling)
    if scaling != "none":
        raise InputError(
            f"data.scaling = {scaling!r}: must be none, vectors have no pixels; try federation.scale=device"
        )
    classes, numbers = np.unique(labels, return_inverse=True)
    short = inputs.astype(np.float32)
    inputs = inputs if len(np.unique(short)) < len(np.unique(inputs)) else short  # as before, where none is lost
    data = Data(torch.from_numpy(inputs), torch.from_numpy(numbers.astype(np.int64)))
    return Dataset(data, None, tuple(map(str, classes.tolist())), device, marks)


def _letters(
    inputs: NDArray[np.float32], labels: NDArray[np.int64], device: tuple[str, ...], marks: tuple[str, ...] | None
) -> Dataset:
    """Return texts as numbers of letters. inputs, labels: their code points."""
    known_letters = {chr(int(point)) for part in (inputs, labels) for point in np.unique(part)}
    letters = (*LETTERS, *sorted(known_letters - {*LETTERS}))
    points = np.array([ord(letter) for letter in letters])
    order = np.argsort(points)
    x, y = (order[np.searchsorted(points[order], part)] for part in (inputs, labels))
    data = Data(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y.astype(np.int64)))
    return Dataset(data, None, letters, device, marks, may_lack=True)


class Form(NamedTuple):
    """What all examples are; size: letters, numbers or fields of each."""

    holds: Literal["numbers", "letters", "posts"]
    size: int


def form_of(example: Any) -> Form:
    """Return what an example is."""
    if isinstance(example, str):
        return Form("letters", len(example))
    if len(example) == POST and all(isinstance(part, str) for part in example):
        return Form("posts", POST)
    return Form("numbers", len(example))


def read_users(file: Path, form: Form | None) -> tuple[UserData, Form | None]:
    """Return each user's examples in one file, and their form. form: that of other files."""
    try:
        content = json.loads(file.read_bytes(), object_pairs_hook=_once)
        users, data_of = content["users"], content["user_data"]
        if sorted(users) != sorted(data_of):
            raise ValueError("its users are not those of user_data")
        by_user: UserData = {}
        for user in users:
            x, y = data_of[user]["x"], data_of[user]["y"]
            if form is None and len(x):
                form = form_of(x[0])
            by_user[user] = examples(user, x, y, form or Form("numbers", SIDE * SIDE))
        return by_user, form
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError, MemoryError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else one_line(error)
        raise InputError(f"data.path = {file}: cannot be read ({why}); {READS}, as LEAF writes them") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of JSON's pairs. Raises ValueError for a name that stands twice."""
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1:
            raise ValueError(f"{name!r} stands twice")
    return dict(pairs)


def examples(user: str, x: Any, y: Any, form: Form) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return one user's examples, checked; of texts the code points of their letters."""
    size = form.size
    what, classes = ("image", len(CLASSES)) if size == SIDE * SIDE else ("vector", 2**31)
    if len(x) != len(y):
        of = {"letters": "texts", "posts": "posts"}.get(form.holds, f"{what}s")
        raise ValueError(f"user {user!r} has {len(y)} labels for {len(x)} {of}")
    if form.holds == "letters":
        return texts(user, x, y, size)
    if form.holds == "posts":
        return posts(user, x, y)
    if any(isinstance(example, str) for example in x):
        raise ValueError(f"user {user!r} has a text for an example")
    if not all(type(label) is int and 0 <= label < classes for label in y):
        allowed = f"0 to {classes - 1}" if what == "image" else "a whole number"
        raise ValueError(f"user {user!r} has a label that is not {allowed}")
    if not all(len(example) == size > 0 for example in x):
        raise ValueError(f"user {user!r} has {'an image' if what == 'image' else 'a vector'} without {size} numbers")
    with np.errstate(over="ignore"):  # values too large become inf, refused below
        numbers = np.asarray(x, np.float32 if what == "image" else np.float64)
        finite = np.isfinite(numbers.astype(np.float32)).all()
    if numbers.size != len(x) * size:
        raise ValueError(f"user {user!r} has an example of lists, not of numbers: write its numbers in one list")
    if not finite:
        raise ValueError(f"user {user!r} has {'a pixel' if what == 'image' else 'a number'} that is no finite number")
    return numbers.reshape(-1, size), np.asarray(y, np.int64)


def texts(user: str, x: Any, y: Any, size: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return one user's texts of `size` letters each and the letters that follow, as code points."""
    if not all(isinstance(text, str) and len(text) == size > 0 for text in x):
        raise ValueError(f"user {user!r} has an example that is no text of {size} letters")
    if not all(isinstance(letter, str) and len(letter) == 1 for letter in y):
        raise ValueError(f"user {user!r} has a label that is not one letter")
    points = [[ord(letter) for letter in text] for text in x]
    return np.asarray(points, np.float32).reshape(-1, size), np.asarray([ord(letter) for letter in y], np.int64)


def posts(user: str, x: Any, y: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the texts of one user's posts, and their labels."""
    if not all(type(label) is int and label in (0, 1) for label in y):
        raise ValueError(f"user {user!r} has a label that is not 0 or 1")
    if not all(isinstance(post, list) and len(post) == POST and isinstance(post[TEXT], str) for post in x):
        raise ValueError(f"user {user!r} has an example that is no post, [number, date, query, user, text]")
    return np.array([post[TEXT] for post in x], dtype=object), np.asarray(y, np.int64)
