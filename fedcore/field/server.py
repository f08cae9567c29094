"""The server's side: the loop of a simulation, whose devices are elsewhere.

The server has a device's name, its net and the digest of its memory, never its examples or its memory.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread
from types import MappingProxyType
from typing import Any, Protocol

from fedcore.core.evaluation import score
from fedcore.core.rounds import RoundResult, State, members, receive, run
from fedcore.core.secure_sum import ROSTER
from fedcore.data.prepare import preparation_bytes
from fedcore.errors import Diverged, InputError, TooFew
from fedcore.execute.workers import Inline
from fedcore.field.answers import (
    NoStep,
    RemoteHandle,
    length,
    read_card,
    read_mask,
    read_part,
    read_reply,
    read_scores,
    read_update,
    unlike_most,
)
from fedcore.field.plan import Plan
from fedcore.field.wire import pack, read_number, unpack
from fedcore.types.federation import Data, Device, Federation, Handle, Params, Public, Splits
from fedcore.types.method import Message, Pair, StepId, Update

PAUSE = 0.2
"""Seconds before a device that does not answer is asked again."""

SAY = 15.0
"""Seconds between two lines about whom the server waits for."""

PATIENCE = 15.0
"""Seconds after which a call is taken for lost, at first; twice as many each time, as a large answer takes its time."""


class Link(Protocol):
    """The way to the devices, such as :class:`fedcore.field.cells.Cells`."""

    def send(self, name: str, call: bytes, seconds: float) -> bytes | None:
        """Return a device's answer to a call, or None if none comes in these seconds. Any thread may call."""


class Stuck(Diverged):
    """Most devices can take no step from what the last turn has sent them."""


def ask(
    link: Link, calls: Mapping[str, bytes], seconds: float, joining: bytes | None = None,
    notify: Callable[[str], None] = lambda line: None, away: set[str] | None = None,
    joined: Callable[[str, bytes], str] = lambda name, answer: "",
) -> dict[str, bytes]:  # fmt: skip
    """Ask devices until a deadline, again and again while one is silent or at work; return the answers by name.

    joining: the call that a device gets first which does not know the run, as it came late or lost its folder. notify:
    called with a line now and then about whom the server waits for. away: devices that have not answered before, which
    are asked, but waited for only once they answer again; it is brought up to date. joined: called with the answer of a
    device that joins; says why it may not, if so.
    """
    start, gone = time.monotonic(), set[str]() if away is None else away
    end, over, before = start + seconds, Event(), {*gone}

    def ask_device(name: str) -> bytes | None:
        patience, answer = PATIENCE, None
        while (left := end - time.monotonic()) > 0 and not over.is_set():
            answer = link.send(name, calls[name], min(left, patience))
            if name in before:
                done.put((name, answer is not None))
            reply = None if answer is None else _reply(answer)
            if answer is None and time.monotonic() > end - left + patience:
                patience *= 2
            if reply == "unknown" and joining is not None:
                answer = link.send(name, joining, min(left, patience))
                reply = None if answer is None or _reply(answer) in ("joined", "working") else "refused"
                if answer is not None and _reply(answer) == "joined" and (why := joined(name, answer)):
                    reply, answer = "refused", pack({"reply": "refused", "why": why})
            if reply is None:
                time.sleep(min(PAUSE, max(0.0, end - time.monotonic())))
            elif reply != "working":
                gone.discard(name)
                return answer
        (gone.discard if answer is not None else gone.add)(name)
        return None

    done: SimpleQueue[tuple[str, bytes | Exception | bool | None]] = SimpleQueue()

    def put(name: str) -> None:
        try:
            done.put((name, ask_device(name)))
        except Exception as error:
            done.put((name, error))

    for name in calls:  # threads that end with this process, so that Ctrl-C waits for no device
        Thread(target=put, args=(name,), daemon=True, name="fedcore-ask").start()
    answers: dict[str, bytes] = {}
    waiting = set(calls)
    try:
        while waiting:
            try:
                name, answer = done.get(timeout=SAY)
            except Empty:
                notify(f"waiting for {', '.join(sorted(waiting))}: {time.monotonic() - start:.0f} s")
                continue
            (waiting.add if answer is True else waiting.discard)(name)
            if isinstance(answer, Exception):
                raise answer
            if isinstance(answer, bytes):
                answers[name] = answer
    finally:
        over.set()
    return {name: answers[name] for name in calls if name in answers}


