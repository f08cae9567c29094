"""The last answers, and Prefect's and MLflow's pages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
import time
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedcore.cli.project import enter_project, enter_with_record
from fedcore.errors import InputError, printable
from fedcore.pipeline.files import BRIEF, CLAIMS, LAST, PAGE, RUNS, SUMMARY, TABLE

if TYPE_CHECKING:
    from fedcore.report.answers import Box


@click.command()
@click.option("--brief", is_flag=True, help="A line for each answer.")
@click.option("--history", is_flag=True, help="A line for each run, with its date.")
@click.option("--study", help="Of the history: only one study.")
def show(brief: bool, history: bool, study: str | None) -> None:
    """Print answers, tables and claims. They are those of `dvc repro`, or, where it has made none, of the last run."""
    if study is not None and not history:
        raise InputError("--study: works only with --history; type: fedcore show --history --study NAME")
    enter_project()
    if history:
        show_history(study)
    elif brief:
        show_brief()
    else:
        show_all()


def show_brief() -> None:
    """Print a line for each of the last answers. Imports little, as every `make run` ends with it."""
    path = Path("pipeline") / "compare" / BRIEF
    if not path.is_file():
        show_last_run(path)
        return
    print(path.read_text(), end="")
    print(f"page: results/{PAGE}   record: fedcore ui   in full: fedcore show")


def last_by_hand() -> Path | None:
    """Return the file with the answers of the last run by hand, if there is one."""
    last = Path("runs", LAST)
    if last.is_file() and (named := Path("runs", last.read_text().strip(), BRIEF)).is_file():
        return named
    return max(Path("runs").glob(f"*/{BRIEF}"), key=lambda path: path.stat().st_mtime, default=None)


def require(*outputs: Path) -> None:
    """Refuse to show what `dvc repro` has not made; says where the answers of runs by hand are, if there are any."""
    for missing in (path for path in outputs if not path.is_file()):
        last = last_by_hand()
        more = "" if last is None else f"; runs by hand have their answers in runs/*/{BRIEF}, the last one in {last}"
        raise InputError(f"{missing}: no such file; make it with: dvc repro{more}")


def show_last_run(missing: Path, full: bool = False) -> None:
    """Print the answers of the last run by hand, where `dvc repro` has made none. Refuses if there is no run either.

    full: with tables and claims.
    """
    from fedcore.pipeline import answers
    from fedcore.report.terminal import print_answers

    last = last_by_hand()
    if last is None:
        raise InputError(f"{missing}: no such file; no run has answered yet; type: fedcore run, or dvc repro")
    boxes = answers.read(None, last.parent) if full else None
    if boxes is None:
        print(last.read_text(), end="\n" * full)
    else:
        print_answers(boxes)
    if full:
        print_tables(last.with_name(SUMMARY), last.with_name(CLAIMS))
    print(f"page: {last.with_name(PAGE)}   record: fedcore ui{'' if full else '   in full: fedcore show'}")


def print_tables(summary: Path, claims: Path, anew: Any = None) -> None:
    """Print the tables and claims of two files. anew: a summary by other settings, in place of the file's."""
    from fedcore import spreadsheet
    from fedcore.report.terminal import print_claims, print_summary

    read = spreadsheet.read(summary, dict.fromkeys(("rank", "test_rank", "shared_rank"), "Int64"))
    print_summary(read if anew is None else anew)
    print_claims(spreadsheet.read(claims))


def show_all() -> None:
    """Print answers, tables and claims; writes the summary first if it is missing, as in a fresh clone.

    Imports little where the answers are kept.
    """
    compared, results = Path("pipeline") / "compare", Path("results")
    if not (compared / TABLE).is_file() and not any(Path("pipeline").glob("federate/*/*")):
        show_last_run(compared / TABLE, full=True)
        return
    from fedcore.pipeline import answers
    from fedcore.report.terminal import print_answers

    whole = all(path.is_file() for path in (results / SUMMARY, compared / TABLE, compared / CLAIMS))
    boxes, summary = answers.read(compared, results) if whole else None, None
    if boxes is None:
        boxes, summary = _answer_anew()
    print_answers(boxes)
    print_tables(results / SUMMARY, compared / CLAIMS, summary)
    if summary is not None:
        print("claims and page are by the settings of the last dvc repro, not by today's; to make them anew: dvc repro")
    print(f"page: {results / PAGE}   record: fedcore ui")


