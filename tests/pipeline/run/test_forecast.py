"""What a run would cost, with the final fit of a model that it promotes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedcore.config.request import ask, plan_jobs
from fedcore.pipeline import environment
from fedcore.pipeline.cache.store import Store

environment.prepare()  # Prefect reads its settings when it is imported

from fedcore.pipeline.run.forecast import forecast

WORDS = ("study=code", "methods=[local_only,lmf]", "seeds=[3,1]", "federation.devices=4", "federation.alpha=100")


@pytest.mark.slow
def test_a_final_fit_is_counted_once_where_a_model_is_promoted(tmp_path: Path):
    """It stands for the dearest method, and for a study's least seed alone."""
    _, jobs = plan_jobs(ask([*WORDS, "net.widths=[4]", f"data.root={tmp_path}"]))
    plain = [*forecast(jobs, Store(tmp_path / "a"), 1, None)]
    found = [*forecast(jobs, Store(tmp_path / "b"), 1, None, promoting=["code-1"])]
    (final,) = [one for one in found if one.method.endswith(", final fit")]
    assert [one for one in found if one is not final] == plain
    of_study = next(one for one in plain if f"{one.method}, final fit" == final.method)
    assert final.steps <= of_study.steps  # the same training, scored once at most
    assert final.traffic == of_study.traffic


@pytest.mark.slow
def test_all_rows_at_once_send_what_each_sends_alone(tmp_path: Path):
    """Data are divided once, and messages measured once, for all rows and rates that share them."""
    words = (*WORDS[:1], "methods=[fedavg,majority]", *WORDS[3:], f"data.root={tmp_path}")
    jobs = [job for width in (4, 6) for job in plan_jobs(ask([*words, f"net.widths=[{width}]"]))[1][:2]]
    jobs = [job.model_copy(update={"settings": job.settings[:1]}) for job in jobs]
    apart = [
        job.model_copy(update={"settings": [replace(setting, methods=(row,))]})
        for job in jobs
        for setting in job.settings
        for row in setting.methods
    ]
    alone = [one for job in apart for one in forecast([job], Store(tmp_path / "a"), 1, None)]
    together = [*forecast(jobs, Store(tmp_path / "b"), 1, None)]
    assert [(one.method, one.traffic) for one in together] == [(one.method, one.traffic) for one in alone]
    assert len({one.traffic for one in together if one.method == "fedavg"}) == 2  # one for each net
