"""LMF: layer-wise model fusion by optimal transport (Singh and Jaggi 2020), CODE's nearest rival."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal

from fedcore import fusion, records
from fedcore.fusion import Options
from fedcore.local import Training, train
from fedcore.messages import everyone, received
from fedcore.ranking import Exam, ascending, begin
from fedcore.transport import Solver
from fedcore.types import Axes, Count, Message, Method, Net, Params, Positive, Stage, Turn, Update


def lmf(
    *,
    net: Net,
    training: Training,
    common: bool,
    exam: Exam,
    solver: Solver,
    reg: Positive,
    tol: Positive,
    max_iterations: Count,
    p: Literal[1, 2],
) -> Method:
    """Build LMF: all models aligned to the most accurate one and averaged evenly. Settings as in code_ot."""
    options = Options(solver=solver, reg=reg, tol=tol, max_iterations=max_iterations, p=p)
    stage = Stage(partial(train, training=training), partial(fuse, net=net, axes=net.table, options=options))
    return Method(partial(begin, common=common, exam=exam), (stage,), received)


def fuse(
    server: Params, updates: Mapping[str, Update], turn: Turn, *, net: Net, axes: Axes, options: Options
) -> tuple[Params, Mapping[str, Message]]:
    """Fuse the models; the server remembers the transport plans."""
    names = ascending(server, updates, net)
    fused, plans = fusion.lmf([updates[name].params for name in names], axes, reference=len(names) - 1, **options)
    return server | records.plans(dict(zip(names, plans, strict=True))), everyone(turn.names, Message(fused))
