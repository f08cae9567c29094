"""A device's side: it answers the server's calls from its own examples, its own memory and its installed fedcore.

A call asks for one of three things: to `join` a run, to `visit` (a method's step in one turn), or to `score` a model on
the device's own examples. Each turn is one file, which holds the memory after it and the answer, written in one move:
a device that is killed in a step starts that step again from the memory before it, and one that is asked again for a
turn that it has answered gives the same answer without another step.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from itertools import combinations
from pathlib import Path
from secrets import token_bytes
from threading import Lock, Timer
from typing import TYPE_CHECKING, Any, cast

import torch

from fedcore.core.evaluation import score
from fedcore.core.rounds import check, deploy_on, visit
from fedcore.core.secure_sum import MASK, NOISE, own_noise
from fedcore.data.prepare import NO_LABEL_SCALE
from fedcore.data.schema import Fit
from fedcore.data.task import LABEL_KINDS, count_different, label_kind_of
from fedcore.errors import Diverged, InputError
from fedcore.execute.accelerator import one_thread
from fedcore.execute.workers import run_step
from fedcore.field.consent import Consent, consent_of
from fedcore.field.plan import VERSIONS, Plan, check_tensors
from fedcore.field.recipe import LACKED, NO_FIT, NUMBERS, Recipe, Source
from fedcore.field.wire import digest, pack, read_number, seal, unpack, write_file
from fedcore.types.federation import Data, Device, Net, Params, Scoring, Splits
from fedcore.types.method import Message, Method, PairStage, Stage, StepId

if TYPE_CHECKING:
    from fedcore.field.keys import Keys, Masks

WAIT = 5.0
"""Seconds after which a device says that it is still at work; the server asks again."""

LEFT = "left.log"
"""The file in a device's memory with a line for each of its answers, for its owner."""

FEWEST = 5
"""The least training rows of which a device tells medians, means and variances."""

BEGINNINGS = 20
"""How often a device begins its side of a pair in one turn: a restart of either side takes another one."""

log = logging.getLogger(__name__)


class NotJoined(InputError):
    """A call of a run that this device has not joined, or whose folder is gone: the server may ask it to join."""


