"""A device's side: it answers the server's calls from its own examples, its own memory and its installed fedcore.

A call asks for one of three things: to `join` a run, to `visit` (a method's step in one turn), or to `score` a model on
the device's own examples. Each turn is one file, which holds the memory after it and the answer, written in one move:
a device that is killed in a step starts that step again from the memory before it, and one that is asked again for a
turn that it has answered gives the same answer without another step.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from pathlib import Path
from secrets import token_bytes
from threading import Lock
from typing import Any

import torch

from fedcore.core.evaluation import score
from fedcore.core.rounds import check, visit
from fedcore.execute.threads import one_thread
from fedcore.field.plan import VERSIONS, Plan, check_leaves, check_plan
from fedcore.field.recipe import NUMBERS, Source
from fedcore.field.wire import digest, pack, unpack, write_file
from fedcore.types import Data, Device, InputError, Message, Method, Net, Params, Scoring, Splits, StepId

WAIT = 5.0
"""Seconds after which a device says that it is still at work; the server asks again."""

log = logging.getLogger(__name__)


class NotJoined(InputError):
    """A call of a run that this device has not joined, or whose folder is gone: the server may ask it to join."""


class FieldDevice:
    """A device with its examples, or its rows. folder: where its memory is kept. allowed: what its owner agrees to."""

    def __init__(
        self, name: str, data: Splits | Source, folder: Path, allowed: Collection[str], wait: float = WAIT
    ) -> None:
        self.name, self.data, self.folder, self.allowed = name, data, folder, frozenset(allowed)
        self._wait = wait
        self._plans: dict[str, tuple[Plan, Method, Net]] = {}
        self._data: dict[str, Splits] = {}
        self._jobs: dict[Any, Future[bytes]] = {}
        self._lock = Lock()
        self._steps = ThreadPoolExecutor(1, thread_name_prefix="fedcore-field")

    def answer(self, call: bytes) -> bytes:
        """Return the answer to a call: a result, that it is still at work, or why it refuses. Any thread may call."""
        try:
            words, tensors = unpack(call, "call")
            ask = {"join": self._join, "numbers": self._numbers, "visit": self._visit, "score": self._score}.get(
                str(words.get("ask"))
            )
            if ask is None:
                raise InputError("call: must ask to join, visit or score")
            key = hashlib.blake2b(call, digest_size=16).hexdigest()
            with self._lock:  # one step at a time, and none twice
                if key not in self._jobs or _failed(self._jobs[key]):
                    for other in [other for other, job in self._jobs.items() if job.cancel() or job.done()]:
                        del self._jobs[other]
                    self._jobs[key] = self._steps.submit(ask, key, words, tensors)
                job = self._jobs[key]
            return job.result(self._wait)
        except NotYet:
            return pack({"reply": "working"})
        except CancelledError:
            return pack({"reply": "refused", "why": "another call took its place"})
        except NotJoined as unknown:
            return pack({"reply": "unknown", "why": str(unknown)})
        except InputError as refused:
            log.warning("refused: %s", refused)
            return pack({"reply": "refused", "why": str(refused)})
        except Exception as error:
            log.exception("a call failed")  # the details stay here: they may quote examples
            return pack({"reply": "refused", "why": f"{type(error).__name__} on the device, see its log"})

    def _join(self, key: str, words: Mapping[str, Any], tensors: Mapping[str, Params]) -> bytes:
        """Agree to a run, or refuse it, before anything of it runs."""
        plan = Plan.from_json(str(words.get("plan")))
        path = self.folder / plan.run / "plan.json"
        if path.is_file() and path.read_text("utf-8") != plan.to_json():  # its memory is of that method alone
            raise InputError(f"run {plan.run}: {self.name} knows another run of this name; give another name")
        self._agree(plan)
        path.parent.mkdir(parents=True, exist_ok=True)
        data = self._data[plan.run]
        write_file(path.with_name("data"), self._fingerprint(data).encode())
        write_file(path, plan.to_json().encode())
        return pack(
            {
                "reply": "joined", "examples": len(data.train), "test_examples": len(data.test),
                "test_classes": len(torch.unique(data.test.y)), "data": self._fingerprint(data), "versions": VERSIONS,
            }
        )  # fmt: skip

    def _numbers(self, key: str, words: Mapping[str, Any], tensors: Mapping[str, Params]) -> bytes:
        """Return medians, or means and variances, of this device's training rows, if its owner allows that."""
        plan = Plan.from_json(str(words.get("plan")))
        check_plan(plan, self.name, self.allowed)
        recipe = plan.read_recipe()
        if recipe is None or recipe.lacks is None or isinstance(self.data, Splits):
            raise InputError(f"run {plan.run}: no numbers are wanted")
        if NUMBERS not in self.allowed:
            what = "medians" if recipe.lacks == "fill" else "means and variances"
            raise InputError(
                f"{self.name}: {what} of its columns may not leave it; its owner has not allowed {NUMBERS}"
            )
        raw = self.data.splits(recipe, plan.seed)
        return pack({"reply": "numbers", "examples": len(raw.train)}, {"numbers": recipe.numbers(raw)})

    def _fingerprint(self, data: Splits) -> str:
        """Return a digest of examples, by which others can tell whether they are the same, and nothing else."""
        salt = self.folder / "salt"
        if not salt.is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_file(salt, token_bytes(16))
        parts = {f"{part}/{axis}": leaf for part, of in vars(data).items() for axis, leaf in vars(of).items()}
        return hashlib.blake2b(digest(parts).encode(), key=salt.read_bytes(), digest_size=16).hexdigest()

    def _agree(self, plan: Plan) -> None:
        check_plan(plan, self.name, self.allowed)
        recipe = plan.read_recipe()
        if recipe is not None and recipe.lacks is not None:
            raise InputError(f"run {plan.run}: its recipe lacks numbers")
        data = self.data if isinstance(self.data, Splits) else self.data.prepared(recipe, plan.seed)
        known = self.folder / plan.run / "data"
        if known.is_file() and known.read_text("utf-8") != self._fingerprint(data):
            raise InputError(
                f"run {plan.run}: the rows of {self.name} are others than when it joined; give another name"
            )
        for part in (data.train, data.val, data.test):
            if len(part) and tuple(part.x.shape[1:]) != plan.shape:
                raise InputError(
                    f"{self.name}: its examples have shape {tuple(part.x.shape[1:])}, the run's {plan.shape}"
                )
            if len(part) and int(part.y.max()) >= plan.classes:
                raise InputError(f"{self.name}: it has class {int(part.y.max())}, the run has {plan.classes} classes")
        method, nets = plan.build()
        self._plans, self._data = {plan.run: (plan, method, nets[self.name])}, {plan.run: data}  # others are on disk

    def _visit(self, key: str, words: Mapping[str, Any], tensors: Mapping[str, Params]) -> bytes:
        """Take the device's part in a turn, unless it has: then give the same answer."""
        plan, method, net = self._run(words)
        turn = _whole(words, "stage"), _whole(words, "round")
        if turn[0] >= len(method.stages):
            raise InputError(f"run {plan.run}: has {len(method.stages)} stages")
        known = self._turns(plan.run)
        if turn in known:
            before, parts = self._read(known[turn])
            if before["call"] != key:
                raise InputError(f"{_turn_word(turn)}: {self.name} has answered another call for it")
            return _visited(before, parts)
        memory, source = self._memory(plan.run, str(words.get("memory")))
        message = _message(tensors, net)
        at = StepId(plan.seed, *turn, self.name)
        device = Device(self.name, net, self._data[plan.run])
        with one_thread():
            kept, update = visit(method.stages[turn[0]], memory, message, device, at)  # type: ignore[arg-type]
        check(self.name, update, net)
        after = {
            "call": key, "memory": digest(kept), "nbytes": sum(leaf.nbytes for leaf in kept.values()),
            "size": update.size, "score": update.score,
        }  # fmt: skip
        parts = {"memory": kept, "params": update.params, "extra": update.extra}
        path = self.folder / plan.run / f"turn-{turn[0]}-{turn[1]}"
        write_file(path, pack(after, parts))
        for other in known.values():  # the memory before stays, in case that the server never gets this answer
            if other != source:
                other.unlink()
        return _visited(after, parts)

    def _score(self, key: str, words: Mapping[str, Any], tensors: Mapping[str, Params]) -> bytes:
        """Score the model of a message on the device's own examples, with the memory that the server means."""
        _, method, net = self._run(words)
        plan = self._plans[str(words["run"])][0]
        memory = self._memory(plan.run, words["memory"])[0] if words.get("memory") else {}
        data = self._data[plan.run]
        none = Data(data.test.x[:0], data.test.y[:0])
        device = Device(self.name, net, data)
        write_file(self.folder / plan.run / "deployed", pack({"memory": words.get("memory") or ""}, tensors))
        scoring = Scoring(**{str(name): value for name, value in dict(words.get("scoring") or {}).items()})
        with one_thread():
            found = score(method.deploy, memory, _message(tensors, net), {self.name: device}, none, scoring)
        return pack({"reply": "scored", "scores": found[self.name]})

    def _run(self, words: Mapping[str, Any]) -> tuple[Plan, Method, Net]:
        """Return the plan of a call's run, also after a restart."""
        run = str(words.get("run"))
        path = self.folder / run / "plan.json"
        if run not in self._plans:
            if not run.isalnum() or not path.is_file():
                raise NotJoined(f"run {run}: {self.name} has not joined it")
            self._agree(Plan.from_json(path.read_text("utf-8")))
        return self._plans[run]

    def _memory(self, run: str, wanted: str) -> tuple[Params, Path | None]:
        """Return the memory with a digest and its file; refuse if there is none, rather than train on from another."""
        if not wanted:
            return {}, None
        for path in self._turns(run).values():
            words, parts = self._read(path)
            if words["memory"] == wanted:
                return parts["memory"], path
        raise InputError(f"run {run}: {self.name} has not the memory that the server knows of; start another run")

    def _turns(self, run: str) -> dict[tuple[int, int], Path]:
        found = {}
        for path in (self.folder / run).glob("turn-*-*"):
            _, stage, number = path.name.split("-")
            if number.isdecimal():
                found[int(stage), int(number)] = path
        return found

    def _read(self, path: Path) -> tuple[dict[str, Any], dict[str, Params]]:
        return unpack(path.read_bytes(), f"{self.name}: {path.name}")


def _failed(job: Future[bytes]) -> bool:
    return job.done() and job.exception() is not None


def _visited(words: Mapping[str, Any], parts: Mapping[str, Params]) -> bytes:
    """Return what leaves the device after a turn: of its memory the digest and the size alone."""
    told = {name: words[name] for name in ("memory", "nbytes", "size", "score")}
    return pack({"reply": "visited", **told}, {name: parts[name] for name in ("params", "extra")})


def _message(tensors: Mapping[str, Params], net: Net) -> Message:
    """Return the server's message. Refuses a model that is not finite, or a leaf of another shape or type."""
    message = Message(tensors.get("params", {}), tensors.get("extra", {}))
    for name, leaf in message.params.items():
        if leaf.is_floating_point() and not bool(torch.isfinite(leaf).all()):
            raise InputError(f"the server's message: leaf {name} has values that are not finite")
    check_leaves(message.params, net, "the server's message")
    return message


def _whole(words: Mapping[str, Any], name: str) -> int:
    if type(value := words.get(name)) is not int or value < 0:
        raise InputError(f"call: {name} = {value!r}: must be a whole number")
    return value


def _turn_word(turn: tuple[int, int]) -> str:
    return f"round {turn[1] + 1} of stage {turn[0] + 1}"