def _answer_anew() -> tuple[dict[str, list[Box]], Any]:
    """Return the boxes of the last comparison by the present settings; makes it if its summary is missing.

    Beside them the summary by these settings, if it is another than the last comparison's, else None.
    """
    import pandas as pd

    from fedcore import spreadsheet
    from fedcore.config.params import read
    from fedcore.config.studies import find_study
    from fedcore.pipeline import answers as kept
    from fedcore.pipeline.run.comparison import criteria_of, read_runs, with_runs
    from fedcore.pipeline.run.outputs import PIPELINE, RESULTS, compare_stages, stage_folders
    from fedcore.report.answers import study_answers
    from fedcore.report.tables import csv
    from fedcore.results.answer import answers
    from fedcore.results.summary import COLUMNS, NO_SECONDS, ROW, summarise, with_criteria

    if not (RESULTS / SUMMARY).is_file():
        require(*(folder / TABLE for folder in stage_folders()[0]))
        return study_answers(compare_stages().answers), None
    require(PIPELINE / "compare" / TABLE, PIPELINE / "compare" / CLAIMS)
    summary = spreadsheet.read(RESULTS / SUMMARY)
    table = pd.read_parquet(PIPELINE / "compare" / TABLE)
    controls = frozenset(summary["method"][summary["control"]])
    params = read()
    studies = {study: find_study(params, study) for study in table["study"].unique()}
    runs = read_runs(path.parent for path in sorted((PIPELINE / "federate").glob(f"*/*/{RUNS}")))
    criteria = criteria_of(params, studies, table)
    for _, part, criterion in with_criteria(table, criteria):
        if (metric := criterion.of_table(part).metric).column not in {*part["metric"]}:
            raise InputError(f"run.metric = {metric.name!r}: not measured by the last dvc repro; type: dvc repro")
    boxes = study_answers(with_runs(answers(table, controls, criteria), runs, {}))
    made = summarise(table, NO_SECONDS, controls, criteria).drop(columns=["wall", "cpu"])
    made = made.merge(summary[[*ROW, "wall", "cpu"]], "left", ROW)[COLUMNS]
    if csv(made) != (RESULTS / SUMMARY).read_text():
        return boxes, made
    kept.keep(boxes, PIPELINE / "compare", RESULTS)
    return boxes, None


def show_history(study: str | None) -> None:
    """Print the history of a project's runs, of one study or all."""
    from fedcore.pipeline.run import history
    from fedcore.report.history import print_history

    lines = history.read()
    studies = list(dict.fromkeys(line["study"] for line in lines))
    if not lines:
        raise InputError(f"{history.HISTORY}: no run has ended here; fedcore run makes the first line")
    if study is not None and study not in studies:
        raise InputError(f"--study = {study!r}: not in the history; there is: {', '.join(studies)}")
    print_history(line for line in lines if study in (None, line["study"]))


