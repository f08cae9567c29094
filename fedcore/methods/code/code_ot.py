"""CODE: coupled model averaging by optimal transport (Chiang et al. 2024, Algorithms 1 and 2), one shot or a few.

Its nearest rival is LMF, layer-wise model fusion by optimal transport (Singh and Jaggi 2020). Departures from the paper
are listed in fedcore.methods.code.fusion, fedcore.methods.code.transport and docs/methods/code.md.

The server ranks the devices' models by accuracy. The controls have CODE's training, ranking and messages, without
transport:

    best_local     the most accurate of the devices' models; fusing must beat choosing
    half_best      half of that model
    no_alignment   CODE's weights, 1/2 for the best model, 1/4, ..., without alignment

`half_best` is what CODE returns when its formulas are read as printed: the aligned part vanishes, and half of the last
model is left. Its accuracy is nearly that of the whole, so accuracy alone cannot tell that an implementation fuses
anything.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedcore.builders import control
from fedcore.core.messages import initial_messages, received_model, to_everyone
from fedcore.core.training import Training, accuracy, at_round, predict, train
from fedcore.data.task import label_kind_of
from fedcore.methods.code import fusion
from fedcore.methods.code.fusion import common_axes, fit_widths, fold_without_alignment
from fedcore.methods.code.transport import FIGURES, Plan, Transport, report_plans
from fedcore.nets import require_equal
from fedcore.types.federation import Axes, Data, Device, Net, Params, Public
from fedcore.types.method import Combine, HeldOut, Message, Method, Report, RoundInfo, Stage, StepId, Update, step_word
from fedcore.types.ranges import Count, Fraction

__all__ = ["best_local", "code_ot", "half_best", "lmf", "no_alignment"]

Order: TypeAlias = Literal["ascending", "descending"]

RankBy: TypeAlias = Literal["classes", "validation", "test"]
"""How models are ranked: by the accuracy that devices report of their own model on each class (:func:`class_scores`),
by their accuracy on their own validation split, or by the accuracy on the server's test set.

Where labels are no classes, the first is the second, by `LabelKind.score`. The last is the CODE paper's setting; it
selects a model on the same examples that evaluate it. The second prefers a device with a single class, whose model is
hardly ever wrong about it.
"""

Folded: TypeAlias = tuple[Params, dict[str, dict[str, Plan]], list[tuple[str, str, float]]]
"""One model of all, the plans of each fold, and each fold's device, that it is folded into, and its weight."""

CLASS_HITS = "class_hits"
"""Entry of an update: for each class the device's validation examples, and how many its model gets right, (2, K)."""


def code_ot(
    *,
    nets: Mapping[str, Net],
    training: Training,
    rounds: Count = 1,
    fraction: Fraction = 1.0,
    order: Order = "ascending",
    rank_by: RankBy = "classes",
    transport: Transport,
) -> Method:
    """CODE: models are aligned by optimal transport and fused, the best one last. Nets may differ in widths.

    Args:
        rounds: communication rounds, from 1. After the first, devices train on from the fused model (Fig. 10).
        fraction: share of the devices that take part in a round, above 0, at most 1; below 1 nets must be equal.
        order: the order of accuracy in which models are folded; the last one counts half. "ascending" is Algorithm 1's.
        rank_by: what models are ranked by: "classes", the accuracies on each class that devices report; "validation",
            on their own validation examples; or "test", on the server's test set, as in the paper.
        transport: how units are matched.

    Raises:
        InputError: for a net without an axes table, and for nets of different depth or kind.
    """
    if fraction < 1:
        require_equal(nets)
    combine = partial(fuse, nets=nets, axes=common_axes(nets), transport=transport, fold=in_order, order=order)
    return ranked_method(training, combine, rank_by, rounds, FIGURES, fraction)


def fuse(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, nets: Mapping[str, Net], axes: Axes,
    transport: Transport, fold: Callable[[Mapping[str, Params], Axes, Transport], Folded], order: Order = "ascending",
) -> tuple[Params, Mapping[str, Message], Report]:  # fmt: skip
    """Sort the models and fold them into one; report the transport plans."""
    names = rank_ascending(server, updates, nets)
    if order == "descending":
        names.reverse()
    models = {name: updates[name].params for name in names}
    fused, plans, of = fold(models, axes, transport)
    return server, fit_widths(fused, models, nets, round_info.names, axes, transport), report_plans(plans, of)


def in_order(models: Mapping[str, Params], axes: Axes, transport: Transport) -> Folded:
    """Fold the models as CODE does."""
    names = [*models]
    fused, plans = fusion.code([*models.values()], axes, transport)
    of = [(name, names[i + 1], 0.5 ** (len(names) - max(i, 1))) for i, name in enumerate(names[:-1])]
    return fused, dict(zip(names[1:], plans, strict=True)), of


def to_best(models: Mapping[str, Params], axes: Axes, transport: Transport) -> Folded:
    """Fold the models as LMF does."""
    *others, best = names = [*models]
    fused, plans = fusion.lmf([*models.values()], axes, transport, reference=len(others))
    return fused, dict(zip(names, plans, strict=True)), [(name, best, 1 / len(names)) for name in others]


