"""A saved record, brought into a clone."""

from __future__ import annotations

import click


@click.command()
@click.argument("place", metavar="FOLDER_OR_URL")
def restore(place: str) -> None:
    """Restore what `fedcore save` has written to a folder or URL, into a clone of the project without a record.

    Every file is checked by its digest before any is written. Restore only from places that nobody else may write:
    loading a model may run the code beside it.
    """
    from fedcore.cli.project import enter_project

    enter_project()
    from fedcore.pipeline import backup

    done = backup.restore(place)
    print(f"{done.files} files, {done.nbytes / 1e6:.1f} MB, of {place} are here; {done.written} of them were written")
