"""Control: half of the most accurate model.

It is what CODE returns when its formulas are read as printed: the aligned part vanishes, and half of the last model is
left. Its accuracy is nearly that of the whole, so accuracy alone cannot tell that an implementation fuses anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fedcore.builders import control
from fedcore.core.messages import received_model, to_everyone
from fedcore.core.training import Training
from fedcore.methods.code.ranking import Exam, begin, rank_ascending, train_for_exam
from fedcore.nets import require_equal
from fedcore.types import Message, Method, Net, Params, RoundInfo, Update


@control
def half_best(*, nets: Mapping[str, Net], training: Training, common: bool, exam: Exam = "classes") -> Method:
    """Build the control. exam: what models are ranked by."""
    require_equal(nets)
    stage = train_for_exam(training, partial(halve, nets=nets), exam)
    return Method(partial(begin, common=common, exam=exam), (stage,), received_model)


def halve(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, nets: Mapping[str, Net]
) -> tuple[Params, Mapping[str, Message]]:
    """Send everyone the best model, every number in it halved (counters are kept)."""
    best = updates[rank_ascending(server, updates, nets)[-1]].params
    half = {name: leaf / 2 if leaf.is_floating_point() else leaf for name, leaf in best.items()}
    return server, to_everyone(round_info.names, Message(half))
