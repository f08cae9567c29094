"""ST-LF (Wang et al., Algorithms 1 and 2) and its rivals (Section V-B): who is a source, and with which weights.

               sources and targets          weights
st_lf          of the program (P)           of the program
least_error    of the program               one: the source of least empirical error; ST-LF's control
rnd_alpha      of the program               at random                                               (i)
fedavg_alpha   of the program               the sources' numbers of examples                        (ii)
fada           of the program               dynamic attention, after adversarial alignment          (iii)
avg_degree     of the program               at random, on as many links per source as ST-LF has     (iv)
rnd_psi        at random                    at random                                               (v)
psi_fedavg     at random                    the sources' numbers of examples                        (vi)
psi_fada       at random                    dynamic attention, after adversarial alignment          (vii)
single_match   half are targets, at random  a source for each target, so that the links cost least  (viii)

The control is ST-LF with its divergences and energies taken out of the choice of links: what ST-LF adds to it is what
they are worth. Of single matching, SM, the paper says no more than that one source is matched with one target.
Departures from the paper are listed in docs/stlf.md; what all share is in fedcore.links.protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedcore.builders import control, trains
from fedcore.links import adversaries, heuristics
from fedcore.links.adversaries import Alignment
from fedcore.links.divergence import Divergence
from fedcore.links.problem import Array
from fedcore.links.protocol import (
    Bound,
    Choose,
    How,
    LinkInputs,
    Program,
    Radio,
    Weigh,
    by_chance,
    by_program,
    method,
)
from fedcore.local import Training
from fedcore.types import Depth, Method, Net, Turn

__all__ = [
    "avg_degree", "fada", "fedavg_alpha", "least_error", "psi_fada", "psi_fedavg", "rnd_alpha", "rnd_psi",
    "single_match", "st_lf",
]  # fmt: skip

# rules for weights


def of_program(known: LinkInputs, turn: Turn) -> Array:
    assert known.alpha is not None
    return known.alpha


def of_least_error(known: LinkInputs, turn: Turn) -> Array:
    return heuristics.one_source(known.psi, known.error)


def at_random(known: LinkInputs, turn: Turn) -> Array:
    return heuristics.random_weights(known.psi, turn.generator("alpha"))


def by_size(known: LinkInputs, turn: Turn) -> Array:
    return heuristics.size_weights(known.psi, known.size)


def of_equal_degree(known: LinkInputs, turn: Turn) -> Array:
    return heuristics.average_degree(known.psi, of_program(known, turn), turn.generator("alpha"))


def evenly(known: LinkInputs, turn: Turn) -> Array:
    return heuristics.even_weights(known.psi)


def one_to_one(known: LinkInputs, turn: Turn) -> Array:
    return heuristics.match_sources(known.psi, known.energy)


# builders


def _with_program(name: str, weights: Weigh) -> Callable[..., Method]:
    """Return the builder of a method with the program's sources and targets."""

    @trains(init="common")
    def build(
        *,
        nets: Mapping[str, Net],
        training: Training,
        common: bool,
        pairs: Divergence,
        bound: Bound,
        program: Program,
        radio: Radio,
        combine: How = "parameters",
    ) -> Method:
        """Build ST-LF, or a rival that takes its sources and targets.

        pair_*, held_out: of the classifiers of Algorithm 1 (`fedcore.links.divergence.Divergence`). constants, delta,
        unlabelled: of the bounds (`fedcore.links.bound`). phi_s, phi_t, phi_e: the weights of (11). powers, rates,
        bits, costs: :class:`fedcore.links.protocol.Radio`. solver, tol, max_iterations: `fedcore.links.solve`.
        combine: "parameters", a target runs the mean of its sources' models, or "outputs", the mean of their outputs.
        """
        link_stages = by_program(nets, pairs, bound, radio, program, weights)
        return method(name, nets, training, common, link_stages, radio, combine)

    build.__name__ = build.__qualname__ = name
    return build


def _with_drawn_roles(name: str, sources: Choose, weights: Weigh) -> Callable[..., Method]:
    """Return the builder of a method that draws sources and targets."""

    @trains(init="common")
    def build(
        *, nets: Mapping[str, Net], training: Training, common: bool, radio: Radio, combine: How = "parameters"
    ) -> Method:
        """Build a rival that measures nothing over pairs. Its settings are `st_lf`'s."""
        return method(name, nets, training, common, by_chance(radio, sources, weights), radio, combine)

    build.__name__ = build.__qualname__ = name
    return build


st_lf = _with_program("st_lf", of_program)
least_error = control(_with_program("least_error", of_least_error))
rnd_alpha = _with_program("rnd_alpha", at_random)
fedavg_alpha = _with_program("fedavg_alpha", by_size)
avg_degree = _with_program("avg_degree", of_equal_degree)
rnd_psi = _with_drawn_roles("rnd_psi", heuristics.random_roles, at_random)
psi_fedavg = _with_drawn_roles("psi_fedavg", heuristics.random_roles, by_size)
single_match = _with_drawn_roles("single_match", heuristics.random_halves, one_to_one)


@trains(init="common")
def fada(
    *,
    nets: Mapping[str, Net],
    training: Training,
    common: bool,
    pairs: Divergence,
    bound: Bound,
    program: Program,
    radio: Radio,
    rounds: Depth = 5,
    alignment: Alignment,
) -> Method:
    """Build FADA: every source is aligned with every target.

    rounds: how often sources train their copies. start to identifier_lr: `fedcore.links.adversaries.Alignment`. The
    others are `st_lf`'s.
    """
    link_stages = by_program(nets, pairs, bound, radio, program, evenly)
    return adversaries.method("fada", nets, training, common, link_stages, radio, rounds, alignment)


@trains(init="common")
def psi_fada(
    *,
    nets: Mapping[str, Net],
    training: Training,
    common: bool,
    radio: Radio,
    rounds: Depth = 5,
    alignment: Alignment,
) -> Method:
    """Build psi-FADA, which measures nothing over pairs. Its settings are `fada`'s."""
    link_stages = by_chance(radio, heuristics.random_roles, evenly)
    return adversaries.method("psi_fada", nets, training, common, link_stages, radio, rounds, alignment)
