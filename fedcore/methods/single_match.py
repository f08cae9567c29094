"""Single matching, SM (ST-LF, Section V-B, viii): half of the devices are targets, each with a source of its own.

The paper says no more than that one source is matched with one target. Here the halves are drawn, and matched so that
the links cost least.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fedcore.links.heuristics import halves, matched
from fedcore.local import Training
from fedcore.transfer import How, Radio, costs_of, formed, gather, method
from fedcore.types import Message, Method, Net, Params, Turn, Update


def single_match(
    *,
    nets: Mapping[str, Net],
    training: Training,
    common: bool,
    radio: Radio,
    transfer: How,
) -> Method:
    """Build SM. Nothing is measured over pairs. Its settings are `st_lf`'s."""
    form = partial(link, radio=radio)
    return method("single_match", nets, training, common, form, radio, transfer)


def link(
    server: Params, updates: Mapping[str, Update], turn: Turn, *, radio: Radio
) -> tuple[Params, Mapping[str, Message]]:
    """Draw the targets and match them."""
    server, _ = gather(server, updates, turn)
    energy = costs_of(turn.seed, len(turn.names), radio)
    psi = halves(len(turn.names), turn.generator("psi"))
    return formed(server, turn, psi, matched(psi, energy), energy)
