r"""ST-LF's protocol, which its rivals share: train, report, form links, send models over them.

1. Every device trains on its labelled examples and keeps the model. One without labels keeps its initial model. The
   initial model may come from rounds of federated averaging (:class:`Pretraining`), as in the authors' public code.
2. It reports its model's error on its labelled examples, their number, and the number of all its examples.
3. Pairs of devices estimate the divergence of their data (:mod:`.divergence`); rivals that draw psi skip this.
4. The server chooses sources (psi_i = 0), targets (psi_j = 1) and the weights of links (alpha_ij) (:mod:`.planning`).
5. Sources with a link send their model. A target runs the combination of its sources' models, a source its own
   (:mod:`.sending`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from typing import Literal, TypeAlias

import torch

from fedcore.core.aggregation import average_models
from fedcore.core.messages import WEIGHTS, initial_messages, own_params, require_shared_init, unpack_models
from fedcore.core.training import Training, accuracy, at_round, predict, train
from fedcore.errors import InputError
from fedcore.methods.st_lf.divergence import SCORING_BATCH, Divergence, both_errors, estimate, estimate_side
from fedcore.methods.st_lf.planning import (
    REPORT,
    SENDS,
    BoundSettings,
    Choose,
    LinkCosts,
    Sources,
    Weigh,
    draw_links,
    gather,
    link_costs,
    plan_links,
)
from fedcore.methods.st_lf.programs import SolverSettings
from fedcore.methods.st_lf.sending import DIFFER, How, review, send_models
from fedcore.nets import require_equal
from fedcore.nets.inputs import with_integers, with_quantities
from fedcore.types.federation import Device, Net, Params
from fedcore.types.method import Message, Method, Model, PairStage, Sides, Stage, StepId, Update, step_word
from fedcore.types.ranges import Count, Depth

Disagreement: TypeAlias = Literal["omitted", "measured"]

Stages: TypeAlias = tuple[Stage | PairStage, ...]

FIGURES = ("fedcore.report.figures.reports:links", "fedcore.report.figures.reports:energy")


@dataclass(frozen=True)
class Pretraining:
    """Federated averaging before local training, of which the paper says nothing but the authors' public code has four.

    Args:
        pretrain: rounds of averaging, in which devices with labels train; from 0.
        pretrain_epochs: epochs of a round, from 1.
        pretrain_steps: minibatches of a round on every device, in place of epochs; None: epochs count.
    """

    pretrain: Depth = 0
    pretrain_epochs: Count = 10
    pretrain_steps: Count | None = None


@dataclass(frozen=True)
class ProgramLinks:
    """Settings of ST-LF and of all rivals that measure divergences and take sources and targets from (P)."""

    pretraining: Pretraining
    pairs: Divergence
    bounds: BoundSettings
    program: SolverSettings
    energy: LinkCosts

    def stages(self, nets: Mapping[str, Net], weights: Weigh) -> Stages:
        """Return stages that measure divergences and let the program (P) choose sources and targets."""
        net = binary(next(iter(nets.values())))
        sides = Sides(partial(estimate_side, net=net, settings=self.pairs), partial(both_errors, settings=self.pairs))
        link = partial(plan_links, bounds=self.bounds, costs=self.energy, solver=self.program, weights=weights)
        return Stage(report_errors, gather), PairStage(
            partial(estimate, net=net, settings=self.pairs), link, sides=sides
        )


@dataclass(frozen=True)
class DrawnLinks:
    """Settings of the rivals that draw sources and targets, without any step over pairs.

    Args:
        sources: the devices that may be sources: "labelled", those with labels, or "all", where one without labels
            sends an untrained model.
    """

    pretraining: Pretraining
    energy: LinkCosts
    sources: Sources = "labelled"

    def stages(self, rule: Choose, weights: Weigh) -> Stages:
        """Return the stage after which the rule draws sources and targets."""
        link = partial(draw_links, costs=self.energy, rule=rule, sources=self.sources, weights=weights)
        return (Stage(report_errors, link),)


def protocol_method(
    name: str, nets: Mapping[str, Net], training: Training, links: ProgramLinks | DrawnLinks, link_stages: Stages,
    how: How,
) -> Method:  # fmt: skip
    """Return the method whose server forms links in the last of `link_stages`, which are `links`'s.

    A user's costs are checked here, before anything runs.
    """
    require_equal(nets)
    try:
        link_costs(0, len(nets), links.energy)
    except InputError as refused:
        raise InputError(f"{name}.{str(refused).replace('energy:', 'costs:')}") from None
    if how == "parameters":
        why = "mixes models that must start from one"
        require_shared_init(f"{name}.combine = parameters", training.shared_init, why, "combine: outputs")
    # Without pretraining the first stage is the training that every one-shot method shares; its result stays on the
    # device.
    first: Stages = (Stage(partial(train, training=training), None),)
    pretraining = links.pretraining
    if pretraining.pretrain:
        require_shared_init(f"{name}.pretrain", training.shared_init, "averages models", "pretrain: 0")
        short = replace(training, epochs=pretraining.pretrain_epochs, steps=pretraining.pretrain_steps, patience=None)
        # Stages of one round, as their steps are shared by all rows with these settings; repeated rounds are not.
        averaged = (partial(train, training=at_round(short, number)) for number in range(pretraining.pretrain))
        first = (*(Stage(local, average_models) for local in averaged), *first)
    stages = (*first, *link_stages, Stage(offer_model, partial(send_models, how=how)))
    begin = partial(initial_messages, shared_init=training.shared_init)
    return Method(begin, stages, deploy_received, review, FIGURES, held_out=("val",))


def binary(net: Net) -> Net:
    """Return the same architecture with two classes: a classifier of the device that an example comes from."""
    build = net.build
    refused = InputError(
        "net.name: this net cannot be built with two classes; choose one of fedcore's: `fedcore docs nets`"
    )
    if not isinstance(build, partial):
        raise refused
    if build.func in (with_integers, with_quantities):
        return replace(net, build=partial(build.func, binary(Net(build.args[0])).build), axes=None)
    bound = signature(build.func).bind(*build.args, **build.keywords)
    if "classes" not in bound.arguments:
        raise refused
    bound.arguments["classes"] = 2
    return replace(net, build=partial(build.func, *bound.args, **bound.kwargs), axes=None)


# steps of devices


@step_word("report", trains=False)
def report_errors(memory: Params, message: Message, device: Device, step_id: StepId) -> tuple[Params, Update]:
    """Report the model's error on the labelled examples, their number and the number of all examples.

    Labelled examples are those of train and val; without any the error is 0 and has no meaning.
    """
    parts = [part for part in (device.data.train, device.data.val) if len(part)]
    labelled = sum(map(len, parts))
    size = labelled + len(device.data.unlabelled)
    if not size:
        raise InputError(f"device {device.name}: it has no examples; at least one is needed, with or without a label")
    wrong = sum(len(part) * (1 - accuracy(memory, device.net, part)) for part in parts) / max(labelled, 1)
    return memory, Update(extra={REPORT: torch.tensor([wrong, labelled, size], dtype=torch.float64)}, size=labelled)


@step_word("upload", trains=False)
def offer_model(memory: Params, message: Message, device: Device, step_id: StepId) -> tuple[Params, Update]:
    """Send the model if the device has an outgoing link, otherwise nothing."""
    return memory, Update(memory if message.extra[SENDS] else {}, size=len(device.data.train))


def deploy_received(memory: Params, message: Message) -> Model:
    """Run the models received over links; without any the device's own model, and before training the initial one."""
    if WEIGHTS in message.extra:
        return unpack_models(message.extra)
    return Model((own_params(memory) or message.params,))


def compare_members(memory: Params, message: Message, device: Device, step_id: StepId) -> tuple[Params, Update]:
    """Send how often each two of the received models disagree on the device's examples, (M, M); a source sends 0.

    Examples are all but those of the test set, with or without a label. The diagonal is zero.
    """
    if WEIGHTS not in message.extra:
        return memory, Update(extra={DIFFER: torch.zeros(1, 1, dtype=torch.float64)})
    parts = [part.inputs() for part in (device.data.train, device.data.val, device.data.unlabelled) if len(part)]
    members = unpack_models(message.extra).params
    x = torch.cat(parts)
    predictions = torch.stack([predict(member, device.net, x, SCORING_BATCH).argmax(1) for member in members])
    return memory, Update(extra={DIFFER: (predictions[:, None] != predictions).double().mean(2)})
