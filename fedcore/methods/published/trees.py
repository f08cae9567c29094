r"""Boosted trees, by xgboost: each device alone, or new trees of all devices in each round (bagging).

    xgb_local      each device boosts `trees` trees on its own rows and sends nothing
    xgb_bagging    in each round every device adds `trees` trees to the model that it was sent, and sends these; the
                   server appends all of them to the model and sends it to everyone
    pooled         a control: every device sends its rows, and `trees` trees are boosted on all of them together

Bagging is the rule of Flower's FedXgbBagging: trees are appended in the order of the devices, each with its class, and
the model's answer is the sum of all of them. As devices fit the same rest, the sum would go as many times too far as
there are devices: `eta` is divided by the number of devices asked in a round, as in Flower's example ("scaled-lr").
`base_score` is fixed, at the logit or the number 0, since xgboost would estimate it from each device's labels.

Departures: several classes and several labels, where Flower's has one sum of trees; models are binary JSON (ubj).
The devices run trees, whatever `net` says. With training.class_weights=balanced examples weigh as in a net's loss: by
the classes of the device, of `pooled` by those of all rows.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedcore.builders import control, needs_one_label, simulation_only
from fedcore.core import gradients
from fedcore.data.task import CLASSIFICATION, REGRESSION, label_kind_of
from fedcore.nets.inputs import require_quantities
from fedcore.nets.trees import TREES, load_trees, save_trees, to_rows, xgboost
from fedcore.nets.trees import net as trees_net
from fedcore.types.federation import NO_DATA, Data, Device, Net, Params, Public
from fedcore.types.method import Message, Method, Model, RoundInfo, Sent, Stage, StepId, Update, step_word
from fedcore.types.ranges import Amount, Count, Fraction

__all__ = ["pooled", "xgb_bagging", "xgb_local"]

OUTPUTS = "outputs"
"""The entry of a message that says how many outputs a model has, (1,) int64."""

ROWS, LABELS = "rows/x", "rows/y"
"""The entries of an update that are a device's training examples."""

ONE_LABEL = "boosts on the label of an example"


@dataclass(frozen=True)
class Boosting:
    """How trees are boosted; the defaults are xgboost's.

    Args:
        depth: of a tree, from 1.
        eta: share of a tree's fit that counts, above 0, at most 1.
        reg: lambda, L2 penalty of leaves, from 0.
        child_weight: least sum of second derivatives in a leaf (of numbers its examples), from 0.
        subsample: share of a device's examples that a tree is fitted to, above 0, at most 1.
    """

    depth: Count = 6
    eta: Fraction = 0.3
    reg: Amount = 1.0
    child_weight: Amount = 1.0
    subsample: Fraction = 1.0

    def settings(self, data: Data, outputs: int) -> dict[str, Any]:
        """Return xgboost's settings for examples with these labels."""
        kind = label_kind_of(data.y)
        objective: dict[str, Any] = {"objective": "reg:squarederror" if kind is REGRESSION else "binary:logistic"}
        if kind is CLASSIFICATION and outputs != 2:
            objective = {"objective": "multi:softprob", "num_class": outputs}
        return objective | {
            "tree_method": "hist", "max_depth": self.depth, "eta": self.eta, "lambda": self.reg,
            "min_child_weight": self.child_weight, "subsample": self.subsample, "verbosity": 0,
            "nthread": torch.get_num_threads(),
        }  # fmt: skip


@needs_one_label(ONE_LABEL)
def xgb_local(
    *, nets: Mapping[str, Net], class_weights: str = "none", trees: Count = 100, boosting: Boosting = Boosting()
) -> Method:  # fmt: skip
    """Local training with boosted trees, by xgboost (extra `trees`).

    Args:
        trees: that a device boosts (of several classes or labels as many for each), from 1.
        boosting: how.
    """
    require_trees("xgb_local", nets)
    stage = Stage(partial(boost_alone, trees=trees, boosting=boosting, class_weights=class_weights), None)
    return Method(begin_without_trees, (stage,), deploy_trees)


@needs_one_label(ONE_LABEL)
@simulation_only("its server would read trees that others made, and xgboost ends the process on malformed ones")
def xgb_bagging(
    *, nets: Mapping[str, Net], class_weights: str = "none", rounds: Count = 50, trees: Count = 1,
    fraction: Fraction = 1.0, boosting: Boosting = Boosting(),
) -> Method:  # fmt: skip
    """Boosted trees of all devices, by xgboost (extra `trees`): FedXgbBagging of Flower.

    Args:
        rounds: communication rounds, from 1.
        trees: that a device adds in a round (of several classes or labels as many for each), from 1.
        fraction: share of the devices that take part in a round, above 0, at most 1.
        boosting: how; `eta` is divided by the number of devices asked, with those that drop out or are late.
    """
    require_trees("xgb_bagging", nets)
    local = partial(
        boost_more, trees=trees, devices=max(1, round(fraction * len(nets))), boosting=boosting,
        class_weights=class_weights,
    )  # fmt: skip
    return Method(begin_without_trees, (Stage(local, append_trees, rounds, fraction),), deploy_trees)


