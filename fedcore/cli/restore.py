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

    summary = backup.restore(place)
    counts = f"{summary.files} files, {summary.nbytes / 1e6:.1f} MB"
    print(f"{counts}, of {place} are here; {summary.written} of them were written")
