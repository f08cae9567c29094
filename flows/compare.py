"""The last stage of `dvc repro`: one table, one summary and one page for all studies, and the models to propose."""

from __future__ import annotations

from fedcore.config.params import read
from fedcore.pipeline.files import PAGE
from fedcore.pipeline.record.result import rule_of
from fedcore.pipeline.run import comparison, history
from fedcore.pipeline.run.outputs import RESULTS, compare_stages, stage_folders, stage_studies
from fedcore.pipeline.run.requests import open_record


def compare() -> None:
    """Compare the results of the stage `federate`, and propose the models that the answers recommend.

    It starts no step, so that it needs no server of Prefect.
    """
    with open_record() as writer:
        writer.history += history.read(history.HELD)
        made = compare_stages()
        writer.propose(comparison.proposals(stage_folders()[0], made.answers), rule_of(read()))
        comparison.describe(made, stage_studies(), writer, RESULTS / PAGE)
