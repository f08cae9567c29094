r"""Models that vote: the weights that follow from devices' counts of labels, and a device's share in the answer.

    e_c(x) ~ sum_i w_ic softmax_c(z_i(x))        normalised over the classes c; z_i: the logits of device i's model

Devices train once, on their own. Counts of labels n_ic travel beside the models, a number per class. Whoever has no
labelled example has no vote, and its model goes no further.

A personal answer corrects the prior of the common one and mixes in the device's own model:

    g_c(x) ~ p_c(x)^2 pi_ic / pi_c               p: the common model's probabilities; pi_ic = (n_ic + 1) / (n_i + K),
    (1 - s) softmax(z_i(x)) + s g(x)             pi: the same of all devices' counts

The device takes the share s, of 0, .1, ..., 1, that is most accurate on its own validation examples, the median of
those that tie. Nothing more is sent than the sum of all counts, downwards. Of several labels each is corrected so, as
two classes, 1 and 0, whose counts are sent: a logit 2 z + log of the ratio of their pi_ic / pi_c.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedcore.core.evaluation import outputs
from fedcore.core.messages import WEIGHTS, local_model, pack_models, unpack_models
from fedcore.core.prediction import predict
from fedcore.data.task import MULTILABEL, label_kind_of
from fedcore.nets import key
from fedcore.types.federation import Device, Net, Params
from fedcore.types.method import Deploy, Message, Method, Model, Stage, StepId, Update, step_word

Voting: TypeAlias = Literal["counts", "size", "even", "entropy"]

COUNTS, SHARE, ODDS = "labels/counts", "personal/share", "personal/odds"
"""Entries: labelled training examples by class (K,) int64, of a device in its update, of all devices in a message; in a
device's memory, the share s of the common model and pi_i / pi (K,). For personal answers of several labels counts are
(2, K) float64, of those with a label and of all, and odds (2, K), of the answers 1 and 0."""

KINDS = "kinds"
"""The entry of a message of models whose nets differ: each one's place among the kinds of nets, (M,) int64."""

SHARES = tuple(tenths / 10 for tenths in range(11))


# steps of devices


@step_word("upload", trains=False)
def send_model(
    memory: Params, message: Message, device: Device, step_id: StepId, *, personal: bool
) -> tuple[Params, Update]:
    """Send the model and the counts of labels. personal: the device keeps its model."""
    update = Update(memory, {COUNTS: count_labels(memory, device, personal)}, len(device.data.train))
    return memory if personal else {}, update


def count_labels(params: Params, device: Device, personal: bool) -> Tensor:
    """Return the labelled training examples of each class, or output, see COUNTS. params: of the device's net."""
    classes = predict(params, device.net, device.data.train.x[:1], 1).shape[-1]
    y = device.data.train.y
    kind = label_kind_of(y)
    return (kind.tally if personal and kind is MULTILABEL else kind.counts)(y, classes)


@step_word("personalise")
def personalise(
    memory: Params, message: Message, device: Device, step_id: StepId, *, common: Deploy
) -> tuple[Params, Update]:
    """Choose the device's share of the common model; without validation examples it runs the common model alone.

    common: returns the common model. For a stage that sends nothing: the update becomes the memory.
    """
    if len(device.data.val) == 0:
        return {}, Update()
    odds = prior_odds(count_labels(memory, device, True), message.extra[COUNTS])
    x, y = device.data.val.inputs(), device.data.val.y
    own, other = Model((memory,)), adapted_model(common(memory, message), odds)
    kind = label_kind_of(y)
    share = best_share(outputs(own, device.net, x, kind), outputs(other, device.net, x, kind), y)
    return {}, Update(memory | {SHARE: torch.tensor(share), ODDS: odds})


def best_share(own: Tensor, other: Tensor, y: Tensor) -> float:
    """Return the share of `other` with the best score (`LabelKind.score`), of classes the most correct answers.

    It is the median of those that tie. own, other: answers (N, K); y (N,).
    """
    kind = label_kind_of(y)
    scores = [kind.score(kind.combine([own, other], (1 - s, s), 1.0, None), y) for s in SHARES]
    return median(s for s, score in zip(SHARES, scores, strict=True) if score == max(scores))


def prior_odds(own_counts: Tensor, all_counts: Tensor) -> Tensor:
    """Return pi_i / pi, (K,) float32, from counts of labels (K,); of several labels (2, K), see COUNTS."""
    both = [torch.stack([n[0], n[1] - n[0]]) if n.ndim == 2 else n for n in (own_counts, all_counts)]
    own, common = ((n.double() + 1) / (n.sum(0) + len(n)) for n in both)
    return (own / common).float()


# models


