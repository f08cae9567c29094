"""ST-LF (Wang et al., Algorithms 1 and 2) and its rivals (Section V-B): who is a source, and with which weights.

                   sources and targets          weights
    st_lf          of the program (P)           of the program
    least_error    of the program               one: the source of least empirical error; ST-LF's control
    most_similar   of the program               one: the source of least divergence; ST-LF's other control
    least_bound    of the program               one: the source of least error + divergence / 2; the third control
    best_source    of the program               one: the source most accurate on the target's test data; a ceiling
    rnd_alpha      of the program               at random                                               (i)
    fedavg_alpha   of the program               the sources' numbers of examples                        (ii)
    fada           of the program               dynamic attention, after adversarial alignment          (iii)
    avg_degree     of the program               at random, on as many links per source as ST-LF has     (iv)
    rnd_psi        at random                    at random                                               (v)
    psi_fedavg     at random                    the sources' numbers of examples                        (vi)
    psi_fada       at random                    dynamic attention, after adversarial alignment          (vii)
    single_match   those with labels, or half   a source for each target, so that the links cost least  (viii)

The first control is ST-LF with its divergences and energies taken out of the choice of links, the second has its
divergences alone: what ST-LF adds to each is what the rest is worth. The third has both, the terms of Theorem 2 that
depend on the source, and weights from no program. `best_source` sees the labels of test data: no one
source can serve the targets better. Of single matching, SM, the paper says no more than that one source is matched with
one target. (v) to (viii) draw sources among the devices with labels, as the authors' public code does; `sources: all`
is the text, where untrained models are sent. Departures from the paper are listed in docs/methods/st_lf.md; what all
share is in fedcore.methods.st_lf.protocol.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from fedcore.builders import control, needs_classes, simulation_only, training_defaults
from fedcore.core.messages import WEIGHTS, unpack_models
from fedcore.core.training import Training, accuracy
from fedcore.errors import InputError
from fedcore.methods.st_lf import adversaries, heuristics
from fedcore.methods.st_lf.adversaries import Alignment
from fedcore.methods.st_lf.planning import ALPHA, BOUNDS, PSI, Choose, LinkInputs, Weigh
from fedcore.methods.st_lf.problem import Array
from fedcore.methods.st_lf.protocol import Disagreement, DrawnLinks, ProgramLinks, compare_members, protocol_method
from fedcore.methods.st_lf.sending import How, add_noise, send_models
from fedcore.types.federation import Device, Net, Params
from fedcore.types.method import Message, Method, RoundInfo, Sent, Stage, StepId, Update, step_word
from fedcore.types.ranges import Depth

__all__ = [
    "avg_degree", "best_source", "fada", "fedavg_alpha", "least_bound", "least_error", "most_similar", "psi_fada",
    "psi_fedavg", "rnd_alpha", "rnd_psi", "single_match", "st_lf",
]  # fmt: skip

BY_WRONG_LABELS = "links devices by shares of wrong labels"

# rules for weights


def of_program(inputs: LinkInputs, round_info: RoundInfo) -> Array:
    assert inputs.alpha is not None
    return inputs.alpha


def of_least_divergence(inputs: LinkInputs, round_info: RoundInfo) -> Array:
    assert inputs.divergence is not None
    return heuristics.nearest_source(inputs.psi, inputs.divergence)


def of_least_bound(inputs: LinkInputs, round_info: RoundInfo) -> Array:
    assert inputs.divergence is not None
    return heuristics.nearest_source(inputs.psi, inputs.error[:, None] + inputs.divergence / 2)


# builders


def _with_program(name: str, weights: Weigh) -> Callable[..., Method]:
    """Return the builder of a method with the program's sources and targets."""

    @needs_classes(BY_WRONG_LABELS)
    @training_defaults(shared_init=True)
    def build(
        *, nets: Mapping[str, Net], training: Training, links: ProgramLinks, combine: How = "parameters",
        disagreement: Disagreement = "omitted",
    ) -> Method:  # fmt: skip
        """ST-LF, or a rival with ST-LF's sources and targets.

        Args:
            links: how sources and targets are chosen.
            combine: "parameters", a target runs the mean of its sources' models; "outputs", the mean of their outputs.
            disagreement: "measured", targets compare their sources' models, for the noise in Theorem 2 (in the traffic
                these models then count twice); "omitted", as in the paper's simulations.

        Raises:
            InputError: for `combine: parameters` without a common initial model or with measured disagreement.
        """
        built = protocol_method(name, nets, training, links, links.stages(nets, weights), combine)
        if disagreement == "omitted":
            return built
        if combine != "outputs":
            raise InputError(
                f"{name}.disagreement = measured: targets need their sources' models; use combine: outputs"
            )
        return replace(built, stages=(*built.stages, Stage(compare_members, add_noise)))

    build.__name__ = build.__qualname__ = name
    return build


