"""What devices answer: read, and checked before anything is made of it."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from fedcore.core.metrics import measured_by
from fedcore.core.rounds import check
from fedcore.data.task import CLASSIFICATION
from fedcore.errors import InputError
from fedcore.field.plan import check_tensors
from fedcore.field.wire import read_number, unpack
from fedcore.types.federation import Handle, Net, Params
from fedcore.types.method import Update

PARTS = {"train", "val", "test", "shared", "inference"}
"""Of a device's scores: their parts."""

UNLIKE = 1000.0
"""How many times as long as others' an update is that made the server's model one from which nobody can train."""

AMOUNTS = {"mae", "rmse", "r2", "loss"}
"""The metrics of a device's examples that are no fractions."""


class NoStep(InputError):
    """A device that can take no step with finite numbers from what it was sent."""


@dataclass(frozen=True)
class RemoteHandle:
    """A handle of what stays on a device: its memory or its examples. digest: equal for equal memories."""

    digest: str
    nbytes: int = 0


def read_part(answer: bytes, name: str) -> tuple[bool, Params] | None:
    """Return whether a side is over, and what it sends; None if it has to begin again."""
    header, tensors = unpack(answer, f"answer of {name}")
    if header.get("reply") == "lost":
        return None
    header, tensors = read_reply(answer, name, "part")
    sent = tensors.get("sent", {})
    for key, x in sent.items():
        if x.is_floating_point() and not bool(torch.isfinite(x).all()):
            raise InputError(f"answer of {name}: tensor {key} has values that are not finite")
    return bool(header.get("over")), sent


def read_update(answer: bytes, name: str, net: Net) -> tuple[Params | Handle, Update]:
    """Return the handle of a device's memory, and its update. Raises InputError for one that does not fit its net."""
    header, tensors = read_reply(answer, name, "visited")
    value = header.get("score")
    if not _is_fraction(value):
        raise InputError(f"answer of {name}: score = {value!r}: must be a fraction or nan")
    numbers = {"steps": 0, **header}  # an earlier version tells no steps
    size, steps = (read_number(numbers, key, f"answer of {name}") for key in ("size", "steps"))
    update = Update(tensors.get("params", {}), tensors.get("extra", {}), size, value, steps)  # type: ignore[arg-type]
    check(name, update, net)
    check_tensors(update.params, net, f"update of {name}")
    memory = str(header.get("memory"))
    return RemoteHandle(memory, read_number(header, "nbytes", f"answer of {name}")) if memory else {}, update


CARD = ("key", "certificate", "signature")


def read_card(name: str, answer: bytes) -> tuple[dict[str, str], str]:
    """Return a device's signed key, and what it has revealed before."""
    header, _ = read_reply(answer, name, "card")
    card = header.get("card")
    if not isinstance(card, dict) or not all(isinstance(card.get(part), str) for part in CARD):
        raise InputError(f"answer of {name}: has no key")
    return {part: card[part] for part in CARD}, str(header.get("revealed"))


def read_mask(name: str, answer: bytes) -> bytes:
    """Return a device's own mask."""
    header, _ = read_reply(answer, name, "revealed")
    try:
        return bytes.fromhex(header["own"])
    except (KeyError, TypeError, ValueError):
        raise InputError(f"answer of {name}: tells no mask") from None


def read_scores(name: str, answer: bytes, task: str = CLASSIFICATION.name) -> dict[str, dict[str, float]]:
    """Return split -> metric -> value of a device. task: the name of what labels are."""
    header, _ = read_reply(answer, name, "scored")
    scores: dict[str, dict[str, float]] = header.get("scores")  # type: ignore[assignment]
    whole = isinstance(scores, dict) and scores.keys() <= PARTS and scores.keys() >= {"val", "test"}
    if not whole or not all(isinstance(part, dict) for part in scores.values()):
        raise InputError(f"answer of {name}: has no scores")
    of = {metric.column for metric in measured_by(task)}
    fractions = [scores[split].get(metric) for split in ("val", "test") for metric in of - AMOUNTS]
    amounts = [scores[split].get(metric) for split in ("val", "test") for metric in of & AMOUNTS]
    numbers = [x for part in scores.values() for x in part.values()]
    if not all(map(_is_fraction, fractions)) or not all(isinstance(x, float) for x in [*amounts, *numbers]):
        raise InputError(f"answer of {name}: its scores are no numbers, or no fractions")
    return scores


def unlike_most(updates: Mapping[str, Update]) -> list[str]:
    """Return the devices whose updates have other tensors than those of most."""

    def form(update: Update) -> tuple[Any, ...]:
        parts = enumerate((update.params, update.extra))
        return tuple(sorted((key, tuple(x.shape), str(x.dtype), n) for n, part in parts for key, x in part.items()))

    forms = {name: form(update) for name, update in updates.items()}
    usual = Counter(forms.values()).most_common(1)[0][0]
    return [name for name, form in forms.items() if form != usual]


def length(update: Update) -> float:
    """Return the length of all that a device sent, as one vector."""
    tensors = [x for part in (update.params, update.extra) for x in part.values() if x.is_floating_point()]
    return math.sqrt(sum(x.double().square().sum().item() for x in tensors))


def longest(lengths: Mapping[str, float]) -> str | None:
    """Return the device whose update is UNLIKE times as long as most others' or longer, if there is one."""
    name = max(lengths, key=lengths.__getitem__)
    others = [other for device, other in lengths.items() if device != name]
    return name if others and lengths[name] > UNLIKE * median(others) else None


def _is_fraction(value: Any) -> bool:
    return isinstance(value, float) and (math.isnan(value) or 0 <= value <= 1)


def read_reply(answer: bytes, name: str, wanted: str) -> tuple[dict[str, Any], dict[str, Params]]:
    """Return the words and tensors of an answer of the kind `wanted`. Raises InputError if the device refuses."""
    header, tensors = unpack(answer, f"answer of {name}")
    if header.get("reply") == "refused":
        raise (NoStep if header.get("diverged") else InputError)(f"{name} refuses: {str(header.get('why'))[:500]}")
    if header.get("reply") != wanted:
        raise InputError(f"answer of {name}: is none of {wanted}")
    return header, tensors