class FieldDevice:
    """A device with its examples, or its rows. folder: where its memory is kept. allowed: what its owner agrees to.

    keys: for masked sums, which are refused without. overrun: called when a visit takes longer than its owner allows.
    """

    def __init__(
        self, name: str, data: Splits | Source, folder: Path, allowed: Collection[str] | Consent, wait: float = WAIT,
        keys: Keys | None = None, overrun: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.name, self.data, self.folder = name, data, folder
        self.consent = allowed if isinstance(allowed, Consent) else consent_of(allowed)
        self.keys, self._overrun = keys, overrun
        self._wait = wait
        self._plans: dict[str, tuple[Plan, Method, Net]] = {}
        self._data: dict[str, tuple[Splits, Fit]] = {}
        self._side: tuple[tuple[Any, ...], int, Generator[Params, Params, Params]] | None = None
        self._jobs: dict[Any, Future[bytes]] = {}
        self._lock = Lock()
        self._steps = ThreadPoolExecutor(1, thread_name_prefix="fedcore-field")

    def answer(self, call: bytes) -> bytes:
        """Return the answer to a call: a result, that it is still at work, or why it refuses. Any thread may call."""
        try:
            header, tensors = unpack(call, "call")
            asks = {
                "join": self._join, "numbers": self._numbers, "card": self._card, "visit": self._visit,
                "reveal": self._reveal, "pair": self._pair, "score": self._score,
            }  # fmt: skip
            if (ask := asks.get(str(header.get("ask")))) is None:
                raise InputError(f"call: must ask to {', '.join(asks)}")
            key = hashlib.blake2b(call, digest_size=16).hexdigest()
            with self._lock:  # one step at a time, and none twice
                if (job := self._jobs.get(key)) is None or (job.done() and job.exception() is not None):
                    for other in [other for other, of in self._jobs.items() if of.cancel() or of.done()]:
                        del self._jobs[other]
                    self._jobs[key] = job = self._steps.submit(self._timed, ask, key, header, tensors)
            return job.result(self._wait)
        except NotYet:
            return pack({"reply": "working"})
        except CancelledError:
            return pack({"reply": "refused", "why": "another call took its place"})
        except NotJoined as unknown:
            return pack({"reply": "unknown", "why": str(unknown)})
        except InputError as refused:
            log.warning("refused: %s", refused)
            return pack({"reply": "refused", "why": str(refused), "diverged": isinstance(refused, Diverged)})
        except Exception as error:
            log.exception("a call failed")  # the details stay here: they may quote examples
            return pack({"reply": "refused", "why": f"{type(error).__name__} on the device, see its log"})

    def _timed(
        self, ask: Callable[..., bytes], key: str, header: Mapping[str, Any], tensors: Mapping[str, Params]
    ) -> bytes:
        limit = Timer(60 * self.consent.limits.minutes, self._overrun)
        limit.daemon = True
        limit.start()
        try:
            answer = ask(key, header, tensors)
        finally:
            limit.cancel()
        self._note(header, len(answer))
        return answer

    def _note(self, header: Mapping[str, Any], nbytes: int) -> None:
        """Write for the owner what leaves the device: when, of which run and turn, what, and its bytes."""
        plan = json.loads(header["plan"]) if "plan" in header else {"run": header["run"]}
        turn = f" of {_turn_word((header['stage'], header['round']))}" if "round" in header else ""
        of = f" ({plan['method']}, seed {plan['seed']})" if "method" in plan else ""
        what = {"visit": "update", "score": "scores", "join": "numbers and digest of its examples"}
        with (self.folder / LEFT).open("a", encoding="utf-8") as file:
            line = f"run {plan['run']}{of}: {what.get(header['ask'], header['ask'])}{turn}, {nbytes} bytes"
            file.write(f"{datetime.now().isoformat(' ', 'seconds')} {line}\n")

    def _join(self, key: str, header: Mapping[str, Any], tensors: Mapping[str, Params]) -> bytes:
        """Agree to a run, or refuse it, before anything of it runs."""
        plan = Plan.from_json(str(header.get("plan")))
        path = self.folder / plan.run / "plan.json"
        if path.is_file() and Plan.read(path).to_json() != plan.to_json():  # its memory is of that method alone
            raise InputError(f"run {plan.run}: {self.name} knows another run of this name; give another name")
        self._agree(plan)
        if not path.is_file() and len([*self.folder.glob("*/plan.json")]) >= self.consent.limits.runs:
            raise InputError(f"run {plan.run}: {self.name} keeps {self.consent.limits.runs} runs (--max-runs)")
        path.parent.mkdir(parents=True, exist_ok=True)
        data, _ = self._data[plan.run]
        write_file(path.with_name("data"), self._fingerprint(data).encode())
        plan.write(path)
        return pack(
            {
                "reply": "joined", "examples": len(data.train), "test_examples": len(data.test),
                "test_classes": count_different(data.test.y), "data": self._fingerprint(data), "versions": VERSIONS,
            }
        )  # fmt: skip

    def _numbers(self, key: str, header: Mapping[str, Any], tensors: Mapping[str, Params]) -> bytes:
        """Return medians, or means and variances, of this device's training rows, if its owner allows that."""
        plan = Plan.from_json(str(header.get("plan")))
        self.consent.check(plan, self.name)
        recipe = plan.read_recipe()
        if recipe is None or recipe.lacks is None or isinstance(self.data, Splits):
            raise InputError(f"run {plan.run}: no numbers are wanted")
        if not self.consent.numbers:
            raise InputError(
                f"{self.name}: {LACKED[recipe.lacks]} may not leave it; its owner has not allowed {NUMBERS}"
            )
        raw = self.data.splits(recipe, plan.seed)
        self._check_numbers(plan, recipe, raw.train)
        return pack({"reply": "numbers", "examples": len(raw.train)}, {"numbers": recipe.numbers(raw)})

    def _check_numbers(self, plan: Plan, recipe: Recipe, train: Data) -> None:
        """Refuse numbers of few rows, and of parts or of nights that hardly differ: their differences tell single rows.

        Numbers of the very rows of an earlier time tell nothing new.
        """
        if len(train) < FEWEST:
            raise InputError(
                f"{self.name}: numbers of {len(train)} training rows would tell single ones, {FEWEST} are needed"
            )
        file, form = self.folder / "told-numbers", recipe.form()
        first, *seeds = _lines_of(file) or [form]
        if first != form:
            raise InputError(
                f"{self.name}: has told numbers of its rows by another schema or other shares; it needs a new kit"
            )
        if str(plan.seed) not in seeds and len(seeds) >= self.consent.limits.runs:
            raise InputError(f"{self.name}: has told numbers for {len(seeds)} seeds (--max-runs)")
        self.folder.mkdir(parents=True, exist_ok=True)
        rows, earlier = row_digests(train), self.folder / "told-rows"
        told = unpack(earlier.read_bytes(), str(earlier))[1]["rows"] if earlier.is_file() else {}
        for other in told.values():
            if 0 < (count := differing(rows, other)) < FEWEST:
                raise InputError(
                    f"{self.name}: {count} training rows are others than when it told numbers last; the difference "
                    f"would tell them, {FEWEST} are needed"
                )
        if all(differing(rows, other) for other in told.values()):
            write_file(earlier, pack({}, {"rows": {**told, str(len(told)): rows}}))
        write_file(file, "\n".join([first, *dict.fromkeys([*seeds, str(plan.seed)])]).encode())

    def _fingerprint(self, data: Splits) -> str:
        """Return a digest of examples, by which others can tell whether they are the same, and nothing else."""
        salt = self.folder / ".salt"  # no name of a run
        if not salt.is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_file(salt, token_bytes(16))
        parts = {f"{part}/{axis}": tensor for part, of in vars(data).items() for axis, tensor in vars(of).items()}
        return hashlib.blake2b(digest(parts).encode(), key=salt.read_bytes(), digest_size=16).hexdigest()

    def _agree(self, plan: Plan) -> None:
        self.consent.check(plan, self.name)
        recipe = plan.read_recipe()
        if recipe is not None and recipe.lacks is not None:
            raise InputError(f"run {plan.run}: its recipe lacks numbers")
        own = self.data
        data, fit = (own, NO_FIT) if isinstance(own, Splits) else own.prepared(recipe, plan.seed)
        fingerprint_file = self.folder / plan.run / "data"
        if fingerprint_file.is_file() and fingerprint_file.read_text("utf-8") != self._fingerprint(data):
            raise InputError(
                f"run {plan.run}: the rows of {self.name} are others than when it joined; give another name"
            )
        for part in (data.train, data.val, data.test):
            if len(part) and tuple(part.x.shape[1:]) != plan.shape:
                raise InputError(
                    f"{self.name}: its examples have shape {tuple(part.x.shape[1:])}, the run's {plan.shape}"
                )
            check_labels(part.y, plan, self.name)
        self.consent.check_steps(plan, self.name, len(data.train))
        if plan.masked and self.keys is None:
            raise InputError(f"method {plan.method}: masked sums need the keys of a kit, {self.name} has none")
        method, nets = plan.build()
        self._plans = {plan.run: (plan, method, nets[self.name])}  # others are on disk
        self._data = {plan.run: (data, fit)}

    def _visit(self, key: str, header: Mapping[str, Any], tensors: Mapping[str, Params]) -> bytes:
        """Take the device's part in a turn, unless it has: then give the same answer."""
        plan, method, net = self._run(header)
        turn = self._turn(header)
        stage = method.stages[turn[0]]
        if not isinstance(stage, Stage):
            raise InputError(f"{_turn_word(turn)}: is a step of pairs")
        masks = self._masks(plan, turn, header)
        turns = turns_in(self.folder / plan.run)
        sums: dict[str, str] = {}
        if turn in turns:
            before, parts = self._read(turns[turn])
            if before["call"] == key:
                return _visited(before, parts)
            sums = before["sums"]
            if masks is None or before["revealed"] or sums.get(masks.context, key) != key:
                raise InputError(f"{_turn_word(turn)}: {self.name} has answered another call for it")
        elif turns and turn < max(turns):  # another answer to it would tell more than one
            raise InputError(f"{_turn_word(turn)}: is over for {self.name}")
        memory, source = find_memory(self.folder / plan.run, str(header.get("memory")), self.name)
        message = _message(tensors, net)
        at = StepId(plan.seed, *turn, self.name)
        device = Device(self.name, net, self._data[plan.run][0])
        with one_thread(), _own_secrets(masks):
            new_memory, update = run_step(visit, stage, memory, message, device, at)
        check(self.name, update, net)
        self.consent.check_sent(plan.method, net, self.name, update.params, update.extra)
        if masks is not None:
            update = masks.hide(update)
            sums = {**sums, masks.context: key}
        after = {
            "call": key, "memory": digest(new_memory), "nbytes": sum(tensor.nbytes for tensor in new_memory.values()),
            "size": update.size, "score": update.score, "steps": update.steps, "sums": sums, "revealed": False,
            "own": "" if masks is None else masks.own().hex(), "context": "" if masks is None else masks.context,
        }  # fmt: skip
        parts = {"memory": new_memory, "params": update.params, "extra": update.extra}
        write_file(self._turn_file(plan.run, turn), pack(after, parts))
        for other in turns.values():  # the memory before stays, in case that the server never gets this answer
            if other not in (source, self._turn_file(plan.run, turn)):
                other.unlink()
        return _visited(after, parts)

    def _pair(self, key: str, header: Mapping[str, Any], tensors: Mapping[str, Params]) -> bytes:
        """Go on with the device's side of a step of two, with what the other side has sent, see `PairSide`.

        A side lives in memory alone: after a restart the server begins the pair again.
        """
        plan, method, net = self._run(header)
        turn, part, pair = self._turn(header), read_number(header, "part", "call"), cast(list[str], header.get("pair"))
        stage = method.stages[turn[0]]
        pairs = [[*two] for two in combinations(plan.nets, 2) if self.name in two]
        if not isinstance(stage, PairStage) or stage.sides is None or pair not in pairs:
            raise InputError(f"{_turn_word(turn)}: has no step of {self.name} and another device")
        if (over := turns_in(self.folder / plan.run)) and turn < max(over):
            raise InputError(f"{_turn_word(turn)}: is over for {self.name}")
        at = StepId(plan.seed, *turn, (pair[0], pair[1]))
        if part == 0:
            memory, _ = find_memory(self.folder / plan.run, str(header.get("memory")), self.name)
            self._count_beginning(plan, at)
            here, position = Device(self.name, net, self._data[plan.run][0]), pair.index(self.name)
            side = stage.sides.side(memory, _message(tensors, net), here, at, position)
            next(side)
            self._side = (plan.run, at), 0, side
        if self._side is None or self._side[:2] != ((plan.run, at), part):
            return pack({"reply": "lost"})
        received, side = tensors.get("received", {}), self._side[2]
        for name, tensor in received.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise InputError(f"the other device: tensor {name} has values that are not finite")
        try:
            with one_thread(), _own_secrets(None):
                done, sent = False, side.send(received)
        except StopIteration as end:
            done, sent = True, end.value
        self.consent.check_sent(plan.method, net, self.name, sent)
        self._side = (plan.run, at), part + 1, side
        return pack({"reply": "part", "over": done}, {"sent": sent})

    def _count_beginning(self, plan: Plan, at: StepId) -> None:
        """Refuse to begin a pair too often: by errors of many classifiers a server would learn of single examples."""
        file, line = self.folder / plan.run / "begun", json.dumps([at.stage, at.round, at.unit])
        lines = _lines_of(file)
        if lines.count(line) >= BEGINNINGS:
            raise InputError(f"{_turn_word((at.stage, at.round))}: {self.name} has begun this pair {BEGINNINGS} times")
        write_file(file, "\n".join([*lines, line]).encode())

    def _card(self, key: str, header: Mapping[str, Any], tensors: Mapping[str, Params]) -> bytes:
        """Tell the public key of a run, and which sum of a turn is complete, if one is."""
        plan, _, _ = self._run(header)
        if not plan.masked or self.keys is None:
            raise InputError(f"run {plan.run}: has no masked sums")
        file = turns_in(self.folder / plan.run).get(self._turn(header))
        before = self._read(file)[0] if file is not None else {"revealed": False}
        card, revealed = self.keys.card(plan.run, self._secret(plan.run)), before["revealed"] and before["context"]
        return pack({"reply": "card", "card": card, "revealed": revealed or ""})

    def _reveal(self, key: str, header: Mapping[str, Any], tensors: Mapping[str, Params]) -> bytes:
        """Tell the key of the device's own mask in the last sum of a turn; no other sum of it follows."""
        plan, _, _ = self._run(header)
        turn = self._turn(header)
        file = turns_in(self.folder / plan.run).get(turn)
        before, parts = self._read(file) if file is not None else ({"context": ""}, {})
        if not before["context"] or before["context"] != header.get("context"):
            raise InputError(f"{_turn_word(turn)}: {self.name} has not answered for these devices last")
        if not before["revealed"]:  # on disk first: after a kill it still knows that no other sum may follow
            write_file(self._turn_file(plan.run, turn), pack({**before, "revealed": True}, parts))
        return pack({"reply": "revealed", "own": before["own"]})

    def _masks(self, plan: Plan, turn: tuple[int, int], header: Mapping[str, Any]) -> Masks | None:
        """Return the masks of a sum; without a list of the devices in it nothing leaves that must be masked."""
        if not plan.masked or self.keys is None:
            return None
        cards, least = header.get("cards"), self.consent.limits.devices
        if not isinstance(cards, dict) or not cards.keys() <= plan.nets.keys() or len(cards) < least:
            count = len(cards) if isinstance(cards, dict) else 0
            raise InputError(f"{_turn_word(turn)}: a masked sum of {count} devices, {self.name} wants {least}")
        return self.keys.masks(plan.run, turn, self._secret(plan.run), cards)

    def _secret(self, run: str) -> bytes:
        """Return the device's secret key in a run, which is drawn once."""
        assert self.keys is not None
        path = self.folder / run / "secret"
        if not path.is_file():
            write_file(path, self.keys.new_secret())
        return path.read_bytes()

    def _turn(self, header: Mapping[str, Any]) -> tuple[int, int]:
        plan, method, _ = self._run(header)
        turn = read_number(header, "stage", "call"), read_number(header, "round", "call")
        if turn[0] >= len(method.stages):
            raise InputError(f"run {plan.run}: has {len(method.stages)} stages")
        if turn[1] >= method.stages[turn[0]].rounds:
            raise InputError(f"run {plan.run}: stage {turn[0] + 1} has {method.stages[turn[0]].rounds} rounds")
        return turn

    def _turn_file(self, run: str, turn: tuple[int, int]) -> Path:
        return self.folder / run / f"turn-{turn[0]}-{turn[1]}"

    def _score(self, key: str, header: Mapping[str, Any], tensors: Mapping[str, Params]) -> bytes:
        """Score the model of a message on the device's own examples, with the memory that the server means."""
        plan, method, net = self._run(header)
        scored_file = self.folder / plan.run / "scored"
        keys = _lines_of(scored_file)
        most = sum(stage.rounds for stage in method.stages) + len(plan.nets)  # a round is played again without a liar
        if key not in keys and len(keys) >= most:
            raise InputError(
                f"run {plan.run}: {self.name} has scored {most} models, for each round and each device one"
            )
        memory, _ = find_memory(self.folder / plan.run, str(header.get("memory") or ""), self.name)
        data, fit = self._data[plan.run]
        none = Data(data.test.x[:0], data.test.y[:0])
        device = Device(self.name, net, data)
        asked = {str(name): value for name, value in dict(header.get("scoring") or {}).items()}
        recipe = plan.read_recipe()
        scale = NO_LABEL_SCALE if recipe is None or recipe.label_scale is None else recipe.label_scale
        scoring = Scoring(**{**asked, "label_scale": scale})
        with one_thread():
            deploy = deploy_on(method.deploy, self.name, net)
            scores = score(deploy, memory, _message(tensors, net), {self.name: device}, none, scoring)
        about = {
            "memory": header.get("memory") or "", "fit": asdict(fit), "costs": scoring.costs,
            "turn": self._turn(header) if "round" in header else None,
        }  # fmt: skip
        write_file(self.folder / plan.run / "deployed", seal(about, tensors))
        if key not in keys:  # by scores of models of its choice a server learns of single examples
            write_file(scored_file, "\n".join([*keys, key]).encode())
        return pack({"reply": "scored", "scores": scores[self.name]})

    def _run(self, header: Mapping[str, Any]) -> tuple[Plan, Method, Net]:
        """Return the plan of a call's run, also after a restart."""
        run = str(header.get("run"))
        path = self.folder / run / "plan.json"
        if run not in self._plans:
            if not run.isalnum() or not path.is_file():
                raise NotJoined(f"run {run}: {self.name} has not joined it")
            self._agree(Plan.read(path))
        return self._plans[run]

    def _read(self, path: Path) -> tuple[dict[str, Any], dict[str, Params]]:
        return unpack(path.read_bytes(), f"{self.name}: {path.name}")


def turns_in(folder: Path) -> dict[tuple[int, int], Path]:
    """Return the stage and the round of each of a run's turns, and its file."""
    numbers = {path: path.name.split("-")[1:] for path in folder.glob("turn-*-*")}
    return {(int(stage), int(number)): path for path, (stage, number) in numbers.items() if number.isdecimal()}


def find_memory(folder: Path, wanted: str, name: str) -> tuple[Params, Path | None]:
    """Return a device's memory in a run by its digest, and its file; nothing for none.

    Refuses if there is none of this digest, rather than train on or predict from another.
    """
    if not wanted:
        return {}, None
    for path in turns_in(folder).values():
        header, parts = unpack(path.read_bytes(), f"{name}: {path.name}")
        if header["memory"] == wanted == digest(parts["memory"]):
            return parts["memory"], path
    raise InputError(f"run {folder.name}: {name} has not the memory that the server knows of; start another run")


def row_digests(data: Data) -> torch.Tensor:
    """Return a number for each row, int64, by which rows are compared; equal ones are numbered, so that all differ."""
    seen, numbers = Counter[bytes](), []
    for x, y in zip(data.inputs(), data.y, strict=True):
        row = x.numpy().tobytes() + y.numpy().tobytes()
        numbers.append(hashlib.blake2b(row + b"%d" % seen[row], digest_size=8).digest())
        seen[row] += 1
    return torch.frombuffer(bytearray(b"".join(numbers)), dtype=torch.int64)


def differing(rows: torch.Tensor, others: torch.Tensor) -> int:
    """Return how many rows are in one of two sets alone."""
    return len({*rows.tolist()} ^ {*others.tolist()})


def check_labels(y: torch.Tensor, plan: Plan, name: str) -> None:
    """Refuse labels that are others than the run's. name: of the device."""
    if label_kind_of(y) is not LABEL_KINDS[plan.task]:
        raise InputError(f"{name}: its label is {label_kind_of(y).words}, the run's is {LABEL_KINDS[plan.task].words}")
    if y.is_floating_point():
        if y.ndim == 2 and y.shape[1] != plan.classes:
            raise InputError(f"{name}: it has {y.shape[1]} labels, the run has {plan.classes}")
    elif y.numel() and int(y.max()) >= plan.classes:
        raise InputError(f"{name}: it has class {int(y.max())}, the run has {plan.classes} classes")


@contextmanager
def _own_secrets(masks: Masks | None) -> Iterator[None]:
    """Let a step mask, and draw noise, from the device's own secrets in place of the run's seed."""
    tokens = MASK.set(_no_mask if masks is None else masks.mask), NOISE.set(own_noise if masks is None else masks.noise)
    try:
        yield
    finally:
        MASK.reset(tokens[0])
        NOISE.reset(tokens[1])


def _no_mask(*args: Any) -> Any:
    raise InputError("masked sums: this step would be masked by the run's seed, which the server knows")


def _visited(header: Mapping[str, Any], parts: Mapping[str, Params]) -> bytes:
    """Return what leaves the device after a turn: of its memory the digest and the size alone."""
    answer = {name: header[name] for name in ("memory", "nbytes", "size", "score", "steps") if name in header}
    return pack({"reply": "visited", **answer}, {name: parts[name] for name in ("params", "extra")})


def _message(tensors: Mapping[str, Params], net: Net) -> Message:
    """Return the server's message. Refuses a model that is not finite, or a tensor of another shape or type."""
    message = Message(tensors.get("params", {}), tensors.get("extra", {}))
    for name, tensor in message.params.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise Diverged(f"the server's message: tensor {name} has values that are not finite")
    check_tensors(message.params, net, "the server's message")
    return message


def _lines_of(file: Path) -> list[str]:
    return file.read_text("utf-8").splitlines() if file.is_file() else []


def _turn_word(turn: tuple[int, int]) -> str:
    return f"round {turn[1] + 1} of stage {turn[0] + 1}"
