"""LMF: layer-wise model fusion by optimal transport (Singh and Jaggi 2020), CODE's nearest rival."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Literal

from fedcore.core.messages import received_model
from fedcore.core.training import Training
from fedcore.methods.code import fusion
from fedcore.methods.code.fusion import Options
from fedcore.methods.code.ranking import Exam, begin, rank_ascending, train_for_exam
from fedcore.methods.code.report import FIGURES, report
from fedcore.methods.code.transport import Solver
from fedcore.methods.code.widths import common_axes, fit_widths
from fedcore.types import Axes, Count, Message, Method, Net, Params, Positive, Report, RoundInfo, Update


def lmf(
    *,
    nets: Mapping[str, Net],
    training: Training,
    common: bool,
    shots: Count = 1,
    exam: Exam = "classes",
    solver: Solver = "newton",
    reg: Positive = 0.01,
    tol: Positive = 1e-7,
    max_iterations: Count = 10000,
    p: Literal[1, 2] = 1,
) -> Method:
    """Build LMF: all models aligned to the most accurate one and averaged evenly. Settings as in code_ot."""
    options = Options(solver=solver, reg=reg, tol=tol, max_iterations=max_iterations, p=p)
    combine = partial(fuse, nets=nets, axes=common_axes(nets), options=options)
    first = train_for_exam(training, combine, exam)
    stages = (first, replace(first, rounds=shots - 1))
    return Method(partial(begin, common=common, exam=exam), stages[: 1 + (shots > 1)], received_model, figures=FIGURES)


def fuse(
    server: Params,
    updates: Mapping[str, Update],
    round_info: RoundInfo,
    *,
    nets: Mapping[str, Net],
    axes: Axes,
    options: Options,
) -> tuple[Params, Mapping[str, Message], Report]:
    """Fuse the models; report the transport plans."""
    names = rank_ascending(server, updates, nets)
    models = {name: updates[name].params for name in names}
    fused, plans = fusion.lmf(list(models.values()), axes, reference=len(names) - 1, **options)
    messages = fit_widths(fused, models, nets, round_info.names, axes, options)
    return server, messages, report(dict(zip(names, plans, strict=True)))
