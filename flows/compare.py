"""Compare the results of the pipeline's runs: one table, one summary, one page.

python -m flows.compare          as a stage of `dvc repro`: write the comparison
python -m flows.compare show     print the last answers, tables and claims
python -m flows.compare answers  print a line for each of the last answers
python -m flows.compare papers   write docs/papers.md, the index of the papers' figures and tables
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from fedcore.errors import InputError
from fedcore.pipeline import environment
from fedcore.pipeline.files import BRIEF, CLAIMS, PAGE, SUMMARY, TABLE

environment.prepare()

PIPELINE = Path("pipeline")
RESULTS = Path("results")
RUNS = Path("runs")
"""Where runs by hand write."""
PAPERS = Path("docs") / "papers.md"


def folders() -> tuple[list[Path], list[Path], list[Path]]:
    """Return the folders of results and of seconds, and the pictures of partitions, for the studies of the run."""
    from fedcore.config.params import read
    from fedcore.config.studies import grid_points, run_section

    params = read()
    run = run_section(params)
    names = [(study, f"{study}-{seed}") for study in run.studies for seed in run.seeds]
    divisions = []
    for study in run.studies:
        points = grid_points(params, study, run.size, {})
        divisions += [
            PIPELINE / "partition" / study / point.slug / f"seed-{run.seeds[0]}" / "who.png" for point in points
        ]
    results = [PIPELINE / "federate" / study / name for study, name in names]
    return results, [RUNS / "seconds" / name for _, name in names], divisions


def write() -> None:
    """Write the comparison, and propose the models that it recommends."""
    from fedcore.execute.template import open_template
    from fedcore.execute.workers import serve

    open_template(serve)  # the record's process need not import PyTorch again
    from fedcore.config.papers import read_papers
    from fedcore.config.params import read
    from fedcore.config.studies import run_section
    from fedcore.pipeline.record.writer import RecordWriter
    from fedcore.pipeline.run import comparison

    params = read()
    results, seconds, divisions = folders()
    with RecordWriter() as writer:
        made = comparison.compare(params, results, seconds, divisions, read_papers(params["studies"]))
        writer.propose(comparison.proposals(results, made.answers))
        comparison.write(made, PIPELINE / "compare", RESULTS)
        sizes = dict.fromkeys(made.questions, run_section(params).size)
        comparison.describe(made, sizes, writer, RESULTS / PAGE)
    for line in writer.proposed:
        print(line)


def show() -> None:
    """Print the last answers, tables and claims.

    Writes the summary first if it is missing (a fresh clone has no files with seconds).
    """
    import pandas as pd

    from fedcore.config.params import read
    from fedcore.config.studies import run_section
    from fedcore.report import spreadsheet
    from fedcore.report.terminal import print_answers, print_claims, print_summary
    from fedcore.results.answer import answers

    params = read()
    if not (RESULTS / SUMMARY).is_file():
        require(*(folder / TABLE for folder in folders()[0]))
        from fedcore.config.papers import read_papers
        from fedcore.pipeline.run import comparison

        made = comparison.compare(params, *folders(), read_papers(params["studies"]))
        comparison.write(made, PIPELINE / "compare", RESULTS)
    require(PIPELINE / "compare" / TABLE, PIPELINE / "compare" / CLAIMS)
    ranks = dict.fromkeys(("rank", "test_rank", "shared_rank"), "Int64")
    summary = spreadsheet.read(RESULTS / SUMMARY, dtype=ranks)
    table = pd.read_parquet(PIPELINE / "compare" / TABLE)
    controls = frozenset(summary["method"][summary["control"]])
    print_answers(answers(table, controls, run_section(params).matters))
    print_summary(summary)
    print_claims(spreadsheet.read(PIPELINE / "compare" / CLAIMS))
    print(f"page: {RESULTS / PAGE}   record: make ui")


def show_brief() -> None:
    """Print a line for each of the last answers. Imports nothing more, as every `make run` ends with it."""
    path = PIPELINE / "compare" / BRIEF
    require(path)
    print(path.read_text(), end="")
    print(f"page: {RESULTS / PAGE}   record: make ui   in full: python -m flows.compare show")


def require(*outputs: Path) -> None:
    """Refuse to show what `dvc repro` has not made; says where the answers of runs by hand are, if there are any."""
    for missing in (path for path in outputs if not path.is_file()):
        by_hand = sorted(RUNS.glob(f"*/{BRIEF}"), key=lambda path: path.stat().st_mtime)
        more = (
            f"; runs by hand have their answers in {RUNS}/*/{BRIEF}, the last one in {by_hand[-1]}" if by_hand else ""
        )
        raise InputError(f"{missing}: no such file; make it with: dvc repro{more}")


def write_papers() -> None:
    """Write the index of the papers' figures and tables."""
    from fedcore.config.papers import read_papers
    from fedcore.config.params import read
    from fedcore.report.papers import index

    PAPERS.write_text(index(read_papers(read()["studies"])), "utf-8")
    print(PAPERS)


if __name__ == "__main__":
    from fedcore.pipeline.command import no_words, report_bad_input, show_help

    show_help(__doc__)
    with report_bad_input():
        commands: dict[str, Callable[[], None]] = {
            "": write, "show": show, "answers": show_brief, "papers": write_papers,
        }  # fmt: skip
        chosen = commands.get(" ".join(sys.argv[1:]))
        if chosen is None:
            no_words("compare [show | answers | papers]")
        else:
            chosen()
