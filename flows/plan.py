"""Write all settings that a run of the studies uses, so that DVC runs a stage again if they change.

python -m flows.plan   -> pipeline/plan/{data,partition,federate}/STUDY.json

These files contain no titles, no claims, and no methods that the study does not compare.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedcore.pipeline.command import no_words, report_bad_input, show_help

PLAN = Path("pipeline") / "plan"


def write() -> None:
    """Write the plan of every study that is run."""
    from fedcore.config.params import read
    from fedcore.config.studies import find_study, grid_points, run_section

    params = read()
    run = run_section(params)
    for name in run.studies:
        points = grid_points(params, name, run.size, {})
        show = find_study(params, name).show
        save("data", name, {point.dataset: point.content for point in points})
        save("partition", name, {"seeds": run.seeds, "points": {p.slug: [p.dataset, p.federation] for p in points}})
        settings = [asdict(point) | {"data": point.content} for point in points]
        save("federate", name, {"size": run.size, "seeds": run.seeds, "show": show, "settings": settings})


def save(stage: str, study: str, plan: dict[str, Any]) -> None:
    path = PLAN / stage / f"{study}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(plan, indent=1) + "\n")


if __name__ == "__main__":
    show_help(__doc__)
    with report_bad_input():
        no_words("plan")
        from fedcore.pipeline.orchestration import server

        server.start_first()  # beside this stage; the next one needs it
        write()