def _with_drawn_roles(name: str, rule: Choose, weights: Weigh) -> Callable[..., Method]:
    """Return the builder of a method that draws sources and targets."""

    @needs_classes(BY_WRONG_LABELS)
    @training_defaults(shared_init=True)
    def build(*, nets: Mapping[str, Net], training: Training, links: DrawnLinks, combine: How = "parameters") -> Method:
        """A rival of ST-LF that measures nothing over pairs.

        Args:
            links: how sources and targets are drawn.
            combine: as for `st_lf`, "parameters" or "outputs".

        Raises:
            InputError: for `combine: parameters` without a common initial model.
        """
        return protocol_method(name, nets, training, links, links.stages(rule, weights), combine)

    build.__name__ = build.__qualname__ = name
    return build


st_lf = _with_program("st_lf", of_program)
least_error = control(_with_program("least_error", heuristics.one_source))
most_similar = control(_with_program("most_similar", of_least_divergence))
least_bound = control(_with_program("least_bound", of_least_bound))
rnd_alpha = _with_program("rnd_alpha", heuristics.random_weights)
fedavg_alpha = _with_program("fedavg_alpha", heuristics.size_weights)
avg_degree = _with_program("avg_degree", heuristics.average_degree)
rnd_psi = _with_drawn_roles("rnd_psi", heuristics.random_roles, heuristics.random_weights)
psi_fedavg = _with_drawn_roles("psi_fedavg", heuristics.random_roles, heuristics.size_weights)
single_match = _with_drawn_roles("single_match", heuristics.random_halves, heuristics.match_sources)


@needs_classes(BY_WRONG_LABELS)
@training_defaults(shared_init=True)
def fada(
    *, nets: Mapping[str, Net], training: Training, links: ProgramLinks, rounds: Depth = 5, alignment: Alignment
) -> Method:
    """FADA (Peng et al. 2020): every source is aligned with every target.

    Args:
        links: how sources and targets are chosen, as for `st_lf`.
        rounds: how often sources train their copies, from 0.
        alignment: how a source is aligned with a target.

    Raises:
        InputError: for devices without a common initial model, and for a net whose last layer is not linear.
    """
    return adversaries.method(
        "fada", nets, training, links, links.stages(nets, heuristics.even_weights), rounds, alignment
    )


@needs_classes(BY_WRONG_LABELS)
@training_defaults(shared_init=True)
def psi_fada(
    *, nets: Mapping[str, Net], training: Training, links: DrawnLinks, rounds: Depth = 5, alignment: Alignment
) -> Method:
    """FADA with random sources and targets; nothing is measured over pairs.

    Args:
        links: how sources and targets are drawn, as for `rnd_psi`.
        rounds: how often sources train their copies, from 0.
        alignment: how a source is aligned with a target.

    Raises:
        InputError: for devices without a common initial model, and for a net whose last layer is not linear.
    """
    stages = links.stages(heuristics.random_roles, heuristics.even_weights)
    return adversaries.method("psi_fada", nets, training, links, stages, rounds, alignment)


# the ceiling


@needs_classes(BY_WRONG_LABELS)
@simulation_only("its links come from test labels, which no server gets")
@control
@training_defaults(shared_init=True)
def best_source(*, nets: Mapping[str, Net], training: Training, links: ProgramLinks) -> Method:
    """The ceiling of all single sources: each target runs the one that its test labels say is best.

    It is no method, as it sees the labels by which it is judged.

    Args:
        links: how sources and targets are chosen, as for `st_lf`.
    """
    built = protocol_method(
        "best_source", nets, training, links, links.stages(nets, heuristics.even_weights), "outputs"
    )
    return replace(built, stages=(*built.stages, Stage(measure_accuracies, choose_sources)))


@step_word("measure", trains=False)
def measure_accuracies(memory: Params, message: Message, device: Device, step_id: StepId) -> tuple[Params, Update]:
    """A target sends the accuracy of each received model on its test data, (M,), a source its model."""
    if WEIGHTS not in message.extra:
        return memory, Update(memory)
    right = [accuracy(member, device.net, device.data.test) for member in unpack_models(message.extra).params]
    return memory, Update(extra={"right": torch.tensor(right, dtype=torch.float64)})


def choose_sources(server: Params, updates: Mapping[str, Update], round_info: RoundInfo) -> Sent:
    """Link each target to its best source (the first, if tied), with weight one."""
    even, alpha = server[ALPHA], torch.zeros_like(server[ALPHA])
    for j, name in enumerate(round_info.names):
        if server[PSI][j]:
            alpha[even[:, j].nonzero()[:, 0][updates[name].extra["right"].argmax()], j] = 1
    memory = {name: tensor for name, tensor in server.items() if name not in BOUNDS}  # those are of even weights
    return send_models(memory | {ALPHA: alpha}, updates, round_info, how="parameters")
