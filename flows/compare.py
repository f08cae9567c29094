"""Compare what the pipeline's runs found: one table, one summary, one page.

python -m flows.compare          as a stage of `dvc repro`: write the answer
python -m flows.compare show     print the summary that is there
"""

from __future__ import annotations

import sys
from pathlib import Path

from tasks.config import environment
from tasks.config.files import CLAIMS, PAGE, SUMMARY

environment.prepare()

PIPELINE = Path("pipeline")
ANSWER = Path("results")


def folders() -> tuple[list[Path], list[Path], list[Path]]:
    """Return where results, seconds and pictures of who holds what lie, for the studies of the run."""
    from tasks.config.params import read
    from tasks.config.studies import grid_points, run_section

    params = read()
    run = run_section(params)
    names = [(study, f"{study}-{seed}") for study in run.studies for seed in run.seeds]
    who = []
    for study in run.studies:
        points = grid_points(params, study, run.size, {})
        who += [PIPELINE / "partition" / study / point.slug / f"seed-{run.seeds[0]}" / "who.png" for point in points]
    results = [PIPELINE / "federate" / study / name for study, name in names]
    return results, [Path("runs") / "seconds" / name for _, name in names], who


def write() -> None:
    """Write the answer and point the champion's alias."""
    from tasks.config.params import read
    from tasks.record.writer import RecordWriter
    from tasks.run import comparison

    results, seconds, who = folders()
    with RecordWriter() as clerk:
        answer = comparison.compare(read(), results, seconds, who)
        for alias, config in comparison.champions(results).items():
            clerk.set_champion(alias, config)
        comparison.write(answer, PIPELINE / "compare", ANSWER)


def show() -> None:
    """Print the summary; write it again where it is missing (a fresh clone has the table, not what holds seconds)."""
    import pandas as pd

    from tasks.report.terminal import print_claims, print_summary

    if not (ANSWER / SUMMARY).is_file():
        from tasks.config.params import read
        from tasks.run import comparison

        results, seconds, who = folders()
        comparison.write(comparison.compare(read(), results, seconds, who), PIPELINE / "compare", ANSWER)
    ranks = dict.fromkeys(("rank", "test_rank", "shared_rank"), "Int64")
    print_summary(pd.read_csv(ANSWER / SUMMARY, dtype=ranks))
    print_claims(pd.read_csv(PIPELINE / "compare" / CLAIMS))
    print(f"page: {ANSWER / PAGE}   record: make ui")


if __name__ == "__main__":
    from tasks.config.command import refusals

    with refusals():
        show() if sys.argv[1:] == ["show"] else write()