def _reply(answer: bytes) -> str:
    try:
        return str(unpack(answer, "answer")[0].get("reply"))
    except InputError:
        return "damaged"


class Field:
    """Runs the devices' steps on real devices: an `execute` of :mod:`fedcore.core.rounds`.

    seconds: how long devices have for a step. notify: called with a line for each device that is absent, and why. kit:
    the server's folder, by whose authority keys of masked sums are checked before they are passed on. facts: of each
    device that has joined, also before a restart, numbers of its examples and a digest of them, which tells whether
    they are those of another run and nothing else; "changed" if other ones have come since: it is asked for nothing.
    away: devices that are not waited for, see `ask`. aside: those whose steps are not asked for. lengths: of the
    updates that were combined last.
    """

    def __init__(
        self, link: Link, plan: Plan, fed: Federation, seconds: float,
        notify: Callable[[str], None] = lambda line: None, kit: Path | None = None, away: set[str] | None = None,
        aside: Iterable[str] = (), facts: Mapping[str, dict[str, Any]] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self.link, self.plan, self.fed, self.seconds, self.notify = link, plan, fed, seconds, notify
        self.facts: dict[str, dict[str, Any]] = {**facts}
        self.kit, self.away, self.aside = kit, set[str]() if away is None else away, {*aside}
        self.lengths: dict[str, float] = {}
        self._said: set[str] = set()
        self._here = Inline()
        self._roster: tuple[str, ...] = ()
        self._at: StepId | None = None
        self.method, _ = plan.build()
        self._joining = pack({"ask": "join", "plan": plan.to_json()})

    def join(self, least: int | None = None) -> dict[str, int]:
        """Return the devices that agree to the plan, with their numbers of training examples.

        least: so many are enough; None: all. Raises InputError with the reason of each device that refuses.
        """
        calls = dict.fromkeys(self.fed.devices, self._joining)
        answers = ask(self.link, calls, self.seconds, notify=self.notify, away=self.away)
        refused = {name: why for name, answer in answers.items() if (why := self._note(name, answer))}
        joined = {name: self.facts[name]["examples"] for name in answers if name not in refused}
        require([*refused.values()], len(joined), least, self.say_once)
        return joined

    def _note(self, name: str, answer: bytes) -> str:
        """Keep what a device says when it joins first; return why it refuses, or may not go on with other rows."""
        try:
            header, _ = read_reply(answer, name, "joined")
            told = ("examples", "test_examples", "test_classes")
            counts = {key: read_number(header, key, f"answer of {name}") for key in told}
        except InputError as error:
            return str(error)
        facts = {**counts, "data": str(header.get("data"))[:64]}
        if (known := self.facts.get(name, facts))["data"] == facts["data"]:
            self.facts[name] = facts
            return ""
        self.facts[name] = {**known, "changed": True}
        return self._other_rows(name)

    def _other_rows(self, name: str) -> str:
        return (
            f"run {self.plan.run}: the rows of {name} are others than when it joined, or its memory is lost; bring "
            "them back and type the command again, or give another name"
        )

    def say_once(self, line: str) -> None:
        """Say a line that has not been said."""
        if line not in self._said:
            self._said.add(line)
            self.notify(line)

    def __call__(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        roster = ROSTER.set(self._roster)
        if fn is receive:
            self.lengths = {name: length(update) for unit, update in args[2].items() for name in members(unit)[:1]}
        try:
            return self._here.call(fn, *args)
        except Exception as error:
            if fn is not receive or isinstance(error, InputError):
                raise
            at, absent = args[3], [name for unit in args[3].units if unit not in args[2] for name in members(unit)]
            odd = unlike_most(args[2])
            if not absent and not odd:
                raise
            why = (
                f"absent: {', '.join(absent)}" if absent else f"unlike most in names, shapes or types: {', '.join(odd)}"
            )
            raise InputError(
                f"round {at.round + 1} of stage {at.stage + 1}: the answers cannot be combined "
                f"({type(error).__name__}: {error}); {why}"
            ) from None
        finally:
            ROSTER.reset(roster)

    def map(self, fn: Callable[..., Any], calls: Mapping[Any, tuple[Any, ...]], /) -> dict[Any, Any]:
        """Ask devices to score models, or to take their part in a turn; who does not answer has no result."""
        if fn is score:
            return self._score(calls)
        self._at = next(iter(calls.values()))[3]
        if any(isinstance(unit, tuple) for unit in calls):
            return self._pairs(calls)
        return self._masked(calls) if self.plan.masked else self._visited(calls, {})

    def _visited(self, calls: Mapping[str, tuple[Any, ...]], more: Mapping[str, Any]) -> dict[str, Any]:
        packed = {
            name: _call({**self._turn("visit", at), **more}, memory, message)
            for name, (memory, message, _, at) in calls.items()
            if name not in self.aside
        }
        failed: list[str] = []
        results = self._answers(packed, lambda name, answer: read_update(answer, name, calls[name][2].net), failed)
        if len(failed) > len(results):
            raise Stuck(
                f"{', '.join(failed)}: no step with finite numbers from what the last round has sent; lower the "
                "learning rate"
            )
        return results

    def _pairs(self, calls: Mapping[Pair, tuple[Any, ...]]) -> dict[Any, tuple[Params | Handle, Update]]:
        """Relay between the two sides of each pair. All pairs must come to an end: a missing one has no distance."""
        results: dict[Any, tuple[Params | Handle, Update]] = {}
        for group in disjoint(calls):  # a device is at one step at a time
            with ThreadPoolExecutor(len(group), thread_name_prefix="fedcore-pair") as threads:
                updates = threads.map(lambda pair: self._relay(pair, *calls[pair]), group)
                results |= {pair: ({}, update) for pair, update in zip(group, updates, strict=True)}
        return results

    def _relay(self, pair: Pair, memories: Any, messages: Any, devices: Any, at: StepId) -> Update:
        """Return the update of a pair, whose sides talk in turns; after a restart of a device they begin again."""
        sides: Any = self.method.stages[at.stage].sides  # type: ignore[union-attr]
        begin, end = dict(zip(pair, zip(memories, messages, strict=True), strict=True)), time.monotonic() + self.seconds
        while (results := self._talk(begin, at, end)) is None:
            time.sleep(PAUSE)
        update: Update = sides.join(*results)
        return update

    def _talk(self, begin: Mapping[str, tuple[Any, Message]], at: StepId, end: float) -> list[Params] | None:
        """Return the results of both sides; None if one has lost its own. begin: memory and message of each."""
        for name in (name for name in begin if "changed" in self.facts.get(name, ())):  # since a restart of the server
            raise InputError(f"{name} refuses: {self._other_rows(name)}")
        header = {**self._turn("pair", at), "pair": list(begin)}
        results: dict[str, Params] = {}
        inbox, part = dict.fromkeys(begin, Params()), 0
        while len(results) < len(begin):
            for name in [name for name in begin if name not in results]:
                memory, message = ({}, Message()) if part else begin[name]
                call = _call({**header, "part": part}, memory, message, inbox[name])
                left = end - time.monotonic()
                answers = ask(self.link, {name: call}, left, self._joining, joined=self._note)
                if name not in answers:
                    raise TooFew(f"{' and '.join(begin)}: no answer of {name} in {self.seconds:g} s")
                if (answer := read_part(answers[name], name)) is None:
                    return None
                over, sent = answer
                if over:
                    results[name] = sent
                (other,) = begin.keys() - {name}
                inbox |= {name: {}, other: {} if over else sent}
            part += 1
        return [results[name] for name in begin]

    def _turn(self, what: str, at: StepId | None) -> dict[str, Any]:
        where = {} if at is None else {"stage": at.stage, "round": at.round}
        return {"ask": what, "run": self.plan.run, **where}

    def _masked(self, calls: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Params | Handle, Update]]:
        """Return updates whose masks cancel in their sum; who drops out is left out, and the others mask anew.

        Devices tell the masks of their own last, for one sum of a turn: nothing comes back if one of them is away then.
        """
        from fedcore.field.keys import context_of, names_in, public_key, read_authority, unmask

        authority = None if self.kit is None else read_authority(self.kit)

        def read(name: str, answer: bytes) -> tuple[dict[str, str], str]:
            card, complete = read_card(name, answer)
            if authority is not None:  # a false one would make everybody else refuse the sum
                public_key(self.plan.run, name, card, authority)
            return card, complete

        at = next(iter(calls.values()))[3]
        cards = self._answers(dict.fromkeys(calls, pack(self._turn("card", at))), read)
        complete = {name for _, context in cards.values() for name in names_in(context)}  # before the server was killed
        roster = {name: cards[name][0] for name in sorted(complete or cards) if name in cards}
        expected, results = roster, self._visited({name: calls[name] for name in roster}, {"cards": roster})
        while len(results) < len(expected):  # their masks stay in the sum: once more, among those who answered
            expected = {name: roster[name] for name in sorted(results)}
            results = self._visited({name: calls[name] for name in expected}, {"cards": expected})
        roster = expected
        context = context_of(self.plan.run, (at.stage, at.round), {name: card["key"] for name, card in roster.items()})
        own = self._answers(dict.fromkeys(roster, pack({**self._turn("reveal", at), "context": context})), read_mask)
        if missing := sorted((complete | roster.keys()) - own.keys()):
            self.notify(f"the sum is not complete without {', '.join(missing)}, who must come back")
            return {}
        self._roster = tuple(roster)
        return {name: (memory, unmask(update, own[name])) for name, (memory, update) in results.items()}

    def _score(self, calls: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
        """Score on each device's own examples, and on the shared test set here if the model needs no memory."""
        packed, shared = {}, {}
        for deploy, memory, message, devices, test, *more in calls.values():
            scoring = {"scoring": asdict(more[0])} if more else {}
            on_shared = {}
            if not memory:
                first, none = next(iter(devices.values())), Data(test.x[:0], test.y[:0])
                bare = {first.name: replace(first, data=Splits(none, none, none))}
                try:
                    on_shared = self._here.call(score, deploy, {}, message, bare, test, *more)[first.name]
                except InputError as lacks:  # it has no model before it has taken part
                    self.notify(str(lacks))
                    continue
            for name in devices:
                packed[name] = _call({**self._turn("score", self._at), **scoring}, memory, message)
                here = ("shared", "inference") if len(test) else ("shared",)  # else a device counts the products
                shared[name] = {part: on_shared[part] for part in here if part in on_shared}
        scored = self._answers(packed, lambda name, answer: read_scores(name, answer, self.plan.task))
        # By device, as `measure` puts the parts together.
        return {name: {name: scores | shared[name]} for name, scores in scored.items()}

    def _answers(
        self, packed: Mapping[str, bytes], read: Callable[[str, bytes], Any], failed: list[str] | None = None
    ) -> dict[str, Any]:
        """Return what answers say. failed: gets the devices that can take no step."""
        known, results = {*self.away}, {}
        packed = {name: call for name, call in packed.items() if "changed" not in self.facts.get(name, ())}
        answers = ask(self.link, packed, self.seconds, self._joining, self.notify, self.away, self._note)
        for name in packed:
            if name not in answers:
                if name not in known:
                    self.notify(f"{name}: no answer in {self.seconds:g} s")
                continue
            try:
                results[name] = read(name, answers[name])
            except InputError as refused:
                self.say_once(str(refused)[:1000])
                if failed is not None and isinstance(refused, NoStep):
                    failed.append(name)
        return results


def require(refused: Sequence[str], agreed: int, least: int | None, notify: Callable[[str], None]) -> None:
    """Refuse to go on where devices refuse, unless enough others agree: then they are absent, and named."""
    if refused and (least is None or agreed < least):
        raise InputError("; ".join(refused))
    for line in refused:
        notify(line)


def exchange(
    link: Link, plan: Plan, seconds: float, least: int, notify: Callable[[str], None] = lambda line: None,
    away: set[str] | None = None,
) -> tuple[Plan, dict[str, dict[str, float]]]:  # fmt: skip
    """Return a plan whose recipe has the numbers that devices share, and the bytes that each device sent and received.

    Each device sends its medians, or its means and variances, once. away: see `ask`. Raises InputError with the reason
    of each device that refuses, unless `least` agree, and TooFew if less than `least` answer: the scale of those that
    were away would be another.
    """
    recipe = plan.read_recipe()
    if recipe is None or recipe.lacks is None:
        return plan, {}
    schema, heard = recipe.schema, set(plan.nets)
    while recipe.lacks is not None:
        call = pack({"ask": "numbers", "plan": plan.to_json()})
        known, refused, numbers, sizes = {*(away or ())}, [], {}, {}
        answers = ask(link, dict.fromkeys(plan.nets, call), seconds, notify=notify, away=away)
        for name in sorted(answers):
            try:
                header, tensors = read_reply(answers[name], name, "numbers")
                sizes[name] = max(1, read_number(header, "examples", f"answer of {name}"))
                numbers[name] = tensors.get("numbers", {})
            except InputError as error:
                refused.append(str(error))
        require(refused, len(numbers), least, notify)
        for name in sorted(plan.nets.keys() - answers.keys() - known):
            notify(f"{name}: no answer in {seconds:g} s; what all share lacks its numbers")
        heard &= numbers.keys()
        if len(numbers) < least:
            raise TooFew(f"{len(numbers)} of {len(plan.nets)} devices sent their numbers, at least {least} must")
        recipe = recipe.with_numbers({name: numbers[name] for name in plan.nets if name in numbers}, sizes)
        plan = replace(plan, recipe=recipe.to_mapping())
    return plan, dict.fromkeys(sorted(heard), preparation_bytes(schema, recipe.scale))


def run_in_field(field: Field, seed: int, *, state: State | None = None, least: int = 1) -> Iterator[RoundResult]:
    """Run the plan's method on devices that have joined, turn by turn, see :func:`fedcore.core.rounds.run`."""
    return run(field.method, field.fed, seed, field, state, least=least)


def federation_of(public: Public) -> Federation:
    """Return the server's view of a federation: the examples of its devices are elsewhere."""
    devices: dict[str, Any] = {name: Device(name, net, RemoteHandle(name)) for name, net in public.nets.items()}  # type: ignore[arg-type]
    return Federation(devices, public.test, public.classes, public.server_data)


def disjoint(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """Return the pairs in groups, in each of which a device is once."""
    groups: list[list[Pair]] = []
    for pair in pairs:
        free = (group for group in groups if not any({*pair} & {*other} for other in group))
        if (group := next(free, None)) is None:
            groups.append([pair])
        else:
            group.append(pair)
    return groups


def _call(header: Mapping[str, Any], memory: Any, message: Message, received: Params | None = None) -> bytes:
    more = {} if received is None else {"received": received}
    parts = {"params": message.params, "extra": message.extra, **more}
    return pack({**header, "memory": memory.digest if memory else ""}, parts)
