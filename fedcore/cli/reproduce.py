"""A run of the record, made again."""

from pathlib import Path

import click

from fedcore.cli.project import enter_project


@click.command()
@click.argument("run")
@click.option("--run", "now", is_flag=True, help="Type these commands, and compare the digests of the result.")
@click.option("--folder", type=click.Path(path_type=Path), help="Make it here; by default beside the project.")
def reproduce(run: str, now: bool, folder: Path | None) -> None:
    """Print the commands that make a run again: commit, changes, data and settings as they were.

    RUN is the id of a method's run with one seed in MLflow, or its first digits.

    \b
    fedcore reproduce 3fa9c2d1
    fedcore reproduce 3fa9c2d1 --run
    """
    home = enter_project()
    from fedcore.pipeline import reproduction
    from fedcore.pipeline.record.runs import Record

    found = reproduction.find(Record().client, run)
    folder = (folder or home.with_name(f"{home.name}-{found.info.run_id[:8]}")).absolute()
    lines = reproduction.commands(found, folder)
    print(reproduction.in_words(lines, folder))
    if now:
        print(reproduction.make(found, lines, folder))
