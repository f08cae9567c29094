"""Report what the results say, and propose models."""

from fedcore.pipeline.orchestration.task_runs import task
from fedcore.pipeline.record.result import Evidence, Origin, PromotionCandidate
from fedcore.pipeline.run import outputs
from fedcore.pipeline.run.requests import Run


@task("report")
def report(run: Run) -> tuple[dict[str, Evidence], str]:
    """Print the answers, leave them on Prefect's page, write tables and the page.

    Returns what to propose, and the answer.
    """
    return outputs.report(
        run.params, run.jobs, run.results, run.session.store, run.writer, run.request.prepared, run.refusals
    )


@task("propose")
def propose(run: Run, configs: dict[str, Evidence]) -> list[tuple[Origin, PromotionCandidate]]:
    """Propose the models of configurations; returns those whose final fit is to be promoted, with what made them."""
    return run.propose(configs)