@needs_one_label(ONE_LABEL)
@simulation_only("its devices send their examples")
@control
def pooled(
    *, nets: Mapping[str, Net], class_weights: str = "none", trees: Count = 100, boosting: Boosting = Boosting()
) -> Method:  # fmt: skip
    """Control: boosted trees on the training examples of all devices together, by xgboost (extra `trees`).

    It shows what a federation leaves on the table, and keeps nothing private: its traffic is the examples themselves.

    Args:
        trees: that are boosted (of several classes or labels as many for each), from 1.
        boosting: how.
    """
    require_trees("pooled", nets)
    combine = partial(boost_together, trees=trees, boosting=boosting, class_weights=class_weights)
    return Method(begin_without_trees, (Stage(send_rows, combine),), deploy_trees)


def require_trees(name: str, nets: Mapping[str, Net]) -> None:
    """Refuse an embedding's inputs, whose order says nothing, and an installation without xgboost."""
    require_quantities(name, nets)
    xgboost()


def begin_without_trees(public: Public, seed: int) -> tuple[Params, Mapping[str, Message]]:
    """Send everyone a model without trees."""
    empty = {TREES: torch.empty(0, dtype=torch.uint8), OUTPUTS: torch.tensor([public.classes])}
    return empty, dict.fromkeys(public.names, Message(extra=empty))


@step_word("boost", trains=False)
def boost_alone(
    memory: Params, message: Message, device: Device, step_id: StepId, *, trees: int, boosting: Boosting,
    class_weights: str,
) -> tuple[Params, Update]:  # fmt: skip
    """Keep trees of the device's own."""
    return {}, Update({TREES: boost(message, device.data.train, step_id, trees, boosting, class_weights)})


@step_word("boost", trains=False)
def boost_more(
    memory: Params, message: Message, device: Device, step_id: StepId, *, trees: int, devices: int, boosting: Boosting,
    class_weights: str,
) -> tuple[Params, Update]:  # fmt: skip
    """Send trees that go on from the model that the device was sent."""
    new = boost(message, device.data.train, step_id, trees, boosting, class_weights, devices)
    return {}, Update(extra={TREES: new}, size=len(device.data.train))


@step_word("send", trains=False)
def send_rows(memory: Params, message: Message, device: Device, step_id: StepId) -> tuple[Params, Update]:
    """Send the device's training examples."""
    data = device.data.train
    return {}, Update(extra={ROWS: data.x, LABELS: data.y}, size=len(data))


@step_word("boost")
def boost_together(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, trees: int, boosting: Boosting,
    class_weights: str,
) -> Sent:  # fmt: skip
    """Send everyone trees that are boosted on the examples of all devices."""
    sent = [update.extra for update in updates.values() if update.size]
    data = Data(*(torch.cat([extra[key] for extra in sent]) for key in (ROWS, LABELS))) if sent else NO_DATA
    made = boost(Message(extra=server), data, round_info.step_id("server"), trees, boosting, class_weights)
    server = server | {TREES: made}
    return server, dict.fromkeys(round_info.names, Message(extra=server))


def boost(
    message: Message, data: Data, step_id: StepId, rounds: int, boosting: Boosting, class_weights: str = "none",
    devices: int = 1,
) -> Tensor:  # fmt: skip
    """Return the bytes of new trees that follow those of a message; none without labelled examples."""
    outputs = int(message.extra[OUTPUTS])
    if not len(data):
        return torch.empty(0, dtype=torch.uint8)
    settings = boosting.settings(data, outputs) | {"eta": boosting.eta / devices}
    if boosting.subsample < 1:
        settings["seed"] = int(torch.randint(2**31, (), generator=step_id.generator("subsample")))
    if not len(sent := message.extra[TREES]):
        settings["base_score"] = 0.5 if settings["objective"] == "binary:logistic" else 0.0
    weight = None if class_weights == "none" else gradients.class_weights(data.y)[data.y].numpy()
    rows = to_rows(data.inputs(), data.y.numpy(), weight=weight, nthread=torch.get_num_threads())
    before = load_trees(sent) if len(sent) else None
    booster = xgboost().train(settings, rows, rounds, xgb_model=before, verbose_eval=False)
    start = booster.num_boosted_rounds() - rounds
    return save_trees(booster[start:] if start else booster)


@step_word("append")
def append_trees(server: Params, updates: Mapping[str, Update], round_info: RoundInfo) -> Sent:
    """Send everyone the model with the new trees of all devices."""
    server = server | {TREES: join_trees([server[TREES], *(update.extra[TREES] for update in updates.values())])}
    return server, dict.fromkeys(round_info.names, Message(extra=server))


def join_trees(parts: Sequence[Tensor]) -> Tensor:
    """Return the bytes of one model with the trees of all of these, in their order."""
    texts = [load_trees(part).save_raw("json") for part in parts if len(part)]
    if not texts:
        return parts[0]
    first, *others = map(json.loads, texts)
    model = first["learner"]["gradient_booster"]["model"]
    for other in others:
        more, start = other["learner"]["gradient_booster"]["model"], len(model["trees"])
        model["trees"] += [tree | {"id": start + number} for number, tree in enumerate(more["trees"])]
        model["tree_info"] += more["tree_info"]
        model["iteration_indptr"] += [start + end for end in more["iteration_indptr"][1:]]
    model["gbtree_model_param"]["num_trees"] = str(len(model["trees"]))
    return save_trees(load_trees(torch.frombuffer(bytearray(json.dumps(first).encode()), dtype=torch.uint8)))


def deploy_trees(memory: Params, message: Message) -> Model:
    """Run the device's own trees, or those that it was sent."""
    trees = memory.get(TREES, message.extra[TREES])
    return Model(({TREES: trees},), net=trees_net(len(trees), int(message.extra[OUTPUTS])))
