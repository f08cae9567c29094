"""Errors that are said in one line, and the traceback of others. Imports nothing slow."""

import os
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

LIBRARIES = tuple(map(sysconfig.get_path, ("stdlib", "platstdlib")))
"""Folders of Python's own modules."""

COSTS = '{"yes": {"no": 50}, "no": {"yes": 1}}'
"""How the costs of mistakes are written."""


class OneLine(Exception):
    """An error that is said in one line. It may quote names from data or of files.

    What would end the line, or steer a terminal, is shown by its escape sequence.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


def printable(text: str) -> str:
    """Return a text in which what would end the line, or steer a terminal, is its escape sequence."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def plural(count: int, noun: str, *verb: str) -> str:
    """Return a number with its noun, and the verb of one or of several: 1 row has, 2,000 rows have."""
    return " ".join([f"{count:,} {noun}{'s' * (count != 1)}", *verb[count != 1 :][:1]])


def message_of(error: object) -> str:
    """Return an error's message as one line; its type where it has none."""
    return " ".join(str(error).split()) or type(error).__name__


class InputError(OneLine, ValueError):
    """Input that cannot be used. The message: which key, which value, what is allowed.

    public: the same without a value of a row, for logs and strangers; "": there is none. mends: settings with which it
    can be used; a list is added to that of the setting.
    """

    def __init__(self, message: str, public: str = "", mends: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.public, self.mends = printable(public), dict(mends or {})


class Diverged(InputError):
    """Training whose numbers are no longer finite: the row cannot be used, others can."""


class TooFew(OneLine, RuntimeError):
    """Fewer devices answered in a round than must. The message names the absent ones."""


EXTRAS: dict[str, tuple[str, ...]] = {
    "study": ("pandas", "pyarrow", "scipy", "sklearn", "cvxpy", "rich"),
    "pipeline": ("prefect", "mlflow", "dvc", "ruamel"),
    "cluster": ("distributed",), "field": ("nvflare",), "export": ("onnx", "onnxruntime"), "trees": ("xgboost",),
}  # fmt: skip
"""Packages that are there where an extra is installed."""


def require_extra(extra: str, packages: Sequence[str] = (), *, subject: str = "") -> None:
    """Refuse in one line what needs an extra that is not installed; no package index has fedcore.

    packages: those that are needed; by default all by which the extra is known. subject: what needs them.
    """
    if missing := [package for package in packages or EXTRAS[extra] if find_spec(package) is None]:
        install = f"in a clone of fedcore: pip install '.[{extra}]' --constraint constraints.txt"
        raise InputError(f"{subject}{missing[0]} is not installed; {install}")


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Add a note to an error that is not one of input."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        error.add_note(what)
        raise


@contextmanager
def failing(what: str) -> Iterator[None]:
    """Say an error of a user's code in one line, with the user's line that it comes from. what: what fails."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        place, trace = "", error.__traceback__
        while trace is not None:
            file = Path(trace.tb_frame.f_code.co_filename)
            if not is_installed(file) and Path(__file__).parent not in file.parents:
                place = f" ({os.path.relpath(file)}:{trace.tb_lineno})"
            trace = trace.tb_next
        raise InputError(f"{what}: {type(error).__name__}: {' '.join(str(error).split())}{place}") from error


def is_installed(file: Path) -> bool:
    """Tell whether a file belongs to Python or to an installed package, whoever installed it."""
    packages = {"site-packages", "dist-packages"} & {*file.parts}
    return bool(packages) or str(file).startswith("<frozen") or any(map(file.is_relative_to, LIBRARIES))


def shorten_traceback(error: BaseException) -> None:
    """Leave out the frames of installed packages and of Python itself, unless there are no others.

    An error in a user's method passes through a hundred of them; its own lines are what helps.
    """
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        current = todo.pop()
        if current is not None and id(current) not in seen:
            seen.add(id(current))
            current.__traceback__ = _own(current.__traceback__)
            todo += [current.__cause__, current.__context__]


def _own(trace: TracebackType | None) -> TracebackType | None:
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    own = [frame for frame in frames if not is_installed(Path(frame.tb_frame.f_code.co_filename))]
    chain: TracebackType | None = None
    for frame in reversed(own or frames):
        chain = TracebackType(chain, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return chain