def adapted_model(common: Model, odds: Tensor) -> Model:
    """Return the common model with a device's prior: p_c^2 odds_c, normalised. odds: pi_i / pi (K,), or (2, K)."""
    if odds.ndim == 2:
        return Model((common,), head={"weight": 2 * torch.eye(odds.shape[1]), "bias": (odds[0] / odds[1]).log()})
    return Model((common,), (tuple(odds.tolist()),), power=2.0)


def personal_model(own: Params, common: Model, share: float, odds: Tensor) -> Model:
    """Return the mixture of a device's model and the adapted common one."""
    return Model((own, adapted_model(common, odds)), (1 - share, share))


def deploy_personal(memory: Params, message: Message, *, common: Deploy) -> Model:
    """Run the personal mixture, or the common model before it and without validation examples."""
    if SHARE not in memory:
        return common(memory, message)
    own = {name: tensor for name, tensor in memory.items() if name not in (SHARE, ODDS)}
    return personal_model(own, common(own, message), float(memory[SHARE]), memory[ODDS])


def with_personal_answers(method: Method) -> Method:
    """Return a method with a last step, in which each device chooses its share of the model that all deploy."""
    last, deploy = partial(personalise, common=method.deploy), partial(deploy_personal, common=method.deploy)
    return replace(method, stages=(*method.stages, Stage(last, None)), deploy=deploy, held_out=("val",))


def deploy_ensemble(memory: Params, message: Message, *, kinds: Sequence[Net] = ()) -> Model:
    """Run all models received; before that the device's own, or the initial one. kinds: see `kinds_of`."""
    if WEIGHTS not in message.extra:
        return local_model(memory, message)
    voters = unpack_models(message.extra)
    if not kinds:
        return voters
    which = message.extra[KINDS].tolist()
    models = (Model((params,), net=kinds[k]) for params, k in zip(voters.params, which, strict=True))
    return replace(voters, members=tuple(models))


def kinds_of(nets: Mapping[str, Net]) -> tuple[Net, ...]:
    """Return the architectures in the order of their first devices; none where all are equal."""
    kinds: dict[bytes, Net] = {}
    for net in nets.values():
        kinds.setdefault(key(net), net)
    return tuple(kinds.values()) if len(kinds) > 1 else ()


# steps of the server


def gather_counts(updates: Mapping[str, Update]) -> Tensor:
    """Return the counts of labels of the devices that sent theirs, in their order, (C, K), or (C, 2, K)."""
    return torch.stack([update.extra[COUNTS] for update in updates.values()])


def voting_weights(counts: Tensor, voting: Voting, size: Tensor | None = None) -> Tensor:
    r"""Return the weight of each device's vote, (C, K) float64 for "counts" and else (C,); columns on the simplex.

    counts:  n_ic / sum_j n_jc
    size:    n_i / sum_j n_j
    even:    the same for all
    entropy: h_i / sum_j h_j, h_i the entropy of device i's labels: more for devices that know more classes

    counts: (C, K) labelled examples. Devices without any have weight 0 (if there is none at all, all vote). Where
    nobody has a weight, such as for a class that nobody holds, the others' votes are even. size: n_i, (C,), where it is
    not their sum, as of sequences with a label for each step.
    """
    n = counts.double()
    size = n.sum(1) if size is None else size.double() * (n.sum(1) > 0)
    voters = (size > 0).double() if size.any() else torch.ones_like(size)
    match voting:
        case "counts":
            weight, voters = n, voters[:, None]
        case "size":
            weight = size
        case "even":
            weight = voters
        case "entropy":
            weight = torch.special.entr(n / n.sum(1).clamp(min=1)[:, None]).sum(1)
    total = weight.sum(0)
    return torch.where(total > 0, weight / total.clamp(min=1e-300), voters / voters.sum())


def elect(updates: Mapping[str, Update], voting: Voting) -> tuple[list[str], Tensor]:
    """Return the names of the devices whose vote counts, and their weights (M,) or (M, K) float32."""
    counts = gather_counts(updates)
    size = torch.tensor([update.size for update in updates.values()])
    weights = voting_weights(counts[:, 1] if counts.ndim == 3 else counts, voting, size).float()
    votes = weights.reshape(len(weights), -1).any(1)
    return [name for name, counts in zip(updates, votes, strict=True) if counts], weights[votes]


def pack_ensemble(updates: Mapping[str, Update], voting: Voting, nets: Mapping[str, Net]) -> Params:
    """Return the voters' models, their weights and, where nets differ, their kinds, for a message."""
    voters, weights = elect(updates, voting)
    packed = pack_models([updates[name].params for name in voters], weights)
    keys = [key(net) for net in kinds_of(nets)]
    return packed | ({KINDS: torch.tensor([keys.index(key(nets[name])) for name in voters])} if keys else {})
