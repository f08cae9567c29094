"""Control: every device gets the most accurate of the devices' models. Fusing must beat choosing."""

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
def best_local(*, nets: Mapping[str, Net], training: Training, common: bool, exam: Exam = "classes") -> Method:
    """Build the control. exam: what models are ranked by."""
    require_equal(nets)
    stage = train_for_exam(training, partial(choose, nets=nets), exam)
    return Method(partial(begin, common=common, exam=exam), (stage,), received_model)


def choose(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, nets: Mapping[str, Net]
) -> tuple[Params, Mapping[str, Message]]:
    """Send everyone the best model."""
    return server, to_everyone(round_info.names, Message(updates[rank_ascending(server, updates, nets)[-1]].params))
