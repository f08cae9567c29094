"""CODE: coupled model averaging by optimal transport (Chiang et al. 2024, Algorithms 1 and 2), one shot or a few.

Departures from the paper are listed in fedcore.methods.code.fusion, fedcore.methods.code.transport and docs/code.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Literal, TypeAlias

from fedcore.core.messages import received_model
from fedcore.core.training import Training
from fedcore.methods.code.fusion import Options, code
from fedcore.methods.code.ranking import Exam, begin, rank_ascending, train_for_exam
from fedcore.methods.code.report import FIGURES, report
from fedcore.methods.code.transport import Solver
from fedcore.methods.code.widths import common_axes, fit_widths
from fedcore.types import Axes, Count, Message, Method, Net, Params, Positive, Report, RoundInfo, Update

Order: TypeAlias = Literal["ascending", "descending"]


def code_ot(
    *,
    nets: Mapping[str, Net],
    training: Training,
    common: bool,
    shots: Count = 1,
    order: Order = "ascending",
    exam: Exam = "classes",
    solver: Solver = "newton",
    reg: Positive = 0.01,
    tol: Positive = 1e-7,
    max_iterations: Count = 10000,
    p: Literal[1, 2] = 1,
) -> Method:
    """Build CODE.

    shots: communication rounds; after the first, devices train on from the fused model (Fig. 10). order: in which the
    models are folded; the last one counts half. exam: what orders them. solver, reg (lambda), tol (epsilon),
    max_iterations, p: see fedcore.methods.code.transport. Devices' nets may differ in widths; raises InputError for one
    without an axes table.
    """
    options = Options(solver=solver, reg=reg, tol=tol, max_iterations=max_iterations, p=p)
    combine = partial(fuse, nets=nets, axes=common_axes(nets), order=order, options=options)
    # The first shot is a stage of its own: its training is the one that every one-shot method shares.
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
    order: Order,
    options: Options,
) -> tuple[Params, Mapping[str, Message], Report]:
    """Sort the models and fold them into one; report the transport plans."""
    names = rank_ascending(server, updates, nets)
    if order == "descending":
        names.reverse()
    models = {name: updates[name].params for name in names}
    fused, plans = code(list(models.values()), axes, **options)
    messages = fit_widths(fused, models, nets, round_info.names, axes, options)
    return server, messages, report(dict(zip(names[1:], plans, strict=True)))