@click.command()
def ui() -> None:
    """Serve Prefect's and MLflow's pages until Ctrl-C. Only this machine reaches them (`fedcore docs security`)."""
    enter_with_record()
    print("starting the pages of Prefect and MLflow takes about 15 s", flush=True)
    from fedcore.pipeline import environment
    from fedcore.pipeline.command import Failed
    from fedcore.pipeline.orchestration import server, session
    from fedcore.pipeline.record import mlflow_links, mlflow_page, runs
    from fedcore.pipeline.record.writer import with_patience

    record = with_patience(runs.Record)
    with session.prefect_server() as url:
        session.end_killed()
        port, password = server.free_port(), server.password()
        uvicorn = f"-m uvicorn --host 127.0.0.1 --port {port} --factory {mlflow_page.__name__}:create"
        command = [sys.executable, *uvicorn.split()]
        with (environment.STATE / "mlflow.log").open("ab") as log:
            mlflow = subprocess.Popen(command, env=mlflow_page.settings(port, password), stdout=log, stderr=log)
        try:
            page = f"http://127.0.0.1:{port}/"
            ours = server.process() if server.running() == url else None
            secret = f"   its one field takes: {password}" if ours else ""
            address = url.removesuffix("/api")
            links = [("Prefect", address + secret)]
            links += [("MLflow", f"{page}#/experiments/{record.experiment}/runs?{runs.TRAINING}")]
            links += session.answer_links(address)
            of_studies = mlflow_links.links(record.client, record.experiment)
            links += [(printable(title), page + path) for title, path in of_studies]
            end = "MLflow asks for user {}, password {}; Ctrl-C ends it".format(*password.split(":"))
            end += f", Prefect's page ends {server.IDLE / 60:.0f} minutes after its last use"
            end += f", or by: kill {ours.pid}" if ours else ""
            width = max(len(title) for title, _ in links)
            while mlflow.poll() is None and not server.listens(page):
                time.sleep(0.1)
            if mlflow.poll() is not None:
                raise Failed(f"MLflow's page has not started; {environment.STATE / 'mlflow.log'} says why")
            print(*(f"{title:<{width}}  {link}" for title, link in links), end, sep="\n", flush=True)
            mlflow.wait()
        except KeyboardInterrupt:
            pass
        finally:
            mlflow.terminate()
            mlflow.wait()


@click.command()
@click.argument("name", required=False)
def docs(name: str | None) -> None:
    """Print a page of the documentation; without NAME list all.

    \b
    fedcore docs              every page with its question
    fedcore docs settings     how to change a setting
    """
    from fedcore.builders import suggestion

    package = Path(__file__).parents[1]
    folder = package / "docs" if (package / "docs").is_dir() else package.parent / "docs"
    paths = [path for path in sorted(folder.rglob("*.md")) if path.parent.name in (folder.name, "methods", "results")]
    pages = {path.relative_to(folder).with_suffix("").as_posix(): path for path in paths}
    name = name and name.rstrip(".")  # of a sentence
    ends = [page for page in pages if page.rpartition("/")[2] == name]
    name = ends[0] if len(ends) == 1 else name
    if name in pages:
        parts = re.split(r"]\(([\w./-]+)\.md[^)]*\)", pages[name].read_text())  # links name pages here, not files
        parts[1::2] = [f"] (fedcore docs {os.path.normpath(Path(name).parent / page)})" for page in parts[1::2]]
        print(wrapped("".join(parts), shutil.get_terminal_size().columns), end="")
    elif name is None:
        print("\n".join(f"{page:24} {path.read_text().splitlines()[0].lstrip('# ')}" for page, path in pages.items()))
    else:
        counts = {page: len(re.findall(rf"`{re.escape(name)}\b", path.read_text())) for page, path in pages.items()}
        headed = [of for of in pages if re.search(rf"^#.*\b{re.escape(name)}", pages[of].read_text(), re.I | re.M)]
        titled = [of for of in headed if re.match(rf"# .*\b{re.escape(name)}", pages[of].read_text(), re.I)]
        ranked = sorted(counts, key=lambda page: (page not in ends, page not in titled, -counts[page]))
        found = [page for page in ranked if counts[page] or page in (*ends, *titled)] or headed
        close = [] if ends else get_close_matches(name, (page.rpartition("/")[2] for page in pages), 1, 0.85)
        named = f"; did you mean {close[0]}?" if close else "" if found else suggestion(name, pages) or "."
        named += f"{' P' if close else '; p'}ages that name it: {', '.join(found[:5])}." if found else ""
        raise InputError(f"no page {name!r}{named} `fedcore docs` lists the pages")


def wrapped(page: str, width: int) -> str:
    """Return a page whose paragraphs and entries of lists fit a terminal; code, tables and headings stay."""

    def fill(entry: re.Match[str]) -> str:
        indent = " " * len(re.match(r" *(?:[*-] |\d+\. )?", entry[0])[0])  # type: ignore[index]
        words = " ".join(entry[0].split())
        return textwrap.fill(words, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)

    parts = re.split(r"(^```.*?^```$|^[|#][^\n]*$)", page, flags=re.MULTILINE | re.DOTALL)
    parts[::2] = [re.sub(r"[^\n]+(?:\n(?! *(?:[*-] |\d+\. ))[^\n]+)*", fill, part) for part in parts[::2]]
    return "".join(parts)