def lmf(
    *,
    nets: Mapping[str, Net],
    training: Training,
    rounds: Count = 1,
    fraction: Fraction = 1.0,
    rank_by: RankBy = "classes",
    transport: Transport,
) -> Method:
    """LMF (Singh and Jaggi 2020): all models, aligned to the best one, averaged evenly. Nets may differ in widths.

    Args:
        rounds: communication rounds, from 1. After the first, devices train on from the fused model.
        fraction: share of the devices that take part in a round, above 0, at most 1; below 1 nets must be equal.
        rank_by: what models are ranked by, as for `code_ot`: "classes", "validation" or "test".
        transport: how units are matched.

    Raises:
        InputError: for a net without an axes table, and for nets of different depth or kind.
    """
    if fraction < 1:
        require_equal(nets)
    combine = partial(fuse, nets=nets, axes=common_axes(nets), transport=transport, fold=to_best)
    return ranked_method(training, combine, rank_by, rounds, FIGURES, fraction)


def choose(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, nets: Mapping[str, Net],
    how: Callable[[Sequence[Params]], Params],
) -> tuple[Params, Mapping[str, Message]]:  # fmt: skip
    """Send everyone one model. how: makes it of the devices' models, the most accurate one last."""
    models = [updates[name].params for name in rank_ascending(server, updates, nets)]
    return server, to_everyone(round_info.names, Message(how(models)))


def best(models: Sequence[Params]) -> Params:
    """Return the last model."""
    return models[-1]


def half_of_best(models: Sequence[Params]) -> Params:
    """Return the last model, every number in it halved (counters are kept)."""
    return {name: x / 2 if x.is_floating_point() else x for name, x in models[-1].items()}


def _control(name: str, gives: str, how: Callable[[Sequence[Params]], Params]) -> Callable[..., Method]:
    """Return the builder of a control. gives: what it does, for its help. how: as for `choose`."""

    @control
    def build(*, nets: Mapping[str, Net], training: Training, rank_by: RankBy = "classes") -> Method:
        require_equal(nets)
        return ranked_method(training, partial(choose, nets=nets, how=how), rank_by)

    build.__name__ = build.__qualname__ = name
    build.__doc__ = f"""Control: {gives}.

    Args:
        rank_by: what models are ranked by, as for `code_ot`.
    """
    return build


best_local = _control("best_local", "everyone gets the most accurate device's model", best)
half_best = _control("half_best", "everyone gets half of the most accurate device's model", half_of_best)
no_alignment = _control(
    "no_alignment", "the models are averaged as they are, with CODE's weights", fold_without_alignment
)


def begin_ranking(
    public: Public, seed: int, *, shared_init: bool, rank_by: RankBy
) -> tuple[Params, Mapping[str, Message]]:
    """Begin as `messages.initial_messages` does; with rank_by "test" the server also remembers its test set."""
    server, messages = initial_messages(public, seed, shared_init=shared_init)
    return (server | {"test/x": public.test.x, "test/y": public.test.y} if rank_by == "test" else server), messages


def ranked_method(
    training: Training, combine: Combine, rank_by: RankBy, rounds: int = 1, figures: Sequence[str] = (),
    fraction: float = 1.0,
) -> Method:  # fmt: skip
    """Return the method whose devices train and whose server ranks the models and combines them, in each round.

    The first round is a stage of its own: its training is the one that every one-shot method shares.
    """
    attach = count_hits if rank_by == "classes" else None  # what ranking needs beside the model
    first = Stage(partial(train, training=training), combine, fraction=fraction, attach=attach)
    later = replace(first, local=partial(train, training=at_round(training, 1)), rounds=rounds - 1)
    stages = (first, later)[: 1 + (rounds > 1)]
    begin = partial(begin_ranking, shared_init=training.shared_init, rank_by=rank_by)
    held_out: HeldOut = "shared" if rank_by == "test" else "val"
    return Method(begin, stages, received_model, figures=tuple(figures), held_out=(held_out,))


@step_word("rank", trains=False)
def count_hits(update: Update, device: Device, step_id: StepId) -> Update:
    """Add the hits of the device's model on its validation examples; where labels are no classes nothing is added."""
    val = device.data.val
    if not label_kind_of(val.y).has_classes:
        return update
    logits = predict(update.params, device.net, val.x)
    right = val.y[logits.argmax(1) == val.y]
    hits = torch.stack([torch.bincount(y, minlength=logits.shape[1]) for y in (val.y, right)])
    return replace(update, extra={**update.extra, CLASS_HITS: hits})


def class_scores(hits: Mapping[str, Tensor]) -> dict[str, float]:
    r"""Return the accuracy to expect of each device's model on the examples of all devices.

    sum_c p_c right_ic / (seen_ic + 1),   p_c: the share of class c of all devices' validation examples

    hits: device -> seen and right (2, K). A model gets a wrong answer in each class beside its own: of a class that
    its device does not hold it has most likely learnt nothing, and a single right answer tells little. All are nan
    where nobody has an example.
    """
    counts = torch.stack([of[0] for of in hits.values()]).sum(0).double()
    shares = counts / counts.sum()
    return {name: float((shares * right / (examples + 1)).sum()) for name, (examples, right) in hits.items()}


def rank_ascending(server: Params, updates: Mapping[str, Update], nets: Mapping[str, Net]) -> list[str]:
    """Return the devices' names, the least accurate model first; equal ones in the order of their names.

    A device without validation examples (score nan) comes first.
    """
    scores = {name: update.score for name, update in updates.items()}
    if "test/x" in server:
        data = Data(server["test/x"], server["test/y"])
        scores = {name: accuracy(update.params, nets[name], data) for name, update in updates.items()}
    elif all(CLASS_HITS in update.extra for update in updates.values()):
        scores = class_scores({name: update.extra[CLASS_HITS] for name, update in updates.items()})
    return sorted(updates, key=lambda name: (-math.inf if math.isnan(scores[name]) else scores[name], name))
