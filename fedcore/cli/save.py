"""A copy of a project's record elsewhere, and back into a clone."""

import click

from fedcore.cli.project import enter_project
from fedcore.errors import plural


@click.command()
@click.argument("url", metavar="FOLDER_OR_URL")
@click.option("--cache", is_flag=True, help="Also the results of all steps, so that a restored project computes none.")
@click.option("--replace", is_flag=True, help="Also where another project has been saved, whose save is then gone.")
def save(url: str, cache: bool, replace: bool) -> None:
    """Save the project's record to a folder or URL. It is results, history, MLflow's runs with models and checksums.

    \b
    fedcore save /mnt/backup/my-sites
    fedcore save s3://bucket/my-sites --cache

    It replaces the project's last save there, and writes only what has changed. `fedcore restore` brings it into a
    clone.
    """
    enter_project()
    from fedcore.pipeline import backup

    files, nbytes, written = backup.save(url, cache, replace)
    counts = f"{plural(files, 'file')}, {nbytes / 1e6:.1f} MB"
    print(f"{counts}, saved to {url}: {written:,} written, the others equal these or were there")


@click.command()
@click.argument("url", metavar="FOLDER_OR_URL")
def restore(url: str) -> None:
    """Restore what `fedcore save` wrote, into a clone of a project. The clone has no record.

    Every file is checked by its digest before any is written. Restore only from places that nobody else may write:
    loading a model may run the code beside it.
    """
    enter_project()
    from fedcore.pipeline import backup

    files, nbytes, written = backup.restore(url)
    counts = f"{plural(files, 'file')}, {nbytes / 1e6:.1f} MB"
    print(f"{counts}, restored from {url}: {written:,} written, the others were here")
