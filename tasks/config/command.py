"""A command's help, and how it reports bad input: one line on stderr and exit code 2. Imports nothing slow."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


def show_help(text: str | None) -> None:
    """Print a command's help and exit, if it was asked for."""
    if {"-h", "--help", "help"} & {*sys.argv[1:]}:
        sys.stdout.write(f"{(text or '').strip()}\n")
        sys.exit(0)


def no_words(usage: str) -> None:
    """Refuse the arguments of a command that takes none, or none of these."""
    if sys.argv[1:]:
        from fedcore.types import InputError

        raise InputError(f"{' '.join(sys.argv[1:])}: unknown; usage: python -m flows.{usage}")


@contextmanager
def report_bad_input() -> Iterator[None]:
    """Report an InputError in one line and exit with code 2."""
    try:
        yield
    except ValueError as error:
        from fedcore.types import InputError

        if not isinstance(error, InputError):
            raise
        sys.stderr.write(f"fedcore: {error}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("fedcore: stopped; finished steps are kept, run the same command to continue\n")
        sys.exit(130)
