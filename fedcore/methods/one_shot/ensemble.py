"""An ensemble: every device gets all models, and they vote.

One exchange; the price is paid downwards and at every prediction: M models are sent to each device, which runs all of
them. Each vote is weighted by what its device has seen of the class, for which FedOV (ICLR 2023) lets devices learn an
"unknown" answer; here they send the counts of their labels. See :mod:`fedcore.methods.one_shot.ensembles` and
docs/methods/one_shot.md.
"""

from collections.abc import Mapping
from functools import partial

from fedcore.builders import needs_classes
from fedcore.core.messages import initial_messages, to_everyone
from fedcore.core.training import Training, train
from fedcore.methods.one_shot.ensembles import (
    COUNTS,
    Voting,
    deploy_ensemble,
    deploy_personal,
    gather_counts,
    kinds_of,
    pack_ensemble,
    personalise,
    send_model,
)
from fedcore.types.federation import Net, Params
from fedcore.types.method import Message, Method, RoundInfo, Stage, Update


@needs_classes("weighs by the entropy of labels", weights="entropy")
def ensemble(
    *, nets: Mapping[str, Net], training: Training, weights: Voting = "counts", personal: bool = False
) -> Method:
    """All devices' models vote, after one round. Their nets may differ.

    Args:
        weights: of the votes: "counts" (for each class, by the devices' examples of it), "size" (by all their
            examples), "even", or "entropy" (of their labels).
        personal: each device corrects the answer by its own labels' frequencies and mixes it with its own model's, as
            is best on its validation examples.
    """
    deploy = partial(deploy_ensemble, kinds=kinds_of(nets))
    stages = (
        Stage(partial(train, training=training), None),
        Stage(partial(send_model, personal=personal), partial(send_all, nets=nets, weights=weights, personal=personal)),
    )
    begin = partial(initial_messages, shared_init=training.shared_init)
    if not personal:
        return Method(begin, stages, deploy)
    last = Stage(partial(personalise, common=deploy), None)
    return Method(begin, (*stages, last), partial(deploy_personal, common=deploy), held_out=("val",))


def send_all(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, nets: Mapping[str, Net], weights: Voting,
    personal: bool,
) -> tuple[Params, Mapping[str, Message]]:  # fmt: skip
    """Send everyone all models and their weights."""
    extra = pack_ensemble(updates, weights, nets)
    if personal:
        extra[COUNTS] = gather_counts(updates).sum(0)
    return server, to_everyone(round_info.names, Message(extra=extra))
